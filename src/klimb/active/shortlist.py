"""The best of many candidates by a score that is expensive to compute, without computing it for all.

A score of the marginals alone is a smooth function of (m, log v), and so is its logarithm, which does not vanish where
the score does. A spline of it over the box of the candidates (`Box`) costs a few thousand evaluations,
once; it names the few that may be best, for which the score itself is computed. The error of the spline is measured at
candidates, anew for each choice, and the shortlist is as long as four times that error demands. A table of upper bounds
leaves few candidates for the spline itself, and exactly those it would have named.

Nor need the marginals be computed for all. Those of a snapshot say where each candidate may be by now; only those that
may be best there are looked at.

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

from klimb.active.marginals import Drift, Marginals, Snapshot
from klimb.active.pool import Index, Mask
from klimb.active.scores import Candidates, Score
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import ndimage
from klimb.sites.base import Site

GRID = 48  # points in either direction
HALVINGS = 2  # of the distance of knots, for the table of bounds
ROUNDING = 1e-9  # by which a bound is raised, so that rounding does not break it
MARGIN = 0.25  # by which the box is wider than the candidates, so that the next ones fit it too
WIDE = 2  # cells in m that are one where marginals drift
SMALLEST = 1e-280
MANY = 6000  # candidates from which a spline pays
PROBES = 64
LEADERS = 16  # whose scores say how good the best must be
HOPE = 0.03  # by how much its log may fall from one choice to the next
MOST_LOOKS = 4
LONGEST = 0.25  # share of the candidates from which the spline is no help
MOST_ALONE = 1.0  # share of the pool that may be computed row by row before all rows are computed again
MOST_AT_ONCE = 0.125  # the same for one choice


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
        """Bounds of the spline, one per cell: the largest coefficient that bears on it, knots being halved before."""
        fine = np.pad(self.coefficients, 1, mode="reflect")  # a spline mirrored at its ends
        for _ in range(HALVINGS):
            fine = _halved(_halved(fine).T).T
        for axis in (0, 1):
            fine = np.lib.stride_tricks.sliding_window_view(fine, 4, axis=axis).max(axis=-1)
        return np.asarray(fine + ROUNDING)

    def at(self, m: Array, log_v: Array) -> Array:
        """The spline at some points."""
        places = self._places(m, log_v, GRID - 1)
        return np.asarray(ndimage.map_coordinates(self.coefficients, places, order=3, mode="mirror", prefilter=False))

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
    edges = []
    for values in (m, log_v):
        wide = MARGIN * max(float(np.ptp(values)), 1.0)
        edges.append((float(values.min()) - wide, float(values.max()) + wide))
    x, y = (np.linspace(low, high, GRID) for low, high in edges)
    grid_m, grid_v = (part.ravel() for part in np.meshgrid(x, np.exp(y), indexing="ij"))
    values = np.log(np.maximum(score.of(Candidates(site, grid_m, grid_v)), SMALLEST)).reshape(GRID, GRID)
    low, high = (edges[0][0], edges[1][0]), (edges[0][1], edges[1][1])
    return Box(score, site, low, high, np.asarray(ndimage.spline_filter(values, order=3)))


def _halved(rows: Array) -> Array:
    """Coefficients of the same cubic splines, down the rows, over knots at half the distance."""
    between = 0.5 * (rows[:-1] + rows[1:])
    at_knots = 0.125 * (rows[:-2] + 6.0 * rows[1:-1] + rows[2:])
    fine = np.empty((len(between) + len(at_knots), rows.shape[1]))
    fine[::2], fine[1::2] = between, at_knots
    return fine


@final
class _Places:
    """Where the rows of a snapshot are in a box, and which of them lead."""

    def __init__(self, snapshot: Snapshot, box: Box) -> None:
        self.snapshot, self.box = snapshot, box
        self.cells: npt.NDArray[np.uint16] = box.wide_cells(snapshot.m, np.log(np.maximum(snapshot.v, SMALLEST)))
        self.leaders = _largest(box.bounds_after(Drift(0.0, 1.0)).take(self.cells))
        self.floor: float | None = None  # what the spline must reach at the best row, as far as the last choice tells
        self.alone = 0  # rows computed alone since the snapshot


@final
class Shortlist:
    """Keeps its spline from choice to choice."""

    def __init__(self) -> None:
        self._box: Box | None = None
        self._places: _Places | None = None
        self._error = 0.0  # of the spline, where it was last measured
        self.n_exact = 0  # scores computed, grid and probes included

    def scores(self, score: Score, candidates: Candidates) -> Array:
        """Scores of all candidates; minus infinity for those that cannot be the best."""
        site, m, v = candidates.site, candidates.m, candidates.v
        if not (score.smooth and m.size >= MANY and _same_for_all(site)):
            self.n_exact += m.size
            return score.of(candidates)
        log_v = np.log(np.maximum(v, SMALLEST))
        if self._box is None or not self._box.covers(score, site, m, log_v):
            self._box = box_around(score, site, m, log_v)
            self.n_exact += self._box.coefficients.size
        box, bounds = self._box, self._box.bounds(m, log_v)
        high = np.argpartition(bounds, -PROBES)[-PROBES:]
        floor = float(box.at(m[high], log_v[high]).min())  # the best PROBES by the spline are not below
        able, guess = _above(box, bounds, floor, m, log_v)
        probes = np.unique(np.linspace(0, m.size - 1, PROBES).astype(np.intp))
        best = able[np.argpartition(guess, -PROBES)[-PROBES:]]  # where the error counts
        near = np.concatenate([probes, best])
        exact = self._exact(score, site, m[near], v[near])
        self._error = self._gap(box, exact, m[near], v[near])
        error = 4.0 * self._error + 1e-9
        least = np.log(max(float(exact.max()), SMALLEST)) - error
        if least < floor:
            able, guess = _above(box, bounds, least, m, log_v)
        chosen = able[guess >= least]
        if chosen.size > LONGEST * m.size or not np.isfinite(error):
            self.n_exact += m.size
            return score.of(candidates)
        out = np.full(m.size, -np.inf)
        out[chosen] = self._exact(score, site, m[chosen], v[chosen])
        return out

    def after_drift(self, score: Score, now: Marginals, free: Mask) -> tuple[Index, Array] | None:
        """The rows that may be best ``now``, and their scores, from the marginals of all rows some labels ago.

        None where nothing is known, or where so many rows may be best that all had better be computed again.
        """
        box, before = self._box, now.before
        if box is None or before is None or now.computed or not (score == box.score and now.site is box.site):
            return None
        drift = now.drift()
        if not (np.isfinite(drift.shift) and np.isfinite(drift.growth)):
            return None
        if self._places is None or self._places.snapshot is not before or self._places.box is not box:
            self._places = _Places(before, box)
        places, bounds = self._places, box.bounds_after(drift)
        for _ in range(MOST_LOOKS):
            if places.floor is None:  # as good as the best of those that led must the best be now
                rows = places.leaders[free[places.leaders]][:LEADERS]
            else:
                rows = np.flatnonzero((bounds >= places.floor)[places.cells] & free)
                places.alone += rows.size
                if rows.size > MOST_AT_ONCE * len(free) or places.alone > MOST_ALONE * len(free):
                    return None
                log_v = np.log(np.maximum(drift.growth * before.v[rows], SMALLEST))
                rows = rows[box.bounds_up_to(now.pool.subset(rows).times(now.weights), log_v) >= places.floor]
            if not rows.size:
                return None
            places.alone += rows.size
            m, v = now.at(rows)
            scores = self._exact(score, now.site, m, v)
            asked, found = places.floor, self._floor(box, scores, m, v)
            places.floor = found
            if asked is not None and found >= asked:
                places.floor -= HOPE
                return rows, scores
        return None

    def _floor(self, box: Box, scores: Array, m: Array, v: Array) -> float:
        """What the spline must reach at the best row, given the scores of some: theirs, less four times its error."""
        top = _largest(scores)[:LEADERS]
        gap = max(self._error, self._gap(box, scores[top], m[top], v[top]))
        return float(np.log(max(float(scores.max()), SMALLEST)) - 4.0 * gap - 1e-8)

    def _exact(self, score: Score, site: Site, m: Array, v: Array) -> Array:
        self.n_exact += m.size
        return score.of(Candidates(site, m, v))

    @staticmethod
    def _gap(box: Box, exact: Array, m: Array, v: Array) -> float:
        """How far the spline is from the exact logarithms, where the box has it."""
        log_v = np.log(np.maximum(v, SMALLEST))
        inside = box.holds(m, log_v)
        gap = np.log(np.maximum(exact[inside], SMALLEST)) - box.at(m[inside], log_v[inside])
        return float(np.abs(gap).max(initial=0.0))


def _largest(values: Array) -> Index:
    """Where the largest 4 PROBES values are, largest first."""
    most = min(4 * PROBES, values.size)
    some = np.argpartition(-values, most - 1)[:most] if most < values.size else np.arange(values.size)
    return np.asarray(some[np.argsort(-values[some], kind="stable")])


def _above(box: Box, bounds: Array, least: float, m: Array, log_v: Array) -> tuple[Index, Array]:
    """The candidates whose bound is not below ``least``, and the spline at them."""
    able = np.flatnonzero(~(bounds < least))
    return able, box.at(m[able], log_v[able])


def _same_for_all(site: Site) -> bool:
    return all(np.ndim(getattr(site, name)) == 0 for name in site.per_datum)
