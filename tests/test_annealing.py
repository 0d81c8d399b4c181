"""Key bias by least squares, linear estimation and annealing, against dense linear algebra; coverage of intervals."""

import numpy as np
import pytest
from conftest import refused
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_aim import attention_r2_score, estimation_error, interval_coverage, make_attention_sequences
from sklearn_aim.algorithms.annealing import anneal
from sklearn_aim.algorithms.linear import Held, Linear, needed_width, shrink, solve, spectrum, truncated
from sklearn_aim.algorithms.nuisance import KeyBias, bias_indices
from sklearn_aim.channels import make_channel
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.moments import weighted_products

KINDS = [("softmax", tied, mask) for tied in (True, False) for mask in (None, "causal", "pairs")]
KINDS += [("identity", True, None)] + [("identity", False, mask) for mask in (None, "causal", "pairs")]


def allowed_of(mask, rng, n, n_tokens):
    if mask is None:
        return None
    if mask == "causal":
        return np.broadcast_to(np.tri(n_tokens, dtype=bool), (n, n_tokens, n_tokens))
    pairs = (rng.random((n, n_tokens, n_tokens)) < 0.6) | np.eye(n_tokens, dtype=bool)
    # something is seen in any case
    pairs[0] = True
    return pairs


def interaction_indices(X, S):
    d = len(S)
    return (np.einsum("nai,ij,nbj->nab", X, S, X) - np.trace(S) * np.eye(X.shape[1])) / np.sqrt(d)


def bias_of(X, b, tau):
    """b^T x_b/sqrt(d) + delta_ab tau: the key bias of the model, whatever the link sees of it."""
    return (X @ b)[:, None, :] / np.sqrt(len(b)) + tau * np.eye(X.shape[1])


class Dense:
    """What labels show of indices, as matrices: finite differences of `encode`, which is linear up to rounding."""

    def __init__(self, link, tied, mask, n=5, n_tokens=3, d=4, seed=0, X=None):
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((n, n_tokens, d)) if X is None else X
        self.allowed = allowed_of(mask, rng, *self.X.shape[:2])
        self.link, self.tied = link, tied
        self.channel = make_channel(link, self.X.shape[1], tied=tied, allowed=self.allowed)
        S = rng.standard_normal((d, d))
        self.S = S + S.T if tied else S
        self.h = interaction_indices(self.X, self.S)
        self.zero = self.shown(np.zeros_like(self.h))

    def code(self, h):
        return self.channel.encode(self.channel.link(h))

    def shown(self, h):
        code = self.code(h)
        return code if self.allowed is None else code[:, 0]

    def column(self, h):
        return (self.shown(h) - self.zero).ravel()

    def bias(self):
        """P E, (n T^2, d + 1)."""
        units = np.eye(self.X.shape[2] + 1)
        return np.array([self.column(bias_of(self.X, unit[:-1], unit[-1])) for unit in units]).T

    def interaction(self):
        """P H of symmetric (tied) parts of S, (n T^2, d^2)."""
        d = self.X.shape[2]
        units = np.eye(d * d).reshape(-1, d, d)
        units = 0.5 * (units + units.transpose(0, 2, 1)) if self.tied else units
        return np.array([self.column(interaction_indices(self.X, unit)) for unit in units]).T

    def combinations(self):
        """Number of combinations of indices that all labels fix."""
        n_tokens = self.X.shape[1]
        columns = []
        for a, b in np.ndindex(n_tokens, n_tokens):
            if b < a and self.tied:
                continue
            h = np.zeros_like(self.h)
            h[:, a, b] = 1
            if self.tied:
                h[:, b, a] = 1
            columns.append(self.column(h).reshape(len(h), -1))
        return int(sum(np.linalg.matrix_rank(matrix, tol=1e-9) for matrix in np.transpose(columns, (1, 2, 0))))


def projector(matrix):
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    left = left[:, values > 1e-9 * values[0]]
    return left @ left.T


