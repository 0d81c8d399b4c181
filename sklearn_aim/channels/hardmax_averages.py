"""Averages of the hardmax channel over Gaussian means, which the bound needs.

They depend on V, q and the noise only through s = (V + Delta)/(q + V + Delta) and one scale, and are smooth in sqrt(s).
"""

from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev

from sklearn_aim.channels.averages import (
    gaussian_average,
    normal_points,
    sinh_rule,
    symmetric_matrices,
    trapezoid_average,
)
from sklearn_aim.channels.evidences import row_evidences, symmetric_evidences


def hardmax_averages(n_tokens, tied, s):
    """E||G||^2 and E log Z at V + Delta = s, q = 1 - s, and their errors.

    Returns
    -------
    values, errors : ndarray of shape (2,)
    """
    if s <= 0:
        return np.array([np.inf, 0.0]), np.zeros(2)
    table, errors = _table(n_tokens, tied)
    root = np.sqrt(min(s, 1.0))
    values = np.array([chebyshev.chebval(2 * root - 1, c) for c in table])
    error = np.array([np.interp(root, errors[0], e) for e in errors[1].T])
    return values / [root, 1.0], error / [root, 1.0]


def _two_token_averages(tied, s):
    """Integrals over the one (untied) or two (tied) differences that matter."""
    q = 1 - s
    labels = np.array([[0, 1], [0, 0]])

    def integrand(first, second):
        omega = np.zeros((first.size, 2, 2))
        omega[:, 0, 0] = first
        omega[:, 1, 1] = second
        out = np.zeros((first.size, 2))
        # the other two labels are these at -omega
        for label, sign in zip(labels, (1, -1), strict=True):
            likely = np.minimum(first, sign * second) > -9 * np.sqrt(3 * s)
            log_z, gradient = symmetric_evidences(omega[likely], np.tile(label, (likely.sum(), 1)), s)
            z = np.exp(log_z)
            out[likely] += 2 * np.stack([z * np.sum(gradient**2, axis=(1, 2)), z * log_z], axis=1)
        return out

    if not tied:
        # rows are independent: the average of row 1 at row 2's centre, by symmetry twice
        def one_row(m):
            omega = np.stack([m, 0 * m], axis=1)[:, None, :]
            log_z, gradient = row_evidences(omega, np.zeros((m.size, 1), dtype=np.int64), s)
            z = np.exp(log_z[:, 0])
            return 4 * np.stack([z * np.sum(gradient[:, 0] ** 2, axis=1), z * log_z[:, 0]], axis=1)

        return trapezoid_average(one_row, np.sqrt(2 * q), np.sqrt(2 * s))
    # the plane (m_1, m_2) ~ N(0, q [[3, 1], [1, 3]]), nodes crowded around both axes
    previous = None
    for n in (40, 56, 80, 112, 160, 224):
        m, weights = sinh_rule(np.sqrt(3 * q), np.sqrt(3 * s), n)
        first, second = (x.ravel() for x in np.meshgrid(m, m))
        quadratic = (3 * first**2 - 2 * first * second + 3 * second**2) / (8 * q)
        density = np.outer(weights, weights).ravel() * np.exp(-0.5 * quadratic) / (2 * np.pi * q * np.sqrt(8))
        keep = density > 1e-22
        value = density[keep] @ integrand(first[keep], second[keep])
        if previous is not None and (np.abs(value - previous) <= 1e-7 * np.abs(value)).all():
            break
        previous = value
    return value, np.abs(value - previous)


@lru_cache(maxsize=64)
def _table(n_tokens, tied):
    """Chebyshev series in sqrt(s) of sqrt(s) E||G||^2 and E log Z, and of their errors.

    Both are so smooth in sqrt(s) that 5 nodes give 5e-5 (E||G||^2) and 5e-4 (E log Z), 12 give 1e-9; the same
    quasi-random points at every node keep the curve smooth where points are needed.
    """
    if n_tokens == 2:
        n_nodes, averages = 12, lambda s: _two_token_averages(tied, s)
    elif tied:
        n_nodes, averages = 5, lambda s: _symmetric_averages(n_tokens, s)
    else:
        n_nodes, averages = 5, lambda s: _independent_averages(n_tokens, s)
    nodes = (chebyshev.chebpts1(n_nodes) + 1) / 2
    results = [averages(root**2) for root in nodes]
    values = np.array([r[0] * [root, 1.0] for r, root in zip(results, nodes, strict=True)])
    errors = np.array([r[1] * [root, 1.0] for r, root in zip(results, nodes, strict=True)])
    # the spread of the last coefficients stands for the interpolation error
    series = chebyshev.chebfit(2 * nodes - 1, values, n_nodes - 1).T
    return series, (nodes[::-1], errors[::-1] + np.abs(series[:, -1]))


