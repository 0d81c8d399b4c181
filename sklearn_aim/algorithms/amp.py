"""Approximate message passing for one attention layer (arXiv 2506.01582, section 1.5 of its theory).

    omega = H(S) - V G_previous          cavity means of the indices
    G     = channel(y, omega, V)
    q_hat = alpha E||G||^2
    R     = S + (sum_n X_n^T G_n X_n - sum_n tr(G_n) I)/(q_hat d^(3/2))
    S, V  = denoise(R; q_hat), mmse(q_hat)

started at the prior mean. The cavity means are what the other sequences predict for a sequence, so the mean of
log Z(y, omega, V) is a leave-one-out log likelihood: it tells good iterates from bad ones without a teacher.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sklearn_aim.algorithms.history import add_answer, columns
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.indices import attention_indices, back_projection

# fraction of the old estimate kept at each step, and how it grows where a window of steps brought no progress
_DAMPING = 0.3
_DAMPING_MOST = 0.7
_DAMPING_LAST = 0.9
_DAMPING_STEP = 0.2
# after this many steps, each shorter than the last, this much less of the old estimate is kept, down to the least
_EVEN = 4
_EASE = 0.1
_DAMPING_LEAST = 0.1
_WINDOW = 15
_WARM_UP = 10
# entries of R beyond this size are a divergence
_RUNAWAY = 1e8
# measured over expected ||G||^2 above which V is taken to be larger
_MOST_ENERGY = 1.5
# iterations without a better iterate, nor smaller steps, after which the run is given up
_PATIENCE = 40


@dataclass
class AMPResult:
    """Outcome of `amp`.

    Attributes
    ----------
    interaction : ndarray of shape (d, d)
    information, estimation_error, noise : float
        q_hat, V and Delta of that iterate.
    converged : bool
    n_iter : int
        Iterations run.
    history : dict of ndarray of shape (n_iter,)
    gradient : ndarray of shape (n, T, T) or None
        G before that iterate, with which another run can go on; None at the very start.
    coefficients : ndarray of shape (d + 1,) or None
        (b, tau) for that iterate, see `KeyBias`.
    """

    interaction: np.ndarray
    information: float
    estimation_error: float
    noise: float
    converged: bool
    n_iter: int
    history: dict = field(repr=False)
    gradient: np.ndarray | None = field(repr=False)
    coefficients: np.ndarray | None = field(repr=False, default=None)


def amp(
    x,
    code,
    channel,
    prior,
    *,
    damping="adaptive",
    clamp=True,
    max_iter=200,
    tol=1e-2,
    estimate_noise=False,
    bias=None,
    start=None,
    callback=None,
):
    """Posterior mean of S from sequences and encoded labels.

    Parameters
    ----------
    x : ndarray, SampleBlocks or DaskBlocks of shape (n, T, d)
    code : ndarray
        `channel.encode(y)`.
    channel : Channel
    prior : SpectralPrior
    damping : "adaptive" or float in [0, 1)
        Fraction of the old estimate that is kept.
    clamp : bool
        Keep eigenvalues outside the limiting bulk from being amplified, see `SpectralPrior.denoise_spectrum`.
    max_iter : int
    tol : float
        Stop when ||S_new - S_old||_F / sqrt(d) is below tol * sqrt(V), or when V says exact recovery.
    estimate_noise : bool
        Fit Delta to the cavity likelihood at each step.
    bias : KeyBias, optional
        Key bias and offset of the diagonal, profiled out at each step.
    start : tuple (S, V, G), optional
        Where another run ended. G (m, T, T), m <= n, is its `AMPResult.gradient` for the first m sequences, if these
        are the same; the others are new to it. None: unknown. Default: the prior mean.
    callback : callable, optional
        Called with a dict after each iteration ("iteration", "interaction" and the history's columns); a dict that it
        returns is added to the history.

    Returns
    -------
    AMPResult
        The last iterate if the run converged and no earlier one was significantly better, else the best one.
    """
    x = as_blocks(x)
    n_samples, _, n_features = x.shape
    alpha = n_samples / n_features**2
    # the part of what labels show that is left for S
    left = 1.0 if bias is None else bias.left
    scale = np.sqrt(n_features * prior.second_moment)
    adaptive = isinstance(damping, str)
    kept = _DAMPING if adaptive else float(damping)

    if start is None:
        interaction, error, gradient = prior.mean_eigenvalue * np.eye(n_features), prior.prior_error, None
    else:
        interaction, error, gradient = start
    if gradient is not None:
        gradient = np.concatenate(
            [gradient, np.zeros((n_samples - len(gradient), *gradient.shape[1:]), gradient.dtype)]
        )
    # a start that has seen these labels, or comes from another prior, is no leave-one-out prediction at first
    trusted = 0 if start is None else _WARM_UP
    information = 0.0
    change = np.inf
    adapted = 0
    least = _DAMPING_LEAST
    # errors below this are exact recovery, in the precision of the data
    recovered = (1e-10 if x.dtype == np.float64 else 1e-8) * prior.second_moment
    best = {"iteration": 0, "log_likelihood": -np.inf}
    rows = []
    converged = False
    for iteration in range(max_iter):
        omega = cavity_means(x, interaction, error, gradient)
        if bias is not None:
            bias.add(omega)
        reaction = gradient
        if estimate_noise:
            fitted = channel.estimate_noise(code, omega, error)
            if fitted > 0:
                fitted += (fitted + error) * (1 / left - 1)
            channel = channel.with_noise(fitted if iteration == 0 else 0.5 * (channel.noise + fitted))
        # overflow is noticed below
        with np.errstate(over="ignore", invalid="ignore"):
            log_z, gradient = channel.posterior(code, omega, error)
            energy = _energy(gradient)
        expected = left * channel.expected_energy(omega, error)
        if not (0 < expected < np.inf and energy < np.inf):
            break
        if energy > _MOST_ENERGY * expected:
            # labels contradict V: few data, or data that is not the model's. A larger V keeps steps in proportion
            error *= energy / (_MOST_ENERGY * expected)
            log_z, gradient = channel.posterior(code, omega, error)
            energy = _energy(gradient)
            expected = left * channel.expected_energy(omega, error)
        log_likelihood = float(np.mean(log_z))
        significant = 2 * float(np.std(log_z)) / np.sqrt(n_samples)
        if not (np.isfinite(log_likelihood) and np.isfinite(gradient).all()):
            break
        if log_likelihood > best["log_likelihood"] and iteration >= trusted:
            best = {
                "iteration": iteration,
                "log_likelihood": log_likelihood,
                "interaction": interaction,
                "information": information,
                "error": error,
                "noise": channel.noise,
                "gradient": reaction,
            }
        if (
            adaptive
            and estimate_noise
            and log_likelihood < best["log_likelihood"] - 3 * significant
            and kept < _DAMPING_LAST
        ):
            # far worse than before, and not for want of noise: go back, with shorter steps
            kept = min(kept + _DAMPING_STEP, _DAMPING_LAST)
            adapted = iteration
            interaction, error, gradient = best["interaction"], best["error"], None
            channel = channel.with_noise(best["noise"])
            continue
        stale = min(iteration - best["iteration"], len(rows))
        if stale > _PATIENCE and rows[-1]["residual"] > 0.7 * rows[-_PATIENCE]["residual"]:
            break
        if adaptive and iteration - adapted >= _WINDOW and change > 0.8 * rows[-_WINDOW]["residual"]:
            # neither contracting nor on its way: steps are too long
            kept = min(kept + _DAMPING_STEP, _DAMPING_MOST)
            adapted = iteration

        if adaptive and kept > least and iteration - adapted >= _EVEN:
            steps = [row["residual"] for row in rows[-_EVEN:]]
            if all(after < 0.97 * before for before, after in pairwise(steps)):
                kept = max(kept - _EASE, least)
                adapted = iteration
        elif adaptive and kept < _DAMPING and len(rows) > 1 and rows[-1]["residual"] > rows[-2]["residual"]:
            # too fast for this problem: never again
            kept = least = _DAMPING
            adapted = iteration

        # not the measured energy: that feeds back (large G, small V, larger G) and can freeze a run early
        information = alpha * expected
        observation = x.total(back_projection, channel.tied, parts=(gradient,))
        observation /= information * n_features**1.5
        observation += interaction
        if not np.isfinite(observation).all() or np.abs(observation).max() > _RUNAWAY:
            break
        denoised = prior.denoise(observation, information, clamp)
        del observation
        change = float(np.linalg.norm(denoised - interaction)) / scale
        if kept > 0:
            denoised *= 1 - kept
            denoised += kept * interaction
        interaction = denoised
        error = (1 - kept) * float(prior.mmse(information)) + kept * error
        row = {
            "information": information,
            "estimation_error": error,
            "overlap": prior.second_moment - error,
            "residual": change,
            "log_likelihood": log_likelihood,
            "energy_ratio": energy / expected,
            "damping": kept,
            "noise": channel.noise,
        }
        if callback is not None:
            add_answer(row, callback({"iteration": iteration, "interaction": interaction, **row}))
        rows.append(row)
        if change < tol * np.sqrt(error / prior.second_moment) or error < recovered:
            converged = True
            break
    # labels that contradict the model by more than all of the prior's spread leave nothing to trust
    converged = converged and error <= prior.prior_error
    last = {
        "interaction": interaction,
        "information": information,
        "error": error,
        "noise": channel.noise,
        "gradient": gradient,
    }
    settled = converged and rows[-1]["log_likelihood"] >= best["log_likelihood"] - significant
    chosen = last if settled or "interaction" not in best else best
    return AMPResult(
        chosen["interaction"],
        chosen["information"],
        min(chosen["error"], prior.prior_error),
        chosen["noise"],
        settled,
        len(rows),
        columns(rows),
        chosen["gradient"],
        None if bias is None else bias.add(cavity_means(x, chosen["interaction"], chosen["error"], chosen["gradient"])),
    )


def cavity_means(x, interaction, error, gradient):
    """omega = H(S) - V G, what the other sequences predict for each."""
    omega = x.collect(attention_indices, interaction.astype(x.dtype, copy=False))
    if gradient is not None:
        omega -= gradient.dtype.type(error) * gradient
    return omega


def _energy(gradient):
    """Mean over sequences of ||G||_F^2."""
    return float(np.einsum("nab,nab->", gradient, gradient, dtype=float)) / gradient.shape[0]
