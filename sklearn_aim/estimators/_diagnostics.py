"""How far the assumptions of message passing hold for some data: tokens, energy, posterior spread."""

import numpy as np

from sklearn_aim.channels import GaussianChannel
from sklearn_aim.metrics import interval_coverage

# entries of X that are looked at
_ENTRIES = 1 << 22
# posterior variances below this are exact recovery, whose spread can't be checked
_RECOVERED = 1e-8
# coverage of 90 per cent intervals, and energy, that are called right
_COVERAGE = (0.8, 0.97)
_ENERGY = (0.8, 1.25)


def sampled(n_samples, n_tokens, n_features):
    """Evenly spaced sequences that hold enough entries."""
    count = max(1, min(n_samples, _ENTRIES // (n_tokens * n_features)))
    return np.unique(np.linspace(0, n_samples - 1, count).round().astype(int))


def token_statistics(x, padded=None):
    """Moments of tokens against those of independent standard normal features.

    Parameters
    ----------
    x : ndarray of shape (n, T, d)
    padded : ndarray of shape (n, T), bool, optional

    Returns
    -------
    dict of float
        See `AMPAttentionRegressor`.
    """
    rows = x.reshape(-1, x.shape[2]) if padded is None else x[~padded]
    rows = rows.astype(float)
    count, n_features = rows.shape
    power = float(np.mean(rows**2))
    norms = np.einsum("ti,ti->t", rows, rows) / n_features
    out = {
        "token_mean": max(float(np.mean(rows.mean(axis=0) ** 2)) - power / count, 0.0),
        "token_power": power,
        "token_norm_spread": float(norms.std() / max(power, np.finfo(float).tiny) / np.sqrt(2 / n_features)),
        "token_kurtosis": float(np.mean(rows**4)) / max(power, np.finfo(float).tiny) ** 2 - 3,
    }
    means = x.astype(float).mean(axis=0)
    out["position_mean"] = max(float((means**2).mean(axis=1).max()) - power / len(x), 0.0)
    # what of these is the noise of few tokens, five standard errors
    entries = count * n_features
    wrong = {
        "token_mean": out["token_mean"] > 0.05 + 5 * power * np.sqrt(2 / entries) / np.sqrt(count),
        "token_power": abs(power - 1) > 0.1 + 5 * np.sqrt(2 / entries),
        "token_norm_spread": abs(out["token_norm_spread"] - 1) > 0.5 + 5 / np.sqrt(2 * count),
        "token_kurtosis": abs(out["token_kurtosis"]) > 0.5 + 5 * np.sqrt(24 / entries),
        "position_mean": padded is None and out["position_mean"] > 0.05 + 5 / np.sqrt(n_features) / len(x),
    }
    return out, [name for name, failed in wrong.items() if failed]


def spread_statistics(channel, maps, indices, variance, prior_error, allowed=None):
    """Coverage of 90 per cent intervals of maps that were not learned from, or None where there is nothing to check."""
    if not isinstance(channel, GaussianChannel) or variance + channel.noise <= _RECOVERED * prior_error:
        return None, []
    mean, second = channel.moments(indices, variance)
    spread = np.sqrt(np.maximum(second - mean**2, 0))
    coverage = interval_coverage(maps, mean, spread, mask=allowed)
    counted = maps.size if allowed is None else int(allowed.sum())
    margin = 2 / np.sqrt(counted)
    return coverage, [] if _COVERAGE[0] - margin <= coverage <= _COVERAGE[1] + margin else ["coverage"]


def energy_statistics(ratio, variance, noise, prior_error):
    """Whether residuals are as large as V says, or None after exact recovery, where V is as small as one likes."""
    if ratio is None or variance + noise <= _RECOVERED * prior_error:
        return None, []
    return ratio, [] if _ENERGY[0] <= ratio <= _ENERGY[1] else ["energy_ratio"]
