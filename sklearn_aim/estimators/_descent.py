"""Fitting factors by gradient descent: starts, groups, held-out data, callbacks, and minibatches as they come."""

import copy
import warnings
from dataclasses import replace

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from sklearn_aim.algorithms.attention_stack import Objective
from sklearn_aim.algorithms.descent import StoppingRule, epoch
from sklearn_aim.estimators._gd_checks import check_parameters, check_solver
from sklearn_aim.estimators._stack import AttentionStackRegressor, finite_starts
from sklearn_aim.estimators._training import (
    CallbackSupportMixin,
    Watch,
    group_size,
    make_rule,
    train,
    with_callbacks,
)
from sklearn_aim.kernels.threads import one_blas_thread

_SEEDS = np.iinfo(np.int32).max
# fraction of the factors that a refreshment keeps
_KEPT = 0.8
# loss of a local minimum, in units of that of no fit
_FAR = 0.01


class DescentRegressor(CallbackSupportMixin, AttentionStackRegressor):
    """Fit and partial fit of a stack of attention layers."""

    @with_callbacks
    def _fit(self, X, y, mask, sample_weight):
        check_parameters(self)
        solver = check_solver(self)
        data, stack = self._check_data(X, y, sample_weight, mask)
        x, maps, _, allowed = data
        rng = check_random_state(self.random_state)
        order_seed, split_seed = rng.randint(_SEEDS, size=2)
        factors = self._starts(stack, rng)
        held = None
        if self.early_stopping:
            data, held = self._hold_out(data, split_seed)

        def objective_of(n_threads):
            judge = None if held is None else Objective(replace(stack, weight_decay=0.0), *held, n_threads=1)
            validation = None if judge is None else lambda factors: judge(factors, gradient=False)[0]
            return Objective(stack, *data, n_threads=n_threads), validation

        with one_blas_thread():
            null = stack.null()
            reference = float(Objective(null, *data, n_threads=1)(np.zeros((1, *null.shape)), gradient=False)[0][0])
        # groups of about the same size
        count = -(-len(factors) // group_size(solver, stack.shape[0]))
        groups = np.array_split(factors, count)

        def learned(best, score):
            return self._learned(stack, best, score, x.dtype)

        context = self._begin_callbacks((1 + self.n_refreshes) * len(groups))
        watch = Watch(
            "GD",
            self.verbose,
            len(groups),
            context if hasattr(self, "_skl_callbacks") else None,
            (self, X, y, self.max_iter, learned),
        )

        def train_from(groups):
            return train(
                objective_of,
                groups,
                solver=solver,
                rule=StoppingRule(self.max_iter, float(self.tol), self.n_iter_no_change, reference or 1.0),
                make_rule=lambda shape: self._rule(solver, shape, stack, x),
                batch_size=self.batch_size,
                order=lambda: np.random.RandomState(order_seed),
                n_jobs=self.n_jobs,
                watch=watch,
            )

        tracks, interrupted = train_from(groups)
        for noise_seed in rng.randint(_SEEDS, size=self.n_refreshes):
            if interrupted or any("stopped" in track.status for track in tracks):
                # a callback that ends the fit ends its refreshments too
                break
            noise = np.random.RandomState(noise_seed)
            watch.round += 1
            before = tracks
            tracks, interrupted = train_from([stack.refreshed(t.best, _KEPT, self.init_scale, noise) for t in tracks])
            for track, last in zip(tracks, before, strict=True):
                track.follow(last)
        best, score = (np.concatenate([getattr(t, name) for t in tracks]) for name in ("best", "best_score"))
        lost = ~finite_starts(best, x.dtype)
        best[lost], score[lost] = 0, np.inf
        status = [s for track in tracks for s in track.status]
        if not np.isfinite(score).any() and not interrupted:
            raise ValueError(
                "the loss overflows at every start: X or y holds values that are too large (see TokenWhitener), or "
                f"init_scale={self.init_scale!r}, inverse_temperature={self.inverse_temperature!r} or "
                f"skip={self.skip!r} is. Scale the data or choose smaller values."
            )
        self._forget()
        self._optimizer = None
        good = np.isfinite(score) & np.array([s not in ("diverged", "stuck") for s in status])
        fitted = np.array([s == "fitted" for s in status])
        if fitted.any():
            # where some starts fit the maps, others that are far from it ended in local minima
            good &= score <= _FAR * reference
        vars(self).update(self._learned(stack, best, score, x.dtype, good, fitted[good].all()))
        self.loss_curve_ = [np.array(curve) for track in tracks for curve in track.curves]
        if self.early_stopping:
            self.validation_loss_curve_ = [np.array(curve) for track in tracks for curve in track.validation_curves]
        self.n_iter_ = max(1, int(max(track.n_iter.max() for track in tracks)))
        self.converged_ = all(s in ("fitted", "settled") for s in status)
        self._warn(status, interrupted, solver)
        if not interrupted:
            self._warn_of_data(x, maps, allowed)
        if context is not None:
            context.call_on_fit_task_end(estimator=self, X=X, y=y)
        return self

    def _starts(self, stack, rng):
        """Factors to start from: those of the last fit, or random ones, each start with a seed of its own."""
        known = self.warm_start and hasattr(self, "_factors") and len(self._factors) == self.n_init
        if known and stack.same_factors(self._stack):
            return self._factors
        seeds = rng.randint(_SEEDS, size=self.n_init)
        return np.concatenate([stack.initial(np.random.RandomState(seed), self.init_scale) for seed in seeds])

    def _check_same(self, stack):
        if len(self._factors) != self.n_init:
            raise ValueError(f"n_init={self.n_init!r} differs from the {len(self._factors)} starts of the last call.")
        names = "width", "tied", "n_layers", "fit_bias", "scaling", "center", "link", "skip", "inverse_temperature"
        for name in names:
            value, last = getattr(stack, name), getattr(self._stack, name)
            if value != last:
                raise ValueError(
                    f"{name}={value!r} differs from the {last!r} of the last call: partial_fit goes on with its "
                    "factors. Use fit to start afresh."
                )

    def _rule(self, solver, shape, stack, x):
        batch = min(self.batch_size or len(x), len(x)), x.shape[1]
        return make_rule(solver, shape, stack, batch, self.learning_rate, self.momentum)

    def _hold_out(self, data, seed):
        n_samples = len(data[0])
        count = max(1, round(self.validation_fraction * n_samples))
        if count >= n_samples:
            raise ValueError(
                f"validation_fraction={self.validation_fraction!r} of n_samples={n_samples} leaves no sequence to "
                "learn from: use early_stopping=False."
            )
        order = np.random.RandomState(seed).permutation(n_samples)
        x, *others = data
        return tuple(
            (x.take(chosen), *(None if part is None else part[chosen] for part in others))
            for chosen in (np.sort(order[count:]), np.sort(order[:count]))
        )

    def _begin_callbacks(self, n_groups):
        if not hasattr(self, "_init_callback_context"):
            return None
        context = self._init_callback_context(max_subtasks=n_groups, sequential_subtasks=False)
        context.call_on_fit_task_begin(estimator=self)
        return context

    def _warn(self, status, interrupted, solver):
        count = len(status)

        def warn(message, category=ConvergenceWarning):
            warnings.warn(message, category, stacklevel=6)

        if interrupted:
            begun = sum(len(curve) > 0 for curve in self.loss_curve_)
            warn(
                f"Training was interrupted: the estimator holds the best iterates of the {begun} of {count} starts "
                "that had begun.",
                UserWarning,
            )
            return
        diverged = status.count("diverged")
        if diverged:
            warn(
                f"The loss of {diverged} of {count} starts diverged: learning_rate={self.learning_rate!r} or "
                f"init_scale={self.init_scale!r} is too large. Their best iterates are kept, and left out of the mean "
                "if there are others."
            )
        stuck = status.count("stuck")
        if stuck:
            causes = ["X (see TokenWhitener)", f"init_scale={self.init_scale!r}"]
            causes += [f"learning_rate={self.learning_rate!r}"] if solver != "lbfgs" else []
            causes += [f"width={self.width!r}"] if self.scaling == "sequence-index" else []
            warn(
                f"{stuck} of {count} starts ended at a larger loss than that of uniform attention: "
                f"{', '.join(causes[:-1])} or {causes[-1]} may be too large."
            )
        stalled = sum(len(curve) > 1 and curve[0] <= curve.min() for curve in self.loss_curve_)
        if stalled and not diverged and not stuck and not self.converged_:
            warn(
                f"No iterate of {stalled} of {count} starts was better than its start: "
                f"learning_rate={self.learning_rate!r} is too large."
            )
        late = status.count("max_iter")
        if late and self.tol > 0:
            mend = "features that are not white slow it down, see TokenWhitener"
            mend = mend if solver == "lbfgs" else "solver='lbfgs' needs fewer iterations"
            reached = f"reached max_iter={self.max_iter} before tol={self.tol!r}"
            warn(f"{late} of {count} starts {reached}: raise either; {mend}.")

    def _partial_fit(self, X, y, mask, sample_weight):
        check_parameters(self)
        solver = check_solver(self, minibatches=True)
        first = not hasattr(self, "_factors")
        data, stack = self._check_data(X, y, sample_weight, mask, reset=first)
        x, maps, _, allowed = data
        rng = check_random_state(self.random_state)
        order_seed = rng.randint(_SEEDS, size=2)[0]
        factors = self._starts(stack, rng) if first else self._factors.copy()
        if not first:
            self._check_same(stack)
        fresh = self._rule(solver, factors.shape, stack, x)
        # a call that fails must leave moments and order as they were
        rule, order = (None if first else copy.deepcopy(self._optimizer)) or (
            fresh,
            np.random.RandomState(order_seed),
        )
        if type(rule) is type(fresh):
            # rates may have been set since the last call
            rule.set_rates(fresh)
        else:
            rule = fresh
        self._optimizer = rule, order
        with one_blas_thread(), Objective(stack, *data) as objective:
            losses = epoch(objective, factors, rule, self.batch_size or len(x), order)
        if not (np.isfinite(losses).all() and finite_starts(factors, x.dtype).all()):
            raise ValueError(
                f"learning_rate={self.learning_rate!r} made the loss overflow: choose a smaller one, or scale X (see "
                "TokenWhitener). The estimator is as it was before this call."
            )
        curves = [np.zeros(0)] * len(losses) if first else self.loss_curve_
        self._forget()
        vars(self).update(self._learned(stack, factors, losses, x.dtype))
        self.loss_curve_ = [np.append(curve, loss) for curve, loss in zip(curves, losses, strict=True)]
        self.n_iter_ = 1 if first else self.n_iter_ + 1
        if first:
            self._warn_of_data(x, maps, allowed)
        self.converged_ = False
        return self
