"""
In what order are layers of deep attention learned in time?
===========================================================

Two layers of rank one, skip strength 1: the cosine similarity of each layer's weights with the true ones, over
iterations of message passing and over steps of stochastic gradient descent. Both learn the last layer first. The first
layer acts on the maps through the last one alone, so that its signal is weak until that one is known; gradient descent
then needs tens of times as many steps for it, from more data.

    python examples/deep_attention_in_time.py [--features 500] [--seeds 3] [--alpha 1.2] [--sgd-alpha 15]
        [--steps 2000] [--output FILE.png] [--no-figure]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPDeepAttentionRegressor,
    GDAttentionRegressor,
    cosine_similarity,
    make_deep_attention_sequences,
)
from sklearn_aim.plotting import figure_style

BATCH = 500
LEARNING_RATE = 0.3
N_ITERATIONS = 50
# colours that stay apart in print and for the colour-blind
LAYERS = {2: ("#D55E00", "-", "last layer (2)"), 1: ("#004D7A", (0, (4, 2)), "first layer (1)")}
LEARNED = 0.5


def run_amp(n_features, alpha, seed):
    """Cosines of both layers at the start and after every iteration of message passing, (n_iter + 1, 2)."""
    X, y, weights = make_deep_attention_sequences(
        round(alpha * n_features), n_features=n_features, random_state=seed, return_weights=True
    )
    # not the seed of the data: a start drawn by it would be the teacher itself
    start = np.random.default_rng(1000 + seed).standard_normal((2, n_features))
    est = AMPDeepAttentionRegressor(init=0.01 * start, max_iter=N_ITERATIONS, tol=0)
    with warnings.catch_warnings():
        # as many iterations as asked for
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X, y, callback=lambda state: {"cosine": cosine_similarity(state["weights"], weights)})
    return np.vstack([cosine_similarity(start, weights), est.history_["cosine"]])


def run_sgd(n_features, alpha, steps, seed):
    """Cosines of both layers after every step of gradient descent on minibatches, (steps, 2)."""
    X, y, weights = make_deep_attention_sequences(
        round(alpha * n_features), n_features=n_features, random_state=seed, return_weights=True
    )
    gd = GDAttentionRegressor(
        1,
        n_layers=2,
        scaling="sequence-index",
        solver="sgd",
        learning_rate=LEARNING_RATE,
        momentum=0,
        init_scale=0.3,
        random_state=1000 + seed,
    )
    rng = np.random.default_rng(seed)
    batches = []
    cosines = np.empty((steps, 2))
    for k in range(steps):
        if not batches:
            # another pass over the sequences
            order = rng.permutation(len(X))
            batches = np.array_split(order, max(1, len(order) // BATCH))
        batch = batches.pop()
        # without batch_size, a call is one step
        gd.partial_fit(X[batch], y[batch])
        cosines[k] = cosine_similarity(gd, weights)
    return cosines


def show(title, unit, first, curves):
    """When each layer's cosine first exceeds one half, and where it ends; curves (n_seeds, time, 2)."""
    print(
        f"{title}\n  seed   {unit} until cosine > {LEARNED}: layer 2   layer 1   cosine at the end: layer 2   layer 1"
    )
    for seed, curve in enumerate(curves):
        times = []
        for layer in (1, 0):
            above = np.flatnonzero(curve[:, layer] > LEARNED)
            times.append(f"{above[0] + first}" if len(above) else "-")
        width = len(f"   {unit} until cosine > {LEARNED}: layer 2")
        print(f"  {seed:4d}{times[0]:>{width}}{times[1]:>10}{curve[-1, 1]:30.4f}{curve[-1, 0]:10.4f}")
    print(flush=True)


def draw(amp, sgd, n_features, alphas, path):
    """Cosines in time, message passing and gradient descent side by side."""
    from matplotlib.figure import Figure

    with figure_style():
        fig = Figure(figsize=(9.2, 3.8), layout="constrained")
        left, right = fig.subplots(1, 2, sharey=True)
        for ax, curves, first in ((left, amp, 0), (right, sgd, 1)):
            for layer, (colour, dashes, label) in LAYERS.items():
                for k, curve in enumerate(curves):
                    x = first + np.arange(len(curve))
                    ax.plot(
                        x, curve[:, layer - 1], color=colour, ls=dashes, lw=1.5, alpha=0.85, label=None if k else label
                    )
            ax.set(ylim=(-0.02, 1.04))
            ax.axhline(1 / np.sqrt(n_features), color="0.5", lw=1, ls=":")
        left.set(xlim=(0, amp.shape[1] - 1), xlabel="iteration", ylabel=r"cosine similarity with the true $w_\ell$")
        left.set_title(f"Message passing, $n/d = {alphas[0]:g}$", loc="left")
        right.set(xscale="log", xlim=(1, sgd.shape[1]), xlabel=f"step, minibatches of {BATCH} sequences")
        right.set_title(f"Stochastic gradient descent, $n/d = {alphas[1]:g}$", loc="left")
        left.text(0.98 * amp.shape[1], 0.02 + 1 / np.sqrt(n_features), "chance", color="0.35", ha="right", va="bottom")
        left.legend(loc="center right", title=f"$d = {n_features}$, {len(amp)} seeds")
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=500, help="d, at least 20 (default 500)")
    parser.add_argument("--seeds", type=int, default=3, help="teachers (default 3)")
    parser.add_argument("--alpha", type=float, default=1.2, help="n/d of message passing (default 1.2)")
    parser.add_argument("--sgd-alpha", type=float, default=15.0, help="n/d of gradient descent (default 15)")
    parser.add_argument("--steps", type=int, default=2000, help="of gradient descent (default 2000)")
    parser.add_argument("--output", type=Path, default=Path("deep_in_time.png"))
    parser.add_argument("--no-figure", action="store_true", help="print the tables only")
    args = parser.parse_args()
    if args.features < 20 or args.seeds < 1 or args.steps < 1 or min(args.alpha, args.sgd_alpha) * args.features < 2:
        parser.error("--features must be at least 20, --seeds and --steps at least 1, and n/d leave two sequences")
    print(f"two layers of rank one, two tokens, skip strength 1, d = {args.features}\n")
    started = time.perf_counter()
    amp = np.array([run_amp(args.features, args.alpha, seed) for seed in range(args.seeds)])
    show(f"message passing, n/d = {args.alpha:g}", "iterations", 0, amp)
    sgd = np.array([run_sgd(args.features, args.sgd_alpha, args.steps, seed) for seed in range(args.seeds)])
    show(f"stochastic gradient descent, n/d = {args.sgd_alpha:g}, batches of {BATCH}", "steps", 1, sgd)
    print(f"{time.perf_counter() - started:.0f} s")
    if args.no_figure:
        return
    try:
        draw(amp, sgd, args.features, (args.alpha, args.sgd_alpha), args.output)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print('No figure, since matplotlib is missing: pip install "sklearn-aim[plot]"')
    else:
        print(f"figure: {args.output}")


if __name__ == "__main__":
    main()
