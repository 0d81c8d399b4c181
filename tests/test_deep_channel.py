"""Posteriors of deep attention stacks against grids, quadrature and Monte Carlo of the model as it is stated."""

import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import logsumexp

from sklearn_aim.channels.deep import DeepChannel
from sklearn_aim.kernels.deep_layers import WORK, last_layer
from sklearn_aim.kernels.deep_posterior import deep_posterior, first_lattice

FULL = np.array([[0.8, 0.25], [0.25, 0.5]])
FULL_3 = np.array([[0.8, 0.1, -0.05], [0.1, 0.7, 0.1], [-0.05, 0.1, 0.5]])
SIZES = [(1, 2), (1, 5), (2, 2), (2, 3), (3, 2)]


# The model, written out


def softmax_rows(u, beta=1.0):
    """softmax(beta u u^T), (..., T, T)."""
    h = beta * u[..., :, None] * u[..., None, :]
    weights = np.exp(h - h.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def mixing(z, skip=1.0, beta=1.0):
    """B of all layers of z (..., L, T)."""
    n_tokens = z.shape[-1]
    b = np.broadcast_to(np.eye(n_tokens), (*z.shape[:-2], n_tokens, n_tokens))
    for layer in range(z.shape[-2]):
        u = np.einsum("...ab,...b->...a", b, z[..., layer, :])
        b = (skip * np.eye(n_tokens) + softmax_rows(u, beta)) @ b
    return b


def forward(z, skip=1.0, beta=1.0):
    """u_L and y of z (n, L, T)."""
    u = np.einsum("nab,nb->na", mixing(z[:, :-1], skip, beta), z[:, -1])
    return u, softmax_rows(u, beta)


def draw(n_samples, n_tokens, covariance, seed=0, spread=0.7):
    """Prior means omega and true z of the model, (n, L, T)."""
    rng = np.random.default_rng(seed)
    n_layers = len(covariance)
    omega = spread * rng.standard_normal((n_samples, n_layers, n_tokens))
    root = np.linalg.cholesky(covariance)
    return omega, omega + np.einsum("lm,nma->nla", root, rng.standard_normal(omega.shape))


def log_terms(below, u, omega, covariance, skip, beta):
    """Log of N(s v; m, V)/|det B| for both signs s, (2, n), and v (n, T), at layers below the last (n, L - 1, T)."""
    b = mixing(below, skip, beta)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_det = np.linalg.slogdet(b)[1]
        # without a skip tokens that agree leave nothing: v is infinite
        singular = log_det < -60
        b = np.where(singular[:, None, None], np.eye(len(u)), b)
        v = np.linalg.solve(b, np.broadcast_to(u, (len(b), len(u)))[..., None])[..., 0]
        v[singular], log_det[singular] = 1e9, 0.0
        gain = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
        variance = covariance[-1, -1] - gain @ covariance[:-1, -1]
        center = omega[-1] + np.einsum("l,nla->na", gain, below - omega[:-1])
        logs = [
            -0.5 * np.sum((s * v - center) ** 2, axis=1) / variance
            - 0.5 * len(u) * np.log(2 * np.pi * variance)
            - log_det
            for s in (1, -1)
        ]
    return np.array(logs), v


def weighted_moments(below, log_weight, u, omega, covariance, skip, beta):
    """log Z, mean (L, T) and second moments from points and log weights of the prior of the layers below."""
    logs, v = log_terms(below, u, omega, covariance, skip, beta)
    logs = np.where(np.isfinite(logs), logs, -np.inf) + log_weight
    log_z = logsumexp(logs)
    p = np.exp(logs - log_z)
    values = [
        np.concatenate([below.reshape(len(below), -1), s * np.where(p[:1].T + p[1:].T > 0, v, 0)], 1) for s in (1, -1)
    ]
    mean = sum(w @ x for w, x in zip(p, values, strict=True))
    second = sum(np.einsum("n,na,nb->ab", w, x, x, optimize=True) for w, x in zip(p, values, strict=True))
    shape = omega.shape
    return log_z, mean.reshape(shape), second.reshape(shape + shape)


def grid_posterior(u, omega, covariance, skip=1.0, beta=1.0, n_points=301, reach=7.0):
    """Moments at depth 2 on a fine grid over z_1, then on a finer one over what holds the posterior."""
    n_tokens = len(u)
    scale = np.sqrt(covariance[0, 0])
    low, high = np.full(n_tokens, -reach), np.full(n_tokens, reach)
    for last in (False, True):
        axes = [np.linspace(a, b, n_points) for a, b in zip(low, high, strict=True)]
        xi = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, n_tokens)
        cell = np.sum(np.log((high - low) / (n_points - 1)))
        log_weight = cell - 0.5 * np.sum(xi**2, axis=1) - 0.5 * n_tokens * np.log(2 * np.pi)
        below = (omega[0] + scale * xi)[:, None]
        if last:
            return weighted_moments(below, log_weight, u, omega, covariance, skip, beta)
        logs = log_terms(below, u, omega, covariance, skip, beta)[0].max(axis=0) + log_weight
        logs = np.where(np.isfinite(logs), logs, -np.inf)
        # this grid need not resolve the peak: a generous margin below the top, and around
        inside = xi[logs > logs.max() - 60]
        margin = 3 * (high - low) / (n_points - 1)
        low, high = np.maximum(inside.min(axis=0) - margin, low), np.minimum(inside.max(axis=0) + margin, high)


