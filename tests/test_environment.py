"""Surroundings that are not as one would wish: no place for caches, processes and threads, no memory, a full disk."""

import errno
import multiprocessing
import os
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import sklearn_aim
from sklearn_aim import AMPAttentionRegressor, AMPDeepAttentionRegressor, GDAttentionRegressor
from sklearn_aim.datasets import make_attention_sequences, make_deep_attention_sequences
from sklearn_aim.kernels import blocks

PACKAGE = str(Path(sklearn_aim.__file__).parents[1])
posix = pytest.mark.skipif(os.name != "posix", reason="limits of resources are POSIX")
TIMEOUT = 100

# too few iterations are enough here
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def data():
    return make_attention_sequences(120, 2, 8, width=0.5, noise=0.1, random_state=0)


def fit(k=0, n_jobs=None):
    """One of several estimators, fitted; the learned numbers. At the top level, for processes to find."""
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    X, y = data()
    if k % 3 == 0:
        return AMPAttentionRegressor(0.5, noise=0.1, max_iter=8, tol=0).fit(X, y).interaction_
    if k % 3 == 1:
        model = GDAttentionRegressor(4, n_init=2, max_iter=10, tol=0, random_state=0, n_jobs=n_jobs)
        return model.fit(X, y).interaction_
    return AMPAttentionRegressor(0.5, link="hardmax", max_iter=8, tol=0).fit(X, (y > 0.5) * 1.0).interaction_


def fit_into(queue, k):
    queue.put(fit(k))


def run(code, **environment):
    """Output of a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": PACKAGE, "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


# compiled code


WHOLE_FIT = """
    from sklearn_aim import AMPAttentionRegressor, make_attention_sequences
    X, y = make_attention_sequences(60, 2, 6, width=0.5, noise=0.1, random_state=0)
    print("fitted", AMPAttentionRegressor(0.5, noise=0.1).fit(X, y).interaction_.shape)
"""
ONE_KERNEL = """
    import sklearn_aim, numpy as np
    from sklearn_aim.channels.evidences import row_evidences
    print("fitted", row_evidences(np.zeros((1, 2, 2)), np.zeros((1, 2), dtype=np.int64), 1.0)[0])
