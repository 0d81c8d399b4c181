"""AMPAttentionRegressor for maps of real heads: key bias, whitening, annealing, width="auto" and diagnostics."""

import pickle
import warnings

import numpy as np
import pytest
from conftest import refused
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    TokenWhitener,
    estimation_error,
    interval_coverage,
    make_attention_sequences,
)

NEW = [
    {"fit_bias": True},
    {"whiten": 0.5},
    {"solver": "annealed"},
    {"solver": "linear"},
    {"width": "auto"},
    {"fit_bias": True, "whiten": 0.0, "solver": "annealed", "width": "auto"},
]
KEYS = {
    "token_mean",
    "token_power",
    "token_norm_spread",
    "token_kurtosis",
    "position_mean",
    "energy_ratio",
    "coverage",
    "failed",
}


def softmax_of(h, allowed=None):
    if allowed is not None:
        h = np.where(allowed, h, -np.inf)
    y = np.exp(h - h.max(axis=-1, keepdims=True))
    return y / y.sum(axis=-1, keepdims=True)


def documented_indices(X, S, b, tau):
    """The formula in the docstring, with sums written out."""
    d = X.shape[2]
    h = np.einsum("nai,ij,nbj->nab", X, S, X) + np.einsum("nbj,j->nb", X, b)[:, None, :]
    return (h - np.trace(S) * np.eye(X.shape[1])) / np.sqrt(d) + tau * np.eye(X.shape[1])


def without_shifts(h):
    """What softmax sees: rows but for a constant."""
    return h - h.mean(axis=-1, keepdims=True)


def biased_teacher(tied, link="softmax", n=700, n_tokens=3, d=20, seed=1):
    rng = np.random.default_rng(seed)
    X, _, S = make_attention_sequences(n, n_tokens, d, width=0.5, tied=tied, random_state=seed, return_interaction=True)
    b, tau = rng.standard_normal(d), 0.8
    h = documented_indices(X, S, b, tau)
    return X, (softmax_of(h) if link == "softmax" else h), S, b, tau


