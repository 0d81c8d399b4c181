"""Small teacher data, shared by the tests."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from sklearn_aim import AMPAttentionRegressor, make_attention_sequences

# the same examples on every run and machine; compiling on first use breaks any deadline
settings.register_profile("sklearn_aim", deadline=None, derandomize=True, database=None)
settings.load_profile("sklearn_aim")

SETTINGS = [(link, tied) for link in ("identity", "softmax", "hardmax") for tied in (True, False)]


@dataclass(frozen=True)
class Teacher:
    """One draw from the model, and the parameters of the estimator that assumes it."""

    X: np.ndarray
    y: np.ndarray
    S: np.ndarray
    params: dict = field(repr=False)

    def estimator(self, **params):
        return AMPAttentionRegressor(**{**self.params, **params})


def draw_teacher(link, tied, n_samples=200, n_tokens=3, n_features=8, width=0.5, noise=0.1, random_state=1):
    """Noise keeps V away from zero, where nothing could be told apart."""
    X, y, S = make_attention_sequences(
        n_samples,
        n_tokens,
        n_features,
        width=width,
        tied=tied,
        link=link,
        noise=noise,
        random_state=random_state,
        return_interaction=True,
    )
    return Teacher(X, y, S, {"width": width, "tied": tied, "link": link, "noise": noise})


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread():
    # on matrices this small more threads only cost time
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture(scope="session", params=SETTINGS, ids=lambda s: f"{s[0]}-{'tied' if s[1] else 'untied'}")
def teacher(request):
    """Three tokens, eight features, every link, tied and untied. Not to be modified."""
    link, tied = request.param
    return draw_teacher(link, tied, noise=0.3 if link == "hardmax" else 0.1)


@pytest.fixture(scope="session")
def fitted(teacher):
    """The estimator fitted on `teacher`. Not to be modified."""
    return teacher.estimator().fit(teacher.X, teacher.y)


@pytest.fixture(scope="session")
def softmax_teacher():
    """One setting, for what doesn't depend on the link."""
    return draw_teacher("softmax", True)
