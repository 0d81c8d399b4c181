"""fit_path: one estimator at many sample sizes or parameter values, each fit started from the last."""

import copy
from collections.abc import Sequence

from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _num_samples

from sklearn_aim.parameters import check_name, check_number


def fit_path(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, *, param_name: str = "n_samples", values: Sequence
) -> list[BaseEstimator]:
    """Fit an estimator along a path, each fit started where the last one ended.

    For learning curves (`param_name="n_samples"`) and curves over a parameter, such as the width. With
    `AMPAttentionRegressor` neighbouring widths take about half the iterations of separate fits, growing sample sizes
    about a sixth less away from recovery, and answers agree within `tol`. `GDAttentionRegressor` goes on with its
    factors where they mean the same: along sample sizes, and along weight_decay from small to large, but not along
    widths.

    Parameters
    ----------
    estimator : estimator
        Not fitted itself. With a parameter ``warm_start``.
    X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
        In memory, a memory map or a dask array.
    y : array-like of shape (n_samples, n_tokens, n_tokens), flattened, or (n_samples,) for one token
    param_name : str, default="n_samples"
        A parameter of the estimator, or "n_samples": fit the first sequences.
    values : sequence
        Its values, in the order of the path. Sample sizes should grow.

    Returns
    -------
    list of estimators
        One fitted estimator a value.

    Raises
    ------
    ValueError, TypeError
        For estimators without ``warm_start``, parameters that they don't have, sample sizes out of range, and as
        the estimator's `fit`.

    Examples
    --------
    >>> from sklearn_aim import AMPAttentionRegressor, fit_path, make_attention_sequences
    >>> X, y = make_attention_sequences(500, n_features=40, width=0.5, random_state=0)
    >>> path = fit_path(AMPAttentionRegressor(width=0.5), X, y, values=[100, 200, 400])
    >>> [est.sample_complexity_ for est in path]
    [0.0625, 0.125, 0.25]
    """
    check_name(param_name, "param_name")
    walker = clone(estimator)
    known = walker.get_params(deep=False)
    if "warm_start" not in known:
        raise TypeError(
            f"estimator={estimator!r} has no parameter warm_start. Pass an AMPAttentionRegressor or a "
            "GDAttentionRegressor, on features that have been whitened."
        )
    if param_name != "n_samples" and (param_name not in known or param_name == "warm_start"):
        raise ValueError(f"param_name={param_name!r} must be 'n_samples' or one of {sorted(known)}, warm_start apart.")
    values = list(values)
    if not values:
        raise ValueError("values=[] must hold at least one value.")
    if param_name == "n_samples":
        if y is not None:
            check_consistent_length(X, y)
        most = _num_samples(X)
        for value in values:
            if check_number(value, "values", low=1, integer=True) > most:
                raise ValueError(f"values hold n_samples={value}, but X has {most} sequences.")
    walker.set_params(warm_start=True)
    path = []
    for value in values:
        if param_name == "n_samples":
            walker.fit(X[:value], y if y is None else y[:value])
        else:
            walker.set_params(**{param_name: value}).fit(X, y)
        # fits replace what they have learned, and never write into it
        fitted = copy.copy(walker).set_params(warm_start=known["warm_start"])
        if not known["warm_start"] and hasattr(fitted, "_memory"):
            # labels and G are for the walk
            fitted._memory = (None, None, None)
        path.append(fitted)
    return path
