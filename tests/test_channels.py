"""Every channel is the posterior of its link, and a wrong one is caught."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, make_attention_sequences, register_link
from sklearn_aim.channels import LINKS, Channel, HardmaxChannel, make_channel
from sklearn_aim.channels.averages import gaussian_average, trapezoid_average
from sklearn_aim.channels.check import check_channel


class SignChannel(Channel):
    """A user's link: the sign of every index, independent entries."""

    def link(self, indices):
        return np.sign(indices)

    def encode(self, y):
        return y

    def posterior(self, code, omega, variance):
        sd = np.sqrt((variance + self.noise) * self.index_variance)
        k = code * omega / sd
        log_phi = log_ndtr(k)
        hazard = np.exp(-0.5 * k**2 - 0.5 * np.log(2 * np.pi) - log_phi)
        gradient = self.index_variance * code * hazard / sd
        pairs = np.triu(np.ones(omega.shape[1:])) if self.tied else 1.0
        return np.sum(pairs * log_phi, axis=(1, 2)), gradient


@pytest.fixture
def sign_link():
    register_link("sign", SignChannel)
    yield "sign"
    del LINKS["sign"]


@pytest.mark.parametrize(
    ("link", "n_tokens", "tied", "noise"),
    [
        ("identity", 1, True, 0.0),
        ("identity", 3, True, 0.3),
        ("identity", 2, False, 0.1),
        ("softmax", 2, True, 0.0),
        ("softmax", 4, True, 0.2),
        ("softmax", 3, False, 0.2),
        ("hardmax", 2, True, 0.0),
        ("hardmax", 2, True, 0.3),
        ("hardmax", 2, False, 0.1),
        ("hardmax", 3, True, 0.1),
        ("hardmax", 4, False, 0.0),
    ],
)
def test_channels_are_posteriors(link, n_tokens, tied, noise):
    assert max(check_channel(link, n_tokens, tied=tied, noise=noise).values()) < 1


@pytest.mark.parametrize("tied", [True, False])
def test_a_users_link_works_everywhere(sign_link, tied):
    check_channel(sign_link, 2, tied=tied, noise=0.2)
    X, y, S = make_attention_sequences(
        1800, 2, 60, width=0.5, tied=tied, link=sign_link, random_state=0, return_interaction=True
    )
    est = AMPAttentionRegressor(width=0.5, tied=tied, link=sign_link).fit(X, y)
    error = np.sum((est.interaction_ - S) ** 2) / 60
    bound = BayesOptimalBound.from_estimator(est).estimation_error()
    # d = 60; untied, the bound itself is optimistic (see its notes)
    assert est.estimation_error_ == pytest.approx(bound, rel=0.2)
    assert 0.85 * bound < error < (1.2 if tied else 1.4) * bound
    assert bound < 0.5
    assert np.abs(est.predict(X)).max() <= 1


class RectifiedChannel(Channel):
    """A user's link that is continuous on half of its range: y = max(h, 0), entries independent."""

    def link(self, indices):
        return np.maximum(indices, 0)

    def encode(self, y):
        return y

    def posterior(self, code, omega, variance):
        c = self.index_variance
        sd = np.sqrt((variance + self.noise) * c)
        k = -omega / sd
        log_phi = log_ndtr(k)
        seen = code > 0
        z = (code - omega) / sd
        log_z = np.where(seen, -0.5 * z**2 - np.log(sd * np.sqrt(2 * np.pi)), log_phi)
        hazard = np.exp(-0.5 * k**2 - 0.5 * np.log(2 * np.pi) - log_phi)
        gradient = c * np.where(seen, z, -hazard) / sd
        pairs = np.triu(np.ones(omega.shape[1:])) if self.tied else 1.0
        return np.sum(pairs * log_z, axis=(1, 2)), gradient


