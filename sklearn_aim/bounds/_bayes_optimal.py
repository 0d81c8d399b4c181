"""BayesOptimalBound: how well one full-width attention layer can be learned."""

import numbers
import warnings

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_aim.algorithms import state_evolution
from sklearn_aim.bounds._common import antisymmetric_threshold, check_alpha, check_damping, formula_threshold, number
from sklearn_aim.channels import make_channel
from sklearn_aim.kernels.masks import allowed_pairs
from sklearn_aim.parameters import Documented, check_flag, check_number, final_estimator
from sklearn_aim.priors import make_prior


class BayesOptimalBound(Documented, BaseEstimator):
    r"""Bayes-optimal errors of learning one attention layer from n sequences, d and n large, alpha = n/d^2 fixed.

    No method, however long it computes, has a smaller average error on data of this kind; `AMPAttentionRegressor`
    attains it.

    Parameters
    ----------
    width_ratio : float, default=1.0
        rho = r/d. 0 is the limit of small width, in which alpha counts n/(d r).
    tied : bool, default=True
        Keys and queries share their weights.
    n_tokens : int, default=2
        T.
    link : str, default="softmax"
        "identity", "softmax", "hardmax" or a registered link.
    inverse_temperature : float, default=1.0
        beta of the softmax link. It changes `test_error` alone.
    noise : float, default=0.0
        Variance scale Delta of the index noise.
    prior : str, default="auto"
        Law of S; "auto" is that of Gaussian factors, else a key of `sklearn_aim.priors.PRIORS`.
    mask : None, "causal" or ndarray, default=None
        Which keys a query may attend to, softmax and identity; an array of shape (n_samples, n_tokens) (padding) or
        (n_samples, n_tokens, n_tokens), whose sequences stand for all, or (n_tokens, n_tokens), pairs.

    Notes
    -----
    `alpha` is a number or an array everywhere, and answers have its shape. After `from_estimator` it may be left
    out: the estimator's own sample complexity is used.

    Where E||G||^2 is a constant over V + Delta (identity, softmax) the fixed point is the root of one increasing
    function, found by bracketing; the spectral integrals are adaptive, to 1e-12. Hardmax averages at two tokens are
    good to 1e-7; at three and more they are quasi-Monte Carlo averages over orthant probabilities good to 1e-5, and
    take from seconds (3 tokens) to a minute (6) when first needed. `estimation_error(..., return_error=True)` reports.

    Untied layers: all T^2 indices are counted as informing on all d^2 entries of S alike, though the T diagonal ones
    see its symmetric part alone. For softmax without noise the error is right all the same (exactly so for wide
    layers, where it is the rank of a linear system; message passing agrees to a per cent). Otherwise the value is
    optimistic: at hardmax, T = 2, message passing ends up to 20 per cent above it. For the identity link it fails near
    recovery, which `recovery_threshold` counts correctly, and a warning says so. docs/untied.md derives it.

    References
    ----------
    arXiv:2506.01582, sections 3 and 4; the hardmax channel there is not the posterior's (see the README).

    Examples
    --------
    >>> from sklearn_aim import BayesOptimalBound
    >>> bound = BayesOptimalBound(width_ratio=0.5, n_tokens=2)
    >>> round(float(bound.estimation_error(0.1)), 4)
    0.3922
    >>> bound.recovery_threshold()
    0.1875
    >>> bound.sample_size(0.1281309, n_features=100)
    1500
    """

    def __init__(
        self,
        width_ratio: float = 1.0,
        *,
        tied: bool = True,
        n_tokens: int = 2,
        link: str = "softmax",
        inverse_temperature: float = 1.0,
        noise: float = 0.0,
        prior: str = "auto",
        mask: ArrayLike | str | None = None,
    ):
        self.width_ratio = width_ratio
        self.tied = tied
        self.n_tokens = n_tokens
        self.link = link
        self.inverse_temperature = inverse_temperature
        self.noise = noise
        self.prior = prior
        self.mask = mask

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, X: ArrayLike | None = None) -> "BayesOptimalBound":
        """Bound of the setting that a fitted estimator assumed.

        Parameters
        ----------
        estimator : fitted estimator of one layer (gradient descent: noiseless maps), or pipeline that ends in one
        X : array-like, optional
            Sequences, whose number sets the sample complexity; default: those of `fit`.

        Returns
        -------
        BayesOptimalBound
            With ``sample_complexity_``, the alpha used where none is given.
        """
        estimator = final_estimator(estimator)
        if not hasattr(type(estimator), "predict_index") or not hasattr(estimator, "n_tokens_"):
            check_is_fitted(estimator)
            raise TypeError(f"estimator={estimator!r} learns no interaction: there is no bound to compare with.")
        check_is_fitted(estimator, "interaction_")
        model = getattr(estimator, "n_layers", 1), getattr(estimator, "scaling", "attention-index")
        if model != (1, "attention-index"):
            raise ValueError(f"n_layers, scaling = {model}: the bound is for one layer of scaling 'attention-index'.")
        bound = cls(
            estimator.width_ratio_,
            tied=estimator.tied,
            n_tokens=estimator.n_tokens_,
            link=estimator.link,
            inverse_temperature=estimator.inverse_temperature,
            noise=getattr(estimator, "noise_", 0.0),
            mask=getattr(estimator, "mask_", None),
            prior=getattr(estimator, "prior", "auto"),
        )
        alpha = estimator.sample_complexity_
        bound.sample_complexity_ = alpha if X is None else len(X) / estimator.interaction_.size
        return bound

    def _model(self):
        check_number(self.width_ratio, "width_ratio")
        if isinstance(self.width_ratio, numbers.Integral) and self.width_ratio > 1:
            raise ValueError(
                f"width_ratio={self.width_ratio!r} is the ratio r/d, not the width r: divide by n_features. "
                f"For a ratio this large write {float(self.width_ratio)!r}."
            )
        check_number(self.noise, "noise")
        check_number(self.inverse_temperature, "inverse_temperature", strict=True)
        check_number(self.n_tokens, "n_tokens", low=1, integer=True)
        tied = check_flag(self.tied, "tied")
        shared = self.mask is None or isinstance(self.mask, str) or np.shape(self.mask) == (self.n_tokens,) * 2
        allowed = allowed_pairs(self.mask, 1 if shared else len(self.mask), int(self.n_tokens))
        channel = make_channel(
            self.link,
            int(self.n_tokens),
            allowed=allowed,
            tied=tied,
            noise=self.noise,
            inverse_temperature=self.inverse_temperature,
        )
        if allowed is not None and channel.rank == 0:
            raise ValueError("mask leaves nothing to learn from: no row has two keys whose weights could be compared.")
        return channel, make_prior(float(self.width_ratio), tied, self.prior)

    def _solve(self, alpha):
        """Channel, prior, and q_hat and V in the shape of alpha."""
        channel, prior = self._model()
        values = check_alpha(self, alpha, "n/d^2")
        linear = channel.information_constant is not None
        if linear and values.any() and antisymmetric_threshold(channel, prior) > formula_threshold(channel, prior):
            warnings.warn(
                f"for tied=False and link={self.link!r} the bound is optimistic, above all near and beyond the sample "
                f"complexity {formula_threshold(channel, prior):.4g}: diagonal indices, which see the symmetric part "
                "of the interaction alone, are counted as if they saw all of it.",
                UserWarning,
                stacklevel=3,
            )
        information, error = state_evolution.fixed_point(channel, prior, values.ravel())
        return channel, prior, values, information.reshape(values.shape), error.reshape(values.shape)

    def estimation_error(self, alpha: ArrayLike | None = None, *, return_error: bool = False):
        """V = E||S - S_hat||_F^2/d, between 1 (no data) and 0.

        Parameters
        ----------
        alpha : float or array-like, optional
            Sample complexity n/d^2 (n/(d r) at ``width_ratio=0``).
        return_error : bool, default=False
            Also return an estimate of the numerical error.

        Returns
        -------
        float or ndarray
        """
        channel, prior, values, information, error = self._solve(alpha)
        if not return_error:
            return number(error)
        spread = np.zeros(values.shape)
        for i in np.ndindex(values.shape):
            if 0 < information[i] < np.inf:
                spread[i] = state_evolution.error_estimate(channel, prior, values[i], information[i], error[i])
        return number(error), number(spread)

    def overlap(self, alpha: ArrayLike | None = None) -> float | np.ndarray:
        """q = Q0 - V."""
        _, prior, _, _, error = self._solve(alpha)
        return number(prior.second_moment - error)

    def information(self, alpha: ArrayLike | None = None) -> float | np.ndarray:
        """q_hat, the precision of the equivalent Gaussian observation of S (q_hat/rho at ``width_ratio=0``)."""
        return number(self._solve(alpha)[3])

    def test_error(self, alpha: ArrayLike | None = None, *, return_error: bool = False):
        """E||y - E[y|data]||_F^2 of a new sequence under the posterior-mean prediction, index noise included.

        Parameters
        ----------
        alpha : float or array-like, optional
        return_error : bool, default=False
            Also return an estimate of the numerical error of the average.

        Returns
        -------
        float or ndarray
        """
        channel, prior, values, _, error = self._solve(alpha)
        out, spread = np.empty(values.shape), np.empty(values.shape)
        for i in np.ndindex(values.shape):
            value, spread[i] = channel.test_error(error[i], max(prior.second_moment - error[i], 0.0))
            out[i] = max(value, 0.0)
        return (number(out), number(spread)) if return_error else number(out)

    def free_entropy(self, alpha: ArrayLike | None = None) -> float | np.ndarray:
        """Free entropy per d^2 (per d r at ``width_ratio=0``), extremised: E log P(y|X) up to what depends on y alone.

        Its derivative in alpha is E log Z of a sequence. Infinite where S is recovered exactly from
        continuous labels.
        """
        channel, prior, values, information, error = self._solve(alpha)
        out = np.full(values.shape, np.inf)
        for i in np.ndindex(values.shape):
            if np.isfinite(information[i]):
                out[i] = state_evolution.free_entropy(channel, prior, values[i], error[i])
        return number(out)

    def mutual_information(self, alpha: ArrayLike | None = None) -> float | np.ndarray:
        """I(S; y | X) per d^2 in nats (per d r at ``width_ratio=0``).

        Infinite for continuous labels without noise.
        """
        channel, prior = self._model()
        values = check_alpha(self, alpha, "n/d^2")
        entropy = channel.label_entropy(prior.second_moment)
        if not np.isfinite(entropy):
            return number(np.where(values > 0, np.inf, 0.0))
        return number(-values * entropy - np.asarray(self.free_entropy(values)))

    def state_evolution(
        self, alpha: ArrayLike | None = None, *, n_iter: int = 30, damping: ArrayLike = 0.0
    ) -> dict[str, np.ndarray]:
        """Trajectory of message passing from no knowledge, for plots.

        Parameters
        ----------
        alpha : float, optional
        n_iter : int, default=30
        damping : float or array-like of shape (n_iter,), default=0.0
            Fraction of the old V kept at each step, as in ``history_["damping"]`` of a fit.

        Returns
        -------
        dict of ndarray of shape (n_iter,)
            "information", "estimation_error", "overlap" after each step.
        """
        check_number(n_iter, "n_iter", low=1, integer=True)
        values = check_alpha(self, alpha, "n/d^2")
        if values.ndim:
            raise ValueError(f"alpha={alpha!r} must be one number for a trajectory.")
        kept = check_damping(damping, n_iter)
        channel, prior = self._model()
        return state_evolution.iterate(channel, prior, float(values), kept)

    def recovery_threshold(self) -> float:
        """Least alpha with V = 0: (2 rho - rho^2)/k for rho <= 1, 1/k above; infinite with noise or discrete labels.

        k is lim E||G||^2 V: T^2 + T - 2 (softmax) or T(T+1) (identity) tied, T(T-1) or T^2 untied; for links of your
        own it is found numerically. Untied, the
        antisymmetric part must be determined by the T(T-1)/2 antisymmetric indices of a sequence, too; with the
        identity link that takes more sequences.
        """
        channel, prior = self._model()
        if channel.noise > 0:
            return np.inf
        return max(formula_threshold(channel, prior), antisymmetric_threshold(channel, prior))

    def weak_recovery_threshold(self) -> float:
        """Least alpha above which V < V(0): 0 at any width ratio, positive in the small-width limit."""
        channel, prior = self._model()
        if self.width_ratio > 0:
            return 0.0
        return 1 / channel.information(prior.prior_error, 0.0)[0]

    def sample_size(self, error: float, n_features: int, *, width: int | None = None) -> int:
        """Sequences needed for a given estimation error.

        Parameters
        ----------
        error : float
            V between 0 (exact recovery) and 1.
        n_features : int
            d.
        width : int, optional
            r, needed at ``width_ratio=0`` only.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            If no sample size reaches the error.
        """
        check_number(error, "error", high=1.0)
        check_number(n_features, "n_features", low=1, integer=True)
        if error == 0:
            threshold = self.recovery_threshold()
            if not np.isfinite(threshold):
                raise ValueError("error=0 is not reached by any number of sequences here: ask for a positive error.")
            alpha = threshold
        else:
            alpha = state_evolution.sample_complexity(*self._model(), float(error))
        if self.width_ratio > 0:
            scale = n_features**2
        elif isinstance(width, numbers.Integral) and width >= 1:
            scale = n_features * width
        else:
            raise ValueError(f"width={width!r} must be an int >= 1 where width_ratio=0, since alpha counts n/(d r).")
        size = float(alpha) * scale
        if not np.isfinite(size):
            raise ValueError(f"error={error!r} takes more sequences than can be counted at noise={self.noise!r}.")
        # rounding of alpha must not cost a sequence
        return int(np.ceil(size * (1 - 1e-9)))