def sampled_posterior(u, omega, covariance, n_draws, skip=1.0, beta=1.0, seed=0):
    """log Z, mean and standard errors of both, by draws of the layers below from their prior."""
    rng = np.random.default_rng(seed)
    n_layers, n_tokens = omega.shape
    root = np.linalg.cholesky(covariance[:-1, :-1])
    below = omega[:-1] + np.einsum("lm,nma->nla", root, rng.standard_normal((n_draws, n_layers - 1, n_tokens)))
    logs, v = log_terms(below, u, omega, covariance, skip, beta)
    top = logs.max()
    w = np.exp(logs - top)
    total, signed = w[0] + w[1], w[0] - w[1]
    values = np.concatenate([below.reshape(n_draws, -1) * total[:, None], v * signed[:, None]], axis=1)
    z = total.mean()
    mean = values.mean(axis=0) / z
    residual = values - mean * total[:, None]
    error = residual.std(axis=0) / (z * np.sqrt(n_draws))
    log_error = total.std() / (z * np.sqrt(n_draws))
    return top + np.log(z), mean.reshape(omega.shape), log_error, error.reshape(omega.shape)


def one(channel, u, omega, covariance):
    """The posterior of a single sequence, without its first axis."""
    out = channel.posterior(u[None], omega[None], covariance)
    return out.log_z[0], out.mean[0], out.second[0], out.error[0]


def spreads(mean, second):
    size = mean.size
    return np.sqrt(np.diag(second.reshape(size, size)) - mean.ravel() ** 2).reshape(mean.shape)


def largest_error(found, expected):
    """Of log Z, and of means in posterior standard deviations."""
    deviation = np.abs(found[1] - expected[1]) / np.maximum(spreads(expected[1], expected[2]), 1e-12)
    return max(abs(found[0] - expected[0]), deviation.max())


# Moments against integration

