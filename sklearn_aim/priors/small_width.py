"""The limit rho -> 0 at fixed alpha/rho: r spikes of size 1/sqrt(rho) in Gaussian noise."""

import numpy as np

from sklearn_aim.priors.base import Prior


class SmallWidthPrior(Prior):
    """Prior of vanishing width ratio; `information` means q_hat/rho and sample complexities n/(d r).

    With t = rho/q_hat the spikes have overlap 1 - t, so V = 1 - (1 - t)^2 = t (2 - t) for t < 1, else 1
    (Q0 = 1), tied or untied.

    Parameters
    ----------
    tied : bool, default=True
        Keys and queries share their weights.
    """

    def __init__(self, tied=True):
        self.tied = tied

    def mmse(self, information, return_error=False):
        """V = t (2 - t), t = min(1, 1/information)."""
        information = np.asarray(information, dtype=float)
        t = 1 / np.maximum(information, 1.0)
        value = t * (2 - t)
        return (value, np.zeros_like(value)) if return_error else value

    @property
    def recovery_information(self):
        """lim (2 rho - rho^2)/rho."""
        return 2.0

    def information(self, error):
        """Inverse of `mmse`: t = 1 - sqrt(1 - V); the onset 1 for V = 1."""
        error = np.asarray(error, dtype=float)
        # V/(1 + sqrt(1 - V)) does not cancel at small V
        t = np.clip(error, 0, 1) / (1 + np.sqrt(1 - np.clip(error, 0, 1)))
        with np.errstate(divide="ignore"):
            return 1 / t

    def balance(self, target, noise=0.0):
        """Root of q_hat (mmse + noise) = target in closed form: 2 - t + noise/t = target above the onset."""
        target = np.asarray(target, dtype=float)
        below = target <= 1 + noise
        half = (target - 2) / 2
        # t^2 + (target - 2) t - noise = 0, the positive root, in the form that does not cancel
        root = np.hypot(half, np.sqrt(noise))
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.where(half >= 0, (root + half) / noise if noise > 0 else np.inf, 1 / (root - half))
        return np.where(below, target / (1 + noise), above)

    def free_entropy(self, information):
        """Closed form: below the onset nothing is known, above it 2 log q_hat + 1/q_hat of q_hat is lost."""
        information = np.asarray(information, dtype=float)
        above = np.maximum(information, 1.0)
        return self.free_entropy_factor * (above - 2 * np.log(above) - 1 / above)
