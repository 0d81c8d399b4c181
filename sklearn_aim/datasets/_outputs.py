"""Sequences and attention maps from what a transformer returns."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_aim.kernels.masks import allowed_pairs, check_flags
from sklearn_aim.parameters import check_number


def load_attention(
    outputs: Any, *, layer: int, head: int, attention_mask: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """X, y and mask of one attention head from a transformer's outputs.

    Parameters
    ----------
    outputs : object or dict
        With "hidden_states", a sequence of arrays (n_samples, n_tokens, n_features), the input of every layer, and
        "attentions", a sequence of arrays (n_samples, n_heads, n_tokens, n_tokens): what models of the transformers
        package return when asked for both. Arrays or tensors.
    layer, head : int
        Which one, from 0.
    attention_mask : array-like of shape (n_samples, n_tokens), optional
        1 for tokens, 0 for padding, as a tokenizer returns it.

    Returns
    -------
    X : ndarray of shape (n_samples, n_tokens, n_features)
        What the layer is given. Models that normalise before attention (GPT-2 and later ones) give their heads
        LayerNorm of it: whitening makes up for the scale of its features, not for that of its tokens.
    y : ndarray of shape (n_samples, n_tokens, n_tokens)
        y[n, a, b]: query a, key b; 0 where masked, rows of padding included.
    mask : ndarray of shape (n_samples, n_tokens, n_tokens), bool, or None
        Causal if no query of any sequence attends to what comes after it, and without padding.

    Raises
    ------
    TypeError, ValueError
        If the outputs lack a part, or shapes, layer or head don't fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_aim import load_attention
    >>> outputs = {"hidden_states": [np.ones((4, 3, 8))], "attentions": [np.full((4, 2, 3, 3), 1 / 3)]}
    >>> X, y, mask = load_attention(outputs, layer=0, head=1)
    >>> X.shape, y.shape, mask is None
    ((4, 3, 8), (4, 3, 3), True)
    """
    check_number(layer, "layer", integer=True)
    check_number(head, "head", integer=True)
    X = _array(_part(outputs, "hidden_states", layer))
    maps = _array(_part(outputs, "attentions", layer))
    if X.ndim != 3 or maps.ndim != 4 or maps.shape[0] != X.shape[0] or maps.shape[2:] != (X.shape[1],) * 2:
        raise ValueError(
            f"hidden_states[{layer}] has shape {X.shape} and attentions[{layer}] {maps.shape}, but must have shapes "
            "(n_samples, n_tokens, n_features) and (n_samples, n_heads, n_tokens, n_tokens)."
        )
    if head >= maps.shape[1]:
        raise ValueError(f"head={head} is not below {maps.shape[1]}, the heads of the layer.")
    n_samples, n_tokens = X.shape[:2]
    y = np.array(maps[:, head])
    allowed = np.ones(y.shape, bool)
    if attention_mask is not None:
        real = check_flags(_array(attention_mask), "attention_mask")
        if real.shape != (n_samples, n_tokens):
            raise ValueError(f"attention_mask has shape {real.shape}, but must have shape {(n_samples, n_tokens)}.")
        allowed &= real[:, :, None] & real[:, None, :]
    if n_tokens > 1 and not np.triu(np.where(allowed, y, 0), 1).any():
        allowed &= np.tri(n_tokens, dtype=bool)
    y[~allowed] = 0
    return X, y, allowed_pairs(allowed, n_samples, n_tokens, "attention_mask")


def _part(outputs, name, layer):
    parts = outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)
    if parts is None:
        raise TypeError(
            f"outputs of type {type(outputs).__name__} have no {name}: ask the model for them, with output_{name}=True."
        )
    if layer >= len(parts):
        raise ValueError(f"layer={layer} is not below {len(parts)}, the number of {name}.")
    return parts[layer]


def _array(values):
    """An ndarray from an array or a tensor on any device."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    return np.asarray(values)
