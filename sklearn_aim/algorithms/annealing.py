"""Linear estimation alternated with spectral denoising, from much noise to little: for tokens that are not Gaussian.

Message passing takes the error of S + (back-projected residuals) for a Gaussian matrix, which it is for independent
Gaussian tokens. Tokens of real models are neither, and it goes astray. Gaussian channels, though, show a linear map of
S, P_n H_n(S), whatever the tokens. So, with v from large to small,

    S = argmin sum_n ||P_n (K_n - H_n(S))||^2 + (Delta/v) ||S - M||_F^2       (linear, with the tokens' own covariance)
    M = denoise(S; v d)

started at M = 0, where S is the linear (ridge) estimate. Delta is the noise, or a small part of what M leaves.
Denoising is that of a matrix of small rank under Gaussian noise of entry variance v (arXiv 1502.06736): a singular
value (tied: eigenvalue) s becomes sqrt(s^2 - 4 v d), or 0 below the edge of the noise, 2 sqrt(v d). Held-out sequences
say which stage is best, so that the answer is not worse than its linear start; and how many singular values S needs,
the fewest with which they are predicted as well as with any number, within one standard error. S is then found anew
with these.
"""

from dataclasses import dataclass, field

import numpy as np

from sklearn_aim.algorithms.history import add_answer, columns
from sklearn_aim.algorithms.linear import Held, Linear, needed_width, shrink, solve, spectrum, truncated
from sklearn_aim.algorithms.nuisance import bias_indices
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.indices import attention_indices

# v of a stage over that of the last
_COOLING = 0.8
# steps of conjugate gradients: each stage starts where the last one ended
_FIRST_STEPS = 25
_LAST_STEPS = 75
_STEPS = 8
# Delta of noiseless labels, in units of the mean square that is left of them
_LEFT = 1e-3
# stages over which held-out squares must fall, and by what fraction at least
_PATIENCE = 6
_PROGRESS = 0.02
# a noise level below this fraction of the best one's ends a run
_LEAST = 1e-6
# times that the width is found anew
_ROUNDS = 3
# share of the sequences that are held out
_HELD = 0.15


@dataclass
class AnnealingResult:
    """Outcome of `anneal`.

    Attributes
    ----------
    interaction : ndarray of shape (d, d)
    coefficients : ndarray of shape (d + 1,) or None
        (b, tau), see `KeyBias`.
    estimation_error : float
        V that held-out sequences show: mean square of their residuals, a combination, less Delta.
    width : int
        Singular values that S needs. It has as many, but where a limit does harm to held-out sequences.
    converged : bool
    held : ndarray of int
        Sequences that were held out.
    held_indices : ndarray of shape (n_held, T, T)
        Predictions of their indices from the others, the key bias included.
    n_iter : int
        Stages.
    history : dict of ndarray of shape (n_iter,)
    """

    interaction: np.ndarray
    coefficients: np.ndarray | None
    estimation_error: float
    width: int
    converged: bool
    held: np.ndarray
    held_indices: np.ndarray
    n_iter: int
    history: dict = field(repr=False)


def anneal(
    x,
    code,
    channel,
    *,
    width=None,
    denoise=True,
    bias=False,
    random_state=None,
    max_iter=200,
    tol=1e-2,
    callback=None,
):
    """Estimate S, its width and a key bias from sequences of any law, for links with a Gaussian posterior.

    Parameters
    ----------
    x : ndarray, SampleBlocks or DaskBlocks of shape (n, T, d)
    code : ndarray
        `channel.encode(y)`.
    channel : GaussianChannel
    width : int, optional
        Singular values that S may have at most; None: it is found.
    denoise : bool, default=True
        False: linear estimation alone, S of any rank.
    bias : bool, default=False
        Profile out a key bias and an offset of the diagonal, see `KeyBias`.
    random_state : RandomState
        Chooses the sequences that are held out, 15 per cent.
    max_iter : int
        Stages, over all searches.
    tol : float
        Exact recovery: held-out residuals of tol^2 times what they are without a fit, root mean square.
    callback : callable, optional
        As of `amp`.

    Returns
    -------
    AnnealingResult
    """
    x = as_blocks(x)
    n_samples, _, n_features = x.shape
    order = (random_state or np.random.RandomState(0)).permutation(n_samples)
    count = min(max(1, round(_HELD * n_samples)), n_samples - 1)
    held_out = np.sort(order[:count])
    rest = np.sort(order[count:])
    held = Held(x.take(held_out), code[held_out], channel)
    stages = _Stages(Linear(x.take(rest), code[rest], channel, bias), held, max_iter, tol, callback)
    most = n_features if width is None else min(width, n_features)
    settled = stages.run(most) if denoise else True
    # of any rank
    free = min(stages.start, stages.best, key=lambda stage: stage.square)
    for _ in range(_ROUNDS if width is None and denoise else 0):
        needed = max(1, needed_width(stages.linear, held, stages.best.interaction, most))
        if needed >= most:
            break
        most = needed
        settled = stages.run(most)
    rank = most
    if stages.best.square > stages.start.square:
        # where a limit to the rank does harm, there is none
        stages.best, rank = free, n_features
    best = stages.best
    predicted = held.x.collect(attention_indices, best.interaction.astype(x.dtype, copy=False))
    coefficients = stages.linear.coefficients_of(best.interaction)
    if coefficients is not None:
        predicted += bias_indices(held.x, coefficients)
    # at last all sequences are learned from, at the width and from the noise level that the held-out ones chose
    whole = Linear(x, code, channel, bias)
    interaction = stages.finish(whole, rank)
    return AnnealingResult(
        interaction,
        whole.coefficients_of(interaction),
        max(best.square - channel.noise, 0.0),
        most,
        settled,
        held_out,
        predicted,
        len(stages.rows),
        columns(stages.rows),
    )


