"""Bounds: the theory as objects that pipelines can compare with."""

from sklearn_aim.bounds._bayes_optimal import BayesOptimalBound
from sklearn_aim.bounds._deep import DeepBayesOptimalBound

__all__ = ["BayesOptimalBound", "DeepBayesOptimalBound"]
