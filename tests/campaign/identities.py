"""Identities that the exact theory satisfies, on random points of the whole parameter range.

    python tests/campaign/identities.py --points 2000 --seed 0

prints one line an identity: points checked, the largest violation in units of its tolerance and where it was found.
Exits with 1 if any is above 1. `tests/test_identities.py` runs a slice of it.
"""

import argparse
import sys
import time
import warnings
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from scipy.special import log_ndtr

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sklearn_aim import BayesOptimalBound, DeepBayesOptimalBound
from sklearn_aim.algorithms import state_evolution
from sklearn_aim.channels import make_channel
from sklearn_aim.channels.averages import normal_points
from sklearn_aim.channels.deep import DeepChannel
from sklearn_aim.kernels.masks import allowed_pairs
from sklearn_aim.kernels.resolvent import spectral_law
from sklearn_aim.priors import SmallWidthPrior, make_prior


class Report:
    """Largest violation of every identity, in units of its tolerance."""

    def __init__(self):
        self.rows = {}
        self.shares = {}

    def add(self, name, violation, tolerance, where):
        """One point: |violation| should be at most the tolerance."""
        row = self.rows.setdefault(name, {"points": 0, "bad": 0, "size": 0.0, "tolerance": tolerance, "where": where})
        violation = np.abs(np.asarray(violation, dtype=float))
        ratio = np.max(violation / tolerance) if violation.size else 0.0
        ratio = np.inf if np.isnan(ratio) else float(ratio)
        row["points"] += 1
        row["bad"] += ratio > 1
        if ratio >= row["size"]:
            row.update(size=ratio, where=where, tolerance=float(np.max(tolerance)))

    def holds(self, name, true, where):
        """One point: a statement should be true."""
        self.add(name, 0.0 if true else 2.0, 1.0, where)

    def count(self, name, true):
        """How often a statement that may fail at times is true; never a violation."""
        row = self.shares.setdefault(name, [0, 0])
        row[0] += bool(true)
        row[1] += 1

    @property
    def violated(self):
        """Names of what does not hold."""
        return [name for name, row in self.rows.items() if row["bad"]]

    def __str__(self):
        lines = [f"{'identity':58s} {'points':>6s} {'bad':>4s} {'largest/tol':>11s} {'tol there':>9s}  where"]
        for name, row in self.rows.items():
            lines.append(
                f"{name:58s} {row['points']:6d} {row['bad']:4d} {row['size']:11.3g} {row['tolerance']:9.1e}  "
                f"{row['where']}"
            )
        lines += [f"{name}: {true} of {points}" for name, (true, points) in self.shares.items()]
        return "\n".join(lines)


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


# Priors


def fine_law(prior, information, n_nodes=600):
    """Points, weights (density included) and g of the law of R, the roots polished in extended precision."""
    a, b, _, edges, cuts = spectral_law(prior._num, prior._den, 1 / information)
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    theta = np.pi / 2 * (1 + nodes.astype(np.longdouble))
    points, rule = [], []
    for left, right in pairwise(cuts):
        if left in edges[1:-1:2]:
            continue
        middle, half = (np.longdouble(left) + right) / 2, (np.longdouble(right) - left) / 2
        points.append(middle - half * np.cos(theta))
        rule.append(half * np.sin(theta) * np.pi / 2 * weights)
    x, rule = np.concatenate(points), np.concatenate(rule)
    # companion matrices, all roots, independently of the package's own root finder
    coefficients = x.astype(float)[:, None] * a - b
    while not coefficients[:, -1].any():
        coefficients = coefficients[:, :-1]
    companions = np.zeros((x.size, coefficients.shape[1] - 1, coefficients.shape[1] - 1))
    companions[:, 1:, :-1] = np.eye(coefficients.shape[1] - 2)
    companions[:, :, -1] = -coefficients[:, :-1] / coefficients[:, -1:]
    roots = np.linalg.eigvals(companions)
    g = roots[np.arange(x.size), np.argmax(roots.imag, axis=1)].astype(np.clongdouble)
    a, b = a.astype(np.longdouble), b.astype(np.longdouble)
    slopes = [p[1:] * np.arange(1, p.size) for p in (a, b)]
    for _ in range(60):
        value = x * np.polyval(a[::-1], g) - np.polyval(b[::-1], g)
        slope = x * np.polyval(slopes[0][::-1], g) - np.polyval(slopes[1][::-1], g)
        step = value / slope
        g = g - step
        g = g.real + 1j * np.abs(g.imag)
        if np.max(np.abs(step) / np.abs(g)) < 1e-18:
            break
    return x, rule * g.imag / np.pi, g


