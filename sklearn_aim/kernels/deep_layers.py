"""What a deep attention stack's output says of its last layer, once the layers below are known.

With M(x) = c I + softmax(beta x x^T), a stack of depth L >= 2 has u_l = B_{l-1} z_l, B_l = M(u_l) B_{l-1}, and its map
shows u = u_L = B_{L-1} z_L up to the sign. Given z_1..z_{L-1} the last layer is v = B_{L-1}^{-1} u, of density
N(v)/|det B_{L-1}|. The derivatives of v in z_1..z_{L-1} say how finely an integral over them must be resolved.

Many z at a time: arrays have one column a point, so that loops over points are vector instructions.
"""

import numba as nb

_options = {"error_model": "numpy", "nogil": True, "fastmath": {"reassoc", "contract", "arcp", "nsz"}}
# rows that `last_layer` works with, for up to four tokens
WORK = 33
# called from compiled code only
helper = nb.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_options)
compiled = nb.njit(cache=True, **_options)


@helper
def exp(x):
    """exp between -60 and 60 to ten digits, constant beyond: unlike the library's it is made for vectors."""
    y = min(max(x, -60.0), 60.0) * (1 / 256)
    y = 1 + y * (1 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * (1 / 720 + y * (1 / 5040)))))))
    y *= y
    y *= y
    y *= y
    y *= y
    y *= y
    y *= y
    y *= y
    return y * y


@helper
def _pair(x, y, beta, p, q):
    """Off-diagonal attention weights of two tokens."""
    for i in range(x.shape[0]):
        p[i] = 1 / (1 + exp(beta * x[i] * (x[i] - y[i])))
        q[i] = 1 / (1 + exp(beta * y[i] * (y[i] - x[i])))


@helper
def _pair_solve(p, q, skip, u, w, det):
    """M^{-1} u to w (2, n), and det M; u is (2, n), or (2, 1) for one u."""
    single = u.shape[1] == 1
    u0, u1, w0, w1 = u[0], u[1], w[0], w[1]
    for i in range(p.shape[0]):
        k = 0 if single else i
        d = (skip + 1) * (skip + 1 - p[i] - q[i])
        a, b = ((skip + 1 - q[i]) * u0[k] - p[i] * u1[k]) / d, ((skip + 1 - p[i]) * u1[k] - q[i] * u0[k]) / d
        w0[i], w1[i] = a, b
        det[i] = d


@helper
def _pair_slopes(x, y, p, q, v, beta, out):
    """Derivative of softmax(beta x x^T) v in x, row by row to out (4, n)."""
    v0, v1, o0, o1, o2, o3 = v[0], v[1], out[0], out[1], out[2], out[3]
    for i in range(p.shape[0]):
        change = beta * (v1[i] - v0[i])
        k, m = change * p[i] * (1 - p[i]), -change * q[i] * (1 - q[i])
        o0[i], o1[i] = k * (y[i] - 2 * x[i]), k * x[i]
        o2[i], o3[i] = m * y[i], m * (x[i] - 2 * y[i])


@helper
def _pair_solve_slopes(p, q, skip, det, slopes, factor):
    """Replace slopes (4, n) by factor M^{-1} slopes."""
    s0, s1, s2, s3 = slopes[0], slopes[1], slopes[2], slopes[3]
    for i in range(p.shape[0]):
        f = factor / det[i]
        a, b, c, d = f * (skip + 1 - q[i]), -f * p[i], -f * q[i], f * (skip + 1 - p[i])
        t0, t1, t2, t3 = s0[i], s1[i], s2[i], s3[i]
        s0[i], s1[i] = a * t0 + b * t2, a * t1 + b * t3
        s2[i], s3[i] = c * t0 + d * t2, c * t1 + d * t3


