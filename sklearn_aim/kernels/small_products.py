"""Products of small arrays in compiled code: inner products of a sequence's queries and keys, and their gradients."""

import numba as nb

OPTIONS = {"error_model": "numpy", "nogil": True, "fastmath": {"reassoc", "contract"}}
# helpers are called from compiled code only, and compile faster for it
helper = nb.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)


@helper
def gram(z, row, left, right, width, out):
    """Inner products of one sequence's queries and keys; once for two if they are the same."""
    n_tokens = out.shape[0]
    if n_tokens == 2 and left == right:
        # the case of the theory: every number is read once
        one, two = z[row, left : left + width], z[row + 1, left : left + width]
        first, mixed, second = z.dtype.type(0), z.dtype.type(0), z.dtype.type(0)
        for k in range(width):
            first += one[k] * one[k]
            mixed += one[k] * two[k]
            second += two[k] * two[k]
        out[0, 0], out[0, 1], out[1, 0], out[1, 1] = first, mixed, mixed, second
        return
    for a in range(n_tokens):
        query = z[row + a, left : left + width]
        for b in range(a if left == right else 0, n_tokens):
            key = z[row + b, right : right + width]
            total = z.dtype.type(0)
            for k in range(width):
                total += query[k] * key[k]
            out[a, b] = total
            if left == right:
                out[b, a] = total


@helper
def gram_back(z, row, left, right, width, d_gram, buffer):
    """Replace queries and keys by the gradients in them."""
    n_tokens = d_gram.shape[0]
    if n_tokens == 2 and left == right:
        one, two = z[row, left : left + width], z[row + 1, left : left + width]
        first, second = z.dtype.type(2 * d_gram[0, 0]), z.dtype.type(2 * d_gram[1, 1])
        mixed = z.dtype.type(d_gram[0, 1] + d_gram[1, 0])
        for k in range(width):
            u, v = one[k], two[k]
            one[k] = first * u + mixed * v
            two[k] = mixed * u + second * v
        return
    for a in range(n_tokens):
        for k in range(width):
            buffer[a, k] = z[row + a, left + k]
    if left == right:
        for a in range(n_tokens):
            out = z[row + a, left : left + width]
            for b in range(n_tokens):
                weight = z.dtype.type(d_gram[a, b] + d_gram[b, a])
                add(out, weight, buffer[b], b == 0)
        return
    for a in range(n_tokens):
        out = z[row + a, left : left + width]
        for b in range(n_tokens):
            add(out, z.dtype.type(d_gram[a, b]), z[row + b, right : right + width], b == 0)
    for b in range(n_tokens):
        out = z[row + b, right : right + width]
        for a in range(n_tokens):
            add(out, z.dtype.type(d_gram[a, b]), buffer[a], a == 0)


@helper
def add(out, weight, vector, first):
    """out = weight * vector if it is the first, else out += weight * vector."""
    if first:
        for k in range(out.shape[0]):
            out[k] = weight * vector[k]
    else:
        for k in range(out.shape[0]):
            out[k] += weight * vector[k]


@helper
def product(a, b, factor, out, add):
    """out (+)= factor * a b of small arrays; rows of b and of out are contiguous."""
    for i in range(out.shape[0]):
        row = out[i]
        if not add:
            for j in range(row.shape[0]):
                row[j] = 0.0
        for k in range(b.shape[0]):
            weight, other = factor * a[i, k], b[k]
            for j in range(row.shape[0]):
                row[j] += weight * other[j]


@helper
def product_transposed(a, b, factor, out, add):
    """out (+)= factor * a b^T of small arrays with contiguous rows."""
    for i in range(out.shape[0]):
        row = a[i]
        for j in range(out.shape[1]):
            other, total = b[j], 0.0
            for k in range(row.shape[0]):
                total += row[k] * other[k]
            out[i, j] = (out[i, j] if add else 0.0) + factor * total


@helper
def copy(source, target):
    """target[...] = source, for two dimensions."""
    # assignment of slices takes seconds to compile
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]