def test_thresholds_of_a_users_link(sign_link):
    register_link("relu", RectifiedChannel)
    try:
        check_channel("relu", 2)
        bound = BayesOptimalBound(0.5, link="relu")
        # half of the indices are seen: k is half of T(T+1)
        assert bound.recovery_threshold() == pytest.approx(0.75 / 3, rel=0.02)
        assert bound.mutual_information(0.1) == np.inf
        assert BayesOptimalBound(0.5, link=sign_link).recovery_threshold() == np.inf
        assert BayesOptimalBound(0.5, link=sign_link).mutual_information(0.1) < 0.1 * 3 * np.log(2)
    finally:
        del LINKS["relu"]


def test_the_check_refuses_the_joint_density_derivative():
    # the derivative used in published hardmax scripts: the bivariate density in place of phi(k1) Phi(.)
    class JointDensity(HardmaxChannel):
        def posterior(self, code, omega, variance):
            log_z, gradient = super().posterior(code, omega, variance)
            s1 = np.where(code[:, 0] == 0, 1, -1)
            s2 = np.where(code[:, 1] == 1, 1, -1)
            sd = np.sqrt(3 * (variance + self.noise))
            k1 = s1 * (omega[:, 0, 0] - omega[:, 0, 1]) / sd
            k2 = s2 * (omega[:, 1, 1] - omega[:, 0, 1]) / sd
            r = s1 * s2 / 3
            joint = norm.pdf(k1) * norm.pdf((k2 - r * k1) / np.sqrt(1 - r**2)) / np.sqrt(1 - r**2)
            gradient[:, 0, 0] = 2 * s1 * joint / (sd * np.exp(log_z))
            return log_z, gradient

    register_link("joint-density", JointDensity)
    try:
        with pytest.raises(AssertionError, match=r"derivative of log Z|zero mean"):
            check_channel("joint-density", 2)
    finally:
        del LINKS["joint-density"]


def test_softmax_code_is_the_index_up_to_a_shift():
    rng = np.random.default_rng(0)
    for tied in (True, False):
        channel = make_channel("softmax", 4, tied=tied, inverse_temperature=1.7)
        h = channel.random_indices(rng.normal(size=(9, channel.index_dimension)))
        code = channel.encode(channel.link(h))
        shift = h.mean(axis=(1, 2) if tied else 2, keepdims=True)
        np.testing.assert_allclose(code, h - shift, atol=1e-12)


def test_hardmax_averages_do_not_depend_on_how_they_are_computed():
    # at two tokens: line and plane integrals against quasi-random sampling of the same channel
    for tied in (True, False):
        channel = make_channel("hardmax", 2, tied=tied, noise=0.1)
        for variance, overlap in ((0.9, 0.1), (0.4, 1.1), (0.05, 1.4)):
            for exact, sampled in (
                (channel.information, Channel.information),
                (channel.mean_log_partition, Channel.mean_log_partition),
            ):
                value, error = exact(variance, overlap)
                other, spread = sampled(channel, variance, overlap)
                assert abs(value - other) < 3 * spread + error


def test_untied_hardmax_table_agrees_with_line_integrals():
    # T = 3 rows by quasi-random rivals against T = 2 recomputed by the same code path
    from sklearn_aim.channels.hardmax_averages import _independent_averages, _two_token_averages

    for s in (0.9, 0.2, 1e-3):
        value, error = _independent_averages(2, s)
        exact, _ = _two_token_averages(False, s)
        assert (np.abs(value - exact) <= 3 * error + 1e-4 * np.abs(exact)).all()


@pytest.mark.parametrize("link", ["softmax", "hardmax", "identity"])
def test_test_error_is_the_spread_of_fresh_labels(link):
    rng = np.random.default_rng(0)
    for n_tokens in (2, 3):
        channel = make_channel(link, n_tokens, noise=0.05)
        variance, overlap, n_draws = 0.4, 1.1, 40_000
        omega = np.sqrt(overlap) * channel.random_indices(rng.normal(size=(n_draws, channel.index_dimension)))
        spread = np.sqrt(variance + 0.05) * channel.random_indices(rng.normal(size=(n_draws, channel.index_dimension)))
        y = channel.link(omega + spread)
        mean, second = channel.moments(omega, variance)
        losses = np.sum((y - mean) ** 2, axis=(1, 2))
        value, error = channel.test_error(variance, overlap)
        assert abs(losses.mean() - value) < 4 * losses.std() / np.sqrt(n_draws) + error
        predicted = np.sum(second - mean**2, axis=(1, 2)).mean()
        assert predicted == pytest.approx(value, rel=0.02)
        # plugging omega into the link is worse
        assert np.sum((y - channel.link(omega)) ** 2, axis=(1, 2)).mean() >= losses.mean() - 1e-12


