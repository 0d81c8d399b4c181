"""Teachers: data drawn from the models."""

from sklearn_aim.datasets._deep import make_deep_attention_sequences
from sklearn_aim.datasets._teachers import make_attention_sequences

__all__ = ["make_attention_sequences", "make_deep_attention_sequences"]
