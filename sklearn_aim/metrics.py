"""Errors and scorers for attention maps and interactions, 3-D targets included."""

import numpy as np
from sklearn.metrics import make_scorer
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight

__all__ = [
    "attention_error",
    "attention_r2_score",
    "attention_r2_scorer",
    "estimation_error",
    "neg_attention_error_scorer",
]


def _maps_and_weights(y_true, y_pred, sample_weight):
    y_true = check_array(y_true, ensure_2d=False, allow_nd=True, input_name="y_true", dtype=np.float64)
    y_pred = check_array(y_pred, ensure_2d=False, allow_nd=True, input_name="y_pred", dtype=np.float64)
    check_consistent_length(y_true, y_pred, sample_weight)
    n_samples = y_true.shape[0]
    if y_true.ndim == y_pred.ndim and y_true.shape != y_pred.shape:
        raise ValueError(f"y_true and y_pred differ in shape: {y_true.shape} and {y_pred.shape}.")
    y_true, y_pred = y_true.reshape(n_samples, -1), y_pred.reshape(n_samples, -1)
    if y_true.shape != y_pred.shape:
        raise ValueError(f"y_true and y_pred hold {y_true.shape[1]} and {y_pred.shape[1]} entries a sample.")
    weights = _check_sample_weight(sample_weight, y_true, dtype=np.float64)
    if not weights.sum() > 0:
        raise ValueError("sample_weight must have a positive sum.")
    return y_true, y_pred, weights / weights.sum()


def attention_error(y_true, y_pred, *, sample_weight=None):
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


def attention_r2_score(y_true, y_pred, *, sample_weight=None, by_position=False):
    """Share of the variance of attention maps that a prediction explains, all entries pooled.

    1 - sum ||y - y_pred||_F^2 / sum ||y - mean||_F^2. The mean is that of all entries (for softmax 1/T, uniform
    attention), so that what positions explain counts; or, by position, that of every entry over samples, so that
    0 is the mean map. Pooling keeps entries that hardly vary from dominating.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples, n_tokens, n_tokens) or flattened
    sample_weight : array-like of shape (n_samples,), optional
    by_position : bool, default=False

    Returns
    -------
    float
        At most 1. With constant y_true: 1 for a perfect prediction, else 0.
    """
    y_true, y_pred, weights = _maps_and_weights(y_true, y_pred, sample_weight)
    residual = weights @ np.sum((y_true - y_pred) ** 2, axis=1)
    mean = weights @ y_true
    total = weights @ np.sum((y_true - (mean if by_position else mean.mean())) ** 2, axis=1)
    if total == 0:
        return 1.0 if residual == 0 else 0.0
    return float(1 - residual / total)


def estimation_error(interaction_true, interaction):
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


neg_attention_error_scorer = make_scorer(attention_error, greater_is_better=False)
attention_r2_scorer = make_scorer(attention_r2_score)
