"""What all attention regressors share: fit and predict around (n, T, T) maps, scores, tags."""

import copy

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from sklearn_aim.channels import make_channel
from sklearn_aim.kernels.masks import allowed_pairs
from sklearn_aim.metrics import attention_r2_score
from sklearn_aim.parameters import Documented, check_flag, check_inverse_temperature, check_number
from sklearn_aim.ragged import is_ragged, pad_sequences
from sklearn_aim.sequences import check_maps, check_sequences, restore_form


def check_weights(sample_weight, x):
    """Weights of the samples of x, at least 0; their sum is finite, and not 0."""
    weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not 0 < total < np.inf:
        raise ValueError(f"sample_weight must have a positive, finite sum, got {total}: rescale it.")
    return weights


class AttentionRegressor(Documented, RegressorMixin, BaseEstimator):
    """Base of estimators that learn one interaction matrix.

    Subclasses have parameters ``tied, link, inverse_temperature, n_tokens`` and set ``interaction_``.
    """

    def _check_fit(self, X, y, reset=True):
        """Blocks of X (n, T, d), and maps (n, T, T); sets (or, with reset=False, checks) input attributes."""
        name = type(self).__name__
        if self.n_tokens is not None:
            check_number(self.n_tokens, "n_tokens", low=1, integer=True)
        x, _ = check_sequences(self, X, reset=reset, n_tokens=self.n_tokens)
        maps, self._form = check_maps(y, x, name)
        self.n_tokens_ = x.shape[1]
        self._dtype = x.dtype
        return x, maps

    def _channel(self, n_tokens, noise=0.0, allowed=None):
        check_inverse_temperature(self.inverse_temperature)
        return make_channel(
            self.link,
            n_tokens,
            tied=check_flag(self.tied, "tied"),
            noise=noise,
            inverse_temperature=self.inverse_temperature,
            allowed=allowed,
        )

    def _check_predict(self, X):
        """Validated blocks of X (n, T, d) of a fitted estimator, in the precision of the data that it saw."""
        check_is_fitted(self)
        tokens = self.n_tokens_ if self._fitted_on_2d else self.n_tokens
        x, flat = check_sequences(self, X, reset=False, n_tokens=tokens)
        if flat and not self._fitted_on_2d and self.n_tokens is None and self.n_tokens_ > 1:
            raise ValueError(
                f"X has shape {x.shape[::2]}, but {type(self).__name__} was fitted on sequences of shape (n_samples, "
                "n_tokens, n_features). For a single sequence pass X[None]."
            )
        return x.astype(self._dtype)

    def _answer(self, maps):
        # another number of tokens than in fit can't have y's flat shape, but has a flat one
        return restore_form(maps, "maps" if self._form == "scalar" and maps.shape[1] > 1 else self._form)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 of the predicted attention maps, all entries pooled.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        y : array-like of shape (n_samples, n_tokens, n_tokens)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float
            See `sklearn_aim.metrics.attention_r2_score`.
        """
        return attention_r2_score(y, self.predict(X), sample_weight=sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.multi_output = self.n_tokens not in (None, 1)
        tags.target_tags.single_output = self.n_tokens in (None, 1)
        # recovering an interaction takes n ~ d^2 sequences from the model, which generic checks don't have
        tags.regressor_tags.poor_score = True
        return tags


class MaskedAttentionRegressor(AttentionRegressor):
    """Base of estimators whose fit, predict and score take masks. They set ``mask_``."""

    def _learn_mask(self, mask, x):
        """Allowed pairs (n, T, T) in fit, or None."""
        allowed = allowed_pairs(mask, *x.shape[:2])
        shared = isinstance(mask, str) or (np.ndim(mask) == 2 and np.shape(mask) == x.shape[1:2] * 2)
        if allowed is None or isinstance(mask, str):
            self.mask_ = None if allowed is None else mask
        else:
            self.mask_ = np.array(mask if shared else allowed, dtype=bool)
        # one mask of all sequences goes on to new ones
        self._shared_mask = self.mask_ if shared else None
        return allowed

    def _allowed(self, mask, n_samples, n_tokens):
        """Allowed pairs of new sequences, or None."""
        if mask is not None or self._shared_mask is None or isinstance(self._shared_mask, str):
            return allowed_pairs(self._shared_mask if mask is None else mask, n_samples, n_tokens)
        kept = np.asarray(self._shared_mask, dtype=bool)
        if kept.shape != (n_tokens, n_tokens):
            raise ValueError(
                f"X has {n_tokens} tokens a sequence, but the mask of fit has shape {kept.shape}: pass mask for these."
            )
        return np.broadcast_to(kept, (n_samples, n_tokens, n_tokens))

    def _fit_padded(self, fit, X, y, mask, *arguments):
        """Fit, after padding if sequences are of unequal length."""
        if not is_ragged(X):
            return fit(X, y, mask, *arguments)
        fit(*pad_sequences(X, y, mask), *arguments)
        self._shared_mask = copy.copy(mask)
        return self

    def _padded(self, X, y, mask):
        """X, y and mask of sequences of unequal length, padded; the mask of fit goes on, as it does for arrays."""
        return pad_sequences(X, y, self._shared_mask if mask is None else mask)

    def _by_length(self, answer, X, mask, **options):
        """What `answer` says of sequences of unequal length, cut to their lengths: a list, or several."""
        check_is_fitted(self)
        padded, mask = self._padded(X, None, mask)
        answers = answer(padded, mask=mask, **options)
        cut = [
            [one[: len(x), : len(x)] for one, x in zip(each, X, strict=True)]
            for each in (answers if isinstance(answers, tuple) else (answers,))
        ]
        return tuple(cut) if isinstance(answers, tuple) else cut[0]

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, mask: ArrayLike | str | None = None
    ) -> float:
        """R^2 of the predicted attention maps, all entries pooled but those that are masked.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        y : array-like of shape (n_samples, n_tokens, n_tokens)
        sample_weight : array-like of shape (n_samples,), optional
        mask : None, "causal" or ndarray, optional
            As in `predict`.

        Returns
        -------
        float
            See `sklearn_aim.metrics.attention_r2_score`.
        """
        if is_ragged(X):
            check_is_fitted(self)
            X, y, mask = self._padded(X, y, mask)
        predicted = self.predict(X, mask=mask)
        n_tokens = predicted.shape[1] if predicted.ndim == 3 else round(np.sqrt(predicted[0].size))
        allowed = self._allowed(mask, len(predicted), n_tokens)
        return attention_r2_score(y, predicted, sample_weight=sample_weight, mask=allowed)
