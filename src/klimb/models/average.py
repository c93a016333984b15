"""Hyperparameters integrated out: points of theta around the peak that stand for all others, with weights.

theta = mode + A z makes the objective (bound plus log prior) a unit bowl near its best. One or two hyperparameters get
a lattice in z that grows until the objective has fallen off, wherever that is (Rue, Martino and Chopin 2009, section
6.5); more are sampled with importance weights, between which a surrogate of the objective knows (`adaptive`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from klimb.infer.result import Result, Status
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.adaptive import adaptively
from klimb.models.components import LEAST_WEIGHT, SCORES, Components, marginal_quantiles, split_quantiles
from klimb.models.correction import Correction, Corrector, doubtful, pooled, shown_parts
from klimb.models.correctors import corrector_of
from klimb.models.fitted_theta import HIGHER
from klimb.models.model import Model
from klimb.models.reaching import mean_by_f
from klimb.models.repair import modes_around
from klimb.models.sampled_theta import calibrated, uneven_variance
from klimb.models.search import (
    FIT_TOL,
    POINT_TOL,
    Evaluated,
    Evaluator,
    HigherGround,
    Peak,
    axes_of,
    curvature,
    higher_peak,
    within_limits,
)
from klimb.numerics.arrays import Array
from klimb.numerics.mixtures import mixture_moments, sd_beyond
from klimb.numerics.surrogate import fit_surrogate, quadratics

SPACING = {1: 0.8, 2: 1.2}  # of the lattice, in sd; sums over it are accurate to 1e-6 for a bowl
CHEAP, WIDER = 1e7, 1.25  # work of a fit from which the lattice is so much wider: accurate to 1e-4 then
EXPENSIVE = 1e8  # work of a fit from which as few as possible are made
HERMITE = float(np.sqrt(3.0))  # the outer nodes of Gauss and Hermite's rule
WIDEST = {1: 0.5 * HERMITE, 2: HERMITE}  # a lattice that has those nodes; gradients tell what is between its own
BENT, LOST = 0.15, 0.65  # nats that the objective may be off a bowl there, and what its square costs an sd
TILTED = 0.5  # sds that a corrected evidence may move the bowl
DROP = 7.0  # nats below the best at which the lattice ends
UNFINISHED = 0.01  # mass up to which points at the limits of theta may stall: their priors are singular
TAIL_BEGINS = 4.5  # nats below the best from which a tail is followed beyond the lattice
SHORTER = 0.6  # share of a predicted fall that must be enough for that, for a node not to be fitted
LAST_NATS, OPEN_END = 2.0, 0.25  # of the lattice, and the share of a variance in them that says it goes on beyond
MOST_NODES = {1: 120, 2: 600}
FINER, UNEVEN = 3, 0.02  # lattices, each twice as fine as the last, and the error of a mean or sd from which one is
BETWEEN, SMOOTH = 16, 0.1  # points of theta in a cell of a node along each axis, by a surrogate as good as this in nats
SURE = 0.03  # the same, for nodes to be weighed so that they have the moments of those points
NARROW = 0.15  # smoothing of a distribution function from points without noise
MOST_POINTS = 1024  # of theta, where its hyperparameters are integrated by importance sampling
MOST_INTEGRATED = 14  # hyperparameters up to which "auto" integrates them out
MOST_WORK = 3e10  # multiplications that "auto" spends on it, roughly
CORRECTED, IF_EVEN = 3.5, 2.0  # nats below the peak up to which a point's own posterior of the weights is corrected
SAME_GAIN, MOST_GAINED = 0.03, 0.5  # nats that gains may be off a quadratic, and from the peak's, to be predicted
CLIMBS = 5  # peaks that are climbed, each from a better point than the last


@dataclass(frozen=True, eq=False)
class Averaged:
    """The points, what they say of the log evidence, and how the fits there ended."""

    components: Components
    log_evidence: float
    status: Status
    peak: Peak | None = None  # around which they were found


@dataclass(frozen=True, eq=False)
class _Point:
    """A fit at one theta, without the matrices that made it: dozens of these are kept."""

    theta: Array
    part: WeightPosterior
    status: Status
    plain: float  # bound plus log prior, relative to the peak's
    gain: float  # of evidence over bound
    correction: Correction | None
    slope: Array  # of ``plain`` in z


class _Around:
    """Fits at z around the peak; a point that cannot be fitted counts as impossible."""

    def __init__(self, peak: Peak, A: Array, evaluate: Evaluator, corrector: Corrector) -> None:
        self.peak, self.A, self._evaluate, self._expected = peak, A, evaluate, 12 if len(A) == 1 else 30
        self._count, self._tol = 0, POINT_TOL if peak.model.work() > EXPENSIVE else FIT_TOL
        self._known: dict[tuple[float, ...], tuple[float, _Point | None]] = {}
        self.corrector = corrector
        self.gain = 0.0  # at the peak
        self._gains: list[tuple[Array, float]] = []  # that were not predicted

    def __call__(self, z: Array) -> tuple[float, _Point | None]:
        """The objective relative to the peak, corrected where q's bound is not good enough, and what is kept of a fit.

        A point that is asked for again is not fitted again.
        """
        if tuple(z) not in self._known:
            found, beyond = Evaluated(self.peak.model, self.peak.result, self.peak.objective), 0.0
            if z.any():
                inside, beyond = within_limits(self.peak.model.theta, self.peak.model.at + self.A @ z)
                found = self._evaluate(inside, start=self.peak.result.posterior, tol=self._tol)
                self._count += 1
                self._evaluate.tell("integrating", self._count, max(self._expected, self._count),
                                    self.peak.result.bound)
            self._known[tuple(z)] = self._weighed(z, found, beyond)
        return self._known[tuple(z)]

    def _weighed(self, z: Array, found: Evaluated, beyond: float) -> tuple[float, _Point | None]:
        """The objective at a fit, and what is kept of it."""
        plain = found.objective - self.peak.objective - beyond
        if not found.possible:
            return -np.inf, None
        if plain > HIGHER:
            raise HigherGround(found.model.at, found.posterior)
        reach = IF_EVEN if self.corrector.even else CORRECTED
        correction = self.corrector(found.result) if plain > -reach else None
        predicted = None if correction is not None else self._predicted_gain(z)
        gain = correction.gain if correction is not None else (
            predicted if predicted is not None else self.corrector.gain(found.result))
        if correction is None and plain + gain - self.gain > -reach:  # the evidence is far above the bound there
            correction = self.corrector(found.result)
        if predicted is None:
            self._gains.append((z, gain))
        if not z.any():
            self.gain = gain
        slope = self.A.T @ self._evaluate.gradient(found) if not beyond else np.full(len(z), np.nan)
        point = _Point(found.model.at, found.part(), found.status, plain, gain, correction, slope)
        return plain + gain - self.gain, point

    def _predicted_gain(self, z: Array) -> float | None:
        """The gain by a quadratic through those nearer to the peak; None where they do not lie on one."""
        entries = quadratics(z[None])
        if 2 * len(self._gains) < 3 * entries.size:
            return None
        places, gains = quadratics(np.array([place for place, _ in self._gains])), [gain for _, gain in self._gains]
        found = np.linalg.lstsq(places, gains, rcond=1e-10)[0]
        gain = float(entries[0] @ found)
        good = np.abs(places @ found - gains).max() <= SAME_GAIN and abs(gain - self.gain) <= MOST_GAINED
        return gain if good else None


def integrated(peak: Peak, evaluate: Evaluator) -> Averaged:
    """Integrate theta out instead of choosing it; from a better peak where the way there shows one.

    Where importance weights over the weights of the model turn out to be of no use, or other modes are found, once more
    by particles.
    """
    for _ in range(CLIMBS):
        try:
            found = _integrated(peak, evaluate, corrector_of(peak.result))
            components = found.components
            modes = modes_around(components, peak, evaluate.data)
            if modes or doubtful(components.efficiency, components.correction_khat):
                found = _integrated(peak, evaluate, corrector_of(peak.result, repairs=True, modes=modes))
            return replace(found, peak=peak)
        except HigherGround as found:
            peak = higher_peak(peak, evaluate, found)
    return replace(chosen(peak, evaluate), peak=peak, status=Status.STALLED)  # a range of peaks: no one stands for all


def _integrated(peak: Peak, evaluate: Evaluator, corrector: Corrector) -> Averaged:
    A = axes_of(curvature(peak, evaluate, rough=True))
    if len(A) <= 2:
        around = _Around(peak, A, evaluate, corrector)
        few = _hermite(peak, A, around) if peak.model.work() > EXPENSIVE else None
        return _lattice(peak, A, around) if few is None else few
    most = min(MOST_POINTS, int(MOST_WORK / max(peak.model.work(), 1.0)))
    evidence, components, status = adaptively(peak, A, evaluate, most, corrector)
    return Averaged(components, peak.objective + evidence, status if peak.converged else peak.status)


def chosen(peak: Peak, evaluate: Evaluator) -> Averaged:
    """The peak alone, with the spread of theta by the curvature there."""
    return Averaged(one_point(peak.model, peak.result, *spread_around(peak, evaluate)), peak.result.bound, peak.status)


def spread_around(peak: Peak, evaluate: Evaluator) -> tuple[Array, Array]:
    """Quantiles and covariance of theta by the curvature at the peak."""
    A = axes_of(curvature(peak, evaluate))
    covariance = A @ A.T
    return peak.model.at[:, None] + np.sqrt(np.diagonal(covariance))[:, None] * SCORES, covariance


def one_point(model: Model, result: Result, quantiles: Array | None = None,
              covariance: Array | None = None) -> Components:
    """The components of one theta, which counts as known unless its ``covariance`` is given."""
    if quantiles is None:
        quantiles = np.repeat(model.at[:, None], len(SCORES), axis=1)
    covariance = np.zeros((0, 0)) if covariance is None else covariance
    plain = Components(np.ones(1), model.at[None], (model.detach(result.posterior),), quantiles, covariance)
    corrector = corrector_of(result, alone=True, mean=mean_by_f(model))
    found = corrector(result)
    if found is None:
        return replace(plain, efficiency=corrector.efficiency)
    shares, parts = zip(*shown_parts(found, plain.parts[0]), strict=True)
    return replace(plain, weights=np.array(shares), theta=np.repeat(plain.theta, len(parts), axis=0), parts=parts,
                   uncorrected=plain, gain=found.gain, **pooled([found], np.ones(1)))


def _components(points: list[_Point], log_w: Array, quantiles: Array,
                plain_quantiles: Array, probed: float) -> tuple[Components, Status]:
    """Of points with the logs of their weights; beside them what q's own bounds would have said."""
    found, status = _plain_components([point.part for point in points], points, log_w, quantiles)
    corrections = [point.correction for point in points]
    if not any(corrections):
        return replace(found, efficiency=probed), status
    log_plain = log_w - np.array([point.gain for point in points])
    plain, _ = _plain_components([point.part for point in points], points, log_plain, plain_quantiles)
    every = [(part, point, log_own + np.log(share)) for point, log_own in zip(points, log_w, strict=True)
             for share, part in shown_parts(point.correction, point.part)]
    parts, owners, log_shares = zip(*every, strict=True)
    found, status = _plain_components(list(parts), list(owners), np.array(log_shares), quantiles)
    known = np.array([own is not None for own in corrections])
    share = np.exp(log_w[known] - log_w[known].max())
    return replace(found, uncorrected=plain, **pooled([own for own in corrections if own is not None], share)), status