@helper
def _two_tokens(z, u, skip, beta, v, slopes, det, work):
    """v (2, n), slopes (4, n) and det B (n,) at depth 2; z (2, n), u (2, 1), work (2, n)."""
    p, q = work[0], work[1]
    _pair(z[0], z[1], beta, p, q)
    _pair_solve(p, q, skip, u, v, det)
    _pair_slopes(z[0], z[1], p, q, v, beta, slopes)
    _pair_solve_slopes(p, q, skip, det, slopes, -1.0)


@helper
def _two_tokens_twice(z, u, skip, beta, v, slopes, det, work):
    """The same at depth 3, slopes (8, n): B_2 = M(u_2) M(z_1), u_2 = M(z_1) z_2; z (4, n), work (17, n)."""
    p, q, r, s, high = work[0], work[1], work[2], work[3], work[4]
    u2, w = work[5:7], work[7:9]
    # derivatives of w in u_2, of u_2 in z_1, and of M(z_1) v in z_1
    by_u2, by_z1 = slopes[4:8], slopes[0:4]
    through = work[9:13]
    x, y = z[2], z[3]
    u20, u21 = u2[0], u2[1]
    _pair(z[0], z[1], beta, p, q)
    for i in range(p.shape[0]):
        u20[i] = (skip + 1 - p[i]) * x[i] + p[i] * y[i]
        u21[i] = (skip + 1 - q[i]) * y[i] + q[i] * x[i]
    _pair(u20, u21, beta, r, s)
    _pair_solve(r, s, skip, u, w, high)
    _pair_solve(p, q, skip, w, v, det)
    _pair_slopes(u20, u21, r, s, w, beta, by_u2)
    _pair_solve_slopes(r, s, skip, high, by_u2, -1.0)
    _pair_slopes(z[0], z[1], p, q, z[2:4], beta, through)
    _pair_slopes(z[0], z[1], p, q, v, beta, by_z1)
    # dM(z_1) v = dw - (dM(z_1)) v, dw = by_u2 du_2, du_2 = through dz_1 + M(z_1) dz_2
    a0, a1, a2, a3 = by_u2[0], by_u2[1], by_u2[2], by_u2[3]
    b0, b1, b2, b3 = through[0], through[1], through[2], through[3]
    c0, c1, c2, c3 = by_z1[0], by_z1[1], by_z1[2], by_z1[3]
    for i in range(p.shape[0]):
        c0[i] = a0[i] * b0[i] + a1[i] * b2[i] - c0[i]
        c1[i] = a0[i] * b1[i] + a1[i] * b3[i] - c1[i]
        c2[i] = a2[i] * b0[i] + a3[i] * b2[i] - c2[i]
        c3[i] = a2[i] * b1[i] + a3[i] * b3[i] - c3[i]
    for i in range(p.shape[0]):
        m0, m1, m2, m3 = skip + 1 - p[i], p[i], q[i], skip + 1 - q[i]
        t0, t1, t2, t3 = a0[i], a1[i], a2[i], a3[i]
        a0[i], a1[i] = t0 * m0 + t1 * m2, t0 * m1 + t1 * m3
        a2[i], a3[i] = t2 * m0 + t3 * m2, t2 * m1 + t3 * m3
    _pair_solve_slopes(p, q, skip, det, by_z1, 1.0)
    _pair_solve_slopes(p, q, skip, det, by_u2, 1.0)
    for i in range(p.shape[0]):
        det[i] *= high[i]


@helper
def _factorise(matrix, det):
    """LU factors of n matrices in place, and their determinants; matrix[a, b] is a row of n entries.

    No pivots: c I + softmax(beta x x^T) is similar to a positive definite matrix, as exp(beta x_a x_b) is one.
    """
    size = matrix.shape[0]
    for i in range(det.shape[0]):
        det[i] = 1.0
    for k in range(size):
        pivot = matrix[k, k]
        for i in range(det.shape[0]):
            det[i] *= pivot[i]
        for a in range(k + 1, size):
            factor = matrix[a, k]
            for i in range(det.shape[0]):
                factor[i] /= pivot[i]
            for b in range(k + 1, size):
                out, one = matrix[a, b], matrix[k, b]
                for i in range(det.shape[0]):
                    out[i] -= factor[i] * one[i]


