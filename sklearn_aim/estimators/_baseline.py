"""The baseline to beat: attention by position alone."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sklearn_aim.estimators._base import AttentionRegressor, check_weights
from sklearn_aim.sequences import kept_on_failure


class PositionMeanRegressor(AttentionRegressor):
    """Predict the mean attention map, position by position, whatever the tokens are.

    Parameters
    ----------
    n_tokens : int, optional
        Tokens of a sequence when X is 2-D. None: one token.

    Attributes
    ----------
    map_ : ndarray of shape (n_tokens, n_tokens)
    """

    def __init__(self, n_tokens: int | None = None):
        self.n_tokens = n_tokens

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Average the maps.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        y : array-like of shape (n_samples, n_tokens, n_tokens)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with kept_on_failure(self):
            return self._fit(X, y, sample_weight)

    def _fit(self, X, y, sample_weight):
        _, maps = self._check_fit(X, y)
        weights = check_weights(sample_weight, maps)
        self.map_ = np.average(maps, axis=0, weights=weights).astype(maps.dtype)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Repeat the mean map.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)

        Returns
        -------
        ndarray
            In the shape that y had in `fit`.
        """
        x = self._check_predict(X)
        if x.shape[1] != self.n_tokens_:
            raise ValueError(f"X has {x.shape[1]} tokens a sequence, but this mean map has {self.n_tokens_}.")
        return self._answer(np.repeat(self.map_[None], x.shape[0], axis=0))
