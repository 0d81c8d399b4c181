"""Linear estimation of an interaction from Gaussian channels, and what its singular values are worth.

P_n K_n = P_n H_n(S) + noise is linear in S for tokens of any law: `Linear` is that map for some sequences, a key bias
profiled out, and `Held` judges estimates by others. Used by `annealing`.
"""

from dataclasses import dataclass

import numpy as np

from sklearn_aim.algorithms.nuisance import KeyBias, bias_indices
from sklearn_aim.kernels.indices import attention_indices, back_projection, layer_indices

# singular values that are looked at together
_TOGETHER = 32


class Linear:
    """S -> P H(S) for some sequences, key bias projected out; its adjoint, and the labels in the same form."""

    def __init__(self, x, code, channel, bias=False):
        self.x, self.code, self.channel = x, code, channel
        self.bias = KeyBias(x, code, channel) if bias else None
        n_tokens = x.shape[1]
        self.labels = self._project(channel.residual(code, np.zeros((len(x), n_tokens, n_tokens), x.dtype)))
        self.target = self.adjoint(self.labels)

    def _project(self, visible):
        if self.bias is not None:
            visible -= self.channel.visible(self.code, self.bias.indices(self.bias.fit(visible)))
        return visible

    def indices(self, interaction):
        """H(S), (n, T, T)."""
        return self.x.collect(attention_indices, interaction.astype(self.x.dtype, copy=False))

    def __call__(self, interaction):
        """P H(S), (n, T, T)."""
        return self._project(self.channel.visible(self.code, self.indices(interaction)))

    def adjoint(self, maps):
        """(P H)^T of maps that lie in the range of P, (d, d)."""
        return self.x.total(back_projection, self.channel.tied, parts=(maps,)) / np.sqrt(self.x.shape[2])

    def normal(self, interaction):
        """(P H)^T P H S."""
        return self.adjoint(self(interaction))

    def coefficients(self, indices):
        """(b, tau) for H(S), or None."""
        return None if self.bias is None else self.bias.fit(self.channel.residual(self.code, indices))

    def coefficients_of(self, interaction):
        """(b, tau) for S, or None."""
        return None if self.bias is None else self.coefficients(self.indices(interaction))


@dataclass
class Held:
    """Sequences that are not learned from."""

    x: object
    code: np.ndarray
    channel: object

    def squares(self, indices, coefficients=None):
        """||P (K - indices)||^2 of every sequence, (b, tau) added to the indices."""
        if coefficients is not None:
            indices = indices + bias_indices(self.x, coefficients, self.channel.key_shares(self.code))
        residual = self.channel.residual(self.code, indices)
        return np.einsum("nab,nab->n", residual, residual, dtype=float)


def solve(linear, mean, weight, start, steps, tol=1e-3):
    """Minimise ||labels - P H(S)||^2 + weight ||S - M||^2 by conjugate gradients from `start`."""
    estimate = start.copy()
    right = linear.target + weight * mean
    residual = right - linear.normal(estimate) - weight * estimate
    direction = residual.copy()
    square, stop = np.vdot(residual, residual), tol**2 * np.vdot(right, right)
    for _ in range(steps):
        if not square > stop:
            break
        image = linear.normal(direction) + weight * direction
        step = square / np.vdot(direction, image)
        estimate += step * direction
        residual -= step * image
        last, square = square, np.vdot(residual, residual)
        direction *= square / last
        direction += residual
    return estimate


def spectrum(matrix, tied):
    """Singular values (tied: eigenvalues, the positive ones), largest first, and vectors: matrix = (L * s) @ R."""
    if not tied:
        return np.linalg.svd(matrix)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    kept = np.flatnonzero(values > 0)[::-1]
    return vectors[:, kept], values[kept], vectors[:, kept].T


def shrink(parts, variance, most):
    """Denoised matrix of rank at most `most`, at entry variance v of the noise; and its rank.

    parts : `spectrum` of the observation, a square matrix.
    """
    left, values, right = parts
    edge = 4 * variance * len(left)
    rank = int(np.count_nonzero(values[:most] ** 2 > edge))
    return (left[:, :rank] * np.sqrt(values[:rank] ** 2 - edge)) @ right[:rank], rank


def truncated(parts, most):
    """Of a `spectrum` the `most` largest singular values (tied: positive eigenvalues) alone."""
    left, values, right = parts
    return (left[:, :most] * values[:most]) @ right[:most]


def needed_width(linear, held, interaction, most):
    """Fewest singular values of S, up to `most`, that predict held-out sequences as well as any number of them does.

    Within one standard error of the difference, sequence by sequence.
    """
    left, values, right = spectrum(interaction, held.channel.tied)
    count = min(most, len(values))
    known, new = (np.zeros((len(x), *x.shape[1:2] * 2), x.dtype) for x in (linear.x, held.x))
    squares = np.empty((count + 1, len(new)))
    squares[0] = held.squares(new, linear.coefficients(known))
    for first in range(0, count, _TOGETHER):
        some = np.arange(first, min(first + _TOGETHER, count))
        added = [_one_by_one(new, held.x, left[:, some] * values[some], right[some])]
        if linear.bias is not None:
            # a bias of its own for every number of singular values
            added.append(_one_by_one(known, linear.x, left[:, some] * values[some], right[some]))
        for width in some:
            for add in added:
                next(add)
            squares[width + 1] = held.squares(new, linear.coefficients(known))
    excess = squares - squares[squares.mean(axis=1).argmin()]
    error = excess.std(axis=1) / np.sqrt(len(held.x))
    return int(np.flatnonzero(excess.mean(axis=1) <= error)[0])


def _one_by_one(indices, x, left, right):
    """Add the indices of l_k r_k^T to some, in place, one k after the other."""
    each = np.arange(x.shape[1])
    queries, keys = (x.collect(layer_indices, np.ascontiguousarray(part)) for part in (left.T, right))
    scale = x.dtype.type(np.sqrt(x.shape[2]))
    for k in range(len(right)):
        indices += scale * queries[:, k, :, None] * keys[:, k, None, :]
        indices[:, each, each] -= indices.dtype.type(left[:, k] @ right[k]) / scale
        yield
