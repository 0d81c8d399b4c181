"""One fused pass over the (T, T) blocks of a stack of attention layers: loss, gradients and maps.

All layers see X through projections Z_l = X W_l alone, since X_l = B_l X with B_l of shape (T, T):

    h_l = scale B Z_l Z_l^T B^T - shift_l I + bias_scale 1 (B c_l)^T,   B_{l+1} = (skip I + softmax(beta h_l)) B

so that X is read twice a gradient, for Z = X W and for X^T dZ, whatever the number of layers and of starts.

A row of `z` is a token; its columns are, for every start and layer, the width columns of Z_l (queries, then keys if
untied) and one of c_l if there is a bias. Small arrays are kept in double precision.
"""

import numba as nb
import numpy as np

from sklearn_aim.kernels.small_products import OPTIONS, copy, gram, gram_back, helper, product, product_transposed

_compiled = nb.njit(cache=True, **OPTIONS)
# index of a pair that a mask hides
HIDDEN = -1e30


@helper
def _hide(index, allowed):
    """Give pairs that a mask hides an index that no softmax sees."""
    for a in range(index.shape[0]):
        for b in range(index.shape[0]):
            if not allowed[a, b]:
                index[a, b] = HIDDEN


@helper
def _softmax(index, beta, out):
    n = index.shape[0]
    for a in range(n):
        top = index[a, 0]
        for b in range(1, n):
            top = max(top, index[a, b])
        if top == HIDDEN:
            # a row of padding
            for b in range(n):
                out[a, b] = 0.0
            continue
        total = 0.0
        for b in range(n):
            out[a, b] = np.exp(beta * (index[a, b] - top))
            total += out[a, b]
        for b in range(n):
            out[a, b] /= total


@helper
def _softmax_back(attention, beta, grad):
    """Gradient in the index from that in the attention, in place."""
    n = attention.shape[0]
    for a in range(n):
        mean = 0.0
        for b in range(n):
            mean += attention[a, b] * grad[a, b]
        for b in range(n):
            grad[a, b] = beta * attention[a, b] * (grad[a, b] - mean)


@helper
def _forward(z, row, first, allowed, layout, physics, shift, grams, mixings, attentions, index, work):
    """Indices, attentions and mixings of one sequence; the last attention or index is the output."""
    n_layers, width, tied, bias, softmax = layout
    scale, bias_scale, beta, skip = physics
    n_tokens = index.shape[0]
    columns = (1 if tied else 2) * width + bias
    for layer in range(n_layers):
        left = first + layer * columns
        mixing = mixings[layer]
        gram(z, row, left, left if tied else left + width, width, grams[layer])
        if layer == 0:
            for a in range(n_tokens):
                for b in range(n_tokens):
                    mixing[a, b] = 1.0 if a == b else 0.0
                    index[a, b] = scale * grams[0, a, b]
        else:
            product(mixing, grams[layer], scale, work, False)
            product_transposed(work, mixing, 1.0, index, False)
        for a in range(n_tokens):
            index[a, a] -= shift[layer]
        if bias:
            for b in range(n_tokens):
                total = 0.0
                for a in range(n_tokens):
                    total += mixing[b, a] * z[row + a, left + columns - 1]
                for a in range(n_tokens):
                    index[a, b] += bias_scale * total
        if allowed.shape[0] > 0:
            _hide(index, allowed)
        if softmax:
            _softmax(index, beta, attentions[layer])
        else:
            for a in range(n_tokens):
                for b in range(n_tokens):
                    attentions[layer, a, b] = 0.0 if index[a, b] == HIDDEN else index[a, b]
        if layer + 1 < n_layers:
            product(attentions[layer], mixing, 1.0, mixings[layer + 1], False)
            for a in range(n_tokens):
                for b in range(n_tokens):
                    mixings[layer + 1, a, b] += skip * mixing[a, b]


@helper
def _log_ratio_loss(index, target, weight, beta, grad):
    """Squared distance of log-ratios, ||clr(y) - clr(output)||^2/beta^2 in units of the index."""
    n_tokens = index.shape[0]
    loss = 0.0
    for a in range(n_tokens):
        mean, count = 0.0, 0
        for b in range(n_tokens):
            if index[a, b] != HIDDEN:
                grad[a, b] = index[a, b] - np.log(float(target[a, b])) / beta
                mean += grad[a, b]
                count += 1
        for b in range(n_tokens):
            difference = grad[a, b] - mean / count if index[a, b] != HIDDEN else 0.0
            loss += difference * difference
            grad[a, b] = 2 * weight * difference
    return weight * loss


@helper
def _loss(index, output, target, weight, softmax, beta, kind, grad):
    """Loss of one sequence; its gradient in the last index, times the weight."""
    n_tokens = index.shape[0]
    if kind == 2:
        return _log_ratio_loss(index, target, weight, beta, grad)
    cross_entropy = kind == 1
    loss = 0.0
    for a in range(n_tokens):
        mass = 0.0
        if cross_entropy:
            top = index[a, 0]
            for b in range(1, n_tokens):
                top = max(top, index[a, b])
            total = 0.0
            for b in range(n_tokens):
                total += np.exp(beta * (index[a, b] - top))
            shift = np.log(total) + beta * top
            for b in range(n_tokens):
                y = float(target[a, b])
                mass += y
                # the labels' own entropy is taken off, so that a perfect fit has loss 0
                if y > 0:
                    loss += y * (np.log(y) - (beta * index[a, b] - shift))
        for b in range(n_tokens):
            y = float(target[a, b])
            if cross_entropy:
                grad[a, b] = weight * beta * (mass * output[a, b] - y)
            else:
                difference = output[a, b] - y
                loss += difference * difference
                grad[a, b] = 2 * weight * difference
    if softmax and not cross_entropy:
        _softmax_back(output, beta, grad)
    return weight * loss


