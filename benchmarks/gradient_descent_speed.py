"""Gradient descent against the same model in torch, in one run: python benchmarks/gradient_descent_speed.py [--short].

Needs torch (pip install torch). Every comparison is interleaved and every figure a ratio: gradients against autograd,
one full-batch step, the time to the training loss that the recipe of arXiv 2506.01582 reaches (Adam, rate 0.1, 1000
steps), and memory. --maps FILE adds attention maps of a real head (X and a head's maps under its name): cross-entropy,
key bias, untied, width 32, 300 iterations of L-BFGS.
"""

import argparse
import sys
import time
import tracemalloc
import warnings

import numpy as np
from scipy.optimize import minimize

from sklearn_aim import GDAttentionRegressor, TokenWhitener, make_attention_sequences
from sklearn_aim.algorithms.attention_stack import AttentionStack, Objective
from sklearn_aim.kernels.threads import one_blas_thread


class TorchLayer:
    """One attention layer as one would write it in torch."""

    def __init__(self, x, y, width, tied=True, bias=False, cross_entropy=False):
        import torch

        self.torch, self.x, self.y = torch, torch.tensor(x), torch.tensor(y)
        self.bias, self.cross_entropy, self.tied = bias, cross_entropy, tied
        self.scale = 1 / (x.shape[2] * np.sqrt(width))
        self.eye = torch.eye(x.shape[1], dtype=self.x.dtype)
        self.center = not bias

    def loss(self, factors, b=None):
        torch = self.torch
        queries = self.x @ factors[0]
        keys = queries if self.tied else self.x @ factors[1]
        h = self.scale * queries @ keys.transpose(1, 2)
        if self.center:
            h = h - self.scale * (factors[0] * factors[-1]).sum() * self.eye
        if b is not None:
            h = h + (self.x @ b / np.sqrt(self.x.shape[2]))[:, None, :]
        if self.cross_entropy:
            return -(self.y * torch.log_softmax(h, dim=2)).sum() / len(self.x)
        return ((torch.softmax(h, dim=2) - self.y) ** 2).sum() / len(self.x)

    def gradient(self, factors, b=None):
        leaves = [*factors] + ([] if b is None else [b])
        leaves = [leaf.detach().requires_grad_(True) for leaf in leaves]
        loss = self.loss(leaves[: len(factors)], leaves[-1] if b is not None else None)
        loss.backward()
        return loss.item(), [leaf.grad for leaf in leaves]


def compare_steps(n, T, d, width, dtype, repeats):
    import torch

    X, y = make_attention_sequences(n, T, d, width=width, random_state=0, dtype=dtype)
    stack = AttentionStack(d, width)
    factors = stack.initial(np.random.RandomState(0), 1.0)
    layer = TorchLayer(X, y, width)
    leaf = torch.tensor(np.ascontiguousarray(factors[0].T), dtype=layer.x.dtype)
    ours, theirs, product = [], [], []
    flat, wide = X.reshape(-1, d), factors[0].astype(dtype)
    with one_blas_thread(), Objective(stack, X, y, np.ones(n)) as objective:
        loss, gradient = objective(factors)
        reference, (torch_gradient,) = layer.gradient([leaf])
        for _ in range(repeats):
            # idle threads of the one keep a core busy for a while, at the cost of the other: take turns, with a pause
            for function, times in ((lambda: objective(factors), ours), (lambda: layer.gradient([leaf]), theirs)):
                time.sleep(0.3)
                function()
                for _ in range(5):
                    start = time.perf_counter()
                    function()
                    times.append(time.perf_counter() - start)
    for _ in range(repeats):
        start = time.perf_counter()
        z = flat @ wide.T
        z.T @ flat
        product.append(time.perf_counter() - start)
    difference = np.abs(torch_gradient.numpy().T - gradient[0]).max() / np.abs(gradient).max()
    print(
        f"step n={n} T={T} d={d} r={width} {np.dtype(dtype).name}: ours/torch "
        f"{np.median(ours) / np.median(theirs):.2f}, "
        f"ours/two products {np.median(ours) / np.median(product):.2f}; "
        f"loss agrees to {abs(loss[0] / reference - 1):.0e}, gradient to {difference:.0e}",
        flush=True,
    )