# ----------------------------------------------------------------------------------------------------------------
# key bias


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(1, 6), st.integers(2, 4), st.integers(1, 6), st.integers(0, 10**6))
def test_key_bias_is_least_squares(kind, n, n_tokens, d, seed):
    dense = Dense(*kind, n, n_tokens, d, seed)
    code, matrix = dense.code(dense.h), dense.bias()
    # degenerate directions between 1e-9 and 1e-4 of the best one are matters of taste
    values = np.linalg.svd(matrix, compute_uv=False)
    assume(not ((values > 1e-9 * values[0]) & (values < 1e-3 * values[0])).any())
    bias = KeyBias(dense.X, code, dense.channel)

    residual = dense.channel.residual(code, np.zeros_like(dense.h))
    best = matrix @ np.linalg.lstsq(matrix, residual.ravel(), rcond=1e-8)[0]
    coefficients = bias.fit(residual)
    assert coefficients.shape == (d + 1,)
    assert_allclose(matrix @ coefficients, best, rtol=0, atol=1e-8)
    # the same map, of the class itself
    assert_allclose(dense.channel.visible(code, bias.indices(coefficients)).ravel(), best, rtol=0, atol=1e-8)

    rank = np.linalg.matrix_rank(matrix, tol=1e-8 * values[0])
    assert bias.dimension == rank
    assert bias.left == pytest.approx(max(1 - rank / dense.combinations(), np.finfo(float).eps), abs=1e-12)

    omega = np.zeros_like(dense.h)
    assert_allclose(bias.add(omega), coefficients, rtol=0, atol=1e-9)
    left = dense.channel.residual(code, omega).ravel()
    assert np.abs(matrix.T @ left).max() < 1e-8 * max(1, np.linalg.norm(residual)) * values[0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_known_key_bias_is_fully_removed(kind):
    dense = Dense(*kind, n=60, n_tokens=4, d=5)
    rng = np.random.default_rng(1)
    b, tau = rng.standard_normal(5), -1.7
    code = dense.code(dense.h + bias_of(dense.X, b, tau))
    omega = dense.h.copy()
    coefficients = KeyBias(dense.X, code, dense.channel).add(omega)
    assert_allclose(dense.channel.residual(code, omega), 0, atol=1e-10)
    # 60 sequences fix b; tau too, but where rows show nothing beside the diagonal's part of a shift
    assert_allclose(coefficients, [*b, tau], atol=1e-9)
    # what the model says, of other sequences
    other = rng.standard_normal((3, 4, 5))
    assert_allclose(bias_indices(other, coefficients), bias_of(other, b, tau), atol=1e-9)


@pytest.mark.parametrize("mask", ["causal", "pairs"])
def test_known_key_bias_is_removed_behind_masks_of_tied_identity(mask):
    dense = Dense("identity", True, mask, n=60, n_tokens=4, d=5)
    code = dense.code(dense.h + bias_of(dense.X, np.arange(5.0), 0.5))
    omega = dense.h.copy()
    KeyBias(dense.X, code, dense.channel).add(omega)
    assert_allclose(dense.channel.residual(code, omega), 0, atol=1e-10)


def test_key_bias_of_features_that_say_nothing_is_zero():
    # a feature that is 0, and one that repeats another: the smallest coefficients
    X = np.random.default_rng(0).standard_normal((40, 3, 5))
    X[:, :, 0] = 0
    X[:, :, 2] = X[:, :, 1]
    dense = Dense("softmax", False, None, d=5, X=X)
    bias = KeyBias(X, dense.code(dense.h), dense.channel)
    assert bias.dimension == 5 + 1 - 2
    coefficients = bias.fit(dense.channel.residual(dense.code(dense.h), np.zeros_like(dense.h)))
    assert coefficients[0] == pytest.approx(0, abs=1e-12)
    assert coefficients[1] == pytest.approx(coefficients[2], abs=1e-10)


def test_key_bias_of_single_precision():
    dense = Dense("softmax", True, None, n=50, n_tokens=3, d=4)
    code = dense.code(dense.h + bias_of(dense.X, np.ones(4), 0.5))
    double = KeyBias(dense.X, code, dense.channel).fit(dense.channel.residual(code, dense.h))
    single = KeyBias(dense.X.astype(np.float32), code.astype(np.float32), dense.channel)
    residual = dense.channel.residual(code, dense.h).astype(np.float32)
    assert_allclose(single.fit(residual), double, atol=1e-4)
    assert single.indices(double).dtype == np.float32


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_weighted_products(n, n_tokens, d, seed):
    rng = np.random.default_rng(seed)
    X, weights = rng.standard_normal((n, n_tokens, d)), rng.standard_normal((n, n_tokens, n_tokens))
    assert_allclose(weighted_products(X, weights), np.einsum("nai,nab,nbj->ij", X, weights, X), atol=1e-12)


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_visible_is_an_orthogonal_projection(kind, seed):
    dense = Dense(*kind, seed=seed)
    code = dense.code(dense.h)
    rng = np.random.default_rng(seed)

    def random_maps():
        maps = rng.standard_normal(dense.h.shape)
        return maps + maps.transpose(0, 2, 1) if dense.tied else maps

    one, two = random_maps(), random_maps()
    kept = one.copy()
    seen = dense.channel.visible(code, one)
    assert_array_equal(one, kept)
    assert_allclose(dense.channel.visible(code, seen), seen, atol=1e-12)
    assert np.vdot(seen, two) == pytest.approx(np.vdot(one, dense.channel.visible(code, two)), abs=1e-10)
    # G = P(K - omega)/(V + Delta)
    assert_allclose(dense.channel.posterior(code, one, 2.0)[1], dense.channel.residual(code, one) / 2, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------------
# linear estimation


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_solve_is_the_ridge_estimate(kind, bias):
    dense = Dense(*kind, n=12, n_tokens=3, d=5, seed=3)
    rng = np.random.default_rng(4)
    code = dense.code(dense.h + rng.standard_normal())
    target = dense.channel.residual(code, np.zeros_like(dense.h)).ravel()
    matrix = dense.interaction()
    if bias:
        outside = np.eye(len(target)) - projector(dense.bias())
        matrix, target = outside @ matrix, outside @ target
    mean = rng.standard_normal((5, 5))
    mean = mean + mean.T if dense.tied else mean
    for weight in (0.3, 20.0):
        normal = matrix.T @ matrix + weight * np.eye(25)
        expected = np.linalg.solve(normal, matrix.T @ target + weight * mean.ravel()).reshape(5, 5)
        linear = linear_of(dense, code, bias)
        # from anywhere
        for start in (np.zeros((5, 5)), mean):
            assert_allclose(solve(linear, mean, weight, start, 500, tol=1e-13), expected, atol=1e-8)
        assert_allclose(solve(linear, mean, weight, expected, 5), expected, atol=1e-8)
    assert_allclose(linear(dense.S).ravel(), matrix @ dense.S.ravel(), atol=1e-9)
    assert_allclose(linear.adjoint(linear(dense.S)).ravel(), matrix.T @ (matrix @ dense.S.ravel()), atol=1e-8)
    assert_allclose(linear.normal(dense.S).ravel(), matrix.T @ (matrix @ dense.S.ravel()), atol=1e-8)


def linear_of(dense, code, bias=False):
    return Linear(as_blocks(dense.X), code, dense.channel, bias)


def test_linear_predicts_other_sequences_with_the_bias_of_its_own():
    dense = Dense("softmax", False, None, n=60, n_tokens=3, d=4)
    b, tau = np.array([1.0, -2, 0.5, 3]), 0.7
    code = dense.code(dense.h + bias_of(dense.X, b, tau))
    linear = linear_of(dense, code, bias=True)
    assert_allclose(linear.coefficients_of(dense.S), [*b, tau], atol=1e-9)
    other = Dense("softmax", False, None, n=7, n_tokens=3, d=4, seed=9)
    h = interaction_indices(other.X, dense.S) + bias_of(other.X, b, tau)
    held = Held(linear_of(other, other.code(h)).x, other.code(h), other.channel)
    assert_allclose(held.squares(h), 0, atol=1e-15)
    without = interaction_indices(other.X, dense.S)
    assert_allclose(held.squares(without, linear.coefficients_of(dense.S)), 0, atol=1e-12)
    # rows are seen but for a shift: two combinations of three
    expected = np.sum((h - h.mean(axis=2, keepdims=True)) ** 2, axis=(1, 2))
    assert_allclose(held.squares(np.zeros_like(h)), expected, rtol=1e-10)


# ----------------------------------------------------------------------------------------------------------------
# shrinkage


def test_shrink_of_diagonal_matrices():
    d, v = 5, 0.05
    edge = 2 * np.sqrt(v * d)
    values = np.array([3.0, 0.9 * edge, -4.0, 1.5, edge])
    for tied in (False, True):
        size = values if tied else np.abs(values)
        for most in range(6):
            kept = np.argsort(-size)[:most]
            kept = kept[size[kept] > edge * (1 + 1e-9)]
            expected = np.zeros(5)
            expected[kept] = np.sign(values[kept]) * np.sqrt(values[kept] ** 2 - edge**2)
            denoised, rank = shrink(spectrum(np.diag(values), tied), v, most)
            assert_allclose(denoised, np.diag(expected), atol=1e-12)
            assert rank == len(kept)
            keep = [i for i in np.argsort(-size)[:most] if size[i] > 0]
            cut = np.where(np.isin(np.arange(5), keep), values, 0)
            assert_allclose(truncated(spectrum(np.diag(values), tied), most), np.diag(cut), atol=1e-12)


@settings(max_examples=30)
@given(st.integers(2, 7), st.floats(1e-4, 0.5), st.integers(0, 7), st.booleans(), st.integers(0, 10**6))
def test_shrink_does_not_care_about_axes(d, v, most, tied, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((d, d))
    matrix = matrix + matrix.T if tied else matrix
    left = np.linalg.qr(rng.standard_normal((d, d)))[0]
    right = left if tied else np.linalg.qr(rng.standard_normal((d, d)))[0]
    denoised, rank = shrink(spectrum(matrix, tied), v, most)
    turned, same = shrink(spectrum(left @ matrix @ right.T, tied), v, most)
    assert rank == same <= most
    assert_allclose(turned, left @ denoised @ right.T, atol=1e-9)
    assert np.linalg.matrix_rank(denoised, tol=1e-9) <= rank
    # never larger, and the units of a matrix do not matter
    assert np.linalg.norm(denoised, 2) <= np.linalg.norm(matrix, 2)
    assert_allclose(shrink(spectrum(3 * matrix, tied), 9 * v, most)[0], 3 * denoised, atol=1e-9)
    vectors, values, other = spectrum(matrix, tied)
    assert (np.diff(values) <= 0).all()
    if not tied:
        assert_allclose((vectors * values) @ other, matrix, atol=1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_shrink_is_best_for_a_spike_in_noise(tied):
    # the multiple of the observed direction that is closest to the truth, up to O(1/sqrt(d))
    d, v, spike = 600, 1 / 600, 2.0
    rng = np.random.default_rng(0)
    u = rng.standard_normal(d)
    u /= np.linalg.norm(u)
    truth = spike * np.outer(u, u)
    noise = rng.standard_normal((d, d)) * np.sqrt(v)
    noise = (noise + noise.T) / np.sqrt(2) if tied else noise
    denoised, rank = shrink(spectrum(truth + noise, tied), v, 1)
    assert rank == 1
    left, _, right = np.linalg.svd(denoised)
    best = left[:, 0] @ truth @ right[0]
    assert np.linalg.norm(denoised, 2) == pytest.approx(best, rel=0.05)
    # noise alone is left at 0, but for the fluctuations of its edge
    assert shrink(spectrum(noise, tied), 1.05 * v, d)[1] == 0


def test_needed_width_of_an_exact_matrix():
    for tied in (True, False):
        X, y, S = make_attention_sequences(200, 3, 12, width=3, tied=tied, random_state=0, return_interaction=True)
        channel = make_channel("softmax", 3, tied=tied)
        code = channel.encode(y)
        dense = Dense("softmax", tied, None, d=12, X=X)
        linear = linear_of(dense, code)
        held = Held(linear.x, code, channel)
        assert needed_width(linear, held, S, 12) == 3
        assert needed_width(linear, held, S, 2) == 2
        assert needed_width(linear, held, np.zeros_like(S), 12) == 0


# ----------------------------------------------------------------------------------------------------------------
# annealing


def run(X, y, link="softmax", tied=True, mask=None, noise=0.0, **options):
    options = {"random_state": np.random.RandomState(0), **options}
    channel = make_channel(link, X.shape[1], tied=tied, noise=noise, allowed=mask)
    code = channel.encode(y)
    result = anneal(X, code, channel, **options)
    # the claim of the result: its own error, from what it predicted of held-out sequences
    held = make_channel(link, X.shape[1], tied=tied, allowed=None if mask is None else mask[result.held])
    # labels of predicted indices, encoded as those of the data are
    residual = channel.residual(code[result.held], _first(held.encode(held.link(result.held_indices)), mask))
    square = np.sum(residual**2) / len(residual) / channel.information_constant
    assert result.estimation_error == pytest.approx(max(square - noise, 0), rel=1e-6, abs=1e-14)
    assert len(result.held) == max(1, round(0.15 * len(X)))
    assert len(set(result.held)) == len(result.held)
    assert all(len(column) == result.n_iter for column in result.history.values())
    return result, square


def _first(code, mask):
    """K of labels."""
    return code if mask is None else code[:, 0]


def softmax_of(h):
    y = np.exp(np.clip(h, -30, 30))
    return y / y.sum(axis=-1, keepdims=True)


def adversarial(kind, tied, seed, n_tokens=3, d=10, width=3):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 200))
    X = rng.standard_t(2.5, (n, n_tokens, d)) if kind == "tails" else rng.standard_normal((n, n_tokens, d))
    U = rng.standard_normal((d, width))
    h = interaction_indices(X, U @ (U if tied else rng.standard_normal((d, width))).T / np.sqrt(width * d))
    if kind == "random":
        h = rng.standard_normal(h.shape)
    elif kind == "noise":
        h += rng.standard_normal(h.shape)
    elif kind == "bias":
        h += 3 * (X @ rng.standard_normal(d))[:, None, :]
    elif kind == "negative":
        h = -h
    return X, softmax_of(h)


@pytest.mark.parametrize("width", [None, 2])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["random", "noise", "bias", "negative"])
def test_held_out_sequences_are_predicted_no_worse_than_at_the_start(kind, tied, width):
    for seed in range(3):
        X, y = adversarial(kind, tied, seed)
        start = run(X, y, tied=tied, width=width, denoise=False)[1]
        result, best = run(X, y, tied=tied, width=width, max_iter=200)
        assert best <= start * (1 + 1e-12)
        assert result.history["held_out_square"][0] == pytest.approx(start, rel=1e-9)
        assert np.isfinite(result.interaction).all()


@pytest.mark.parametrize(("tied", "seed"), [(True, 10), (True, 22), (False, 16), (False, 26)])
def test_held_out_sequences_of_heavy_tails_are_predicted_no_worse_than_at_the_start(tied, seed):
    X, y = adversarial("tails", tied, seed)
    start = run(X, y, tied=tied, denoise=False)[1]
    assert run(X, y, tied=tied, max_iter=200)[1] <= start * (1 + 1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_a_teacher_just_above_recovery_is_learned(tied):
    X, y, S = make_attention_sequences(500, 2, 20, width=0.3, tied=tied, random_state=0, return_interaction=True)
    for width in (None, 6):
        result, _ = run(X, y, tied=tied, width=width)
        assert result.width == 6
        assert result.converged
        assert estimation_error(S, result.interaction) < 1e-3
        assert result.coefficients is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("width", [None, 16])
def test_much_data_are_no_harm(tied, width):
    # 2400 sequences of 9 (12) combinations, 528 (1024) unknowns
    X, y, S = make_attention_sequences(2400, 4, 32, width=16, tied=tied, random_state=1, return_interaction=True)
    result, _ = run(X, y, tied=tied, width=width)
    assert estimation_error(S, result.interaction) < 1e-3


def test_much_noisy_data_are_no_harm():
    X, y, S = make_attention_sequences(
        3000, 2, 8, width=4, link="identity", noise=0.5, random_state=0, return_interaction=True
    )
    result, _ = run(X, y, link="identity", noise=0.5)
    # linear estimation has 1/q_hat = Delta/(alpha T (T + 1)) = 0.0018, and it is linear estimation that S started from
    assert estimation_error(S, result.interaction) < 0.1


def test_a_negative_interaction_is_not_worse_than_linear_estimation():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((300, 3, 10)), rng.standard_normal((10, 3))
    S = -U @ U.T / np.sqrt(30)
    result, _ = run(X, softmax_of(interaction_indices(X, S)))
    # it is the linear estimate, whose positive part alone would be an error of 1; V is its error, up to chance
    assert estimation_error(S, result.interaction) < 100 * result.estimation_error + 0.01


def test_anneal_is_deterministic():
    X, y = make_attention_sequences(150, 3, 12, width=0.3, tied=False, random_state=0)
    one, two = (run(X, y, tied=False, random_state=np.random.RandomState(5))[0] for _ in range(2))
    assert_array_equal(one.interaction, two.interaction)
    assert_array_equal(one.held, two.held)
    other = run(X, y, tied=False, random_state=np.random.RandomState(6))[0]
    assert not np.array_equal(one.held, other.held)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_anneal_of_few_sequences_and_stages(n, tied):
    X, y = make_attention_sequences(n, 3, 6, tied=tied, random_state=0)
    for options in ({}, {"max_iter": 1}, {"max_iter": 0}, {"bias": True}, {"width": 2}):
        result, _ = run(X, y, tied=tied, **options)
        assert np.isfinite(result.interaction).all()
        assert 1 <= result.width <= 6
        assert len(result.held) == 1
        assert result.n_iter <= max(options.get("max_iter", 200), 1)


@pytest.mark.parametrize("tied", [True, False])
def test_anneal_of_uniform_maps_is_zero(tied):
    X, y = np.random.default_rng(0).standard_normal((30, 3, 5)), np.full((30, 3, 3), 1 / 3)
    for bias in (False, True):
        result, square = run(X, y, tied=tied, bias=bias)
        assert_allclose(result.interaction, 0, atol=1e-12)
        assert square == pytest.approx(0, abs=1e-20)
        assert result.converged


def test_noise_is_taken_off_the_held_out_squares():
    # a linear estimate with far more sequences than unknowns: residuals are the noise
    X, y = make_attention_sequences(3000, 2, 8, width=4, link="identity", noise=0.5, random_state=0)
    result, square = run(X, y, link="identity", noise=0.5)
    # 450 sequences of 3 combinations, a relative error of sqrt(2/1350)
    assert square == pytest.approx(0.5, rel=0.2)
    assert result.estimation_error < 0.1


@pytest.mark.parametrize("mask", ["causal", "pairs"])
@pytest.mark.parametrize("tied", [True, False])
def test_anneal_with_masks_and_bias(tied, mask):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((500, 4, 14))
    pairs = allowed_of(mask, rng, 500, 4)
    U = rng.standard_normal((14, 3))
    S = U @ (U if tied else rng.standard_normal((14, 3))).T / np.sqrt(42)
    b, tau = rng.standard_normal(14), 1.2
    channel = make_channel("softmax", 4, tied=tied, allowed=pairs)
    y = channel.link(interaction_indices(X, S) + bias_of(X, b, tau))
    result, _ = run(X, y, tied=tied, mask=pairs, bias=True, width=3)
    without, _ = run(X, y, tied=tied, mask=pairs, width=3)
    assert result.estimation_error < 0.01 * without.estimation_error
    assert attention_r2_score(
        y, channel.link(interaction_indices(X, result.interaction) + bias_of(X, b, tau)), mask=pairs
    ) > attention_r2_score(y, channel.link(interaction_indices(X, without.interaction)), mask=pairs)
    assert_allclose(result.coefficients, [*b, tau], atol=0.5)


# ----------------------------------------------------------------------------------------------------------------
# coverage of intervals


@settings(max_examples=20)
@given(st.floats(0.05, 0.99), st.integers(0, 10**6))
def test_coverage_of_a_normal_sample_is_the_level(level, seed):
    rng = np.random.default_rng(seed)
    mean, spread = rng.standard_normal((400, 3, 3)), rng.uniform(0.1, 5, (400, 3, 3))
    truth = mean + spread * rng.standard_normal(mean.shape)
    error = np.sqrt(level * (1 - level) / truth.size)
    coverage = interval_coverage(truth, mean, spread, level=level)
    assert coverage == pytest.approx(level, abs=5 * error + 1 / truth.size)
    # one mask, from both sides
    mask = rng.random(truth.shape) < 0.5
    parts = [interval_coverage(truth, mean, spread, level=level, mask=m) for m in (mask, ~mask)]
    assert mask.mean() * parts[0] + (1 - mask.mean()) * parts[1] == pytest.approx(coverage, abs=1e-12)
    flat = [a.reshape(400, -1) for a in (truth, mean, spread)]
    assert interval_coverage(*flat, level=level) == coverage
    # wider spreads and higher levels hold more
    assert interval_coverage(truth, mean, 2 * spread, level=level) >= coverage
    assert interval_coverage(truth, mean, spread, level=0.995) >= coverage


def test_coverage_of_points():
    y = np.zeros((2, 2))
    assert interval_coverage(y, y, y) == 1
    assert interval_coverage(y, y + 1, y) == 0
    # the 68 per cent interval is one standard deviation
    assert interval_coverage(y, y + [[0.99, 1.01]] * 2, y + 1, level=0.6826894921) == 0.5


def test_coverage_refuses():
    y = np.zeros((4, 3, 3))
    for level in (0, 1, 1.5, -0.1, np.nan):
        refused(lambda level=level: interval_coverage(y, y, y + 1, level=level), "level", repr(level))
    refused(lambda: interval_coverage(y, y, y + 1, level="0.9"), "level='0.9'")
    refused(lambda: interval_coverage(y, y, y - 1), "y_std", "negative")
    refused(lambda: interval_coverage(y, y, y + 1, mask=np.ones((4, 3), bool)), "mask", "3 entries", "9")
    refused(lambda: interval_coverage(y, y, y + 1, mask=np.zeros(y.shape, bool)), "mask", "every entry")
    refused(lambda: interval_coverage(y, y, y + 1, mask=np.full(y.shape, 0.5)), "mask")
    refused(lambda: interval_coverage(y, y[:, :2], y + 1), "shape")
    refused(lambda: interval_coverage(y, y + np.nan, y + 1), "y_pred", "NaN")


def test_coverage_says_which_argument_is_wrong():
    y = np.zeros((4, 3, 3))
    refused(lambda: interval_coverage(y, y, y + np.nan), "NaN")
    refused(lambda: interval_coverage(y, y, y[:2] + 1))
