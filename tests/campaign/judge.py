"""What may come of a fit: finite numbers, a documented warning, or an error that names what is wrong."""

import contextlib
import re
import traceback
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

import sklearn_aim

PACKAGE = str(Path(sklearn_aim.__file__).parent)
# words one of which an error must hold, besides names of parameters
_SUBJECTS = (
    r"\b(X|y|mask|alpha|values|n_samples|n_features|sample_weight|Sample weights|init|y_true|y_pred|input variables"
    r"|array with)\b"
)
# how warnings of the package begin
_WARNINGS = (
    "AMP did not converge",
    "The annealed fit did not settle",
    "integrals over the layers",
    "The loss of ",
    "No iterate of ",
    "Training was interrupted",
    "y holds zeros",
    "rows of y do not sum to 1",
    "X has mean square",
    "for tied=False and link=",
    "state evolution at alpha=",
    "the threshold of layer",
    "A column-vector y",
)
_COUNTED = re.compile(r"\d+ of \d+ starts (reached max_iter|ended at a larger loss)")


class Violation(Exception):
    """What must never be."""


class Overtime(BaseException):
    """A problem that takes too long."""


def demand(condition, what):
    """Raise a Violation that says what is wrong, unless the condition holds."""
    if not condition:
        raise Violation(what)


@contextlib.contextmanager
def watched():
    """Warnings are collected, and those of another kind are violations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    for one in caught:
        message = str(one.message)
        fine = one.category in (ConvergenceWarning, UserWarning, DataConversionWarning) and (
            message.startswith(_WARNINGS) or _COUNTED.match(message)
        )
        demand(fine, f"warning {one.category.__name__}: {message[:200]} ({one.filename}:{one.lineno})")


def check_error(error, names=()):
    """An error that was raised on purpose, by the package or by scikit-learn's checks, and names what is wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__}: {str(error)[:200]} ({last.filename}:{last.lineno})"
    demand(type(error) in (ValueError, TypeError), where)
    ours = last.filename.startswith(PACKAGE) or "/sklearn/" in last.filename
    demand(ours and (last.line or "").startswith("raise"), f"raw {where}")
    named = re.search(_SUBJECTS, str(error)) or any(f"{name}=" in str(error) for name in names)
    demand(named, f"nameless {where}")


def check_finite(value, name, depth=0):
    """Every number within is finite."""
    if isinstance(value, dict):
        for key, one in value.items():
            check_finite(one, f"{name}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 4:
        for one in value:
            check_finite(one, name, depth + 1)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        demand(np.isfinite(value).all(), f"{name} is not finite")
    elif isinstance(value, (float, np.floating)):
        demand(np.isfinite(value), f"{name}={value}")


def check_attributes(estimator):
    """All fitted attributes are finite."""
    for name, value in vars(estimator).items():
        if name == "losses_":
            # infinite where a start diverged at once
            demand(not np.isnan(value).any(), "losses_ holds NaN")
        elif name.endswith("_") and not name.endswith("__"):
            check_finite(value, name)
    for name in ("interaction_",):
        if hasattr(estimator, name):
            check_finite(getattr(estimator, name), name)


def state(estimator):
    """What a failed fit must leave as it is."""
    return {
        name: (id(value), value.tobytes() if isinstance(value, np.ndarray) else None)
        for name, value in vars(estimator).items()
        if name.endswith("_") or name.startswith("_")
    }
