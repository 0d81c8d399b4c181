"""A stack of attention layers as a function of its factors: loss, gradient and outputs, many starts at a time.

The factors of all starts and layers form one wide matrix, so that the two passes over X (Z = X W^T, dW = dZ^T X)
are shared. Sequences are taken in blocks, blocks in lanes: lanes run in threads, and sums are taken in an order
that does not depend on their number.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numba
import numpy as np

from sklearn_aim.kernels.attention_stack import stack_gradient, stack_output
from sklearn_aim.kernels.blocks import as_blocks

SCALINGS = ("attention-index", "sequence-index")
# in the order of the kernel
LOSSES = ("squared_error", "cross_entropy", "log_ratio")
# elements of a block of projections: small enough for the second-level cache, large enough for matrix products
_BLOCK_ELEMENTS = 1 << 17
_BLOCK_ROWS = 192
# sums of gradients that threads work on
_LANES = 16


@dataclass(frozen=True)
class AttentionStack:
    r"""The model: L layers of tied or untied low-rank attention.

    X_l = [skip I + softmax(beta h_l(X_{l-1}))] X_{l-1} for l < L; the output is softmax(beta h_L(X_{L-1})), or h_1
    itself (link "identity").

    Indices are h_ab = (x_a^T S x_b + b^T x_b - delta_ab tr S)/sqrt(d), the trace only if `center`, the key bias b only
    if `fit_bias`. scaling "attention-index" (arXiv 2506.01582): S = W W^T/sqrt(r d); "sequence-index" (arXiv
    2502.00901): S = W W^T/sqrt(d).

    The factors are an array (n_starts, n_layers * rows, d): for each layer the rows of W^T (untied: U^T, then V^T),
    then b if there is a bias.
    """

    n_features: int
    width: int
    tied: bool = True
    n_layers: int = 1
    skip: float = 1.0
    link: str = "softmax"
    inverse_temperature: float = 1.0
    loss: str = "squared_error"
    fit_bias: bool = False
    scaling: str = "attention-index"
    center: bool = True
    weight_decay: float = 0.0

    @property
    def rows(self):
        """Rows of the factors a layer."""
        return (1 if self.tied else 2) * self.width + self.fit_bias

    @property
    def shape(self):
        """Shape of one start's factors."""
        return self.n_layers * self.rows, self.n_features

    @property
    def interaction_scale(self):
        """S = interaction_scale * W W^T."""
        ratio = self.width if self.scaling == "attention-index" else 1
        return 1 / np.sqrt(ratio * self.n_features)

    @property
    def unit(self):
        """Step size in W of one unit of S: d / interaction_scale, or d; also the scale of the weight decay."""
        return self.n_features / self.interaction_scale if self.scaling == "attention-index" else self.n_features

    def null(self):
        """The smallest stack that gives what factors of zero give: uniform attention, or indices of zero."""
        return replace(self, width=1, n_layers=1, tied=True, fit_bias=False, weight_decay=0.0)

    def same_factors(self, other):
        """Whether factors mean the same in another stack."""
        names = ("n_features", "width", "tied", "n_layers", "fit_bias", "scaling", "link")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def step_scale(self, batch_size, n_tokens):
        """What makes a learning rate of gradient descent suit every size.

        One unit in S, over the curvature of a sequence's loss in its indices; less for batches that hold fewer
        sequences than fix the directions that there are.
        """
        enough = self.n_features**2 / 10 if self.scaling == "attention-index" else self.n_features
        if self.link == "identity" or self.loss == "log_ratio":
            curvature = 4.0 * n_tokens**2
        else:
            curvature = self.inverse_temperature**2 * (2 * n_tokens if self.loss == "cross_entropy" else 1)
        # that of the decay counts too
        return self.unit / (curvature + 2 * self.weight_decay) * min(1.0, batch_size / enough)

    @property
    def layout(self):
        """Sizes for the kernel."""
        return self.n_layers, self.width, self.tied, int(self.fit_bias), self.link == "softmax"

    @property
    def physics(self):
        """Scales for the kernel."""
        root = np.sqrt(self.n_features)
        return self.interaction_scale / root, 1 / root, float(self.inverse_temperature), float(self.skip)

    def split(self, factors):
        """Views of factors (n_starts, ...): left and right (n_starts, L, r, d), bias (n_starts, L, d) or None."""
        layers = factors.reshape(-1, self.n_layers, self.rows, self.n_features)
        left = layers[:, :, : self.width]
        right = left if self.tied else layers[:, :, self.width : 2 * self.width]
        return left, right, layers[:, :, -1] if self.fit_bias else None

    def initial(self, rng, init_scale):
        """Factors (1, ...) with normal entries of standard deviation `init_scale`, and no bias."""
        factors = init_scale * rng.standard_normal((1, *self.shape))
        if self.fit_bias:
            self.split(factors)[2][:] = 0
        return factors

    def refreshed(self, factors, kept, init_scale, rng):
        """Factors moved towards new ones, kept W + sqrt(1 - kept^2) N, which leaves the prior as it is; same biases."""
        fresh = np.concatenate([self.initial(rng, init_scale) for _ in factors])
        moved = kept * factors + np.sqrt(1 - kept**2) * fresh
        if self.fit_bias:
            self.split(moved)[2][:] = self.split(factors)[2]
        return moved

    def interactions(self, factors):
        """S of every start and layer, (n_starts, L, d, d)."""
        left, right, _ = self.split(factors)
        return self.interaction_scale * np.matmul(left.transpose(0, 1, 3, 2), right)

    def shift(self, factors):
        """What is taken off the diagonal indices, tr S/sqrt(d), (n_starts, L)."""
        left, right, _ = self.split(factors)
        if not self.center:
            return np.zeros(left.shape[:2])
        return self.physics[0] * np.einsum("mlrd,mlrd->ml", left, right)

    def outputs(self, factors, x, allowed=None):
        """Last indices and output maps of every start, (n, n_starts, T, T) each, in the dtype of x; 0 where masked."""
        x = as_blocks(x)
        wide, shift = factors.reshape(-1, self.n_features), self.shift(factors)
        both = x.collect(_outputs, wide, shift, self, parts=(_or_none(allowed, len(x)),))
        return both[:, 0], both[:, 1]


