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

    @property
    def antisymmetric_information(self):
        """Dimension of the S of rank r that share one symmetric part, per d^2/2.

        Below rho = 1/2 the symmetric part has rank 2 r and leaves O(r, r)/GL(r), r^2 dimensions; above, it takes d^2/2
        of the (2 rho - rho^2) d^2.
        """
        rho = min(self.width_ratio, 1.0)
        return 2 * rho**2 if rho <= 0.5 else 2 * (2 * rho - rho**2) - 1
