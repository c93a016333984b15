"""The verdict: can this fit be believed, can it be corrected, or is it in doubt? One word, one number, one sentence."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from klimb.infer.result import Status
from klimb.numerics.pareto import RELIABLE, khat_threshold
from klimb.trust.importance import Sample, WeightedMoments
from klimb.trust.modes import Mode

Word: TypeAlias = Literal["trust", "corrected", "doubt", "verified"]

SD_ERROR = 0.05  # of a reported sd, relative: what still counts as right
MEAN_ERROR = 0.1  # of a reported mean, in sd
SKEWNESS = 0.5  # up to which a symmetric interval is a fair one: its ends are off by at most 0.15 sd
BEYOND = 0.5  # error of an sd above which no correction of a Gaussian is to be believed
THEORY = 0.22  # the same where only second-order theory speaks: a gain of 1 in its expansion
FEWEST_EFFECTIVE = 16.0  # effective draws below which weights say nothing
MINOR = 0.1  # share of the draws that weighting costs below which a heavy tail does not matter
MOST_DRAWN = 2000  # directions up to which particles may be drawn: minutes then
SIGNIFICANT = 2.0  # standard errors
OF_SD = "relative error of an sd"  # what most verdicts measure


@dataclass(frozen=True)
class Verdict:
    """``word``, the ``number`` behind it, what that number ``measures``, a sentence of ``advice``, and a ``remedy``."""

    word: Word
    number: float
    measures: str
    advice: str
    remedy: str = ""


@dataclass(frozen=True)
class Findings:
    """What a verdict is made of."""

    status: Status
    stationarity: float
    sample: Sample  # the draws that the moments come from
    moments: WeightedMoments
    method: str
    kind: str
    modes: tuple[Mode, ...]
    direction_khat: float | None
    independent: str  # what q takes for independent, or ""

    @property
    def remedy(self) -> str:
        """A call that works on the very result, where there is one."""
        few = self.sample.z.shape[1] <= MOST_DRAWN
        return ("result.trust.sampled() draws from the exact posterior." if few else
                "klimb.trust(result) looks closer, with every check.")


def judge(found: Findings) -> Verdict:
    """Reasons for doubt first, then reasons to correct; what is left can be trusted."""
    error = np.abs(found.moments.ratio - 1.0) - found.moments.ratio_error
    return _doubt(found) or _correct(found) or usable(float(error.max(initial=0.0)))


def _doubt(found: Findings) -> Verdict | None:
    if found.status in (Status.DIVERGED, Status.IMPROPER, Status.CYCLE) or (
        found.status is not Status.CONVERGED and found.stationarity > 0.1
    ):
        return Verdict("doubt", found.stationarity, "stationarity",
                       f"The fit did not converge ({found.status.name}). {found.status.advice}")
    mode = next((mode for mode in found.modes if mode.matters), None)
    if mode is not None:
        share = mode.odds / (1.0 + mode.odds)
        amount = f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"
        return Verdict("doubt", share, "mass of another mode",
                       f"Another mode lies {mode.distance:.0f} sd away and holds about {amount} of the mass.",
                       found.remedy)
    return _unreliable(found)


def _unreliable(found: Findings) -> Verdict | None:
    sample, moments = found.sample, found.moments
    khat = sample.smoothed.khat
    # As a share of q's sd, no larger than the standard errors vouch for.
    sure = np.maximum(np.abs(moments.ratio - 1.0) - SIGNIFICANT * moments.ratio_error, 0.0)
    worst = float(sure.max(initial=0.0))
    if worst > BEYOND and not found.independent:  # else it is the correlations that are missing, not the shape
        return Verdict("doubt", worst, OF_SD,
                       f"The posterior is far from Gaussian: the sd of a {_name(found.kind)} is off by {worst:.0%} or "
                       "more.", found.remedy)
    if found.method == "second order":
        if worst > THEORY:
            return Verdict("doubt", worst, OF_SD,
                           "Too many directions are far from Gaussian for weights or second-order theory (k-hat "
                           f"{khat:.2f}): the sd of a {_name(found.kind)} is off by {worst:.0%} or more.", found.remedy)
        if found.direction_khat is not None and found.direction_khat > RELIABLE:
            return Verdict("doubt", found.direction_khat, "k-hat of the most influential directions",
                           f"Importance weights have too heavy a tail (k-hat {found.direction_khat:.2f}) in the few "
                           "most influential directions.", found.remedy)
        if found.direction_khat is not None:
            return None
    # Weights that are not used may be few; those that are must carry averages with their number of draws.
    heavy = khat > (RELIABLE if found.method == "second order" else khat_threshold(sample.n_draws))
    if (heavy and tail_matters(sample.efficiency)) or sample.smoothed.effective < FEWEST_EFFECTIVE:
        return Verdict("doubt", khat, "k-hat",
                       f"Importance weights have too heavy a tail (k-hat {khat:.2f}, {sample.smoothed.effective:.0f} "
                       f"effective draws of {sample.n_draws}): neither q nor its correction is reliable.", found.remedy)
    return None


def tail_matters(efficiency: float) -> bool:
    """Nearly equal weights may have a heavy tail in shape (a large k-hat) that carries next to nothing."""
    return 1.0 - efficiency > MINOR


def _correct(found: Findings) -> Verdict | None:
    moments, name = found.moments, _name(found.kind)
    excess = np.abs(moments.ratio - 1.0)
    sure = excess - SIGNIFICANT * moments.ratio_error > SD_ERROR
    if sure.any():
        worst = int(np.argmax(np.where(sure, excess, 0.0)))
        direction = "understated" if moments.ratio[worst] > 1.0 else "overstated"
        error = abs(1.0 - 1.0 / float(moments.ratio[worst]))
        why = f" (q treats the {found.independent} as independent)" if found.independent else ""
        return Verdict("corrected", error, OF_SD,
                       f"sd of {_count(sure, name)} {direction} by up to {error:.0%}{why}; use "
                       "result.corrected.")
    moved = np.abs(moments.shift) - SIGNIFICANT * moments.shift_error > MEAN_ERROR
    if moved.any():
        size = float(np.abs(moments.shift[moved]).max())
        return Verdict("corrected", size, "error of a mean in sd",
                       f"mean of {_count(moved, name)} off by up to {size:.2f} sd; use result.corrected.")
    skewed = np.abs(moments.skewness) > SKEWNESS
    if skewed.any():
        size = float(np.abs(moments.skewness).max())
        return Verdict("corrected", size, "skewness",
                       f"{_count(skewed, name)} skewed (up to {size:.2f}): for one-sided statements use "
                       "result.corrected.")
    return None


def usable(error: float) -> Verdict:
    """Numbers that are right, sds up to an ``error``."""
    return Verdict("trust", error, OF_SD,
                   f"Means, sds and intervals can be used as they are (sds right to about {error:.1%}).")


def _name(kind: str) -> str:
    return "weight" if kind == "weight" else "latent value"


def _count(mask: np.ndarray[tuple[int], np.dtype[np.bool_]], name: str) -> str:
    n = int(mask.sum())
    return f"{n} {name}{'s' * (n != 1)}"
