"""AMPDeepAttentionRegressor: Bayes-optimal learning of several attention layers of rank one."""

import time
import warnings
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim.algorithms.deep_amp import deep_amp
from sklearn_aim.channels.deep import DeepChannel
from sklearn_aim.estimators._base import AttentionRegressor
from sklearn_aim.estimators._deep_start import starting_point
from sklearn_aim.estimators._sizes import check_indices, check_tokens
from sklearn_aim.kernels.indices import layer_indices
from sklearn_aim.kernels.threads import ONE_THREAD, one_blas_thread
from sklearn_aim.parameters import LARGEST, check_flag, check_inverse_temperature, check_number, check_verbose
from sklearn_aim.sequences import kept_on_failure

# indices whose products, over the layers, are sure to be finite
_LARGEST_INDEX = 1e150
# posterior variance below which errors of integrals do not matter
_KNOWN = 1e-6
# mean error of the integrals above which a warning is due
_INACCURATE = 0.1


class AMPDeepAttentionRegressor(AttentionRegressor):
    r"""Learn several attention layers with one query-key vector each by approximate message passing.

    The model, of tokens with independent standard normal features (whiten others with `TokenWhitener`): with
    :math:`z_l = X w_l/\sqrt d`, :math:`B_0 = I` and :math:`u_l = B_{l-1} z_l`,

    .. math:: B_l = [c I + \mathrm{softmax}(\beta u_l u_l^\top)] B_{l-1}, \qquad
              y = \mathrm{softmax}(\beta u_L u_L^\top),

    without noise, from n of order d sequences (`make_deep_attention_sequences`). For data from the model the estimate
    approaches the posterior mean of the w_l as d grows, whose overlap `DeepBayesOptimalBound` gives.

    Parameters
    ----------
    n_layers : int, default=2
        L: 1 with any number of tokens, 2 with up to four, 3 with two.
    skip : float, default=1.0
        Skip strength c >= 0.
    inverse_temperature : float, default=1.0
        beta.
    init : "random" or array-like of shape (n_layers, n_features), default="random"
        Start. An array is taken as an estimate of the weights whose mean squares are its overlaps: near 1 for the
        weights themselves. A layer of zeros starts at random.
    n_tokens : int, optional
        Tokens of a sequence when X is 2-D, (n_samples, n_tokens * n_features).
    damping : float in [0, 1), default=0.3
        Fraction of the old estimate that is kept at each step; 0 is plain message passing, which may oscillate at
        finite d.
    max_iter : int, default=200
    tol : float, default=0.01
        Stop when every layer moves by less than this fraction of its posterior standard deviation, and none is about to
        be learned.
    warm_start : bool, default=False
        Start from the last fit, where its shape still fits.
    verbose : int, default=0
        1 prints a summary, 2 a line for each iteration.
    random_state : int, RandomState or None, default=None
        Of the random start.

    Attributes
    ----------
    weights_ : ndarray of shape (n_layers, n_features)
        Posterior means of the w_l. Each is identifiable up to its sign (see `align_signs`); a layer that is not learned
        has a small norm and an arbitrary direction.
    posterior_covariance_ : ndarray of shape (n_layers, n_layers)
        V: covariance of the layers' weights, the same for every feature.
    overlap_ : ndarray of shape (n_layers, n_layers)
        Q = I - V, 0 for a layer that is not learned and 1 for one that is known.
    interaction_ : ndarray of shape (n_layers, n_features, n_features)
        w_l w_l^T/sqrt(d), computed when asked for.
    sample_complexity_ : float
        alpha = n/d.
    n_undetermined_ : int
        Sequences left out, since their tokens agree within the precision of y.
    history_ : dict of ndarray, first axis of length n_iter_
        "overlap" (L, L), "weight_norm" (L, mean squares of the weights), "residual" (L, in posterior standard
        deviations), "log_likelihood" (leave-one-out, a sequence), "energy_ratio" (L, 1 if V fits the data),
        "integration_error" (mean estimate), and what a callback returned.
    converged_ : bool
    n_iter_ : int
    n_tokens_ : int
    n_features_in_ : int
        Features of a token for 3-D X, columns of X for 2-D X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only for 2-D X with names.

    Notes
    -----
    An iteration costs two products with X, 4 n T L d operations, and for each sequence an integral over the layers
    below the last: about 20 microseconds for two layers over two tokens, a millisecond for three or four tokens, a
    tenth of one for three layers. The integrals are adaptive lattice rules (two layers) and importance sampling (three
    layers), each with an estimate of its error; they run in threads, with the same result for any number of them.

    Below the sample complexity at which a layer can be learned (`DeepBayesOptimalBound.weak_recovery_thresholds`)
    its weights stay near zero. Near it, and at small d, another `random_state` may succeed where one fails;
    compare ``history_["log_likelihood"][-1]``.

    References
    ----------
    "Fundamental limits of learning in sequence multi-index models and deep attention networks", arXiv:2502.00901. There
    V follows from squares of g; here from its derivative, which a random start needs.

    Examples
    --------
    >>> from sklearn_aim import AMPDeepAttentionRegressor, cosine_similarity, make_deep_attention_sequences
    >>> X, y, weights = make_deep_attention_sequences(600, n_features=400, random_state=0, return_weights=True)
    >>> est = AMPDeepAttentionRegressor(n_layers=2, random_state=1).fit(X, y)
    >>> bool(cosine_similarity(est, weights)[1] > 0.99)
    True
    """

    #: layers have rank one and indices z_l = X w_l/sqrt(d), as in `GDAttentionRegressor(scaling="sequence-index")`
    scaling = "sequence-index"

    def __init__(
        self,
        n_layers: int = 2,
        skip: float = 1.0,
        *,
        inverse_temperature: float = 1.0,
        init: ArrayLike | str = "random",
        n_tokens: int | None = None,
        damping: float = 0.3,
        max_iter: int = 200,
        tol: float = 0.01,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.n_layers = n_layers
        self.skip = skip
        self.inverse_temperature = inverse_temperature
        self.init = init
        self.n_tokens = n_tokens
        self.damping = damping
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, callback: Callable | None = None) -> Self:
        """Learn the weights of every layer.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Sequences. 2-D X needs `n_tokens`.
        y : array-like of shape (n_samples, n_tokens, n_tokens), or flattened
            Attention maps of the last layer: y[n, a, b] is query a, key b.
        callback : callable, optional
            Called after each iteration with a dict ("iteration", "weights", "covariance" and the columns of
            `history_`). A dict that it returns joins `history_`.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            For parameters or data that the model excludes; the message names them. Maps with noise are among these, as
            far as they show it: of two tokens any map is of the model's form whose log-ratios log(y_aa/y_ab) have a
            positive sum.
        """
        with kept_on_failure(self):
            return self._fit(X, y, callback)

    def _fit(self, X, y, callback):
        self._check_parameters()
        x, maps = self._check_fit(X, y)
        n_samples, n_tokens, n_features = x.shape
        channel = self._deep_channel(n_tokens)
        channel.check_size()
        if n_samples < 2:
            raise ValueError(f"n_samples = 1: found 1 sample, but {type(self).__name__} needs at least 2 sequences.")
        check_tokens(x)
        if maps.dtype == np.float32 and getattr(y, "dtype", None) != np.float32:
            # maps in the precision that they came in: what is small in them counts
            maps = np.asarray(y, dtype=np.float64).reshape(maps.shape)
        u, known = channel.encode(maps)
        if not known.any():
            raise ValueError(
                "y shows nothing: within its precision all its maps are those of tokens that agree. Pass y in double "
                "precision, and sequences whose tokens differ."
            )
        weights, covariance = self._start(n_features)
        started = time.perf_counter()
        with one_blas_thread(n_features <= ONE_THREAD):
            result = deep_amp(
                x.contiguous(),
                u,
                known,
                channel,
                weights,
                covariance,
                damping=float(self.damping),
                max_iter=self.max_iter,
                tol=self.tol,
                callback=self._with_progress(callback),
            )
        self.weights_ = result.weights.astype(x.dtype, copy=False)
        self.posterior_covariance_ = result.covariance
        self.overlap_ = np.eye(self.n_layers) - result.covariance
        self.sample_complexity_ = n_samples / n_features
        self.n_undetermined_ = int(n_samples - known.sum())
        self.history_ = result.history
        self.converged_ = result.converged
        self.n_iter_ = result.n_iter
        if self.verbose:
            print(
                f"[AMP] {'converged' if self.converged_ else 'not converged'} after {self.n_iter_} iterations, "
                f"{time.perf_counter() - started:.2f} s: overlaps {_short(np.diag(self.overlap_))}, "
                f"alpha={self.sample_complexity_:.4g}"
            )
        self._warn()
        return self

    def _warn(self):
        if not self.converged_:
            stopped = (
                f"reached max_iter={self.max_iter}"
                if self.n_iter_ >= self.max_iter
                else f"stopped after {self.n_iter_} iterations without progress"
            )
            warnings.warn(
                f"AMP did not converge: it {stopped}, and keeps the iterate of the largest leave-one-out likelihood. "
                "More data, damping=0.7, another random_state or a larger max_iter may help; features that are not "
                "white do harm, see TokenWhitener.",
                ConvergenceWarning,
                stacklevel=4,
            )
        elif self.history_["integration_error"][-1] > _INACCURATE and self.posterior_covariance_.max() > _KNOWN:
            warnings.warn(
                f"integrals over the layers are not accurate: their mean estimated error is "
                f"{self.history_['integration_error'][-1]:.2g} posterior standard deviations.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _check_parameters(self):
        check_number(self.n_layers, "n_layers", low=1, integer=True)
        check_number(self.skip, "skip")
        check_inverse_temperature(self.inverse_temperature)
        if check_number(self.damping, "damping") >= 1:
            raise ValueError(f"damping={self.damping!r} must be below 1: at 1 nothing is ever learned.")
        check_number(self.max_iter, "max_iter", low=1, integer=True)
        check_number(self.tol, "tol", high=LARGEST)
        check_verbose(self.verbose)
        check_flag(self.warm_start, "warm_start")

    def _deep_channel(self, n_tokens):
        return DeepChannel(self.n_layers, n_tokens, skip=self.skip, inverse_temperature=self.inverse_temperature)

    def _start(self, n_features):
        shape = self.n_layers, n_features
        if self.warm_start and getattr(self, "weights_", np.empty(0)).shape == shape:
            # V is set back part of the way, since data may have changed
            covariance = self.posterior_covariance_
            return self.weights_.astype(float), np.diag(np.clip(2 * np.diag(covariance), 0.01, 1.0))
        return starting_point(self.init, shape, self.random_state)

    def _with_progress(self, callback):
        if self.verbose < 2:
            return callback

        def report(state):
            print(
                f"[AMP] {state['iteration']:4d}  overlaps={_short(np.diag(state['overlap']))}  "
                f"residual={state['residual'].max():.2e}  log-likelihood={state['log_likelihood']:.5g}"
            )
            return callback(state) if callback is not None else None

        return report

    @property
    def interaction_(self):
        """S_l = w_l w_l^T/sqrt(d) of the mean weights."""
        if not hasattr(self, "weights_"):
            raise AttributeError(f"{type(self).__name__} has no interaction_ before fit.")
        return self.weights_[:, :, None] * self.weights_[:, None, :] / np.sqrt(self.weights_.shape[1])

    def predict_index(self, X: ArrayLike) -> np.ndarray:
        """Posterior means of the layers' indices.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_layers, n_tokens)
            z_l = X w_l/sqrt(d). The sign of every layer is arbitrary.
        """
        x = self._check_predict(X)
        with np.errstate(over="ignore", invalid="ignore"):
            indices = x.collect(layer_indices, self.weights_)
        return check_indices(indices, _LARGEST_INDEX)

    def predict(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior-mean attention maps: E[y] over z_l around the learned indices with covariance V.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        return_std : bool, default=False
            Also return the posterior standard deviation of every entry.

        Returns
        -------
        maps : ndarray
            In the shape that y had in `fit`. A quasi-Monte Carlo average, good to about 1e-3.
        std : ndarray of the same shape
            Only if `return_std`.
        """
        omega = self.predict_index(X)
        channel = self._deep_channel(omega.shape[2])
        mean, spread = channel.moments(omega, self.posterior_covariance_)
        if not return_std:
            return self._answer(mean.astype(omega.dtype, copy=False))
        return tuple(self._answer(one.astype(omega.dtype, copy=False)) for one in (mean, spread))


def _short(values):
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
