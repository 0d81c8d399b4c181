"""
A link of your own
==================

A link turns attention indices into the maps that are seen. Softmax, hardmax and identity are built in; another one is a
class of three methods, and message passing, the bound and the data sets know it from then on. Here a map counts how
strongly a query attends to a key on a scale of three marks: *less than usual*, *usual*, *more than usual*.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    BoundDisplay,
    estimation_error,
    make_attention_sequences,
    register_link,
)
from sklearn_aim.channels import LINKS, Channel
from sklearn_aim.channels.check import check_channel
from sklearn_aim.plotting import figure_style

# %%
# The three methods: ``link`` draws labels, ``encode`` checks them, and ``posterior`` answers, for Gaussian indices of
# mean omega and variance V c, how likely the labels are and where they move the mean,
# (E[h | y] - omega)/V. For intervals both follow from the normal distribution function.

EDGE = 0.7


class MarksChannel(Channel):
    """y_ab = -1, 0 or 1: the index is below -0.7, between, or above 0.7."""

    def link(self, indices):
        return np.sign(indices) * (np.abs(indices) > EDGE)

    def encode(self, y):
        if not np.isin(y, (-1, 0, 1)).all():
            raise ValueError("y must hold -1, 0 and 1 for link='marks'.")
        return y

    def posterior(self, code, omega, variance):
        sd = np.sqrt((variance + self.noise) * self.index_variance)
        low = np.where(code == -1, -np.inf, np.where(code == 0, -EDGE, EDGE))
        high = np.where(code == -1, -EDGE, np.where(code == 0, EDGE, np.inf))
        a, b = (low - omega) / sd, (high - omega) / sd
        # differences in the tail where both are small
        flip = a > 0
        a, b = np.where(flip, -b, a), np.where(flip, -a, b)
        p = np.maximum(ndtr(b) - ndtr(a), 1e-300)
        density = (np.exp(-0.5 * a**2) - np.exp(-0.5 * b**2)) / np.sqrt(2 * np.pi)
        gradient = self.index_variance * np.where(flip, -density, density) / (p * sd)
        log_p = np.log(p)
        # tied: h_ab and h_ba are one index
        return (np.triu(log_p) if self.tied else log_p).sum(axis=(1, 2)), gradient


LINKS.pop("marks", None)
register_link("marks", MarksChannel)

# %%
# A wrong posterior gives a wrong bound and an algorithm that diverges, so it is checked first: the check draws indices
# and labels, and tests what holds for the right posterior only. Numbers are deviations in units of what is allowed.

for test, deviation in check_channel("marks", n_tokens=2).items():
    print(f"{test:32s} {deviation:.2f}")

# %%
# The bound, and message passing on data with 80 features, one data set a point. As with hardmax, intervals never
# show the layer exactly; they show much more than which of two is larger.

# closer where the curves are steep
alphas = 0.6 * np.linspace(0, 1, 18) ** 1.5
N_FEATURES = 80
with figure_style():
    fig, ax = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for link, colour, marker, dashes in (("hardmax", "#D55E00", "s", (0, (4, 1.5))), ("marks", "#004D7A", "D", "-")):
        bound = BayesOptimalBound(0.5, link=link)
        points, errors = (0.1, 0.25, 0.5), []
        for alpha in points:
            X, y, S = make_attention_sequences(
                round(alpha * N_FEATURES**2),
                n_features=N_FEATURES,
                width=0.5,
                link=link,
                random_state=0,
                return_interaction=True,
            )
            errors.append(estimation_error(S, AMPAttentionRegressor(0.5, link=link).fit(X, y).interaction_))
        BoundDisplay(
            alpha=alphas, bound_error=bound.estimation_error(alphas), measured_alpha=points, errors=errors
        ).plot(
            ax,
            name=f"AMP, {link}",
            line_kw={"color": colour, "ls": dashes, "label": f"bound, {link}"},
            errorbar_kw={"fmt": marker, "mfc": colour},
        )
    ax.set(xlim=(0, 0.6), ylim=(0, 1.03))
    ax.set_title(f"Two tokens, $r/d = 0.5$, $d = {N_FEATURES}$", loc="left")
plt.show()
