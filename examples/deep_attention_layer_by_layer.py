"""
Deep attention is learned layer by layer, the last layer first
==============================================================

Attention maps of a deep stack show the last layer's alone; those below only act through its input. As data grow, the
last layer is learned first, and each further one at a threshold of its own, until all are recovered exactly. Overlaps
of the layers and test errors of `AMPDeepAttentionRegressor` are printed and drawn beside `DeepBayesOptimalBound`. The
dashed curve is the test error without layer 1: it departs where layer 1 begins to be learned. Three layers take
several minutes, and their bound is less accurate.

    python examples/deep_attention_layer_by_layer.py [--layers 3] [--features 1000] [--seeds 4]
        [--alphas 0.3 0.5 0.8 1.1] [--output FILE.png] [--no-figure]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPDeepAttentionRegressor,
    DeepBayesOptimalBound,
    attention_error,
    cosine_similarity,
    make_deep_attention_sequences,
)
from sklearn_aim.plotting import figure_style

# sphinx_gallery_thumbnail_path = 'images/deep_layers.png'

N_FRESH = 2000
# by the number of layers: d, seeds, sample complexities of message passing and of the bound, and its effort
DEFAULTS = {
    2: {
        "features": 1000,
        "seeds": 4,
        "alphas": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1),
        "curve": (
            0.05,
            0.12,
            0.19,
            0.2,
            0.22,
            *np.arange(25, 70, 5) / 100,
            0.7,
            0.73,
            *np.arange(15, 20) / 20,
            0.98,
            1.6,
        ),
        "effort": 0.1,
    },
    3: {
        "features": 400,
        "seeds": 2,
        "alphas": (0.2, 0.5, 0.8, 1.2, 1.7),
        "curve": (0.1, 0.25, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 2.2),
        "effort": 0.02,
    },
}
# colours that stay apart in print and for the colour-blind
LAYERS = {1: ("#004D7A", "D"), 2: ("#D55E00", "s"), 3: ("#009E73", "o")}


def run_once(alpha, n_layers, n_features, seed):
    """Squared cosines and test error of one teacher's data."""
    n_samples = round(alpha * n_features)
    X, y, weights = make_deep_attention_sequences(
        n_samples + N_FRESH, n_features=n_features, n_layers=n_layers, random_state=seed, return_weights=True
    )
    with warnings.catch_warnings():
        # close to thresholds message passing takes its time
        warnings.simplefilter("ignore", ConvergenceWarning)
        # not the seed of the data: a start drawn by it would be the teacher itself
        est = AMPDeepAttentionRegressor(n_layers, random_state=1000 + seed).fit(X[:n_samples], y[:n_samples])
    error = attention_error(y[n_samples:], est.predict(X[n_samples:]))
    return np.append(cosine_similarity(est, weights) ** 2, error)


def run_bound(n_layers, alphas, effort):
    """Thresholds, overlaps (a row for each alpha), and test errors with and without layer 1."""
    bound = DeepBayesOptimalBound(n_layers, effort=effort)
    started = time.perf_counter()
    thresholds = bound.weak_recovery_thresholds()
    print("learned at all from: " + ", ".join(f"layer {k} at alpha = {v:.4g}" for k, v in thresholds.items()))
    overlap = np.diagonal(bound.overlap(alphas), axis1=1, axis2=2)
    errors = bound.test_error(alphas), bound.test_error(alphas, frozen=(1,))
    names = [f"Q_{k}{k}" for k in range(1, n_layers + 1)]
    print("\nbound\n  alpha  " + "".join(f"{name:>8}" for name in names) + "   test error   layer 1 frozen")
    for alpha, row, error, frozen in zip(alphas, overlap, *errors, strict=True):
        print(f"  {alpha:5.3f}  " + "".join(f"{value:8.4f}" for value in row) + f"{error:13.5f}{frozen:17.5f}")
    print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    return thresholds, overlap, errors


def run_amp(n_layers, alphas, n_features, seeds):
    """Mean and standard deviation over seeds of squared cosines and test error, (n_alphas, n_layers + 1) each."""
    print(f"\nmessage passing, d = {n_features}, {seeds} seeds: mean and standard deviation")
    names = [f"cos^2 layer {k}" for k in range(1, n_layers + 1)]
    print("  alpha  " + "".join(f"{name:>18}" for name in [*names, "test error"]))
    means, spreads = [], []
    for alpha in alphas:
        fits = np.array([run_once(alpha, n_layers, n_features, seed) for seed in range(seeds)])
        means.append(fits.mean(axis=0))
        spreads.append(fits.std(axis=0, ddof=1) if seeds > 1 else np.zeros(n_layers + 1))
        cells = zip(means[-1], spreads[-1], strict=True)
        print(f"  {alpha:5.3f}  " + "".join(f"{mean:10.4f} ±{spread:6.4f}" for mean, spread in cells), flush=True)
    return np.array(means), np.array(spreads)


