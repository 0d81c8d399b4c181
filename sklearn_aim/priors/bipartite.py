"""Untied keys and queries: S = U V^T / sqrt(r d), U and V (d, r) with iid N(0, 1) entries."""

from sklearn_aim.priors.spectral import SpectralPrior


class BipartitePrior(SpectralPrior):
    """Untied interaction: law of the symmetrised singular values of S, noise a square Gaussian matrix.

    z(g) = 1/g + rho g/(rho - g^2) + D g; Q0 = 1, mean 0.
    """

    tied = False

    def r_transform(self):
        """R(g) = rho g / (rho - g^2)."""
        return [0.0, self.width_ratio], [self.width_ratio, 0.0, -1.0]

    @property
    def mass_at_zero(self):
        """1 - rho zero singular values, if rho < 1."""
        return max(0.0, 1.0 - self.width_ratio)
