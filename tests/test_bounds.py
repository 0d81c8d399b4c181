"""The bound against numbers computed independently, limits, identities and simulation."""

import numpy as np
import pytest

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, make_attention_sequences
from sklearn_aim.channels import make_channel
from sklearn_aim.priors import make_prior

# link, n_tokens, width_ratio, noise, alpha, V: independent code, to the digits given
TABLE = [
    ("softmax", 2, 0.5, 0.0, 0.01, 0.95669692),
    ("softmax", 2, 0.5, 0.0, 0.05, 0.72367743),
    ("softmax", 2, 0.5, 0.0, 0.1, 0.39219602),
    ("softmax", 2, 0.5, 0.0, 0.15, 0.1281309),
    ("softmax", 2, 0.5, 0.0, 0.18, 0.0249053),
    ("softmax", 2, 1.0, 0.0, 0.05, 0.76491687),
    ("softmax", 2, 1.0, 0.0, 0.2, 0.08426494),
    ("softmax", 3, 0.5, 0.0, 0.03, 0.55505581),
    ("softmax", 3, 0.5, 0.0, 0.06, 0.1281309),
    ("softmax", 4, 0.2, 0.0, 0.01, 0.62071489),
    ("softmax", 2, 2.0, 0.0, 0.1, 0.55092982),
    ("softmax", 2, 0.5, 0.25, 0.1, 0.58774507),
    ("softmax", 2, 0.5, 0.1, 0.5, 0.05191333),
    ("identity", 1, 0.5, 0.0, 0.1, 0.72367743),
    ("identity", 1, 0.5, 0.25, 0.3, 0.42643147),
    ("identity", 2, 0.5, 0.0, 0.05, 0.55505581),
    ("hardmax", 2, 0.5, 0.0, 0.05, 0.8787269),
    ("hardmax", 2, 0.5, 0.0, 0.2, 0.5221556),
    ("hardmax", 2, 0.5, 0.0, 0.5, 0.2130619),
    ("hardmax", 2, 0.5, 0.0, 1.0, 0.0789317),
    ("hardmax", 2, 0.5, 0.0, 2.0, 0.0238327),
    ("hardmax", 2, 1.0, 0.0, 0.05, 0.9024878),
    ("hardmax", 2, 1.0, 0.0, 0.2, 0.6259139),
    ("hardmax", 2, 1.0, 0.0, 0.5, 0.3140171),
    ("hardmax", 2, 1.0, 0.0, 1.0, 0.1344688),
    ("hardmax", 2, 1.0, 0.0, 2.0, 0.0456127),
    ("hardmax", 2, 0.5, 0.1, 0.5, 0.2698872),
]


@pytest.mark.parametrize(("link", "n_tokens", "rho", "noise", "alpha", "error"), TABLE)
def test_independent_values(link, n_tokens, rho, noise, alpha, error):
    value = BayesOptimalBound(rho, n_tokens=n_tokens, link=link, noise=noise).estimation_error(alpha)
    if link == "hardmax":
        assert value == pytest.approx(error, rel=1e-5)
    else:
        assert value == pytest.approx(error, abs=1e-7)


@pytest.mark.parametrize(
    ("n_tokens", "alpha", "error"), [(2, 0.15, 0.64055063), (3, 0.06, 0.5541557), (4, 0.04, 0.3799648)]
)
def test_untied_softmax_by_fixed_point_iteration(n_tokens, alpha, error):
    # the same law by damped iteration of independent quadrature (test_priors checks that), to the digits given
    bound = BayesOptimalBound(0.5, tied=False, n_tokens=n_tokens)
    assert bound.estimation_error(alpha) == pytest.approx(error, abs=2e-6)
    information = bound.information(alpha)
    assert information * bound.estimation_error(alpha) == pytest.approx(alpha * n_tokens * (n_tokens - 1), rel=1e-10)


@pytest.mark.parametrize(("n_tokens", "error"), [(3, 0.475), (4, 0.301)])
def test_hardmax_beyond_two_tokens(n_tokens, error):
    # two-replica Monte Carlo, good to half a per cent
    value, spread = BayesOptimalBound(0.5, n_tokens=n_tokens, link="hardmax").estimation_error(0.1, return_error=True)
    assert value == pytest.approx(error, rel=0.005)
    assert 0 < spread < 0.004 * value


