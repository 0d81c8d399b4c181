"""Maps of a deep attention stack from its indices z_l, one sequence after the other."""

import math

import numpy as np

from sklearn_aim.kernels.deep_layers import compiled, helper


@helper
def _forward(z, shift, physics, mixing, work, u, out):
    """u_L and the map of indices z + shift; mixing and work are (T, T)."""
    skip, beta = physics
    n_layers, n = z.shape
    for layer in range(n_layers):
        for a in range(n):
            total = 0.0
            if layer == 0:
                total = z[0, a] + shift[0, a]
            else:
                for b in range(n):
                    total += mixing[a, b] * (z[layer, b] + shift[layer, b])
            u[a] = total
        for a in range(n):
            # products are rounded before the largest is taken off: fused with that, none need come out as zero
            for b in range(n):
                out[a, b] = u[a] * u[b]
            top = out[a, 0]
            for b in range(1, n):
                top = max(top, out[a, b])
            total = 0.0
            for b in range(n):
                out[a, b] = math.exp(beta * (out[a, b] - top))
                total += out[a, b]
            for b in range(n):
                out[a, b] /= total
        if layer + 1 == n_layers:
            break
        for a in range(n):
            for b in range(n):
                if layer == 0:
                    work[a, b] = out[a, b] + (skip if a == b else 0.0)
                else:
                    total = skip * mixing[a, b]
                    for k in range(n):
                        total += out[a, k] * mixing[k, b]
                    work[a, b] = total
        for a in range(n):
            for b in range(n):
                mixing[a, b] = work[a, b]


@compiled
def stack_maps(z, physics, u, maps):
    """u_L and map of every sequence.

    Parameters
    ----------
    z : ndarray of shape (n, L, T)
    physics : tuple (skip, beta)
    u : ndarray of shape (n, T)
    maps : ndarray of shape (n, T, T)
        Both are filled.
    """
    n_tokens = z.shape[2]
    mixing, work, none = np.empty((n_tokens, n_tokens)), np.empty((n_tokens, n_tokens)), np.zeros(z.shape[1:])
    for n in range(z.shape[0]):
        _forward(z[n], none, physics, mixing, work, u[n], maps[n])


@compiled
def map_moments(omega, shifts, physics, mean, spread):
    """Mean and standard deviation of the maps of omega + shift over all shifts.

    Parameters
    ----------
    omega : ndarray of shape (n, L, T)
    shifts : ndarray of shape (k, L, T)
    physics : tuple (skip, beta)
    mean, spread : ndarray of shape (n, T, T)
        Filled.
    """
    n_tokens = omega.shape[2]
    mixing, work, out = np.empty((n_tokens, n_tokens)), np.empty((n_tokens, n_tokens)), np.empty((n_tokens, n_tokens))
    u = np.empty(n_tokens)
    for n in range(omega.shape[0]):
        for a in range(n_tokens):
            for b in range(n_tokens):
                mean[n, a, b], spread[n, a, b] = 0.0, 0.0
        for k in range(shifts.shape[0]):
            _forward(omega[n], shifts[k], physics, mixing, work, u, out)
            for a in range(n_tokens):
                for b in range(n_tokens):
                    # running mean and sum of squares about it, which do not cancel
                    change = out[a, b] - mean[n, a, b]
                    mean[n, a, b] += change / (k + 1)
                    spread[n, a, b] += change * (out[a, b] - mean[n, a, b])
        for a in range(n_tokens):
            for b in range(n_tokens):
                spread[n, a, b] = math.sqrt(spread[n, a, b] / shifts.shape[0])
