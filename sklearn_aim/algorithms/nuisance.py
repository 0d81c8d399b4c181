"""What the indices of real heads hold besides x_a^T S x_b: a key bias and an offset of the diagonal, profiled out.

    h_ab = (x_a^T S x_b - delta_ab tr S)/sqrt(d) + b^T x_b/sqrt(d) + delta_ab tau

For given S the likelihood of a Gaussian channel is largest at the least-squares (b, tau) of what S leaves, which one
factorised (d + 1) x (d + 1) matrix answers for every S: sum_n E_n^T P_n E_n, E_n the map from (b, tau) to K, P_n what y
shows of it. K_ab may hold parts of b^T x_a too, see `key_shares` of the channels.
"""

import numpy as np

from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.indices import layer_indices, layer_projection
from sklearn_aim.kernels.moments import weighted_products

# directions of (b, tau) that are seen less than this fraction of the best seen one are left at zero
_UNSEEN = 1e-10


class KeyBias:
    """Least squares of b and tau for given sequences and labels.

    Parameters
    ----------
    x : SampleBlocks or DaskBlocks of shape (n, T, d)
    code : ndarray
        `channel.encode(y)`.
    channel : GaussianChannel
    """

    def __init__(self, x, code, channel):
        self._x, self._code, self._channel = as_blocks(x), code, channel
        n_samples, n_tokens, n_features = x.shape
        self._share = channel.key_shares(code)
        # E^T P E of every sequence, for numbers on its tokens in the place of b^T x_t/sqrt(d), a token at a time
        products = np.empty((n_samples, n_tokens, n_tokens), x.dtype)
        for t in range(n_tokens):
            tokens = np.zeros((n_samples, n_tokens), x.dtype)
            tokens[:, t] = 1
            products[:, :, t] = _gather(channel.visible(code, _spread(tokens, 0.0, self._share)), self._share)
        diagonal = channel.visible(code, _spread(np.zeros((n_samples, n_tokens), x.dtype), 1.0, self._share))
        gram = np.empty((n_features + 1, n_features + 1))
        gram[:-1, :-1] = self._x.total(weighted_products, parts=(products,)) / n_features
        gram[:-1, -1] = gram[-1, :-1] = self._project(diagonal)
        gram[-1, -1] = np.einsum("naa->", diagonal, dtype=float)
        values, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
        seen = values > _UNSEEN * max(values[-1], np.finfo(float).tiny)
        self._root = vectors[:, seen] / np.sqrt(values[seen])

    @property
    def dimension(self):
        """Numbers that the labels fix of (b, tau)."""
        return self._root.shape[1]

    @property
    def left(self):
        """Share of the combinations of indices that labels show which (b, tau) do not take."""
        shown = len(self._code) * self._channel.information_constant / (2 if self._channel.tied else 1)
        return max(1 - self.dimension / shown, np.finfo(float).eps)

    def fit(self, residual):
        """(b, tau), of shape (d + 1,), closest to residuals P(K - omega), (n, T, T)."""
        target = np.append(self._project(residual), np.einsum("naa->", residual, dtype=float))
        return self._root @ (self._root.T @ target)

    def add(self, omega):
        """Add to omega, in place, what the best (b, tau) for it adds to K; answers these."""
        coefficients = self.fit(self._channel.residual(self._code, omega))
        omega += self.indices(coefficients)
        return coefficients

    def indices(self, coefficients):
        """What (b, tau) adds to K, (n, T, T)."""
        return bias_indices(self._x, coefficients, self._share)

    def _project(self, maps):
        """Adjoint of b -> b^T x/sqrt(d) on the tokens of a pair."""
        tokens = _gather(maps, self._share)
        n_features = self._x.shape[2]
        return self._x.total(layer_projection, parts=(tokens[:, None],))[0] / np.sqrt(n_features)


def bias_indices(x, coefficients, share=(0.0, 1.0)):
    """share[0] b^T x_a + share[1] b^T x_b, over sqrt(d), and tau on the diagonal: (n, T, T)."""
    tokens = as_blocks(x).collect(layer_indices, coefficients[None, :-1])[:, 0]
    return _spread(tokens, coefficients[-1], share)


def _spread(tokens, diagonal, share):
    n_tokens = tokens.shape[1]
    row, column = (np.asarray(part, tokens.dtype) for part in share)
    out = row * tokens[:, :, None] + column * tokens[:, None, :]
    each = np.arange(n_tokens)
    out[:, each, each] += tokens.dtype.type(diagonal)
    return out


def _gather(maps, share):
    """Adjoint of `_spread` in its tokens."""
    row, column = (np.asarray(part, maps.dtype) for part in share)
    return (row * maps).sum(axis=2) + (column * maps).sum(axis=1)
