"""Sequences of unequal length: lists in, lists out, the same as each group of equal length says."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from sklearn_aim import (
    AMPAttentionRegressor,
    GDAttentionRegressor,
    TokenWhitener,
    attention_r2_score,
    estimation_error,
    make_attention_sequences,
    pad_sequences,
)


def teacher(n, d, most, seed, causal=False):
    """Lists of sequences of 2 to `most` tokens, and of their maps by the model's own equation."""
    rng = np.random.default_rng(seed)
    X, _, S = make_attention_sequences(n, most, d, width=0.5, random_state=seed, return_interaction=True)
    sequences, maps = [], []
    for one, k in zip(X, rng.integers(2, most + 1, size=n), strict=True):
        x = one[:k]
        h = (x @ S @ x.T - np.eye(k) * np.trace(S)) / np.sqrt(d)
        if causal:
            h = np.where(np.tri(k, dtype=bool), h, -np.inf)
        weights = np.exp(h - h.max(axis=1, keepdims=True))
        sequences.append(x)
        maps.append(weights / weights.sum(axis=1, keepdims=True))
    return sequences, maps, S


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [AMPAttentionRegressor(0.5), GDAttentionRegressor(0.5, loss="log_ratio", random_state=0)],
    ids=["AMP", "GD"],
)
def test_lists_are_learned(estimator, causal):
    # far beyond recovery: causal maps show m(m-1)/2 combinations for m tokens, others m(m+1)/2 - 1
    X, y, S = teacher(900, 50, 5, 0, causal)
    mask = "causal" if causal else None
    estimator.fit(X, y, mask=mask)
    assert estimation_error(S, estimator.interaction_) < 1e-3
    fresh, truth, _ = teacher(30, 50, 5, 0, causal)
    # the mask of fit goes on
    predicted = estimator.predict(fresh)
    assert isinstance(predicted, list)
    for one, other in zip(predicted, truth, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
    assert estimator.score(fresh, truth) > 0.999
    assert estimator.score(fresh, truth, mask=mask) == pytest.approx(estimator.score(fresh, truth))


def test_padding_is_what_lists_are():
    X, y, _ = teacher(200, 20, 4, 1)
    arrays, maps, mask = pad_sequences(X, y)
    one = AMPAttentionRegressor(0.5, max_iter=30).fit(X, y)
    other = AMPAttentionRegressor(0.5, max_iter=30).fit(arrays, maps, mask=mask)
    np.testing.assert_array_equal(one.interaction_, other.interaction_)
    mean, std = one.predict(X, return_std=True)
    padded_mean, padded_std = other.predict(arrays, return_std=True, mask=mask)
    for n, x in enumerate(X):
        np.testing.assert_array_equal(mean[n], padded_mean[n, : len(x), : len(x)])
        np.testing.assert_array_equal(std[n], padded_std[n, : len(x), : len(x)])
        np.testing.assert_array_equal(padded_mean[n, len(x) :], 0)


def test_pooled_score_counts_real_entries():
    X, y, _ = teacher(100, 20, 4, 2)
    est = GDAttentionRegressor(5, random_state=0, max_iter=5, tol=0)
    est.fit(X, y)
    padded, maps, mask = pad_sequences(X, y)
    assert est.score(X, y) == pytest.approx(attention_r2_score(maps, est.predict(padded, mask=mask), mask=mask))
    # by hand: masked entries are no part of the variance to explain
    truth = np.concatenate([one.ravel() for one in y])
    error = truth - np.concatenate([one.ravel() for one in est.predict(X)])
    assert est.score(X, y) == pytest.approx(1 - np.sum(error**2) / np.sum((truth - truth.mean()) ** 2))


def test_whitening_ignores_padding():
    X, _, _ = teacher(150, 6, 4, 3)
    X = [3 * x + 2 for x in X]
    tokens = np.concatenate(X)
    whitener = TokenWhitener().fit(X)
    np.testing.assert_allclose(whitener.mean_, tokens.mean(axis=0), rtol=1e-12)
    centred = tokens - tokens.mean(axis=0)
    np.testing.assert_allclose(whitener.variances_.sum(), np.sum(centred**2) / len(tokens), rtol=1e-10)
    white = whitener.transform(X)
    assert [one.shape for one in white] == [x.shape for x in X]
    np.testing.assert_allclose(np.cov(np.concatenate(white).T, bias=True), np.eye(6), atol=1e-10)
    padded, mask = pad_sequences(X)
    same = TokenWhitener().fit(np.where(mask.any(axis=2)[:, :, None], padded, 1e3), mask=mask)
    np.testing.assert_allclose(same.mean_, whitener.mean_, rtol=1e-9)
    np.testing.assert_allclose(same.components_, whitener.components_, atol=1e-9)


def test_pipelines_take_lists():
    X, y, _ = teacher(700, 40, 4, 4)
    pipe = make_pipeline(TokenWhitener(), AMPAttentionRegressor(0.5)).fit([2 * x + 1 for x in X], y)
    assert pipe.score([2 * x + 1 for x in X], y) > 0.99


def test_lists_of_equal_length_stay_arrays():
    X, y = make_attention_sequences(50, 3, 5, random_state=0)
    one = AMPAttentionRegressor(0.5, max_iter=3, tol=1e3).fit(list(X), list(y))
    assert isinstance(one.predict(list(X)), np.ndarray)
    assert one.mask_ is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: ([*X[:-1], X[-1][:0]], y), r"X\[19\] has shape \(0, 6\)"),
        (lambda X, y: ([*X[:-1], X[-1][:, :3]], y), r"X\[19\] has 3 features, but X\[0\] has 6"),
        (lambda X, y: (X, [*y[:-1], np.ones((9, 9))]), r"y\[19\] has shape \(9, 9\), but X\[19\] has"),
        (lambda X, y: ([*X[:-1], X[-1] * np.nan], y), "NaN"),
    ],
    ids=["lengths", "empty", "features", "maps", "NaN"],
)
@pytest.mark.parametrize("estimator", [AMPAttentionRegressor(0.5), GDAttentionRegressor(3)], ids=["AMP", "GD"])
def test_bad_lists(estimator, change, match):
    X, y, _ = teacher(20, 6, 4, 5)
    with pytest.raises(ValueError, match=match):
        estimator.fit(*change(X, y))
    assert not hasattr(estimator, "interaction_")


