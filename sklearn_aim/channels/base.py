"""What a channel must offer.

A channel is what one sequence says about its attention indices. It never sees X, and it does not care whether
omega comes from data (message passing) or from Gaussian variables (state evolution). Under h_ab ~ N(omega_ab, V c_ab),
with index noise of variance Delta c_ab added before the link, Z(y, omega, V) = P(y).
"""

from abc import ABC, abstractmethod

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_aim.channels.averages import gaussian_average, normal_points, symmetric_matrices

# sequences that fix the mean energy of a batch to a third of a per cent
ENERGY_SAMPLES = 1 << 15
# sequences that fix one noise level well
_NOISE_SAMPLES = 1 << 13


def evenly_spaced(array, count):
    """At most about `count` entries along the first axis, evenly spaced."""
    return array[:: -(-len(array) // count)]


class Channel(ABC):
    """One link, at one number of tokens.

    Parameters
    ----------
    n_tokens : int
        T.
    tied : bool, default=True
        True: h is symmetric, c_ab = 1 + delta_ab. False: all T^2 indices are independent, c_ab = 1.
    noise : float, default=0.0
        Delta, the variance scale of the index noise.
    inverse_temperature : float, default=1.0
        beta, for links that have one.

    Attributes
    ----------
    min_tokens, max_tokens : int or None
        Token counts for which the link is defined (class attributes).
    """

    name = "custom"
    min_tokens = 1
    max_tokens = None

    def __init__(self, n_tokens, *, tied=True, noise=0.0, inverse_temperature=1.0):
        most = self.max_tokens_for(tied)
        if n_tokens < self.min_tokens or (most is not None and n_tokens > most):
            allowed = f"at least {self.min_tokens}" if most is None else f"{self.min_tokens} to {most}"
            kind = "tied" if tied else "untied"
            raise ValueError(
                f"n_tokens={n_tokens} is outside what link={self.name!r} ({kind}) supports: use {allowed} tokens."
            )
        if n_tokens == 1 and not tied:
            raise ValueError(
                "n_tokens=1 with tied=False can't be learned: the index of one token depends on the symmetric part of "
                "the interaction alone. Use tied=True."
            )
        self.n_tokens = n_tokens
        self.tied = tied
        self.noise = float(noise)
        self.inverse_temperature = float(inverse_temperature)
        self.index_variance = np.ones((n_tokens, n_tokens)) + (np.eye(n_tokens) if tied else 0.0)

    @classmethod
    def max_tokens_for(cls, tied):
        """Largest number of tokens supported, or None."""
        return cls.max_tokens

    def with_noise(self, noise):
        """The same channel at another noise."""
        return type(self)(self.n_tokens, tied=self.tied, noise=noise, inverse_temperature=self.inverse_temperature)

    @property
    def index_dimension(self):
        """Number of free indices: T(T+1)/2 tied, T^2 untied."""
        return self.n_tokens * (self.n_tokens + 1) // 2 if self.tied else self.n_tokens**2

    @property
    def antisymmetric_pairs(self):
        """Twice the number of pairs of tokens, each of which has one antisymmetric index (untied)."""
        return self.n_tokens * (self.n_tokens - 1)

    @property
    def information_constant(self):
        """k with E||G||^2 = k/(V + Delta) for every V, or None where no such constant exists."""
        return None

    @abstractmethod
    def link(self, indices):
        """Labels y of indices h (noise already added), both (n, T, T)."""

    @abstractmethod
    def encode(self, y):
        """Check labels (n, T, T) and reduce them to what the other methods take; ValueError for impossible y."""

    @abstractmethod
    def posterior(self, code, omega, variance):
        """What labels say at cavity means omega and one variance V.

        Returns
        -------
        log_z : ndarray of shape (n,)
            log Z(y, omega, V); terms that depend on y alone may be dropped.
        gradient : ndarray of shape (n, T, T)
            G_ab = c_ab dlogZ/d omega_ab = (E[h_ab|y] - omega_ab)/V.
        """

    def random_indices(self, z):
        """Indices of variance c_ab from standard normals (n, index_dimension)."""
        if self.tied:
            return symmetric_matrices(z, self.n_tokens)
        return z.reshape(-1, self.n_tokens, self.n_tokens)

    def _joint_draws(self, z, variance, overlap):
        """omega ~ N(0, q c) and labels of h ~ N(omega, (V + Delta) c) from twice index_dimension normals."""
        omega = np.sqrt(overlap) * self.random_indices(z[:, : self.index_dimension])
        spread = np.sqrt(variance + self.noise) * self.random_indices(z[:, self.index_dimension :])
        return omega, self.link(omega + spread)

    def information(self, variance, overlap):
        """E||G||_F^2 of one sequence at omega ~ N(0, q c), and an error estimate; q_hat = alpha times this."""

        def norm(z):
            omega, y = self._joint_draws(z, variance, overlap)
            return np.sum(self.posterior(self.encode(y), omega, variance)[1] ** 2, axis=(1, 2))[:, None]

        mean, error = gaussian_average(norm, 2 * self.index_dimension)
        return float(mean[0]), float(error[0])

    def expected_energy(self, omega, variance):
        """Mean over sequences of E||G||_F^2 over labels that the channel itself would give at omega and V.

        Equal to the mean of ||G||^2 on the true labels under the model, but a function of omega and V alone. The
        default draws one label a sequence, always from the same random numbers.
        """
        few = evenly_spaced(omega, ENERGY_SAMPLES)
        z = np.random.default_rng(1905).standard_normal((few.shape[0], self.index_dimension))
        spread = np.sqrt(variance + self.noise) * self.random_indices(z)
        _, gradient = self.posterior(self.encode(self.link(few + spread)), few, variance)
        return float(np.einsum("nab,nab->", gradient, gradient, dtype=float)) / few.shape[0]

    def mean_log_partition(self, variance, overlap):
        """E log Z at omega ~ N(0, q c), and an error estimate."""

        def log_z(z):
            omega, y = self._joint_draws(z, variance, overlap)
            return self.posterior(self.encode(y), omega, variance)[0][:, None]

        mean, error = gaussian_average(log_z, 2 * self.index_dimension)
        return float(mean[0]), float(error[0])

    def continuous_information(self, second_moment):
        """lim V E||G||^2 at V -> 0 without noise: twice the free indices that y fixes (tied); 0 for discrete labels."""
        if self.information_constant is not None:
            return self.information_constant
        clean = self.with_noise(0.0)
        near, nearer = (v * clean.information(v, second_moment - v)[0] for v in (1e-3, 1e-5))
        # boundaries between discrete labels are met by a share sqrt(V) of sequences
        return 0.0 if nearer < 0.5 * near else nearer

    def label_entropy(self, second_moment):
        """-E log P(y|S) of one sequence; without noise 0 for discrete labels, minus infinity for others."""
        if self.noise > 0:
            return -self.mean_log_partition(0.0, second_moment)[0]
        return 0.0 if self.continuous_information(second_moment) == 0 else -np.inf

    def moments(self, omega, variance):
        """E[y] and E[y^2], (n, T, T) each, of labels whose indices are N(omega, (V + Delta) c).

        The default averages the link over quasi-random normals.
        """
        total = np.sqrt(variance + self.noise)
        mean = np.empty(omega.shape)
        second = np.empty(omega.shape)
        spread = total * self.random_indices(normal_points(self.index_dimension, 2**10, 0))
        for n in range(omega.shape[0]):
            y = self.link(omega[n] + spread)
            mean[n] = y.mean(axis=0)
            second[n] = np.mean(np.square(y), axis=0)
        return mean, second

    def test_error(self, variance, overlap):
        """E||y - E[y|omega]||_F^2 of a new sequence, and an error estimate."""

        def spread(z):
            omega = np.sqrt(overlap) * self.random_indices(z)
            mean, second = self.moments(omega, variance)
            return np.sum(second - mean**2, axis=(1, 2))[:, None]

        mean, error = gaussian_average(spread, self.index_dimension, n_points=2**8)
        return float(mean[0]), float(error[0])

    def estimate_noise(self, code, omega, variance):
        """Delta >= 0 that maximises the mean log Z of labels at cavity means omega."""
        code, omega = (evenly_spaced(array, _NOISE_SAMPLES) for array in (code, omega))

        def loss(root):
            return -float(np.mean(self.with_noise(root**2).posterior(code, omega, variance)[0]))

        # in the standard deviation, whose optimum is well behaved at 0
        found = minimize_scalar(loss, bounds=(0.0, 3.0), method="bounded", options={"xatol": 1e-4})
        return float(found.x**2) if found.fun < loss(0.0) else 0.0
