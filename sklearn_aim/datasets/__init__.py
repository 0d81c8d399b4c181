"""Teachers: data drawn from the models."""

from sklearn_aim.datasets._teachers import make_attention_sequences

__all__ = ["make_attention_sequences"]
