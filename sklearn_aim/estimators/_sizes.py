"""Sizes of tokens, labels and indices beyond which nothing would be left of them in their precision."""

import numpy as np

from sklearn_aim.channels import GaussianChannel
from sklearn_aim.kernels.indices import largest_entries, largest_real_entries
from sklearn_aim.kernels.masks import padding
from sklearn_aim.parameters import LARGEST

# entries of X or of weights from which squares mean nothing
TOO_LARGE = 1e8


def check_tokens(x, allowed=None):
    """Refuse tokens, whitened if they are to be, from whose products nothing would be left in their precision."""
    with np.errstate(over="ignore"):
        if allowed is None:
            largest = float(x.collect(largest_entries).max())
        else:
            largest = float(x.collect(largest_real_entries, parts=(padding(allowed),)).max())
    if largest > TOO_LARGE:
        raise ValueError(f"X has entries up to {largest:.3g}: tokens must have unit variance. Use TokenWhitener.")


def encoded(channel, maps, est):
    """Labels as the channel takes them; those that show indices whose squares would not be finite are refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        code = channel.encode(maps)
    if isinstance(channel, GaussianChannel) and not float(np.abs(code).max()) <= LARGEST:
        raise ValueError(
            f"y shows attention indices beyond {LARGEST:.3g}, but these are of order 1: rescale y"
            + (f", or raise inverse_temperature={est.inverse_temperature!r}." if est.link == "softmax" else ".")
        )
    return code


def check_indices(indices, below=np.inf):
    """Refuse indices of new sequences that are not finite, or not small enough for what is made of them."""
    if not float(np.abs(indices).max()) < below:
        raise ValueError("X holds features too large for finite attention indices: scale it as in fit.")
    return indices
