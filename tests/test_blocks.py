"""X in memory or on disk: passes in blocks give what one pass over all of X gives, and a file is never loaded whole."""

import copy
import functools
import mmap
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, field

import joblib
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    make_attention_sequences,
    make_deep_attention_sequences,
)
from sklearn_aim.algorithms import attention_stack
from sklearn_aim.algorithms.attention_stack import AttentionStack, Objective
from sklearn_aim.algorithms.descent import Adam, Momentum
from sklearn_aim.kernels import blocks, indices
from sklearn_aim.kernels.blocks import MemoryMap, SampleBlocks, as_blocks, large_memory_map, memory_map
from sklearn_aim.kernels.indices import (
    attention_indices,
    back_projection,
    largest_entries,
    layer_indices,
    layer_projection,
)
from sklearn_aim.kernels.moments import centred_products, token_power, token_sums, whitened

# runs are cut short, so that rounding has no time to grow
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LINUX = sys.platform.startswith("linux")
# bytes of a piece in these tests: several pieces even of small files, and several pages a piece
PIECE = 1 << 14


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(blocks, "_MAPPED_BYTES", PIECE)


@pytest.fixture
def on_disk(tmp_path):
    """A function array -> memory map of a new file that holds it."""
    count = 0

    def write(array, mode="r", offset=0, order="C"):
        nonlocal count
        count += 1
        path = tmp_path / f"x{count}.bin"
        how = {"dtype": array.dtype, "shape": array.shape, "offset": offset, "order": order}
        file = np.memmap(path, mode="w+", **how)
        file[:] = array
        file.flush()
        del file
        return np.memmap(path, mode=mode, **how)

    return write


@pytest.fixture
def released(monkeypatch):
    """Ranges of bytes that were given back, in order."""
    ranges = []
    release = MemoryMap.release

    def spy(self, view):
        start, stop = self._range(view)
        assert 0 <= start < stop <= len(self._mapping)
        ranges.append((start, stop))
        release(self, view)

    monkeypatch.setattr(MemoryMap, "release", spy)
    return ranges


