"""TeacherError: the true error of every iteration, when the teacher is known."""

import numpy as np
from numpy.typing import ArrayLike


class TeacherError:
    """Callback that follows the true estimation error when the interaction is known.

    It adds a column "true_error", ||S - S_hat||_F^2/d, to ``history_``. Behind a whitener S must be that of
    the whitened features.

    Parameters
    ----------
    interaction : ndarray of shape (n_features, n_features)
        The teacher's S.

    Examples
    --------
    >>> from sklearn_aim import AMPAttentionRegressor, TeacherError, make_attention_sequences
    >>> X, y, S = make_attention_sequences(
    ...     500, n_features=30, width=0.5, random_state=0, return_interaction=True)
    >>> est = AMPAttentionRegressor(width=0.5).fit(X, y, callback=TeacherError(S))
    >>> est.history_["true_error"].shape == (est.n_iter_,)
    True
    """

    def __init__(self, interaction: ArrayLike):
        self.interaction = np.asarray(interaction)

    def __call__(self, state):
        """Answer ``{"true_error": ||S - S_hat||_F^2/d}``."""
        if self.interaction.shape != state["interaction"].shape:
            raise ValueError(
                f"interaction of TeacherError has shape {self.interaction.shape}, but the data's has "
                f"{state['interaction'].shape}: pass the teacher's S."
            )
        return {"true_error": float(np.sum((state["interaction"] - self.interaction) ** 2) / len(self.interaction))}
