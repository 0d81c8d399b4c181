"""Directions of an interaction and similarity of two, against what they do to tokens."""

import numpy as np
import pytest
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_aim import interaction_similarity, singular_directions


def tokens(rng, d, rank):
    """Tokens of a covariance of some rank, that covariance, and a map to them from white ones."""
    mixing = rng.normal(size=(rank, d)) * rng.uniform(0.2, 3, size=(rank, 1))
    return rng.normal(size=(40, rank)) @ mixing, mixing.T @ mixing, mixing


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_directions_rebuild_the_indices(seed, d, lost, white):
    rng = np.random.default_rng(seed)
    rank = max(1, d - lost)
    x, covariance, _ = (rng.normal(size=(40, d)), None, None) if white else tokens(rng, d, rank)
    S = rng.normal(size=(d, d))
    queries, strengths, keys = singular_directions(S, covariance=covariance)
    assert queries.shape == keys.shape == (len(strengths), d)
    assert len(strengths) == (d if white else rank)
    assert (np.diff(strengths) <= 0).all()
    np.testing.assert_allclose((x @ queries.T * strengths) @ (x @ keys.T).T, x @ S @ x.T, rtol=0, atol=1e-8 * d)
    for directions in (queries, keys):
        # uncorrelated, of unit variance on the tokens
        gram = directions @ (np.eye(d) if white else covariance) @ directions.T
        np.testing.assert_allclose(gram, np.eye(len(strengths)), atol=1e-8)
    fewer = singular_directions(S, 1, covariance=covariance)
    for few, all_ in zip(fewer, (queries, strengths, keys), strict=True):
        np.testing.assert_allclose(few, all_[:1], rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(0, 3))
def test_similarity_is_that_of_bilinear_forms(seed, d, lost):
    rng = np.random.default_rng(seed)
    _, covariance, mixing = tokens(rng, d, max(1, d - lost))
    A, B = rng.normal(size=(2, d, d))
    first, second = mixing @ A @ mixing.T, mixing @ B @ mixing.T
    expected = np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
    assert interaction_similarity(A, B, covariance=covariance) == pytest.approx(expected, abs=1e-9)
    assert interaction_similarity(B, A, covariance=7 * covariance) == pytest.approx(expected, abs=1e-9)
    assert interaction_similarity(A, -2.5 * A, covariance=covariance) == pytest.approx(-1)
    # other coordinates of the same tokens, x -> M x
    change = np.eye(d) + 0.1 * rng.normal(size=(d, d))
    back = np.linalg.inv(change)
    moved = [back.T @ S @ back for S in (A, B)]
    other = interaction_similarity(*moved, covariance=change @ covariance @ change.T)
    assert other == pytest.approx(expected, abs=1e-6)


def test_low_rank_and_zero():
    u, v = np.array([3.0, 4.0, 0.0]), np.array([0.0, 0.0, 2.0])
    queries, strengths, keys = singular_directions(np.outer(-u, v))
    np.testing.assert_allclose(queries, [[0.6, 0.8, 0.0]])
    np.testing.assert_allclose(strengths, [10.0])
    np.testing.assert_allclose(keys, [[0.0, 0.0, -1.0]])
    queries, strengths, keys = singular_directions(np.zeros((3, 3)))
    assert queries.shape == keys.shape == (0, 3)
    assert interaction_similarity(np.zeros((3, 3)), np.eye(3)) == 0


def test_refusals():
    S = np.eye(3)
    for call, message in (
        (lambda: singular_directions(np.ones((3, 2))), "interaction has shape (3, 2)"),
        (lambda: singular_directions(S, 4), "n_directions=4"),
        (lambda: singular_directions(S, 2, covariance=np.diag([1.0, 0, 0])), "n_directions=2"),
        (lambda: singular_directions(S, 0), "n_directions=0"),
        (lambda: interaction_similarity(S, np.eye(2)), "same features"),
        (lambda: interaction_similarity(S, S, covariance=np.eye(2)), "covariance has shape (2, 2)"),
        (lambda: interaction_similarity(S, S, covariance=np.triu(np.ones((3, 3)))), "not symmetric"),
        (lambda: interaction_similarity(S, S, covariance=-S), "eigenvalues"),
        (lambda: interaction_similarity(S, S, covariance=0 * S), "eigenvalues"),
        (lambda: interaction_similarity(S, np.full((3, 3), np.nan)), "NaN"),
    ):
        refused(call, message)
