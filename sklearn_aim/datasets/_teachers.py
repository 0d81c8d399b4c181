"""Sequences and attention maps drawn from the models."""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from sklearn.utils import check_array, check_random_state

from sklearn_aim.channels import make_channel
from sklearn_aim.kernels.blocks import SampleBlocks, large_memory_map, reserve_file
from sklearn_aim.kernels.indices import attention_indices, sample_blocks
from sklearn_aim.kernels.masks import allowed_pairs
from sklearn_aim.parameters import check_dtype, check_flag, check_number, resolve_width


def make_attention_sequences(
    n_samples: int = 1000,
    n_tokens: int = 2,
    n_features: int = 50,
    *,
    width: int | float = 1.0,
    tied: bool = True,
    link: str = "softmax",
    inverse_temperature: float = 1.0,
    noise: float = 0.0,
    interaction: ArrayLike | None = None,
    mask: ArrayLike | str | None = None,
    dtype: DTypeLike = np.float64,
    random_state: int | np.random.RandomState | None = None,
    return_interaction: bool = False,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Sequences of Gaussian tokens and the attention maps of a random full-width layer.

    Parameters
    ----------
    n_samples, n_tokens, n_features : int
        n, T and d.
    width : int or float, default=1.0
        Width r of keys and queries (int), or the ratio r/d (float).
    tied : bool, default=True
        S = W W^T / sqrt(r d), else U V^T / sqrt(r d), iid standard normal factors.
    link : str, default="softmax"
    inverse_temperature : float, default=1.0
    noise : float, default=0.0
        Variance scale Delta of the index noise: Delta (1 + delta_ab) and symmetric when tied, else Delta.
    interaction : array-like of shape (n_features, n_features), optional
        S itself, in place of a random one.
    mask : None, "causal" or ndarray, default=None
        Which keys a query may attend to, softmax and identity: see `AMPAttentionRegressor.fit`.
    dtype : dtype, default=float64
        float64 or float32, of X and y.
    random_state : int, RandomState or None, default=None
    return_interaction : bool, default=False
    out : ndarray of shape (n_samples, n_tokens, n_features), optional
        Where X is written, in its dtype: a memory map (`numpy.lib.format.open_memmap`) for sequences that don't fit in
        memory. They are drawn block by block, and are the same with and without it.

    Returns
    -------
    X : ndarray of shape (n_samples, n_tokens, n_features)
    y : ndarray of shape (n_samples, n_tokens, n_tokens)
    interaction : ndarray of shape (n_features, n_features)
        S, only if `return_interaction`.

    References
    ----------
    arXiv:2506.01582, section 2; untied factors as in `AMPAttentionRegressor`.

    Examples
    --------
    >>> from sklearn_aim import make_attention_sequences
    >>> X, y = make_attention_sequences(100, n_tokens=3, n_features=20, random_state=0)
    >>> X.shape, y.shape
    ((100, 3, 20), (100, 3, 3))
    """
    for name, value in (("n_samples", n_samples), ("n_tokens", n_tokens), ("n_features", n_features)):
        check_number(value, name, low=1, integer=True)
    check_number(noise, "noise")
    check_flag(tied, "tied")
    check_number(inverse_temperature, "inverse_temperature", strict=True)
    dtype = check_dtype(dtype)
    allowed = allowed_pairs(mask, n_samples, n_tokens)
    channel = make_channel(
        link, n_tokens, tied=tied, noise=noise, inverse_temperature=inverse_temperature, allowed=allowed
    )
    rng = check_random_state(random_state)
    if interaction is None:
        interaction = _random_interaction(rng, n_features, width, tied)
    else:
        interaction = check_array(interaction, dtype=np.float64, ensure_2d=False, input_name="interaction")
        if interaction.shape != (n_features, n_features):
            raise ValueError(f"interaction has shape {interaction.shape}, but n_features={n_features}.")
        if tied and not np.allclose(interaction, interaction.T):
            raise ValueError("interaction must be symmetric for tied=True; pass tied=False.")
    x = _normal_sequences(rng, (n_samples, n_tokens, n_features), dtype, out)
    indices = SampleBlocks(x).collect(attention_indices, interaction)
    if noise > 0:
        indices += np.sqrt(noise) * channel.random_indices(rng.standard_normal((n_samples, channel.index_dimension)))
    y = channel.link(indices).astype(x.dtype, copy=False)
    return (x, y, interaction) if return_interaction else (x, y)


def _normal_sequences(rng, shape, dtype, out):
    """Standard normal X, in `out` if it is given."""
    if out is None:
        x = np.empty(shape, dtype)
    elif not isinstance(out, np.ndarray) or out.shape != shape or not out.flags.writeable:
        raise ValueError(
            f"out of type {type(out).__name__} and shape {np.shape(out)} must be an ndarray or memory map of shape "
            f"{shape} that can be written."
        )
    else:
        check_dtype(out.dtype)
        reserve_file(out, "out")
        x = out
    mapped = large_memory_map(x)
    for part in sample_blocks(x):
        x[part] = rng.standard_normal(x[part].shape)
        if mapped is not None:
            mapped.release(x[part])
    return x


def _random_interaction(rng, n_features, width, tied):
    r, _ = resolve_width(width, n_features)
    left = rng.standard_normal((n_features, r))
    right = left if tied else rng.standard_normal((n_features, r))
    return left @ right.T / np.sqrt(r * n_features)
