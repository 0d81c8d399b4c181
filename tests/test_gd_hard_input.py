"""Hard input never ends in NaN, in warnings of another kind, or in a descent that went up."""

import warnings

import numpy as np
import pytest
from conftest import SMOOTH
from sklearn.exceptions import ConvergenceWarning
from test_bad_input import HARD, scaled, teacher_data

from sklearn_aim import GDAttentionRegressor


def scaled_labels(factor):
    def make(link, tied):
        X, y = teacher_data(link, tied, 50, 3, 4)
        return X, factor * y

    return make


HARD_FOR_DESCENT = {
    **HARD,
    "n=1": lambda link, tied: teacher_data(link, tied, 1, 2, 3),
    "n=1, d=1": lambda link, tied: teacher_data(link, tied, 1, 3, 1),
    "no labels but zeros": scaled_labels(0.0),
    "nothing but zeros": lambda link, tied: [np.zeros((20, 2, 3)), np.zeros((20, 2, 2))],
    "one-hot labels": lambda link, tied: teacher_data("hardmax", tied, 60, 3, 5),
    "sharp labels": lambda link, tied: teacher_data("softmax", tied, 60, 3, 5, inverse_temperature=1e4),
    "large labels": scaled_labels(1e8),
    "large X": scaled(1e3),
    "large X in single precision": scaled(1e3, np.float32),
}


