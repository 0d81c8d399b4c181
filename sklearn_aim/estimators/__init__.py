"""Estimators: parameters, validation, fit, predict and score."""

from sklearn_aim.estimators._amp import AMPAttentionRegressor, TeacherError
from sklearn_aim.estimators._baseline import PositionMeanRegressor
from sklearn_aim.estimators._deep_amp import AMPDeepAttentionRegressor
from sklearn_aim.estimators._gd import GDAttentionRegressor

__all__ = [
    "AMPAttentionRegressor",
    "AMPDeepAttentionRegressor",
    "GDAttentionRegressor",
    "PositionMeanRegressor",
    "TeacherError",
]
