"""Points of theta that were drawn and fitted, and what a surrogate of the objective says between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb.latents.weights_posterior import WeightPosterior
from klimb.numerics.arrays import Array, Index
from klimb.numerics.mixtures import mixture_quantile
from klimb.numerics.pareto import RELIABLE, smooth_log_weights
from klimb.numerics.proposals import HalfLines, fit_students, students_at
from klimb.numerics.surrogate import Surrogate, fit_surrogate, nearest_of, quadratics, squared_distances

GOOD_KHAT, GOOD_EFFECTIVE = 0.5, 0.3  # where a round is the last one: k-hat, and effective over drawn
COMPONENTS = 3  # t's that are fitted to the weights
FALL = 12.0  # nats below the best up to which fits count for the surrogate between them
ROUGHNESS = 0.5  # nats: its leave-one-out error up to which it is put to the test
LEFT = 0.25  # share of what a test has taught that may be left
SMOOTH = 0.05  # change of a mean in sd, or of an sd, by those points from which no more fits are asked for
CAP = 0.3  # nats above the best that it may claim
BEYOND = 1.3  # how far out it is tested, and then believed, over the farthest fit
APART = 2.0  # root of the mean of squared distances, in sd, from the nearest fit up to which it is believed
BESIDE = 2.0  # sds from a walk along a tail, up to which it is believed there
MANY, FEWER = 16_384, 4  # points that it weighs, and one of how many where they only say what to fit next
SETTLED = 4  # steps to weights of few points that have the moments of many
LOOKED_AT = 64  # weights of the model, the first ones, whose variances points of theta are weighed for
NOTHING = 1e-4  # of the largest variance over theta: what is below adds nothing
ALIKE = 0.25  # squared variation of a coefficient's variance over theta below which nobody looks between its points
BENT = 3.0  # spreads from the median that theta comes to at most for those moments


@dataclass(frozen=True, eq=False)
class SampledTheta:
    """Fits at points of theta, and weights of those that were drawn: of target over proposal, whose mean is evidence.

    ``theta`` is in ``coordinates``; the points that were not drawn were looked at to learn the objective.
    """

    coordinates: HalfLines
    theta: Array  # (n, d)
    values: Array  # the objective, relative to the peak's, and the volume of the coordinates
    slopes: Array  # (n, d): gradients of the objective without the gains
    gains: Array  # of evidence over bound, relative to that at the peak; part of the values
    sharp: Array  # what no surrogate follows, but is known everywhere: log priors, ends of half lines
    sharp_slopes: Array
    sharp_part: Callable[[Array], Array]  # the same at any points
    drawn: Any  # places of the drawn ones
    log_weights: Array  # of those
    khat: float
    n_effective: float
    proposals: tuple[tuple[int, Any], ...]
    own_error: float = 0.0  # sampling error of an sd by these weights
    smooth: bool = False  # whether a surrogate has predicted the values at points of its own choice
    error: float = float("nan")  # by how much those points changed a mean in sd, or an sd; NaN before a test
    before: float = float("nan")  # the same of the test before
    stated: float = float("nan")  # the same with what is printed, which moves with the origin of a covariate
    walked: Any = None  # places of fits along long tails, which say nothing of other directions
    made: dict[Any, Any] = field(default_factory=dict, repr=False)  # what serves again

    @property
    def drawn_theta(self) -> Array:
        return np.asarray(self.theta[self.drawn])

    @cached_property
    def by_bounds(self) -> SampledTheta:
        """The same points under q's bounds alone."""
        if not self.gains.any():
            return self
        log_w = self.log_weights - self.gains[self.drawn]
        smoothed = smooth_log_weights(log_w)
        return replace(self, values=self.values - self.gains, gains=np.zeros_like(self.gains), log_weights=log_w,
                       khat=smoothed.khat, n_effective=smoothed.effective)

    @property
    def weights(self) -> Array:
        smoothed = smooth_log_weights(self.log_weights).log_weights
        w = np.exp(smoothed - smoothed.max())
        return np.asarray(w / w.sum())

    @property
    def learnt(self) -> float:
        """What tests of a surrogate leave of its error."""
        return float(np.nanmax([self.error, min(LEFT * self.before, SMOOTH), 0.0]))

    @cached_property
    def smoothed(self) -> SmoothedTheta | None:
        """Many points by a surrogate; None where there is none, or the points themselves know better."""
        worse = not self.smooth and self.khat < RELIABLE and self.learnt > max(self.own_error, SMOOTH)
        return None if worse else smoothed_points(self, 1.0 if np.isnan(self.error) else BEYOND)

    def mass(self, smoothed: SmoothedTheta | None) -> tuple[Array, Array]:
        """Points and their weights: those of a surrogate, else the drawn ones that weigh something."""
        if smoothed is not None:
            return smoothed.theta, smoothed.weights
        weights = self.weights
        keep = weights > 1e-6 * weights.max()
        return self.drawn_theta[keep], weights[keep] / weights[keep].sum()

    def shares(self, inverse: Any) -> Array:
        """What each fit stands for: the mass that is nearest to it by a surrogate, else its own weight."""
        if self.smoothed is None:
            return np.asarray(np.bincount(self.drawn, self.weights, minlength=len(self.theta)), dtype=float)
        fitted = np.flatnonzero(np.isfinite(self.values))
        nearest = nearest_of(self.smoothed.theta @ inverse.T, self.theta[fitted] @ inverse.T)
        return np.bincount(fitted[nearest], self.smoothed.weights, minlength=len(self.theta)).astype(float)

    def log_evidence(self) -> float:
        """The log of the integral of the objective, by many points where that can be: few have the noise of few."""
        if self.smoothed is not None:
            return self.smoothed.log_mean
        return float(np.logaddexp.reduce(self.log_weights)) - float(np.log(len(self.log_weights)))


