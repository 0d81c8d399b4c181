"""Checks of AMPAttentionRegressor's parameters, and of the size of its data."""

import numpy as np

from sklearn_aim.channels import LINKS, GaussianChannel
from sklearn_aim.estimators._deep_start import TOO_LARGE
from sklearn_aim.kernels.indices import largest_entries, largest_real_entries
from sklearn_aim.kernels.masks import padding
from sklearn_aim.parameters import LARGEST, check_choice, check_flag, check_number, check_verbose


def check_parameters(est):
    """All that does not need the data; answers damping, and whether the noise is to be estimated."""
    damping = est.damping
    if isinstance(damping, str):
        if damping != "adaptive":
            raise ValueError(f"damping={damping!r} must be 'adaptive' or a number in [0, 1).")
    elif check_number(damping, "damping") >= 1:
        raise ValueError(f"damping={damping!r} must be below 1: at 1 nothing is ever learned.")
    check_number(est.max_iter, "max_iter", low=1, integer=True)
    check_number(est.tol, "tol", high=LARGEST)
    check_verbose(est.verbose)
    for name in ("clamp", "fit_bias", "warm_start"):
        check_flag(getattr(est, name), name)
    check_choice(est.solver, "solver", ("amp", "annealed", "linear"))
    if est.whiten is not None:
        if isinstance(est.whiten, bool):
            raise TypeError(f"whiten={est.whiten!r} must be None or a number, the ridge of the TokenWhitener.")
        check_number(est.whiten, "whiten")
    _check_linear(est)
    if isinstance(est.noise, str):
        if est.noise != "estimate":
            raise ValueError(f"noise={est.noise!r} must be a number >= 0 or 'estimate'.")
        return damping, True
    # the variance of indices is 1
    check_number(est.noise, "noise", high=LARGEST)
    return damping, False


def check_tokens(x, allowed=None):
    """Refuse tokens, whitened if they are to be, from whose products nothing would be left in their precision."""
    with np.errstate(over="ignore"):
        if allowed is None:
            largest = float(x.collect(largest_entries).max())
        else:
            largest = float(x.collect(largest_real_entries, parts=(padding(allowed),)).max())
    if largest > TOO_LARGE:
        raise ValueError(f"X has entries up to {largest:.3g}: tokens must have unit variance. Use TokenWhitener.")


def encoded(channel, maps, est):
    """Labels as the channel takes them; those that show indices whose squares would not be finite are refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        code = channel.encode(maps)
    if isinstance(channel, GaussianChannel) and not float(np.abs(code).max()) <= LARGEST:
        raise ValueError(
            f"y shows attention indices beyond {LARGEST:.3g}, but these are of order 1: rescale y"
            + (f", or raise inverse_temperature={est.inverse_temperature!r}." if est.link == "softmax" else ".")
        )
    return code


def check_indices(indices):
    """Refuse indices of new sequences whose squares would overflow."""
    if not float(np.abs(indices).max()) < np.sqrt(np.finfo(indices.dtype).max):
        raise ValueError("X holds features too large for finite attention indices: scale it as in fit.")
    return indices


def _check_linear(est):
    """What needs a link that shows linear combinations of the indices."""
    link = LINKS.get(est.link) if isinstance(est.link, str) else None
    if link is None or issubclass(link, GaussianChannel):
        return
    asked = {
        "fit_bias=True": est.fit_bias,
        f"solver={est.solver!r}": est.solver != "amp",
        "width='auto'": isinstance(est.width, str) and est.width == "auto",
    }
    for name, wanted in asked.items():
        if wanted:
            raise ValueError(
                f"{name} needs a link that shows linear combinations of the indices, 'softmax' or 'identity', not "
                f"link={est.link!r}."
            )
