"""Posterior moments of the layers of a deep attention stack, by an adaptive lattice rule.

The layers below the last are integrated over, z_< = omega_< + C xi with xi standard normal in D = T(L - 1) dimensions;
the last one follows from them (`deep_layers`), with both signs of u:

    Z = sum_s int dxi N(xi) N(s v; m(xi), V_{L|<}) / |det B|.

On a lattice of spacing h the error for a Gaussian peak of width w is of order exp(-2 pi^2 w^2/h^2): far below any need
once h is about the width, nothing like it before. So lattices are refined until they resolve what they find: cells that
can hold no part of the posterior, by the slopes of v, are left out, the others are split into 2^D. Each result comes
with an error estimate, the larger of

- the mean under the posterior of the aliasing factor, with peak widths from the local slopes;
- the square of the difference between the even and odd points of the lattice, each a rule of its own whose
  error is about the square root of that of both.
"""

import math

import numpy as np

from sklearn_aim.kernels.deep_integrand import buffers_of, evaluate, rows
from sklearn_aim.kernels.deep_layers import compiled, exp, helper

# exponents this far below the top are left out, within the lattice and beyond its edge
_CUT = 20.0
_EDGE_CUT = 10.0
_SPACING = {2: 0.6, 3: 0.7, 4: 0.8}
# shells of the first lattice, in standard deviations; outer ones are visited if the posterior reaches there
_SHELLS = {2: (6.0, 8.0, 12.0, 20.0), 3: (5.5, 7.0, 10.0), 4: (5.5, 7.0, 9.0)}


def first_lattice(n_tokens, n_layers, folded):
    """Points of the first lattice, from the inside out.

    Parameters
    ----------
    n_tokens, n_layers : int
        n_layers counts those that are integrated over.
    folded : bool
        Keep one of each set of points that differ by signs of layers: right where omega is 0 for all of them.

    Returns
    -------
    nodes : ndarray of shape (D, K)
        Integers.
    copies : ndarray of shape (K,)
        Points each stands for.
    shells : ndarray of int
        Ends of the shells.
    spacing : float
    folded : bool
    """
    dimension = n_tokens * n_layers
    spacing = _SPACING[dimension]
    reach = _SHELLS[dimension][-1]
    axis = np.arange(-math.floor(reach / spacing), math.floor(reach / spacing) + 1)
    nodes = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    radius = spacing * np.linalg.norm(nodes, axis=1)
    inside = radius <= reach
    nodes, radius = nodes[inside], radius[inside]
    copies = np.ones(len(nodes))
    if folded:
        blocks = nodes.reshape(-1, n_layers, n_tokens)
        # the first coordinate of a block that is not zero
        lead = np.take_along_axis(blocks, np.argmax(blocks != 0, axis=2)[..., None], axis=2)[..., 0]
        keep = (lead >= 0).all(axis=1)
        nodes, radius, copies = nodes[keep], radius[keep], (1.0 + (lead[keep] > 0)).prod(axis=1)
    order = np.argsort(radius, kind="stable")
    shells = np.searchsorted(radius[order], _SHELLS[dimension], side="right")
    return np.ascontiguousarray(nodes[order].T, dtype=float), copies[order], shells, spacing, folded


@helper
def _top(exponents):
    top = -np.inf
    plus, minus = exponents[0], exponents[1]
    for i in range(plus.shape[0]):
        top = max(top, max(plus[i], minus[i]))
    return top


@helper
def _sums(nodes, copies, spacing, values, det, exponents, top, work, totals):
    """Sums over a lattice: mass, first moments and products of all, mass and first moments of the even points.

    totals[k] holds mass, its even part, sum of value k, its even part, and products with values k and later. Answers
    the mean aliasing.
    """
    size, dimension, n = values.shape[0], nodes.shape[0], nodes.shape[1]
    plus, minus, slope = exponents[0], exponents[1], exponents[4]
    mass, signed, even, first, second = work[0], work[1], work[2], nodes[0], nodes[1]
    scale = -2 * math.pi**2 / spacing**2
    for i in range(n):
        f, g = copies[i] * exp(plus[i] - top) / det[i], copies[i] * exp(minus[i] - top) / det[i]
        mass[i], signed[i] = f + g, f - g
    aliasing, weight, half = 0.0, 0.0, 0.0
    for i in range(n):
        aliasing += mass[i] * exp(scale / (1 + slope[i]))
        # 1 on even points, 0 on odd ones
        pair = 0.5 * (first[i] + second[i])
        even[i] = 1 - 2 * (pair - math.floor(pair))
        weight += mass[i]
        half += mass[i] * even[i]
    for k in range(size):
        one, factor = values[k], signed if k >= dimension else mass
        total, part = 0.0, 0.0
        for i in range(n):
            total += factor[i] * one[i]
            part += factor[i] * one[i] * even[i]
        totals[k, 0], totals[k, 1], totals[k, 2], totals[k, 3] = weight, half, total, part
        for m in range(k, size):
            # products of the last layer with others change sign with it
            other, factor = values[m], signed if (k < dimension) != (m < dimension) else mass
            total = 0.0
            for i in range(n):
                total += factor[i] * one[i] * other[i]
            totals[k, 4 + m] = total
    return 2 * dimension * aliasing / weight


@helper
def _parity_error(totals, first):
    """Largest difference of the even and odd rules: log Z, and means from `first` on in posterior deviations."""
    both, even = totals[0, 0], totals[0, 1]
    worst = abs(2 * even - both) / both
    for k in range(first, totals.shape[0]):
        mean = totals[k, 2] / both
        spread = math.sqrt(max(totals[k, 4 + k] / both - mean * mean, 0.0)) + 1e-300
        # of the residual z - mean, whose sum over all points is zero
        change = 2 * (totals[k, 3] - mean * even) / both
        worst = max(worst, min(abs(change) / spread, 1.0))
    return worst


