"""Univariate and bivariate normal distributions as compiled leaves."""

import math

import numba as nb
import numpy as np

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@nb.njit(cache=True, error_model="numpy")
def normal_pdf(x):
    """Density of N(0, 1)."""
    return _INV_SQRT_2PI * math.exp(-0.5 * x * x)


@nb.njit(cache=True, error_model="numpy")
def normal_cdf(x):
    """P(N(0, 1) <= x), to full relative accuracy in both tails."""
    return 0.5 * math.erfc(-_SQRT_HALF * x)


@nb.njit(cache=True, error_model="numpy")
def bivariate_normal_cdf(h, k, r):
    """P(X <= h, Y <= k) for standard normals of correlation r, |r| <= 1/2, to about 1e-16 absolutely.

    The density integrated over the correlation from 0 to r (Drezner and Wesolowsky 1990; Owen 1956).
    """
    angle = math.asin(r)
    total = 0.0
    for node, weight in zip(_NODES, _WEIGHTS):  # noqa: B905 - numba has no strict=
        sine = math.sin(0.5 * angle * (1 + node))
        total += weight * math.exp((h * k * sine - 0.5 * (h * h + k * k)) / (1 - sine * sine))
    return normal_cdf(h) * normal_cdf(k) + total * angle / (4 * math.pi)
