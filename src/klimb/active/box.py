"""A score over a box of marginals (m, log v): a spline of its logarithm, and tables of what the spline does not exceed.

Between its knots a B-spline lies within the range of the coefficients that bear on it, and halving the distance of
knots twice makes that range narrow: a table of upper bounds, one look-up a candidate. Where marginals have moved since
they were computed, but not farther than a `Drift` says, the largest bound within reach takes the place of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from klimb.active.marginals import Drift
from klimb.active.pool import Mask
from klimb.active.scores import Candidates, Score
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

GRID = 48  # points in either direction
HALVINGS = 2  # of the distance of knots, for the table of bounds
ROUNDING = 1e-9  # by which a bound is raised, so that rounding does not break it
MARGIN = 0.25  # by which the box is wider than the candidates, so that the next ones fit it too
WIDE = 2  # cells in m that are one where marginals drift
SMALLEST = 1e-280


@final
@dataclass(frozen=True, eq=False)
class Box:
    """The spline of log ``score`` between ``low`` and ``high``, both (m, log v)."""

    score: Score
    site: Site
    low: tuple[float, float]
    high: tuple[float, float]
    coefficients: Array  # of a cubic spline, GRID x GRID

    @cached_property
    def upper(self) -> Array:
        """Bounds of the spline, one per cell."""
        return _upper_bounds(self.coefficients)

    def at(self, m: Array, log_v: Array) -> Array:
        """The spline at some points."""
        from scipy.ndimage import map_coordinates

        places = self._places(m, log_v, GRID - 1)
        return np.asarray(map_coordinates(self.coefficients, places, order=3, mode="mirror", prefilter=False))

    def bounds(self, m: Array, log_v: Array) -> Array:
        """Numbers that the spline does not exceed, by one look-up each."""
        return self._look_up(self.upper, m, log_v)

    def bounds_up_to(self, m: Array, log_v: Array) -> Array:
        """Numbers that it does not exceed for these and all smaller variances; infinite outside the box."""
        inside = self.holds(m, log_v)
        found = np.full(m.size, np.inf)
        found[inside] = self._look_up(self._upper_below, m[inside], log_v[inside])
        return found

    @cached_property
    def _upper_below(self) -> Array:
        return np.asarray(np.maximum.accumulate(self.upper, axis=1))

    def _look_up(self, table: Array, m: Array, log_v: Array) -> Array:
        cells = len(table)
        i, j = (np.minimum(place.astype(np.intp), cells - 1) for place in self._places(m, log_v, cells))
        return np.asarray(table.ravel().take(i * cells + j))

    def _places(self, m: Array, log_v: Array, cells: int) -> list[Array]:
        return [(values - low) * (cells / (high - low))
                for values, low, high in zip((m, log_v), self.low, self.high, strict=True)]

    def holds(self, m: Array, log_v: Array) -> Mask:
        """Whether each candidate is inside."""
        return np.asarray((m >= self.low[0]) & (m < self.high[0]) & (log_v >= self.low[1]) & (log_v < self.high[1]))

    def wide_cells(self, m: Array, log_v: Array) -> npt.NDArray[np.uint16]:
        """The place of each candidate in a table of `bounds_after`; the last is for those outside."""
        rows, columns = self._wide_upper.shape
        i, j = self._places(m, log_v, rows)[0], self._places(m, log_v, columns)[1]
        place = np.minimum(np.floor(i), rows - 1) * columns + np.minimum(np.floor(j), columns - 1)  # at the edge
        cell: npt.NDArray[np.uint16] = np.where(self.holds(m, log_v), place, rows * columns).astype(np.uint16)
        return cell

    @cached_property
    def _wide_upper(self) -> Array:
        """Bounds for all smaller variances, of cells WIDE times as wide in m."""
        cells = len(self.upper)
        return np.asarray(self._upper_below.reshape(cells // WIDE, WIDE, cells).max(axis=1))

    def bounds_after(self, drift: Drift) -> Array:
        """Numbers that the spline does not exceed wherever a drift may lead from each cell: infinite outside the box.

        Variances may also shrink. Below the smallest of the box the score is taken to be no larger than there: it
        vanishes with v.
        """
        table = self._wide_upper
        rows, columns = table.shape
        wide, high = (high - low for low, high in zip(self.low, self.high, strict=True))
        up = min(int(np.ceil(max(np.log(drift.growth), 0.0) * columns / high)), columns)
        table = np.concatenate([table[:, up:], np.full((rows, up), np.inf)], axis=1)
        sd = np.exp(0.5 * (self.low[1] + high / columns * np.arange(1, columns + 1)))  # the largest of each column
        reach = np.minimum(np.ceil(drift.shift * sd * (rows / wide)), rows).astype(np.intp)
        bounds = table.copy()
        for far in range(1, int(reach[-1]) + 1):
            some = slice(int(np.searchsorted(reach, far)), None)
            np.maximum(bounds[:-far, some], table[far:, some], out=bounds[:-far, some])
            np.maximum(bounds[far:, some], table[:-far, some], out=bounds[far:, some])
            bounds[-far:, some] = bounds[:far, some] = np.inf
        return np.append(bounds.ravel(), np.inf)

    def covers(self, score: Score, site: Site, m: Array, log_v: Array) -> bool:
        return bool(score == self.score and site is self.site and m.min() >= self.low[0] and m.max() <= self.high[0]
                    and log_v.min() >= self.low[1] and log_v.max() <= self.high[1])


def box_around(score: Score, site: Site, m: Array, log_v: Array) -> Box:
    """The spline over a box that holds these candidates, and some room."""
    from scipy.ndimage import spline_filter

    edges = []
    for values in (m, log_v):
        wide = MARGIN * max(float(np.ptp(values)), 1.0)
        edges.append((float(values.min()) - wide, float(values.max()) + wide))
    x, y = (np.linspace(low, high, GRID) for low, high in edges)
    grid_m, grid_v = (part.ravel() for part in np.meshgrid(x, np.exp(y), indexing="ij"))
    values = log_score(score, Candidates(site, grid_m, grid_v)).reshape(GRID, GRID)
    low, high = (edges[0][0], edges[1][0]), (edges[0][1], edges[1][1])
    return Box(score, site, low, high, np.asarray(spline_filter(values, order=3)))


def log_score(score: Score, candidates: Candidates) -> Array:
    """The logarithm that the spline follows."""
    return np.log(np.maximum(score.of(candidates), SMALLEST))


def _upper_bounds(coefficients: Array) -> Array:
    """The largest coefficient that bears on each cell, after `HALVINGS` of the distance of knots."""
    fine = np.pad(coefficients, 1, mode="reflect")  # a spline mirrored at its ends
    for _ in range(HALVINGS):
        fine = _halved(_halved(fine).T).T
    for axis in (0, 1):
        fine = np.lib.stride_tricks.sliding_window_view(fine, 4, axis=axis).max(axis=-1)
    return np.asarray(fine + ROUNDING)


def _halved(rows: Array) -> Array:
    """Coefficients of the same cubic splines, down the rows, over knots at half the distance."""
    between = 0.5 * (rows[:-1] + rows[1:])
    at_knots = 0.125 * (rows[:-2] + 6.0 * rows[1:-1] + rows[2:])
    fine = np.empty((len(between) + len(at_knots), rows.shape[1]))
    fine[::2], fine[1::2] = between, at_knots
    return fine
