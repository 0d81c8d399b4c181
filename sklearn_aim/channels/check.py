"""One check that every channel must pass, built in or a user's own."""

import numpy as np

from sklearn_aim.channels import make_channel


def check_channel(
    link: str | type,
    n_tokens: int = 2,
    *,
    tied: bool = True,
    variance: float = 0.4,
    overlap: float = 0.6,
    noise: float = 0.0,
    n_draws: int = 20_000,
    seed: int = 0,
) -> dict[str, float]:
    """Check that a channel is the posterior of its own link.

    Draws omega ~ N(0, q c), h ~ N(omega, V c) and labels y, and tests what holds for the right posterior only:
    G has zero mean; G is the derivative of log Z (central differences); E G.(h - omega) = V E||G||^2, which says
    that omega + V G is the mean of h given y; d/dq E log Z = f E||G||^2 (Nishimori), f = 1/4 tied, 1/2 untied; labels
    drawn by the channel itself have the energy that it expects; predicted moments of y are those of the labels.

    Parameters
    ----------
    link : str or type
        A registered name, see `register_link`, or a subclass of `Channel`.
    n_tokens : int, default=2
    tied : bool, default=True
    variance, overlap : float
        V and q.
    noise : float, default=0.0
    n_draws : int, default=20000
        Averages are allowed five standard errors.
    seed : int, default=0

    Returns
    -------
    dict of float
        Deviation of each test in units of what is allowed, all below 1.

    Raises
    ------
    AssertionError
        Naming the first test that fails.
    """
    if isinstance(link, type):
        channel = link(n_tokens, tied=tied, noise=noise)
    else:
        channel = make_channel(link, n_tokens, tied=tied, noise=noise)
    rng = np.random.default_rng(seed)
    normals = rng.standard_normal((3, n_draws, channel.index_dimension))
    omega = np.sqrt(overlap) * channel.random_indices(normals[0])
    indices = omega + np.sqrt(variance) * channel.random_indices(normals[1])
    y = channel.link(indices + np.sqrt(noise) * channel.random_indices(normals[2]))
    code = channel.encode(y)
    log_z, gradient = channel.posterior(code, omega, variance)
    if np.shape(log_z) != (n_draws,) or np.shape(gradient) != omega.shape:
        raise AssertionError(
            f"posterior must return shapes ({n_draws},) and {omega.shape}, got {np.shape(log_z)}, {np.shape(gradient)}"
        )
    if not (np.isfinite(log_z).all() and np.isfinite(gradient).all()):
        raise AssertionError("posterior must be finite on labels of its own link")
    energy = np.sum(gradient**2, axis=(1, 2))
    posterior_mean = np.sum(gradient * (indices - omega), axis=(1, 2)) / variance
    mean, second = channel.moments(omega, variance)
    tests = {
        "mirror": np.abs(gradient - gradient.transpose(0, 2, 1)).max() / 1e-9 if tied else 0.0,
        "zero mean": _deviation(gradient),
        "derivative of log Z": _derivative_deviation(channel, code, omega, variance, gradient),
        "posterior mean": _deviation(posterior_mean - energy),
        "energy": _deviation(energy - channel.expected_energy(omega, variance)),
        "Nishimori identity": _nishimori_deviation(channel, variance, overlap),
        "mean of y": _deviation(mean - y),
        "mean square of y": _deviation(second - np.square(y)),
    }
    for name, size in tests.items():
        if not size < 1:
            raise AssertionError(f"{name}: off by {size:.3g} times what is allowed for {type(channel).__name__}")
    return {name: float(size) for name, size in tests.items()}


def _deviation(samples):
    """Largest |mean| over entries in units of five standard errors (and of rounding)."""
    mean = np.abs(samples.mean(axis=0))
    return float(np.max(mean / (5 * samples.std(axis=0) / np.sqrt(samples.shape[0]) + 1e-7)))


def _derivative_deviation(channel, code, omega, variance, gradient, n_checked=16, step=1e-4):
    code, omega, gradient = code[:n_checked], omega[:n_checked], gradient[:n_checked]
    worst = 0.0
    for a in range(channel.n_tokens):
        for b in range(channel.n_tokens):
            shift = np.zeros(omega.shape[1:])
            shift[a, b] = step
            if channel.tied:
                shift[b, a] = step
            up, down = (channel.posterior(code, omega + s * shift, variance)[0] for s in (1, -1))
            derivative = channel.index_variance[a, b] * (up - down) / (2 * step)
            error = np.abs(derivative - gradient[:, a, b]) / (1 + np.abs(gradient[:, a, b]))
            worst = max(worst, float(error.max()))
    return worst / 1e-4


def _nishimori_deviation(channel, variance, overlap):
    step = 0.05 * min(variance, overlap)
    up, up_error = channel.mean_log_partition(variance - step, overlap + step)
    down, down_error = channel.mean_log_partition(variance + step, overlap - step)
    energy, energy_error = channel.information(variance, overlap)
    factor = 0.25 if channel.tied else 0.5
    # quasi-random averages share their points, so that their errors nearly cancel in the difference
    allowed = (up_error + down_error) / (2 * step) + 3 * factor * energy_error + 0.01 * factor * energy
    return float(abs((up - down) / (2 * step) - factor * energy) / allowed)
