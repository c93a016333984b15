"""The parameters beside the coefficients: standard deviations, correlations, lengthscales, dispersions, cut points.

Each is one entry of a vector theta without limits: the log of a positive one, atanh of a (partial) correlation, the
first cut point as it is and the logs of the gaps to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.special import betaln, log_expit, log_ndtr

from klimb.numerics.arrays import Array
from klimb.priors import LKJ, Dirichlet, Fixed, PositivePrior, Prior

Shape = Literal["positive", "correlation", "cut"]
LIMITS = {"positive": (-16.0, 14.0), "correlation": (-6.0, 6.0), "cut": (-40.0, 40.0)}


@final
@dataclass(frozen=True)
class Hyper:
    """One parameter: its name, its kind, its prior, where a search starts (in theta) and the unit of its value."""

    name: str
    shape: Shape
    prior: Prior
    start: float
    unit: float = 1.0  # of a positive one: limits of a search are in this unit
    least: float = 0.0  # of a positive one: a search stays above
    depth: float = 0.0  # of a correlation: (k - 2 - column) / 2, which LKJ adds to eta

    @property
    def free(self) -> bool:
        return not isinstance(self.prior, Fixed)

    @property
    def limits(self) -> tuple[float, float]:
        low, high = LIMITS[self.shape]
        shift = math.log(self.unit) if self.shape == "positive" else 0.0
        return max(low + shift, math.log(self.least) if self.least > 0 else -math.inf), high + shift

    def log_prior(self, theta: float) -> tuple[float, float]:
        """Log density per unit of theta, and its slope. Cut points have theirs together: `cut_prior`."""
        if isinstance(self.prior, PositivePrior):
            value = math.exp(theta)
            return self.prior.log_density(value) + theta, self.prior.slope(value) + 1.0
        if isinstance(self.prior, LKJ):
            # A partial correlation r has density (1 - r^2)^(b - 1), b = eta + depth; dr = (1 - r^2) dtheta.
            b = self.prior.eta + self.depth
            constant = (2.0 * b - 1.0) * math.log(2.0) + float(betaln(b, b))
            return -2.0 * b * _log_cosh(theta) - constant, -2.0 * b * math.tanh(theta)
        return 0.0, 0.0


def _log_cosh(x: float) -> float:
    return abs(x) + math.log1p(math.exp(-2.0 * abs(x))) - math.log(2.0)


def correlation_root(theta: Array, k: int) -> tuple[Array, Array]:
    """Lower L with unit rows, L L' the correlation matrix, from atanh of partial correlations; and dL/dtheta.

    Row i holds partial correlations with the columns before it: L_ij = r_ij prod_{c < j} sqrt(1 - r_ic^2). The
    derivatives are (number of theta, k, k).
    """
    L, d = np.eye(k), np.zeros((len(theta), k, k))
    if not len(theta):  # independent
        return L, d
    place = 0
    for i in range(1, k):
        left = 1.0
        for j in range(i):
            r = math.tanh(theta[place + j])
            L[i, j] = r * left
            left /= math.cosh(theta[place + j])  # sqrt(1 - tanh^2)
        L[i, i] = left
        for c in range(i):
            r = math.tanh(theta[place + c])
            left_c = math.prod(1.0 / math.cosh(theta[place + j]) for j in range(c))
            d[place + c, i, c] = left_c * (1.0 - r * r)
            d[place + c, i, c + 1 : i + 1] = -r * L[i, c + 1 : i + 1]
        place += i
    return L, d


def cutpoints(theta: Array) -> Array:
    """Rising cut points from the first one and the logs of the gaps."""
    with np.errstate(over="ignore"):
        return np.asarray(theta[0] + np.concatenate([[0.0], np.cumsum(np.exp(theta[1:]))]))


def cut_theta(cuts: Array) -> Array:
    """The inverse of `cutpoints`."""
    return np.concatenate([cuts[:1], np.log(np.diff(cuts))])


def cut_prior(theta: Array, prior: Dirichlet, link: str) -> tuple[float, Array]:
    """Log density of the cut points, per unit of theta, whose level probabilities at f = 0 are Dirichlet; gradient."""
    c, a = cutpoints(theta), prior.concentration
    if link == "probit":
        log_density, score = -0.5 * c**2 - 0.5 * math.log(2.0 * math.pi), -c
        log_p = _log_cells(c, log_ndtr)
    else:
        log_density, score = log_expit(c) + log_expit(-c), -np.tanh(0.5 * c)
        log_p = _log_cells(c, log_expit)
    K = len(c) + 1
    value = (a - 1.0) * log_p.sum() + log_density.sum() + theta[1:].sum()
    value += math.lgamma(K * a) - K * math.lgamma(a)
    # d log P_k / d c_k = F'(c_k) / P_k and so on.
    with np.errstate(over="ignore"):
        d_c = score + (a - 1.0) * (np.exp(log_density - log_p[:-1]) - np.exp(log_density - log_p[1:]))
    after = np.cumsum(d_c[::-1])[::-1]  # every later cut point moves with a gap
    gradient = np.concatenate([after[:1], after[1:] * np.exp(theta[1:]) + 1.0])
    return float(value), gradient


def _log_cells(c: Array, log_cdf: object) -> Array:
    """log[F(c_k) - F(c_{k-1})], with F symmetric."""
    f = log_cdf
    assert callable(f)
    low, high = f(c[:-1]), f(c[1:])
    upper_low, upper_high = f(-c[:-1]), f(-c[1:])
    left = c[1:] + c[:-1] < 0.0  # subtract in the tail that is smaller
    big, small = np.where(left, high, upper_low), np.where(left, low, upper_high)
    with np.errstate(divide="ignore"):
        inner = big + np.log(-np.expm1(np.minimum(small - big, -1e-300)))
    return np.concatenate([f(c[:1]), inner, f(-c[-1:])])
