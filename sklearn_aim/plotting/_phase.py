"""PhaseDiagramDisplay: the bound over sample complexity and width."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from sklearn_aim.bounds import BayesOptimalBound
from sklearn_aim.parameters import check_choice, check_flag
from sklearn_aim.plotting._curves import QUANTITIES, check_bound, reach_of
from sklearn_aim.plotting._style import (
    COLORS,
    DASHED,
    INK,
    SEQUENTIAL,
    axes_of,
    lightness,
    sample_complexity_label,
    vector,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# grids by default: roots that are found for all alphas at once, and one by one
_FINE, _COARSE = (60, 40), (36, 20)
_WIDTHS = (0.02, 2.0)
# up to which the limit of small width is drawn
_SMALL_WIDTH = 0.3
# contours that are labelled
_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


class PhaseDiagramDisplay:
    """How small the error can be, over sample complexity and width ratio.

    Parameters
    ----------
    alpha : array-like of shape (n_alpha,)
        Sample complexities n/d^2, increasing.
    width_ratio : array-like of shape (n_widths,)
        Width ratios r/d, increasing.
    errors : array-like of shape (n_widths, n_alpha)
        The bound.
    recovery : array-like of shape (n_widths,), optional
        Sample complexity of exact recovery at each width; infinite: none.
    onset : float, optional
        Weak recovery in the limit of small width, alpha d/r = n/(d r): below it nothing is learned there. At any ratio
        above zero a little is learned from any number of sequences, and the line marks where that becomes much.
    quantity : {"estimation_error", "test_error"}, default="estimation_error"

    Attributes
    ----------
    mesh_ : QuadMesh
        Heat map of the errors.
    contours_ : QuadContourSet or None
    recovery_line_ : Line2D or None
    onset_line_ : Line2D or None
    colorbar_ : Colorbar or None
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import BayesOptimalBound, PhaseDiagramDisplay
    >>> display = PhaseDiagramDisplay.from_bound(BayesOptimalBound(), alpha=[0.1, 0.2, 0.3], width_ratio=[0.2, 0.5])
    >>> display.errors.shape
    (2, 3)
    >>> display.recovery
    array([0.09  , 0.1875])
    """

    def __init__(
        self,
        *,
        alpha: ArrayLike,
        width_ratio: ArrayLike,
        errors: ArrayLike,
        recovery: ArrayLike | None = None,
        onset: float | None = None,
        quantity: str = "estimation_error",
    ):
        self.alpha = alpha
        self.width_ratio = width_ratio
        self.errors = errors
        self.recovery = recovery
        self.onset = onset
        self.quantity = quantity

    @classmethod
    def from_bound(
        cls,
        bound: BayesOptimalBound,
        alpha: ArrayLike | None = None,
        width_ratio: ArrayLike | None = None,
        *,
        quantity: str = "estimation_error",
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "PhaseDiagramDisplay":
        """Compute the bound on a grid and draw it.

        Parameters
        ----------
        bound : BayesOptimalBound
            Setting; its own width ratio is left aside.
        alpha, width_ratio : array-like, optional
            Axes of the grid. Default: width ratios from 0.02 to 2, and sample complexities over all that happens
            there, both evenly spaced in the logarithm.
        quantity : {"estimation_error", "test_error"}, default="estimation_error"
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        PhaseDiagramDisplay

        Notes
        -----
        Takes a second or two for softmax and identity, ten times that for links without a closed form.
        """
        check_bound(bound)
        check_choice(quantity, "quantity", list(QUANTITIES))
        n_alpha, n_widths = _FINE if bound.link in ("softmax", "identity") else _COARSE
        if width_ratio is None:
            width_ratio = np.geomspace(*_WIDTHS, n_widths)
        width_ratio = _increasing(width_ratio, "width_ratio")
        bounds = [clone(bound).set_params(width_ratio=float(value)) for value in width_ratio]
        small = clone(bound).set_params(width_ratio=0.0)
        onset = small.weak_recovery_threshold() if bound.prior == "auto" else None
        if alpha is None:
            low = width_ratio[0] * (0.3 * onset if onset else 0.1)
            alpha = np.geomspace(low, reach_of(bounds[-1]), n_alpha)
        alpha = _increasing(alpha, "alpha")
        return cls(
            alpha=alpha,
            width_ratio=width_ratio,
            errors=np.array([getattr(one, quantity)(alpha) for one in bounds]),
            recovery=np.array([one.recovery_threshold() for one in bounds]),
            onset=onset,
            quantity=quantity,
        ).plot(ax, **kwargs)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        scale: str = "log",
        levels: Sequence[float] = _LEVELS,
        cmap: Any = SEQUENTIAL,
        colorbar: bool = True,
    ) -> "PhaseDiagramDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        scale : {"log", "linear"}, default="log"
            Of both axes.
        levels : sequence of float, default=(0.1, 0.3, 0.5, 0.7, 0.9)
            Contours.
        cmap : str or Colormap, default="cividis"
        colorbar : bool, default=True

        Returns
        -------
        PhaseDiagramDisplay
            Itself, with artists as attributes.
        """
        check_choice(scale, "scale", ["log", "linear"])
        check_choice(self.quantity, "quantity", list(QUANTITIES))
        alpha, width = _increasing(self.alpha, "alpha"), _increasing(self.width_ratio, "width_ratio")
        errors = np.asarray(self.errors, dtype=float)
        if errors.shape != (width.size, alpha.size):
            raise ValueError(
                f"errors has shape {errors.shape}, but must be (n_widths, n_alpha) = {(width.size, alpha.size)}."
            )
        ax = axes_of(self, ax, figsize=(5.8, 4.2))
        ax.set(xscale=scale, yscale=scale, xlim=(alpha[0], alpha[-1]), ylim=(width[0], width[-1]))
        top = 1.0 if self.quantity == "estimation_error" else float(errors.max())
        self.mesh_ = ax.pcolormesh(
            alpha, width, errors, cmap=cmap, vmin=0, vmax=top, shading="gouraud", rasterized=True
        )
        inside = [level for level in levels if errors.min() < level < errors.max()]
        self.contours_ = None
        if inside:
            # light lines on dark ground, dark ones on light ground
            inks = [INK if lightness(self.mesh_.to_rgba(level)) > 0.5 else "white" for level in inside]
            self.contours_ = ax.contour(alpha, width, errors, levels=inside, colors=inks, linewidths=0.9)
            ax.clabel(self.contours_, fontsize="small", fmt="%g", manual=_places(alpha, width, errors, inside))
        self.recovery_line_ = self.onset_line_ = None
        if self.recovery is not None:
            recovery = np.asarray(self.recovery, dtype=float)
            if np.isfinite(recovery).any():
                (self.recovery_line_,) = ax.plot(recovery, width, color=COLORS[1], lw=2.4, label="exact recovery")
        if self.onset is not None:
            few = width[width <= _SMALL_WIDTH]
            if few.size > 1:
                label = rf"weak recovery at $r \ll d$, {self.onset:.3g} $r/d$"
                (self.onset_line_,) = ax.plot(self.onset * few, few, color=INK, lw=1.8, ls=DASHED, label=label)
        ax.set(xlabel=sample_complexity_label(), ylabel=r"width ratio $r/d$")
        self.colorbar_ = None
        if check_flag(colorbar, "colorbar"):
            self.colorbar_ = ax.figure.colorbar(self.mesh_, ax=ax, label=QUANTITIES[self.quantity])
        if self.recovery_line_ is not None or self.onset_line_ is not None:
            ax.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none", fontsize="small")
        return self


def _places(alpha, width, errors, levels):
    """Where contours get their labels: at one of the larger widths, where they are far apart."""
    places = []
    for level in levels:
        crossed = np.flatnonzero((errors.min(axis=1) < level) & (level < errors.max(axis=1)))
        if crossed.size:
            row = crossed[np.argmin(np.abs(crossed - 0.65 * len(width)))]
            # errors fall along alpha
            places.append((float(np.interp(level, errors[row][::-1], alpha[::-1])), float(width[row])))
    return places


def _increasing(values, name):
    """Two numbers > 0 at least, each larger than the last."""
    array = vector(values, name)
    if array.size < 2 or array[0] <= 0 or (np.diff(array) <= 0).any():
        raise ValueError(f"{name}={values!r} must hold at least two numbers > 0 that increase.")
    return array
