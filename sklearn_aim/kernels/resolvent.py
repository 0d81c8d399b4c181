"""Stieltjes transform of a law given by a rational R-transform plus semicircular noise.

The law of S + sqrt(D) Z solves z(g) = 1/g + D g + R(g). With R = num/den this is the polynomial
x A(g) - B(g) = 0, A = g den, B = den (1 + D g^2) + g num. For the laws used here (R increasing between
its poles) all roots are real but one: either a conjugate pair (x in the bulk; the physical root has a
positive imaginary part) or a single real root on which z(g) decreases (x outside).
"""

import math
from functools import lru_cache

import numba as nb
import numpy as np
from scipy.special import roots_legendre

from sklearn_aim.kernels.polynomials import horner, polynomial_roots


@nb.njit(cache=True, error_model="numpy")
def spectral_law(num, den, variance):
    """Polynomials, bulk edges and integration panels of one law.

    Parameters
    ----------
    num, den : ndarray, float64
        Ascending coefficients of the R-transform's numerator and denominator.
    variance : float
        D > 0, the variance scale of the semicircular noise.

    Returns
    -------
    a, b : ndarray
        The law is x A(g) = B(g).
    edges_g, edges_x : ndarray of shape (2 * n_bulks,)
        Real g with z'(g) = 0 and x = z(g), sorted by x: left, right, left, right, ...
    cuts : ndarray
        Bulk edges and, inside the bulks, the real parts of complex branch points near the real axis (where
        the density varies fastest), sorted.
    """
    size = max(den.size + 2, num.size + 1)
    a = np.zeros(size)
    b = np.zeros(size)
    for k in range(den.size):
        a[k + 1] += den[k]
        b[k] += den[k]
        b[k + 2] += variance * den[k]
    for k in range(num.size):
        b[k + 1] += num[k]
    # numerator of z'(g) = (B/A)'
    critical = np.zeros(2 * size)
    for i in range(size):
        for j in range(1, size):
            critical[i + j - 1] += j * (b[j] * a[i] - a[j] * b[i])
    roots = polynomial_roots(critical)
    edges_g = np.empty(roots.size)
    edges_x = np.empty(roots.size)
    cuts = np.empty(2 * roots.size)
    n_edges = 0
    for g in roots:
        bottom = horner(a, g.real + 0.0j)[0].real
        if abs(g.imag) <= 1e-9 * abs(g) and bottom != 0.0:
            x = horner(b, g.real + 0.0j)[0].real / bottom
            # insertion sort by x
            k = n_edges
            while k > 0 and edges_x[k - 1] > x:
                edges_x[k] = edges_x[k - 1]
                edges_g[k] = edges_g[k - 1]
                k -= 1
            edges_x[k] = x
            edges_g[k] = g.real
            n_edges += 1
    n_edges -= n_edges % 2
    n_cuts = n_edges
    for k in range(n_edges):
        cuts[k] = edges_x[k]
    for g in roots:
        pole = horner(a, g)[0]
        # a complex division whose square underflows raises
        if g.imag > 1e-9 * abs(g) and abs(pole) > 1e-140:
            x = horner(b, g)[0] / pole
            for j in range(0, n_edges, 2):
                width = edges_x[j + 1] - edges_x[j]
                if edges_x[j] < x.real < edges_x[j + 1] and abs(x.imag) < 0.1 * width:
                    k = n_cuts
                    while cuts[k - 1] > x.real:
                        cuts[k] = cuts[k - 1]
                        k -= 1
                    cuts[k] = x.real
                    n_cuts += 1
    return a, b, edges_g[:n_edges], edges_x[:n_edges], cuts[:n_cuts]


@nb.njit(cache=True, error_model="numpy")
def _physical_root(a, b, x, guess):
    """Newton from a guess in the upper half plane; all roots at once where that fails.

    A guess of 0 says that x is outside the bulk or that nothing is known.
    """
    g = guess
    for _ in range(12):
        if g.imag <= 1e-13 * abs(g):
            break
        va, sa = horner(a, g)
        vb, sb = horner(b, g)
        slope = x * sa - sb
        if abs(slope) < 1e-140:
            break
        step = (x * va - vb) / slope
        g -= step
        # Newton is quadratic: the step after one of relative size 1e-8 is below rounding
        if abs(step) <= 1e-8 * g.imag:
            return g
    c = np.empty(a.size)
    for k in range(a.size):
        c[k] = x * a[k] - b[k]
    roots = polynomial_roots(c)
    best = roots[0]
    lowest = math.inf
    for root in roots:
        if root.imag > 1e-10 * abs(root):
            return root
        if root.imag >= -1e-10 * abs(root):
            # outside the bulk: the branch on which z decreases (slope of z, on a scale free of g's size)
            va, sa = horner(a, root)
            vb, sb = horner(b, root)
            falling = (sb * va - vb * sa).real / (abs(sb * va) + abs(vb * sa) + 1e-300)
            if falling < lowest:
                lowest = falling
                best = root
    return best.real + 0.0j


