"""
Gradient descent reaches the bound, on average
==============================================

A run of gradient descent that fits all attention maps ends at twice the error that is possible, about: it is like one
draw from the posterior. The mean of the interactions that many runs find comes close to the posterior mean, the best
estimate there is: within a few per cent far from recovery, ten to twenty near it, where runs are no fair draws (the
parameter `n_refreshes` makes them fairer, at several times the cost: docs/gradient_descent.md). At each
sample size the error of one run, of the mean of 4 and of 32, and of message passing is printed and drawn beside the
Bayes-optimal bound; on the right, the error of the mean against 1/runs, which is a straight line to its limit.

    python examples/gradient_descent_reaches_the_bound.py [--output FILE.png] [--features 100] [--seeds 2]
        [--loss log_ratio] [--no-figure]
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    estimation_error,
    make_attention_sequences,
)
from sklearn_aim.plotting import figure_style

WIDTH_RATIO = 0.5
SAMPLE_COMPLEXITIES = (0.02, 0.05, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2)
N_INIT = 32
MAX_ITER = 300
SHOWN = (1, 4, 32)
# sample complexities whose averages are followed on the right
FOLLOWED = {0.05: ("#D55E00", "s"), 0.1: ("#004D7A", "D")}


def run_once(alpha, n_features, seed, loss):
    """Errors on one teacher's data: of means of 1, 2, 4, ... runs, of their limit, and of message passing."""
    X, y, S = make_attention_sequences(
        round(alpha * n_features**2), 2, n_features, width=WIDTH_RATIO, random_state=seed, return_interaction=True
    )
    gd = GDAttentionRegressor(WIDTH_RATIO, loss=loss, n_init=N_INIT, max_iter=MAX_ITER, random_state=seed)
    amp = AMPAttentionRegressor(WIDTH_RATIO)
    with warnings.catch_warnings():
        # close to recovery both take their time
        warnings.simplefilter("ignore", ConvergenceWarning)
        gd.fit(X, y)
        amp.fit(X, y)
    means = {}
    size = 1
    while size <= N_INIT:
        groups = gd.interactions_.reshape(N_INIT // size, size, n_features, n_features).mean(axis=1)
        means[size] = np.mean([estimation_error(S, group) for group in groups])
        size *= 2
    return {
        "means": means,
        # the error of a mean of m runs is that of the limit plus spread/m, exactly
        "limit": means[N_INIT] - (means[1] - means[N_INIT]) / (N_INIT - 1),
        "amp": estimation_error(S, amp.interaction_),
    }


def run(n_features, seeds, loss):
    """All fits."""
    bound = BayesOptimalBound(WIDTH_RATIO)
    print(f"two tokens, d = {n_features}, width ratio {WIDTH_RATIO}, {seeds} teachers, loss {loss}")
    print("estimation error of means of runs of gradient descent, of their limit, of AMP, and the bound\n")
    print("  alpha  " + "".join(f"{f'{m} run' + 's' * (m > 1):>9}" for m in SHOWN) + "    limit      AMP    bound")
    table = {}
    for alpha in SAMPLE_COMPLEXITIES:
        fits = [run_once(alpha, n_features, seed, loss) for seed in range(seeds)]
        table[alpha] = {
            "means": {m: np.mean([fit["means"][m] for fit in fits]) for m in fits[0]["means"]},
            "limit": np.mean([fit["limit"] for fit in fits]),
            "amp": np.mean([fit["amp"] for fit in fits]),
            "bound": float(bound.estimation_error(alpha)),
        }
        row = table[alpha]
        cells = [*(row["means"][m] for m in SHOWN), row["limit"], row["amp"], row["bound"]]
        print(f"  {alpha:5.3f}  " + "".join(f"{cell:9.4f}" for cell in cells), flush=True)
    return bound, table


def draw(bound, table, n_features, path):
    """Errors against the sample complexity, and against one over the number of runs."""
    from matplotlib.figure import Figure

    with figure_style():
        fig = Figure(figsize=(9.2, 4.2), layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=(1.35, 1))
        draw_errors(left, bound, table, n_features)
        draw_limits(right, table)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def draw_errors(ax, bound, table, n_features):
    alphas = np.array(list(table))
    threshold = bound.recovery_threshold()
    grid = np.sort(np.append(np.linspace(0, 1.03 * alphas.max(), 400), threshold))
    curve = bound.estimation_error(grid)
    ax.plot(grid, 2 * curve, color="0.55", lw=1.3, ls=(0, (4, 3)), label="twice the bound")
    ax.plot(grid, curve, color="black", lw=1.8, label="Bayes-optimal bound")
    for size, colour, marker in zip(SHOWN, ("#CC79A7", "#E69F00", "#009E73"), ("^", "s", "o"), strict=True):
        label = "one run" if size == 1 else f"mean of {size} runs"
        errors = [row["means"][size] for row in table.values()]
        ax.plot(alphas, errors, marker, color=colour, mec="black", ms=7, label=label)
    ax.plot(alphas, [row["amp"] for row in table.values()], "x", color="#0072B2", mew=2, ms=8, label="message passing")
    ax.set(
        xlim=(0, grid[-1]),
        ylim=(-0.05, 2.05),
        xlabel=r"sample complexity $\alpha = n/d^2$",
        ylabel=r"estimation error $\|S - \hat S\|_F^2/d$",
    )
    ax.set_title(f"Gradient descent, $d = {n_features}$, two tokens, $r/d = {WIDTH_RATIO}$", loc="left")
    ax.legend(loc="upper right")


def draw_limits(ax, table):
    for alpha, (colour, marker) in FOLLOWED.items():
        row = table[alpha]
        inverse = 1 / np.array(list(row["means"]))
        ax.plot(
            inverse, list(row["means"].values()), marker, color=colour, mec="black", ms=6, label=f"$\\alpha = {alpha}$"
        )
        slope = (row["means"][N_INIT] - row["limit"]) * N_INIT
        ax.plot([0, 1], [row["limit"], row["limit"] + slope], color=colour, lw=1.2)
        ax.plot([0, 1], [row["bound"]] * 2, color=colour, lw=1.2, ls=(0, (4, 3)))
        ax.text(0.99, row["bound"] - 0.02, "bound", color=colour, ha="right", va="top", fontsize=9)
    ax.set(xlim=(-0.02, 1.03), ylim=(0, None), xlabel="1 / runs in the mean")
    ax.set_title("Spread between runs averages out", loc="left")
    ax.legend(loc="upper left")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gradient_descent.png"))
    parser.add_argument("--features", type=int, default=100, help="d, at least 10 (default 100)")
    parser.add_argument("--seeds", type=int, default=2, help="teachers (default 2)")
    losses = ["log_ratio", "squared_error", "cross_entropy"]
    parser.add_argument("--loss", default="log_ratio", choices=losses, help="squared_error is the paper's, and slower")
    parser.add_argument("--no-figure", action="store_true")
    args = parser.parse_args()
    if args.features < 10 or args.seeds < 1:
        parser.error("--features must be at least 10, --seeds at least 1")
    bound, table = run(args.features, args.seeds, args.loss)
    if not args.no_figure:
        draw(bound, table, args.features, args.output)
        print(f"\nfigure: {args.output}")


if __name__ == "__main__":
    main()