def test_bad_padding():
    X, y, _ = teacher(20, 6, 4, 5)
    with pytest.raises(ValueError, match="mask must be None, 'causal' or of shape"):
        pad_sequences(X, y, mask=np.ones((20, 4), bool))
    with pytest.raises(TypeError, match="must be a list of sequences"):
        pad_sequences(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"X\[0\] of shape \(3,\)"):
        pad_sequences([np.ones(3), np.ones(4)])


def test_single_tokens_say_nothing():
    # a map of one token is 1 whatever S is: such sequences change nothing but the count of sequences
    X, y, _ = teacher(300, 20, 3, 6)
    alone = [np.ones((1, 20))] * 5
    one = GDAttentionRegressor(4, random_state=0, max_iter=20, tol=0, loss="cross_entropy")
    short = one.fit(X, y).interaction_
    longer = one.fit(X + alone, y + [np.ones((1, 1))] * 5).interaction_
    np.testing.assert_allclose(longer, short, atol=1e-6 * np.abs(short).max())


def test_indices_of_lists():
    X, y, _ = teacher(300, 20, 4, 7)
    est = GDAttentionRegressor(0.5, loss="log_ratio", random_state=0).fit(X, y)
    for x, h in zip(X[:5], est.predict_index(X[:5]), strict=True):
        expected = (x @ est.interaction_ @ x.T - np.eye(len(x)) * np.trace(est.interaction_)) / np.sqrt(20)
        np.testing.assert_allclose(h, expected, rtol=1e-10, atol=1e-12)
