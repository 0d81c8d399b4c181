"""Deep low-rank attention: speed of its parts, and evidence for its threshold: deep_attention.py [--short].

1. The posterior of a sequence's indices (two layers, two tokens) beside scipy.integrate.dblquad on the same integrand,
   at the accuracy that the library aims at, 1e-4. What each really attains is measured on a dense grid.
2. Message passing at d = 1000. 3. Thresholds. 4. A curve of overlaps.
5. The weak-recovery threshold of the last layer, 0.1855 at skip strength 1 (arXiv:2502.00901 has 0.1436): message
   passing and the largest eigenvector of the spectral matrix at sample complexities on both sides.

    python benchmarks/deep_attention.py [--short] [--only posterior message-passing thresholds curve evidence]
        [--features 500 2000] [--seeds 16]
"""

import argparse
import math
import time
import warnings

import numpy as np
from scipy.integrate import dblquad
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import (
    AMPDeepAttentionRegressor,
    DeepBayesOptimalBound,
    cosine_similarity,
    make_deep_attention_sequences,
)
from sklearn_aim.channels.deep import DeepChannel

PARTS = ("posterior", "message-passing", "thresholds", "curve", "evidence")
ACCURACY = 1e-4
# posterior variance of layer 2, layer 1 not learned
STATES = {"nothing known": 1.0, "V_22 = 0.03": 0.03, "V_22 = 0.001": 1e-3}
# edge of the square of z_1 that is integrated over, in standard deviations
EDGE = 7.0
PUBLISHED = 0.1436
# least eigenvalue of E[z z^T|y] in the spectral matrix
FLOOR = 0.02


class Integrand:
    """Density of (z_1, u) at skip strength 1, both signs of u, and z of both layers, weighted by it."""

    def __init__(self, u, omega, variances):
        self.u, self.omega, self.variances = [float(v) for v in u], omega.tolist(), [float(v) for v in variances]

    def __call__(self, y, x):
        """Z, and first moments of z_11, z_12, z_21, z_22 times Z, one point."""
        (u1, u2), ((m1, m2), (k1, k2)), (v1, v2) = self.u, self.omega, self.variances
        # off-diagonal entries of softmax(z z^T), and B^{-1} u
        p, q = 1 / (1 + math.exp(x * (x - y))), 1 / (1 + math.exp(y * (y - x)))
        det = 2 * (2 - p - q)
        a, b = ((2 - q) * u1 - p * u2) / det, ((2 - p) * u2 - q * u1) / det
        prior = math.exp(-((x - m1) ** 2 + (y - m2) ** 2) / (2 * v1)) / (4 * math.pi**2 * v1 * v2 * det)
        plus = prior * math.exp(-((a - k1) ** 2 + (b - k2) ** 2) / (2 * v2))
        minus = prior * math.exp(-((a + k1) ** 2 + (b + k2) ** 2) / (2 * v2))
        return plus + minus, x * (plus + minus), y * (plus + minus), a * (plus - minus), b * (plus - minus)

    def by_scipy(self, best, spread):
        """log Z and the four means by dblquad, each to the accuracy asked: of Z, and of means in standard deviations.

        It is told the size of what it integrates, to set its tolerance by, and first moments are taken about the
        means, so that errors of Z do not spoil them.
        """
        root, z = math.sqrt(self.variances[0]), math.exp(best[0])
        edges = [(m - EDGE * root, m + EDGE * root) for m in self.omega[0]]
        # (inner variable, outer variable): z_12 and z_11
        mass = dblquad(lambda y, x: self(y, x)[0], *edges[0], *edges[1], epsabs=ACCURACY * z, epsrel=0)[0]
        means = []
        for k in range(1, 5):
            center, epsabs = best[k], ACCURACY * z * spread[k - 1]

            def about(y, x, k=k, center=center):
                values = self(y, x)
                return values[k] - center * values[0]

            means.append(center + dblquad(about, *edges[0], *edges[1], epsabs=epsabs, epsrel=0)[0] / mass)
        return np.append(math.log(mass) if mass > 0 else -np.inf, means)

    def by_grid(self, count):
        """The same on a dense grid: accurate to all digits where it resolves the posterior."""
        root = math.sqrt(self.variances[0])
        steps = np.linspace(-EDGE, EDGE, count) * root
        x, y = self.omega[0][0] + steps[:, None], self.omega[0][1] + steps
        (u1, u2), (k1, k2), (v1, v2) = self.u, self.omega[1], self.variances
        with np.errstate(over="ignore"):
            p, q = 1 / (1 + np.exp(x * (x - y))), 1 / (1 + np.exp(y * (y - x)))
        det = 2 * (2 - p - q)
        a, b = ((2 - q) * u1 - p * u2) / det, ((2 - p) * u2 - q * u1) / det
        prior = np.exp(-(steps[:, None] ** 2 + steps**2) / (2 * v1)) / (4 * np.pi**2 * v1 * v2 * det)
        plus = prior * np.exp(-((a - k1) ** 2 + (b - k2) ** 2) / (2 * v2))
        minus = prior * np.exp(-((a + k1) ** 2 + (b + k2) ** 2) / (2 * v2))
        total = plus + minus
        z = total.sum() * (steps[1] - steps[0]) ** 2
        moments = [np.sum(x * total), np.sum(y * total), np.sum(a * (plus - minus)), np.sum(b * (plus - minus))]
        return np.append(np.log(z), np.array(moments) / total.sum())


