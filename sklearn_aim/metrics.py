"""Errors and scorers for attention maps and interactions, 3-D targets included."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from sklearn_aim.kernels.dask_blocks import gather
from sklearn_aim.kernels.masks import check_flags
from sklearn_aim.parameters import check_number, final_estimator

__all__ = [
    "align_signs",
    "attention_error",
    "attention_r2_score",
    "attention_r2_scorer",
    "cosine_similarity",
    "estimation_error",
    "interval_coverage",
    "neg_attention_error_scorer",
]

# entries whose squares, summed, are finite
_LARGEST = 1e140


def _maps_and_weights(y_true, y_pred, sample_weight):
    y_true, y_pred = gather(y_true), gather(y_pred)
    y_true = check_array(y_true, ensure_2d=False, allow_nd=True, input_name="y_true", dtype=np.float64)
    y_pred = check_array(y_pred, ensure_2d=False, allow_nd=True, input_name="y_pred", dtype=np.float64)
    # one weight for all, as in fit
    check_consistent_length(y_true, y_pred, None if np.ndim(sample_weight) == 0 else sample_weight)
    n_samples = y_true.shape[0]
    if y_true.ndim == y_pred.ndim and y_true.shape != y_pred.shape:
        raise ValueError(f"y_true and y_pred differ in shape: {y_true.shape} and {y_pred.shape}.")
    y_true, y_pred = y_true.reshape(n_samples, -1), y_pred.reshape(n_samples, -1)
    if y_true.shape != y_pred.shape:
        raise ValueError(f"y_true and y_pred hold {y_true.shape[1]} and {y_pred.shape[1]} entries a sample.")
    largest = max(np.abs(y_true).max(), np.abs(y_pred).max())
    if largest > _LARGEST:
        raise ValueError(f"y_true and y_pred hold values up to {largest:.3g}, too large to square: rescale them.")
    weights = _check_sample_weight(sample_weight, y_true, dtype=np.float64)
    if not weights.sum() > 0:
        raise ValueError("sample_weight must have a positive sum.")
    return y_true, y_pred, weights / weights.sum()


def attention_error(y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean over samples of ||y - y_pred||_F^2, the test error of `BayesOptimalBound`.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples, n_tokens, n_tokens) or flattened
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
    """
    y_true, y_pred, weights = _maps_and_weights(y_true, y_pred, sample_weight)
    return float(weights @ np.sum((y_true - y_pred) ** 2, axis=1))


def attention_r2_score(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    by_position: bool = False,
    mask: ArrayLike | None = None,
) -> float:
    """Share of the variance of attention maps that a prediction explains, all entries pooled.

    1 - sum ||y - y_pred||_F^2 / sum ||y - mean||_F^2. The mean is that of all entries (for softmax 1/T, uniform
    attention), so that what positions explain counts; or, by position, that of every entry over samples, so that
    0 is the mean map. Pooling keeps entries that hardly vary from dominating.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples, n_tokens, n_tokens) or flattened
    sample_weight : array-like of shape (n_samples,), optional
    by_position : bool, default=False
    mask : ndarray of shape (n_samples, n_tokens, n_tokens), bool, optional
        Entries that count, True where a query may attend to a key; default all.

    Returns
    -------
    float
        At most 1. With constant y_true: 1 for a perfect prediction, else 0.
    """
    y_true, y_pred, weights = _maps_and_weights(y_true, y_pred, sample_weight)
    counted = np.ones(y_true.shape) if mask is None else _entries(mask, y_true)
    shares = weights[:, None] * counted
    if not shares.any():
        raise ValueError("mask hides every entry of the samples that count: there is nothing to score.")
    mean = np.sum(shares * y_true, axis=0), shares.sum(axis=0)
    # entries that never count have no mean, and need none
    mean = mean[0] / np.where(mean[1] > 0, mean[1], 1) if by_position else mean[0].sum() / mean[1].sum()
    residual, total = np.sum(shares * (y_true - y_pred) ** 2), np.sum(shares * (y_true - mean) ** 2)
    if total == 0:
        return 1.0 if residual == 0 else 0.0
    return float(1 - residual / total)


def interval_coverage(
    y_true: ArrayLike, y_pred: ArrayLike, y_std: ArrayLike, *, level: float = 0.9, mask: ArrayLike | None = None
) -> float:
    """Share of entries that lie in the central intervals of a prediction with its posterior spread.

    Parameters
    ----------
    y_true, y_pred, y_std : array-like of shape (n_samples, n_tokens, n_tokens) or flattened
        From ``predict(X, return_std=True)``.
    level : float in (0, 1), default=0.9
        Of the intervals, those of a normal law.
    mask : ndarray of shape (n_samples, n_tokens, n_tokens), bool, optional
        Entries that count.

    Returns
    -------
    float
        About `level` where the spread is right. Softmax weights near 0 or 1 have skewed laws: a few per cent off.

    Examples
    --------
    >>> from sklearn_aim import interval_coverage
    >>> interval_coverage([[0.0, 1.0]], [[0.1, 0.2]], [[0.1, 0.1]])
    0.5
    """
    check_number(level, "level", strict=True)
    if level >= 1:
        raise ValueError(f"level={level!r} must be below 1.")
    y_true, y_pred, _ = _maps_and_weights(y_true, y_pred, None)
    _, y_std, _ = _maps_and_weights(y_true, y_std, None)
    if (y_std < 0).any():
        raise ValueError("y_std holds negative numbers: pass standard deviations.")
    inside = np.abs(y_true - y_pred) <= norm.ppf(0.5 + level / 2) * y_std
    return float(inside.mean() if mask is None else inside[_entries(mask, y_true)].mean())


