"""Leaves against independent code: numpy, scipy, brute force."""

import itertools
import threading

import numba
import numpy as np
import pytest
from scipy import integrate, stats

from sklearn_aim.kernels.choice import gumbel_choice, gumbel_normal_table, normal_choice, row_argmax_evidences
from sklearn_aim.kernels.indices import attention_indices, back_projection
from sklearn_aim.kernels.normal import bivariate_normal_cdf
from sklearn_aim.kernels.orthant import symmetric_argmax_evidences
from sklearn_aim.kernels.pair_argmax import pair_argmax_evidences
from sklearn_aim.kernels.polynomials import polynomial_roots
from sklearn_aim.kernels.threads import one_thread, over_samples


def symmetric_evidence(omega, selected, variance):
    log_z, gradient = np.empty(len(selected)), np.empty(omega.shape)
    symmetric_argmax_evidences(np.ascontiguousarray(omega), np.ascontiguousarray(selected), variance, log_z, gradient)
    return log_z, gradient


def pair_evidence(omega, selected, variance):
    log_z, gradient = np.empty(len(selected)), np.empty(omega.shape)
    pair_argmax_evidences(np.ascontiguousarray(omega), np.ascontiguousarray(selected), variance, log_z, gradient)
    return log_z, gradient


def all_labels(n_tokens):
    return np.array(list(itertools.product(range(n_tokens), repeat=n_tokens)), dtype=np.int64)


def random_symmetric(n_tokens, scale, seed=0):
    omega = np.random.default_rng(seed).normal(size=(n_tokens, n_tokens)) * scale
    return (omega + omega.T) / 2


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 5, 7])
def test_polynomial_roots_of_very_different_size(degree):
    rng = np.random.default_rng(degree)
    for _ in range(20):
        roots = 10.0 ** rng.uniform(-8, 8, degree) * rng.choice([-1, 1], degree)
        coefficients = np.array([1.0])
        for root in roots:
            # factors (1 - x/root): no overflow whatever the size
            coefficients = np.convolve(coefficients, [1.0, -1 / root])
        found = polynomial_roots(coefficients)
        np.testing.assert_allclose(np.sort(found.real), np.sort(roots), rtol=1e-6)
        assert np.abs(found.imag / found.real).max() < 1e-6


def test_polynomial_roots_drops_zero_ends():
    np.testing.assert_allclose(np.sort(polynomial_roots(np.array([0.0, 2.0, -3.0, 1.0, 0.0])).real), [1, 2])


