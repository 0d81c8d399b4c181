"""Attention maps of a real head: gradient descent and message passing behind a whitener, beside simple baselines.

python benchmarks/real_maps.py FILE.npz [--head y_typ] [--train 1200]: FILE holds X (n, T, d) and attention maps
(n, T, T) under the name of the head; the last 300 sequences are held out.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.pipeline import Pipeline, make_pipeline

from sklearn_aim import AMPAttentionRegressor, GDAttentionRegressor, PositionMeanRegressor, TokenWhitener


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--head", nargs="+", default=["y_typ", "y_sym"])
    parser.add_argument("--train", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--ridge", type=float, default=1.0, help="of the whitener")
    parser.add_argument("--models", nargs="+", default=[""], help="those whose names hold one of these")
    args = parser.parse_args()
    with np.load(args.file, allow_pickle=False) as data:
        X = data["X"].astype(np.float32)
        maps = {head: data[head] for head in args.head}
    gradient_descent = {"tied": False, "fit_bias": True, "loss": "log_ratio", "tol": 1e-4, "random_state": 0}
    message_passing = {"tied": False, "fit_bias": True, "noise": "estimate"}
    models = {
        "position mean": PositionMeanRegressor(),
        "linear (ridge), any rank": AMPAttentionRegressor(
            solver="linear", whiten=args.ridge, **message_passing | {"noise": 0.0}
        ),
        "GD, exact whitening": make_pipeline(
            TokenWhitener(), GDAttentionRegressor(args.width, max_iter=500, **gradient_descent)
        ),
        "GD, recommended": make_pipeline(
            TokenWhitener(ridge=args.ridge),
            GDAttentionRegressor(args.width, init_scale=0.1, weight_decay=1.0, max_iter=500, **gradient_descent),
        ),
        "AMP, exact whitening": AMPAttentionRegressor(args.width, whiten=0.0, max_iter=100, **message_passing),
        "AMP": AMPAttentionRegressor(args.width, whiten=args.ridge, max_iter=100, **message_passing),
        "annealed, width found": AMPAttentionRegressor(
            "auto", solver="annealed", whiten=args.ridge, **message_passing | {"noise": 0.0}
        ),
    }
    models = {name: model for name, model in models.items() if any(part in name for part in args.models)}
    for head, y in maps.items():
        for n in args.train:
            for name, model in models.items():
                start = time.perf_counter()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    model.fit(X[:n], y[:n])
                seconds = time.perf_counter() - start
                predicted = model.predict(X[-300:])
                last = model[-1] if isinstance(model, Pipeline) else model
                notes = [f"{name} {getattr(last, name):.0f}" for name in ("width_", "n_iter_") if hasattr(last, name)]
                coverage = getattr(last, "diagnostics_", {}).get("coverage")
                notes += [] if coverage is None else [f"coverage {coverage:.3f}"]
                notes += ["not converged"] if caught else []
                print(
                    f"{head}  n={n:5d}  {name:26s} R^2 held out {model.score(X[-300:], y[-300:]):7.4f}"
                    f"  finite {np.isfinite(predicted).all()}  {seconds:5.1f} s  {', '.join(notes)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
