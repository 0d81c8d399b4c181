"""Posterior moments of three attention layers over two tokens, by importance sampling with quasi-random points.

The integral over (z_1, z_2) has four dimensions. z_1 is drawn from its prior; half of the points draw z_2 from its
prior, which is right while the last layer is unknown, and half draw the last layer from its prior and solve for z_2,
which is right once it is known. Weights are those of the mixture (balance heuristic), so each is right where the
other fails. With M the matrices of `deep_layers`, y = M(z_1) z_3 and u = +-M(u_2) y give the attention weights

    p = (u_1 - c y_1 - y_1)/(y_2 - y_1),  q = (u_2 - c y_2 - y_2)/(y_1 - y_2),

and with A = log(1/p - 1)/beta, C = log(1/q - 1)/beta: u_2 = +-(A, -C)/sqrt(A + C), z_2 = M(z_1)^{-1} u_2.
Points come in blocks that are scrambled independently; their spread is the error estimate, and blocks are added until
it is small enough.
"""

import math

import numpy as np

from sklearn_aim.kernels.deep_integrand import residuals
from sklearn_aim.kernels.deep_layers import WORK, compiled, exp, helper, last_layer

# of a block: points that draw z_2, and those that draw z_3, once for each choice of the two signs
N_PRIOR = 256
N_LAST = 64
_BLOCK = N_PRIOR + 4 * N_LAST
_LEAST = 4


@helper
def _draw(points, u, omega, chol, last, physics, z, valid):
    """z_1, z_2 of one block to z (4, _BLOCK); valid is 0 where no z_2 leads to the last layer that was drawn."""
    skip, beta = physics
    gain, spread = last
    for i in range(N_PRIOR):
        valid[i] = 1.0
        for a in range(2):
            first = points[a, i]
            z[a, i] = omega[0, a] + chol[0, 0] * first
            z[2 + a, i] = omega[1, a] + chol[1, 0] * first + chol[1, 1] * points[2 + a, i]
    for k in range(N_LAST):
        i = N_PRIOR + k
        x0, x1 = omega[0, 0] + chol[0, 0] * points[0, i], omega[0, 1] + chol[0, 0] * points[1, i]
        w0 = omega[2, 0] + gain * (x0 - omega[0, 0]) + spread * points[2, i]
        w1 = omega[2, 1] + gain * (x1 - omega[0, 1]) + spread * points[3, i]
        p, q = 1 / (1 + exp(beta * x0 * (x0 - x1))), 1 / (1 + exp(beta * x1 * (x1 - x0)))
        m00, m01, m10, m11 = skip + 1 - p, p, q, skip + 1 - q
        det = m00 * m11 - m01 * m10
        y0, y1 = m00 * w0 + m01 * w1, m10 * w0 + m11 * w1
        for sign in range(2):
            s = 1.0 - 2.0 * sign
            p, q = (s * u[0, 0] - (skip + 1) * y0) / (y1 - y0), (s * u[1, 0] - (skip + 1) * y1) / (y0 - y1)
            fits = p > 0 and q > 0 and p + q < 1
            g, h = 0.0, 0.0
            if fits:
                big, other = math.log(1 / p - 1) / beta, math.log(1 / q - 1) / beta
                root = math.sqrt(big + other)
                b0, b1 = big / root, -other / root
                g, h = (m11 * b0 - m01 * b1) / det, (m00 * b1 - m10 * b0) / det
                fits = math.isfinite(g + h)
            for mirror in range(2):
                j = N_PRIOR + (2 * sign + mirror) * N_LAST + k
                t = 1.0 - 2.0 * mirror
                valid[j] = 1.0 if fits else 0.0
                z[0, j], z[1, j] = x0, x1
                z[2, j], z[3, j] = (t * g, t * h) if fits else (omega[1, 0], omega[1, 1])


@helper
def _squares(values, offset, first, gain, center, plus, minus):
    """(+-values - offset - gain (first - center))^2, added to plus and minus."""
    for i in range(values.shape[0]):
        mean = offset + gain * (first[i] - center)
        plus[i] += (values[i] - mean) ** 2
        minus[i] += (values[i] + mean) ** 2


@helper
def _weigh(z, v, slopes, det, omega, chol, gain, variance, last, valid, shift, first_block, arrays):
    """Weights of one block over exp(shift), and weights with the sign of u; the shift is fixed by the first block."""
    weight, signed, plus, minus, near, far, own, dummy = arrays
    n = weight.shape[0]
    last_gain, last_spread = last
    residuals(z, v, omega, gain, variance, plus, minus)
    for i in range(n):
        near[i], far[i], own[i], dummy[i] = 0.0, 0.0, 0.0, 0.0
    for a in range(2):
        # the last layer given z_1 alone, as it is drawn, and z_2 given z_1
        _squares(v[a], omega[2, a], z[a], last_gain, omega[0, a], near, far)
        _squares(z[2 + a], omega[1, a], z[a], chol[1, 0] / chol[0, 0], omega[0, a], own, dummy)
    top = -np.inf
    for i in range(n):
        ok = math.isfinite(plus[i] + minus[i]) and det[i] > 0
        if not ok:
            valid[i], det[i], plus[i], minus[i], near[i], far[i] = 0.0, 1.0, 0.0, 0.0, 0.0, 0.0
            slopes[4, i], slopes[5, i], slopes[6, i], slopes[7, i] = 0.0, 0.0, 0.0, 0.0
            v[0, i], v[1, i] = 0.0, 0.0
        plus[i] *= -0.5
        minus[i] *= -0.5
        if valid[i] > 0:
            top = max(top, max(plus[i], minus[i]))
    shift = top if first_block else shift
    spread_2 = chol[1, 1] * chol[1, 1]
    log_ratio = math.log(spread_2 / (last_spread * last_spread))
    inverse, own_inverse = 0.5 / (last_spread * last_spread), 0.5 / spread_2
    s0, s1, s2, s3 = slopes[4], slopes[5], slopes[6], slopes[7]
    for i in range(n):
        f, g = exp(plus[i] - shift) / det[i], exp(minus[i] - shift) / det[i]
        # density of the other way to draw z_2 over that of its prior
        other = exp(own_inverse * own[i] - inverse * near[i] + log_ratio)
        other += exp(own_inverse * own[i] - inverse * far[i] + log_ratio)
        share = valid[i] / (0.5 + 0.125 * abs(s0[i] * s3[i] - s1[i] * s2[i]) * other)
        weight[i], signed[i] = (f + g) * share, (f - g) * share
    return shift


