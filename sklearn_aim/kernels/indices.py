"""The two passes over X of every algorithm: indices h = x_a^T S x_b / sqrt(d) and back-projection sum_n X^T G X.

Functions of one block of sequences in memory; see `blocks` for X that is more than that.
"""

import numba as nb
import numpy as np

from sklearn_aim.kernels.threads import over_samples

# elements of X worked on at a time: large enough for the matrix product, small against X
_BLOCK_ELEMENTS = 1 << 21
# rows that sums in single precision may run over
_SINGLE_ROWS = 1 << 15
# features a token from which half a matrix product is worth a T x T eigendecomposition a sequence
_FEATURES_A_TOKEN = 400


def sample_blocks(x):
    """Slices over samples whose temporaries stay a few megabytes."""
    n_samples, n_tokens, n_features = x.shape
    size = max(1, _BLOCK_ELEMENTS // max(1, n_tokens * n_features))
    return [slice(start, min(start + size, n_samples)) for start in range(0, n_samples, size)]


def _rows(block):
    """Tokens of a block, (m T, d)."""
    return np.ascontiguousarray(block).reshape(-1, block.shape[2])


def _buffer(x, parts):
    return np.empty((parts[0].stop, *x.shape[1:]), x.dtype)


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
    parts = sample_blocks(x)
    # one buffer for all blocks: new memory costs a good part of a product
    buffer = _buffer(x, parts)
    for part in parts:
        block = x[part]
        keys = buffer[: len(block)]
        np.dot(_rows(block), scaled, out=_rows(keys))
        np.matmul(keys, block.transpose(0, 2, 1), out=out[part])
    diagonal = np.arange(n_tokens)
    out[:, diagonal, diagonal] -= out.dtype.type(np.trace(interaction) / np.sqrt(n_features))
    return out


def back_projection(x, g, symmetric=False):
    """Adjoint of `attention_indices`: sum_n X_n^T G_n X_n - sum_n tr(G_n) I, without 1/sqrt(d).

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
    g : ndarray of shape (n, T, T)
    symmetric : bool, default=False
        Every G_n is symmetric: where it pays, G_n = sum_k +- w_k w_k^T, and half the products suffice.

    Returns
    -------
    ndarray of shape (d, d), float64
    """
    n_tokens, n_features = x.shape[1:]
    total = _Products(n_features, x.dtype)
    halved = symmetric and n_features >= _FEATURES_A_TOKEN * n_tokens
    parts = sample_blocks(x)
    buffer = _buffer(x, parts)
    for part in parts:
        block = np.ascontiguousarray(x[part])
        weighted = buffer[: len(block)]
        if halved:
            plus, minus = _signed_rows(block, g[part], _rows(weighted))
            total.add(plus, plus)
            total.add(minus, minus, sign=-1)
        else:
            np.matmul(g[part], block, out=weighted)
            total.add(_rows(block), _rows(weighted))
    out = total.result()
    diagonal = np.arange(n_features)
    out[diagonal, diagonal] -= np.sum(np.einsum("naa->a", g, dtype=float))
    return out


def layer_indices(x, weights):
    """Indices of layers of width one, z_l = X w_l / sqrt(d).

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
    weights : ndarray of shape (L, d)

    Returns
    -------
    ndarray of shape (n, L, T), in the dtype of x
    """
    scaled = (weights / np.sqrt(x.shape[2])).astype(x.dtype, copy=False)
    z = _rows(x) @ scaled.T
    return np.ascontiguousarray(z.reshape(*x.shape[:2], -1).transpose(0, 2, 1))


def layer_projection(x, g):
    """Adjoint of `layer_indices`: sum_n g_n X_n for g (n, L, T), of shape (L, d), without 1/sqrt(d)."""
    wide = np.ascontiguousarray(g.transpose(1, 0, 2), dtype=x.dtype).reshape(g.shape[1], -1)
    return (wide @ _rows(x)).astype(float)


def largest_entries(x):
    """Largest magnitude in each sequence, (n,); NaN where it holds one."""
    return np.maximum(x.max(axis=(1, 2)), -x.min(axis=(1, 2)))


def largest_real_entries(x, padded):
    """Largest magnitude in each sequence among the tokens that are not padding, (n,); `padded` (n, T)."""
    return np.where(padded, 0, np.maximum(x.max(axis=2), -x.min(axis=2))).max(axis=1)


class _Products:
    """Sum of products of row blocks, left^T right; single precision is moved to double in time.

    By numpy's BLAS alone: threads of a second one, scipy's, would keep cores busy after each of its products.
    """

    def __init__(self, n_features, dtype):
        self._double = np.zeros((n_features, n_features))
        self._sum = self._double if dtype == np.float64 else np.zeros_like(self._double, dtype)
        self._product = np.empty_like(self._sum)
        self._count = 0

    def add(self, left, right, sign=1):
        """Add sign * left^T right, rows (m, d); with right = left this takes half the operations."""
        if self._sum is not self._double and self._count + len(left) > _SINGLE_ROWS:
            self._double += self._sum
            self._sum[:] = 0
            self._count = 0
        self._count += len(left)
        np.dot(left.T, right, out=self._product)
        (np.add if sign > 0 else np.subtract)(self._sum, self._product, out=self._sum)

    def result(self):
        """The sum (d, d), double precision."""
        if self._sum is not self._double:
            self._double += self._sum
        return self._double


def _signed_rows(block, g, rows):
    """Rows sqrt|l| q^T X of all eigenvectors q of symmetric G_n: those of positive eigenvalues l, the others.

    Both are views of `rows`, (m T, d), which is written.
    """
    values, vectors = np.linalg.eigh(g)
    weights = vectors.transpose(0, 2, 1) * np.sqrt(np.abs(values))[:, :, None]
    positive = values > 0
    n_positive = np.count_nonzero(positive)
    # where every row goes: positive ones first
    place = np.empty(positive.shape, np.int64)
    place[positive] = np.arange(n_positive)
    place[~positive] = np.arange(n_positive, positive.size)
    over_samples(lambda part: _combine(block[part], weights[part], place[part], rows), len(block))
    return rows[:n_positive], rows[n_positive:]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _combine(block, weights, place, rows):
    """rows[place[n, k]] = sum_a weights[n, k, a] block[n, a]."""
    n_samples, n_tokens, n_features = block.shape
    for n in range(n_samples):
        for k in range(n_tokens):
            row = rows[place[n, k]]
            for a in range(n_tokens):
                weight = weights[n, k, a]
                token = block[n, a]
                if a == 0:
                    for i in range(n_features):
                        row[i] = weight * token[i]
                else:
                    for i in range(n_features):
                        row[i] += weight * token[i]