def _plain_components(parts: list[WeightPosterior], points: list[_Point], log_w: Array,
                      quantiles: Array) -> tuple[Components, Status]:
    weights = np.exp(log_w - np.logaddexp.reduce(log_w))
    keep = np.flatnonzero(weights > LEAST_WEIGHT * weights.max())
    short = [k for k in keep if points[k].status is not Status.CONVERGED]
    status = points[short[0]].status if weights[short].sum() > UNFINISHED else Status.CONVERGED
    return Components(weights[keep] / weights[keep].sum(), np.array([points[k].theta for k in keep]),
                      tuple(parts[k] for k in keep), quantiles), status


def _lattice(peak: Peak, A: Array, around: _Around) -> Averaged:
    """Every lattice point that can be reached from the peak without falling by `DROP`, and the rim around those.

    Where sums over it are not those over the density between its points (an sd of two groups has a long tail), the
    lattice is made finer.
    """
    d = len(A)
    work = peak.model.work()
    spacing = WIDEST[d] if work > EXPENSIVE else SPACING[d] * (WIDER if work > CHEAP else 1.0)
    values: dict[tuple[int, ...], float] = {}
    points: dict[tuple[int, ...], _Point] = {}
    for finer in range(FINER):
        whole = _walk_lattice(around, spacing, values, points)
        nodes = [node for node in points if values[node] >= max(values.values()) - DROP]
        log_w = np.array([values[node] for node in nodes])
        rough, z, *heights = _between_nodes(spacing, values, points)
        between, thetas = peak.model.at + z @ A.T, np.array([points[node].theta for node in nodes])
        density, plain = (np.exp(one - np.logaddexp.reduce(one)) for one in heights)
        if rough <= SURE:  # then it knows better than sums over the nodes
            own, inside = np.exp(log_w - np.logaddexp.reduce(log_w)), peak.model.theta.inside
            log_w = np.log(calibrated(inside(thetas), inside(between), own, density))
        error = np.inf if rough == np.inf else _moved_moments(peak, (thetas, np.exp(log_w)), (between, density))
        more = 2**d * len(values)
        parts, at = [points[node].part for node in nodes], spacing * np.array(nodes)
        inner = _moved_sd(peak.model, parts, at, log_w, z, density)
        if max(error, inner) <= UNEVEN or more > MOST_NODES[d] or more * work > MOST_WORK or finer == FINER - 1:
            break
        spacing *= 0.5
        values = {tuple(2 * k for k in node): value for node, value in values.items()}
        points = {tuple(2 * k for k in node): point for node, point in points.items()}
    components, status = _components([points[node] for node in nodes], log_w,
                                     marginal_quantiles(between, density, NARROW),
                                     marginal_quantiles(between, plain, NARROW), around.corrector.efficiency)
    cell = d * np.log(spacing if error == np.inf else spacing / BETWEEN) + float(np.linalg.slogdet(A)[1])
    evidence = float(np.logaddexp.reduce(heights[1])) + cell
    if error <= UNEVEN:
        components = replace(components, points=between, point_weights=density)
    if components.uncorrected is not None:
        gained = float(np.logaddexp.reduce(heights[0]) - np.logaddexp.reduce(heights[1]))
        components = replace(components, gain=gained + around.gain)
    shown, known = peak.model.theta.inside(thetas), np.array([values[node] for node in nodes])
    cut = sd_beyond(shown[:, 0], known, TAIL_BEGINS) if d == 1 else _cut_off(shown, known) if whole else OPEN_END
    components = replace(components, error=max(components.error, error if np.isfinite(error) else 0.0, cut))
    return Averaged(components, peak.objective + evidence, status if peak.converged else peak.status)