def close(one, other, rtol):
    """Largest difference within rtol of the largest entry."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    assert np.isfinite(other).all()
    difference = np.abs(one - other).max(initial=0)
    assert difference <= rtol * np.abs(other).max(initial=0), difference


# ----------------------------------------------------------------------------------------------------------------
# passes: functions of module level, as dask may send them


def token_means(x):
    return x.mean(axis=2)


def projections(x, weights, matrix, vector):
    """Two parts of a block in one result."""
    return weights[:, None, None] * (x @ matrix) + vector


def dtype_codes(x):
    assert x.flags.c_contiguous
    return np.full(len(x), x.dtype.itemsize)


def sum_and_squares(x, weights, factor):
    return factor * np.einsum("n,nad->d", weights, x), np.einsum("n,nad,nad->", weights, x, x)[None], np.array(len(x))


def lengths(x):
    return np.array(len(x))


def first_tokens(x):
    """A view of the block."""
    return x[:, 0]


def noise(n, n_tokens=3, n_features=10, seed=0):
    return np.random.default_rng(seed).normal(size=(n, n_tokens, n_features))


def check_passes(blocks_of_x, x, rtol=1e-13):
    """All passes over `blocks_of_x` against plain numpy on the array x."""
    n, n_features = len(x), x.shape[2]
    rng = np.random.default_rng(1)
    weights, matrix, vector = rng.normal(size=n), rng.normal(size=(n_features, 4)), rng.normal(size=4)
    assert len(blocks_of_x) == n
    assert blocks_of_x.shape == x.shape
    assert blocks_of_x.dtype == x.dtype
    close(blocks_of_x.collect(token_means), token_means(x), rtol)
    np.testing.assert_array_equal(blocks_of_x.collect(first_tokens), first_tokens(x))
    np.testing.assert_array_equal(blocks_of_x.collect(dtype_codes), np.full(n, x.dtype.itemsize))
    close(
        blocks_of_x.collect(projections, matrix, vector, parts=(weights,)),
        projections(x, weights, matrix, vector),
        rtol,
    )
    answer = blocks_of_x.total(sum_and_squares, 2.0, parts=(weights,))
    assert isinstance(answer, tuple)
    for one, other in zip(answer, sum_and_squares(x, weights, 2.0), strict=True):
        close(one, other, 10 * rtol)
    assert blocks_of_x.total(lengths) == n
    close(blocks_of_x.total(token_sums), token_sums(x), 10 * rtol)


def subsets(n):
    rng = np.random.default_rng(2)
    return [
        np.arange(n),
        np.sort(rng.choice(n, n // 3, replace=False)),
        np.array([0]),
        np.array([n - 1]),
        np.array([0, n - 1]),
        np.arange(n // 2, n // 2 + 3),
        np.arange(0, n, 7),
    ]


def check_subsets(blocks_of_x, x):
    for samples in subsets(len(x)):
        taken = blocks_of_x.take(samples)
        check_passes(taken, x[samples])
        check_passes(taken.contiguous(), x[samples])
        again = np.arange(0, len(samples), 2)
        check_passes(taken.take(again), x[samples][again])
        check_passes(taken.take(again).take(np.array([0])), x[samples][again][:1])
    # the whole is as it was
    check_passes(blocks_of_x, x)


def check_precisions(blocks_of_x, x):
    for dtype in (np.float32, np.float64):
        other = blocks_of_x.astype(dtype)
        assert other.dtype == dtype
        check_passes(other, x.astype(dtype), 1e-5 if dtype == np.float32 else 1e-13)
        samples = np.arange(1, len(x), 3)
        check_passes(other.take(samples), x[samples].astype(dtype), 1e-5 if dtype == np.float32 else 1e-13)
        check_passes(blocks_of_x.take(samples).astype(dtype), x[samples].astype(dtype), 1e-5)
    assert blocks_of_x.astype(blocks_of_x.dtype) is blocks_of_x


MEMORY = {
    "contiguous": lambda x: x,
    "every second sample": lambda x: np.repeat(x, 2, axis=0)[::2],
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0),
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


# what functions see in memory need not be contiguous: sums, not bits
@pytest.mark.parametrize("layout", MEMORY)
def test_passes_over_an_array(layout):
    x = noise(100)
    held = MEMORY[layout](x)
    samples = np.arange(1, 100, 3)
    for one, expected in (
        (SampleBlocks(held), x),
        (SampleBlocks(held).contiguous(), x),
        (SampleBlocks(held).take(samples), x[samples]),
        (SampleBlocks(held).take(samples).take(np.array([0, 5])), x[samples][[0, 5]]),
        (SampleBlocks(held).astype(np.float32), x.astype(np.float32)),
    ):
        rtol = 1e-5 if one.dtype == np.float32 else 1e-13
        close(one.collect(token_means), token_means(expected), rtol)
        close(one.total(token_sums), token_sums(expected), rtol)
        assert one.shape == expected.shape
    check_subsets(SampleBlocks(held).contiguous(), x)
    check_precisions(SampleBlocks(held).contiguous(), x)


def test_an_array_is_not_copied():
    x = noise(50)
    assert np.shares_memory(SampleBlocks(x).collect(first_tokens), x)
    assert SampleBlocks(x).contiguous()._x is x
    assert np.shares_memory(SampleBlocks(np.asfortranarray(x).T.T).collect(first_tokens), x) is False
    blocks_of_x = as_blocks(x)
    assert as_blocks(blocks_of_x) is blocks_of_x
    # a subset is a copy, that stays the same
    taken = blocks_of_x.take(np.array([1, 2]))
    expected = x[1:3].copy()
    x[:] = 0
    np.testing.assert_array_equal(taken.collect(first_tokens), expected[:, 0])


@pytest.mark.parametrize("n", [1, 68, 69, 70, 500])
def test_passes_over_a_memory_map(n, on_disk, small_pieces, released):
    # 240 bytes a sample, 68 samples a piece
    x = noise(n)
    file = on_disk(x)
    check_passes(SampleBlocks(file), x)
    assert bool(released) == (x.nbytes > PIECE)
    if x.nbytes > PIECE:
        check_subsets(SampleBlocks(file), x)
        check_precisions(SampleBlocks(file), x)
        assert SampleBlocks(file).contiguous().collect(lengths_of_blocks).max() == 68


def lengths_of_blocks(x):
    return np.full(len(x), len(x))


def test_a_sequence_larger_than_a_piece(on_disk, small_pieces, released):
    x = noise(20, 7, 400)
    check_passes(SampleBlocks(on_disk(x)), x)
    np.testing.assert_array_equal(SampleBlocks(on_disk(x)).collect(lengths_of_blocks), 1)
    assert released


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<f2", ">f2", "<i8", ">i2", "u1", "?"])
def test_dtypes_on_disk(dtype, on_disk, small_pieces, released):
    x = noise(2000, 3, 10)
    x = (x > 0 if dtype == "?" else 40 * np.abs(x)).astype(dtype)
    held = np.array(x)
    for estimator, y in ((TokenWhitener(), None), (PositionMeanRegressor(), np.ones((2000, 3, 3)))):
        released.clear()
        one, other = clone(estimator).fit(on_disk(x), y), clone(estimator).fit(held, y)
        assert len(released) > 1
        assert_same(one, other, 1e-5 if dtype[1:] in ("f4", "f2") else 1e-10)
    whitener = TokenWhitener().fit(held)
    released.clear()
    out = whitener.transform(on_disk(x))
    assert len(released) > 1
    assert type(out) is np.ndarray
    assert out.dtype == whitener.mean_.dtype == (np.float32 if dtype in ("<f4", "<f2") else np.float64)
    close(out, whitener.transform(held), 1e-5 if out.dtype == np.float32 else 1e-10)


def test_map_on_disk(on_disk, small_pieces, released):
    x = noise(500)
    matrix = np.random.default_rng(0).normal(size=(10, 4))
    out = SampleBlocks(on_disk(x)).map(whitened, x.mean(axis=(0, 1)), matrix)
    close(out, (x - x.mean(axis=(0, 1))) @ matrix, 1e-13)
    assert len(released) > 1


# ----------------------------------------------------------------------------------------------------------------
# memory maps


VIEWS = {
    "all of it": lambda m: m,
    "part of the samples": lambda m: m[100:900],
    "every second sample": lambda m: m[::2],
    "backwards": lambda m: m[::-1],
    "every third sample, backwards": lambda m: m[::-3],
    "some tokens": lambda m: m[:, 1:3],
    "every second token": lambda m: m[:, ::2],
    "every second feature": lambda m: m[:, :, ::2],
    "features backwards": lambda m: m[:, :, ::-1],
    "tokens and features swapped": lambda m: m.transpose(0, 2, 1),
    "base class": np.asarray,
    "base class, part": lambda m: np.asarray(m)[3:][::2],
    "view of another class": lambda m: m.view(np.ndarray),
    "two dimensions and back": lambda m: m.reshape(len(m), -1).reshape(len(m), 4, -1),
    "more tokens": lambda m: m.reshape(len(m), 8, -1),
    "more samples": lambda m: m.reshape(2 * len(m), 2, -1),
    "one of two": lambda m: m.reshape(len(m) // 2, 2, 4, -1)[:, 1],
    "the same sequence many times": lambda m: np.broadcast_to(m[5], m.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_a_memory_map(view, on_disk, small_pieces, released):
    x = noise(1000, 4, 10)
    m = on_disk(x)
    seen, expected = VIEWS[view](m), np.array(VIEWS[view](x))
    assert memory_map(seen) is not None
    check_passes(SampleBlocks(seen), expected)
    assert len(released) > 1
    # all bytes that the view reaches, and no others
    places = VIEWS[view](np.arange(x.size).reshape(x.shape))
    assert min(start for start, _ in released) == x.itemsize * places.min()
    assert max(stop for _, stop in released) == x.itemsize * (places.max() + 1)
    check_subsets(SampleBlocks(seen), expected)
    released.clear()
    if view != "the same sequence many times":
        one = TokenWhitener().fit(seen)
        assert released
        assert_same(one, TokenWhitener().fit(expected), 1e-10)
        close(one.transform(seen), TokenWhitener().fit(expected).transform(expected), 1e-10)
    np.testing.assert_array_equal(m, x)


@pytest.mark.parametrize("how", ["Fortran order", "offset", "npy", "npy in Fortran order", "joblib"])
def test_ways_to_map_a_file(how, on_disk, tmp_path, small_pieces, released):
    x = noise(400, 4, 10)
    if how == "Fortran order":
        m = on_disk(x, order="F")
    elif how == "offset":
        m = on_disk(x, offset=3 * mmap.PAGESIZE + 40)
    elif how == "joblib":
        joblib.dump({"y": np.ones(3000), "x": x}, tmp_path / "x.joblib")
        m = joblib.load(tmp_path / "x.joblib", mmap_mode="r")["x"]
    else:
        np.save(tmp_path / "x.npy", np.asfortranarray(x) if "Fortran" in how else x)
        m = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(m, np.memmap)
    for view in (m, m[::2], np.asarray(m)[:, 1:]):
        expected = np.array(view)
        released.clear()
        check_passes(SampleBlocks(view), expected)
        assert len(released) > 1


def test_what_is_no_memory_map_of_a_file(on_disk, small_pieces):
    x = noise(400)
    m = on_disk(x)
    # copies, results, and memory that no file has
    anonymous = mmap.mmap(-1, x.nbytes)
    shared = np.frombuffer(anonymous, x.dtype).reshape(x.shape)
    shared[:] = x
    for other in (x, m.copy(), m + 0, m[np.arange(400)], m[m[:, 0, 0] > -np.inf], np.array(m), shared):
        assert memory_map(other) is None
        np.testing.assert_array_equal(SampleBlocks(other).collect(first_tokens), x[:, 0])
    np.testing.assert_array_equal(shared, x)


def test_small_maps_are_one_block(on_disk, released):
    x = noise(400)
    m = on_disk(x)
    assert large_memory_map(m) is None
    assert_same(TokenWhitener().fit(m), TokenWhitener().fit(x), 0)
    assert not released


def test_copy_on_write_keeps_what_was_written(on_disk, small_pieces, released):
    x = noise(400)
    m = on_disk(x, mode="c")
    changed = x.copy()
    for array in (m, changed):
        array[5] = 7.0
        array[::50, 1] *= 3
    assert large_memory_map(m) is None
    assert large_memory_map(m[::2]) is None
    assert large_memory_map(np.asarray(m)) is None
    assert_same(TokenWhitener().fit(m), TokenWhitener().fit(changed), 0)
    SampleBlocks(m[::2]).total(token_sums)
    np.testing.assert_array_equal(m, changed)
    assert not released
    # and the file has nothing of it
    np.testing.assert_array_equal(np.memmap(m.filename, x.dtype, "r", shape=x.shape), x)


@pytest.mark.parametrize("mode", ["r+", "w+"])
def test_unsaved_changes_are_seen_and_kept(mode, on_disk, tmp_path, small_pieces, released):
    x = noise(400)
    m = on_disk(x, mode="r+") if mode == "r+" else np.memmap(tmp_path / "w", x.dtype, "w+", shape=x.shape)
    changed = x.copy()
    m[:] = x
    for array in (m, changed):
        array[5] = 7.0
        array[::50, 1] *= 3
    # not flushed
    one = TokenWhitener().fit(m)
    assert len(released) > 1
    assert_same(one, TokenWhitener().fit(changed), 1e-10)
    np.testing.assert_array_equal(m, changed)
    m.flush()
    np.testing.assert_array_equal(np.memmap(m.filename, x.dtype, "r", shape=x.shape), changed)


def test_a_file_that_is_gone_from_its_directory(on_disk, small_pieces):
    x = noise(400)
    m = on_disk(x)
    os.unlink(m.filename)
    check_passes(SampleBlocks(m), x)


def test_without_madvise(on_disk, small_pieces, monkeypatch):
    monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
    x = noise(400)
    check_subsets(SampleBlocks(on_disk(x)), x)


def resident(m):
    """Bytes of a file's mapping that are in memory."""
    size, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split()[0] and not line[0].isupper():
                inside = line.rstrip().endswith(str(m.filename))
            elif inside and line.startswith("Rss:"):
                size += 1024 * int(line.split()[1])
    return size


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_pages_are_given_back(on_disk, monkeypatch):
    piece = 1 << 18
    monkeypatch.setattr(blocks, "_MAPPED_BYTES", piece)
    x = noise(2000, 4, 60)
    m = on_disk(x)
    assert resident(m) == 0
    np.asarray(m).sum()
    assert resident(m) > 0.9 * x.nbytes
    most = 0

    def watched(block):
        nonlocal most
        total = token_sums(block)
        most = max(most, resident(m))
        return total

    SampleBlocks(m).total(watched)
    SampleBlocks(m).total(watched)
    assert resident(m) < 0.1 * x.nbytes
    most = 0
    SampleBlocks(m).total(watched)
    # the kernel maps some pages around those that are touched
    assert piece / 2 < most < 3 * piece
    y = make_attention_sequences(2000, 4, 60, random_state=0)[1]
    for estimator in (TokenWhitener(), AMPAttentionRegressor(0.5, max_iter=2), GDAttentionRegressor(2, max_iter=2)):
        estimator.fit(m, y)
        assert resident(m) < 0.1 * x.nbytes