def compare_posteriors(short):
    """Ratio of processor times, dblquad over the library."""
    n, n_batch, count = (1, 500, 1001) if short else (6, 20000, 3001)
    print(f"posterior of (z_1, z_2), two tokens, skip strength 1, tolerance {ACCURACY:g} of both: log Z and four means")
    print("processor time a sequence, ours in a batch; errors of log Z and of means in posterior standard deviations,")
    print(
        f"worst of {n} sequence{'s' * (n > 1)}, against a grid of {count}^2 points; with nothing known means vanish\n"
    )
    print("                  ours      dblquad     ratio   one call   ours: log Z    means   dblquad: log Z    means")
    channel = DeepChannel(2, 2, tolerance=ACCURACY)
    channel.posterior(np.ones((1, 2)), np.zeros((1, 2, 2)), np.eye(2))
    channel.posterior(np.ones((1, 2)), np.ones((1, 2, 2)), np.eye(2))
    ratios = []
    for name, variance in STATES.items():
        rng = np.random.default_rng(1)
        variances = np.array([1.0, variance])
        overlap = 1 - variances
        z = rng.standard_normal((n_batch, 2, 2))
        omega = overlap[:, None] * z + np.sqrt(overlap * variances)[:, None] * rng.standard_normal(z.shape)
        u, covariance = channel.output(z)[0], np.diag(variances)
        started = time.process_time()
        posterior = channel.posterior(u, omega, covariance)
        ours = (time.process_time() - started) / n_batch
        started = time.perf_counter()
        for k in range(20):
            channel.posterior(u[k : k + 1], omega[k : k + 1], covariance)
        alone = (time.perf_counter() - started) / 20
        # spread of every mean, for errors
        spread = np.einsum("nlala->nla", posterior.second) - posterior.mean**2
        spread = np.sqrt(np.maximum(spread, 1e-300)).reshape(n_batch, 4)
        theirs, errors = 0.0, []
        for k in range(n):
            integrand = Integrand(u[k], omega[k], variances)
            best = integrand.by_grid(count)
            started = time.process_time()
            with warnings.catch_warnings():
                # dblquad warns where it runs out of subdivisions
                warnings.simplefilter("ignore")
                other = integrand.by_scipy(best, spread[k])
            theirs += (time.process_time() - started) / n
            mine = np.append(posterior.log_z[k], posterior.mean[k])
            scales = np.append(1, spread[k])
            errors.append([np.abs(one - best) / scales for one in (mine, other)])
        worst = np.max(errors, axis=0)
        ratios.append(theirs / ours)
        cells = [f"{worst[0][0]:14.1e}{worst[0][1:].max():9.1e}", f"{worst[1][0]:17.1e}{worst[1][1:].max():9.1e}"]
        print(
            f"  {name:14s}{1e6 * ours:5.1f} us {1e3 * theirs:8.0f} ms{ratios[-1]:10.0f}{1e6 * alone:8.0f} us"
            + "".join(cells),
            flush=True,
        )
    return min(ratios)


