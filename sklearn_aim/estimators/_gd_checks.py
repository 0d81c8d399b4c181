"""Checks of GDAttentionRegressor's parameters and labels."""

import numpy as np

from sklearn_aim.algorithms.attention_stack import LOSSES, SCALINGS
from sklearn_aim.channels import LINKS
from sklearn_aim.channels.labels import check_distributions, check_hidden
from sklearn_aim.parameters import (
    LARGEST,
    check_choice,
    check_flag,
    check_inverse_temperature,
    check_number,
    check_verbose,
    width_is_auto,
)

SOLVERS = ("auto", "lbfgs", "adam", "sgd")
DIFFERENTIABLE = ("identity", "softmax")


def check_parameters(est):
    """All that does not need the data."""
    check_flag(est.tied, "tied")
    check_number(est.n_layers, "n_layers", low=1, integer=True)
    check_number(est.skip, "skip", low=-np.inf)
    check_link(est)
    if width_is_auto(est.width) and est.n_layers > 1:
        raise ValueError(f"width='auto' is for one layer, not n_layers={est.n_layers!r}: give a number.")
    check_choice(est.scaling, "scaling", SCALINGS)
    if isinstance(est.center, str):
        check_choice(est.center, "center", ("auto", True, False))
    else:
        check_flag(est.center, "center")
    check_inverse_temperature(est.inverse_temperature)
    check_number(est.learning_rate, "learning_rate", strict=True, high=LARGEST)
    check_number(est.init_scale, "init_scale", strict=True)
    if check_number(est.momentum, "momentum") >= 1:
        raise ValueError(f"momentum={est.momentum!r} must be below 1: at 1 the velocity never decays.")
    for name in ("max_iter", "n_iter_no_change", "n_init"):
        check_number(getattr(est, name), name, low=1, integer=True)
    check_number(est.tol, "tol", high=LARGEST)
    check_number(est.weight_decay, "weight_decay")
    check_verbose(est.verbose)
    check_number(est.n_refreshes, "n_refreshes", integer=True)
    for name in ("fit_bias", "average", "early_stopping", "warm_start"):
        check_flag(getattr(est, name), name)
    fraction = check_number(est.validation_fraction, "validation_fraction", strict=True)
    if fraction >= 1:
        raise ValueError(f"validation_fraction={fraction!r} must be below 1: nothing would be left to learn from.")
    for name in ("batch_size", "n_jobs"):
        value = getattr(est, name)
        if value is not None:
            check_number(value, name, low=1 if name == "batch_size" else -np.inf, integer=True)
    if est.n_jobs == 0:
        raise ValueError("n_jobs=0 has no meaning: use None, a number of threads, or -1 for all cores.")


def check_link(est):
    """A link that has a derivative, and a loss and depth that fit it."""
    link = est.link
    if not isinstance(link, str) or link not in LINKS:
        raise (ValueError if isinstance(link, str) else TypeError)(
            f"link={link!r} must be one of {list(DIFFERENTIABLE)}."
        )
    if link not in DIFFERENTIABLE:
        raise ValueError(
            f"link={link!r} can't be learned by gradient descent"
            + (": it is constant almost everywhere" if link == "hardmax" else "; its derivative is not known here")
            + f". Use AMPAttentionRegressor(link={link!r}), or link='softmax' with a large inverse_temperature."
        )
    check_choice(est.loss, "loss", LOSSES)
    if est.loss != "squared_error" and link != "softmax":
        raise ValueError(f"loss={est.loss!r} compares distributions, link={link!r} gives none: use 'squared_error'.")
    if est.n_layers > 1 and link != "softmax":
        raise ValueError(f"n_layers={est.n_layers!r} needs link='softmax': link={link!r} is for one layer.")


def check_solver(est, minibatches=False):
    """The solver, "auto" resolved."""
    solver = check_choice(est.solver, "solver", SOLVERS)
    if minibatches and width_is_auto(est.width):
        raise ValueError("width='auto' needs all sequences at once: call fit, or give partial_fit a number.")
    if solver == "auto":
        return "adam" if minibatches or est.batch_size is not None else "lbfgs"
    if solver == "lbfgs" and est.batch_size is not None:
        raise ValueError(
            f"batch_size={est.batch_size!r} needs solver='adam' or 'sgd': solver='lbfgs' takes all sequences at once."
        )
    if solver == "lbfgs" and minibatches:
        raise ValueError("partial_fit needs solver='adam' or 'sgd' (or 'auto'): solver='lbfgs' takes all data at once.")
    return solver


def check_labels(est, maps, allowed):
    """Maps for the loss: rows that are distributions where it compares such, positive ones for log-ratios."""
    if est.loss == "squared_error":
        if allowed is not None:
            check_hidden(maps, allowed)
        return maps
    positive = est.loss == "log_ratio"
    mend = " Zeros suit loss='cross_entropy'." if positive else ""
    sums = check_distributions(maps, f"loss={est.loss!r}", mend, positive, allowed)
    # what rounding left of the sums would be taken for a loss below zero
    return (maps / np.where(sums > 0, sums, 1)[..., None]).astype(maps.dtype)