PEAK = """
import sys, warnings
import numpy as np
from sklearn_aim import *

def peak():
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

warnings.simplefilter("ignore")
path, n_samples = sys.argv[1], int(sys.argv[2])
few, few_y = (a.astype("f4") for a in make_attention_sequences(2000, 2, 256, width=2, random_state=0))
m = np.memmap(path, "f4", "w+", shape=(n_samples, 2, 256))
for start in range(0, n_samples, 2000):
    m[start : start + 2000] = few
m.flush()
del m
m = np.memmap(path, "f4", "r", shape=(n_samples, 2, 256))
y = np.tile(few_y, (n_samples // 2000, 1, 1))
for round, (x, y) in enumerate(((few, few_y), (m, y))):
    for estimator in (
        TokenWhitener(),
        PositionMeanRegressor(),
        AMPAttentionRegressor(0.5, noise=1.0, max_iter=1),
        GDAttentionRegressor(2, max_iter=1, random_state=0, solver="adam"),
    ):
        # the peak from here on
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        estimator.fit(x, y)
        if hasattr(estimator, "predict"):
            estimator.predict(x)
        if round:
            print(type(estimator).__name__, peak() - before)
"""


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_peak_memory_is_that_of_a_piece(tmp_path):
    path = tmp_path / "large"
    n_samples = 150_000
    try:
        done = run(PEAK, str(path), str(n_samples))
        size = path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert size == n_samples * 2 * 256 * 4 == 307_200_000
    peaks = {name: int(bytes_) for name, bytes_ in map(str.split, done.stdout.splitlines())}
    assert len(peaks) == 4
    for name, more in peaks.items():
        # a piece of 64 MiB, indices and maps, and temporaries of a few megabytes
        assert 50e6 < more < 130e6, (name, more)


