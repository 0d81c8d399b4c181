"""Evidence of row-wise argmax labels of a symmetric Gaussian matrix: an orthant probability, exactly.

h (T, T) is symmetric with independent h_ab ~ N(omega_ab, v c_ab), a <= b, c = 1 + delta_ab; the label of row a says
that h[a, s_a] is its largest entry. Given the row maxima M_a, each entry that is nobody's maximum only has to lie
below min(M_a, M_b). Sorted by M, that minimum belongs to the earlier row, so the T-dimensional integral factorises
along the order: with L_A(x) the weight of the rows in A when all their maxima exceed x,

    L_A(x) = int_x^inf sum_{u in A} w_{u, A-u}(M) L_{A-u}(M) dM,     L_empty = 1,     Z = L_all(-inf),

where w_{u, B}(M) is the density of u's maximum at M times the chance that its other entries, those shared with rows
in B included, lie below M. Two rows that select their common entry move as one. 2^T one-dimensional cumulative
integrals replace T(T-1)/2 + T dimensions; the backward recursion U_A gives all derivatives in a second sweep.
"""

import math

import numba as nb
import numpy as np

from sklearn_aim.kernels.normal import normal_cdf, normal_pdf

MAX_TOKENS = 6
_POINTS = 8
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(_POINTS)


def _integration_matrix():
    """C[i, j]: integral from -1 to node i of the j-th Lagrange polynomial on the Gauss nodes."""
    powers = np.arange(_POINTS)
    vandermonde = _NODES[:, None] ** powers
    antiderivative = (_NODES[:, None] ** (powers + 1) - (-1.0) ** (powers + 1)) / (powers + 1)
    return antiderivative @ np.linalg.inv(vandermonde)


_CUMULATIVE = _integration_matrix()
# half widths, in standard deviations, of the window around a maximum and of one panel
_WINDOW = 8.0
_PANEL = 1.4
# labels that contradict omega by more than this many standard deviations are taken at a larger variance, and log Z
# is corrected by the squared displacement, which is right to some per cent
_WORST = 12.0


@nb.njit(cache=True, error_model="numpy", nogil=True)
def _panels(omega, selected, variance):
    """Windows in which some row's maximum can lie, merged where they overlap, cut into panels: (k, 2) ends."""
    n_tokens = selected.size
    sd = math.sqrt(variance)
    spans = np.empty((n_tokens, 2))
    for a in range(n_tokens):
        mean = omega[a, selected[a]]
        rival = mean
        for b in range(n_tokens):
            rival = max(rival, omega[a, b])
        reach = _WINDOW * sd * (1.4142135623730951 if selected[a] == a else 1.0)
        low = mean - reach
        high = rival + reach
        # insertion sort by the left end
        k = a
        while k > 0 and spans[k - 1, 0] > low:
            spans[k, 0] = spans[k - 1, 0]
            spans[k, 1] = spans[k - 1, 1]
            k -= 1
        spans[k, 0] = low
        spans[k, 1] = high
    n_spans = 1
    for a in range(1, n_tokens):
        if spans[a, 0] > spans[n_spans - 1, 1]:
            spans[n_spans, 0] = spans[a, 0]
            spans[n_spans, 1] = spans[a, 1]
            n_spans += 1
        else:
            spans[n_spans - 1, 1] = max(spans[n_spans - 1, 1], spans[a, 1])
    total = 0
    for k in range(n_spans):
        total += int(math.ceil((spans[k, 1] - spans[k, 0]) / (2 * _PANEL * sd)))
    ends = np.empty((total, 2))
    i = 0
    for k in range(n_spans):
        count = int(math.ceil((spans[k, 1] - spans[k, 0]) / (2 * _PANEL * sd)))
        width = (spans[k, 1] - spans[k, 0]) / count
        for j in range(count):
            ends[i, 0] = spans[k, 0] + j * width
            ends[i, 1] = spans[k, 0] + (j + 1) * width
            i += 1
    return ends


