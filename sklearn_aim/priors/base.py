"""What a prior must offer.

A prior knows what a matrix of its kind can look like; it never sees y. All q_hat ("information") are those of
a Gaussian observation R = S + Z / sqrt(q_hat), Z a symmetric or a square Gaussian matrix of entry variance 1/d.
"""

from abc import ABC, abstractmethod

import numpy as np
from scipy.integrate import quad
from scipy.optimize import elementwise


class Prior(ABC):
    """Law of the interaction S in the limit of large d.

    Attributes
    ----------
    tied : bool
        True if S is symmetric (c_ab = 1 + delta_ab), False if its entries are independent of their mirror.
    second_moment : float
        Q0 = lim tr(S S^T)/d.
    mean_eigenvalue : float
        The known mean of S is this times the identity.
    """

    tied = True
    second_moment = 1.0
    mean_eigenvalue = 0.0

    @abstractmethod
    def mmse(self, information):
        """Error V = lim E||S - E[S|R]||_F^2 / d at each q_hat >= 0; decreasing, any shape."""

    @property
    @abstractmethod
    def recovery_information(self):
        """lim q_hat mmse(q_hat): the degrees of freedom of S per d^2 (half of it, when tied)."""

    @property
    def antisymmetric_information(self):
        """Degrees of freedom per d^2/2 that S keeps once its symmetric part is known; 0 for symmetric S."""
        return 0.0

    @property
    def prior_error(self):
        """V without data: second moment less the known mean squared."""
        return self.second_moment - self.mean_eigenvalue**2

    @property
    def free_entropy_factor(self):
        """d(prior free entropy)/d q_hat = factor * q: 1/4 tied (d^2/2 entries), 1/2 untied."""
        return 0.25 if self.tied else 0.5

    def information(self, error):
        """Inverse of `mmse`: the q_hat at which the error is the one given.

        Parameters
        ----------
        error : array-like of float
            V; 0 answers infinity, `prior_error` or more answers 0.

        Returns
        -------
        ndarray
        """
        error = np.asarray(error, dtype=float)
        out = np.where(error <= 0, np.inf, 0.0)
        hard = (error > 0) & (error < self.prior_error)
        if hard.any():
            target = error[hard]
            # the best linear estimate bounds mmse from above, the degrees of freedom q_hat mmse from above
            high = np.minimum(1 / target - 1 / self.prior_error, self.recovery_information / target)
            out[hard] = 1 / _invert_increasing(lambda x: self.mmse(1 / x), 1 / high, 1e3 / high, target)
        return out

    def balance(self, target, noise=0.0):
        """Root q_hat of q_hat (mmse(q_hat) + noise) = target, for targets >= 0.

        The left side increases, so the root is unique; it is infinite where noise = 0 and the target is at
        least `recovery_information`.
        """
        target = np.asarray(target, dtype=float)
        # the root is larger; what underflows says nothing
        least = target / (self.prior_error + noise)
        told = least > np.finfo(float).tiny
        out = np.where(told, np.inf, 0.0)
        hard = told & ((noise > 0) | (target < self.recovery_information))
        if hard.any():
            t, low = target[hard], least[hard]
            out[hard] = _invert_increasing(lambda q: q * (self.mmse(q) + noise), low, 2 * low, t)
        return out

    def free_entropy(self, information):
        """Free entropy per d^2 of the observation R: the integral of factor * q(s) from 0 to q_hat."""
        information = np.asarray(information, dtype=float)
        points, where = np.unique(information, return_inverse=True)
        total = np.empty(points.size)
        area = 0.0
        start = 0.0
        for i, stop in enumerate(np.log1p(points)):
            # s = e^u - 1: the integrand mmse e^u is of order one from q_hat = 0 to infinity
            area += quad(lambda u: float(self.mmse(np.expm1(u))) * np.exp(u), start, stop, epsrel=1e-11, limit=200)[0]
            start = stop
            total[i] = area
        values = self.free_entropy_factor * (self.second_moment * points - total)
        return values[where.reshape(information.shape)]


def _invert_increasing(function, low, high, target):
    """Points x > 0 with function(x) = target for an increasing function of x; brackets grow until they hold.

    Many targets share one coarse table of the function, which narrows their brackets.
    """

    def excess(u, log_target):
        return np.log(function(np.exp(u))) - log_target

    low, high, log_target = np.log(low), np.log(high) + 1e-9, np.log(target)
    bottom, top = low.min(), high.max()
    step = 0.5
    while excess(bottom, log_target.min()) > 0 or excess(top, log_target.max()) < 0:
        if step > 1e3:
            raise ArithmeticError("no bracket found for a root of an increasing function")
        bottom -= step * (excess(bottom, log_target.min()) > 0)
        top += step * (excess(top, log_target.max()) < 0)
        step *= 2
    if target.size > 8:
        table = np.linspace(bottom, top, max(16, target.size // 4))
        k = np.searchsorted(np.maximum.accumulate(excess(table, 0.0)), log_target).clip(1, table.size - 1)
        # a margin, for the rounding of the table
        margin = 1e-9 * (table[1] - table[0])
        bottom, top = table[k - 1] - margin, table[k] + margin
    tolerances = {"xatol": 1e-13, "xrtol": 1e-13, "fatol": 1e-12}
    return np.exp(elementwise.find_root(excess, (bottom, top), args=(log_target,), tolerances=tolerances).x)
