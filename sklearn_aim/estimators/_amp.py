"""AMPAttentionRegressor: Bayes-optimal learning of one full-width attention layer."""

from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sklearn_aim.estimators._message_passing import MessagePassingRegressor
from sklearn_aim.ragged import is_ragged
from sklearn_aim.sequences import kept_on_failure


class AMPAttentionRegressor(MessagePassingRegressor):
    r"""Learn one attention layer by approximate message passing.

    The model: y = link(h + noise) with attention indices
    :math:`h_{ab} = (x_a^\top S x_b - \delta_{ab} \mathrm{tr} S)/\sqrt d` of tokens with independent standard normal
    features (whiten others with `TokenWhitener`), and an interaction :math:`S = W W^\top/\sqrt{r d}` (tied keys and
    queries) or :math:`U V^\top/\sqrt{r d}` (untied). For data from the model the estimate approaches the posterior
    mean of S as d grows, whose error `BayesOptimalBound` gives and no method can beat.

    Parameters
    ----------
    width : int, float or "auto", default=1.0
        Width of keys and queries. An int is the width r, a float the width ratio r/d. "auto": the fewest singular
        values with which an annealed fit (see `solver`) predicts held-out sequences as well as with any number, within
        one standard error; softmax and identity.
    tied : bool, default=True
        Keys and queries share their weights, so that S is symmetric.
    link : str, default="softmax"
        "identity", "softmax", "hardmax" (at most 6 tokens when tied), or a name given to `register_link`.
    inverse_temperature : float, default=1.0
        beta of the softmax link.
    noise : float or "estimate", default=0.0
        Variance scale of the noise on the indices, off the diagonal. "estimate" fits it to the data.
    prior : str, default="auto"
        Law of S. "auto": Gaussian factors, as above; or a key of `sklearn_aim.priors.PRIORS`.
    fit_bias : bool, default=False
        Learn a key bias b and an offset tau of the diagonal, which add b^T x_b/sqrt(d) + delta_ab tau to h_ab, by exact
        least squares at each step; softmax and identity. It takes n_features + 1 of the combinations of indices that
        the sequences show: without need, n too small suffers most. Heads of transformers, and tokens that are not
        centred, need it.
    whiten : None or float, default=None
        Ridge of a `TokenWhitener` that X passes first; 0 is exact whitening. `interaction_` and `bias_` are for X as it
        is passed. Tokens that are white already suffer from the noise of their sample covariance. None: no whitening.
    solver : "amp", "annealed" or "linear", default="amp"
        "amp": message passing, Bayes-optimal for tokens of independent standard normal features. "annealed": linear
        estimation with the tokens' own covariance alternated with shrinkage of singular values to the width, from much
        noise to little; for tokens of any law, softmax and identity. On the sequences that it holds out it is never
        worse than linear (ridge) estimation, its start. It answers with a point estimate, needs no `damping`, `clamp`,
        `prior`, and knows no warm start. "linear": that start alone, S of any rank; a baseline.
    n_tokens : int, optional
        Tokens of a sequence when X is 2-D, (n_samples, n_tokens * n_features). None: one token.
    damping : "adaptive" or float in [0, 1), default="adaptive"
        Fraction of the old estimate that is kept at each step. "adaptive" starts at 0.3 and keeps more where steps
        bring no progress, up to 0.7; 0 is plain message passing, which oscillates at finite d.
    clamp : bool, default=True
        Keep eigenvalues outside the limiting spectrum, which exist at finite d, from being amplified.
    max_iter : int, default=200
        Iterations; "annealed": stages, each of 8 steps of conjugate gradients.
    tol : float, default=0.01
        Stop when the estimate moves by less than this fraction of its posterior standard deviation. "annealed" stops
        when held-out sequences are predicted no better for some stages, or with residuals of tol^2.
    warm_start : bool, default=False
        Start from the last fit, where its shape still fits and it went well. Most is saved where the first of the new
        sequences are those of the last fit, in the same order: see `fit_path`.
    verbose : int, default=0
        1 prints a summary, 2 a line for each iteration.

    Attributes
    ----------
    interaction_ : ndarray of shape (n_features, n_features)
        Estimate of S, for the features of X.
    bias_ : ndarray of shape (n_features,)
        Key bias b, for the features of X, the part that comes from a whitener's mean included; else zeros.
    diagonal_ : float
        Offset of the diagonal: h_ab = (x_a^T S x_b - delta_ab tr S + b^T x_b)/sqrt(d) + delta_ab tau, up to what is the
        same for all keys.
    whitener_ : TokenWhitener
        Only with `whiten`.
    width_ : int
        Width r.
    width_ratio_ : float
        r/d.
    estimation_error_ : float
        V, what the algorithm takes for E||S - interaction_||_F^2/d; "annealed": the mean square of held-out residuals,
        a combination of indices, less the noise given, in the same units. Of whitened features, with `whiten`.
    overlap_ : float
        Q0 - V; "annealed": ||S||_F^2/d.
    information_ : float
        q_hat.
    noise_ : float
        Noise of the indices, given or estimated.
    sample_complexity_ : float
        alpha = n/d^2.
    history_ : dict of ndarray of shape (n_iter_,)
        "information" (q_hat), "estimation_error" (V), "overlap", "residual" (rms change of S in units of its own rms),
        "log_likelihood" (leave-one-out, a sequence), "energy_ratio" (1 if V fits the data), "damping", "noise", and
        what a callback returned. "annealed": "held_out_square" (of residuals, a combination), "width", "noise_level".
    diagnostics_ : dict
        How far what message passing assumes holds. Of up to half a million entries of the (whitened) tokens, where
        independent standard normal ones have 0, 1, 1, 0, 0: "token_mean" (mean square of the features' means),
        "token_power", "token_norm_spread" (standard deviation of squared norms in units of sqrt(2/d)),
        "token_kurtosis" (excess), "position_mean" (largest mean square of the mean token at a position). Of the fit:
        "energy_ratio" (squared residuals over what V says), "coverage" (share of the entries of y in 90 per cent
        intervals, predicted from the other sequences); None after exact recovery, where nothing is left to check.
        "failed": names of those that are off by more than chance and taste.
    mask_ : None, "causal" or ndarray
        Mask of `fit`.
    converged_ : bool
    n_iter_ : int
    n_tokens_ : int
    n_features_in_ : int
        Features of a token for 3-D X, columns of X for 2-D X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only for 2-D X with names.

    Notes
    -----
    Cost of an iteration: two matrix products, 4 n T d^2 operations, and one symmetric eigendecomposition (tied) or one
    singular value decomposition (untied) of a d x d matrix. Memory: X and O(n T^2 + d^2).

    The number of tokens may differ between `fit` and `predict` when X is 3-D: S does not depend on it.

    With solver="annealed" or width="auto" an iteration is about nine times two products, and 15 per cent of the
    sequences, always the same, are held out at first; the last stages learn from all of them.

    References
    ----------
    "Bayes optimal learning of attention-indexed models", arXiv:2506.01582. Untied layers, the clamp and
    the damping are this project's.

    Examples
    --------
    >>> from sklearn_aim import AMPAttentionRegressor, make_attention_sequences
    >>> X, y = make_attention_sequences(3000, n_tokens=2, n_features=60, width=0.3, random_state=0)
    >>> est = AMPAttentionRegressor(width=0.3).fit(X, y)
    >>> bool(est.score(X, y) > 0.99)
    True
    """

    def __init__(
        self,
        width: int | float | str = 1.0,
        *,
        tied: bool = True,
        link: str = "softmax",
        inverse_temperature: float = 1.0,
        noise: float | str = 0.0,
        prior: str = "auto",
        fit_bias: bool = False,
        whiten: float | None = None,
        solver: str = "amp",
        n_tokens: int | None = None,
        damping: float | str = "adaptive",
        clamp: bool = True,
        max_iter: int = 200,
        tol: float = 0.01,
        warm_start: bool = False,
        verbose: int = 0,
    ):
        self.width = width
        self.tied = tied
        self.link = link
        self.inverse_temperature = inverse_temperature
        self.noise = noise
        self.prior = prior
        self.fit_bias = fit_bias
        self.whiten = whiten
        self.solver = solver
        self.n_tokens = n_tokens
        self.damping = damping
        self.clamp = clamp
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, callback: Callable | None = None, mask: ArrayLike | str | None = None
    ) -> Self:
        """Learn the interaction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Sequences. 2-D X needs `n_tokens`, else each row is one token. Or a list of arrays (n_tokens, n_features)
            of unequal length, with a list y of their maps; see `pad_sequences`.
        y : array-like of shape (n_samples, n_tokens, n_tokens), flattened, or (n_samples,) for one token
            Attention maps: y[n, a, b] is query a, key b.
        callback : callable, optional
            Called after each iteration with a dict ("iteration", "interaction", of whitened features with `whiten`, and
            the columns of `history_`). A dict that it returns joins `history_`; see `TeacherError`.
        mask : None, "causal" or ndarray, default=None
            Which keys a query may attend to, softmax and identity. "causal": itself and those before it. Of shape
            (n_samples, n_tokens): True for tokens, False for padding. Of shape (n_samples, n_tokens, n_tokens) or
            (n_tokens, n_tokens): True where query a may attend to key b. y must be 0 elsewhere.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            For parameters or data that the model excludes; the message names them.
        """
        with kept_on_failure(self):
            return self._fit_padded(self._fit, X, y, mask, callback)

    def predict_index(self, X: ArrayLike) -> np.ndarray:
        """Attention indices of the learned interaction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_tokens)
            h_ab = (x_a^T S x_b - delta_ab tr S)/sqrt(d), the posterior mean of the indices, of whitened tokens with
            `whiten`; key bias and offset of the diagonal included.
        """
        return self._indices(self._check_predict(X))

    def predict(
        self, X: ArrayLike, return_std: bool = False, mask: ArrayLike | str | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior-mean attention maps: E[link(h + noise)], h around the learned indices with variance V.

        Plugging the learned indices into the link is not optimal (see `predict_index`).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        return_std : bool, default=False
            Also return the posterior standard deviation of every entry.
        mask : None, "causal" or ndarray, default=None
            As in `fit`. None: "causal" or a mask of shape (n_tokens, n_tokens) goes on from `fit`, others don't.

        Returns
        -------
        maps : ndarray
            In the shape that y had in `fit`.
        std : ndarray of the same shape
            Only if `return_std`.
        """
        if is_ragged(X):
            return self._by_length(self.predict, X, mask, return_std=return_std)
        x = self._check_predict(X)
        allowed = self._allowed(mask, *x.shape[:2])
        channel = self._channel(x.shape[1], self.noise_, allowed)
        mean, second = channel.moments(self._indices(x, allowed), self.estimation_error_)
        if not return_std:
            return self._answer(mean)
        return self._answer(mean), self._answer(np.sqrt(np.maximum(second - mean**2, 0)))
