"""Estimators: parameters, validation, fit, predict and score."""

from sklearn_aim.estimators._amp import AMPAttentionRegressor, TeacherError
from sklearn_aim.estimators._baseline import PositionMeanRegressor

__all__ = ["AMPAttentionRegressor", "PositionMeanRegressor", "TeacherError"]