REGIMES = {
    "nothing known": (np.eye(2), 0.0, 1.0, 1.0),
    "little known": (np.diag([1.0, 0.9]), 0.3, 1.0, 1.0),
    "last known well": (np.diag([1.0, 0.03]), 0.9, 1.0, 1.0),
    "last known almost": (np.diag([1.0, 1e-3]), 1.0, 1.0, 1.0),
    "both known": (np.diag([0.05, 0.02]), 0.9, 1.0, 1.0),
    "first known better": (np.diag([0.01, 0.6]), 0.9, 1.0, 1.0),
    "full V": (FULL, 0.7, 1.0, 1.0),
    "full V, last known": (np.array([[0.9, 0.1], [0.1, 0.04]]), 0.9, 1.0, 1.0),
    "no skip": (FULL, 0.7, 0.0, 1.0),
    "small skip": (np.diag([1.0, 0.1]), 0.8, 0.25, 1.0),
    "large skip": (FULL, 0.7, 4.0, 1.0),
    "cold": (FULL, 0.7, 1.0, 3.0),
    "hot, no skip": (np.diag([1.0, 0.2]), 0.7, 0.0, 0.3),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_two_tokens_against_a_grid(regime):
    covariance, spread, skip, beta = REGIMES[regime]
    omega, z = draw(4, 2, covariance, seed=1, spread=spread)
    u = forward(z, skip, beta)[0]
    channel = DeepChannel(2, 2, skip=skip, inverse_temperature=beta)
    for k in range(len(u)):
        found = one(channel, u[k], omega[k], covariance)
        expected = grid_posterior(u[k], omega[k], covariance, skip, beta)
        error = largest_error(found, expected)
        if skip == 0 and np.ptp(u[k]) < 1e-3:
            # no lattice resolves tokens that nearly agree; at least it says so
            assert error < 10 * found[3]
            continue
        # the tolerance is 1e-4
        assert error < 1e-3
        assert found[3] < 1e-3
        np.testing.assert_allclose(found[2], expected[2], atol=2e-3)


def test_folded_lattice_is_the_whole_one():
    # omega_1 = 0: one of each pair +-z_1 is enough; a tiny omega_1 takes all of them
    rng = np.random.default_rng(0)
    for covariance in (np.eye(2), np.diag([1.0, 0.03])):
        omega, z = draw(20, 2, covariance, seed=2)
        omega[:, 0] = 0.0
        z[:, 0] = rng.standard_normal((20, 2))
        u = forward(z)[0]
        channel = DeepChannel(2, 2, tolerance=1e-9)
        folded = channel.posterior(u, omega, covariance)
        omega[:, 0] = 1e-12
        whole = channel.posterior(u, omega, covariance)
        assert set(channel._lattices) == {False, True}
        assert (folded.mean[:, 0] == 0).all()
        for name in ("log_z", "mean", "second"):
            np.testing.assert_allclose(getattr(folded, name), getattr(whole, name), rtol=1e-6, atol=1e-6)


def test_two_tokens_against_adaptive_quadrature():
    omega, z = draw(1, 2, FULL, seed=5)
    u = forward(z)[0][0]
    omega = omega[0]

    def integrand(y, x, power):
        below = np.array([[[x, y]]])
        logs, v = log_terms(below, u, omega, FULL, 1.0, 1.0)
        prior = np.exp(-0.5 * np.sum((below[0, 0] - omega[0]) ** 2) / FULL[0, 0]) / (2 * np.pi * FULL[0, 0])
        plus, minus = prior * np.exp(logs[:, 0])
        return ((plus + minus) * x) if power == 1 else (plus - minus) * v[0, 1] if power == 2 else plus + minus

    reach = 7 * np.sqrt(FULL[0, 0])
    box = [omega[0, 0] - reach, omega[0, 0] + reach, omega[0, 1] - reach, omega[0, 1] + reach]
    mass, first, last = (
        integrate.dblquad(integrand, *box, args=(power,), epsabs=1e-6, epsrel=1e-5)[0] for power in (0, 1, 2)
    )
    log_z, mean, _, _ = one(DeepChannel(2, 2, tolerance=1e-7), u, omega, FULL)
    assert log_z == pytest.approx(np.log(mass), abs=2e-4)
    assert mean[0, 0] == pytest.approx(first / mass, abs=2e-4)
    assert mean[1, 1] == pytest.approx(last / mass, abs=2e-4)


@pytest.mark.parametrize(("skip", "beta"), [(1.0, 1.0), (0.25, 2.0)])
@pytest.mark.parametrize("covariance", [FULL, np.diag([0.3, 0.2])], ids=["full", "diagonal"])
def test_three_tokens_against_a_grid(covariance, skip, beta):
    omega, z = draw(2, 3, covariance, seed=3)
    u = forward(z, skip, beta)[0]
    channel = DeepChannel(2, 3, skip=skip, inverse_temperature=beta)
    for k in range(len(u)):
        found = one(channel, u[k], omega[k], covariance)
        expected = grid_posterior(u[k], omega[k], covariance, skip, beta, n_points=45, reach=5.5)
        # the tolerance is 1e-3, and the grid's spacing shows in the last digits
        assert largest_error(found, expected) < 5e-3
        np.testing.assert_allclose(found[2], expected[2], atol=5e-3)


@pytest.mark.parametrize(
    ("n_tokens", "covariance"),
    [(3, np.diag([1.0, 0.03])), (4, FULL), (4, np.diag([0.1, 0.1])), (4, np.diag([1.0, 0.5]))],
    ids=["3 last known", "4 full", "4 both known", "4 little known"],
)
def test_more_tokens_against_draws(n_tokens, covariance):
    omega, z = draw(2, n_tokens, covariance, seed=4)
    u = forward(z)[0]
    channel = DeepChannel(2, n_tokens)
    for k in range(len(u)):
        log_z, mean, second, error = one(channel, u[k], omega[k], covariance)
        expected_log, expected, log_error, errors = sampled_posterior(u[k], omega[k], covariance, 200_000)
        assert log_error < 0.1
        assert abs(log_z - expected_log) < 4 * log_error + 3 * error
        assert (np.abs(mean - expected) < 4 * errors + 3 * error * spreads(mean, second)).all()


@pytest.mark.parametrize(
    "covariance",
    [np.eye(3), FULL_3, np.diag([1.0, 1.0, 0.03]), np.diag([1.0, 0.1, 0.02]), np.diag([0.1, 0.05, 0.02])],
    ids=["nothing known", "full", "last known", "two known", "all known"],
)
@pytest.mark.parametrize(("skip", "beta"), [(1.0, 1.0), (0.25, 0.5), (4.0, 2.0)])
def test_three_layers_against_draws(covariance, skip, beta):
    omega, z = draw(3, 2, covariance, seed=6)
    u = forward(z, skip, beta)[0]
    channel = DeepChannel(3, 2, skip=skip, inverse_temperature=beta)
    for k in range(len(u)):
        log_z, mean, second, error = one(channel, u[k], omega[k], covariance)
        expected_log, expected, log_error, errors = sampled_posterior(u[k], omega[k], covariance, 200_000, skip, beta)
        assert log_error < 0.2
        # the reported error is two standard errors
        assert abs(log_z - expected_log) < 4 * log_error + 2.5 * error
        assert (np.abs(mean - expected) < 4 * errors + 2.5 * error * spreads(mean, second)).all()


def test_three_layers_against_a_grid():
    covariance = np.array([[0.3, 0.05, 0.0], [0.05, 0.4, -0.1], [0.0, -0.1, 0.5]])
    omega, z = draw(1, 2, covariance, seed=7)
    u, omega = forward(z)[0][0], omega[0]
    axis = np.linspace(-5, 5, 25)
    xi = np.stack(np.meshgrid(*[axis] * 4, indexing="ij"), axis=-1).reshape(-1, 2, 2)
    below = omega[:2] + np.einsum("lm,nma->nla", np.linalg.cholesky(covariance[:2, :2]), xi)
    log_weight = 4 * np.log(axis[1] - axis[0]) - 0.5 * np.sum(xi**2, axis=(1, 2)) - 2 * np.log(2 * np.pi)
    expected = weighted_moments(below, log_weight, u, omega, covariance, 1.0, 1.0)
    found = one(DeepChannel(3, 2, tolerance=5e-3), u, omega, covariance)
    assert found[3] < 0.01
    assert largest_error(found, expected) < 2 * found[3] + 2e-3
    np.testing.assert_allclose(found[2], expected[2], atol=0.02)


@pytest.mark.parametrize("variance", [0.9, 0.3, 0.05])
def test_three_layers_by_two_rules(variance):
    # importance sampling beside the lattice in four dimensions: each of its two ways to draw must weigh in rightly
    n, covariance = 6, np.diag([1.0, 0.8, variance])
    rng = np.random.default_rng(1)
    omega = np.sqrt(1 - np.diag(covariance))[None, :, None] * rng.standard_normal((n, 3, 2))
    z = omega + np.sqrt(np.diag(covariance))[None, :, None] * rng.standard_normal((n, 3, 2))
    sampled = DeepChannel(3, 2, tolerance=5e-3)
    u = sampled.output(z)[0]
    found = sampled.posterior(u, omega, covariance)
    log_z, mean, second = np.empty(n), np.empty((n, 3, 2)), np.empty((n, 3, 2, 3, 2))
    error, n_nodes = np.empty(n), np.empty(n, dtype=np.int64)
    chol, gain = np.linalg.cholesky(covariance[:2, :2]), np.zeros(2)
    lattice = first_lattice(2, 2, False)
    deep_posterior(
        u, omega, variance, chol, gain, (1.0, 1.0), lattice, 1 << 20, 1e-3, log_z, mean, second, error, n_nodes
    )
    close = error < 0.02
    assert close.sum() >= 4
    # errors are estimates, of two standard errors
    allowed = 3 * (found.error + error)[close]
    assert (np.abs(found.log_z - log_z)[close] < allowed).all()
    spread = np.sqrt(np.einsum("nlala->nla", second) - mean**2)
    assert (np.abs(found.mean - mean)[close] < allowed[:, None, None] * spread[close]).all()
    assert allowed.max() < 0.15


@pytest.mark.parametrize("n_tokens", [2, 3, 7])
def test_one_layer_in_closed_form(n_tokens):
    variance = 0.4
    omega, z = draw(50, n_tokens, np.array([[variance]]), seed=8)
    u = forward(z)[0]
    out = DeepChannel(1, n_tokens).posterior(u, omega, np.array([[variance]]))
    for k in range(50):
        logs = np.array([-0.5 * np.sum((s * u[k] - omega[k, 0]) ** 2) / variance for s in (1, -1)])
        p = np.exp(logs - logsumexp(logs))
        assert out.log_z[k] == pytest.approx(logsumexp(logs) - 0.5 * n_tokens * np.log(2 * np.pi * variance))
        np.testing.assert_allclose(out.mean[k, 0], (p[0] - p[1]) * u[k], atol=1e-12)
        np.testing.assert_allclose(out.within[k, 0], np.outer(u[k], u[k]), atol=1e-12)
    np.testing.assert_allclose(out.covariance[:, 0, 0], np.sum(u**2, 1) - np.sum(out.mean[:, 0] ** 2, 1), atol=1e-12)
    assert (out.error == 0).all()


# Error estimates

states = st.fixed_dictionaries(
    {
        "first": st.floats(-3, 0),
        "last": st.floats(-3, 0),
        "correlation": st.floats(-0.6, 0.6),
        "skip": st.sampled_from([0.25, 1.0, 4.0]),
        "beta": st.sampled_from([0.5, 1.0, 2.0]),
        # 1 is the model; more is data that contradict V
        "surprise": st.sampled_from([1.0, 1.0, 2.0]),
        "seed": st.integers(0, 1000),
    }
)


def state_of(state, n_tokens):
    deviations = 10 ** np.array([state["first"] / 2, state["last"] / 2])
    covariance = np.array([[1, state["correlation"]], [state["correlation"], 1]]) * np.outer(deviations, deviations)
    omega, z = draw(1, n_tokens, covariance, seed=state["seed"])
    z = omega + state["surprise"] * (z - omega)
    return covariance, omega[0], forward(z, state["skip"], state["beta"])[0][0]


@settings(max_examples=20)
@given(states)
def test_reported_errors_are_honest(state):
    covariance, omega, u = state_of(state, 2)
    channel = DeepChannel(2, 2, skip=state["skip"], inverse_temperature=state["beta"])
    found = one(channel, u, omega, covariance)
    expected = grid_posterior(u, omega, covariance, state["skip"], state["beta"], n_points=201)
    # twice the tolerance is always allowed
    assert largest_error(found, expected) <= 10 * found[3] + 2e-4


@settings(max_examples=25)
@given(states)
def test_tighter_tolerance_converges(state):
    covariance, omega, u = state_of(state, 2)
    results = []
    for tolerance in (1e-1, 1e-3, 1e-6, 1e-9):
        channel = DeepChannel(2, 2, skip=state["skip"], inverse_temperature=state["beta"], tolerance=tolerance)
        results.append(one(channel, u, omega, covariance))
    best = results[-1]
    assert best[3] < 1e-6
    for found in results[:-1]:
        # under 3 in nearly all; data that contradict V are the worst
        assert largest_error(found, best) <= 30 * found[3] + 2e-4


def test_three_tokens_and_three_layers_tighten():
    omega, z = draw(30, 3, FULL, seed=9)
    u = forward(z)[0]
    loose, tight = (DeepChannel(2, 3, tolerance=t).posterior(u, omega, FULL) for t in (1e-2, 1e-6))
    assert (tight.n_nodes >= loose.n_nodes).all()
    assert (np.abs(loose.log_z - tight.log_z) <= 10 * loose.error + 1e-7).all()
    omega, z = draw(40, 2, FULL_3, seed=9)
    u = forward(z)[0]
    loose, tight = (DeepChannel(3, 2, tolerance=t).posterior(u, omega, FULL_3) for t in (1e-1, 5e-3))
    # two standard errors, of the worst of seven numbers
    assert np.mean(np.abs(loose.log_z - tight.log_z) > loose.error + tight.error) < 0.1
    assert np.mean(tight.error) < 0.3 * np.mean(loose.error)


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(2, 2), (2, 3), (3, 2)])
def test_answers_are_finite_without_skip(n_layers, n_tokens):
    # tokens that nearly agree, on which some integrals fail, are common
    covariance = {2: FULL, 3: FULL_3}[n_layers]
    omega, z = draw(40, n_tokens, covariance, seed=22)
    out = DeepChannel(n_layers, n_tokens, skip=0.0).posterior(forward(z, skip=0.0)[0], omega, covariance)
    for name in ("mean", "second", "n_nodes"):
        assert np.isfinite(getattr(out, name)).all()
    if n_tokens == 2:
        assert np.median(out.error) < 0.05


