"""Sequences and attention maps of a deep stack of low-rank attention layers."""

import numbers
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from sklearn.utils import check_array, check_random_state

from sklearn_aim.algorithms.attention_stack import AttentionStack
from sklearn_aim.parameters import check_dtype, check_number


def make_deep_attention_sequences(
    n_samples: int = 1000,
    n_tokens: int = 2,
    n_features: int = 50,
    *,
    n_layers: int = 2,
    skip: float = 1.0,
    width: int | Sequence[int] = 1,
    inverse_temperature: float = 1.0,
    weights: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
    random_state: int | np.random.RandomState | None = None,
    return_weights: bool = False,
) -> tuple:
    r"""Sequences of Gaussian tokens and the attention maps of several tied layers of low rank.

    With :math:`Z_l = X W_l/\sqrt d`, :math:`B_0 = I` and :math:`U_l = B_{l-1} Z_l`,

    .. math:: B_l = [c I + \mathrm{softmax}(\beta U_l U_l^\top)] B_{l-1}, \qquad
              y = \mathrm{softmax}(\beta U_L U_L^\top).

    `GDAttentionRegressor(width, n_layers=n_layers, skip=skip, scaling="sequence-index")` learns this model.

    Parameters
    ----------
    n_samples, n_tokens, n_features : int
        n, T and d. Layers of this kind are learned from n of order d sequences.
    n_layers : int, default=2
    skip : float, default=1.0
        Skip strength c.
    width : int or sequence of int, default=1
        Columns of every W_l, or of each.
    inverse_temperature : float, default=1.0
        beta.
    weights : list of array-like of shape (n_features,) or (n_features, width), optional
        W_l themselves, in place of random ones with standard normal entries; `n_layers` and `width` are then theirs.
    dtype : dtype, default=float64
        float64 or float32, of X and y.
    random_state : int, RandomState or None, default=None
    return_weights : bool, default=False

    Returns
    -------
    X : ndarray of shape (n_samples, n_tokens, n_features)
    y : ndarray of shape (n_samples, n_tokens, n_tokens)
    weights : list of ndarray of shape (n_features, width)
        W_l, only if `return_weights`. Each is identifiable up to a rotation of its columns (its sign, for width 1).

    References
    ----------
    arXiv:2502.00901, section 2.

    Examples
    --------
    >>> from sklearn_aim import make_deep_attention_sequences
    >>> X, y, weights = make_deep_attention_sequences(
    ...     100, n_features=20, n_layers=3, random_state=0, return_weights=True)
    >>> X.shape, y.shape, [W.shape for W in weights]
    ((100, 2, 20), (100, 2, 2), [(20, 1), (20, 1), (20, 1)])
    """
    for name, value in (("n_samples", n_samples), ("n_features", n_features), ("n_layers", n_layers)):
        check_number(value, name, low=1, integer=True)
    check_number(n_tokens, "n_tokens", low=2, integer=True)
    check_number(skip, "skip", low=-np.inf)
    check_number(inverse_temperature, "inverse_temperature", strict=True)
    dtype = check_dtype(dtype)
    rng = check_random_state(random_state)
    if weights is None:
        weights = [rng.standard_normal((n_features, r)) for r in _widths(width, n_layers)]
    else:
        weights = [_as_weights(one, n_features) for one in weights]
        if not weights:
            raise ValueError("weights=[] must hold at least one layer's weights.")
    x = rng.standard_normal((n_samples, n_tokens, n_features)).astype(dtype, copy=False)
    most = max(one.shape[1] for one in weights)
    # columns of zeros change no index
    factors = np.zeros((1, len(weights) * most, n_features))
    for layer, one in enumerate(weights):
        factors[0, layer * most : layer * most + one.shape[1]] = one.T
    stack = AttentionStack(
        n_features,
        most,
        n_layers=len(weights),
        skip=float(skip),
        inverse_temperature=float(inverse_temperature),
        scaling="sequence-index",
        center=False,
    )
    y = stack.outputs(factors, x)[1][:, 0]
    return (x, y, weights) if return_weights else (x, y)


def _widths(width, n_layers):
    widths = [width] * n_layers if isinstance(width, numbers.Number) or width is None else list(width)
    if len(widths) != n_layers:
        raise ValueError(f"width={width!r} names {len(widths)} layers, but n_layers={n_layers}.")
    return [check_number(r, "width", low=1, integer=True) for r in widths]


def _as_weights(one, n_features):
    one = check_array(one, dtype=np.float64, ensure_2d=False, input_name="weights")
    one = one.reshape(-1, 1) if one.ndim == 1 else one
    if one.shape[0] != n_features:
        raise ValueError(f"weights has a layer of shape {one.shape}, but n_features={n_features}.")
    return one
