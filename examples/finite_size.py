"""
How large must d be for the theory to hold?
===========================================

The bound is a statement about many features. At fixed sample complexity :math:`\\alpha = n/d^2` the error of message
passing approaches it as d grows; this page shows how fast, from 20 to 160 features.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sklearn_aim import AMPAttentionRegressor, BayesOptimalBound, estimation_error, make_attention_sequences
from sklearn_aim.plotting import figure_style

# close to recovery, and far from the true width, fits take their time: their best iterate will do
warnings.simplefilter("ignore", ConvergenceWarning)
# many teachers where they are cheap and vary
SEEDS = {20: 48, 40: 24, 80: 8, 160: 3}
ALPHAS = {0.05: ("#D55E00", "s"), 0.1: ("#004D7A", "D"), 0.15: ("#009E73", "o")}


def errors_of(alpha, n_features, n_seeds):
    """Estimation errors of message passing on several teachers."""
    errors = []
    for seed in range(n_seeds):
        X, y, S = make_attention_sequences(
            round(alpha * n_features**2),
            n_features=n_features,
            width=0.5,
            random_state=seed,
            return_interaction=True,
        )
        errors.append(estimation_error(S, AMPAttentionRegressor(0.5, max_iter=100).fit(X, y).interaction_))
    return np.array(errors)


# %%
# Close to recovery (:math:`\alpha = 0.15`; it is at 0.1875) small systems differ more, and vary more.

bound = BayesOptimalBound(0.5)
sizes = np.array(list(SEEDS))
with figure_style():
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.2), layout="constrained")
    for k, (alpha, (colour, marker)) in enumerate(ALPHAS.items()):
        limit = float(bound.estimation_error(alpha))
        with threadpool_limits(1, user_api="blas"):
            samples = [errors_of(alpha, d, seeds) for d, seeds in SEEDS.items()]
        means = np.array([sample.mean() for sample in samples])
        spread = np.array([sample.std(ddof=1) / np.sqrt(len(sample)) for sample in samples])
        style = {"fmt": marker, "color": colour, "mec": "black", "ms": 7, "capsize": 3}
        left.axhline(limit, color=colour, lw=1.6, ls=(0, (4, 2)))
        left.errorbar(sizes, means, spread, label=f"$\\alpha = {alpha:g}$", **style)
        # a little apart, since the points would cover each other
        right.errorbar(1 / sizes * (1 + 0.03 * (k - 1)), means / limit, spread / limit, **style)
        cells = [f"{mean:.4f}({error:.4f})" for mean, error in zip(means, spread, strict=True)]
        print(f"alpha = {alpha}: bound {limit:.4f}, AMP", *cells)
    left.set_xscale("log")
    left.set_xticks(sizes, [str(size) for size in sizes])
    left.minorticks_off()
    left.set(ylim=(0, 1), xlabel="features $d$", ylabel="estimation error $V$")
    left.set_title("AMP; dashed: bound", loc="left")
    left.legend(loc="upper right", ncols=3, columnspacing=0.8, handletextpad=0.1)
    right.axhline(1, color="black", lw=1.6, ls=(0, (4, 2)))
    right.set(xlim=(0, 0.055), xlabel="$1/d$", ylabel="AMP / bound")
    right.set_title("mean over teachers, standard error", loc="left")
plt.show()
