"""Argmax of independent noisy scores: evidence of one winner, and winning probabilities.

A softmax row is the law of the argmax of its scores plus Gumbel noise, so posterior means of softmax and of
hardmax rows are one and the same integral, P(b wins) = int f_b(x - mu_b) prod_{c != b} F_c(x - mu_c) dx, with F
the law of Gaussian or Gaussian plus Gumbel noise. Trapezoidal sums converge exponentially: the integrand is
analytic and vanishes at both ends.
"""

import math
from functools import lru_cache

import numba as nb
import numpy as np
from scipy.special import ndtr

from sklearn_aim.kernels.normal import normal_cdf, normal_pdf

# half width of the normal law that matters, and trapezoidal steps per standard deviation
_REACH = 8.0
_STEP = 0.4
# labels that contradict omega by more standard deviations are taken at a larger variance, and log Z is corrected by
# the squared displacement, which is right to some per cent
_WORST = 12.0


@nb.njit(cache=True, error_model="numpy", nogil=True)
def row_argmax_evidences(omega, selected, variance, diagonal, log_z, gradient):
    """Evidence of argmax labels of rows whose entries are independent N(omega_ab, v), diagonal * v where a = b.

    Parameters
    ----------
    omega : ndarray of shape (n, R, T), float64
    selected : ndarray of shape (n, R), int64
    variance, diagonal : float
    log_z : ndarray of shape (n, R)
        Overwritten with log Z of every row.
    gradient : ndarray of shape (n, R, T)
        Overwritten with dlogZ/d omega.
    """
    n_tokens = omega.shape[2]
    scale = np.empty(n_tokens)
    for n in range(omega.shape[0]):
        for a in range(omega.shape[1]):
            s = selected[n, a]
            top = omega[n, a, s]
            for b in range(n_tokens):
                top = max(top, omega[n, a, b])
                gradient[n, a, b] = 0.0
            inflated = max(variance, ((top - omega[n, a, s]) / _WORST) ** 2)
            sd = math.sqrt(inflated)
            for b in range(n_tokens):
                scale[b] = sd * (math.sqrt(diagonal) if a == b else 1.0)
            low = omega[n, a, s] - _REACH * scale[s]
            count = int(math.ceil((top - low + _REACH * scale[s]) / (_STEP * sd)))
            step = (top - low + _REACH * scale[s]) / count
            evidence = 0.0
            for i in range(count + 1):
                x = low + i * step
                z = (x - omega[n, a, s]) / scale[s]
                weight = normal_pdf(z) / scale[s] * step
                for b in range(n_tokens):
                    if b != s:
                        weight *= normal_cdf((x - omega[n, a, b]) / scale[b])
                if weight < 1e-290:
                    continue
                evidence += weight
                gradient[n, a, s] += weight * z / scale[s]
                for b in range(n_tokens):
                    if b != s:
                        z = (x - omega[n, a, b]) / scale[b]
                        gradient[n, a, b] -= weight * normal_pdf(z) / (scale[b] * normal_cdf(z))
            square = 0.0
            for b in range(n_tokens):
                square += (scale[b] * gradient[n, a, b] / evidence) ** 2
                gradient[n, a, b] *= inflated / (variance * evidence)
            log_z[n, a] = math.log(evidence)
            if inflated > variance:
                log_z[n, a] -= 0.5 * square * (inflated / variance - 1)


@nb.njit(cache=True, error_model="numpy", nogil=True)
def _lookup(table, start, step, x, column):
    """Cubic interpolation in one column of a uniform table; constant beyond its ends."""
    position = (x - start) / step
    i = int(math.floor(position))
    last = table.shape[0] - 3
    if i < 1:
        return table[0, column]
    if i > last:
        return table[table.shape[0] - 1, column]
    t = position - i
    return (
        -t * (t - 1) * (t - 2) / 6 * table[i - 1, column]
        + (t + 1) * (t - 1) * (t - 2) / 2 * table[i, column]
        - (t + 1) * t * (t - 2) / 2 * table[i + 1, column]
        + (t + 1) * t * (t - 1) / 6 * table[i + 2, column]
    )


