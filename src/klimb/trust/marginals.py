"""Corrected marginals: mean, sd and skewness as the exact posterior has them, and a distribution with these moments.

A shifted gamma distribution (Pearson's type III) has any skewness, tends to the Gaussian as it vanishes, and has
quantiles in closed form; its fourth cumulant, 1.5 times the squared skewness, is close to that of the posteriors of
log-concave likelihoods.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, gammaln, ndtr, ndtri

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float

MOST_SKEWED = 1.9  # of the distribution: from 2 on the density of a gamma is infinite at its end
LEAST_SKEWED = 0.02  # in pieces: a gamma of a larger shape loses digits
SHARES = np.array([0.02, 0.08, 0.15, 0.25, 0.25, 0.15, 0.08, 0.02])  # of pieces, the same from both ends
GAUSSIAN = 1e-3  # skewness below which the gamma distribution is taken for its limit plus its first correction


@dataclass(frozen=True, eq=False)
class Corrected:
    """Marginals of the exact posterior, as far as importance weights (or second-order theory) can tell.

    One entry per reported marginal: a weight, or f at a site. ``method`` says where the numbers come from. The
    distribution behind quantiles and densities has at most a skewness of 1.9.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> y = [0, 1, 0, 0, 2, 0]
    >>> result = klimb.infer(klimb.latents.Weights(np.ones((6, 1)), cov=9.0), klimb.sites.Poisson(), y)
    >>> exact = result.corrected
    >>> bool(exact.sd[0] > np.sqrt(result.posterior.covariance()[0, 0])), bool(exact.skewness[0] < -0.3)
    (True, True)
    >>> low, high = exact.interval(0.9)
    >>> bool(low[0] < exact.mean[0] < high[0])
    True
    """

    kind: str  # "weight" or "f"
    mean: Array
    sd: Array
    skewness: Array
    method: str  # "importance", "second order" or "particles"
    log_evidence: float
    error: float = float("nan")  # largest standard error of a mean, in sd, or of an sd, where particles were drawn

    @property
    def _bent(self) -> Array:
        return np.clip(self.skewness, -MOST_SKEWED, MOST_SKEWED)

    def quantile(self, p: Any) -> Array:
        """The p-quantile of every marginal; for several p, one row each."""
        levels = as_float(p, "p")
        bad = (levels <= 0.0) | (levels >= 1.0)
        if bad.any():
            raise InputError("p must lie strictly between 0 and 1", f"{levels[bad].flat[0]:g}", "The median is 0.5.")
        flat = np.array([standard_quantile(float(level), self._bent) for level in np.atleast_1d(levels).ravel()])
        found = self.mean + self.sd * flat
        return np.asarray(found[0] if levels.ndim == 0 else found)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Central interval of every marginal."""
        require(0.0 < level < 1.0, "level must lie strictly between 0 and 1", level, "0.9 is a 90% interval.")
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    def cdf(self, x: Any) -> Array:
        """P(marginal <= x), one x per marginal (or one for all)."""
        return standard_cdf((as_float(x, "x") - self.mean) / self.sd, self._bent)

    def density(self, index: int, x: Any) -> Array:
        """Density of one marginal at the points ``x``."""
        points = (as_float(x, "x") - self.mean[index]) / self.sd[index]
        return np.asarray(_standard_density(points, float(self._bent[index])) / self.sd[index])


def _shape(skewness: Array | float) -> Any:
    return 4.0 / np.square(skewness)


def standard_quantile(p: float, skewness: Array) -> Array:
    """Quantile of the distribution with mean 0, sd 1 and the given skewness."""
    u = float(ndtri(p))
    nearly = u + skewness * (u * u - 1.0) / 6.0  # Cornish and Fisher's first term
    skewed = np.abs(skewness) >= GAUSSIAN
    if not skewed.any():
        return nearly
    safe = np.where(skewed, skewness, 1.0)
    shape = _shape(safe)
    lower = np.where(safe > 0, gammaincinv(shape, p), gammainccinv(shape, p))
    return np.asarray(np.where(skewed, (lower - shape) * safe / 2.0, nearly))


def skewed_pieces(skewness: Array) -> tuple[Array, Array, Array]:
    """Shares, and means and variances by piece, of the same distribution cut at fixed quantiles."""
    size = np.clip(np.abs(skewness), LEAST_SKEWED, MOST_SKEWED)
    shape = _shape(size)
    ends = gammaincinv(shape, np.append(0.0, np.cumsum(SHARES)[:-1])[:, None])
    first, second = (np.diff(gammainc(shape + k, ends), axis=0, append=1.0) for k in (1.0, 2.0))
    first, second = (power / SHARES[:, None] for power in (shape * first, shape * (shape + 1.0) * second))
    means, variances = (first - shape) * size / 2.0, (second - first**2) * size**2 / 4.0
    turned = skewness < 0.0
    return SHARES, np.where(turned, -means[::-1], means), np.where(turned, variances[::-1], variances)


def standard_cdf(x: Array, skewness: Array) -> Array:
    """Distribution function of the same."""
    skewed = np.abs(skewness) >= GAUSSIAN
    safe = np.where(skewed, skewness, 1.0)
    shape = _shape(safe)
    place = np.maximum(shape + 2.0 * x / safe, 0.0)
    gamma = np.where(safe > 0, gammainc(shape, place), gammaincc(shape, place))
    normal = ndtr(x) - skewness * (x * x - 1.0) * np.exp(-0.5 * x * x) / (6.0 * np.sqrt(2.0 * np.pi))
    return np.asarray(np.where(skewed, gamma, np.clip(normal, 0.0, 1.0)))


def _standard_density(x: Array, skewness: float) -> Array:
    if abs(skewness) < GAUSSIAN:
        normal = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
        return np.asarray(normal * (1.0 + skewness * (x**3 - 3.0 * x) / 6.0))
    shape = float(_shape(skewness))
    place = shape + 2.0 * x / skewness
    inside = np.maximum(place, 1e-300)
    log_density = (shape - 1.0) * np.log(inside) - inside - gammaln(shape) + np.log(2.0 / abs(skewness))
    return np.where(place > 0, np.exp(log_density), 0.0)
