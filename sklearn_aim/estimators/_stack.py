"""What a fitted stack of attention layers is and answers: factors, interactions, predictions."""

import warnings

import numpy as np

from sklearn_aim.algorithms.attention_stack import AttentionStack
from sklearn_aim.channels import make_channel
from sklearn_aim.estimators._base import MaskedAttentionRegressor, check_weights
from sklearn_aim.estimators._gd_checks import check_labels
from sklearn_aim.estimators._sizes import check_indices
from sklearn_aim.estimators._width import learned_width
from sklearn_aim.kernels.indices import attention_indices, layer_indices
from sklearn_aim.kernels.masks import padding
from sklearn_aim.kernels.moments import of_real_tokens, token_power
from sklearn_aim.ragged import is_ragged

# numbers whose mean square says whether tokens have unit variance
_ENOUGH = 200


def finite_starts(factors, dtype):
    """Starts whose interactions are finite in the precision of the data, (n_starts,) bool."""
    largest = np.abs(factors).reshape(len(factors), -1).max(axis=1)
    return largest < np.sqrt(np.finfo(dtype).max) / factors[0].size


class AttentionStackRegressor(MaskedAttentionRegressor):
    """Base of estimators that learn the factors of one attention layer or more, from several starts."""

    def _check_data(self, X, y, sample_weight, mask, reset=True):
        """Data of positive weight as `Objective` takes them (X, maps, weights, allowed pairs), and the model."""
        x, maps = self._check_fit(X, y, reset)
        # the link's own word on numbers of tokens
        self._channel(x.shape[1])
        allowed = self._learn_mask(mask, x)
        maps = check_labels(self, maps, allowed)
        weights = check_weights(sample_weight, x)
        if (weights == 0).any():
            # as if these sequences were not there
            used = np.flatnonzero(weights)
            x, maps, weights = x.take(used), maps[used], weights[used]
            if allowed is not None:
                allowed = allowed[used]
                self.mask_ = allowed if np.ndim(self.mask_) == 3 else self.mask_
        # compiled code is made for one memory order, and for arrays that may be written
        maps = np.require(maps, requirements=["C", "W"])
        x = x.contiguous()
        width, width_ratio = learned_width(self, x, maps, allowed, self.fit_bias or not self._centered())
        stack = AttentionStack(
            n_features=x.shape[2],
            width=width,
            tied=self.tied,
            n_layers=self.n_layers,
            skip=self.skip,
            link=self.link,
            inverse_temperature=self.inverse_temperature,
            loss=self.loss,
            fit_bias=self.fit_bias,
            scaling=self.scaling,
            center=self._centered(),
            weight_decay=self.weight_decay,
        )
        self.width_, self.width_ratio_ = width, width_ratio
        n_features = x.shape[2]
        self.sample_complexity_ = len(x) / n_features ** (2 if self.scaling == "attention-index" else 1)
        return (x, maps, weights, allowed), stack

    def _warn_of_data(self, x, maps, allowed):
        off = np.abs(maps.sum(axis=-1, dtype=float) - 1)
        if allowed is not None:
            off = off[allowed.any(axis=-1)]
        if self.link == "softmax" and off.max() > 1e-3:
            warnings.warn(
                "rows of y do not sum to 1, those of a softmax do: y[n, a, b] is the weight of key b for query a. "
                "Transpose or normalise y, or use link='identity' for logits.",
                UserWarning,
                stacklevel=6,
            )
        if self.link != "softmax" or not self._centered() or np.prod(x.shape) < _ENOUGH:
            return
        with np.errstate(over="ignore"):
            if allowed is None:
                mean_square = x.total(token_power) / np.prod(x.shape)
            else:
                padded = padding(allowed)
                mean_square = x.total(of_real_tokens, token_power, parts=(padded,)) / (np.sum(~padded) * x.shape[2])
        if not 0.5 < mean_square < 2:
            warnings.warn(
                f"X has mean square {mean_square:.3g}, and center={self.center!r} takes off tr S, the mean of x^T S x "
                "for tokens of unit variance: softmax can't make up for another. Use TokenWhitener, or center=False.",
                UserWarning,
                stacklevel=6,
            )

    def _centered(self):
        if isinstance(self.center, str):
            return self.scaling == "attention-index" and not self.fit_bias
        return bool(self.center)

    def _learned(self, stack, factors, losses, dtype, good=None, exact=False):
        """Fitted attributes from the factors of all starts; the `good` ones are averaged, if there are any."""
        n_layers, d = stack.n_layers, stack.n_features

        def by_layer(array, axis):
            return np.squeeze(array, axis) if n_layers == 1 else array

        losses = np.array(losses, dtype=float)
        good = np.isfinite(losses) if good is None else good
        best = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
        used = np.flatnonzero(good) if good.any() else np.array([best])
        chosen = used if self.average else np.array([best])
        left, right, bias = stack.split(factors)
        each = np.empty((len(factors), n_layers, d, d), dtype)
        mean = np.zeros((n_layers, d, d))
        for start, one in enumerate(factors):
            each[start] = stack.interactions(one[None])[0]
            if start in used:
                mean += each[start] / len(used)
        learned = {
            "_stack": stack,
            "_factors": factors,
            "_chosen": chosen,
            "losses_": losses,
            "best_loss_": float(losses[best]),
            "interactions_": by_layer(each, 1),
            "interaction_": by_layer(mean.astype(dtype) if self.average else each[best].copy(), 0),
        }
        names = ("W_",) if stack.tied else ("U_", "V_")
        for name, part in zip(names, (left, right), strict=False):
            learned[name] = by_layer(part[best].transpose(0, 2, 1), 0).astype(dtype)
        bias = np.zeros((len(factors), n_layers, d)) if bias is None else bias
        learned["bias_"] = by_layer(bias[chosen].mean(axis=0), 0).astype(dtype)
        count = len(used)
        if count > 1:
            spread = sum(np.sum((each[start] - mean) ** 2, axis=(1, 2)) for start in used) / ((count - 1) * d)
            learned["start_spread_"] = float(spread[0]) if n_layers == 1 else spread
            if exact:
                learned["estimation_error_"] = learned["start_spread_"] * (1 + 1 / count if self.average else 2)
        return learned

    def _forget(self):
        """Drop what a fit with other parameters may have left."""
        for name in ("W_", "U_", "V_", "start_spread_", "estimation_error_", "validation_loss_curve_"):
            vars(self).pop(name, None)

    def predict(self, X, mask=None):
        """Attention maps.

        One layer: link of the indices of `interaction_`; several: the mean over starts of their outputs, or the
        output of the best start.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        mask : None, "causal" or ndarray, default=None
            As in `fit`. None: "causal" or a mask of shape (n_tokens, n_tokens) goes on from `fit`, others don't.

        Returns
        -------
        ndarray
            In the shape that y had in `fit`.
        """
        if is_ragged(X):
            return self._by_length(self.predict, X, mask)
        x = self._check_predict(X)
        stack, allowed = self._stack, self._allowed(mask, *x.shape[:2])
        if stack.n_layers > 1:
            return self._answer(self._deep(x, allowed)[1])
        channel = make_channel(
            stack.link,
            x.shape[1],
            tied=stack.tied,
            inverse_temperature=stack.inverse_temperature,
            allowed=allowed,
        )
        return self._answer(channel.link(self._shallow(x)))

    def predict_index(self, X, mask=None):
        """Attention indices of the (last) layer, of the mean interaction or averaged over starts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        mask : None, "causal" or ndarray, default=None
            As in `predict`.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_tokens)
            h, the key bias included; 0 where masked.
        """
        if is_ragged(X):
            return self._by_length(self.predict_index, X, mask)
        x = self._check_predict(X)
        allowed = self._allowed(mask, *x.shape[:2])
        if self._stack.n_layers > 1:
            return self._deep(x, allowed)[0]
        return self._shallow(x) if allowed is None else np.where(allowed, self._shallow(x), 0).astype(x.dtype)

    def _shallow(self, x):
        root = np.sqrt(x.shape[2])
        with np.errstate(over="ignore", invalid="ignore"):
            indices = x.collect(attention_indices, self.interaction_)
            if not self._stack.center:
                diagonal = np.arange(x.shape[1])
                indices[:, diagonal, diagonal] += indices.dtype.type(np.trace(self.interaction_) / root)
            if self._stack.fit_bias:
                indices += x.collect(layer_indices, self.bias_[None])
        return check_indices(indices)

    def _deep(self, x, allowed):
        with np.errstate(over="ignore", invalid="ignore"):
            indices, maps = self._stack.outputs(self._factors[self._chosen], x, allowed)
        return check_indices(indices).mean(axis=1), maps.mean(axis=1)
