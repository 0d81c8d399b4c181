"""Symmetries and inequalities that hold for every input."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    TokenWhitener,
    attention_error,
    attention_r2_score,
    estimation_error,
    make_attention_sequences,
)

# seeds, small enough to read
SEEDS = st.integers(0, 10**6)
LINKS = st.sampled_from(["identity", "softmax", "hardmax"])
# what iterations make of rounding
ROUNDING = 1e-7


@st.composite
def problems(draw, links=LINKS, tokens=(2, 4)):
    """Teacher data of some setting, and the parameters of the estimator that assumes it."""
    link, tied, seed = draw(links), draw(st.booleans()), draw(SEEDS)
    n_tokens, n_features = draw(st.integers(*tokens)), draw(st.integers(2, 8))
    # tied hardmax of three tokens or more estimates an average by sampling: see the tests of two
    if link == "hardmax" and tied:
        n_tokens = 2
    width, noise = draw(st.sampled_from([0.5, 1.0, 3])), draw(st.sampled_from([0.1, 0.5]))
    X, y, S = make_attention_sequences(
        draw(st.integers(3 * n_features, 60)),
        n_tokens,
        n_features,
        width=width,
        tied=tied,
        link=link,
        noise=noise,
        random_state=seed,
        return_interaction=True,
    )
    return X, y, S, {"width": width, "tied": tied, "link": link, "noise": noise}


def fit(X, y, **params):
    # twenty damped steps: long enough to go wrong, too short to amplify rounding where there's no fixed point
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return AMPAttentionRegressor(**{"max_iter": 20, "damping": 0.3, **params}).fit(X, y)


# ----------------------------------------------------------------------------------------------------------------
# symmetries of the estimate


@settings(max_examples=25)
@given(problems(), SEEDS)
def test_rotated_features_rotate_the_estimate(problem, seed):
    X, y, _, params = problem
    Q = ortho_group.rvs(X.shape[2], random_state=seed)
    one, other = fit(X, y, **params), fit(X @ Q.T, y, **params)
    np.testing.assert_allclose(other.interaction_, Q @ one.interaction_ @ Q.T, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(other.predict(X @ Q.T), one.predict(X), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(other.predict_index(X @ Q.T), one.predict_index(X), rtol=0, atol=10 * ROUNDING)
    assert other.estimation_error_ == pytest.approx(one.estimation_error_, abs=ROUNDING)
    assert other.n_iter_ == one.n_iter_


@settings(max_examples=25)
@given(problems(), SEEDS)
def test_permuted_samples_leave_the_estimate(problem, seed):
    X, y, _, params = problem
    order = np.random.default_rng(seed).permutation(len(X))
    one, other = fit(X, y, **params), fit(X[order], y[order], **params)
    np.testing.assert_allclose(other.interaction_, one.interaction_, rtol=0, atol=ROUNDING)
    assert other.estimation_error_ == pytest.approx(one.estimation_error_, abs=ROUNDING)


@settings(max_examples=25)
@given(problems(), SEEDS)
def test_permuted_tokens_permute_predictions(problem, seed):
    X, y, _, params = problem
    n_samples, n_tokens, _ = X.shape
    rng = np.random.default_rng(seed)
    # an order of its own for every sequence
    order = np.array([rng.permutation(n_tokens) for _ in range(n_samples)])
    X_moved = np.take_along_axis(X, order[:, :, None], axis=1)

    def moved(maps):
        return np.take_along_axis(np.take_along_axis(maps, order[:, :, None], axis=1), order[:, None, :], axis=2)

    one, other = fit(X, y, **params), fit(X_moved, moved(y), **params)
    np.testing.assert_allclose(other.interaction_, one.interaction_, rtol=0, atol=ROUNDING)
    mean, std = one.predict(X, return_std=True)
    mean_moved, std_moved = one.predict(X_moved, return_std=True)
    np.testing.assert_allclose(mean_moved, moved(mean), rtol=0, atol=1e-9)
    np.testing.assert_allclose(std_moved, moved(std), rtol=0, atol=1e-7)


@settings(max_examples=15)
@given(problems())
def test_transposed_maps_transpose_an_untied_estimate(problem):
    # queries and keys change places; softmax and hardmax normalise over keys, identity knows no difference
    X, y, _, params = problem
    if params["link"] != "identity":
        y = np.einsum("nai,nbi->nab", X, X) / np.sqrt(X.shape[2]) + np.random.default_rng(0).standard_normal(y.shape)
    params = {**params, "link": "identity", "tied": False}
    one, other = fit(X, y, **params), fit(X, y.transpose(0, 2, 1), **params)
    np.testing.assert_allclose(other.interaction_, one.interaction_.T, rtol=0, atol=ROUNDING)


@settings(max_examples=15)
@given(problems(links=st.just("softmax")), st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_temperature_of_noiseless_softmax_changes_nothing(problem, first, second):
    X, _, S, params = problem
    estimates = []
    for beta in (first, second):
        # the same X and S: y alone depends on beta
        y = make_attention_sequences(
            len(X), X.shape[1], X.shape[2], tied=params["tied"], inverse_temperature=beta, interaction=S, random_state=7
        )
        estimates.append(fit(*y, width=params["width"], tied=params["tied"], inverse_temperature=beta))
    one, other = estimates
    np.testing.assert_allclose(other.interaction_, one.interaction_, rtol=0, atol=1e-6)
    assert other.estimation_error_ == pytest.approx(one.estimation_error_, rel=1e-6, abs=1e-12)


@settings(max_examples=10)
@given(problems(links=st.just("softmax")), SEEDS)
def test_what_softmax_drops_changes_nothing(problem, seed):
    X, y, _, params = problem
    # log y is h up to a shift of every row, so that y times a row factor, normalised again, is y
    factors = np.exp(np.random.default_rng(seed).standard_normal((len(X), X.shape[1], 1)))
    same = factors * y
    same /= same.sum(axis=2, keepdims=True)
    one, other = fit(X, y, **params), fit(X, same, **params)
    np.testing.assert_allclose(other.interaction_, one.interaction_, rtol=0, atol=ROUNDING)


# ----------------------------------------------------------------------------------------------------------------
# predictions


@settings(max_examples=25)
@given(problems(links=st.sampled_from(["softmax", "hardmax"])), st.integers(2, 6), SEEDS, st.floats(0.01, 30.0))
def test_predicted_rows_are_distributions(problem, n_tokens, seed, scale):
    X, y, _, params = problem
    estimator = fit(X, y, **params)
    tokens = scale * np.random.default_rng(seed).standard_normal((20, n_tokens, X.shape[2]))
    mean, std = estimator.predict(tokens, return_std=True)
    np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-7)
    assert (mean >= 0).all()
    assert (mean <= 1 + 1e-12).all()
    # E[y^2] <= E[y] for y in [0, 1], with equality for labels 0 and 1
    most = np.sqrt(np.maximum(mean - mean**2, 0))
    assert (std <= most + 1e-6).all()
    if params["link"] == "hardmax":
        np.testing.assert_allclose(std, most, atol=1e-7)


@settings(max_examples=10)
@given(problems(links=st.just("identity")))
def test_predicted_spread_of_indices(problem):
    X, y, _, params = problem
    estimator = fit(X, y, **params)
    mean, std = estimator.predict(X, return_std=True)
    np.testing.assert_allclose(mean, estimator.predict_index(X), rtol=0, atol=1e-12)
    c = np.ones((X.shape[1], X.shape[1])) + (np.eye(X.shape[1]) if params["tied"] else 0)
    expected = np.sqrt((estimator.estimation_error_ + params["noise"]) * c)
    np.testing.assert_allclose(std, np.broadcast_to(expected, std.shape), rtol=1e-6)


@settings(max_examples=10)
@given(problems(links=st.sampled_from(["softmax", "hardmax"])))
def test_shifted_indices_leave_two_token_predictions(problem):
    # S + t I adds t (|x|^2 - d)/sqrt(d) to the diagonal alone: orthogonal tokens of squared norm d feel nothing
    X, y, _, params = problem
    estimator = fit(X, y, **params)
    d = X.shape[2]
    tokens = np.sqrt(d) * np.array([ortho_group.rvs(d, random_state=s)[:2] for s in range(5)])
    before = estimator.predict(tokens)
    estimator.interaction_ = estimator.interaction_ + 0.7 * np.eye(d)
    np.testing.assert_allclose(estimator.predict(tokens), before, rtol=0, atol=1e-9)


# ----------------------------------------------------------------------------------------------------------------
# bounds

# tokens, tied, link: hardmax at two tokens, where averages are good to 1e-7
SMOOTH_BOUNDS = st.one_of(
    st.tuples(st.integers(1, 5), st.just(True), st.just("identity")),
    st.tuples(st.integers(2, 5), st.just(False), st.just("identity")),
    st.tuples(st.integers(2, 5), st.booleans(), st.just("softmax")),
)
BOUNDS = st.one_of(SMOOTH_BOUNDS, st.tuples(st.just(2), st.booleans(), st.just("hardmax")))
RATIOS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.02, 20.0))
NOISES = st.one_of(st.just(0.0), st.floats(1e-6, 10.0))


# the bound says itself where it is optimistic; it must be monotone all the same
optimistic = pytest.mark.filterwarnings("ignore:for tied=False and link='identity' the bound is optimistic")


def make_bound(setting, ratio, noise):
    n_tokens, tied, link = setting
    return BayesOptimalBound(ratio, tied=tied, n_tokens=n_tokens, link=link, noise=noise)


def tolerance(setting):
    return 1e-6 if setting[2] == "hardmax" else 1e-9


@optimistic
@settings(max_examples=30)
@given(BOUNDS, RATIOS, NOISES, st.lists(st.floats(-5, 2), min_size=2, max_size=6))
def test_more_data_never_raises_the_bound(setting, ratio, noise, logs):
    bound = make_bound(setting, ratio, noise)
    alpha = np.sort(10.0 ** np.array(logs))
    error = bound.estimation_error(alpha)
    assert (np.diff(error) <= tolerance(setting)).all()
    assert (error >= 0).all()
    assert (error <= 1 + tolerance(setting)).all()
    information = bound.information(alpha)
    assert (information[1:] >= information[:-1] * (1 - 1e-6)).all()
    # spectrum of S: Q0 = 1 + rho tied, 1 untied
    second_moment = 1 + (ratio if setting[1] else 0)
    np.testing.assert_allclose(bound.overlap(alpha), second_moment - error, rtol=0, atol=1e-12 * second_moment)


@optimistic
@settings(max_examples=25)
@given(BOUNDS, RATIOS, st.lists(st.floats(0, 5), min_size=2, max_size=4), st.floats(-3, 1))
def test_less_noise_never_raises_the_bound(setting, ratio, noises, log_alpha):
    alpha = 10.0**log_alpha
    errors = [make_bound(setting, ratio, noise).estimation_error(alpha) for noise in sorted(noises)]
    assert (np.diff(errors) >= -tolerance(setting)).all()


@optimistic
@settings(max_examples=15)
@given(BOUNDS, st.floats(0.05, 5.0), NOISES, st.lists(st.floats(-3, 1), min_size=2, max_size=4))
def test_more_data_never_raises_the_test_error(setting, ratio, noise, logs):
    # quasi-random averages at three tokens and more: their own error estimates say how far to trust them
    bound = make_bound(setting, ratio, noise)
    error, spread = bound.test_error(np.sort(10.0 ** np.array(logs)), return_error=True)
    assert (error >= 0).all()
    assert (np.diff(error) <= 1e-6 + 3 * (spread[1:] + spread[:-1])).all()


@optimistic
@settings(max_examples=20)
@given(SMOOTH_BOUNDS, st.floats(0.05, 5.0), NOISES, st.floats(-3, 0.5))
def test_more_tokens_never_raise_the_bound(setting, ratio, noise, log_alpha):
    # the maps of longer sequences hold those of shorter ones; hardmax labels don't
    n_tokens, tied, link = setting
    alpha = 10.0**log_alpha
    fewer = make_bound(setting, ratio, noise).estimation_error(alpha)
    more = make_bound((n_tokens + 1, tied, link), ratio, noise).estimation_error(alpha)
    assert more <= fewer + 1e-9


@optimistic
@settings(max_examples=20)
@given(st.integers(2, 5), st.booleans(), RATIOS, NOISES, st.floats(-3, 0.5))
def test_seeing_less_never_lowers_the_bound(n_tokens, tied, ratio, noise, log_alpha):
    # the chain identity -> softmax drops shifts, at two tokens softmax -> hardmax drops sizes
    alpha = 10.0**log_alpha
    links = ["identity", "softmax"] + (["hardmax"] if n_tokens == 2 else [])
    errors = [make_bound((n_tokens, tied, link), ratio, noise).estimation_error(alpha) for link in links]
    assert (np.diff(errors) >= -1e-6).all()


@optimistic
@settings(max_examples=20)
@given(BOUNDS, st.floats(0.05, 5.0), NOISES, st.floats(0.05, 0.95))
def test_sample_size_inverts_the_bound(setting, ratio, noise, error):
    bound = make_bound(setting, ratio, noise)
    n_samples = bound.sample_size(error, 1000)
    assert bound.estimation_error(n_samples / 1e6) <= error + 1e-6
    assert bound.estimation_error((n_samples - 1) / 1e6) >= error - 1e-6


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ratio", [1e-4, 0.01, 0.5, 1.0, 5.0, 100.0])
def test_hardly_any_data_is_no_data(ratio, tied):
    for alpha in (1e-12, 1e-16, 1e-20, 1e-30, 1e-100):
        for link in ("softmax", "hardmax"):
            error = BayesOptimalBound(ratio, tied=tied, link=link).estimation_error(alpha)
            # V = 1 - q_hat + O(q_hat^2)
            assert error == pytest.approx(1, abs=1e-8)


# ----------------------------------------------------------------------------------------------------------------
# whitening


@st.composite
def tokens(draw):
    """Correlated tokens of full rank, with a mean."""
    rng = np.random.default_rng(draw(SEEDS))
    n_samples, n_tokens, n_features = draw(st.integers(20, 60)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    mixing = ortho_group.rvs(n_features, random_state=rng) if n_features > 1 else np.eye(1)
    mixing = mixing * rng.uniform(0.1, 10, n_features)
    return rng.standard_normal((n_samples, n_tokens, n_features)) @ mixing + 5 * rng.standard_normal(n_features)


@given(tokens())
@settings(max_examples=25)
def test_whitened_tokens_are_white(X):
    Z = TokenWhitener().fit_transform(X)
    flat = Z.reshape(-1, X.shape[2])
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(flat.T @ flat / len(flat), np.eye(X.shape[2]), atol=1e-8)


@given(tokens())
@settings(max_examples=25)
def test_whitening_twice_is_whitening_once(X):
    # up to a rotation, since white tokens have no principal axes: inner products are what remains
    Z = TokenWhitener().fit_transform(X)
    again = TokenWhitener().fit_transform(Z)
    gram, gram_again = (np.einsum("nai,mbi->nambi", A, A).sum(axis=4) for A in (Z[:5], again[:5]))
    np.testing.assert_allclose(gram_again, gram, rtol=0, atol=1e-7)


@given(tokens(), st.sampled_from([0.0, 0.1, 3.0]))
@settings(max_examples=25)
def test_whitening_can_be_undone(X, ridge):
    whitener = TokenWhitener(ridge).fit(X)
    np.testing.assert_allclose(whitener.inverse_transform(whitener.transform(X)), X, rtol=0, atol=1e-8)
    n_samples, n_tokens, _ = X.shape
    flat = TokenWhitener(ridge, n_tokens=n_tokens).fit(X.reshape(n_samples, -1))
    Z = flat.transform(X.reshape(n_samples, -1))
    np.testing.assert_allclose(Z, whitener.transform(X).reshape(n_samples, -1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat.inverse_transform(Z), X.reshape(n_samples, -1), rtol=0, atol=1e-8)


@given(tokens(), SEEDS)
@settings(max_examples=15)
def test_whitening_forgets_units(X, seed):
    # tokens in other units are whitened to the same ones, up to a rotation
    mixing = ortho_group.rvs(7, random_state=seed)[: X.shape[2], : X.shape[2]] + 2 * np.eye(X.shape[2])
    one = TokenWhitener().fit_transform(X)[:5].reshape(-1, X.shape[2])
    other = TokenWhitener().fit_transform(X @ mixing + 1)[:5].reshape(-1, X.shape[2])
    np.testing.assert_allclose(other @ other.T, one @ one.T, rtol=0, atol=1e-6)


@given(tokens(), SEEDS, st.booleans())
@settings(max_examples=25)
def test_interaction_on_raw_features_gives_the_same_indices(X, seed, dropped):
    rng = np.random.default_rng(seed)
    if dropped:
        # a feature that is the sum of the others has no direction of its own
        X = np.concatenate([X, X.sum(axis=2, keepdims=True)], axis=2)
    whitener = TokenWhitener().fit(X)
    Z = whitener.transform(X)
    k, d = Z.shape[2], X.shape[2]
    assert k == d - dropped
    S = rng.standard_normal((k, k))
    raw, query, key = whitener.interaction_to_raw(S, return_bias=True)
    white = np.einsum("nai,ij,nbj->nab", Z, S, Z) / np.sqrt(k)
    mean = X.reshape(-1, d).mean(axis=0)
    indices = (
        np.einsum("nai,ij,nbj->nab", X, raw, X) + (X @ query)[:, :, None] + (X @ key)[:, None, :] + mean @ raw @ mean
    ) / np.sqrt(d)
    np.testing.assert_allclose(indices, white, rtol=0, atol=1e-6 * np.abs(raw).max() * np.abs(X).max() ** 2)
    np.testing.assert_array_equal(raw, whitener.interaction_to_raw(S))


# ----------------------------------------------------------------------------------------------------------------
# metrics


@given(st.integers(2, 20), st.integers(1, 5), SEEDS)
@settings(max_examples=25)
def test_metrics(n_samples, n_tokens, seed):
    rng = np.random.default_rng(seed)
    y, p = rng.standard_normal((2, n_samples, n_tokens, n_tokens))
    flat = y.reshape(n_samples, -1), p.reshape(n_samples, -1)
    for metric in (attention_error, attention_r2_score):
        value = metric(y, p)
        assert metric(*flat) == metric(flat[0], p) == value
        order = rng.permutation(n_samples)
        assert metric(y[order], p[order]) == pytest.approx(value, rel=1e-9)
        assert metric(y, p, sample_weight=np.full(n_samples, 3.0)) == pytest.approx(value, rel=1e-9)
        weights = rng.integers(1, 4, n_samples)
        repeated = np.repeat(np.arange(n_samples), weights)
        assert metric(y, p, sample_weight=weights) == pytest.approx(metric(y[repeated], p[repeated]), rel=1e-9)
    assert attention_error(y, p) == pytest.approx(attention_error(p, y), rel=1e-12)
    assert attention_error(y, p) == pytest.approx(np.mean([np.linalg.norm(a - b) ** 2 for a, b in zip(y, p)]))  # noqa: B905
    assert attention_error(3 * y, 3 * p) == pytest.approx(9 * attention_error(y, p), rel=1e-12)
    assert attention_error(y, y) == 0
    mean = np.repeat(y.mean(axis=0, keepdims=True), n_samples, axis=0)
    assert attention_r2_score(y, mean, by_position=True) == pytest.approx(0, abs=1e-12)
    assert attention_r2_score(y, np.full_like(y, y.mean())) == pytest.approx(0, abs=1e-12)
    assert attention_r2_score(y, y) == 1
    assert attention_r2_score(2 * y + 1, 2 * p + 1) == pytest.approx(attention_r2_score(y, p), rel=1e-9)


@given(st.integers(1, 8), SEEDS)
@settings(max_examples=25)
def test_estimation_error_is_a_squared_distance(n_features, seed):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((2, n_features, n_features))
    Q = ortho_group.rvs(n_features, random_state=rng) if n_features > 1 else np.eye(1)
    value = estimation_error(A, B)
    assert value == pytest.approx(np.linalg.norm(A - B) ** 2 / n_features, rel=1e-12)
    assert estimation_error(Q @ A @ Q.T, Q @ B @ Q.T) == pytest.approx(value, rel=1e-9)
    assert estimation_error(A, A) == 0