def check_prior(rng, report):
    """One spectral prior at one information."""
    tied, rho, q = bool(rng.integers(2)), log_uniform(rng, 0.01, 5), log_uniform(rng, 1e-4, 1e6)
    where = f"tied={tied} width_ratio={rho:.6g} information={q:.6g}"
    prior = make_prior(rho, tied)
    x, weight, g = fine_law(prior, q)
    variance, k2, mean = 1 / np.longdouble(q), np.longdouble(prior._variance), np.longdouble(prior._mean)
    centred = x - mean
    report.add("prior: mass of the density", weight.sum() - 1, 1e-9, where)
    report.add("prior: mean of the law", (weight @ centred) / np.sqrt(k2 + variance), 1e-9, where)
    report.add("prior: second moment", (weight @ centred**2) / (k2 + variance) - 1, 1e-9, where)
    found, error = (float(v) for v in prior.mmse(q, return_error=True))
    # E||S - E S||^2 less that of the estimate, where the estimate is small or not; D - D^2 int f^2 where D is small
    excess = weight @ (2 * g.real - centred / (k2 + variance)) ** 2
    truth = float(k2 * variance / (k2 + variance) - variance**2 * excess)
    cubed = float(variance - 4 * variance**2 / 3 * (weight @ g.imag**2))
    report.add("prior: two expressions of the error", cubed - truth, 1e-9 * truth + 1e-13 / q, where)
    report.add("prior: mmse against extended precision", found / truth - 1, 1e-10, where)
    # the nodes' weights here are good to 1e-13 of the terms that cancel
    floor = 1e-13 * float(k2 * variance / (k2 + variance))
    report.add("errors: mmse, reported error covers", found - truth, error + floor, where)
    inside = np.linspace(0, x.size - 1, 40).astype(int)
    density = prior.density(x[inside].astype(float), q)
    peak = float(g.imag.max() / np.pi)
    report.add(
        "prior: density against companion roots", density - (g.imag[inside] / np.pi).astype(float), 1e-6 * peak, where
    )
    denoised = prior.denoise_spectrum(x[inside].astype(float), q)
    scale = float(np.sqrt(variance))
    report.add(
        "prior: denoiser against companion roots",
        denoised - (x - 2 * variance * g.real)[inside].astype(float),
        1e-6 * min(1.0, scale) + 1e-13 * scale, where,
    )  # fmt: skip
    report.holds("prior: 0 <= mmse <= error without data", 0 <= found <= prior.prior_error * (1 + 1e-14), where)
    near = float(prior.mmse(q * 1.01))
    report.holds("prior: mmse falls, q_hat mmse grows", near < found and 1.01 * near > found * (1 - 1e-12), where)
    report.holds(
        "prior: q_hat mmse <= degrees of freedom", q * found <= prior.recovery_information * (1 + 1e-12), where
    )
    report.add("prior: information inverts mmse", float(prior.mmse(prior.information(found))) / found - 1, 1e-9, where)
    noise = float(rng.choice([0.0, log_uniform(rng, 1e-8, 10)]))
    target = log_uniform(rng, 1e-6, 0.999) * prior.recovery_information
    root = float(prior.balance(target, noise))
    report.add(
        "prior: balance", root * (float(prior.mmse(root)) + noise) / target - 1, 1e-9, where + f" noise={noise:.3g}"
    )


def check_prior_information(rng, report):
    """I-MMSE: free entropy against the logarithmic energy of the spectrum, which involves no mmse at all."""
    tied, rho, q = bool(rng.integers(2)), log_uniform(rng, 0.05, 5), log_uniform(rng, 1e-3, 3e3)
    where = f"tied={tied} width_ratio={rho:.6g} information={q:.6g}"
    prior = make_prior(rho, tied)
    # log|x - y| in Chebyshev polynomials on one interval, enough of them for the narrowest bulk
    edges = prior.edges(q)
    most = int(min(60 * (edges[-1] - edges[0]) / np.min(edges[1::2] - edges[::2]), 2500)) + 100
    x, weight, _ = fine_law(prior, q, most + 100)
    left, right = edges[0], edges[-1]
    angle = np.arccos(np.clip((2 * x.astype(float) - left - right) / (right - left), -1, 1))
    order = np.arange(1, most)
    coefficients = np.array([np.cos(n * angle) @ weight.astype(float) for n in order])
    energy = np.log((right - left) / 4) - np.sum(2 / order * coefficients**2)
    mutual = energy / 2 + np.log(q) / 4 + 1 / 8
    if not tied:
        mutual *= 2
    factor = prior.free_entropy_factor
    found = factor * prior.second_moment * q - float(prior.free_entropy(q))
    report.add("prior: I-MMSE, by logarithmic energies", found - mutual, 1e-6 * (1 + abs(mutual)), where)
    step = 1e-3 * q
    values = prior.free_entropy(q + step * np.array([-2, -1, 1, 2]))
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    overlap = prior.second_moment - float(prior.mmse(q))
    report.add("prior: d free entropy / d information", slope / factor - overlap, 1e-7 * prior.second_moment, where)


