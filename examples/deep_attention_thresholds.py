"""
When do layers of deep attention begin to be learned?
=====================================================

The weak-recovery thresholds of two layers of rank one (two tokens) against the skip strength c, from
`DeepBayesOptimalBound`. They differ from those that arXiv:2502.00901 reports, which are printed and drawn beside them.
Two identities decide:

1. For c -> infinity the second layer sees its tokens as they are, and the map shows z_2 z_2^T. With u = z_2 known up
   to its sign, E||u u^T - I||_F^2 = T (T + 1) = 6, so that the threshold of layer 2 must tend to 1/6.
2. For the posterior of z_1, z_2 given a map, and for nothing else, E||g_l||^2 = E g_l.(z_l - omega_l)/V_l. Both sides
   are averaged over drawn data, z from the prior and omega about it, each with its standard error.

    python examples/deep_attention_thresholds.py [--zero] [--sequences 200000] [--output FILE.png] [--no-figure]
"""

import argparse
import time
from pathlib import Path

import numpy as np

from sklearn_aim import DeepBayesOptimalBound
from sklearn_aim.channels.deep import DeepChannel
from sklearn_aim.plotting import figure_style

SKIPS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
# arXiv:2502.00901, by skip strength: layer 1, layer 2
PUBLISHED = {0.5: (0.755, 0.186), 1.0: (0.794, 0.144), 2.0: (0.513, 0.112), 4.0: (0.196, 0.083)}
LIMIT = 1 / 6
EFFORT = 0.25
# overlaps of both layers at which the identity is tested
OVERLAPS = ((0.0, 0.5), (0.3, 0.9))
COLOURS = {1: "#004D7A", 2: "#D55E00"}
MARKERS = {1: "D", 2: "s"}


def run_thresholds(skips):
    """Thresholds and errors, (n_skips, 2) each, layer 1 first."""
    print("weak-recovery thresholds n/d, two layers, two tokens, numerical errors; published: arXiv:2502.00901\n")
    print(f"{'':6}{'layer 2':^32}  {'layer 1':^32}")
    print(f"{'c':>6}{'here':>20}{'published':>12}{'here':>22}{'published':>12}")
    values, errors = [], []
    for skip in skips:
        started = time.perf_counter()
        found, error = DeepBayesOptimalBound(2, skip, effort=EFFORT).weak_recovery_thresholds(return_error=True)
        values.append([found[1], found[2]])
        errors.append([error[1], error[2]])
        published = [f"{value:.3f}" for value in PUBLISHED.get(skip, ())] or ["", ""]
        print(
            f"{skip:6g}{found[2]:11.5f} ±{error[2]:.5f}{published[1]:>12}{found[1]:13.4f} ±{error[1]:.4f}"
            f"{published[0]:>14}   ({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
    return np.array(values), np.array(errors)


def show_limit():
    """Identity 1: large skip strengths."""
    print("\n1. layer 2 from drawn maps; at large skip strength it must tend to 1/6 = 0.16667")
    rng = np.random.default_rng(0)
    for skip in (1.0, 4.0, 30.0, 1000.0):
        channel = DeepChannel(2, 2, skip=skip)
        z = rng.standard_normal((200000, 2, 2))
        u = channel.output(z)[0]
        M = channel.posterior(u, np.zeros_like(z), np.eye(2)).second[:, 1, :, 1]
        squares = np.sum((M - np.eye(2)) ** 2, axis=(1, 2))
        mean, error = squares.mean(), squares.std() / np.sqrt(len(z))
        print(f"   c = {skip:4g}: 1/E||E[z_2 z_2^T|y] - I||^2 = {1 / mean:.4f} ± {error / mean**2:.4f}")


def show_identity(n):
    """Identity 2: both sides, from drawn data."""
    print(
        f"\n2. E||g_l||^2 and E g_l.(z_l - omega_l)/V_l, {n} drawn sequences, c = 1; standard error of the difference"
    )
    channel, rng = DeepChannel(2, 2), np.random.default_rng(0)
    print("   Q_11  Q_22   layer    E||g||^2   E g.(z-omega)/V   difference")
    for overlap in OVERLAPS:
        overlap = np.array(overlap)
        variance = 1 - overlap
        z, noise = rng.standard_normal((2, n, 2, 2))
        omega = overlap[:, None] * z + np.sqrt(overlap * variance)[:, None] * noise
        posterior = channel.posterior(channel.output(z)[0], omega, np.diag(variance))
        g = (posterior.mean - omega) / variance[:, None]
        left = np.sum(g * g, axis=2)
        right = np.sum(g * (z - omega), axis=2) / variance
        for layer in (1, 0):
            if overlap[layer] == 0:
                # g vanishes, since signs are not known
                continue
            a, b = left[:, layer], right[:, layer]
            print(
                f"   {overlap[0]:4.2f}  {overlap[1]:4.2f}     {layer + 1}   {a.mean():11.4f}{b.mean():18.4f}"
                f"{(a - b).mean():12.4f} ± {(a - b).std() / np.sqrt(n):.4f}"
            )


def draw(skips, values, errors, path):
    """Both thresholds against the skip strength, and the published ones."""
    from matplotlib.figure import Figure

    with figure_style():
        fig = Figure(figsize=(9.2, 4.0), layout="constrained")
        for ax, layer in zip(fig.subplots(1, 2), (2, 1), strict=True):
            ax.errorbar(
                skips,
                values[:, layer - 1],
                errors[:, layer - 1],
                fmt=MARKERS[layer] + "-",
                color=COLOURS[layer],
                mec="black",
                ms=6.5,
                capsize=3,
                lw=1.8,
                label="Bayes-optimal bound",
            )
            published = [pair[layer - 1] for pair in PUBLISHED.values()]
            ax.plot(
                list(PUBLISHED),
                published,
                "x:",
                color="0.4",
                mew=1.8,
                ms=8,
                lw=1.2,
                label="published, arXiv:2502.00901",
            )
            if layer == 2:
                ax.axhline(LIMIT, color="black", lw=1.2, ls=(0, (4, 3)))
                ax.text(4.05, LIMIT - 0.006, r"$c \to \infty$: 1/6, exact", ha="right", va="top")
            top = 1.25 * max(values[:, layer - 1].max(), max(published))
            ax.set(xlim=(0, 4.15), ylim=(0, top), xlabel="skip strength $c$")
            ax.set_ylabel(r"threshold, sample complexity $n/d$")
            ax.set_title(
                "last layer (2), learned first" if layer == 2 else "first layer (1), learned second", loc="left"
            )
            ax.legend(loc="lower left")
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", action="store_true", help="also c = 0, which is slower and less accurate")
    parser.add_argument("--sequences", type=int, default=200000, help="drawn for identity 2 (default 200000)")
    parser.add_argument("--output", type=Path, default=Path("deep_thresholds.png"))
    parser.add_argument("--no-figure", action="store_true", help="print the tables only")
    args = parser.parse_args()
    if args.sequences < 2:
        parser.error("--sequences must be at least 2")
    skips = (0.0, *SKIPS) if args.zero else SKIPS
    values, errors = run_thresholds(skips)
    show_limit()
    show_identity(args.sequences)
    if args.no_figure:
        return
    try:
        draw(skips, values, errors, args.output)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print('\nNo figure, since matplotlib is missing: pip install "sklearn-aim[plot]"')
    else:
        print(f"\nfigure: {args.output}")


if __name__ == "__main__":
    main()
