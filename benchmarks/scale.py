"""Cost as sizes grow, beside what it could be: python benchmarks/scale.py [--short] [--only NAME ...] [--markdown FILE]

Figures are ratios of what is measured in one run, in turns: medians over repeats, with their range. Long fits run once.
Every section has its own process, so that memory and threads of one do not count in another. Needs Linux.
"""

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from gradient_descent_speed import TorchLayer
from scipy.integrate import quad
from scipy.linalg import eigh
from scipy.optimize import brentq

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, GDAttentionRegressor, make_attention_sequences
from sklearn_aim.algorithms.amp import _MOST_ENERGY, amp
from sklearn_aim.algorithms.attention_stack import AttentionStack, Objective
from sklearn_aim.channels import make_channel
from sklearn_aim.kernels import blocks
from sklearn_aim.kernels.dask_blocks import DaskBlocks
from sklearn_aim.kernels.indices import attention_indices, back_projection
from sklearn_aim.kernels.threads import one_blas_thread
from sklearn_aim.metrics import estimation_error
from sklearn_aim.priors import make_prior

CORES = os.cpu_count()


def timed(short, functions, pause=0.0):
    """Seconds of functions that take turns, name -> array.

    With a pause, for libraries whose idle threads keep cores busy for a while, a turn is one call and five that count.
    """
    times = {name: [] for name in functions}
    for _ in range(2 if short else 5):
        for name, function in functions.items():
            time.sleep(pause)
            for call in range(6 if pause else 1):
                start = time.perf_counter()
                function()
                if call or not pause:
                    times[name].append(time.perf_counter() - start)
    return {name: np.array(seconds) for name, seconds in times.items()}


def timed_iterations(short, runs, others=()):
    """Seconds of one iteration of every `amp_runner`, and of other functions, in turns."""
    for run in runs.values():
        run(1)  # compiled
    times = timed(short, {(k, m): partial(run, m) for k, run in runs.items() for m in (1, 4)} | dict(others))
    return times | {k: (times[k, 4] - times[k, 1]) / 3 for k in runs}


def ratio(over, under, detail=""):
    each = over / under
    return float(np.median(over) / np.median(under)), f"{each.min():.3g} to {each.max():.3g}{detail}"


def difference(one, other):
    return float(np.abs(one - other).max() / np.abs(other).max())


def mib(n_bytes):
    return f"{n_bytes / 2**20:.1f} MiB"


def traced_peak(function):
    """Most bytes that a call holds beyond what there was."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def resident_peak(function):
    """Seconds of a call, resident bytes before, and the most of them during it, which a thread samples every 20 ms.

    Not ru_maxrss, the largest value since the process began, which drawing X in double precision would set.
    """

    def now():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def sample():
        while not done.wait(0.02):
            seen.append(now())

    seen, done = [now()], threading.Event()
    threading.Thread(target=sample, daemon=True).start()
    start = time.perf_counter()
    function()
    seconds = time.perf_counter() - start
    done.set()
    return seconds, seen[0], max(seen)


def sequences(n, T, d, dtype=np.float64, seed=0, **more):
    """X, y, S and what to call them."""
    data = make_attention_sequences(n, T, d, width=0.5, dtype=dtype, random_state=seed, return_interaction=True, **more)
    return *data, f"n={n}, T={T}, d={d}, {np.dtype(dtype).name}"


def amp_runner(x, y):
    """A function that runs message passing for a number of iterations."""
    channel, prior = make_channel("softmax", x.shape[1]), make_prior(0.5)
    code = channel.encode(y)

    def run(n_iter, callback=None):
        result = amp(x, code, channel, prior, damping=0.3, max_iter=n_iter, tol=0.0, callback=callback)
        assert result.n_iter == n_iter, "message passing ended early"
        return result.interaction

    return run


def floors(rows):
    """What an iteration can't do without: rows S, rows^T (rows S), rows^T rows (numpy: half the work) and eigh."""
    symmetric = np.cov(np.random.default_rng(0).standard_normal((rows.shape[1], 2 * rows.shape[1])))
    square, other = symmetric.astype(rows.dtype), np.zeros_like(rows)
    out = np.empty_like(square)
    return {
        "first": lambda: np.dot(rows, square, out=other),
        "second": lambda: np.dot(rows.T, other, out=out),
        "half": lambda: np.dot(rows.T, rows, out=out),
        "eigh": lambda: eigh(symmetric, driver="evd", check_finite=False),
    }


