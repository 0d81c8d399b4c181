"""Priors given by an R-transform: density, edges, denoiser and mmse of S + sqrt(D) noise, D = 1/q_hat."""

from abc import abstractmethod

import numpy as np

from sklearn_aim.kernels.resolvent import angle_rules, denoising_errors, spectral_law, stieltjes
from sklearn_aim.priors.base import Prior


class SpectralPrior(Prior):
    """Rotationally invariant law given by the R-transform of its (symmetrised) spectrum.

    A subclass gives `r_transform` and `mass_at_zero`; R must increase between its poles, as it does for every
    free infinitely divisible law.

    Parameters
    ----------
    width_ratio : float
        rho = r/d > 0.
    """

    def __init__(self, width_ratio):
        self.width_ratio = float(width_ratio)
        self._num, self._den = (np.asarray(p, dtype=float) for p in self.r_transform())
        # R(0) and R'(0): mean and variance of the law
        self._mean = self._num[0] / self._den[0]
        slope = [p[1] if p.size > 1 else 0.0 for p in (self._num, self._den)]
        self._variance = (slope[0] - self._mean * slope[1]) / self._den[0]
        self.mean_eigenvalue = self._mean
        self.second_moment = self._variance + self._mean**2

    @abstractmethod
    def r_transform(self):
        """Coefficients (ascending) of numerator and denominator of R(g)."""

    @property
    @abstractmethod
    def mass_at_zero(self):
        """Weight of the eigenvalue (singular value) zero in the law of S."""

    @property
    def recovery_information(self):
        """lim q_hat mmse(q_hat) = 1 - mass_at_zero^2: 2 rho - rho^2 for rho <= 1, then 1."""
        return 1.0 - self.mass_at_zero**2

    def mmse(self, information, return_error=False):
        """Error V of the denoiser at each q_hat >= 0.

        D - (4 pi^2/3) D^2 int density^3 (arXiv 1502.06736; theory in closed form up to one quadrature).

        Parameters
        ----------
        information : array-like of float
            q_hat, any shape; 0 and infinity are allowed.
        return_error : bool, default=False
            Also return an estimate of the quadrature's error.

        Returns
        -------
        ndarray of the same shape, or two
        """
        information = np.asarray(information, dtype=float)
        # beyond these the value is its limit to all digits: V = k2 (1 - k2 q_hat), or 0
        small = information < 1e-10 * min(1.0, self.width_ratio)
        inside = ~small & (information < 1e100)
        value = np.where(small, self._variance * (1 - self._variance * np.where(small, information, 0.0)), 0.0)
        error = np.zeros_like(value)
        value[inside], error[inside] = denoising_errors(
            self._num, self._den, self._mean, self._variance, information[inside], 1e-12, *angle_rules()
        )
        return (value, error) if return_error else value

    def edges(self, information):
        """Bulk edges (left, right, left, ...) of the spectrum of R at one q_hat."""
        return spectral_law(self._num, self._den, 1.0 / information)[3]

    def density(self, x, information):
        """Density of the (symmetrised) spectrum of R at points x, at one q_hat; 0 outside the bulks."""
        x = np.asarray(x, dtype=float)
        a, b, edges_g, edges_x, _ = spectral_law(self._num, self._den, 1.0 / information)
        return stieltjes(a, b, edges_g, edges_x, x.ravel()).imag.reshape(x.shape) / np.pi

    def denoise_spectrum(self, x, information, clamp=True):
        """Map eigenvalues (singular values) of R to those of its posterior mean: x - 2 D Re g(x).

        Parameters
        ----------
        x : ndarray of shape (d,)
            Sorted for speed.
        information : float
            q_hat > 0.
        clamp : bool, default=True
            Continue the map outside the limiting bulks on straight lines of slope 1 - V/V(0). At finite d such values
            always exist, and g, which falls steeply there, would amplify them; a slope of 0 would keep S itself from
            exact recovery, since its own spectrum exceeds the limit too.
        """
        variance = 1.0 / information
        a, b, edges_g, edges_x, _ = spectral_law(self._num, self._den, variance)
        x = np.asarray(x, dtype=float)
        inside = clamp_to_bulks(x, edges_x) if clamp else x
        denoised = inside - 2 * variance * stieltjes(a, b, edges_g, edges_x, inside).real
        if clamp:
            denoised += (1 - float(self.mmse(information)) / self.prior_error) * (x - inside)
        return denoised

    def denoise(self, observation, information, clamp=True):
        """Posterior mean of S given R, its eigenvectors (singular vectors) kept.

        Parameters
        ----------
        observation : ndarray of shape (d, d), float64
            R; symmetric when `tied` (the lower triangle is read).
        information : float
            q_hat > 0.

        Returns
        -------
        ndarray of shape (d, d)
        """
        if self.tied:
            # by divide and conquer, and by the library that does the products: see `kernels.indices`
            x, vectors = np.linalg.eigh(observation)
            return (vectors * self.denoise_spectrum(x, information, clamp)) @ vectors.T
        left, x, right = np.linalg.svd(observation)
        return (left * self.denoise_spectrum(x[::-1], information, clamp)[::-1]) @ right


def clamp_to_bulks(x, edges):
    """Move points outside all bulks to the nearest bulk edge."""
    x = np.clip(x, edges[0], edges[-1])
    for left, right in zip(edges[1:-1:2], edges[2:-1:2], strict=True):
        gap = (x > left) & (x < right)
        x[gap] = np.where(x[gap] - left < right - x[gap], left, right)
    return x
