"""Identity link: y = h + noise. With one token this is quadratic regression (arXiv 2408.03733)."""

from sklearn_aim.channels.gaussian import GaussianChannel


class IdentityChannel(GaussianChannel):
    """y = h: every index is seen."""

    name = "identity"

    @property
    def rank(self):
        """T(T+1)/2 tied, T^2 untied."""
        return self.index_dimension

    def link(self, indices):
        """The indices themselves."""
        return indices

    def encode(self, y):
        """Labels as they are; tied ones are made symmetric, as the indices are."""
        return 0.5 * (y + y.transpose(0, 2, 1)) if self.tied else y

    def moments(self, omega, variance):
        """omega, and omega^2 + (V + Delta) c."""
        return omega.copy(), omega**2 + ((variance + self.noise) * self.index_variance).astype(omega.dtype)

    def test_error(self, variance, overlap):
        """(V + Delta) sum_ab c_ab, exactly."""
        return float((variance + self.noise) * self.index_variance.sum()), 0.0
