"""What can be said of a model before it is fitted, and of an answer without trusting the loop.

- Matrices A <= V* <= B in the Loewner order around the best covariance for a given mean: [S] Eq. (10)-(14).
- The largest step of the proximal rule that theory calls safe: [A] Eq. (8) and beta < alpha / L.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.problem import Problem
from klimb.latents.base import Latent, Posterior
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

POINTS, PER_DECADE = 17, 12  # values of v at which gamma is looked at inside an interval, evenly in log v
LEAST, MOST = 1e-6, 1e6  # the variances that are looked at where nothing is known, relative to the prior's
WIDE = 40.0  # |m| up to which a site's second derivatives are searched
DIFFERENCE = 1e-5  # relative step for derivatives


@dataclass(frozen=True, eq=False)
class Certificate:
    """Two-sided bounds on the best V for a given mean: ``lower`` <= diag V* <= ``upper``, and the matrices.

    ``gap`` is the largest relative distance of the two. [S] Eq. (13).
    """

    lower: Array
    upper: Array
    gap: float
    n_iter: int
    latent: Latent = field(repr=False)
    gamma_lower: Array = field(repr=False)  # of the smaller matrix: the larger precisions
    gamma_upper: Array = field(repr=False)

    def matrices(self) -> tuple[Array, Array]:
        """A and B with A <= V* <= B: covariances of what ``posterior.covariance()`` is the covariance of."""
        zero = np.zeros_like(self.lower)
        return tuple(Posterior(self.latent, zero, gamma, zero, v, 0.0).covariance()  # type: ignore[return-value]
                     for gamma, v in ((self.gamma_lower, self.lower), (self.gamma_upper, self.upper)))


def variance_certificate(problem: Problem, m: Array, tol: float = 1e-8, max_iter: int = 100) -> Certificate:
    """A <= V* <= B at the mean ``m``, from what gamma can be while v lies between the last two bounds.

    Larger gamma makes a smaller V: V(high gamma) <= V* <= V(low gamma), which narrows the interval of v, and so on. For
    a gamma that rises with v this is T^odd(Sigma) <= V* <= T^even(Sigma) ([S] condition 2a); for one that falls,
    Sigma >= T(Sigma) >= T^2(Sigma) ... >= V* and the same from below (2b); for others gamma is bounded over the
    interval. Single gamma may be negative, as long as the lowest of all together leave a proper posterior: the
    aggregate condition of [S] section 3.1.
    """
    site, latent = problem.site, problem.latent
    if not (site.separable and site.uses_variance):
        raise InputError("a certificate needs a site with a variance and one latent value per datum",
                         type(site).__name__, "Use klimb.infer with a site such as Poisson or Logistic.")
    low, high = np.array(latent.slack), latent.prior_variances + latent.slack
    if not site.log_concave:
        low, high = _first_interval(problem, m)
    gammas, done = (np.zeros(latent.n_sites), np.zeros(latent.n_sites)), 0
    for done in range(1, max_iter + 1):
        least, most = _gamma_range(problem, m, low, high)
        before = float(np.max((high - low) / np.maximum(high, 1e-300)))
        above = problem.factor(least).variances() + latent.slack
        below = np.array(latent.slack)
        if np.isfinite(most).all():  # exp(m + v/2) overflows for a wide prior: T(V) is zero to rounding
            below = problem.factor(most).variances() + latent.slack
        gammas = most, least
        low, high = np.maximum(low, below), np.minimum(high, above)
        gap = float(np.max((high - low) / np.maximum(high, 1e-300)))
        if gap <= tol or (done > 2 and before - gap <= 1e-6 * tol):
            break
    return Certificate(low, high, gap, done, latent, *gammas)


def _first_interval(problem: Problem, m: Array) -> tuple[Array, Array]:
    """All v that q may have, where gamma may be negative: the prior with the lowest and the highest gamma there are."""
    prior, slack = problem.latent.prior_variances, problem.latent.slack
    low, high = LEAST * (prior + slack), MOST * (prior + slack)
    least, most = _gamma_range(problem, m, low, high)
    try:
        high = problem.factor(np.minimum(least, 0.0)).variances() + slack
        low = problem.factor(np.maximum(most, 0.0)).variances() + slack
    except NotPositiveDefiniteError:
        raise InputError("a certificate needs curvatures that leave q proper even where all are lowest ([S] section"
                         " 3.1)", type(problem.site).__name__, "Narrow the prior, or use a log-concave site.") from None
    return low, high


def _gamma_range(problem: Problem, m: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The least and the largest gamma of every site while its variance lies in [low, high].

    Ends are enough where gamma is monotone. Elsewhere it is looked at between them, and what neighbours leave open is
    allowed for by half their largest second difference, four times what a parabola through three points can hide.
    """
    site = problem.site
    monotone = site.gamma_trend in ("rising", "falling", "constant")
    floor = np.maximum(low, LEAST / MOST * np.maximum(high, 1e-300))
    decades = float(np.log10(high / floor).max())
    share = np.linspace(0.0, 1.0, 2 if monotone else max(POINTS, int(PER_DECADE * decades)))
    with np.errstate(over="ignore"):
        values = np.array([problem.oracle(m, v).gamma for v in (floor * (high / floor) ** t for t in share)])
        if monotone and site.gamma_trend != "constant":  # down to v = low, where the logarithm does not reach
            values = np.array([problem.oracle(m, np.maximum(low, 1e-300)).gamma, values[-1]])
    with np.errstate(invalid="ignore"):
        open_ = 0.0 if monotone else 0.5 * np.abs(np.diff(values, 2, axis=0)).max(axis=0)
    least, most = values.min(axis=0) - open_, values.max(axis=0) + open_
    if site.log_concave:
        least = np.maximum(least, 0.0)
    return np.asarray(least), np.asarray(most)