@dataclass(frozen=True, eq=False)
class SmoothedTheta:
    """Many points of theta with weights by a surrogate of the objective, whose values there are ``heights``."""

    theta: Array
    weights: Array
    heights: Array
    khat: float
    n_effective: float
    log_mean: float  # of all weights: the log of the integral of the surrogate
    beyond: Any  # which of the points lie farther out than any fit
    every: tuple[Array, Array, Array, Any]  # what it was made of: points, heights by bounds alone, log q, beyond

    @classmethod
    def of(cls, many: Array, heights: Array, by_bounds: Array, log_q: Array, beyond: Any) -> Self:
        """Points by what their heights, which may be -inf, and their proposals weigh them."""
        smoothed = smooth_log_weights(heights - log_q)
        w = smoothed.normalised
        keep = w > 1e-6 * w.max()
        return cls(many[keep], w[keep] / w[keep].sum(), heights[keep], smoothed.khat, smoothed.effective,
                   smoothed.log_mean, beyond[keep], (many, by_bounds, log_q, beyond))

    def by_bounds(self) -> SmoothedTheta:
        """The same under q's bounds alone."""
        many, heights, *others = self.every
        return self.of(many, heights, heights, *others)


def smoothed_points(found: SampledTheta, reach: float = 1.0, thin: int = 1) -> SmoothedTheta | None:
    """Many points of theta with weights, for its marginals; None where they cannot be had. The same is made once.

    Nothing is claimed farther out than ``reach`` times the farthest fit, but for the surroundings of walks along
    tails, nor where no fit is near, or the nearest is too low to count.

    The objective is smooth in theta, so a surrogate through the fits says what it is between them: where its own
    leave-one-out errors are small, points by the thousand are weighted by it, and the noise of few points is gone.
    Proposals for those cost nothing, so they are fitted to the surrogate until its weights are good.
    """
    walked = 0 if found.walked is None else len(found.walked)
    count, gained = (reach, thin, len(found.values), len(found.drawn), walked), bool(found.gains.any())
    of, corrected = (*count, gained), None if gained else found.made.get((*count, True))
    if found.made.get(of) is None:  # what was too rough may be asked for again after a test
        found.made[of] = _smoothed(found, reach, thin) if corrected is None else corrected.by_bounds()
    return found.made[of]  # type: ignore[no-any-return]


