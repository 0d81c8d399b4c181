"""The bound of deep stacks against closed forms, published-model numbers, and plain Monte Carlo of the model."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    DeepBayesOptimalBound,
    GDAttentionRegressor,
    make_attention_sequences,
    make_deep_attention_sequences,
)
from sklearn_aim.channels.deep import DeepChannel

# where points are few and the last digits matter little
ROUGH = 0.02


@pytest.fixture(scope="module")
def bound():
    """Two layers, two tokens, c = 1; good to one or two per cent."""
    return DeepBayesOptimalBound(effort=0.25)


@pytest.fixture(scope="module")
def rough():
    return DeepBayesOptimalBound(effort=ROUGH)


@pytest.fixture(scope="module")
def one_layer():
    return DeepBayesOptimalBound(1, n_tokens=2, effort=0.25)


# The model at two layers and two tokens, written out


def attention(u, beta=1.0):
    h = beta * u[..., :, None] * u[..., None, :]
    weights = np.exp(h - h.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def forward(first, second, skip=1.0):
    """u and y of z_1 and z_2, (n, T)."""
    u = skip * second + np.einsum("nab,nb->na", attention(first), second)
    return u, attention(u)


def last_layer_moments(u, omega, variance, skip=1.0, spacing=0.11, reach=5.5):
    """E[z_2] and E[z_2 z_2^T] given u, z_1 ~ N(0, I) and z_2 ~ N(omega, variance), by a grid over z_1."""
    axis = np.arange(-reach, reach + spacing / 2, spacing)
    x, y = (a.ravel() for a in np.meshgrid(axis, axis, indexing="ij"))
    # z_1 and -z_1 give the same
    half = (x > 1e-9) | ((np.abs(x) < 1e-9) & (y >= 0))
    x, y = x[half], y[half]
    prior = np.where((np.abs(x) < 1e-9) & (np.abs(y) < 1e-9), 0.5, 1.0) * np.exp(-0.5 * (x**2 + y**2))
    b = skip * np.eye(2) + attention(np.stack([x, y], axis=1))
    inverse = np.linalg.inv(b)
    prior /= np.linalg.det(b)
    mean, second = np.empty_like(u), np.empty((len(u), 2, 2))
    for n in range(len(u)):
        v = inverse @ u[n]
        plus, minus = (-0.5 * np.sum((s * v - omega[n]) ** 2, axis=1) / variance for s in (1, -1))
        top = max(plus.max(), minus.max())
        plus, minus = prior * np.exp(plus - top), prior * np.exp(minus - top)
        both = plus + minus
        mean[n] = (plus - minus) @ v / both.sum()
        second[n] = (both[:, None] * v).T @ v / both.sum()
    return mean, second


def growth(overlap, normals, skip=1.0):
    """||g_2||^2 of every draw times its weight, at Q_22 = overlap and Q_11 = 0; normals (3, n, 2)."""
    first, z, xi = normals
    # z_2 from a wider law, as ||g||^2 grows with its fourth power
    weight = 1.3**2 * np.exp(-0.5 * np.sum(z * z, axis=1) * (1.3**2 - 1))
    z = 1.3 * z
    omega = overlap * z + np.sqrt(overlap * (1 - overlap)) * xi
    mean, _ = last_layer_moments(forward(first, z, skip)[0], omega, 1 - overlap, skip)
    return weight * np.sum((mean - omega) ** 2, axis=1) / (1 - overlap) ** 2


# Thresholds


@pytest.mark.parametrize(
    ("skip", "threshold"), [(0.25, 0.2216), (0.5, 0.2022), (1.0, 0.1850), (2.0, 0.1741), (4.0, 0.1693)]
)
def test_thresholds_of_the_last_layer(skip, threshold):
    # values of an independent reference implementation
    points = DeepBayesOptimalBound(skip=skip)._fixed_points()
    value, error = points.last_threshold
    assert value == pytest.approx(threshold, rel=5e-3)
    assert error < 1e-3 * value


def test_threshold_at_a_large_skip():
    # y shows z_2 up to its sign: 1/(T(T+1))
    assert DeepBayesOptimalBound(skip=100.0)._fixed_points().last_threshold[0] == pytest.approx(1 / 6, rel=1e-3)


@pytest.mark.parametrize("skip", [0.5, 2.0])
def test_threshold_by_draws(skip):
    rng = np.random.default_rng(0)
    first, z = rng.standard_normal((2, 3000, 2))
    second = last_layer_moments(forward(first, z, skip)[0], np.zeros_like(z), 1.0, skip)[1]
    curvature = np.sum((second - np.eye(2)) ** 2, axis=(1, 2))
    value = 1 / DeepBayesOptimalBound(skip=skip)._fixed_points().last_threshold[0]
    assert abs(curvature.mean() - value) < 4 * curvature.std() / np.sqrt(len(curvature))
    # E[z_2 z_2^T] has the mean of the prior
    assert np.abs((second - np.eye(2)).mean(axis=0)).max() < 0.1


def test_threshold_of_the_first_layer(bound):
    thresholds, errors = bound.weak_recovery_thresholds(return_error=True)
    # the order in which they are learned
    assert list(thresholds) == [2, 1] == list(errors)
    assert all(isinstance(value, float) for value in (*thresholds.values(), *errors.values()))
    assert thresholds[1] == pytest.approx(0.718, rel=0.01)
    assert errors[1] < 0.02
    assert bound.weak_recovery_thresholds() == thresholds


@pytest.mark.parametrize("n_tokens", [2, 3, 6])
def test_one_layer_is_learned_from(n_tokens):
    thresholds = DeepBayesOptimalBound(1, n_tokens=n_tokens).weak_recovery_thresholds()
    assert thresholds == {1: pytest.approx(1 / (n_tokens * (n_tokens + 1)))}


def test_one_token_shown_up_to_its_sign():
    # E(E[z^2|y] - 1)^2 = E(z^2 - 1)^2 = 2: a threshold of 1/2
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    z = nodes[:, None]
    second = DeepChannel(1, 1).posterior(z, np.zeros((20, 1, 1)), np.eye(1)).within[:, 0, 0, 0]
    assert weights @ (second - 1) ** 2 / weights.sum() == pytest.approx(2)


def test_three_tokens_by_draws():
    # sampling of z_1 from its prior, weights of the last layer: M is a ratio of means
    rng = np.random.default_rng(1)
    first, z = rng.standard_normal((2, 400, 3))
    u = forward(first, z)[0]
    below = rng.standard_normal((40_000, 3))
    b = np.eye(3) + attention(below)
    inverse, density = np.linalg.inv(b), 1 / np.linalg.det(b)
    values = np.empty(len(u))
    for n in range(len(u)):
        v = inverse @ u[n]
        w = density * np.exp(-0.5 * np.sum(v**2, axis=1))
        # two halves of the points, so that their errors do not add up in the square
        left, right = ((w[k::2, None] * v[k::2]).T @ v[k::2] / w[k::2].sum() - np.eye(3) for k in (0, 1))
        values[n] = np.sum(left * right)
    value, error = DeepBayesOptimalBound(n_tokens=3, effort=ROUGH)._fixed_points().last_threshold
    expected, spread = values.mean(), 4 * values.std() / np.sqrt(len(u))
    assert abs(1 / value - expected) < spread + 2 * error / value**2
    # and the limits: 1/12 with a large skip, more without
    assert value > 1 / 12


# Overlaps


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7])
def test_overlap_of_the_last_layer_by_draws(alpha, bound):
    overlap, error = bound.overlap(alpha, return_error=True)
    assert overlap[0, 0] == overlap[0, 1] == overlap[1, 0] == 0
    found = overlap[1, 1]
    normals = np.random.default_rng(2).standard_normal((3, 5000, 2))
    square = growth(found, normals)
    # log(Q/V) - log(alpha E||g||^2) vanishes at the fixed point; its slope turns errors of it into errors of Q
    step = 0.1 * found * (1 - found)
    sides = [
        np.log(q / (1 - q)) - np.log(alpha * growth(q, normals[:, :500]).mean()) for q in (found - step, found + step)
    ]
    slope = (sides[1] - sides[0]) / (2 * step)
    excess = np.log(found / (1 - found)) - np.log(alpha * square.mean())
    spread = square.std() / (np.sqrt(len(square)) * square.mean())
    assert slope > 0
    assert abs(excess / slope) < 4 * spread / slope + error[1]
    # a test worth having
    assert 4 * spread / slope < 0.08


def test_one_layer_by_draws(one_layer):
    rng = np.random.default_rng(3)
    z, xi = rng.standard_normal((2, 200_000, 2))
    for alpha in (0.2, 0.3, 0.45):
        overlap = one_layer.overlap(alpha)[0, 0]
        variance = 1 - overlap
        omega = overlap * z + np.sqrt(overlap * variance) * xi
        g = (z * np.tanh(np.sum(z * omega, axis=1, keepdims=True) / variance) - omega) / variance
        assert alpha * np.sum(g * g, axis=1).mean() == pytest.approx(overlap / variance, rel=0.02)


@pytest.mark.parametrize("n_tokens", [2, 3])
def test_one_layer_is_recovered_from(n_tokens):
    # once V is small the sign is known and z with it, E||g||^2 = T/V: V goes to zero where alpha T > 1
    one = DeepBayesOptimalBound(1, n_tokens=n_tokens, effort=0.1)
    below, above = one.overlap([0.9 / n_tokens, 1.1 / n_tokens])[:, 0, 0]
    assert 0.5 < below < 1
    assert above == 1


def test_overlaps_grow_with_data(rough):
    thresholds = rough.weak_recovery_thresholds()
    alpha = np.array([0.0, 0.1, 0.95 * thresholds[2], 1.05 * thresholds[2], 0.4, 0.6, 0.95 * thresholds[1], 0.8, 1.1])
    overlap, error = rough.overlap(alpha, return_error=True)
    first, last = overlap[:, 0, 0], overlap[:, 1, 1]
    for values in (first, last):
        assert (np.diff(values) >= -0.01).all()
        assert ((values >= 0) & (values <= 1)).all()
    assert (last[:3] == 0).all()
    assert (last[3:] > 0).all()
    assert (first[:7] == 0).all()
    assert 0.02 < first[7] < 0.9
    # exact recovery from about one
    assert (overlap[-1] > 0.999).sum() == 2
    assert (overlap[:, 0, 1] == 0).all()
    assert error.shape == (9, 2)
    assert (error >= 0).all()
    # any order, the same answers
    order = np.array([4, 0, 5])
    np.testing.assert_allclose(rough.overlap(alpha[order])[:, 1, 1], last[order], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1.1])
def test_no_gap_between_both_starts(alpha, rough):
    below, above = (rough.overlap(alpha, init=init) for init in ("uninformed", "informed"))
    # averages with the same points, or with more where the last layer is alone
    np.testing.assert_allclose(below, above, atol=0.05)


def test_trajectories_end_at_the_overlap(rough):
    target = rough.overlap(0.5)
    starts = ("uninformed", "informed", [0.2, 0.6], np.array([[0.3, 0.1], [0.1, 0.5]]))
    for start in starts:
        path = rough.state_evolution(0.5, start, n_iter=25)
        assert path["overlap"].shape == (26, 2, 2)
        assert path["overlap_error"].shape == (25, 2)
        assert path["integration_error"].shape == (25,)
        assert (path["integration_error"] < 0.01).all()
        np.testing.assert_allclose(path["overlap"][-1], target, atol=0.06)
    np.testing.assert_allclose(path["overlap"][0], starts[-1])
    np.testing.assert_allclose(rough.state_evolution(0.5, [0.2, 0.6], n_iter=1)["overlap"][0], np.diag([0.2, 0.6]))
    recovered = rough.state_evolution(1.1, "informed", n_iter=25)["overlap"][-1]
    np.testing.assert_allclose(recovered, np.eye(2), atol=0.02)
    assert rough.state_evolution(0.1, n_iter=10)["overlap"][-1].max() < 1e-3


def test_what_a_step_keeps(rough):
    # a start with correlated layers leads to a symmetric positive V; signs of layers are free
    start = np.array([[0.3, 0.2], [0.2, 0.5]])
    sign = np.array([[1, -1], [-1, 1]])
    path, mirrored = (rough.state_evolution(0.9, s, n_iter=3)["overlap"] for s in (start, sign * start))
    for overlap in path:
        np.testing.assert_allclose(overlap, overlap.T, atol=1e-9)
        eigenvalues = np.linalg.eigvalsh(overlap)
        assert eigenvalues[0] >= -1e-9
        assert eigenvalues[-1] < 1
    np.testing.assert_allclose(mirrored, sign * path, atol=0.15)


# Test errors


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(4).standard_normal((4, 200_000, 2))


def squares(a, b):
    distance = np.sum((a - b) ** 2, axis=(1, 2))
    return distance.mean(), distance.std() / np.sqrt(len(distance))


def test_test_error_without_data(rough, draws):
    maps, others = forward(*draws[:2])[1], forward(*draws[2:])[1]
    value, spread = squares(maps, others)
    found, error = rough.test_error(0.0, return_error=True)
    assert isinstance(found, float)
    assert abs(found - value / 2) < 2 * spread + error
    # weights of zero give uniform maps
    value, spread = squares(maps, 0.5)
    found, error = rough.test_error(0.0, prediction="plug-in", return_error=True)
    assert abs(found - value) < 4 * spread + error


def test_test_error_of_a_frozen_layer(rough, draws):
    first, last, other, _ = draws
    maps = forward(first, last)[1]
    value, spread = squares(maps, forward(other, last)[1])
    value, spread = value / 2, spread / 2
    assert value == pytest.approx(0.021, abs=0.001)
    # far above the end of the plateau, where fixed points are found at once
    for frozen in ([1], (1,), 1):
        found, error = rough.test_error(2.0, frozen=frozen, return_error=True)
        assert abs(found - value) < 4 * spread + error
    value, spread = squares(maps, forward(0 * first, last)[1])
    assert value == pytest.approx(0.035, abs=0.001)
    found, error = rough.test_error(2.0, frozen=[1], prediction="plug-in", return_error=True)
    assert abs(found - value) < 4 * spread + error
    # nothing learned: freezing all is the same as no data
    assert rough.test_error(2.0, frozen=[1, 2]) == pytest.approx(rough.test_error(0.0), rel=1e-9)


def test_test_error_of_known_overlaps(rough, draws):
    # omega and z of Q_22 as it was found, Q_11 = 0
    overlap = rough.overlap(0.5)[1, 1]
    first, omega, other, noise = draws
    half = len(first) // 2
    omega, deviation = np.sqrt(overlap) * omega, np.sqrt(1 - overlap)
    maps = forward(first, omega + deviation * noise)[1]
    rolled = forward(other, omega + deviation * np.roll(noise, half, axis=0))[1]
    value, spread = squares(maps, rolled)
    assert abs(rough.test_error(0.5) - value / 2) < 2 * spread + 0.002
    value, spread = squares(maps, forward(0 * first, omega)[1])
    assert abs(rough.test_error(0.5, prediction="plug-in") - value) < 4 * spread + 0.002


def test_test_error_falls_and_ends_at_zero(rough):
    alpha = np.array([0.1, 0.3, 0.5, 0.7, 2.0])
    mean, error = rough.test_error(alpha, return_error=True)
    plugged = rough.test_error(alpha, prediction="plug-in")
    assert mean.shape == error.shape == alpha.shape
    assert (np.diff(mean) < 0).all()
    assert (plugged[:-1] > mean[:-1]).all()
    assert mean[-1] == plugged[-1] == 0
    # the first layer is not learned at 0.3: freezing it changes nothing
    assert rough.test_error(0.3, frozen=[1]) == mean[1]


# What is taken and given


def test_answers_have_the_shape_of_alpha(one_layer):
    alpha = np.array([[0.0, 0.1, 0.3], [0.2, 0.4, 0.7]])
    overlap, error = one_layer.overlap(alpha, return_error=True)
    assert overlap.shape == (2, 3, 1, 1)
    assert error.shape == (2, 3, 1)
    assert one_layer.overlap(0.3).shape == (1, 1)
    assert one_layer.overlap(0.3)[0, 0] == pytest.approx(overlap[0, 2, 0, 0], abs=1e-9)
    value, spread = one_layer.test_error(alpha, return_error=True)
    assert value.shape == spread.shape == (2, 3)
    assert one_layer.test_error(0.3) == pytest.approx(value[0, 2], abs=1e-9)


def test_no_alpha_no_answers(one_layer):
    # as BayesOptimalBound has it
    assert one_layer.overlap([]).shape == (0, 1, 1)
    assert one_layer.test_error([]).shape == (0,)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"n_layers": 0}, ValueError, "n_layers=0"),
        ({"n_layers": 4}, ValueError, "n_layers=4 must be 1, 2 or 3"),
        ({"n_layers": 2.0}, TypeError, "n_layers=2.0"),
        ({"n_layers": True}, TypeError, "n_layers=True"),
        ({"skip": -1.0}, ValueError, r"skip=-1\.0"),
        ({"skip": np.inf}, ValueError, "skip=inf"),
        ({"skip": "1"}, TypeError, "skip='1'"),
        ({"n_tokens": 1}, ValueError, "n_tokens=1 must be at least 2"),
        ({"n_tokens": 5}, ValueError, "n_tokens=5 must be at most 4"),
        ({"n_tokens": 2.5}, TypeError, r"n_tokens=2\.5"),
        ({"n_layers": 3, "n_tokens": 3}, ValueError, "n_tokens=3 must be at most 2 for n_layers=3"),
        ({"inverse_temperature": 0.0}, ValueError, r"inverse_temperature=0\.0"),
        ({"inverse_temperature": np.nan}, ValueError, "inverse_temperature=nan"),
        ({"inverse_temperature": None}, TypeError, "inverse_temperature=None"),
        ({"effort": 0}, ValueError, "effort=0"),
        ({"effort": "much"}, TypeError, "effort='much'"),
        ({"random_state": -1}, ValueError, "random_state=-1"),
        ({"random_state": None}, TypeError, "random_state=None"),
        ({"random_state": 1.5}, TypeError, r"random_state=1\.5"),
    ],
)
def test_bad_parameters(params, error, message):
    bad = DeepBayesOptimalBound(**params)
    for call in (
        lambda: bad.overlap(0.3),
        lambda: bad.test_error(0.3),
        lambda: bad.state_evolution(0.3, n_iter=1),
        bad.weak_recovery_thresholds,
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("method", "args", "params", "error", "message"),
    [
        ("overlap", (), {}, ValueError, "alpha=None needs a bound made by from_estimator"),
        ("overlap", (-0.1,), {}, ValueError, r"alpha=-0\.1"),
        ("overlap", (np.nan,), {}, ValueError, "alpha=nan"),
        ("test_error", ([0.1, np.inf],), {}, ValueError, "alpha="),
        ("test_error", ("much",), {}, TypeError, "alpha='much'"),
        ("state_evolution", ([0.1, 0.2],), {}, ValueError, "alpha=.*one number"),
        ("overlap", (0.1,), {"init": "lucky"}, ValueError, "init='lucky'"),
        ("test_error", (0.1,), {"init": "lucky"}, ValueError, "init='lucky'"),
        ("overlap", (0.1,), {"return_error": 1}, TypeError, "return_error=1"),
        ("test_error", (0.1,), {"return_error": "yes"}, TypeError, "return_error='yes'"),
        ("weak_recovery_thresholds", (), {"return_error": None}, TypeError, "return_error=None"),
        ("test_error", (0.1,), {"prediction": "best"}, ValueError, "prediction='best'"),
        ("test_error", (0.1,), {"frozen": [2]}, ValueError, "frozen=2"),
        ("test_error", (0.1,), {"frozen": [0]}, ValueError, "frozen=0"),
        ("test_error", (0.1,), {"frozen": [1.0]}, TypeError, r"frozen=1\.0"),
        ("test_error", (0.1,), {"frozen": "first"}, TypeError, "frozen='first'"),
        ("state_evolution", (0.1,), {"n_iter": 0}, ValueError, "n_iter=0"),
        ("state_evolution", (0.1,), {"n_iter": 2.0}, TypeError, r"n_iter=2\.0"),
        ("state_evolution", (0.1,), {"init": "lucky"}, ValueError, "init='lucky'"),
        ("state_evolution", (0.1,), {"init": [0.1, 0.2]}, ValueError, "init has shape"),
        ("state_evolution", (0.1,), {"init": [1.0]}, ValueError, r"init=\[1\.0\]"),
        ("state_evolution", (0.1,), {"init": [-0.5]}, ValueError, r"init=\[-0\.5\]"),
        ("state_evolution", (0.1,), {"init": [np.nan]}, ValueError, "init"),
        ("state_evolution", (0.1,), {"init": [None]}, ValueError, "init"),
        ("state_evolution", (0.1,), {"init": [{}]}, TypeError, "init="),
    ],
)
def test_bad_arguments(method, args, params, error, message, one_layer):
    with pytest.raises(error, match=message):
        getattr(one_layer, method)(*args, **params)


def test_starts_that_are_no_overlap(rough):
    for start in ([[0.5, 0.2], [0.1, 0.5]], [[0.9, 0.5], [0.5, 0.9]], [[0.1, 0.3], [0.3, 0.1]]):
        with pytest.raises(ValueError, match="init="):
            rough.state_evolution(0.3, start, n_iter=1)


def test_same_seed_same_answer():
    first, again, other = (DeepBayesOptimalBound(effort=ROUGH, random_state=seed) for seed in (0, 0, 1000))
    values = [b.overlap(0.4)[1, 1] for b in (first, again, other)]
    assert values[0] == values[1] != values[2]
    assert values[2] == pytest.approx(values[0], abs=0.1)
    errors = [b.test_error(0.1) for b in (first, again, other)]
    assert errors[0] == errors[1] != errors[2]


def test_parameters_may_change_between_calls():
    b = DeepBayesOptimalBound(1, n_tokens=2)
    assert b.weak_recovery_thresholds() == {1: pytest.approx(1 / 6)}
    b.set_params(n_tokens=3)
    assert b.weak_recovery_thresholds() == {1: pytest.approx(1 / 12)}


def test_pickle_and_clone(rough):
    before = rough.overlap(0.4)
    restored = pickle.loads(pickle.dumps(rough))
    assert len(pickle.dumps(rough)) < 5000
    assert restored.get_params() == rough.get_params() == clone(rough).get_params()
    np.testing.assert_array_equal(restored.overlap(0.4), before)
    assert repr(clone(rough)) == f"DeepBayesOptimalBound(effort={ROUGH})"


@pytest.fixture(scope="module")
def data():
    return make_deep_attention_sequences(150, 2, 50, skip=0.5, inverse_temperature=1.5, random_state=0)


def fitted(estimator, data):
    with warnings.catch_warnings():
        # a few steps are enough here
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*data)


@pytest.mark.parametrize(
    "estimator",
    [
        AMPDeepAttentionRegressor(2, 0.5, inverse_temperature=1.5, max_iter=3, random_state=0),
        GDAttentionRegressor(
            width=1, n_layers=2, skip=0.5, inverse_temperature=1.5, scaling="sequence-index", max_iter=3, random_state=0
        ),
    ],
    ids=["AMP", "GD"],
)
def test_from_estimator(estimator, data):
    estimator = fitted(clone(estimator), data)
    expected = DeepBayesOptimalBound(2, 0.5, 2, inverse_temperature=1.5)
    for one in (estimator, make_pipeline("passthrough", estimator)):
        made = DeepBayesOptimalBound.from_estimator(one)
        assert made.get_params() == expected.get_params()
        assert made.sample_complexity_ == 3.0
        assert DeepBayesOptimalBound.from_estimator(one, data[0][:20]).sample_complexity_ == 0.4
    made.set_params(effort=ROUGH)
    np.testing.assert_array_equal(made.overlap(), np.eye(2))
    assert pickle.loads(pickle.dumps(made)).sample_complexity_ == 3.0


def test_from_estimator_refuses(data):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        DeepBayesOptimalBound.from_estimator(AMPDeepAttentionRegressor())
    wide = GDAttentionRegressor(width=2, scaling="sequence-index", max_iter=2, random_state=0)
    with pytest.raises(ValueError, match="width 1"):
        DeepBayesOptimalBound.from_estimator(fitted(wide, data))
    X, y = make_attention_sequences(200, 2, 8, width=0.5, random_state=0)
    other = fitted(AMPAttentionRegressor(width=0.5), (X, y))
    with pytest.raises(TypeError, match="sequence-index"):
        DeepBayesOptimalBound.from_estimator(other)


def test_last_of_three_layers_by_draws():
    # E||M - I||^2 = E z^T M z - T by the tower rule, z the indices that the maps were drawn from
    channel = DeepChannel(3, 2)
    z = np.random.default_rng(0).standard_normal((6000, 3, 2))
    M = channel.posterior(channel.output(z)[0], np.zeros_like(z), np.eye(3)).second[:, -1, :, -1]
    draws = np.einsum("na,nab,nb->n", z[:, -1], M, z[:, -1]) - 2
    thresholds, errors = DeepBayesOptimalBound(3, effort=0.02).weak_recovery_thresholds(return_error=True)
    curvature = 1 / thresholds[3]
    spread = draws.std() / np.sqrt(len(draws)) + errors[3] * curvature**2
    assert abs(draws.mean() - curvature) < 4 * spread
    assert spread < 0.1 * curvature
    # the last layer is learned first
    assert next(iter(thresholds)) == 3
    assert thresholds[3] < 0.5 * min(thresholds[1], thresholds[2])