def check_small_width(rng, report):
    """Closed forms of the limit of small width, against each other and against a small width."""
    tied, q = bool(rng.integers(2)), log_uniform(rng, 1e-4, 1e6)
    noise = float(rng.choice([0.0, log_uniform(rng, 1e-8, 10)]))
    where = f"tied={tied} information={q:.6g} noise={noise:.3g}"
    prior = SmallWidthPrior(tied)
    value = float(prior.mmse(q))
    report.holds("small width: 0 <= mmse <= 1, falling", 0 <= float(prior.mmse(1.01 * q)) <= value <= 1, where)
    if q > 1.0001:
        report.add("small width: information inverts mmse", float(prior.information(value)) / q - 1, 1e-11 * q, where)
    target = log_uniform(rng, 1e-6, 0.999) * 2
    root = float(prior.balance(target, noise))
    report.add("small width: balance", root * (float(prior.mmse(root)) + noise) / target - 1, 1e-10, where)
    # q - area: integral of t(2 - t) from 1 is 2 log q - (1 - 1/q)
    area = min(q, 1) + (2 * np.log(q) - 1 + 1 / q if q > 1 else 0)
    expected = prior.free_entropy_factor * (q - area)
    report.add("small width: free entropy", float(prior.free_entropy(q)) - expected, 1e-8 * (1 + area), where)


# Channels


def draw_channel(rng, links=("identity", "softmax", "hardmax"), masks=True):
    """A channel, V, q and words for them."""
    link, tied = str(rng.choice(links)), bool(rng.integers(2))
    low = 1 if link == "identity" and tied else 2
    n_tokens = int(rng.integers(low, 5))
    noise = float(rng.choice([0.0, log_uniform(rng, 1e-6, 3)]))
    beta = log_uniform(rng, 0.1, 10) if link == "softmax" else 1.0
    variance, overlap = log_uniform(rng, 1e-6, 1), log_uniform(rng, 1e-3, 5)
    allowed, kind = None, "none"
    n_samples = 64
    if masks and link != "hardmax" and n_tokens > 1:
        kind = str(rng.choice(["none", "causal", "random", "full"]))
        if kind == "causal":
            allowed = allowed_pairs("causal", n_samples, n_tokens)
        elif kind != "none":
            open_ = rng.random((n_samples, n_tokens, n_tokens)) < (0.7 if kind == "random" else 2)
            open_[0] = True
            allowed = open_
    channel = make_channel(link, n_tokens, tied=tied, noise=noise, inverse_temperature=beta, allowed=allowed)
    where = f"{link} T={n_tokens} tied={tied} noise={noise:.3g} beta={beta:.3g} mask={kind}"
    where += f" V={variance:.4g} q={overlap:.4g}"
    return channel, variance, overlap, where


def check_channel_derivative(rng, report):
    """G is the derivative of log Z, also where labels contradict omega."""
    channel, variance, overlap, where = draw_channel(rng)
    n = 64
    total = variance + channel.noise
    omega = np.sqrt(overlap) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    surprise = float(rng.choice([1.0, 1.0, 4.0]))
    # the integrals of hardmax are good to about 1e-8, in panels that move with omega
    coarse = channel.name == "hardmax" and channel.tied and channel.n_tokens > 2
    spread = surprise * np.sqrt(total) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    where += f" surprise={surprise:g}"
    y = channel.link(omega + spread)
    if channel.name == "softmax" and (np.any((y == 0) & (getattr(channel, "allowed", True))) or y.max() > 1 - 1e-9):
        # weights that underflow show no index
        return
    code = channel.encode(y)
    if channel.name == "hardmax":
        # labels this far off are for `check_far_tails`
        gap = np.max(omega, axis=-1) - np.take_along_axis(omega, code[..., None], axis=-1)[..., 0]
        kept = gap.max(axis=1) < 9 * np.sqrt(total)
        omega, code, n = omega[kept], code[kept], int(kept.sum())
        if n == 0:
            return
    _, gradient = channel.posterior(code, omega, variance)
    direction = channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    step = (0.03 if coarse else 3e-3) * np.sqrt(total)
    values = [channel.posterior(code, omega + k * step * direction, variance)[0] for k in (-2, -1, 1, 2)]
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    terms = gradient * direction / channel.index_variance
    pairs = np.triu(np.ones(terms.shape[1:])) if channel.tied else 1.0
    expected = np.sum(terms * pairs, axis=(1, 2))
    size = np.sqrt(np.sum(gradient**2, axis=(1, 2)) * np.sum(direction**2, axis=(1, 2)))
    rounding = 1e-14 * (1 + np.max(np.abs(values), axis=0)) / step
    # K has the rounding of y in it, the same in both
    # and to 1e-8 of the largest term where a label is in a tail of all rows
    relative = (1e-4 if surprise == 1 else 1e-2) if coarse else 1e-6
    report.add(
        "channel: G is the slope of log Z", slope - expected, relative * (size + 1 / np.sqrt(total)) + rounding, where
    )
    if channel.tied:
        mirror = np.abs(gradient - gradient.transpose(0, 2, 1)).max()
        report.add("channel: G is symmetric (tied)", mirror, 1e-10 * (1 + np.abs(gradient).max()), where)


