"""Hyperparameters integrated out by adaptive importance sampling, with its own verdict.

The first points come from a t around the mode, split along the axes of the curvature as the objective falls to either
side, and from one around zero for every sd that may be zero, whose log would have a tail without an end. A surrogate of
the objective has to predict it at points of its own choice; while it cannot, t's are fitted to the weighted points and
more are drawn, up to a limit. All points count, each against the mixture of all proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from klimb.infer.result import Status
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import Components, marginal_quantiles
from klimb.models.correction import Corrector, lent, pooled, shown_parts
from klimb.models.fitted_theta import ThetaFit, ThetaPoints
from klimb.models.sampled_theta import (
    BEYOND,
    COMPONENTS,
    FALL,
    FEWER,
    GOOD_KHAT,
    SMOOTH,
    SampledTheta,
    UnevenVariance,
    bent,
    calibrated,
    kept_points,
    mixture_log_density,
    smoothed_points,
)
from klimb.models.search import Evaluator, Peak, Stopped
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import smooth_log_weights
from klimb.numerics.proposals import SplitStudent, StudentMixture, fit_students, students_at
from klimb.numerics.surrogate import quadratics

SPARING = 128  # points that may be had below which fits are so expensive that as few as possible are made
ENOUGH_EFFECTIVE = 500.0  # effective points that are enough whatever the share
KEPT = 128  # points whose posterior of the weights is kept
KEPT_CORRECTED = 64  # the same where each has to be corrected
PROBE = 2.0  # where along an axis the width is measured, in sd
WIDTHS = (0.4, 4.0)  # least and most of it
LOW, WIDER = 8, 1.5  # points where such an sd is nearly zero, and the spread of the others there over that at the mode
TESTED, TESTS, MOST_TESTS = 48, 3, 5  # points of its own choice after a first test by fewer; how often it may try
TAILS = 0.05  # error of a printed sd that is looked for where it rests on tails, although theta is known well
EASY = 0.2  # error of such a test, of first draws without long tails, up to which half more points than it had do
LAST, LONG = 0.01, 0.12  # mass of the most extreme values, and the share of a variance that makes it a long tail
STEPS, NOTHING = 6, 4.0  # fits along such a tail, and nats below its best at which what it adds to a variance ends
CLIMBS, CLIMBED = 3, 0.25  # fits at most that climb to the ridge again, and nats from which they do
HEAVY, MOST_HEAVY = 0.02, 8  # share of a variance at one point of many from which it is fitted, and how many are
AGREED = 0.2  # nats that a surrogate may claim too much there
SURE = 0.04  # error of a surrogate of the log of a variance from which fits go where that variance is
HALF = 0.5  # the same for what is printed, whose tails a test teaches most of


def adaptively(peak: Peak, axes: Array, evaluate: Evaluator, most: int,
               corrector: Corrector) -> tuple[float, Components, Status]:
    """The log evidence by q's bounds, relative to the peak, from rounds of points; components."""
    points = ThetaPoints(peak, axes, evaluate, most, corrector)
    found = _sampled(peak, axes, points, most)
    components, status = _components(found, points, axes)
    bound = found.by_bounds.log_evidence()
    return bound, replace(components, gain=found.log_evidence() - bound + points.gain), status


