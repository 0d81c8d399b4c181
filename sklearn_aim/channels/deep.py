r"""The channel of a deep stack of rank-one attention layers (arXiv 2502.00901): what one map says of (z_1..z_L).

With z_l = X w_l/sqrt(d) in R^T, B_0 = I, u_l = B_{l-1} z_l, B_l = [c I + softmax(beta u_l u_l^T)] B_{l-1}, the map is
y = softmax(beta u_L u_L^T). It fixes u_L up to its sign: with l = log(y)/beta and J taking off the mean,

    J l J = v v^T,  v = J u,    l J = u v^T,    u = l v/||v||^2.
"""

from dataclasses import dataclass

import numpy as np

from sklearn_aim.channels.averages import normal_points
from sklearn_aim.channels.labels import check_distributions
from sklearn_aim.kernels.deep_maps import map_moments, stack_maps
from sklearn_aim.kernels.deep_posterior import deep_posterior, first_lattice
from sklearn_aim.kernels.deep_sampling import N_LAST, N_PRIOR, deep_sampling
from sklearn_aim.kernels.threads import over_samples

# layers and most tokens for which the posterior is known
MOST_TOKENS = {1: np.inf, 2: 4, 3: 2}
# by the dimension of the integral: error to reach, and most points of a lattice
_TOLERANCE = {2: 1e-4, 3: 1e-3, 4: 1e-2}
_SIZE = {2: 1 << 18, 3: 1 << 17, 4: 1 << 18}
_SAMPLING_TOLERANCE = 3e-2
_SAMPLING_BLOCKS = 128
# roundings of y that maps may differ by, and by which tokens must differ
_ROUNDINGS = 1e4
_DIFFERENT = 1e3


@dataclass
class DeepPosterior:
    """Moments of the layers' indices given the maps.

    Attributes
    ----------
    log_z : ndarray of shape (n,)
        Log density of u up to its sign.
    mean : ndarray of shape (n, L, T)
    second : ndarray of shape (n, L, T, L, T)
        E[z_la z_mb].
    error : ndarray of shape (n,)
        Estimated numerical error: of log Z, and of means in posterior standard deviations.
    n_nodes : ndarray of shape (n,)
        Evaluations of the integrand.
    """

    log_z: np.ndarray
    mean: np.ndarray
    second: np.ndarray
    error: np.ndarray
    n_nodes: np.ndarray

    @property
    def within(self):
        """E[z_l z_l^T] of every layer, (n, L, T, T)."""
        return np.einsum("nlalb->nlab", self.second)

    @property
    def covariance(self):
        """Posterior covariance of the layers, summed over tokens, (n, L, L)."""
        return np.einsum("nlama->nlm", self.second) - np.einsum("nla,nma->nlm", self.mean, self.mean)