def all_labels(channel):
    """Every label of a hardmax channel as code (m, T), tied: those that a symmetric matrix can have."""
    labels = np.array(list(product(range(channel.n_tokens), repeat=channel.n_tokens)), dtype=np.int64)
    if not channel.tied:
        return labels
    kept = []
    for label in labels:
        onward = label
        for _ in range(channel.n_tokens):
            onward = label[onward]
        if (label[label[onward]] == onward).all():
            kept.append(label)
    return np.array(kept)


def check_hardmax_sums(rng, report):
    """Over all labels: probabilities sum to one, G to zero, and squares to the expected energy; Fisher's identity."""
    channel, variance, overlap, where = draw_channel(rng, ("hardmax",))
    if channel.n_tokens > 3 and channel.tied and rng.random() < 0.8:
        return
    total = variance + channel.noise
    labels = all_labels(channel)
    n = 4
    omega = np.sqrt(overlap) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    energies = np.zeros(n)
    for k in range(n):
        means = np.broadcast_to(omega[k], (len(labels), *omega.shape[1:]))
        log_z, gradient = channel.posterior(labels, np.ascontiguousarray(means), variance)
        z = np.exp(log_z)
        report.add("hardmax: probabilities of labels sum to one", z.sum() - 1, 3e-6, where)
        mean = np.einsum("m,mab->ab", z, gradient)
        report.add("hardmax: G has mean zero over labels", mean * np.sqrt(total), 3e-5, where)
        energies[k] = z @ np.sum(gradient**2, axis=(1, 2))
        # tokens' marginals are the predicted moments
        chosen = np.zeros(omega.shape[1:])
        for a in range(channel.n_tokens):
            np.add.at(chosen[a], labels[:, a], z)
        moments = channel.moments(omega[k : k + 1], variance)[0][0]
        report.add("hardmax: marginals are the predicted means", chosen - moments, 3e-6, where)
    if channel.n_tokens == 2 or not channel.tied:
        found = channel.expected_energy(omega, variance)
        report.add(
            "hardmax: expected energy is the sum over labels",
            found - energies.mean(),
            1e-6 * energies.mean() + 1e-5 / total,
            where,
        )


def check_far_tails(rng, report):
    """Labels that contradict omega by many deviations: one row's choice against the normal law's own tail."""
    tied, k, variance = bool(rng.integers(2)), rng.uniform(0, 60), log_uniform(rng, 1e-6, 10)
    channel = make_channel("hardmax", 2, tied=tied)
    deviation = np.sqrt((3 if tied else 2) * variance)
    omega = np.zeros((1, 2, 2))
    # row 1 chooses itself, against k deviations; row 2 does so without any doubt
    omega[0, 0, 0], omega[0, 1, 1] = -k * deviation, 1e3 * deviation
    log_z, gradient = channel.posterior(np.array([[0, 1]]), omega, variance)
    where = f"hardmax T=2 tied={tied} deviations={k:.4g} V={variance:.4g}"
    truth = float(log_ndtr(-k))
    hazard = float(np.exp(-(k**2) / 2 - np.log(2 * np.pi) / 2 - truth))
    expected = (2 if tied else 1) * hazard / deviation
    # beyond about 7 deviations with some per cent, and exact before
    close = 1e-6 if k < 6.9 else 0.05
    report.add("hardmax: log Z in far tails", log_z[0] - truth, close * (abs(truth) + 1), where)
    report.add("hardmax: G in far tails", gradient[0, 0, 0] / expected - 1, close, where)


def check_channel_energy(rng, report):
    """||G||^2 averaged over draws is the information, with G.(h - omega)/V as second witness."""
    channel, variance, overlap, where = draw_channel(rng)
    if channel.name == "hardmax":
        if channel.tied and channel.n_tokens > 3:
            return
        # rarer labels than draws have an energy of their own
        variance = max(variance, 1e-2)
        where += f" (V={variance:.3g})"
    n = 64 if hasattr(channel, "allowed") else 4000
    omega = np.sqrt(overlap) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    shift = np.sqrt(variance) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    noise = np.sqrt(channel.noise) * channel.random_indices(rng.standard_normal((n, channel.index_dimension)))
    y = channel.link(omega + shift + noise)
    if channel.name == "softmax" and (np.any((y == 0) & (getattr(channel, "allowed", True))) or y.max() > 1 - 1e-7):
        return
    code = channel.encode(y)
    _, gradient = channel.posterior(code, omega, variance)
    energy = np.sum(gradient**2, axis=(1, 2))
    witness = np.sum(gradient * shift, axis=(1, 2)) / variance
    value, error = channel.information(variance, overlap)
    for name, draws in (("energy", energy), ("posterior mean", witness)):
        spread = 6 * draws.std() / np.sqrt(n) + error + 1e-9 * value
        report.add(f"channel: {name} of draws is the information", draws.mean() - value, spread, where)
    # every energy of the channel's own labels
    expected = channel.expected_energy(omega, variance)
    spread = 6 * np.hypot(energy.std(), energy.std()) / np.sqrt(n) + error
    report.add("channel: expected energy", energy.mean() - expected, spread + 1e-9 * value, where)
    report.holds("channel: information is positive", value > 0 and error >= 0, where)


