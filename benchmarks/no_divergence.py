"""AMP on random problems, none of which may diverge: python benchmarks/no_divergence.py [--problems 200]."""

import argparse
import warnings

import numpy as np

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, estimation_error, make_attention_sequences


def problem(seed):
    """A random setting: d in 30..150, any link, width ratio 0.1..2, alpha 0.1 to 3 times recovery."""
    rng = np.random.default_rng([seed, 2])
    link = str(rng.choice(["identity", "softmax", "hardmax"]))
    tied = bool(rng.integers(2))
    n_tokens = int(rng.integers(1 if link == "identity" and tied else 2, 5))
    d = int(rng.integers(30, 151))
    width = float(rng.uniform(0.1, 2))
    # hardmax never recovers exactly: the scale of the identity link stands in
    scale_link = "identity" if link == "hardmax" else link
    scale = BayesOptimalBound(width, tied=tied, n_tokens=n_tokens, link=scale_link).recovery_threshold()
    alpha = float(np.exp(rng.uniform(np.log(0.1), np.log(3)))) * scale
    return {"link": link, "tied": tied, "width": width}, n_tokens, d, max(2, round(alpha * d * d))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    args = parser.parse_args()
    diverged, unconverged, ratios = [], 0, []
    for seed in range(args.problems):
        model, n_tokens, d, n = problem(seed)
        X, y, S = make_attention_sequences(n, n_tokens, d, random_state=seed, return_interaction=True, **model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            est = AMPAttentionRegressor(**model).fit(X, y)
        error = estimation_error(S, est.interaction_)
        prior = estimation_error(S, model["tied"] * np.sqrt(est.width_ratio_) * np.eye(d))
        unconverged += not est.converged_
        ratios.append(error / prior)
        if not (np.isfinite(error) and error < 1.1 * prior):
            diverged.append((seed, error, prior))
            print(f"seed {seed}: {model}, T={n_tokens}, d={d}, n={n}: error {error:.3f}, prior {prior:.3f}", flush=True)
    print(
        f"{args.problems} problems: {len(diverged)} worse than the prior mean by 10% or not finite, {unconverged} not "
        f"converged (warned), error / prior error: median {np.median(ratios):.3f}, largest {np.max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
