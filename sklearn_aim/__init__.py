"""Learn attention layers, and know how well they could be learned."""

from sklearn_aim.bounds import BayesOptimalBound, DeepBayesOptimalBound
from sklearn_aim.channels import register_link
from sklearn_aim.datasets import load_attention, make_attention_sequences, make_deep_attention_sequences
from sklearn_aim.estimators import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TeacherError,
    fit_path,
)
from sklearn_aim.inspection import interaction_similarity, singular_directions
from sklearn_aim.metrics import (
    align_signs,
    attention_error,
    attention_r2_score,
    attention_r2_scorer,
    cosine_similarity,
    estimation_error,
    interval_coverage,
    neg_attention_error_scorer,
)
from sklearn_aim.plotting import (
    AttentionMapDisplay,
    BoundDisplay,
    LayerOverlapDisplay,
    PhaseDiagramDisplay,
    SpectrumDisplay,
    TrajectoryDisplay,
)
from sklearn_aim.preprocessing import TokenWhitener
from sklearn_aim.ragged import pad_sequences

__version__ = "0.1.0"

__all__ = [
    "AMPAttentionRegressor",
    "AMPDeepAttentionRegressor",
    "AttentionMapDisplay",
    "BayesOptimalBound",
    "BoundDisplay",
    "DeepBayesOptimalBound",
    "GDAttentionRegressor",
    "LayerOverlapDisplay",
    "PhaseDiagramDisplay",
    "PositionMeanRegressor",
    "SpectrumDisplay",
    "TeacherError",
    "TokenWhitener",
    "TrajectoryDisplay",
    "align_signs",
    "attention_error",
    "attention_r2_score",
    "attention_r2_scorer",
    "cosine_similarity",
    "estimation_error",
    "fit_path",
    "interaction_similarity",
    "interval_coverage",
    "load_attention",
    "make_attention_sequences",
    "make_deep_attention_sequences",
    "neg_attention_error_scorer",
    "pad_sequences",
    "register_link",
    "singular_directions",
]