def _entries(mask, y):
    """Entries that count, (n_samples, entries), at least one."""
    counted = check_flags(mask, "mask").reshape(len(y), -1)
    if counted.shape != y.shape:
        raise ValueError(f"mask holds {counted.shape[1]} entries a sample, but y_true {y.shape[1]}.")
    if not counted.any():
        raise ValueError("mask hides every entry: there is nothing to score.")
    return counted


def estimation_error(interaction_true: ArrayLike, interaction: ArrayLike) -> float:
    """||S - S_hat||_F^2 / d, the estimation error of `BayesOptimalBound`.

    Parameters
    ----------
    interaction_true, interaction : array-like of shape (d, d)

    Returns
    -------
    float
    """
    for name, value in (("interaction_true", interaction_true), ("interaction", interaction)):
        if hasattr(value, "interaction_"):
            raise TypeError(f"{name} must be a matrix: pass the estimator's interaction_.")
    truth = check_array(interaction_true, input_name="interaction_true", dtype=np.float64)
    estimate = check_array(interaction, input_name="interaction", dtype=np.float64)
    if truth.shape != estimate.shape or truth.shape[0] != truth.shape[1]:
        raise ValueError(
            f"interaction_true and interaction must be square and of one shape, got {truth.shape} and {estimate.shape}."
        )
    return float(np.sum((truth - estimate) ** 2) / truth.shape[0])


def _layers(weights, name):
    """(n_layers, d) from an estimator, or from weights of shape (n_layers, d), or (d,) or (d, 1) for each layer."""
    if hasattr(weights, "get_params"):
        estimator = final_estimator(weights)
        try:
            check_is_fitted(estimator)
        except NotFittedError as error:
            raise NotFittedError(f"{name}={estimator!r} is not fitted: call fit first.") from error
        if not (hasattr(estimator, "weights_") or hasattr(estimator, "W_")):
            raise TypeError(f"{name}={estimator!r} has no weights of tied layers to compare.")
        weights = estimator.weights_ if hasattr(estimator, "weights_") else estimator.W_
        weights = list(weights) if hasattr(estimator, "weights_") or weights.ndim == 3 else [weights]
    expected = (
        "weights of shape (n_layers, n_features), a list of (n_features,) or (n_features, 1), or a fitted estimator"
    )
    if isinstance(weights, np.ndarray) and weights.ndim == 1:
        # one layer
        weights = [weights]
    try:
        rows = [np.asarray(layer) for layer in weights]
        if any(row.dtype.kind not in "fiub" for row in rows):
            rows = [np.asarray(layer, dtype=float) for layer in weights]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} of type {type(weights).__name__} must be {expected}.") from error
    rows = [row[:, 0] if row.ndim == 2 and row.shape[1] == 1 else row for row in rows]
    wrong = [row.shape for row in rows if row.ndim != 1]
    if wrong:
        raise ValueError(f"{name} holds a layer of shape {wrong[0]}: it must have width 1, one weight a feature.")
    if len({len(row) for row in rows}) != 1:
        raise ValueError(f"{name} has layers of {[len(row) for row in rows]} features, but must be {expected}.")
    rows = np.array(rows, dtype=float)
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} contains NaN or infinity.")
    return rows


def _pair_of_layers(estimate, weights):
    estimate, weights = _layers(estimate, "estimate"), _layers(weights, "weights")
    if estimate.shape != weights.shape:
        raise ValueError(
            f"estimate and weights must agree in layers and features, got shapes {estimate.shape} and {weights.shape}."
        )
    return estimate, weights


def cosine_similarity(estimate: BaseEstimator | ArrayLike, weights: BaseEstimator | ArrayLike) -> np.ndarray:
    """Absolute cosine of the angle between estimated and true weights, layer by layer.

    Parameters
    ----------
    estimate : fitted estimator of layers of width 1, or weights
        Weights: of shape (n_layers, n_features), or a list of arrays of shape (n_features,) or (n_features, 1).
    weights : array-like
        The teacher's, in any of these shapes; see `make_deep_attention_sequences`.

    Returns
    -------
    ndarray of shape (n_layers,)
        In [0, 1], since signs are not identifiable; 0 for a layer of zeros.

    Examples
    --------
    >>> from sklearn_aim import cosine_similarity
    >>> cosine_similarity([[1.0, 0.0], [1.0, 1.0]], [[-2.0, 0.0], [1.0, -1.0]])
    array([1., 0.])
    """
    estimate, weights = _pair_of_layers(estimate, weights)
    unit, other = _scaled(estimate), _scaled(weights)
    norms = np.linalg.norm(unit, axis=1) * np.linalg.norm(other, axis=1)
    products = np.abs(np.einsum("ld,ld->l", unit, other))
    return np.minimum(products / np.where(norms > 0, norms, 1), 1.0)


def _scaled(rows):
    """Rows over their largest entries, so that products do not overflow."""
    top = np.abs(rows).max(axis=1, keepdims=True)
    return rows / np.where(top > 0, top, 1)


def align_signs(estimate: BaseEstimator | ArrayLike, weights: BaseEstimator | ArrayLike) -> np.ndarray:
    """Estimated weights with the sign of each layer turned towards the true ones.

    Parameters
    ----------
    estimate, weights : fitted estimators of layers of width 1, or weights
        As for `cosine_similarity`.

    Returns
    -------
    ndarray of shape (n_layers, n_features)
    """
    estimate, weights = _pair_of_layers(estimate, weights)
    products = np.einsum("ld,ld->l", _scaled(estimate), _scaled(weights))
    return np.where(products < 0, -1.0, 1.0)[:, None] * estimate


neg_attention_error_scorer = make_scorer(attention_error, greater_is_better=False)
attention_r2_scorer = make_scorer(attention_r2_score)
