"""What all bounds share: sample complexities."""

import numpy as np


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
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"alpha={alpha!r} must be finite and >= 0: it is a sample complexity {scale}.")
    return values
