"""Checks of parameters, with messages that name the parameter, its value and the mend; estimators behind wrappers."""

import numbers
import warnings

import numpy as np

# largest value of parameters whose squares must be finite, in single precision too
LARGEST = 1e15


class Documented:
    """Mixin ahead of BaseEstimator: HTML displays lead to an estimator's page, pickles know their version."""

    _doc_link_module = "sklearn_aim"
    _doc_link_template = "https://sklearn-aim.readthedocs.io/en/stable/generated/sklearn_aim.{estimator_name}.html"

    def __getstate__(self):
        from sklearn_aim import __version__

        return {**super().__getstate__(), "_sklearn_aim_version": __version__}

    def __setstate__(self, state):
        from sklearn_aim import __version__

        # those of before the first release that said so are of 0.1.0
        version = state.get("_sklearn_aim_version", "0.1.0")
        if version != __version__:
            warnings.warn(
                f"{type(self).__name__} was stored by sklearn-aim {version} and is loaded by {__version__}: what it "
                "learned may be missing or mean something else. Fit it again, or load it with the version that stored "
                "it.",
                UserWarning,
                stacklevel=2,
            )
        super().__setstate__({name: value for name, value in state.items() if name != "_sklearn_aim_version"})


def resolve_width(width, n_features):
    """Width r (int >= 1) and its ratio r/d from the parameter: an int is r, a float the ratio, rounded to some r.

    Returns
    -------
    width : int
    width_ratio : float
    """
    if isinstance(width, (bool, np.bool_)) or not isinstance(width, numbers.Real):
        raise TypeError(f"width={width!r} must be an int (the width r) or a float (the ratio r/d).")
    if isinstance(width, numbers.Integral):
        if width < 1:
            raise ValueError(f"width={width!r} must be at least 1 as an int (the width r), or a float > 0 (r/d).")
        return int(width), int(width) / n_features
    if not (np.isfinite(width) and width > 0):
        raise ValueError(f"width={width!r} must be a finite float > 0 (the ratio r/d), or an int >= 1 (the width r).")
    r = max(1, round(float(width) * n_features))
    return r, r / n_features


def width_is_auto(width):
    """Whether the width is to be found from the data."""
    if not isinstance(width, str):
        return False
    if width != "auto":
        raise ValueError(f"width={width!r} must be 'auto', an int (the width r) or a float (the ratio r/d).")
    return True


def check_number(value, name, *, low=0.0, strict=False, high=np.inf, integer=False):
    """A finite real (or integer) parameter within bounds; the message names it, its value and the mend."""
    kind = numbers.Integral if integer else numbers.Real
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be {'an int' if integer else 'a number'}.")
    fits = value > low if strict else value >= low
    if not (np.isfinite(value) and fits and value <= high):
        bound = f"{'>' if strict else '>='} {low:g}" + (f" and <= {high:g}" if np.isfinite(high) else "")
        bound = bound if np.isfinite(low) else "finite"
        raise ValueError(f"{name}={value!r} must be {bound}: choose a finite value in that range.")
    return value


def check_inverse_temperature(value):
    """A positive number whose square and its inverse are finite."""
    if check_number(value, "inverse_temperature", strict=True, high=LARGEST) < 1 / LARGEST:
        raise ValueError(f"inverse_temperature={value!r} must be at least {1 / LARGEST:g}: y would show nothing.")


def check_flag(value, name):
    """True or False, not anything that is merely truthy."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}={value!r} must be True or False.")
    return bool(value)


def check_verbose(value):
    """A number >= 0, or True and False as scikit-learn takes them."""
    return check_number(int(value) if isinstance(value, bool) else value, "verbose")


def check_dtype(dtype):
    """float64 or float32."""
    dtype = np.dtype(dtype)
    if dtype not in (np.float64, np.float32):
        raise ValueError(f"dtype={dtype} must be float64 or float32.")
    return dtype


def check_name(value, name):
    """A string."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a string.")
    return value


def check_choice(value, name, choices):
    """One of a few strings."""
    if check_name(value, name) not in choices:
        raise ValueError(f"{name}={value!r} must be one of {list(choices)}.")
    return value


def check_square(matrix, name):
    """A finite square matrix over features, double precision."""
    try:
        matrix = np.asarray(matrix, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}={matrix!r} must be an array (n_features, n_features).") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"{name} has shape {matrix.shape}, but must be square: (n_features, n_features) of one layer.")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be finite, but holds NaN or infinity.")
    return matrix


def final_estimator(estimator):
    """The estimator itself, behind searches and pipelines."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
