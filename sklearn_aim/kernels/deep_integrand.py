"""The integrand of the posterior of a deep attention stack, many points at a time.

With z_< = omega_< + C xi, xi standard normal, and v the last layer that they leave (`deep_layers`):

    sum_s N(xi) N(s v; m(xi), V_{L|<}) / |det B|.
"""

import math

import numpy as np

from sklearn_aim.kernels.deep_layers import WORK, helper, last_layer

# points that are worked on together
_CHUNK = 256


@helper
def rows(buffer, count, size):
    """A view of the buffer of shape (count, size): contiguous rows, as vector instructions need them."""
    return buffer[: count * size].reshape(count, size)


@helper
def buffers_of(below, n_tokens):
    """Working arrays of `evaluate`."""
    dimension = below * n_tokens
    return (
        np.empty(dimension * _CHUNK),
        np.empty(n_tokens * _CHUNK),
        np.empty(dimension * n_tokens * _CHUNK),
        np.empty(WORK * _CHUNK),
    )


@helper
def residuals(z, v, omega, gain, variance, plus, minus):
    """Squared distances of v and -v from the mean of the last layer given those below, over its variance."""
    below, n_tokens = gain.shape[0], v.shape[0]
    inverse = 1 / variance
    for i in range(plus.shape[0]):
        plus[i], minus[i] = 0.0, 0.0
    for a in range(n_tokens):
        one, first = v[a], z[a]
        # at most two layers are below
        second = z[n_tokens + a] if below > 1 else first
        k, m = gain[0], gain[1] if below > 1 else 0.0
        center = omega[below, a] - k * omega[0, a] - (m * omega[1, a] if below > 1 else 0.0)
        for i in range(plus.shape[0]):
            mean = center + k * first[i] + m * second[i]
            plus[i] += inverse * (one[i] - mean) * (one[i] - mean)
            minus[i] += inverse * (one[i] + mean) * (one[i] + mean)


@helper
def _slope(slopes, chol, gain, variance, n_tokens, entry, total, slope):
    """Squared slope of the residual in xi."""
    below, n = chol.shape[0], slope.shape[0]
    inverse = 1 / math.sqrt(variance)
    for i in range(n):
        slope[i] = 0.0
    for other in range(below):
        shift = 0.0
        for layer in range(other, below):
            shift += abs(gain[layer] * chol[layer, other]) * inverse * math.sqrt(float(n_tokens))
        for i in range(n):
            total[i] = 0.0
        for k in range(n_tokens * n_tokens):
            for i in range(n):
                entry[i] = 0.0
            for layer in range(other, below):
                one, factor = slopes[layer * n_tokens * n_tokens + k], chol[layer, other] * inverse
                for i in range(n):
                    entry[i] += factor * one[i]
            for i in range(n):
                total[i] += entry[i] * entry[i]
        for i in range(n):
            root = math.sqrt(total[i]) + shift
            slope[i] += root * root


@helper
def evaluate(nodes, spacing, u, omega, chol, gain, variance, physics, buffers, values, det, exponents):
    """The integrand on the points of a lattice.

    Fills values (L T, n) with z and v, det, and exponents (5, n): logs of both terms without det, an upper bound
    within the cell, one for the point's own distance from the centre, and the squared slope of the residual.
    """
    below, n_tokens = chol.shape[0], u.shape[0]
    dimension = nodes.shape[0]
    reach = 0.5 * spacing * math.sqrt(float(dimension))
    # a chunk's arrays stay in the first-level cache
    for start in range(0, nodes.shape[1], _CHUNK):
        n = min(_CHUNK, nodes.shape[1] - start)
        z, v = rows(buffers[0], dimension, n), rows(buffers[1], n_tokens, n)
        slopes, work = rows(buffers[2], dimension * n_tokens, n), rows(buffers[3], WORK, n)
        part = slice(start, start + n)
        plus, minus, bound, edge, slope = (
            exponents[0][part],
            exponents[1][part],
            exponents[2][part],
            exponents[3][part],
            exponents[4][part],
        )
        for i in range(n):
            bound[i] = 0.0
        for layer in range(below):
            for a in range(n_tokens):
                out = z[layer * n_tokens + a]
                own = nodes[layer * n_tokens + a][part]
                for i in range(n):
                    out[i] = omega[layer, a]
                    bound[i] += spacing * own[i] * spacing * own[i]
                for other in range(layer + 1):
                    axis, factor = nodes[other * n_tokens + a][part], chol[layer, other] * spacing
                    for i in range(n):
                        out[i] += factor * axis[i]
        ratio = det[part]
        last_layer(z, u, physics[0], physics[1], v, slopes, ratio, work)
        residuals(z, v, omega, gain, variance, plus, minus)
        _slope(slopes, chol, gain, variance, n_tokens, work[0], work[1], slope)
        for i in range(n):
            prior = bound[i]
            # slopes may grow within the cell
            nearest = max(0.0, math.sqrt(min(plus[i], minus[i])) - 1.5 * reach * math.sqrt(slope[i]))
            radius = max(0.0, math.sqrt(prior) - reach)
            plus[i] = -0.5 * (plus[i] + prior)
            minus[i] = -0.5 * (minus[i] + prior)
            bound[i] = -0.5 * (nearest * nearest + radius * radius)
            edge[i] = -0.5 * (nearest * nearest + prior)
        for i in range(n):
            if not (math.isfinite(plus[i] + minus[i] + slope[i]) and ratio[i] > 0):
                # without a skip B is singular where tokens agree, and v infinite: undecided, no mass
                plus[i], minus[i], bound[i], edge[i], slope[i], ratio[i] = -1e300, -1e300, 0.0, -1e300, 0.0, 1.0
                for a in range(n_tokens):
                    v[a, i] = 0.0
        for k in range(dimension + n_tokens):
            source = z[k] if k < dimension else v[k - dimension]
            target = values[k][part]
            for i in range(n):
                target[i] = source[i]
