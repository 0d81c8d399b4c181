"""Heads taken from a transformer's outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_aim import GDAttentionRegressor, load_attention


def transformer(n=150, T=5, d=12, heads=3, causal=False, padding=False, seed=0):
    """Outputs of a layer by the equations of a transformer: untied heads with query biases, padded keys hidden."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, T, d))
    lengths = rng.integers(2, T + 1, size=n) if padding else np.full(n, T)
    mask = (np.arange(T) < lengths[:, None]).astype(int)
    maps = []
    for _ in range(heads):
        queries = X @ rng.normal(size=(d, 4)) / np.sqrt(d) + rng.normal(size=4)
        keys = X @ rng.normal(size=(d, 4)) / np.sqrt(d)
        h = queries @ keys.transpose(0, 2, 1)
        # as in the transformers package, rows of padding attend to what is real
        h = np.where(mask[:, None, :] == 1, h, -np.inf)
        if causal:
            h = np.where(np.tri(T, dtype=bool), h, -np.inf)
        weights = np.exp(h - h.max(axis=2, keepdims=True))
        maps.append(weights / weights.sum(axis=2, keepdims=True))
    return {"hidden_states": [X], "attentions": [np.stack(maps, axis=1)]}, mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_a_head_is_learned(causal, padding):
    outputs, attention_mask = transformer(causal=causal, padding=padding)
    X, y, mask = load_attention(outputs, layer=0, head=1, attention_mask=attention_mask if padding else None)
    np.testing.assert_array_equal(X, outputs["hidden_states"][0])
    assert (mask is None) == (not causal and not padding)
    allowed = np.ones(y.shape, bool) if mask is None else mask
    assert (y[~allowed] == 0).all()
    real = np.ones(y.shape[:2], bool) if not padding else attention_mask == 1
    np.testing.assert_allclose(y.sum(axis=2)[real], 1)
    np.testing.assert_array_equal(y.sum(axis=2)[~real], 0)
    if mask is not None:
        expected = real[:, :, None] & real[:, None, :] & (np.tri(5, dtype=bool) if causal else True)
        np.testing.assert_array_equal(mask, expected)
    # the model contains the head, its query bias included
    est = GDAttentionRegressor(4, tied=False, fit_bias=True, loss="log_ratio", random_state=0)
    assert (
        est.fit(X[:120], y[:120], mask=None if mask is None else mask[:120]).score(
            X[120:], y[120:], mask=None if mask is None else mask[120:]
        )
        > 0.95
    )


def test_objects_and_tensors():
    outputs, _ = transformer(n=4)

    class Tensor:
        def __init__(self, values):
            self.values = values

        def detach(self):
            return self

        def cpu(self):
            return self

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.values, dtype)

    wrapped = SimpleNamespace(
        hidden_states=(Tensor(outputs["hidden_states"][0]),), attentions=(Tensor(outputs["attentions"][0]),)
    )
    for one, other in zip(
        load_attention(wrapped, layer=0, head=2), load_attention(outputs, layer=0, head=2), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_outputs_are_not_changed():
    outputs, attention_mask = transformer(n=6, padding=True)
    before = outputs["attentions"][0].copy()
    load_attention(outputs, layer=0, head=0, attention_mask=attention_mask)
    np.testing.assert_array_equal(outputs["attentions"][0], before)


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"layer": 1}, ValueError, "layer=1 is not below 1"),
        ({"head": 3}, ValueError, "head=3 is not below 3"),
        ({"layer": -1}, ValueError, "layer=-1"),
        ({"head": 0.5}, TypeError, "head=0.5"),
        ({"outputs": {"hidden_states": [np.ones((2, 3, 4))]}}, TypeError, "no attentions: ask the model"),
        ({"outputs": SimpleNamespace()}, TypeError, "no hidden_states"),
        (
            {"outputs": {"hidden_states": [np.ones((2, 3, 4))], "attentions": [np.ones((2, 1, 4, 4))]}},
            ValueError,
            "must have shapes",
        ),
        ({"attention_mask": np.ones((2, 2))}, ValueError, "attention_mask has shape"),
        ({"attention_mask": np.zeros((4, 5))}, ValueError, "attention_mask"),
        ({"attention_mask": np.full((4, 5), -1e9)}, TypeError, "attention_mask of dtype float64"),
    ],
)
def test_bad_outputs(change, kind, match):
    arguments = {"outputs": transformer(n=4)[0], "layer": 0, "head": 0} | change
    with pytest.raises(kind, match=match):
        load_attention(arguments.pop("outputs"), **arguments)
