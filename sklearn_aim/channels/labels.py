"""Attention weights as labels: rows that are distributions."""

import numpy as np


def check_hidden(y, allowed):
    """Refuse labels that are not 0 where a mask hides them."""
    wrong = (y != 0) & ~allowed
    if wrong.any():
        n, a, b = np.argwhere(wrong)[0]
        raise ValueError(
            f"y must be 0 where the mask hides it, got y[{n}, {a}, {b}]={y[n, a, b]}: give the mask that the maps were "
            "made with."
        )


def check_distributions(y, setting, mend="", positive=True, allowed=None):
    """Refuse entries that are negative (or zero), and rows that do not sum to 1 within 1e-3.

    Parameters
    ----------
    y : ndarray of shape (n, T, T)
    setting : str
        What needs it, for the message: "link='softmax'".
    mend : str
        Said of entries that are not positive.
    positive : bool
        Refuse zeros too.
    allowed : ndarray of shape (n, T, T), bool, optional
        Where there are weights: others must be 0, and rows without any are not looked at.

    Returns
    -------
    ndarray of shape (n, T)
        Sums of the rows, double precision.
    """
    wrong = ~(y > 0) if positive else ~(y >= 0)
    if allowed is not None:
        check_hidden(y, allowed)
        wrong &= allowed
    if wrong.any():
        n, a, b = np.argwhere(wrong)[0]
        raise ValueError(
            f"y must hold attention weights {'>' if positive else '>='} 0 for {setting}, got "
            f"y[{n}, {a}, {b}]={y[n, a, b]}.{mend}"
        )
    sums = y.sum(axis=-1, dtype=float)
    wrong = np.abs(sums - 1) > 1e-3
    if allowed is not None:
        wrong &= allowed.any(axis=-1)
    if wrong.any():
        n, a = np.argwhere(wrong)[0]
        raise ValueError(
            f"rows of y must sum to 1 for {setting}, got {sums[n, a]:.6g} in y[{n}, {a}]. Normalise y over its "
            "last axis."
        )
    return sums
