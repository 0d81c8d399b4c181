"""What all displays share: the import of matplotlib, colours, axes, checks of what is drawn."""

import numpy as np

# Okabe and Ito's colours with a darker blue: they stay apart for the colour-blind, and with the dashes and markers
# beside them in print without colours
INK = "black"
GREY = "0.45"
COLORS = ("#004D7A", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
MARKERS = ("D", "s", "o", "^", "v", "P")
DASHES = ((0, (5, 2)), "-", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 3)), (0, (7, 2)))
DASHED = (0, (4, 3))
# increasing in lightness from end to end, and two colours on either side of white
SEQUENTIAL = "cividis"
DIVERGING = "PuOr_r"
# white points with black edges stand out on any curve
POINTS = {"fmt": "o", "ms": 6.5, "mfc": "white", "color": INK, "mec": INK, "capsize": 3, "lw": 1.2, "zorder": 3}
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.frameon": False,
}


def check_matplotlib(caller):
    """Ask for matplotlib, which is imported when a figure is wanted, and say how to come by it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(
            f'{caller} needs matplotlib: pip install "sklearn-aim[plot]"', name="matplotlib"
        ) from error


def new_figure(display, figsize):
    """An empty figure of pyplot's, whose layout keeps labels apart."""
    check_matplotlib(f"{type(display).__name__}.plot")
    from matplotlib import pyplot

    return pyplot.figure(figsize=figsize, layout="constrained")


def figure_style(**settings):
    """Style of the package's figures, as a context: small sans-serif text, no frame on the right and above.

    Displays need none of it; it is for figures of one's own that go beside them.

    Parameters
    ----------
    **settings
        Further entries of `matplotlib.rcParams`, by name; for names with dots pass ``**{"font.size": 12}``.

    Returns
    -------
    context manager
        Settings hold inside it and are put back after it.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from sklearn_aim.plotting import figure_style
    >>> with figure_style(**{"font.size": 8}):
    ...     ax = Figure().subplots()
    >>> ax.spines["top"].get_visible()
    False
    """
    check_matplotlib("figure_style")
    from matplotlib import rc_context

    return rc_context({**_STYLE, **settings})


def axes_of(display, ax, figsize=(5.4, 3.9)):
    """Axes to draw on, new ones if none are given, and remember them; the frame on the right and above is taken off."""
    # the smaller the figure, the larger its text
    ax = new_figure(display, figsize).subplots() if ax is None else check_axes(display, ax)
    ax.spines[["top", "right"]].set_visible(False)
    display.ax_, display.figure_ = ax, ax.figure
    return ax


def check_axes(display, ax):
    """One matplotlib Axes."""
    check_matplotlib(f"{type(display).__name__}.plot")
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise TypeError(f"ax={ax!r} must be one matplotlib Axes, or None for a new figure.")
    return ax


def options(defaults, given, name):
    """Keywords of a line: the display's own, replaced by those given, under whichever of matplotlib's names."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    if not isinstance(given, (dict, type(None))):
        raise TypeError(f"{name}={given!r} must be a dict of matplotlib keywords, or None.")
    return {**normalize_kwargs(defaults, Line2D), **normalize_kwargs(given, Line2D)}


def vector(values, name, *, length=None, low=-np.inf):
    """A 1-D array of finite numbers, of a given length if there is one."""
    try:
        array = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}={values!r} must be numbers.") from error
    if array.ndim != 1 or array.size == 0 or (length is not None and array.size != length):
        wanted = "(n,), n >= 1" if length is None else f"({length},)"
        raise ValueError(f"{name} has shape {array.shape}, but must be of shape {wanted}.")
    if not (np.isfinite(array).all() and (array >= low).all()):
        raise ValueError(f"{name}={values!r} must be finite" + (f" and >= {low:g}." if np.isfinite(low) else "."))
    return array


def repeated(values, name, length, *, last=()):
    """Measurements as (length, n_repeats, *last), from these or from single ones, (length, *last)."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}={values!r} must be numbers.") from error
    array = array[:, None] if array.ndim == 1 + len(last) else array
    if array.ndim != 2 + len(last) or len(array) != length or array.shape[2:] != last or array.size == 0:
        row = "".join(f", {size}" for size in last)
        raise ValueError(
            f"{name} has shape {np.shape(values)}, but must be ({length}{row or ','}) or ({length}, n_repeats{row}): a "
            "row a fit."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name}={values!r} must be finite: leave out fits that failed.")
    return array


def legend(ax, loc, **keywords):
    """A legend without a frame, opaque where it lies on lines."""
    return ax.legend(loc=loc, frameon=True, facecolor=ax.get_facecolor(), edgecolor="none", framealpha=0.9, **keywords)


def sample_complexity_label(scale="n/d^2"):
    """Axis label of alpha."""
    return rf"sample complexity $\alpha = {scale}$"


def lightness(rgba):
    """Luma of a colour, 0 to 1: whether black or white stands out on it."""
    return float(np.dot(rgba[:3], (0.299, 0.587, 0.114)))
