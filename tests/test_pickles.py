"""Estimators that earlier versions stored load and answer as they did, or say which versions made them."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import sklearn_aim
from sklearn_aim import PositionMeanRegressor

FILES = sorted((Path(__file__).parent / "data").glob("fitted-*.pkl"))


def test_there_are_files_of_this_version():
    assert any(path.name.startswith(f"fitted-{sklearn_aim.__version__}-") for path in FILES)
    assert all(path.stat().st_size < 20_000 for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_estimators(path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator, X, expected = pickle.loads(path.read_bytes())
    version = path.stem.split("-")[1]
    for warning in caught:
        message = str(warning.message)
        assert f"{type(estimator).__name__} was stored by sklearn-aim {version}" in message
        assert f"loaded by {sklearn_aim.__version__}" in message
    assert len(caught) == (version != sklearn_aim.__version__)
    for answer in ("predict", "transform", "estimation_error"):
        if hasattr(estimator, answer):
            found = getattr(estimator, answer)(X)
            break
    # earlier versions of numpy and BLAS round otherwise
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert type(estimator)(**estimator.get_params(deep=False)).get_params().keys() == estimator.get_params().keys()
    assert repr(estimator)


def test_another_version_is_named(monkeypatch):
    stored = pickle.dumps(PositionMeanRegressor())
    monkeypatch.setattr(sklearn_aim, "__version__", "9.0")
    with pytest.warns(UserWarning, match=r"PositionMeanRegressor was stored .* and is loaded by 9\.0"):
        estimator = pickle.loads(stored)
    # the version is of the file, not of the estimator
    assert "_sklearn_aim_version" not in vars(estimator)
