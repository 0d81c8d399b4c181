"""Small fitted estimators as this version writes them: python tests/data/make_pickles.py

Writes fitted-VERSION-NAME.pkl next to this file, each (estimator, X, what it answers). Run it once for every release
and keep the files of earlier ones.
"""

import pickle
import warnings
from pathlib import Path

import sklearn_aim
from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    make_attention_sequences,
    make_deep_attention_sequences,
)


def fitted():
    """Name to (estimator, X, what it answers on X)."""
    X, y = make_attention_sequences(40, 2, 4, width=0.5, noise=0.2, random_state=0)
    deep_X, deep_y = make_deep_attention_sequences(20, 2, 3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [
            (AMPAttentionRegressor(0.5, noise=0.2, max_iter=5).fit(X, y), X),
            (GDAttentionRegressor(2, max_iter=20, random_state=0).fit(X, y), X),
            (AMPDeepAttentionRegressor(n_layers=2, max_iter=2, random_state=0).fit(deep_X, deep_y), deep_X),
            (PositionMeanRegressor().fit(X, y), X),
        ]
        out = {type(model).__name__: (model, data[:3], model.predict(data[:3])) for model, data in models}
        whitener = TokenWhitener().fit(X)
        out["TokenWhitener"] = whitener, X[:3], whitener.transform(X[:3])
        bound = BayesOptimalBound.from_estimator(models[0][0])
        out["BayesOptimalBound"] = bound, [0.1, 1.0], bound.estimation_error([0.1, 1.0])
    return out


if __name__ == "__main__":
    # one file an estimator: a class that changes does not take the others along
    for name, content in fitted().items():
        place = Path(__file__).parent / f"fitted-{sklearn_aim.__version__}-{name}.pkl"
        place.write_bytes(pickle.dumps(content, protocol=4))
        print(place.name, place.stat().st_size)
