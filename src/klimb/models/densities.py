"""Densities of f at single rows, from weighted draws of the weights and the slopes of their log posterior there.

For f = x'w and a direction d with x'd = 1 the slope of log p(f | y) is the mean of d' grad log p(w | y) over the draws
that have this f (Stein). So one density after another is that of a Gaussian, corrected by means of what slopes differ
from its own, over bins of f. That has far less noise than shares of draws: tails need as few draws as there are
differences to see, and weights of draws count within a bin alone. d = M^-1 x / x'M^-1 x with M the second moments of
the gradient makes the noise least: the variance of the slopes is that of their means, which is given, and the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klimb.numerics.arrays import Array, Index

NODES = 241  # of f
DRAWS, MOST_BINS = 64, 64  # of a bin on average, and bins for means of slopes
WIDEST, BEYOND = 4.0, 3.0  # sds that the density reaches at least, and beyond the draws
# Shares of pieces of f that stand for it where y itself is predicted: chances rest on far tails.
SHARES = np.array([1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.04, 0.1, 0.2])
SHARES = np.concatenate([SHARES, [1.0 - 2.0 * SHARES.sum()], SHARES[::-1]])
FEWEST, MANY = 2.0, 6.0  # effective draws of the last bin that is believed; where values have no upper end
UNSURE = 0.06  # standard error of an sd, relative, from which it is left open


@dataclass(frozen=True, eq=False)
class Densities:
    """p(f | y) of each row by ``mass`` (G, n) at ``f`` (G, n), as far as draws tell."""

    f: Array
    mass: Array
    ends: tuple[Array, Array]  # of the draws
    known: tuple[Array, Array]  # where these are few
    noise: Array  # (bins, n): variances of the means of slopes, in sds of f
    unit: Array  # sd of f under the draws
    map: tuple[float, float]  # shift and slope of the mean's predictor
    likelihood: Any

    @classmethod
    def of(cls, f: Array, slopes: Array, shares: Array, site: Any, likelihood: Any) -> Densities:
        """From f (S, n) at the draws, x'M^-1 grad log p there, and their ``shares``."""
        centre = shares @ f
        unit = np.sqrt(np.maximum(shares @ (f - centre) ** 2, 1e-300))
        z = (f - centre) / unit
        more = slopes * (unit / np.maximum(shares @ slopes**2, 1e-300)) + z
        low, high = z.min(axis=0), z.max(axis=0)
        bins, n = min(len(z) // DRAWS + 2, MOST_BINS), f.shape[1]
        place = _bins(z, low, high, bins)

        def summed(values: Array) -> Array:
            return np.asarray(np.bincount(place, values.ravel(), bins * n).reshape(bins, n), dtype=np.float64)

        share = np.broadcast_to(shares[:, None], f.shape)
        total, squares = summed(share), summed(share**2)
        over = np.maximum(total, 1e-300)
        at, mean = summed(share * z) / over, summed(share * more) / over
        spread = summed(share * more**2) / over - mean**2
        effective = np.where(squares > 0.0, total / np.maximum(squares, 1e-300) * total, 1.0)
        bounded = np.isfinite(likelihood.link.inverse(np.array([-np.inf, np.inf]))).all()
        many = effective >= (FEWEST if bounded else MANY)
        width = (high - low) / bins
        ends = low + width * np.argmax(many, axis=0), high - width * np.argmax(many[::-1], axis=0)
        noise = np.maximum(spread, (total * spread).sum(axis=0)) / effective
        nodes = np.linspace(np.minimum(low, -WIDEST) - BEYOND, np.maximum(high, WIDEST) + BEYOND, NODES)
        slope = np.empty_like(nodes)
        for row in range(n):
            known = total[:, row] > 0.0
            slope[:, row] = np.interp(nodes[:, row], at[known, row], mean[known, row])
        slope -= nodes
        logs = np.cumsum(slope, axis=0) - 0.5 * slope  # of the trapezoidal rule, up to a constant
        logs *= nodes[1] - nodes[0]
        mass = np.exp(logs - logs.max(axis=0))
        mass /= mass.sum(axis=0)
        return cls(centre + unit * nodes, mass, (centre + unit * low, centre + unit * high),
                   (centre + unit * ends[0], centre + unit * ends[1]), noise, unit, site.mean_predictor, likelihood)

    def moments(self) -> tuple[Array, Array]:
        """Mean and variance of f."""
        return self._moments(self.f)

    def _moments(self, values: Array) -> tuple[Array, Array]:
        mean = (self.mass * values).sum(axis=0)
        return mean, (self.mass * (values - mean) ** 2).sum(axis=0)

    @cached_property
    def _below(self) -> Array:
        return np.asarray(np.cumsum(self.mass, axis=0) - 0.5 * self.mass)

    def interval(self, tail: float) -> list[Array]:
        """The ends beyond which lies ``tail`` on either side."""
        pairs = list(zip(self._below.T, self.f.T, strict=True))
        return [np.array([np.interp(p, *own) for own in pairs]) for p in (tail, 1.0 - tail)]

    def pieces(self) -> tuple[Array, Array, Array]:
        """Shares, and means and variances by piece (pieces, n), of the same densities cut at fixed quantiles."""
        away, upto = (self.f - (centre := self.moments()[0])) / self.unit, np.cumsum(SHARES)[:-1]
        sums = [np.cumsum(self.mass * away**k, axis=0) for k in range(3)]
        each = np.empty((3, len(SHARES), self.f.shape[1]))
        for row, below in enumerate(sums[0].T):
            for k in range(3):
                inner = np.interp(upto, below, sums[k][:, row])
                each[k, :, row] = np.diff(inner, prepend=0.0, append=sums[k][-1, row])
        means = each[1] / SHARES[:, None]
        variances = np.maximum(each[2] / SHARES[:, None] - means**2, 1e-12)
        return SHARES, centre + self.unit * means, self.unit**2 * variances

    def mean_columns(self, tail: float) -> dict[str, Array]:
        """E[y | f]: its mean, its sd where draws tell it (NaN elsewhere), and the transformed quantiles of f."""
        (shift, slope), inverse = self.map, self.likelihood.link.inverse
        with np.errstate(over="ignore", invalid="ignore"):
            values = inverse(shift + slope * self.f)
            mean, variance = self._moments(values)
            known = self._known(self.mass * (values - mean) ** 2)
        ends = np.sort([inverse(shift + slope * end) for end in self.interval(tail)], axis=0)
        return {"mean": mean, "sd": np.where(known, np.sqrt(variance), np.nan), "lower": ends[0], "upper": ends[1]}

    def _known(self, parts: Array) -> Array:
        """Whether a sum of ``parts`` (G, n), log p times what is known, rests where draws are, with little noise.

        The slope between two nodes moves the share of all parts beyond it, less that of all mass beyond it.
        """
        upto = np.cumsum(parts, axis=0)
        upto /= np.maximum(upto[-1], 1e-300)
        n, low, high = parts.shape[1], *self.ends
        quarter, last = (self.f[(upto < q).sum(axis=0).clip(max=NODES - 1), np.arange(n)] for q in (0.25, 0.75))
        moved = (np.cumsum(self.mass, axis=0) - upto) * ((self.f[1] - self.f[0]) / self.unit)
        place = _bins(self.f, low, high, bins := len(self.noise))
        each = np.bincount(place, moved.ravel(), bins * n).reshape(bins, n)
        error = 0.5 * np.sqrt((each**2 * self.noise).sum(axis=0))
        return np.asarray((quarter >= self.known[0]) & (last <= self.known[1]) & (error < UNSURE))


def _bins(values: Array, low: Array, high: Array, count: int) -> Index:
    """Numbers of the bins of values (S, n), of ``count`` for each of n columns, flat."""
    place = (values - low) * (count / np.maximum(high - low, 1e-300))
    n = values.shape[1]
    return np.asarray(np.clip(place, 0, count - 1).astype(np.intp) * n + np.arange(n)).ravel()
