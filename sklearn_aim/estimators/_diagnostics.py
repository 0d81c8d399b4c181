"""How far the assumptions of message passing hold for some data: tokens, energy, posterior spread."""

import numpy as np

from sklearn_aim.channels import GaussianChannel
from sklearn_aim.kernels.moments import of_real_tokens, token_moments, token_power
from sklearn_aim.metrics import interval_coverage

TOKENS = ("token_mean", "token_power", "token_norm_spread", "token_kurtosis", "position_mean")
# entries of X that are looked at
_ENTRIES = 1 << 19
_RUNS = 16
# posterior variances below this are exact recovery, whose spread can't be checked
_RECOVERED = 1e-8
# coverage of 90 per cent intervals, and energy, that are called right
_COVERAGE = (0.8, 0.97)
_ENERGY = (0.7, 1.4)


def sampled(n_samples, n_tokens, n_features):
    """Sequences that hold enough entries, in a few runs from all over X: on a disk neighbours cost little."""
    count = max(1, min(n_samples, _ENTRIES // (n_tokens * n_features)))
    runs = min(_RUNS, count)
    firsts = np.linspace(0, n_samples - count // runs, runs).astype(int)
    return np.unique(firsts[:, None] + np.arange(count // runs))


def token_statistics(x, padded=None):
    """Moments of tokens against those of independent standard normal features.

    Parameters
    ----------
    x : SampleBlocks or DaskBlocks of shape (n, T, d)
    padded : ndarray of shape (n, T), bool, optional

    Returns
    -------
    dict of float
        See `AMPAttentionRegressor`.
    list of str
        Which of them are off.
    """
    n_samples, n_tokens, n_features = x.shape
    real = np.ones((n_samples, n_tokens), bool) if padded is None else ~padded
    count, entries = int(real.sum()), int(real.sum()) * n_features
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        power = x.total(token_power) if padded is None else x.total(of_real_tokens, token_power, parts=(padded,))
    power = float(power) / entries
    if not 0 < power < np.inf:
        return dict.fromkeys(TOKENS, power), ["token_power"]
    # the rest in units of the power, so that nothing overflows
    sums = x.total(token_moments, 1 / np.sqrt(power), parts=(real,))
    firsts, fourth = sums[:-1, :-2], float(sums[-1, :-2].sum())
    norm_variance = max(float(sums[:-1, -1].sum() / count) - n_features**2, 0.0)
    by_position = firsts / np.maximum(real.sum(axis=0), 1)[:, None]
    out = {
        "token_mean": power * max(float(np.mean((firsts.sum(axis=0) / count) ** 2)) - 1 / count, 0.0),
        "token_power": power,
        "token_norm_spread": float(np.sqrt(norm_variance / (2 * n_features))),
        "token_kurtosis": fourth / entries - 3,
        "position_mean": power * max(float((by_position**2).mean(axis=1).max()) - 1 / n_samples, 0.0),
    }
    # what of these is the noise of few tokens, five standard errors
    wrong = {
        "token_mean": out["token_mean"] > 0.05 + 5 * power * np.sqrt(2 / entries) / np.sqrt(count),
        "token_power": abs(power - 1) > 0.1 + 5 * np.sqrt(2 / entries),
        "token_norm_spread": abs(out["token_norm_spread"] - 1) > 0.5 + 5 / np.sqrt(2 * count),
        "token_kurtosis": abs(out["token_kurtosis"]) > 0.5 + 5 * np.sqrt(24 / entries),
        "position_mean": padded is None and out["position_mean"] > 0.05 + 5 * power / np.sqrt(n_features) / n_samples,
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


def energy_statistics(ratio, variance, noise, prior_error, n_samples):
    """Whether residuals are as large as V says, or None after exact recovery, where V is as small as one likes."""
    if ratio is None or variance + noise <= _RECOVERED * prior_error:
        return None, []
    margin = 3 * np.sqrt(2 / n_samples)
    return ratio, [] if _ENERGY[0] - margin <= ratio <= _ENERGY[1] + margin else ["energy_ratio"]