def descend(X, y, **params):
    """Fit; convergence is claimed without a warning, anything else with one, and no warning is of another kind."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = GDAttentionRegressor(**{"random_state": 0, "max_iter": 60, **params}).fit(X, y)
    # tokens that are not of unit variance are pointed out where the trace is taken off
    scale = [w for w in caught if "mean square" in str(w.message)]
    mean_square = np.mean(np.square(X, dtype=float))
    assert len(scale) == (
        estimator.link == "softmax" and not estimator.fit_bias and X.size >= 200 and not 0.5 < mean_square < 2
    )
    # so are labels that no softmax gives
    rows = [w for w in caught if "rows of y" in str(w.message)]
    assert len(rows) == (estimator.link == "softmax" and np.abs(y.sum(axis=2) - 1).max() > 1e-3)
    caught = [w for w in caught if w not in scale + rows]
    assert all(w.category is ConvergenceWarning for w in caught), [str(w.message) for w in caught]
    if estimator.tol > 0:
        assert (len(caught) == 0) == estimator.converged_, [str(w.message) for w in caught]
    return estimator


def assert_sound_descent(estimator, X):
    """All that a descent leaves is finite and agrees with itself, and no start ended above where it began."""
    n_init, n_layers = estimator.n_init, estimator.n_layers
    assert estimator.interactions_.shape[0] == len(estimator.losses_) == len(estimator.loss_curve_) == n_init
    for name in ("interaction_", "interactions_", "bias_", "losses_", *(("W_",) if estimator.tied else ("U_", "V_"))):
        assert np.isfinite(getattr(estimator, name)).all(), name
    assert estimator.best_loss_ == estimator.losses_.min()
    assert 1 <= estimator.n_iter_ <= estimator.max_iter
    for loss, curve in zip(estimator.losses_, estimator.loss_curve_, strict=True):
        assert np.isfinite(curve).all()
        if not estimator.early_stopping:
            assert loss == curve.min() <= curve[0]
    if n_init > 1:
        assert (np.asarray(getattr(estimator, "start_spread_", 0.0)) >= 0).all()
        assert np.isfinite(getattr(estimator, "estimation_error_", 0.0)).all()
    if estimator.tied:
        S = estimator.interaction_.reshape(n_layers, X.shape[2], X.shape[2])
        np.testing.assert_allclose(S, S.transpose(0, 2, 1), rtol=0, atol=1e-5 * np.abs(S).max())
    maps, indices = estimator.predict(X), estimator.predict_index(X)
    assert np.isfinite(maps).all()
    assert np.isfinite(indices).all()
    if estimator.link == "softmax":
        np.testing.assert_allclose(maps.sum(axis=2), 1, rtol=1e-4 if maps.dtype == np.float32 else 1e-6)


@pytest.mark.parametrize(("link", "tied"), SMOOTH)
@pytest.mark.parametrize("case", list(HARD_FOR_DESCENT))
def test_hard_input_for_descent(case, link, tied):
    X, y = HARD_FOR_DESCENT[case](link, tied)
    assert_sound_descent(descend(X, y, link=link, tied=tied), X)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("case", list(HARD_FOR_DESCENT))
def test_hard_input_for_deep_descent(case, tied):
    X, y = HARD_FOR_DESCENT[case]("softmax", tied)
    assert_sound_descent(descend(X, y, tied=tied, n_layers=2, fit_bias=True, n_init=2), X)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("case", list(HARD_FOR_DESCENT))
def test_hard_input_for_first_order_descent(case, solver):
    X, y = HARD_FOR_DESCENT[case]("softmax", True)
    assert_sound_descent(descend(X, y, solver=solver, batch_size=16, n_init=2, max_iter=10), X)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "case",
    [case for case in HARD_FOR_DESCENT if case not in ("no labels but zeros", "nothing but zeros", "large labels")],
)
def test_hard_input_for_the_cross_entropy(case, tied):
    X, y = HARD_FOR_DESCENT[case]("softmax", tied)
    estimator = descend(X, y, tied=tied, loss="cross_entropy")
    assert_sound_descent(estimator, X)
    # a divergence, so that it can't be negative, but for rounding
    assert estimator.best_loss_ >= -1e-5 * y.shape[1]


@pytest.mark.parametrize(("link", "tied"), SMOOTH)
@pytest.mark.parametrize(
    "params",
    [
        {"width": 0.01},
        {"width": 5.0},
        {"inverse_temperature": 30.0},
        {"inverse_temperature": 1e-3},
        {"fit_bias": True},
        {"center": False},
        {"scaling": "sequence-index"},
        {"init_scale": 1e-8},
        {"init_scale": 1e3},
        {"weight_decay": 1e4},
        {"tol": 0.0},
        {"tol": 10.0},
        {"max_iter": 1},
        {"n_init": 3, "average": False},
        {"solver": "adam", "learning_rate": 1e3},
        {"solver": "sgd", "learning_rate": 1e3},
        {"solver": "sgd", "momentum": 0.0},
        {"solver": "sgd", "momentum": 0.999},
        {"batch_size": 1, "max_iter": 2},
        {"batch_size": 10**9},
        {"early_stopping": True},
        {"early_stopping": True, "validation_fraction": 0.98, "batch_size": 1},
        {"n_jobs": -1, "n_init": 2},
    ],
    ids=str,
)
def test_hard_parameters_for_descent(params, link, tied):
    X, y = teacher_data(link, tied, 50, 2, 6)
    assert_sound_descent(descend(X, y, link=link, tied=tied, **params), X)


@pytest.mark.parametrize(("link", "tied"), SMOOTH)
@pytest.mark.parametrize(
    "params", [{}, {"solver": "adam"}, {"early_stopping": True}, {"n_jobs": 2, "n_init": 2}], ids=str
)
@pytest.mark.parametrize(
    ("factor", "dtype"),
    [(1e6, np.float64), (1e18, np.float64), (1e160, np.float64), (1e6, np.float32), (1e18, np.float32)],
)
def test_huge_x_for_descent(factor, params, dtype, link, tied):
    X, y = scaled(factor, dtype)(link, tied)
    try:
        estimator = descend(X, y, link=link, tied=tied, **params)
    except ValueError as error:
        # as good an answer, if it says what to do
        assert "X" in str(error).split()  # noqa: PT017
        assert "TokenWhitener" in str(error)  # noqa: PT017
        return
    assert_sound_descent(estimator, X)
