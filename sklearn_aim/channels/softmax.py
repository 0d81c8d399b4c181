"""Softmax link: y = softmax over b of beta h_ab."""

import numpy as np

from sklearn_aim.channels.gaussian import GaussianChannel
from sklearn_aim.channels.labels import check_distributions
from sklearn_aim.channels.rows import row_test_error
from sklearn_aim.kernels.choice import gumbel_choice, gumbel_normal_table
from sklearn_aim.kernels.threads import over_samples


class SoftmaxChannel(GaussianChannel):
    """Row-wise softmax; y fixes h up to one common shift (tied) or one shift a row (untied)."""

    name = "softmax"
    min_tokens = 2

    @property
    def rank(self):
        """T(T+1)/2 - 1 tied, T(T-1) untied."""
        return self.index_dimension - (1 if self.tied else self.n_tokens)

    def link(self, indices):
        """Softmax over the last axis of beta h."""
        scaled = self.inverse_temperature * indices
        scaled -= scaled.max(axis=-1, keepdims=True)
        np.exp(scaled, out=scaled)
        scaled /= scaled.sum(axis=-1, keepdims=True)
        return scaled

    def encode(self, y):
        """K, which is h up to what softmax drops: l_ab + k_a, l = log(y)/beta, k_a = mean_b(l_ba - l_ab).

        Raises
        ------
        ValueError
            If an entry is not positive or a row does not sum to 1.
        """
        check_distributions(
            y,
            "link='softmax'",
            " Raise zeros from rounding to the smallest weight that your data resolves and renormalise the rows; zeros "
            "from masks (causal attention, padding) need the mask.",
        )
        logs = np.log(y)
        logs /= self.inverse_temperature
        if self.tied:
            shift = np.mean(logs.transpose(0, 2, 1) - logs, axis=-1, keepdims=True)
            logs += shift
            # exact data is symmetric now; other data is made so
            logs += logs.transpose(0, 2, 1).copy()
            logs *= 0.5
        return self.project(logs)

    def project(self, x):
        """Subtract the mean over all T^2 entries (tied) or over each row (untied)."""
        x -= x.mean(axis=(1, 2) if self.tied else 2, keepdims=True)
        return x

    def key_shares(self, code):
        """Tied, K is made symmetric by shifts of rows, which a key bias makes b^T (x_a + x_b)."""
        return (1.0, 1.0) if self.tied else (0.0, 1.0)

    def moments(self, omega, variance):
        """E[y] and E[y^2] by one-dimensional integrals: softmax is the argmax law under Gumbel noise."""
        beta = self.inverse_temperature
        sd = beta * np.sqrt(variance + self.noise)
        tables, starts, steps = zip(*(gumbel_normal_table(s) for s in (sd, sd * self.diagonal_scale)), strict=True)
        scores = beta * np.ascontiguousarray(omega, dtype=float)
        mean, second = np.empty_like(scores), np.empty_like(scores)

        def run(part):
            gumbel_choice(scores[part], tables, starts, steps, sd, mean[part], second[part])

        over_samples(run, scores.shape[0])
        if sd < 0.02:
            # mean^2 and mean square agree to more digits than the integrals have: the spread of linearised softmax
            scale = np.sqrt(self.index_variance[: scores.shape[1]]) * sd
            weighted = (mean * scale) ** 2
            row_sums = weighted.sum(axis=-1, keepdims=True)
            second = mean**2 * (1 + row_sums + (1 - 2 * mean) * scale**2)
        # y is between 0 and 1, to more digits than the integrals of weights near these have
        np.minimum(second, mean, out=second)
        return mean.astype(omega.dtype, copy=False), second.astype(omega.dtype, copy=False)

    @property
    def diagonal_scale(self):
        """Standard deviation of a diagonal index over that of another."""
        return float(np.sqrt(self.index_variance[0, 0]))

    def test_error(self, variance, overlap):
        """T times the error of one row."""
        return row_test_error(self, variance, overlap, width=1 / self.inverse_temperature)