class SafeStep(NamedTuple):
    """Constants of [A] section 4: ``lipschitz`` of grad f (infinite where there is none), ``alpha``, alpha / L."""

    lipschitz: float
    alpha: float
    beta: float

    @property
    def exists(self) -> bool:
        """Whether grad f is Lipschitz, so that some fixed step is safe."""
        return bool(np.isfinite(self.lipschitz))


def safe_step(site: Site, y: Any, variances: tuple[float, float]) -> SafeStep:
    """The largest beta that [A] section 4 calls safe for `klimb.steps.Proximal` on one datum each of ``y``.

    ``variances`` is the range in which the variance at the site stays; for a log-concave site it ends at the prior's.
    ``lipschitz`` is infinite, and ``beta`` 0, where the gradient of the expected log likelihood is not Lipschitz there,
    as for counts with a log link: then no fixed step is safe.

    >>> import klimb
    >>> logistic, poisson = (klimb.methods.safe_step(site, [1], (0.1, 2.0))
    ...                      for site in (klimb.sites.Logistic(), klimb.sites.Poisson()))
    >>> print(f"{logistic.lipschitz:.3f} {logistic.beta:.3f}", poisson.exists)
    0.244 0.512 False
    """
    # The Hessian of f(m, v) = E log phi is -[[gamma, gamma_m / 2], [gamma_m / 2, gamma_v / 2]]; L is its largest norm
    # on a grid of m up to 40 either way, and infinite where that still grows there. The left side of [A] Eq. (8) is
    # dm^2 / v_k + dv^2 / (2 v_k v_(k+1)), so that alpha = min(1 / high, 1 / (2 high^2)).
    (low, high), y = variances, site.validate(y)
    require(0 < low <= high, "variances must be a range 0 < low <= high", variances, "Such as (0.01, 4.0).")
    centre = np.sinh(np.linspace(0.0, np.arcsinh(WIDE), 161))
    means = np.concatenate([-centre[:0:-1], centre])
    worst, edge, inside = 0.0, 0.0, 0.0
    for v in np.geomspace(low, high, POINTS):
        m, data = np.tile(means, len(y)), np.repeat(y, len(means))
        whole = np.full(len(m), v)
        e, ahead = site.oracle(data, m, whole), site.oracle(data, m, whole * (1.0 + DIFFERENCE))
        twist = 2.0 * (ahead.alpha - e.alpha) / (v * DIFFERENCE)  # gamma_m, as d alpha/dv = gamma_m / 2
        bend = (ahead.gamma - e.gamma) / (v * DIFFERENCE)
        centre_, apart = 0.5 * (e.gamma + 0.5 * bend), 0.5 * (e.gamma - 0.5 * bend)
        norm = (np.abs(centre_) + np.hypot(apart, 0.5 * twist)).reshape(len(y), -1).max(axis=0)
        worst, edge = max(worst, float(norm.max())), max(edge, float(norm[[0, -1]].max()))
        inside = max(inside, float(norm[np.abs(means) <= 0.5 * WIDE].max()))
    lipschitz = np.inf if edge > 1.01 * inside else worst
    alpha = min(1.0 / high, 0.5 / high**2)
    return SafeStep(float(lipschitz), alpha, alpha / lipschitz if np.isfinite(lipschitz) else 0.0)