def check_channel_nishimori(rng, report):
    """d/dq E log Z at fixed q + V is the energy, 1/4 of it tied and 1/2 untied."""
    channel, variance, overlap, where = draw_channel(rng, masks=False)
    if channel.name == "hardmax" and channel.tied and channel.n_tokens > 3:
        return
    step = 0.02 * min(variance, overlap)
    values = [channel.mean_log_partition(variance - k * step, overlap + k * step) for k in (-2, -1, 1, 2)]
    slope = (values[0][0] - 8 * values[1][0] + 8 * values[2][0] - values[3][0]) / (12 * step)
    factor = 0.25 if channel.tied else 0.5
    energy, error = channel.information(variance, overlap)
    # averages at neighbouring s share points: their errors are those of one smooth curve
    total = variance + channel.noise
    wobble = (0.1 if channel.n_tokens == 2 else 10) * max(v[1] for v in values) / total
    report.add(
        "channel: d E log Z / d q (Nishimori)",
        slope - factor * energy,
        1e-5 * factor * energy + factor * error + wobble,
        where,
    )


def check_test_error(rng, report):
    """Between 0 and its value without knowledge; growing with V; moments are moments; zero for known layers."""
    channel, variance, overlap, where = draw_channel(rng, masks=False)
    if channel.name == "hardmax" and channel.n_tokens > 2 and rng.random() < 0.7:
        return
    value, error = channel.test_error(variance, overlap)
    none, none_error = channel.test_error(variance + overlap, 0.0)
    rounding = 1e-9 * channel.n_tokens
    report.holds("test error: not negative", value >= -error - rounding, where)
    report.add(
        "test error: at most that of no knowledge",
        max(value - none, 0),
        3 * (error + none_error) + rounding + 1e-6 * none,
        where,
    )
    more, more_error = channel.test_error(1.1 * variance, max(overlap - 0.1 * variance, 0))
    report.add(
        "test error: grows with V", max(value - more, 0), 3 * (error + more_error) + rounding + 1e-6 * value, where
    )
    clean = channel.with_noise(0.0)
    report.add("test error: zero where S is known", clean.test_error(0.0, overlap)[0], 1e-10, where)
    omega = np.sqrt(overlap) * channel.random_indices(rng.standard_normal((5, channel.index_dimension)))
    mean, second = channel.moments(omega, variance)
    report.holds("moments: E[y^2] >= E[y]^2", (second - mean**2 >= -1e-10 * (1 + mean**2)).all(), where)
    if channel.name != "identity":
        report.add("moments: rows sum to one", mean.sum(axis=2) - 1, 1e-9, where)
    if channel.name == "softmax":
        scale = np.sqrt(channel.index_variance * (variance + channel.noise))
        if channel.n_tokens == 2:
            for a in range(2):
                deviation = np.sqrt(scale[a, 0] ** 2 + scale[a, 1] ** 2)
                k = np.linspace(-12, 12, 20001)
                weight = np.exp(-(k**2) / 2) * (k[1] - k[0]) / np.sqrt(2 * np.pi)
                gap = omega[:, a, 0] - omega[:, a, 1]
                p = 1 / (1 + np.exp(np.clip(-channel.inverse_temperature * (gap[:, None] + deviation * k), -700, 700)))
                report.add("moments: softmax mean by quadrature, T = 2", p @ weight - mean[:, a, 0], 1e-9, where)
                spread = (p - (p @ weight)[:, None]) ** 2 @ weight
                # narrow laws are linearised
                off = p**2 @ weight - second[:, a, 0]
                report.add("moments: softmax square by quadrature, T = 2", off, 1e-9 + 1e-3 * spread, where)
                report.add(
                    "moments: softmax spread by quadrature, T = 2",
                    second[:, a, 0] - mean[:, a, 0] ** 2 - spread,
                    1e-3 * spread + 2e-10,
                    where,
                )
        else:
            z = normal_points(channel.index_dimension, 1 << 12, 5)
            h = omega[0] + np.sqrt(variance + channel.noise) * channel.random_indices(z)
            y = channel.link(h)
            report.add(
                "moments: softmax mean by draws, T > 2", y.mean(axis=0) - mean[0], 6 * y.std(axis=0) / 64 + 1e-9, where
            )
            report.add(
                "moments: softmax square by draws, T > 2",
                (y**2).mean(axis=0) - second[0],
                6 * (y**2).std(axis=0) / 64 + 1e-9,
                where,
            )


# Bounds