def _row_averages(n_tokens, s, diagonal=1.0):
    """Of T rows with independent entries of variance 1, the diagonal one `diagonal`.

    The winner's mean is integrated on a line around that of its strongest rival, where all that matters happens;
    quasi-random points are left for the rivals.

    Returns
    -------
    mean, error : ndarray of shape (3,)
        E of the sums over rows of g_diagonal^2, of the other g^2, and of log Z.
    """
    variances = np.where(np.arange(n_tokens) == 0, diagonal, 1.0)
    # columns other than the diagonal one are alike
    winners = [(0, n_tokens)] if diagonal == 1.0 else [(0, 1), (1, n_tokens - 1)]

    def sums(z):
        out = 0.0
        for winner, times in winners:
            sd = np.sqrt((1 - s) * variances)
            rivals = z * np.delete(sd, winner)
            offsets, weights = sinh_rule(2 * sd[winner], np.sqrt(2 * s), 31)
            means = rivals.max(axis=1, keepdims=True) + offsets
            omega = np.empty((z.shape[0], offsets.size, n_tokens))
            omega[:, :, winner] = means
            omega[:, :, np.arange(n_tokens) != winner] = rivals[:, None, :]
            omega = omega.reshape(-1, 1, n_tokens)
            log_z, gradient = row_evidences(omega, np.full((omega.shape[0], 1), winner), s, diagonal)
            squares = gradient[:, 0] ** 2
            terms = np.stack([squares[:, 0], squares[:, 1:].sum(axis=1), log_z[:, 0]], axis=1) * np.exp(log_z)
            density = weights * np.exp(-0.5 * (means / sd[winner]) ** 2) / (sd[winner] * np.sqrt(2 * np.pi))
            out = out + times * n_tokens * np.einsum("nk,nkj->nj", density, terms.reshape(*means.shape, 3))
        return out

    return gaussian_average(sums, n_tokens - 1, n_points=2**9)


def _independent_averages(n_tokens, s):
    """E||G||^2 and E log Z for untied rows."""
    mean, error = _row_averages(n_tokens, s)
    return np.array([mean[0] + mean[1], mean[2]]), np.array([error[0] + error[1], error[2]])


def _symmetric_averages(n_tokens, s, n_points=2**13, n_replicas=8):
    """E||G||^2 and E log Z for tied rows, with rows taken as independent for control variates.

    Every row of a symmetric matrix alone has independent entries, so what the rows would give on their own has
    an average that needs T dimensions only; it explains 95 to 99 per cent of the variance.
    """
    own, own_error = _row_averages(n_tokens, s, diagonal=2.0)
    free = n_tokens * (n_tokens + 1) // 2
    diagonal = np.eye(n_tokens, dtype=bool)
    results = []
    for seed in range(n_replicas):
        z = normal_points(2 * free, n_points, seed)
        omega = np.sqrt(1 - s) * symmetric_matrices(z[:, :free], n_tokens)
        code = np.argmax(omega + np.sqrt(s) * symmetric_matrices(z[:, free:], n_tokens), axis=-1)
        log_z, gradient = symmetric_evidences(omega, code, s)
        row_log_z, row_gradient = row_evidences(omega, code, s, 2.0)
        squares = row_gradient**2
        controls = np.stack([squares[:, diagonal].sum(1), squares[:, ~diagonal].sum(1), row_log_z.sum(1)], axis=1)
        targets = np.stack([np.sum(gradient**2, axis=(1, 2)), log_z], axis=1)
        centred = controls - controls.mean(axis=0)
        slopes = np.linalg.lstsq(centred, targets - targets.mean(axis=0), rcond=None)[0]
        results.append(targets.mean(axis=0) - (controls.mean(axis=0) - own) @ slopes)
    spread = 2 * np.std(results, axis=0, ddof=1) / np.sqrt(n_replicas)
    return np.mean(results, axis=0), np.hypot(spread, own_error @ np.abs(slopes))
