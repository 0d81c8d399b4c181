"""TokenWhitener: tokens of zero mean and unit covariance, in (n_samples, n_tokens, n_features)."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sklearn_aim.kernels.masks import allowed_pairs, padding
from sklearn_aim.kernels.moments import centred_products, of_real_tokens, token_sums, unwhitened, whitened
from sklearn_aim.parameters import Documented, check_number
from sklearn_aim.ragged import is_ragged, pad_sequences
from sklearn_aim.sequences import as_array, check_sequences, kept_on_failure, sequence_blocks

# squares of scales exceed the least number of their precision by this factor
_MARGIN = 1e6


class TokenWhitener(Documented, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Linear map that gives tokens zero mean and unit covariance.

    Mean and covariance are over all tokens of all sequences. The new features are the principal axes of
    the tokens, largest variance first, scaled to variance one.

    Parameters
    ----------
    ridge : float, default=0.0
        Added to every variance before scaling, in units of the mean variance. Directions of small variance are then
        scaled up less, and come out with less than unit variance.
    drop_below : float, default=1e-6
        Directions whose variance is at most this fraction of the largest are dropped (features that are constant, or
        sums of others).
    n_tokens : int, optional
        Tokens in a row of 2-D X; None: one.

    Attributes
    ----------
    mean_ : ndarray of shape (d,)
        d features of one token.
    components_ : ndarray of shape (n_components_, d)
        Principal axes, orthonormal rows.
    variances_ : ndarray of shape (n_components_,)
        Their variances, decreasing.
    scale_ : ndarray of shape (n_components_,)
        What the components are divided by.
    n_components_ : int
    n_features_in_ : int
    n_token_features_ : int
        d.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_aim import TokenWhitener
    >>> X = np.random.default_rng(0).normal(size=(500, 4, 3)) @ np.array([[2, 0, 0], [1, 1, 0], [0, 1, 0.0]])
    >>> TokenWhitener().fit_transform(X).shape
    (500, 4, 2)
    """

    def __init__(self, ridge: float = 0.0, *, drop_below: float = 1e-6, n_tokens: int | None = None):
        self.ridge = ridge
        self.drop_below = drop_below
        self.n_tokens = n_tokens

    def fit(self, X: ArrayLike, y: Any = None, mask: ArrayLike | str | None = None) -> Self:
        """Learn mean and covariance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Or a list of arrays (n_tokens, n_features) of unequal length.
        y : ignored
        mask : None, "causal" or ndarray, default=None
            As in `AMPAttentionRegressor.fit`: padding does not count.

        Returns
        -------
        self
        """
        with kept_on_failure(self):
            if is_ragged(X):
                X, mask = pad_sequences(X, mask=mask)
            return self._fit(X, mask)

    def _fit(self, X, mask):
        check_number(self.ridge, "ridge")
        if check_number(self.drop_below, "drop_below") >= 1:
            raise ValueError(f"drop_below={self.drop_below!r} must be below 1: at 1 every direction is dropped.")
        x, _ = self._sequences(X, reset=True)
        return self.learn(x, allowed_pairs(mask, *x.shape[:2]))

    def learn(self, x, allowed):
        """`fit` for blocks of sequences that have been checked; allowed pairs (n, T, T) or None."""
        n_features = self.n_token_features_ = x.shape[2]
        padded = None if allowed is None else padding(allowed)
        count = x.shape[0] * x.shape[1] if padded is None else int(np.sum(~padded))
        if count < 2:
            raise ValueError("n_samples = 1: found 1 sample of one token, but TokenWhitener needs at least 2 tokens.")

        def total(function, *shared):
            if padded is None:
                return x.total(function, *shared)
            return x.total(of_real_tokens, function, *shared, parts=(padded,))

        with np.errstate(over="ignore", invalid="ignore"):
            mean = total(token_sums) / count
            covariance = total(centred_products, mean) / count
        if not np.isfinite(covariance).all():
            raise ValueError("X holds features too large to square: scale X before TokenWhitener.")
        variances, axes = linalg.eigh(covariance, driver="evd", check_finite=False)
        # variances of this size are the rounding of the mean
        rounding = (1e3 * np.finfo(np.float64).eps * np.abs(mean).max()) ** 2
        keep = variances > max(max(self.drop_below, n_features * np.finfo(x.dtype).eps) * variances[-1], rounding)
        if not keep.any():
            raise ValueError("X holds tokens that are all equal: there is no direction to whiten.")
        scale = np.sqrt(variances[keep] + self.ridge * variances.mean())
        largest = np.finfo(x.dtype).max
        # interactions are divided by squares of these
        if scale.min() < np.sqrt(_MARGIN * np.finfo(x.dtype).tiny) or not max(scale.max(), variances[-1]) < largest:
            raise ValueError(
                f"X has directions of standard deviation {np.sqrt(variances[keep].min()):.3g} to "
                f"{np.sqrt(variances[-1]):.3g}, too small or too large for ridge={self.ridge!r} in {x.dtype}: scale X "
                "before TokenWhitener."
            )
        # the largest entry of each axis is positive, so that the answer does not depend on the eigensolver
        axes = axes[:, keep][:, ::-1].T
        axes *= np.sign(axes[np.arange(axes.shape[0]), np.argmax(np.abs(axes), axis=1)])[:, None]
        self.mean_ = mean.astype(x.dtype)
        self.components_ = np.ascontiguousarray(axes, dtype=x.dtype)
        self.variances_ = variances[keep][::-1].astype(x.dtype)
        self.scale_ = scale[::-1].astype(x.dtype)
        self.n_components_ = self.components_.shape[0]
        return self

    def _sequences(self, X, reset):
        if self.n_tokens is not None:
            check_number(self.n_tokens, "n_tokens", low=1, integer=True)
        return check_sequences(self, X, reset=reset, n_tokens=self.n_tokens)

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Whiten tokens.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Or a list of arrays (n_tokens, n_features) of unequal length.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_components_), or flattened or a list like X
            In memory; for a dask array a dask array, whose chunks are whitened when they are needed.
        """
        check_is_fitted(self)
        if is_ragged(X):
            return [one[: len(x)] for one, x in zip(self.transform(pad_sequences(X)[0]), X, strict=True)]
        x, flat = self._sequences(X, reset=False)
        out = self.apply(x)
        return out.reshape(out.shape[0], -1) if flat else out

    def apply(self, x):
        """`transform` for blocks of sequences that have been checked."""
        matrix = (self.components_ / self.scale_[:, None]).T.astype(x.dtype)
        return x.map(whitened, self.mean_.astype(x.dtype), matrix)

    def inverse_transform(self, X: ArrayLike) -> np.ndarray:
        """Map whitened tokens back; dropped directions come back at their mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_components_), or flattened

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_features), or flattened like X
        """
        check_is_fitted(self)
        one_axis = getattr(X, "ndim", 2) < 2
        x = X if one_axis else as_array(X, "X", type(self).__name__, 1)
        flat = x.ndim == 2
        if one_axis or x.shape[-1] % self.n_components_ or (x.ndim == 3 and x.shape[2] != self.n_components_):
            raise ValueError(f"X has shape {x.shape}, but whitened tokens have {self.n_components_} features.")
        if flat:
            x = x.reshape(x.shape[0], -1, self.n_components_)
        x = sequence_blocks(x)
        matrix = (self.scale_[:, None] * self.components_).astype(x.dtype, copy=False)
        out = x.map(unwhitened, matrix, self.mean_.astype(x.dtype, copy=False))
        return out.reshape(out.shape[0], -1) if flat else out

    def interaction_to_raw(
        self, interaction: ArrayLike, *, return_bias: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Carry an interaction learned on whitened tokens back to the raw features.

        With x the raw tokens, (x_a^T S_raw x_b + query_bias . x_a + key_bias . x_b)/sqrt(d) + constant is the index of
        the whitened tokens, but for the trace on the diagonal.

        Parameters
        ----------
        interaction : array-like of shape (n_components_, n_components_)
        return_bias : bool, default=False

        Returns
        -------
        interaction : ndarray of shape (n_features, n_features)
        query_bias, key_bias : ndarray of shape (n_features,)
            Only if `return_bias`: linear terms from the mean, -S_raw mean and -S_raw^T mean. A softmax drops the first.
        """
        check_is_fitted(self)
        interaction = np.asarray(interaction)
        if interaction.shape != (self.n_components_, self.n_components_):
            raise ValueError(
                f"interaction has shape {interaction.shape}, but whitened tokens have {self.n_components_} features."
            )
        matrix = self.components_ / self.scale_[:, None]
        raw = np.sqrt(self.n_token_features_ / self.n_components_) * (matrix.T @ interaction @ matrix)
        return (raw, -raw @ self.mean_, -raw.T @ self.mean_) if return_bias else raw

    def bias_to_raw(self, bias: ArrayLike) -> np.ndarray:
        """Carry a key bias learned on whitened tokens back to the raw features: (n_features,), but for a constant.

        Parameters
        ----------
        bias : array-like of shape (n_components_,)

        Returns
        -------
        ndarray of shape (n_features,)
        """
        check_is_fitted(self)
        bias = np.asarray(bias)
        if bias.shape != (self.n_components_,):
            raise ValueError(f"bias has shape {bias.shape}, but whitened tokens have {self.n_components_} features.")
        scale = np.sqrt(self.n_token_features_ / self.n_components_)
        return scale * ((bias / self.scale_) @ self.components_)

    @property
    def _n_features_out(self):
        return self.n_components_ * (1 if self.n_tokens is None else self.n_tokens)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