@dataclass
class _Stage:
    """An estimate, its held-out square, and the entry variance v of its noise."""

    interaction: np.ndarray
    square: float
    variance: float


class _Stages:
    """Stages of falling noise, and the best of them by held-out sequences."""

    def __init__(self, linear, held, max_iter, tol, callback):
        self.linear, self.held = linear, held
        self.max_iter, self.callback = max_iter, callback
        self.rows = []
        n_features = linear.x.shape[2]
        zero = np.zeros((n_features, n_features))
        self.goal = tol**4 * self._square(zero)
        # entry variance at which S would explain the labels
        probe = np.random.RandomState(0).standard_normal(zero.shape)
        probe = probe + probe.T if linear.channel.tied else probe
        labels, answer = np.vdot(linear.labels, linear.labels), np.vdot(probe, linear.normal(probe))
        variance = float(labels / answer * np.vdot(probe, probe)) / zero.size if answer > 0 else 0.0
        self.best = self.start = self._linear(linear, zero, variance, _FIRST_STEPS)
        self._record(self.start.interaction, self.start.square, n_features, variance)

    def _linear(self, linear, start, variance, steps):
        """Estimate without a denoised matrix."""
        zero = np.zeros_like(start)
        estimate = zero if variance == 0 else solve(linear, zero, self._weight(linear, zero, variance), start, steps)
        return _Stage(estimate, self._square(estimate), variance)

    def _square(self, interaction):
        """Mean square of held-out residuals, a combination."""
        indices = self.held.x.collect(attention_indices, interaction.astype(self.held.x.dtype, copy=False))
        squares = self.held.squares(indices, self.linear.coefficients_of(interaction))
        return float(squares.mean()) / self.linear.channel.information_constant

    def _record(self, interaction, square, width, variance):
        row = {"held_out_square": square, "width": width, "noise_level": variance}
        if self.callback is not None:
            add_answer(row, self.callback({"iteration": len(self.rows), "interaction": interaction, **row}))
        self.rows.append(row)

    @staticmethod
    def _weight(linear, mean, variance):
        """Delta/v."""
        left = linear.labels - linear(mean)
        size = len(linear.x) * linear.channel.information_constant
        return max(linear.channel.noise, _LEFT * float(np.vdot(left, left)) / size) / variance

    def run(self, most):
        """Go on from the best stage with `most` singular values; answers whether held-out squares settled."""
        tied = self.linear.channel.tied
        variance = self.best.variance
        parts = spectrum(self.best.interaction, tied)
        kept = truncated(parts, most)
        self.best = _Stage(kept, self._square(kept), variance)
        squares = [self.best.square]
        while variance > 0 and self.best.square > self.goal:
            if len(self.rows) >= self.max_iter:
                return False
            variance *= _COOLING
            mean, rank = shrink(parts, variance, most)
            parts = spectrum(solve(self.linear, mean, self._weight(self.linear, mean, variance), mean, _STEPS), tied)
            kept = truncated(parts, most)
            square = self._square(kept)
            squares.append(square)
            self._record(kept, square, rank, variance)
            if square < self.best.square:
                self.best = _Stage(kept, square, variance)
            if variance < _LEAST * self.best.variance:
                break
            if len(squares) > _PATIENCE + 1 and square > (1 - _PROGRESS) * squares[-1 - _PATIENCE]:
                break
        return True

    def finish(self, whole, most):
        """A few stages more on all sequences, at the noise level of the best one."""
        tied, variance = whole.channel.tied, self.best.variance
        if self.best is self.start:
            return self._linear(whole, self.best.interaction, variance, _LAST_STEPS).interaction
        parts = spectrum(self.best.interaction, tied)
        for _ in range(_PATIENCE if variance > 0 else 0):
            mean, _ = shrink(parts, variance, most)
            parts = spectrum(solve(whole, mean, self._weight(whole, mean, variance), mean, _STEPS), tied)
        return truncated(parts, most)
