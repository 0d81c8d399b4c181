"""What a run of message passing records, iteration by iteration."""

import numpy as np


def add_answer(row, answer):
    """Add what a callback returned to an iteration's record."""
    if answer is None:
        return
    if not isinstance(answer, dict):
        raise TypeError(f"callback returned {answer!r}: it must return a dict of columns for the history, or None.")
    taken = sorted(row.keys() & answer.keys())
    if taken:
        raise ValueError(f"callback must not return {taken}, columns of the history: use other names.")
    row.update(answer)


def columns(rows):
    """Records as arrays, NaN where a callback gave none."""
    history = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        known = next(row[name] for row in rows if name in row)
        missing = np.full(np.shape(known), np.nan)
        history[name] = np.array([row.get(name, missing) for row in rows])
    return history
