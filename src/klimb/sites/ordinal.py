"""The site of ordered levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.normal import interval_moments, log_interval_derivatives, log_ndtr_derivatives, probit_moments
from klimb.numerics.softplus import folded_moments, folded_point, unfold
from klimb.numerics.tilted import Tilted
from klimb.sites.base import Expectation, Site, clean_data


@final
@dataclass(frozen=True, eq=False)
class Ordinal(Site):
    """Levels 0..K-1 cut from the real line by K-1 rising ``cutpoints``: P(y) = F(c_{y+1} - f) - F(c_y - f).

    F is the logistic or the normal distribution function (``link``), c_0 = -inf and c_K = inf.

    >>> site = Ordinal(cutpoints=[-1.0, 1.0])
    >>> print(np.exp(site.log_density([0, 1, 2], [0.0, 0.0, 0.0])).round(6))
    [0.268941 0.462117 0.268941]
    """

    cutpoints: Array
    link: Literal["logit", "probit"] = "logit"

    log_concave = True
    gamma_trend = "mixed"
    discrete = True
    support = "{0, 1, ..., K-1} for K-1 cutpoints"
    response = "classes"

    def __post_init__(self) -> None:
        cut = np.atleast_1d(as_float(self.cutpoints, "cutpoints")).copy()
        if cut.ndim != 1 or cut.size == 0:
            raise InputError("Ordinal needs a list of at least one cutpoint", f"shape {cut.shape}",
                             "K levels have K-1 cutpoints.")
        flat = np.flatnonzero(np.diff(cut) <= 0.0)
        if flat.size:
            raise InputError("Ordinal needs strictly rising cutpoints",
                             f"{cut[flat[0]]} and {cut[flat[0] + 1]} at indices {flat[0]} and {flat[0] + 1}",
                             "Sort the cutpoints, and merge levels that have no width.")
        if self.link not in ("logit", "probit"):
            raise InputError('Ordinal needs link = "logit" or "probit"', repr(self.link), "Choose one of the two.")
        cut.setflags(write=False)
        object.__setattr__(self, "cutpoints", cut)

    @property
    def n_levels(self) -> int:
        """The number K of levels."""
        return int(self.cutpoints.size + 1)

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: (x >= 0.0) & (x < self.n_levels) & (x == np.floor(x)),
                          f"With {self.cutpoints.size} cutpoints the levels are 0 to {self.cutpoints.size}; recode y.")

    def edges(self, y: Array) -> tuple[Array, Array]:
        """The lower and the upper edge of the cell of each clean ``y``, infinite at the ends."""
        padded = np.concatenate(([-np.inf], self.cutpoints, [np.inf]))
        level = y.astype(np.intp)
        return padded[level], padded[level + 1]

    def constant(self, y: Array) -> Array:
        if self.link == "probit":
            return np.zeros(())
        low, high = self.edges(y)
        # log(1 - e^-width), which is 0 at the ends, where the width is infinite.
        width = high - low
        wide = width > 0.7
        return np.where(wide, np.log1p(-np.exp(-np.maximum(width, 0.7))), np.log(-np.expm1(-np.minimum(width, 0.7))))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._split(y, m, v)

    def point(self, y: Array, f: Array) -> Expectation:
        level = np.broadcast_to(y, f.shape).ravel()
        e = self._split(level, f.ravel(), None)
        return Expectation(e.value.reshape(f.shape), e.alpha.reshape(f.shape), e.gamma.reshape(f.shape))

    def _split(self, y: Array, m: Array, v: Array | None) -> Expectation:
        """End cells and inner cells apart, under N(m, v), or at m where ``v`` is None."""
        e = Expectation(np.zeros_like(m), np.zeros_like(m), np.zeros_like(m))
        low, high = self.edges(y)
        if self.link == "logit":  # log p = log(1 - e^-(width)) - softplus(f - high) - softplus(low - f)
            for edge, sign in ((high, 1.0), (low, -1.0)):
                rows = np.flatnonzero(np.isfinite(edge))
                x = sign * (m[rows] - edge[rows])
                value, slope, curvature = folded_point(x) if v is None else folded_moments(x, v[rows])
                softplus, sigmoid = unfold(x, value, slope)
                e.value[rows] -= softplus
                e.alpha[rows] += sign * sigmoid
                e.gamma[rows] += curvature
            return e
        for edge, other, sign in ((high, low, -1.0), (low, high, 1.0)):
            rows = np.flatnonzero(np.isinf(other))
            x = sign * (m[rows] - edge[rows])
            value, alpha, gamma = _log_ndtr_point(x) if v is None else probit_moments(x, v[rows])
            e.value[rows], e.alpha[rows], e.gamma[rows] = value, sign * alpha, gamma
        rows = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
        if v is None:
            value, slope, gamma = log_interval_derivatives(low[rows] - m[rows], high[rows] - m[rows])
            e.value[rows], e.alpha[rows], e.gamma[rows] = value, -slope, gamma
        else:
            e.value[rows], e.alpha[rows], e.gamma[rows] = interval_moments(low[rows], high[rows], m[rows], v[rows])
        return e

    def start(self, y: Array) -> tuple[Array, Array]:
        # The middle of an inner cell, one unit beyond the last cutpoint for an end cell, and the curvature there.
        low, high = self.edges(y)
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isinf(low), high - 1.0, np.where(np.isinf(high), low + 1.0, 0.5 * (low + high)))
        e = self.point(y, middle)
        return e.gamma * middle - e.alpha, e.gamma

    def labels(self) -> Array:
        return np.arange(self.n_levels, dtype=np.float64)

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        if self.link == "logit" or np.any(np.asarray(power) != 1.0):
            return super().tilted(y, m, v, power)
        # A normal latent under a normal link: the cell of a normal variable with variance 1 + v.
        root = np.sqrt(1.0 + v)
        low, high = self.edges(y)
        low, high = (low - m) / root, (high - m) / root
        log_z, slope, bend = np.zeros_like(m), np.zeros_like(m), np.zeros_like(m)
        for rows, x, sign in ((np.flatnonzero(np.isinf(low)), high, -1.0), (np.flatnonzero(np.isinf(high)), -low, 1.0)):
            log_z[rows], ratio, bend[rows] = log_ndtr_derivatives(x[rows])
            slope[rows] = sign * ratio
        rows = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
        log_z[rows], slope[rows], bend[rows] = log_interval_derivatives(low[rows], high[rows])
        return Tilted(log_z, slope / root, -bend / (1.0 + v))


def _log_ndtr_point(x: Array) -> tuple[Array, Array, Array]:
    value, ratio, curvature = log_ndtr_derivatives(x)
    return value, -ratio, curvature
