"""AMPAttentionRegressor: Bayes-optimal learning of one full-width attention layer."""

import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim.algorithms.amp import amp
from sklearn_aim.estimators._base import MaskedAttentionRegressor
from sklearn_aim.kernels.indices import attention_indices
from sklearn_aim.kernels.threads import one_blas_thread
from sklearn_aim.parameters import check_flag, check_number, check_verbose, resolve_width
from sklearn_aim.priors import make_prior
from sklearn_aim.ragged import is_ragged
from sklearn_aim.sequences import kept_on_failure

# largest d at which message passing keeps BLAS to one thread
_ONE_THREAD = 256


class AMPAttentionRegressor(MaskedAttentionRegressor):
    r"""Learn one attention layer by approximate message passing.

    The model: y = link(h + noise) with attention indices
    :math:`h_{ab} = (x_a^\top S x_b - \delta_{ab} \mathrm{tr} S)/\sqrt d` of tokens with independent standard normal
    features (whiten others with `TokenWhitener`), and an interaction :math:`S = W W^\top/\sqrt{r d}` (tied keys and
    queries) or :math:`U V^\top/\sqrt{r d}` (untied). For data from the model the estimate approaches the posterior
    mean of S as d grows, whose error `BayesOptimalBound` gives and no method can beat.

    Parameters
    ----------
    width : int or float, default=1.0
        Width of keys and queries. An int is the width r, a float the width ratio r/d.
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
    n_tokens : int, optional
        Tokens of a sequence when X is 2-D, (n_samples, n_tokens * n_features). None: one token.
    damping : "adaptive" or float in [0, 1), default="adaptive"
        Fraction of the old estimate that is kept at each step. "adaptive" starts at 0.3 and keeps more where steps
        bring no progress, up to 0.7; 0 is plain message passing, which oscillates at finite d.
    clamp : bool, default=True
        Keep eigenvalues outside the limiting spectrum, which exist at finite d, from being amplified.
    max_iter : int, default=200
    tol : float, default=0.01
        Stop when the estimate moves by less than this fraction of its posterior standard deviation.
    warm_start : bool, default=False
        Start from the last fit, where its shape still fits and it went well. Most is saved where the first of the new
        sequences are those of the last fit, in the same order: see `fit_path`.
    verbose : int, default=0
        1 prints a summary, 2 a line for each iteration.

    Attributes
    ----------
    interaction_ : ndarray of shape (n_features, n_features)
        Estimate of S.
    width_ : int
        Width r.
    width_ratio_ : float
        r/d.
    estimation_error_ : float
        V, what the algorithm takes for E||S - interaction_||_F^2/d.
    overlap_ : float
        Q0 - V.
    information_ : float
        q_hat.
    noise_ : float
        Noise of the indices, given or estimated.
    sample_complexity_ : float
        alpha = n/d^2.
    history_ : dict of ndarray of shape (n_iter_,)
        "information" (q_hat), "estimation_error" (V), "overlap", "residual" (rms change of S in units of its own rms),
        "log_likelihood" (leave-one-out, a sequence), "energy_ratio" (1 if V fits the data), "damping", "noise", and
        what a callback returned.
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
        width=1.0,
        *,
        tied=True,
        link="softmax",
        inverse_temperature=1.0,
        noise=0.0,
        prior="auto",
        n_tokens=None,
        damping="adaptive",
        clamp=True,
        max_iter=200,
        tol=0.01,
        warm_start=False,
        verbose=0,
    ):
        self.width = width
        self.tied = tied
        self.link = link
        self.inverse_temperature = inverse_temperature
        self.noise = noise
        self.prior = prior
        self.n_tokens = n_tokens
        self.damping = damping
        self.clamp = clamp
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(self, X, y, callback=None, mask=None):
        """Learn the interaction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Sequences. 2-D X needs `n_tokens`, else each row is one token. Or a list of arrays (n_tokens, n_features)
            of unequal length, with a list y of their maps; see `pad_sequences`.
        y : array-like of shape (n_samples, n_tokens, n_tokens), flattened, or (n_samples,) for one token
            Attention maps: y[n, a, b] is query a, key b.
        callback : callable, optional
            Called after each iteration with a dict ("iteration", "interaction" and the columns of `history_`). A dict
            that it returns joins `history_`; see `TeacherError`.
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

    def _fit(self, X, y, mask, callback):
        damping, estimate = self._check_parameters()
        x, maps = self._check_fit(X, y)
        n_samples, n_tokens, n_features = x.shape
        if n_samples < 2:
            raise ValueError(f"n_samples = 1: found 1 sample, but {type(self).__name__} needs at least 2 sequences.")
        width, width_ratio = resolve_width(self.width, n_features)
        # the link's own word on numbers of tokens
        self._channel(n_tokens)
        allowed = self._learn_mask(mask, x)
        if allowed is None and self.link == "softmax" and (maps == 0).any():
            warnings.warn(
                "y holds zeros, which say of their indices only that they are small: they are taken as not seen. "
                "Where they come from masks pass mask to fit and predict.",
                UserWarning,
                stacklevel=3,
            )
            allowed = np.ones(maps.shape, bool)
        channel = self._channel(n_tokens, 0.0 if estimate else float(self.noise), allowed)
        code = channel.encode(maps)
        prior = make_prior(width_ratio, channel.tied, self.prior)
        started = time.perf_counter()
        # at small d a second BLAS thread costs more than it brings, above all on a busy machine
        with one_blas_thread(n_features <= _ONE_THREAD):
            result = amp(
                x,
                code,
                channel,
                prior,
                damping=damping,
                clamp=self.clamp,
                max_iter=self.max_iter,
                tol=self.tol,
                estimate_noise=estimate,
                start=self._warm_state(n_features, prior, code),
                callback=self._with_progress(callback),
            )
        self.interaction_ = result.interaction.astype(x.dtype, copy=False)
        self.width_ = width
        self.width_ratio_ = width_ratio
        self.estimation_error_ = float(result.estimation_error)
        self.overlap_ = prior.second_moment - self.estimation_error_
        self.information_ = float(result.information)
        self.noise_ = float(result.noise)
        self.sample_complexity_ = n_samples / n_features**2
        self.history_ = result.history
        self.converged_ = result.converged
        self.n_iter_ = result.n_iter
        self._memory = (code, result.gradient, self._setting()) if self.warm_start else (None, None, None)
        if self.verbose:
            state = "converged" if self.converged_ else "not converged"
            print(
                f"[AMP] {state} after {self.n_iter_} iterations, {time.perf_counter() - started:.2f} s: "
                f"V={self.estimation_error_:.4g}, alpha={self.sample_complexity_:.4g}"
            )
        if not self.converged_:
            stopped = (
                f"reached max_iter={self.max_iter}"
                if self.n_iter_ >= self.max_iter
                else f"stopped after {self.n_iter_} iterations without progress"
            )
            warnings.warn(
                f"AMP did not converge: it {stopped}, and keeps the iterate of the largest leave-one-out likelihood. "
                "noise='estimate', more data, another width, damping=0.7 or a larger max_iter may help; features that "
                "are not white do harm, see TokenWhitener.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _check_parameters(self):
        damping = self.damping
        if isinstance(damping, str):
            if damping != "adaptive":
                raise ValueError(f"damping={damping!r} must be 'adaptive' or a number in [0, 1).")
        elif check_number(damping, "damping") >= 1:
            raise ValueError(f"damping={damping!r} must be below 1: at 1 nothing is ever learned.")
        check_number(self.max_iter, "max_iter", low=1, integer=True)
        check_number(self.tol, "tol")
        check_verbose(self.verbose)
        check_flag(self.clamp, "clamp")
        check_flag(self.warm_start, "warm_start")
        if isinstance(self.noise, str):
            if self.noise != "estimate":
                raise ValueError(f"noise={self.noise!r} must be a number >= 0 or 'estimate'.")
            return damping, True
        check_number(self.noise, "noise")
        return damping, False

    def _warm_state(self, n_features, prior, code):
        if not (self.warm_start and hasattr(self, "interaction_") and self.interaction_.shape[0] == n_features):
            return None
        known, gradient, setting = self._memory
        seen = gradient is not None and len(known) <= len(code) and np.array_equal(known, code[: len(known)])
        if not self.converged_ and not (seen and setting == self._setting()):
            # where a run that went astray ended, another one goes astray
            return None
        start = self.interaction_.astype(np.float64)
        if prior.tied:
            start = 0.5 * (start + start.T)
        if seen:
            return start, min(self.estimation_error_, prior.prior_error), gradient
        # V is set back part of the way, since the data may be others
        return start, min(max(2 * self.estimation_error_, 0.1 * prior.prior_error), prior.prior_error), None

    def _setting(self):
        return self.width, self.tied, self.link, self.inverse_temperature, self.noise, self.prior

    def _with_progress(self, callback):
        if self.verbose < 2:
            return callback

        def report(state):
            print(
                f"[AMP] {state['iteration']:4d}  V={state['estimation_error']:.4g}  q_hat={state['information']:.4g}  "
                f"residual={state['residual']:.2e}  log-likelihood={state['log_likelihood']:.5g}"
            )
            return callback(state) if callback is not None else None

        return report

    def predict(self, X, return_std=False, mask=None):
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
        channel = self._channel(x.shape[1], self.noise_, self._allowed(mask, *x.shape[:2]))
        mean, second = channel.moments(x.collect(attention_indices, self.interaction_), self.estimation_error_)
        if not return_std:
            return self._answer(mean)
        return self._answer(mean), self._answer(np.sqrt(np.maximum(second - mean**2, 0)))
