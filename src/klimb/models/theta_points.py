"""Fits at points of theta around the peak, in coordinates in which no tail is long, and what is shown of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np

from klimb.errors import KlimbError
from klimb.infer.result import Status
from klimb.infer.start import sites_of_fit
from klimb.latents.base import Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import Components
from klimb.models.correction import Correction, Corrector, evidence_alone, pooled, shown_parts
from klimb.models.search import POINT_TOL, Evaluated, Evaluator, Peak, within_limits
from klimb.numerics.arrays import Array
from klimb.numerics.proposals import HalfLines, StudentMixture
from klimb.theta import Theta

FAR, FARTHER = 4.0, 2.0  # where a lower tail is looked at: in sd below the mode, and further down in theta
UPHILL = 3  # fits there, the others moved uphill after each: far from the mode its curvature points elsewhere
SLOW, SLOPE = 7.0, 3.0  # fall in nats up to there, and beyond it per unit of theta, below which an sd may be zero
THIN = 7.5  # fall of the density of the sd itself up to there, where the way had to be found uphill
WIDER = 1.5  # the spread of the others where such an sd is nearly zero, over that at the mode
MEMORY = 2e8  # bytes of posteriors of weights that are remembered while points are drawn
GAP = 40.0  # nats that the bound may be below the best while the evidence is not


@final
@dataclass(eq=False)
class _Fitted:
    """What is kept of a fit at one theta."""

    theta: Array
    plain: float  # bound plus log prior, relative to the peak
    slope: Array  # its gradient
    gain: float = 0.0  # of evidence over bound, beyond that at the peak
    part: tuple[WeightPosterior, Status] | None = None
    sites: Posterior | None = None


@final
class ThetaPoints:
    """Fits at points of theta; the first is the peak's own.

    Points come as places in the coordinates of `HalfLines`; a density of theta there has its Jacobian.
    """

    def __init__(self, peak: Peak, axes: Array, evaluate: Evaluator, most: int, corrector: Corrector) -> None:
        self._peak, self._evaluate, self._most = peak, evaluate, most
        self.corrector, self.gain = corrector, corrector.gain(peak.result)
        self._again = corrector.wanted and not corrector.only_gains  # what is kept of a fit is corrected later
        part = peak.model.detach(peak.result.posterior), peak.result.status
        self._room = MEMORY // _bytes(part[0])  # for so many of them
        slope = evaluate.gradient(Evaluated(peak.model, peak.result, peak.objective))
        self.fits = [_Fitted(peak.model.at, 0.0, slope, part=None if self._again else part)]
        self._feet: dict[int, Array] = {}  # theta where an sd that may be zero nearly is
        self.coordinates = HalfLines(np.full(len(axes), np.nan), peak.model.theta.powers)
        self.coordinates = self._looked_down(axes)

    @property
    def theta(self) -> Theta:
        return self._peak.model.theta  # type: ignore[no-any-return]

    @property
    def infinite(self) -> Any:
        """Which entries of theta reach infinity: what is printed of them has no moments."""
        return ~np.isnan(self.coordinates.centre) & (self.theta.powers < 0.0)

    def inside(self, places: Array) -> Array:
        """What has moments, and no origin of a covariate moves."""
        return self.theta.inside(self.coordinates.theta(places))

    def printed(self, places: Array) -> Array:
        return np.column_stack(list(self.theta.reported(self.coordinates.theta(places)).values()))

    def _looked_down(self, axes: Array) -> HalfLines:
        """Coordinates in which no tail is long: that of an sd which may be zero falls as its prior's does.

        The same holds at the other end of a size that may be infinite.
        """
        covariance, mode, powers = axes @ axes.T, self._peak.model.at, self.coordinates.power
        centre = np.full(len(mode), np.nan)
        for j, (sd, power) in enumerate(zip(np.sqrt(np.diagonal(covariance)), powers, strict=True)):
            tail, across = mode - np.sign(power) * FAR * covariance[:, j] / sd, others_given(covariance, j)
            before = len(self.fits)
            for _ in range(UPHILL):
                fall = -self.objective(tail)
                step = uphill(across, self.fits[-1].slope)
                if fall < SLOW or not fall - self.fits[-1].slope @ step <= SLOW:
                    break
                tail = tail + step
            lower, straight = tail - FARTHER / power * np.eye(len(mode))[j], len(self.fits) == before + 1
            farther = -self.objective(lower) if fall < SLOW else np.inf
            if farther - fall < SLOPE * FARTHER and (straight or farther - power * (mode - lower)[j] < THIN):
                centre[j] = power * mode[j] - 2.0 * abs(power) * sd
                self._feet[j] = lower + uphill(across, self.fits[-1].slope)
            elif not straight:
                del self.fits[before + 1 :]  # far places that hardly count, between which a surrogate is rough
        return HalfLines(centre, powers)

    def near_zero(self, mode: Array, axes: Array) -> list[StudentMixture]:
        """A t around zero of every half line, as wide as half the way from there to the mode."""
        covariance, found = axes @ axes.T, []
        for j, foot in self._feet.items():
            centre, spread = self.coordinates.place(foot), WIDER**2 * others_given(covariance, j)
            centre[j], spread[j, j] = 0.0, spread[j, j] + (0.5 * mode[j]) ** 2
            root = np.asarray(np.linalg.cholesky(spread), dtype=np.float64)
            found.append(StudentMixture(np.ones(1), centre[None], root[None]))
        return found

    def part(self, number: int) -> tuple[WeightPosterior, Status, Correction | None] | None:
        """q of the weights at a point, remembered where that is cheap, else fitted again, and its correction."""
        fit = self.fits[number]
        if fit.part is not None and not self.corrector.again():
            return *fit.part, evidence_alone(fit.gain + self.gain) if self.corrector.wanted else None
        start = self._peak.result.posterior if fit.sites is None else fit.sites
        found = self._evaluate(within_limits(self.theta, fit.theta)[0], start=start, own=fit.sites is not None)
        return (found.part(), found.status, self.corrector(found.result)) if found.possible else None

    def known(self) -> dict[str, Any]:
        """Of all fits so far: places, values and gradients there, and gains."""
        place = self.coordinates.place(np.array([fit.theta for fit in self.fits]))
        plain, gains = (np.array([getattr(fit, name) for fit in self.fits]) for name in ("plain", "gain"))
        log_volume, bend = self.coordinates.log_volume(place), self.coordinates.log_volume_slopes(place)
        slopes = np.array([fit.slope for fit in self.fits]) / self.coordinates.slopes(place) + bend
        return {"theta": place, "values": plain + gains + log_volume, "slopes": slopes, "gains": gains}

    def objective(self, place: Array) -> float:
        """Bound, log prior and gain of evidence over bound, relative to the peak; -inf where that is impossible."""
        peak, theta = self._peak, self.coordinates.theta(place)
        fit = _Fitted(theta, -np.inf, np.zeros(len(theta)))
        self.fits.append(fit)
        try:
            found, fit.plain, fit.slope = self._evaluate.beside(peak, theta, POINT_TOL)
        except KlimbError:
            return -np.inf
        self._evaluate.tell("integrating", len(self.fits), self._most, peak.result.bound)
        if not found.possible:
            return -np.inf
        if fit.plain > -GAP:
            fit.gain = self.corrector.gain(found.result) - self.gain
        if len(self.fits) < self._room and not self._again:
            fit.part = found.part(), found.status
        if self._again and found.posterior is not None and 16.0 * len(found.posterior.a) * len(self.fits) < MEMORY:
            fit.sites = sites_of_fit(found.posterior, peak.result.posterior.latent)
        return fit.plain + fit.gain + float(self.coordinates.log_volume(place))


def with_corrections(every: Sequence[tuple[Array, float, float, WeightPosterior, Correction | None]],
                     make: Callable[[Array, Array, tuple[WeightPosterior, ...], bool], Components],
                     efficiency: float) -> Components:
    """Components of points with theta, weight, gain, posterior of the weights and its correction; q's own beside them.

    ``make`` makes them of thetas, weights and posteriors, and is told whether those are q's own.
    """
    theta, weights, gains = (np.array(own) for own in list(zip(*every, strict=True))[:3])
    parts = tuple(part for _, _, _, part, _ in every)
    known = [(weight, own) for _, weight, _, _, own in every if own is not None]
    if not known:
        return replace(make(theta, weights, parts, False), efficiency=efficiency)
    uncorrected = make(theta, weights * np.exp(gains.min() - gains), parts, True)
    flat = [(theta, weight * share, part) for theta, weight, _, own, correction in every
            for share, part in shown_parts(correction, own)]
    shown = make(np.array([one[0] for one in flat]), np.array([one[1] for one in flat]),
                 tuple(part for _, _, part in flat), False)
    kept = pooled([own for _, own in known], np.array([weight for weight, _ in known]))
    return replace(shown, uncorrected=uncorrected, **{**kept, "error": max(shown.error, kept["error"])})


def _bytes(part: WeightPosterior) -> int:
    """What a posterior of weights takes."""
    values = (getattr(part, one.name) for one in fields(part))  # type: ignore[arg-type]
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def others_given(covariance: Array, j: int) -> Array:
    """The covariance of the others once entry j is known."""
    return np.asarray(covariance - np.outer(covariance[j], covariance[j]) / covariance[j, j])


def uphill(across: Array, slope: Array) -> Array:
    """A step towards the best of a bowl with this covariance, at most one sd in any entry."""
    step = across @ np.nan_to_num(slope)
    return np.asarray(step / max(1.0, float(np.abs(step / np.sqrt(np.maximum(np.diagonal(across), 1e-300))).max())))