def test_hardmax_fixed_point_by_two_replicas():
    # E||G||^2 = E sum (h - omega)(h' - omega)/V^2 for two posterior draws h, h' of one (y, omega), by rejection
    rng = np.random.default_rng(0)
    channel = make_channel("hardmax", 3)
    variance, overlap, n_draws = 0.5, 1.0, 300_000
    omega = np.sqrt(overlap) * channel.random_indices(rng.normal(size=(n_draws, 6)))
    first, second = (np.sqrt(variance) * channel.random_indices(rng.normal(size=(n_draws, 6))) for _ in range(2))
    same = (np.argmax(omega + first, axis=-1) == np.argmax(omega + second, axis=-1)).all(axis=1)
    # of the second draws those with the first's label are posterior draws; each (omega, y) weighs 1/P(y)
    z = np.exp(channel.posterior(np.argmax(omega + first, axis=-1), omega, variance)[0])
    products = np.sum(first * second, axis=(1, 2)) / variance**2 * same / z
    value, error = channel.information(variance, overlap)
    assert abs(products.mean() - value) < 4 * products.std() / np.sqrt(n_draws) + error


def test_thresholds():
    for rho in (0.1, 0.5, 1.0, 3.0):
        freedom = 2 * rho - rho**2 if rho <= 1 else 1
        for n_tokens in (2, 5):
            k = n_tokens**2 + n_tokens - 2
            assert BayesOptimalBound(rho, n_tokens=n_tokens).recovery_threshold() == pytest.approx(freedom / k)
            untied = BayesOptimalBound(rho, n_tokens=n_tokens, tied=False).recovery_threshold()
            assert untied == pytest.approx(freedom / (n_tokens * (n_tokens - 1)))
        identity = BayesOptimalBound(rho, n_tokens=1, link="identity").recovery_threshold()
        assert identity == pytest.approx(freedom / 2)
    assert BayesOptimalBound(0.5, noise=0.1).recovery_threshold() == np.inf
    assert BayesOptimalBound(0.5, link="hardmax").recovery_threshold() == np.inf
    assert BayesOptimalBound(0.5).weak_recovery_threshold() == 0
    assert BayesOptimalBound(0, link="hardmax").weak_recovery_threshold() == pytest.approx(0.40341, abs=2e-5)
    assert BayesOptimalBound(0).weak_recovery_threshold() == pytest.approx(0.25)
    assert BayesOptimalBound(0).recovery_threshold() == pytest.approx(0.5)


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7, 1.5])
def test_untied_identity_counts_the_antisymmetric_part(rho):
    # T = 2: a sequence tells one antisymmetric index. d(d-1)/2 numbers of a wide S need d^2/2 sequences, twice what
    # counting all indices alike would say
    bound = BayesOptimalBound(rho, tied=False, link="identity")
    n_entries = {0.3: 2 * 0.3**2, 0.5: 0.5, 0.7: 2 * (1.4 - 0.49) - 1, 1.5: 1.0}[rho]
    alike = (2 * min(rho, 1) - min(rho, 1) ** 2) / 4
    assert bound.recovery_threshold() == pytest.approx(max(alike, n_entries / 2))
    if n_entries / 2 > alike:
        with pytest.warns(UserWarning, match="optimistic"):
            bound.estimation_error(0.1)


def test_untied_identity_leaves_the_antisymmetric_part_unknown():
    # the proof by simulation: beyond the symmetric part's recovery no linear estimate finds the rest
    rng = np.random.default_rng(0)
    d, n = 30, 250
    X, y, S = make_attention_sequences(
        n, 2, d, width=3.0, tied=False, link="identity", random_state=rng.integers(100), return_interaction=True
    )
    rows = np.einsum("nai,nbj->nabij", X, X).reshape(n, 2, 2, -1)
    rows[:, [0, 1], [0, 1]] -= np.eye(d).ravel()
    fitted = np.linalg.lstsq(rows.reshape(4 * n, -1) / np.sqrt(d), y.ravel(), rcond=1e-9)[0].reshape(d, d)
    residual = S - fitted
    symmetric, antisymmetric = residual + residual.T, residual - residual.T
    # 750 symmetric equations for 465 numbers, 250 antisymmetric ones for 435
    assert np.linalg.norm(symmetric) < 1e-6 * np.linalg.norm(S)
    share = np.sum(antisymmetric**2) / np.sum((S - S.T) ** 2)
    assert share == pytest.approx(1 - n / (d * (d - 1) / 2), abs=0.1)
    # counting all indices alike, 4 n > d^2 equations would have found all of S


def test_small_width_hardmax_threshold_in_closed_form():
    # at q = 0: Z = 1/4 + s asin(1/3)/(2 pi), g = s phi(0)/(2 sd Z), sd = sqrt(3), for s = +-1 twice each
    total = 0.0
    for s in (1, -1):
        z = 0.25 + s * np.arcsin(1 / 3) / (2 * np.pi)
        g = 1 / np.sqrt(2 * np.pi) / 2 / (np.sqrt(3) * z)
        # g_11 = +-g, g_22 = +-g of relative sign s, g_12 = -(g_11 + g_22)
        total += 2 * z * (2 * 4 * g**2 + 2 * (g + s * g) ** 2)
    assert BayesOptimalBound(0, link="hardmax").weak_recovery_threshold() == pytest.approx(1 / total, rel=1e-6)