@helper
def _substitute(matrix, right):
    """Solve with the factors, in place; right (T, n)."""
    size = matrix.shape[0]
    for a in range(size):
        out = right[a]
        for b in range(a):
            factor, one = matrix[a, b], right[b]
            for i in range(out.shape[0]):
                out[i] -= factor[i] * one[i]
    for a in range(size - 1, -1, -1):
        out = right[a]
        for b in range(a + 1, size):
            factor, one = matrix[a, b], right[b]
            for i in range(out.shape[0]):
                out[i] -= factor[i] * one[i]
        pivot = matrix[a, a]
        for i in range(out.shape[0]):
            out[i] /= pivot[i]


@helper
def _many_tokens(z, u, skip, beta, v, slopes, det, work):
    """v (T, n), slopes (T T, n) and det B (n,) at depth 2 for any T; z (T, n), u (T, 1), work (2 T T + 1, n)."""
    size, n = z.shape
    # the derivative in z_b of all rows is a column b of slopes, a system of its own
    columns = slopes.reshape(size, size, n)
    attention = work[: size * size].reshape(size, size, n)
    matrix = work[size * size : 2 * size * size].reshape(size, size, n)
    total = work[2 * size * size]
    for a in range(size):
        query = z[a]
        for i in range(n):
            total[i] = 0.0
        for b in range(size):
            key, out = z[b], attention[a, b]
            for i in range(n):
                # the diagonal is the largest, or nearly so
                out[i] = exp(beta * query[i] * (key[i] - query[i]))
                total[i] += out[i]
        for b in range(size):
            out, one = attention[a, b], matrix[a, b]
            for i in range(n):
                out[i] /= total[i]
                one[i] = out[i]
        one = matrix[a, a]
        for i in range(n):
            one[i] += skip
        out = v[a]
        for i in range(n):
            out[i] = u[a, 0]
    _factorise(matrix, det)
    _substitute(matrix, v)
    for a in range(size):
        query = z[a]
        for i in range(n):
            total[i] = 0.0
        for b in range(size):
            weight, one = attention[a, b], v[b]
            for i in range(n):
                total[i] += weight[i] * one[i]
        own = columns[a, a]
        for b in range(size):
            weight, one, key = attention[a, b], v[b], z[b]
            # what is left of the weight is not needed again
            for i in range(n):
                weight[i] *= beta * (one[i] - total[i])
        for i in range(n):
            total[i] = 0.0
        for b in range(size):
            weight, key = attention[a, b], z[b]
            for i in range(n):
                total[i] += weight[i] * key[i]
        for b in range(size):
            weight, out = attention[a, b], columns[b, a]
            for i in range(n):
                out[i] = -weight[i] * query[i]
        for i in range(n):
            own[i] -= total[i]
    for b in range(size):
        _substitute(matrix, columns[b])


@helper
def last_layer(z, u, skip, beta, v, slopes, det, work):
    """The last layer given the map and the layers below.

    Parameters
    ----------
    z : ndarray of shape ((L - 1) T, n)
        z_1..z_{L-1} at n points; L = 2, or 3 for two tokens.
    u : ndarray of shape (T, 1)
        u_L as the map shows it.
    skip, beta : float
    v : ndarray of shape (T, n)
        Filled with B_{L-1}^{-1} u.
    slopes : ndarray of shape ((L - 1) T T, n)
        Filled with the entries of dv/dz_l, one matrix after the other.
    det : ndarray of shape (n,)
        Filled with det B_{L-1}.
    work : ndarray of shape (WORK, n)
    """
    if u.shape[0] > 2:
        _many_tokens(z, u, skip, beta, v, slopes, det, work)
    elif z.shape[0] == 2:
        _two_tokens(z, u, skip, beta, v, slopes, det, work)
    else:
        _two_tokens_twice(z, u, skip, beta, v, slopes, det, work)
