"""Fits at points of theta where hyperparameters are integrated out, and what they tell of the objective."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from klimb.errors import KlimbError
from klimb.infer.result import Status
from klimb.infer.start import sites_of_fit
from klimb.latents.base import Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.correction import Correction, Corrector, evidence_alone
from klimb.models.sampled_theta import FALL
from klimb.models.search import POINT_TOL, Evaluated, Evaluator, HigherGround, Peak, within_limits
from klimb.numerics.arrays import Array
from klimb.numerics.proposals import HalfLines
from klimb.theta import Theta

FAR, FARTHER = 4.0, 2.0  # where a lower tail is looked at: in sd below the mode, and further down in theta
SLOW, SLOPE = 7.0, 3.0  # fall in nats up to there, and beyond it per unit of theta, below which an sd may be zero
NO_SLOPE = 0.03  # coordinates that may be zero, below which gradients in them are differences of large numbers
HIGHER = 0.5  # nats above the peak from which another one is climbed
MEMORY = 2e8  # bytes of posteriors of weights that are remembered while points are drawn
ANCHORS = 24  # fits whose sites may start others
SAME = 1e-9  # in theta, of a point and the peak
GAP = 40.0  # nats that the bound may be below the best while the evidence is not


@dataclass(eq=False)
class ThetaFit:
    """What is kept of a fit at one theta."""

    theta: Array
    plain: float  # bound plus log prior, relative to the peak
    slope: Array  # its gradient
    prior_slope: Array  # that of the log prior alone
    gain: float = 0.0  # of evidence over bound, beyond that at the peak
    part: tuple[WeightPosterior, Status] | None = None
    sites: Posterior | None = None


class ThetaPoints:
    """Fits at points of theta, each from the sites of the nearest one that is remembered.

    Points come as places in the coordinates of `HalfLines`; a density of theta there has its Jacobian.
    """

    def __init__(self, peak: Peak, axes: Array, evaluate: Evaluator, most: int, corrector: Corrector) -> None:
        self._peak, self._inverse, self._evaluate, self._most = peak, np.linalg.inv(axes), evaluate, most
        self._starts: list[tuple[Array, Posterior]] = [(np.zeros(len(axes)), peak.result.posterior)]
        self._room = MEMORY // _bytes(peak.model.detach(peak.result.posterior))  # for so many of them
        self.corrector, self.theta = corrector, cast("Theta", peak.model.theta)
        self.gain = self.corrector.gain(peak.result)
        self.fits: list[ThetaFit] = []
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
        self.fits.append(ThetaFit(theta, -np.inf, np.zeros(len(theta)), prior_slope))
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