def _walk_lattice(around: _Around, spacing: float, values: dict[tuple[int, ...], float],
                  points: dict[tuple[int, ...], _Point]) -> bool:
    """Fill in ``values`` and ``points`` from the origin outwards; what is known already is not fitted again.

    Whether all that is within `DROP` of the best was reached before there were too many.
    """
    d = len(around.A)
    origin = (0,) * d
    queue: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(origin, origin)]
    asked, best = {origin}, 0.0
    while queue and len(values) < MOST_NODES[d]:
        node, parent = queue.pop(0)
        if node not in values and (low := _surely_low(node, parent, spacing, values, points)) is not None:
            values[node] = low
        elif node not in values:
            values[node], point = around(spacing * np.array(node, dtype=float))
            if point is not None:
                points[node] = point
        best = max(best, values[node])
        if node not in points or values[node] < best - DROP:
            continue
        for axis in range(d):
            for sign in (1, -1):
                near = tuple(k + (sign if i == axis else 0) for i, k in enumerate(node))
                if near not in asked:
                    asked.add(near)
                    queue.append((near, node))
    return not any(node not in values for node, _ in queue)


def _surely_low(node: tuple[int, ...], parent: tuple[int, ...], spacing: float, values: dict[tuple[int, ...], float],
                points: dict[tuple[int, ...], _Point]) -> float | None:
    """The value at a node by the slopes at the one or two before it, where much less of a fall would do to end there.
    """
    step = np.subtract(node, parent)
    before = tuple((np.array(parent) - step).tolist())
    if node == parent:
        return None
    slope = float(points[parent].slope @ step)
    bend = (slope - float(points[before].slope @ step)) / spacing if before in points else -1.0  # of a unit bowl
    fall = -spacing * (slope + 0.5 * spacing * bend)
    return values[parent] - fall if values[parent] - SHORTER * fall < max(values.values()) - DROP else None


