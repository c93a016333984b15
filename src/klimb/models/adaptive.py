"""Hyperparameters integrated out by adaptive importance sampling, with its own verdict.

The first points come from a t around the mode, split along the axes of the curvature as the objective falls to either
side, and from one around zero for every sd that may be zero, whose log would have a tail without an end. A surrogate of
the objective has to predict it at points of its own choice; while it cannot, t's are fitted to the weighted points and
more are drawn, up to a limit. All points count, each against the mixture of all proposals it could have come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from klimb.infer.result import Status
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import Components, marginal_quantiles
from klimb.models.correction import Corrector
from klimb.models.sampled_theta import COMPONENTS, FALL, GOOD_KHAT, SMOOTH, Proposals, SampledTheta, SmoothedTheta
from klimb.models.search import Evaluator, Peak, Stopped
from klimb.models.theta_points import ThetaPoints, others_given, uphill, with_corrections
from klimb.numerics.arrays import Array
from klimb.numerics.proposals import SplitStudent, StudentMixture, fit_students
from klimb.numerics.surrogate import nearest_of, quadratics

SPARING = 128  # points that may be had below which fits are so expensive that as few as possible are made
ENOUGH_EFFECTIVE = 500.0  # effective points that are enough whatever the share
KEPT = 128  # points whose posterior of the weights is kept
KEPT_CORRECTED = 64  # the same where each has to be corrected
PROBE = 2.0  # where along an axis the width is measured, in sd
WIDTHS = (0.4, 4.0)  # least and most of it
LOW = 8  # points where an sd that may be zero nearly is
TESTED, TESTS = 48, 3  # points of its own choice after a first test by fewer, and how often it may try
LAST, LONG = 0.01, 0.12  # mass of the most extreme values, and the share of a variance that makes it a long tail
STEPS, NOTHING = 6, 4.0  # fits along such a tail, and nats below its best at which what it adds to a variance ends
HEAVY, MOST_HEAVY = 0.02, 8  # share of a variance at one point of many from which it is fitted, and how many are
AGREED = 0.2  # nats that a surrogate may claim too much there
SETTLED = 4  # steps to weights of few points that have the moments of many
HALF = 0.5  # of what a test says of printed sds is stated: it teaches most of their tails


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
    fresh += [(LOW, fold(one)) for one in points.near_zero(mode, axes)]
    proposals, drawn, error = Proposals(()), np.zeros(0, dtype=np.intp), float("nan")
    walked: Any = None
    while True:
        new = np.vstack([one.draws(count, seed=k) for k, (count, one) in enumerate(fresh, len(proposals.parts) + 1)])
        proposals = Proposals((*proposals.parts, *fresh))
        drawn = np.concatenate([drawn, len(points.fits) + np.arange(len(new))])
        for one in new:
            points.objective(one)
        found = replace(_weighted(points, drawn, proposals), error=error, walked=walked)
        for _ in range(TESTS):
            smoothed = found.surrogate
            if smoothed is not None:
                found = _tested(found, smoothed, points, TESTED if more and error > SMOOTH else 2 * d + 4 + more)
                error = found.error
            if walked is None:
                walked = _walk_tails(found, smoothed, points)
            found = replace(found, **points.known(), walked=walked)
            if smoothed is None:
                break
            if error <= SMOOTH and (found := _verified(replace(found, smooth=True), points)).smooth:
                return found
        if 2 * len(drawn) > most or (found.khat < GOOD_KHAT and found.n_effective >= ENOUGH_EFFECTIVE):
            return found
        floor = 0.05 * axes @ axes.T
        fresh = [(len(drawn), fold(fit_students(found.drawn_theta, found.weights, COMPONENTS, floor)))]
        if len(tail := found.theta[walked[found.values[walked] > found.values.max() - FALL]]):
            root = np.linalg.cholesky(floor + np.cov(found.drawn_theta.T, aweights=found.weights))
            along = StudentMixture(np.full(len(tail), 1.0 / len(tail)), tail, np.tile(root, (len(tail), 1, 1)))
            fresh.append((len(drawn) // 4, fold(along)))


def _tested(found: SampledTheta, smoothed: SmoothedTheta, points: ThetaPoints, count: int) -> SampledTheta:
    """With what the objective at points that the surrogate hangs on changes.

    Half of the points are spread wider than the mass that it sees, half are those that the sds of what is printed hang
    on: far out in the tails. ``error`` is by how much they would change a mean, in sd, or an sd.
    """
    w, heights = smoothed.weights, smoothed.heights
    away = _standardised(points.inside(smoothed.theta), w)
    wide, pull = w * np.exp(-0.5 * (heights - heights.max())), w * (away**2).max(axis=1)
    chance = 0.5 * (wide / wide.sum() + pull / pull.sum())
    chosen = _evenly(chance, count)
    values = np.array([points.objective(one) for one in smoothed.theta[chosen]])
    # Weights of the chosen points under the objective less those under the surrogate.
    change = (w / chance)[chosen] / count * np.expm1(np.clip(values - heights[chosen], -FALL, FALL))
    # What may be infinite may have no moments as it is printed.
    errors, shown = [], np.where(points.theta.powers < 0.0, away, _standardised(points.printed(smoothed.theta), w))
    edge = 0.5 * float((w * smoothed.beyond @ shown**2).max(initial=0.0))  # what sds would lose without the outermost
    for own in (away, shown):
        effects = change[:, None] * np.hstack([own[chosen], 0.5 * (own[chosen] ** 2 - 1.0)])
        errors.append(float((np.abs(effects.sum(axis=0)) + np.sqrt((effects**2).sum(axis=0))).max(initial=0.0)))
    return replace(found, error=errors[0], stated=max(errors[0], HALF * errors[1], edge))


def _verified(found: SampledTheta, points: ThetaPoints) -> SampledTheta:
    """With fits at the few places that much of some variance rests on by the surrogate; smooth where they agree."""
    for _ in range(TESTS):
        smoothed = found.surrogate
        if smoothed is None:
            break
        away = _standardised(points.inside(smoothed.theta), smoothed.weights)  # which no origin of a covariate moves
        pull = (smoothed.weights[:, None] * away**2).max(axis=1)
        heavy = np.argsort(-pull, kind="stable")[: min(MOST_HEAVY, np.count_nonzero(pull > HEAVY))]
        claims = [smoothed.heights[k] - points.objective(smoothed.theta[k]) for k in heavy]
        found = replace(found, **points.known()) if claims else found
        if max(claims, default=0.0) <= AGREED:
            return found
    return replace(found, smooth=False)


def _walk_tails(found: SampledTheta, smoothed: SmoothedTheta | None, points: ThetaPoints) -> Any:
    """Fits along the tails that printed sds rest on, or where a surrogate does not say, along all; their places."""
    before = len(points.fits)
    places, w = found.heavy if smoothed is None else (smoothed.theta, smoothed.weights)
    theta = points.coordinates.theta(places)
    for j, alone in enumerate(alone for block in points.theta.blocks for alone in block.alone()):
        if alone is not None and not points.infinite[j]:
            printed = alone(theta[:, j])
            pull = w * _standardised(printed[:, None], w)[:, 0] ** 2
            order = np.argsort(-pull / w, kind="stable")
            if smoothed is None or pull[order[np.cumsum(w[order]) <= LAST]].sum() > LONG:
                _walk(points, j, theta, w, pull, alone)
    return np.arange(before, len(points.fits))


def _walk(points: ThetaPoints, j: int, theta: Array, weights: Array, pull: Array,
          alone: Callable[[Array], Array]) -> None:
    """Fits from where most of a variance comes from outwards, along the ridge, until nothing more comes."""
    pull, centre = pull / pull.sum(), float(weights @ alone(theta[:, j]))
    at, mean = pull @ theta, weights @ theta
    spread, own = (theta - mean).T @ (weights[:, None] * (theta - mean)), theta - at
    across = others_given(spread, j)
    along = (pull * own[:, j]) @ own / (pull @ own[:, j] ** 2)
    step, best = np.sign(at[j] - mean[j]) * float(np.sqrt(pull @ own[:, j] ** 2)) * along, -np.inf
    for _ in range(STEPS):
        points.objective(points.coordinates.place(at))
        fit = points.fits[-1]
        adds = fit.plain + fit.gain + 2.0 * float(np.log(np.abs(alone(at[j]) - centre) + 1e-300))
        best = max(best, adds)
        if not adds > best - NOTHING:
            return
        at = at + step + uphill(across, fit.slope)


def _standardised(values: Array, weights: Array) -> Array:
    away = values - weights @ values
    return np.asarray(away / np.maximum(np.sqrt(weights @ away**2), 1e-300))


def _evenly(weights: Array, count: int) -> Any:
    """Places of ``count`` points that share the mass evenly."""
    return np.minimum(np.searchsorted(np.cumsum(weights), (np.arange(count) + 0.5) / count), len(weights) - 1)


def _first_proposal(mode: Array, axes: Array, points: ThetaPoints) -> SplitStudent:
    d, top = len(axes), float(points.coordinates.log_volume(mode))
    widths = np.empty((d, 2))
    for k in range(d):
        for side, sign in enumerate((-1.0, 1.0)):
            fall = top - points.objective(points.coordinates.inside(mode + sign * PROBE * axes[:, k]))
            widths[k, side] = np.clip(PROBE / np.sqrt(2.0 * max(fall, 1e-3)), *WIDTHS)
    return SplitStudent(mode, axes, widths)


def _weighted(points: ThetaPoints, drawn: Any, proposals: Proposals) -> SampledTheta:
    """Weights of the drawn points against the mixture of all proposals, each counted as often as it drew."""
    known = points.known()
    log_w = known["values"][drawn] - proposals.log_density(known["theta"][drawn])
    if not np.isfinite(log_w).any():
        raise Stopped
    log_w = np.where(np.isfinite(log_w), log_w, -np.inf)
    found = SampledTheta(points.coordinates, drawn=drawn, log_weights=log_w, proposals=proposals, **known)
    shown = np.hstack([of(found.drawn_theta) for of in (points.inside, points.printed)])
    effects = found.weights[:, None] * (_standardised(shown, found.weights) ** 2 - 1.0)
    own = 0.5 * float(np.sqrt((effects**2).sum(axis=0)).max())
    return replace(found, own_error=own)


def _shares(found: SampledTheta, inverse: Any) -> Array:
    """What each fit stands for: the mass that is nearest to it by a surrogate, else its own weight."""
    if found.smoothed is None:
        shares = np.zeros(len(found.theta))
        shares[found.drawn] = found.weights
        return shares
    fitted = np.flatnonzero(np.isfinite(found.values))
    nearest = nearest_of(found.smoothed.theta @ inverse.T, found.theta[fitted] @ inverse.T)
    return np.asarray(np.bincount(fitted[nearest], found.smoothed.weights, minlength=len(found.theta)), dtype=float)


def calibrated(theta: Array, weights: Array, many: Array, many_weights: Array) -> Array:
    """Weights of a few points, changed least so that first and second moments of theta are those of many points."""
    centre = many_weights @ many
    sd = np.sqrt(many_weights @ (many - centre) ** 2) + 1e-300
    phi, goal = quadratics((theta - centre) / sd), many_weights @ quadratics((many - centre) / sd)
    d = theta.shape[1]
    squares = [0, *range(1, d + 1), *(d + 1 + np.flatnonzero(np.equal(*np.triu_indices(d))))]
    for kept in (slice(None), squares, slice(d + 1)):  # all moments, those without products, or means alone
        if 2 * phi[:, kept].shape[1] <= len(theta):
            phi, goal = phi[:, kept], goal[kept]
            break
    else:
        return weights
    # w_i (1 + lambda' phi_i) has the moments that it shall have; weights stay positive, which takes further steps.
    own = weights
    for _ in range(SETTLED):
        scale = np.linalg.lstsq(phi.T @ (own[:, None] * phi), goal - own @ phi, rcond=1e-10)[0]
        own = np.clip(own * (1.0 + phi @ scale), 0.2 * weights, 5.0 * weights)
    return np.asarray(own / own.sum())


def _components(found: SampledTheta, points: ThetaPoints, axes: Array) -> tuple[Components, Status]:
    """Components whose thetas are an even choice of the points by their weights, and marginals from all points."""
    count, inverse = KEPT_CORRECTED if points.corrector.wanted else KEPT, np.linalg.inv(axes)
    chosen, shares = _even_choice(found.theta, _shares(found, inverse), inverse, count)
    every = [(found.theta[k], share, found.gains[k], *at) for k, share in zip(chosen, shares, strict=True)
             if (at := points.part(k)) is not None]
    status = next((one for *_, one, _ in every if one is not Status.CONVERGED), Status.CONVERGED)

    def make(theta: Array, weights: Array, parts: tuple[WeightPosterior, ...], plain: bool) -> Components:
        return _with_marginals(found.by_bounds if plain else found, points, theta, weights, parts)

    kept = [(theta, share, gain, part, own) for theta, share, gain, part, _, own in every]
    return with_corrections(kept, make, points.corrector.efficiency), status


def _with_marginals(found: SampledTheta, points: ThetaPoints, theta: Array, w: Array,
                    parts: tuple[WeightPosterior, ...]) -> Components:
    smoothed, khat, effective = found.smoothed, found.khat, found.n_effective
    error = found.own_error if smoothed is None else float(np.nanmax([found.error, found.stated, 0.0]))
    many, many_weights = found.heavy if smoothed is None else (smoothed.theta, smoothed.weights)
    if smoothed is not None and found.smooth:
        khat, effective = smoothed.khat, smoothed.n_effective
    every, kept = found.coordinates.theta(many), found.coordinates.theta(theta)
    w = calibrated(points.theta.inside(kept), w / w.sum(), points.theta.inside(every), many_weights)
    kept = np.clip(kept, points.theta.lower, points.theta.upper)
    return Components(w, kept, parts, marginal_quantiles(every, many_weights), khat=khat, n_effective=effective,
                      points=every, point_weights=many_weights, error=error)


def _even_choice(theta: Array, weights: Array, inverse: Any, count: int) -> tuple[Any, Array]:
    """Systematic resampling along the longest direction: ``count`` points of equal weight, repeated ones merged."""
    if (weights > 0).sum() <= count:
        keep = np.flatnonzero(weights > 1e-6 * weights.max())
        return keep, weights[keep] / weights[keep].sum()
    z = (theta - weights @ theta) @ inverse.T
    spread = z.T @ (weights[:, None] * z)
    along = z @ np.linalg.eigh(spread)[1][:, -1]
    order = np.argsort(along, kind="stable")
    edges = np.cumsum(weights[order])
    picks = order[np.minimum(np.searchsorted(edges, (np.arange(count) + 0.5) / count), len(order) - 1)]
    chosen, counts = np.unique(picks, return_counts=True)
    return chosen, counts / count
