"""Priors: what an interaction matrix of a given kind can look like."""

from sklearn_aim.priors.base import Prior
from sklearn_aim.priors.bipartite import BipartitePrior
from sklearn_aim.priors.small_width import SmallWidthPrior
from sklearn_aim.priors.spectral import SpectralPrior
from sklearn_aim.priors.wishart import WishartPrior

PRIORS = {"wishart": WishartPrior, "bipartite": BipartitePrior}

__all__ = ["PRIORS", "BipartitePrior", "Prior", "SmallWidthPrior", "SpectralPrior", "WishartPrior", "make_prior"]


def make_prior(width_ratio, tied=True, name="auto"):
    """Prior of the interaction at one width ratio.

    Parameters
    ----------
    width_ratio : float
        rho = r/d >= 0; 0 is the small-width limit, in which sample complexities count n/(d r).
    tied : bool, default=True
        Keys and queries share their weights.
    name : str, default="auto"
        A key of `PRIORS`. "auto": Gaussian factors, "wishart" when tied, else "bipartite".

    Returns
    -------
    Prior
    """
    if name == "auto":
        if width_ratio == 0:
            return SmallWidthPrior(tied)
        name = "wishart" if tied else "bipartite"
    if name not in PRIORS:
        raise ValueError(f"prior={name!r} is not known: use 'auto' or one of {sorted(PRIORS)}.")
    prior_class = PRIORS[name]
    if prior_class.tied != tied:
        raise ValueError(f"prior={name!r} is for tied={prior_class.tied}, but tied={tied}: use prior='auto'.")
    if width_ratio == 0:
        raise ValueError(f"width_ratio=0 has a limit for prior='auto' alone, not for prior={name!r}: use a ratio > 0.")
    return prior_class(width_ratio)