@helper
def _ends_within(nodes, edge, floor):
    """Whether the outermost layer of a lattice that is sorted by radius holds no part of the posterior."""
    count = nodes.shape[1]
    outer = 0.0
    for i in range(count - 1, -1, -1):
        radius = 0.0
        for k in range(nodes.shape[0]):
            radius += nodes[k, i] ** 2
        radius = math.sqrt(radius)
        outer = max(outer, radius)
        if radius < outer - 1:
            break
        if edge[i] > floor:
            return False
    return True


@helper
def _split(nodes, copies, bound, floor, next_nodes, next_copies):
    """Children of all cells whose bound is above the floor."""
    dimension, count = nodes.shape
    family = 1 << dimension
    children = 0
    for i in range(count):
        if bound[i] >= floor:
            for k in range(dimension):
                # positions are in units of the spacing, which halves
                center, row = 2 * nodes[k, i], next_nodes[k]
                for child in range(family):
                    row[children + child] = center + (0.5 if child >> k & 1 else -0.5)
            for child in range(family):
                next_copies[children + child] = copies[i]
            children += family


@compiled
def deep_posterior(
    u, omega, variance, chol, gain, physics, lattice, size, tolerance, log_z, mean, second, error, n_nodes
):
    """Moments of (z_1..z_L) of every sequence given its map, for 2 layers and more.

    Parameters
    ----------
    u : ndarray of shape (n, T)
        What the maps show, see `channels.deep`.
    omega : ndarray of shape (n, L, T)
        Prior means; prior covariance V between layers, the same for every token, as the next three say.
    variance : float
        Of the last layer given those below.
    chol : ndarray of shape (L - 1, L - 1)
        Lower factor of V of the layers below.
    gain : ndarray of shape (L - 1,)
        Regression of the last layer on those below.
    physics : tuple (skip, beta)
    lattice : tuple
        From `first_lattice`.
    size : int
        Most points of a lattice.
    tolerance : float
    log_z : ndarray of shape (n,)
        Filled with the log density of u up to its sign.
    mean : ndarray of shape (n, L, T)
        Filled with E[z|y].
    second : ndarray of shape (n, L, T, L, T)
        Filled with E[z_la z_mb|y].
    error : ndarray of shape (n,)
        Filled with the estimated error, relative for Z, in posterior standard deviations for the means.
    n_nodes : ndarray of shape (n,)
        Filled with the number of evaluations.
    """
    n_samples, n_layers, n_tokens = omega.shape
    below = n_layers - 1
    dimension = below * n_tokens
    first, first_copies, shells, first_spacing, folded = lattice
    nodes_now, nodes_next = np.empty(dimension * size), np.empty(dimension * size)
    copies_now, copies_next = np.empty(size), np.empty(size)
    values, det, exponents = np.empty(n_layers * n_tokens * size), np.empty(size), np.empty(5 * size)
    work = np.empty(3 * size)
    buffers = buffers_of(below, n_tokens)
    moments = n_layers * n_tokens
    totals = np.empty((moments, moments + 4))
    flat_mean, flat_second = mean.reshape(n_samples, moments), second.reshape(n_samples, moments, moments)
    column = np.empty((n_tokens, 1))
    for n in range(n_samples):
        for a in range(n_tokens):
            column[a, 0] = u[n, a]
        spacing, evaluated, level, shell = first_spacing, 0, 0, 0
        count = shells[0]
        while True:
            x, m, d = rows(nodes_now, dimension, count), copies_now[:count], det[:count]
            z, e = rows(values, n_layers * n_tokens, count), rows(exponents, 5, count)
            if level == 0:
                for k in range(dimension):
                    for i in range(count):
                        x[k, i] = first[k, i]
                for i in range(count):
                    m[i] = first_copies[i]
            evaluate(x, spacing, column, omega[n], chol, gain, variance, physics, buffers, z, d, e)
            evaluated += count
            top = _top(e)
            if level == 0 and shell + 1 < len(shells) and not _ends_within(x, e[3], top - _EDGE_CUT):
                shell += 1
                count = shells[shell]
                continue
            aliasing = _sums(x, m, spacing, z, d, e, top, rows(work, 3, count), totals)
            # of half a lattice the means of the layers below are not those of all of it: they are zero
            parity = _parity_error(totals, dimension if folded else 0)
            error[n] = max(aliasing, parity * parity)
            if error[n] <= tolerance:
                break
            floor, children, bound = top - _CUT, 0, e[2]
            for i in range(count):
                children += 1 << dimension if bound[i] >= floor else 0
            if children > size or children == 0:
                break
            _split(x, m, bound, floor, rows(nodes_next, dimension, children), copies_next)
            nodes_now, nodes_next, copies_now, copies_next = nodes_next, nodes_now, copies_next, copies_now
            count = children
            spacing *= 0.5
            level += 1
        n_nodes[n] = evaluated
        weight = totals[0, 0]
        if not weight > 0:
            error[n] = np.inf
        log_z[n] = (
            top
            + math.log(weight)
            + dimension * math.log(spacing / math.sqrt(2 * math.pi))
            - 0.5 * n_tokens * math.log(2 * math.pi * variance)
        )
        for k in range(moments):
            flat_mean[n, k] = totals[k, 2] / weight
            for m in range(k, moments):
                flat_second[n, k, m] = totals[k, 4 + m] / weight
                flat_second[n, m, k] = flat_second[n, k, m]