def run_message_passing(short):
    d, alpha, n_iter = (300, 1.2, 30) if short else (1000, 1.2, 50)
    X, y, weights = make_deep_attention_sequences(round(alpha * d), n_features=d, random_state=0, return_weights=True)
    fit_amp(X[: d // 4], y[: d // 4], weights, 0, 2)
    started = time.perf_counter()
    est, cosines = fit_amp(X, y, weights, 0, n_iter)
    seconds = time.perf_counter() - started
    above = np.flatnonzero(cosines[:, 1] > 0.5)
    print(
        f"\nmessage passing, d={d}, alpha={alpha:g}: {est.n_iter_} iterations in {seconds:.1f} s, "
        f"{1e3 * seconds / est.n_iter_:.0f} ms each; cosine of layer 2 above 0.5 after "
        f"{above[0] + 1 if len(above) else '-'} iterations; at the end {cosines[-1][0]:.6f}, {cosines[-1][1]:.6f}",
        flush=True,
    )


def fit_amp(X, y, weights, seed, n_iter):
    """Exactly n_iter iterations of message passing, and cosines after each."""
    # not the seed of the data: a start drawn by it would be the teacher itself
    est = AMPDeepAttentionRegressor(max_iter=n_iter, tol=0, random_state=1000 + seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X, y, callback=lambda state: {"cosine": cosine_similarity(state["weights"], weights)})
    return est, est.history_["cosine"]


def time_thresholds(effort):
    started = time.perf_counter()
    found, errors = DeepBayesOptimalBound(effort=effort).weak_recovery_thresholds(return_error=True)
    print(
        f"\nthresholds, skip strength 1, effort {effort:g}: layer 2 {found[2]:.5f} +- {errors[2]:.5f}, layer 1 "
        f"{found[1]:.4f} +- {errors[1]:.4f}; {time.perf_counter() - started:.1f} s",
        flush=True,
    )


def time_curve(effort, alphas):
    bound = DeepBayesOptimalBound(effort=effort)
    started, used = time.perf_counter(), time.process_time()
    overlap = bound.overlap(alphas)
    print(
        f"\noverlaps at {len(alphas)} sample complexities from {alphas[0]:g} to {alphas[-1]:g}, effort {effort:g}: "
        f"{time.perf_counter() - started:.0f} s ({time.process_time() - used:.0f} s of processor time)"
    )
    for k in np.unique(np.linspace(0, len(alphas) - 1, 9).astype(int)):
        print(f"  alpha {alphas[k]:5.3f}: layer 1 {overlap[k, 0, 0]:.4f}, layer 2 {overlap[k, 1, 1]:.4f}", flush=True)


def leading_eigenvector(X, y, seed):
    """Of (1/d) sum_n X_n^T (I - M_n^{-1}) X_n, M = E[z_2 z_2^T|y], the largest eigenvalue's."""
    n, T, d = X.shape
    channel = DeepChannel(2, T)
    u, known = channel.encode(y)
    M = channel.posterior(u, np.zeros((n, 2, T)), np.eye(2)).second[:, -1, :, -1]
    values, vectors = np.linalg.eigh(M)
    # M of tokens that agree is nearly singular
    weights = (1 - 1 / np.maximum(values, FLOOR)) * known[:, None]
    T_n = np.einsum("nak,nk,nbk->nab", vectors, weights, vectors)
    flat = X.reshape(-1, d)

    def multiply(v):
        z = (flat @ v.ravel()).reshape(n, T)
        return np.einsum("nab,nb->na", T_n, z).ravel() @ flat / d

    matrix = LinearOperator((d, d), matvec=multiply, dtype=float)
    start = np.random.default_rng(seed).standard_normal(d)
    _, vector = eigsh(matrix, 1, which="LA", v0=start, tol=1e-4, ncv=40)
    return vector[:, 0]


def show_evidence(d, alphas, seeds, n_iter):
    # that of the last layer is known to 1e-4 whatever the effort
    bound = DeepBayesOptimalBound(effort=0.1)
    threshold = bound.weak_recovery_thresholds()[2]
    print(f"\nlayer 2 at skip strength 1, d={d}: squared cosines, mean and standard error of {seeds} seeds, and median")
    print(f"threshold {threshold:.4f} here, {PUBLISHED} published; a random direction has 1/d = {1 / d:.1e}. Below the")
    print("threshold squared cosines go to zero with d, slowly; above it those of message passing go to the bound\n")
    print("  alpha        message passing   median            spectral   median    bound")
    for alpha in alphas:
        rows = []
        for seed in range(seeds):
            X, y, weights = make_deep_attention_sequences(
                round(alpha * d), n_features=d, random_state=seed, return_weights=True
            )
            estimate = fit_amp(X, y, weights, seed, n_iter)[1][-1][1]
            vector = leading_eigenvector(X, y, 1000 + seed)
            rows.append([estimate**2, cosine_similarity([vector], weights[1:])[0] ** 2])
        means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / math.sqrt(seeds)
        cells = zip(means, errors, np.median(rows, axis=0), strict=True)
        cells = [f"{mean:11.4f} ±{error:.4f}{median:9.4f}" for mean, error, median in cells]
        print(f"  {alpha:5.3f}     {cells[0]} {cells[1]}{bound.overlap(alpha)[1, 1]:9.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, for a check that all runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--features", type=int, nargs="+", help="d of the evidence (default 500 2000)")
    parser.add_argument("--seeds", type=int, help="of the evidence at least 2 (default 16)")
    parser.add_argument("--effort", type=float, help="of thresholds and curve (default 1 and 0.1)")
    args = parser.parse_args()
    if (args.seeds is not None and args.seeds < 2) or min(args.features or [100]) < 100:
        parser.error("--seeds must be at least 2, --features at least 100")
    if "posterior" in args.only:
        ratio = compare_posteriors(args.short)
        assert ratio >= 100, f"dblquad over ours: {ratio:.0f}, but several hundred to thousands are expected"
    if "message-passing" in args.only:
        run_message_passing(args.short)
    if "thresholds" in args.only:
        time_thresholds(args.effort or (0.05 if args.short else 1.0))
    if "curve" in args.only:
        alphas = (0.15, 0.3, 0.6) if args.short else np.linspace(0.03, 1.2, 40)
        time_curve(args.effort or (0.05 if args.short else 0.1), np.array(alphas))
    if "evidence" in args.only:
        alphas = (0.1, 0.3) if args.short else (0.1, 0.13, 0.16, 0.22, 0.26, 0.3)
        seeds = args.seeds or (2 if args.short else 16)
        for d in args.features or ((500,) if args.short else (500, 2000)):
            show_evidence(d, alphas, seeds, 40 if args.short else 100)


if __name__ == "__main__":
    main()