def run(script, *arguments):
    """A script in another process."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment, check=False
    )


# ----------------------------------------------------------------------------------------------------------------
# estimators: also for test_dask


@functools.cache
def data(name, dtype="float64"):
    """X, y of a teacher. Not to be modified."""
    if name == "deep":
        pair = make_deep_attention_sequences(400, 2, 60, random_state=0)
    elif name == "raw":
        x, y = make_attention_sequences(400, 3, 12, width=0.5, noise=0.1, random_state=3)
        pair = x @ np.random.default_rng(0).normal(size=(12, 12)) + 1.0, y
    else:
        link, tied, width = name
        pair = make_attention_sequences(
            400, 3, 12, width=width, link=link, tied=tied, noise=0.2 if link == "hardmax" else 0.1, random_state=1
        )
    return tuple(array.astype(dtype) for array in pair)


@dataclass(frozen=True)
class Case:
    estimator: BaseEstimator
    data: object = ("softmax", True, 0.5)
    weighted: bool = False
    fits: tuple = field(default=("fit",))

    def parameters(self, flat):
        """An estimator of its own, for flattened sequences or not."""
        one = clone(self.estimator)
        n_tokens = data(self.data)[0].shape[1] if flat else None
        steps = [step for _, step in one.steps] if isinstance(one, Pipeline) else [one]
        for step in steps:
            step.set_params(n_tokens=n_tokens)
        return one


GD = functools.partial(GDAttentionRegressor, tol=0.0, max_iter=6, random_state=0)
ADAM = functools.partial(GD, solver="adam", batch_size=50, learning_rate=0.03, max_iter=3)
CASES = {
    "AMP": Case(AMPAttentionRegressor(0.5, noise=0.1)),
    "AMP, estimated noise": Case(AMPAttentionRegressor(0.5, noise="estimate", max_iter=8)),
    "AMP, untied": Case(AMPAttentionRegressor(0.5, noise=0.1, tied=False), ("softmax", False, 0.5)),
    "AMP, identity": Case(AMPAttentionRegressor(0.5, noise=0.1, link="identity"), ("identity", True, 0.5)),
    "AMP, hardmax": Case(AMPAttentionRegressor(0.5, noise=0.2, link="hardmax", max_iter=8), ("hardmax", True, 0.5)),
    "lbfgs": Case(GD(2), ("softmax", True, 2)),
    "lbfgs, untied, bias, three starts": Case(GD(2, tied=False, fit_bias=True, n_init=3), ("softmax", True, 2)),
    "adam, early stopping, weights, two layers": Case(
        ADAM(2, n_layers=2, early_stopping=True, n_init=2), ("softmax", True, 2), weighted=True
    ),
    "sgd, cross-entropy": Case(ADAM(2, solver="sgd", loss="cross_entropy"), ("softmax", True, 2)),
    "partial_fit": Case(ADAM(2), ("softmax", True, 2), True, ("partial_fit", "partial_fit")),
    "fit, partial_fit": Case(ADAM(2, solver="sgd"), ("softmax", True, 2), False, ("fit", "partial_fit")),
    "sequence-index": Case(GD(1, scaling="sequence-index", n_layers=2), "deep"),
    "deep AMP": Case(AMPDeepAttentionRegressor(2, max_iter=6, random_state=0), "deep"),
    "mean map": Case(PositionMeanRegressor()),
    "whitener": Case(TokenWhitener(ridge=0.1), "raw"),
    "whitener, AMP": Case(make_pipeline(TokenWhitener(), AMPAttentionRegressor(0.5, noise=0.1)), "raw"),
    "whitener, lbfgs": Case(make_pipeline(TokenWhitener(), GD(2, fit_bias=True)), "raw"),
}
FORMS = {
    "double": (np.float64, False, 1e-10),
    "flat": (np.float64, True, 1e-10),
    "single": (np.float32, False, 1e-4),
    "single, flat": (np.float32, True, 1e-4),
}


def attributes(estimator):
    """All that a fit leaves."""
    parameters = estimator.get_params(deep=False)
    return {name: value for name, value in vars(estimator).items() if name not in parameters}


def same(one, other, rtol, name):
    assert type(one) is type(other), name
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key], rtol, f"{name}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for k, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, rtol, f"{name}[{k}]")
    elif name == "diagnostics_['coverage']" and rtol:
        # a share of entries: one more or less may lie at the end of its interval
        assert abs((one or 0) - (other or 0)) < 0.01
    elif name.startswith("diagnostics_[") and isinstance(one, float):
        # differences of numbers of order 1
        assert abs(one - other) <= rtol, name
    elif isinstance(one, (np.ndarray, float, np.floating)):
        try:
            close(one, other, rtol)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    elif isinstance(one, np.random.RandomState):
        same(one.get_state(), other.get_state(), 0, name)
    elif isinstance(one, (Adam, Momentum)):
        same(vars(one), vars(other), rtol, name)
    else:
        assert isinstance(one, (AttentionStack, int, str, np.bool_, np.dtype, type(None))), name
        assert one == other, name


def assert_same(one, other, rtol):
    """Two fitted estimators agree in all their attributes."""
    first, second = attributes(one), attributes(other)
    assert first.keys() == second.keys()
    assert first
    for name in first:
        same(first[name], second[name], rtol, name)


def learn(case, form, hold=lambda x: x):
    """A fitted estimator, and everything it answers, with X held in some way."""
    dtype, flat, _ = FORMS[form]
    x, y = data(case.data, np.dtype(dtype).name)
    x = hold(x.reshape(len(x), -1) if flat else x)
    estimator = case.parameters(flat)
    # weights of zero at both ends, and for whole blocks
    weights = {"sample_weight": np.random.default_rng(4).integers(0, 3, len(y)) / 2.0} if case.weighted else {}
    if weights:
        weights["sample_weight"][100:220] = 0
    for fit in case.fits:
        getattr(estimator, fit)(x, y, **weights)
    answers = {}
    if hasattr(estimator, "predict"):
        answers["predict"] = estimator.predict(x)
        answers["score"] = estimator.score(x, y)
        last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
        if hasattr(last, "predict_index") and hasattr(last, "interaction_"):
            seen = estimator[:-1].transform(x) if isinstance(estimator, Pipeline) else x
            answers["predict_index"] = last.predict_index(seen)
    else:
        answers["transform"] = estimator.transform(x)
    return estimator, answers


@functools.cache
def learned(name, form):
    """`learn` from memory."""
    return learn(CASES[name], form)


def check_case(name, form, hold):
    """What is learned and answered with X held in some way is what is with X in memory."""
    dtype, _, rtol = FORMS[form]
    expected, expected_answers = learned(name, form)
    estimator, answers = learn(CASES[name], form, hold)
    pairs = zip(estimator, expected, strict=True) if isinstance(estimator, Pipeline) else [(estimator, expected)]
    for pair in pairs:
        assert_same(*pair, rtol)
    for kind, answer in answers.items():
        answer = answer.compute() if hasattr(answer, "compute") else answer
        if kind == "score":
            assert answer == pytest.approx(expected_answers[kind], rel=rtol, abs=rtol)
            continue
        assert type(answer) is np.ndarray
        assert answer.dtype == dtype
        close(answer, expected_answers[kind], rtol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_estimators_on_disk(name, form, on_disk, small_pieces, released):
    check_case(name, form, on_disk)
    # no fit takes fewer passes than one to look for NaN, of several pieces
    assert len(released) > 3


@pytest.mark.parametrize("name", ["AMP", "lbfgs", "adam, early stopping, weights, two layers", "deep AMP", "whitener"])
def test_refit_on_disk_is_the_same_to_the_bit(name, on_disk, small_pieces):
    one, first = learn(CASES[name], "double", on_disk)
    other, second = learn(CASES[name], "double", on_disk)
    assert_same(one, other, 0)
    same(first, second, 0, name)


def test_a_map_in_fit_and_an_array_in_predict(on_disk, small_pieces):
    x, y = data(("softmax", True, 0.5))
    estimator = AMPAttentionRegressor(0.5, noise=0.1).fit(on_disk(x), y)
    one = AMPAttentionRegressor(0.5, noise=0.1).fit(x, y)
    close(estimator.predict(x), one.predict(x), 1e-10)
    close(one.predict(on_disk(x)), estimator.predict(x), 1e-10)
    # precision is that of fit
    assert one.predict(on_disk(x.astype(np.float32))).dtype == np.float64
    single = AMPAttentionRegressor(0.5, noise=0.1).fit(on_disk(x.astype(np.float32)), y)
    assert single.predict(x).dtype == np.float32
    assert single.interaction_.dtype == np.float32


def test_maps_of_y_and_weights_on_disk(on_disk, small_pieces):
    x, y = data(("softmax", True, 2))
    weights = np.random.default_rng(0).uniform(size=len(y))
    one = GD(2).fit(on_disk(x), on_disk(y), sample_weight=on_disk(weights))
    assert_same(one, GD(2).fit(x, y, sample_weight=weights), 1e-10)


@pytest.mark.parametrize("params", [{}, {"solver": "adam", "batch_size": 60}], ids=str)
def test_threads_share_a_map(params, on_disk, small_pieces):
    x, y = data(("softmax", True, 2))
    m = on_disk(x)
    one, other = (GD(2, n_init=3, n_jobs=n_jobs, **params).fit(m, y) for n_jobs in (None, 3))
    assert_same(one, other, 0)


# ----------------------------------------------------------------------------------------------------------------
# block sizes and threads


def one_pass(x, y):
    """Everything that algorithms take from X, in one pass each."""
    x = as_blocks(x)
    n_features = x.shape[2]
    rng = np.random.default_rng(0)
    matrix, g = rng.normal(size=(n_features, n_features)), rng.normal(size=y.shape)
    symmetric = g + g.transpose(0, 2, 1)
    layers, g_layers = rng.normal(size=(2, n_features)), rng.normal(size=(len(y), 2, y.shape[1]))
    out = {
        "indices": x.collect(attention_indices, matrix),
        "projection": x.total(back_projection, parts=(g,)),
        "symmetric projection": x.total(back_projection, True, parts=(symmetric,)),
        "layers": x.collect(layer_indices, layers),
        "layer projection": x.total(layer_projection, parts=(g_layers,)),
        "squares": x.total(token_power),
        "largest": x.collect(largest_entries),
        "sums": x.total(token_sums),
        "products": x.total(centred_products, rng.normal(size=n_features)),
    }
    subset = np.sort(rng.choice(len(y), len(y) // 3, replace=False))
    for name, stack in STACKS.items():
        factors = np.random.default_rng(1).normal(size=(2, *stack.shape))
        with Objective(stack, x, y, rng.uniform(size=len(y))) as objective:
            out[f"{name}: loss"], out[f"{name}: gradient"] = objective(factors)
            out[f"{name}: loss alone"] = objective(factors, gradient=False)[0]
            out[f"{name}: some"] = objective(factors, subset)[1]
        out[f"{name}: outputs"] = np.stack(stack.outputs(factors, x))
    return out


STACKS = {
    "shallow": AttentionStack(12, 3, weight_decay=0.1),
    "deep": AttentionStack(12, 2, tied=False, n_layers=2, fit_bias=True, scaling="sequence-index", center=False),
}


@functools.cache
def passes():
    return one_pass(*data(("softmax", True, 0.5)))


def check_one_pass(got, rtol=1e-12):
    expected = passes()
    assert got.keys() == expected.keys()
    for name in expected:
        try:
            close(got[name], expected[name], rtol)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@settings(max_examples=40)
@given(st.integers(1, 120_000), st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 600), st.integers(1, 20))
def test_block_sizes(tmp_path_factory, piece, elements, stack_elements, rows, lanes):
    x, y = data(("softmax", True, 0.5))
    path = tmp_path_factory.getbasetemp() / "block_sizes.npy"
    if not path.exists():
        np.save(path, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_MAPPED_BYTES", piece)
        patch.setattr(indices, "_BLOCK_ELEMENTS", elements)
        patch.setattr(attention_stack, "_BLOCK_ELEMENTS", stack_elements)
        patch.setattr(attention_stack, "_BLOCK_ROWS", rows)
        patch.setattr(attention_stack, "_LANES", lanes)
        check_one_pass(one_pass(np.load(path, mmap_mode="r"), y))


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("halved", [False, True])
def test_numba_threads(threads, halved, monkeypatch):
    # blocks that are small enough for threads to have several
    monkeypatch.setattr(attention_stack, "_BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(attention_stack, "_BLOCK_ROWS", 20)
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 1 if halved else 400)
    x, y = (np.tile(array, (2, 1, 1)) for array in data(("softmax", True, 0.5)))
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    expected = one_pass(x, y)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
    # to the bit
    same(one_pass(x, y), expected, 0, "pass")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_blas_threads(threads):
    with threadpool_limits(threads):
        check_one_pass(one_pass(*data(("softmax", True, 0.5))))


@pytest.mark.parametrize("name", ["AMP", "lbfgs", "adam, early stopping, weights, two layers", "deep AMP"])
def test_threads_change_no_digit_of_a_fit(name, monkeypatch):
    expected, expected_answers = learned(name, "double")
    for threads in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        estimator, answers = learn(CASES[name], "double")
        assert_same(estimator, expected, 0)
        same(answers, expected_answers, 0, name)


# ----------------------------------------------------------------------------------------------------------------
# back-projection with half the products


def symmetric_maps(kind, n, n_tokens, rng):
    g = rng.normal(size=(n, n_tokens, n_tokens))
    if kind == "zero":
        return 0 * g
    if kind == "of low rank":
        # n_tokens - 1 eigenvalues of zero, some up to rounding
        return rng.choice([-1.0, 1.0], (n, 1, 1)) * g[:, :, :1] * g[:, None, :, 0]
    if kind == "diagonal with zeros":
        return np.eye(n_tokens) * rng.integers(-1, 2, (n, n_tokens))[:, None]
    if kind == "positive":
        return g @ g.transpose(0, 2, 1)
    if kind == "negative":
        return -g @ g.transpose(0, 2, 1)
    if kind == "of very different sizes":
        return (g + g.transpose(0, 2, 1)) * 10.0 ** rng.integers(-200, 3, (n, 1, 1))
    return g + g.transpose(0, 2, 1)


KINDS = ["any", "zero", "of low rank", "diagonal with zeros", "positive", "negative", "of very different sizes"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_tokens", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_half_the_products(kind, n_tokens, dtype, monkeypatch):
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 2)
    monkeypatch.setattr(indices, "_BLOCK_ELEMENTS", 40 * n_tokens * 11)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, n_tokens, 11)).astype(dtype)
    g = symmetric_maps(kind, 150, n_tokens, rng)
    if dtype == np.float32 and kind == "of very different sizes":
        g = np.maximum(np.abs(g), 1e-30) * np.sign(g)
    g = g.astype(dtype)
    exact = np.einsum("nai,nab,nbj->ij", x, g, x, dtype=float, optimize=True)
    exact -= np.einsum("naa->", g, dtype=float) * np.eye(11)
    called = []
    signed = indices._signed_rows
    monkeypatch.setattr(indices, "_signed_rows", lambda *args: called.append(args) or signed(*args))
    halved = back_projection(x, g, symmetric=True)
    assert len(called) == 4
    assert halved.dtype == np.float64
    np.testing.assert_array_equal(halved, halved.T)
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    close(halved, exact, rtol)
    close(halved, back_projection(x, g), rtol)
    close(as_blocks(x).total(back_projection, True, parts=(g,)), exact, rtol)
    assert len(called) == 8


def test_half_the_products_where_they_pay(monkeypatch):
    called = []
    signed = indices._signed_rows
    monkeypatch.setattr(indices, "_signed_rows", lambda *args: called.append(args) or signed(*args))
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 4)
    for n_tokens, n_features, halved in ((1, 3, False), (1, 4, True), (3, 11, False), (3, 12, True), (3, 30, True)):
        x = noise(20, n_tokens, n_features)
        g = symmetric_maps("any", 20, n_tokens, np.random.default_rng(0))
        called.clear()
        close(back_projection(x, g, symmetric=True), back_projection(x, g), 1e-12)
        assert bool(called) == halved
        called.clear()
        back_projection(x, g)
        assert not called


def test_half_the_products_at_their_real_size():
    n_tokens, n_features = 1, indices._FEATURES_A_TOKEN
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 1e-5)):
        x = noise(300, n_tokens, n_features).astype(dtype)
        g = symmetric_maps("any", 300, n_tokens, np.random.default_rng(0)).astype(dtype)
        close(back_projection(x, g, symmetric=True), back_projection(x, g), rtol)


@pytest.mark.parametrize("layout", MEMORY)
@pytest.mark.parametrize("symmetric", [False, True])
def test_back_projection_of_any_layout(layout, symmetric, monkeypatch):
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 1)
    x = noise(60)
    g = symmetric_maps("any", 60, 3, np.random.default_rng(0))
    expected = back_projection(x, g, symmetric)
    close(back_projection(MEMORY[layout](x), MEMORY[layout](g), symmetric), expected, 1e-12)


def test_sums_in_single_precision_are_moved_to_double_in_time(monkeypatch):
    # sums of many squares: in single precision alone each would lose what is added
    n = 4000
    x = (1 + 0.01 * noise(n, 2, 6)).astype(np.float32)
    g = np.ones((n, 2, 2), np.float32)
    exact = back_projection(x.astype(float), g.astype(float))
    monkeypatch.setattr(indices, "_BLOCK_ELEMENTS", 100 * 12)
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 1)
    for rows in (1, 150, 1000):
        monkeypatch.setattr(indices, "_SINGLE_ROWS", rows)
        for symmetric in (False, True):
            close(back_projection(x, g, symmetric), exact, 3e-6)


@pytest.mark.parametrize("name", ["AMP", "AMP, identity", "AMP, hardmax"])
def test_a_fit_with_half_the_products(name, monkeypatch):
    expected, expected_answers = learned(name, "double")
    monkeypatch.setattr(indices, "_FEATURES_A_TOKEN", 1)
    estimator, answers = learn(CASES[name], "double")
    assert_same(estimator, expected, 1e-9)
    same(answers, expected_answers, 1e-9, name)


# ----------------------------------------------------------------------------------------------------------------
# bad input


FITS = {
    "AMP": AMPAttentionRegressor(0.5, noise=0.1, max_iter=3),
    "GD": GD(2, max_iter=2),
    "adam": ADAM(2, max_iter=1),
    "deep AMP": AMPDeepAttentionRegressor(1, max_iter=3, random_state=0),
    "mean map": PositionMeanRegressor(),
    "whitener": TokenWhitener(),
}


def check_refused(estimator, good, bad, error, match):
    """Every way to use bad X fails and says why; nothing of a fitted or an unfitted estimator has changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = clone(estimator).fit(*good)
    for one in (clone(estimator), fitted):
        before, copied = dict(vars(one)), copy.deepcopy(vars(one))
        for method in ("fit", "partial_fit"):
            if not hasattr(one, method):
                continue
            with pytest.raises(error, match=match):
                getattr(one, method)(*bad)
            after = vars(one)
            assert after.keys() == before.keys()
            assert all(after[name] is before[name] for name in before)
        # nor has anything been written over
        same(before, copied, 0, type(one).__name__)
        if one is not fitted:
            with pytest.raises(NotFittedError):
                check_is_fitted(one)
    return fitted


