"""Warm starts and paths: fewer iterations, the answers of separate fits."""

import warnings

import numpy as np
import pytest

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    PositionMeanRegressor,
    estimation_error,
    fit_path,
    make_attention_sequences,
)

SIZES = [500, 700, 1000, 1400]


@pytest.fixture(scope="module")
def teacher():
    return make_attention_sequences(1400, 2, 100, width=0.5, random_state=0, return_interaction=True)


@pytest.mark.parametrize("link", ["softmax", "hardmax"])
def test_sample_sizes(link):
    X, y, S = make_attention_sequences(1400, 2, 60, width=0.5, link=link, random_state=1, return_interaction=True)
    est = AMPAttentionRegressor(0.5, link=link)
    path = fit_path(est, X, y, values=[300, 360, 440])
    for n, walked in zip([300, 360, 440], path, strict=True):
        alone = AMPAttentionRegressor(0.5, link=link).fit(X[:n], y[:n])
        assert walked.converged_
        assert walked.sample_complexity_ == n / 60**2
        # both stop within tol posterior standard deviations of the fixed point
        assert estimation_error(alone.interaction_, walked.interaction_) < 1e-3 * alone.estimation_error_
        assert estimation_error(S, walked.interaction_) == pytest.approx(
            estimation_error(S, alone.interaction_), rel=0.02
        )
    assert not hasattr(est, "interaction_")


def test_widths_save_iterations(teacher):
    X, y, _ = teacher
    widths = [0.4, 0.5, 0.6, 0.7, 0.8]
    path = fit_path(AMPAttentionRegressor(), X[:1000], y[:1000], param_name="width", values=widths)
    alone = [AMPAttentionRegressor(width).fit(X[:1000], y[:1000]) for width in widths]
    assert [est.width for est in path] == widths
    for one, other in zip(path, alone, strict=True):
        assert estimation_error(one.interaction_, other.interaction_) < 2e-3 * other.estimation_error_
        assert one.get_params() == other.get_params()
    saved = sum(est.n_iter_ for est in path[1:]) / sum(est.n_iter_ for est in alone[1:])
    assert saved < 0.75


def test_path_follows_the_bound(teacher):
    X, y, S = teacher
    path = fit_path(AMPAttentionRegressor(0.5), X, y, values=SIZES)
    errors = [estimation_error(S, est.interaction_) for est in path]
    bound = BayesOptimalBound(0.5).estimation_error(np.array(SIZES) / 100**2)
    np.testing.assert_allclose(errors, bound, rtol=0.07)


def test_gradient_descent_goes_on(teacher):
    X, y, _ = teacher
    params = {"width": 50, "random_state": 0, "loss": "log_ratio"}
    path = fit_path(GDAttentionRegressor(**params), X, y, values=[1000, 1000])
    assert path[0].converged_
    # the second fit starts at the end of the first
    assert path[1].n_iter_ <= 2
    decays = fit_path(GDAttentionRegressor(**params), X, y, param_name="weight_decay", values=[0.0, 0.1, 1.0])
    norms = [np.linalg.norm(est.interaction_, "nuc") for est in decays]
    assert norms[0] > norms[1] > norms[2]


def test_fits_of_a_path_are_their_own(teacher):
    X, y, _ = teacher
    first, second = fit_path(AMPAttentionRegressor(0.5), X, y, values=[400, 600])
    before = first.interaction_.copy()
    second.interaction_[:] = 0
    second.fit(X[:100], y[:100])
    np.testing.assert_array_equal(first.interaction_, before)
    assert first.sample_complexity_ == 400 / 100**2


def test_warm_start_from_other_data_is_safe(teacher):
    X, y, S = teacher
    est = AMPAttentionRegressor(0.5, warm_start=True).fit(X[:700], y[:700])
    # none of these have been seen: no reaction may be taken off their indices
    est.fit(X[700:], y[700:])
    fresh = AMPAttentionRegressor(0.5).fit(X[700:], y[700:])
    assert estimation_error(est.interaction_, fresh.interaction_) < 1e-3 * fresh.estimation_error_
    assert estimation_error(S, est.interaction_) == pytest.approx(estimation_error(S, fresh.interaction_), rel=0.02)


def test_a_run_that_failed_is_no_start(teacher):
    X, y, _ = teacher
    with pytest.warns(UserWarning, match="did not converge"):
        est = AMPAttentionRegressor(0.2, warm_start=True, max_iter=60).fit(X[:1000], y[:1000])
    fresh = AMPAttentionRegressor(0.5).fit(X[:1000], y[:1000])
    est.set_params(width=0.5, max_iter=200).fit(X[:1000], y[:1000])
    np.testing.assert_array_equal(est.interaction_, fresh.interaction_)


def test_max_iter_can_be_continued(teacher):
    X, y, _ = teacher
    with pytest.warns(UserWarning, match="did not converge"):
        est = AMPAttentionRegressor(0.5, warm_start=True, max_iter=8).fit(X[:1000], y[:1000])
    est.set_params(max_iter=200).fit(X[:1000], y[:1000])
    fresh = AMPAttentionRegressor(0.5).fit(X[:1000], y[:1000])
    assert est.converged_
    assert est.n_iter_ < fresh.n_iter_
    assert estimation_error(est.interaction_, fresh.interaction_) < 1e-3 * fresh.estimation_error_


@pytest.mark.parametrize(
    ("kwargs", "kind", "match"),
    [
        ({"values": []}, ValueError, "values=.. must hold"),
        ({"values": [10, 2000]}, ValueError, "n_samples=2000, but X has 1400"),
        ({"values": [0]}, ValueError, "values=0"),
        ({"values": [2.5]}, TypeError, "values=2.5"),
        ({"values": [1], "param_name": "depth"}, ValueError, "param_name='depth' must be 'n_samples' or one of"),
        ({"values": [True], "param_name": "warm_start"}, ValueError, "warm_start apart"),
        ({"values": [1], "param_name": 3}, TypeError, "param_name"),
    ],
)
def test_bad_paths(teacher, kwargs, kind, match):
    X, y, _ = teacher
    with pytest.raises(kind, match=match):
        fit_path(AMPAttentionRegressor(), X, y, **kwargs)


def test_estimators_without_warm_start(teacher):
    X, y, _ = teacher
    with pytest.raises(TypeError, match="no parameter warm_start"):
        fit_path(PositionMeanRegressor(), X, y, values=[100])


@pytest.mark.parametrize("alpha", [0.1, 0.13])
def test_damping_eases_while_steps_contract(alpha):
    X, y = make_attention_sequences(round(alpha * 150**2), 2, 150, width=0.5, random_state=0)
    plain, eased = (AMPAttentionRegressor(0.5, damping=damping).fit(X, y) for damping in (0.3, "adaptive"))
    assert eased.converged_
    assert eased.n_iter_ < plain.n_iter_
    assert estimation_error(plain.interaction_, eased.interaction_) < 1e-3 * plain.estimation_error_


def test_ease_is_taken_back():
    # hard: message passing oscillates at little damping, and must end where more damping ends
    X, y, S = make_attention_sequences(300, 2, 40, width=0.2, random_state=1, return_interaction=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, eased = (AMPAttentionRegressor(0.2, damping=damping).fit(X, y) for damping in (0.5, "adaptive"))
    assert estimation_error(S, eased.interaction_) < 1.1 * estimation_error(S, plain.interaction_)