def _or_none(allowed, n_samples):
    """Allowed pairs as compiled code takes them, where None are no pairs at all."""
    return np.empty((n_samples, 0, 0), bool) if allowed is None else np.ascontiguousarray(allowed)


def _outputs(x, allowed, wide, shift, stack):
    """Last indices and output maps of a block of sequences, (n, 2, n_starts, T, T)."""
    n_samples, n_tokens, n_features = x.shape
    out = np.empty((n_samples, 2, shift.shape[0], n_tokens, n_tokens), x.dtype)
    wide = wide.astype(x.dtype)
    size = max(1, 8 * _BLOCK_ELEMENTS // (n_tokens * wide.shape[0]))
    for start in range(0, n_samples, size):
        part = slice(start, start + size)
        z = np.ascontiguousarray(x[part]).reshape(-1, n_features) @ wide.T
        indices, maps = np.empty((2, len(out[part]), *out.shape[2:]), x.dtype)
        stack_output(z, allowed[part], stack.layout, stack.physics, shift, indices, maps)
        out[part, 0], out[part, 1] = indices, maps
    return out


class Objective:
    """Mean loss a sequence and its gradient, for several starts at once.

    loss = sum_n w_n loss(y_n, output_n)/sum_n w_n + weight_decay sum_l ||W_l||^2/unit, where the last is the nuclear
    norm of S a dimension ("attention-index"), or the mean square of the entries times the width ("sequence-index").
    Untied factors count half each. Biases do not decay.

    Parameters
    ----------
    stack : AttentionStack
    x : ndarray, SampleBlocks or DaskBlocks of shape (n, T, d)
    y : ndarray of shape (n, T, T)
    weights : ndarray of shape (n,)
    allowed : ndarray of shape (n, T, T), bool, optional
        What masks let through; y is 0 elsewhere.
    n_threads : int, optional
        Threads that share the sequences of a block; results do not depend on it. Default: numba's.
    """

    def __init__(self, stack, x, y, weights, allowed=None, *, n_threads=None):
        self.stack, self.x, self.y = stack, as_blocks(x), y
        self.allowed = _or_none(allowed, len(self.x))
        self.weights = np.asarray(weights, dtype=float)
        self._lanes = Lanes(numba.config.NUMBA_NUM_THREADS if n_threads is None else n_threads)

    def __enter__(self):
        self._lanes.open()
        return self

    def __exit__(self, *error):
        self._lanes.close()

    def __call__(self, factors, subset=None, gradient=True):
        """Loss (n_starts,) and gradient, of the shape of factors (n_starts, ...), both double precision.

        Parameters
        ----------
        factors : ndarray of shape (n_starts, *stack.shape)
        subset : ndarray of int, optional
            Increasing indices of the sequences to take; default all.
        gradient : bool
            False: the loss alone, and None.
        """
        stack, x, y, weights, allowed = self.stack, self.x, self.y, self.weights, self.allowed
        if subset is not None:
            x, y, weights, allowed = x.take(subset), y[subset], weights[subset], allowed[subset]
        weights = weights / weights.sum()
        wide = factors.reshape(-1, stack.n_features).astype(x.dtype, copy=False)
        loss, d_shift, total = x.total(
            stack_sums, wide, stack.shift(factors), stack, gradient, self._lanes, parts=(y, weights, allowed)
        )
        loss, total = self._finish(factors, loss, d_shift, total.reshape(factors.shape))
        return loss, total if gradient else None

    def _finish(self, factors, loss, d_shift, total):
        """Add what depends on the factors alone: the trace in the indices, and weight decay."""
        stack = self.stack
        left, right, _ = stack.split(factors)
        d_left, d_right, _ = stack.split(total)
        if stack.center:
            # shift = scale sum U*V
            change = (stack.physics[0] * d_shift)[:, :, None, None]
            d_left += (2 if stack.tied else 1) * change * right
            if not stack.tied:
                d_right += change * left
        if stack.weight_decay > 0:
            decay = stack.weight_decay / stack.unit / (1 if stack.tied else 2)
            for part, d_part in ((left, d_left), (right, d_right))[: 1 if stack.tied else 2]:
                loss += decay * np.einsum("mlrd,mlrd->m", part, part)
                d_part += 2 * decay * part
        return loss, total


def stack_sums(x, y, weights, allowed, wide, shift, stack, gradient, lanes):
    """Weighted sums over a block of sequences, with what depends on the factors alone left out.

    Parameters
    ----------
    x, y, weights, allowed : ndarray of shape (n, T, d), (n, T, T), (n,), (n, T, T) or (n, 0, 0)
    wide : ndarray of shape (n_starts * n_layers * rows, d)
        Factors, in the dtype of x.
    shift : ndarray of shape (n_starts, L)
    stack : AttentionStack
    gradient : bool
        False: the loss alone.
    lanes : Lanes

    Returns
    -------
    loss, d_shift, d_wide : ndarray of shape (n_starts,), (n_starts, L), (n_starts * n_layers * rows, d)
        Sums of the losses and their derivatives, double precision.
    """
    n_samples, n_tokens, n_features = x.shape
    kind = LOSSES.index(stack.loss)
    size = max(_BLOCK_ROWS, _BLOCK_ELEMENTS // wide.shape[0]) // n_tokens or 1
    # of one size, and as many as threads can share
    count = min(-(-n_samples // size // 4) * 4, n_samples) if n_samples > size else 1
    parts = [slice(n_samples * k // count, n_samples * (k + 1) // count) for k in range(count)]

    def run(lane, scratch):
        # the caller's own setting does not reach other threads; what overflows shows in the loss
        with np.errstate(over="ignore", invalid="ignore"):
            return work(lane, scratch)

    def work(lane, scratch):
        loss, d_shift = np.zeros(len(shift)), np.zeros(shift.shape)
        total = np.zeros(wide.shape, x.dtype) if gradient else None
        for part in lane:
            rows = np.ascontiguousarray(x[part]).reshape(-1, n_features)
            z = scratch("z", (rows.shape[0], wide.shape[0]), x.dtype)
            np.dot(rows, wide.T, out=z)
            stack_gradient(
                z, y[part], weights[part], allowed[part], stack.layout, stack.physics, shift, kind, gradient, loss,
                d_shift,
            )  # fmt: skip
            if not gradient:
                continue
            total += np.dot(z.T, rows, out=scratch("product", wide.shape, x.dtype))
        return loss, d_shift, total

    loss, d_shift, total = np.zeros(len(shift)), np.zeros(shift.shape), np.zeros(wide.shape)
    for lane_loss, lane_shift, lane_total in lanes.map(run, parts):
        loss += lane_loss
        if gradient:
            d_shift += lane_shift
            total += lane_total
    return loss, d_shift, total


class Lanes:
    """Sums over blocks in a fixed number of lanes, which threads work on. Sent elsewhere, it has one thread there.

    Parameters
    ----------
    n_threads : int
    """

    def __init__(self, n_threads=1):
        self.n_threads = n_threads
        self._pool = None
        self._local = threading.local()

    def __reduce__(self):
        return Lanes, ()

    def open(self):
        """Start the threads."""
        if self.n_threads > 1:
            self._pool = ThreadPoolExecutor(self.n_threads)

    def close(self):
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def map(self, function, blocks):
        """Answers of function(lane, scratch), lanes in order."""
        lanes = [blocks[k::_LANES] for k in range(min(_LANES, len(blocks)))]
        scratch = [self._scratch] * len(lanes)
        if self._pool is None or len(lanes) == 1:
            return map(function, lanes, scratch)
        return self._pool.map(function, lanes, scratch)

    def _scratch(self, name, shape, dtype):
        """A thread's own array, kept between calls."""
        size = shape[0] * shape[1]
        held = getattr(self._local, name, None)
        if held is None or held.size < size or held.dtype != dtype:
            held = np.empty(size, dtype)
            setattr(self._local, name, held)
        return held[:size].reshape(shape)