def check_refused_in_predict(fitted, x, error, match):
    before = dict(vars(fitted))
    for method in ("predict", "predict_index", "transform"):
        if not hasattr(fitted, method) or (method == "predict_index" and not hasattr(fitted, "interaction_")):
            continue
        with pytest.raises(error, match=match):
            getattr(fitted, method)(x)
        assert vars(fitted).keys() == before.keys()
        assert all(vars(fitted)[name] is before[name] for name in before)


@pytest.fixture(scope="module")
def pair():
    """Maps that every estimator can learn from."""
    return make_deep_attention_sequences(400, 2, 20, n_layers=1, random_state=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FITS)
def test_nan_on_one_page(name, value, pair, on_disk, small_pieces):
    for sample in (0, 199, 399):
        x = np.array(pair[0])
        x[sample, 1, 7] = value
        m = on_disk(x)
        match = rf"NaN or infinity.* in X\[{sample}\]"
        fitted = check_refused(FITS[name], pair, (m, pair[1]), ValueError, match)
        check_refused_in_predict(fitted, m, ValueError, match)


def test_nan_in_a_view_and_in_half_precision(pair, on_disk, small_pieces):
    x = np.tile(pair[0], (4, 1, 1)).astype(np.float16)
    x[801, 0, 3] = np.inf
    m = on_disk(x)
    with pytest.raises(ValueError, match=r"in X\[801\]"):
        TokenWhitener().fit(m)
    with pytest.raises(ValueError, match=r"in X\[400\]"):
        TokenWhitener().fit(m[1::2])
    # the sample is not among these
    TokenWhitener().fit(m[::2])


