"""Sequences X as blocks of samples: an array in memory, a memory map that is never loaded whole, or a dask array.

Every pass over X is one of two: `collect`, a result for every sample, or `total`, a sum over samples. Both call a plain
function of one block, so that an algorithm does not know where X is: see also `dask_blocks`.
"""

import errno
import mmap
import os

import numpy as np

# bytes of a memory map that are worked on before its pages are given back
_MAPPED_BYTES = 1 << 26


class SampleBlocks:
    """X in memory (one block), or on disk behind a `numpy.memmap` (blocks whose pages are released after use).

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
        Of any numeric dtype.
    dtype : dtype
        What functions see: float64 or float32.
    samples : ndarray of int, optional
        Increasing indices of the samples to take from a memory map.
    """

    def __init__(self, x, dtype=None, samples=None):
        self._x = x
        self._samples = samples
        # None for what is in memory, or small enough to stay there
        self._map = large_memory_map(x)
        self.dtype = np.dtype(x.dtype if dtype is None else dtype)
        self.shape = (len(x) if samples is None else len(samples), *x.shape[1:])

    def __len__(self):
        return self.shape[0]

    def astype(self, dtype):
        """The same sequences in another precision."""
        return self if self.dtype == dtype else SampleBlocks(self._x, dtype, self._samples)

    def take(self, samples):
        """Some of the samples, by increasing indices: copied from memory, read from a memory map when needed."""
        if self._map is None:
            return SampleBlocks(self._x[samples], self.dtype)
        return SampleBlocks(self._x, self.dtype, samples if self._samples is None else self._samples[samples])

    def contiguous(self):
        """The same sequences for many passes: strided memory is copied once."""
        if self._map is not None or (self._x.flags.c_contiguous and self._x.dtype == self.dtype):
            return self
        return SampleBlocks(np.ascontiguousarray(self._x, self.dtype))

    def collect(self, function, *shared, parts=()):
        """Results for every sample: function(block, *parts of the block, *shared), one after the other.

        Parameters
        ----------
        function : callable
            Of module level where X may be a dask array. Answers an array whose first axis is that of the block.
        shared : objects
            The same for all blocks.
        parts : tuple of ndarray of shape (n, ...)
            Cut like X.

        Returns
        -------
        ndarray of shape (n, ...)
        """
        out = None
        for piece, block in self._blocks():
            result = function(block, *(part[piece] for part in parts), *shared)
            if piece.stop - piece.start == len(self):
                return result
            if out is None:
                out = np.empty((len(self), *result.shape[1:]), result.dtype)
            out[piece] = result
        return out

    def map(self, function, *shared):
        """What function(block, *shared) makes of all sequences, kept as X is: here an ndarray."""
        return self.collect(function, *shared)

    def total(self, function, *shared, parts=()):
        """Sum over samples of what function(block, *parts of the block, *shared) answers, an array or several."""
        sums = None
        for piece, block in self._blocks():
            sums = add(sums, function(block, *(part[piece] for part in parts), *shared))
        return sums

    def _blocks(self):
        if self._map is None:
            check_file(self._x, "X")
            # functions take care of their temporaries
            yield slice(0, len(self)), np.asarray(self._x, self.dtype)
            return
        n_samples, n_tokens, n_features = self.shape
        size = max(1, _MAPPED_BYTES // (n_tokens * n_features * self._x.dtype.itemsize))
        for start in range(0, n_samples, size):
            piece = slice(start, min(start + size, n_samples))
            rows = piece if self._samples is None else self._samples[piece]
            first, last = (piece.start, piece.stop) if self._samples is None else (rows[0], rows[-1] + 1)
            view = self._x[first:last]
            self._map.check(view)
            yield piece, np.ascontiguousarray(self._x[rows], self.dtype)
            self._map.release(view)


def add(sums, more):
    """Sum of two answers, each an array or a tuple of arrays; the first may be None, and is overwritten."""
    if sums is None:
        return more
    pairs = zip(sums, more, strict=True) if isinstance(more, tuple) else [(sums, more)]
    for one, other in pairs:
        one += other
    return sums


def as_blocks(x):
    """X as it is if it is in blocks already."""
    return SampleBlocks(x) if isinstance(x, np.ndarray) else x


def memory_map(x):
    """The `MemoryMap` behind an array, or None."""
    mapped, base = None, x
    while base is not None and not isinstance(base, mmap.mmap):
        mapped = base if isinstance(base, np.memmap) else mapped
        base = getattr(base, "base", None)
    return None if base is None or mapped is None else MemoryMap(base, mapped)


def large_memory_map(x):
    """The `MemoryMap` behind an array that is better read piece by piece, or None."""
    if not isinstance(x, np.ndarray) or x.nbytes <= _MAPPED_BYTES:
        return None
    mapped = memory_map(x)
    # what was written to a copy-on-write map exists in its pages alone: they can't be given back
    return None if mapped is None or mapped.mode == "c" else mapped


def check_file(x, what):
    """Refuse a memory-mapped array whose file has been truncated."""
    mapped = memory_map(x) if isinstance(x, np.ndarray) else None
    if mapped is not None:
        mapped.check(x, what)


def reserve_file(x, what):
    """Space on the disk for all of a memory-mapped array that will be written: writing without it ends the process.

    Raises
    ------
    OSError
        If the disk is full.
    ValueError
        If the file has been truncated.
    """
    mapped = memory_map(x)
    if mapped is None:
        return
    mapped.check(x, what)
    if mapped.mode in ("r+", "w+") and mapped.filename is not None and hasattr(os, "posix_fallocate"):
        place = os.open(mapped.filename, os.O_RDWR)
        try:
            os.posix_fallocate(place, 0, os.fstat(place).st_size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(
                    error.errno,
                    f"no space for {what}, a memory map of {x.nbytes} bytes: {os.strerror(error.errno)}",
                    str(mapped.filename),
                ) from error
        finally:
            os.close(place)


class MemoryMap:
    """Pages of a file: whether they are still there, and how to give them back."""

    def __init__(self, mapping, array):
        self.mode = array.mode
        self.filename = array.filename
        self._mapping = mapping
        self._start = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
        # where in the file the mapping begins
        self._offset = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY

    def check(self, view, what="X"):
        """Refuse a view of pages that the file no longer has: touching them would end the process."""
        stop = self._offset + self._range(view)[1]
        size = self._mapping.size()
        if size < stop:
            raise ValueError(
                f"{what} is a memory map of a file that has been truncated: it holds {size} bytes, but {what} needs "
                f"{stop}. Write the file again."
            )

    def release(self, view):
        """Give back the pages that lie in a view; they are read again when touched again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        start, stop = self._range(view)
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = min(stop, len(self._mapping)) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _range(self, view):
        """Bytes of the mapping that a view touches."""
        reach = [(size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)]
        first = view.__array_interface__["data"][0] - self._start
        return first + sum(min(r, 0) for r in reach), first + sum(max(r, 0) for r in reach) + view.itemsize
