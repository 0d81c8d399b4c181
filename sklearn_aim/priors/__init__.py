"""Priors: what an interaction matrix of a given kind can look like."""

from sklearn_aim.priors.base import Prior
from sklearn_aim.priors.bipartite import BipartitePrior
from sklearn_aim.priors.small_width import SmallWidthPrior
from sklearn_aim.priors.spectral import SpectralPrior
from sklearn_aim.priors.wishart import WishartPrior

PRIORS = {"wishart": WishartPrior, "bipartite": BipartitePrior}

__all__ = ["PRIORS", "BipartitePrior", "Prior", "SmallWidthPrior", "SpectralPrior", "WishartPrior", "make_prior"]


def make_prior(width_ratio, tied=True):
    """Prior of the interaction at one width ratio.

    Parameters
    ----------
    width_ratio : float
        rho = r/d >= 0; 0 is the small-width limit, in which sample complexities count n/(d r).
    tied : bool, default=True
        Keys and queries share their weights.

    Returns
    -------
    Prior
    """
    if width_ratio == 0:
        return SmallWidthPrior(tied)
    return PRIORS["wishart" if tied else "bipartite"](width_ratio)