def _smoothed(found: SampledTheta, reach: float, thin: int) -> SmoothedTheta | None:
    weights, drawn, values = found.weights, found.drawn_theta, found.values
    share = np.full(len(values), 1.0 / len(weights))
    share[found.drawn] = weights
    usable = np.isfinite(values) & (values > values.max() - FALL)
    centre = weights @ drawn
    spread = (drawn - centre).T @ (weights[:, None] * (drawn - centre))
    root = np.linalg.cholesky(spread + 1e-12 * np.trace(spread) * np.eye(len(spread)))
    inverse = np.linalg.inv(root)
    every = (found.theta - centre) @ inverse.T
    along, aside = np.zeros((0, len(root))), usable.copy()
    if found.walked is not None:
        aside[found.walked], along = False, every[found.walked[usable[found.walked]]]
    z, low, values = every[usable], every[~usable], values[usable]
    gains, share = found.gains[usable], share[usable]
    of, before = (len(every), len(drawn), along.shape, gains.any()), found.made.get("surrogates", (None,) * 4)
    if before[0] != of:  # gains have no gradients, but are far smoother
        surrogate = fit_surrogate(z, values - gains, share, slopes=found.slopes[usable] @ root, like=before[1])
        without = fit_surrogate(z, values - gains - found.sharp[usable], share, slopes=(
            found.slopes - found.sharp_slopes)[usable] @ root, like=before[2]) if found.sharp_slopes.any() else None
        above = fit_surrogate(z, gains, share) if gains.any() else None
        found.made["surrogates"] = before = of, surrogate, without, above
    _, surrogate, without, above = before
    sharp = surrogate is not None and without is not None and without.error < surrogate.error
    surrogate = without if sharp else surrogate
    if surrogate is None or (above is None and gains.any()):
        return None
    if np.hypot(surrogate.error, 0.0 if above is None else above.error) > ROUGHNESS and not found.smooth:
        return None
    farthest, most_off = reach**2 * float((every[aside] ** 2).sum(axis=1).max()), APART * len(root) ** 0.5
    proposed = len(found.proposals), len(along)
    if proposed not in found.made:  # draws for the mass hardly reach long tails
        around = found.coordinates.folded(students_at(centre + along @ root.T, root)) if len(along) else None
        tails = () if around is None else ((max(sum(count for count, _ in found.proposals) // 3, 1), around),)
        found.made[proposed] = _drawn((*found.proposals, *tails))
    proposals, many, log_q = found.made[proposed]
    top, of_bounds = float(values.max()) + CAP, float((values - gains).max()) + CAP
    for left in (2, 1, 0):
        many, log_q = many[::thin], log_q[::thin]
        place, heights, lower = (many - centre) @ inverse.T, *np.full((2, len(many)), -np.inf)
        beside, away = _distances(place, along) <= BESIDE, (place**2).sum(axis=1)
        beyond, some = (away > farthest / reach**2) & ~beside, np.flatnonzero(beside | (away <= farthest))
        high, away = surrogate.near(place[some])
        told = beside[some] | (away <= np.minimum(most_off, _distances(place[some], low)))
        some, high = some[told], high[told] + (found.sharp_part(many[some[told]]) if sharp else 0.0)
        lower[some] = np.minimum(high, of_bounds)
        heights[some] = np.minimum(high if above is None else high + above(place[some]), top)
        made = SmoothedTheta.of(many, heights, lower, log_q, beyond)
        if not left or (made.khat < GOOD_KHAT and made.n_effective > GOOD_EFFECTIVE * len(many)):
            break
        every_so = max(len(made.theta) // 4096, 1)
        students = fit_students(made.theta[::every_so], made.weights[::every_so], COMPONENTS, 0.02 * spread)
        folded = found.coordinates.folded(students)
        proposals, many, log_q = _drawn((*proposals, (sum(count for count, _ in proposals), folded)))
    return made


def _drawn(proposals: tuple[tuple[int, Any], ...]) -> tuple[tuple[tuple[int, Any], ...], Array, Array]:
    """Proposals, draws of them by their shares, and the log density of all of them there."""
    total = sum(count for count, _ in proposals)
    many = np.vstack([proposal.draws(max(MANY * count // total, 1), seed=1000 + k)
                      for k, (count, proposal) in enumerate(proposals)])
    return proposals, many, mixture_log_density(many, proposals)


def _distances(places: Array, points: Array) -> Array:
    """From the nearest of the points."""
    if not len(points):
        return np.full(len(places), np.inf)
    return np.asarray(np.sqrt(((places - points[nearest_of(places, points)]) ** 2).sum(axis=1)))


def mixture_log_density(theta: Array, proposals: Sequence[tuple[int, Any]]) -> Array:
    """Of the proposals together, each with its share of the draws."""
    total = sum(count for count, _ in proposals)
    logs = np.array([np.log(count / total) + proposal.log_density(theta) for count, proposal in proposals])
    return np.asarray(np.logaddexp.reduce(logs, axis=0))


def bent(theta: Array, many: Array, weights: Array) -> tuple[Array, Array]:
    """Both sets of points bent towards `BENT` spreads from the median, by the ``weights`` of the many.

    A far tail that has none of the few points would otherwise be made up for by those that are there.
    """
    some, share = many[::FEWER], weights[::FEWER]
    low, middle, high = (mixture_quantile(share, some, np.zeros_like(some), p) for p in (0.16, 0.5, 0.84))
    spread = np.where(high > low, 0.5 * (high - low), 1.0)  # one point may have nearly all of the weight
    theta, many = ((one - middle) / spread for one in (theta, many))
    return theta / np.sqrt(1.0 + (theta / BENT) ** 2), many / np.sqrt(1.0 + (many / BENT) ** 2)


def calibrated(theta: Array, many: Array, weights: Array, many_weights: Array,
               also: tuple[Array, Array] | None = None) -> Array:
    """Weights of a few points, changed least so that first and second moments of theta are those of many points.

    So is the mean of what is ``also`` known at the few and at the many.
    """
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
    if also is not None:
        mean = many_weights @ also[1]
        own = (also[0] - mean) / (np.sqrt(many_weights @ (also[1] - mean) ** 2) + 1e-300)
        phi, goal = np.column_stack([phi, own]), np.append(goal, 0.0)
    # w_i (1 + lambda' phi_i) has the moments that it shall have; weights stay positive, which takes further steps.
    own = weights
    for _ in range(SETTLED):
        scale = np.linalg.lstsq(phi.T @ (own[:, None] * phi), goal - own @ phi, rcond=1e-10)[0]
        own = np.clip(own * (1.0 + phi @ scale), 0.2 * weights, 5.0 * weights)
    return np.asarray(own / own.sum())


def uneven_variance(parts: Sequence[WeightPosterior], index: Index, at: Array,
                    weights: Array) -> tuple[Array, Surrogate] | None:
    """Of the weights at ``index`` that whose variance hangs most on theta: the variance, at most 1, and a surrogate.

    The surrogate is one of its log, through points ``at`` theta. None where no variance hangs much on theta, or too
    little is known.
    """
    if not len(index):
        return None
    of = [part.covariances(index, index) for part in parts]
    squares = np.array(of) / np.maximum(np.max(of, axis=0), 1e-300)  # their squares may overflow in the units of y
    squares = np.maximum(squares, NOTHING)
    uneven = weights @ squares**2 / (weights @ squares) ** 2 - 1.0
    most = int(uneven.argmax())
    logs = fit_surrogate(at, np.log(squares[:, most]), weights) if uneven[most] > ALIKE else None
    return None if logs is None else (squares[:, most], logs)


@dataclass(frozen=True, eq=False)
class UnevenVariance:
    """The variance of a weight at places of theta, at most 1, by a surrogate of its log in whitened coordinates."""

    logs: Surrogate
    centre: Array
    root: Array

    @classmethod
    def of(cls, parts: Sequence[WeightPosterior], places: Array, weights: Array) -> Self | None:
        """Of the weight of the model whose variance hangs most on theta; None where none does, or too little is known.
        """
        share = weights / weights.sum()
        centre = share @ places
        spread = (places - centre).T @ (share[:, None] * (places - centre))
        root = np.linalg.cholesky(spread + 1e-12 * (np.trace(spread) + 1e-300) * np.eye(len(spread)))
        at, index = np.linalg.solve(root, (places - centre).T).T, np.arange(min(parts[0].size, LOOKED_AT))
        known = uneven_variance(parts, index, at, share)
        return None if known is None else cls(known[1], centre, root)

    def __call__(self, places: Array) -> Array:
        logs = self.logs(np.asarray(np.linalg.solve(self.root, (places - self.centre).T).T, dtype=float))
        return np.asarray(np.exp(np.minimum(logs, 0.0)))  # no more than at the points themselves

    def weighed(self, few: tuple[Array, Array, Array], many: tuple[Array, Array, Array]) -> tuple[Array, float]:
        """Weights of few points, for which its mean is that over many, and the error of an sd that is left.

        Both come as places, what moments are taken of, and weights. Where correlations of a field may be 1, a few
        points of theta have nearly all of the variance of its level.
        """
        (theta, own_moments, w), (places, moments, weights) = few, many
        own, between = self(theta), self(places)
        moved, goal = calibrated(own_moments, moments, w, weights, (own, between)), float(weights @ between)
        before, after = (abs(float(np.sqrt(one @ own / goal)) - 1.0) for one in (w, moved))
        return moved, max(after, min(before, 0.5 * self.logs.error))


def kept_points(theta: Array, weights: Array, inverse: Any, count: int,
                variance: UnevenVariance | None = None) -> tuple[Any, Array]:
    """The ``count`` points that mass is nearest to, each with the weight of those that are nearest to it.

    The next one is always that which brings the mean squared distance from the mass down most: neither a tail nor the
    bulk is left to a few, and what the weights of the model vary by between their points is small. Half of that mass
    is that of a ``variance`` which hangs on theta.
    """
    some = np.flatnonzero(weights > 1e-6 * weights.max())
    z, own = (theta[some] - weights @ theta / weights.sum()) @ inverse.T, weights[some] / weights[some].sum()
    if len(some) > count:
        between, chosen = squared_distances(z, z), list[int]()
        left, pull = np.full((len(some), 1), np.inf), own
        if variance is not None:
            at = own * variance(theta[some])
            pull = 0.5 * (own + at / at.sum())
        while len(chosen) < count:
            chosen.append(int((pull @ np.minimum(left, between)).argmin()))
            left = np.minimum(left, between[:, chosen[-1:]])
        own = np.bincount(nearest_of(z, z[np.sort(chosen)]), own, minlength=count)
        some = some[np.sort(chosen)]
    return some, np.asarray(own, dtype=float)
