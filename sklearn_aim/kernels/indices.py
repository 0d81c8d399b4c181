"""The two passes over X of every algorithm: indices h = x_a^T S x_b / sqrt(d) and back-projection sum_n X^T G X."""

import numpy as np

# rows of X worked on at a time: large enough for the matrix product, small against X
_BLOCK_ELEMENTS = 1 << 21


def sample_blocks(x):
    """Slices over samples whose temporaries stay a few megabytes."""
    n_samples, n_tokens, n_features = x.shape
    size = max(1, _BLOCK_ELEMENTS // max(1, n_tokens * n_features))
    return [slice(start, min(start + size, n_samples)) for start in range(0, n_samples, size)]


def attention_indices(x, interaction):
    """Attention indices with the trace removed from the diagonal.

    h_ab = (x_a^T S x_b - delta_ab tr S)/sqrt(d).

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
    interaction : ndarray of shape (d, d)
        S.

    Returns
    -------
    ndarray of shape (n, T, T), in the dtype of x
    """
    n_samples, n_tokens, n_features = x.shape
    scaled = (interaction / np.sqrt(n_features)).astype(x.dtype)
    out = np.empty((n_samples, n_tokens, n_tokens), dtype=x.dtype)
    for part in sample_blocks(x):
        block = x[part]
        keys = np.ascontiguousarray(block).reshape(-1, n_features) @ scaled
        np.matmul(keys.reshape(block.shape), block.transpose(0, 2, 1), out=out[part])
    diagonal = np.arange(n_tokens)
    out[:, diagonal, diagonal] -= out.dtype.type(np.trace(interaction) / np.sqrt(n_features))
    return out


def back_projection(x, g):
    """Adjoint of `attention_indices`: sum_n X_n^T G_n X_n - sum_n tr(G_n) I, without 1/sqrt(d).

    Block sums are added in double precision.

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
    g : ndarray of shape (n, T, T)

    Returns
    -------
    ndarray of shape (d, d), float64
    """
    n_features = x.shape[2]
    out = np.zeros((n_features, n_features))
    for part in sample_blocks(x):
        block = np.ascontiguousarray(x[part])
        weighted = np.matmul(g[part], block)
        out += block.reshape(-1, n_features).T @ weighted.reshape(-1, n_features)
    diagonal = np.arange(n_features)
    out[diagonal, diagonal] -= np.sum(np.einsum("naa->a", g, dtype=float))
    return out
