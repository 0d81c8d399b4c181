"""Fixed points of the state evolution of a deep attention stack, and its weak-recovery thresholds.

Diagonal fixed points are those of x_l = log(Q_l/V_l) = log(alpha E||g_l||^2), -inf for a layer that is not learned and
inf for one that is known exactly. A layer that is not learned stays so unless

    alpha E||E[z_l z_l^T|y, omega] - I||_F^2 > 1.

While the last layer alone is learned, alpha is a function of its x, computed once.
"""

import warnings
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq, root
from sklearn.exceptions import ConvergenceWarning

# points of the curve of the last layer alone
_CURVE = np.concatenate([[-9.0, -7.5], np.linspace(-6.0, 10.0, 22)])
# x from which exact recovery is tested, how far beyond, and where x is taken to be infinite
_HIGH, _FURTHER, _TOP = 6.0, 8.0, 24.0
# where a layer that is about to be learned or forgotten starts
_LOW = -4.0
_TOLERANCE = 1e-4
_MAX_ROUNDS = 200


class DeepFixedPoints:
    """Fixed points and thresholds.

    Parameters
    ----------
    evolution : DeepStateEvolution
    """

    def __init__(self, evolution):
        self.evolution = evolution
        self.n_layers = evolution.channel.n_layers
        self._kept = {}

    def _averages(self, x, fine=False):
        return self.evolution.averages(overlap_of(x), fine)

    def _last_alone(self, x, fine=True):
        return self._averages(np.append(np.full(self.n_layers - 1, -np.inf), x), fine)

    @cached_property
    def last_threshold(self):
        """Alpha above which the last layer is learned at all, and its error."""
        first, _, error = self.evolution.last_curvature
        return 1 / first, error / first**2

    @cached_property
    def last_curve(self):
        """Over x of the last layer, the others not learned: log alpha, and log of the growth of the others."""
        x, log_alpha, growth = [], [], []
        for point in _CURVE:
            averages = self._last_alone(point)
            x.append(point)
            log_alpha.append(point - np.log(averages.gain[-1, -1]))
            growth.append(log_alpha[-1] + np.log(averages.curvature[:-1]))
            # from where another layer doubles in a step, the last one is no longer alone
            if self.n_layers > 1 and growth[-1].max() > np.log(2):
                break
        return CubicSpline(x, log_alpha), CubicSpline(x, growth) if self.n_layers > 1 else None

    def last_alone(self, alpha):
        """X of the last layer at alpha while the others are not learned: the first crossing from below."""
        least = self.last_threshold[0]
        if alpha <= least:
            return -np.inf
        curve = self.last_curve[0]
        fine = np.linspace(curve.x[0], curve.x[-1], 4001)
        above = np.flatnonzero(curve(fine) > np.log(alpha))
        if not len(above):
            return np.inf if self.n_layers == 1 else float(fine[-1])
        if above[0] == 0:
            # alpha is linear in Q between the threshold and the first point
            slope = max(np.exp(curve(fine[0])) - least, 1e-12) * (1 + np.exp(-fine[0]))
            overlap = min((alpha - least) / slope, 1 / (1 + np.exp(-fine[0])))
            return float(np.log(overlap / (1 - overlap)))
        return float(brentq(lambda x: curve(x) - np.log(alpha), fine[above[0] - 1], fine[above[0]]))

    def kept(self, alpha, start, guess):
        """`fixed_point`, computed once for each alpha and start."""
        if (alpha, start) not in self._kept:
            self._kept[alpha, start] = self.fixed_point(alpha, start, guess)
        return self._kept[alpha, start]

    def fixed_point(self, alpha, start="uninformed", guess=None):
        """Fixed point at one alpha, reached from no knowledge or from the solution.

        Parameters
        ----------
        alpha : float
        start : {"uninformed", "informed"}
        guess : ndarray of shape (L,), optional
            Fixed point at a lower (uninformed) or a larger (informed) alpha.

        Returns
        -------
        x : ndarray of shape (L,)
        """
        if alpha == 0:
            return np.full(self.n_layers, -np.inf)
        if start == "informed":
            x = np.full(self.n_layers, _HIGH) if guess is None else np.minimum(guess, 2 * _HIGH)
            return self._relax(alpha, x, informed=True)
        if guess is not None and np.isposinf(guess).all():
            return np.array(guess, dtype=float)
        x = np.append(np.full(self.n_layers - 1, -np.inf), self.last_alone(alpha))
        if guess is not None:
            x = np.maximum(x, guess)
        while True:
            alone = np.isneginf(x[:-1]).all()
            if alone and (self.n_layers == 1 or x[-1] < _CURVE[0]):
                return x
            if alone:
                growth = np.exp(self.last_curve[1](x[-1]))
            else:
                x = self._relax(alpha, x, informed=False)
                if np.isposinf(x).all():
                    return x
                growth = alpha * self._averages(x).curvature[:-1]
            unstable = np.flatnonzero(np.isneginf(x[:-1]) & (growth > 1))
            if not len(unstable):
                return x
            x[unstable] = _LOW

    def _move(self, alpha, x):
        """One step of state evolution for learned layers."""
        gain = np.diag(self._averages(x).gain)
        return np.where(np.isneginf(x), -np.inf, np.log(np.maximum(alpha * gain, 1e-300)))

    def _relax(self, alpha, x, informed):
        """The fixed point near x: plain steps, tests of both ends, and root-finding."""
        x = np.minimum(np.array(x, dtype=float), _TOP)
        # rounds until root-finding is tried, and how many to wait if it fails
        rest, patience = 0, 2
        for _ in range(_MAX_ROUNDS):
            middle = self._move(alpha, x)
            new = np.minimum(self._move(alpha, middle), _TOP)
            active = np.isfinite(new)
            step = np.where(active, new - np.where(active, middle, 0), 0)
            x = new
            if not active.any() or np.abs(step).max() < _TOLERANCE:
                return x
            high = active.all() and x.min() > _HIGH
            if high and (x.max() >= _TOP or ((step > 0).all() and self._recovers(alpha, x))):
                return np.full(self.n_layers, np.inf)
            fading = active & (x < _LOW) & (step < 0)
            if fading.any():
                trial = np.where(fading, -np.inf, x)
                growth = alpha * self._averages(trial).curvature
                # of no meaning for layers that are learned
                fading &= growth < 1
                x[fading] = -np.inf
            rest -= 1
            if not fading.any() and np.abs(step).max() < 0.7 and rest <= 0:
                found = self._root(alpha, x, active, informed)
                if found is not None:
                    return found
                rest, patience = patience, 2 * patience
            elif active.all() and x.min() > 2 and 0 < 0.7 * step.max() < step.min():
                # on the way to exact recovery all V shrink at one rate
                x = np.minimum(x + 3 * step, _TOP)
        warnings.warn(
            f"state evolution at alpha={alpha:.6g} did not settle within {2 * _MAX_ROUNDS} steps.",
            ConvergenceWarning,
            stacklevel=2,
        )
        return x

    def _recovers(self, alpha, x):
        """Whether V goes on shrinking by a factor far below: without noise it then goes to zero."""
        x = x + _FURTHER
        for _ in range(12):
            if x.max() > _TOP:
                return True
            step = self._move(alpha, x) - x
            x = x + step
            if step.max() < 0:
                return False
            # V of all layers shrinks at one rate once their ratio has settled
            if step.min() > 0.8 * step.max():
                return True
        return False

    def _root(self, alpha, x, active, informed):
        # in -log V the excess is linear where little is known
        def unpack(values):
            trial = x.copy()
            trial[active] = np.minimum(np.log(np.expm1(np.clip(values, 1e-9, 40.0))), _TOP)
            return trial

        def excess(values):
            trial = unpack(values)
            return self._move(alpha, trial)[active] - trial[active] + np.minimum(values, 0)

        first = np.log1p(np.exp(x[active]))
        solution = root(excess, first, method="hybr", options={"xtol": 1e-6, "maxfev": 25, "factor": 0.3})
        found = unpack(solution.x)
        if np.abs(solution.fun).max() > 10 * _TOLERANCE or found[active].max() > _TOP - 1 or solution.x.min() < 1e-6:
            return None
        ahead = (found[active] - x[active]) * (-1 if informed else 1)
        # a root that steps lead away from is another one
        return found if (ahead > -1e-2).all() or self._stable(found, active) else None

    def _jacobian(self, x, active):
        """Derivative of log E||g||^2 of the learned layers in their x."""
        layers = np.flatnonzero(active)
        base = np.log(np.diag(self._averages(x).gain)[layers])
        jacobian = np.empty((len(layers), len(layers)))
        for column, layer in enumerate(layers):
            moved = x.copy()
            moved[layer] += 0.02
            jacobian[:, column] = (np.log(np.diag(self._averages(moved).gain)[layers]) - base) / 0.02
        return jacobian

    def _stable(self, x, active):
        return np.abs(np.linalg.eigvals(self._jacobian(x, active))).max() < 1

    def error(self, x):
        """Numerical error of Q at a fixed point: that of the averages, fed back through the map."""
        active = np.isfinite(x)
        error = np.zeros(len(x))
        if not active.any():
            return error
        averages = self._averages(x, fine=np.count_nonzero(active) == 1 and active[-1])
        relative = np.diag(averages.gain_error)[active] / np.diag(averages.gain)[active] + averages.integration_error
        spread = np.abs(np.linalg.pinv(np.eye(active.sum()) - self._jacobian(x, active))) @ relative
        overlap = 1 / (1 + np.exp(-x[active]))
        error[active] = np.minimum(overlap * (1 - overlap) * spread, np.maximum(overlap, 1 - overlap))
        return error

    def thresholds(self):
        """Weak recovery of every layer, in the order learned, the others at their fixed point.

        Returns
        -------
        dict of int to (float, float)
            Layer (1 is the first) to alpha and its error.
        """
        out = {self.n_layers: self.last_threshold}
        if self.n_layers == 1:
            return out
        layer, x, alpha, error = self._second_threshold()
        out[layer + 1] = alpha, error
        if self.n_layers == 3:
            other = 1 - layer
            out[other + 1] = self._third_threshold(layer, other, x, alpha)
        return out

    def _second_threshold(self):
        """Where, along the curve of the last layer alone, a second one begins to be learned."""

        def growth(x, fine=False):
            averages = self._last_alone(x, fine)
            log_alpha = x - np.log(averages.gain[-1, -1])
            return log_alpha + np.log(averages.curvature[:-1]), log_alpha, averages

        above = -1.0
        while growth(above)[0].max() < 0 and above < 14:
            above += 1.5
        x = brentq(lambda x: growth(x)[0].max(), above - 1.5, above, xtol=0.02)
        # coarse points give the slopes, fine ones the place
        near, log_near, _ = growth(x - 0.3)
        far, log_far, _ = growth(x + 0.3)
        values, log_alpha, averages = growth(x, fine=True)
        layer = int(np.argmax(values))
        shift = -values[layer] / ((far - near)[layer] / 0.6)
        slope = (log_far - log_near) / (far - near)[layer]
        noise = (
            averages.gain_error[-1, -1] / averages.gain[-1, -1],
            averages.curvature_error[layer] / averages.curvature[layer],
        )
        # log alpha of the threshold moves by (1 - slope) and -slope times those of E||g||^2 and of the curvature
        relative = abs(1 - slope) * noise[0] + abs(slope) * noise[1] + averages.integration_error
        alpha = float(np.exp(log_alpha + (log_far - log_near) / 0.6 * shift))
        return layer, x + shift, alpha, alpha * relative

    def _third_threshold(self, second, third, x, low):
        """Where the remaining one of three layers begins to be learned: three equations for alpha and both overlaps."""

        def unpack(values):
            state = np.full(3, -np.inf)
            # -log V of the second layer, in which things are linear where it is small
            state[second] = np.log(np.expm1(np.clip(values[1], 1e-6, 30.0)))
            state[2] = min(values[2], _TOP)
            return values[0], state

        def excess(values):
            log_alpha, state = unpack(values)
            averages = self._averages(state)
            gain = np.log(np.maximum(np.diag(averages.gain)[[second, 2]], 1e-300))
            curvature = np.log(averages.curvature[third])
            return np.append(log_alpha + gain - state[[second, 2]], log_alpha + curvature)

        solution = root(
            excess, [np.log(1.15 * low), 0.1, x + 0.35], method="hybr", options={"xtol": 1e-4, "maxfev": 40}
        )
        log_alpha, state = unpack(solution.x)
        alpha = float(np.exp(log_alpha))
        if np.abs(solution.fun).max() > 1e-2 or alpha <= low:
            warnings.warn(
                f"the threshold of layer {third + 1} was not found: that of layer {second + 1} is given for it.",
                ConvergenceWarning,
                stacklevel=2,
            )
            return low, np.inf
        averages = self._averages(state)
        relative = averages.curvature_error[third] / averages.curvature[third]
        relative += averages.gain_error[2, 2] / averages.gain[2, 2] + averages.integration_error
        return alpha, float(alpha * relative)


def overlap_of(x):
    """Diagonal Q of x = log(Q/V); layers known exactly are taken as nearly so."""
    return np.diag(np.where(np.isneginf(x), 0.0, 1 / (1 + np.exp(-np.clip(x, -700.0, _TOP)))))
