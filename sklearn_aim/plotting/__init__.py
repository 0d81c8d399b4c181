"""Displays: figures of bounds, fits and maps, in scikit-learn's manner. matplotlib is imported when they are drawn."""

from sklearn_aim.plotting._bound import BoundDisplay
from sklearn_aim.plotting._layers import LayerOverlapDisplay
from sklearn_aim.plotting._maps import AttentionMapDisplay
from sklearn_aim.plotting._phase import PhaseDiagramDisplay
from sklearn_aim.plotting._spectrum import SpectrumDisplay
from sklearn_aim.plotting._style import figure_style
from sklearn_aim.plotting._trajectory import TrajectoryDisplay

__all__ = [
    "AttentionMapDisplay",
    "BoundDisplay",
    "LayerOverlapDisplay",
    "PhaseDiagramDisplay",
    "SpectrumDisplay",
    "TrajectoryDisplay",
    "figure_style",
]
