"""The best of many candidates by a score that is expensive to compute, without computing it for all.

A score of the marginals alone is a smooth function of (m, log v), and so is its logarithm, which does not vanish where
the score does. A spline of it over the box of the candidates (`klimb.active.box`) costs a few thousand evaluations,
once; it names the few that may be best, for which the score itself is computed. The error of the spline is measured at
candidates, anew for each choice, and the shortlist is as long as four times that error demands. A table of upper bounds
leaves few candidates for the spline itself, and exactly those it would have named.

Nor need the marginals be computed for all. Those of a snapshot say where each candidate may be by now; only those that
may be best there are looked at.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from klimb.active.box import SMALLEST, Box, box_around
from klimb.active.marginals import Drift, Marginals, Snapshot
from klimb.active.pool import Index, Mask
from klimb.active.scores import Candidates, Score
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

MANY = 6000  # candidates from which a spline pays
PROBES = 64
LEADERS = 16  # whose scores say how good the best must be
HOPE = 0.03  # by how much its log may fall from one choice to the next
MOST_LOOKS = 4
LONGEST = 0.25  # share of the candidates from which the spline is no help
MOST_ALONE = 1.0  # share of the pool that may be computed row by row before all rows are computed again
MOST_AT_ONCE = 0.125  # the same for one choice


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
                rows = rows[box.bounds_up_to(now.means_at(rows), log_v) >= places.floor]
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
