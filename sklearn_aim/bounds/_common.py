"""What bounds share: checks of sample complexities and damping, the form of answers, recovery in closed form."""

import numpy as np

# sample complexities whose errors can still be told from 0 in double precision
_MOST = 1e100


def check_alpha(bound, alpha, scale):
    """Sample complexities as an array; None is that of the estimator which the bound was made from.

    Parameters
    ----------
    bound : BaseEstimator
    alpha : float, array-like or None
    scale : str
        What it is, for messages: "n/d^2".
    """
    if alpha is None:
        if not hasattr(bound, "sample_complexity_"):
            raise ValueError(f"alpha=None needs a bound made by from_estimator: pass the sample complexity {scale}.")
        alpha = bound.sample_complexity_
    try:
        values = np.asarray(alpha, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"alpha={alpha!r} must be a number or an array of numbers, sample complexities {scale}."
        ) from error
    if not ((values >= 0) & (values <= _MOST)).all():
        raise ValueError(
            f"alpha={alpha!r} must be finite and >= 0, at most {_MOST:g}: it is a sample complexity {scale}."
        )
    return values


def check_damping(damping, n_iter):
    """Fraction of the old estimate kept at each of n_iter steps, from one number or one a step."""
    try:
        kept = np.asarray(damping, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"damping={damping!r} must be a number or an array of n_iter={n_iter} numbers.") from error
    if kept.ndim and kept.shape != (n_iter,):
        raise ValueError(f"damping has shape {kept.shape}, but must be one number or n_iter={n_iter} of them.")
    if not ((kept >= 0) & (kept < 1)).all():
        raise ValueError(f"damping={damping!r} must be >= 0 and below 1: at 1 nothing is ever learned.")
    return np.broadcast_to(kept, (n_iter,))


def number(values):
    """A float for 0-d answers."""
    values = np.asarray(values)
    return float(values) if values.ndim == 0 else values


def formula_threshold(channel, prior):
    """Alpha at which q_hat V = alpha k, k = lim V E||G||^2, has its root at infinity; infinite for discrete labels."""
    constant = channel.continuous_information(prior.second_moment)
    return prior.recovery_information / constant if constant > 0 else np.inf


def antisymmetric_threshold(channel, prior):
    """Alpha from which antisymmetric indices outnumber the unknowns that the symmetric part leaves."""
    unknown = prior.antisymmetric_information
    if unknown == 0:
        return 0.0
    return unknown / channel.antisymmetric_pairs if channel.antisymmetric_pairs else np.inf
