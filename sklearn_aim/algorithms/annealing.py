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
from sklearn_aim.algorithms.nuisance import KeyBias
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.indices import attention_indices, back_projection

# v of a stage over that of the last
_COOLING = 0.8
# steps of conjugate gradients: each stage starts where the last one ended
_FIRST_STEPS = 25
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
        Singular values that S has.
    converged : bool
    held : ndarray of int
        Sequences that were held out.
    held_indices : ndarray of shape (n_held, T, T)
        Predictions of their K, from the others.
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


class Linear:
    """S -> P H(S) for some sequences, key bias projected out; its adjoint, and the labels in the same form."""

    def __init__(self, x, code, channel, bias=False):
        self.x, self.code, self.channel = x, code, channel
        self.bias = KeyBias(x, code, channel) if bias else None
        n_tokens = x.shape[1]
        self.labels = self._project(channel.residual(code, np.zeros((len(x), n_tokens, n_tokens), x.dtype)))
        self.target = self.adjoint(self.labels)

    def _project(self, visible):
        if self.bias is not None:
            visible -= self.channel.visible(self.code, self.bias.indices(self.bias.fit(visible)))
        return visible

    def indices(self, interaction):
        """H(S), (n, T, T)."""
        return self.x.collect(attention_indices, interaction.astype(self.x.dtype, copy=False))

    def __call__(self, interaction):
        """P H(S), (n, T, T)."""
        return self._project(self.channel.visible(self.code, self.indices(interaction)))

    def adjoint(self, maps):
        """(P H)^T of maps that lie in the range of P, (d, d)."""
        return self.x.total(back_projection, self.channel.tied, parts=(maps,)) / np.sqrt(self.x.shape[2])

    def normal(self, interaction):
        """(P H)^T P H S."""
        return self.adjoint(self(interaction))

    def coefficients(self, interaction):
        """(b, tau) for S, or None."""
        if self.bias is None:
            return None
        return self.bias.fit(self.channel.residual(self.code, self.indices(interaction)))

    def predict(self, x, interaction):
        """What K is for other sequences, with the key bias that suits these."""
        indices = x.collect(attention_indices, interaction.astype(x.dtype, copy=False))
        if self.bias is not None:
            indices += self.bias.indices(self.coefficients(interaction), x)
        return indices


@dataclass
class Held:
    """Sequences that are not learned from."""

    x: object
    code: np.ndarray
    channel: object

    def squares(self, indices):
        """||P (K - indices)||^2 of every sequence."""
        residual = self.channel.residual(self.code, indices)
        return np.einsum("nab,nab->n", residual, residual, dtype=float)


def solve(linear, mean, weight, start, steps, tol=1e-3):
    """Minimise ||labels - P H(S)||^2 + weight ||S - M||^2 by conjugate gradients from `start`."""
    estimate = start.copy()
    right = linear.target + weight * mean
    residual = right - linear.normal(estimate) - weight * estimate
    direction = residual.copy()
    square, stop = np.vdot(residual, residual), tol**2 * np.vdot(right, right)
    for _ in range(steps):
        if not square > stop:
            break
        image = linear.normal(direction) + weight * direction
        step = square / np.vdot(direction, image)
        estimate += step * direction
        residual -= step * image
        last, square = square, np.vdot(residual, residual)
        direction *= square / last
        direction += residual
    return estimate


def spectrum(matrix, tied):
    """Singular values (tied: eigenvalues, the positive ones), largest first, and vectors: matrix = (L * s) @ R."""
    if not tied:
        return np.linalg.svd(matrix)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    kept = np.flatnonzero(values > 0)[::-1]
    return vectors[:, kept], values[kept], vectors[:, kept].T


def shrink(observation, variance, tied, most):
    """Denoised matrix of rank at most `most`, at entry variance v of the noise; and its rank."""
    edge = 4 * variance * len(observation)
    left, values, right = spectrum(observation, tied)
    rank = int(np.count_nonzero(values[:most] ** 2 > edge))
    return (left[:, :rank] * np.sqrt(values[:rank] ** 2 - edge)) @ right[:rank], rank


def truncated(matrix, tied, most):
    """The `most` largest singular values (tied: positive eigenvalues) alone."""
    left, values, right = spectrum(matrix, tied)
    return (left[:, :most] * values[:most]) @ right[:most]