# Identities


@pytest.mark.parametrize(("n_layers", "skip"), [(1, 1.0), (2, 1.0), (2, 0.25), (3, 1.0)])
def test_the_density_of_u_has_mass_one(n_layers, skip):
    covariance = {1: np.array([[0.6]]), 2: FULL, 3: FULL_3}[n_layers]
    omega = draw(1, 2, covariance, seed=10)[0]
    axis = (
        np.linspace(-11, 11, 89 if n_layers < 3 else 59)
        * (1 + skip) ** (n_layers - 1)
        / 2 ** (n_layers > 1)
        * (1.2 if skip < 1 else 1)
    )
    u = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    # u is known up to its sign: half of the plane; the midpoints of the half are kept off the line u = 0
    out = DeepChannel(n_layers, 2, skip=skip, tolerance={2: 1e-3, 3: 0.1}.get(n_layers)).posterior(
        u, np.repeat(omega, len(u), axis=0), covariance
    )
    mass = 0.5 * np.sum(np.exp(out.log_z)) * (axis[1] - axis[0]) ** 2
    assert mass == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(1, 3), (2, 2), (2, 3)])
def test_derivatives_of_log_z(n_layers, n_tokens):
    covariance = {1: np.array([[0.6]]), 2: FULL}[n_layers]
    inverse = np.linalg.inv(covariance)
    omega, z = draw(1, n_tokens, covariance, seed=11)
    u = forward(z)[0]
    channel = DeepChannel(n_layers, n_tokens, tolerance=1e-7)
    out = channel.posterior(u, omega, covariance)
    g = inverse @ (out.mean[0] - omega[0])
    covariances = out.second[0] - np.multiply.outer(out.mean[0], out.mean[0])
    step = 1e-3
    for layer, token in np.ndindex(n_layers, n_tokens):
        shifts = np.zeros((2, n_layers, n_tokens))
        shifts[:, layer, token] = step, -step
        up, down = (channel.posterior(u, omega + shift, covariance) for shift in shifts)
        assert (up.log_z - down.log_z)[0] / (2 * step) == pytest.approx(g[layer, token], abs=2e-4)
        # dE[z]/d omega_ma = sum_k Cov(z, z_ka) (V^{-1})_km
        slope = np.einsum("lbk,k->lb", covariances[:, :, :, token], inverse[:, layer])
        np.testing.assert_allclose((up.mean - down.mean)[0] / (2 * step), slope, atol=1e-3)


