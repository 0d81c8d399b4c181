"""Where gradient descent ends: python benchmarks/gradient_descent.py [published starts init layers] [--short].

published   the recipe of arXiv 2506.01582 (Adam, rate 0.1, 1000 full-batch steps, d=200, width ratio 0.5) beside its
            published errors, one run and the mean of 32
starts      converged L-BFGS: one run, the mean of 32, and that mean extrapolated to infinitely many, beside the bound
            and beside AMP on the same data
init        the standard deviation of the starts' entries
layers      two layers of rank one (arXiv 2502.00901): the second is learned first
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    estimation_error,
    make_attention_sequences,
    make_deep_attention_sequences,
)

# tokens, alpha: error of one run and its standard deviation, of the mean of 32 and its own (data of arXiv 2506.01582)
PUBLISHED = {
    (2, 0.0505): (1.3014, 0.0226, 0.7810, 0.0148),
    (2, 0.1030): (0.8238, 0.0287, 0.4321, 0.0122),
    (2, 0.1471): (0.3983, 0.0146, 0.1916, 0.0043),
    (4, 0.01736): (1.0638, 0.0251, 0.5918, 0.0147),
    (4, 0.02962): (0.5028, 0.0125, 0.2568, 0.0047),
    (4, 0.04229): (0.1124, 0.0094, 0.0479, 0.0030),
    (2, 0.2101): (0.0439, 0.0049, 0.0154, 0.0010),
    (2, 0.3000): (7.2e-9, 8.1e-9, 3.0e-9, 2.3e-9),
}


def teacher(alpha, n_tokens, n_features, seed, dtype=np.float64):
    return make_attention_sequences(
        round(alpha * n_features**2),
        n_tokens,
        n_features,
        width=0.5,
        random_state=seed,
        dtype=dtype,
        return_interaction=True,
    )


def errors(estimator, S):
    """Of one run on average, of their mean, and of the mean of infinitely many (exact in expectation)."""
    count = len(estimator.interactions_)
    one = np.mean([estimation_error(S, each) for each in estimator.interactions_])
    mean = estimation_error(S, estimator.interactions_.mean(axis=0))
    return one, mean, mean - (one - mean) / (count - 1) if count > 1 else np.nan


def published(short):
    n_init, seeds, cases = (2, 1, [(4, 0.04229)]) if short else (8, 4, list(PUBLISHED))
    print(
        f"published recipe, d=200, float32, {n_init} runs on each of {seeds} teachers; mean of 32: limit plus "
        "spread/32; distance in published standard deviations"
    )
    for n_tokens, alpha in cases:
        start = time.perf_counter()
        rows = []
        for seed in range(seeds):
            X, y, S = teacher(alpha, n_tokens, 200, seed, np.float32)
            estimator = GDAttentionRegressor(0.5, solver="adam", tol=0, n_init=n_init, random_state=seed)
            rows.append(errors(estimator.fit(X, y), S))
        one, mean, limit = np.mean(rows, axis=0)
        mean = limit + (mean - limit) * n_init / 32
        single, spread, average, average_spread = PUBLISHED[n_tokens, alpha]
        print(
            f"  T={n_tokens} alpha={alpha:<7g} one run {one:.4g} (published {single:g}, {(one - single) / spread:+.1f})"
            f"   mean of 32 {mean:.4g} (published {average:g}, {(mean - average) / average_spread:+.1f})"
            f"   {time.perf_counter() - start:.0f} s",
            flush=True,
        )


def starts(short):
    d, n_init, seeds = (50, 8, 2) if short else (200, 32, 3)
    print(f"converged L-BFGS, T=2, d={d}, {n_init} starts, mean of {seeds} teachers; in brackets against the bound")
    for loss, tol, n_refreshes in (("log_ratio", 1e-4, 0), ("log_ratio", 1e-3, 5), ("squared_error", 3e-4, 0)):
        for alpha in (0.05, 0.1):
            start = time.perf_counter()
            rows = []
            for seed in range(seeds):
                X, y, S = teacher(alpha, 2, d, seed)
                estimator = GDAttentionRegressor(
                    0.5, loss=loss, tol=tol, n_init=n_init, n_refreshes=n_refreshes, random_state=seed
                )
                row = errors(estimator.fit(X, y), S)
                amp = AMPAttentionRegressor(0.5).fit(X, y)
                rows.append((*row, (row[0] - row[1]) * n_init / (n_init - 1), estimation_error(S, amp.interaction_)))
            bound = BayesOptimalBound(0.5).estimation_error(alpha)
            one, mean, limit, spread, amp = np.mean(rows, axis=0)
            print(
                f"  {loss:13s} refreshes {n_refreshes} alpha={alpha:<4g} bound {bound:.4f}"
                f"  AMP {amp:.4f} ({amp / bound - 1:+.1%})"
                f"  one run {one:.4f}  mean of {n_init} {mean:.4f} ({mean / bound - 1:+.1%})"
                f"  extrapolated {limit:.4f} ({limit / bound - 1:+.1%}, {limit / amp - 1:+.1%} against AMP)"
                f"  spread {spread:.4f}  {time.perf_counter() - start:.0f} s",
                flush=True,
            )


def init(short):
    d, n_init, seeds = (50, 8, 2) if short else (100, 32, 6)
    print(f"init_scale, log-ratio loss, T=2, d={d}, {n_init} starts, mean of {seeds} teachers")
    for alpha in (0.05, 0.1):
        print(f"  alpha={alpha:g}, bound {BayesOptimalBound(0.5).estimation_error(alpha):.4f}")
        for scale in (0.1, 0.3, 0.6, 0.8, 1.0, 1.2, 1.5):
            rows = []
            for seed in range(seeds):
                X, y, S = teacher(alpha, 2, d, seed)
                estimator = GDAttentionRegressor(
                    0.5, loss="log_ratio", tol=1e-4, n_init=n_init, init_scale=scale, random_state=seed
                )
                rows.append(errors(estimator.fit(X, y), S))
            one, mean, limit = np.mean(rows, axis=0)
            print(
                f"    init_scale={scale:<4g} one run {one:.4f}  mean of {n_init} {mean:.4f}  extrapolated {limit:.4f}",
                flush=True,
            )


def layers(short):
    d, alpha, seeds, epochs = (100, 15, 2, 60) if short else (500, 15, 8, 500)
    print(f"two layers of rank one, T=2, skip 1, d={d}, alpha={alpha}, sgd, batches of {2 * d // 5}")
    for seed in range(seeds):
        X, y, weights = make_deep_attention_sequences(alpha * d, 2, d, random_state=seed, return_weights=True)
        truth = np.array(weights)[:, :, 0]
        estimator = GDAttentionRegressor(
            1,
            n_layers=2,
            scaling="sequence-index",
            solver="sgd",
            momentum=0.0,
            learning_rate=0.3,
            batch_size=2 * d // 5,
            random_state=seed,
        )
        cosines = []
        for _ in range(epochs):
            estimator.partial_fit(X, y)
            learned = estimator.W_[:, :, 0]
            norms = np.linalg.norm(learned, axis=1) * np.linalg.norm(truth, axis=1)
            cosines.append(np.abs(np.sum(learned * truth, axis=1)) / norms)
        cosines = np.array(cosines)
        above = [np.flatnonzero(c > 0.5) for c in cosines.T]
        when = [f"{w[0] + 1:3d}" if len(w) else "  -" for w in above]
        print(
            f"  seed {seed}: cosine above 0.5 after epoch {when[1]} (layer 2), {when[0]} (layer 1); at the end "
            f"{cosines[-1, 1]:.3f}, {cosines[-1, 0]:.3f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"published": published, "starts": starts, "init": init, "layers": layers}
    parser.add_argument("parts", nargs="*", metavar="part", help="default: all")
    parser.add_argument("--short", action="store_true", help="small sizes, for a check that all runs")
    args = parser.parse_args()
    unknown = set(args.parts) - set(parts)
    if unknown:
        parser.error(f"no such part: {sorted(unknown)}")
    with warnings.catch_warnings():
        # Adam's 1000 steps stop short on purpose
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name in args.parts or parts:
            parts[name](args.short)


if __name__ == "__main__":
    main()