def needed_width(linear, held, interaction, most):
    """Fewest singular values of S with which held-out sequences are predicted as well as with any number.

    Within one standard error of the difference, sequence by sequence.
    """
    left, values, right = spectrum(interaction, held.channel.tied)
    count = min(most, len(values))
    squares = np.empty((count + 1, len(held.x)))
    for width in range(count + 1):
        indices = linear.predict(held.x, (left[:, :width] * values[:width]) @ right[:width])
        squares[width] = held.squares(indices)
    excess = squares - squares[squares.mean(axis=1).argmin()]
    error = excess.std(axis=1) / np.sqrt(len(held.x))
    return int(np.flatnonzero(excess.mean(axis=1) <= error)[0])


def anneal(x, code, channel, *, width=None, bias=False, random_state=None, max_iter=200, tol=1e-2, callback=None):
    """Estimate S, its width and a key bias from sequences of any law, for links with a Gaussian posterior.

    Parameters
    ----------
    x : ndarray, SampleBlocks or DaskBlocks of shape (n, T, d)
    code : ndarray
        `channel.encode(y)`.
    channel : GaussianChannel
    width : int, optional
        Singular values that S may have at most; None: it is found.
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
    settled = stages.run(most)
    for _ in range(_ROUNDS if width is None else 0):
        needed = max(1, needed_width(stages.linear, held, stages.best["interaction"], stages.best["rank"] + 1))
        if stages.best["rank"] == 0 or needed >= most:
            break
        most = needed
        settled = stages.run(most)
    best = stages.best
    if best["rank"] > 0:
        # as many as predict held-out sequences as well
        most = min(most, best["rank"])
    predicted = stages.linear.predict(held.x, best["interaction"])
    # at last all sequences are learned from, at the width and from the noise level that the held-out ones chose
    whole = Linear(x, code, channel, bias)
    interaction = truncated(stages.finish(whole, most), channel.tied, most)
    return AnnealingResult(
        interaction,
        whole.coefficients(interaction),
        max(best["square"] - channel.noise, 0.0),
        most,
        settled,
        held_out,
        predicted,
        len(stages.rows),
        columns(stages.rows),
    )


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
        estimate = solve(linear, zero, self._weight(linear, zero, variance), zero, _FIRST_STEPS) if variance else zero
        self.best = {"interaction": estimate, "rank": 0, "variance": variance, "square": self._square(estimate)}

    def _square(self, interaction):
        """Mean square of held-out residuals, a combination."""
        squares = self.held.squares(self.linear.predict(self.held.x, interaction))
        return float(squares.mean()) / self.linear.channel.information_constant

    @staticmethod
    def _weight(linear, mean, variance):
        """Delta/v."""
        left = linear.labels - linear(mean)
        size = len(linear.x) * linear.channel.information_constant
        return max(linear.channel.noise, _LEFT * float(np.vdot(left, left)) / size) / variance

    def run(self, most):
        """Go on from the best stage with rank at most `most`; answers whether held-out squares settled."""
        estimate, variance = self.best["interaction"], self.best["variance"]
        squares = []
        while variance > 0 and len(self.rows) < self.max_iter:
            variance *= _COOLING
            mean, rank = shrink(estimate, variance, self.linear.channel.tied, most)
            estimate = solve(self.linear, mean, self._weight(self.linear, mean, variance), mean, _STEPS)
            square = self._square(estimate)
            squares.append(square)
            row = {"held_out_square": square, "width": rank, "noise_level": variance}
            if self.callback is not None:
                state = {"iteration": len(self.rows), "interaction": estimate, **row}
                add_answer(row, self.callback(state))
            self.rows.append(row)
            if square < self.best["square"] or (squares == [square] and self.best["rank"] > most):
                self.best = {"interaction": estimate, "rank": rank, "variance": variance, "square": square}
            if square <= self.goal or variance < _LEAST * self.best["variance"]:
                return True
            if len(squares) > _PATIENCE and square > (1 - _PROGRESS) * squares[-1 - _PATIENCE]:
                return True
        return variance == 0

    def finish(self, whole, most):
        """A few stages more on all sequences, at the noise level of the best one."""
        estimate, variance = self.best["interaction"], self.best["variance"]
        if self.best["rank"] == 0:
            zero = np.zeros_like(estimate)
            return solve(whole, zero, self._weight(whole, zero, variance), estimate, _FIRST_STEPS) if variance else zero
        for _ in range(_PATIENCE):
            mean, _ = shrink(estimate, variance, whole.channel.tied, most)
            estimate = solve(whole, mean, self._weight(whole, mean, variance), mean, _STEPS)
        return estimate
