"""BoundDisplay: learning curves beside the Bayes-optimal bound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import ShuffleSplit, check_cv
from sklearn.utils import _safe_indexing, check_consistent_length

from sklearn_aim.bounds import BayesOptimalBound
from sklearn_aim.metrics import attention_error
from sklearn_aim.parameters import check_choice, check_number, final_estimator
from sklearn_aim.plotting._curves import QUANTITIES, curve_of
from sklearn_aim.plotting._style import (
    DASHED,
    GREY,
    INK,
    POINTS,
    axes_of,
    legend,
    options,
    repeated,
    sample_complexity_label,
    vector,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class BoundDisplay:
    """Learning curve beside the Bayes-optimal bound.

    Best made by `from_bound`, `from_estimator` or `from_predictions`.

    Parameters
    ----------
    alpha : array-like of shape (n_points,)
        Sample complexities of the bound's curve.
    bound_error : array-like of shape (n_points,)
        The bound there.
    recovery_threshold : float, default=inf
        Sample complexity of exact recovery; infinite: none.
    quantity : {"estimation_error", "test_error"}, default="estimation_error"
    measured_alpha : array-like of shape (n_sizes,), optional
        Sample complexities of fits.
    errors : array-like of shape (n_sizes,) or (n_sizes, n_repeats), optional
        Their errors; of repeated ones the mean is drawn, with its standard deviation as a bar.
    scale : str, default="n/d^2"
        What alpha is.

    Attributes
    ----------
    line_ : Line2D
        The bound.
    threshold_line_ : Line2D or None
    errorbar_ : ErrorbarContainer or None
        The measured errors.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import BayesOptimalBound, BoundDisplay
    >>> bound = BayesOptimalBound(width_ratio=0.5)
    >>> display = BoundDisplay.from_predictions([0.05, 0.1], [[0.71, 0.74], [0.38, 0.40]], bound)
    >>> display.line_.get_label()
    'Bayes-optimal bound'
    """

    def __init__(
        self,
        *,
        alpha: ArrayLike,
        bound_error: ArrayLike,
        recovery_threshold: float = np.inf,
        quantity: str = "estimation_error",
        measured_alpha: ArrayLike | None = None,
        errors: ArrayLike | None = None,
        scale: str = "n/d^2",
    ):
        self.alpha = alpha
        self.bound_error = bound_error
        self.recovery_threshold = recovery_threshold
        self.quantity = quantity
        self.measured_alpha = measured_alpha
        self.errors = errors
        self.scale = scale

    @classmethod
    def from_bound(
        cls,
        bound: BayesOptimalBound,
        alpha: ArrayLike | None = None,
        *,
        quantity: str = "estimation_error",
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "BoundDisplay":
        """Draw a bound alone.

        Parameters
        ----------
        bound : BayesOptimalBound
        alpha : array-like of shape (n_points,), optional
            Sample complexities. Default: from 0 to a third beyond exact recovery or, where that is out of reach, to a
            tenth of the error without data.
        quantity : {"estimation_error", "test_error"}, default="estimation_error"
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        BoundDisplay
        """
        return cls(**curve_of(bound, alpha, quantity)).plot(ax, **kwargs)

    @classmethod
    def from_predictions(
        cls,
        alpha: ArrayLike,
        errors: ArrayLike,
        bound: BayesOptimalBound,
        *,
        quantity: str = "estimation_error",
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "BoundDisplay":
        """Draw measured errors beside a bound.

        Parameters
        ----------
        alpha : array-like of shape (n_sizes,)
            Sample complexities of the fits.
        errors : array-like of shape (n_sizes,) or (n_sizes, n_repeats)
            `estimation_error` or `attention_error` of each, for example over seeds.
        bound : BayesOptimalBound
            Of the same setting.
        quantity : {"estimation_error", "test_error"}, default="estimation_error"
            What the errors are.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        BoundDisplay
        """
        alpha = vector(alpha, "alpha", low=0)
        curve = curve_of(bound, None, quantity, reach=alpha.max())
        return cls(**curve, measured_alpha=alpha, errors=repeated(errors, "errors", alpha.size)).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        train_sizes: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0),
        cv: Any = None,
        bound: BayesOptimalBound | None = None,
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "BoundDisplay":
        """Fit at growing sample sizes, and draw the errors on held-out sequences beside the bound's test error.

        Parameters
        ----------
        estimator : AMPAttentionRegressor, GDAttentionRegressor of one layer, or pipeline that ends in one
            Clones of it are fitted, one a size and split.
        X : ndarray of shape (n_samples, n_tokens, n_features)
        y : ndarray of shape (n_samples, n_tokens, n_tokens)
        train_sizes : sequence of float or int
            Floats are shares of the sequences that a split leaves for training, ints their number.
        cv : int or splitter, optional
            Default: three random splits that hold out a quarter. All splits are of one teacher's data, so that bars
            leave out how teachers differ; see `from_predictions` for fits on several.
        bound : BayesOptimalBound, optional
            Default: that of the largest fit.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        BoundDisplay
        """
        check_consistent_length(X, y)
        cv = ShuffleSplit(3, test_size=0.25, random_state=0) if cv is None else check_cv(cv)
        alphas, errors = [], []
        for train, test in cv.split(np.empty(len(X))):
            sizes = [_size(size, len(train)) for size in train_sizes]
            if not sizes:
                raise ValueError("train_sizes is empty: pass at least one size.")
            fits = [
                clone(estimator).fit(_safe_indexing(X, train[:size]), _safe_indexing(y, train[:size])) for size in sizes
            ]
            if bound is None:
                bound = BayesOptimalBound.from_estimator(fits[int(np.argmax(sizes))])
            held_out, truth = _safe_indexing(X, test), _safe_indexing(y, test)
            errors.append([attention_error(truth, fit.predict(held_out)) for fit in fits])
            alphas.append([final_estimator(fit).sample_complexity_ for fit in fits])
        # splits of nearly equal size count as one size
        alphas = np.mean(alphas, axis=0)
        return cls.from_predictions(alphas, np.transpose(errors), bound, quantity="test_error", ax=ax, **kwargs)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        name: str | None = None,
        line_kw: dict | None = None,
        errorbar_kw: dict | None = None,
    ) -> "BoundDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        name : str, optional
            Of the measured points in the legend. Default: "measured".
        line_kw, errorbar_kw : dict, optional
            Keywords for `Axes.plot` of the bound and `Axes.errorbar` of the points.

        Returns
        -------
        BoundDisplay
            Itself, with artists as attributes.
        """
        check_choice(self.quantity, "quantity", list(QUANTITIES))
        alpha = vector(self.alpha, "alpha", low=0)
        curve = vector(self.bound_error, "bound_error", length=alpha.size)
        threshold = check_threshold(self.recovery_threshold)
        ax = axes_of(self, ax)
        style = options({"color": INK, "lw": 1.8, "label": "Bayes-optimal bound"}, line_kw, "line_kw")
        (self.line_,) = ax.plot(alpha, curve, **style)
        self.threshold_line_ = self.errorbar_ = None
        if threshold <= alpha.max():
            label = rf"exact recovery, $\alpha = {threshold:.4g}$"
            self.threshold_line_ = ax.axvline(threshold, color=GREY, lw=1.2, ls=DASHED, label=label, zorder=1)
        if self.measured_alpha is not None:
            measured = vector(self.measured_alpha, "measured_alpha", low=0)
            repeats = repeated(self.errors, "errors", measured.size)
            spread = repeats.std(axis=1, ddof=1) if repeats.shape[1] > 1 else None
            label = ("measured" if name is None else name) + (
                f", mean and s.d. of {repeats.shape[1]}" if repeats.shape[1] > 1 else ""
            )
            style = options({**POINTS, "label": label}, errorbar_kw, "errorbar_kw")
            self.errorbar_ = ax.errorbar(measured, repeats.mean(axis=1), spread, **style)
        ax.set(xlabel=sample_complexity_label(self.scale), ylabel=QUANTITIES[self.quantity])
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        legend(ax, "upper right")
        return self


def check_threshold(threshold):
    """A number >= 0, or infinity."""
    if threshold is None:
        return np.inf
    if threshold == np.inf:
        return threshold
    return check_number(threshold, "recovery_threshold")


def _size(size, n_samples):
    """Number of training sequences from a share or a number."""
    if isinstance(size, (float, np.floating)):
        share = check_number(size, "train_sizes", strict=True, high=1.0)
        return max(2, round(share * n_samples))
    return int(check_number(size, "train_sizes", low=2, high=n_samples, integer=True))
