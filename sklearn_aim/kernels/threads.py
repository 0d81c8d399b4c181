"""Threads: compiled, GIL-free passes over samples, and BLAS kept from spreading small problems."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import numba
from threadpoolctl import threadpool_limits


class SharedContext:
    """A setting of the whole process: of several threads that hold it, the first enters it and the last leaves.

    Parameters
    ----------
    factory : callable
        () -> context manager.
    """

    def __init__(self, factory):
        self._factory = factory
        self._lock = threading.Lock()
        self._holders = 0
        self._context = None

    @contextmanager
    def __call__(self):
        """Hold the setting."""
        with self._lock:
            if self._holders == 0:
                self._context = self._factory()
                self._context.__enter__()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    self._context.__exit__(None, None, None)
                    self._context = None


_one_blas_thread = SharedContext(lambda: threadpool_limits(1, user_api="blas"))


# largest d at which message passing keeps BLAS to one thread: a second one costs more than it brings there, above all
# on a busy machine
ONE_THREAD = 256


def one_blas_thread(wanted=True):
    """One BLAS thread while the context lasts, if wanted."""
    return _one_blas_thread() if wanted else nullcontext()


def by_keyboard(error):
    """Whether an error is Ctrl-C, or what becomes of it on the way into compiled code or out of it."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


_tasks = threading.local()


@contextmanager
def one_thread():
    """Passes over samples by this thread alone while the context lasts, in tasks that have others beside them."""
    before, _tasks.alone = getattr(_tasks, "alone", False), True
    try:
        yield
    finally:
        _tasks.alone = before


def over_samples(function, n_samples, min_chunk=256):
    """Call ``function(slice)`` on consecutive slices of range(n_samples), one a thread.

    Each sample's result must not depend on the slice it falls in, so the number of threads changes no digit. The
    count follows NUMBA_NUM_THREADS, which process pools lower in their workers.
    """
    most = 1 if getattr(_tasks, "alone", False) else numba.config.NUMBA_NUM_THREADS
    n_threads = min(most, max(1, n_samples // min_chunk))
    bounds = [n_samples * k // n_threads for k in range(n_threads + 1)]
    slices = [slice(a, b) for a, b in pairwise(bounds)]
    if n_threads == 1:
        function(slices[0])
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for future in [pool.submit(function, part) for part in slices]:
            future.result()
