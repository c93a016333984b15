"""How far a mixture can be trusted: importance weights of draws from q and from a q made wider.

Draws of q alone are blind to what q leaves out. So a third of the points come from wider components, every point is
weighed by p over the density r of all draws together, and the tail of those weights says what to rely on.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from klimb.boosting.gaussians import moments
from klimb.boosting.proposals import BEYOND, THIN
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import RELIABLE, SmoothedWeights, smooth_deeper

if TYPE_CHECKING:
    from klimb.boosting.mixture import Mixture

Verdict: TypeAlias = Literal["trust", "corrected", "doubt"]
CHECKED = 1 << 11  # draws of q; a quarter as many from each wider mixture
MISSING, SD_ERROR, SHIFT, GAP = 0.02, 0.05, 0.1, 0.04  # from which q's own moments should not be used
ROUGH = 0.2  # nats by which a surrogate may be off
HEAVY = 10.0  # times the average: weights below it settle an average whatever their tail looks like


@dataclass(frozen=True, eq=False)
class CorrectedMixture:
    """Moments of the target itself: draws of the mixture, and of a wider one, reweighted by the target.

    Rely on them while ``khat`` is below 0.7. ``log_evidence`` is the log of the integral of the user's density.

    >>> import klimb
    >>> q = klimb.boost(lambda x: -3.0 * np.log1p(x[:, 0] ** 2 / 5), 1, n_components=1)  # Student's t, 5 df: sd 1.29
    >>> print(q.sd.round(2), q.corrected.sd.round(2), q.corrected.khat < 0.7)
    [1.11] [1.29] True
    """

    mean: Array
    cov: Array
    log_evidence: float
    log_evidence_error: float
    khat: float
    effective: float  # how many equally weighted draws they are worth
    draws: Array = field(repr=False)
    weights: Array = field(repr=False)

    @property
    def sd(self) -> Array:
        """Standard deviations of the target."""
        return np.asarray(np.sqrt(np.diag(self.cov)))


class SurrogateCheck(NamedTuple):
    """How far a surrogate of the log density is off at ``n`` fresh draws of the mixture: ``error`` is a sd in nats.

    At ``outside`` of these draws the log density is -inf; ``inside`` is the share of the mixture within the support,
    ``missing`` that of the target where the mixture has less than a third of it, by as many draws around it.
    """

    error: float
    n: int
    outside: int
    inside: float
    missing: float = 0.0

    @property
    def good(self) -> bool:
        return self.error < ROUGH and self.outside == 0 and self.missing < MISSING


@dataclass(frozen=True, eq=False)
class MixtureTrust:
    """``verdict`` is "trust" (use q), "corrected" (use q.corrected) or "doubt" (neither).

    ``number`` is the figure behind it, ``measures`` says what of, ``advice`` what to do. ``missing`` is the share of
    the target's mass where q has less than a third of it, ``sd_ratio`` corrected over own standard deviations, and
    ``sd_khat`` the tail of weight times squared deviation: above 0.7 that standard deviation is not known.

    >>> import klimb
    >>> print(klimb.boost(lambda x: -3.0 * np.log1p(x[:, 0] ** 2 / 5), 1, n_components=1).trust)
    verdict   corrected: the sd of x0 is off by 16%: use q.corrected, or divergence='inclusive'.
    k-hat     0.49
    gap       0.02 nats from the target, by estimate
    missing   2.0% of the target's mass lies where q has less than a third of it
    moments   sd of x0 corrected by a factor 1.161; means off by up to 0.000 sd
    """

    verdict: Verdict
    number: float
    measures: str
    advice: str
    khat: float
    gap: float
    missing: float
    sd_ratio: Array
    shift: Array
    sd_khat: Array
    names: tuple[str, ...] = field(repr=False)
    surrogate: SurrogateCheck | None = None

    def __str__(self) -> str:
        worst = int(np.argmax(np.abs(np.log(self.sd_ratio))))
        checked = [] if self.surrogate is None else [
            f"surrogate off by {self.surrogate.error:.2g} nats at {self.surrogate.n} fresh draws; the rest is its own"]
        return "\n".join([
            f"verdict   {self.verdict}: {self.advice}", *checked,
            f"k-hat     {self.khat:.2f}",
            f"gap       {self.gap:.3g} nats from the target, by estimate",
            f"missing   {self.missing:.1%} of the target's mass lies where q has less than a third of it",
            f"moments   sd of {self.names[worst]} corrected by a factor {self.sd_ratio[worst]:.3f}; means off by up to "
            f"{float(np.abs(self.shift).max()):.3f} sd",
        ])


class Weighed:
    """Points of q and around it with everything that their weights need; the target is evaluated once."""

    def __init__(self, mixture: "Mixture", own: Array) -> None:
        self.mixture = mixture
        per_scale = len(own) // (2 * len(BEYOND))
        wide = [mixture.parts.widened(far) for far in BEYOND]
        self.U = np.concatenate([own, *(q.draws(per_scale, mixture.seed + 211 + j) for j, q in enumerate(wide))])
        self.n_own = len(own)
        self.log_p = mixture.target.values(self.U, far=True)
        self.log_q = mixture._log_free(self.U)
        terms = [np.log(self.n_own) + self.log_q, *(np.log(per_scale) + q.log_density(self.U) for q in wide)]
        self.log_r = np.logaddexp.reduce(terms, axis=0) - np.log(len(self.U))

    @cached_property
    def plain(self) -> SmoothedWeights:
        """p/q at the draws of q: the usual k-hat."""
        return smooth_deeper(self.log_p[: self.n_own] - self.log_q[: self.n_own])

    @cached_property
    def defended(self) -> SmoothedWeights:
        """p/r at all points."""
        return smooth_deeper(self.log_p - self.log_r)

    @cached_property
    def X(self) -> Array:
        return self.mixture.target.coordinates.to_user(self.U)[0]

    @cached_property
    def corrected(self) -> CorrectedMixture:
        smoothed = self.defended
        w = smoothed.normalised
        return CorrectedMixture(*moments(w, self.X), smoothed.log_mean, smoothed.log_mean_error, smoothed.khat,
                                smoothed.effective, self.X, w)

    @property
    def gap(self) -> float:
        """An estimate of KL(q || p): the log evidence less the bound, at the same draws of q."""
        residual = self.log_p[: self.n_own] - self.log_q[: self.n_own]
        bound = float(np.mean(residual[np.isfinite(residual)]))
        # The first has little noise and is blind outside q; the second sees more and has more noise.
        return max(0.0, self.plain.log_mean - bound, self.defended.log_mean - bound)

    @property
    def missing(self) -> float:
        """The share of the target's mass where q has less than a third of it."""
        thin = self.log_p - self.log_q - self.defended.log_mean > np.log(THIN)
        return float(self.defended.normalised[thin].sum())

    def sd_khat(self) -> Array:
        """Per parameter, the tail of weight times squared deviation."""
        deviation = np.abs(self.X - self.corrected.mean)
        with np.errstate(divide="ignore"):
            terms = (self.log_p - self.log_r)[:, None] + 2.0 * np.log(deviation)
        return np.array([tail(smooth_deeper(column)) for column in terms.T])

    @property
    def khat(self) -> float:
        """The worse of both tails, where a tail is felt."""
        return max(tail(self.plain), tail(self.defended))