def test_derivatives_of_log_z_at_three_layers():
    # the points are the same on both sides, so that sampling errors cancel in part
    omega, z = draw(1, 2, FULL_3, seed=12)
    u = forward(z)[0]
    channel = DeepChannel(3, 2, tolerance=4e-3)
    out = channel.posterior(u, omega, FULL_3)
    g = np.linalg.inv(FULL_3) @ (out.mean[0] - omega[0])
    for layer in range(3):
        shift = np.zeros((1, 3, 2))
        shift[0, layer] = 0.1
        up, down = (channel.posterior(u, omega + s * shift, FULL_3) for s in (1, -1))
        assert (up.log_z - down.log_z)[0] / 0.2 == pytest.approx(g[layer].sum(), abs=0.06)


@pytest.mark.parametrize(("n_layers", "n_tokens"), SIZES)
def test_symmetries(n_layers, n_tokens):
    covariance = {1: np.array([[0.6]]), 2: np.diag([0.8, 0.4]), 3: np.diag([0.9, 0.6, 0.4])}[n_layers]
    omega, z = draw(10, n_tokens, covariance, seed=13)
    u = forward(z)[0]
    channel = DeepChannel(n_layers, n_tokens)
    out = channel.posterior(u, omega, covariance)
    # depth 3 samples: the two answers differ by their errors
    tolerance = 2.5 * (2 * out.error.max()) if n_layers == 3 else 2e-3
    mirrored = channel.posterior(-u, omega, covariance)
    np.testing.assert_allclose(mirrored.log_z, out.log_z, atol=tolerance)
    np.testing.assert_allclose(mirrored.mean, out.mean, atol=tolerance)
    for layer in range(n_layers):
        sign = np.where(np.arange(n_layers) == layer, -1.0, 1.0)[:, None]
        flipped = channel.posterior(u, sign * omega, covariance)
        np.testing.assert_allclose(flipped.log_z, out.log_z, atol=tolerance)
        np.testing.assert_allclose(sign * flipped.mean, out.mean, atol=tolerance)
    order = np.random.default_rng(0).permutation(n_tokens)[::-1]
    order = np.roll(np.arange(n_tokens), 1) if (order == np.arange(n_tokens)).all() else order
    permuted = channel.posterior(u[:, order], omega[:, :, order], covariance)
    np.testing.assert_allclose(permuted.log_z, out.log_z, atol=tolerance)
    np.testing.assert_allclose(permuted.mean, out.mean[:, :, order], atol=tolerance)


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize(("n_layers", "n_tokens"), [*SIZES, (2, 4)])
def test_nishimori_and_total_variance(n_layers, n_tokens, known):
    # omega ~ N(0, Q), z ~ N(omega, V): E g g^T = V^{-1} E[(z - omega) g^T], and Cov z = E Cov(z|y) + Cov E[z|y]
    full = {1: np.array([[0.6]]), 2: FULL, 3: FULL_3}[n_layers]
    covariance = np.diag([0.8, 0.2, 0.05][-n_layers:]) if known else full
    n_samples = {(2, 2): 4000, (2, 3): 500, (2, 4): 60, (3, 2): 400}.get((n_layers, n_tokens), 4000)
    rng = np.random.default_rng(14)
    shape = n_samples, n_layers, n_tokens
    omega = np.einsum("lm,nma->nla", np.linalg.cholesky(np.eye(n_layers) - covariance), rng.standard_normal(shape))
    z = omega + np.einsum("lm,nma->nla", np.linalg.cholesky(covariance), rng.standard_normal(shape))
    out = DeepChannel(n_layers, n_tokens).posterior(forward(z)[0], omega, covariance)
    inverse = np.linalg.inv(covariance)
    g = np.einsum("lm,nma->nla", inverse, out.mean - omega)
    truth = np.einsum("lm,nma->nla", inverse, z - omega)
    products = np.einsum("nla,nma->nlm", g, g)
    scale = np.einsum("nll->l", products) / n_samples
    slack = 3 * out.error.mean() * np.sqrt(np.outer(scale, scale))
    spread = inverse @ (n_tokens * covariance - out.covariance) @ inverse
    for other in (np.einsum("nla,nma->nlm", truth, g), spread):
        gap = products - other
        assert (np.abs(gap.mean(axis=0)) < 4.5 * gap.std(axis=0) / np.sqrt(n_samples) + slack).all()
    # and E g = 0
    assert (np.abs(g.mean(axis=0)) < 4.5 * g.std(axis=0) / np.sqrt(n_samples)).all()