@nb.njit(cache=True, error_model="numpy")
def stieltjes(a, b, edges_g, edges_x, points):
    """g(x - i0) at the given points (sorted points are faster).

    A point exactly on an edge returns that edge's g, where root finding would lose half the digits.
    """
    out = np.empty(points.size, dtype=np.complex128)
    guess = 0.0j
    for i in range(points.size):
        x = points[i]
        on_edge = -1
        inside = False
        for k in range(edges_x.size):
            if x == edges_x[k]:
                on_edge = k
            inside = inside or (k % 2 == 1 and edges_x[k - 1] < x < edges_x[k])
        if on_edge >= 0:
            out[i] = edges_g[on_edge]
        else:
            out[i] = _physical_root(a, b, x, guess if inside else 0.0j)
        guess = out[i]
    return out


@lru_cache(maxsize=1)
def angle_rules():
    """Gauss-Legendre rules in theta on (0, pi) with 16, 32, ..., 1024 nodes, one after the other.

    Returns
    -------
    positions, weights : ndarray
        -cos(theta), and sin(theta) times the weight of theta: a rule for integrals over (-1, 1) whose
        integrands have square-root edges.
    """
    nodes, weights = zip(*(roots_legendre(16 << k) for k in range(7)), strict=True)
    theta = np.pi / 2 * (1 + np.concatenate(nodes))
    return -np.cos(theta), np.pi / 2 * np.concatenate(weights) * np.sin(theta)


@nb.njit(cache=True, error_model="numpy")
def denoising_errors(num, den, mean, second_cumulant, information, tolerance, positions, weights):
    """mmse(q_hat) of a spectral law over a vector of q_hat > 0, and estimates of the quadrature's error.

    D - (4 pi^2/3) D^2 int density^3, written around the best linear shrinkage,
    k2 D/(k2 + D) - D^2 E(2 Re g - (x - mean)/(k2 + D))^2, which does not cancel at large D. Every panel
    uses x = mid - half cos(theta), which makes square-root edges smooth, and rules of doubling size until
    the mass is one, the exact identity that shares every singularity with the integral wanted, and the value has
    settled. Convergence is geometric: a change of relative size c leaves an error of about c^2, c^(4/3) is said.
    """
    values = np.empty(information.size)
    errors = np.empty(information.size)
    level = 0
    for i in range(information.size):
        variance = 1.0 / information[i]
        a, b, _, edges_x, cuts = spectral_law(num, den, variance)
        slope = 1.0 / (second_cumulant + variance)
        value = math.nan
        size = math.nan
        error = math.inf
        # neighbours in the list need rules of about the same size
        level = max(level - 2, 0)
        while level < 7 and not error <= tolerance * abs(value):
            n_nodes = 16 << level
            start = n_nodes - 16
            level += 1
            mass = 0.0
            excess = 0.0
            for k in range(cuts.size - 1):
                gap = False
                for j in range(1, edges_x.size - 1, 2):
                    gap = gap or edges_x[j] == cuts[k]
                if gap:
                    continue
                mid = 0.5 * (cuts[k] + cuts[k + 1])
                half = 0.5 * (cuts[k + 1] - cuts[k])
                older = 0.0j
                old = 0.0j
                g = 0.0j
                for j in range(start, start + n_nodes):
                    x = mid + half * positions[j]
                    # along the bulk each root predicts the next
                    guess = 3 * (g - old) + older if j > start + 2 else g
                    if guess.imag <= 0:
                        guess = g
                    older = old
                    old = g
                    g = _physical_root(a, b, x, guess)
                    weight = g.imag / math.pi * half * weights[j]
                    mass += weight
                    deviation = 2 * g.real - (x - mean) * slope
                    excess += weight * deviation * deviation
            previous = value
            value = second_cumulant * variance * slope - variance * variance * excess
            size = abs(value) + variance * variance * excess
            error = abs(mass - 1.0) * size
            # of the first rule there is nothing to compare with
            change = abs(value - previous) / size
            error = error + abs(value) * change ** (4 / 3) if math.isfinite(change) else math.inf
        level -= 1
        values[i] = value
        # rounding, of terms that may cancel
        errors[i] = error + 2e-15 * size
    return values, errors
