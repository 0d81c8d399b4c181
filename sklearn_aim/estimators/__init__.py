"""Estimators: parameters, validation, fit, predict and score."""

from sklearn_aim.estimators._amp import AMPAttentionRegressor
from sklearn_aim.estimators._baseline import PositionMeanRegressor
from sklearn_aim.estimators._deep_amp import AMPDeepAttentionRegressor
from sklearn_aim.estimators._gd import GDAttentionRegressor
from sklearn_aim.estimators._path import fit_path
from sklearn_aim.estimators._teacher_error import TeacherError

__all__ = [
    "AMPAttentionRegressor",
    "AMPDeepAttentionRegressor",
    "GDAttentionRegressor",
    "PositionMeanRegressor",
    "TeacherError",
    "fit_path",
]