def tail(weights: SmoothedWeights) -> float:
    """k-hat, held at its limit where no single weight is large enough to move an average."""
    felt = float(weights.normalised.max()) * len(weights.log_weights) > HEAVY
    return weights.khat if felt else min(weights.khat, RELIABLE)


def trust_of(mixture: "Mixture", found: Weighed) -> MixtureTrust:
    """Reasons for doubt first, then reasons to correct; what is left can be trusted."""
    corrected, own_sd = found.corrected, np.maximum(mixture.sd, np.finfo(float).tiny)
    ratio = np.maximum(corrected.sd, np.finfo(float).tiny) / own_sd
    shift = (corrected.mean - mixture.mean) / own_sd
    sd_khat = found.sd_khat()
    khat, missing = found.khat, found.missing
    tail, off, moved = int(np.argmax(sd_khat)), int(np.argmax(np.abs(np.log(ratio)))), float(np.abs(shift).max())
    error = float(np.abs(np.log(ratio[off])))
    check, gap, thick, wide = mixture.surrogate, found.gap, mixture.names[tail], mixture.names[off]
    known = check or SurrogateCheck(0.0, 0, 0, 1.0)  # nothing is wrong with the function itself
    left_out = "q leaves some of the target out: use q.corrected, raise n_components, or divergence='inclusive'."
    reasons: tuple[tuple[Any, Verdict, float, str, str], ...] = (
        (known.outside or known.inside < 1.0 - MISSING, "doubt", 1.0 - known.inside, "share outside the support",
         "log_density is -inf within the bulk: few evaluations do not tell where. Declare the edge by transform."),
        (known.missing >= MISSING, "doubt", known.missing, "missing mass",
         "log_density is larger around q than q and the surrogate say. Raise max_evaluations."),
        (not known.good, "doubt", known.error, "error of the surrogate",
         f"the surrogate of log_density is off by {known.error:.2g} nats at draws of q that it has not seen. Raise "
         "max_evaluations."),
        # Fresh draws of q say nothing of a tail that it lacks.
        (check is not None and mixture.ended.name == "EVALUATIONS", "doubt", known.error, "error of the surrogate",
         "max_evaluations was reached before the surrogate predicted new values well enough. Raise max_evaluations."),
        (khat > RELIABLE, "doubt", khat, "k-hat",
         "weights have too heavy a tail: q is far from the target in places. Raise n_components, try another "
         "parametrisation (non-centred, or logs of scales), or sample."),
        (sd_khat[tail] > RELIABLE, "doubt", float(sd_khat[tail]), f"k-hat of the sd of {thick}",
         f"the tail of {thick} is too heavy for its sd to be known from draws; means and quantiles of the bulk can be "
         "used. Try divergence='inclusive', another parametrisation, or sample."),
        (error > SD_ERROR, "corrected", error, f"relative error of the sd of {wide}",
         f"the sd of {wide} is off by {np.expm1(error):.0%}: use q.corrected, or divergence='inclusive'."),
        (moved > SHIFT, "corrected", moved, "shift of a mean", left_out),
        (missing > MISSING, "corrected", missing, "missing mass", left_out),
        (gap > GAP, "corrected", gap, "gap", left_out),
        (True, "trust", gap, "gap", "q and the target agree as far as draws of q, and around it, can tell."))
    verdict = next(reason[1:] for reason in reasons if reason[0])
    return MixtureTrust(*verdict, khat, gap, missing, ratio, shift, sd_khat, mixture.names, check)
