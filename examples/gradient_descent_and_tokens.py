"""
Gradient descent for two to six tokens
======================================

Runs of gradient descent from random starts, their mean, message passing and the bound, for sequences of two to six
tokens. The bound of softmax attention depends on the number of tokens T through :math:`\\alpha (T^2 + T - 2)` alone,
and so, it turns out, does gradient descent: a single run ends at twice the bound or somewhat above, the mean of 32 near
it, whatever the number of tokens. At 60 features teachers differ by some ten per cent, message passing with them.

:doc:`gradient_descent_reaches_the_bound` follows the mean over the number of runs, at two tokens.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    estimation_error,
    make_attention_sequences,
)
from sklearn_aim.plotting import figure_style

N_FEATURES, N_INIT, N_SEEDS = 60, 32, 2
TOKENS = {2: ("#004D7A", "D"), 3: ("#D55E00", "s"), 4: ("#009E73", "o"), 5: ("#CC79A7", "^"), 6: ("#E69F00", "v")}
# alpha (T^2 + T - 2); recovery is at 0.75
SCALED = (0.1, 0.3, 0.5, 0.7)


def errors_of(alpha, n_tokens, seed):
    """Errors of a single run (the mean over all), of the mean of all runs, and of message passing."""
    X, y, S = make_attention_sequences(
        round(alpha * N_FEATURES**2), n_tokens, N_FEATURES, width=0.5, random_state=seed, return_interaction=True
    )
    with warnings.catch_warnings():
        # close to recovery both take their time
        warnings.simplefilter("ignore", ConvergenceWarning)
        gd = GDAttentionRegressor(0.5, loss="log_ratio", n_init=N_INIT, max_iter=200, random_state=0).fit(X, y)
        amp = AMPAttentionRegressor(0.5).fit(X, y)
    single = np.mean([estimation_error(S, run) for run in gd.interactions_])
    return single, estimation_error(S, gd.interaction_), estimation_error(S, amp.interaction_)


with figure_style():
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.6), layout="constrained")
    print("T   alpha     one run   mean of 32   AMP      bound")
    for n_tokens, (colour, marker) in TOKENS.items():
        bound, scale = BayesOptimalBound(0.5, n_tokens=n_tokens), n_tokens**2 + n_tokens - 2
        alphas = np.array(SCALED) / scale
        with threadpool_limits(1, user_api="blas"):
            single, mean, amp = np.mean(
                [[errors_of(alpha, n_tokens, 10 * n_tokens + seed) for alpha in alphas] for seed in range(N_SEEDS)],
                axis=0,
            ).T
        grid = np.linspace(0, 0.75, 200)
        curve = bound.estimation_error(grid / scale)
        for row in zip(alphas, single, mean, amp, bound.estimation_error(alphas), strict=True):
            print(f"{n_tokens}   {row[0]:.4f}" + "".join(f"{value:11.4f}" for value in row[1:]))
        left.plot(grid / scale, curve, color=colour, lw=1.8)
        left.plot(alphas, mean, marker, color=colour, mec="black", ms=7, label=f"$T = {n_tokens}$")
        # side by side, since they would cover each other
        places = np.array(SCALED) + 0.009 * (n_tokens - 4)
        right.plot(places, single, marker, mfc="white", mec=colour, mew=1.6, ms=7)
        right.plot(places, mean, marker, color=colour, mec="black", ms=7)
        right.plot(places, amp, "x", color="0.25", ms=7, mew=1.5)
    right.plot(grid, curve, color="black", lw=1.8, label="bound")
    right.plot(grid, 2 * curve, color="0.55", lw=1.3, ls=(0, (4, 3)), label="twice the bound")
    right.plot([], [], "o", mfc="white", mec="0.25", mew=1.6, ms=7, label="one run")
    right.plot([], [], "o", color="0.25", ms=7, label=f"mean of {N_INIT} runs")
    right.plot([], [], "x", color="0.25", ms=7, mew=1.5, label="message passing")
    left.set_xscale("log")
    ticks = [0.003, 0.01, 0.03, 0.1]
    left.set_xticks(ticks, [str(tick) for tick in ticks])
    left.minorticks_off()
    left.set(xlim=(0.002, 0.22), ylim=(0, 1.02), xlabel=r"$\alpha = n/d^2$", ylabel="estimation error $V$")
    left.set_title(f"mean of {N_INIT} runs, and the bound", loc="left")
    left.legend(loc="lower left")
    right.set(xlim=(0, 0.77), ylim=(0, 2.05), xlabel=r"$\alpha\,(T^2 + T - 2)$")
    right.set_title(f"all numbers of tokens together, $d = {N_FEATURES}$", loc="left")
    right.legend(loc="upper right")
plt.show()