def _sampled(peak: Peak, axes: Array, points: ThetaPoints, most: int) -> SampledTheta:
    """Rounds of points, each from t's fitted to the weights so far, until a surrogate of the objective holds."""
    d, mode = len(axes), points.coordinates.place(peak.model.at)
    axes = points.coordinates.slopes(mode)[:, None] * axes
    fold, more = points.coordinates.folded, 0 if most < SPARING else 2 * d
    fresh: list[tuple[int, Any]] = [(quadratics(mode[None]).size + more, fold(_first_proposal(mode, axes, points)))]
    fresh += [(LOW, fold(one)) for one in _near_zero(mode, axes, points)]
    proposals, drawn, error, walked = list[tuple[int, Any]](), np.zeros(0, dtype=np.intp), float("nan"), None
    blind = looser = False  # whether tails were walked along without a surrogate, and how small errors have to be
    while True:
        new = np.vstack([one.draws(count, seed=k) for k, (count, one) in enumerate(fresh, len(proposals) + 1)])
        proposals += fresh
        drawn = np.concatenate([drawn, len(points.fits) + np.arange(len(new))])
        for one in new:
            points.objective(one)
        found = replace(_weighted(points, drawn, proposals), error=error, walked=walked)
        looser |= 2 * len(drawn) > most  # there are no more draws for smaller ones
        for number in range(MOST_TESTS):
            if number >= TESTS and not error <= 2.0 * SMOOTH:
                break  # more are for what is nearly good enough, and for tails
            few = 2 * d + 4 + more
            easy = proposals == fresh and found.error <= EASY and walked is not None and not len(walked)
            count = few if not (more and found.error > SMOOTH) else 3 * few // 2 if easy else TESTED
            tested = _tested(found, points, count)
            if tested is None:
                blind |= walked is None
                walked = _walk_tails(found, points) if walked is None else walked
                break
            found = replace(tested, before=found.error)
            error = found.error
            if walked is None and len(walked := _walk_tails(found, points)):
                found = replace(found, **points.known(), walked=walked)
            elif error <= SMOOTH and points.theta.sharp.any() and found.stated > TAILS and number + 1 < MOST_TESTS:
                continue  # what is printed rests on tails beyond all fits: the next test goes there
            elif error <= (1.0 + looser) * SMOOTH and (found := _verified(replace(found, smooth=True), points)).smooth:
                if not blind:
                    return found
                found, change = _farther(found, points)
                blind, walked = False, found.walked
                if change <= TAILS:
                    return found
                found, looser = replace(found, smooth=False), True
        if 2 * len(drawn) > most or (found.khat < GOOD_KHAT and found.n_effective >= ENOUGH_EFFECTIVE):
            return found
        floor = 0.05 * axes @ axes.T
        seen = found.mass(smoothed_points(found, BEYOND, FEWER))  # by tests too: few draws may miss a tail
        fresh = [(len(drawn), fold(fit_students(*seen, COMPONENTS, floor)))]
        found = replace(found, **points.known())
        if walked is not None and len(tail := found.theta[walked[found.values[walked] > found.values.max() - FALL]]):
            root = np.linalg.cholesky(floor + np.cov(found.drawn_theta.T, aweights=found.weights))
            fresh.append((len(drawn) // 4, fold(students_at(tail, np.asarray(root, dtype=float)))))


def _tested(found: SampledTheta, points: ThetaPoints, count: int) -> SampledTheta | None:
    """With the objective at points that the surrogate hangs on, and what they change; None without a surrogate.

    Half of the points are spread wider than the mass that it sees, half are those that the sds of what is printed hang
    on: far out in the tails. ``error`` is by how much they would change a mean, in sd, or an sd.
    """
    smoothed = smoothed_points(found, BEYOND, FEWER)
    if smoothed is None:
        return None
    w, heights = smoothed.weights, smoothed.heights
    away = _standardised(points.theta.inside(points.coordinates.theta(smoothed.theta)), w)
    printed = np.column_stack(list(points.theta.reported(points.coordinates.theta(smoothed.theta)).values()))
    # What may be infinite may have no moments as it is printed.
    shown = np.where(points.theta.powers < 0.0, away, _standardised(printed, w))
    wide, pull = w * np.exp(-0.5 * (heights - heights.max())), w * (away**2).max(axis=1)
    if found.error <= SMOOTH:  # of what has its prior as it is printed: the rest moves with a covariate's origin
        pull += w * (shown[:, points.theta.sharp] ** 2).max(axis=1, initial=0.0)
    chance = 0.5 * (wide / wide.sum() + pull / pull.sum())
    chosen = _evenly(chance, count)
    once, again = np.unique(chosen, return_inverse=True)  # one point may have the mass of several
    values = np.array([points.objective(one) for one in smoothed.theta[once]])[again]
    # Weights of the chosen points under the objective less those under the surrogate.
    change = (w / chance)[chosen] / count * np.expm1(np.clip(values - heights[chosen], -FALL, FALL))
    errors = []
    for own in (away, shown):
        effects = change[:, None] * np.hstack([own[chosen], 0.5 * (own[chosen] ** 2 - 1.0)])
        errors.append(float((np.abs(effects.sum(axis=0)) + np.sqrt((effects**2).sum(axis=0))).max(initial=0.0)))
    # What sds would lose without the outermost points, and half of it where these have predicted their test.
    edge = (0.25 if errors[0] <= SMOOTH else 0.5) * float((w * smoothed.beyond @ shown**2).max(initial=0.0))
    return replace(found, **points.known(), error=errors[0], stated=max(errors[0], HALF * errors[1], edge))


def _verified(found: SampledTheta, points: ThetaPoints) -> SampledTheta:
    """With fits at the few places that much of some variance rests on by the surrogate; smooth where they agree."""
    for _ in range(TESTS):
        smoothed = smoothed_points(found, BEYOND)
        if smoothed is None:
            break
        theta = points.coordinates.theta(smoothed.theta)
        away = _standardised(points.theta.inside(theta), smoothed.weights)  # which no origin of a covariate moves
        pull = (smoothed.weights[:, None] * away**2).max(axis=1)
        heavy = np.argsort(-pull, kind="stable")[: min(MOST_HEAVY, np.count_nonzero(pull > HEAVY))]
        claims = [smoothed.heights[k] - points.objective(smoothed.theta[k]) for k in heavy]
        found = replace(found, **points.known())
        if max(claims, default=0.0) <= AGREED:
            return found
    return replace(found, smooth=False)


def _walk_tails(found: SampledTheta, points: ThetaPoints) -> Any:
    """Fits along the tails that printed sds rest on, or where a surrogate does not say, along all; their places."""
    smoothed, before = smoothed_points(found, BEYOND, FEWER), len(points.fits)
    places, w = found.mass(smoothed)
    theta = points.coordinates.theta(places)
    entries = (pair for block in points.theta.blocks for pair in zip(block.alone(), block.endless(), strict=True))
    for j, (alone, endless) in enumerate(entries):
        if alone is not None:
            printed = alone(theta[:, j])
            pull = w * _standardised(printed[:, None], w)[:, 0] ** 2
            order = np.argsort(-pull / w, kind="stable")
            if smoothed is None or endless or pull[order[np.cumsum(w[order]) <= LAST]].sum() > LONG:
                _walk(points, j, theta, w, pull, alone)
    return np.arange(before, len(points.fits))


def _farther(found: SampledTheta, points: ThetaPoints) -> tuple[SampledTheta, float]:
    """With walks along long tails once more, now that a surrogate says where they begin, and how they change an sd."""
    tail = _walk_tails(found, points)
    if not len(tail):
        return found, 0.0
    longer = replace(found, **points.known(), walked=np.concatenate([found.walked, tail]))
    sds = []
    for one in (found, longer):
        theta, w = one.mass(smoothed_points(one, BEYOND))
        shown = np.column_stack(list(points.theta.reported(points.coordinates.theta(theta)).values()))
        sds.append(np.sqrt(w @ (shown - w @ shown) ** 2))
    change = float(np.abs(np.log(sds[1] / sds[0])).max())
    return replace(longer, stated=max(found.stated, change)), change


def _walk(points: ThetaPoints, j: int, theta: Array, weights: Array, pull: Array,
          alone: Callable[[Array], Array]) -> None:
    """Fits from where most of a variance comes from outwards, along the ridge, until nothing more comes."""
    pull, centre = pull / pull.sum(), float(weights @ alone(theta[:, j]))
    at, mean = pull @ theta, weights @ theta
    spread, own = (theta - mean).T @ (weights[:, None] * (theta - mean)), theta - at
    across = spread - np.outer(spread[j], spread[j]) / spread[j, j]  # of the others once entry j is known
    step, best = np.sign(at[j] - mean[j]) * (pull * own[:, j]) @ own / np.sqrt(pull @ own[:, j] ** 2), -np.inf
    most, before = np.sqrt(np.diagonal(spread)), at
    for number in range(STEPS):
        at, fit, across = _climbed(points, at, across, most)
        adds = fit.plain + fit.gain + 2.0 * float(np.log(np.abs(alone(at[j]) - centre) + 1e-300))
        best = max(best, adds)
        if not adds > best - NOTHING:
            return
        step = at - before if number else step
        before, at = at, at + step


def _climbed(points: ThetaPoints, at: Array, inverse: Array, most: Array) -> tuple[Array, ThetaFit, Array]:
    """The best of few fits that climb by the inverse curvature of all but one entry of theta, which they improve."""
    points.objective(points.coordinates.place(at))
    fit = points.fits[-1]
    for _ in range(CLIMBS):
        slope = np.nan_to_num(fit.slope)
        uphill = inverse @ slope
        if not slope @ uphill > 2.0 * CLIMBED:
            break
        uphill /= max(1.0, float(np.abs(uphill / most).max()))
        points.objective(points.coordinates.place(at + uphill))
        other = points.fits[-1]
        fall = slope - np.nan_to_num(other.slope)
        if (turn := float(uphill @ fall)) > 0.0:
            turned = np.eye(len(at)) - np.outer(uphill, fall) / turn
            inverse = turned @ inverse @ turned.T + np.outer(uphill, uphill) / turn
        if other.plain + other.gain > fit.plain + fit.gain:
            at, fit = at + uphill, other
    return at, fit, inverse


def _standardised(values: Array, weights: Array) -> Array:
    away = values - weights @ values
    return np.asarray(away / np.maximum(np.sqrt(weights @ away**2), 1e-300))


def _evenly(weights: Array, count: int) -> Any:
    """Places of ``count`` points that share the mass evenly."""
    return np.minimum(np.searchsorted(np.cumsum(weights), (np.arange(count) + 0.5) / count), len(weights) - 1)


def _first_proposal(mode: Array, axes: Array, points: ThetaPoints) -> SplitStudent:
    d, top = len(axes), points.objective(mode)
    widths = np.empty((d, 2))
    for k in range(d):
        for side, sign in enumerate((-1.0, 1.0)):
            fall = top - points.objective(points.coordinates.inside(mode + sign * PROBE * axes[:, k]))
            widths[k, side] = np.clip(PROBE / np.sqrt(2.0 * max(fall, 1e-3)), *WIDTHS)
    return SplitStudent(mode, axes, widths)


def _near_zero(mode: Array, axes: Array, points: ThetaPoints) -> list[StudentMixture]:
    """A t around zero of every half line, as wide as half the way from there to the mode."""
    covariance, found = axes @ axes.T, []
    for j in np.flatnonzero(~np.isnan(points.coordinates.centre)):
        centre = np.where(np.arange(len(mode)) == j, 0.0, mode)
        spread = WIDER**2 * (covariance - np.outer(covariance[j], covariance[j]) / covariance[j, j])
        spread[j, j] += (0.5 * mode[j]) ** 2
        found.append(StudentMixture(np.ones(1), centre[None], np.linalg.cholesky(spread)[None]))
    return found


def _weighted(points: ThetaPoints, drawn: Any, proposals: list[tuple[int, Any]]) -> SampledTheta:
    """Weights of the drawn points against the mixture of all proposals, each counted as often as it drew."""
    known = points.known()
    log_w = known["values"][drawn] - mixture_log_density(known["theta"][drawn], proposals)
    if not np.isfinite(log_w).any():
        raise Stopped
    log_w = np.where(np.isfinite(log_w), log_w, -np.inf)
    smoothed = smooth_log_weights(log_w)
    theta, w = points.coordinates.theta(known["theta"][drawn]), smoothed.normalised
    square = _standardised(points.shown(theta), w) ** 2
    own = 0.5 * float(np.sqrt(((w[:, None] * (square - 1.0)) ** 2).sum(axis=0)).max())
    return SampledTheta(points.coordinates, drawn=drawn, log_weights=log_w, khat=smoothed.khat, own_error=own,
                        n_effective=smoothed.effective, proposals=tuple(proposals), sharp_part=points.sharp_part,
                        **known)


def _followed(found: SampledTheta, points: ThetaPoints, inverse: Any) -> tuple[SampledTheta, UnevenVariance | None]:
    """With fits where a variance is that hangs on theta, and that variance; None where no q's are remembered."""
    for last in (False, False, True):
        mass = found.shares(inverse)
        some = np.flatnonzero(mass > 0.0)
        parts = [fit[0] for k in some if (fit := points.fits[k].part) is not None]
        if len(parts) < len(some):
            return found, None
        variance = UnevenVariance.of(parts, found.theta[some], mass[some])
        if last or variance is None or found.smoothed is None or variance.logs.error <= SURE:
            break
        pull = found.smoothed.weights * variance(places := found.smoothed.theta)
        for k in np.unique(_evenly(pull / pull.sum(), 2 * places.shape[1] + 4)):
            points.objective(places[k])
        found = replace(found, **points.known())
    return found, variance


def _components(found: SampledTheta, points: ThetaPoints, axes: Array) -> tuple[Components, Status]:
    """Components whose thetas are an even choice of the points by their weights, and marginals from all points."""
    count, inverse = KEPT_CORRECTED if points.corrector.wanted else KEPT, np.linalg.inv(axes)
    found, variance = _followed(found, points, inverse)
    chosen, shares = kept_points(found.theta, found.shares(inverse), inverse, count, variance)
    every = [(k, share, at) for k, share in zip(chosen, shares, strict=True) if (at := points.part(k)) is not None]
    theta, w = found.theta[[k for k, _, _ in every]], np.array([share for _, share, _ in every])
    status = next((at[1] for _, _, at in every if at[1] is not Status.CONVERGED), Status.CONVERGED)
    plain = tuple(at[0] for _, _, at in every)
    variance = UnevenVariance.of(plain, theta, w) if variance is None else variance
    corrections = lent(plain, [at[2] for _, _, at in every], theta)
    known = [(share, one) for (_, share, _), one in zip(every, corrections, strict=True) if one is not None]
    if not known:
        shown = _with_marginals(found, points, theta, w, plain, variance)
        return replace(shown, efficiency=points.corrector.efficiency), status
    own = np.exp(-found.gains[[k for k, _, _ in every]])
    uncorrected = _with_marginals(found.by_bounds, points, theta, w * own, plain, variance)
    flat = [(k, own * share, part) for (k, own, at), one in zip(every, corrections, strict=True)
            for share, part in shown_parts(one, at[0])]
    theta, w = found.theta[[k for k, _, _ in flat]], np.array([share for _, share, _ in flat])
    shown = _with_marginals(found, points, theta, w, tuple(part for _, _, part in flat), variance)
    kept = pooled([one for _, one in known], np.array([share for share, _ in known]))
    return replace(shown, uncorrected=uncorrected, **{**kept, "error": max(shown.error, kept["error"])}), status


def _with_marginals(found: SampledTheta, points: ThetaPoints, theta: Array, w: Array,
                    parts: tuple[WeightPosterior, ...], variance: UnevenVariance | None) -> Components:
    smoothed, khat, effective, error = found.smoothed, found.khat, found.n_effective, found.own_error
    many, many_weights = found.mass(smoothed)
    error = error if smoothed is None else float(np.nanmax([found.learnt, found.stated]))
    if smoothed is not None and found.smooth:
        khat, effective = smoothed.khat, smoothed.n_effective
    limits = points.theta.lower, points.theta.upper  # beyond them the objective is that at the limit, less a penalty
    every, kept = (np.clip(found.coordinates.theta(one), *limits) for one in (many, theta))
    few, others = bent(points.theta.inside(kept), points.theta.inside(every), many_weights)
    w = calibrated(few, others, w / w.sum(), many_weights)
    if variance is not None:
        w, left = variance.weighed((theta, few, w), (many, others, many_weights))
        error = float(np.nanmax([error, left]))
    return Components(w, kept, parts, marginal_quantiles(every, many_weights), khat=khat, n_effective=effective,
                      points=every, point_weights=many_weights, error=error)
