"""Speed of the core as ratios measured in one run: python benchmarks/speed.py [--short]."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc

import numpy as np
from scipy import linalg

from sklearn_aim import BayesOptimalBound, make_attention_sequences
from sklearn_aim.algorithms.amp import amp
from sklearn_aim.channels import make_channel
from sklearn_aim.priors import make_prior


def best_of(function, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times), float(np.median(times))


def amp_iteration(n_samples, n_tokens, n_features, dtype, link, repeats):
    """One iteration against two bare matrix products of its size plus one eigh, and its extra memory."""
    X, y = make_attention_sequences(n_samples, n_tokens, n_features, width=0.5, link=link, random_state=0, dtype=dtype)
    channel, prior = make_channel(link, n_tokens), make_prior(0.5)
    code = channel.encode(y)

    def run(n_iter):
        amp(X, code, channel, prior, damping=0.3, max_iter=n_iter, tol=0.0)

    run(1)
    flat = X.reshape(-1, n_features)
    square = np.eye(n_features, dtype=dtype)
    symmetric = np.cov(np.random.default_rng(0).normal(size=(n_features, 2 * n_features)))
    products, eigen, one, four = [], [], [], []
    for _ in range(repeats):
        # interleaved, so that a change of the machine's speed hits all alike
        products.append(best_of(lambda: (flat @ square, flat.T @ flat), 1)[0])
        eigen.append(best_of(lambda: linalg.eigh(symmetric, driver="evd", check_finite=False), 1)[0])
        one.append(best_of(lambda: run(1), 1)[0])
        four.append(best_of(lambda: run(4), 1)[0])
    iteration = (np.array(four) - np.array(one)) / 3
    bare = np.array(products) + np.array(eigen)
    tracemalloc.start()
    run(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "iteration / (two products + eigh)": float(np.median(iteration) / np.median(bare)),
        "range of the ratio": [float(np.min(iteration / bare)), float(np.max(iteration / bare))],
        "iteration [s]": float(np.median(iteration)),
        "peak extra memory / (X + 20 d^2)": peak / (X.nbytes + 20 * n_features**2 * 8),
    }


def curves(repeats):
    soft, hard = BayesOptimalBound(0.5), BayesOptimalBound(0.5, link="hardmax")
    grid = np.linspace(0.001, 0.25, 256)
    soft.estimation_error(grid[:2])
    start = time.perf_counter()
    hard.estimation_error(0.5)
    first = time.perf_counter() - start
    return {
        "256-point softmax curve [s]": best_of(lambda: soft.estimation_error(grid), repeats)[1],
        "first hardmax point, its averages included [s]": first,
        "one hardmax point [s]": best_of(lambda: hard.estimation_error(0.7), repeats)[1],
    }


def start_up():
    """Import, and the first fit without and with compiled code on disk, in fresh processes."""
    fit = (
        "import time; t = time.perf_counter()\n"
        "from sklearn_aim import AMPAttentionRegressor, make_attention_sequences\n"
        "i = time.perf_counter() - t\n"
        "X, y = make_attention_sequences(500, 2, 40, width=0.5, random_state=0)\n"
        "t = time.perf_counter(); AMPAttentionRegressor(width=0.5, max_iter=400).fit(X, y)\n"
        "print(i, time.perf_counter() - t)"
    )
    results = {}
    with tempfile.TemporaryDirectory() as cache:
        env = dict(os.environ, NUMBA_CACHE_DIR=cache)
        for name in ("cold", "cached", "cached again"):
            out = subprocess.run([sys.executable, "-c", fit], env=env, capture_output=True, text=True, check=True)
            seconds, first = map(float, out.stdout.split())
            results[f"first fit, {name} [s]"] = first
            results["import sklearn_aim [s]"] = min(seconds, results.get("import sklearn_aim [s]", np.inf))
    code = (
        "import time; t = time.perf_counter(); import sklearn.base, sklearn.metrics, numba, scipy.optimize\n"
        "print(time.perf_counter() - t)"
    )
    floor = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    results["import of its dependencies alone [s]"] = min(floor)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes, for a check that all runs")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    repeats = 2 if args.short else 7
    sizes = [(2000, 2, 100)] if args.short else [(8000, 2, 400)]
    results = {"start-up": start_up(), "bounds": curves(repeats)}
    for n, t, d in sizes:
        for link in ("softmax", "hardmax"):
            for dtype in (np.float64, np.float32):
                name = f"AMP {link}, n={n}, T={t}, d={d}, {np.dtype(dtype).name}"
                results[name] = amp_iteration(n, t, d, dtype, link, repeats)
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            shown = ", ".join(f"{v:.3g}" for v in value) if isinstance(value, list) else f"{value:.3g}"
            print(f"    {key:<50s} {shown}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