@nb.njit(cache=True, error_model="numpy", nogil=True)
def symmetric_argmax_evidence(omega, selected, variance, gradient):
    """Log evidence of one label of a symmetric Gaussian matrix, and its derivatives.

    Parameters
    ----------
    omega : ndarray of shape (T, T), float64
        Symmetric means.
    selected : ndarray of shape (T,), int64
        s_a, the column of the largest entry of row a.
    variance : float
        v > 0; h_ab has variance v off the diagonal, 2 v on it.
    gradient : ndarray of shape (T, T), float64
        Overwritten with G_ab = c_ab dlogZ/d omega_ab = (E[h_ab | s] - omega_ab)/v.

    Returns
    -------
    float
        log Z; -inf, with G = 0, for labels that no symmetric matrix has (s runs round a cycle of 3 or more).
    """
    n_tokens = selected.size
    # labels far in a tail: a larger variance keeps all factors in range, and the displacement is that of
    # the nearest admissible matrix either way
    worst = 0.0
    for a in range(n_tokens):
        for b in range(n_tokens):
            worst = max(worst, omega[a, b] - omega[a, selected[a]])
    inflated = max(variance, (worst / _WORST) ** 2)
    sd = math.sqrt(inflated)
    sd_diagonal = 1.4142135623730951 * sd

    # nodes: rows that share their maximum are one; a node's maximum is at most those of the nodes it selects
    node_of = np.empty(n_tokens, dtype=np.int64)
    first = np.empty(n_tokens, dtype=np.int64)
    n_nodes = 0
    for a in range(n_tokens):
        b = selected[a]
        if b < a and selected[b] == a:
            node_of[a] = node_of[b]
        else:
            node_of[a] = n_nodes
            first[n_nodes] = a
            n_nodes += 1
    larger = np.zeros(n_nodes, dtype=np.int64)
    smaller = np.zeros(n_nodes, dtype=np.int64)
    for a in range(n_tokens):
        u = node_of[a]
        v = node_of[selected[a]]
        if u != v:
            larger[u] |= 1 << v
            smaller[v] |= 1 << u

    ends = _panels(omega, selected, inflated)
    n_panels = ends.shape[0]
    n_points = n_panels * _POINTS
    points = np.empty(n_points)
    weights = np.empty(n_points)
    for p in range(n_panels):
        half = 0.5 * (ends[p, 1] - ends[p, 0])
        for j in range(_POINTS):
            points[p * _POINTS + j] = ends[p, 0] + half * (1 + _NODES[j])
            weights[p * _POINTS + j] = half * _WEIGHTS[j]

    # below[a, b, i] = P(h_ab <= points_i) for entries that nobody selected, else 1
    below = np.ones((n_tokens, n_tokens, n_points))
    hazard = np.zeros((n_tokens, n_tokens, n_points))
    for a in range(n_tokens):
        for b in range(a, n_tokens):
            if selected[a] == b or selected[b] == a:
                continue
            scale = sd_diagonal if a == b else sd
            for i in range(n_points):
                z = (points[i] - omega[a, b]) / scale
                cdf = normal_cdf(z)
                below[a, b, i] = cdf
                below[b, a, i] = cdf
                slope = -normal_pdf(z) / (scale * cdf) if z > -30 else z / scale
                hazard[a, b, i] = slope
                hazard[b, a, i] = slope

    # density of each node's maximum, its own diagonal entries below it; scaled to a maximum of 1
    base = np.empty((n_nodes, n_points))
    log_scale = 0.0
    for u in range(n_nodes):
        a = first[u]
        mean = omega[a, selected[a]]
        scale = sd_diagonal if selected[a] == a else sd
        top = -math.inf
        for i in range(n_points):
            z = (points[i] - mean) / scale
            value = -0.5 * z * z
            for b in range(n_tokens):
                if node_of[b] == u:
                    value += math.log(max(below[b, b, i], 1e-300))
            base[u, i] = value
            top = max(top, value)
        log_scale += top - math.log(scale * 2.5066282746310002)
        for i in range(n_points):
            base[u, i] = math.exp(base[u, i] - top)

    n_sets = 1 << n_nodes
    upper = np.zeros((n_sets, n_points))
    for i in range(n_points):
        upper[0, i] = 1.0
    density = np.empty(n_points)
    step_weight = np.empty((n_sets, n_nodes, n_points))
    allowed = np.zeros((n_sets, n_nodes), dtype=np.bool_)
    evidence = 0.0
    for rows in range(1, n_sets):
        for i in range(n_points):
            density[i] = 0.0
        for u in range(n_nodes):
            if not rows >> u & 1:
                continue
            rest = rows & ~(1 << u)
            allowed[rows, u] = larger[u] & ~rest == 0 and smaller[u] & rest == 0
            if not allowed[rows, u]:
                continue
            for i in range(n_points):
                step_weight[rows, u, i] = base[u, i]
            for a in range(n_tokens):
                for b in range(n_tokens):
                    if node_of[a] == u and rest >> node_of[b] & 1:
                        for i in range(n_points):
                            step_weight[rows, u, i] *= below[a, b, i]
            for i in range(n_points):
                density[i] += step_weight[rows, u, i] * upper[rest, i]
        # integral from each point up
        tail = 0.0
        for p in range(n_panels - 1, -1, -1):
            half = 0.5 * (ends[p, 1] - ends[p, 0])
            start = p * _POINTS
            for i in range(_POINTS):
                part = 0.0
                for j in range(_POINTS):
                    part += (_WEIGHTS[j] - _CUMULATIVE[i, j]) * density[start + j]
                upper[rows, start + i] = max(tail + half * part, 0.0)
            for j in range(_POINTS):
                tail += weights[start + j] * density[start + j]
        evidence = tail

    for a in range(n_tokens):
        for b in range(n_tokens):
            gradient[a, b] = 0.0
    if not evidence > 0:
        return -math.inf

    # lower[A]: weight of the rows outside A when all their maxima lie below the point
    lower = np.zeros((n_sets, n_points))
    for i in range(n_points):
        lower[n_sets - 1, i] = 1.0
    placed = np.zeros((n_nodes, n_points))
    for rows in range(n_sets - 1, 0, -1):
        if rows < n_sets - 1:
            for i in range(n_points):
                density[i] = 0.0
            for u in range(n_nodes):
                more = rows | 1 << u
                if more != rows and allowed[more, u]:
                    for i in range(n_points):
                        density[i] += lower[more, i] * step_weight[more, u, i]
            head = 0.0
            for p in range(n_panels):
                half = 0.5 * (ends[p, 1] - ends[p, 0])
                start = p * _POINTS
                for i in range(_POINTS):
                    part = 0.0
                    for j in range(_POINTS):
                        part += _CUMULATIVE[i, j] * density[start + j]
                    lower[rows, start + i] = max(head + half * part, 0.0)
                for j in range(_POINTS):
                    head += weights[start + j] * density[start + j]
        for u in range(n_nodes):
            if not allowed[rows, u]:
                continue
            rest = rows & ~(1 << u)
            for i in range(n_points):
                density[i] = weights[i] * lower[rows, i] * step_weight[rows, u, i] * upper[rest, i] / evidence
                placed[u, i] += density[i]
            for a in range(n_tokens):
                for b in range(n_tokens):
                    if node_of[a] == u and rest >> node_of[b] & 1:
                        slope = 0.0
                        for i in range(n_points):
                            slope += density[i] * hazard[a, b, i]
                        gradient[a, b] += slope
                        gradient[b, a] += slope
    for u in range(n_nodes):
        a = first[u]
        b = selected[a]
        scale2 = 2 * inflated if a == b else inflated
        slope = 0.0
        for i in range(n_points):
            slope += placed[u, i] * (points[i] - omega[a, b]) / scale2
        gradient[a, b] += slope
        if a != b:
            gradient[b, a] += slope
    for a in range(n_tokens):
        if selected[a] != a:
            for i in range(n_points):
                gradient[a, a] += placed[node_of[a], i] * hazard[a, a, i]
        gradient[a, a] *= 2
    log_z = math.log(evidence) + log_scale
    if inflated > variance:
        square = 0.0
        for a in range(n_tokens):
            for b in range(n_tokens):
                square += gradient[a, b] ** 2
                gradient[a, b] *= inflated / variance
        # of the displacement inflated * G, in units of c: half of all entries counts the pairs once
        log_z -= 0.25 * square * inflated**2 * (1 / variance - 1 / inflated)
    return log_z


@nb.njit(cache=True, error_model="numpy", nogil=True)
def symmetric_argmax_evidences(omega, selected, variance, log_z, gradient):
    """`symmetric_argmax_evidence` over samples; log_z (n,) and gradient (n, T, T) are overwritten."""
    for n in range(selected.shape[0]):
        log_z[n] = symmetric_argmax_evidence(omega[n], selected[n], variance, gradient[n])
