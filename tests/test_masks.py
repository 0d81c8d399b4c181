"""Masks: what maps with masks show, against brute force; bounds, message passing and gradient descent behind them."""

import itertools
import warnings

import numpy as np
import pytest
import sklearn
from conftest import refused
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, ParameterGrid, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.fixes import parse_version

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    TokenWhitener,
    attention_r2_score,
    estimation_error,
    make_attention_sequences,
)
from sklearn_aim.algorithms.attention_stack import LOSSES, AttentionStack, Objective
from sklearn_aim.channels import MaskedChannel, make_channel
from sklearn_aim.kernels.masks import allowed_pairs, components, degrees_of_freedom, remove_shifts

MODELS = [AMPAttentionRegressor, GDAttentionRegressor]


def lengths_to_padding(lengths, n_tokens):
    return np.arange(n_tokens) < np.asarray(lengths)[:, None]


def padding_pairs(padding):
    return padding[:, :, None] & padding[:, None, :]


def random_pairs(rng, n, n_tokens, share=0.6):
    """Random pairs, in which every query attends at least to itself."""
    return (rng.random((n, n_tokens, n_tokens)) < share) | np.eye(n_tokens, dtype=bool)


def masked_softmax(h, allowed, beta=1.0):
    """Row by row, over the allowed keys alone."""
    out = np.zeros(h.shape)
    for n, a in np.ndindex(h.shape[:2]):
        keys = np.flatnonzero(allowed[n, a])
        if keys.size:
            out[n, a, keys] = softmax(beta * h[n, a, keys])
    return out


def indices_of(X, S):
    d = len(S)
    h = np.einsum("nai,ij,nbj->nab", X, S, X) - np.trace(S) * np.eye(X.shape[1])
    return h / np.sqrt(d)


def free_indices(n_tokens, tied):
    """Matrix (T^2, free) from free indices to all, and their variances c."""
    if not tied:
        return np.eye(n_tokens**2), np.ones(n_tokens**2)
    pairs = list(itertools.combinations_with_replacement(range(n_tokens), 2))
    spread = np.zeros((n_tokens**2, len(pairs)))
    for k, (a, b) in enumerate(pairs):
        spread[a * n_tokens + b, k] = spread[b * n_tokens + a, k] = 1
    return spread, np.array([2.0 if a == b else 1.0 for a, b in pairs])


def observed(seen, link):
    """Matrix (observations, T^2): what one map fixes of h, from the entries that it shows."""
    n_tokens = len(seen)
    rows = []
    for a in range(n_tokens):
        keys = np.flatnonzero(seen[a])
        if link == "identity":
            rows += [np.eye(n_tokens**2)[a * n_tokens + b] for b in keys]
        else:
            rows += [
                np.eye(n_tokens**2)[a * n_tokens + b] - np.eye(n_tokens**2)[a * n_tokens + keys[0]] for b in keys[1:]
            ]
    return np.array(rows).reshape(-1, n_tokens**2)


def brute_rank(seen, tied, link="softmax"):
    matrix = observed(seen, link) @ free_indices(len(seen), tied)[0]
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


@st.composite
def masks(draw, most=5, n_samples=1):
    """Masks in which every row sees something: with all diagonals, or with none."""
    n_tokens = draw(st.integers(2, most))
    mask = draw(hnp.arrays(bool, (n_samples, n_tokens, n_tokens)))
    eye = np.eye(n_tokens, dtype=bool)
    if draw(st.booleans()):
        return mask | eye
    mask &= ~eye
    empty = ~mask.any(axis=2)
    return mask | (np.roll(eye, 1, axis=1) & empty[:, :, None])


# ----------------------------------------------------------------------------------------------------------------
# kernels


def test_allowed_pairs_of_every_kind():
    assert allowed_pairs(None, 4, 3) is None
    causal = allowed_pairs("causal", 4, 3)
    assert causal.shape == (4, 3, 3)
    for a, b in np.ndindex(3, 3):
        assert (causal[:, a, b] == (b <= a)).all()
    assert allowed_pairs("causal", 4, 1) is None or allowed_pairs("causal", 4, 1).all()

    padding = lengths_to_padding([3, 1, 2, 3], 3)
    pairs = allowed_pairs(padding, 4, 3)
    for n, a, b in np.ndindex(pairs.shape):
        assert pairs[n, a, b] == (padding[n, a] and padding[n, b])

    every = random_pairs(np.random.default_rng(0), 4, 3)
    np.testing.assert_array_equal(allowed_pairs(every, 4, 3), every)
    np.testing.assert_array_equal(allowed_pairs(every[0], 4, 3), np.broadcast_to(every[0], (4, 3, 3)))
    # with as many sequences as tokens pairs of every sequence are not ambiguous
    np.testing.assert_array_equal(allowed_pairs(every[:3], 3, 3), every[:3])

    for kind in (np.int64, np.uint8, np.float32):
        for mask in (padding, every, every[0]):
            out = allowed_pairs(mask.astype(kind), 4, 3)
            assert out.dtype == bool
            np.testing.assert_array_equal(out, allowed_pairs(mask, 4, 3))
    np.testing.assert_array_equal(allowed_pairs(every[0].tolist(), 4, 3), allowed_pairs(every[0], 4, 3))
    for shape in ((4, 3), (3, 3), (4, 3, 3)):
        assert allowed_pairs(np.ones(shape, bool), 4, 3) is None
        assert allowed_pairs(np.ones(shape, int), 4, 3) is None


def test_allowed_pairs_keeps_tokens_that_are_seen_and_pads_others():
    # token 2 neither attends nor is attended to
    mask = np.array([[True, True, False], [False, True, False], [False, False, False]])
    np.testing.assert_array_equal(allowed_pairs(mask, 2, 3), np.broadcast_to(mask, (2, 3, 3)))
    # attended to, but with nothing to attend to: no padding
    mask[0, 2] = True
    refused(lambda: allowed_pairs(mask, 2, 3), "mask", "row [0, 2]")


@pytest.mark.parametrize(
    ("mask", "patterns"),
    [
        ("casual", ("mask='casual'", "'causal'")),
        ("", ("mask=''", "'causal'")),
        (True, ("mask", "shape")),
        (np.ones(4, bool), ("mask has shape (4,)", "(4, 3)")),
        (np.ones((4, 4), bool), ("mask has shape (4, 4)", "(4, 3)", "(3, 3)", "(4, 3, 3)")),
        (np.ones((1, 3, 3), bool), ("mask has shape (1, 3, 3)",)),
        (np.ones((4, 3, 3, 1), bool), ("mask has shape",)),
        (np.ones((4, 3), complex), ("mask", "complex128")),
        (np.full((4, 3), "a"), ("mask", "dtype")),
        (np.full((4, 3), None), ("mask", "object")),
        (2 * np.ones((4, 3), int), ("mask", "1 and 0")),
        (np.full((4, 3), 0.5), ("mask", "1 and 0")),
        (np.full((4, 3), np.nan), ("mask", "1 and 0")),
        (lengths_to_padding([3, 2, 0, 1], 3), ("mask", "sequence 2")),
        (np.zeros((3, 3), bool), ("mask", "sequence 0")),
        (np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]]), ("mask leaves nothing", "row [0, 2]")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(np.shape(value)),
)
def test_allowed_pairs_refuses(mask, patterns):
    refused(lambda: allowed_pairs(mask, 4, 3), *patterns)


def test_ragged_masks_are_refused_by_name():
    refused(lambda: allowed_pairs([[True, True, False], [True]], 2, 3), "mask")


def test_square_masks_are_ambiguous_for_as_many_sequences_as_tokens():
    refused(lambda: allowed_pairs(np.tri(3, dtype=bool), 3, 3), "mask", "(n_samples, n_tokens, n_tokens)")


