"""Hardmax link: y is one-hot at the largest index of every row."""

from itertools import product

import numpy as np

from sklearn_aim.channels.base import ENERGY_SAMPLES, Channel, evenly_spaced
from sklearn_aim.channels.evidences import row_evidences, symmetric_evidences
from sklearn_aim.channels.hardmax_averages import hardmax_averages
from sklearn_aim.channels.rows import row_test_error
from sklearn_aim.kernels.choice import normal_choice
from sklearn_aim.kernels.orthant import MAX_TOKENS
from sklearn_aim.kernels.threads import over_samples


class HardmaxChannel(Channel):
    """Row-wise argmax.

    Tied, two tokens: closed form with the bivariate normal law; three to six: `kernels.orthant`. Untied: rows are
    independent, a line integral each, any number of tokens.
    """

    name = "hardmax"
    min_tokens = 2

    @classmethod
    def max_tokens_for(cls, tied):
        """6 when tied, else any."""
        return MAX_TOKENS if tied else None

    def link(self, indices):
        """One-hot rows."""
        return np.eye(self.n_tokens, dtype=indices.dtype)[np.argmax(indices, axis=-1)]

    def encode(self, y):
        """Column of the largest index of every row, (n, T).

        Raises
        ------
        ValueError
            If a row is not one-hot, or (tied) if no symmetric h has these labels.
        """
        columns = np.argmax(y, axis=-1)
        wrong = (np.sum(y != 0, axis=-1) != 1) | (np.max(y, axis=-1) != 1)
        if wrong.any():
            n, a = np.argwhere(wrong)[0]
            raise ValueError(
                f"rows of y must be one-hot (a single 1, else 0) for link='hardmax', got y[{n}, {a}]={y[n, a]}. Use "
                "link='softmax' for attention weights."
            )
        if self.tied:
            self._check_consistent(columns)
        return np.ascontiguousarray(columns, dtype=np.int64)

    def _check_consistent(self, columns):
        # row a's maximum is at most that of the row it selects: only cycles of length 1 and 2 are possible
        onward = columns
        for _ in range(self.n_tokens):
            onward = np.take_along_axis(columns, onward, axis=1)
        # all rows are on cycles now; two more steps must lead back
        back = np.take_along_axis(columns, np.take_along_axis(columns, onward, axis=1), axis=1)
        wrong = (back != onward).any(axis=1)
        if wrong.any():
            n = np.argmax(wrong)
            raise ValueError(
                f"y[{n}] selects columns {columns[n].tolist()}, which run round a cycle of three or more tokens: no "
                "symmetric interaction has such labels. Use tied=False."
            )

    def posterior(self, code, omega, variance):
        """Log probability of the labels, and G from its derivatives."""
        total = variance + self.noise
        means = np.ascontiguousarray(omega, dtype=float)
        if self.tied:
            log_z, gradient = symmetric_evidences(means, code, total)
        else:
            log_z, gradient = row_evidences(means, code, total)
            log_z = log_z.sum(axis=1)
        return log_z, gradient.astype(omega.dtype, copy=False)

    def expected_energy(self, omega, variance):
        """Sum over labels, each at its probability, where they are few; else the default's draws."""
        if self.tied and self.n_tokens > 2:
            return super().expected_energy(omega, variance)
        means = np.ascontiguousarray(evenly_spaced(omega, ENERGY_SAMPLES), dtype=float)
        total = variance + self.noise
        # labels this many standard deviations off have no weight
        reach = 8 * np.sqrt(3 * total)
        energy = 0.0
        if self.tied:
            gaps = np.diagonal(means, axis1=1, axis2=2) - means[:, 0, 1, None]
            for label in product(range(2), repeat=2):
                signs = np.where(np.array(label) == [0, 1], 1, -1)
                likely = (signs * gaps).min(axis=1) > -reach
                code = np.tile(np.array(label, dtype=np.int64), (np.count_nonzero(likely), 1))
                log_z, gradient = symmetric_evidences(means[likely], code, total)
                energy += np.exp(log_z) @ np.sum(gradient**2, axis=(1, 2))
        else:
            # rows are independent
            rows = means.reshape(-1, 1, self.n_tokens)
            top = rows[:, 0].max(axis=1)
            for column in range(self.n_tokens):
                likely = rows[:, 0, column] > top - reach
                code = np.full((np.count_nonzero(likely), 1), column, dtype=np.int64)
                log_z, gradient = row_evidences(rows[likely], code, total)
                energy += np.exp(log_z[:, 0]) @ np.sum(gradient[:, 0] ** 2, axis=1)
        return float(energy) / len(means)

    def information(self, variance, overlap):
        """E||G||^2."""
        total = variance + self.noise
        scale = overlap + total
        (value, _), (error, _) = hardmax_averages(self.n_tokens, self.tied, total / scale)
        return value / scale, error / scale

    def continuous_information(self, second_moment):
        """0: labels are discrete."""
        return 0.0

    def mean_log_partition(self, variance, overlap):
        """Minus the entropy of the labels given omega."""
        total = variance + self.noise
        (_, value), (_, error) = hardmax_averages(self.n_tokens, self.tied, total / (overlap + total))
        return value, error

    def moments(self, omega, variance):
        """Probabilities of each column; they are also E[y^2]."""
        sd = np.sqrt(variance + self.noise)
        scores = np.ascontiguousarray(omega, dtype=float)
        mean = np.empty_like(scores)
        if sd == 0:
            mean = self.link(scores)
        else:
            over_samples(
                lambda part: normal_choice(scores[part], sd, sd * np.sqrt(self.index_variance[0, 0]), mean[part]),
                scores.shape[0],
            )
        mean = mean.astype(omega.dtype, copy=False)
        return mean, mean

    def test_error(self, variance, overlap):
        """T times the error of one row."""
        return row_test_error(self, variance, overlap, width=0.0)
