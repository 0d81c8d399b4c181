"""
Hardmax attention: learning from who attends to whom
====================================================

A hardmax map says which key has the largest index for each query, and nothing of how large: one bit a row, for two
tokens. The layer is never known exactly; the error falls as the inverse square of the number of sequences. The curves
are the Bayes-optimal bound of several widths, the points message passing on one data set each.

The curves lie below those of arXiv:2506.01582 (0.49 at half width and n = d²/2, where this page has 0.213), because the
posterior is another one; see :doc:`/published` for the identity that decides, and the points below for data.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, estimation_error, make_attention_sequences
from sklearn_aim.plotting import figure_style

N_FEATURES = 80
WIDTHS = {
    0.1: ("#CC79A7", "v", "-"),
    0.2: ("#E69F00", "s", (0, (6, 1.5))),
    0.5: ("#004D7A", "D", (0, (4, 1.5))),
    1.0: ("#009E73", "o", (0, (3, 1, 1, 1))),
    2.0: ("#D55E00", "^", (0, (1, 1))),
}

# %%
# Width by width
# --------------

alphas = np.geomspace(0.01, 3, 80)
points = np.array([0.06, 0.25, 0.8])
with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
    for width_ratio, (colour, marker, dashes) in WIDTHS.items():
        bound = BayesOptimalBound(width_ratio, link="hardmax")
        errors = []
        for alpha in points:
            X, y, S = make_attention_sequences(
                round(alpha * N_FEATURES**2),
                n_features=N_FEATURES,
                width=width_ratio,
                link="hardmax",
                random_state=0,
                return_interaction=True,
            )
            errors.append(
                estimation_error(S, AMPAttentionRegressor(width_ratio, link="hardmax").fit(X, y).interaction_)
            )
        ax.loglog(alphas, bound.estimation_error(alphas), color=colour, ls=dashes, lw=2)
        ax.plot(points, errors, marker, color=colour, mec="black", ms=7)
        label = f"$r/d = {width_ratio:g}$"
        ax.plot([], [], marker=marker, ls=dashes, color=colour, mec="black", ms=7, lw=2, label=label)
        print(
            f"r/d = {width_ratio:3g}   AMP / bound at {points}:", np.round(errors / bound.estimation_error(points), 3)
        )
    ax.plot([1.2, 2.8], [0.34 * (1.2 / x) ** 2 for x in (1.2, 2.8)], color="0.4", lw=1.2)
    ax.text(1.95, 0.15, r"$\propto \alpha^{-2}$", color="0.3")
    ax.set(ylim=(2e-3, 1.3), xlabel=r"sample complexity $\alpha = n/d^2$", ylabel="estimation error $V$")
    ax.set_title(f"Two tokens; curves: bound, points: AMP, $d = {N_FEATURES}$", loc="left")
    ax.legend(loc="lower left", handlelength=3.2)
plt.show()

# %%
# Narrow layers
# -------------
# Over :math:`\alpha/\rho = n/(d r)` the curves of narrow layers fall together. In the limit nothing at all is learned
# up to a threshold, 0.4034; at any finite width the known mean of S blurs it.

with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    scaled = np.linspace(0.01, 2.5, 150)
    for width_ratio, colour, dashes in (
        (0.2, "#E69F00", (0, (6, 1.5))),
        (0.1, "#CC79A7", "-"),
        (0.02, "#009E73", (0, (3, 1, 1, 1))),
        (0.005, "#0072B2", (0, (1, 1))),
    ):
        error = BayesOptimalBound(width_ratio, link="hardmax").estimation_error(scaled * width_ratio)
        ax.plot(scaled, error, color=colour, ls=dashes, lw=2, label=f"$r/d = {width_ratio:g}$")
    limit = BayesOptimalBound(0, link="hardmax")
    threshold = limit.weak_recovery_threshold()
    scaled = np.sort(np.append(scaled, threshold))
    ax.plot(scaled, limit.estimation_error(scaled), color="black", lw=2, label=r"$r/d \to 0$")
    ax.annotate(
        f"learned at all\nfrom {threshold:.4f}", (threshold, 1), (0.75, 0.97), va="top", arrowprops={"arrowstyle": "->"}
    )
    ax.set(xlim=(0, 2.5), ylim=(0, 1.03), xlabel=r"$\alpha/\rho = n/(d\,r)$", ylabel="estimation error $V$")
    ax.legend(handlelength=3.2)
plt.show()
