"""Roots of the small polynomials behind spectral laws, of any degree, in compiled code."""

import cmath
import math

import numba as nb
import numpy as np


@nb.njit(cache=True, error_model="numpy")
def horner(coefficients, z):
    """Value and derivative at ``z`` of a real polynomial, coefficients ascending."""
    value = 0.0j
    slope = 0.0j
    for k in range(coefficients.size - 1, -1, -1):
        slope = slope * z + value
        value = value * z + coefficients[k]
    return value, slope


@nb.njit(cache=True, error_model="numpy")
def polynomial_roots(coefficients):
    """All complex roots by the Ehrlich-Aberth iteration, zeros at both ends of the list dropped.

    Parameters
    ----------
    coefficients : ndarray of shape (n,), float64
        Ascending. Leading zeros lower the degree; trailing ones would be roots at 0, which are left out.

    Returns
    -------
    ndarray of shape (n_roots,), complex128

    Notes
    -----
    The start is Bini's: circles read off the Newton polygon, so roots of very different size are found
    with full relative accuracy.
    """
    last = coefficients.size - 1
    while last > 0 and coefficients[last] == 0.0:
        last -= 1
    first = 0
    while first < last and coefficients[first] == 0.0:
        first += 1
    c = coefficients[first : last + 1]
    degree = last - first
    roots = np.empty(degree, dtype=np.complex128)
    k = 0
    while k < degree:
        corner = k + 1
        steepest = -1e300
        for j in range(k + 1, degree + 1):
            if c[j] != 0.0:
                slope = (math.log(abs(c[j])) - math.log(abs(c[k]))) / (j - k)
                if slope >= steepest:
                    corner = j
                    steepest = slope
        for i in range(k, corner):
            angle = 2 * math.pi * (i - k) / (corner - k) + 0.7 + 0.3 * k
            roots[i] = math.exp(-steepest) * cmath.exp(1j * angle)
        k = corner
    for _ in range(120):
        moved = 0.0
        for i in range(degree):
            value, slope = horner(c, roots[i])
            # complex divisions whose squares underflow raise
            if abs(value) < 1e-140:
                continue
            repulsion = 0.0j
            for j in range(degree):
                if j != i and abs(roots[i] - roots[j]) > 1e-140:
                    repulsion += 1.0 / (roots[i] - roots[j])
            denominator = slope / value - repulsion
            if abs(denominator) < 1e-140:
                continue
            step = 1.0 / denominator
            roots[i] -= step
            moved = max(moved, abs(step) / (abs(roots[i]) + 1e-300))
        if moved < 1e-15 * degree:
            break
    return roots
