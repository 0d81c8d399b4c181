"""Masks of attention maps: which keys a query may attend to, and what maps with masks show of the indices.

A mask is None, "causal" (a query sees itself and what is before it), an array (n, T) of real tokens, True, and padding,
False, or an array (n, T, T) or (T, T) of allowed pairs, True where query a may attend to key b.
"""

import numba as nb
import numpy as np


def allowed_pairs(mask, n_samples, n_tokens, name="mask"):
    """Allowed pairs (n, T, T) of a mask, or None if all are.

    Raises
    ------
    ValueError, TypeError
        For masks of another kind or shape, and for queries that may attend to nothing. Rows of padding are no queries.
    """
    if mask is None:
        return None
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f"{name}={mask!r} must be None, 'causal' or a boolean array.")
        return np.broadcast_to(np.tri(n_tokens, dtype=bool), (n_samples, n_tokens, n_tokens))
    mask = check_flags(mask, name)
    shapes = [(n_samples, n_tokens), (n_tokens, n_tokens), (n_samples, n_tokens, n_tokens)]
    if mask.shape not in shapes:
        raise ValueError(
            f"{name} has shape {mask.shape}, but must be (n_samples, n_tokens) = {shapes[0]} for padding, or "
            f"{shapes[1]} or {shapes[2]} for pairs of query and key."
        )
    if mask.ndim == 2 and mask.shape == shapes[0] and shapes[0] != shapes[1]:
        padded = ~mask
        pairs = mask[:, :, None] & mask[:, None, :]
    elif mask.ndim == 2 and n_samples == n_tokens:
        raise ValueError(
            f"{name} of shape {mask.shape} may be padding or pairs, since n_samples = n_tokens = {n_tokens}: pass "
            "pairs of shape (n_samples, n_tokens, n_tokens)."
        )
    else:
        pairs = np.broadcast_to(mask, shapes[2])
        padded = padding(pairs)
    empty = ~pairs.any(axis=2) & ~padded
    if empty.any():
        n, a = np.argwhere(empty)[0]
        raise ValueError(
            f"{name} leaves nothing to attend to in row [{n}, {a}]: allow at least one key, or pad the token."
        )
    if padded.all(axis=1).any():
        raise ValueError(f"{name} hides every token of sequence {padded.all(axis=1).argmax()}: leave the sequence out.")
    return None if pairs.all() else pairs


def check_flags(mask, name):
    """A boolean array from True and False, or 1 and 0; additive masks would mean the opposite."""
    try:
        mask = np.asarray(mask)
    except ValueError as error:
        raise ValueError(f"{name} is ragged: its rows differ in length. Give an array, False for padding.") from error
    if mask.dtype != bool and (mask.dtype.kind not in "uif" or not np.isin(mask, (0, 1)).all()):
        raise TypeError(f"{name} of dtype {mask.dtype} must hold True (attend) and False (hidden), or 1 and 0.")
    return mask.astype(bool)


def padding(allowed):
    """Tokens (n, T) that neither attend nor are attended to."""
    return ~(allowed.any(axis=1) | allowed.any(axis=2))


def components(seen, tied):
    """Numbers of the groups of indices that one unknown shift is common to, (n, T, T); -1 where nothing is seen.

    A row of softmax weights shows its indices but for a shift. Tied, h_ab = h_ba may be seen in two rows, whose shifts
    are then known relative to each other: rows that are linked so share a group.

    Parameters
    ----------
    seen : ndarray of shape (n, T, T), bool
    tied : bool

    Returns
    -------
    ndarray of shape (n, T, T), int8 or more
        Symmetric if tied.
    """
    n_tokens = seen.shape[1]
    groups = np.broadcast_to(np.arange(n_tokens), seen.shape[:2]).copy()
    if tied:
        links = seen & seen.transpose(0, 2, 1)
        for _ in range(n_tokens):
            # the smallest number among linked rows spreads a step
            nearest = np.where(links, groups[:, None, :], n_tokens).min(axis=2)
            spread = np.minimum(groups, nearest)
            if np.array_equal(spread, groups):
                break
            groups = spread
    out = np.where(seen, groups[:, :, None], -1)
    return np.maximum(out, out.transpose(0, 2, 1)) if tied else out


@nb.njit(cache=True, error_model="numpy", nogil=True)
def remove_shifts(x, groups):
    """Subtract from the entries of every group their mean, in place; entries that are not seen become 0.

    Parameters
    ----------
    x : ndarray of shape (n, T, T)
    groups : ndarray of shape (n, T, T)
        From `components`; -2: seen, without a shift.
    """
    n_tokens = x.shape[1]
    total, count = np.empty(n_tokens), np.empty(n_tokens)
    for n in range(x.shape[0]):
        for a in range(n_tokens):
            total[a] = 0.0
            count[a] = 0.0
        for a in range(n_tokens):
            for b in range(n_tokens):
                group = int(groups[n, a, b])
                if group >= 0:
                    total[group] += x[n, a, b]
                    count[group] += 1.0
        for a in range(n_tokens):
            if count[a] > 0:
                total[a] /= count[a]
        for a in range(n_tokens):
            for b in range(n_tokens):
                group = int(groups[n, a, b])
                if group >= 0:
                    x[n, a, b] -= x.dtype.type(total[group])
                elif group == -1:
                    x[n, a, b] = 0


def degrees_of_freedom(groups, tied):
    """Index combinations that every sequence fixes, (n,): free indices that are seen, less one a group."""
    seen = groups != -1
    free = (np.triu(seen) if tied else seen).sum(axis=(1, 2))
    shifts = sum((groups == group).any(axis=(1, 2)).astype(int) for group in range(groups.shape[1]))
    return free - shifts
