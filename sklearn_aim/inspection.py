"""Reading what was learned: the directions of an interaction, and how alike two of them are.

Entries of S depend on the units of features, and data hardly fixes them where features are nearly collinear. What it
does to tokens of covariance C is another matter: x_a^T S x_b is the bilinear form of C^{1/2} S C^{1/2} on white ones.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from sklearn_aim.parameters import check_number, check_square

__all__ = ["interaction_similarity", "singular_directions"]

# eigenvalues of a covariance below this fraction of the largest are zero, as for TokenWhitener
_NULL = 1e-6
# singular values below this fraction of the largest are zero
_NO_DIRECTION = 1e-10


def singular_directions(
    interaction: ArrayLike, n_directions: int | None = None, *, covariance: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Pairs of query and key directions, strongest first.

    .. math:: x_a^\top S x_b = \sum_k s_k (q_k^\top x_a)(p_k^\top x_b)

    The singular value decomposition of :math:`C^{1/2} S C^{1/2}`, brought back to the features of tokens. Queries
    q_k^T x of tokens of covariance C have unit variance and are uncorrelated, keys likewise, so that strengths say what
    a pair contributes to attention indices. Where C is singular, parts of S that no token shows are left out.

    Parameters
    ----------
    interaction : array-like of shape (d, d)
        S, for instance `interaction_` of a fitted estimator.
    n_directions : int, optional
        Pairs that are wanted. None: those whose strength is above 1e-10 of the largest's.
    covariance : array-like of shape (d, d), optional
        Of tokens. None: the identity.

    Returns
    -------
    queries : ndarray of shape (n_directions, d)
        Rows q_k. The sign of a pair is such that the entry of largest size is positive.
    strengths : ndarray of shape (n_directions,)
        s_k, decreasing, at least 0. In attention indices a pair has standard deviation s_k/sqrt(d).
    keys : ndarray of shape (n_directions, d)
        Rows p_k.

    Raises
    ------
    ValueError, TypeError
        For shapes that don't fit, a covariance that is no covariance, or more directions than there are.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_aim import singular_directions
    >>> queries, strengths, keys = singular_directions([[0, 3], [0, 0]])
    >>> queries, strengths, keys
    (array([[1., 0.]]), array([3.]), array([[0., 1.]]))
    """
    interaction = check_square(interaction, "interaction")
    root, inverse = _roots(covariance, len(interaction))
    left, strengths, right = linalg.svd(root @ interaction @ root.T)
    n_kept = len(strengths)
    if n_directions is None:
        n_kept = int(np.count_nonzero(strengths > _NO_DIRECTION * strengths[0]))
    elif check_number(n_directions, "n_directions", low=1, integer=True) > n_kept:
        raise ValueError(
            f"n_directions={n_directions!r}: there are {n_kept} directions that tokens show, ask for fewer."
        )
    else:
        n_kept = n_directions
    queries, keys = left[:, :n_kept].T @ inverse.T, right[:n_kept] @ inverse.T
    largest = np.take_along_axis(queries, np.abs(queries).argmax(axis=1)[:, None], axis=1)
    signs = np.where(largest < 0, -1.0, 1.0)
    return signs * queries, strengths[:n_kept], signs * keys


def interaction_similarity(first: ArrayLike, second: ArrayLike, *, covariance: ArrayLike | None = None) -> float:
    r"""Cosine of two interactions, as what they do to tokens: tr(C A C B^T) over the norms.

    The correlation, over independent pairs of tokens of mean zero and covariance C, of x^T A x' and x^T B x'.

    Parameters
    ----------
    first, second : array-like of shape (d, d)
        A and B, for instance `interaction_` of two fitted estimators.
    covariance : array-like of shape (d, d), optional
        C, of tokens. None: the identity.

    Returns
    -------
    float
        Between -1 and 1; 0 if one of them is zero.

    Raises
    ------
    ValueError, TypeError
        For shapes that don't fit, or a covariance that is no covariance.

    Examples
    --------
    >>> from sklearn_aim import interaction_similarity
    >>> interaction_similarity([[1, 0], [0, 0]], [[1, 0], [0, 1]], covariance=[[1, 0], [0, 0]])
    1.0
    """
    first, second = check_square(first, "first"), check_square(second, "second")
    if first.shape != second.shape:
        raise ValueError(
            f"first has shape {first.shape} and second {second.shape}: they must be for the same features."
        )
    root, _ = _roots(covariance, len(first))
    seen = [root @ interaction @ root.T for interaction in (first, second)]
    norms = [np.linalg.norm(matrix) for matrix in seen]
    if min(norms) == 0:
        return 0.0
    cosine = float(np.vdot(seen[0] / norms[0], seen[1] / norms[1]))
    return min(max(cosine, -1.0), 1.0)


def _roots(covariance, n_features):
    """R with R^T R = C, and its pseudo-inverse."""
    if covariance is None:
        return np.eye(n_features), np.eye(n_features)
    covariance = check_square(covariance, "covariance")
    if len(covariance) != n_features:
        raise ValueError(f"covariance has shape {covariance.shape}, but interactions have {n_features} features.")
    if not np.allclose(covariance, covariance.T, rtol=1e-6, atol=1e-8 * np.abs(covariance).max()):
        raise ValueError("covariance is not symmetric: pass that of the tokens' features, np.cov(tokens.T).")
    values, vectors = linalg.eigh(0.5 * (covariance + covariance.T))
    if values[-1] <= 0 or values[0] < -1e-6 * values[-1]:
        raise ValueError(
            f"covariance has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}, but needs positive ones: pass that "
            "of the tokens' features, np.cov(tokens.T)."
        )
    seen = values > _NULL * values[-1]
    scale = np.sqrt(values[seen])
    return (vectors[:, seen] * scale).T, vectors[:, seen] / scale
