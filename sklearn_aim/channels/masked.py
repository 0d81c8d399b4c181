"""Softmax and identity links of which every sequence shows some entries alone: causal masks, padding, zeros in y."""

import copy

import numpy as np

from sklearn_aim.channels.gaussian import GaussianChannel
from sklearn_aim.channels.labels import check_distributions, check_hidden
from sklearn_aim.channels.rows import row_test_error
from sklearn_aim.kernels.masks import components, degrees_of_freedom, remove_shifts
from sklearn_aim.kernels.threads import over_samples

# an index that no softmax sees, in units of 1/beta
_HIDDEN = -1e6


class MaskedChannel(GaussianChannel):
    """A link with Gaussian posterior, behind a mask.

    What is seen of a row of softmax weights are its indices but for a shift, among the keys that it may attend to; rows
    that share an index (tied: h_ab = h_ba, seen from both sides) share the shift. With m the mean number of index
    combinations that a sequence fixes, E||G||^2 (V + Delta) is 2 m tied and m untied, as without a mask: causal softmax
    has m = T(T-1)/2 in both cases, where no two rows share an index.

    Parameters
    ----------
    channel : SoftmaxChannel or IdentityChannel
    allowed : ndarray of shape (n, T, T), bool
        From `kernels.masks.allowed_pairs`.
    """

    def __init__(self, channel, allowed):
        super().__init__(
            channel.n_tokens,
            tied=channel.tied,
            noise=channel.noise,
            inverse_temperature=channel.inverse_temperature,
        )
        self.name = channel.name
        self.allowed = allowed
        self._channel = channel
        # one mask for all is a view of stride 0
        distinct = allowed if allowed.strides[0] else allowed[:1]
        patterns, counts = np.unique(distinct.reshape(len(distinct), -1), axis=0, return_counts=True)
        self._patterns = patterns.reshape(-1, *allowed.shape[1:])
        self._shares = counts / counts.sum()
        self._rank = float(self._shares @ degrees_of_freedom(self._groups(self._patterns), self.tied))

    @classmethod
    def supports(cls, link):
        """Whether a link can be masked."""
        return link in ("softmax", "identity")

    @property
    def rank(self):
        """m, the mean number of index combinations that a sequence fixes."""
        return self._rank

    @property
    def antisymmetric_pairs(self):
        """Twice the mean number of pairs of different tokens that are seen from either side."""
        seen = self._patterns | self._patterns.transpose(0, 2, 1)
        return float(self._shares @ (seen.sum(axis=(1, 2)) - np.einsum("paa->p", seen.astype(int))))

    def with_noise(self, noise):
        """The same channel at another noise."""
        other = copy.copy(self)
        other.noise = float(noise)
        other._channel = self._channel.with_noise(noise)
        return other

    def _groups(self, seen):
        if self.name == "softmax":
            return components(seen, self.tied)
        seen = seen | seen.transpose(0, 2, 1) if self.tied else seen
        return np.where(seen, -2, -1)

    def link(self, indices):
        """Labels, 0 where they are masked."""
        allowed = self.allowed
        if self.name == "identity":
            return np.where(allowed, indices, 0).astype(indices.dtype, copy=False)
        return np.where(allowed, self._channel.link(self._hide(indices, allowed)), 0).astype(indices.dtype, copy=False)

    def _hide(self, indices, allowed):
        hidden = indices.dtype.type(_HIDDEN / self.inverse_temperature)
        # rows of padding see nothing, and any number will do
        return np.where(allowed | ~allowed.any(axis=-1, keepdims=True), indices, hidden)

    def encode(self, y):
        """K, the groups of entries that share a shift, and the number of combinations fixed: (n, 3, T, T).

        Tied, with the identity link, a fourth says how much of K_ab was seen from the side of a.

        Zeros among allowed softmax weights, from underflow, count as not seen.

        Raises
        ------
        ValueError
            If y is not 0 where it is masked, or a row of weights is no distribution.
        """
        allowed = self.allowed
        if self.name == "softmax":
            check_distributions(y, "link='softmax'", positive=False, allowed=allowed)
            seen = allowed & (y > 0)
            k = self._potentials(y, seen)
        else:
            check_hidden(y, allowed)
            seen = allowed
            k = y.astype(y.dtype, copy=True)
            if self.tied:
                both = np.maximum(seen.astype(y.dtype) + seen.transpose(0, 2, 1), 1)
                k = (k + k.transpose(0, 2, 1)) / both
        groups = self._groups(seen)
        remove_shifts(k, groups)
        one_sided = self.tied and self.name == "identity"
        code = np.empty((len(y), 4 if one_sided else 3, *y.shape[1:]), k.dtype)
        code[:, 0], code[:, 1] = k, groups
        if one_sided:
            code[:, 3] = seen / both
        code[:, 2] = degrees_of_freedom(groups, self.tied)[:, None, None]
        # zeros show less than the mask lets through
        self._rank = float(code[:, 2, 0, 0].mean(dtype=float))
        if self._rank == 0:
            raise ValueError(
                f"y shows nothing of S for link={self.name!r}: no row has two weights > 0 that the mask lets through. "
                "One-hot rows are for link='hardmax'."
            )
        return code

    def _potentials(self, y, seen):
        """log(y)/beta, tied: with shifts of rows by which entries seen from both sides agree best."""
        logs = np.where(seen, np.log(np.where(seen, y, 1)), 0) / y.dtype.type(self.inverse_temperature)
        if not self.tied:
            return logs
        links = seen & seen.transpose(0, 2, 1)
        mismatch = np.where(links, logs.transpose(0, 2, 1) - logs, 0).sum(axis=2)
        patterns, which = np.unique(links.reshape(len(y), -1), axis=0, return_inverse=True)
        adjacency = patterns.reshape(-1, *links.shape[1:]).astype(float)
        laplacian = adjacency.sum(axis=2)[:, :, None] * np.eye(links.shape[1]) - adjacency
        inverse = np.linalg.pinv(laplacian, hermitian=True)[which.ravel()]
        shifts = np.einsum("nab,nb->na", inverse, mismatch)
        logs = np.where(seen, logs + shifts[:, :, None], 0)
        count = np.maximum(seen.astype(float) + seen.transpose(0, 2, 1), 1)
        return ((logs + logs.transpose(0, 2, 1)) / count).astype(y.dtype)

    def combinations(self, code):
        """How many combinations each sequence fixes, (n,)."""
        return code[:, 2, 0, 0]

    def key_shares(self, code):
        """As without a mask, but for indices that one side alone shows."""
        if code.shape[1] == 3:
            return self._channel.key_shares(code)
        return code[:, 3].transpose(0, 2, 1), code[:, 3]

    def visible(self, code, x):
        """P x, by the groups of every sequence; not in place."""
        x = x.copy()
        groups = np.ascontiguousarray(code[:, 1])
        over_samples(lambda part: remove_shifts(x[part], groups[part]), len(x))
        return x

    def residual(self, code, omega):
        """P(K - omega)."""
        return self.visible(code, code[:, 0] - omega)

    def moments(self, omega, variance):
        """E[y] and E[y^2], 0 where masked."""
        allowed = self.allowed
        shown = self._hide(omega, allowed) if self.name == "softmax" else omega
        return tuple(np.where(allowed, one, 0).astype(omega.dtype) for one in self._channel.moments(shown, variance))

    def test_error(self, variance, overlap):
        """Error of each kind of row, by its number of keys, times how many of them a sequence has."""
        if self.name == "identity":
            spread = (variance + self.noise) * self.index_variance
            return float(np.einsum("p,pab,ab->", self._shares, self._patterns, spread)), 0.0
        value = error = 0.0
        keys = self._patterns.sum(axis=2)
        itself = np.einsum("paa->pa", self._patterns)
        for count in np.unique(keys[keys > 1]):
            for diagonal in (True, False):
                rows = float(self._shares @ ((keys == count) & (itself == diagonal)).sum(axis=1))
                if rows == 0:
                    continue
                # without its own token the indices of a row have variance one, tied or not
                row = type(self._channel)(
                    int(count),
                    tied=self.tied and diagonal,
                    noise=self.noise,
                    inverse_temperature=self.inverse_temperature,
                )
                one, uncertain = row_test_error(row, variance, overlap, width=1 / self.inverse_temperature)
                value += rows * one / count
                error += rows * uncertain / count
        return value, error