@settings(max_examples=80)
@given(masks(), st.booleans())
def test_degrees_of_freedom_are_the_rank(mask, tied):
    groups = components(mask, tied)
    assert degrees_of_freedom(groups, tied)[0] == brute_rank(mask[0], tied)
    if tied:
        np.testing.assert_array_equal(groups, groups.transpose(0, 2, 1))
    seen = mask | mask.transpose(0, 2, 1) if tied else mask
    np.testing.assert_array_equal(groups >= 0, seen)


@settings(max_examples=40)
@given(masks(), st.booleans(), st.integers(0, 10**6))
def test_removal_of_shifts_is_the_projection(mask, tied, seed):
    # onto what the map fixes, orthogonal in ||.||_F
    n_tokens = mask.shape[1]
    x = np.random.default_rng(seed).standard_normal((1, n_tokens, n_tokens))
    x = x + x.transpose(0, 2, 1) if tied else x
    spread = free_indices(n_tokens, tied)[0]
    fixed = observed(mask[0], "softmax") @ spread
    # among free indices the norm has the metric spread^T spread
    metric = spread.T @ spread
    free = np.linalg.lstsq(spread, x.ravel(), rcond=None)[0]
    inverse = np.linalg.inv(metric)
    expected = inverse @ fixed.T @ np.linalg.pinv(fixed @ inverse @ fixed.T) @ fixed @ free
    remove_shifts(x, components(mask, tied))
    np.testing.assert_allclose(x.ravel(), spread @ expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_tokens", [2, 3, 4, 6])
def test_degrees_of_freedom_that_are_known(n_tokens):
    def both(mask):
        return [int(degrees_of_freedom(components(mask[None], tied), tied)[0]) for tied in (True, False)]

    assert both(np.tri(n_tokens, dtype=bool)) == [n_tokens * (n_tokens - 1) // 2] * 2
    assert both(np.ones((n_tokens,) * 2, bool)) == [n_tokens * (n_tokens + 1) // 2 - 1, n_tokens * (n_tokens - 1)]
    for m in range(1, n_tokens + 1):
        pairs = padding_pairs(lengths_to_padding([m], n_tokens))[0]
        assert both(pairs) == [m * (m + 1) // 2 - 1, m * (m - 1)]
    assert both(np.eye(n_tokens, dtype=bool)) == [0, 0]


# ----------------------------------------------------------------------------------------------------------------
# channel


def draw_indices(rng, n, n_tokens, tied, variance=1.0):
    spread, c = free_indices(n_tokens, tied)
    free = rng.standard_normal((n, len(c))) * np.sqrt(variance * c)
    return (free @ spread.T).reshape(n, n_tokens, n_tokens)


def conditioned(y, seen, omega, variance, noise, beta, tied, link):
    """(E[h|y] - omega)/V of one sequence by Gaussian conditioning on what y fixes of h + noise."""
    n_tokens = len(y)
    spread, c = free_indices(n_tokens, tied)
    matrix = observed(seen, link)
    values = np.where(seen, np.log(np.where(seen, y, 1)) / beta, 0) if link == "softmax" else y
    target, matrix = matrix @ values.ravel(), matrix @ spread
    free = np.linalg.lstsq(spread, omega.ravel(), rcond=None)[0]
    prior = variance * np.diag(c)
    covariance = (variance + noise) * matrix @ np.diag(c) @ matrix.T
    gain = prior @ matrix.T @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
    return (spread @ (gain @ (target - matrix @ free))).reshape(n_tokens, n_tokens) / variance


@settings(max_examples=60)
@given(
    masks(4, n_samples=3), st.booleans(), st.sampled_from(["softmax", "identity"]), st.booleans(), st.integers(0, 10**6)
)
def test_posterior_is_gaussian_conditioning(mask, tied, link, noisy, seed):
    rng = np.random.default_rng(seed)
    n_tokens, beta = mask.shape[1], float(rng.uniform(0.5, 2))
    variance, noise = float(rng.uniform(0.1, 2)), float(rng.uniform(0.1, 1)) if noisy else 0.0
    ranks = [brute_rank(one, tied, link) for one in mask]
    assume(sum(ranks) > 0)
    channel = make_channel(link, n_tokens, tied=tied, noise=noise, inverse_temperature=beta, allowed=mask)
    assert isinstance(channel, MaskedChannel)
    assert channel.rank == pytest.approx(np.mean(ranks), rel=1e-12)
    omega = draw_indices(rng, 3, n_tokens, tied)
    h = omega + draw_indices(rng, 3, n_tokens, tied, variance + noise)
    y = masked_softmax(h, mask, beta) if link == "softmax" else np.where(mask, h, 0)
    np.testing.assert_allclose(channel.link(h), y, rtol=0, atol=1e-13)
    code = channel.encode(y)
    gradient = channel.posterior(code, omega, variance)[1]
    for n in range(3):
        expected = conditioned(y[n], mask[n], omega[n], variance, noise, beta, tied, link)
        np.testing.assert_allclose(gradient[n], expected, rtol=0, atol=1e-8)

    # log Z has the derivative G/c, and falls with V as that of m Gaussian numbers
    spread, c = free_indices(n_tokens, tied)
    step = 1e-5
    for k in range(len(c)):
        shift = step * spread[:, k].reshape(n_tokens, n_tokens)
        up, down = (channel.posterior(code, omega + s * shift, variance)[0] for s in (1, -1))
        where = np.unravel_index(np.flatnonzero(spread[:, k])[0], (n_tokens, n_tokens))
        np.testing.assert_allclose((up - down) / (2 * step), gradient[:, where[0], where[1]] / c[k], atol=1e-6)
    one, two = (channel.posterior(code, omega, v) for v in (variance, 2 * variance))
    total = np.array([variance, 2 * variance]) + noise
    for n in range(3):
        # the quadratic form from the two gradients' own size
        form = np.sum(one[1][n] ** 2) * total[0] ** 2 / (2 * (2 if tied else 1))
        change = -form * (1 / total[1] - 1 / total[0]) - ranks[n] / 2 * np.log(total[1] / total[0])
        assert two[0][n] - one[0][n] == pytest.approx(change, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_zeros_in_softmax_weights_are_not_seen(tied):
    rng = np.random.default_rng(3)
    mask = random_pairs(rng, 6, 4)
    seen = mask & ((rng.random(mask.shape) < 0.7) | np.eye(4, dtype=bool))
    assert (seen != mask).any()
    omega = draw_indices(rng, 6, 4, tied)
    y = masked_softmax(omega + draw_indices(rng, 6, 4, tied), seen)
    channel = make_channel("softmax", 4, tied=tied, noise=0.3, allowed=mask)
    code = channel.encode(y)
    gradient = channel.posterior(code, omega, 0.5)[1]
    for n in range(6):
        expected = conditioned(y[n], seen[n], omega[n], 0.5, 0.3, 1.0, tied, "softmax")
        np.testing.assert_allclose(gradient[n], expected, rtol=0, atol=1e-9)
    ranks = [brute_rank(one, tied) for one in seen]
    assert channel.rank == pytest.approx(np.mean(ranks))
    assert channel.expected_energy(omega, 0.5) == pytest.approx((2 if tied else 1) * np.mean(ranks) / 0.8)


@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("tied", [True, False])
def test_all_allowed_is_the_channel_without_mask(link, tied):
    rng = np.random.default_rng(4)
    plain = make_channel(link, 3, tied=tied, noise=0.2, inverse_temperature=1.4)
    channel = MaskedChannel(plain, np.ones((5, 3, 3), bool))
    omega = draw_indices(rng, 5, 3, tied)
    y = plain.link(omega + draw_indices(rng, 5, 3, tied))
    np.testing.assert_allclose(channel.link(np.log(y) if link == "softmax" else y), plain.link(
        np.log(y) if link == "softmax" else y), rtol=1e-13)  # fmt: skip
    one, two = (each.posterior(each.encode(y.copy()), omega, 0.7) for each in (plain, channel))
    np.testing.assert_allclose(two[0], one[0], rtol=1e-12)
    np.testing.assert_allclose(two[1], one[1], rtol=0, atol=1e-12)
    assert channel.information_constant == plain.information_constant
    np.testing.assert_allclose(channel.moments(omega, 0.7), plain.moments(omega, 0.7), rtol=1e-12)
    np.testing.assert_allclose(channel.test_error(0.4, 0.6)[0], plain.test_error(0.4, 0.6)[0], rtol=1e-9)
    assert channel.estimate_noise(channel.encode(y.copy()), omega, 0.1) == pytest.approx(
        plain.estimate_noise(plain.encode(y.copy()), omega, 0.1), rel=1e-10
    )


@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("tied", [True, False])
def test_nishimori_and_estimate_of_noise(link, tied):
    rng = np.random.default_rng(5)
    n, variance, noise = 20_000, 0.6, 0.4
    patterns = random_pairs(rng, 8, 4, 0.4)
    mask = np.tile(patterns, (n // 8, 1, 1))
    channel = make_channel(link, 4, tied=tied, noise=noise, allowed=mask)
    omega = draw_indices(rng, n, 4, tied, 0.8)
    h = omega + draw_indices(rng, n, 4, tied, variance + noise)
    y = masked_softmax(h[:n], mask) if link == "softmax" else np.where(mask, h, 0)
    code = channel.encode(y)
    norms = np.sum(channel.posterior(code, omega, variance)[1] ** 2, axis=(1, 2))
    m = np.mean([brute_rank(one, tied, link) for one in patterns])
    expected = (2 if tied else 1) * m / (variance + noise)
    assert abs(norms.mean() - expected) < 4 * norms.std() / np.sqrt(n)
    assert channel.information(variance, 0.8)[0] == pytest.approx(expected, rel=1e-12)
    # m Gaussian numbers a sequence: relative deviation sqrt(2/(n m)) of V + Delta
    assert channel.estimate_noise(code, omega, variance) == pytest.approx(noise, abs=5 * np.sqrt(2 / (n * m)))
    assert channel.with_noise(0.1).information(variance, 0.8)[0] == pytest.approx(
        expected * (variance + noise) / (variance + 0.1)
    )


@pytest.mark.parametrize("tied", [True, False])
def test_moments_are_averages_of_masked_maps(tied):
    rng = np.random.default_rng(6)
    mask = random_pairs(rng, 4, 3)
    channel = make_channel("softmax", 3, tied=tied, noise=0.2, inverse_temperature=1.5, allowed=mask)
    omega = draw_indices(rng, 4, 3, tied)
    mean, second = channel.moments(omega, 0.5)
    draws = 40_000
    for n in range(4):
        h = omega[n] + draw_indices(rng, draws, 3, tied, 0.7)
        with np.errstate(under="ignore"):
            y = softmax(np.where(mask[n], 1.5 * h, -np.inf), axis=2)
        for value, sample in ((mean[n], y), (second[n], y**2)):
            assert (np.abs(value - sample.mean(axis=0)) <= 5 * sample.std(axis=0) / np.sqrt(draws) + 1e-9).all()
    assert (mean[~mask] == 0).all()
    assert (second[~mask] == 0).all()


def test_channel_refuses():
    mask = np.broadcast_to(np.tri(3, dtype=bool), (2, 3, 3))
    channel = make_channel("softmax", 3, allowed=mask)
    y = masked_softmax(np.zeros((2, 3, 3)), mask)
    wrong = y.copy()
    wrong[1, 0, 2] = 0.1
    refused(lambda: channel.encode(wrong), "mask", "y[1, 0, 2]=0.1")
    wrong = y.copy()
    wrong[1, 2, 2] = 0.9
    refused(lambda: channel.encode(wrong), "sum to 1", "y[1, 2]")
    wrong = y.copy()
    wrong[0, 1, :2] = 1.5, -0.5
    refused(lambda: channel.encode(wrong), "y[0, 1, 1]=-0.5")
    refused(lambda: make_channel("hardmax", 3, allowed=mask), "mask", "hardmax")
    # such masks have predictions, but teach nothing
    alone = np.eye(3, dtype=bool)[None]
    refused(lambda: make_channel("softmax", 3, allowed=alone).encode(1.0 * alone), "y shows nothing")
    bound = BayesOptimalBound(n_tokens=3, mask=alone)
    refused(lambda: bound.estimation_error(0.1), "mask leaves nothing to learn")


# ----------------------------------------------------------------------------------------------------------------
# bound


@pytest.mark.parametrize("n_tokens", [2, 3, 5])
@pytest.mark.parametrize("rho", [0.3, 1.0])
def test_recovery_behind_a_causal_mask(n_tokens, rho):
    pairs = n_tokens * (n_tokens - 1)
    for tied, k in ((True, pairs), (False, pairs / 2)):
        bound = BayesOptimalBound(rho, tied=tied, n_tokens=n_tokens, mask="causal")
        assert bound.recovery_threshold() == pytest.approx((2 * rho - rho**2) / k)
        assert bound.estimation_error(0.999 * bound.recovery_threshold()) > 0
        assert bound.estimation_error(1.001 * bound.recovery_threshold()) == 0
        assert bound.estimation_error(0) == pytest.approx(1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("m", [2, 3])
def test_padding_to_one_length_is_the_bound_of_that_length(tied, m):
    # and it does not matter which tokens are padding
    padding = np.array([np.isin(np.arange(5), keys) for keys in itertools.combinations(range(5), m)])
    params = {"tied": tied, "inverse_temperature": 1.3, "noise": 0.1}
    plain, masked = BayesOptimalBound(0.5, n_tokens=m, **params), BayesOptimalBound(
        0.5, n_tokens=5, mask=padding, **params
    )  # fmt: skip
    alpha = np.array([0.02, 0.1])
    for method in ("estimation_error", "information", "free_entropy"):
        np.testing.assert_allclose(getattr(masked, method)(alpha), getattr(plain, method)(alpha), rtol=1e-9)
    np.testing.assert_allclose(masked.test_error(0.1), plain.test_error(0.1), rtol=1e-6)
    clean = {**params, "noise": 0.0}
    one, two = BayesOptimalBound(0.5, n_tokens=m, **clean), BayesOptimalBound(0.5, n_tokens=5, mask=padding, **clean)
    assert two.recovery_threshold() == pytest.approx(one.recovery_threshold())


def test_identity_padding_is_the_bound_of_that_length():
    padding = np.tile([True, True, False, False, True], (7, 1))
    one, two = (
        BayesOptimalBound(0.5, link="identity", n_tokens=n, mask=mask, noise=0.1)
        for n, mask in ((3, None), (5, padding))
    )
    for method in ("estimation_error", "test_error", "free_entropy"):
        assert getattr(two, method)(0.1) == pytest.approx(getattr(one, method)(0.1), rel=1e-9)


def test_diagonal_indices_do_not_fix_untied_interactions():
    # one token a sequence, which is refused without a mask, or the same by pairs
    refused(lambda: BayesOptimalBound(1.0, tied=False, link="identity", n_tokens=1).recovery_threshold(), "n_tokens=1")
    for mask in (np.eye(3, dtype=bool), np.tile([False, True, False], (5, 1))):
        bound = BayesOptimalBound(1.0, tied=False, link="identity", n_tokens=3, mask=mask)
        try:
            threshold = bound.recovery_threshold()
        except ValueError:
            continue
        assert threshold == np.inf


def test_identity_untied_padding_has_the_threshold_of_that_length():
    padding = np.tile([True, True, False, False], (6, 1))
    one = BayesOptimalBound(1.0, tied=False, link="identity", n_tokens=2)
    two = BayesOptimalBound(1.0, tied=False, link="identity", n_tokens=4, mask=padding)
    assert two.recovery_threshold() == pytest.approx(one.recovery_threshold())


@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_all_true_is_no_mask(link):
    for shape in ((3, 3), (4, 3), (4, 3, 3)):
        one, two = (
            BayesOptimalBound(0.5, n_tokens=3, link=link, noise=0.1, mask=m) for m in (None, np.ones(shape, bool))
        )
        for method in ("estimation_error", "test_error", "information"):
            assert getattr(two, method)(0.1) == getattr(one, method)(0.1)


@pytest.mark.parametrize("tied", [True, False])
def test_mixtures_have_the_mean_rank(tied):
    rng = np.random.default_rng(7)
    mask = random_pairs(rng, 6, 4)
    m = np.mean([brute_rank(one, tied) for one in mask])
    bound = BayesOptimalBound(0.5, tied=tied, n_tokens=4, mask=mask)
    assert bound.recovery_threshold() == pytest.approx(0.75 / ((2 if tied else 1) * m))
    # softmax without mask has the same prior and another k: alpha k alone counts
    plain = BayesOptimalBound(0.5, tied=tied, n_tokens=2)
    k = 4 if tied else 2
    alpha = 0.05
    assert bound.estimation_error(alpha) == pytest.approx(
        plain.estimation_error(alpha * (2 if tied else 1) * m / k), rel=1e-9
    )
    # the shares of patterns count, not their order
    again = BayesOptimalBound(0.5, tied=tied, n_tokens=4, mask=np.tile(mask[::-1], (3, 1, 1)))
    assert again.estimation_error(alpha) == pytest.approx(bound.estimation_error(alpha), rel=1e-12)
    assert again.test_error(alpha) == pytest.approx(bound.test_error(alpha), rel=1e-9)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["causal", "padding", "pairs"])
def test_test_error_is_the_monte_carlo_average(tied, kind):
    rng = np.random.default_rng(8)
    n, n_tokens, beta, noise = 40_000, 3, 1.5, 0.1
    patterns = {
        "causal": np.tri(3, dtype=bool)[None],
        "padding": padding_pairs(lengths_to_padding([1, 2, 3, 3], 3)),
        "pairs": np.array([[[0, 1, 1], [1, 1, 0], [1, 1, 1]], [[0, 1, 0], [1, 0, 1], [0, 1, 1]]], dtype=bool),
    }[kind]
    mask = "causal" if kind == "causal" else patterns
    bound = BayesOptimalBound(0.5, tied=tied, n_tokens=n_tokens, inverse_temperature=beta, noise=noise, mask=mask)
    V, q = bound.estimation_error(0.05), bound.overlap(0.05)
    allowed = np.resize(patterns, (n, 3, 3))
    omega = draw_indices(rng, n, n_tokens, tied, q)
    # two draws from the posterior differ by twice the error of its mean
    pair = [
        softmax(
            np.where(allowed | ~allowed.any(axis=2, keepdims=True),
                     beta * (omega + draw_indices(rng, n, n_tokens, tied, V + noise)), -np.inf),
            axis=2,
        ) * allowed
        for _ in range(2)
    ]  # fmt: skip
    each = np.sum((pair[0] - pair[1]) ** 2, axis=(1, 2)) / 2
    assert abs(each.mean() - bound.test_error(0.05)) < 4 * each.std() / np.sqrt(n)


def test_identity_test_error_counts_what_is_shown():
    bound = BayesOptimalBound(0.5, n_tokens=3, link="identity", noise=0.2, mask="causal")
    V = bound.estimation_error(0.05)
    # three diagonal entries of variance 2, three below
    assert bound.test_error(0.05) == pytest.approx((V + 0.2) * 9)


def test_bound_is_a_scikit_learn_object():
    mask = random_pairs(np.random.default_rng(9), 5, 3)
    bound = BayesOptimalBound(0.5, n_tokens=3, mask=mask)
    assert bound.get_params()["mask"] is mask
    twin = clone(bound)
    np.testing.assert_array_equal(twin.mask, mask)
    assert twin.estimation_error(0.1) == bound.estimation_error(0.1)
    repr(bound)
    errors = {}
    for params in ParameterGrid({"mask": [None, "causal", mask], "n_tokens": [3]}):
        errors[str(params["mask"])] = clone(bound).set_params(**params).estimation_error(0.05)
    assert errors["None"] < min(errors["causal"], errors[str(mask)])
    for bad in ("casual", np.ones((2, 4), bool), np.zeros((3, 3), bool)):
        refused(lambda bad=bad: clone(bound).set_params(mask=bad).estimation_error(0.1), "mask")
    refused(lambda: BayesOptimalBound(0.5, link="hardmax", mask="causal").estimation_error(0.1), "mask", "hardmax")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["causal", "shared", "padding", "pairs"])
def test_bound_from_an_estimator_has_its_mask(model, kind):
    rng = np.random.default_rng(10)
    mask = {
        "causal": "causal",
        "shared": np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool),
        "padding": lengths_to_padding(rng.integers(1, 4, 40), 3),
        "pairs": random_pairs(rng, 40, 3),
    }[kind]
    X, y = make_attention_sequences(40, 3, 6, width=0.5, mask=mask, random_state=0)
    est = quick(model).fit(X, y, mask=mask)
    bound = BayesOptimalBound.from_estimator(est)
    expected = BayesOptimalBound(0.5, n_tokens=3, mask=mask)
    alpha = 0.05
    assert bound.estimation_error(alpha) == pytest.approx(expected.estimation_error(alpha), rel=1e-9)
    assert bound.estimation_error() == pytest.approx(expected.estimation_error(40 / 36), rel=1e-9)
    est.fit(*make_attention_sequences(40, 3, 6, width=0.5, random_state=0))
    assert est.mask_ is None
    assert BayesOptimalBound.from_estimator(est).mask is None


def test_bound_from_an_estimator_leaves_out_sequences_of_zero_weight():
    mask = lengths_to_padding(np.tile([2, 3], 30), 3)
    X, y = make_attention_sequences(60, 3, 8, width=0.5, mask=mask, random_state=0)
    est = quick(GDAttentionRegressor).fit(X, y, sample_weight=np.tile([1, 0], 30), mask=mask)
    # alpha is that of the thirty sequences used, all of two tokens
    assert est.sample_complexity_ == 30 / 64
    expected = BayesOptimalBound(0.5, n_tokens=2).recovery_threshold()
    assert BayesOptimalBound.from_estimator(est).recovery_threshold() == pytest.approx(expected)


# ----------------------------------------------------------------------------------------------------------------
# message passing


def quick(model, **params):
    """A few iterations that end without a warning."""
    if model is AMPAttentionRegressor:
        return AMPAttentionRegressor(0.5, **{"tol": 10, **params})
    return GDAttentionRegressor(0.5, **{"max_iter": 5, "tol": 0, "random_state": 0, **params})


def padded(X, y, positions, n_tokens, fill):
    """Sequences of m tokens moved to `positions` of longer ones, with junk or zeros in between."""
    out = np.zeros((len(X), n_tokens, X.shape[2]), X.dtype)
    if fill == "junk":
        out[:] = 5 * np.random.default_rng(0).standard_normal(out.shape)
    maps = np.zeros((len(X), n_tokens, n_tokens), y.dtype)
    out[:, positions] = X
    maps[np.ix_(range(len(X)), positions, positions)] = y
    return out, maps, np.tile(np.isin(np.arange(n_tokens), positions), (len(X), 1))


@pytest.mark.parametrize("fill", ["zeros", "junk"])
@pytest.mark.parametrize(("link", "tied"), [("softmax", True), ("softmax", False), ("identity", True)])
def test_amp_padded_is_unpadded(fill, link, tied):
    X, y = make_attention_sequences(60, 3, 16, width=0.5, tied=tied, link=link, noise=0.1, random_state=0)
    one = AMPAttentionRegressor(0.5, tied=tied, link=link, noise=0.1).fit(X, y)
    longer, maps, mask = padded(X, y, [0, 2, 3], 5, fill)
    two = AMPAttentionRegressor(0.5, tied=tied, link=link, noise=0.1).fit(longer, maps, mask=mask)
    np.testing.assert_allclose(two.interaction_, one.interaction_, rtol=0, atol=1e-10)
    assert two.estimation_error_ == pytest.approx(one.estimation_error_, rel=1e-9)
    mean, std = two.predict(longer, mask=mask, return_std=True)
    expected = one.predict(X, return_std=True)
    for wide, narrow in zip((mean, std), expected, strict=True):
        np.testing.assert_allclose(wide[np.ix_(range(60), [0, 2, 3], [0, 2, 3])], narrow, rtol=0, atol=1e-8)
        assert (wide[~padding_pairs(mask)] == 0).all()


def permuted(X, y, mask, rng):
    """Tokens of every sequence in another order."""
    order = np.array([rng.permutation(X.shape[1]) for _ in X])
    rows = np.arange(len(X))[:, None]
    pick = rows[:, :, None], order[:, :, None], order[:, None, :]
    return X[rows, order], y[pick], mask[pick]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_order_of_tokens_does_not_matter(model, tied):
    rng = np.random.default_rng(11)
    mask = random_pairs(rng, 150, 4)
    X, y = make_attention_sequences(150, 4, 14, width=0.5, tied=tied, mask=mask, noise=0.1, random_state=0)
    params = {"noise": 0.1, "tol": 0.01} if model is AMPAttentionRegressor else {}
    one = quick(model, tied=tied, **params).fit(X, y, mask=mask)
    X2, y2, mask2 = permuted(X, y, mask, rng)
    two = quick(model, tied=tied, **params).fit(X2, y2, mask=mask2)
    np.testing.assert_allclose(two.interaction_, one.interaction_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("setting", ["causal", "padding", "pairs"])
def test_amp_attains_the_bound(setting):
    rng = np.random.default_rng(12)
    d, n_tokens, tied = 120, {"causal": 3, "padding": 4, "pairs": 3}[setting], setting != "pairs"
    n = 900
    mask = {
        "causal": "causal",
        "padding": lengths_to_padding(rng.integers(1, 5, n), 4),
        "pairs": random_pairs(rng, n, 3),
    }[setting]
    X, y, S = make_attention_sequences(
        n, n_tokens, d, width=0.5, tied=tied, mask=mask, random_state=1, return_interaction=True
    )
    est = AMPAttentionRegressor(0.5, tied=tied).fit(X, y, mask=mask)
    bound = BayesOptimalBound(0.5, tied=tied, n_tokens=n_tokens, mask=mask)
    alpha = n / d**2
    assert alpha < 0.7 * bound.recovery_threshold()
    V = bound.estimation_error(alpha)
    assert est.converged_
    assert estimation_error(S, est.interaction_) == pytest.approx(V, rel=0.07)
    assert est.estimation_error_ == pytest.approx(V, rel=0.07)
    # and new sequences have the test error of the bound
    X2, y2 = make_attention_sequences(n, n_tokens, d, interaction=S, tied=tied, mask=mask, random_state=2)
    error = np.mean(np.sum((y2 - est.predict(X2, mask=mask)) ** 2, axis=(1, 2)))
    assert error == pytest.approx(bound.test_error(alpha), rel=0.1)


@pytest.fixture(scope="module")
def causal():
    """A causal teacher in three tokens, with its fits. Not to be modified."""
    X, y, S = make_attention_sequences(
        150, 3, 12, width=0.5, mask="causal", noise=0.1, random_state=3, return_interaction=True
    )
    amp = AMPAttentionRegressor(0.5, noise=0.1).fit(X, y, mask="causal")
    gd = quick(GDAttentionRegressor, max_iter=30).fit(X, y, mask="causal")
    return X, y, S, {AMPAttentionRegressor: amp, GDAttentionRegressor: gd}


@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_masked_distributions(causal, model):
    rng = np.random.default_rng(13)
    X, _, _, fits = causal
    est = fits[model]
    mask = random_pairs(rng, 150, 3)
    # some padding
    mask[:40] &= padding_pairs(lengths_to_padding(rng.integers(1, 4, 40), 3))
    maps = est.predict(X, mask=mask)
    assert (maps[~mask] == 0).all()
    assert (maps[mask] > 0).all()
    np.testing.assert_allclose(maps.sum(axis=2), mask.any(axis=2), rtol=0, atol=1e-7)
    if model is AMPAttentionRegressor:
        again, std = est.predict(X, mask=mask, return_std=True)
        np.testing.assert_array_equal(again, maps)
        assert (std[~mask] == 0).all()
        assert (std[(maps > 0.01) & (maps < 0.99)] > 0).all()
    else:
        h = est.predict_index(X)
        index = est.predict_index(X, mask=mask)
        assert (index[~mask] == 0).all()
        np.testing.assert_allclose(index[mask], indices_of(X, est.interaction_)[mask], rtol=0, atol=1e-10)
        np.testing.assert_allclose(maps, masked_softmax(index, mask), rtol=0, atol=1e-10)
        assert (h[:, np.triu(np.ones((3, 3)), 1) > 0] == 0).all()


@pytest.mark.parametrize("model", MODELS)
def test_masks_that_all_sequences_share_go_on(causal, model):
    X, y, _, fits = causal
    est = fits[model]
    assert est.mask_ == "causal"
    np.testing.assert_array_equal(est.predict(X), est.predict(X, mask="causal"))
    assert est.predict(X[:1]).shape == (1, 3, 3)
    # of another number of tokens too
    longer = np.random.default_rng(0).standard_normal((5, 4, 12))
    assert (est.predict(longer)[:, np.triu(np.ones((4, 4)), 1) > 0] == 0).all()
    seen = np.broadcast_to(np.tri(3, dtype=bool), y.shape)
    assert est.score(X, y) == attention_r2_score(y, est.predict(X, mask="causal"), mask=seen)
    # by hand: masked entries are no part of the variance to explain
    error, truth = (est.predict(X) - y)[seen], y[seen]
    assert est.score(X, y) == pytest.approx(1 - np.sum(error**2) / np.sum((truth - truth.mean()) ** 2))

    shared = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]])
    X2, y2 = make_attention_sequences(150, 3, 12, width=0.5, mask=shared, noise=0.1, random_state=4)
    est = quick(model).fit(X2, y2, mask=shared)
    np.testing.assert_array_equal(est.mask_, shared)
    np.testing.assert_array_equal(est.predict(X), est.predict(X, mask=shared))
    assert (est.predict(X[:2])[:, shared == 0] == 0).all()
    # what the caller does with the mask later is nothing to the estimator
    shared[:] = 1
    assert est.mask_.sum() == 6

    mask = random_pairs(np.random.default_rng(14), 150, 3)
    X3, y3 = make_attention_sequences(150, 3, 12, width=0.5, mask=mask, noise=0.1, random_state=4)
    est = quick(model).fit(X3, y3, mask=mask)
    assert (est.predict(X3) > 0).all()
    masked = est.score(X3, y3, mask=mask)
    assert masked == attention_r2_score(y3, est.predict(X3, mask=mask), mask=mask)
    weights = np.arange(150) % 3
    assert est.score(X3, y3, sample_weight=weights, mask=mask) == attention_r2_score(
        y3, est.predict(X3, mask=mask), sample_weight=weights, mask=mask
    )
    assert masked > est.score(X3, y3)


@pytest.mark.parametrize("model", MODELS)
def test_shared_masks_go_on_to_as_many_sequences_as_tokens(model):
    shared = np.tri(3, dtype=bool)
    X, y = make_attention_sequences(50, 3, 8, width=0.5, mask=shared, random_state=0)
    est = quick(model).fit(X, y, mask=shared)
    np.testing.assert_allclose(est.predict(X[:3]), est.predict(X)[:3], rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_of_one_token_attends_to_itself(causal, model):
    X, _, _, fits = causal
    expected = np.zeros((1, 3, 3))
    expected[0, 0, 0] = 1
    maps = fits[model].predict(X[:1], mask=np.array([[True, False, False]]))
    np.testing.assert_allclose(maps, expected)


@pytest.mark.parametrize("model", MODELS)
def test_forms_of_input(causal, model):
    X, y, _, _ = causal
    plain = quick(model).fit(X, y, mask="causal")
    flat = quick(model, n_tokens=3).fit(X.reshape(150, 36), y.reshape(150, 9), mask=np.tri(3))
    np.testing.assert_array_equal(flat.interaction_, plain.interaction_)
    maps = flat.predict(X.reshape(150, 36))
    np.testing.assert_allclose(maps, plain.predict(X).reshape(150, 9), rtol=0, atol=1e-12)
    single = quick(model).fit(X.astype(np.float32), y.astype(np.float32), mask="causal")
    assert single.interaction_.dtype == np.float32
    assert single.predict(X).dtype == np.float32
    np.testing.assert_allclose(single.interaction_, plain.interaction_, atol=1e-3)
    if model is AMPAttentionRegressor:
        assert single.predict(X, return_std=True)[1].dtype == np.float32
    else:
        assert single.predict_index(X).dtype == np.float32


@pytest.mark.parametrize("model", MODELS)
def test_fit_refuses(causal, model):
    X, y, _, fits = causal
    full = make_attention_sequences(150, 3, 12, width=0.5, random_state=0)[1]
    refused(lambda: quick(model).fit(X, full, mask="causal"), "y must be 0", "mask", "y[0, 0, 1]")
    refused(lambda: quick(model).fit(X, y, mask="Causal"), "mask='Causal'")
    refused(lambda: quick(model).fit(X, y, mask=np.ones((150, 4), bool)), "mask has shape (150, 4)")
    refused(lambda: quick(model).fit(X, y, mask=np.full((150, 3), 2)), "mask")
    refused(lambda: fits[model].predict(X, mask=np.ones((7, 3, 3), bool)), "mask has shape (7, 3, 3)")
    refused(lambda: fits[model].score(X, y, mask="none"), "mask='none'")
    # a refused fit leaves what was there
    est = clone(fits[model]).fit(X, y, mask="causal")
    refused(lambda: est.fit(X, full, mask=np.tri(3)), "mask")
    assert est.mask_ == "causal"
    if model is AMPAttentionRegressor:
        refused(lambda: AMPAttentionRegressor(link="hardmax").fit(X, y, mask="causal"), "mask", "hardmax")


def test_amp_zeros_without_a_mask_warn(causal):
    X, y, S, _ = causal
    with pytest.warns(UserWarning, match="mask") as caught:
        est = AMPAttentionRegressor(0.5, noise=0.1).fit(X, y)
    assert len(caught) == 1
    assert est.mask_ is None
    assert np.isfinite(est.interaction_).all()
    # zeros above the diagonal are not seen, as behind the mask
    np.testing.assert_allclose(est.interaction_, causal[3][AMPAttentionRegressor].interaction_, rtol=0, atol=1e-10)
    assert estimation_error(S, est.interaction_) < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        some = y.copy()
        some[:20, 2] = [0, 0.4, 0.6]
        AMPAttentionRegressor(0.5, noise=0.1, tol=10).fit(X, some, mask="causal")


def test_amp_estimates_noise_behind_a_mask():
    X, y = make_attention_sequences(2000, 3, 30, width=0.5, mask="causal", noise=0.3, random_state=5)
    est = AMPAttentionRegressor(0.5, noise="estimate").fit(X, y, mask="causal")
    assert est.noise_ == pytest.approx(0.3, rel=0.15)


def test_amp_warm_start_with_masks():
    rng = np.random.default_rng(15)
    mask = random_pairs(rng, 600, 3)
    X, y = make_attention_sequences(600, 3, 40, width=0.5, mask=mask, noise=0.1, random_state=6)
    est = AMPAttentionRegressor(0.5, noise=0.1, warm_start=True).fit(X[:500], y[:500], mask=mask[:500])
    first = est.n_iter_
    cold = AMPAttentionRegressor(0.5, noise=0.1).fit(X, y, mask=mask)
    est.fit(X, y, mask=mask)
    assert est.n_iter_ < min(first, cold.n_iter_)
    distance = estimation_error(cold.interaction_, est.interaction_)
    assert distance < 0.01 * cold.estimation_error_
    est.fit(X, y, mask=mask)
    assert est.n_iter_ <= 3


def test_amp_mask_without_padding_is_no_mask():
    X, y = make_attention_sequences(100, 3, 12, width=0.5, noise=0.1, random_state=0)
    one = AMPAttentionRegressor(0.5, noise=0.1).fit(X, y)
    two = AMPAttentionRegressor(0.5, noise=0.1).fit(X, y, mask=np.ones((100, 3)))
    np.testing.assert_array_equal(two.interaction_, one.interaction_)
    assert two.mask_ is None


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["padding", "pairs", "causal"])
def test_metadata_routing(model, kind):
    rng = np.random.default_rng(16)
    mask = {
        "padding": lengths_to_padding(rng.integers(2, 4, 120), 3),
        "pairs": random_pairs(rng, 120, 3),
        "causal": "causal",
    }[kind]
    X, y = make_attention_sequences(120, 3, 10, width=0.5, mask=mask, noise=0.1, random_state=0)
    folds = list(KFold(2).split(X))

    def of(part):
        return mask if kind == "causal" else mask[part]

    with config_context(enable_metadata_routing=True):
        est = quick(model).set_fit_request(mask=True).set_score_request(mask=True).set_predict_request(mask=True)
        # padding does not count in the whitening
        whitener = TokenWhitener().set_fit_request(mask=True)
        pipeline = make_pipeline(whitener, est).fit(X, y, mask=mask)
        white = TokenWhitener().fit(X, mask=mask).transform(X)
        direct = quick(model).fit(white, y, mask=mask)
        np.testing.assert_array_equal(pipeline[-1].interaction_, direct.interaction_)
        np.testing.assert_array_equal(pipeline.predict(X, mask=mask), direct.predict(white, mask=mask))
        assert pipeline.score(X, y, mask=mask) == direct.score(white, y, mask=mask)

        expected = []
        for train, test in folds:
            white = TokenWhitener().fit(X[train], mask=of(train))
            fit = quick(model).fit(white.transform(X[train]), y[train], mask=of(train))
            expected.append(fit.score(white.transform(X[test]), y[test], mask=of(test)))
        if parse_version(sklearn.__version__) < parse_version("1.8"):
            # scikit-learn gave what a pipeline's own score asks for to the last step alone, or not at all
            return
        scores = cross_validate(make_pipeline(whitener, est), X, y, cv=folds, params={"mask": mask})
        np.testing.assert_allclose(scores["test_score"], expected, rtol=1e-10)
        name = est.__class__.__name__.lower()
        search = GridSearchCV(make_pipeline(whitener, est), {f"{name}__width": [0.5]}, cv=folds)
        search.fit(X, y, mask=mask)
        assert search.best_score_ == pytest.approx(np.mean(expected), rel=1e-10)
        np.testing.assert_array_equal(search.best_estimator_.predict(X, mask=mask), pipeline.predict(X, mask=mask))


# ----------------------------------------------------------------------------------------------------------------
# gradient descent

STACKS = [
    AttentionStack(5, 3, tied, n_layers, 0.7, link, 1.3, loss, bias, "attention-index", center, 0.1)
    for tied, n_layers, (link, loss), bias, center in itertools.product(
        [True, False],
        [1, 2],
        [("identity", "squared_error"), *(("softmax", loss) for loss in LOSSES)],
        [False, True],
        [True, False],
    )
    if n_layers == 1 or link == "softmax"
]


def stack_name(stack):
    label = stack.link if stack.link == "identity" else stack.loss
    return f"{'tied' if stack.tied else 'untied'}-{stack.n_layers}-{label}-{stack.fit_bias}-{stack.center}"


def problem(stack, seed=0, n=6, n_tokens=4):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, n_tokens, stack.n_features))
    mask = random_pairs(rng, n, n_tokens)
    mask[: n // 2] &= padding_pairs(lengths_to_padding(rng.integers(1, n_tokens, n // 2), n_tokens))
    y = np.where(mask, rng.random(mask.shape) + 0.1, 0)
    y /= np.where(mask.any(axis=2), y.sum(axis=2), 1)[:, :, None]
    return x, y, rng.random(n) + 0.1, mask, rng.standard_normal((2, *stack.shape))


def plain_outputs(stack, factors, x, mask):
    """The model as it is written, layer by layer."""
    left, right, bias = stack.split(factors[None])
    d = stack.n_features
    tokens = x
    for layer in range(stack.n_layers):
        S = left[0, layer].T @ right[0, layer] / np.sqrt(stack.width * d)
        h = np.einsum("nai,ij,nbj->nab", tokens, S, tokens)
        if stack.fit_bias:
            h = h + (tokens @ bias[0, layer])[:, None, :]
        if stack.center:
            h = h - np.trace(S) * np.eye(x.shape[1])
        h = h / np.sqrt(d)
        output = np.where(mask, h, 0) if stack.link == "identity" else masked_softmax(
            h, mask, stack.inverse_temperature)  # fmt: skip
        tokens = stack.skip * tokens + output @ tokens
    return h, output


def plain_loss(stack, factors, x, y, weights, mask):
    output = plain_outputs(stack, factors, x, mask)[1]
    losses = np.zeros(len(x))
    for n, a in np.ndindex(mask.shape[:2]):
        keys = mask[n, a]
        if stack.loss == "squared_error":
            losses[n] += np.sum((y[n, a] - output[n, a]) ** 2)
        elif keys.any():
            ratio = np.log(y[n, a, keys]) - np.log(output[n, a, keys])
            if stack.loss == "cross_entropy":
                losses[n] += y[n, a, keys] @ ratio
            else:
                losses[n] += np.sum((ratio - ratio.mean()) ** 2) / stack.inverse_temperature**2
    left, right, _ = stack.split(factors[None])
    d = stack.n_features
    decay = stack.weight_decay * (np.sum(left**2) + np.sum(right**2)) / 2 / (d * np.sqrt(stack.width * d))
    return weights @ losses / weights.sum() + decay


@pytest.mark.parametrize("stack", STACKS, ids=stack_name)
def test_masked_loss_and_gradient(stack):
    x, y, weights, mask, factors = problem(stack)
    objective = Objective(stack, x, y, weights, mask, n_threads=1)
    loss, gradient = objective(factors)
    indices, maps = stack.outputs(factors, x, mask)
    for start, each in enumerate(factors):
        assert loss[start] == pytest.approx(plain_loss(stack, each, x, y, weights, mask), rel=1e-10)
        h, output = plain_outputs(stack, each, x, mask)
        np.testing.assert_allclose(maps[:, start], output, rtol=0, atol=1e-12)
        np.testing.assert_allclose(indices[:, start], np.where(mask, h, 0), rtol=0, atol=1e-11)
    rng, step = np.random.default_rng(1), 1e-4
    for _ in range(3):
        direction = rng.standard_normal(factors.shape)
        near, far = (
            np.array(
                [
                    plain_loss(stack, f + k * step * v, x, y, weights, mask)
                    - plain_loss(stack, f - k * step * v, x, y, weights, mask)
                    for f, v in zip(factors, direction, strict=True)
                ]
            )
            for k in (1, 2)
        )
        slope = (8 * near - far) / (12 * step)
        np.testing.assert_allclose(np.sum(gradient * direction, axis=(1, 2)), slope, rtol=1e-6, atol=1e-7)
    # a subset has its own part of the mask
    chosen = np.array([1, 4])
    part = Objective(stack, x[chosen], y[chosen], weights[chosen], mask[chosen], n_threads=1)(factors)
    for one, two in zip(objective(factors, chosen), part, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fill", ["zeros", "junk"])
def test_padded_loss_is_unpadded(n_layers, loss, fill):
    stack = AttentionStack(5, 3, True, n_layers, 0.7, loss=loss, fit_bias=True)
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((6, 3, 5)), rng.dirichlet(np.ones(3), (6, 3))
    factors, weights = rng.standard_normal((2, *stack.shape)), rng.random(6)
    longer, maps, mask = padded(x, y, [1, 2, 4], 5, fill)
    one = Objective(stack, x, y, weights, n_threads=1)(factors)
    two = Objective(stack, longer, maps, weights, padding_pairs(mask), n_threads=1)(factors)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_gd_padded_fit_is_unpadded(n_layers):
    X, y = make_attention_sequences(80, 3, 8, width=2, random_state=0)
    longer, maps, mask = padded(X, y, [0, 1, 3], 4, "normal")
    longer[:, 2] = np.random.default_rng(0).standard_normal((80, 8))
    params = {"width": 2, "n_layers": n_layers, "max_iter": 8, "tol": 0, "random_state": 0}
    one = GDAttentionRegressor(**params).fit(X, y)
    two = GDAttentionRegressor(**params).fit(longer, maps, mask=mask)
    np.testing.assert_allclose(two.interaction_, one.interaction_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(two.loss_curve_[0], one.loss_curve_[0], rtol=1e-8)
    pick = np.ix_(range(80), [0, 1, 3], [0, 1, 3])
    out = two.predict(longer, mask=mask)
    np.testing.assert_allclose(out[pick], one.predict(X), rtol=0, atol=1e-7)
    assert (out[~padding_pairs(mask)] == 0).all()
    index = two.predict_index(longer, mask=mask)
    np.testing.assert_allclose(index[pick], one.predict_index(X), rtol=0, atol=1e-7)
    assert (index[~padding_pairs(mask)] == 0).all()


def test_gd_padding_by_zeros_does_not_warn_of_the_scale():
    X, y = make_attention_sequences(80, 3, 8, width=2, random_state=0)
    longer, maps, mask = padded(X, y, [0, 1, 2], 8, "zeros")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(GDAttentionRegressor).fit(longer, maps, mask=mask)


def recoverable(mask, seed=0, n=400, **params):
    return make_attention_sequences(n, 3, 12, width=3, mask=mask, random_state=seed, return_interaction=True, **params)


@pytest.mark.parametrize("loss", LOSSES)
def test_gd_fits_a_causal_teacher(loss):
    X, y, S = recoverable("causal")
    est = GDAttentionRegressor(width=3, loss=loss, tol=1e-4, random_state=0, init_scale=0.3).fit(X, y, mask="causal")
    assert estimation_error(S, est.interaction_) < 1e-3
    new, maps = make_attention_sequences(50, 3, 12, interaction=S, mask="causal", random_state=1)
    assert est.score(new, maps) > 0.999


@pytest.mark.parametrize(
    "params",
    [
        {"solver": "adam", "batch_size": 50, "max_iter": 150},
        {"solver": "sgd", "batch_size": 50, "learning_rate": 0.3, "max_iter": 150},
        {"early_stopping": True},
    ],
    ids=["adam", "sgd", "early-stopping"],
)
def test_gd_other_ways_to_fit(params):
    rng = np.random.default_rng(17)
    mask = random_pairs(rng, 400, 3)
    X, y, S = recoverable(mask)
    est = GDAttentionRegressor(width=3, random_state=0, init_scale=0.3, **{"tol": 1e-3, **params})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est.fit(X, y, mask=mask)
    assert estimation_error(S, est.interaction_) < 0.01
    if est.early_stopping:
        assert est.validation_loss_curve_[0].min() < 1e-3 * est.validation_loss_curve_[0][0]


@pytest.mark.parametrize("loss", LOSSES)
def test_gd_zero_weights_leave_sequences_out(loss):
    rng = np.random.default_rng(18)
    mask = lengths_to_padding(rng.integers(2, 4, 60), 3)
    X, y, _ = recoverable(mask, n=60)
    weights = (np.arange(60) % 3).astype(float)
    params = {"width": 3, "loss": loss, "max_iter": 8, "tol": 0, "random_state": 0}
    one = GDAttentionRegressor(**params).fit(X, y, sample_weight=weights, mask=mask)
    used = weights > 0
    two = GDAttentionRegressor(**params).fit(X[used], y[used], sample_weight=weights[used], mask=mask[used])
    np.testing.assert_allclose(one.interaction_, two.interaction_, rtol=0, atol=1e-10)


def test_gd_partial_fit():
    rng = np.random.default_rng(19)
    mask = random_pairs(rng, 120, 3)
    X, y, _ = recoverable(mask, n=120)
    est = GDAttentionRegressor(width=3, random_state=0, learning_rate=0.05, batch_size=20, init_scale=0.3)
    for _ in range(60):
        est.partial_fit(X, y, mask=mask)
    assert est.loss_curve_[0][-1] < 0.05 * est.loss_curve_[0][0]
    # one call is one step, whose loss is that of the start
    one = GDAttentionRegressor(width=3, random_state=0, solver="sgd").partial_fit(X, y, mask=mask)
    start = clone(one).set_params(max_iter=1, tol=0, solver="lbfgs").fit(X, y, mask=mask)
    assert one.loss_curve_[0][0] == pytest.approx(start.loss_curve_[0][0], rel=1e-12)
    # masks may differ between calls, and padding changes nothing
    longer, maps, _ = padded(X, y, [0, 1, 2], 4, "zeros")
    longer[:, 3] = 1
    pairs = np.zeros((120, 4, 4), bool)
    pairs[:, :3, :3] = mask
    two = GDAttentionRegressor(width=3, random_state=0, solver="sgd").partial_fit(longer, maps, mask=pairs)
    np.testing.assert_allclose(two.interaction_, one.interaction_, rtol=0, atol=1e-10)
    refused(lambda: one.partial_fit(X, y, mask="causal"), "mask")


@pytest.mark.parametrize("n_layers", [1, 2])
def test_gd_dask_and_memory_maps(tmp_path, n_layers):
    da = pytest.importorskip("dask.array")
    rng = np.random.default_rng(20)
    mask = random_pairs(rng, 60, 3)
    X, y, _ = recoverable(mask, n=60)
    np.save(tmp_path / "x.npy", X)
    params = {"width": 3, "n_layers": n_layers, "max_iter": 5, "tol": 0, "random_state": 0}
    plain = GDAttentionRegressor(**params).fit(X, y, mask=mask)
    for other in (da.from_array(X, chunks=((20, 1, 39), 3, 12)), np.load(tmp_path / "x.npy", mmap_mode="r")):
        est = GDAttentionRegressor(**params).fit(other, y, mask=mask)
        np.testing.assert_allclose(est.interaction_, plain.interaction_, rtol=0, atol=1e-9)
        for method in ("predict", "predict_index"):
            np.testing.assert_allclose(
                getattr(est, method)(other, mask=mask), getattr(plain, method)(X, mask=mask), rtol=0, atol=1e-8
            )
        part = GDAttentionRegressor(width=3, random_state=0, batch_size=20).partial_fit(other, y, mask=mask)
        whole = GDAttentionRegressor(width=3, random_state=0, batch_size=20).partial_fit(X, y, mask=mask)
        np.testing.assert_allclose(part.interaction_, whole.interaction_, rtol=0, atol=1e-9)
    amp = quick(AMPAttentionRegressor).fit(X, y, mask=mask)
    blocks = quick(AMPAttentionRegressor).fit(da.from_array(X, chunks=((20, 1, 39), 3, 12)), y, mask=mask)
    np.testing.assert_allclose(blocks.interaction_, amp.interaction_, rtol=0, atol=1e-9)


def test_gd_log_ratio_refuses_zeros_only_where_allowed():
    X, y, _ = recoverable("causal", n=60)
    quick(GDAttentionRegressor, loss="log_ratio").fit(X, y, mask="causal")
    wrong = y.copy()
    wrong[5, 2] = [0.0, 0.5, 0.5]
    refused(
        lambda: quick(GDAttentionRegressor, loss="log_ratio").fit(X, wrong, mask="causal"), "y[5, 2, 0]", "log_ratio"
    )
    quick(GDAttentionRegressor, loss="cross_entropy").fit(X, wrong, mask="causal")
    refused(lambda: quick(GDAttentionRegressor, loss="log_ratio").fit(X, y), "log_ratio")


def test_gd_causal_layers_do_not_see_what_comes_after():
    rng = np.random.default_rng(21)
    X, y, _ = recoverable("causal", n=60)
    est = quick(GDAttentionRegressor, n_layers=2).fit(X, y, mask="causal")
    other = X.copy()
    other[:, 2] = rng.standard_normal((60, 12))
    np.testing.assert_allclose(est.predict(other)[:, :2], est.predict(X)[:, :2], rtol=0, atol=1e-12)
    assert np.abs(est.predict(other)[:, 2] - est.predict(X)[:, 2]).max() > 1e-3
    # of the first two tokens alone, the same
    np.testing.assert_allclose(est.predict(X[:, :2]), est.predict(X)[:, :2, :2], rtol=0, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------------
# data


@pytest.mark.parametrize("kind", ["causal", "padding", "pairs", "shared"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_data_sets(kind, tied, link):
    rng = np.random.default_rng(22)
    mask = {
        "causal": "causal",
        "padding": lengths_to_padding(rng.integers(1, 5, 30), 4),
        "pairs": random_pairs(rng, 30, 4),
        "shared": random_pairs(rng, 1, 4)[0],
    }[kind]
    pairs = {
        "causal": lambda: np.broadcast_to(np.tri(4, dtype=bool), (30, 4, 4)),
        "padding": lambda: padding_pairs(mask),
        "pairs": lambda: mask,
        "shared": lambda: np.broadcast_to(mask, (30, 4, 4)),
    }[kind]()
    params = {"width": 0.5, "tied": tied, "link": link, "inverse_temperature": 1.7, "random_state": 0}
    X, y, S = make_attention_sequences(30, 4, 9, mask=mask, return_interaction=True, **params)
    h = indices_of(X, S)
    expected = masked_softmax(h, pairs, 1.7) if link == "softmax" else np.where(pairs, h, 0)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
    assert (y[~pairs] == 0).all()
    if link == "softmax":
        np.testing.assert_allclose(y.sum(axis=2), pairs.any(axis=2), rtol=0, atol=1e-12)
    # the mask changes neither the sequences nor the layer
    plain = make_attention_sequences(30, 4, 9, return_interaction=True, **params)
    np.testing.assert_array_equal(plain[0], X)
    np.testing.assert_array_equal(plain[2], S)
    single = make_attention_sequences(30, 4, 9, mask=mask, dtype=np.float32, **params)
    assert single[1].dtype == np.float32
    np.testing.assert_allclose(single[1], y, rtol=0, atol=1e-4)


def test_data_sets_refuse():
    refused(lambda: make_attention_sequences(20, 3, 4, link="hardmax", mask="causal"), "mask", "hardmax")
    refused(lambda: make_attention_sequences(20, 3, 4, mask="before"), "mask='before'")
    refused(lambda: make_attention_sequences(20, 3, 4, mask=np.ones((20, 4))), "mask has shape (20, 4)")


def test_scores_of_nothing_are_refused():
    y = np.full((2, 3, 3), 1 / 3)
    refused(lambda: attention_r2_score(y, y, mask=np.zeros(y.shape, bool)), "mask hides every entry")
    mask = np.zeros(y.shape, bool)
    mask[0] = True
    refused(lambda: attention_r2_score(y, y, sample_weight=[0, 1], mask=mask), "mask hides every entry")
    refused(lambda: attention_r2_score(y, y, mask=np.ones((2, 2, 3), bool)), "mask holds 6 entries", "9")
