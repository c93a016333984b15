"""Hyperparameters integrated out by adaptive importance sampling, with its own verdict.

The first points come from a t around the mode, split along the axes of the curvature as the objective falls to either
side, and from one around zero for every sd that may be zero, whose log would have a tail without an end. A surrogate of
the objective has to predict it at points of its own choice; while it cannot, t's are fitted to the weighted points and
more are drawn, up to a limit. All points count, each against the mixture of all proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from klimb.errors import KlimbError
from klimb.infer.result import Status
from klimb.infer.start import sites_of_fit
from klimb.latents.base import Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import Components, marginal_quantiles
from klimb.models.correction import Correction, Corrector, evidence_alone, lent, pooled, shown_parts
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
from klimb.models.search import POINT_TOL, Evaluated, Evaluator, HigherGround, Peak, Stopped, within_limits
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import smooth_log_weights
from klimb.numerics.proposals import HalfLines, SplitStudent, StudentMixture, fit_students
from klimb.numerics.surrogate import quadratics
from klimb.theta import Theta

SPARING = 128  # points that may be had below which fits are so expensive that as few as possible are made
ENOUGH_EFFECTIVE = 500.0  # effective points that are enough whatever the share
KEPT = 128  # points whose posterior of the weights is kept
KEPT_CORRECTED = 64  # the same where each has to be corrected
PROBE = 2.0  # where along an axis the width is measured, in sd
WIDTHS = (0.4, 4.0)  # least and most of it
FAR, FARTHER = 4.0, 2.0  # where a lower tail is looked at: in sd below the mode, and further down in theta
SLOW, SLOPE = 7.0, 3.0  # fall in nats up to there, and beyond it per unit of theta, below which an sd may be zero
NO_SLOPE = 0.03  # coordinates that may be zero, below which gradients in them are differences of large numbers
LOW, WIDER = 8, 1.5  # points where such an sd is nearly zero, and the spread of the others there over that at the mode
HIGHER = 0.5  # nats above the peak from which another one is climbed
MEMORY = 2e8  # bytes of posteriors of weights that are remembered while points are drawn
ANCHORS = 24  # fits whose sites may start others
SAME = 1e-9  # in theta, of a point and the peak
GAP = 40.0  # nats that the bound may be below the best while the evidence is not
TESTED, TESTS, MOST_TESTS = 48, 3, 5  # points of its own choice after a first test by fewer; how often it may try
TAILS = 0.05  # error of a printed sd that is looked for where it rests on tails, although theta is known well
EASY = 0.2  # error of such a test, of first draws without long tails, up to which half more points than it had do
LAST, LONG = 0.01, 0.12  # mass of the most extreme values, and the share of a variance that makes it a long tail
STEPS, NOTHING = 6, 4.0  # fits along such a tail, and nats below its best at which what it adds to a variance ends
HEAVY, MOST_HEAVY = 0.02, 8  # share of a variance at one point of many from which it is fitted, and how many are
AGREED = 0.2  # nats that a surrogate may claim too much there
SURE = 0.04  # error of a surrogate of the log of a variance from which fits go where that variance is
HALF = 0.5  # the same for what is printed, whose tails a test teaches most of


@dataclass(eq=False)
class _Fitted:
    """What is kept of a fit at one theta."""

    theta: Array
    plain: float  # bound plus log prior, relative to the peak
    slope: Array  # its gradient
    prior_slope: Array  # that of the log prior alone
    gain: float = 0.0  # of evidence over bound, beyond that at the peak
    part: tuple[WeightPosterior, Status] | None = None
    sites: Posterior | None = None


class _Points:
    """Fits at points of theta, each from the sites of the nearest one that is remembered.

    Points come as places in the coordinates of `HalfLines`; a density of theta there has its Jacobian.
    """

    def __init__(self, peak: Peak, axes: Array, evaluate: Evaluator, most: int, corrector: Corrector) -> None:
        self._peak, self._inverse, self._evaluate, self._most = peak, np.linalg.inv(axes), evaluate, most
        self._starts: list[tuple[Array, Posterior]] = [(np.zeros(len(axes)), peak.result.posterior)]
        self._room = MEMORY // _bytes(peak.model.detach(peak.result.posterior))  # for so many of them
        self.corrector, self.theta = corrector, cast("Theta", peak.model.theta)
        self.gain = self.corrector.gain(peak.result)
        self.fits: list[_Fitted] = []
        self.coordinates = HalfLines(np.full(len(axes), np.nan), peak.model.theta.powers, np.zeros(len(axes)))
        self.coordinates = self._looked_down(axes)

    def shown(self, theta: Array) -> Array:
        """Of thetas, one a row, what has moments, and what is printed."""
        return np.column_stack([self.theta.inside(theta), *self.theta.reported(theta).values()])

    def _looked_down(self, axes: Array) -> HalfLines:
        """Coordinates in which no tail is long: that of an sd which may be zero falls as its prior's does.

        So does the other end of a size that may be infinite. What falls faster there vanishes as a power of x.
        """
        covariance, mode, powers = axes @ axes.T, self._peak.model.at, self.coordinates.power
        centre, vanishing = np.full(len(mode), np.nan), np.zeros(len(mode))
        for j in np.flatnonzero(powers):
            sd, power, own = np.sqrt(covariance[j, j]), powers[j], np.eye(len(mode))[j]
            tail = mode - np.sign(power) * FAR * covariance[:, j] / sd
            fall = -self.objective(tail)
            slope, across = self.fits[-1].slope, covariance - np.outer(covariance[j], covariance[j]) / covariance[j, j]
            if fall >= SLOW and 0.5 * slope @ across @ slope > fall:  # the curvature leads astray so far from the mode
                tail = mode - np.sign(power) * FAR * sd * own
                fall = -self.objective(tail)
            lower = tail - FARTHER / power * own
            if fall < SLOW and -self.objective(lower) - fall < SLOPE * FARTHER:
                centre[j] = power * mode[j] - 2.0 * abs(power) * sd
                # Beyond the limits no slope is known; 0 comes first, as NaN is not larger.
                vanishing[j] = max(0.0, 0.5 * np.round(2.0 * (self.fits[-1].slope[j] / power - 1.0)))
        return HalfLines(centre, powers, vanishing)

    def part(self, number: int) -> tuple[WeightPosterior, Status, Correction | None] | None:
        """q of the weights at a point, remembered where that is cheap, else fitted again, and its correction."""
        fit = self.fits[number]
        if fit.part is not None and not self.corrector.again():
            return *fit.part, evidence_alone(fit.gain + self.gain) if self.corrector.wanted else None
        start = self._nearest(fit.theta) if fit.sites is None else fit.sites
        found = self._evaluate(within_limits(self.theta, fit.theta)[0], start=start, tol=POINT_TOL,
                               own=fit.sites is not None)
        return (found.part(), found.status, self.corrector(found.result)) if found.possible else None

    def _nearest(self, theta: Array) -> Posterior:
        whitened = self._inverse @ (theta - self._peak.model.at)
        return self._starts[int(((np.array([one for one, _ in self._starts]) - whitened) ** 2).sum(axis=1).argmin())][1]

    def known(self) -> dict[str, Any]:
        """Of all fits so far: places, values and gradients there, and gains."""
        place = self.coordinates.place(np.array([fit.theta for fit in self.fits]))
        plain, gains = (np.array([getattr(fit, name) for fit in self.fits]) for name in ("plain", "gain"))
        log_volume, bend = self.coordinates.log_volume(place), self.coordinates.log_volume_slopes(place)
        slopes = np.array([fit.slope for fit in self.fits]) / self.coordinates.slopes(place) + bend
        slopes[np.nanmin(np.where(np.isnan(self.coordinates.centre), np.inf, place), axis=1) < NO_SLOPE] = np.nan
        prior_slopes = np.array([fit.prior_slope for fit in self.fits]) / self.coordinates.slopes(place) + bend
        sharp_slopes = np.where(self.theta.sharp, prior_slopes, self.coordinates.log_vanishing(place)[1])
        return {"theta": place, "values": plain + gains + log_volume, "slopes": slopes, "gains": gains,
                "sharp": self.sharp_part(place), "sharp_slopes": sharp_slopes}

    def sharp_part(self, place: Array) -> Array:
        """What bends more sharply than a surrogate can follow: some log priors, and the ends of half lines."""
        volume = -np.log(np.abs(self.coordinates.slopes(place))) @ self.theta.sharp
        ends = self.coordinates.log_vanishing(place)[0]
        return np.asarray(self.theta.sharp_prior(self.coordinates.theta(place)) + volume + ends)

    def objective(self, place: Array) -> float:
        """Bound, log prior and gain of evidence over bound, relative to the peak; -inf where that is impossible."""
        peak, theta = self._peak, self.coordinates.theta(place)
        prior_slope = self.theta.log_prior(theta)[1] if self.theta.sharp.any() else np.zeros(len(theta))
        self.fits.append(_Fitted(theta, -np.inf, np.zeros(len(theta)), prior_slope))
        inside, beyond = within_limits(peak.model.theta, theta)
        known = self.corrector.wanted and bool(np.abs(theta - peak.model.at).max() <= SAME)  # of the peak
        try:
            found = (Evaluated(peak.model, peak.result, peak.objective) if known else
                     self._evaluate(inside, start=self._nearest(theta), tol=POINT_TOL))
        except KlimbError:
            return -np.inf
        self._evaluate.tell("integrating", len(self.fits), self._most, peak.result.bound)
        if not found.possible:
            return -np.inf
        plain, fit = found.objective - peak.objective - beyond, self.fits[-1]
        if plain > HIGHER and not beyond:
            raise HigherGround(theta, found.posterior)
        fit.plain, fit.slope = plain, np.full(len(theta), np.nan) if beyond else self._evaluate.gradient(found)
        if plain > -GAP and not known:
            fit.gain = self.corrector.gain(found.result, self.gain - plain - FALL) - self.gain
        again = self.corrector.wanted and not self.corrector.only_gains
        if len(self.fits) < self._room and not again:
            fit.part = found.part(), found.status
        if found.posterior is not None:
            sites = sites_of_fit(found.posterior, peak.result.posterior.latent)
            if 16.0 * len(sites.a) * len(self.fits) < MEMORY:
                fit.sites = sites
            if len(self._starts) < ANCHORS:
                self._starts.append((self._inverse @ (theta - peak.model.at), sites))
        return plain + fit.gain + float(self.coordinates.log_volume(place))


def _bytes(part: WeightPosterior) -> int:
    """What a posterior of weights takes."""
    values = (getattr(part, one.name) for one in fields(part))  # type: ignore[arg-type]
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def adaptively(peak: Peak, axes: Array, evaluate: Evaluator, most: int,
               corrector: Corrector) -> tuple[float, Components, Status]:
    """The log evidence by q's bounds, relative to the peak, from rounds of points; components."""
    points = _Points(peak, axes, evaluate, most, corrector)
    found = _sampled(peak, axes, points, most)
    components, status = _components(found, points, axes)
    bound = found.by_bounds.log_evidence()
    return bound, replace(components, gain=found.log_evidence() - bound + points.gain), status


