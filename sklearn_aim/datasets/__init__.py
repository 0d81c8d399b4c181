"""Data drawn from the models, and taken from transformers."""

from sklearn_aim.datasets._deep import make_deep_attention_sequences
from sklearn_aim.datasets._outputs import load_attention
from sklearn_aim.datasets._teachers import make_attention_sequences

__all__ = ["load_attention", "make_attention_sequences", "make_deep_attention_sequences"]
