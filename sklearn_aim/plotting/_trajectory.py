"""TrajectoryDisplay: message passing, iteration by iteration, beside state evolution."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from sklearn_aim.bounds import BayesOptimalBound
from sklearn_aim.parameters import check_choice, check_number, final_estimator
from sklearn_aim.plotting._curves import QUANTITIES, check_bound
from sklearn_aim.plotting._style import COLORS, DASHED, GREY, INK, axes_of, legend, options, vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LABELS = {
    "estimation_error": QUANTITIES["estimation_error"],
    "overlap": r"overlap $Q_0 - V$",
}
# errors that fall below this part of the first are drawn on a logarithmic axis
_SMALL = 0.02
# points that are drawn, about; with more they would hide the curves
_MARKERS = 30


class TrajectoryDisplay:
    """Errors of message passing over its iterations, beside state evolution.

    Three curves: what state evolution predicts of an infinite layer, what the fit takes for its error (V, from the same
    law, unless labels contradict it) and, if a `TeacherError` was there, its true error. State evolution keeps the part
    of the old error at each step that the fit kept of its old estimate (`history_["damping"]`), so that like is
    compared with like: without damping it would run ahead of the fit and meet it at the end. It counts the mixture of
    two errors as the error of the mixture, which is smaller, so that true errors of damped runs lie somewhat below
    it at first. Without damping they follow it from the start.

    Parameters
    ----------
    estimation_error : array-like of shape (n_iter,)
        V after each iteration.
    evolution : array-like of shape (n_iter,)
        State evolution.
    limit : float
        The Bayes-optimal error, where state evolution ends.
    true_error : array-like of shape (n_iter,), optional
    second_moment : float, default=1.0
        Q0, for overlaps.
    alpha : float, optional
        Sample complexity, for the title.

    Attributes
    ----------
    evolution_line_ : Line2D
    line_ : Line2D
        The fit's own V.
    true_line_ : Line2D or None
    limit_line_ : Line2D
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import AMPAttentionRegressor, TeacherError, TrajectoryDisplay, make_attention_sequences
    >>> X, y, S = make_attention_sequences(
    ...     300, n_features=50, width=0.5, random_state=0, return_interaction=True)
    >>> est = AMPAttentionRegressor(width=0.5).fit(X, y, callback=TeacherError(S))
    >>> display = TrajectoryDisplay.from_estimator(est)
    >>> len(display.true_line_.get_xdata()) == est.n_iter_
    True
    """

    def __init__(
        self,
        *,
        estimation_error: ArrayLike,
        evolution: ArrayLike,
        limit: float,
        true_error: ArrayLike | None = None,
        second_moment: float = 1.0,
        alpha: float | None = None,
    ):
        self.estimation_error = estimation_error
        self.evolution = evolution
        self.limit = limit
        self.true_error = true_error
        self.second_moment = second_moment
        self.alpha = alpha

    @classmethod
    def from_estimator(
        cls, estimator: BaseEstimator, *, bound: BayesOptimalBound | None = None, ax: "Axes | None" = None, **kwargs
    ) -> "TrajectoryDisplay":
        """Draw the iterations of a fit that started from no knowledge.

        Parameters
        ----------
        estimator : fitted AMPAttentionRegressor with solver="amp", or pipeline or search that ends in one
            With `TeacherError` as the fit's callback its true errors are drawn, too.
        bound : BayesOptimalBound, optional
            Default: that of the estimator, which takes the noise that it ended with and knows nothing of a key bias.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        TrajectoryDisplay
        """
        bound_of = BayesOptimalBound.from_estimator(estimator)
        bound = bound_of if bound is None else check_bound(bound)
        history = getattr(final_estimator(estimator), "history_", {})
        if "damping" not in history:
            raise TypeError(
                f"estimator={estimator!r} holds no iterations of message passing in history_: pass a fitted "
                "AMPAttentionRegressor with solver='amp'."
            )
        error = history["estimation_error"]
        alpha = bound_of.sample_complexity_
        path = bound.state_evolution(alpha, n_iter=len(error), damping=history["damping"])
        return cls(
            estimation_error=error,
            evolution=path["estimation_error"],
            limit=bound.estimation_error(alpha),
            true_error=history.get("true_error"),
            second_moment=float(history["overlap"][0] + error[0]),
            alpha=alpha,
        ).plot(ax, **kwargs)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        quantity: str = "estimation_error",
        name: str = "message passing",
        line_kw: dict | None = None,
        points_kw: dict | None = None,
    ) -> "TrajectoryDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        quantity : {"estimation_error", "overlap"}, default="estimation_error"
            Overlaps are Q0 less the error, for true errors too.
        name : str, default="message passing"
            Of the fit in the legend.
        line_kw, points_kw : dict, optional
            Keywords for `Axes.plot` of state evolution, and of the true errors (of V, where there are none).

        Returns
        -------
        TrajectoryDisplay
            Itself, with artists as attributes.
        """
        check_choice(quantity, "quantity", list(_LABELS))
        error = vector(self.estimation_error, "estimation_error")
        evolution = vector(self.evolution, "evolution", length=error.size)
        limit = check_number(self.limit, "limit")
        true = None if self.true_error is None else vector(self.true_error, "true_error", length=error.size)
        as_drawn = (lambda v: v) if quantity == "estimation_error" else (lambda v: self.second_moment - v)
        ax = axes_of(self, ax)
        steps = np.arange(1, error.size + 1)
        style = options({"color": INK, "lw": 1.8, "label": "state evolution, same damping"}, line_kw, "line_kw")
        (self.evolution_line_,) = ax.plot(steps, as_drawn(evolution), **style)
        points = {"color": COLORS[1], "ls": "none", "marker": "o", "ms": 6, "mfc": "white", "mew": 1.4, "zorder": 3}
        points["markevery"] = max(1, error.size // _MARKERS)
        own = {"color": COLORS[0], "lw": 1.8, "ls": DASHED, "label": f"{name}: its own estimate $V$", "zorder": 2.5}
        self.true_line_ = None
        if true is None:
            own = options({**points, "label": own["label"]}, points_kw, "points_kw")
        (self.line_,) = ax.plot(steps, as_drawn(error), **own)
        if true is not None:
            style = options({**points, "label": f"{name}: true error"}, points_kw, "points_kw")
            (self.true_line_,) = ax.plot(steps, as_drawn(true), **style)
        self.limit_line_ = ax.axhline(
            as_drawn(limit), color=GREY, lw=1.2, ls=(0, (1, 1.5)), label="Bayes-optimal", zorder=1
        )
        if quantity == "estimation_error" and error.min() < _SMALL * error[0]:
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        ax.set(xlabel="iteration", ylabel=_LABELS[quantity])
        ax.xaxis.get_major_locator().set_params(integer=True)
        if self.alpha is not None:
            ax.set_title(rf"$\alpha = {self.alpha:.4g}$", loc="left")
        # errors that fall leave room above, those of a fit that runs away do not
        away = quantity == "estimation_error" and max(error[-1], 0 if true is None else true[-1]) > error[0]
        legend(ax, "upper right" if quantity == "estimation_error" and not away else "lower right")
        return self