def _sampled(peak: Peak, axes: Array, points: _Points, most: int) -> SampledTheta:
    """Rounds of points, each from t's fitted to the weights so far, until a surrogate of the objective holds."""
    d, mode = len(axes), points.coordinates.place(peak.model.at)
    axes = points.coordinates.slopes(mode)[:, None] * axes
    fold, more = points.coordinates.folded, 0 if most < SPARING else 2 * d
    fresh: list[tuple[int, Any]] = [(quadratics(mode[None]).size + more, fold(_first_proposal(mode, axes, points)))]
    fresh += [(LOW, fold(one)) for one in _near_zero(mode, axes, points)]
    proposals, drawn, error, walked = list[tuple[int, Any]](), np.zeros(0, dtype=np.intp), float("nan"), None
    while True:
        new = np.vstack([one.draws(count, seed=k) for k, (count, one) in enumerate(fresh, len(proposals) + 1)])
        proposals += fresh
        drawn = np.concatenate([drawn, len(points.fits) + np.arange(len(new))])
        for one in new:
            points.objective(one)
        found = replace(_weighted(points, drawn, proposals), error=error, walked=walked)
        for number in range(MOST_TESTS):
            if number >= TESTS and not error <= 2.0 * SMOOTH:
                break  # more are for what is nearly good enough, and for tails
            few = 2 * d + 4 + more
            easy = proposals == fresh and found.error <= EASY and walked is not None and not len(walked)
            count = few if not (more and found.error > SMOOTH) else 3 * few // 2 if easy else TESTED
            tested = _tested(found, points, count)
            if tested is None:
                walked = _walk_tails(found, points) if walked is None else walked
                break
            found = replace(tested, before=found.error)
            error = found.error
            if walked is None and len(walked := _walk_tails(found, points)):
                found = replace(found, **points.known(), walked=walked)
            elif error <= SMOOTH and points.theta.sharp.any() and found.stated > TAILS and number + 1 < MOST_TESTS:
                continue  # what is printed rests on tails beyond all fits: the next test goes there
            elif error <= SMOOTH and (found := _verified(replace(found, smooth=True), points)).smooth:
                return found
        if 2 * len(drawn) > most or (found.khat < GOOD_KHAT and found.n_effective >= ENOUGH_EFFECTIVE):
            return found
        floor = 0.05 * axes @ axes.T
        seen = found.mass(smoothed_points(found, BEYOND, FEWER))  # by tests too: few draws may miss a tail
        fresh = [(len(drawn), fold(fit_students(*seen, COMPONENTS, floor)))]
        found = replace(found, **points.known())
        if walked is not None and len(tail := found.theta[walked[found.values[walked] > found.values.max() - FALL]]):
            root = np.linalg.cholesky(floor + np.cov(found.drawn_theta.T, aweights=found.weights))
            along = StudentMixture(np.full(len(tail), 1.0 / len(tail)), tail, np.tile(root, (len(tail), 1, 1)))
            fresh.append((len(drawn) // 4, fold(along)))


def _tested(found: SampledTheta, points: _Points, count: int) -> SampledTheta | None:
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


def _verified(found: SampledTheta, points: _Points) -> SampledTheta:
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


def _walk_tails(found: SampledTheta, points: _Points) -> Any:
    """Fits along the tails that printed sds rest on, or where a surrogate does not say, along all; their places."""
    smoothed, before = smoothed_points(found, BEYOND, FEWER), len(points.fits)
    places, w = found.mass(smoothed)
    theta = points.coordinates.theta(places)
    for j, alone in enumerate(alone for block in points.theta.blocks for alone in block.alone()):
        if alone is not None:
            printed = alone(theta[:, j])
            pull = w * _standardised(printed[:, None], w)[:, 0] ** 2
            order = np.argsort(-pull / w, kind="stable")
            if smoothed is None or pull[order[np.cumsum(w[order]) <= LAST]].sum() > LONG:
                _walk(points, j, theta, w, pull, alone)
    return np.arange(before, len(points.fits))


def _walk(points: _Points, j: int, theta: Array, weights: Array, pull: Array, alone: Callable[[Array], Array]) -> None:
    """Fits from where most of a variance comes from outwards, along the ridge, until nothing more comes."""
    pull, centre = pull / pull.sum(), float(weights @ alone(theta[:, j]))
    at, mean = pull @ theta, weights @ theta
    spread, own = (theta - mean).T @ (weights[:, None] * (theta - mean)), theta - at
    across = spread - np.outer(spread[j], spread[j]) / spread[j, j]  # of the others once entry j is known
    step, best = np.sign(at[j] - mean[j]) * (pull * own[:, j]) @ own / np.sqrt(pull @ own[:, j] ** 2), -np.inf
    for _ in range(STEPS):
        points.objective(points.coordinates.place(at))
        fit = points.fits[-1]
        adds = fit.plain + fit.gain + 2.0 * float(np.log(np.abs(alone(at[j]) - centre) + 1e-300))
        best = max(best, adds)
        if not adds > best - NOTHING:
            return
        uphill = across @ np.nan_to_num(fit.slope)
        at = at + step + uphill / max(1.0, float(np.abs(uphill / np.sqrt(np.diagonal(spread))).max()))


def _standardised(values: Array, weights: Array) -> Array:
    away = values - weights @ values
    return np.asarray(away / np.maximum(np.sqrt(weights @ away**2), 1e-300))


def _evenly(weights: Array, count: int) -> Any:
    """Places of ``count`` points that share the mass evenly."""
    return np.minimum(np.searchsorted(np.cumsum(weights), (np.arange(count) + 0.5) / count), len(weights) - 1)


def _first_proposal(mode: Array, axes: Array, points: _Points) -> SplitStudent:
    d, top = len(axes), points.objective(mode)
    widths = np.empty((d, 2))
    for k in range(d):
        for side, sign in enumerate((-1.0, 1.0)):
            fall = top - points.objective(points.coordinates.inside(mode + sign * PROBE * axes[:, k]))
            widths[k, side] = np.clip(PROBE / np.sqrt(2.0 * max(fall, 1e-3)), *WIDTHS)
    return SplitStudent(mode, axes, widths)


def _near_zero(mode: Array, axes: Array, points: _Points) -> list[StudentMixture]:
    """A t around zero of every half line, as wide as half the way from there to the mode."""
    covariance, found = axes @ axes.T, []
    for j in np.flatnonzero(~np.isnan(points.coordinates.centre)):
        centre = np.where(np.arange(len(mode)) == j, 0.0, mode)
        spread = WIDER**2 * (covariance - np.outer(covariance[j], covariance[j]) / covariance[j, j])
        spread[j, j] += (0.5 * mode[j]) ** 2
        found.append(StudentMixture(np.ones(1), centre[None], np.linalg.cholesky(spread)[None]))
    return found


def _weighted(points: _Points, drawn: Any, proposals: list[tuple[int, Any]]) -> SampledTheta:
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


def _followed(found: SampledTheta, points: _Points, inverse: Any) -> tuple[SampledTheta, UnevenVariance | None]:
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


def _components(found: SampledTheta, points: _Points, axes: Array) -> tuple[Components, Status]:
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


def _with_marginals(found: SampledTheta, points: _Points, theta: Array, w: Array,
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
