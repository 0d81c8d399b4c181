"""Small teacher data, shared by the tests."""

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from sklearn_aim import AMPAttentionRegressor, GDAttentionRegressor, make_attention_sequences

# processes side by side (pytest -n) have a core each
if "PYTEST_XDIST_WORKER" in os.environ:
    threadpool_limits(1, "blas")

# figures of tests and doctests need no screen
os.environ.setdefault("MPLBACKEND", "agg")

# the same examples on every run and machine; compiling on first use breaks any deadline
settings.register_profile("sklearn_aim", deadline=None, derandomize=True, database=None)
settings.load_profile("sklearn_aim")

SETTINGS = [(link, tied) for link in ("identity", "softmax", "hardmax") for tied in (True, False)]
# gradient descent needs a link with a derivative
SMOOTH = [(link, tied) for link, tied in SETTINGS if link != "hardmax"]


def _teachers(model, prefix, settings):
    return [
        pytest.param((model, link, tied), id=f"{prefix}{link}-{'tied' if tied else 'untied'}")
        for link, tied in settings
    ]


AMP_TEACHERS = _teachers(AMPAttentionRegressor, "", SETTINGS)
GD_TEACHERS = _teachers(GDAttentionRegressor, "GD-", SMOOTH)

# for tests of `teacher` and `fitted` that are about one of the estimators
amp_only = pytest.mark.parametrize("teacher", AMP_TEACHERS, indirect=True)
gd_only = pytest.mark.parametrize("teacher", GD_TEACHERS, indirect=True)


@dataclass(frozen=True)
class Teacher:
    """One draw from the model, and the estimator that assumes it, with its parameters."""

    X: np.ndarray
    y: np.ndarray
    S: np.ndarray
    params: dict = field(repr=False)
    model: type = AMPAttentionRegressor
    noise: float = 0.1

    def estimator(self, **params):
        return self.model(**{**self.params, **params})


def draw_teacher(
    link,
    tied,
    n_samples=200,
    n_tokens=3,
    n_features=8,
    width=0.5,
    noise=0.1,
    random_state=1,
    model=AMPAttentionRegressor,
):
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
    own = {"noise": noise} if model is AMPAttentionRegressor else {"random_state": 0}
    return Teacher(X, y, S, {"width": width, "tied": tied, "link": link, **own}, model, noise)


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread():
    # on matrices this small more threads only cost time
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture(scope="session", params=[*AMP_TEACHERS, *GD_TEACHERS])
def teacher(request):
    """Three tokens, eight features, every estimator and link, tied and untied. Not to be modified."""
    model, link, tied = request.param
    return draw_teacher(link, tied, noise=0.3 if link == "hardmax" else 0.1, model=model)


@pytest.fixture(scope="session")
def fitted(teacher):
    """The estimator fitted on `teacher`. Not to be modified."""
    return teacher.estimator().fit(teacher.X, teacher.y)


@pytest.fixture(scope="session", params=[AMPAttentionRegressor, GDAttentionRegressor], ids=["AMP", "GD"])
def softmax_teacher(request):
    """One setting, for what doesn't depend on the link."""
    return draw_teacher("softmax", True, model=request.param)


def refused(call, *patterns):
    """A ValueError or TypeError, and every pattern is in its message."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    for pattern in patterns:
        assert pattern in message, message
    return message
