"""What AttentionMapDisplay is given: sequences, maps, masks and labels."""

import numbers

import numpy as np


def check_indices(sequences, n_samples):
    """Numbers of sequences that exist, as an array."""
    chosen = [sequences] if isinstance(sequences, numbers.Integral) else list(sequences)
    for i in chosen:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, numbers.Integral):
            raise TypeError(f"sequences={sequences!r} must be ints, numbers of sequences.")
        if not -n_samples <= i < n_samples:
            raise ValueError(
                f"sequences holds {i}, but there are {n_samples} sequences: choose from 0 to {n_samples - 1}."
            )
    if not chosen:
        raise ValueError("sequences is empty: choose at least one.")
    return np.array(chosen) % n_samples


def check_maps(y, name):
    """A list of square maps, flattened ones restored."""
    try:
        maps = [np.asarray(one, dtype=float) for one in y]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold attention maps (n_tokens, n_tokens).") from error
    for i, one in enumerate(maps):
        side = round(np.sqrt(one.size))
        if one.ndim not in (1, 2) or one.size == 0 or side**2 != one.size or (one.ndim == 2 and one.shape[0] != side):
            raise ValueError(
                f"{name}[{i}] has shape {one.shape}, but must be a map (n_tokens, n_tokens), or flattened."
            )
        if not np.isfinite(one).all():
            raise ValueError(f"{name}[{i}] holds NaN or infinity: pass finite maps, and a mask for what is hidden.")
        maps[i] = one.reshape(side, side)
    if not maps:
        raise ValueError(f"{name} holds no maps.")
    return maps


def hidden_entries(mask, maps):
    """True where entries are hidden, for each map."""
    if mask is None:
        return [np.zeros(one.shape, bool) for one in maps]
    hidden = [~np.asarray(one, dtype=bool) for one in mask]
    if [one.shape for one in hidden] != [one.shape for one in maps]:
        raise ValueError("mask must hold one array (n_tokens, n_tokens) a sequence, True where a query may attend.")
    return hidden


def check_labels(tokens, maps):
    """Labels for each map, or None for each."""
    if tokens is None:
        return [None] * len(maps)
    tokens = list(tokens)
    shared = all(isinstance(token, str) for token in tokens)
    labels = [tokens] * len(maps) if shared else [[str(token) for token in one] for one in tokens]
    if [len(one) for one in labels] != [len(one) for one in maps]:
        raise ValueError(
            f"tokens has {[len(one) for one in labels]} labels a sequence, but the maps have "
            f"{[len(one) for one in maps]} tokens."
        )
    return labels


def shared_mask(fitted, n_tokens):
    """Mask of `fit` that goes on to `predict`: "causal", or pairs for every sequence."""
    mask = getattr(fitted, "mask_", None)
    return mask if isinstance(mask, str) or np.shape(mask) == (n_tokens, n_tokens) else None