@helper
def _backward(
    z, row, first, layout, physics, grams, mixings, attentions, grad, d_mixing, work, d_gram, buffer, d_shift
):
    """Replace the projections of one sequence by the gradients in them."""
    n_layers, width, tied, bias, _ = layout
    scale, bias_scale, beta, skip = physics
    n_tokens = grad.shape[0]
    columns = (1 if tied else 2) * width + bias
    for a in range(n_tokens):
        for b in range(n_tokens):
            d_mixing[a, b] = 0.0
    for layer in range(n_layers - 1, -1, -1):
        left = first + layer * columns
        mixing = mixings[layer]
        for a in range(n_tokens):
            d_shift[layer] -= grad[a, a]
        if layer == 0:
            for a in range(n_tokens):
                for b in range(n_tokens):
                    d_gram[a, b] = scale * grad[a, b]
        else:
            # h = scale B H B^T: dH = scale B^T G B, dB = scale (G B H^T + G^T B H)
            product(grad, mixing, scale, work, False)
            product(mixing.T, work, 1.0, d_gram, False)
            product_transposed(work, grams[layer], 1.0, d_mixing, True)
            product(grad.T, mixing, scale, work, False)
            product(work, grams[layer], 1.0, d_mixing, True)
        if bias:
            column = left + columns - 1
            for a in range(n_tokens):
                buffer[a, 0] = z[row + a, column]
                z[row + a, column] = 0
            for b in range(n_tokens):
                total = 0.0
                for a in range(n_tokens):
                    total += bias_scale * grad[a, b]
                for a in range(n_tokens):
                    z[row + a, column] += mixing[b, a] * total
                    d_mixing[b, a] += total * buffer[a, 0]
        gram_back(z, row, left, left if tied else left + width, width, d_gram, buffer)
        if layer > 0:
            # B_{l+1} = (skip I + A) B
            product_transposed(d_mixing, mixings[layer - 1], 1.0, grad, False)
            product(attentions[layer - 1].T, d_mixing, 1.0, work, False)
            for a in range(n_tokens):
                for b in range(n_tokens):
                    d_mixing[a, b] = skip * d_mixing[a, b] + work[a, b]
            _softmax_back(attentions[layer - 1], beta, grad)


@_compiled
def stack_gradient(z, y, weights, allowed, layout, physics, shift, kind, backward, loss, d_shift):
    """Add the losses of a block of sequences, and replace projections by the gradients in them.

    Parameters
    ----------
    z : ndarray of shape (n * T, n_starts * columns)
        Projections; overwritten by d loss/d z.
    y : ndarray of shape (n, T, T)
    weights : ndarray of shape (n,)
    allowed : ndarray of shape (n, T, T) or (n, 0, 0), bool
        What masks let through, or nothing where there are none; y is 0 elsewhere.
    layout : tuple (n_layers, width, tied, bias, softmax)
    physics : tuple (scale, bias_scale, beta, skip)
    shift : ndarray of shape (n_starts, n_layers)
        What is taken off the diagonal indices.
    kind : int
        Loss: 0 squared error, 1 cross-entropy, 2 log-ratio.
    backward : bool
        False: the loss alone.
    loss : ndarray of shape (n_starts,)
    d_shift : ndarray of shape (n_starts, n_layers)
        d loss/d shift; both are added to.
    """
    n_samples, n_tokens, _ = y.shape
    n_layers, width, tied, bias, softmax = layout
    columns = n_layers * ((1 if tied else 2) * width + bias)
    grams = np.empty((n_layers, n_tokens, n_tokens))
    mixings, attentions = np.empty_like(grams), np.empty_like(grams)
    index = np.empty((n_tokens, n_tokens))
    grad, d_mixing, d_gram, work = (
        np.empty_like(index),
        np.empty_like(index),
        np.empty_like(index),
        np.empty_like(index),
    )
    buffer = np.empty((n_tokens, width), dtype=z.dtype)
    for n in range(n_samples):
        row = n * n_tokens
        for start in range(shift.shape[0]):
            first = start * columns
            _forward(z, row, first, allowed[n], layout, physics, shift[start], grams, mixings, attentions, index, work)
            loss[start] += _loss(index, attentions[n_layers - 1], y[n], weights[n], softmax, physics[2], kind, grad)
            if not backward:
                continue
            _backward(
                z, row, first, layout, physics, grams, mixings, attentions, grad, d_mixing, work, d_gram, buffer,
                d_shift[start],
            )  # fmt: skip


@_compiled
def stack_output(z, allowed, layout, physics, shift, indices, out):
    """Last indices and output maps of a block of sequences, for every start.

    Parameters
    ----------
    z, allowed, layout, physics, shift
        As for `stack_gradient`; z is kept.
    indices, out : ndarray of shape (n, n_starts, T, T)
        Filled; 0 where masked.
    """
    n_samples, n_starts, n_tokens, _ = out.shape
    n_layers, width, tied, bias, _ = layout
    columns = n_layers * ((1 if tied else 2) * width + bias)
    grams = np.empty((n_layers, n_tokens, n_tokens))
    mixings, attentions = np.empty_like(grams), np.empty_like(grams)
    index, work = np.empty((n_tokens, n_tokens)), np.empty((n_tokens, n_tokens))
    for n in range(n_samples):
        for start in range(n_starts):
            _forward(
                z, n * n_tokens, start * columns, allowed[n], layout, physics, shift[start], grams, mixings,
                attentions, index, work,
            )  # fmt: skip
            for a in range(n_tokens):
                for b in range(n_tokens):
                    indices[n, start, a, b] = 0.0 if index[a, b] == HIDDEN else index[a, b]
            copy(attentions[n_layers - 1], out[n, start])
