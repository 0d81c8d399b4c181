"""State evolution of a deep stack of rank-one attention layers (arXiv 2502.00901).

    Q_hat = alpha E[g g^T],  Q = Q_hat (I + Q_hat)^{-1},  V = I - Q,    omega ~ N(0, Q), z ~ N(omega, V), y of z.

Averages are taken over quasi-random z and omega given z, omega = Q z + (Q V)^{1/2} xi, so that u is the same for every
Q: what is computed is a smooth function of Q, whose roots can be found (`deep_fixed_points`). A diagonal Q stays
diagonal, as every layer has a sign of its own.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim.channels.averages import normal_points
from sklearn_aim.channels.deep_prior import prior_curvature

# z of the last layer is drawn from a wider law, since ||g||^2 grows with its fourth power
_WIDENING = 1.3
# points of one scramble for the curve of the last layer, and for what depends on several overlaps: by the dimension of
# the integrals, which sets what a point costs
_POINTS = {0: (1 << 13, 1 << 12), 2: (1 << 13, 1 << 12), 3: (1 << 11, 1 << 10), 4: (1 << 10, 1 << 9)}


@dataclass
class Averages:
    """What one step of state evolution needs.

    Attributes
    ----------
    gain : ndarray of shape (L, L)
        E[g g^T], summed over tokens.
    curvature : ndarray of shape (L,)
        E||E[z_l z_l^T|y, omega]/V_l - I||_F^2; of meaning where Q_l = 0.
    gain_error, curvature_error : ndarray
        Two standard errors, from independent scrambles.
    integration_error : float
        Mean estimated error of the integrals.
    """

    gain: np.ndarray
    curvature: np.ndarray
    gain_error: np.ndarray
    curvature_error: np.ndarray
    integration_error: float


class DeepStateEvolution:
    """Averages over the channel, and the fixed points.

    Parameters
    ----------
    channel : DeepChannel
    effort : float
        Factor of the numbers of points.
    n_replicas : int
        Independent scrambles.
    seed : int
    """

    def __init__(self, channel, effort=1.0, n_replicas=8, seed=0):
        self.channel, self.n_replicas, self.seed = channel, n_replicas, seed
        sizes = _POINTS[channel.n_tokens * (channel.n_layers - 1)]
        self.sizes = [max(32, 1 << round(np.log2(size * effort))) for size in sizes]

    @cached_property
    def _points(self):
        """For fine and for coarse averages: z, xi, u, weights and shape of the replicas."""
        n_layers, n_tokens = self.channel.n_layers, self.channel.n_tokens
        out = []
        for size in self.sizes:
            points = np.concatenate(
                [normal_points(2 * n_layers * n_tokens, size, self.seed + k) for k in range(self.n_replicas)]
            ).reshape(-1, 2, n_layers, n_tokens)
            z, xi = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
            square = np.sum(z[:, -1] ** 2, axis=1)
            weight = _WIDENING**n_tokens * np.exp(-0.5 * square * (_WIDENING**2 - 1))
            z[:, -1] *= _WIDENING
            out.append((z, xi, self.channel.output(z)[0], weight))
        return out

    @cached_property
    def _prior_moments(self):
        """E[z_L z_L^T|y] - I of every fine point with nothing known."""
        z, _, u, _ = self._points[0]
        second = self.channel.posterior(u, np.zeros_like(z), np.eye(z.shape[1])).second[:, -1, :, -1]
        return second - np.eye(z.shape[2])

    @cached_property
    def last_curvature(self):
        """Prior curvature of the last layer: E||M - I||^2, E tr (M - I)^2 M and the error, M = E[z_L z_L^T|y]."""
        return prior_curvature(self.channel)

    def averages(self, overlap, fine=False):
        """Averages at overlap Q (L, L); fine ones where the last layer alone has any."""
        z, xi, u, weight = self._points[0 if fine else 1]
        n_layers, n_tokens = z.shape[1:]
        covariance = np.eye(n_layers) - overlap
        values, vectors = np.linalg.eigh(overlap)
        root_qv = (vectors * np.sqrt(np.clip(values * (1 - values), 0, None))) @ vectors.T
        omega = np.einsum("lm,nma->nla", overlap, z) + np.einsum("lm,nma->nla", root_qv, xi)
        posterior = self.channel.posterior(u, omega, covariance)
        inverse = np.linalg.inv(covariance)
        g = np.einsum("lm,nma->nla", inverse, posterior.mean - omega)
        products = np.einsum("n,nla,nma->nlm", weight, g, g)
        difference = np.einsum("nll->nl", products) - np.einsum(
            "n,nla,lm,nma->nl", weight, g, inverse, z - omega, optimize=True
        )
        self._check_identity(products, difference, posterior.error)
        relative = posterior.within / np.diag(covariance)[:, None, None] - np.eye(n_tokens)
        curvature = np.einsum("n,nlab,nlab->nl", weight, relative, relative)
        if fine and overlap[-1, -1] > 0:
            products[:, -1, -1] = self._controlled(products[:, -1, -1], omega[:, -1], overlap[-1, -1], weight)
        # the same mean by the law of total variance, with less noise where a layer is known
        spread = inverse @ (n_tokens * covariance - posterior.covariance) @ inverse
        known = np.diag(overlap)
        mixed = (1 - known) * np.einsum("nll->nl", products) + known * weight[:, None] * np.einsum("nll->nl", spread)
        np.einsum("nll->nl", products)[:] = mixed
        gain, gain_error = self._mean(products)
        mean, curvature_error = self._mean(curvature)
        return Averages(gain, mean, gain_error, curvature_error, float(np.mean(posterior.error)))

    def _controlled(self, square, omega, overlap, weight):
        """||g||^2 less what is left of its linear part ||(M - I) omega||^2, whose mean is known."""
        first, second, _ = self.last_curvature
        control = weight * np.sum(np.einsum("nab,nb->na", self._prior_moments, omega) ** 2, axis=1)
        deviation = control - control.mean()
        control -= overlap * (1 - overlap) * first + overlap**2 * second
        return square - (deviation @ square) / (deviation @ deviation) * control

    def _mean(self, values):
        means = values.reshape(self.n_replicas, -1, *values.shape[1:]).mean(axis=1)
        return means.mean(axis=0), 2 * means.std(axis=0, ddof=1) / np.sqrt(self.n_replicas)

    def _check_identity(self, products, difference, errors):
        """E||g_l||^2 = E g_l . (V^{-1}(z - omega))_l holds for the posterior and for no other."""
        size = np.einsum("nll->nl", products).mean(axis=0)
        allowed = 5 * difference.std(axis=0) / np.sqrt(len(difference)) + 10 * np.mean(errors) * size + 1e-12
        gap = difference.mean(axis=0)
        if not (np.abs(gap) <= allowed).all():
            layer = int(np.argmax(np.abs(gap) - allowed))
            warnings.warn(
                f"integrals over the layers of a stack are not accurate: E||g||^2 of layer {layer + 1} is "
                f"{size[layer]:.4g}, but {size[layer] - gap[layer]:.4g} by E[g.(z - omega)]/V.",
                ConvergenceWarning,
                stacklevel=2,
            )

    def step(self, overlap, alpha):
        """Q after one step, and the averages."""
        averages = self.averages(overlap)
        information = alpha * averages.gain
        if not (overlap - np.diag(np.diag(overlap))).any():
            information = np.diag(np.diag(information))
        return np.linalg.solve(np.eye(len(overlap)) + information, information), averages
