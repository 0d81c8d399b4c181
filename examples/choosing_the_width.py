"""
Choosing the width by cross-validation, with the bound beside it
================================================================

The width of keys and queries is a parameter like any other: a grid search over a pipeline finds it. What a search
cannot say is whether its winner is good, or only the best of what was tried. The bound can.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    PositionMeanRegressor,
    TokenWhitener,
    attention_error,
    make_attention_sequences,
    neg_attention_error_scorer,
)
from sklearn_aim.plotting import figure_style

# %%
# A layer of width 18 over 60 features, raw features that are mixed, and noisy maps. The noise is not told.

N_FEATURES, WIDTH = 60, 18
rng = np.random.default_rng(0)
X, y = make_attention_sequences(4000, n_features=N_FEATURES, width=WIDTH, noise=0.3, random_state=0)
raw = X @ (np.eye(N_FEATURES) + 0.3 * rng.standard_normal((N_FEATURES, N_FEATURES)))
train, fresh = slice(0, 2000), slice(2000, None)

# %%
# The search: whiten, fit, score on held-out sequences. Whitening is part of the pipeline, so that held-out sequences
# have no part in it.

pipe = make_pipeline(TokenWhitener(), AMPAttentionRegressor(noise="estimate"))
widths = [2, 4, 8, 12, 18, 27, 40, 60, 90]
search = GridSearchCV(pipe, {"ampattentionregressor__width": widths}, scoring=neg_attention_error_scorer, cv=4)
search.fit(raw[train], y[train])
best = search.best_params_["ampattentionregressor__width"]
noise = search.best_estimator_[-1].noise_
print(f"width {best} (true: {WIDTH}), noise {noise:.2f} (true: 0.3)")

# %%
# The bound of the winner, on all 2000 sequences; and for the curve, of every width at the size of a training fold: what
# a layer of *that* width would allow.

reached = attention_error(y[fresh], search.predict(raw[fresh]))
bound = BayesOptimalBound.from_estimator(search)
baseline = PositionMeanRegressor().fit(raw[train], y[train]).predict(raw[fresh])
print(f"test error {reached:.4f}, bound {bound.test_error():.4f}, mean map {attention_error(y[fresh], baseline):.4f}")
fold = 0.75 * bound.sample_complexity_
limit = BayesOptimalBound(WIDTH / N_FEATURES, noise=0.3).test_error(fold)

# %%
# Too narrow misses what is there, too wide is too vague a guess of it; between half and one and a half times the true
# width the choice matters little. The held-out errors of a search stand somewhat above the line: with 60 features by a
# few per cent on average, the rest is this draw of held-out maps. On fresh ones, printed above, the winner is on its
# bound.

errors = -search.cv_results_["mean_test_score"]
spread = search.cv_results_["std_test_score"] / np.sqrt(search.n_splits_)
with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    ax.errorbar(widths, errors, spread, fmt="o-", color="#004D7A", mec="black", ms=7, capsize=3, label="4-fold search")
    ax.plot(best, errors[widths.index(best)], "*", color="#D55E00", mec="black", ms=18, label=f"chosen: {best}")
    ax.axhline(limit, color="black", lw=1.8, ls=(0, (4, 2)), label="bound, true width and noise")
    ax.set_xscale("log")
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ax.set(xlabel="width $r$ of keys and queries", ylabel="test error of held-out maps")
    ax.set_title(f"{N_FEATURES} features, true width {WIDTH}, 1500 sequences a fold", loc="left")
    ax.legend()
plt.show()

# %%
# Without a grid
# --------------
# ``width="auto"`` asks for the fewest singular values that predict held-out sequences as well as any number does. It is
# one fit in place of a search; where the smallest singular values drown in noise it leaves them out.

auto = make_pipeline(TokenWhitener(), AMPAttentionRegressor(width="auto", noise="estimate")).fit(raw[train], y[train])
print(f"width {auto[-1].width_}, test error {attention_error(y[fresh], auto.predict(raw[fresh])):.4f}")
