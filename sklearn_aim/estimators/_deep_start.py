"""Where message passing over deep layers starts."""

import numpy as np
from sklearn.utils import check_random_state

from sklearn_aim.algorithms.deep_amp import START_OVERLAP
from sklearn_aim.estimators._sizes import TOO_LARGE

# a start that is given is trusted up to this overlap
_MOST_TRUST = 0.99


def starting_point(init, shape, random_state):
    """Weights (L, d) and their covariance V from the parameter `init`; layers of zeros are drawn."""
    n_layers = shape[0]
    if isinstance(init, str):
        if init != "random":
            raise ValueError(f"init={init!r} must be 'random' or an array of shape {shape}.")
        return _random_weights(shape, random_state), np.eye(n_layers)
    expected = f"'random' or an array of shape {shape}, one row of weights a layer"
    try:
        weights = np.array(init, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise TypeError(f"init of type {type(init).__name__} must be {expected}.") from error
    # as the data set returns them, a list of (d, 1)
    weights = weights[..., 0] if weights.shape == (*shape, 1) else weights
    if weights.shape != shape:
        raise ValueError(f"init has shape {weights.shape}, but must be {expected}.")
    if not np.isfinite(weights).all():
        raise ValueError("init contains NaN or infinity.")
    if np.abs(weights).max() > TOO_LARGE:
        raise ValueError(f"init has entries up to {np.abs(weights).max():.3g}, but weights are of order 1: rescale it.")
    unknown = ~weights.any(axis=1)
    weights[unknown] = _random_weights(shape, random_state)[unknown]
    overlap = np.minimum(np.mean(weights**2, axis=1), _MOST_TRUST)
    return weights, np.diag(1 - overlap)


def _random_weights(shape, random_state):
    # a generator of its own: a seed that drew the data must not draw the teacher again
    seed = check_random_state(random_state).randint(2**31 - 1, size=4)
    return np.sqrt(START_OVERLAP) * np.random.default_rng(seed).standard_normal(shape)
