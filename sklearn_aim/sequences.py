"""The one input contract: sequences X and attention maps y in every shape that estimators accept.

X is (n_samples, n_tokens, n_features); 2-D X means one token a sample, or flattened sequences when `n_tokens`
says how many. y follows: (n, T, T), (n, T * T), or (n,) for one token; predictions answer in the shape y had. X may be
an array in memory, a memory map or a dask array, and comes out as blocks of samples.
"""

import warnings
from contextlib import contextmanager

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names, _check_n_features, _num_features

from sklearn_aim.kernels.blocks import SampleBlocks, check_file, large_memory_map
from sklearn_aim.kernels.dask_blocks import DaskBlocks, gather, is_dask_array
from sklearn_aim.kernels.indices import largest_entries
from sklearn_aim.kernels.threads import by_keyboard


def check_sequences(estimator, x, *, reset, n_tokens=None, min_samples=1):
    """Validate X and bring it to (n, T, d).

    Sets (``reset=True``) or checks ``n_features_in_`` and ``feature_names_in_`` on the estimator, and
    ``n_token_features_``, the d of one token.

    Parameters
    ----------
    estimator : BaseEstimator
    x : array-like of shape (n, T, d), (n, T * d) or (n, d)
    reset : bool
        True in fit, False later.
    n_tokens : int or None
        Tokens in a row of 2-D X; None means one.
    min_samples : int

    Returns
    -------
    sequences : SampleBlocks or DaskBlocks of shape (n, T, d), float64 or float32
    flat : bool
        True if X was 2-D.
    """
    name = type(estimator).__name__
    array = as_array(x, "X", name, min_samples)
    if array.ndim == 2:
        _check_feature_names(estimator, x, reset=reset)
        tokens = 1 if n_tokens is None else n_tokens
        if array.shape[1] % tokens:
            raise ValueError(
                f"X has {array.shape[1]} columns, which n_tokens={tokens} does not divide. Flatten sequences of shape "
                "(n_tokens, n_features) row by row, or pass X of shape (n_samples, n_tokens, n_features)."
            )
    elif reset and hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    width = _num_features(array) if array.ndim == 2 else array.shape[2]
    if array.ndim == 3 and n_tokens is not None and array.shape[1] != n_tokens and reset:
        raise ValueError(
            f"X has {array.shape[1]} tokens a sequence, but n_tokens={n_tokens}. Leave n_tokens=None for 3-D X."
        )
    if array.ndim == 2:
        features = width // tokens
        if reset or getattr(estimator, "_fitted_on_2d", True):
            _check_n_features(estimator, array, reset=reset)
        sequences = array.reshape(array.shape[0], tokens, features)
    else:
        features = width
        sequences = array
        if reset:
            estimator.n_features_in_ = features
    if reset:
        estimator.n_token_features_ = features
        estimator._fitted_on_2d = array.ndim == 2
    elif features != estimator.n_token_features_:
        raise ValueError(
            f"X has {features} features, but {name} is expecting {estimator.n_token_features_} features as input "
            "(features of one token, the last axis of X)."
        )
    return sequence_blocks(sequences), array.ndim == 2


def sequence_blocks(sequences):
    """Blocks of samples in floating precision; those that have not been looked at yet are checked, block by block."""
    dtype = sequences.dtype if sequences.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    if is_dask_array(sequences):
        blocks = DaskBlocks(sequences, np.float32 if sequences.dtype == np.float16 else dtype)
    else:
        blocks = SampleBlocks(sequences, np.float32 if sequences.dtype == np.float16 else dtype)
        if large_memory_map(sequences) is None:
            return blocks
    finite = np.isfinite(blocks.collect(largest_entries))
    if not finite.all():
        raise ValueError(
            f"Input X contains NaN or infinity, or a value too large for its dtype, in X[{finite.argmin()}]."
        )
    return blocks