# Maps


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "skip"),
    [(1, 2, 0.0), (2, 2, 0.0), (2, 3, 0.25), (2, 4, 4.0), (3, 2, 0.25), (3, 3, 1.0), (4, 5, 0.25), (2, 12, 1.0)],
)
def test_output_and_encode(n_layers, n_tokens, skip, beta):
    rng = np.random.default_rng(15)
    z = 0.7 * rng.standard_normal((60, n_layers, n_tokens))
    channel = DeepChannel(n_layers, n_tokens, skip=skip, inverse_temperature=beta)
    u, maps = channel.output(z)
    expected_u, expected_maps = forward(z, skip, beta)
    np.testing.assert_allclose(u, expected_u, atol=1e-12)
    np.testing.assert_allclose(maps, expected_maps, atol=1e-13)
    usable = (maps > 0).all(axis=(1, 2))
    assert usable.mean() > 0.5
    found, known = channel.encode(maps[usable])
    assert known.mean() > 0.95
    u, found = u[usable][known], found[known]
    sign = np.sign(np.einsum("na,na->n", u, found))[:, None]
    np.testing.assert_allclose(sign * found, u, atol=1e-5 * np.abs(u).max())
    # the map itself is what must come back
    np.testing.assert_allclose(softmax_rows(found, beta), maps[usable][known], atol=1e-8)