@pytest.mark.parametrize("r", [-0.5, -1 / 3, 0.1, 1 / 3, 0.5])
def test_bivariate_normal_cdf(r):
    law = stats.multivariate_normal(cov=[[1, r], [r, 1]])
    for h, k in itertools.product([-2.3, -0.4, 0.0, 1.7], repeat=2):
        assert bivariate_normal_cdf(h, k, r) == pytest.approx(law.cdf([h, k]), abs=1e-7)
        # derivative in h: phi(h) Phi((k - r h)/sqrt(1 - r^2))
        slope = (bivariate_normal_cdf(h + 1e-5, k, r) - bivariate_normal_cdf(h - 1e-5, k, r)) / 2e-5
        exact = stats.norm.pdf(h) * stats.norm.cdf((k - r * h) / np.sqrt(1 - r * r))
        assert slope == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("n_tokens", [2, 3, 4, 5])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_orthant_probabilities_sum_to_one(n_tokens, scale):
    labels = all_labels(n_tokens)
    omega = random_symmetric(n_tokens, scale)
    log_z, gradient = symmetric_evidence(np.broadcast_to(omega, (len(labels), *omega.shape)), labels, 0.5)
    z = np.exp(log_z)
    assert z.sum() == pytest.approx(1, abs=2e-5)
    # sum_y Z = 1 for every omega: the mean of G vanishes
    np.testing.assert_allclose(np.tensordot(z, gradient, 1), 0, atol=2e-4)
    # rows that run round a cycle of three or more are impossible
    if n_tokens == 3:
        cycles = [list(labels[k]) for k in np.flatnonzero(z == 0)]
        assert cycles == [[1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize("n_tokens", [2, 3, 4, 6])
def test_orthant_probability_and_mean_by_sampling(n_tokens):
    rng = np.random.default_rng(1)
    variance, n_draws = 0.7, 400_000
    omega = random_symmetric(n_tokens, 0.5, seed=3)
    noise = rng.normal(size=(n_draws, n_tokens, n_tokens))
    # off-diagonal variance 1, diagonal 2
    noise = (noise + noise.transpose(0, 2, 1)) / np.sqrt(2)
    h = omega + np.sqrt(variance) * noise
    y = h.argmax(axis=-1)
    labels, counts = np.unique(y, axis=0, return_counts=True)
    for label in labels[np.argsort(-counts)[:3]]:
        hit = (y == label).all(axis=1)
        log_z, gradient = symmetric_evidence(omega[None], label[None], variance)
        p = hit.mean()
        assert np.exp(log_z[0]) == pytest.approx(p, abs=5 * np.sqrt(p / n_draws))
        mean = h[hit].mean(axis=0)
        np.testing.assert_allclose(omega + variance * gradient[0], mean, atol=6 / np.sqrt(hit.sum()))


@pytest.mark.parametrize("n_tokens", [2, 3, 5])
def test_orthant_gradient_is_the_derivative(n_tokens):
    rng = np.random.default_rng(n_tokens)
    for seed in range(4):
        omega = random_symmetric(n_tokens, 1.0, seed)
        label = (omega + 0.8 * random_symmetric(n_tokens, 1.0, seed + 50)).argmax(axis=1)[None]
        _, gradient = symmetric_evidence(omega[None], label, 0.4)
        a, b = rng.integers(n_tokens, size=2)
        step = np.zeros_like(omega)
        step[a, b] = step[b, a] = 1e-5
        up, down = (symmetric_evidence((omega + s * step)[None], label, 0.4)[0][0] for s in (1, -1))
        slope = (1 + (a == b)) * (up - down) / 2e-5
        assert gradient[0, a, b] == pytest.approx(slope, abs=2e-4 * (1 + abs(slope)))


@pytest.mark.parametrize("variance", [1e-3, 0.2, 5.0])
def test_two_tokens_closed_form_equals_orthant(variance):
    labels = all_labels(2)
    for seed in range(5):
        omega = np.broadcast_to(random_symmetric(2, 1.0, seed), (4, 2, 2))
        log_z, gradient = pair_evidence(omega, labels, variance)
        log_z2, gradient2 = symmetric_evidence(omega, labels, variance)
        likely = log_z > -20
        np.testing.assert_allclose(log_z[likely], log_z2[likely], atol=1e-6)
        np.testing.assert_allclose(gradient[likely], gradient2[likely], rtol=1e-5, atol=1e-5)


def test_contradicted_labels_give_finite_steps_towards_admissible_matrices():
    # far in the tail omega + V G must approach the nearest symmetric matrix with this label
    for evidence in (pair_evidence, symmetric_evidence):
        omega = np.array([[[2.0, 0.0], [0.0, 3.0]]])
        log_z, gradient = evidence(omega, np.array([[1, 1]]), 1e-5)
        assert np.isfinite(log_z).all()
        # min d_11^2/2 + d_12^2 subject to h_11 = h_12: moves in the ratio of the variances, 2 to 1
        np.testing.assert_allclose(1e-5 * gradient[0], [[-4 / 3, 2 / 3], [2 / 3, 0]], atol=0.03)


@pytest.mark.parametrize("diagonal", [1.0, 2.0])
def test_row_argmax_against_quadrature(diagonal):
    omega = np.array([0.3, -0.5, 0.9])
    variance = 0.6
    sd = np.sqrt(variance * np.array([diagonal, 1, 1]))

    def evidence(mean, winner):
        def integrand(x):
            others = [c for c in range(3) if c != winner]
            rest = np.prod([stats.norm.cdf(x, mean[c], sd[c]) for c in others])
            return stats.norm.pdf(x, mean[winner], sd[winner]) * rest

        return integrate.quad(integrand, -8, 9, epsabs=1e-12)[0]

    for winner in range(3):
        log_z, gradient = np.empty((1, 1)), np.empty((1, 1, 3))
        row_argmax_evidences(omega[None, None], np.array([[winner]]), variance, diagonal, log_z, gradient)
        assert np.exp(log_z[0, 0]) == pytest.approx(evidence(omega, winner), rel=1e-7)
        for c in range(3):
            shift = 1e-4 * np.eye(3)[c]
            slope = np.log(evidence(omega + shift, winner) / evidence(omega - shift, winner)) / 2e-4
            assert gradient[0, 0, c] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("sd", [1e-3, 0.5, 3.0, 40.0])
def test_gaussian_means_of_softmax_and_argmax_at_two_tokens(sd):
    # one difference of standard deviation sd sqrt(3): a line integral by another rule
    difference = 0.8
    x = np.linspace(-10, 10, 400_001)
    weights = stats.norm.pdf(x) / stats.norm.pdf(x).sum()
    p = 1 / (1 + np.exp(-(difference + np.sqrt(3) * sd * x)))
    scores = np.array([[[difference, 0.0]]])
    tables, starts, steps = zip(*(gumbel_normal_table(s) for s in (sd, sd * np.sqrt(2))), strict=True)
    mean, second = np.empty_like(scores), np.empty_like(scores)
    gumbel_choice(scores, tables, starts, steps, sd, mean, second)
    np.testing.assert_allclose(mean[0, 0], [weights @ p, weights @ (1 - p)], atol=2e-9)
    np.testing.assert_allclose(second[0, 0], [weights @ p**2, weights @ (1 - p) ** 2], atol=2e-9)
    normal_choice(scores, sd, np.sqrt(2) * sd, mean)
    assert mean[0, 0, 0] == pytest.approx(stats.norm.cdf(difference / (np.sqrt(3) * sd)), abs=1e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_indices_and_their_adjoint(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 3, 11)).astype(dtype)
    s, g = rng.normal(size=(11, 11)), rng.normal(size=(37, 3, 3)).astype(dtype)
    h = attention_indices(x, s)
    expected = (np.einsum("nai,ij,nbj->nab", x, s, x) - np.trace(s) * np.eye(3)) / np.sqrt(11)
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(h, expected, rtol=tolerance, atol=tolerance)
    assert h.dtype == dtype
    # <H(S), G> = <S, H*(G)>
    left = np.sum(h.astype(float) * g)
    assert left == pytest.approx(np.sum(back_projection(x, g) * s) / np.sqrt(11), rel=1e-4)


def test_blocks_and_strides_change_nothing(monkeypatch):
    from sklearn_aim.kernels import indices

    rng = np.random.default_rng(0)
    x, s, g = rng.normal(size=(50, 2, 7)), rng.normal(size=(7, 7)), rng.normal(size=(50, 2, 2))
    whole = attention_indices(x, s), back_projection(x, g)
    monkeypatch.setattr(indices, "_BLOCK_ELEMENTS", 60)
    np.testing.assert_allclose(attention_indices(x, s), whole[0], rtol=1e-12)
    np.testing.assert_allclose(back_projection(np.asfortranarray(x), g), whole[1], rtol=1e-12)


@pytest.mark.parametrize("n_samples", [1, 255, 1000])
def test_over_samples_covers_each_sample_once(n_samples):
    seen = np.zeros(n_samples, dtype=int)

    def visit(part):
        seen[part] += 1

    over_samples(visit, n_samples)
    assert (seen == 1).all()


def test_one_blas_thread_is_lifted_by_the_last_holder():
    from threadpoolctl import threadpool_info

    from sklearn_aim.kernels.threads import one_blas_thread

    def blas():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = blas()
    first, second = one_blas_thread(), one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas()) == {1}
    second.__exit__(None, None, None)
    assert blas() == before
    with one_blas_thread(False):
        assert blas() == before


def test_passes_of_a_task_stay_in_its_thread():
    def threads():
        seen = set()
        # slices of two threads would be worked on at the same time
        over_samples(lambda part: seen.add((threading.get_ident(), part.start, part.stop)), 4096)
        return seen

    with one_thread():
        with one_thread():
            assert threads() == {(threading.get_ident(), 0, 4096)}
        assert threads() == {(threading.get_ident(), 0, 4096)}
    assert len(threads()) == min(numba.config.NUMBA_NUM_THREADS, 16)
