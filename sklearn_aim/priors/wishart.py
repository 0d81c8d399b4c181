"""Tied keys and queries: S = W W^T / sqrt(r d), W (d, r) with iid N(0, 1) entries."""

import math

from sklearn_aim.priors.spectral import SpectralPrior


class WishartPrior(SpectralPrior):
    """Tied interaction: the spectrum of S is sqrt(rho) times Marchenko-Pastur (arXiv 2506.01582).

    R(g) = rho / (sqrt(rho) - g); Q0 = 1 + rho, mean sqrt(rho) I.
    """

    tied = True

    def r_transform(self):
        """R(g) = rho / (sqrt(rho) - g)."""
        return [self.width_ratio], [math.sqrt(self.width_ratio), -1.0]

    @property
    def mass_at_zero(self):
        """1 - rho zero eigenvalues, if rho < 1."""
        return max(0.0, 1.0 - self.width_ratio)