@pytest.mark.parametrize("link", ["softmax", "hardmax"])
@pytest.mark.parametrize("tied", [True, False])
def test_small_width_limit_is_the_limit(link, tied):
    narrow = BayesOptimalBound(2e-4, link=link, tied=tied)
    limit = BayesOptimalBound(0, link=link, tied=tied)
    onset = limit.weak_recovery_threshold()
    for factor in (0.5, 1.3, 1.8):
        scaled = factor * onset
        value = narrow.estimation_error(2e-4 * scaled)
        assert value == pytest.approx(limit.estimation_error(scaled), abs=0.01)
    assert limit.estimation_error(0.99 * onset) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_limits(tied):
    bound = BayesOptimalBound(0.5, tied=tied)
    threshold = bound.recovery_threshold()
    alpha = threshold * np.array([0, 1e-12, 1e-6, 1 - 1e-9, 1, 1 + 1e-9, 3])
    error = bound.estimation_error(alpha)
    assert error[0] == pytest.approx(1, rel=1e-14)
    k = 4 if tied else 2
    # V = 1 - k alpha for few data
    assert 1 - error[2] == pytest.approx(k * alpha[2], rel=1e-4)
    assert 0 < error[3] < 1e-7
    assert (error[4:] == 0).all()
    # noise -> 0 is continuous on both sides of recovery
    for a in (0.5 * threshold, 2 * threshold):
        noisy = BayesOptimalBound(0.5, tied=tied, noise=1e-10).estimation_error(a)
        assert noisy == pytest.approx(float(bound.estimation_error(a)), abs=1e-8)
    # very wide: V = 1 - k alpha
    wide = BayesOptimalBound(1e6, tied=tied)
    grid = np.linspace(0, 0.99, 7) / k
    np.testing.assert_allclose(wide.estimation_error(grid), 1 - k * grid, atol=1e-5)


def test_width_one_is_smooth():
    grid = np.linspace(0.97, 1.03, 31)
    error = np.array([BayesOptimalBound(rho).estimation_error(0.15) for rho in grid])
    assert np.abs(np.diff(error, 3)).max() < 1e-5


def test_hardmax_decays_like_the_inverse_square():
    bound = BayesOptimalBound(0.5, link="hardmax")
    error = bound.estimation_error(np.array([20.0, 40.0, 80.0]))
    np.testing.assert_allclose(error[:-1] / error[1:], 4, rtol=0.03)


@pytest.mark.filterwarnings("ignore:for tied=False and link='identity':UserWarning")
@pytest.mark.parametrize(("link", "noise"), [("softmax", 0.2), ("softmax", 0.0), ("identity", 0.1), ("hardmax", 0.0)])
@pytest.mark.parametrize("tied", [True, False])
def test_free_entropy_derivative(link, noise, tied):
    # the fixed point is stationary, so the total derivative in alpha is E log Z
    bound = BayesOptimalBound(0.5, link=link, noise=noise, tied=tied)
    alpha, step = 0.12, 1e-4
    up, down = bound.free_entropy(np.array([alpha + step, alpha - step]))
    error = bound.estimation_error(alpha)
    channel = make_channel(link, 2, noise=noise, tied=tied)
    log_z, _ = channel.mean_log_partition(error, (1.5 if tied else 1.0) - error)
    assert (up - down) / (2 * step) == pytest.approx(log_z, rel=1e-5)
    assert bound.free_entropy(0.0) == 0


def test_mutual_information():
    # hardmax: at most the entropy of the labels, and concave
    bound = BayesOptimalBound(0.5, link="hardmax")
    alpha = np.linspace(0, 1, 9)
    information = bound.mutual_information(alpha)
    assert information[0] == 0
    assert (np.diff(information) > 0).all()
    assert (np.diff(information, 2) < 0).all()
    assert (information <= alpha * np.log(4)).all()
    # a linear Gaussian channel of a Gaussian S (rho -> infinity): n T(T+1)/2 = alpha d^2 observations of d^2/2 numbers
    wide = BayesOptimalBound(1e7, link="identity", n_tokens=1, noise=0.5)
    v = wide.estimation_error(0.3)
    q_hat = wide.information(0.3)
    # replica-symmetric free energy of Gaussian S: (1/4) log(1 + q_hat) + (alpha/2) log((V + D)/D) - q_hat V/4
    expected = 0.25 * np.log1p(q_hat) + 0.15 * np.log((v + 0.5) / 0.5) - 0.25 * q_hat * v
    assert wide.mutual_information(0.3) == pytest.approx(expected, rel=1e-4)
    assert BayesOptimalBound(0.5).mutual_information(0.1) == np.inf


