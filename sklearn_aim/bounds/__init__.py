"""Bounds: the theory as objects that pipelines can compare with."""

from sklearn_aim.bounds._bayes_optimal import BayesOptimalBound

__all__ = ["BayesOptimalBound"]
