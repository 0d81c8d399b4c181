"""Sequences of unequal length: padded to one shape, with the mask that says which tokens are real."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sklearn_aim.kernels.masks import check_flags


def pad_sequences(
    X: Sequence[ArrayLike], y: Sequence[ArrayLike] | None = None, mask: ArrayLike | str | None = None
) -> tuple[np.ndarray, ...]:
    """Pad sequences of unequal length, and their attention maps, with zeros.

    Estimators that take masks do this themselves when X is a list of such sequences, and answer with lists.

    Parameters
    ----------
    X : list of array-like of shape (n_tokens, n_features)
        Each with its own number of tokens, at least one, and all with the same features.
    y : list of array-like of shape (n_tokens, n_tokens), optional
    mask : None, "causal" or ndarray of shape (T, T), default=None
        What the sequences' own tokens may attend to: each other, themselves and those before, or True where query a may
        attend to key b.

    Returns
    -------
    X : ndarray of shape (n_samples, T, n_features)
        T is the largest number of tokens.
    y : ndarray of shape (n_samples, T, T)
        Only if given.
    mask : ndarray of shape (n_samples, T, T), bool
        Allowed pairs, for `fit`, `predict` and `score`.

    Raises
    ------
    ValueError, TypeError
        If X is no list of sequences, one is empty, features, maps or mask don't fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_aim import pad_sequences
    >>> X, mask = pad_sequences([np.ones((2, 5)), np.ones((3, 5))])
    >>> X.shape, mask.sum(axis=(1, 2))
    ((2, 3, 5), array([4, 9]))
    """
    if not isinstance(X, (list, tuple)) or not len(X):
        raise TypeError(
            f"X of type {type(X).__name__} must be a list of sequences, arrays of shape (n_tokens, n_features)."
        )
    rows = [np.asarray(one) for one in X]
    for n, one in enumerate(rows):
        if one.ndim != 2 or one.dtype.kind not in "fiub":
            raise ValueError(
                f"X[{n}] of shape {one.shape} and dtype {one.dtype} must be numbers (n_tokens, n_features)."
            )
        if 0 in one.shape:
            raise ValueError(f"X[{n}] has shape {one.shape}: a sequence needs at least one token and one feature.")
        if one.shape[1] != rows[0].shape[1]:
            raise ValueError(f"X[{n}] has {one.shape[1]} features, but X[0] has {rows[0].shape[1]}.")
    lengths = np.array([len(one) for one in rows])
    most = int(lengths.max())
    real = np.arange(most) < lengths[:, None]
    pairs = real[:, :, None] & real[:, None, :]
    if isinstance(mask, str) and mask == "causal":
        mask = np.tri(most, dtype=bool)
    if mask is not None:
        mask = check_flags(mask, "mask")
        if mask.shape != (most, most):
            raise ValueError(
                f"mask must be None, 'causal' or of shape {(most, most)}, the largest number of tokens, for sequences "
                "of unequal length, whose padding is masked anyway: for another use pad_sequences first."
            )
        pairs &= mask
    padded = np.zeros((len(rows), most, rows[0].shape[1]), np.result_type(*rows))
    for n, one in enumerate(rows):
        padded[n, : len(one)] = one
    if y is None:
        return padded, pairs
    if len(y) != len(rows):
        raise ValueError(f"Found input variables with inconsistent numbers of samples: [{len(rows)}, {len(y)}].")
    maps = [np.asarray(one) for one in y]
    out = np.zeros((len(rows), most, most), np.result_type(*maps))
    for n, (one, length) in enumerate(zip(maps, lengths, strict=True)):
        if one.shape != (length, length):
            raise ValueError(
                f"y[{n}] has shape {one.shape}, but X[{n}] has {length} tokens: give ({length}, {length})."
            )
        out[n, :length, :length] = one
    return padded, out, pairs


def is_ragged(x):
    """Whether X is a list of sequences with unequal numbers of tokens."""
    if not isinstance(x, (list, tuple)) or len(x) < 2:
        return False
    shapes = [np.shape(one) if hasattr(one, "shape") else _shape(one) for one in x]
    return all(shape is not None and len(shape) == 2 for shape in shapes) and len({shape[0] for shape in shapes}) > 1


def _shape(nested):
    try:
        return np.shape(nested)
    except ValueError:
        # ragged itself
        return None
