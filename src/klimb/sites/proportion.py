"""The site of proportions strictly between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.quadrature import SPAN, Index, Landscape, Triple, gaussian_expectation
from klimb.sites.base import Expectation, Site, clean_data, positive_parameter


@dataclass(frozen=True, eq=False)
class Beta(Site):
    """y ~ Beta(precision mu, precision (1 - mu)) with mean mu = sigmoid(f). Not log-concave in f.

    >>> e = Beta(precision=2.0).expect([0.3], m=[0.0], v=[0.0])  # uniform
    >>> print(np.abs(e.value).round(12))
    [0.]
    """

    precision: Array | float

    log_concave = False
    gamma_trend = "mixed"
    discrete = False
    support = "(0, 1)"
    per_datum = ("precision",)

    def __post_init__(self) -> None:
        positive_parameter(self, "precision", "The variance of y given f is mu (1 - mu) / (1 + precision).")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: (x > 0.0) & (x < 1.0), "Use Binomial for counts, or shrink exact 0 and 1 inwards.")

    def constant(self, y: Array) -> Array:
        return -np.log(y) - np.log1p(-y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        def integrands(f: Array, rows: Index) -> Triple:
            e = self.rows(rows).point(y[rows], f)
            return e.value, e.alpha, e.gamma

        # The singularities of the gamma functions and of the sigmoid lie on Im f = +-pi, over |Re f| < log(1 + precision).
        edge = np.log1p(self.precision) + np.zeros_like(m)
        s, size = np.sqrt(v), np.abs(m)
        far = np.maximum(size - edge, 0.0)
        # The curvature falls like exp(-|f|), which moves its mass from m towards the centre.
        inward = np.where(v < size, v + SPAN * s, np.sqrt(m * m + SPAN * SPAN * v))
        side = np.where(m > 0.0, 1.0, -1.0)
        ends = (m + side * SPAN * s, m - side * inward)
        landscape = Landscape(offset=far, height=np.full_like(m, np.pi), tilt=np.ones_like(m),
                              low=np.minimum(*ends), high=np.maximum(*ends), centre=np.zeros_like(m),
                              step=lambda f, rows: 0.75 * np.hypot(np.maximum(np.abs(f) - edge[rows], 0.0), np.pi),
                              by_parts=size < 3.0 * s)
        return Expectation(*gaussian_expectation(integrands, m, v, landscape))

    def point(self, y: Array, f: Array) -> Expectation:
        precision = np.asarray(self.precision)
        logit = np.log(y) - np.log1p(-y)
        with np.errstate(under="ignore"):
            e = np.exp(-np.abs(f))
            larger = 1.0 / (1.0 + e)
            smaller = e * larger
            mu, nu = np.where(f < 0.0, smaller, larger), np.where(f < 0.0, larger, smaller)
            p, q, w = precision * mu, precision * nu, smaller * larger
            # log gamma(p) = log gamma(1 + p) - log p, and so on: no poles at p -> 0.
            log_pq = 2.0 * np.log(precision) - np.abs(f) - 2.0 * np.log1p(e)
            value = (gammaln(precision) - gammaln(1.0 + p) - gammaln(1.0 + q) + log_pq + p * np.log(y) + q * np.log1p(-y))
            pull = digamma(1.0 + q) - digamma(1.0 + p) + logit
            tilt, spread = nu - mu, precision * w
            slope = tilt + spread * pull
            curvature = 2.0 * w - spread * tilt * pull + spread * spread * (polygamma(1, 1.0 + p) + polygamma(1, 1.0 + q))
        return Expectation(value, -slope, curvature)

    def start(self, y: Array) -> tuple[Array, Array]:
        # Mode near logit(y), moderated towards 0 for extreme y, with the expected information there.
        middle = np.clip(np.log(y) - np.log1p(-y), -6.0, 6.0)
        e = self.point(y, middle)
        gamma = np.maximum(e.gamma, 0.0)
        return gamma * middle - e.alpha, gamma