def check_bound(rng, report, links=("identity", "softmax", "hardmax")):
    """Fixed point, stationarity, energy balance, monotony and limits of one setting."""
    link, tied = str(rng.choice(links)), bool(rng.integers(2))
    n_tokens = int(rng.integers(1 if link == "identity" and tied else 2, 5 if link != "hardmax" else 4))
    rho = 0.0 if rng.random() < 0.1 else log_uniform(rng, 0.02, 5)
    noise = float(rng.choice([0.0, log_uniform(rng, 1e-5, 3)]))
    beta = log_uniform(rng, 0.2, 5) if link == "softmax" else 1.0
    where = f"{link} T={n_tokens} tied={tied} width_ratio={rho:.4g} noise={noise:.3g} beta={beta:.3g}"
    bound = BayesOptimalBound(rho, tied=tied, n_tokens=n_tokens, link=link, noise=noise, inverse_temperature=beta)
    channel, prior = bound._model()
    if channel.information_constant is not None:
        scale = (prior.recovery_information / channel.information_constant) * (1 + noise)
    else:
        scale = 1.0 / channel.information(prior.prior_error, max(prior.second_moment - prior.prior_error, 0.0))[0]
    low = 0.01 if rho else 1.05
    alpha = float(scale * np.exp(rng.uniform(np.log(low), np.log(20))))
    where += f" alpha={alpha:.5g}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        error, spread = bound.estimation_error(alpha, return_error=True)
        q_hat = bound.information(alpha)
        more = bound.estimation_error(1.02 * alpha)
        report.holds(
            "bound: 0 <= V <= V(0), falling in alpha",
            0 <= more <= error * (1 + 1e-9) <= prior.prior_error * (1 + 1e-8),
            where,
        )
        t_error, t_spread = bound.test_error(alpha, return_error=True)
        t_none, none_spread = bound.test_error(0.0, return_error=True)
        t_known, known_spread = channel.test_error(0.0, prior.second_moment)
        slack = 3 * (t_spread + none_spread + known_spread) + 1e-8 * n_tokens + 1e-6 * t_none
        report.add("bound: test error below that of alpha = 0", max(t_error - t_none, 0), slack, where)
        report.add("bound: test error above that of known S", max(t_known - t_error, 0), slack, where)
        if error == 0 or not np.isfinite(q_hat):
            threshold = bound.recovery_threshold() if link != "hardmax" else np.inf
            report.holds(
                "bound: V = 0 above the recovery threshold only", alpha >= threshold * (1 - 1e-9) or rho == 0, where
            )
            return
        report.holds("bound: spread of V is finite", np.isfinite(spread) and spread >= 0, where)
        value, uncertain = channel.information(error, prior.second_moment - error)
        residual = float(prior.mmse(alpha * value)) / error - 1
        # how far V itself would move is what matters at small slopes of the map
        report.add("bound: V solves the state evolution", residual, 1e-8, where)
        report.add("bound: q_hat is that of V", q_hat / (alpha * value) - 1, 1e-7, where)
        if error > 1e-4 * prior.prior_error and error < prior.prior_error * (1 - 1e-6):
            step = 1e-2 * min(error, prior.prior_error - error)
            v = error + step * np.array([-2, -1, 1, 2])
            f = [state_evolution.free_entropy(channel, prior, alpha, one) for one in v]
            slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
            # terms that cancel: f q dq_hat/dV and the energy
            size = prior.free_entropy_factor * (alpha * value)
            blur = (
                1e-11 * np.max(np.abs(f)) / step
                + 2 * alpha * channel.mean_log_partition(error, prior.second_moment - error)[1] / error
            )
            tolerance = 2e-5 * size + alpha * uncertain + blur
            report.add("bound: free entropy is stationary", slope, tolerance, where)
            s = 0.01 * alpha
            a = alpha + s * np.array([-2, -1, 1, 2])
            f = bound.free_entropy(a)
            if np.isfinite(f).all():
                slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * s)
                energy, blur = channel.mean_log_partition(error, prior.second_moment - error)
                report.add(
                    "bound: d free entropy/d alpha is E log Z",
                    slope - energy,
                    1e-4 * (1 + abs(energy)) + 3 * blur,
                    where,
                )
        mutual = bound.mutual_information(np.array([alpha, 1.1 * alpha]))
        if np.isfinite(mutual).all():
            blur = 3 * alpha * channel.mean_log_partition(error, prior.second_moment - error)[1] + 1e-9 + 1e-6 * alpha
            report.add("bound: mutual information grows from 0", max(-mutual[0], mutual[0] - mutual[1], 0), blur, where)
            if link == "hardmax":
                most = alpha * n_tokens * np.log(n_tokens)
                report.add("bound: mutual information <= log of labels", max(mutual[0] - most, 0), blur, where)
        if error < prior.prior_error * (1 - 1e-6):
            found = state_evolution.sample_complexity(channel, prior, error)
            report.add("bound: sample complexity inverts V", found / alpha - 1, 1e-5, where)


