"""Random sequences, maps, masks and containers, good ones and bad ones."""

import os
import tempfile

import numpy as np
import pandas as pd

_TINY = np.finfo(float).tiny


def softmax(indices, allowed=None):
    """Rows of weights; 0 where masked, rows of padding included."""
    h = indices if allowed is None else np.where(allowed, indices, -np.inf)
    top = h.max(axis=-1, keepdims=True)
    weights = np.exp(h - np.where(np.isfinite(top), top, 0))
    sums = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(sums > 0, sums, 1)


def sizes(rng, least_tokens=1, most_tokens=12, most_samples=300, work=2e5):
    """n, T and d: often one of them is small, and a problem is never much work."""
    n = int(np.exp(rng.uniform(0 if rng.random() < 0.2 else 0.7, np.log(most_samples + 1))))
    n_tokens = int(rng.choice(np.arange(1, 13), p=np.array([2, 12, 8, 5, 3, 2, 1, 1, 1, 1, 1, 1]) / 38))
    d = int(np.exp(rng.uniform(0, np.log(81))))
    n_tokens = min(max(n_tokens, least_tokens), most_tokens)
    while n * n_tokens * d > work:
        n = max(1, n // 2)
    return n, n_tokens, d


def teacher(rng, x, link, tied, allowed=None):
    """Maps of a random layer for tokens x."""
    d = x.shape[2]
    r = max(1, int(rng.integers(1, d + 1)))
    u = rng.standard_normal((d, r))
    v = u if tied else rng.standard_normal((d, r))
    s = u @ v.T / np.sqrt(r * d)
    h = np.einsum("nai,ij,nbj->nab", x, s, x, optimize=True) / np.sqrt(d)
    each = np.arange(x.shape[1])
    h[:, each, each] -= np.trace(s) / np.sqrt(d)
    if rng.random() < 0.3:
        noise = rng.standard_normal(h.shape) * rng.choice([1e-3, 0.1, 1.0])
        h += noise + noise.transpose(0, 2, 1) if tied else noise
    if link == "identity":
        return h if allowed is None else np.where(allowed, h, 0.0)
    if link == "hardmax":
        return (h == h.max(axis=-1, keepdims=True)).astype(float)
    return softmax(h, allowed)


def deep_teacher(rng, x, est):
    """Maps of a stack of rank-one layers, the model of AMPDeepAttentionRegressor."""
    n_tokens, d = x.shape[1:]
    passed = np.broadcast_to(np.eye(n_tokens), (len(x), n_tokens, n_tokens))
    for w in rng.standard_normal((est.n_layers, d)):
        u = np.einsum("nab,nb->na", passed, x @ w / np.sqrt(d))
        y = softmax(est.inverse_temperature * u[:, :, None] * u[:, None, :])
        passed = (est.skip * np.eye(n_tokens) + y) @ passed
    return y


def _constant_token(rng, x):
    x[:] = x[0, 0]


def _repeated_token(rng, x):
    x[:] = x[:, :1]


def _duplicates(rng, x):
    x[:] = x[rng.integers(0, max(1, len(x) // 4), len(x))]


def _low_rank(rng, x):
    d = x.shape[2]
    r = max(1, d // 4)
    x[:] = x[..., :r] @ rng.standard_normal((r, d))


def _ill_conditioned(rng, x):
    x *= np.logspace(0, -rng.choice([3, 8, 20]), x.shape[2])


def _scaled(*factors):
    def change(rng, x):
        x *= rng.choice(factors)

    return change


def _some(*values):
    def change(rng, x):
        x[rng.random(x.shape) < 0.05] = rng.choice(values)
        x[tuple(rng.integers(0, k) for k in x.shape)] = rng.choice(values)

    return change


def _column(rng, x):
    x[..., rng.integers(x.shape[2])] = rng.choice([0.0, 1.0, 1e150, 1e-150, 1e6])


def _offset(rng, x):
    x += rng.choice([1.0, 1e3, 1e8])


def _heavy(rng, x):
    x[:] = rng.standard_cauchy(x.shape)


TOKENS = {
    "constant token": _constant_token,
    "repeated tokens": _repeated_token,
    "duplicates": _duplicates,
    "low rank": _low_rank,
    "ill-conditioned": _ill_conditioned,
    "zero": _scaled(0.0),
    "huge": _scaled(1e10, 1e30, 1e75, 1e150, 1e300),
    "tiny": _scaled(1e-10, 1e-30, 1e-150, 1e-300),
    "subnormal": _scaled(5e-324, 1e-310, 1e-320),
    "large": _scaled(10.0, 1e3),
    "small": _scaled(0.1, 1e-3),
    "an entry off": _some(0.0, 1e10, 1e38, 1e150, 1e308, -1e308, 1e-150, 5e-324),
    "a column off": _column,
    "offset": _offset,
    "heavy tails": _heavy,
    "NaN or infinity": _some(np.nan, np.inf, -np.inf),
}


def _one_hot(rng, y):
    y[:] = np.eye(y.shape[2])[rng.integers(0, y.shape[2], y.shape[:2])]


def _with(value):
    def change(rng, y):
        rows = rng.random(y.shape[:2]) < rng.choice([0.05, 1.0])
        keys = rng.integers(0, y.shape[2], y.shape[:2])
        n, a = np.nonzero(rows)
        y[n, a, keys[n, a]] = value
        sums = y.sum(axis=2, keepdims=True)
        y /= np.where(np.isfinite(sums) & (sums > 0), sums, 1)

    return change


def _dirichlet(rng, y):
    y[:] = rng.dirichlet(np.full(y.shape[2], rng.choice([0.01, 0.1, 1.0, 100.0])), y.shape[:2])


def _permuted(rng, y):
    y[:] = y[rng.permutation(len(y))]


def _transposed(rng, y):
    y[:] = y.transpose(0, 2, 1).copy()


def _scaled_entries(rng, y):
    y *= rng.choice([0.0, 1e-320, 1e-150, 0.5, 1.01, 1e8, 1e100, 1e150, 1e300])


def _normal(rng, y):
    y[:] = rng.standard_normal(y.shape)


def _entry(*values):
    def change(rng, y):
        y[tuple(rng.integers(0, k) for k in y.shape)] = rng.choice(values)

    return change


def _uniform(rng, y):
    y[:] = 1 / y.shape[2]


def _sharp(rng, y):
    with np.errstate(divide="ignore"):
        y[:] = softmax(np.maximum(np.log(np.abs(y)), -1e3) * rng.choice([10.0, 100.0]))


MAPS = {
    "one-hot": _one_hot,
    "zeros": _with(0.0),
    "1e-300": _with(1e-300),
    "subnormal": _with(5e-324),
    "1e-17": _with(1e-17),
    "random": _dirichlet,
    "permuted": _permuted,
    "transposed": _transposed,
    "scaled": _scaled_entries,
    "normal": _normal,
    "an entry off": _entry(-0.1, -1e-12, 2.0, 1e150, -1e308, 1e308),
    "NaN or infinity": _entry(np.nan, np.inf, -np.inf),
    "uniform": _uniform,
    "sharp": _sharp,
}

DTYPES = (np.float64, np.float32, np.float16, np.int64)
LAYOUTS = ("C", "F", "strided", "reversed", "read-only")
CONTAINERS = ("array", "list", "memmap", "dask", "frame", "flat")


def laid_out(rng, a, layout):
    """The same numbers in another order in memory."""
    if layout == "F":
        return np.asfortranarray(a)
    if layout == "strided":
        wide = np.repeat(a, 2, axis=rng.integers(a.ndim) if a.ndim else 0)
        axis = next(k for k in range(a.ndim) if wide.shape[k] != a.shape[k]) if a.size else 0
        return wide[tuple(slice(None, None, 2) if k == axis else slice(None) for k in range(a.ndim))]
    if layout == "reversed":
        return np.ascontiguousarray(a[::-1])[::-1]
    a = np.ascontiguousarray(a)
    if layout == "read-only":
        a.flags.writeable = False
    return a


def contained(x, container):
    """Sequences (n, T, d) in a container; "frame" and "flat" need the number of tokens."""
    if container == "list":
        return x.tolist()
    if container == "memmap":
        handle, path = tempfile.mkstemp(suffix=".npy")
        os.close(handle)
        np.save(path, x)
        mapped = np.load(path, mmap_mode="r")
        # the file lives as long as it is open
        os.unlink(path)
        return mapped
    if container == "dask":
        import dask.array as da

        return da.from_array(x, chunks=(max(1, -(-len(x) // 3)), *x.shape[1:]))
    flat = x.reshape(len(x), -1)
    if container == "frame":
        return pd.DataFrame(flat, columns=[f"x{k}" for k in range(flat.shape[1])])
    return flat if container == "flat" else x


def trace(data):
    """All bytes of an input, to tell whether it was changed."""
    if isinstance(data, (list, tuple)):
        return tuple(trace(one) for one in data)
    if isinstance(data, pd.DataFrame):
        return data.to_numpy().tobytes()
    if isinstance(data, np.ndarray):
        return data.shape, str(data.dtype), data.tobytes()
    return repr(data) if isinstance(data, (int, float, str, type(None))) else None
