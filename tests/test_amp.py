"""Message passing reaches the bound, follows state evolution, and stays finite on anything."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    TeacherError,
    attention_error,
    estimation_error,
    make_attention_sequences,
)
from sklearn_aim.channels import make_channel


def learn(alpha, d, seed, *, width=0.5, n_tokens=2, tied=True, link="softmax", noise=0.0, teacher_noise=None, **params):
    X, y, S = make_attention_sequences(
        int(round(alpha * d * d)),
        n_tokens,
        d,
        width=width,
        tied=tied,
        link=link,
        noise=noise if teacher_noise is None else teacher_noise,
        random_state=seed,
        return_interaction=True,
    )
    est = AMPAttentionRegressor(width=width, tied=tied, link=link, noise=noise, **params)
    return est.fit(X, y, callback=TeacherError(S)), S


@pytest.mark.parametrize(
    ("link", "n_tokens", "tied", "alpha"),
    [
        ("softmax", 2, True, 0.1),
        ("softmax", 3, True, 0.06),
        ("hardmax", 2, True, 0.5),
        ("hardmax", 3, True, 0.3),
        ("softmax", 3, False, 0.06),
        ("identity", 1, True, 0.3),
        ("identity", 2, True, 0.05),
    ],
)
def test_error_is_the_bound(link, n_tokens, tied, alpha):
    # d = 100, 3 seeds: finite-size effects of some per cent; benchmarks/amp_reaches_the_bound.py is sharper
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        runs = [learn(alpha, 100, seed, link=link, n_tokens=n_tokens, tied=tied) for seed in range(3)]
    error = np.mean([estimation_error(S, est.interaction_) for est, S in runs])
    if link == "hardmax" and n_tokens > 2:
        # the bound's averages at three tokens are slow: V of the run itself is what theory says for this run
        bound = np.mean([est.estimation_error_ for est, _ in runs])
    else:
        bound = BayesOptimalBound.from_estimator(runs[0][0]).estimation_error()
    assert error == pytest.approx(bound, rel=0.1, abs=0.02)


@pytest.mark.parametrize(("link", "alpha"), [("softmax", 0.1), ("hardmax", 0.25)])
def test_undamped_run_follows_state_evolution(link, alpha):
    with pytest.warns(ConvergenceWarning):
        est, _ = learn(alpha, 400, 0, link=link, damping=0.0, max_iter=10, tol=0.0)
    path = BayesOptimalBound(0.5, link=link).state_evolution(alpha, n_iter=10)
    # the error against the teacher, which the algorithm does not see
    np.testing.assert_allclose(est.history_["true_error"], path["estimation_error"], rtol=0.06)
    np.testing.assert_allclose(est.history_["information"], path["information"], rtol=0.06)
    # and labels have the energy that V says: V is the error
    np.testing.assert_allclose(est.history_["energy_ratio"], 1, atol=0.1)


def test_prediction_attains_the_bounds_test_error():
    for link, alpha in (("softmax", 0.08), ("hardmax", 0.3)):
        est, S = learn(alpha, 150, 1, link=link)
        X, y = make_attention_sequences(20_000, 2, 150, interaction=S, link=link, random_state=7)
        error = attention_error(y, est.predict(X))
        bound = BayesOptimalBound.from_estimator(est).test_error()
        assert error == pytest.approx(bound, rel=0.06)
        plugged = make_channel(link, 2).link(est.predict_index(X))
        assert attention_error(y, plugged) > 1.02 * error


def test_predicted_spread_is_calibrated():
    est, S = learn(0.08, 100, 2, n_tokens=3, noise=0.1)
    X, y = make_attention_sequences(5000, 3, 100, interaction=S, noise=0.1, random_state=3)
    mean, std = est.predict(X, return_std=True)
    assert np.mean((y - mean) ** 2) == pytest.approx(np.mean(std**2), rel=0.08)
    within = np.abs(y - mean) < 1.645 * std
    assert 0.85 < within.mean() < 0.95


@pytest.mark.parametrize("link", ["softmax", "identity", "hardmax"])
def test_noise_is_estimated(link):
    alpha = 1.5 if link == "hardmax" else 0.6
    est, S = learn(alpha, 60, 0, link=link, noise="estimate", teacher_noise=0.2)
    assert est.noise_ == pytest.approx(0.2, abs=0.08)
    known, _ = learn(alpha, 60, 0, link=link, noise=0.2)
    assert estimation_error(S, est.interaction_) < 1.1 * estimation_error(S, known.interaction_) + 0.01


def test_exact_recovery_is_exact():
    est, S = learn(0.3, 60, 0)
    assert estimation_error(S, est.interaction_) < 1e-9
    assert est.converged_
    assert est.estimation_error_ < 1e-9


def test_information_about_an_unknown_teacher_is_not_invented():
    # labels unrelated to X: the estimate stays near the prior mean, and says so
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 2, 40))
    _, y = make_attention_sequences(800, 2, 40, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est = AMPAttentionRegressor(width=0.5).fit(X, y)
        noisy = AMPAttentionRegressor(width=0.5, noise="estimate").fit(X, y)
    for fitted in (est, noisy):
        assert np.isfinite(fitted.interaction_).all()
        assert np.linalg.norm(fitted.interaction_) ** 2 / 40 < 3
    # the labels' own variance is noise to this X
    assert noisy.noise_ > 0.8


def test_max_iter_warns_and_keeps_the_best():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        est, S = learn(0.15, 60, 0, max_iter=2)
    assert not est.converged_
    assert estimation_error(S, est.interaction_) < 1


def test_a_narrow_matrix_is_recovered_beyond_the_limiting_spectrum():
    # at d = 30 eigenvalues of S itself lie outside the limiting bulk: the clamp must not stand in their way
    X, y, S = make_attention_sequences(337, 2, 30, width=0.5, random_state=0, return_interaction=True)
    est = AMPAttentionRegressor(width=0.5).fit(X, y)
    assert estimation_error(S, est.interaction_) < 1e-9


def test_warm_start_needs_fewer_iterations():
    X, y = make_attention_sequences(1500, 2, 60, width=0.5, noise=0.1, random_state=0)
    est = AMPAttentionRegressor(width=0.5, noise=0.1, warm_start=True, tol=1e-3).fit(X, y)
    first, before = est.n_iter_, est.interaction_
    est.fit(X, y)
    assert est.n_iter_ < first
    assert np.linalg.norm(est.interaction_ - before) < 0.05 * np.linalg.norm(before)


@pytest.mark.parametrize("seed", range(16))
def test_no_divergence_on_random_problems(seed):
    rng = np.random.default_rng([seed, 20])
    link = rng.choice(["identity", "softmax", "hardmax"])
    tied = bool(rng.integers(2))
    n_tokens = int(rng.integers(1 if link == "identity" and tied else 2, 4))
    d = int(rng.integers(30, 70))
    width = float(rng.uniform(0.1, 2))
    scale = BayesOptimalBound(width, tied=tied, n_tokens=n_tokens, link="identity").recovery_threshold()
    alpha = float(np.exp(rng.uniform(np.log(0.1), np.log(3)))) * scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est, S = learn(alpha, d, seed, width=width, n_tokens=n_tokens, tied=tied, link=link)
    error = estimation_error(S, est.interaction_)
    assert np.isfinite(est.interaction_).all()
    # never worse than knowing nothing, but for the luck of a small matrix
    assert error < 1.25 * max(1.0, np.sum((S - np.sqrt(est.width_ratio_) * tied * np.eye(d)) ** 2) / d)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_wrongly_scaled_tokens_never_raise_the_error_above_the_prior(tied, scale):
    X, y = make_attention_sequences(400, 2, 20, width=0.5, link="hardmax", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est = AMPAttentionRegressor(0.5, link="hardmax", tied=tied).fit(scale * X, y)
    assert 0 <= est.estimation_error_ <= 1 + 1e-12
    assert est.overlap_ >= -1e-12


def test_a_run_that_diverges_keeps_the_best_iterate():
    # neither damped nor clamped, three sequences: warnings of overflow would be errors here
    X, y = make_attention_sequences(3, 6, 40, link="hardmax", tied=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est = AMPAttentionRegressor(0.5, link="hardmax", tied=False, damping=0.0, clamp=False).fit(X, y)
    assert np.linalg.norm(est.interaction_) < 1e6
    assert est.estimation_error_ <= 1


def test_order_of_the_samples_does_not_set_the_noise():
    parts = [
        make_attention_sequences(5000, 2, 20, width=0.5, link="hardmax", noise=noise, random_state=3)
        for noise in (0.5, 0.0)
    ]
    noise = []
    for first, second in (parts, parts[::-1]):
        X, y = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            noise.append(AMPAttentionRegressor(0.5, link="hardmax", noise="estimate").fit(X, y).noise_)
    assert noise[0] == pytest.approx(noise[1], rel=0.2)


def test_callbacks_may_answer_now_and_then():
    X, y = make_attention_sequences(300, 2, 20, random_state=0)
    est = AMPAttentionRegressor(0.5).fit(X, y, callback=lambda s: {"e": 1.0} if s["iteration"] % 5 == 4 else None)
    assert est.history_["e"].shape == (est.n_iter_,)
    assert np.isnan(est.history_["e"][:4]).all()
    assert est.history_["e"][4] == 1
    with pytest.raises(ValueError, match="residual"):
        AMPAttentionRegressor(0.5).fit(X, y, callback=lambda s: {"residual": 99})