@helper
def _add_block(z, v, weight, signed, out):
    """Means over a block: out[0] the weight, then for each of the six values its first moment and products."""
    n = weight.shape[0]
    total = 0.0
    for i in range(n):
        total += weight[i]
    out[0] = total / n
    for k in range(6):
        one, factor = z[k] if k < 4 else v[k - 4], weight if k < 4 else signed
        total = 0.0
        for i in range(n):
            total += factor[i] * one[i]
        out[1 + 7 * k] = total / n
        for m in range(k, 6):
            # products of the last layer with others change sign with it
            other, factor = z[m] if m < 4 else v[m - 4], signed if (k < 4) != (m < 4) else weight
            total = 0.0
            for i in range(n):
                total += factor[i] * one[i] * other[i]
            out[2 + 7 * k + m] = total / n


@helper
def _errors(blocks, n_blocks, moments):
    """Means over blocks to moments; two standard errors of log Z and of means in units of posterior deviations."""
    for k in range(moments.shape[0]):
        total = 0.0
        for b in range(n_blocks):
            total += blocks[b, k]
        moments[k] = total / n_blocks
    if not moments[0] > 0:
        return np.inf
    worst = 0.0
    factor = 4.0 / (n_blocks * (n_blocks - 1))
    for k in range(7):
        at = 0 if k == 6 else 1 + 7 * k
        mean = moments[at] / moments[0]
        # rounding leaves no smaller variance
        square = 1.0 if k == 6 else moments[at + 1 + k] / moments[0]
        spread = 1.0 if k == 6 else math.sqrt(max(square - mean * mean, 1e-12 * square)) + 1e-300
        total = 0.0
        for b in range(n_blocks):
            residual = blocks[b, 0] - moments[0] if k == 6 else blocks[b, at] - mean * blocks[b, 0]
            total += residual * residual
        worst = max(worst, math.sqrt(factor * total) / (moments[0] * spread))
    return worst


@compiled
def deep_sampling(
    u, omega, variance, chol, gain, last, physics, points, tolerance, log_z, mean, second, error, n_nodes
):
    """Moments of (z_1, z_2, z_3) of every sequence of two tokens given its map.

    Parameters
    ----------
    u, omega, variance, chol, gain, physics, log_z, mean, second, error, n_nodes
        As for `deep_posterior.deep_posterior`, at L = 3 and T = 2.
    last : tuple (gain, spread)
        Regression of the last layer on the first, and its standard deviation given that.
    points : ndarray of shape (n_blocks, 4, N_PRIOR + N_LAST)
        Standard normal points.
    tolerance : float
    """
    n_samples = omega.shape[0]
    z, v, slopes = np.empty((4, _BLOCK)), np.empty((2, _BLOCK)), np.empty((8, _BLOCK))
    det, valid, work = np.empty(_BLOCK), np.empty(_BLOCK), np.empty((WORK, _BLOCK))
    weight, signed, plus, minus = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    near, far, own, dummy = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    arrays = weight, signed, plus, minus, near, far, own, dummy
    column = np.empty((2, 1))
    blocks, moments = np.zeros((points.shape[0], 43)), np.empty(43)
    flat_mean, flat_second = mean.reshape(n_samples, 6), second.reshape(n_samples, 6, 6)
    for n in range(n_samples):
        column[0, 0], column[1, 0] = u[n, 0], u[n, 1]
        shift, used = 0.0, 0
        error[n] = np.inf
        for b in range(points.shape[0]):
            _draw(points[b], column, omega[n], chol, last, physics, z, valid)
            last_layer(z, column, physics[0], physics[1], v, slopes, det, work)
            shift = _weigh(z, v, slopes, det, omega[n], chol, gain, variance, last, valid, shift, b == 0, arrays)
            _add_block(z, v, weight, signed, blocks[b])
            used = b + 1
            # at powers of two, lest one stops at a lucky moment
            if used >= _LEAST and (used & (used - 1) == 0 or used == points.shape[0]):
                error[n] = _errors(blocks, used, moments)
                if error[n] <= tolerance:
                    break
        n_nodes[n] = used * _BLOCK
        log_z[n] = shift + math.log(moments[0]) - math.log(2 * math.pi * variance)
        for k in range(6):
            flat_mean[n, k] = moments[1 + 7 * k] / moments[0]
            for m in range(k, 6):
                flat_second[n, k, m] = moments[2 + 7 * k + m] / moments[0]
                flat_second[n, m, k] = flat_second[n, k, m]
