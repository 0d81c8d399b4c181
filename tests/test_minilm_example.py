"""The transformer of the example on real heads: its forward pass against one token, head and sum at a time."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from sklearn_aim import load_attention

SCRIPT = Path(__file__).parents[1] / "examples" / "_minilm.py"
N_HEADS, WIDTH, D, INNER, EPS = 2, 3, 6, 5, 1e-3


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("_minilm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    shapes = {"embeddings.word_embeddings.weight": (9, D), "embeddings.position_embeddings.weight": (7, D)}
    shapes["embeddings.token_type_embeddings.weight"] = (2, D)
    maps = {"attention.self.query": (D, D), "attention.self.key": (D, D), "attention.self.value": (D, D)}
    maps |= {"attention.output.dense": (D, D), "intermediate.dense": (INNER, D), "output.dense": (D, INNER)}
    for layer in range(2):
        for name, shape in maps.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
    norms = [f"encoder.layer.{layer}.{name}.LayerNorm" for layer in range(2) for name in ("attention.output", "output")]
    for name in ["embeddings.LayerNorm", *norms]:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (D,)
    # its weights are drawn, not read from the package that holds those of MiniLM
    model = object.__new__(module.MiniLM)
    model.weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    model.config = {"num_attention_heads": N_HEADS, "layer_norm_eps": EPS}
    return model


def normed(vector, weights, name):
    mean = sum(vector) / len(vector)
    variance = sum((v - mean) ** 2 for v in vector) / len(vector)
    scaled = np.array([(v - mean) / math.sqrt(variance + EPS) for v in vector])
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def affine(vector, weights, name):
    return np.array([row @ vector for row in weights[f"{name}.weight"]]) + weights[f"{name}.bias"]


def layer_of(tokens, weights, name):
    """One layer of BERT, post-norm: tokens after it, and the attention of every head."""
    query, key, value = ([affine(x, weights, f"{name}.attention.self.{part}") for x in tokens] for part in KINDS)
    attention = np.zeros((N_HEADS, len(tokens), len(tokens)))
    after = []
    for a, x in enumerate(tokens):
        mixed = []
        for head in range(N_HEADS):
            own = slice(head * WIDTH, (head + 1) * WIDTH)
            scores = [math.exp(query[a][own] @ k[own] / math.sqrt(WIDTH)) for k in key]
            attention[head, a] = np.array(scores) / sum(scores)
            mixed += list(sum(weight * v[own] for weight, v in zip(attention[head, a], value, strict=True)))
        output = affine(np.array(mixed), weights, f"{name}.attention.output.dense")
        x = normed(x + output, weights, f"{name}.attention.output.LayerNorm")
        inner = affine(x, weights, f"{name}.intermediate.dense")
        inner = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in inner])
        after.append(normed(x + affine(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm"))
    return after, attention


KINDS = ("query", "key", "value")


def test_forward_pass(model):
    ids = np.array([[1, 5, 8, 5], [0, 2, 2, 7], [3, 3, 3, 3]])
    outputs = model.outputs(ids, 2)
    assert len(outputs["hidden_states"]) == 3
    assert len(outputs["attentions"]) == 2
    w = model.weights
    for n, sentence in enumerate(ids):
        tokens = [
            normed(
                w["embeddings.word_embeddings.weight"][word]
                + w["embeddings.position_embeddings.weight"][place]
                + w["embeddings.token_type_embeddings.weight"][0],
                w,
                "embeddings.LayerNorm",
            )
            for place, word in enumerate(sentence)
        ]
        for layer in range(2):
            np.testing.assert_allclose(outputs["hidden_states"][layer][n], tokens, rtol=0, atol=1e-12)
            tokens, attention = layer_of(tokens, w, f"encoder.layer.{layer}")
            np.testing.assert_allclose(outputs["attentions"][layer][n], attention, rtol=0, atol=1e-12)
        np.testing.assert_allclose(outputs["hidden_states"][2][n], tokens, rtol=0, atol=1e-12)


def test_a_head_is_the_model_of_this_package(model):
    # what the heads of the example rest on: a bilinear form of rank WIDTH and a key bias
    outputs = model.outputs(np.array([[1, 5, 8, 5], [0, 2, 2, 7]]), 2)
    for layer, head in ((0, 1), (1, 0)):
        X, y, mask = load_attention(outputs, layer=layer, head=head)
        assert mask is None
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        query, key = (model.weights[f"encoder.layer.{layer}.attention.self.{part}.weight"][own] for part in KINDS[:2])
        bias = model.weights[f"encoder.layer.{layer}.attention.self.query.bias"][own]
        scores = (X @ query.T @ key @ X.transpose(0, 2, 1) + (X @ key.T @ bias)[:, None, :]) / np.sqrt(WIDTH)
        expected = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
        np.testing.assert_allclose(y, expected, rtol=1e-10)
