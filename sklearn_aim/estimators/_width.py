"""The width that sequences show, for estimators that are given width="auto"."""

import numpy as np

from sklearn_aim.algorithms.annealing import anneal
from sklearn_aim.estimators._sizes import check_tokens, encoded
from sklearn_aim.kernels.threads import ONE_THREAD, one_blas_thread
from sklearn_aim.parameters import resolve_width, width_is_auto


def seen_pairs(link, maps, allowed):
    """Pairs whose index y shows, (n, T, T), or None for all: zeros of softmax weights say only that it is small."""
    if allowed is None and link == "softmax" and (maps == 0).any():
        return np.ones(maps.shape, bool)
    return allowed


def learned_width(est, x, maps, allowed, bias):
    """r and r/d, by `anneal` if ``est.width`` is "auto"."""
    if not width_is_auto(est.width):
        return resolve_width(est.width, x.shape[2])
    if len(x) < 2:
        raise ValueError("n_samples = 1: width='auto' needs at least 2 sequences, one of which is held out.")
    channel = est._channel(x.shape[1], 0.0, seen_pairs(est.link, maps, allowed))
    check_tokens(x, allowed)
    code = encoded(channel, maps, est)
    with one_blas_thread(x.shape[2] <= ONE_THREAD):
        width = anneal(x, code, channel, bias=bias).width
    return width, width / x.shape[2]
