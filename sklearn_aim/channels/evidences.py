"""Evidence of argmax labels over samples, in threads."""

import numpy as np

from sklearn_aim.kernels.choice import row_argmax_evidences
from sklearn_aim.kernels.orthant import symmetric_argmax_evidences
from sklearn_aim.kernels.pair_argmax import pair_argmax_evidences
from sklearn_aim.kernels.threads import over_samples


def row_evidences(omega, code, variance, diagonal=1.0):
    """Log evidence (n, R) and its derivatives (n, R, T) of rows of independent entries.

    Entries have the given variance, `diagonal` times that where the column is the row's own.
    """
    log_z, gradient = np.empty(code.shape), np.empty_like(omega)

    def run(part):
        row_argmax_evidences(omega[part], code[part], variance, diagonal, log_z[part], gradient[part])

    over_samples(run, code.shape[0])
    return log_z, gradient


def symmetric_evidences(omega, code, variance):
    """Log evidence (n,) and G (n, T, T) of labels of symmetric matrices."""
    log_z, gradient = np.empty(code.shape[0]), np.empty_like(omega)
    evidences = pair_argmax_evidences if code.shape[1] == 2 else symmetric_argmax_evidences

    def run(part):
        evidences(omega[part], code[part], variance, log_z[part], gradient[part])

    over_samples(run, code.shape[0])
    return log_z, gradient
