"""Averages over a map of a deep attention stack while nothing is known: where weak recovery begins.

With M = E[z_L z_L^T|y] at omega = 0, E||M - I||^2 is one over the sample complexity at which the last layer begins to
be learned, and E tr (M - I)^2 M gives the next order.
"""

import numpy as np

from sklearn_aim.channels.averages import gaussian_average

# of the step of the rule over u at two tokens, then halved
_STEP = 0.5
_PRECISION = 1e-5
# of the double-exponential rule: gaps from 1e-4
_LEAST = -1.95
# without a skip the density has a singularity where tokens agree, too sharp for the lattice
_LEAST_SKIP = 0.005
_WIDENING = 1.4


def prior_curvature(channel):
    """E||M - I||_F^2, E tr (M - I)^2 M, and the error of the first.

    Closed form for one layer (M = u u^T, u normal); at two tokens an integral over the plane of u, whose total mass
    must come out; else quasi-Monte Carlo.
    """
    n_tokens = channel.n_tokens
    if channel.n_layers == 1:
        t = float(n_tokens)
        # E|u|^4 = T(T + 2), E|u|^6 = T(T + 2)(T + 4)
        fourth, sixth = t * (t + 2), t * (t + 2) * (t + 4)
        return fourth - t, sixth - 2 * fourth + t, 0.0
    if n_tokens == 2 and channel.skip >= _LEAST_SKIP:
        return _over_plane(channel)

    def both(points):
        z = points.reshape(len(points), channel.n_layers, n_tokens)
        # drawn from a wider law, since the moments grow with the fourth and sixth power of z
        weight = _WIDENING**n_tokens * np.exp(-0.5 * np.sum(z[:, -1] ** 2, axis=1) * (_WIDENING**2 - 1))
        z[:, -1] *= _WIDENING
        first, second, _ = _curvatures(channel, channel.output(z)[0])
        return np.stack([weight * first, weight * second], axis=1)

    mean, error = gaussian_average(both, channel.n_layers * n_tokens, n_points=1 << 11)
    return float(mean[0]), float(mean[1]), float(error[0])


def _curvatures(channel, u):
    zeros = np.zeros((len(u), channel.n_layers, channel.n_tokens))
    posterior = channel.posterior(u, zeros, np.eye(channel.n_layers))
    excess = posterior.second[:, -1, :, -1] - np.eye(channel.n_tokens)
    square = excess @ excess
    return (
        np.trace(square, axis1=1, axis2=2),
        np.einsum("nab,nba->n", square, posterior.second[:, -1, :, -1]),
        posterior,
    )


def _over_plane(channel):
    """Along u_1 + u_2 the trapezoidal rule; along the gap u_1 - u_2 > 0 a double-exponential one.

    The mass nearer to the line where tokens agree than the least gap is taken to have the moments found there.
    """
    previous, step = None, _STEP
    unit = (channel.skip + 1) ** (channel.n_layers - 1)
    for _ in range(4 if channel.n_layers == 2 else 2):
        x = np.arange(_LEAST, 3.6, step / 2)
        gap = unit * np.exp(x - np.exp(-x))
        total = unit * np.arange(-9.0, 9.0 + step / 2, step)
        weight = (gap * (1 + np.exp(-x)) * step / 2)[:, None] * np.full(len(total), unit * step)
        s, d = np.broadcast_to(total, weight.shape).ravel(), np.repeat(gap, len(total))
        first, second, posterior = _curvatures(channel, np.stack([s + d, s - d], axis=1) / np.sqrt(2))
        weight = weight * np.exp(posterior.log_z).reshape(weight.shape)
        moments = np.stack([first, second]).reshape(2, *weight.shape)
        rest = 1 - weight.sum()
        near, next_near = (np.sum(moments[:, k] * weight[k], axis=1) / weight[k].sum() for k in (0, 1))
        value = np.sum(moments * weight, axis=(1, 2)) + rest * near
        error = abs(rest) * abs(near[0] - next_near[0]) + np.sum(
            weight * moments[0] * np.minimum(posterior.error.reshape(weight.shape), 1)
        )
        if previous is not None:
            error += abs(value[0] - previous)
            if abs(value[0] - previous) < _PRECISION * value[0]:
                break
        previous, step = value[0], step / 2
    return float(value[0]), float(value[1]), float(error)
