"""Means and covariances of tokens, and the map that whitens them: functions of one block of sequences."""

import numpy as np

from sklearn_aim.kernels.indices import sample_blocks


def token_sums(x):
    """Sum over all tokens, (d,), double precision."""
    return x.sum(axis=(0, 1), dtype=float)


def token_power(x):
    """Sum of squares of all entries, an array of no dimension, double precision."""
    return np.array(sum(float(np.vdot(x[part], x[part])) for part in sample_blocks(x)))


def centred_products(x, mean):
    """Sum over all tokens of (x - mean)(x - mean)^T, (d, d), double precision."""
    total = np.zeros((x.shape[2], x.shape[2]))
    for part in sample_blocks(x):
        centred = (x[part] - mean).reshape(-1, x.shape[2])
        total += centred.T @ centred
    return total


def weighted_products(x, weights):
    """Sum of X_n^T C_n X_n for weights C (n, T, T), (d, d), double precision."""
    total = np.zeros((x.shape[2], x.shape[2]))
    for part in sample_blocks(x):
        block = np.ascontiguousarray(x[part])
        rows = np.matmul(weights[part], block).reshape(-1, x.shape[2])
        total += block.reshape(-1, x.shape[2]).T @ rows
    return total


def token_moments(x, real, scale):
    """Sums over tokens where `real` (n, T) is 1, of scale x in double precision, (T + 1, d + 2).

    Rows before the last are positions: the sums of x. The last holds those of x^4 in its first d columns. The two last
    columns hold, in the first rows, the sums of ||x||^2 and of ||x||^4.
    """
    n_tokens, n_features = x.shape[1:]
    total = np.zeros((n_tokens + 1, n_features + 2))
    for part in sample_blocks(x):
        block = np.where(real[part, :, None], x[part] * x.dtype.type(scale), 0)
        norms = np.einsum("nai,nai->na", block, block, dtype=float)
        total[:-1, :-2] += block.sum(axis=0, dtype=float)
        total[:-1, -2] += norms.sum(axis=0)
        total[:-1, -1] += np.square(norms).sum(axis=0)
        block *= block
        total[-1, :-2] += np.einsum("nai,nai->i", block, block, dtype=float)
    return total


def of_real_tokens(x, padded, function, *shared):
    """What one of the sums above is without the tokens of padding (n, T)."""
    return function(x[~padded][None], *shared)


def whitened(x, mean, matrix):
    """(x - mean) matrix of every token."""
    out = np.empty((*x.shape[:2], matrix.shape[1]), x.dtype)
    for part in sample_blocks(x):
        np.matmul(x[part] - mean, matrix, out=out[part])
    return out


def unwhitened(x, matrix, mean):
    """X matrix + mean of every token."""
    return x @ matrix + mean