def _between_nodes(spacing: float, values: dict[tuple[int, ...], float],
                   points: dict[tuple[int, ...], _Point]) -> tuple[float, Array, Array, Array]:
    """A lattice that is `BETWEEN` times finer, the objective there by a surrogate, and bound plus log prior alone.

    First the surrogate's own error, but for the noise of gains; where that is too large, inf and the nodes themselves.
    """
    nodes = [node for node in points if values[node] > max(values.values()) - 2.0 * DROP]
    z, heights = spacing * np.array(nodes, dtype=float), np.array([values[node] for node in nodes])
    plain = np.array([points[node].plain for node in nodes])
    gains, shares = heights - plain, np.exp(heights - heights.max())
    below = fit_surrogate(z, plain, shares, slopes=np.array([points[node].slope for node in nodes]))
    above = fit_surrogate(z, gains, shares) if gains.any() else None
    noise = 0.0 if not gains.any() else np.inf if above is None else above.error
    if below is None or np.hypot(below.error, noise) >= SMOOTH:
        return np.inf, z, heights, plain
    steps = spacing * ((np.arange(BETWEEN) + 0.5) / BETWEEN - 0.5)  # each node has its own cell
    cells = spacing * np.array([node for node, value in values.items() if value > heights.max() - 2.0 * DROP])
    fine = (cells[:, None] + np.array(list(product(steps, repeat=z.shape[1])))).reshape(-1, z.shape[1])
    lower = below(fine)
    return below.error, fine, lower if above is None else lower + above(fine), lower