class DeepChannel:
    """Maps of L layers over T tokens, and the posterior of the layers' indices.

    Parameters
    ----------
    n_layers, n_tokens : int
        The posterior is known for L <= 3, with any T at L = 1, up to 4 at L = 2 and 2 at L = 3.
    skip : float
        c >= 0.
    inverse_temperature : float
        beta.
    tolerance : float, optional
        Error that integrals aim at.
    """

    def __init__(self, n_layers, n_tokens, *, skip=1.0, inverse_temperature=1.0, tolerance=None):
        self.n_layers, self.n_tokens = n_layers, n_tokens
        self.skip, self.inverse_temperature = float(skip), float(inverse_temperature)
        dimension = n_tokens * (n_layers - 1)
        default = _SAMPLING_TOLERANCE if n_layers == 3 else _TOLERANCE.get(dimension)
        self.tolerance = default if tolerance is None else tolerance
        self._lattices = {}
        self._points = None

    def check_size(self):
        """Refuse sizes for which there is no posterior."""
        if self.n_layers not in MOST_TOKENS:
            raise ValueError(
                f"n_layers={self.n_layers} must be 1, 2 or 3: integrals over deeper stacks are not available. "
                "GDAttentionRegressor(n_layers=..., scaling='sequence-index') learns any depth."
            )
        if self.n_tokens < 2:
            raise ValueError("n_tokens=1 must be at least 2: attention over one token is 1 and says nothing.")
        most = MOST_TOKENS[self.n_layers]
        if self.n_tokens > most:
            raise ValueError(
                f"n_tokens={self.n_tokens} must be at most {most} for n_layers={self.n_layers}: integrals over more "
                "are not available. GDAttentionRegressor(n_layers=..., scaling='sequence-index') takes any number."
            )

    @property
    def physics(self):
        """c and beta, for the kernels."""
        return self.skip, self.inverse_temperature

    def output(self, z):
        """u_L, (n, T), and the maps, (n, T, T), of indices z (n, L, T)."""
        z = np.ascontiguousarray(z, dtype=float)
        u, maps = np.empty((len(z), self.n_tokens)), np.empty((len(z), self.n_tokens, self.n_tokens))
        over_samples(lambda part: stack_maps(z[part], self.physics, u[part], maps[part]), len(z), 4096)
        return u, maps

    def encode(self, y):
        """U_L up to its sign.

        Parameters
        ----------
        y : ndarray of shape (n, T, T)

        Returns
        -------
        u : ndarray of shape (n, T)
        known : ndarray of bool of shape (n,)
            False where all entries of u agree within the precision of y, which leaves u unknown.
        """
        check_distributions(
            y,
            "maps of a softmax",
            " Weights that round to zero do not show u: pass y in double precision, or leave such sequences out.",
        )
        log_y = np.log(np.asarray(y, dtype=float)) / self.inverse_temperature
        rows = log_y - log_y.mean(axis=2, keepdims=True)
        both = rows - rows.mean(axis=1, keepdims=True)
        values, vectors = np.linalg.eigh(0.5 * (both + both.transpose(0, 2, 1)))
        v = vectors[:, :, -1] * np.sqrt(np.maximum(values[:, -1:], 0))
        square = np.sum(v * v, axis=1)
        # what one rounding of y does to log-ratios
        rounding = np.finfo(y.dtype).eps * (1 / self.inverse_temperature + np.abs(log_y).max(axis=(1, 2)))
        known = square > _DIFFERENT * rounding
        u = np.einsum("nab,nb->na", rows, v) / np.where(known, square, 1.0)[:, None]
        distance = np.abs(rows - u[:, :, None] * v[:, None, :]).max(axis=(1, 2))
        largest = np.abs(rows).max(axis=(1, 2))
        # rounding turns v by about its size over ||v||^2; where tokens agree it hides v, times a u of some units
        turned = largest * np.minimum(10 * rounding / np.where(known, square, 1.0), 1e-2)
        allowed = np.where(known, _ROUNDINGS * rounding + 1e-6 * largest + turned, 30 * np.sqrt(_DIFFERENT * rounding))
        distance = np.where(known, distance, largest)
        worst = int(np.argmax(distance / allowed))
        if distance[worst] > allowed[worst]:
            raise ValueError(
                f"y is not of the form softmax(u u^T): y[{worst}] fits worst, its log-ratios are {distance[worst]:.3g} "
                "away from those of the nearest u. The model has no noise: maps that were rounded, averaged or "
                "measured with noise do not fit. GDAttentionRegressor(n_layers=..., scaling='sequence-index') fits any."
            )
        return np.where(known[:, None], u, 0.0), known

    def posterior(self, u, omega, covariance):
        """Moments of the indices given the maps.

        Parameters
        ----------
        u : ndarray of shape (n, T)
            From `encode`.
        omega : ndarray of shape (n, L, T)
            Prior means.
        covariance : ndarray of shape (L, L)
            V, the prior covariance of layers, for every token.

        Returns
        -------
        DeepPosterior
        """
        n, n_layers, n_tokens = omega.shape
        if n_layers == 1:
            return _sign_posterior(u, omega, float(covariance[0, 0]))
        u, omega = np.ascontiguousarray(u, dtype=float), np.ascontiguousarray(omega, dtype=float)
        below = np.ascontiguousarray(covariance[:-1, :-1])
        chol = np.linalg.cholesky(below)
        gain = np.linalg.solve(below, covariance[:-1, -1])
        variance = float(covariance[-1, -1] - gain @ covariance[:-1, -1])
        out = DeepPosterior(
            np.empty(n),
            np.empty((n, n_layers, n_tokens)),
            np.empty((n, n_layers, n_tokens, n_layers, n_tokens)),
            np.empty(n),
            np.empty(n, dtype=np.int64),
        )
        common = variance, chol, gain, self.physics
        if n_layers == 3:
            own = float(covariance[2, 0] / covariance[0, 0])
            last = own, float(np.sqrt(covariance[2, 2] - own * covariance[2, 0]))
            points = self._sampling_points()

            def work(part):
                deep_sampling(
                    u[part], omega[part], variance, chol, gain, last, self.physics, points, self.tolerance,
                    out.log_z[part], out.mean[part], out.second[part], out.error[part], out.n_nodes[part],
                )  # fmt: skip

            over_samples(work, n, 8)
            return out
        folded = not omega[:, :-1].any() and not gain.any()
        dimension = n_tokens * (n_layers - 1)
        if folded not in self._lattices:
            self._lattices[folded] = first_lattice(n_tokens, n_layers - 1, folded)

        def work(part):
            deep_posterior(
                u[part], omega[part], *common, self._lattices[folded], _SIZE[dimension], self.tolerance,
                out.log_z[part], out.mean[part], out.second[part], out.error[part], out.n_nodes[part],
            )  # fmt: skip

        over_samples(work, n, 8)
        if folded:
            # one of each pair of points was taken
            out.mean[:, :-1] = 0.0
            out.second[:, :-1, :, -1] = 0.0
            out.second[:, -1, :, :-1] = 0.0
        return out

    def _sampling_points(self):
        if self._points is None:
            count = N_PRIOR + N_LAST
            size = 1 << (count - 1).bit_length()
            blocks = [normal_points(4, size, seed)[:count].T for seed in range(_SAMPLING_BLOCKS)]
            self._points = np.ascontiguousarray(blocks)
        return self._points

    def moments(self, omega, covariance, n_points=1 << 10, seed=0):
        """Mean and standard deviation of the maps over z ~ N(omega, V), by quasi-Monte Carlo.

        Parameters
        ----------
        omega : ndarray of shape (n, L, T)
        covariance : ndarray of shape (L, L)

        Returns
        -------
        mean, spread : ndarray of shape (n, T, T)
        """
        n, n_layers, n_tokens = omega.shape
        omega = np.ascontiguousarray(omega, dtype=float)
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        points = normal_points(n_layers * n_tokens, n_points, seed).reshape(n_points, n_layers, n_tokens)
        shifts = np.ascontiguousarray(np.einsum("lm,kma->kla", root, points))
        mean, spread = np.empty((n, n_tokens, n_tokens)), np.empty((n, n_tokens, n_tokens))
        over_samples(lambda part: map_moments(omega[part], shifts, self.physics, mean[part], spread[part]), n, 16)
        return mean, spread


def _sign_posterior(u, omega, variance):
    """Depth 1: z is u or -u."""
    n_tokens = u.shape[1]
    overlap = np.einsum("na,na->n", u, omega[:, 0]) / variance
    mean = u * np.tanh(overlap)[:, None]
    square = np.sum(u * u, axis=1) + np.sum(omega[:, 0] ** 2, axis=1)
    log_z = np.logaddexp(overlap, -overlap) - 0.5 * square / variance - 0.5 * n_tokens * np.log(2 * np.pi * variance)
    second = u[:, :, None] * u[:, None, :]
    zeros = np.zeros(len(u))
    return DeepPosterior(log_z, mean[:, None], second[:, None, :, None], zeros, zeros.astype(np.int64))
