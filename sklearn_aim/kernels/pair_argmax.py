"""Argmax labels of symmetric 2 x 2 Gaussian matrices, in closed form."""

import math

import numba as nb

from sklearn_aim.kernels.normal import bivariate_normal_cdf, normal_cdf, normal_pdf
from sklearn_aim.kernels.orthant import symmetric_argmax_evidence


@nb.njit(cache=True, error_model="numpy", nogil=True)
def pair_argmax_evidences(omega, selected, variance, log_z, gradient):
    """Log evidence and G of labels at two tokens.

    With m_1 = omega_11 - omega_12, m_2 = omega_22 - omega_12, sd^2 = 3 v and s_i = +-1 the sign that the label asks
    of h_ii - h_12: Z = Phi2(s_1 m_1/sd, s_2 m_2/sd; s_1 s_2/3), and dZ/dk_1 = phi(k_1) Phi((k_2 - r k_1)/sqrt(1 - r^2))
    (Owen 1956). Labels far in a tail, where this cancels, take the integral of `orthant`.

    Parameters
    ----------
    omega : ndarray of shape (n, 2, 2), float64
    selected : ndarray of shape (n, 2), int64
    variance : float
    log_z : ndarray of shape (n,)
        Overwritten.
    gradient : ndarray of shape (n, 2, 2)
        Overwritten with G_ab = c_ab dlogZ/d omega_ab.
    """
    sd = math.sqrt(3 * variance)
    root = math.sqrt(8.0) / 3
    for n in range(selected.shape[0]):
        s1 = 1.0 if selected[n, 0] == 0 else -1.0
        s2 = 1.0 if selected[n, 1] == 1 else -1.0
        k1 = s1 * (omega[n, 0, 0] - omega[n, 0, 1]) / sd
        k2 = s2 * (omega[n, 1, 1] - omega[n, 0, 1]) / sd
        r = s1 * s2 / 3
        z = bivariate_normal_cdf(k1, k2, r)
        if z < 1e-10:
            log_z[n] = symmetric_argmax_evidence(omega[n], selected[n], variance, gradient[n])
            continue
        g1 = s1 * normal_pdf(k1) * normal_cdf((k2 - r * k1) / root) / (sd * z)
        g2 = s2 * normal_pdf(k2) * normal_cdf((k1 - r * k2) / root) / (sd * z)
        log_z[n] = math.log(z)
        gradient[n, 0, 0] = 2 * g1
        gradient[n, 1, 1] = 2 * g2
        gradient[n, 0, 1] = -(g1 + g2)
        gradient[n, 1, 0] = -(g1 + g2)