def test_sample_size_inverts_the_error():
    for bound in (
        BayesOptimalBound(0.5),
        BayesOptimalBound(0.5, noise=0.2, tied=False),
        BayesOptimalBound(0.3, link="hardmax"),
    ):
        for error in (0.9, 0.3, 0.02):
            n = bound.sample_size(error, n_features=1000)
            assert bound.estimation_error(n / 1e6) <= error + 1e-9
            assert bound.estimation_error((n - 1) / 1e6) >= error - 1e-9
    assert BayesOptimalBound(0.5).sample_size(1.0, 100) == 0
    assert BayesOptimalBound(0.5).sample_size(0, 100) == 1875
    assert BayesOptimalBound(0).sample_size(0.96, 1000, width=3) == 900
    with pytest.raises(ValueError, match="error=0"):
        BayesOptimalBound(0.5, noise=0.1).sample_size(0, 100)
    with pytest.raises(ValueError, match="width"):
        BayesOptimalBound(0).sample_size(0.5, 100)


def test_state_evolution_ends_at_the_bound():
    for bound in (BayesOptimalBound(0.5), BayesOptimalBound(0.5, link="hardmax", tied=False)):
        path = bound.state_evolution(0.1, n_iter=400)
        assert (np.diff(path["estimation_error"]) <= 1e-12).all()
        assert path["estimation_error"][-1] == pytest.approx(bound.estimation_error(0.1), rel=1e-4)
        np.testing.assert_allclose(
            path["overlap"] + path["estimation_error"], path["overlap"][0] + path["estimation_error"][0]
        )


def test_damped_state_evolution():
    bound = BayesOptimalBound(0.5)
    plain = bound.state_evolution(0.1, n_iter=5)
    np.testing.assert_array_equal(
        bound.state_evolution(0.1, n_iter=5, damping=np.zeros(5))["overlap"], plain["overlap"]
    )
    kept = np.array([0.3, 0.5, 0.0, 0.2, 0.7])
    path = bound.state_evolution(0.1, n_iter=5, damping=kept)
    # each step mixes the old V with what an undamped step makes of its q_hat
    observed = [float(make_prior(0.5).mmse(q)) for q in path["information"]]
    before = np.append(1.0, path["estimation_error"][:-1])
    np.testing.assert_allclose(path["estimation_error"], kept * before + (1 - kept) * observed, rtol=1e-12)
    # the same fixed point
    late = bound.state_evolution(0.1, n_iter=400, damping=0.5)
    assert late["estimation_error"][-1] == pytest.approx(bound.estimation_error(0.1), rel=1e-4)


def test_answers_have_the_shape_of_alpha():
    bound = BayesOptimalBound(0.5)
    assert isinstance(bound.estimation_error(0.1), float)
    alpha = np.array([[0.01, 0.1, 0.2], [0.0, 0.15, 1.0]])
    for method in ("estimation_error", "overlap", "information", "test_error", "free_entropy", "mutual_information"):
        values = getattr(bound, method)(alpha)
        assert values.shape == alpha.shape
        assert not np.isnan(values).any()
        assert getattr(bound, method)(0.1) == pytest.approx(values[0, 1])


def test_test_error_limits():
    # no data: the prediction is the mean over S; perfect recovery without noise: no error
    bound = BayesOptimalBound(0.5, n_tokens=2)
    value, error = bound.test_error(np.array([0.0, 0.1, 0.3]), return_error=True)
    assert value[0] > value[1] > value[2] == 0
    assert (error < 1e-6).all()
    assert BayesOptimalBound(0.5, link="identity", noise=0.2).test_error(10.0) > 6 * 0.2


def test_from_estimator():
    X, y = make_attention_sequences(400, 2, 40, width=0.5, noise=0.1, random_state=0)
    est = AMPAttentionRegressor(width=0.5, noise=0.1).fit(X, y)
    bound = BayesOptimalBound.from_estimator(est)
    assert bound.get_params() == BayesOptimalBound(0.5, noise=0.1).get_params()
    assert bound.estimation_error() == bound.estimation_error(0.25)
    assert BayesOptimalBound.from_estimator(est, X[:160]).estimation_error() == bound.estimation_error(0.1)
    with pytest.raises(ValueError, match="alpha=None"):
        BayesOptimalBound().estimation_error()