def check_bound_errors(rng, report):
    """Reported errors of quasi-Monte Carlo averages, against averages over many more and other points."""
    from sklearn_aim.channels import hardmax_averages as averages

    s = log_uniform(rng, 1e-4, 1)
    tied = bool(rng.integers(2))
    where = f"hardmax T=3 tied={tied} s={s:.5g}"
    found, error = averages.hardmax_averages(3, tied, s)
    if tied:
        results, spreads = averages._symmetric_averages(3, s, n_points=2**13, n_replicas=16)
    else:
        results, spreads = averages._independent_averages(3, s)
    allowed = error + spreads
    report.add("errors: hardmax information, T = 3", found[0] - results[0], allowed[0], where)
    report.add("errors: hardmax E log Z, T = 3", found[1] - results[1], allowed[1], where)


# Deep


def deep_state(rng, n_layers):
    deviations = 10 ** rng.uniform(-1.2, 0, n_layers)
    correlation = np.eye(n_layers)
    if rng.random() < 0.5:
        a = rng.uniform(-0.5, 0.5, (n_layers, n_layers))
        correlation = correlation + (a + a.T) / 4
    return correlation * np.outer(deviations, deviations)


def check_deep_channel(rng, report):
    """Depth 1 and 2: slopes of log Z, identities of the posterior, and reported errors against tight ones."""
    n_layers = int(rng.integers(1, 3))
    n_tokens = int(rng.integers(2, 4)) if rng.random() < 0.3 else 2
    skip, beta = float(rng.choice([0.1, 0.5, 1.0, 3.0])), log_uniform(rng, 0.3, 2)
    covariance = deep_state(rng, n_layers)
    n = 12
    where = f"deep L={n_layers} T={n_tokens} skip={skip:g} beta={beta:.3g} V={np.round(covariance, 5).tolist()}"
    chol = np.linalg.cholesky(covariance)
    omega = np.einsum(
        "lm,nma->nla",
        np.sqrt(np.maximum(np.eye(n_layers) - np.diag(np.diag(covariance)), 0)),
        rng.standard_normal((n, n_layers, n_tokens)),
    )
    z = omega + np.einsum("lm,nma->nla", chol, rng.standard_normal((n, n_layers, n_tokens)))
    usual = DeepChannel(n_layers, n_tokens, skip=skip, inverse_temperature=beta)
    u, maps = usual.output(z)
    if maps.min() > 1e-30:
        found, known = usual.encode(maps)
        sign = np.sign(np.sum(found * u, axis=1))[:, None]
        agree = np.abs(found * sign - u)[known]
        report.add("deep: encode undoes the map", agree / (1 + np.abs(u[known])), 1e-4, where)
    loose = usual.posterior(u, omega, covariance)
    if n_layers == 1:
        tight = loose
    else:
        tight = DeepChannel(n_layers, n_tokens, skip=skip, inverse_temperature=beta, tolerance=1e-8).posterior(
            u, omega, covariance
        )
        sure = tight.error < 1e-6
        name = f"deep: reported error of log Z covers, T = {n_tokens}"
        for k in np.flatnonzero(sure):
            # estimates: most cover; at the usual tolerance of 1e-4 the few others have stayed below 1e-3
            off_log = abs(loose.log_z[k] - tight.log_z[k])
            report.count(name, off_log <= loose.error[k] + 1e-6)
            report.add(
                f"deep: log Z within 10 x reported + 1e-3, T = {n_tokens}", off_log, 10 * loose.error[k] + 1e-3, where
            )
            spread = np.sqrt(np.maximum(np.einsum("lala->la", tight.second[k]) - tight.mean[k] ** 2, 1e-24))
            off = np.abs(loose.mean[k] - tight.mean[k]) / (spread + 1e-9)
            report.count(f"deep: reported error of means covers, T = {n_tokens}", off.max() <= loose.error[k] + 1e-6)
            report.add(
                f"deep: means within 10 x reported + 1e-3, T = {n_tokens}", off, 10 * loose.error[k] + 1e-3, where
            )
        if not sure.all():
            return
    # slope of log Z in a random direction: V^-1 (mean - omega)
    direction = rng.standard_normal((n, n_layers, n_tokens))
    direction = np.einsum("lm,nma->nla", chol, direction)
    step = 2e-3
    channel = (
        usual if n_layers == 1 else DeepChannel(n_layers, n_tokens, skip=skip, inverse_temperature=beta, tolerance=1e-8)
    )
    f = [channel.posterior(u, omega + k * step * direction, covariance).log_z for k in (-2, -1, 1, 2)]
    slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
    g = np.einsum("lm,nma->nla", np.linalg.inv(covariance), tight.mean - omega)
    expected = np.sum(g * direction, axis=(1, 2))
    report.add("deep: g is the slope of log Z", slope - expected, 1e-4 * (1 + np.abs(expected)), where)
    # the truth is a posterior draw: z has no business outside
    eigen = np.linalg.eigvalsh(
        (tight.second - np.einsum("nla,nmb->nlamb", tight.mean, tight.mean)).reshape(n, n_layers * n_tokens, -1)
    )
    report.add(
        "deep: posterior covariance is positive",
        np.maximum(-eigen.min(axis=1), 0) / np.maximum(eigen.max(axis=1), 1e-9),
        1e-5,
        where,
    )