@lru_cache(maxsize=64)
def gumbel_normal_table(sd):
    """Law of sd N(0, 1) + Gumbel noise on a uniform grid.

    Returns
    -------
    table : ndarray of shape (n, 3)
        Distribution function F, density f, and the factor s of E[softmax_b^2] = int s_b prod F_c: with
        e = exp(-x), F = E exp(-e), f = E e exp(-e), s = E e^2 exp(-e).
    start, step : float
    """
    step = 0.005 * max(1.0, sd / 4)
    start, stop = -4.0 - _REACH * sd, 38.0 + _REACH * sd
    x = start + step * np.arange(math.ceil((stop - start) / step) + 1)
    table = np.zeros((x.size, 3))
    if sd < 4:
        # average the Gumbel law over the normal one
        nodes = np.linspace(-_REACH, _REACH, max(24, math.ceil(2 * _REACH * sd / 0.3)) + 1)
        weights = np.exp(-0.5 * nodes**2)
        for node, weight in zip(sd * nodes, weights / weights.sum(), strict=True):
            e = np.exp(np.minimum(node - x, 30.0))
            table += weight * np.exp(-e)[:, None] * np.stack([np.ones_like(e), e, e * e], axis=1)
    else:
        # the other way round: as many nodes whatever the width
        nodes = np.arange(-4.0, 38.0, 0.3)
        e = np.exp(-nodes)
        for node, first, second in zip(nodes, 0.3 * e * np.exp(-e), 0.3 * e * e * np.exp(-e), strict=True):
            z = (x - node) / sd
            density = np.exp(-0.5 * z * z) / (sd * math.sqrt(2 * math.pi))
            table += np.stack([first * ndtr(z), first * density, second * density], axis=1)
    table.setflags(write=False)
    return table, float(start), float(step)


@nb.njit(cache=True, error_model="numpy", nogil=True)
def gumbel_choice(scores, tables, starts, steps, sd, mean, second):
    """E[softmax(h_a)] and E[softmax(h_a)^2] over rows of independent Gaussian scores.

    Parameters
    ----------
    scores : ndarray of shape (n, R, T), float64
        Means of beta h.
    tables : tuple of two ndarrays
        `gumbel_normal_table` off the diagonal (a != b) and on it.
    starts, steps : tuples of two floats
    sd : float
        Standard deviation of beta h off the diagonal.
    mean, second : ndarrays of shape (n, R, T)
        Overwritten.
    """
    n_tokens = scores.shape[2]
    step = max(0.35, 0.7 * sd / math.sqrt(n_tokens))
    values = np.empty((n_tokens, 3))
    for n in range(scores.shape[0]):
        for a in range(scores.shape[1]):
            top = scores[n, a, 0]
            for b in range(n_tokens):
                top = max(top, scores[n, a, b])
                mean[n, a, b] = 0.0
                second[n, a, b] = 0.0
            low = top - 4.0 - _REACH * sd
            count = int(math.ceil((42.0 + 2.42 * _REACH * sd) / step))
            for i in range(count):
                x = low + i * step
                product = 1.0
                for b in range(n_tokens):
                    d = 1 if a == b else 0
                    for k in range(3):
                        values[b, k] = _lookup(tables[d], starts[d], steps[d], x - scores[n, a, b], k)
                    product *= values[b, 0]
                if product <= 1e-200:
                    continue
                for b in range(n_tokens):
                    mean[n, a, b] += product / values[b, 0] * values[b, 1]
                    second[n, a, b] += product / values[b, 0] * values[b, 2]
            total = 0.0
            for b in range(n_tokens):
                total += mean[n, a, b]
            for b in range(n_tokens):
                mean[n, a, b] /= total
                second[n, a, b] = max(second[n, a, b] / total, mean[n, a, b] * mean[n, a, b])


@nb.njit(cache=True, error_model="numpy", nogil=True)
def normal_choice(scores, sd, sd_diagonal, mean):
    """P(argmax of row a is b), independent scores N(scores_ab, sd^2), sd_diagonal where a = b.

    scores and mean are (n, R, T); mean is overwritten.
    """
    n_tokens = scores.shape[2]
    for n in range(scores.shape[0]):
        for a in range(scores.shape[1]):
            top = scores[n, a, 0]
            for b in range(n_tokens):
                top = max(top, scores[n, a, b])
                mean[n, a, b] = 0.0
            low = top - _REACH * sd_diagonal
            step = _STEP * sd
            count = int(math.ceil(2 * _REACH * sd_diagonal / step))
            for i in range(count + 1):
                x = low + i * step
                product = 1.0
                for b in range(n_tokens):
                    product *= normal_cdf((x - scores[n, a, b]) / (sd_diagonal if a == b else sd))
                if product <= 1e-200:
                    continue
                for b in range(n_tokens):
                    scale = sd_diagonal if a == b else sd
                    z = (x - scores[n, a, b]) / scale
                    mean[n, a, b] += product / normal_cdf(z) * normal_pdf(z) / scale
            total = 0.0
            for b in range(n_tokens):
                total += mean[n, a, b]
            for b in range(n_tokens):
                mean[n, a, b] /= total
