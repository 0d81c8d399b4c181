"""Sequences X as a dask array: functions run where its chunks are, and only their results travel.

dask plans, moves, retries and recomputes. What is sent with every pass are the shared arguments, once a worker, and
the parts of every block, n T^2 numbers; what comes back are n T^2 indices, or one sum, which workers add up among
themselves.
"""

from contextlib import nullcontext
from itertools import pairwise

import numpy as np

from sklearn_aim.kernels.blocks import add
from sklearn_aim.kernels.threads import SharedContext, one_blas_thread, one_thread

# blocks whose sums one task adds up
_FAN_IN = 8


def is_dask_array(x):
    """Whether X is a dask array; dask is not imported to know it."""
    return type(x).__module__.partition(".")[0] == "dask" and hasattr(type(x), "numblocks")


class DaskBlocks:
    """X chunked over samples; see `SampleBlocks` for the methods.

    Parameters
    ----------
    x : dask.array.Array of shape (n, T, d)
        With one chunk of tokens and one of features.
    dtype : dtype, optional
        What functions see.
    samples : ndarray of int, optional
        Increasing indices of the samples to take.
    """

    def __init__(self, x, dtype=None, samples=None):
        self._x = x
        self._samples = samples
        self.dtype = np.dtype(x.dtype if dtype is None else dtype)
        self.shape = (x.shape[0] if samples is None else len(samples), *x.shape[1:])
        self._chunks = _delayed_chunks(x, optimize_graph=True)
        self._bounds = np.concatenate([[0], np.cumsum(x.chunks[0])])

    def __len__(self):
        return self.shape[0]

    def astype(self, dtype):
        """The same sequences in another precision."""
        return self if self.dtype == dtype else DaskBlocks(self._x, dtype, self._samples)

    def take(self, samples):
        """Some of the samples, by increasing indices; they stay where they are."""
        return DaskBlocks(self._x, self.dtype, samples if self._samples is None else self._samples[samples])

    def contiguous(self):
        """Blocks are made contiguous one by one."""
        return self

    def collect(self, function, *shared, parts=()):
        """Results for every sample, on this side."""
        return np.concatenate(_compute(self._tasks(function, shared, parts), quiet=bool(shared or parts)))

    def map(self, function, *shared):
        """What function(block, *shared) makes of all sequences, (n, T, any): a dask array, not computed yet."""
        from dask import array

        some = function(np.zeros((1, *self.shape[1:]), self.dtype), *shared)
        # what is not computed yet must keep its chunks alive
        tasks = self._tasks(function, shared, (), _delayed_chunks(self._x, optimize_graph=False))
        sizes = [piece.stop - piece.start for _, piece, _ in self._pieces()]
        return array.concatenate(
            [
                array.from_delayed(task, shape=(size, *some.shape[1:]), dtype=some.dtype)
                for task, size in zip(tasks, sizes, strict=True)
            ]
        )

    def total(self, function, *shared, parts=()):
        """Sums over samples, added up on the workers in an order that is always the same."""
        from dask import delayed

        adder = delayed(_add_all, pure=False)
        tasks = self._tasks(function, shared, parts)
        while len(tasks) > 1:
            tasks = [adder(tasks[k : k + _FAN_IN], np.geterr()) for k in range(0, len(tasks), _FAN_IN)]
        return _compute(tasks)[0]

    def _pieces(self):
        """Number of a chunk, its piece of the parts, and the rows to take of it (None: all)."""
        for number, (first, last) in enumerate(pairwise(self._bounds.tolist())):
            rows, piece = None, slice(first, last)
            if self._samples is not None:
                piece = slice(*np.searchsorted(self._samples, [first, last]).tolist())
                rows = self._samples[piece] - first
            if piece.stop > piece.start:
                yield number, piece, rows

    def _tasks(self, function, shared, parts, chunks=None):
        from dask import delayed

        chunks = self._chunks if chunks is None else chunks
        shared = [delayed(one, pure=False) if isinstance(one, np.ndarray) else one for one in shared]
        task, promised, errors = delayed(_on_block, pure=False), (self._x.dtype, self._x.shape[1:]), np.geterr()
        return [
            task(
                chunks[number],
                (self._x.chunks[0][number], *promised[1]),
                promised[0],
                rows,
                self.dtype,
                function,
                [part[piece] for part in parts],
                shared,
                errors,
            )
            for number, piece, rows in self._pieces()
        ]


def _delayed_chunks(x, optimize_graph):
    return x.to_delayed(optimize_graph=optimize_graph).ravel().tolist()


def _on_block(chunk, shape, promised, rows, dtype, function, parts, shared, errors):
    """On a worker: one chunk's answer, in one thread, since other chunks have the others."""
    chunk = np.asarray(chunk)
    if chunk.shape != shape or chunk.dtype != promised:
        raise _ChunkError(
            f"a chunk of X has shape {chunk.shape} and holds {chunk.dtype}, but X says {shape} of {promised}. Give "
            "map_blocks the right chunks and dtype, or use X.astype and X.compute_chunk_sizes()."
        )
    block = np.ascontiguousarray(chunk if rows is None else chunk[rows], dtype)
    with one_blas_thread(), one_thread(), np.errstate(**errors):
        return function(block, *parts, *shared)


def _add_all(answers, errors):
    # tasks must not change what they were given
    first = answers[0]
    sums = tuple(np.array(one) for one in first) if isinstance(first, tuple) else np.array(first)
    with np.errstate(**errors):
        for answer in answers[1:]:
            sums = add(sums, answer)
    return sums


def gather(y):
    """Attention maps as an ndarray, if they are a dask array: n T^2 numbers are few beside X."""
    return _compute([y])[0] if is_dask_array(y) else y


class _ChunkError(ValueError):
    """A chunk that is not what its array says."""


def _quiet_graphs():
    import dask

    # the shared arguments are what a graph is large for, and all of them are needed
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"})


_quiet = SharedContext(_quiet_graphs)


def _compute(tasks, quiet=True):
    """Results of tasks, by the scheduler that the user has chosen.

    dask warns of large graphs. What is sent on purpose is no cause for it, but an X that holds its data in its graph
    is: a pass that sends nothing else, such as the first look at X, is not quiet.
    """
    import dask

    try:
        # for schedulers that run tasks in threads of this process
        with _beside_others(), _quiet() if quiet else nullcontext(), one_blas_thread():
            return list(dask.compute(*tasks, traverse=False))
    except _ChunkError:
        raise
    except Exception as error:
        raise RuntimeError(
            f"a block of X or y could not be computed: {type(error).__name__}: {str(error).rstrip('.')}. Mend the dask "
            "graph that makes it (X.blocks[k].compute() shows whether block k works), or the client, if X was "
            "persisted by another one or one that is closed."
        ) from error


def _beside_others():
    """Inside a worker's task: leave its place to the tasks that this one waits for."""
    try:
        from distributed import get_worker, worker_client
    except ImportError:
        return nullcontext()
    try:
        get_worker()
    except ValueError:
        return nullcontext()
    return worker_client()