def _moved_moments(peak: Peak, coarse: tuple[Array, Array], fine: tuple[Array, Array]) -> float:
    """By how much means, in sd, and sds of the hyperparameters differ between two sets of weighted points."""
    moments = []
    for theta, weights in (coarse, fine):
        shown = peak.model.theta.inside(theta)
        moments.append(mixture_moments(weights / weights.sum(), shown, np.zeros_like(shown)))
    (m, v), (mean, variance) = moments
    spread = variance > 0.0  # none at the limits of a search
    sd = np.sqrt(variance[spread])
    return float(np.maximum(np.abs(m - mean)[spread] / sd, np.abs(np.sqrt(v[spread]) / sd - 1.0)).max(initial=0.0))


def _moved_sd(model: Model, parts: Sequence[WeightPosterior], at: Array, log_w: Array, z: Array,
              density: Array) -> float:
    """The same for the sd of a coefficient: of the one whose variance hangs most on theta, followed between the nodes.

    Where correlations of a field may be 1, its level and the intercept are one: a few nodes have all the variance.
    Its mean is left alone: it moves with theta by the unit of time or the origin of a covariate.
    """
    index = np.arange(parts[0].size)[next(iter(getattr(model, "places", ())), slice(0))]
    weights = np.exp(log_w - np.logaddexp.reduce(log_w))
    known = None if len(z) == len(at) else uneven_variance(parts, index, at, weights)
    return 0.0 if known is None else abs(float(np.sqrt(density @ np.exp(known[1](z)) / (weights @ known[0]))) - 1.0)


