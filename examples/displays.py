"""
Six displays
============

What there is to see of a bound, of a fit and of its maps is drawn by displays, in scikit-learn's manner: class methods
such as `BoundDisplay.from_bound` and `BoundDisplay.from_estimator` compute what is to be seen and draw it, attributes
hold the artists. Here they are one by one, at sizes that take seconds; :doc:`/pictures` says when to use which.
"""

import matplotlib.pyplot as plt

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    AttentionMapDisplay,
    BayesOptimalBound,
    BoundDisplay,
    LayerOverlapDisplay,
    PhaseDiagramDisplay,
    SpectrumDisplay,
    TeacherError,
    TrajectoryDisplay,
    estimation_error,
    make_attention_sequences,
    make_deep_attention_sequences,
)

# %%
# Learning curves beside the bound
# --------------------------------
# `BoundDisplay.from_estimator` fits clones at growing sample sizes and predicts maps of sequences that were held out,
# three times. Bars tell how splits of these sequences differ; all are of one teacher.

N_FEATURES, WIDTH, NOISE = 100, 50, 0.1
X, y, S = make_attention_sequences(
    2200, n_tokens=3, n_features=N_FEATURES, width=WIDTH, noise=NOISE, random_state=0, return_interaction=True
)
train, fresh = slice(0, 2000), slice(2000, None)
amp = AMPAttentionRegressor(width=WIDTH, noise=NOISE)
BoundDisplay.from_estimator(amp, X[train], y[train], name="message passing")
plt.show()

# %%
# How teachers differ is seen on several of them: a row of errors a sample size, a column a teacher, and
# `BoundDisplay.from_predictions`.

alphas, errors = (0.02, 0.05, 0.1, 0.2), []
for alpha in alphas:
    errors.append([])
    for seed in range(4):
        data = make_attention_sequences(
            round(alpha * 60**2),
            n_tokens=3,
            n_features=60,
            width=30,
            noise=NOISE,
            random_state=seed,
            return_interaction=True,
        )
        fit = AMPAttentionRegressor(width=30, noise=NOISE).fit(*data[:2])
        errors[-1].append(estimation_error(data[2], fit.interaction_))
bound = BayesOptimalBound(width_ratio=0.5, n_tokens=3, noise=NOISE)
BoundDisplay.from_predictions(alphas, errors, bound, name="message passing")
plt.show()

# %%
# Message passing, iteration by iteration
# ---------------------------------------
# With `TeacherError` a fit notes its distance from the true interaction. `TrajectoryDisplay` puts it beside what state
# evolution says of infinitely many features, and what the fit itself believes. The fit is damped, and state
# evolution with it; true errors lie below both at first, and meet them.

amp.fit(X[train], y[train], callback=TeacherError(S))
TrajectoryDisplay.from_estimator(amp)
plt.show()

# %%
# What was learned
# ----------------
# The eigenvalues of the estimate, beside the density that theory gives them and the law of true ones. What is not known
# is shrunk: small eigenvalues stay near zero.

SpectrumDisplay.from_estimator(amp)
plt.show()

# %%
# Maps of fresh sequences
# -----------------------
# True above, predicted below, and their difference. Rows are queries, columns keys.

AttentionMapDisplay.from_estimator(amp, X[fresh], y[fresh], tokens=["the", "old", "map"])
plt.show()

# %%
# All widths at once
# ------------------
# `PhaseDiagramDisplay` needs no data: the bound over sample complexity and width. Without noise the layer is known
# exactly to the right of the orange line.

PhaseDiagramDisplay.from_bound(BayesOptimalBound(n_tokens=3))
plt.show()

# %%
# Layers of deep attention
# ------------------------
# Two layers of rank one, and the overlap of each with the true one: the last is learned first. Curves of two layers are
# averages over random tokens, for which ``effort`` says how many; with this little they are rough.

fits, weights = [], []
for alpha in (0.4, 0.6, 1.3):
    X, y, w = make_deep_attention_sequences(round(400 * alpha), n_features=400, random_state=0, return_weights=True)
    fits.append(AMPDeepAttentionRegressor(n_layers=2, random_state=0).fit(X, y))
    weights.append(w)
LayerOverlapDisplay.from_estimator(fits, weights=weights, effort=0.01)
plt.show()