def as_array(x, what, name, min_samples):
    """An array of 2 or 3 dimensions; ragged, empty or other input is refused by name.

    Finite and floating, if it is in memory; else `sequence_blocks` sees to it.
    """
    _refuse_ragged(x, what)
    if type(x).__module__.partition(".")[0] == "dask" and not is_dask_array(x):
        raise TypeError(f"{what} of type {type(x).__name__} must be an array: for dask, a dask.array of known shape.")
    if hasattr(x, "shape"):
        ndim = len(x.shape)
    else:
        # other containers are for check_array to open
        ndim = np.ndim(x) if x is None or isinstance(x, (list, tuple, int, float)) else 2
    if ndim < 2:
        raise ValueError(
            f"{what} must have shape (n_samples, n_tokens, n_features) or (n_samples, n_features), got "
            f"{ndim} dimension(s). Reshape your data: X[None] for one sequence, X.reshape(-1, 1) for "
            "a single feature."
        )
    check_file(x, what)
    if is_dask_array(x):
        array = _check_chunks(x)
    elif large_memory_map(x) is not None and x.dtype.kind in "fiub":
        array = x
    else:
        if getattr(x, "dtype", None) == np.float16:
            x = x.astype(np.float32)
        array = check_array(
            x,
            dtype=[np.float64, np.float32],
            allow_nd=True,
            ensure_min_samples=min_samples,
            input_name=what,
            estimator=name,
        )
    if array.ndim > 3:
        raise ValueError(
            f"{what} must have shape (n_samples, n_tokens, n_features) or (n_samples, n_features), got {array.ndim} "
            f"dimensions, {array.shape}."
        )
    if 0 in array.shape:
        empty = ("sample", "token", "feature")[array.shape.index(0)] if array.ndim == 3 else "feature"
        raise ValueError(
            f"Found array with 0 {empty}(s) (shape={array.shape}) while a minimum of 1 is required by {name}."
        )
    return array


def _check_chunks(x):
    """A dask array of numbers whose chunks are whole sequences, none of them empty."""
    if x.dtype.kind not in "fiub":
        raise ValueError(f"X holds {x.dtype}, but must hold real numbers.")
    sizes = np.array(x.chunks[0], dtype=float)
    if np.isnan(sizes).any() or np.isnan(x.shape).any():
        raise ValueError("X has chunks of unknown size: call X.compute_chunk_sizes() first.")
    if any(len(axis) > 1 for axis in x.chunks[1:]):
        raise ValueError(
            f"X has chunks {x.chunksize} of shape {x.shape}: tokens and features must not be split. Use "
            f"X.rechunk({{{', '.join(f'{axis}: -1' for axis in range(1, x.ndim))}}})."
        )
    if x.shape[0] and (sizes == 0).any():
        raise ValueError(
            f"X has an empty chunk, number {int((sizes == 0).argmax())} of {len(sizes)}: leave it out, or use "
            "X.rechunk({0: 'auto'})."
        )
    return x


def _refuse_ragged(x, what):
    """Nested sequences of different length, as lists or as an array of objects."""
    nested = list(x) if isinstance(x, np.ndarray) and x.dtype == object else x
    if isinstance(nested, (list, tuple)):
        try:
            np.asarray(nested)
        except ValueError as error:
            raise ValueError(
                f"{what} is ragged: its entries differ in shape. Pad sequences so that X has one shape "
                "(n_samples, n_tokens, n_features), and y (n_samples, n_tokens, n_tokens): see pad_sequences."
            ) from error


def check_maps(y, x, name):
    """Validate y against sequences X (n, T, d) and bring it to (n, T, T).

    Returns
    -------
    maps : ndarray of shape (n, T, T), in the dtype of X
    form : str
        "maps" for (n, T, T), "flat" for (n, T * T), "column" for (n, 1), "scalar" for (n,): see `restore_form`.
    """
    n_samples, n_tokens, _ = x.shape
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    y = gather(y)
    check_file(y, "y")
    _refuse_ragged(y, "y")
    y = check_array(
        y,
        dtype=[np.float64, np.float32],
        ensure_2d=False,
        allow_nd=True,
        ensure_min_samples=0,
        input_name="y",
        estimator=name,
    )
    if y.ndim == 0 or y.shape[0] != n_samples:
        count = y.shape[0] if y.ndim else 1
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: [{n_samples}, {count}]. y needs one "
            "attention map for every sequence of X."
        )
    forms = {
        (n_samples, n_tokens, n_tokens): "maps",
        (n_samples, n_tokens * n_tokens): "flat",
        (n_samples,): "scalar",
    }
    form = forms.get(y.shape)
    if form == "flat" and n_tokens == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), "
            "for example using ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
        form = "scalar"
    if form is None or (form == "scalar" and n_tokens > 1):
        raise ValueError(
            f"y has shape {y.shape}, but X of shape {x.shape} needs y of shape ({n_samples}, {n_tokens}, {n_tokens}) "
            f"or ({n_samples}, {n_tokens * n_tokens}). For 2-D X of flattened sequences set n_tokens."
        )
    return y.reshape(n_samples, n_tokens, n_tokens).astype(x.dtype, copy=False), form


def restore_form(maps, form):
    """Attention maps (n, T, T) in the shape that y had."""
    if form == "maps":
        return maps
    if form == "flat":
        return maps.reshape(maps.shape[0], -1)
    return maps.reshape(-1)


@contextmanager
def kept_on_failure(estimator):
    """Give an estimator back the attributes it had if its fit fails: nothing is lost, nothing is half learned."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException as error:
        # at once, so that no interrupt comes between
        estimator.__dict__ = before
        if isinstance(error, SystemError) and by_keyboard(error):
            raise KeyboardInterrupt from error
        raise