def _cut_off(shown: Array, log_w: Array) -> float:
    """Error of an sd where a lattice of two parameters, too coarse to follow a tail, ends before its variance does."""
    weights = np.exp(log_w - np.logaddexp.reduce(log_w))
    squares = weights[:, None] * (shown - weights @ shown) ** 2
    last = squares[log_w < log_w.max() - DROP + LAST_NATS].sum(axis=0) / np.maximum(squares.sum(axis=0), 1e-300)
    return float(0.5 * last.max()) if last.max() > OPEN_END else 0.0


def _hermite(peak: Peak, A: Array, around: _Around) -> Averaged | None:
    """Three nodes of Gauss and Hermite along each axis, where fits are expensive and the objective is nearly a bowl.

    What it is off by at the nodes is weighed: the rule is exact to first order in that, and sds of the hyperparameters
    lose its square. A tilt of the evidence against the bound only moves the bowl. None where any of it is too much.
    """
    d = len(A)
    found = list[tuple[Array, float, float, _Point]]()
    stretch, tilt, bent = np.ones((d, 2)), np.zeros(d), 0.0
    nodes = sorted((np.array(node, dtype=float) for node in product((0, 1, -1), repeat=d)), key=np.count_nonzero)
    for node in nodes:
        value, point = around(HERMITE * node)
        square = 0.5 * HERMITE**2 * float(node @ node)
        if point is None or abs(point.plain + square) > BENT:
            return None
        found.append((HERMITE * node, float(np.prod(np.where(node == 0, 2.0 / 3.0, 1.0 / 6.0))), value, point))
        gained = value - point.plain
        if np.count_nonzero(node) == 1:
            axis, sign = int(np.argmax(np.abs(node))), int(node.sum())
            stretch[axis, int(sign > 0)] = HERMITE / np.sqrt(-2.0 * point.plain)
            tilt[axis] += 0.5 * sign * gained / HERMITE
            bent = max(bent, abs(point.plain + square))
        elif square:
            bent = max(bent, abs(value + square - HERMITE * float(tilt @ node)))
        if bent > BENT or np.abs(tilt).max() > TILTED:
            return None
    quantiles, by_bounds = (split_quantiles(peak.model.at, A, stretch, centre) for centre in (tilt, np.zeros(d)))
    points = [point for *_, point in found]
    volume = np.array([0.5 * float(place @ place) + np.log(share) for place, share, *_ in found])
    log_w = np.array([value for _, _, value, _ in found]) + volume
    components, status = _components(points, log_w, quantiles, by_bounds, around.corrector.efficiency)
    plain = np.array([point.plain for point in points]) + volume
    evidence = peak.objective + float(np.logaddexp.reduce(plain)) + 0.5 * d * np.log(2 * np.pi)
    return Averaged(replace(components, error=LOST * bent**2), evidence + float(np.linalg.slogdet(A)[1]),
                    status if peak.converged else peak.status)


def worth_integrating(model: Any) -> bool:
    """Whether integrating costs little: by counts, not by the clock, so that the answer is the same anywhere."""
    d = model.theta.size
    if d > MOST_INTEGRATED:
        return False
    work = model.work()
    if d <= 2 and work > EXPENSIVE and model.information() is not None:  # many levels: nearly a bowl
        return bool((2 * d + 3**d - 1) * work <= MOST_WORK)
    points = 12 if d == 1 else 55 if d == 2 else 2**d + 4 * d if d <= 4 else 8 * d if d <= 8 else MOST_POINTS
    return bool(points * work <= MOST_WORK)

