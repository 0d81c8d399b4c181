"""Gradient descent on several starts at once: Adam, momentum, and scipy's L-BFGS.

An objective answers (losses, gradients) for factors of shape (n_starts, ...); solvers move the factors; a `Track`
keeps the best iterate of every start and decides when it stops. Whatever interrupts a solver, the track is usable.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize

# loss beyond this many times the loss of no fit at all is a divergence
_RUNAWAY = 1e6
# Adam's decay of first and second moments, and what keeps it from dividing by zero
_ADAM = (0.9, 0.999, 1e-8)
# stored pairs of L-BFGS
_MEMORY = 10
# loss that stands for one that is not finite in a line search
_HUGE = 1e100


@dataclass
class StoppingRule:
    """When a start is done.

    Attributes
    ----------
    max_iter : int
        Iterations (epochs, for minibatches).
    tol : float
        A start is done when its loss is below tol^2 times `reference` (residuals of tol times those of no fit), or when
        its best loss has fallen by less than a fraction tol over `patience` iterations.
    patience : int
    reference : float
        Loss of no fit.
    """

    max_iter: int
    tol: float
    patience: int
    reference: float


@dataclass
class Track:
    """What a group of starts has reached.

    Attributes
    ----------
    best : ndarray of shape (n_starts, ...)
        Factors of the smallest loss, or validation loss.
    best_loss, best_score : ndarray of shape (n_starts,)
        Loss there; and what was compared: the validation loss, or the same loss.
    curves, validation_curves : list of list of float
        Losses by iteration, the start's included.
    halt : threading.Event, optional
        Ends an epoch of minibatches before its time.
    status : list of str
        "running", "fitted" (loss of an exact fit), "settled" (no more progress), "max_iter", "diverged", "stuck" (no
        more progress, and worse than no fit), "stopped" (by the watch).
    going : ndarray of int
        Starts that still run.
    """

    best: np.ndarray
    rule: StoppingRule
    validation: object = None
    watch: object = None
    halt: object = None
    iteration: int = 0
    rounds: int = 1
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self):
        count = len(self.best)
        self.best = self.best.copy()
        self.best_loss = np.full(count, np.inf)
        self.best_score = np.full(count, np.inf)
        self.curves = [[] for _ in range(count)]
        self.validation_curves = [[] for _ in range(count)]
        self.status = ["running"] * count
        self.going = np.arange(count)
        self._marks = [(0, np.inf)] * count

    def update(self, loss, factors):
        """Take note of the iterates of the starts that are going.

        Returns
        -------
        ndarray of bool
            Which of them go on.
        """
        score = loss if self.validation is None else self.validation(factors)
        for k, start in enumerate(self.going):
            if np.isfinite(loss[k]) and np.isfinite(score[k]):
                self.curves[start].append(float(loss[k]))
                if self.validation is not None:
                    self.validation_curves[start].append(float(score[k]))
            if score[k] < self.best_score[start] and np.isfinite(loss[k]):
                self.best[start] = factors[k]
                self.best_loss[start], self.best_score[start] = loss[k], score[k]
            self.status[start] = self._verdict(start, loss[k])
        if self.watch is not None and self.watch(self):
            self.stop("stopped")
        self.iteration += 1
        going = np.array([self.status[start] == "running" for start in self.going], dtype=bool)
        self.going = self.going[going]
        return going

    def _verdict(self, start, loss):
        rule = self.rule
        if not loss <= _RUNAWAY * max(rule.reference, self.curves[start][0] if self.curves[start] else 0):
            return "diverged"
        if self.best_score[start] <= rule.tol**2 * rule.reference:
            return "fitted"
        if self.iteration >= rule.max_iter:
            return "max_iter"
        since, mark = self._marks[start]
        if self.best_score[start] < (1 - rule.tol) * mark:
            self._marks[start] = self.iteration, self.best_score[start]
        elif rule.tol > 0 and self.iteration - since >= rule.patience:
            return self._settled(start)
        return "running"

    def _settled(self, start):
        # saturated softmax has no gradient, and can hold a start where no attention at all would do better
        return "settled" if self.best_loss[start] <= (1 + self.rule.tol) * self.rule.reference else "stuck"

    def settle(self):
        """End the starts that still run: no step brings a smaller loss."""
        for start in self.going:
            self.status[start] = self._settled(start)
        self.going = self.going[:0]

    def stop(self, status):
        """End the starts that still run."""
        for start in self.going:
            if self.status[start] == "running":
                self.status[start] = status

    def follow(self, last):
        """Put another track's losses before these; a start stopped on the way stays where that left it."""
        self.rounds = last.rounds + 1
        for start in range(len(self.best)):
            self.curves[start] = last.curves[start] + self.curves[start]
            self.validation_curves[start] = last.validation_curves[start] + self.validation_curves[start]
            stopped = self.status[start] == "stopped" and last.best_score[start] < self.best_score[start]
            if stopped or not np.isfinite(self.best_score[start]):
                for name in ("best", "best_loss", "best_score"):
                    getattr(self, name)[start] = getattr(last, name)[start]

    @property
    def n_iter(self):
        """Iterations of each start."""
        return np.array([max(len(curve) - self.rounds, 0) for curve in self.curves])


