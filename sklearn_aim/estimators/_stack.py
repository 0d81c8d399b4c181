"""What a fitted stack of attention layers is and answers: factors, interactions, predictions."""

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from sklearn_aim.algorithms.attention_stack import AttentionStack
from sklearn_aim.channels import make_channel
from sklearn_aim.estimators._base import AttentionRegressor
from sklearn_aim.estimators._gd_checks import check_labels
from sklearn_aim.kernels.indices import attention_indices
from sklearn_aim.parameters import resolve_width


class AttentionStackRegressor(AttentionRegressor):
    """Base of estimators that learn the factors of one attention layer or more, from several starts."""

    def _check_data(self, X, y, sample_weight, reset=True):
        """Validated X (n, T, d), maps and weights of positive weight, and the model."""
        x, maps = self._check_fit(X, y, reset)
        # the link's own word on numbers of tokens
        self._channel(x.shape[1])
        check_labels(self, maps)
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        if not 0 < weights.sum() < np.inf:
            raise ValueError(f"sample_weight must have a positive, finite sum, got {weights.sum()}: rescale it.")
        width, width_ratio = resolve_width(self.width, x.shape[2])
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
        if (weights == 0).any():
            # as if these sequences were not there
            x, maps, weights = x[weights > 0], maps[weights > 0], weights[weights > 0]
        n_features = x.shape[2]
        self.sample_complexity_ = len(x) / n_features ** (2 if self.scaling == "attention-index" else 1)
        # compiled code is made for one memory order, and for arrays that may be written
        maps = np.require(maps, requirements=["C", "W"])
        return np.ascontiguousarray(x), maps, weights, stack

    def _centered(self):
        if isinstance(self.center, str):
            return self.scaling == "attention-index" and not self.fit_bias
        return bool(self.center)

    def _learned(self, stack, factors, losses, dtype):
        """Fitted attributes from the factors of all starts."""
        n_layers, count = stack.n_layers, len(factors)

        def by_layer(array, axis):
            return np.squeeze(array, axis) if n_layers == 1 else array

        best = int(np.argmin(losses))
        left, right, bias = stack.split(factors)
        each = stack.interactions(factors)
        mean = each.mean(axis=0)
        learned = {
            "_stack": stack,
            "_chosen": slice(None) if self.average else slice(best, best + 1),
            "_factors": factors,
            "losses_": np.array(losses, dtype=float),
            "best_loss_": float(losses[best]),
            "interactions_": by_layer(each, 1).astype(dtype, copy=False),
            "interaction_": by_layer(mean if self.average else each[best], 0).astype(dtype),
        }
        names = ("W_",) if stack.tied else ("U_", "V_")
        for name, part in zip(names, (left, right), strict=False):
            learned[name] = by_layer(part[best].transpose(0, 2, 1), 0).astype(dtype)
        bias = np.zeros((count, n_layers, stack.n_features)) if bias is None else bias
        learned["bias_"] = by_layer(bias.mean(axis=0) if self.average else bias[best], 0).astype(dtype)
        if count > 1:
            spread = np.sum((each - mean) ** 2, axis=(0, 2, 3)) / ((count - 1) * stack.n_features)
            error = spread * (1 + 1 / count if self.average else 2)
            learned["start_spread_"] = float(spread[0]) if n_layers == 1 else spread
            learned["estimation_error_"] = float(error[0]) if n_layers == 1 else error
        return learned

    def _forget(self):
        """Drop what a fit with other parameters may have left."""
        for name in ("W_", "U_", "V_", "start_spread_", "estimation_error_", "validation_loss_curve_"):
            vars(self).pop(name, None)

    def predict(self, X):
        """Attention maps.

        One layer: link of the indices of `interaction_`; several: the mean over starts of their outputs, or the
        output of the best start.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)

        Returns
        -------
        ndarray
            In the shape that y had in `fit`.
        """
        x = self._check_predict(X)
        stack = self._stack
        channel = make_channel(stack.link, x.shape[1], tied=stack.tied, inverse_temperature=stack.inverse_temperature)
        return self._answer(channel.link(self._shallow(x)) if stack.n_layers == 1 else self._deep(x)[1])

    def predict_index(self, X):
        """Attention indices of the (last) layer, of the mean interaction or averaged over starts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_tokens)
            h, the key bias included.
        """
        x = self._check_predict(X)
        return self._shallow(x) if self._stack.n_layers == 1 else self._deep(x)[0]

    def _shallow(self, x):
        root = np.sqrt(x.shape[2])
        with np.errstate(over="ignore", invalid="ignore"):
            indices = attention_indices(x, self.interaction_)
            if not self._stack.center:
                diagonal = np.arange(x.shape[1])
                indices[:, diagonal, diagonal] += indices.dtype.type(np.trace(self.interaction_) / root)
            if self._stack.fit_bias:
                indices += (x @ (self.bias_ / root).astype(x.dtype))[:, None, :]
        return self._finite(indices)

    def _deep(self, x):
        with np.errstate(over="ignore", invalid="ignore"):
            indices, maps = self._stack.outputs(self._factors[self._chosen], x)
        return self._finite(indices).mean(axis=1), maps.mean(axis=1)

    def _finite(self, indices):
        if not np.isfinite(indices).all():
            raise ValueError("X holds features too large for finite attention indices: scale it as in fit.")
        return indices
