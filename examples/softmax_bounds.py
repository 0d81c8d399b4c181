"""
The bound for softmax attention, and message passing on it
==========================================================

How fast does the error of the best possible estimate fall, and when is the layer known exactly? For one softmax layer
whose maps are seen without noise the answer is one curve for each width and number of tokens, and no simulation is
needed to draw it. Message passing on sequences of 100 features, three data sets a point, lies on these curves where
layers are not too narrow (with width 10 they are still a little off the limit of many features).
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, estimation_error, make_attention_sequences
from sklearn_aim.plotting import figure_style

# close to recovery, and far from the true width, fits take their time: their best iterate will do
warnings.simplefilter("ignore", ConvergenceWarning)
N_FEATURES, N_SEEDS = 100, 3


def amp_error(alpha, width_ratio, n_tokens=2):
    """Mean estimation error of message passing over data sets."""
    errors = []
    for seed in range(N_SEEDS):
        X, y, S = make_attention_sequences(
            round(alpha * N_FEATURES**2),
            n_tokens,
            N_FEATURES,
            width=width_ratio,
            random_state=seed,
            return_interaction=True,
        )
        errors.append(estimation_error(S, AMPAttentionRegressor(width_ratio).fit(X, y).interaction_))
    return np.mean(errors)


# %%
# Widths
# ------
# A narrow layer has fewer unknowns, :math:`2\rho - \rho^2` for every :math:`d^2/2` of a full one (:math:`\rho = r/d`),
# and is known exactly from the sample complexity on at which the maps hold as many equations. From :math:`\rho = 1` on
# the threshold stays, at 1/4 for two tokens; in the limit of wide layers the curve is a straight line.

WIDTHS = {
    0.1: ("#CC79A7", "v", "-"),
    0.2: ("#E69F00", "s", (0, (6, 1.5))),
    0.5: ("#004D7A", "D", (0, (4, 1.5))),
    1.0: ("#009E73", "o", (0, (3, 1, 1, 1))),
    10.0: ("#D55E00", "^", (0, (1, 1))),
}

with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for width_ratio, (colour, marker, dashes) in WIDTHS.items():
        bound = BayesOptimalBound(width_ratio, n_tokens=2)
        threshold = bound.recovery_threshold()
        alphas = np.sort(np.append(np.linspace(0, 0.28, 200), threshold))
        ax.plot(alphas, bound.estimation_error(alphas), color=colour, ls=dashes, lw=2)
        points = np.array([0.25, 0.5, 0.75]) * threshold
        errors = [amp_error(alpha, width_ratio) for alpha in points]
        ax.plot(points, errors, marker, color=colour, mec="black", ms=7)
        label = f"$r/d = {width_ratio:g}$, exact from {threshold:.4g}"
        ax.plot([], [], marker=marker, ls=dashes, color=colour, mec="black", ms=7, lw=2, label=label)
        print(f"r/d = {width_ratio:4g}   AMP / bound:", np.round(errors / bound.estimation_error(points), 3))
    ax.set(
        xlim=(0, 0.28), ylim=(-0.02, 1.02), xlabel=r"sample complexity $\alpha = n/d^2$", ylabel="estimation error $V$"
    )
    ax.set_title(f"Two tokens; curves: bound, points: AMP, $d = {N_FEATURES}$", loc="left")
    ax.legend(handlelength=3.2)
plt.show()

# %%
# Tokens
# ------
# A map of T tokens shows :math:`(T^2 + T - 2)/2` combinations of its T(T + 1)/2 indices; softmax hides one common
# shift. Plotted over :math:`\alpha (T^2 + T - 2)` all curves of one width are the same.

TOKENS = {2: ("#004D7A", "D", "-"), 3: ("#D55E00", "s", (0, (4, 1.5))), 4: ("#009E73", "o", (0, (1, 1)))}

with figure_style():
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.2), layout="constrained", sharey=True)
    for n_tokens, (colour, marker, dashes) in TOKENS.items():
        bound = BayesOptimalBound(0.5, n_tokens=n_tokens)
        threshold, scale = bound.recovery_threshold(), n_tokens**2 + n_tokens - 2
        alphas = np.sort(np.append(np.linspace(0, 1.15 * threshold, 200), threshold))
        points = np.array([0.1, 0.3, 0.5, 0.7, 0.85]) * threshold
        errors = [amp_error(alpha, 0.5, n_tokens) for alpha in points]
        for ax, factor in ((left, 1), (right, scale)):
            ax.plot(factor * alphas, bound.estimation_error(alphas), color=colour, ls=dashes, lw=2)
            ax.plot(factor * points, errors, marker, color=colour, mec="black", ms=7)
            label = f"{n_tokens} tokens"
            ax.plot([], [], marker=marker, ls=dashes, color=colour, mec="black", ms=7, lw=2, label=label)
    left.set(xlim=(0, None), xlabel=r"$\alpha = n/d^2$", ylabel="estimation error $V$")
    right.set(xlim=(0, None), xlabel=r"$\alpha\,(T^2 + T - 2)$")
    left.set_title("$r/d = 0.5$", loc="left")
    right.set_title("one curve for any number of tokens", loc="left")
    left.legend(handlelength=3.2)
plt.show()
