"""DeepBayesOptimalBound: how well, and from how much data, several attention layers of rank one can be learned."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_aim.algorithms.deep_fixed_points import DeepFixedPoints, overlap_of
from sklearn_aim.algorithms.deep_state_evolution import DeepStateEvolution
from sklearn_aim.bounds._common import check_alpha
from sklearn_aim.channels.averages import gaussian_average
from sklearn_aim.channels.deep import DeepChannel
from sklearn_aim.parameters import Documented, check_flag, check_number, final_estimator

_STARTS = ("uninformed", "informed")
_PREDICTIONS = ("posterior-mean", "plug-in")
# overlap of an uninformed and an informed trajectory at their start
_LITTLE, _MUCH = 1e-3, 0.99
# looser than in message passing, whose errors do not average out
_TOLERANCE = {(2, 2): 1e-3, (2, 3): 1e-2, (2, 4): 3e-2, (3, 2): 5e-2}


class DeepBayesOptimalBound(Documented, BaseEstimator):
    r"""Bayes-optimal overlaps of learning several rank-one attention layers, n and d large, alpha = n/d fixed.

    The model is that of `AMPDeepAttentionRegressor`, which attains it. Layers are learned one after the other as alpha
    grows, the last one first.

    Parameters
    ----------
    n_layers : int, default=2
        L: 1 with any number of tokens, 2 with up to four, 3 with two.
    skip : float, default=1.0
        Skip strength c >= 0.
    n_tokens : int, default=2
        T.
    inverse_temperature : float, default=1.0
        beta.
    effort : float, default=1.0
        Factor of the numbers of quasi-Monte Carlo points; errors fall a little faster than its square root.
    random_state : int, default=0
        Seed of these points.

    Notes
    -----
    `alpha` is a number or an array, and answers begin with its shape. Layers are numbered 1 to L, as in the theory.

    E[g g^T] is a quasi-Monte Carlo average over (z, omega) of deterministic or importance-sampled integrals over the
    layers below the last; the part that is linear in omega is known exactly and taken off, which makes overlaps near
    the threshold accurate. Each average checks E||g||^2 = E g.(z - omega)/V and warns if it fails. Thresholds of the
    last layer are integrals over the plane at two tokens, good to 1e-4. Fixed points are found by root-finding.

    Times at two layers and two tokens: seconds for thresholds, one or two minutes for a curve of overlaps; fixed points
    are kept. Three layers, and more tokens, take several times as long for a fraction of the points: choose `effort`.

    References
    ----------
    arXiv:2502.00901. Its thresholds are not reproduced, see docs/deep.md.

    Examples
    --------
    >>> from sklearn_aim import DeepBayesOptimalBound
    >>> bound = DeepBayesOptimalBound(n_layers=1, n_tokens=2)
    >>> bound.weak_recovery_thresholds()
    {1: 0.16666666666666666}
    >>> bound.overlap(0.1)
    array([[0.]])
    """

    def __init__(
        self,
        n_layers: int = 2,
        skip: float = 1.0,
        n_tokens: int = 2,
        *,
        inverse_temperature: float = 1.0,
        effort: float = 1.0,
        random_state: int = 0,
    ):
        self.n_layers = n_layers
        self.skip = skip
        self.n_tokens = n_tokens
        self.inverse_temperature = inverse_temperature
        self.effort = effort
        self.random_state = random_state

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, X: ArrayLike | None = None) -> "DeepBayesOptimalBound":
        """Bound of the setting that a fitted estimator assumed.

        Parameters
        ----------
        estimator : fitted `AMPDeepAttentionRegressor`, or `GDAttentionRegressor` of width 1 and scaling
            "sequence-index", or pipeline or search that ends in one
        X : array-like, optional
            Sequences, whose number sets the sample complexity; default: those of `fit`.

        Returns
        -------
        DeepBayesOptimalBound
            With ``sample_complexity_``, the alpha used where none is given.
        """
        estimator = final_estimator(estimator)
        check_is_fitted(estimator)
        if getattr(estimator, "scaling", None) != "sequence-index":
            raise TypeError(f"estimator={estimator!r} is not of deep layers of scaling 'sequence-index'.")
        if getattr(estimator, "width_", 1) != 1 or not getattr(estimator, "tied", True):
            raise ValueError(f"estimator={estimator!r} must have tied layers of width 1: others have no bound here.")
        bound = cls(
            estimator.n_layers,
            estimator.skip,
            estimator.n_tokens_,
            inverse_temperature=estimator.inverse_temperature,
        )
        alpha = estimator.sample_complexity_
        if X is not None:
            features = estimator.interaction_.shape[-1]
            alpha = len(X) / features
        bound.sample_complexity_ = alpha
        return bound

    def _fixed_points(self):
        """Fixed points of the present parameters; kept, as is what they have computed."""
        check_number(self.n_layers, "n_layers", low=1, integer=True)
        check_number(self.skip, "skip")
        check_number(self.n_tokens, "n_tokens", low=1, integer=True)
        check_number(self.inverse_temperature, "inverse_temperature", strict=True)
        check_number(self.effort, "effort", strict=True)
        check_number(self.random_state, "random_state", integer=True)
        key = tuple(self.get_params().items())
        if getattr(self, "_cache", (None, None))[0] != key:
            channel = DeepChannel(
                int(self.n_layers),
                int(self.n_tokens),
                skip=self.skip,
                inverse_temperature=self.inverse_temperature,
                tolerance=_TOLERANCE.get((self.n_layers, self.n_tokens)),
            )
            channel.check_size()
            evolution = DeepStateEvolution(channel, float(self.effort), seed=int(self.random_state))
            self._cache = key, DeepFixedPoints(evolution)
        return self._cache[1]

    def __getstate__(self):
        state = dict(super().__getstate__())
        # large, and cheap to compute again
        state.pop("_cache", None)
        return state

    def _solve(self, alpha, init):
        """Fixed points, alphas, and log(Q/V) for each, (*alpha.shape, L)."""
        if init not in _STARTS:
            raise ValueError(f"init={init!r} must be one of {_STARTS}.")
        points = self._fixed_points()
        values = check_alpha(self, alpha, "n/d")
        flat = values.ravel()
        x = np.empty((len(flat), points.n_layers))
        order = np.argsort(flat, kind="stable")
        guess = None
        # along alpha, each from its neighbour: upwards from no knowledge, downwards from the solution
        for i in order if init == "uninformed" else order[::-1]:
            guess = x[i] = points.kept(float(flat[i]), init, guess)
        return points, values, x.reshape(*values.shape, points.n_layers)

    def overlap(self, alpha: ArrayLike | None = None, *, init: str = "uninformed", return_error: bool = False):
        """Q at the fixed point, diagonal: layers have signs of their own.

        Parameters
        ----------
        alpha : float or array-like, optional
            Sample complexity n/d.
        init : {"uninformed", "informed"}, default="uninformed"
            Start of the iteration that leads there: no knowledge, as message passing has it, or the solution. Where
            the two differ there is a computational gap.
        return_error : bool, default=False
            Also return an estimate of the numerical error.

        Returns
        -------
        overlap : ndarray of shape (*alpha.shape, n_layers, n_layers)
        error : ndarray of shape (*alpha.shape, n_layers)
            Only if `return_error`; of the diagonal.
        """
        check_flag(return_error, "return_error")
        points, values, x = self._solve(alpha, init)
        overlap = np.empty((*values.shape, points.n_layers, points.n_layers))
        error = np.zeros((*values.shape, points.n_layers))
        for i in np.ndindex(values.shape):
            overlap[i] = np.diag(np.where(np.isposinf(x[i]), 1.0, np.diag(overlap_of(x[i]))))
            if return_error:
                error[i] = points.error(x[i])
        return (overlap, error) if return_error else overlap

    def test_error(
        self,
        alpha: ArrayLike | None = None,
        *,
        frozen: Sequence[int] = (),
        prediction: str = "posterior-mean",
        init: str = "uninformed",
        return_error: bool = False,
    ):
        """E||y - prediction||_F^2 of a new sequence.

        Parameters
        ----------
        alpha : float or array-like, optional
        frozen : sequence of int, default=()
            Layers (1 to n_layers) whose learned weights are replaced by zero, which leaves the prior's spread of them:
            the ablation that shows what a layer contributes.
        prediction : {"posterior-mean", "plug-in"}, default="posterior-mean"
            E[y|data], which is optimal and what estimators predict, or the map of the posterior-mean weights.
        init : {"uninformed", "informed"}, default="uninformed"
        return_error : bool, default=False
            Also return an estimate of the numerical error of the average.

        Returns
        -------
        float or ndarray
        """
        check_flag(return_error, "return_error")
        if prediction not in _PREDICTIONS:
            raise ValueError(f"prediction={prediction!r} must be one of {_PREDICTIONS}.")
        points, values, x = self._solve(alpha, init)
        for layer in np.atleast_1d(np.asarray(frozen, dtype=object)):
            check_number(layer, "frozen", low=1, high=points.n_layers, integer=True)
            x[..., int(layer) - 1] = -np.inf
        out, spread = np.empty(values.shape), np.empty(values.shape)
        for i in np.ndindex(values.shape):
            out[i], spread[i] = self._test_error(points.evolution.channel, x[i], prediction == "plug-in")
        out, spread = (float(a) if a.ndim == 0 else a for a in (out, spread))
        return (out, spread) if return_error else out

    def _test_error(self, channel, x, plug_in):
        known = np.isposinf(x)
        overlap = np.where(known, 1.0, np.diag(overlap_of(x)))
        variance = np.where(known, 0.0, 1 / (1 + np.exp(np.clip(x, -700, 700))))
        size = channel.n_layers * channel.n_tokens
        root, scale = np.sqrt(overlap)[:, None], np.sqrt(variance)[:, None]

        def distance(points):
            omega, first, second = points.reshape(-1, 3, channel.n_layers, channel.n_tokens).transpose(1, 0, 2, 3)
            maps = channel.output(root * omega + scale * first)[1]
            other = channel.output(root * omega + (0 if plug_in else scale) * second)[1]
            return np.sum((maps - other) ** 2, axis=(1, 2))[:, None]

        mean, error = gaussian_average(distance, 3 * size, n_points=1 << 13, seed=int(self.random_state))
        # two draws from one posterior are at twice the distance that one has from its mean
        return tuple(float(a[0]) * (1 if plug_in else 0.5) for a in (mean, error))

    def state_evolution(
        self, alpha: ArrayLike | None = None, init: ArrayLike | str = "uninformed", *, n_iter: int = 30
    ):
        """Trajectory of undamped message passing.

        Parameters
        ----------
        alpha : float, optional
        init : {"uninformed", "informed"} or array-like of shape (n_layers,) or (n_layers, n_layers)
            Overlap at the start: 1e-3, 0.99, or that given (its diagonal, or all of Q).
        n_iter : int, default=30

        Returns
        -------
        dict of ndarray
            "overlap" of shape (n_iter + 1, n_layers, n_layers), the start first; "overlap_error" (n_iter, n_layers),
            numerical errors of a step's diagonal; "integration_error" (n_iter,).
        """
        check_number(n_iter, "n_iter", low=1, integer=True)
        values = check_alpha(self, alpha, "n/d")
        if values.ndim:
            raise ValueError(f"alpha={alpha!r} must be one number for a trajectory.")
        evolution = self._fixed_points().evolution
        overlap = self._start(init)
        overlaps, errors, integration = [overlap], [], []
        for _ in range(n_iter):
            overlap, averages = evolution.step(overlap, float(values))
            # without noise V shrinks to nothing: kept where integrals can be taken
            eigenvalues, vectors = np.linalg.eigh(0.5 * (overlap + overlap.T))
            overlap = (vectors * np.minimum(eigenvalues, 1 - 1e-9)) @ vectors.T
            diagonal = np.diag(overlap)
            relative = np.diag(averages.gain_error) / np.maximum(np.diag(averages.gain), 1e-300)
            overlaps.append(overlap)
            errors.append(diagonal * (1 - diagonal) * relative)
            integration.append(averages.integration_error)
        return {
            "overlap": np.array(overlaps),
            "overlap_error": np.array(errors),
            "integration_error": np.array(integration),
        }

    def _start(self, init):
        n_layers = int(self.n_layers)
        if isinstance(init, str):
            if init not in _STARTS:
                raise ValueError(f"init={init!r} must be one of {_STARTS}, or overlaps.")
            return np.eye(n_layers) * (_LITTLE if init == "uninformed" else _MUCH)
        try:
            overlap = np.asarray(init, dtype=float)
        except (TypeError, ValueError) as error:
            raise TypeError(f"init={init!r} must be one of {_STARTS}, or overlaps.") from error
        overlap = np.diag(overlap) if overlap.ndim == 1 else overlap
        if overlap.shape != (n_layers, n_layers) or not np.isfinite(overlap).all():
            raise ValueError(f"init has shape {overlap.shape}, but overlaps of n_layers={n_layers} layers are needed.")
        eigenvalues = np.linalg.eigvalsh(0.5 * (overlap + overlap.T))
        if not np.allclose(overlap, overlap.T) or eigenvalues[0] < -1e-12 or eigenvalues[-1] >= 1:
            raise ValueError(f"init={init!r} must be symmetric with eigenvalues in [0, 1): an overlap Q = I - V.")
        return overlap

    def weak_recovery_thresholds(self, *, return_error: bool = False):
        """Sample complexity above which each layer is learned at all, the others at their fixed point.

        Parameters
        ----------
        return_error : bool, default=False
            Also return estimates of the numerical errors.

        Returns
        -------
        thresholds : dict of int to float
            By layer, in the order learned.
        errors : dict of int to float
            Only if `return_error`.
        """
        check_flag(return_error, "return_error")
        found = self._fixed_points().thresholds()
        thresholds = {layer: float(alpha) for layer, (alpha, _) in found.items()}
        return (thresholds, {layer: float(e) for layer, (_, e) in found.items()}) if return_error else thresholds
