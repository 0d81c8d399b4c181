"""State evolution: the two scalar laws q_hat = alpha E||G||^2 (V) and V = mmse(q_hat), run or solved.

The same channel and prior objects drive message passing on data (`amp`).
"""

import numpy as np
from scipy.optimize import brentq


def channel_information(channel, prior, alpha, error):
    """q_hat = alpha E||G||_F^2 at error V, q = Q0 - V, and its error estimate."""
    value, spread = channel.information(error, max(prior.second_moment - error, 0.0))
    return alpha * value, alpha * spread


def iterate(channel, prior, alpha, damping):
    """Trajectory from no data; damping (n_iter,) is the fraction of the old V that each step keeps.

    Damped message passing mixes old and new estimates, and counts the mixture of their errors as its own.

    Returns
    -------
    dict of ndarray of shape (n_iter,)
        "information" q_hat, "estimation_error" V and "overlap" q after each step.
    """
    error = prior.prior_error
    information, errors = np.empty(len(damping)), np.empty(len(damping))
    for t, kept in enumerate(damping):
        information[t], _ = channel_information(channel, prior, alpha, error)
        error = kept * error + (1 - kept) * float(prior.mmse(information[t]))
        errors[t] = error
    return {
        "information": information,
        "estimation_error": errors,
        "overlap": prior.second_moment - errors,
    }


def fixed_point(channel, prior, alpha):
    """The Bayes-optimal fixed point at each sample complexity.

    Channels with E||G||^2 = k/(V + Delta) need the root of one increasing function, q_hat (mmse + Delta) = alpha k,
    which `Prior.balance` brackets. Others: roots of V -> mmse(alpha E||G||^2(V)) - V, all sign changes on a grid; of
    several stable roots the one of the largest free entropy.

    Parameters
    ----------
    channel : Channel
    prior : Prior
    alpha : ndarray of shape (n,)
        Sample complexities >= 0.

    Returns
    -------
    information, error : ndarray of shape (n,)
        q_hat and V.
    """
    constant = channel.information_constant
    if constant is not None:
        information = prior.balance(alpha * constant, channel.noise)
        return information, np.asarray(prior.mmse(information))
    results = [_solve(channel, prior, a) for a in alpha]
    return np.array([r[0] for r in results]), np.array([r[1] for r in results])


def _solve(channel, prior, alpha):
    if alpha == 0:
        return 0.0, prior.prior_error

    def excess(log_error):
        error = np.exp(log_error)
        information, _ = channel_information(channel, prior, alpha, error)
        return np.log(max(float(prior.mmse(information)), 1e-300)) - log_error

    top = np.log(prior.prior_error)
    # V at most halves from one grid point to the next; the curve is followed down until it has left the diagonal
    grid, values = [top], [excess(top)]
    if values[0] >= -1e-12:
        return channel_information(channel, prior, alpha, prior.prior_error)[0], prior.prior_error
    while values[-1] < 0 and grid[-1] > np.log(1e-14):
        grid.append(grid[-1] - 0.5)
        values.append(excess(grid[-1]))
    if values[-1] < 0:
        # numerically exact recovery
        return np.inf, 0.0
    for _ in range(6):
        grid.append(grid[-1] - 0.5)
        values.append(excess(grid[-1]))
    roots = []
    for k in range(len(grid) - 1):
        # stable: the error map crosses the diagonal from below, going down
        if values[k] < 0 <= values[k + 1]:
            roots.append(float(np.exp(brentq(excess, grid[k + 1], grid[k], xtol=1e-13, rtol=1e-13))))
    if len(roots) > 1:
        roots.sort(key=lambda v: free_entropy(channel, prior, alpha, v), reverse=True)
    return channel_information(channel, prior, alpha, roots[0])[0], roots[0]


def error_estimate(channel, prior, alpha, information, error):
    """Numerical error of V at a fixed point, from those of the two averages.

    V = mmse(alpha k(V)): an error of k or mmse is fed back through the slope of the map at V.
    """
    step = 1e-4 * error
    if step == 0:
        return 0.0
    _, wobble = channel_information(channel, prior, alpha, error)
    _, quadrature = prior.mmse(information, return_error=True)
    up, down = prior.mmse(information * np.array([1.0001, 0.9999]))
    slope = (up - down) / (2e-4 * information)
    high, low = (channel_information(channel, prior, alpha, error + s)[0] for s in (step, -step))
    feedback = abs(1 - slope * (high - low) / (2 * step))
    return (abs(slope) * wobble + float(quadrature)) / max(feedback, 1e-6)


def sample_complexity(channel, prior, error):
    """Least alpha at which the Bayes-optimal error is the one given, V > 0."""
    if error >= prior.prior_error:
        return 0.0
    # along the fixed-point curve alpha = q_hat(V)/E||G||^2(V)
    alpha = float(prior.information(error)) / channel.information(error, prior.second_moment - error)[0]
    if channel.information_constant is not None:
        return alpha

    def gap(log_alpha):
        return fixed_point(channel, prior, np.array([np.exp(log_alpha)]))[1][0] - error

    # where the error jumps (first order) the branch through V isn't the optimal one: search along alpha
    if abs(gap(np.log(alpha))) < 1e-6:
        return alpha
    return float(np.exp(brentq(gap, np.log(alpha) - 5, np.log(alpha) + 5, xtol=1e-10)))


def free_entropy(channel, prior, alpha, error):
    """Free entropy per d^2 at error V: -f q q_hat + prior(q_hat) + alpha E log Z, f = 1/4 tied, 1/2 untied."""
    overlap = prior.second_moment - error
    information, _ = channel_information(channel, prior, alpha, error)
    log_z, _ = channel.mean_log_partition(error, overlap)
    return -prior.free_entropy_factor * overlap * information + float(prior.free_entropy(information)) + alpha * log_z
