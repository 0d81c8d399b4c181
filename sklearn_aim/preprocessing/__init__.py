"""Transformers of tokens."""

from sklearn_aim.preprocessing._whitener import TokenWhitener

__all__ = ["TokenWhitener"]
