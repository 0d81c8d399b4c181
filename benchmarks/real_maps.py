"""Attention maps of a real head: gradient descent and untied AMP behind a whitener, beside the position mean.

python benchmarks/real_maps.py FILE.npz [--head y_typ] [--train 1200]: FILE holds X (n, T, d) and attention maps
(n, T, T) under the name of the head; the last 300 sequences are held out.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.pipeline import make_pipeline

from sklearn_aim import AMPAttentionRegressor, GDAttentionRegressor, PositionMeanRegressor, TokenWhitener


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--head", nargs="+", default=["y_typ", "y_sym"])
    parser.add_argument("--train", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    with np.load(args.file, allow_pickle=False) as data:
        X = data["X"].astype(np.float32)
        maps = {head: data[head] for head in args.head}
    models = {
        "position mean": PositionMeanRegressor(),
        "whitener + GD": make_pipeline(
            TokenWhitener(),
            GDAttentionRegressor(args.width, tied=False, fit_bias=True, loss="cross_entropy", random_state=0),
        ),
        "recommended: ridge, small start, decay": make_pipeline(
            TokenWhitener(ridge=1.0),
            GDAttentionRegressor(
                args.width,
                tied=False,
                fit_bias=True,
                loss="log_ratio",
                init_scale=0.1,
                weight_decay=1.0,
                max_iter=500,
                tol=1e-4,
                random_state=0,
            ),
        ),
        "whitener + AMP": make_pipeline(
            TokenWhitener(), AMPAttentionRegressor(args.width, tied=False, noise="estimate", max_iter=100)
        ),
        "ridge whitener + AMP": make_pipeline(
            TokenWhitener(ridge=1.0), AMPAttentionRegressor(args.width, tied=False, noise="estimate", max_iter=100)
        ),
    }
    for head, y in maps.items():
        for n in args.train:
            for name, model in models.items():
                start = time.perf_counter()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    model.fit(X[:n], y[:n])
                predicted = model.predict(X[-300:])
                print(
                    f"{head}  n={n:5d}  {name:40s} R^2 held out {model.score(X[-300:], y[-300:]):7.4f}"
                    f"  finite {np.isfinite(predicted).all()}  {time.perf_counter() - start:5.1f} s"
                    f"{'  (not converged)' if caught else ''}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
