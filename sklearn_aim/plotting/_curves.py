"""The curves of bounds: over which sample complexities, and at which points."""

import numpy as np
from scipy.interpolate import PchipInterpolator

from sklearn_aim.bounds import BayesOptimalBound
from sklearn_aim.parameters import check_choice
from sklearn_aim.plotting._style import vector

#: what can be drawn against the sample complexity, and its axis label
QUANTITIES = {
    "estimation_error": r"estimation error $\|S - \hat S\|_F^2/d$",
    "test_error": r"test error $\mathrm{E}\,\|y - \hat y\|_F^2$",
}
# points of a curve: vectorised, and one root search a point
_FINE, _COARSE = 300, 50
# points at which test errors are averaged
_NODES = 24
# part of what there is to learn that the curve leaves out on the right, where nothing is recovered exactly
_TAIL = 0.1


def check_bound(bound):
    """A BayesOptimalBound."""
    if not isinstance(bound, BayesOptimalBound):
        raise TypeError(f"bound={bound!r} must be a BayesOptimalBound.")
    return bound


def reach_of(bound):
    """Sample complexity up to which a bound is worth drawing."""
    threshold = bound.recovery_threshold()
    if np.isfinite(threshold):
        return 4 / 3 * threshold
    # so many features that rounding to whole sequences does not show
    return bound.sample_size(_TAIL, 10**6, width=10**6) / 1e12


def grid_of(bound, top):
    """Sample complexities from 0 to top, with a node at exact recovery, where the curve has a corner."""
    # links for which E||G||^2 has a closed form are solved for all at once
    fine = bound.link in ("softmax", "identity")
    alpha = np.linspace(0, top, _FINE if fine else _COARSE)
    threshold = bound.recovery_threshold()
    return np.sort(np.append(alpha, threshold)) if threshold < top else alpha


def curve_of(bound, alpha, quantity, reach=0.0):
    """Parameters of a display that come from a bound."""
    check_bound(bound)
    check_choice(quantity, "quantity", list(QUANTITIES))
    if alpha is None:
        top = reach_of(bound)
        alpha = grid_of(bound, max(top, 1.05 * reach))
        values = _test_errors(bound, alpha) if quantity == "test_error" else bound.estimation_error(alpha)
    else:
        alpha = np.sort(vector(alpha, "alpha", low=0))
        values = getattr(bound, quantity)(alpha)
    return {
        "alpha": alpha,
        "bound_error": values,
        "recovery_threshold": bound.recovery_threshold(),
        "quantity": quantity,
        "scale": "n/(d r)" if bound.width_ratio == 0 else "n/d^2",
    }


def _test_errors(bound, alpha):
    """Test errors on a grid. They are averages, dear one by one, and a smooth function of the estimation error."""
    known = bound.estimation_error(alpha)
    _, first = np.unique(known, return_index=True)
    # evenly spaced in the estimation error, its ends included
    nodes = np.unique(np.searchsorted(-known, -np.linspace(known[0], known[-1], _NODES)))
    nodes = np.intersect1d(np.union1d(nodes, first[[0, -1]]), first)[::-1]
    if nodes.size < 2:
        return bound.test_error(alpha)
    return PchipInterpolator(known[nodes], bound.test_error(alpha[nodes]))(known)
