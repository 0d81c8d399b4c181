"""Test errors of links that act row by row: all rows are alike, and only differences in a row matter."""

import numpy as np

from sklearn_aim.channels.averages import gaussian_average, trapezoid_average


def row_test_error(channel, variance, overlap, width):
    """E||y - E[y|omega]||_F^2 = T times that of row 0, for links invariant to shifts of a row.

    Two tokens leave one difference (a line integral), more leave T - 1 (quasi-random points).

    Parameters
    ----------
    channel : Channel
        Its `moments` must accept (n, 1, T), row 0 alone.
    variance, overlap : float
        V and q.
    width : float
        Scale of index differences over which the link itself varies.

    Returns
    -------
    value, error : float
    """
    n_tokens = channel.n_tokens

    def spread(rows):
        mean, second = channel.moments(rows[:, None, :], variance)
        return np.sum(second[:, 0] - mean[:, 0] ** 2, axis=-1, keepdims=True)

    if variance + channel.noise <= 0:
        return 0.0, 0.0
    if overlap <= 0:
        value, error = spread(np.zeros((1, n_tokens)))[0], np.zeros(1)
    elif n_tokens == 2:
        difference_variance = channel.index_variance[0].sum()
        sd = np.sqrt(overlap * difference_variance)
        scale = np.sqrt((variance + channel.noise) * difference_variance) + width
        value, error = trapezoid_average(lambda m: spread(np.stack([m, 0 * m], axis=1)), sd, scale, 1e-8)
    else:
        scales = np.sqrt(overlap * channel.index_variance[0])
        value, error = gaussian_average(lambda z: spread(z * scales), n_tokens, n_points=2**11)
    # one-dimensional integrals of the predictions are good to about 1e-11
    return float(n_tokens * value[0]), float(n_tokens * (error[0] + 1e-11))
