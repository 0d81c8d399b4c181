"""Checks of AMPAttentionRegressor's parameters."""

from sklearn_aim.channels import LINKS, GaussianChannel
from sklearn_aim.parameters import LARGEST, check_choice, check_flag, check_number, check_verbose, width_is_auto


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


def _check_linear(est):
    """What needs a link that shows linear combinations of the indices."""
    link = LINKS.get(est.link) if isinstance(est.link, str) else None
    if link is None or issubclass(link, GaussianChannel):
        return
    asked = {
        "fit_bias=True": est.fit_bias,
        f"solver={est.solver!r}": est.solver != "amp",
        "width='auto'": width_is_auto(est.width),
    }
    for name, wanted in asked.items():
        if wanted:
            raise ValueError(
                f"{name} needs a link that shows linear combinations of the indices, 'softmax' or 'identity', not "
                f"link={est.link!r}."
            )
