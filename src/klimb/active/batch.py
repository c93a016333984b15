"""The best of many candidates, and greedy batches of them, by a score that is expensive to compute.

The label of a pick is not known yet, but the precision that it will add is, on average; the variances of all others
follow exactly (`klimb.active.marginals`).

A score of the marginals alone is a smooth function of (m, log v), and so is its logarithm. A spline of it over the box
of the candidates (`Box`) names the few that may be best, with an error measured at candidates. Between its knots a
B-spline lies within the range of the coefficients that bear on it: a table of upper bounds, one look-up a candidate.
Where marginals have moved since they were computed, but not farther than a `Drift` says, the largest bound within reach
takes the place of their own (docs/decisions/0021-only-rows-that-can-win.md).

Of two classes with a symmetric link, |P(y = 1) - 1/2| = g(|m|, v) grows with |m| and shrinks with v: one bound of all
variances and the means say which rows may be closest to a coin flip.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from klimb.active.inclusion import expected_gamma, plain_site
from klimb.active.marginals import Drift, Marginals, Snapshot
from klimb.active.pool import row_vector, take_rows
from klimb.active.scores import Candidates, Score, classifier_uncertainty
from klimb.numerics.arrays import Array, Index, Mask, pieces
from klimb.numerics.lazy import ndimage
from klimb.sites import Logistic, Probit, Site

GRID = 48  # points in either direction
HALVINGS = 2  # of the distance of knots, for the table of bounds
ROUNDING = 1e-9  # by which a bound is raised, so that rounding does not break it
MARGIN = 0.25  # by which the box is wider than the candidates, so that the next ones fit it too
SMALLEST = 1e-280
MANY = 6000  # candidates from which a spline pays
PROBES = 64
LEADERS = 16  # whose scores say how good the best must be
HOPE = 0.03  # by how much its log may fall from one choice to the next
MOST_LOOKS = 4
LONGEST = 0.25  # share of the candidates from which the spline is no help
MOST_ALONE = 1.0  # share of the pool that may be computed row by row before all rows are computed again
MOST_AT_ONCE = 0.125  # the same for one choice
NEAREST = 32  # rows with the smallest |m| that say how close to a coin flip the best must be
LOOSEST = 4.0  # growth of the variances from which they are computed again
MOST_AT_HAND = 0.125  # share of the pool from which the means are no help
REACH = np.geomspace(1.0, 1e6, 121)  # of |m|, in units of the smallest
ROWS_AT_ONCE = 1 << 14  # whose covariances with the targets are in memory together
TIE = 1e-9  # scores closer than this, relative to the largest, are equal: the first row wins


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

    def bounds(self, m: Array, log_v: Array, *, below: bool = False) -> Array:
        """Numbers that the spline does not exceed, with ``below`` for all smaller variances too: one look-up each."""
        return np.append(self.upper_below if below else self.upper, np.inf).take(self.cells(m, log_v))

    @cached_property
    def upper_below(self) -> Array:
        """Bounds for all smaller variances too."""
        return np.asarray(np.maximum.accumulate(self.upper, axis=1))

    def _places(self, m: Array, log_v: Array, cells: int) -> list[Array]:
        return [(values - low) * (cells / (high - low))
                for values, low, high in zip((m, log_v), self.low, self.high, strict=True)]

    def holds(self, m: Array, log_v: Array) -> Mask:
        """Whether each candidate is inside."""
        return np.asarray((m >= self.low[0]) & (m <= self.high[0]) & (log_v >= self.low[1]) & (log_v <= self.high[1]))

    def cells(self, m: Array, log_v: Array) -> npt.NDArray[np.uint16]:
        """The place of each candidate in a table of bounds, row by row; the last is for those outside."""
        n = len(self.upper)
        i, j = (np.minimum(np.floor(place), n - 1) for place in self._places(m, log_v, n))  # at the edge
        cell: npt.NDArray[np.uint16] = np.where(self.holds(m, log_v), i * n + j, n * n).astype(np.uint16)
        return cell

    def bounds_after(self, drift: Drift) -> Array:
        """Numbers that the spline does not exceed wherever a drift may lead from each cell: infinite outside the box.

        Below the smallest variance of the box the score is taken to be no larger than there: it vanishes with v.
        """
        n, (wide, high) = len(self.upper), (high - low for low, high in zip(self.low, self.high, strict=True))
        up = min(int(np.ceil(max(np.log(drift.growth), 0.0) * n / high)), n)
        table = np.concatenate([self.upper_below[:, up:], np.full((n, up), np.inf)], axis=1)
        sd = np.exp(0.5 * (self.low[1] + high / n * np.arange(1, n + 1)))  # the largest of each column
        reach = np.minimum(np.ceil(drift.shift * sd * (n / wide)), n).astype(np.intp)
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


class _Places:
    """Where the rows of a snapshot are in a box, and which of them lead."""

    def __init__(self, snapshot: Snapshot, box: Box) -> None:
        self.snapshot, self.box = snapshot, box
        self.cells: npt.NDArray[np.uint16] = box.cells(snapshot.m, np.log(np.maximum(snapshot.v, SMALLEST)))
        self.leaders = _largest(box.bounds_after(Drift(0.0, 1.0)).take(self.cells))
        self.floor: float | None = None  # what the spline must reach at the best row, as far as the last choice tells
        self.alone = 0  # rows computed alone since the snapshot


class Shortlist:
    """Keeps its spline from choice to choice."""

    def __init__(self) -> None:
        self._box: Box | None = None
        self._places: _Places | None = None
        self._error = 0.0  # of the spline, where it was last measured

    def scores(self, score: Score, candidates: Candidates) -> Array:
        """Scores of all candidates; minus infinity for those that cannot be the best."""
        site, m, v = candidates.site, candidates.m, candidates.v
        if not (score.smooth and m.size >= MANY and all(np.ndim(getattr(site, name)) == 0 for name in site.per_datum)):
            return score.of(candidates)
        log_v = np.log(np.maximum(v, SMALLEST))
        if self._box is None or not self._box.covers(score, site, m, log_v):
            self._box = box_around(score, site, m, log_v)
        box, bounds = self._box, self._box.bounds(m, log_v)
        high = np.argpartition(bounds, -PROBES)[-PROBES:]
        floor = float(box.at(m[high], log_v[high]).min())  # the best PROBES by the spline are not below
        able, guess = _above(box, bounds, floor, m, log_v)
        probes = np.unique(np.linspace(0, m.size - 1, PROBES).astype(np.intp))
        best = able[np.argpartition(guess, -PROBES)[-PROBES:]]  # where the error counts
        near = np.concatenate([probes, best])
        exact = score.of(Candidates(site, m[near], v[near]))
        self._error = self._gap(box, exact, m[near], v[near])
        error = 4.0 * self._error + 1e-9
        least = np.log(max(float(exact.max()), SMALLEST)) - error
        if least < floor:
            able, guess = _above(box, bounds, least, m, log_v)
        chosen = able[guess >= least]
        if chosen.size > LONGEST * m.size or not np.isfinite(error):
            return score.of(candidates)
        out = np.full(m.size, -np.inf)
        out[chosen] = score.of(Candidates(site, m[chosen], v[chosen]))
        return out

    def after_drift(self, score: Score, now: Marginals, free: Mask) -> tuple[Index, Array] | None:
        """The rows that may be best ``now``, and their scores, from the last snapshot; None: compute all."""
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
                rows = rows[box.bounds(now.pool.subset(rows).times(now.weights), log_v, below=True) >= places.floor]
            if not rows.size:
                return None
            places.alone += rows.size
            m, v = now.at(rows)
            scores = score.of(Candidates(now.site, m, v))
            top, asked = _largest(scores)[:LEADERS], places.floor
            gap = max(self._error, self._gap(box, scores[top], m[top], v[top]))
            places.floor = float(np.log(max(float(scores.max()), SMALLEST)) - 4.0 * gap - 1e-8)
            if asked is not None and places.floor >= asked:
                places.floor -= HOPE
                return rows, scores
        return None

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


def least_sure(score: Score, now: Marginals, free: Mask, first: Marginals) -> tuple[Index, Array] | None:
    """The rows that may be the least sure, and their scores; ``first`` are the marginals when the batch began."""
    before = now.before
    symmetric = isinstance(plain_site(now.site), Logistic | Probit)
    if score.rule is not classifier_uncertainty or before is None or now.computed or not symmetric:
        return None
    growth = now.drift().growth
    if not growth <= LOOSEST:
        return None
    distance = np.abs(now.means)
    distance[~free] = np.inf
    some = np.argpartition(distance, min(NEAREST, len(distance) - 1))[:NEAREST]
    some = some[free[some]]
    best = float(score.of(candidates(now, np.sort(some), first)).max())
    # A row at |m| = x cannot have a score above -g(x, the largest variance): how far out is that below the best?
    x = max(float(distance[some].min()), 1e-12) * REACH
    largest = growth * float(before.v.max())
    reached = -np.abs(plain_site(now.site).class_probabilities(x, np.full_like(x, largest))[:, 1] - 0.5)
    out = np.flatnonzero(reached < best * (1.0 + 1e-6) - 1e-12)
    if not out.size:
        return None
    rows = np.flatnonzero(distance <= x[out[0]])
    return None if rows.size > MOST_AT_HAND * len(distance) else (rows, score.of(candidates(now, rows, first)))


def best_candidate(scores: Array, rows: Index) -> int:
    """The row of the largest score; of equal ones the first. ``scores`` belong to ``rows``, which ascend."""
    top = float(scores.max())
    return int(rows[np.flatnonzero(scores >= top - TIE * abs(top))[0]])


def candidates(now: Marginals, rows: Index, first: Marginals | None = None) -> Candidates:
    """What a score sees of ``rows``; ``first`` are the marginals at the beginning of the batch."""
    (m, v), targets, share = now.at(rows), now.targets, np.ones(rows.size)
    if first is not None and first is not now:
        whole = first.at(rows)[1]
        np.divide(v, whole, out=share, where=whole > 0.0)
    return Candidates(now.site.rows(rows), m, v, share, None if targets is None else lambda: (
        targets.m, targets.v, np.asarray(take_rows(now.pool, rows) @ targets.directions)))


def score_rows(score: Score, now: Marginals, rows: Index, first: Marginals | None = None,
               shortlist: Shortlist | None = None) -> Array:
    """The scores of ``rows``; with a ``shortlist`` minus infinity for those that cannot be the best."""
    _ = now.snapshot, None if first is None else first.snapshot  # of all rows at once
    if not score.uses_targets:
        some = candidates(now, rows, first)
        return score.of(some) if shortlist is None else shortlist.scores(score, some)
    return np.concatenate([score.of(candidates(now, part, first)) for part in pieces(rows, ROWS_AT_ONCE)])


def greedy_batch(marginals: Marginals, score: Score, free: Mask, k: int, waiting: Index, shortlist: Shortlist) -> Index:
    """``k`` rows of those ``free``, each the best given those before it and those that are ``waiting`` for labels."""
    now, picks, rest = marginals, list[int](), free.copy()
    for row in waiting.tolist():
        now = _pending_label(now, row)
    while len(picks) < k:
        if picks:
            now = _pending_label(now, picks[-1])
        few = shortlist.after_drift(score, now, rest) or least_sure(score, now, rest, marginals)  # that may win
        rows = np.flatnonzero(rest) if few is None else few[0]
        scores = score_rows(score, now, rows, marginals, shortlist) if few is None else few[1]
        picks.append(best_candidate(scores, rows))
        rest[picks[-1]] = False
    return np.array(picks, dtype=np.intp)


def _pending_label(now: Marginals, pick: int) -> Marginals:
    """The variances of all rows once ``pick`` is labelled: one solve and one product with the pool."""
    x, one = row_vector(now.pool, pick), np.array([pick])
    d = now.pending.times(x)
    gamma = expected_gamma(now.site.rows(one), np.array([x @ now.weights]), np.array([max(x @ d, 0.0)]))
    return now.with_site(x, d, float(gamma[0]), 0.0)
