"""Channels that are Gaussian in the indices: y reveals a linear projection of h."""

from abc import abstractmethod

import numpy as np

from sklearn_aim.channels.base import Channel


class GaussianChannel(Channel):
    """y fixes P(h + noise) for an orthogonal projection P: G = P(K - omega)/(V + Delta).

    A subclass gives `link`, `encode` (K from y), `project` and `rank`. Everything else is closed form.
    """

    @property
    @abstractmethod
    def rank(self):
        """Number m of independent index combinations that y fixes."""

    def project(self, x):
        """P x, in place where possible."""
        return x

    def combinations(self, code):
        """m, or how many combinations each sequence fixes, (n,)."""
        return self.rank

    def visible(self, code, x):
        """P x, for the P of every sequence; not in place."""
        return self.project(x.copy())

    def residual(self, code, omega):
        """P(K - omega)."""
        return self.project(code - omega)

    def key_shares(self, code):
        """How much of b^T x_a and of b^T x_b is in K_ab, for indices with a key bias b^T x_b: numbers, or (n, T, T)."""
        return (0.5, 0.5) if self.tied else (0.0, 1.0)

    @property
    def information_constant(self):
        """E||G||^2 (V + Delta): 2 m tied (off-diagonal pairs count twice, diagonals have variance 2), else m."""
        return (2.0 if self.tied else 1.0) * self.rank

    def posterior(self, code, omega, variance):
        """G = P(K - omega)/(V + Delta), and -||P(K - omega)||^2/(4 (V + Delta)) - (m/2) log(2 pi (V + Delta)).

        Untied, 2 in place of 4.
        """
        total = variance + self.noise
        gradient = self.residual(code, omega)
        distance = np.einsum("nab,nab->n", gradient, gradient, dtype=float)
        gradient /= total
        log_z = -distance / ((4 if self.tied else 2) * total)
        log_z -= 0.5 * self.combinations(code) * np.log(2 * np.pi * total)
        return log_z, gradient

    def information(self, variance, overlap):
        """k/(V + Delta), exactly."""
        total = variance + self.noise
        return (self.information_constant / total if total > 0 else np.inf), 0.0

    def expected_energy(self, omega, variance):
        """k/(V + Delta) for every omega."""
        return self.information_constant / (variance + self.noise)

    def mean_log_partition(self, variance, overlap):
        """-(m/2)(1 + log(2 pi (V + Delta))), exactly."""
        total = variance + self.noise
        if total == 0:
            return np.inf, 0.0
        return -0.5 * self.rank * (1 + np.log(2 * np.pi * total)), 0.0

    def estimate_noise(self, code, omega, variance):
        """Matching of variances, which is also maximum likelihood: mean ||P(K - omega)||^2/k - V, at least 0."""
        distance = np.mean(np.sum(np.square(self.residual(code, omega), dtype=float), axis=(1, 2)))
        return max(float(distance) / self.information_constant - variance, 0.0)
