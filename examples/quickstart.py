"""
Learn one attention layer, and see how well it could be learned
===============================================================

Attention maps of a random softmax layer (two tokens, tied keys and queries, width half the number of features) are
learned from more and more sequences. At each sample size the error of `AMPAttentionRegressor` is printed and
drawn beside `BayesOptimalBound`, the smallest average error that any method can reach.

    python examples/quickstart.py [--output quickstart.png] [--no-figure]
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    attention_error,
    estimation_error,
    make_attention_sequences,
)
from sklearn_aim.plotting import figure_style

N_FEATURES = 100
N_TOKENS = 2
WIDTH_RATIO = 0.5
SAMPLE_COMPLEXITIES = (0.02, 0.04, 0.06, 0.08, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25)
SEEDS = (0, 1, 2)
N_FRESH = 2000

# sample complexities whose predictions are drawn, and how: colours that stay apart in print and for the colour-blind
HIGHLIGHTS = {0.02: ("#56B4E9", "o"), 0.10: ("#D55E00", "s"), 0.15: ("#004D7A", "D")}


def run_once(alpha, seed):
    """Fit one teacher's data at one sample size; errors, and predictions on fresh sequences."""
    n_samples = round(alpha * N_FEATURES**2)
    X, y, S = make_attention_sequences(
        n_samples + N_FRESH, N_TOKENS, N_FEATURES, width=WIDTH_RATIO, random_state=seed, return_interaction=True
    )
    X_train, y_train, X_fresh, y_fresh = X[:n_samples], y[:n_samples], X[n_samples:], y[n_samples:]
    est = AMPAttentionRegressor(width=WIDTH_RATIO)
    with warnings.catch_warnings():
        # said in the table instead
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X_train, y_train)
    prediction, spread = est.predict(X_fresh, return_std=True)
    return {
        "n_samples": n_samples,
        "converged": est.converged_,
        "estimation_error": estimation_error(S, est.interaction_),
        "test_error": attention_error(y_fresh, prediction),
        "fresh": (y_fresh, prediction, spread),
    }


def run():
    """All fits, and the bound at the same sample complexities."""
    bound = BayesOptimalBound(WIDTH_RATIO, n_tokens=N_TOKENS)
    alphas = np.array(SAMPLE_COMPLEXITIES)
    limits = np.column_stack([bound.estimation_error(alphas), bound.test_error(alphas)])
    rows = []
    print(f"{N_TOKENS} tokens, d = {N_FEATURES}, width ratio {WIDTH_RATIO}; mean and standard deviation, ", end="")
    print(f"{len(SEEDS)} seeds; recovery at alpha = {bound.recovery_threshold():g}\n")
    print(f"{'':15}  {'estimation error':>24}  {'test error':>25}")
    print(f"{'n':>5}  {'alpha':>8}  {'AMP':>15}  {'bound':>7}  {'AMP':>16}  {'bound':>7}")
    # matrices of this size gain little from BLAS threads, and lose much where the machine is busy
    with threadpool_limits(1, user_api="blas"):
        for alpha, limit in zip(SAMPLE_COMPLEXITIES, limits, strict=True):
            fits = [run_once(alpha, seed) for seed in SEEDS]
            rows.append(fits)
            cells = [f"{fits[0]['n_samples']:5d}  {alpha:8.3f}"]
            for name, best in zip(("estimation_error", "test_error"), limit, strict=True):
                errors = [fit[name] for fit in fits]
                cells.append(f"{np.mean(errors):8.4f} ±{np.std(errors, ddof=1):6.4f}  {best:7.4f}")
            mark = "" if all(fit["converged"] for fit in fits) else "  *"
            print("  ".join(cells) + mark, flush=True)
    if not all(fit["converged"] for fits in rows for fit in fits):
        print("\n* a fit stopped before it had settled; its best iterate is used")
    return bound, rows