"""


@pytest.mark.parametrize(
    ("place", "code"),
    [("read-only", ONE_KERNEL), ("missing", ONE_KERNEL), ("a file", WHOLE_FIT), ("/proc/1/x", ONE_KERNEL)],
)
def test_cache_of_compiled_code_that_cannot_be_written(place, code, tmp_path):
    # the last is closed to an administrator, too
    where = tmp_path / "cache" if place[0] != "/" else Path(place)
    if place == "read-only":
        where.mkdir(mode=0o555)
    elif place == "a file":
        where.write_text("")
    done = run(code, NUMBA_CACHE_DIR=str(where))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fitted" in done.stdout


# processes


@pytest.mark.parametrize("method", sorted({"fork", "spawn"} & set(multiprocessing.get_all_start_methods())))
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fit_in_a_child_after_a_fit_in_the_parent(method):
    context = multiprocessing.get_context(method)
    for k in (0, 1) if method == "fork" else (1,):
        expected = fit(k)
        queue = context.Queue()
        child = context.Process(target=fit_into, args=(queue, k))
        child.start()
        try:
            found = queue.get(timeout=TIMEOUT)
            child.join(timeout=TIMEOUT)
            assert child.exitcode == 0
        finally:
            child.kill()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_fits_in_a_pool_of_processes():
    expected = [fit(k) for k in (0, 1)]
    with joblib.parallel_config("loky", n_jobs=2):
        found = joblib.Parallel(timeout=TIMEOUT)(joblib.delayed(fit)(k) for k in (0, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


# threads


def test_different_estimators_in_threads_are_the_serial_ones():
    expected = [fit(k) for k in range(3)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(fit, range(12), timeout=TIMEOUT))
    for k, interaction in enumerate(found):
        np.testing.assert_array_equal(interaction, expected[k % 3])


def test_threads_in_threads():
    expected = fit(1)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: fit(1, n_jobs=2), range(3), timeout=TIMEOUT))
    for interaction in found:
        np.testing.assert_allclose(interaction, expected, rtol=1e-9, atol=1e-12)


# memory


def learned(estimator):
    return {name: id(value) for name, value in vars(estimator).items() if name.endswith("_")}


def no_memory(*args, **kwargs):
    raise MemoryError("no memory")


DEEP = {"n_layers": 2, "max_iter": 3, "tol": 0, "random_state": 0}


@pytest.mark.parametrize("kind", ["amp", "gd", "deep"])
def test_an_allocation_that_fails_loses_nothing(kind, monkeypatch):
    if kind == "deep":
        X, y = make_deep_attention_sequences(40, 2, 6, random_state=0)
        estimator = AMPDeepAttentionRegressor(**DEEP)
    else:
        X, y = data()
        if kind == "amp":
            estimator = AMPAttentionRegressor(0.5, noise=0.1, max_iter=6, tol=0)
        else:
            estimator = GDAttentionRegressor(4, max_iter=6, tol=0, random_state=0)
    estimator.fit(X, y)
    before, expected = learned(estimator), estimator.predict(X)
    # an ordinary call to numpy in the middle of the fit, after some that were served
    served = {"count": 0}
    empty = np.empty

    def scarce(*args, **kwargs):
        served["count"] += 1
        return no_memory() if served["count"] > 3 else empty(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", scarce)
        with pytest.raises(MemoryError):
            estimator.fit(X[:30], y[:30])
    assert served["count"] > 3
    with monkeypatch.context() as patch:
        patch.setattr(blocks.SampleBlocks, "collect", no_memory)
        patch.setattr(blocks.SampleBlocks, "total", no_memory)
        with pytest.raises(MemoryError):
            estimator.fit(X[:30], y[:30])
    assert learned(estimator) == before
    np.testing.assert_array_equal(estimator.predict(X), expected)
    again = estimator.fit(X, y).predict(X)
    np.testing.assert_array_equal(again, expected)


@posix
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is on address space")
def test_too_little_memory_for_a_fit():
    done = run(
        """
        import resource, warnings
        import numpy as np
        from sklearn_aim import GDAttentionRegressor, make_attention_sequences
        warnings.simplefilter("ignore")
        X, y = make_attention_sequences(60, 2, 8, width=0.5, random_state=0)
        est = GDAttentionRegressor(4, max_iter=3, tol=0, random_state=0).fit(X, y)
        expected = est.predict(X)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        big = np.broadcast_to(np.ones(1), (1, 2, 6000))
        large = np.concatenate([big, big]) * 0.5
        try:
            est.set_params(width=3000).fit(large, np.full((2, 2, 2), 0.5))
        except MemoryError as error:
            print("MemoryError", error)
        est.set_params(width=4)
        assert (est.predict(X) == expected).all()
        assert (est.fit(X, y).predict(X) == expected).all()
        print("as before")
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("MemoryError")
    assert "as before" in done.stdout


# disk


@posix
def test_a_disk_that_is_full(tmp_path):
    # what a memory map cannot hold is refused by the system when the file is made
    done = run(
        f"""
        import resource, signal
        import numpy as np
        from sklearn_aim import make_attention_sequences
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        place = {str(tmp_path / "X.npy")!r}
        try:
            out = np.lib.format.open_memmap(place, mode="w+", dtype=float, shape=(1000, 2, 50))
            make_attention_sequences(1000, 2, 50, out=out, random_state=0)
        except OSError as error:
            print("OSError", error)
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("OSError")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space is reserved where the system can")
def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    # a new map is a file without contents: where they find no place the system would end the process
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=float, shape=(50, 2, 5))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"no space for out, a memory map of 4000 bytes.*X\.npy"):
        make_attention_sequences(50, 2, 5, out=out, random_state=0)
    monkeypatch.undo()
    X, _ = make_attention_sequences(50, 2, 5, out=out, random_state=0)
    np.testing.assert_array_equal(X, make_attention_sequences(50, 2, 5, random_state=0)[0])


@posix
def test_a_file_that_was_cut(tmp_path):
    # pages of a map beyond the end of its file end a process: it is refused before
    done = run(
        f"""
        import os
        import numpy as np
        from sklearn_aim import make_attention_sequences
        place = {str(tmp_path / "X.npy")!r}
        out = np.lib.format.open_memmap(place, mode="w+", dtype=float, shape=(1000, 2, 50))
        os.truncate(place, 1 << 16)
        try:
            make_attention_sequences(1000, 2, 50, out=out, random_state=0)
        except (OSError, ValueError) as error:
            print(type(error).__name__, error)
        """
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "out is a memory map of a file that has been truncated" in done.stdout
