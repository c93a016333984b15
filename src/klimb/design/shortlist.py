"""The best of many candidates by a score that is dear to compute, without computing it for all.

A score of the marginals alone is a smooth function of (m, log v), and so is its logarithm, which does not vanish where
the score does. A spline of it over the box of the candidates costs a few thousand evaluations, once; it names the few
that may be best, for which the score itself is computed. The error of the spline is measured at candidates, anew for
each choice, and the shortlist is as long as four times that error demands.

Even the spline need not be evaluated everywhere. Between its knots a B-spline lies within the range of the coefficients
that bear on it, and halving the distance of knots twice makes that range narrow: a table of upper bounds, one look-up a
candidate, leaves few for the spline, and exactly those it would have named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from klimb.design.pool import Index
from klimb.design.scores import Candidates, Score
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

MANY = 6000  # candidates from which a spline pays
GRID = 48  # points in either direction
MARGIN = 0.25  # by which the box is wider than the candidates, so that the next ones fit it too
PROBES = 64
LONGEST = 0.25  # share of the candidates from which the spline is no help
SMALLEST = 1e-280
HALVINGS = 2  # of the distance of knots, for the table of bounds
ROUNDING = 1e-9  # by which a bound is raised, so that rounding does not break it


@final
@dataclass(frozen=True, eq=False)
class _Box:
    score: Score
    site: Site
    low: tuple[float, float]
    high: tuple[float, float]
    coefficients: Array  # of a cubic spline, GRID x GRID
    upper: Array = field(init=False, repr=False)  # bounds of the spline, one per cell

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", _upper_bounds(self.coefficients))

    def at(self, m: Array, log_v: Array) -> Array:
        """The spline at some points."""
        from scipy.ndimage import map_coordinates

        places = self._places(m, log_v, GRID - 1)
        return np.asarray(map_coordinates(self.coefficients, places, order=3, mode="mirror", prefilter=False))

    def bounds(self, m: Array, log_v: Array) -> Array:
        """Numbers that the spline does not exceed, by one look-up each."""
        cells = len(self.upper)
        i, j = (np.minimum(place.astype(np.intp), cells - 1) for place in self._places(m, log_v, cells))
        return np.asarray(self.upper.ravel().take(i * cells + j))

    def _places(self, m: Array, log_v: Array, cells: int) -> list[Array]:
        return [(values - low) * (cells / (high - low))
                for values, low, high in zip((m, log_v), self.low, self.high, strict=True)]

    def covers(self, score: Score, site: Site, m: Array, log_v: Array) -> bool:
        return bool(score == self.score and site is self.site and m.min() >= self.low[0] and m.max() <= self.high[0]
                    and log_v.min() >= self.low[1] and log_v.max() <= self.high[1])


@final
class Shortlist:
    """Keeps its spline from choice to choice."""

    def __init__(self) -> None:
        self._box: _Box | None = None
        self.n_exact = 0  # scores computed, grid and probes included

    def scores(self, score: Score, candidates: Candidates) -> Array:
        """Scores of all candidates; minus infinity for those that can not be the best."""
        site, m, v = candidates.site, candidates.m, candidates.v
        if not (score.smooth and m.size >= MANY and _same_for_all(site)):
            self.n_exact += m.size
            return score.of(candidates)
        log_v = np.log(np.maximum(v, SMALLEST))
        if self._box is None or not self._box.covers(score, site, m, log_v):
            self._box = self._new_box(score, site, m, log_v)
        box, bounds = self._box, self._box.bounds(m, log_v)
        high = np.argpartition(bounds, -PROBES)[-PROBES:]
        floor = float(box.at(m[high], log_v[high]).min())  # the best PROBES by the spline are not below
        able, guess = _above(box, bounds, floor, m, log_v)
        probes = np.unique(np.linspace(0, m.size - 1, PROBES).astype(np.intp))
        best = able[np.argpartition(guess, -PROBES)[-PROBES:]]  # where the error counts
        near = np.concatenate([probes, best])
        exact = self._exact(score, site, m[near], v[near])
        gap = np.log(np.maximum(exact, SMALLEST)) - box.at(m[near], log_v[near])
        error = 4.0 * float(np.abs(gap).max()) + 1e-9
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

    def _exact(self, score: Score, site: Site, m: Array, v: Array) -> Array:
        self.n_exact += m.size
        return score.of(Candidates(site, m, v))

    def _new_box(self, score: Score, site: Site, m: Array, log_v: Array) -> _Box:
        from scipy.ndimage import spline_filter

        edges = []
        for values in (m, log_v):
            wide = MARGIN * max(float(np.ptp(values)), 1.0)
            edges.append((float(values.min()) - wide, float(values.max()) + wide))
        x, y = (np.linspace(low, high, GRID) for low, high in edges)
        grid_m, grid_v = (part.ravel() for part in np.meshgrid(x, np.exp(y), indexing="ij"))
        values = np.log(np.maximum(self._exact(score, site, grid_m, grid_v), SMALLEST)).reshape(GRID, GRID)
        low, high = (edges[0][0], edges[1][0]), (edges[0][1], edges[1][1])
        return _Box(score, site, low, high, np.asarray(spline_filter(values, order=3)))


def _above(box: _Box, bounds: Array, least: float, m: Array, log_v: Array) -> tuple[Index, Array]:
    """The candidates whose bound is not below ``least``, and the spline at them."""
    able = np.flatnonzero(~(bounds < least))
    return able, box.at(m[able], log_v[able])


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


def _same_for_all(site: Site) -> bool:
    return all(np.ndim(getattr(site, name)) == 0 for name in site.per_datum)
