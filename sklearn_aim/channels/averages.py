"""Averages over Gaussian indices, each with an estimate of its own error."""

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc


def gaussian_average(function, dimension, n_points=2**12, n_replicas=8, seed=0):
    """E function(z), z standard normal, by scrambled Sobol points.

    Parameters
    ----------
    function : callable
        Maps (n_points, dimension) to (n_points, n_outputs).
    dimension : int
    n_points : int
        Points of one replica, a power of 2.
    n_replicas : int
        Independent scrambles, from whose spread the error is estimated.
    seed : int
        Same seed, same answer.

    Returns
    -------
    mean, error : ndarray of shape (n_outputs,)
        The error is two standard errors.
    """
    means = np.array(
        [np.mean(function(normal_points(dimension, n_points, seed + k)), axis=0) for k in range(n_replicas)]
    )
    return means.mean(axis=0), 2 * means.std(axis=0, ddof=1) / np.sqrt(n_replicas)


def normal_points(dimension, n_points, seed):
    """Scrambled Sobol points mapped to the standard normal law."""
    uniform = qmc.Sobol(dimension, rng=np.random.default_rng(seed)).random(n_points)
    # scrambled points are multiples of 2^-30 or so and may be 0
    return ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))


def trapezoid_average(function, sd, scale, tolerance=1e-10):
    """E function(m), m ~ N(0, sd^2), for functions that vary on `scale` around 0, however small.

    Trapezoidal rule in t, m = a sinh(t), which crowds nodes around 0; steps are halved until it has settled.

    Parameters
    ----------
    function : callable
        Maps (n,) to (n, n_outputs).

    Returns
    -------
    mean, error : ndarray of shape (n_outputs,)
    """
    previous = None
    for n in (33, 65, 129, 257, 513, 1025):
        m, weights = sinh_rule(sd, scale, n)
        density = weights * np.exp(-0.5 * (m / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        mean = density @ function(m)
        if previous is not None:
            error = np.abs(mean - previous)
            if (error <= tolerance * np.abs(mean)).all():
                break
        previous = mean
    return mean, error


def sinh_rule(sd, scale, n):
    """Nodes and weights on +-9 sd, crowded around 0 on the given scale."""
    a = min(scale, 3 * sd)
    reach = np.arcsinh(9 * sd / a)
    t = np.linspace(-reach, reach, n)
    return a * np.sinh(t), a * np.cosh(t) * (t[1] - t[0])


def symmetric_matrices(z, n_tokens):
    """Symmetric Gaussian matrices of variance 1 + delta_ab from (n, T(T+1)/2) standard normals."""
    rows, columns = np.triu_indices(n_tokens)
    out = np.empty((z.shape[0], n_tokens, n_tokens), dtype=z.dtype)
    out[:, rows, columns] = z
    out[:, columns, rows] = z
    diagonal = np.arange(n_tokens)
    out[:, diagonal, diagonal] *= np.sqrt(2.0)
    return out
