"""Threads: compiled, GIL-free passes over samples, and BLAS kept from spreading small problems."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numba
from threadpoolctl import threadpool_limits

_lock = threading.Lock()
_holders = 0
_limit = None


@contextmanager
def one_blas_thread(wanted=True):
    """One BLAS thread while the block runs, if wanted.

    The limit belongs to the process: of several threads that ask, the first sets it and the last lifts it.
    """
    global _holders, _limit
    if not wanted:
        yield
        return
    with _lock:
        if _holders == 0:
            _limit = threadpool_limits(1, user_api="blas")
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                _limit.restore_original_limits()
                _limit = None


def over_samples(function, n_samples, min_chunk=256):
    """Call ``function(slice)`` on consecutive slices of range(n_samples), one a thread.

    Each sample's result must not depend on the slice it falls in, so the number of threads changes no digit. The
    count follows NUMBA_NUM_THREADS, which process pools lower in their workers.
    """
    n_threads = min(numba.config.NUMBA_NUM_THREADS, max(1, n_samples // min_chunk))
    bounds = [n_samples * k // n_threads for k in range(n_threads + 1)]
    slices = [slice(a, b) for a, b in pairwise(bounds)]
    if n_threads == 1:
        function(slices[0])
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for future in [pool.submit(function, part) for part in slices]:
            future.result()
