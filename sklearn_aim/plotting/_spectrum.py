"""SpectrumDisplay: eigenvalues or singular values of a learned interaction beside the prior's."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from sklearn_aim.bounds import BayesOptimalBound
from sklearn_aim.parameters import check_flag, check_number, check_square, final_estimator
from sklearn_aim.plotting._style import COLORS, INK, axes_of, legend
from sklearn_aim.priors import make_prior

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# q_hat at which the noise of the observation is nothing beside the spectrum
_CLEAR = 1e9
# of the largest value: nearer to zero a value counts as zero
_ZERO = 1e-3
# points of a curve in each bulk
_POINTS = 400
# heights that are shown, in units of the prior's density away from its edges: at least, and at most
_HEADROOM, _TALLEST = 1.6, 8.0


class SpectrumDisplay:
    """Spectrum of a learned interaction beside limiting densities, at many features.

    Tied interactions have eigenvalues, others singular values. The prior's density is that of the layer's own S. An
    estimate is a posterior mean, whose spectrum is narrower as long as S is not known: its density is that of a noisy
    observation of S with q_hat, mapped by the denoiser. The two meet at exact recovery. Where the width is below the
    number of features, a part of the prior's values is zero; it is told in the legend, and its share of the histogram
    may exceed the axis.

    Parameters
    ----------
    values : array-like of shape (n_features,)
        Eigenvalues or singular values.
    prior_curve : tuple of ndarray (x, density)
        Density of the prior, apart from zeros.
    zeros : float, default=0.0
        The prior's share of zeros.
    estimate_curve : tuple of ndarray (x, density), optional
        Density of the posterior mean's values.
    tied : bool, default=True

    Attributes
    ----------
    patches_ : StepPatch
        The histogram.
    line_ : Line2D
        The prior.
    estimate_line_ : Line2D or None
        The posterior mean.
    ax_ : Axes
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import SpectrumDisplay, make_attention_sequences
    >>> *_, S = make_attention_sequences(2, n_features=200, width=0.5, random_state=0, return_interaction=True)
    >>> display = SpectrumDisplay.from_interaction(S, width_ratio=0.5)
    >>> display.zeros
    0.5
    """

    def __init__(
        self,
        *,
        values: ArrayLike,
        prior_curve: tuple[np.ndarray, np.ndarray],
        zeros: float = 0.0,
        estimate_curve: tuple[np.ndarray, np.ndarray] | None = None,
        tied: bool = True,
    ):
        self.values = values
        self.prior_curve = prior_curve
        self.zeros = zeros
        self.estimate_curve = estimate_curve
        self.tied = tied

    @classmethod
    def from_interaction(
        cls,
        interaction: ArrayLike,
        width_ratio: float,
        *,
        tied: bool = True,
        prior: str = "auto",
        information: float | None = None,
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "SpectrumDisplay":
        """Draw the spectrum of any interaction.

        Parameters
        ----------
        interaction : array-like of shape (n_features, n_features)
            Of white features; its symmetric part, if tied.
        width_ratio : float
            r/d of the prior.
        tied : bool, default=True
        prior : str, default="auto"
            As in the estimators.
        information : float, optional
            q_hat: also draw the density of a posterior mean that was learned from so much.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        SpectrumDisplay
        """
        interaction = check_square(interaction, "interaction")
        kwargs.setdefault("name", "interaction")
        check_number(width_ratio, "width_ratio", strict=True)
        law = make_prior(float(width_ratio), check_flag(tied, "tied"), prior)
        if tied:
            values = np.linalg.eigvalsh(0.5 * (interaction + interaction.T))
        else:
            values = np.linalg.svd(interaction, compute_uv=False)[::-1]
        curve = None
        if information is not None and check_number(information, "information", high=np.finfo(float).max) > 0:
            curve = _estimate_density(law, float(information))
        return cls(
            values=values,
            prior_curve=_prior_density(law),
            zeros=law.mass_at_zero,
            estimate_curve=curve,
            tied=law.tied,
        ).plot(ax, **kwargs)

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, *, ax: "Axes | None" = None, **kwargs) -> "SpectrumDisplay":
        """Draw the spectrum that a fit has learned, in whitened features where it whitens.

        Parameters
        ----------
        estimator : fitted estimator of one layer, or pipeline or search that ends in one
            With `AMPAttentionRegressor` the density of posterior means is drawn, too, at its `information_`. For others
            that is left out: one run of gradient descent is like a draw from the posterior, whose spectrum is the
            prior's, and the mean of several lies between.
        ax : Axes, optional
            Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        SpectrumDisplay
        """
        bound = BayesOptimalBound.from_estimator(estimator)
        fitted = final_estimator(estimator)
        # what was learned before it was led back to raw features
        white = getattr(fitted, "whiten", None) is None
        information = getattr(fitted, "information_", None) if getattr(fitted, "solver", None) == "amp" else None
        return cls.from_interaction(
            fitted.interaction_ if white else fitted._core,
            bound.width_ratio,
            tied=bound.tied,
            prior=bound.prior,
            information=information,
            ax=ax,
            **{"name": "learned", **kwargs},
        )

    def plot(
        self, ax: "Axes | None" = None, *, bins: int | str | ArrayLike | None = None, name: str = "learned"
    ) -> "SpectrumDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        bins : int or array-like, optional
            As in `numpy.histogram`. Default: some forty over all that is shown.
        name : str, default="learned"
            Of the histogram in the legend.

        Returns
        -------
        SpectrumDisplay
            Itself, with artists as attributes.
        """
        values = np.asarray(self.values, dtype=float)
        x, density = (np.asarray(part, dtype=float) for part in self.prior_curve)
        low, high = min(values.min(), x.min(), 0.0), max(values.max(), x.max())
        if bins is None:
            # zero in the middle of a bin: zeros that rounding spreads are in one
            step = (high - low) / min(40, max(8, values.size // 4))
            bins = step * (np.arange(np.floor(low / step - 0.5), np.ceil(high / step + 0.5) + 1) + 0.5)
            bins = bins if self.tied else np.append(0.0, bins[bins > 0])
        heights, edges = np.histogram(values, bins=bins, density=True)
        ax = axes_of(self, ax)
        self.patches_ = ax.stairs(
            heights, edges, fill=True, fc="0.8", ec="0.45", lw=0.6, label=f"{name}, $d$ = {values.size}"
        )
        of_zeros = f" (and {100 * self.zeros:.3g}% zeros)" if self.zeros > 0 else ""
        (self.line_,) = ax.plot(x, density, color=INK, lw=1.8, label=rf"prior of $S$, $d \to \infty${of_zeros}")
        self.estimate_line_ = None
        if self.estimate_curve is not None:
            curve = [np.asarray(part, dtype=float) for part in self.estimate_curve]
            (self.estimate_line_,) = ax.plot(
                *curve, color=COLORS[1], lw=1.8, ls=(0, (5, 2)), label=r"posterior mean, $d \to \infty$"
            )
        away = heights[edges[1:] < 0].max(initial=0), heights[edges[:-1] > 0].max(initial=0)
        body = np.quantile(density, 0.9)
        # peaks at zero must not dwarf the rest
        top = max(_HEADROOM * body, min(1.15 * max(away), _TALLEST * body))
        ax.set(
            xlabel=rf"{'eigenvalue' if self.tied else 'singular value'} of $S$",
            ylabel="density",
            ylim=(0, min(top, 1.05 * max(heights.max(), density.max()))),
        )
        legend(ax, "upper right")
        return self


def _bulks(law, information):
    """Points in each bulk of an observation's spectrum, dense at its edges; singular values where untied."""
    edges = law.edges(information)
    inner = 0.5 * (1 - np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS))
    for left, right in zip(edges[::2], edges[1::2], strict=True):
        left = left if law.tied else max(left, 0.0)
        if right > left:
            yield left + (right - left) * inner


def _prior_density(law):
    """Density of S itself, zeros left out."""
    nearly_zero = _ZERO * law.edges(_CLEAR)[-1] if law.mass_at_zero > 0 else 0.0
    x = np.concatenate(list(_bulks(law, _CLEAR)))
    x = x[np.abs(x) > nearly_zero]
    return x, law.density(x, _CLEAR) * (1 if law.tied else 2)


def _estimate_density(law, information):
    """Density of the posterior mean's values: that of the observation over the slope of the denoiser."""
    xs, densities = [], []
    for x in _bulks(law, information):
        mapped = law.denoise_spectrum(x, information, clamp=False)
        mass = law.density(x, information) * (1 if law.tied else 2)
        slope = np.gradient(mapped, x)
        rising = slope > 0
        # bulks are apart: the curve goes down to the axis between them
        xs.append(np.concatenate([mapped[rising][:1], mapped[rising], mapped[rising][-1:]]))
        densities.append(np.concatenate([[0.0], mass[rising] / slope[rising], [0.0]]))
    return np.concatenate(xs), np.concatenate(densities)