def check_deep_nishimori(rng, report):
    """E g.g = E g V^-1 (z - omega), over many draws of one state."""
    n_layers = int(rng.integers(1, 3))
    covariance = np.diag(10 ** rng.uniform(-1.2, 0, n_layers))
    skip = float(rng.choice([0.1, 0.5, 1.0, 3.0]))
    n = 1500
    where = f"deep L={n_layers} T=2 skip={skip:g} V={np.round(np.diag(covariance), 5).tolist()}"
    variance = np.diag(covariance)
    omega = np.sqrt(1 - variance)[:, None] * rng.standard_normal((n, n_layers, 2))
    z = omega + np.sqrt(variance)[:, None] * rng.standard_normal((n, n_layers, 2))
    channel = DeepChannel(n_layers, 2, skip=skip)
    out = channel.posterior(channel.output(z)[0], omega, covariance)
    g = (out.mean - omega) / variance[:, None]
    draws = np.sum(g * g, axis=2) - np.sum(g * (z - omega), axis=2) / variance
    report.add(
        "deep: E g.g = E g.(z - omega)/V",
        draws.mean(axis=0),
        6 * draws.std(axis=0) / np.sqrt(n) + 1e-3 * np.mean(g * g),
        where,
    )
    second = np.sum(z * z, axis=2) - np.einsum("nlala->nl", out.second)
    report.add(
        "deep: E z^2 is that of the posterior", second.mean(axis=0), 6 * second.std(axis=0) / np.sqrt(n) + 1e-3, where
    )


def check_deep_bound(rng, report):
    """Reported errors of overlaps at a small effort, against a larger effort; limits and monotony."""
    skip = float(rng.choice([0.5, 1.0, 2.0]))
    rough, fine = DeepBayesOptimalBound(skip=skip, effort=0.05), DeepBayesOptimalBound(skip=skip, effort=0.4)
    alpha = np.sort(rng.uniform(0.1, 1.1, 4))
    where = f"deep bound skip={skip:g} alpha={np.round(alpha, 4).tolist()}"
    found, error = rough.overlap(alpha, return_error=True)
    truth, truth_error = fine.overlap(alpha, return_error=True)
    diagonal = np.einsum("kll->kl", found), np.einsum("kll->kl", truth)
    for k, values in enumerate(diagonal):
        slack = 2 * (error, truth_error)[k][1:] + 2 * (error, truth_error)[k][:-1] + 1e-9
        report.add("deep bound: overlaps grow in alpha", np.maximum(-np.diff(values, axis=0), 0), slack, where)
        report.holds("deep bound: overlaps in [0, 1]", ((values >= 0) & (values <= 1)).all(), where)
    for k in range(len(alpha)):
        report.add(
            "deep bound: reported errors cover",
            diagonal[0][k] - diagonal[1][k],
            error[k] + truth_error[k] + 1e-9,
            f"skip={skip:g} alpha={alpha[k]:.4g}",
        )


# name: check, points that a campaign of 2000 makes of it
CHECKS = {
    "prior": (check_prior, 2000),
    "prior-information": (check_prior_information, 200),
    "small-width": (check_small_width, 2000),
    "channel-derivative": (check_channel_derivative, 2000),
    "hardmax-sums": (check_hardmax_sums, 600),
    "far-tails": (check_far_tails, 1000),
    "channel-energy": (check_channel_energy, 600),
    "channel-nishimori": (check_channel_nishimori, 1000),
    "test-error": (check_test_error, 600),
    "bound": (check_bound, 400),
    "bound-errors": (check_bound_errors, 20),
    "deep-channel": (check_deep_channel, 60),
    "deep-nishimori": (check_deep_nishimori, 20),
    "deep-bound": (check_deep_bound, 2),
}


def run(names, points, seed, progress=False):
    """A `Report` of the named checks; a campaign of `points` points."""
    report = Report()
    for name in names:
        check, share = CHECKS[name]
        start = time.perf_counter()
        count = -(-share * points // 2000)
        for k in range(count):
            # every point has its own seed: one can be looked at alone
            check(np.random.default_rng([seed, list(CHECKS).index(name), k]), report)
        if progress:
            print(f"# {name}: {count} points, {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    args = parser.parse_args()
    report = run(args.only, args.points, args.seed, progress=True)
    print(report)
    if report.violated:
        print(f"\n{len(report.violated)} violated: " + "; ".join(report.violated))
    return 1 if report.violated else 0


if __name__ == "__main__":
    sys.exit(main())