@pytest.mark.parametrize("n_layers", [2, 3])
def test_encode_without_skip(n_layers):
    # attention without a skip averages tokens: some sequences of any data set nearly agree
    channel = DeepChannel(n_layers, 2, skip=0.0)
    u, maps = channel.output(np.random.default_rng(0).standard_normal((20_000, n_layers, 2)))
    found, known = channel.encode(maps)
    sign = np.sign(np.einsum("na,na->n", u, found))[:, None]
    np.testing.assert_allclose((sign * found)[known], u[known], rtol=1e-2, atol=1e-2)


def test_single_precision_maps():
    rng = np.random.default_rng(16)
    for n_tokens in (2, 4):
        z = rng.standard_normal((200, 2, n_tokens))
        channel = DeepChannel(2, n_tokens)
        u, maps = channel.output(z)
        maps = maps.astype(np.float32)
        usable = (maps > 0).all(axis=(1, 2))
        found, known = channel.encode(maps[usable])
        assert found.dtype == np.float64
        assert known.mean() > 0.9
        u = u[usable]
        sign = np.sign(np.einsum("na,na->n", u, found))[:, None]
        error = np.abs(sign * found - u)[known].max(axis=1)
        assert np.median(error) < 1e-4
        assert error.max() < 0.2


@pytest.mark.parametrize("n_tokens", [2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tokens_that_agree_show_nothing(n_tokens, dtype):
    channel = DeepChannel(2, n_tokens)
    rng = np.random.default_rng(17)
    z = rng.standard_normal((5, 2, n_tokens))
    z[1] = z[1, :, :1]
    maps = channel.output(z)[1].astype(dtype)
    maps[3] = 1 / n_tokens
    u, known = channel.encode(maps)
    assert known.tolist() == [True, False, True, False, True]
    assert (u[~known] == 0).all()


@pytest.mark.parametrize("n_tokens", [2, 3, 5])
def test_maps_that_are_not_of_the_model(n_tokens):
    channel = DeepChannel(2, n_tokens)
    rng = np.random.default_rng(18)
    maps = channel.output(rng.standard_normal((30, 2, n_tokens)))[1]
    noisy = maps.copy()
    if n_tokens == 2:
        # two numbers give two: only signs can be wrong. Both tokens that attend to the other cannot be
        noisy[7] = [[0.3, 0.7], [0.7, 0.3]]
    else:
        noisy[7] = softmax_rows(rng.standard_normal(n_tokens)) ** np.exp(
            0.1 * rng.standard_normal((n_tokens, n_tokens))
        )
        noisy[7] /= noisy[7].sum(axis=1, keepdims=True)
    with pytest.raises(ValueError, match=r"not of the form softmax\(u u\^T\): y\[7\] fits worst"):
        channel.encode(noisy)
    rounded = np.round(maps, 3)
    rounded = np.maximum(rounded, 1e-3)
    if n_tokens > 2:
        with pytest.raises(ValueError, match="not of the form"):
            channel.encode(rounded / rounded.sum(axis=2, keepdims=True))
    maps[4, 1] = np.eye(n_tokens)[0]
    with pytest.raises(ValueError, match=r"y\[4, 1, 1\]=0.*double precision"):
        channel.encode(maps)
    maps[4, 1] = 0.9
    with pytest.raises(ValueError, match=r"sum to 1.*y\[4, 1\]"):
        channel.encode(maps)


def test_sizes_without_a_posterior_are_refused():
    for n_layers, n_tokens, message in (
        (4, 2, "n_layers=4"),
        (2, 1, "n_tokens=1"),
        (2, 5, "n_tokens=5 must be at most 4"),
        (3, 3, "n_tokens=3 must be at most 2"),
    ):
        with pytest.raises(ValueError, match=message):
            DeepChannel(n_layers, n_tokens).check_size()
    for n_layers, n_tokens in ((1, 50), (2, 4), (3, 2)):
        DeepChannel(n_layers, n_tokens).check_size()


# Kernels


@nb.njit
def _last_layer(z, u, skip, beta, v, slopes, det, work):
    last_layer(z, u, skip, beta, v, slopes, det, work)


@pytest.mark.parametrize(("skip", "beta"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
@pytest.mark.parametrize(("n_layers", "n_tokens"), [(2, 2), (3, 2), (2, 3), (2, 4)])
def test_last_layer_and_its_slopes(n_layers, n_tokens, skip, beta):
    rng = np.random.default_rng(19)
    n_points = 7
    u = rng.standard_normal(n_tokens)
    z = rng.standard_normal((n_points, n_layers - 1, n_tokens))

    def run(points):
        n = len(points)
        v, det = np.empty((n_tokens, n)), np.empty(n)
        slopes = np.empty(((n_layers - 1) * n_tokens**2, n))
        flat = np.ascontiguousarray(points.reshape(n, -1).T)
        _last_layer(flat, u[:, None].copy(), skip, beta, v, slopes, det, np.empty((WORK, n)))
        return v.T, slopes.T.reshape(n, n_layers - 1, n_tokens, n_tokens), det

    v, slopes, det = run(z)
    if n_tokens > 2:
        # written one z_b after the other
        slopes = slopes.swapaxes(2, 3)
    b = mixing(z, skip, beta)
    np.testing.assert_allclose(v, np.linalg.solve(b, np.tile(u, (n_points, 1))[..., None])[..., 0], rtol=1e-7)
    np.testing.assert_allclose(det, np.linalg.det(b), rtol=1e-8)
    step = 1e-5
    for layer, token in np.ndindex(n_layers - 1, n_tokens):
        shift = np.zeros_like(z)
        shift[:, layer, token] = step
        # of the formula itself: the kernel's exp is good to ten digits, no more
        up, down = (
            np.linalg.solve(mixing(z + s * shift, skip, beta), np.tile(u, (n_points, 1))[..., None]) for s in (1, -1)
        )
        expected = (up - down)[..., 0] / (2 * step)
        np.testing.assert_allclose(slopes[:, layer, :, token], expected, rtol=1e-5, atol=1e-6 * np.abs(slopes).max())


@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "skip", "beta"), [(1, 3, 1.0, 1.0), (2, 2, 0.25, 2.0), (3, 2, 1.0, 1.0)]
)
def test_moments_of_maps(n_layers, n_tokens, skip, beta):
    rng = np.random.default_rng(20)
    root = 0.3 * rng.standard_normal((n_layers, n_layers)) + 0.4 * np.eye(n_layers)
    covariance = root @ root.T
    omega = rng.standard_normal((3, n_layers, n_tokens))
    channel = DeepChannel(n_layers, n_tokens, skip=skip, inverse_temperature=beta)
    mean, spread = channel.moments(omega, covariance)
    for k in range(3):
        z = omega[k] + np.einsum("lm,nma->nla", root, rng.standard_normal((50_000, n_layers, n_tokens)))
        maps = forward(z, skip, beta)[1]
        # about 1e-3 of the 1024 points, and four standard errors
        np.testing.assert_allclose(mean[k], maps.mean(axis=0), atol=0.01)
        np.testing.assert_allclose(spread[k], maps.std(axis=0), atol=0.01)
    # nothing unknown: the map itself, also where V is singular
    mean, spread = channel.moments(omega, 0 * covariance)
    np.testing.assert_allclose(mean, forward(omega, skip, beta)[1], atol=1e-12)
    np.testing.assert_allclose(spread, 0, atol=1e-12)


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(1, 3), (2, 2), (2, 3), (3, 2)])
def test_threads_change_no_digit(n_layers, n_tokens, monkeypatch):
    covariance = {1: np.array([[0.6]]), 2: FULL, 3: FULL_3}[n_layers]
    omega, z = draw(37, n_tokens, covariance, seed=21)
    channel = DeepChannel(n_layers, n_tokens)
    u = forward(z)[0]
    results = []
    for n_threads in (1, 3):
        monkeypatch.setattr(nb.config, "NUMBA_NUM_THREADS", n_threads)
        out = channel.posterior(u, omega, covariance)
        results.append((out.log_z, out.mean, out.second, out.error, *channel.moments(omega, covariance)))
    part = channel.posterior(u[11:], omega[11:], covariance)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(part.mean, results[0][1][11:])
    np.testing.assert_array_equal(part.second, results[0][2][11:])