@pytest.mark.parametrize("name", FITS)
def test_wrong_shapes_on_disk(name, pair, on_disk, small_pieces):
    x, y = pair
    m = on_disk(x)
    estimator = FITS[name]
    if name != "whitener":
        check_refused(estimator, pair, (m, y[:-1]), ValueError, r"inconsistent numbers of samples: \[400, 399\]")
        check_refused(estimator, pair, (m, y[:, :1]), ValueError, r"y has shape \(400, 1, 2\)")
        check_refused(estimator, pair, (m, None), ValueError, "requires y")
    flat = on_disk(x.reshape(400, -1))
    with pytest.raises(ValueError, match="X has 40 columns, which n_tokens=3 does not divide"):
        clone(estimator).set_params(n_tokens=3).fit(flat, y)
    with pytest.raises(ValueError, match="4 dimensions"):
        clone(estimator).fit(m.reshape(20, 20, 2, 20), y)
    fitted = clone(estimator).fit(x, y)
    check_refused_in_predict(fitted, m[:, :, ::2], ValueError, "10 features")
    with pytest.raises(ValueError, match="0 sample"):
        clone(estimator).fit(m[:0], y[:0])


@pytest.mark.parametrize("dtype", ["complex128", "O"])
def test_wrong_dtypes(dtype, pair, on_disk, small_pieces):
    x = pair[0].astype("complex128")
    if dtype == "O":
        x = pair[0].astype(object)
        x[3, 1, 1] = "a"
        with pytest.raises(ValueError, match="could not convert"):
            TokenWhitener().fit(x)
        return
    with pytest.raises(ValueError, match="Complex data not supported"):
        TokenWhitener().fit(on_disk(x))