def fit_quietly(estimator, X, y, **options):
    """Fit, whether or not it converges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y, **options)


# ----------------------------------------------------------------------------------------------------------------
# key bias


@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("tied", [True, False])
def test_biased_teachers_are_learned(tied, link):
    X, y, S, b, tau = biased_teacher(tied, link)
    est = AMPAttentionRegressor(0.5, tied=tied, link=link, fit_bias=True).fit(X, y)
    assert est.converged_
    assert estimation_error(S, est.interaction_) < 1e-6
    assert_allclose(est.bias_, b, atol=1e-3)
    assert est.diagonal_ == pytest.approx(tau, abs=1e-3)
    assert_allclose(est.predict(X), y, atol=1e-3)
    assert est.diagnostics_["failed"] == []
    assert est.diagnostics_["coverage"] is None
    # to new sequences, of another length
    other = np.random.default_rng(9).standard_normal((5, 4, 20))
    h = documented_indices(other, S, b, tau)
    assert_allclose(est.predict(other), softmax_of(h) if link == "softmax" else h, atol=1e-3)
    assert_allclose(est.predict_index(other), h, atol=1e-3)
    # without it they are not
    without = fit_quietly(AMPAttentionRegressor(0.5, tied=tied, link=link), X, y)
    assert estimation_error(S, without.interaction_) > 1e-3
    assert without.diagnostics_["failed"]
    assert_array_equal(without.bias_, np.zeros(20))
    assert without.diagonal_ == 0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["causal", "padding", "pairs"])
def test_biased_teachers_behind_masks_are_learned(tied, kind):
    rng = np.random.default_rng(3)
    n, n_tokens = 1000, 4
    X, _, S, b, tau = biased_teacher(tied, n=n, n_tokens=n_tokens)
    padding = np.arange(n_tokens) < rng.integers(2, 5, n)[:, None]
    mask, pairs = {
        "causal": ("causal", np.tri(n_tokens, dtype=bool)),
        "padding": (padding, padding[:, :, None] & padding[:, None, :]),
        "pairs": ((rng.random((n, n_tokens, n_tokens)) < 0.7) | np.eye(n_tokens, dtype=bool),) * 2,
    }[kind]
    pairs = np.broadcast_to(pairs, (n, n_tokens, n_tokens))
    shown = pairs | ~pairs.any(axis=2, keepdims=True)
    y = np.where(pairs, softmax_of(documented_indices(X, S, b, tau), shown), 0)
    est = AMPAttentionRegressor(0.5, tied=tied, fit_bias=True).fit(X, y, mask=mask)
    assert estimation_error(S, est.interaction_) < 1e-5
    assert_allclose(est.bias_, b, atol=1e-2)
    assert est.diagonal_ == pytest.approx(tau, abs=1e-2)
    assert_allclose(est.predict(X, mask=mask), y, atol=1e-2)
    assert est.diagnostics_["failed"] == []


def test_biased_teacher_behind_the_causal_mask_of_tied_identity_is_learned():
    X, y, S, b, _ = biased_teacher(True, "identity", n=1500)
    est = fit_quietly(
        AMPAttentionRegressor(0.5, link="identity", fit_bias=True), X, np.where(np.tri(3), y, 0), mask="causal"
    )
    assert estimation_error(S, est.interaction_) < 1e-6
    assert_allclose(est.bias_, b, atol=1e-3)


def mixed(X, seed=5):
    """Tokens with a mean and a covariance."""
    rng, d = np.random.default_rng(seed), X.shape[2]
    return X @ (np.eye(d) + rng.standard_normal((d, d)) / (2 * np.sqrt(d))) + rng.standard_normal(d)


@pytest.mark.parametrize("ridge", [0.0, 0.5, 1])
@pytest.mark.parametrize("tied", [True, False])
def test_whitened_teachers_are_learned_in_raw_features(tied, ridge):
    X, y, _, _, _ = biased_teacher(tied, n=1000)
    raw = mixed(X)
    est = fit_quietly(AMPAttentionRegressor(0.5, tied=tied, fit_bias=True, whiten=ridge), raw, y)
    assert est.score(raw, y) > 0.99
    formula = documented_indices(raw, est.interaction_, est.bias_, est.diagonal_)
    assert_allclose(without_shifts(formula), without_shifts(est.predict_index(raw)), atol=1e-10)
    if ridge == 0:
        # exact recovery: the teacher itself
        assert_allclose(est.predict(raw), y, atol=1e-3)
        assert_allclose(softmax_of(formula), y, atol=1e-3)
    assert_array_equal(est.whitener_.components_, TokenWhitener(ridge).fit(raw).components_)


@pytest.mark.parametrize(("tied", "fit_bias", "solver"), [(True, False, "amp"), (False, True, "annealed")])
def test_the_formula_holds_for_dropped_directions_other_links_and_masks(tied, fit_bias, solver):
    rng = np.random.default_rng(0)
    # two features that are sums of others
    raw = rng.standard_normal((300, 3, 6)) @ rng.standard_normal((6, 8)) + 2
    y = softmax_of(rng.standard_normal((300, 3, 3)) * np.tri(3), np.tri(3, dtype=bool))
    est = AMPAttentionRegressor(0.5, tied=tied, fit_bias=fit_bias, whiten=0.1, solver=solver, noise=1.0)
    fit_quietly(est, raw, y, mask="causal")
    assert est.whitener_.n_components_ == 6
    assert est.interaction_.shape == (8, 8)
    assert est.bias_.shape == (8,)
    formula = documented_indices(raw, est.interaction_, est.bias_, est.diagonal_)
    assert_allclose(without_shifts(formula), without_shifts(est.predict_index(raw)), atol=1e-10)
    identity = clone(est).set_params(link="identity")
    fit_quietly(identity, raw, rng.standard_normal((300, 3, 3)))
    formula = documented_indices(raw, identity.interaction_, identity.bias_, identity.diagonal_)
    assert_allclose(without_shifts(formula), without_shifts(identity.predict_index(raw)), atol=1e-10)


def test_bias_to_raw_is_the_bias_of_whitened_tokens_but_for_a_constant():
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((50, 3, 4)) @ rng.standard_normal((4, 6)) + 1
    whitener = TokenWhitener(0.3).fit(raw)
    b = rng.standard_normal(4)
    difference = raw @ whitener.bias_to_raw(b) / np.sqrt(6) - whitener.transform(raw) @ b / np.sqrt(4)
    assert_allclose(difference, difference[0, 0], atol=1e-12)
    refused(lambda: whitener.bias_to_raw(np.ones(6)), "bias", "(6,)", "4 features")


@pytest.mark.parametrize("tied", [True, False])
def test_whitening_in_fit_is_whitening_before_it(tied):
    X, y, _, _, _ = biased_teacher(tied, n=150)
    raw = mixed(X)
    whitener = TokenWhitener(0.2).fit(raw)
    est = AMPAttentionRegressor(0.5, tied=tied, fit_bias=True, noise=0.1)
    inside = fit_quietly(clone(est).set_params(whiten=0.2), raw, y)
    before = fit_quietly(clone(est), whitener.transform(raw), y)
    assert_allclose(inside.predict(raw), before.predict(whitener.transform(raw)), atol=1e-10)
    assert inside.estimation_error_ == pytest.approx(before.estimation_error_, rel=1e-8)
    S, _, from_mean = whitener.interaction_to_raw(before.interaction_, return_bias=True)
    assert_allclose(inside.interaction_, S, atol=1e-10)
    assert_allclose(inside.bias_, from_mean + whitener.bias_to_raw(before.bias_), atol=1e-10)


@pytest.mark.parametrize("tied", [True, False])
def test_key_bias_costs_its_share_of_the_information(tied):
    n, d, n_tokens = (350, 60, 2) if tied else (900, 60, 2)
    noise, claimed, true = 0.1, [], []
    for seed in range(4):
        X, y, S = make_attention_sequences(
            n, n_tokens, d, width=0.5, tied=tied, noise=noise, random_state=seed, return_interaction=True
        )
        est = fit_quietly(AMPAttentionRegressor(0.5, tied=tied, noise=noise, fit_bias=True), X, y)
        claimed.append(est.estimation_error_)
        true.append(estimation_error(S, est.interaction_))
    assert np.mean(claimed) == pytest.approx(np.mean(true), rel=0.15)
    # as if there were fewer sequences, by the combinations that (b, tau) take: 2 of every sequence in both cases
    bound = BayesOptimalBound(0.5, n_tokens=n_tokens, tied=tied, noise=noise)
    left = 1 - (d + 1) / (2 * n)
    assert np.mean(claimed) == pytest.approx(bound.estimation_error(left * n / d**2), rel=0.02)


@pytest.mark.parametrize("options", NEW, ids=str)
def test_single_precision_stays(options):
    X, y, S, b, _ = biased_teacher(False, n=700)
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "fit_bias": True, **options})
    fit_quietly(est, X.astype(np.float32), y.astype(np.float32))
    for value in (est.interaction_, est.bias_, est.predict(X), est.predict_index(X), *est.predict(X, return_std=True)):
        assert value.dtype == np.float32
    assert est.score(X, y) > 0.99
    if "whiten" not in options:
        assert_allclose(est.bias_, b, atol=0.05)
        assert estimation_error(S, est.interaction_) < 1e-3


# ----------------------------------------------------------------------------------------------------------------
# annealed, and width="auto"


def above_recovery(ratio, tied, times, d=50, n_tokens=3, seed=0, **options):
    bound = BayesOptimalBound(ratio, n_tokens=n_tokens, tied=tied, **options)
    n = int(times * bound.recovery_threshold() * d**2)
    return make_attention_sequences(
        n, n_tokens, d, width=ratio, tied=tied, random_state=seed, return_interaction=True, **options
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("ratio", "d", "seed"), [(0.2, 50, 0), (0.2, 60, 1), (0.4, 60, 2), (0.6, 50, 3)])
def test_the_width_is_found(tied, ratio, d, seed):
    X, y, S = above_recovery(ratio, tied, 1.5, d=d, seed=seed)
    est = AMPAttentionRegressor("auto", tied=tied, solver="annealed").fit(X, y)
    r = round(ratio * d)
    assert abs(est.width_ - r) <= max(1, 0.1 * r)
    assert est.width_ratio_ == est.width_ / d
    assert np.linalg.matrix_rank(est.interaction_) == est.width_
    # on its way to recovery, of which 1.5 is not far above at this d
    assert estimation_error(S, est.interaction_) < 0.1
    assert est.score(X, y) > 0.98


@pytest.mark.parametrize(("link", "tied"), [("softmax", True), ("softmax", False), ("identity", True)])
def test_message_passing_at_the_width_that_was_found_recovers(link, tied):
    X, y, S = above_recovery(0.4, tied, 1.6, link=link)
    est = AMPAttentionRegressor("auto", tied=tied, link=link).fit(X, y)
    assert abs(est.width_ - 20) <= 2
    assert est.converged_
    assert_allclose(est.predict(X), y, atol=1e-2)
    assert estimation_error(S, est.interaction_) < 1e-4
    assert est.get_params()["width"] == "auto"


@pytest.mark.parametrize("tied", [True, False])
def test_the_width_is_found_from_much_data(tied):
    X, y, S = make_attention_sequences(2400, 4, 32, width=16, tied=tied, random_state=1, return_interaction=True)
    est = AMPAttentionRegressor("auto", tied=tied, solver="annealed").fit(X, y)
    assert abs(est.width_ - 16) <= 1
    assert estimation_error(S, est.interaction_) < 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_annealing_is_no_worse_than_linear_estimation_in_noise(tied):
    bound = BayesOptimalBound(0.4, n_tokens=3, tied=tied, noise=0.2)
    d, alpha = 40, 0.4
    X, y, S = make_attention_sequences(
        int(alpha * d**2), 3, d, width=0.4, tied=tied, noise=0.2, random_state=0, return_interaction=True
    )
    est = AMPAttentionRegressor(0.4, tied=tied, noise=0.2, solver="annealed").fit(X, y)
    linear = clone(est).set_params(solver="linear").fit(X, y)
    error = estimation_error(S, est.interaction_)
    assert error > 0.7 * bound.estimation_error(alpha)
    assert error < 1.1 * estimation_error(S, linear.interaction_)
    # of 96 sequences that were held out, 5 or 6 combinations each: four standard errors
    assert est.estimation_error_ == pytest.approx(error, abs=4 * (0.2 + error) * np.sqrt(2 / 480))


@pytest.mark.parametrize("tied", [True, False])
def test_linear_estimation(tied):
    # more combinations than unknowns: least squares, of any S
    rng = np.random.default_rng(0)
    S = rng.standard_normal((12, 12))
    S = S + S.T if tied else S
    X, y = make_attention_sequences(400, 3, 12, interaction=S, tied=tied, link="identity", random_state=0)
    est = AMPAttentionRegressor(1, tied=tied, link="identity", solver="linear").fit(X, y)
    assert estimation_error(S, est.interaction_) < 1e-4
    assert est.estimation_error_ < 1e-3
    # in noise S + Z/sqrt(q_hat), q_hat = alpha T (T + 1)/Delta or alpha T^2/Delta: not shrunk, so that it has no bias
    X, y = make_attention_sequences(1500, 3, 12, interaction=S, tied=tied, link="identity", noise=0.5, random_state=0)
    est = AMPAttentionRegressor(1, tied=tied, link="identity", noise=0.5, solver="linear").fit(X, y)
    expected = 0.5 * 144 / 1500 / (12 if tied else 9)
    assert estimation_error(S, est.interaction_) == pytest.approx(expected, rel=0.5)
    assert est.noise_ == 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_the_annealed_solver_does_not_need_gaussian_tokens(tied):
    # Student's t of 5 degrees of freedom, at lengths of their own, in a covariance of their own
    rng = np.random.default_rng(0)
    raw = mixed(rng.standard_t(5, (900, 3, 20)) * rng.uniform(0.5, 2, (900, 3, 1)))
    _, _, S = make_attention_sequences(2, 3, 20, width=6, tied=tied, random_state=0, return_interaction=True)
    b = rng.standard_normal(20)
    y = softmax_of(0.5 * documented_indices(raw, S, b, 0.3))
    est = fit_quietly(
        AMPAttentionRegressor(6, tied=tied, inverse_temperature=0.5, solver="annealed", fit_bias=True),
        raw[:700],
        y[:700],
    )
    assert est.score(raw[700:], y[700:]) > 0.99
    assert {"token_kurtosis", "token_mean", "token_norm_spread"} <= set(est.diagnostics_["failed"])


def test_annealed_attributes():
    X, y, _ = above_recovery(0.3, False, 1.5, d=30)
    seen = []
    est = AMPAttentionRegressor(9, tied=False, solver="annealed")
    est.fit(X, y, callback=lambda state: seen.append(state) or {"twice": 2 * state["iteration"]})
    assert set(est.history_) == {"held_out_square", "width", "noise_level", "twice"}
    assert len(seen) == est.n_iter_
    assert [state["iteration"] for state in seen] == list(range(est.n_iter_))
    assert_array_equal(est.history_["twice"], 2 * np.arange(est.n_iter_))
    assert (np.diff(est.history_["noise_level"]) < 0).all()
    assert est.overlap_ == pytest.approx(np.sum(est.interaction_**2) / 30)
    # q_hat = alpha T (T - 1)/V
    assert est.information_ == pytest.approx(len(X) / 900 * 6 / est.estimation_error_)
    # the width is kept
    assert est.width_ <= 9
    assert est.diagnostics_["energy_ratio"] is None
    # repeatable
    assert_array_equal(clone(est).fit(X, y).interaction_, est.interaction_)


@pytest.mark.parametrize("options", [{"noise": 0.3}, {"noise": "estimate"}])
def test_annealed_with_noise(options):
    X, y = make_attention_sequences(800, 3, 20, width=0.4, tied=False, noise=0.3, random_state=0)
    est = AMPAttentionRegressor("auto", tied=False, solver="annealed", **options).fit(X, y)
    # "estimate" leaves the noise in V
    assert est.noise_ == options.get("noise") if options["noise"] == 0.3 else est.noise_ == 0
    assert 0.3 <= est.noise_ + est.estimation_error_ < 0.6
    assert 0.85 < est.diagnostics_["coverage"] < 0.95


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [{"solver": "annealed"}, {"width": "auto"}], ids=str)
def test_few_sequences_and_stages(options, tied):
    for n in (2, 3, 5):
        X, y = make_attention_sequences(n, 3, 8, tied=tied, random_state=0)
        for more in ({}, {"max_iter": 1}, {"fit_bias": True, "whiten": 0.0}):
            est = fit_quietly(AMPAttentionRegressor(**{"width": 3, "tied": tied, **options, **more}), X, y)
            assert np.isfinite(est.interaction_).all()
            assert np.isfinite(est.predict(X)).all()
            assert set(est.diagnostics_) == KEYS


def test_one_stage_warns():
    X, y = make_attention_sequences(200, 3, 12, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        AMPAttentionRegressor(0.5, solver="annealed", max_iter=1).fit(X, y)


@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_maps_without_signal(link):
    X = np.random.default_rng(0).standard_normal((50, 3, 8))
    y = np.full((50, 3, 3), 1 / 3 if link == "softmax" else 0.0)
    est = AMPAttentionRegressor(2, link=link, solver="annealed").fit(X, y)
    assert_allclose(est.interaction_, 0, atol=1e-12)
    assert_allclose(est.predict(X), y, atol=1e-12)


def test_width_auto_of_maps_without_signal():
    X, y = np.random.default_rng(0).standard_normal((50, 3, 8)), np.full((50, 3, 3), 1 / 3)
    for tied in (True, False):
        est = fit_quietly(AMPAttentionRegressor("auto", tied=tied, noise=0.1), X, y)
        assert np.isfinite(est.predict(X)).all()


def test_the_width_of_maps_without_signal_is_the_least():
    X, y = np.random.default_rng(0).standard_normal((50, 3, 8)), np.full((50, 3, 3), 1 / 3)
    assert fit_quietly(AMPAttentionRegressor("auto", tied=False, noise=0.1), X, y).width_ == 1


@pytest.mark.parametrize("options", NEW, ids=str)
def test_lists_of_unequal_length(options):
    X, y, _, _, _ = biased_teacher(False, n=300)
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 4, 300)
    lists = (
        [x[:m] for x, m in zip(X, lengths, strict=True)],
        [one[:m, :m] / one[:m, :m].sum(axis=1, keepdims=True) for one, m in zip(y, lengths, strict=True)],
    )
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "noise": 0.01, **options})
    ragged = fit_quietly(clone(est), *lists)
    # the padding may hold anything finite
    padding = np.arange(3) < lengths[:, None]
    pairs = padding[:, :, None] & padding[:, None, :]
    wide = np.where(pairs, y, 0)
    wide /= np.where(pairs, wide.sum(axis=2, keepdims=True), 1)
    for fill in (0.0, -1e9, 1e100):
        padded = np.where(padding[:, :, None], X, fill)
        other = fit_quietly(clone(est), padded, wide, mask=padding)
        assert_allclose(other.interaction_, ragged.interaction_, atol=1e-8)
        assert_allclose(other.bias_, ragged.bias_, atol=1e-8)
        answers = np.concatenate([one.ravel() for one in ragged.predict(lists[0])])
        assert_allclose(other.predict(padded, mask=padding)[pairs], answers, atol=1e-8)
        for key, value in ragged.diagnostics_.items():
            same = value if key == "failed" or value is None else pytest.approx(value, rel=1e-6, abs=1e-9)
            assert other.diagnostics_[key] == same
    refused(lambda: clone(est).fit(np.where(padding[:, :, None], X, np.nan), wide, mask=padding), "X", "NaN")


# ----------------------------------------------------------------------------------------------------------------
# diagnostics


@pytest.mark.parametrize(
    ("tied", "n_tokens", "mask", "times", "noise"),
    [
        (True, 2, None, 0.5, 0.0),
        (True, 2, None, 0.5, 0.3),
        (True, 2, None, 2.0, 0.0),
        (True, 3, "causal", 0.5, 0.0),
        (True, 3, "causal", 2.0, 0.3),
        (False, 2, None, 0.5, 0.3),
        (False, 2, None, 2.0, 0.3),
        (False, 3, "causal", 0.5, 0.3),
        (False, 3, "causal", 2.0, 0.0),
    ],
)
def test_nothing_fails_on_teachers(tied, n_tokens, mask, times, noise):
    d = 60
    threshold = BayesOptimalBound(0.5, n_tokens=n_tokens, tied=tied, mask=mask).recovery_threshold()
    for seed in range(2):
        X, y = make_attention_sequences(
            int(times * threshold * d**2),
            n_tokens,
            d,
            width=0.5,
            tied=tied,
            mask=mask,
            noise=noise,
            random_state=seed,
        )
        est = fit_quietly(AMPAttentionRegressor(0.5, tied=tied, noise=noise), X, y, mask=mask)
        out = est.diagnostics_
        assert set(out) == KEYS
        assert out["failed"] == []
        if noise == 0 and times > 1:
            # recovery: nothing is left to check
            assert out["coverage"] is None
            assert out["energy_ratio"] is None
        else:
            assert 0.85 < out["coverage"] < 0.95


def test_nothing_fails_on_noiseless_untied_teachers_below_recovery():
    for seed in range(3):
        X, y = make_attention_sequences(675, 2, 60, width=0.5, tied=False, random_state=seed)
        est = fit_quietly(AMPAttentionRegressor(0.5, tied=False), X, y)
        assert est.diagnostics_["failed"] == []


@pytest.mark.parametrize("solver", ["annealed", "linear"])
@pytest.mark.parametrize(("link", "tied"), [("softmax", True), ("identity", False)])
@pytest.mark.parametrize("times", [0.5, 1.5])
def test_nothing_fails_on_teachers_of_other_solvers(times, link, tied, solver):
    for noise in (0.0, 0.2):
        X, y, _ = above_recovery(0.4, tied, times, d=40, link=link)
        if noise:
            X, y = make_attention_sequences(len(X), 3, 40, width=0.4, tied=tied, link=link, noise=noise, random_state=0)
        est = fit_quietly(AMPAttentionRegressor(0.4, tied=tied, link=link, noise=noise, solver=solver), X, y)
        assert est.diagnostics_["failed"] == []
        assert 0.8 < est.diagnostics_["coverage"] < 0.97


def tokens(kind, n=400, n_tokens=3, d=20):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, n_tokens, d))
    return {
        "white": X,
        "tails": rng.standard_t(3, X.shape) / np.sqrt(3),
        "lengths": X * rng.uniform(0.3, 2, (n, n_tokens, 1)) / 1.25,
        "shifted": X + 0.7,
        "scaled": 2 * X,
        "positions": X + np.array([1, -1, 0])[:, None],
    }[kind]


@pytest.mark.parametrize("solver", ["amp", "annealed"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("white", set()),
        ("tails", {"token_kurtosis", "token_norm_spread"}),
        ("lengths", {"token_norm_spread"}),
        ("shifted", {"token_mean"}),
        ("scaled", {"token_power"}),
        ("positions", {"position_mean"}),
    ],
)
def test_tokens_that_are_not_white_are_named(kind, expected, solver):
    X = tokens(kind)
    y = softmax_of(np.random.default_rng(1).standard_normal((400, 3, 3)))
    est = fit_quietly(AMPAttentionRegressor(0.5, tied=False, solver=solver, noise=1.0, max_iter=20), X, y)
    out = est.diagnostics_
    of_tokens = {name for name in out["failed"] if "token" in name or "position" in name}
    assert expected <= of_tokens
    if kind == "white":
        assert not of_tokens
    rows = X.reshape(-1, 20)
    assert out["token_power"] == pytest.approx(np.mean(rows**2))
    kurtosis = np.mean(rows**4) / np.mean(rows**2) ** 2 - 3
    assert out["token_kurtosis"] == pytest.approx(kurtosis)
    norms = np.sum(rows**2, axis=1)
    assert out["token_norm_spread"] == pytest.approx(norms.std() / norms.mean() / np.sqrt(2 / 20))
    # the mean squares of means, less what few tokens make of them
    assert out["token_mean"] == pytest.approx({"shifted": 0.49}.get(kind, 0), abs=0.05)
    assert out["position_mean"] == pytest.approx({"shifted": 0.49, "positions": 1}.get(kind, 0), abs=0.1)


def test_whitening_mends_mean_and_power():
    y = softmax_of(np.random.default_rng(1).standard_normal((400, 3, 3)))
    for kind in ("shifted", "scaled"):
        est = fit_quietly(AMPAttentionRegressor(0.5, noise=1.0, whiten=0.0), tokens(kind), y)
        assert not {"token_mean", "token_power"} & set(est.diagnostics_["failed"])
        assert est.diagnostics_["token_power"] == pytest.approx(1)
        assert est.diagnostics_["token_mean"] == pytest.approx(0, abs=1e-12)


def test_hardmax_has_no_coverage():
    X, y = make_attention_sequences(300, 2, 20, link="hardmax", random_state=0)
    est = AMPAttentionRegressor(link="hardmax").fit(X, y)
    assert set(est.diagnostics_) == KEYS
    assert est.diagnostics_["coverage"] is None
    assert est.diagnostics_["energy_ratio"] is not None


def test_verbose_prints_what_fails(capsys):
    X, y, _, _, _ = biased_teacher(True, n=200)
    est = fit_quietly(AMPAttentionRegressor(0.5, noise=0.1, verbose=1), 2 * X, y)
    assert "token_power" in est.diagnostics_["failed"]
    printed = capsys.readouterr().out
    for name in est.diagnostics_["failed"]:
        assert name in printed
    X, y = make_attention_sequences(300, 2, 20, width=0.5, noise=0.2, random_state=0)
    fit_quietly(AMPAttentionRegressor(0.5, noise=0.2, verbose=1), X, y)
    assert "assumptions" not in capsys.readouterr().out


def test_the_warning_names_what_fails():
    X, y, _, _, _ = biased_teacher(True, n=200)
    with pytest.warns(ConvergenceWarning, match=r"token_power.*annealed"):
        AMPAttentionRegressor(0.5, max_iter=3).fit(4 * X, y)


@pytest.mark.parametrize("fit_bias", [False, True])
@pytest.mark.parametrize(
    ("link", "tied", "noise"), [("softmax", True, 0.0), ("softmax", False, 0.2), ("identity", True, 0.2)]
)
def test_intervals_cover_held_out_maps(link, tied, noise, fit_bias):
    coverage = []
    for seed in range(3):
        options = {"width": 0.5, "tied": tied, "link": link, "noise": noise}
        X, y = make_attention_sequences(900, 2, 60, random_state=seed, **options)
        half = 330 if tied else 600
        est = fit_quietly(AMPAttentionRegressor(fit_bias=fit_bias, **options), X[:half], y[:half])
        coverage.append(interval_coverage(y[half:], *est.predict(X[half:], return_std=True)))
        assert est.diagnostics_["coverage"] == pytest.approx(coverage[-1], abs=0.08)
    assert 0.85 < np.mean(coverage) < 0.95


@pytest.mark.parametrize("scale", [1e7, 1e-100])
def test_diagnostics_of_tokens_of_extreme_scale(scale):
    X, y = make_attention_sequences(300, 3, 12, width=0.3, tied=False, random_state=0)
    out = fit_quietly(AMPAttentionRegressor(0.3, tied=False, noise=0.1), X * scale, y).diagnostics_
    assert "token_power" in out["failed"]
    # the kurtosis has no scale
    assert out["token_kurtosis"] == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("options", [{"fit_bias": True, "whiten": 0.1}, {"solver": "annealed"}], ids=str)
def test_dask_arrays_are_learned_from_alike(options):
    dask = pytest.importorskip("dask.array")
    X, y, _, _, _ = biased_teacher(False, n=200, d=10)
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "noise": 0.1, **options})
    one, two = fit_quietly(clone(est), X, y), fit_quietly(clone(est), dask.from_array(X, chunks=(70, 3, 10)), y)
    assert_allclose(two.interaction_, one.interaction_, atol=1e-9)
    assert_allclose(two.bias_, one.bias_, atol=1e-9)
    assert_allclose(np.asarray(two.predict(X)), one.predict(X), atol=1e-9)
    assert two.diagnostics_["failed"] == one.diagnostics_["failed"]


# ----------------------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("options", "patterns"),
    [
        ({"whiten": True}, ("whiten=True",)),
        ({"whiten": -1}, ("whiten=-1",)),
        ({"whiten": np.nan}, ("whiten=nan",)),
        ({"whiten": "x"}, ("whiten='x'",)),
        ({"solver": "x"}, ("solver='x'", "'amp'", "'annealed'")),
        ({"solver": None}, ("solver=None",)),
        ({"fit_bias": 1}, ("fit_bias=1", "True or False")),
        ({"fit_bias": "yes"}, ("fit_bias='yes'",)),
        ({"fit_bias": True, "link": "hardmax"}, ("fit_bias=True", "link='hardmax'", "softmax")),
        ({"solver": "annealed", "link": "hardmax"}, ("solver='annealed'", "link='hardmax'")),
        ({"solver": "linear", "link": "hardmax"}, ("solver='linear'", "link='hardmax'")),
        ({"width": "auto", "link": "hardmax"}, ("width='auto'", "link='hardmax'")),
        ({"width": "AUTO"}, ("width='AUTO'", "'auto'")),
        ({"width": ""}, ("width=''", "'auto'")),
        ({"width": None}, ("width=None",)),
        ({"width": True}, ("width=True",)),
    ],
    ids=str,
)
def test_refused_parameters(options, patterns):
    X, y = make_attention_sequences(60, 2, 8, link=options.get("link", "softmax"), random_state=0)
    est = AMPAttentionRegressor(**options)
    refused(lambda: est.fit(X, y), *patterns)
    assert not [name for name in vars(est) if name.endswith("_")]


@pytest.mark.parametrize("options", NEW, ids=str)
def test_a_failed_refit_leaves_the_estimator_as_it_was(options):
    X, y, _, _, _ = biased_teacher(False, n=200)
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "noise": 0.1, **options})
    fit_quietly(est, X, y)
    before, predicted = dict(vars(est)), est.predict(X)

    def stop(state):
        raise RuntimeError("stop")

    if est.solver != "linear":
        # which has no iterations
        with pytest.raises(RuntimeError, match="stop"):
            est.fit(mixed(X)[:50], y[:50], callback=stop)
    refused(lambda: est.fit(X, -y), "y")
    assert set(vars(est)) == set(before)
    assert all(vars(est)[name] is before[name] for name in before)
    for wrong in ({"whiten": "x"}, {"solver": "x"}, {"fit_bias": 1}, {"width": "AUTO"}):
        kept = {name: est.get_params()[name] for name in wrong}
        refused(lambda wrong=wrong: est.set_params(**wrong).fit(X, y), *wrong)
        est.set_params(**kept)
        assert_array_equal(est.predict(X), predicted)


# ----------------------------------------------------------------------------------------------------------------
# scikit-learn


@pytest.mark.parametrize("options", NEW, ids=str)
def test_clone_pickle_and_refit(options):
    X, y, _, _, _ = biased_teacher(True, n=150)
    est = AMPAttentionRegressor(**{"width": 0.5, "noise": 0.1, **options})
    assert clone(est).get_params() == est.get_params()
    assert {name: est.get_params()[name] for name in options} == options
    assert AMPAttentionRegressor().set_params(**est.get_params()).get_params() == est.get_params()
    fit_quietly(est, X, y)
    assert est.get_params() == clone(est).get_params()
    again = pickle.loads(pickle.dumps(est))
    for one, two in zip(est.predict(X, return_std=True), again.predict(X, return_std=True), strict=True):
        assert_array_equal(one, two)
    assert again.diagnostics_ == est.diagnostics_
    # a second fit of the same estimator, and of its copy, forget the first
    fit_quietly(again, X[:40], y[:40])
    assert_array_equal(fit_quietly(again, X, y).predict(X), est.predict(X))
    # attributes of options go with them
    again.set_params(whiten=None, fit_bias=False, solver="amp", width=0.5)
    fit_quietly(again, X, y)
    assert not hasattr(again, "whitener_")
    assert_array_equal(again.bias_, 0)
    assert_array_equal(again.predict(X), fit_quietly(AMPAttentionRegressor(0.5, noise=0.1), X, y).predict(X))


@pytest.mark.parametrize("options", NEW, ids=str)
def test_flat_sequences(options):
    X, y, _, _, _ = biased_teacher(False, n=150, d=10)
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "noise": 0.1, **options})
    one = fit_quietly(clone(est), X, y)
    two = fit_quietly(clone(est).set_params(n_tokens=3), X.reshape(150, -1), y.reshape(150, -1))
    assert two.n_features_in_ == 30
    assert_array_equal(two.interaction_, one.interaction_)
    assert_array_equal(two.predict(X.reshape(150, -1)), one.predict(X).reshape(150, -1))


@pytest.mark.parametrize(
    "options",
    NEW,
    ids=str,
)
def test_one_token(options):
    rng = np.random.default_rng(0)
    X, S = rng.standard_normal((400, 10)), rng.standard_normal((10, 3))
    S = S @ S.T / np.sqrt(30)
    b = rng.standard_normal(10)
    y = (np.einsum("ni,ij,nj->n", X, S, X) - np.trace(S) + X @ b) / np.sqrt(10) + 0.4
    est = AMPAttentionRegressor(**{"width": 3, "link": "identity", "fit_bias": True, **options})
    fit_quietly(est, X, y)
    assert est.predict(X).shape == (400,)
    if est.whiten is None:
        assert_allclose(est.predict(X), y, atol=0.02)
        assert_allclose(est.bias_, b, atol=0.02)
        assert estimation_error(S, est.interaction_) < 1e-3
    else:
        # of one token the index is all there is, and constants are in it
        assert est.score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    NEW,
    ids=str,
)
def test_generic_checks(options):
    results = check_estimator(AMPAttentionRegressor(**{**options, "link": "identity"}), on_fail=None, on_skip=None)
    failed = [(one["check_name"], str(one["exception"])) for one in results if one["status"] == "failed"]
    assert not failed


def test_grid_search_over_the_new_options():
    X, y, _, _, _ = biased_teacher(False, n=600)
    grid = {"fit_bias": [False, True], "width": [0.5, "auto"], "solver": ["amp", "annealed"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(AMPAttentionRegressor(tied=False), grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["fit_bias"]
    assert search.best_score_ > 0.99
    assert search.score(X, y) > 0.99


@pytest.mark.parametrize("options", NEW, ids=str)
def test_warm_starts_know_the_new_options(options):
    X, y, _, _, _ = biased_teacher(False, n=500)
    est = AMPAttentionRegressor(**{"width": 0.5, "tied": False, "fit_bias": True, "warm_start": True, **options})
    fit_quietly(est, X[:300], y[:300])
    fit_quietly(est, X, y)
    cold = fit_quietly(clone(est), X, y)
    assert est.score(X, y) > 0.99
    assert_allclose(est.predict(X), cold.predict(X), atol=0.05)


@pytest.mark.parametrize("options", NEW, ids=str)
def test_order_of_features_does_not_matter(options):
    # the model is the same in any axes
    X, y, _, _, _ = biased_teacher(True, n=150, d=10)
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    est = AMPAttentionRegressor(**{"width": 0.5, "noise": 0.5, **options})
    one, two = fit_quietly(clone(est), X, y), fit_quietly(clone(est), X @ axes, y)
    # annealing starts from a noise level that it estimates with a random matrix, in these axes
    atol = 0.02 if est.solver != "amp" else 1e-5
    assert_allclose(two.interaction_, axes.T @ one.interaction_ @ axes, atol=atol)
    assert_allclose(two.bias_, one.bias_ @ axes, atol=atol)
    assert two.diagonal_ == pytest.approx(one.diagonal_, abs=atol)
    assert_allclose(two.predict(X @ axes), one.predict(X), atol=atol)


# ----------------------------------------------------------------------------------------------------------------
# noise beside a key bias, residuals that contradict V


def test_estimated_noise_makes_up_for_what_a_key_bias_takes():
    # 240 combinations, of which (b, tau) fits 61: squares of residuals fall by a quarter, 2 (V + Delta being 2) by 0.5
    found = []
    for seed in range(10):
        X, y = make_attention_sequences(40, 3, 60, width=0.5, tied=False, noise=1.0, random_state=seed)
        found.append(fit_quietly(AMPAttentionRegressor(0.5, tied=False, noise="estimate", fit_bias=True), X, y).noise_)
    assert np.mean(found) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(("true", "claimed"), [(1.0, 0.0), (1.0, 8.0), (0.0, 1.0)])
def test_residuals_that_contradict_the_noise_are_named(true, claimed):
    X, y = make_attention_sequences(3000, 3, 40, width=0.5, tied=False, noise=true, random_state=0)
    out = fit_quietly(AMPAttentionRegressor(0.5, tied=False, noise=claimed), X, y).diagnostics_
    assert {"energy_ratio", "coverage"} <= set(out["failed"])
    # squares of residuals over V + Delta; AMP itself keeps them from being larger than 1.5
    assert out["energy_ratio"] == pytest.approx(1.5, abs=0.1) if claimed < true else out["energy_ratio"] < 0.7


# ----------------------------------------------------------------------------------------------------------------
# width="auto" of gradient descent


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("tied", [True, False])
def test_gradient_descent_finds_the_width(tied, link, mask):
    X, y = make_attention_sequences(1200, 3, 20, width=4, tied=tied, link=link, mask=mask, random_state=0)
    gd = GDAttentionRegressor("auto", tied=tied, link=link, random_state=0)
    gd.fit(X, y, mask=mask)
    assert gd.width_ == 4
    assert gd.width_ratio_ == 0.2
    assert gd.width == "auto"
    # and is then the estimator of that width
    given = clone(gd).set_params(width=4).fit(X, y, mask=mask)
    assert_array_equal(gd.interaction_, given.interaction_)
    assert gd.score(X, y, mask=mask) > 0.999


def test_gradient_descent_finds_the_width_of_a_head_with_a_bias():
    X, y, _, _, _ = biased_teacher(False, n=1500)
    assert GDAttentionRegressor("auto", tied=False, fit_bias=True, random_state=0).fit(X, y).width_ == 10


def test_sequences_without_weight_say_nothing_of_the_width():
    X, y = make_attention_sequences(1200, 3, 20, width=4, random_state=0)
    junk = make_attention_sequences(1200, 3, 20, width=15, random_state=1)
    weights = np.repeat([1.0, 0.0], 1200)
    gd = GDAttentionRegressor("auto", random_state=0)
    gd.fit(np.concatenate([X, junk[0]]), np.concatenate([y, junk[1]]), sample_weight=weights)
    assert gd.width_ == 4


def test_widths_that_gradient_descent_cannot_find():
    X, y = make_attention_sequences(30, 3, 6, width=2, random_state=0)
    refused(lambda: GDAttentionRegressor("AUTO").fit(X, y), "width='AUTO'", "'auto'")
    refused(lambda: GDAttentionRegressor("auto", n_layers=2).fit(X, y), "width='auto'", "n_layers=2")
    refused(lambda: GDAttentionRegressor("auto", solver="sgd").partial_fit(X, y), "width='auto'", "partial_fit")
    refused(lambda: GDAttentionRegressor("auto").fit(X[:1], y[:1]), "n_samples = 1", "width='auto'")


def test_gradient_descent_finds_the_width_where_y_holds_zeros():
    # a mask that was not given: zeros are not seen by the search, and are learned from by the squared error
    X, y = make_attention_sequences(1500, 4, 16, width=3, mask="causal", random_state=0)
    assert fit_quietly(GDAttentionRegressor("auto", max_iter=5, random_state=0), X, y).width_ == 3
