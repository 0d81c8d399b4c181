"""Run a compiled, GIL-free pass over samples in threads."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numba


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
