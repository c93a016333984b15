"""What a Gaussian q leaves out, put back: the exact posterior's evidence, means and covariances at fixed theta.

q understates the evidence of a model, the more so the further its levels are from Gaussian, and that grows with the
standard deviation of small groups of yes and no: weighing theta by the bound alone pulls such parameters down. Which
`Corrector` puts it back hangs on the posterior of the weights: see `klimb.models.correctors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from klimb.infer.result import Result
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.repair import HARMLESS
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import RELIABLE, smooth_log_weights

EVEN = 0.02  # variance of log weights up to which moments of the weights of the model hardly change
USABLE = 0.15  # effective draws over draws from which moments are taken
LIKELY = 0.005  # share of a point of theta, over that of the heaviest, from which its own weights must be usable
LITTLE = 0.005  # sds that a point of theta may add to the error of all that is shown, however wrong it is by itself
NOTHING = np.zeros((0, 0, 0, 0))


@dataclass(frozen=True, eq=False)
class Correction:
    """At one theta: ``gain`` is log evidence - bound, ``part`` q with the exact posterior's means and covariances."""

    gain: float
    parts: tuple[tuple[float, WeightPosterior], ...]  # with their shares, one for each mode; empty where q's is kept
    log_weights: Array  # of the draws, over their mean
    efficiency: float  # effective draws over draws; NaN where only the evidence is corrected
    third: Array = field(default_factory=lambda: NOTHING)  # central moments, see `klimb.latents.arrow.third_moments`
    error: float = 0.0  # standard error of a mean in sd, or of an sd, where particles were drawn
    weighed: float = float("nan")  # change of an sd by weights of another q than the fit's, relative


def evidence_alone(gain: float) -> Correction:
    """The correction of the evidence alone, where there are too many shared weights for their moments."""
    return Correction(gain, (), np.zeros(0), float("nan"))


def doubtful(efficiency: float, khat: float) -> bool:
    """Whether importance weights are of no use: too few draws are effective, or their tail is too heavy."""
    return efficiency < USABLE or (khat > RELIABLE and efficiency < HARMLESS)


def shown_parts(correction: Correction | None, own: WeightPosterior) -> tuple[tuple[float, WeightPosterior], ...]:
    """The posteriors of the weights that are shown at a point, with their shares: corrected ones, or q's ``own``."""
    if correction is None or not correction.parts:
        return ((1.0, own),)
    return tuple((share, part.with_prior_of(own)) for share, part in correction.parts)


def lent(parts: Sequence[WeightPosterior], corrections: Sequence[Correction | None],
         theta: Array) -> list[Correction | None]:
    """The corrections of all points of theta: those of the evidence alone borrow moments of the nearest that has them.
    """
    places = theta / np.maximum(theta.std(axis=0), 1e-300)
    known = [(place, one.parts[0][1]) for place, one in zip(places, corrections, strict=True) if one and one.parts]
    if not known:
        return list(corrections)
    near = [min(known, key=lambda own: float(((own[0] - place) ** 2).sum()))[1] for place in places]
    return [one if one is None or one.parts else replace(one, parts=((1.0, lender.lent(part)),))
            for part, one, lender in zip(parts, corrections, near, strict=True)]


def pooled(corrections: Sequence[Correction], shares: Array) -> dict[str, Any]:
    """What `Components` keep of the corrections at points with these ``shares``, whose errors are independent.

    The tail of the weights is that of all draws together: those at one theta are too few to tell.
    """
    own = shares / shares.sum()
    logs = np.concatenate([one.log_weights for one, share in zip(corrections, own, strict=True)
                           if share >= 0.1 * own.max()])
    third = NOTHING
    if all(one.third.size for one in corrections):
        third = np.asarray(np.tensordot(own, [one.third for one in corrections], axes=1))
    efficiency = np.array([one.efficiency for one in corrections])
    error = np.array([one.error for one in corrections])
    little = (error > 0.0) & (own * error <= LITTLE)  # by particles that disagree, where next to nothing hangs on them
    likely = (own >= LIKELY * own.max()) & ~little
    weakest = float(efficiency[likely].min(initial=1.0))  # where evidence is too low, tails are cut off
    return {"efficiency": weakest if weakest < USABLE else float(own @ efficiency), "third": third,
            "correction_khat": smooth_log_weights(logs).khat if len(logs) else float("nan"),
            "error": float(np.sqrt(own**2 @ error**2)),
            "weighed": float(own @ np.array([one.weighed for one in corrections]))}


class Corrector(ABC):
    """What is put back at each of several fits of one model.

    ``efficiency`` is that of components that nothing was corrected of: 1 where q is all but exact, NaN where nothing
    can tell. ``variance`` is that of the log weights at the best theta.
    """

    wanted = True  # whether corrections are worth their while
    only_gains = False  # whether nothing but the evidence, and moments to leading order, is corrected

    def __init__(self, efficiency: float = float("nan"), variance: float = 0.0) -> None:
        self.efficiency, self.variance = efficiency, variance

    @property
    def even(self) -> bool:
        """Whether weights of draws hardly vary, so that moments of the weights of the model hardly change."""
        return self.variance <= EVEN

    def again(self) -> bool:
        """Whether to fit again at the next of many points of theta for what is not remembered of it."""
        return False

    @abstractmethod
    def gain(self, result: Result | None, least: float = 0.0) -> float:
        """log evidence - bound at a fit (None: an exact evaluation), good to a hundredth of a nat.

        Nothing hangs on one that is below ``least``.
        """

    @abstractmethod
    def __call__(self, result: Result | None) -> Correction | None:
        """The correction of a fit; None without any."""


class NoCorrection(Corrector):
    """Where there is nothing to put back, or nobody can tell."""

    wanted = False

    def gain(self, result: Result | None, least: float = 0.0) -> float:
        del result, least
        return 0.0

    def __call__(self, result: Result | None) -> Correction | None:
        del result
        return None