def draw(bound, rows, path):
    """One figure: errors beside the bound, and predictions on fresh sequences at three sample sizes."""
    from matplotlib.figure import Figure

    with figure_style():
        fig = Figure(figsize=(7.2, 6.4), layout="constrained")
        fig.get_layout_engine().set(hspace=0.07)
        panels = fig.subplot_mosaic([["errors"] * 3, list(HIGHLIGHTS)], height_ratios=(1.35, 1))
        draw_errors(panels["errors"], bound, rows)
        draw_predictions([panels[alpha] for alpha in HIGHLIGHTS], rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def draw_errors(ax, bound, rows):
    threshold = bound.recovery_threshold()
    # a node at the threshold, where the curve has a corner
    alphas = np.sort(np.append(np.linspace(0, 1.04 * max(SAMPLE_COMPLEXITIES), 400), threshold))
    ax.plot(
        alphas, bound.estimation_error(alphas), color="black", lw=1.8, label="Bayes-optimal bound ($d \\to \\infty$)"
    )
    ax.plot([threshold, threshold], [-0.03, 0.6], color="0.4", lw=1.2, ls=(0, (4, 3)))
    ax.text(threshold, 0.62, f"exact recovery\n$\\alpha = {threshold:g}$", color="0.3", ha="center", va="bottom")
    means, spreads = means_and_ranges(rows)
    common = {"ms": 7, "mec": "black", "ecolor": "black", "capsize": 3, "lw": 1.2, "zorder": 3}
    plain = [k for k, alpha in enumerate(SAMPLE_COMPLEXITIES) if alpha not in HIGHLIGHTS]
    ax.errorbar(
        np.array(SAMPLE_COMPLEXITIES)[plain],
        means[plain],
        spreads[:, plain],
        fmt="o",
        mfc="white",
        label=f"AMP, $d = {N_FEATURES}$, mean and range of {len(SEEDS)} seeds",
        **common,
    )
    for alpha, (colour, marker) in HIGHLIGHTS.items():
        k = SAMPLE_COMPLEXITIES.index(alpha)
        ax.errorbar(alpha, means[k], spreads[:, [k]], fmt=marker, mfc=colour, **common)
    ax.set(
        xlim=(0, alphas[-1]),
        ylim=(-0.03, 1.05),
        xlabel=r"sample complexity $\alpha = n/d^2$",
        ylabel=r"estimation error $\|S - \hat S\|_F^2/d$",
    )
    ax.set_title(f"One softmax layer, {N_TOKENS} tokens, tied, width ratio $r/d = {WIDTH_RATIO}$", loc="left")
    ax.legend(loc="upper right")


def means_and_ranges(rows):
    """Mean estimation error over seeds, and its distance to the least and to the largest."""
    errors = np.array([[fit["estimation_error"] for fit in fits] for fits in rows])
    means = errors.mean(axis=1)
    return means, np.array([means - errors.min(axis=1), errors.max(axis=1) - means])


def draw_predictions(axes, rows):
    for ax, (alpha, (colour, marker)) in zip(axes, HIGHLIGHTS.items(), strict=True):
        fit = rows[SAMPLE_COMPLEXITIES.index(alpha)][0]
        y, prediction, spread = (values[:60, 0, 1] for values in fit["fresh"])
        ax.plot([0, 1], [0, 1], color="0.45", lw=1, ls=(0, (4, 3)), zorder=1)
        ax.errorbar(y, prediction, spread, fmt=marker, ms=4.5, mfc=colour, mec="black", mew=0.5, ecolor="0.65", lw=0.8)
        ax.set_title(f"$\\alpha = {alpha:g}$ ($n = {fit['n_samples']}$)")
        ax.set(aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)
    axes[0].set_ylabel("predicted, $\\pm$ 1 posterior s.d.")
    axes[1].set_xlabel("true attention weight $y_{12}$ of fresh sequences")


def main():
    parser = argparse.ArgumentParser(description="AMP on attention maps, beside the Bayes-optimal bound.")
    parser.add_argument("--output", type=Path, default=Path("quickstart.png"), help="where the figure goes")
    parser.add_argument("--no-figure", action="store_true", help="print the table only")
    options = parser.parse_args()
    bound, rows = run()
    if options.no_figure:
        return
    try:
        draw(bound, rows, options.output)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print('No figure, since matplotlib is missing: pip install "sklearn-aim[plot]"')
    else:
        print(f"figure: {options.output}")


if __name__ == "__main__":
    main()
