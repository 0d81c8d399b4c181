"""Algorithms: pure functions of arrays, a channel and a prior."""