def test_error_estimates_cover():
    # E exp(0.3 sum z) = exp(0.045 T) by quasi-random points, E cos(m) by the trapezoid
    value, error = gaussian_average(lambda z: np.exp(0.3 * z.sum(axis=1, keepdims=True)), 5)
    assert abs(value[0] - np.exp(0.045 * 5)) < 2 * error[0]
    for scale in (1e-3, 1.0):
        value, error = trapezoid_average(lambda m: np.cos(m)[:, None], 1.3, scale)
        assert abs(value[0] - np.exp(-(1.3**2) / 2)) < 1e-9


@pytest.mark.parametrize("link", ["identity", "softmax", "hardmax"])
def test_noise_is_estimated_at_the_right_cavity(link):
    rng = np.random.default_rng(0)
    channel = make_channel(link, 2, noise=0.3)
    omega = channel.random_indices(rng.normal(size=(20_000, 3)))
    spread = channel.random_indices(rng.normal(size=(20_000, 3)))
    code = channel.encode(channel.link(omega + np.sqrt(0.5 + 0.3) * spread))
    assert channel.with_noise(0.0).estimate_noise(code, omega, 0.5) == pytest.approx(0.3, abs=0.1)
    # V + noise is all that labels tell
    assert channel.with_noise(0.0).estimate_noise(code, omega, 2.0) == 0


def test_spread_of_softmax_at_small_variance():
    # adaptive quadrature of the one difference that matters, V and mean index as given
    channel = make_channel("softmax", 2)
    for variance, mean_index, std in ((1e-8, 0.5, 4.0704e-5), (1e-10, 0.5, 4.0704e-6), (1e-4, 8.0, 5.81e-6)):
        omega = np.zeros((1, 2, 2))
        omega[0, 0, 0] = mean_index
        mean, second = channel.moments(omega, variance)
        # dy/dh = y (1 - y), a difference of variance 3 V
        linear = mean[0, 0, 0] * (1 - mean[0, 0, 0]) * np.sqrt(3 * variance)
        assert np.sqrt(second - mean**2)[0, 0, 0] == pytest.approx(std, rel=2e-3)
        assert linear == pytest.approx(std, rel=2e-3)


@pytest.mark.parametrize(("n_tokens", "tied"), [(2, True), (2, False), (4, False)])
@pytest.mark.parametrize("variance", [0.02, 1.0])
def test_expected_energy_is_the_information(n_tokens, tied, variance):
    channel = make_channel("hardmax", n_tokens, tied=tied)
    rng = np.random.default_rng(0)
    omega = channel.random_indices(rng.normal(size=(20_000, channel.index_dimension)))
    energy = channel.expected_energy(omega, variance)
    value, error = channel.information(variance, 1.0)
    assert energy == pytest.approx(value, rel=0.05, abs=error)


@pytest.mark.parametrize("tied", [True, False])
def test_labels_far_in_a_tail(tied):
    # row 1 chooses itself against k deviations, row 2 without any doubt: log Z is that of one normal variable
    channel, variance = make_channel("hardmax", 2, tied=tied), 0.01
    deviation = np.sqrt((3 if tied else 2) * variance)
    for k in (3.0, 6.5, 8.0, 20.0, 60.0):
        omega = np.diag([-k, 1e3])[None] * deviation
        log_z, gradient = channel.posterior(np.array([[0, 1]]), omega, variance)
        assert log_z[0] == pytest.approx(log_ndtr(-k), rel=1e-6 if k < 6.9 else 0.05)
        hazard = np.exp(norm.logpdf(k) - log_ndtr(-k)) * (2 if tied else 1) / deviation
        assert gradient[0, 0, 0] == pytest.approx(hazard, rel=1e-6 if k < 6.9 else 0.05)
