"""AttentionMapDisplay: true and predicted attention maps side by side, and what differs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing

from sklearn_aim.kernels.masks import allowed_pairs
from sklearn_aim.parameters import check_flag, final_estimator
from sklearn_aim.plotting._map_checks import check_indices, check_labels, check_maps, hidden_entries, shared_mask
from sklearn_aim.plotting._style import DIVERGING, GREY, INK, SEQUENTIAL, check_axes, lightness, new_figure
from sklearn_aim.ragged import is_ragged

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_ROWS = ("true", "predicted", "error")
# tokens up to which entries are written as numbers, and labels are not very small
_FEW, _SOME = 5, 16
# numbers along an axis
_NUMBERS = 6


class AttentionMapDisplay:
    """Attention maps: true, predicted, and the error of the prediction, a column a sequence.

    True and predicted maps share one colour scale, errors (predicted less true) another one, symmetric about zero.
    Entries behind a mask are hatched.

    Parameters
    ----------
    y_true, y_pred : sequence of array-like of shape (n_tokens, n_tokens)
        Maps, query by key, of any numbers of tokens.
    titles : sequence of str, optional
        Of the columns.
    tokens : sequence, optional
        Labels of the tokens, n_tokens strings for all sequences, or a sequence of strings for each.
    mask : sequence of array-like of shape (n_tokens, n_tokens), optional
        True where a query may attend to a key.

    Attributes
    ----------
    axes_ : ndarray of shape (3, n_sequences)
        Axes of the maps.
    images_ : ndarray of shape (3, n_sequences)
        AxesImage of each.
    texts_ : list of Text
        The numbers written in.
    colorbars_ : list of two Colorbar
    bounding_ax_ : Axes or None
        The axes given, whose place the maps take.
    figure_ : Figure

    Examples
    --------
    >>> from sklearn_aim import AMPAttentionRegressor, AttentionMapDisplay, make_attention_sequences
    >>> X, y = make_attention_sequences(900, n_tokens=3, n_features=40, width=0.5, random_state=0)
    >>> est = AMPAttentionRegressor(width=0.5, noise=0.1).fit(X[:800], y[:800])
    >>> display = AttentionMapDisplay.from_estimator(est, X[800:], y[800:], tokens=["the", "old", "map"])
    >>> display.axes_.shape
    (3, 3)
    """

    def __init__(
        self,
        *,
        y_true: Sequence[ArrayLike],
        y_pred: Sequence[ArrayLike],
        titles: Sequence[str] | None = None,
        tokens: Sequence | None = None,
        mask: Sequence[ArrayLike] | None = None,
    ):
        self.y_true = y_true
        self.y_pred = y_pred
        self.titles = titles
        self.tokens = tokens
        self.mask = mask

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sequences: Sequence[int] = (0, 1, 2),
        tokens: Sequence | None = None,
        mask: ArrayLike | str | None = None,
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "AttentionMapDisplay":
        """Predict the maps of some sequences and draw them.

        Parameters
        ----------
        estimator : fitted estimator, or pipeline or search
        X : array-like of shape (n_samples, n_tokens, n_features)
            Or a list of sequences of unequal length, as in `fit`.
        y : array-like of shape (n_samples, n_tokens, n_tokens), or flattened
        sequences : sequence of int, default=(0, 1, 2)
            Which of them.
        tokens : sequence, optional
            Labels of the tokens: n_tokens strings, or such a sequence for each of `sequences`.
        mask : None, "causal" or ndarray, default=None
            As in `predict`, of all of X.
        ax : Axes, optional
            Whose place the maps take. Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        AttentionMapDisplay
        """
        chosen = check_indices(sequences, len(X))
        x, maps = _safe_indexing(X, chosen), _safe_indexing(y, chosen)
        fitted = final_estimator(estimator)
        if is_ragged(X):
            if mask is not None:
                raise ValueError("mask must be None where X is a list: shorter sequences need no padding.")
            kept = getattr(fitted, "mask_", None)
            allowed = [allowed_pairs(kept, 1, len(one)) for one in maps]
            allowed = None if kept is None else [one[0] for one in allowed]
            predicted = estimator.predict(x)
        else:
            maps = check_maps(maps, "y")
            n_tokens = maps[0].shape[0]
            given = {}
            if mask is not None:
                given["mask"] = allowed = allowed_pairs(mask, len(X), n_tokens)[chosen]
            else:
                allowed = allowed_pairs(shared_mask(fitted, n_tokens), len(chosen), n_tokens)
            predicted = estimator.predict(x, **given)
        return cls.from_predictions(
            maps,
            predicted,
            sequences=range(len(chosen)),
            titles=[f"sequence {i}" for i in chosen],
            tokens=tokens,
            mask=allowed,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Sequence[ArrayLike],
        y_pred: Sequence[ArrayLike],
        *,
        sequences: Sequence[int] = (0, 1, 2),
        titles: Sequence[str] | None = None,
        tokens: Sequence | None = None,
        mask: Sequence[ArrayLike] | None = None,
        ax: "Axes | None" = None,
        **kwargs,
    ) -> "AttentionMapDisplay":
        """Draw maps beside their predictions.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_samples, n_tokens, n_tokens), or flattened, or lists of maps
        sequences : sequence of int, default=(0, 1, 2)
            Which of them.
        titles : sequence of str, optional
            A title for each of `sequences`. Default: their numbers.
        tokens : sequence, optional
            Labels of the tokens: n_tokens strings, or such a sequence for each of `sequences`.
        mask : array-like of shape (n_samples, n_tokens, n_tokens) or list of maps, optional
            True where a query may attend to a key.
        ax : Axes, optional
            Whose place the maps take. Default: a new figure.
        **kwargs
            Of `plot`.

        Returns
        -------
        AttentionMapDisplay
        """
        true, predicted = check_maps(y_true, "y_true"), check_maps(y_pred, "y_pred")
        if len(true) != len(predicted):
            raise ValueError(f"y_true and y_pred hold {len(true)} and {len(predicted)} maps: pass the same sequences.")
        chosen = check_indices(sequences, len(true))
        return cls(
            y_true=[true[i] for i in chosen],
            y_pred=[predicted[i] for i in chosen],
            titles=[f"sequence {i}" for i in chosen] if titles is None else titles,
            tokens=tokens,
            mask=None if mask is None else [np.asarray(mask[i], dtype=bool) for i in chosen],
        ).plot(ax, **kwargs)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        include_values: bool | None = None,
        cmap: Any = SEQUENTIAL,
        error_cmap: Any = DIVERGING,
        colorbar: bool = True,
    ) -> "AttentionMapDisplay":
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Whose place the maps take; it is hidden. Default: a new figure.
        include_values : bool, optional
            Write the numbers in. Default: up to five tokens.
        cmap, error_cmap : str or Colormap, default="cividis" and "PuOr_r"
        colorbar : bool, default=True

        Returns
        -------
        AttentionMapDisplay
            Itself, with artists as attributes.
        """
        true, predicted = check_maps(self.y_true, "y_true"), check_maps(self.y_pred, "y_pred")
        n = len(true)
        if [one.shape for one in true] != [one.shape for one in predicted]:
            raise ValueError("y_true and y_pred differ in shape: pass maps of the same sequences.")
        hidden = hidden_entries(self.mask, true)
        labels = check_labels(self.tokens, true)
        titles = [None] * n if self.titles is None else list(self.titles)
        if len(titles) != n:
            raise ValueError(f"titles={self.titles!r} must be {n} strings, one a sequence.")
        rows = [
            [np.ma.array(one, mask=hide) for one, hide in zip(maps, hidden, strict=True)] for maps in (true, predicted)
        ]
        rows.append([b - a for a, b in zip(*rows, strict=True)])
        most = max(len(one) for one in true)
        if include_values is None:
            include_values = most <= _FEW
        check_flag(include_values, "include_values")
        grid = self._grid(ax, n, check_flag(colorbar, "colorbar"))
        low, high = _range(rows[0] + rows[1])
        reach = max(float(np.ma.max(np.ma.abs(one))) if one.count() else 0.0 for one in rows[2]) or 1.0
        scales = [(low, high, cmap), (low, high, cmap), (-reach, reach, error_cmap)]
        self.axes_ = np.empty((3, n), dtype=object)
        self.images_ = np.empty((3, n), dtype=object)
        self.texts_ = []
        alike = all(one == labels[0] for one in labels)
        for i, (name, maps, (vmin, vmax, colours)) in enumerate(zip(_ROWS, rows, scales, strict=True)):
            for j, one in enumerate(maps):
                panel = self.figure_.add_subplot(grid[i, j])
                # what the image leaves out; hatched, since any grey is a weight in print
                panel.patch.set(facecolor="white", edgecolor="0.7", hatch="/////")
                self.axes_[i, j] = panel
                image = self.images_[i, j] = panel.imshow(one, cmap=colours, vmin=vmin, vmax=vmax)
                _ticks(panel, labels[j], len(one), below=i == 2, left=j == 0 or not alike)
                if i == 0:
                    panel.set_title(titles[j], fontsize="medium")
                if j == 0:
                    panel.set_ylabel(f"{name}\nquery")
                if i == 2:
                    panel.set_xlabel("key")
                if include_values:
                    self._write(panel, image, one)
        self.colorbars_ = []
        if colorbar:
            for image, place, label in (
                (self.images_[0, 0], grid[:2, n], "attention weight"),
                (self.images_[2, 0], grid[2, n], "error"),
            ):
                cax = self.figure_.add_subplot(place)
                self.colorbars_.append(self.figure_.colorbar(image, cax=cax, label=label))
        return self

    def _grid(self, ax, n, colorbar):
        """A grid of three rows with a column a sequence, and a narrow one for the colour bars."""
        ratios = [1.0] * n + [0.07] * colorbar
        self.bounding_ax_ = ax
        if ax is None:
            self.figure_ = new_figure(self, (1.2 + 1.75 * n, 5.3))
            return self.figure_.add_gridspec(3, len(ratios), width_ratios=ratios)
        self.figure_ = check_axes(self, ax).figure
        ax.set_axis_off()
        if self.figure_.get_layout_engine() is None:
            # nobody else makes room for the colour bars' labels
            ratios += [0.3] * colorbar
        place = ax.get_subplotspec()
        if place is not None:
            return place.subgridspec(3, len(ratios), width_ratios=ratios)
        box = ax.get_position()
        sides = {"left": box.x0, "right": box.x1, "bottom": box.y0, "top": box.y1}
        return self.figure_.add_gridspec(3, len(ratios), width_ratios=ratios, **sides)

    def _write(self, panel, image, values):
        for (a, b), value in np.ndenumerate(values.filled(np.nan)):
            if np.isfinite(value):
                ink = INK if lightness(image.cmap(image.norm(value))) > 0.5 else "white"
                self.texts_.append(
                    panel.text(b, a, _short(value), color=ink, ha="center", va="center", fontsize="small")
                )


def _short(value):
    """Two decimals without what says nothing: 0.12 as .12."""
    text = f"{value:.2f}"
    text = text.replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def _range(maps):
    """Common colour scale, from 0 where weights cannot be negative."""
    values = np.concatenate([one.compressed() for one in maps])
    if not values.size:
        return 0.0, 1.0
    low, high = min(0.0, values.min()), values.max()
    return float(low), float(high) if high > low else float(low) + 1.0


def _ticks(panel, labels, n_tokens, *, below, left):
    """A tick a token, named in full or by number, along the edge of the grid."""
    step = 1 if labels is not None else -(-n_tokens // _NUMBERS)
    at = range(0, n_tokens, step)
    names = [str(k + 1) for k in at] if labels is None else labels
    turned = labels is not None and max(map(len, labels)) > 2
    panel.set_xticks(at, names, rotation=90 if turned else 0)
    panel.set_yticks(at, names)
    size = "small" if n_tokens <= _SOME else "x-small"
    panel.tick_params(length=2, labelsize=size, labelbottom=below, labelleft=left)
    for spine in panel.spines.values():
        spine.set(color=GREY, lw=0.6)