def draw(n_layers, n_features, seeds, bound, curve, amp, alphas, path):
    """Overlaps, and test errors, against the sample complexity."""
    from matplotlib.figure import Figure

    thresholds, overlap, (error, frozen) = bound
    curve, alphas = np.asarray(curve), np.asarray(alphas)
    if (overlap[-1] == 1).all():
        # a map of two tokens is two equations: from here on there are as many as unknowns
        exact = n_layers / 2
        place = np.searchsorted(curve, exact)
        curve, overlap = np.insert(curve, place, exact), np.insert(overlap, place, 1.0, axis=0)
        error, frozen = np.insert(error, place, 0.0), np.insert(frozen, place, frozen[-1])
    with figure_style(**{"legend.frameon": True}):
        fig = Figure(figsize=(9.2, 4.2), layout="constrained")
        left, right = fig.subplots(1, 2)
        # corners of the curves, where layers begin to be learned and where all are recovered
        ends = {layer: (thresholds[layer], 0.0) for layer in thresholds}
        for layer in range(n_layers, 0, -1):
            colour, marker = LAYERS[layer]
            x, q = np.append(curve, ends[layer][0]), np.append(overlap[:, layer - 1], 0.0)
            order = np.argsort(x, kind="stable")
            style_of = {n_layers: "-", 1: (0, (5, 2))}.get(layer, (0, (1, 1)))
            left.plot(x[order], q[order], color=colour, lw=1.8, ls=style_of)
            left.errorbar(
                alphas,
                amp[0][:, layer - 1],
                amp[1][:, layer - 1],
                fmt=marker,
                color=colour,
                mec="black",
                ms=6.5,
                capsize=3,
            )
        right.plot(curve, frozen, color="0.45", lw=1.8, ls=(0, (5, 2)), label="bound without layer 1")
        right.plot(curve, error, color="black", lw=1.8, label="bound")
        right.errorbar(
            alphas,
            amp[0][:, -1],
            amp[1][:, -1],
            fmt="o",
            mfc="white",
            mec="black",
            ecolor="black",
            capsize=3,
            ms=7,
            label="AMP",
        )
        top = 1.12 * max(error.max(), amp[0][:, -1].max())
        for ax, height in ((left, 1.05), (right, top)):
            for layer, threshold in thresholds.items():
                ax.axvline(threshold, color=LAYERS[layer][0], lw=1, ls=":")
                ax.text(
                    threshold, height, f"layer {layer}", color=LAYERS[layer][0], ha="center", va="bottom", fontsize=8
                )
            ax.set(xlim=(0, max(0.6 * n_layers, 1.03 * alphas.max())), xlabel=r"sample complexity $\alpha = n/d$")
        left.set(ylim=(-0.03, 1.05), ylabel=r"overlap $Q_{\ell\ell}$, squared cosine")
        right.set(ylim=(-0.02 * top, top), ylabel=r"test error $\mathrm{E}\,\|y - \hat y\|_F^2$")
        left.plot([], [], color="black", lw=1.8, label="bound")
        left.errorbar([], [], [], fmt="s", color="black", mfc="white", ms=6.5, capsize=3, label="AMP")
        # above the lines of thresholds
        legends = left.legend(loc="upper left", bbox_to_anchor=(0.0, 0.97)), right.legend(loc="upper right")
        for legend in legends:
            legend.set(zorder=3)
            legend.get_frame().set(facecolor="white", edgecolor="none", alpha=1.0)
        fig.suptitle(
            f"{n_layers} layers of rank one, two tokens, skip strength 1; $d = {n_features}$, {seeds} seeds",
            fontsize=10,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, choices=[2, 3])
    parser.add_argument("--features", type=int, help="d, at least 20 (default 1000; three layers: 400)")
    parser.add_argument("--seeds", type=int, help="teachers (default 4; three layers: 2)")
    parser.add_argument("--alphas", type=float, nargs="+", help="sample complexities of message passing")
    parser.add_argument("--output", type=Path, default=Path("deep_layers.png"))
    parser.add_argument("--no-figure", action="store_true", help="print the tables only")
    args = parser.parse_args()
    preset = DEFAULTS[args.layers]
    n_features = preset["features"] if args.features is None else args.features
    seeds = preset["seeds"] if args.seeds is None else args.seeds
    alphas = tuple(args.alphas or preset["alphas"])
    if n_features < 20 or seeds < 1 or min(alphas) * n_features < 2:
        parser.error("--features must be at least 20, --seeds at least 1, and --alphas leave two sequences")
    print(f"{args.layers} layers of rank one, two tokens, skip strength 1")
    bound = run_bound(args.layers, np.array(preset["curve"]), preset["effort"])
    amp = run_amp(args.layers, alphas, n_features, seeds)
    if args.no_figure:
        return
    try:
        draw(args.layers, n_features, seeds, bound, preset["curve"], amp, alphas, args.output)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print('No figure, since matplotlib is missing: pip install "sklearn-aim[plot]"')
    else:
        print(f"\nfigure: {args.output}")


if __name__ == "__main__":
    main()
