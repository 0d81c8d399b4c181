"""What docs/scale.md promises of memory, and teachers that are drawn into a file."""

import tracemalloc
import warnings

import numpy as np
import pytest

from sklearn_aim import AMPAttentionRegressor, GDAttentionRegressor, make_attention_sequences

BLOCK = 1 << 21


def peak_beyond(fit):
    """Most bytes that a fit holds, compiled code and caches aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(1)
        tracemalloc.start()
        fit(3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "T", "d"), [(30000, 2, 150), (3000, 8, 100), (200, 2, 500)])
def test_memory_of_message_passing(n, T, d, dtype):
    X, y = make_attention_sequences(n, T, d, width=0.5, random_state=0, dtype=dtype)
    peak = peak_beyond(lambda k: AMPAttentionRegressor(0.5, max_iter=k, tol=0).fit(X, y))
    item = X.itemsize
    assert peak < 8 * 10 * d**2 + item * 8 * n * T**2 + item * min(BLOCK, n * T * d) + 2e5
    if n * T * d > 4 * BLOCK:
        # nothing of the size of X is made
        assert peak < 0.5 * X.nbytes


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "T", "d", "r"), [(8000, 2, 200, 20), (1000, 4, 200, 100), (500, 2, 300, 300)])
def test_memory_of_gradient_descent(n, T, d, r, dtype):
    X, y = make_attention_sequences(n, T, d, width=r, random_state=0, dtype=dtype)
    peak = peak_beyond(lambda k: GDAttentionRegressor(r, max_iter=k, tol=0, random_state=0).fit(X, y))
    # factors are in double precision whatever X is
    assert peak < 8 * (6 * d**2 + 45 * d * r + 3 * n * T**2 + 2 * (1 << 18)) + 2e5


def test_teachers_are_drawn_into_a_file(tmp_path):
    shape = (700, 3, 1111)
    file = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=np.float32, shape=shape)
    X, y, S = make_attention_sequences(
        *shape, width=0.1, noise=0.2, random_state=3, dtype=np.float32, return_interaction=True
    )
    written, labels, teacher = make_attention_sequences(
        *shape, width=0.1, noise=0.2, random_state=3, out=file, return_interaction=True
    )
    assert written is file
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), X)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(teacher, S)
    assert labels.dtype == np.float32
    # drawn in blocks, the numbers are those of one call
    draws = np.random.RandomState(3)
    draws.standard_normal((1111, 111))
    np.testing.assert_array_equal(X, draws.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize(
    "out",
    [np.empty((5, 2, 4)), np.empty((5, 2, 3), int), [[0.0]], np.broadcast_to(np.zeros(3), (5, 2, 3))],
    ids=["shape", "dtype", "list", "read-only"],
)
def test_bad_places_to_write(out):
    with pytest.raises(ValueError, match=r"out of type|dtype=int64 must be"):
        make_attention_sequences(5, 2, 3, out=out)
