"""
How many sequences do I need?
=============================

`BayesOptimalBound.sample_size` answers before any data are there: the number of sequences with which the best method
reaches a given estimation error, V, where 1 is what is known without data and 0 is exact knowledge. Any method needs at
least as many; message passing needs about as many.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_aim import BayesOptimalBound
from sklearn_aim.plotting import figure_style

# %%
# A single question first: 64 features, keys and queries of width 16, sequences of 8 tokens, softmax maps.

bound = BayesOptimalBound(width_ratio=16 / 64, n_tokens=8)
for error in (0.5, 0.1, 0.01, 0.0):
    print(f"V = {error:4}: {bound.sample_size(error, n_features=64):4d} sequences")

# %%
# Features and width
# ------------------
# At a fixed ratio of width to features the number grows as d². A layer of fixed width has d r unknowns, and the number
# grows as d.

features = np.unique(np.geomspace(32, 2048, 25).astype(int))
with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for label, width_of, colour, dashes in (
        ("$r = d$", lambda d: d, "#D55E00", (0, (1, 1))),
        ("$r = d/4$", lambda d: d / 4, "#004D7A", (0, (4, 1.5))),
        ("$r = 8$", lambda d: 8, "#009E73", "-"),
    ):
        sizes = [BayesOptimalBound(width_of(d) / d, n_tokens=8).sample_size(0.1, n_features=int(d)) for d in features]
        ax.loglog(features, sizes, color=colour, ls=dashes, lw=2, label=label)
    ticks = [32, 128, 512, 2048]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set(xlabel="features $d$", ylabel="sequences for $V = 0.1$")
    ax.set_title("8 tokens, no noise", loc="left")
    ax.legend(handlelength=3.2)
plt.show()

# %%
# Tokens and noise
# ----------------
# A sequence of T tokens shows about T²/2 combinations of indices, so that long sequences are worth more. With noise on
# the indices the last digits are dear: the error has to be averaged down.

tokens = np.arange(2, 17)
with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for noise, colour, marker in ((0.0, "#009E73", "o"), (0.1, "#004D7A", "D"), (1.0, "#D55E00", "s")):
        sizes = [BayesOptimalBound(0.25, n_tokens=int(T), noise=noise).sample_size(0.1, n_features=64) for T in tokens]
        ax.semilogy(tokens, sizes, marker + "-", color=colour, mec="black", ms=5, label=f"$\\Delta = {noise:g}$")
    ax.set(xlabel="tokens $T$", ylabel="sequences for $V = 0.1$", ylim=(5, None))
    ax.set_title("$d = 64$, $r = 16$, noise variance $\\Delta$", loc="left")
    ax.legend()
plt.show()