def compare_time_to_loss(alpha, d, steps, dtype):
    import torch

    X, y = make_attention_sequences(round(alpha * d * d), 2, d, width=0.5, random_state=0, dtype=dtype)
    layer = TorchLayer(X, y, d // 2)
    torch.manual_seed(0)
    leaf = torch.randn(d, d // 2, dtype=layer.x.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([leaf], lr=0.1)
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = layer.loss([leaf])
        loss.backward()
        optimizer.step()
    theirs, target = time.perf_counter() - start, layer.loss([leaf]).item()
    GDAttentionRegressor(0.5, max_iter=2, random_state=0).fit(X[:50], y[:50])  # compiled
    start = time.perf_counter()
    adam = GDAttentionRegressor(0.5, solver="adam", max_iter=steps, tol=0, random_state=0).fit(X, y)
    same = time.perf_counter() - start
    full = GDAttentionRegressor(0.5, tol=0, random_state=0)
    # time to the iterate that has the loss: iterations have equal cost
    start = time.perf_counter()
    full.fit(X, y)
    whole, curve = time.perf_counter() - start, full.loss_curve_[0]
    reached = np.flatnonzero(curve <= target)
    ours = whole * reached[0] / (len(curve) - 1) if len(reached) else np.inf
    print(
        f"alpha={alpha:g} d={d} {np.dtype(dtype).name}: torch's {steps} steps of Adam end at loss {target:.2e}; the "
        f"same recipe here {same / theirs:.2f} of its time (loss {adam.best_loss_:.2e}); default settings get there in "
        f"{ours / theirs:.2f} of it ({reached[0] if len(reached) else '-'} iterations)",
        flush=True,
    )


def memory(n, T, d, width, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, T, d), dtype=dtype)
    y = np.full((n, T, T), 1 / T, dtype=dtype)
    GDAttentionRegressor(2, max_iter=1, random_state=0).fit(X[:50, :, :20], y[:50])
    tracemalloc.start()
    start = time.perf_counter()
    GDAttentionRegressor(width, max_iter=2, tol=0, random_state=0).fit(X, y)
    seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    array = n * T * width * X.itemsize
    print(
        f"memory n={n} T={T} d={d} r={width} {np.dtype(dtype).name}: peak beyond X {peak / 2**20:.0f} MiB = "
        f"{peak / X.nbytes:.2f} of X = {peak / array:.2f} arrays of (n T, width); {seconds:.0f} s",
        flush=True,
    )


def compare_maps(path, head, n_train, iterations, width=32):
    import torch

    with np.load(path, allow_pickle=False) as data:
        X, y = data["X"].astype(np.float32), data[head]
    Z = TokenWhitener().fit(X[:n_train]).transform(X)
    parameters = {"tied": False, "fit_bias": True, "loss": "cross_entropy", "random_state": 0}
    GDAttentionRegressor(2, max_iter=1, **parameters).fit(Z[:50, :, :8], y[:50])
    start = time.perf_counter()
    estimator = GDAttentionRegressor(width, max_iter=iterations, tol=0, **parameters).fit(Z[:n_train], y[:n_train])
    ours = time.perf_counter() - start
    layer = TorchLayer(Z[:n_train], y[:n_train], width, tied=False, bias=True, cross_entropy=True)
    d = Z.shape[2]
    shapes = [(d, width), (d, width), (d,)]
    sizes = np.cumsum([np.prod(shape) for shape in shapes])[:-1]

    def function(v):
        pieces = zip(np.split(v, sizes), shapes, strict=True)
        parts = [torch.tensor(piece.reshape(shape), dtype=torch.float32) for piece, shape in pieces]
        loss, gradients = layer.gradient(parts[:2], parts[2])
        return loss, np.concatenate([g.numpy().ravel() for g in gradients]).astype(float)

    v = np.concatenate([np.random.default_rng(0).standard_normal(2 * d * width), np.zeros(d)])
    start = time.perf_counter()
    options = {"maxiter": iterations, "maxfun": 10**9, "ftol": 0, "gtol": 0, "maxcor": 20}
    result = minimize(function, v, jac=True, method="L-BFGS-B", options=options)
    theirs = (time.perf_counter() - start) * iterations / result.nit
    print(
        f"maps {head} n={n_train}: {estimator.n_iter_} iterations here in {ours / theirs:.2f} of torch's time for as "
        f"many; R^2 of the last 300 sequences {estimator.score(Z[-300:], y[-300:]):.5f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, for a check that all runs")
    parser.add_argument("--maps", help="file of a real head's attention maps")
    parser.add_argument("--head", nargs="+", default=["y_typ"])
    parser.add_argument("--memory-only", action="store_true")
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not args.memory_only:
            try:
                import torch
            except ImportError:
                sys.exit("torch is needed for the comparison: pip install torch")
            torch.set_num_threads(2)
            for dtype in (np.float32, np.float64):
                for n, T, d, width in [(400, 2, 50, 25)] if args.short else [(4000, 2, 200, 100), (4000, 4, 200, 100)]:
                    compare_steps(n, T, d, width, dtype, 2 if args.short else 8)
            for alpha in (0.1,) if args.short else (0.05, 0.1, 0.2):
                compare_time_to_loss(alpha, 50 if args.short else 200, 50 if args.short else 1000, np.float32)
            if args.maps:
                for head in args.head:
                    for n_train in (600, 1200):
                        compare_maps(args.maps, head, n_train, 20 if args.short else 300)
        for dtype in (np.float32, np.float64):
            memory(*((2000, 2, 100, 50) if args.short else (40000, 2, 1000, 500)), dtype)


if __name__ == "__main__":
    main()