class Adam:
    """Adam's step; arrays of moments follow the starts that go on."""

    def __init__(self, shape, learning_rate):
        self.learning_rate = learning_rate
        self.first, self.second = np.zeros(shape), np.zeros(shape)
        self.count = 0

    def step(self, factors, gradient):
        """Move the factors, in place."""
        decay, decay_squares, epsilon = _ADAM
        self.count += 1
        self.first *= decay
        self.first += (1 - decay) * gradient
        np.square(gradient, out=gradient)
        gradient *= 1 - decay_squares
        self.second *= decay_squares
        self.second += gradient
        scale = np.sqrt(self.second, out=gradient)
        scale *= 1 / np.sqrt(1 - decay_squares**self.count)
        scale += epsilon
        np.divide(self.first, scale, out=scale)
        scale *= self.learning_rate / (1 - decay**self.count)
        factors -= scale

    def set_rates(self, other):
        """Go on with another rule's rates."""
        self.learning_rate = other.learning_rate

    def keep(self, going):
        """Forget the starts that ended."""
        self.first, self.second = self.first[going], self.second[going]


class Momentum:
    """Gradient step along the running mean of gradients."""

    def __init__(self, shape, learning_rate, momentum):
        self.learning_rate, self.momentum = learning_rate, momentum
        self.velocity = np.zeros(shape)

    def step(self, factors, gradient):
        """Move the factors, in place."""
        gradient *= self.learning_rate * (1 - self.momentum)
        self.velocity *= self.momentum
        self.velocity -= gradient
        factors += self.velocity

    def set_rates(self, other):
        """Go on with another rule's rates."""
        self.learning_rate, self.momentum = other.learning_rate, other.momentum

    def keep(self, going):
        """Forget the starts that ended."""
        self.velocity = self.velocity[going]


def minibatches(n_samples, batch_size, rng):
    """Random subsets of equal size, up to one, that cover all samples once; increasing, as memory likes it."""
    order = rng.permutation(n_samples)
    return [np.sort(subset) for subset in np.array_split(order, max(1, round(n_samples / batch_size)))]


def first_order(objective, factors, rule, track, batch_size=None, rng=None):
    """Descend until every start of the track has stopped, by full batches or, an epoch an iteration, by minibatches."""
    factors = factors.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            loss, gradient = objective(factors, gradient=batch_size is None)
            going = track.update(loss, factors)
            if not going.any():
                return
            if not going.all():
                factors = factors[going]
                rule.keep(going)
            if batch_size is None:
                rule.step(factors, gradient[going])
            else:
                epoch(objective, factors, rule, batch_size, rng, track.halt)


def epoch(objective, factors, rule, batch_size, rng, halt=None):
    """One pass over the data in minibatches; factors move in place.

    Returns
    -------
    ndarray of shape (n_starts,)
        Mean loss of the minibatches, each before its step.
    """
    total, mass = 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for subset in minibatches(len(objective.x), batch_size, rng):
            loss, gradient = objective(factors, subset)
            weight = objective.weights[subset].sum()
            total, mass = total + weight * loss, mass + weight
            rule.step(factors, gradient)
            if halt is not None and halt.is_set():
                break
        return total / mass


def lbfgs(objective, factors, track):
    """scipy's L-BFGS from one start, (1, ...).

    A line search that fails is tried once more without the stored curvature: in single precision that can be all it
    needs.
    """
    shape = factors.shape

    def function(v):
        with np.errstate(over="ignore", invalid="ignore"):
            loss, gradient = objective(v.reshape(shape))
        if not (np.isfinite(loss[0]) and np.isfinite(gradient).all()):
            return _HUGE, np.zeros_like(v)
        if not started:
            started.append(loss[0])
            if not track.update(loss, v.reshape(shape)).any():
                raise StopIteration
        return loss[0], gradient.ravel()

    def callback(intermediate_result):
        if not track.update(np.array([intermediate_result.fun]), intermediate_result.x.reshape(shape)).any():
            raise StopIteration

    started = []
    for _ in range(2):
        before = track.iteration
        options = {"maxiter": np.iinfo(np.int32).max, "maxfun": np.iinfo(np.int32).max}
        try:
            minimize(
                function,
                track.best.ravel() if started else factors.ravel(),
                jac=True,
                method="L-BFGS-B",
                callback=callback,
                options={**options, "ftol": 0.0, "gtol": 0.0, "maxcor": _MEMORY},
            )
        except StopIteration:
            return
        if track.status[0] != "running" or track.iteration - before < 2:
            break
    if not started:
        track.update(np.array([np.inf]), factors)
        return
    if track.status[0] == "running":
        track.settle()
