"""LayerOverlapDisplay: how well each layer of rank one is known, beside what can be known."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from sklearn_aim.bounds import DeepBayesOptimalBound
from sklearn_aim.metrics import cosine_similarity
from sklearn_aim.parameters import final_estimator
from sklearn_aim.plotting._style import (
    COLORS,
    DASHES,
    INK,
    MARKERS,
    axes_of,
    legend,
    options,
    repeated,
    sample_complexity_label,
    vector,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# points of the curve between two thresholds, and beyond the last
_BETWEEN = 9


class LayerOverlapDisplay:
    """Overlaps of the layers of deep attention against the sample complexity.

    Parameters
    ----------
    alpha : array-like of shape (n_points,)
        Sample complexities n/d of the curves, increasing.
    overlaps : array-like of shape (n_points, n_layers)
        Bayes-optimal overlaps, layer 1 first.
    thresholds : dict of int to float, optional
        Weak-recovery threshold by layer.
    measured_alpha : array-like of shape (n_fits,), optional
        Sample complexities of fits.
    measured : array-like of shape (n_fits, n_layers) or (n_fits, n_repeats, n_layers), optional
        Their overlaps, or squared cosines; of repeated ones the mean is drawn, with its standard deviation as a bar.

    Attributes
    ----------
    lines_ : list of Line2D
        A curve a layer, layer 1 first.
    threshold_lines_ : dict of int to Line2D
    errorbars_ : list of ErrorbarContainer
        Points of each layer; empty without measurements.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import DeepBayesOptimalBound, LayerOverlapDisplay
    >>> display = LayerOverlapDisplay.from_bound(DeepBayesOptimalBound(n_layers=1), alpha=[0.1, 0.3])
    >>> [float(round(x, 4)) for x in display.alpha]  # the threshold is a corner of the curve
    [0.1, 0.1667, 0.3]
    """

    def __init__(
        self,
        *,
        alpha: ArrayLike,
        overlaps: ArrayLike,
        thresholds: dict[int, float] | None = None,
        measured_alpha: ArrayLike | None = None,
        measured: ArrayLike | None = None,
    ):
        self.alpha = alpha
        self.overlaps = overlaps
        self.thresholds = thresholds
        self.measured_alpha = measured_alpha
        self.measured = measured

    @classmethod
    def from_bound(
        cls, bound: DeepBayesOptimalBound, alpha: ArrayLike | None = None, *, ax: "Axes | None" = None, **kwargs
    ) -> "LayerOverlapDisplay":
        """Draw the bound alone.

        Parameters
        ----------
        bound : DeepBayesOptimalBound
            With effort=0.1 the curves of two layers take up to a minute, and their errors do not show.
        alpha : array-like of shape (n_points,), optional
            Sample complexities; thresholds are added to them. Default: from 0 to beyond where all is learned.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        LayerOverlapDisplay
        """
        return cls(**_curves(bound, alpha)).plot(ax, **kwargs)

    @classmethod
    def from_predictions(
        cls,
        alpha: ArrayLike,
        overlaps: ArrayLike,
        bound: DeepBayesOptimalBound,
        *,
        curve_alpha: ArrayLike | None = None,
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "LayerOverlapDisplay":
        """Draw measured overlaps beside the bound.

        Parameters
        ----------
        alpha : array-like of shape (n_fits,)
            Sample complexities n/d of the fits.
        overlaps : array-like of shape (n_fits, n_layers) or (n_fits, n_repeats, n_layers)
            Overlaps, or squared `cosine_similarity` with true weights.
        bound : DeepBayesOptimalBound
        curve_alpha : array-like of shape (n_points,), optional
            Sample complexities of the bound's curves.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        LayerOverlapDisplay
        """
        alpha = vector(alpha, "alpha", low=0)
        curves = _curves(bound, curve_alpha, alpha.max())
        measured = repeated(overlaps, "overlaps", alpha.size, last=(bound.n_layers,))
        return cls(**curves, measured_alpha=alpha, measured=measured).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator | Sequence[BaseEstimator],
        *,
        weights: ArrayLike | None = None,
        bound: DeepBayesOptimalBound | None = None,
        effort: float = 0.1,
        curve_alpha: ArrayLike | None = None,
        ax: "Axes | None" = None,
        name: str | None = None,
        **kwargs,
    ) -> "LayerOverlapDisplay":
        """Draw one fit or several beside the bound.

        Parameters
        ----------
        estimator : fitted AMPDeepAttentionRegressor, or sequence of them
            Of one setting, at any sample sizes. With `weights` also gradient descent, see
            `DeepBayesOptimalBound.from_estimator`.
        weights : array-like of shape (n_layers, n_features), optional
            True weights: points are squared cosines with them. Or a list of such, one a fit. As they come from
            `make_deep_attention_sequences`, too. Default: the overlaps that the fits take themselves to have.
        bound : DeepBayesOptimalBound, optional
            Default: that of the (first) fit, with `effort`.
        effort : float, default=0.1
            Of the default bound.
        curve_alpha : array-like of shape (n_points,), optional
            Sample complexities of the bound's curves.
        ax : Axes, optional
            Default: a new figure.
        name : str, optional
            Of the points in the legend. Default: what they are.
        **kwargs
            Of `plot`.

        Returns
        -------
        LayerOverlapDisplay
        """
        fits = list(estimator) if isinstance(estimator, (list, tuple)) else [estimator]
        if not fits:
            raise ValueError("estimator=[] must hold at least one fitted estimator.")
        bounds = [DeepBayesOptimalBound.from_estimator(fit) for fit in fits]
        if len({tuple(one.get_params().items()) for one in bounds}) > 1:
            raise ValueError(
                "estimator holds fits of different settings: draw those of one n_layers, skip and n_tokens."
            )
        alpha = [one.sample_complexity_ for one in bounds]
        fits = [final_estimator(fit) for fit in fits]
        if weights is None:
            if not all(hasattr(fit, "overlap_") for fit in fits):
                raise TypeError(f"estimator={estimator!r} knows no overlaps: pass the true weights.")
            points = [np.diag(fit.overlap_) for fit in fits]
        else:
            weights = _weights(weights)
            each = weights if weights.ndim == 3 else [weights] * len(fits)
            if len(each) != len(fits):
                raise ValueError(f"weights holds those of {len(each)} fits, but estimator has {len(fits)}.")
            points = [cosine_similarity(fit, true) ** 2 for fit, true in zip(fits, each, strict=True)]
        if name is None:
            name = "overlap, as the fit has it" if weights is None else "squared cosine with the true weights"
        bound = bounds[0].set_params(effort=effort) if bound is None else bound
        return cls.from_predictions(alpha, points, bound, curve_alpha=curve_alpha, ax=ax, name=name, **kwargs)

    def plot(
        self, ax: "Axes | None" = None, *, name: str = "measured", errorbar_kw: dict | None = None
    ) -> "LayerOverlapDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        name : str, default="measured"
            Of the points in the legend.
        errorbar_kw : dict, optional
            Keywords for `Axes.errorbar` of all layers' points.

        Returns
        -------
        LayerOverlapDisplay
            Itself, with artists as attributes.
        """
        alpha = vector(self.alpha, "alpha", low=0)
        overlaps = np.asarray(self.overlaps, dtype=float)
        if overlaps.ndim != 2 or len(overlaps) != alpha.size:
            raise ValueError(
                f"overlaps has shape {overlaps.shape}, but must be (n_points, n_layers), n_points={alpha.size}."
            )
        n_layers = overlaps.shape[1]
        measured = None
        if self.measured_alpha is not None:
            at = vector(self.measured_alpha, "measured_alpha", low=0)
            measured = repeated(self.measured, "measured", at.size, last=(n_layers,))
        ax = axes_of(self, ax)
        self.lines_, self.errorbars_, self.threshold_lines_ = [], [], {}
        for layer in range(1, n_layers + 1):
            k = (layer - 1) % len(COLORS)
            which = "last" if layer == n_layers else "first" if layer == 1 else "middle"
            label = f"layer {layer}" + (f" ({which})" if n_layers > 1 else "")
            self.lines_ += ax.plot(alpha, overlaps[:, layer - 1], color=COLORS[k], ls=DASHES[k], lw=1.8, label=label)
            threshold = (self.thresholds or {}).get(layer, np.inf)
            if threshold <= alpha.max():
                self.threshold_lines_[layer] = ax.axvline(threshold, color=COLORS[k], lw=1, ls=(0, (1, 2)), zorder=1)
            if measured is not None:
                values = measured[:, :, layer - 1]
                spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
                style = {"fmt": MARKERS[k], "color": COLORS[k], "mec": INK, "ms": 6, "capsize": 3, "zorder": 3}
                style = options(style, errorbar_kw, "errorbar_kw")
                self.errorbars_.append(ax.errorbar(at, values.mean(axis=1), spread, **style))
        if measured is not None:
            ax.plot([], [], ls="none", marker="o", mfc="white", mec=INK, ms=6, label=name)
        if self.threshold_lines_:
            ax.plot([], [], color="0.45", lw=1, ls=(0, (1, 2)), label="weak recovery")
        ax.set(
            xlim=(0, alpha.max()),
            ylim=(-0.03, 1.05),
            xlabel=sample_complexity_label("n/d"),
            ylabel=r"overlap $Q_{\ell\ell}$",
        )
        # above: curves and points go through all of the axes
        legend(ax, "lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
        return self


def _curves(bound, alpha, reach=0.0):
    """Parameters of a display that come from a bound; thresholds are corners of the curves."""
    if not isinstance(bound, DeepBayesOptimalBound):
        raise TypeError(f"bound={bound!r} must be a DeepBayesOptimalBound.")
    thresholds = bound.weak_recovery_thresholds()
    finite = {layer: value for layer, value in thresholds.items() if np.isfinite(value)}
    if alpha is None:
        # a map of two tokens is two equations: exact recovery has its corner where they are as many as the unknowns
        nodes = sorted(finite.values()) + [bound.n_layers / 2] * (bound.n_tokens == 2)
        nodes = np.unique([0.0, *nodes, max(1.05 * reach, 1.25 * max(nodes))])
        # curves are steep behind a threshold
        parts = np.linspace(0, 1, _BETWEEN, endpoint=False) ** 1.5
        alpha = np.concatenate([left + (right - left) * parts for left, right in pairwise(nodes[1:])])
        alpha = np.concatenate([[0.0], alpha, nodes[-1:]])
    else:
        alpha = vector(alpha, "alpha", low=0)
    alpha = np.unique(alpha)
    overlaps = np.diagonal(bound.overlap(alpha), axis1=1, axis2=2)
    for layer, threshold in finite.items():
        if alpha[0] < threshold < alpha[-1]:
            at = np.searchsorted(alpha, threshold)
            if alpha[at] != threshold:
                row = [np.interp(threshold, alpha, column) for column in overlaps.T]
                row[layer - 1] = 0.0
                alpha, overlaps = np.insert(alpha, at, threshold), np.insert(overlaps, at, row, axis=0)
    return {"alpha": alpha, "overlaps": overlaps, "thresholds": thresholds}


def _weights(weights):
    """True weights (n_layers, n_features), or (n_fits, n_layers, n_features); layers may be columns."""
    try:
        array = np.asarray(weights, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError("weights must be arrays of numbers, (n_layers, n_features), or one such a fit.") from error
    array = array[..., 0] if array.ndim > 2 and array.shape[-1] == 1 else array
    if array.ndim not in (2, 3):
        raise ValueError(
            f"weights has shape {array.shape}, but must be (n_layers, n_features), or (n_fits, n_layers, n_features)."
        )
    return array