# sections: generators of (setting, measure, value, detail)


def iteration(short, directory):
    n, d = (2000, 100) if short else (40000, 1000)
    for dtype in (np.float32, np.float64):
        X, y, _, setting = sequences(n, 2, d, dtype)
        times = timed_iterations(short, {"AMP": amp_runner(X, y)}, floors(X.reshape(-1, d)))
        detail = f"; {np.median(times['AMP']):.3g} s, eigh {np.median(times['eigh']):.3g} s"
        least = times["first"] + times["eigh"]
        yield setting, "AMP iteration / (two products + eigh)", *ratio(times["AMP"], least + times["second"], detail)
        yield setting, "AMP iteration / (same, second rows^T rows)", *ratio(times["AMP"], least + times["half"])


def fit(short, directory):
    d = 80 if short else 1000
    amp_fit = AMPAttentionRegressor(0.5).fit(*sequences(50, 2, 20, np.float32)[:2])  # compiled
    X, y, S, setting = sequences(d * d // 10, 2, d, np.float32)
    seconds, before, peak = resident_peak(lambda: amp_fit.fit(X, y))
    yield setting, "AMP fit [s]", seconds, f"{amp_fit.n_iter_} iterations, converged: {amp_fit.converged_}"
    error, bound = estimation_error(S, amp_fit.interaction_), BayesOptimalBound(0.5).estimation_error(len(X) / d**2)
    yield setting, "error / bound", error / bound, f"{error:.4f} / {bound:.4f}"
    yield setting, "peak memory of the fit beyond X / X", (peak - before) / X.nbytes, f"{mib(peak - before)}, resident"


def dense_passes(X):
    """Both passes by A_n,ab = (x_a x_b^T + x_b x_a^T - 2 delta_ab I)/(2 sqrt(d)), a <= b, formed in memory."""
    (n, T, d), (a, b) = X.shape, np.triu_indices(X.shape[1])
    sensing = np.einsum("nki,nkj->nkij", X[:, a], X[:, b], order="C")
    for k in range(len(a)):
        sensing[:, k] += sensing[:, k].transpose(0, 2, 1) - 2 * (a[k] == b[k]) * np.eye(d)
    sensing = sensing.reshape(n * len(a), d * d)
    sensing /= 2 * np.sqrt(d)

    def indices(S):
        h = np.empty((n, T, T))
        h[:, a, b] = h[:, b, a] = (sensing @ S.ravel()).reshape(n, -1)
        return h

    def projection(G):
        return np.sqrt(d) * (sensing.T @ (G[:, a, b] * np.where(a == b, 1, 2)).ravel()).reshape(d, d)

    return indices, projection


def dense_amp(X, y, n_iter):
    """The formulas at the head of `sklearn_aim.algorithms.amp`, with its channel and prior."""
    (n, T, d), (indices, projection) = X.shape, dense_passes(X)
    channel, prior = make_channel("softmax", T), make_prior(0.5)
    code, S, V, G = channel.encode(y), prior.mean_eigenvalue * np.eye(d), prior.prior_error, 0.0
    for _ in range(n_iter):
        omega = indices(S) - V * G
        G = channel.posterior(code, omega, V)[1]
        excess = np.sum(G**2) / n / (_MOST_ENERGY * channel.expected_energy(omega, V))
        if excess > 1:
            # its one safeguard that acts at small d, without which the two would part
            V *= excess
            G = channel.posterior(code, omega, V)[1]
        q_hat = n / d**2 * channel.expected_energy(omega, V)
        R = S + projection(G) / (q_hat * d**1.5)
        S, V = 0.7 * prior.denoise(R, q_hat) + 0.3 * S, 0.7 * float(prior.mmse(q_hat)) + 0.3 * V
    return S


def recipe(short, directory):
    for n, d in [(200, 30)] if short else [(1000, 60), (1000, 120)]:
        X, y, S, setting = sequences(n, 2, d)
        states, (indices, projection), G = [], dense_passes(X), y + y.transpose(0, 2, 1)
        amp_fit = AMPAttentionRegressor(0.5, damping=0.3, max_iter=30, tol=0).fit(X, y, callback=states.append)
        off = [difference(attention_indices(X, S), indices(S)), difference(back_projection(X, G, True), projection(G))]
        off.append(difference(states[-1]["interaction"], dense_amp(X, y, len(states))))
        assert max(off) < 1e-8, f"the recipe's answers differ by {max(off):.0e}"
        del indices, projection, states[:-1]
        both = {"dense": partial(dense_amp, X, y, amp_fit.n_iter_), "ours": partial(amp_fit.fit, X, y)}
        times, peaks = timed(short, both), [traced_peak(function) for function in both.values()]
        detail = f"; {amp_fit.n_iter_} iterations, answers agree to {max(off):.0e}"
        yield setting, "time: dense recipe / AMP fit", *ratio(times["dense"], times["ours"], detail)
        detail = " / ".join(map(mib, peaks))
        yield setting, "memory beyond X: dense recipe / AMP fit", peaks[0] / peaks[1], detail


def seconds_a_pair(rows, width, short):
    """Seconds of the two products of an iteration of descent, by the faster of two ways to keep all cores busy."""

    def pairs(count):
        weights = np.ones((width, rows.shape[1]), rows.dtype)
        z, product = np.empty((len(rows), width), rows.dtype), np.empty_like(weights)
        for _ in range(count):
            np.dot(rows, weights.T, out=z)
            np.dot(z.T, rows, out=product)

    def in_threads():
        with one_blas_thread(), ThreadPoolExecutor(CORES) as pool:
            list(pool.map(pairs, [50] * CORES))

    times = timed(short, {"BLAS threads": partial(pairs, 50 * CORES), "a product a core": in_threads})
    return min(np.median(seconds) for seconds in times.values()) / (50 * CORES)


def descents(X, y, width, seeds, **parameters):
    """Seconds, and iterations of all starts, of fits one after the other."""
    start = time.perf_counter()
    fitted = [GDAttentionRegressor(width, random_state=k, **parameters).fit(X, y) for k in seeds]
    return np.array([time.perf_counter() - start, sum(len(c) - 1 for one in fitted for c in one.loss_curve_)])


def gradient_ratio(X, y, width, short):
    """A gradient over one by torch's autograd, with the number of threads that suits torch better."""
    import torch

    def theirs(threads):
        torch.set_num_threads(threads)
        return layer.gradient([leaf])

    stack, layer = AttentionStack(X.shape[2], width), TorchLayer(X, y, width)
    factors = stack.initial(np.random.RandomState(0), 1.0)
    leaf = torch.tensor(np.ascontiguousarray(factors[0].T), dtype=layer.x.dtype)
    with one_blas_thread(), Objective(stack, X, y, np.ones(len(X))) as objective:
        off = difference(objective(factors)[1][0], theirs(1)[1][0].numpy().T)
        functions = {0: partial(objective, factors)} | {count: partial(theirs, count) for count in (1, CORES)}
        times = timed(short, functions, pause=0.3)
    best = min((1, CORES), key=lambda count: np.median(times[count]))
    return ratio(times[0], times[best], f"; torch with {best} of 1 and {CORES} threads; they agree to {off:.0e}")


def gradient(short, directory):
    n, d, width, n_init = (400, 50, 25, 4) if short else (4000, 200, 100, 32)
    for dtype in (np.float32, np.float64):
        X, y, _, setting = sequences(n, 2, d, dtype)
        setting += f", width={width}"
        try:
            value = gradient_ratio(X, y, width, short)
        except ImportError:
            value = "torch not installed", ""
        yield setting, "gradient / torch's autograd", *value
        descents(X[:50], y[:50], width, [0])  # compiled
        # half of the single fits before, half after
        singles = descents(X, y, width, range(n_init // 2))
        seconds, n_iter = descents(X, y, width, [0], n_init=n_init, n_jobs=2)
        singles += descents(X, y, width, range(n_init // 2, n_init))
        value, counts = seconds / singles[0], f"{n_iter:.0f} / {singles[1]:.0f} iterations"
        detail = f"{counts}, {value / n_iter * singles[1]:.3g} for one; {singles[0]:.3g} s of single fits"
        yield setting, f"{n_init} starts / as many single fits", value, detail
        floor = n_iter * seconds_a_pair(X.reshape(-1, d), width, short)
        yield setting, "floor: products of their iterations on all cores / single fits", floor / singles[0], ""


def errors_by_quad(prior, targets):
    """The mmse at the roots of q_hat mmse(q_hat) = target, by scipy's quadrature of the density."""

    def mmse(q_hat):
        edges = prior.edges(q_hat)
        pieces = [
            quad(lambda x: float(prior.density(x, q_hat)) ** 3, *ends, epsabs=1e-12, epsrel=1e-10)[0]
            for ends in zip(edges[::2], edges[1::2], strict=True)
        ]
        return 1 / q_hat - 4 * np.pi**2 / 3 * sum(pieces) / q_hat**2

    def error(target):
        low = high = target / prior.prior_error
        while high * mmse(high) < target:
            high *= 4
        return mmse(brentq(lambda q_hat: q_hat * mmse(q_hat) - target, low, high, rtol=1e-12))

    return np.array([error(target) for target in targets])


def bounds(short, directory):
    bound, alpha, few = BayesOptimalBound(0.5), np.linspace(0.005, 0.18, 256), slice(16, None, 32)
    ours = partial(bound.estimation_error, alpha)
    # E||G||^2 = constant/V, so that q_hat V = alpha constant
    theirs = partial(errors_by_quad, make_prior(0.5), alpha[few] * make_channel("softmax", 2).information_constant)
    off = np.abs(theirs() - ours()[few]).max()
    assert off < 1e-6, f"quad differs by {off:.0e}"
    times = timed(short, {"ours": ours, "quad": theirs})
    detail = f"; {np.median(times['ours']):.3g} s, they agree to {off:.0e}"
    value = ratio(times["ours"], times["quad"] * alpha.size / alpha[few].size, detail)
    yield "256 alphas, softmax, T=2, rho=0.5", "curve / scipy's quad and brentq (8 alphas, scaled)", *value


def memory(short, directory):
    for n, T, d in [(1000, 2, 60), (2000, 4, 100)] if short else [(8000, 2, 400), (20000, 4, 300), (40000, 2, 1000)]:
        X, y, _, setting = sequences(n, T, d)
        for name, method in (("AMP", AMPAttentionRegressor), ("GD", GDAttentionRegressor)):
            estimator = method(0.5, max_iter=3, tol=0).fit(X[:50], y[:50])  # compiled
            peak = traced_peak(partial(estimator.fit, X, y))
            value = peak / 8 / (20 * d**2 + n * T**2)
            yield setting, f"{name}: peak beyond X / (20 d^2 + n T^2 numbers)", value, f"{mib(peak)}, X {mib(X.nbytes)}"


def scaling(short, directory):
    # d < 400 T: sizes that all go the same way through back_projection
    n, d = (1000, 60) if short else (10000, 400)
    axes = {"n": [(k * n, 2, d) for k in (1, 2, 4)], "T": [(n, T, d) for T in (2, 4, 8)]}
    axes["d"] = [(2 * n, 4, k * d // 2) for k in (1, 2, 4)]
    for k, (axis, shapes) in enumerate(axes.items()):
        times = timed_iterations(short, {shape: amp_runner(*sequences(*shape)[:2]) for shape in shapes})
        seconds, sizes = [np.median(times[shape]) for shape in shapes], [shape[k] for shape in shapes]
        exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        setting, detail = f"(n, T, d) = {shapes[0]} to {shapes[-1]}", ", ".join(f"{one:.3g}" for one in seconds) + " s"
        yield setting, f"AMP iteration: exponent of {axis} (expected {2 if axis == 'd' else 1})", exponent, detail


def write_sequences(path, n, d):
    """Write X block by block, none of which stays mapped; answers y."""
    S, y = sequences(1, 2, d)[2], np.empty((n, 2, 2), np.float32)
    np.lib.format.open_memmap(path, "w+", np.float32, (n, 2, d))
    size = max(1, (1 << 23) // d)
    for start in range(0, n, size):
        part, mapped = slice(start, start + size), np.lib.format.open_memmap(path, "r+")
        block = sequences(min(size, n - start), 2, d, np.float32, seed=1 + start, interaction=S)
        mapped[part], y[part] = block[:2]
        mapped.flush()
        del mapped
    return y


def disk(short, directory):
    n, d = (3000, 60) if short else (200000, 2000)
    size, path = n * 2 * d * 4, os.path.join(directory, "x.npy")
    setting, small_pieces = f"n={n}, T=2, d={d}, float32", mock.patch.object(blocks, "_MAPPED_BYTES", 1 << 20)
    if shutil.disk_usage(directory).free < 1.25 * size:
        yield setting, "memory map", f"skipped: less than {1.25 * size / 1e9:.2g} GB free", ""
    else:
        y, stamps, load = write_sequences(path, n, d), [], partial(np.load, path, mmap_mode="r")
        # copies, so that nothing stays mapped
        amp_runner(np.array(load()[:64]), y[:64])(1)  # compiled
        bare = [timed(True, floors(np.array(load()[: n // 20]).reshape(-1, d)))]
        with open(path, "rb") as file:
            # forget what is cached of it: the first iteration reads from the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        X = load()
        with small_pieces if short else nullcontext():
            assert blocks.memory_map(X) is not None
            run, stamp = amp_runner(X, y), lambda state=None: stamps.append(time.perf_counter())
            _, before, peak = resident_peak(lambda: (stamp(), run(3, callback=stamp)))
        bare.append(timed(True, floors(np.array(load()[: n // 20]).reshape(-1, d))))
        del X
        os.remove(path)
        products = 20 * np.median([one["first"] + one["second"] for one in bare])
        detail = ", ".join(f"{seconds:.3g}" for seconds in np.diff(stamps)) + " s, the first from disk"
        value = float(np.median(np.diff(stamps)) / products)
        yield setting, "AMP iteration / two products in memory (5 %, scaled)", value, detail
        detail = f"{mib(peak)}, {mib(before)} before; X {mib(size)}"
        yield setting, "peak resident memory of the process / X", peak / size, detail
    for dtype in (np.float32, np.float64):
        X, y, _, setting = sequences(3000, 2, 200, dtype)
        np.save(path, X)
        with small_pieces:
            mapped = np.load(path, mmap_mode="r")
            assert blocks.memory_map(mapped) is not None
            value = difference(amp_runner(mapped, y)(4), amp_runner(X, y)(4))
        yield setting, "memory map and memory: largest relative difference", value, "4 iterations"


def on_cluster(client, n, d, dtype, n_blocks):
    """X on a client's workers, y here, and an `amp_runner` of both."""
    from dask import array, config

    def draw(block_info=None):
        info = block_info[None]
        rng = np.random.default_rng([7, info["chunk-location"][0]])
        return rng.standard_normal(info["chunk-shape"], info["dtype"])

    chunks = ((n // n_blocks,) * n_blocks, (2,), (d,))
    X = client.persist(array.map_blocks(draw, chunks=chunks, dtype=dtype, meta=np.empty((0, 0, 0), dtype)))
    with config.set(scheduler=client):
        y = make_channel("softmax", 2).link(DaskBlocks(X).collect(attention_indices, sequences(1, 2, d)[2]))
    run = amp_runner(DaskBlocks(X), y)

    def run_there(n_iter):
        with config.set(scheduler=client):
            return run(n_iter)

    return X, y, run_there


def dask(short, directory):
    try:
        from distributed import Client, LocalCluster, futures_of
    except ImportError:
        yield "", "weak scaling", "dask not installed", ""
        return
    n, d = (2000, 60) if short else (40000, 500)
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    runs = {}
    with ExitStack() as stack:
        # both clusters live, and take turns
        for workers in (1, 2):
            cluster = LocalCluster(n_workers=workers, local_directory=directory, silence_logs="ERROR", **options)
            client = stack.enter_context(Client(stack.enter_context(cluster), set_as_default=False))
            X, _, runs[workers] = on_cluster(client, workers * n, d, np.float32, 8 * workers)
        times = timed_iterations(short, runs)
        held = Counter(worker for workers in client.who_has(futures_of(X)).values() for worker in workers)
        held = " and ".join(map(str, held.values()))
        detail = f"; {np.median(times[1]):.3g} and {np.median(times[2]):.3g} s; the two hold {held} blocks in the end"
        setting, measure = f"n={n}, T=2, d={d}, float32 a worker", "AMP iteration: 1 worker, n / 2 workers, 2 n"
        yield setting, f"{measure} (ideal 1)", *ratio(times[1], times[2], detail)
        n, d = (400, 30) if short else (4000, 200)
        X, y, run = on_cluster(client, n, d, np.float64, 5)
        value = difference(run(4), amp_runner(client.compute(X).result(), y)(4))
        yield f"n={n}, T=2, d={d}, float64", "dask and numpy: largest relative difference", value, "4 iterations"


SECTIONS = {f.__name__: f for f in (iteration, fit, recipe, gradient, bounds, memory, scaling, disk, dask)}


def print_rows(name, short, directory):
    """What a section's process does."""
    warnings.simplefilter("ignore")
    try:
        for row in SECTIONS[name](short, directory):
            print("row", json.dumps(row), flush=True)
    except Exception as error:
        traceback.print_exc()
        print("row", json.dumps(["", "failed", f"{type(error).__name__}: {error}", ""]), flush=True)


def rows_of(name, short, directory):
    """Rows of a section, from its process."""
    command = [sys.executable, os.path.abspath(__file__), "--child", "--only", name, "--directory", directory]
    with subprocess.Popen(command + ["--short"] * short, stdout=subprocess.PIPE, text=True) as process:
        yield from (json.loads(line[4:]) for line in process.stdout if line.startswith("row "))
    if process.returncode:
        yield "", "failed", f"exit status {process.returncode}", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, for a check that all runs")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--markdown", help="also write the table to this file")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--directory", help="where X on disk goes, 3.2 GB; default: that of temporary files")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return print_rows(args.only[0], args.short, args.directory)
    names = ("section", "setting", "measure", "value", "detail")
    rows, lines = [], [f"| {' | '.join(names)} |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    # emptied whatever becomes of a section's process
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        for section in args.only:
            for row in rows_of(section, args.short, directory):
                rows.append(dict(zip(names, (section, *row), strict=True)))
                cells = [f"{cell:.3g}" if isinstance(cell, float) else cell for cell in rows[-1].values()]
                lines.append("| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |")
                print(lines[-1], flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"short": args.short, "cores": CORES, "rows": rows}, indent=1))
    if args.markdown:
        Path(args.markdown).write_text("\n".join(lines) + "\n")
    sys.exit(any(row["measure"] == "failed" for row in rows))


if __name__ == "__main__":
    main()