# where the file ends: nothing, in the middle of a page, at a page, at the last byte
ENDS = [0, 5 * mmap.PAGESIZE // 2, 4 * mmap.PAGESIZE, -1]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", FITS)
def test_a_file_truncated_before_fit_and_predict(name, end, pair, on_disk, small_pieces):
    x, y = pair
    m = on_disk(x)
    os.truncate(m.filename, end % x.nbytes)
    fitted = check_refused(FITS[name], pair, (m, y), ValueError, "X is a memory map of a file that has been truncated")
    check_refused_in_predict(fitted, m, ValueError, f"it holds {end % x.nbytes} bytes, but X needs")


@pytest.mark.parametrize("name", FITS)
def test_a_file_truncated_between_fit_and_predict(name, pair, on_disk, small_pieces):
    x, y = pair
    m = on_disk(x)
    fitted = clone(FITS[name]).fit(m, y)
    expected = getattr(fitted, "transform" if name == "whitener" else "predict")(x)
    os.truncate(m.filename, x.nbytes // 2)
    check_refused_in_predict(fitted, m, ValueError, "truncated")
    if name != "whitener":
        with pytest.raises(ValueError, match="truncated"):
            fitted.score(m, y)
    # what is still there can be used, and a file that is whole again
    np.testing.assert_array_equal(getattr(fitted, "transform" if name == "whitener" else "predict")(x), expected)
    half = m[: len(m) // 2]
    close(SampleBlocks(half).total(token_sums), token_sums(x[: len(half)]), 1e-12)
    with open(m.filename, "r+b") as file:
        file.write(x.tobytes())
    close(getattr(fitted, "transform" if name == "whitener" else "predict")(m), expected, 1e-12)


@pytest.mark.parametrize("view", ["every second sample", "backwards", "every second feature", "base class, part"])
def test_a_view_of_a_truncated_file(view, on_disk, small_pieces):
    m = on_disk(noise(1000, 4, 10))
    os.truncate(m.filename, m.nbytes - mmap.PAGESIZE)
    with pytest.raises(ValueError, match="truncated"):
        TokenWhitener().fit(VIEWS[view](m))
    # a view that has nothing of the end
    TokenWhitener().fit(VIEWS[view](m[:900]))


@pytest.mark.parametrize("name", ["AMP", "deep AMP"])
def test_a_file_truncated_during_fit(name, pair, on_disk, small_pieces):
    x, y = pair
    m = on_disk(x)

    def shorten(state):
        if state["iteration"] == 1:
            os.truncate(m.filename, x.nbytes // 3)

    estimator = clone(FITS[name])
    with pytest.raises(ValueError, match="truncated"):
        estimator.fit(m, y, callback=shorten)
    assert not attributes(estimator)


TRUNCATED = """
import os, sys
import numpy as np
from sklearn_aim import TokenWhitener
from sklearn_aim.kernels import blocks

path, mode, offset, piece = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
blocks._MAPPED_BYTES = piece or blocks._MAPPED_BYTES
how = {"dtype": float, "shape": (2000, 3, 20), "offset": offset}
np.memmap(path, mode="w+", **how)[:] = np.random.default_rng(0).normal(size=how["shape"])
m = np.memmap(path, mode=mode, **how)
os.truncate(path, m.nbytes)
if not offset:
    os.truncate(path, m.nbytes // 2)
try:
    TokenWhitener().fit(m)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("mode", "offset", "piece"),
    [
        pytest.param("r", 100, PIECE, id="behind a short header"),
        pytest.param("r", 2 * mmap.ALLOCATIONGRANULARITY, PIECE, id="behind a long header"),
        pytest.param("r", 0, 0, id="one block"),
        pytest.param("c", 0, PIECE, id="copy on write"),
    ],
)
@pytest.mark.skipif(not LINUX, reason="a mapped file can't be truncated")
def test_a_truncated_file_does_not_end_the_process(mode, offset, piece, tmp_path):
    done = run(TRUNCATED, str(tmp_path / "x"), mode, str(offset), str(piece))
    assert done.returncode == 0, done.returncode
    assert "truncated" in done.stdout
