"""Approximate message passing for a deep stack of rank-one attention layers (arXiv 2502.00901).

    omega = W X^T/sqrt(d) - V g_previous                        (L, T), cavity means of the layers' indices
    g     = V^{-1} (E[z|y, omega] - omega)
    A     = -(1/d) sum_n dg_n/domega = (1/d) sum_n V^{-1} (V - Cov[z|y, omega]) V^{-1}     (L, L), summed over tokens
    W     = (I + A)^{-1} (A W + sum_n g_n X_n/sqrt(d)),   V = (I + A)^{-1}

On average A is (1/d) sum_n g_n g_n^T too, once estimates have the overlap with the truth that V says. A random start
has none: then squares of g take its size for knowledge, and message passing fails, while the derivative does not.

A layer that is not learned yet is kept at a small norm: it turns to the direction that it will grow in, and grows once
the other layers are known well enough.
"""

from dataclasses import dataclass, field

import numpy as np

from sklearn_aim.algorithms.history import add_answer, columns
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.indices import layer_indices, layer_projection

# mean square of the entries of a random start, and of a layer that is not learned
START_OVERLAP = 1e-4
# what is measured over what V says of ||z - omega||^2, above which V is taken to be larger
_MOST_ENERGY = 1.5
# posterior variances below this are exact recovery, in double and in single precision
_RECOVERED = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-5}
# a layer of a smaller norm that does not grow is not learned
_FADED = 1e-3
# least precision of a layer: by chance the labels may ask for a negative one
_LEAST = 1e-6
# iterations without a better iterate after which the run is given up
_PATIENCE = 60


@dataclass
class DeepAMPResult:
    """Outcome of `deep_amp`.

    Attributes
    ----------
    weights : ndarray of shape (L, d)
    covariance : ndarray of shape (L, L)
        V.
    converged : bool
    n_iter : int
    history : dict of ndarray, the first axis of length n_iter
    """

    weights: np.ndarray
    covariance: np.ndarray
    converged: bool
    n_iter: int
    history: dict = field(repr=False)


def deep_amp(x, u, known, channel, weights, covariance, *, damping, max_iter, tol, callback=None):
    """Posterior mean of the weights of every layer.

    Parameters
    ----------
    x : ndarray, SampleBlocks or DaskBlocks of shape (n, T, d)
    u, known : ndarray of shape (n, T), (n,)
        From `channel.encode`.
    channel : DeepChannel
    weights, covariance : ndarray of shape (L, d), (L, L)
        Start: means and V.
    damping : float in [0, 1)
        Fraction of the old estimate that is kept.
    max_iter : int
    tol : float
        Stop when every layer moves by less than this fraction of its posterior standard deviation and none is on
        its way up.
    callback : callable, optional
        Called with a dict after each iteration; a dict that it returns is added to the history.

    Returns
    -------
    DeepAMPResult
        The last iterate if the run converged, else the one of the largest leave-one-out likelihood.
    """
    x = as_blocks(x)
    n_samples, n_tokens, n_features = x.shape
    n_layers = len(weights)
    root = np.sqrt(n_features)
    identity = np.eye(n_layers)
    u = u[known]
    g, reaction = np.zeros((2, n_samples, n_layers, n_tokens))
    best = {"log_likelihood": -np.inf, "iteration": 0}
    recovered = _RECOVERED[x.dtype]
    rows, converged = [], False
    for iteration in range(max_iter):
        omega = x.collect(layer_indices, weights).astype(float) - reaction
        posterior = channel.posterior(u, omega[known], covariance)
        ratio = _energy_ratio(posterior, omega[known], covariance)
        if not np.isfinite(ratio).all():
            break
        if ratio.max() > _MOST_ENERGY:
            # labels contradict V: few data, or data that is not the model's. A larger V keeps steps in proportion
            scale = np.sqrt(np.clip(ratio / _MOST_ENERGY, 1, 100))
            covariance = covariance * scale[:, None] * scale
            posterior = channel.posterior(u, omega[known], covariance)
        log_likelihood = float(np.mean(posterior.log_z))
        residual = np.linalg.solve(covariance, (posterior.mean - omega[known]).transpose(1, 0, 2).reshape(n_layers, -1))
        if not (np.isfinite(log_likelihood) and np.isfinite(residual).all()):
            break
        if log_likelihood > best["log_likelihood"]:
            best = {
                "log_likelihood": log_likelihood,
                "iteration": iteration,
                "weights": weights,
                "covariance": covariance,
            }
        elif iteration - best["iteration"] > _PATIENCE:
            break
        g[known] = residual.reshape(n_layers, -1, n_tokens).transpose(1, 0, 2)
        precision = _precision(posterior, covariance, n_features)
        field_ = x.total(layer_projection, parts=(g,))
        new = np.linalg.solve(identity + precision, precision @ weights + field_ / root)
        new_covariance = np.linalg.inv(identity + precision)
        change = np.sqrt(np.mean((new - weights) ** 2, axis=1))
        before, after = np.mean(weights**2, axis=1), np.mean(new**2, axis=1)
        # means, their reaction on the indices and variances are damped alike
        weights = (1 - damping) * new + damping * weights
        covariance = (1 - damping) * new_covariance + damping * covariance
        reaction = (1 - damping) * np.einsum("lm,nma->nla", new_covariance, g) + damping * reaction
        weights *= np.maximum(1, np.sqrt(START_OVERLAP / np.maximum(np.mean(weights**2, axis=1), 1e-300)))[:, None]
        spread = np.sqrt(np.diag(covariance))
        row = {
            "overlap": identity - covariance,
            "weight_norm": after,
            "residual": change / spread,
            "log_likelihood": log_likelihood,
            "energy_ratio": ratio,
            "integration_error": float(np.mean(posterior.error)),
        }
        if callback is not None:
            state = {"iteration": iteration, "weights": weights.copy(), "covariance": covariance.copy(), **row}
            add_answer(row, callback(state))
        rows.append(row)
        still = change < tol * spread
        # a layer that is not learned is small, and settled only if it would shrink
        resting = (change < 0.1 * np.sqrt(after)) | ((after < _FADED) & (after < before))
        if (still & resting).all() or spread.max() ** 2 < recovered:
            converged = True
            break
    chosen = best if not converged and "weights" in best else {"weights": weights, "covariance": covariance}
    covariance = chosen["covariance"]
    # labels that contradict the model by more than all of the prior's spread leave nothing to trust
    excess = np.sqrt(np.maximum(np.diag(covariance), 1))
    converged = bool(converged and excess.max() < 1 + 1e-6)
    return DeepAMPResult(chosen["weights"], covariance / excess[:, None] / excess, converged, len(rows), columns(rows))


def _energy_ratio(posterior, omega, covariance):
    """E||z - omega||^2 under the posterior over T V, for each layer: 1 on average if V is right."""
    n_tokens = omega.shape[2]
    second = np.einsum("nlala->nl", posterior.second)
    distance = second - 2 * np.einsum("nla,nla->nl", posterior.mean, omega) + np.einsum("nla,nla->nl", omega, omega)
    return distance.mean(axis=0) / (n_tokens * np.diag(covariance))


def _precision(posterior, covariance, n_features):
    """A, with its negative directions, which are chance, cut off."""
    n, _, n_tokens = posterior.mean.shape
    inverse = np.linalg.inv(covariance)
    precision = (n * n_tokens * inverse - inverse @ posterior.covariance.sum(axis=0) @ inverse) / n_features
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    return (vectors * np.maximum(values, _LEAST)) @ vectors.T
