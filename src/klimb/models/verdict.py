"""``fit.trust``: whether the numbers that a fit shows can be believed, and how far.

The numbers shown are the exact posterior's wherever importance weights give it (`klimb.models.correction`); what q
and its bound alone give is kept beside them, and the difference is the size of the correction. What remains is
judged by the tails of the weights, those over the weights of the model and those over its hyperparameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from klimb.models.components import Components
from klimb.models.correction import doubtful
from klimb.models.tabulate import LAST, limits_reached, long_tails
from klimb.numerics.arrays import Array
from klimb.numerics.mixtures import mixture_moments
from klimb.numerics.pareto import RELIABLE
from klimb.report.records import Fact, TrustSummary
from klimb.report.text import plain
from klimb.trust import Trust
from klimb.trust.modes import Mode
from klimb.trust.verdict import FEWEST_EFFECTIVE, MEAN_ERROR, MOST_DRAWN, SD_ERROR, Verdict, Word

if TYPE_CHECKING:
    from klimb.models.fit import Fit

MANY_EFFECTIVE, HOPELESS = 2000.0, 1.2  # effective points of theta from which k-hat may go up to this
WRONG_MEAN, WRONG_SD = 0.2, 0.1  # errors of what is shown from which it cannot be called right: in sd, and relative
PRECISION = 0.005  # relative error of an sd that no check goes below
REMAINING = 0.1  # share of a correction that may be left
MOST_COMPARED = 4000  # weights
AT_LIMIT, MASS_AT_LIMIT = 2.0, 0.01  # of theta, from its limits, and the share of a posterior that may lie there
NEAR = 3.0  # sds, of both together, up to which a mode counts as shown


@final
@dataclass(frozen=True)
class FitTrust:
    """The verdict on what a fit shows: "trust", "corrected" (what is shown is corrected), "doubt" or "verified".

    ``number`` is the figure behind it, ``measures`` says what of, ``advice`` is one sentence, ``facts`` are the rest.
    """

    verdict: Word
    number: float
    measures: str
    advice: str
    facts: tuple[Fact, ...] = ()

    @classmethod
    def of_summary(cls, kept: TrustSummary) -> FitTrust:
        """From what a file keeps."""
        number = float("nan") if kept.number is None else kept.number
        return cls(kept.verdict, number, kept.headline, kept.advice, kept.facts)  # type: ignore[arg-type]

    def summary(self) -> TrustSummary:
        """As a record for files and reports."""
        return TrustSummary(self.verdict, self.measures, self.advice, self.number, self.facts)

    def __str__(self) -> str:
        width = max((len(fact.label) for fact in self.facts), default=0)
        lines = [f"{fact.label:{width}s}  {fact.value}" for fact in self.facts]
        return "\n".join([self.advice if self.verdict == "verified" else f"{self.verdict}: {self.advice}", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON."""
        return {"verdict": self.verdict, "number": self.number if np.isfinite(self.number) else None,
                "measures": self.measures, "advice": self.advice,
                "facts": {fact.label: fact.value for fact in self.facts}}


def quick_trust(fit: Fit) -> FitTrust:
    """The verdict from what the fit has computed; for models that nothing was corrected of, from the engine's own."""
    if fit.kept_trust is not None:
        return FitTrust.of_summary(fit.kept_trust)
    judgement, facts = _judged(fit)
    advice = judgement.advice
    if judgement.word == "doubt":
        advice += f" {remedy_of(fit)}"
    if fit.mode == "optimise" and fit.model.theta.size and judgement.word != "doubt":
        advice += " Given the hyperparameters, which are at their best value."
    return FitTrust(judgement.word, judgement.number, judgement.measures, advice, facts)


def _judged(fit: Fit) -> tuple[Verdict, tuple[Fact, ...]]:
    components = fit.components
    facts = (*_integration_facts(components), *_near_zero(fit))
    found = _unfinished(fit) or _unbounded(fit) or _badly_integrated(fit)
    if found is not None:
        return found, facts
    assert fit.result is not None
    estimated = estimated_sds(fit)
    problem, precision = fit.result.problem, max(PRECISION, components.error, estimated)
    if estimated:
        facts += (Fact("error of sds, which are estimated", f"{100.0 * estimated:.1g}% at most for 19 rows of 20"),)
    if problem is not None and problem.site.gamma_trend == "constant":
        return _settled(precision), (*facts, Fact("q given the hyperparameters", "exact"))
    if components.uncorrected is None and not components.efficiency >= 1.0:  # nothing could be corrected
        return _by_engine(fit.result.trust, precision), (*facts, *engine_facts(fit.result.trust))
    shift, ratio = (0.0, 0.0) if components.uncorrected is None else changes(fit)
    if problem is not None and not problem.site.log_concave:
        far = shift > MEAN_ERROR or ratio > SD_ERROR
        for theta, inner in ((fit.model.at, fit.result.trust), *(_farthest(fit) if far else ())):
            if any(mode.matters and not _covered(fit, theta, mode) for mode in inner.modes):
                return inner.judgement, (*facts, *engine_facts(inner))
    if components.uncorrected is None:
        return _settled(precision), facts
    if np.isnan(components.efficiency):
        facts += (Fact("largest change of a mean by the corrected evidence", f"{shift:.2f} sd"),)
        engine = _by_engine(fit.result.trust, precision)
        return _by_evidence(engine, shift, ratio), (*facts, *engine_facts(fit.result.trust))
    facts += (Fact("largest change of a mean by the correction", f"{shift:.2f} sd"),
              Fact("largest change of an sd", f"{ratio:.1%}"),
              Fact("effective draws behind it", f"{components.efficiency:.0%}"))
    if np.isfinite(components.gain):
        facts += (Fact("log evidence", plain(fit.bound + components.gain, 6)), Fact("bound", plain(fit.bound, 6)))
    return _corrected(components, shift, ratio), facts


def estimated_sds(fit: Fit) -> float:
    """The relative standard error that sds of f have at most at 19 sites of 20; 0 where they were computed."""
    if fit.result is None or fit.result.certified:
        return 0.0
    return 0.5 * float(np.quantile(fit.result.variance_error / np.maximum(fit.result.posterior.v, 1e-300), 0.95))


def remedy_of(fit: Fit) -> str:
    """What can be done about a doubt with this very fit: a call that works."""
    from klimb.models.exact import exact_refused

    badly = _badly_integrated(fit) is not None
    if badly and (names := long_tails(fit.model.theta, fit.components)):
        priors = ", ".join(f'"{name}": "exponential({plain(fit.hyperparameters[name], 2)})"' for name in names)
        return f"Fit it again with a lighter tail: priors={{{priors}}}."
    why = exact_refused(fit)
    if why is None:
        return "fit.exact(draws=4000) samples it."
    if badly or _unbounded(fit) is not None:
        return "klimb.optimise(fit.model, fit.data.y) puts them at their best value."
    if fit.result is not None and len(fit.result.posterior.m) <= MOST_DRAWN:
        return "fit.result.trust.sampled() draws from it at the best hyperparameters."
    return f"klimb.trust(fit) looks closer, with every check. {why}" if fit.result is not None else f"{why}"


def _covered(fit: Fit, theta: Array, mode: Mode) -> bool:
    """Whether some part of what is shown lies where a mode does, at the same hyperparameters or the nearest."""
    there, away = fit.model.detach(mode.posterior), np.abs(fit.components.theta - theta).sum(axis=1)
    parts = [fit.components.parts[k] for k in np.flatnonzero(away <= away.min())]
    return any(bool((np.abs(part.mean - there.mean) <= NEAR * (part.sd() + there.sd())).all()) for part in parts)


def _farthest(fit: Fit) -> Iterator[tuple[Array, Trust]]:
    """The engine's reports at both ends of the likely hyperparameters, from a start of its own: modes part there."""
    if fit.data is not None:
        for theta in fit.components.ends():
            yield theta, fit.model.moved(theta).infer(fit.data).trust


def _unfinished(fit: Fit) -> Verdict | None:
    if fit.converged:
        return None
    return Verdict("doubt", float("nan"), "convergence", f"The fit did not converge ({fit.status.name}). "
                   f"{fit.status.advice}")


def _badly_integrated(fit: Fit) -> Verdict | None:
    """False comparisons with NaN are those of hyperparameters that were not integrated out by importance weights."""
    components = fit.components
    heavy = components.khat > (RELIABLE if components.n_effective < MANY_EFFECTIVE else HOPELESS)
    if not (heavy or components.n_effective < FEWEST_EFFECTIVE or components.error > WRONG_SD):
        return None
    if names := long_tails(fit.model.theta, components):
        usable = not doubtful(components.efficiency, components.correction_khat)
        return Verdict("doubt", components.error, "relative error of an sd",
                       f"The posterior of {', '.join(names)} has such a long upper tail that sds rest on less than "
                       f"{LAST:.1%} of its mass, and are too small here." + " Intervals can be used." * usable)
    tail = ""
    if np.isfinite(components.n_effective):
        tail = f"k-hat {components.khat:.2f}, {components.n_effective:.0f} effective points, "
    return Verdict("doubt", components.khat, "tail of the weights of hyperparameters (k-hat)",
                   f"The hyperparameters are hard to integrate out: {tail}sds right to about {components.error:.0%}.")


def _unbounded(fit: Fit) -> Verdict | None:
    """Flat priors that nothing bounds: the posterior goes on to the limits of the search, which nobody chose."""
    points, weights = fit.components.marginal_points
    for block in fit.model.theta.blocks if fit.components.integrated else ():
        at = fit.model.theta.slice_of(block)
        flat = (block.log_prior(block.lower)[1] == 0.0) & (block.log_prior(block.upper)[1] == 0.0)
        mass = weights @ ((points[:, at] < block.lower + AT_LIMIT) | (points[:, at] > block.upper - AT_LIMIT))
        for j in np.flatnonzero(flat & (mass > MASS_AT_LIMIT)):
            return Verdict("doubt", float(mass[j]), "share of the posterior at the limits of a hyperparameter",
                           f"The data do not bound {block.names[j]}, whose prior is flat, so its posterior depends "
                           "on the limits of the search. Give it a prior.")
    return None


def _integration_facts(components: Components) -> tuple[Fact, ...]:
    if not np.isfinite(components.n_effective):
        return ()
    return (Fact("k-hat of the weights of hyperparameters", plain(components.khat, 2)),
            Fact("effective points of hyperparameters", f"{components.n_effective:.0f}"))


def _near_zero(fit: Fit) -> tuple[Fact, ...]:
    names = [name for name, power in limits_reached(fit.model.theta, fit.components).items() if power > 0.0]
    return (Fact("sds that may be zero", ", ".join(names)),) if names else ()


def _corrected(components: Components, shift: float, ratio: float) -> Verdict:
    if doubtful(components.efficiency, components.correction_khat):
        return Verdict("doubt", components.correction_khat, "tail of the importance weights (k-hat)",
                       f"The posterior is too far from Gaussian for a correction ({components.efficiency:.0%} of the "
                       "draws are effective).")
    own = ratio if np.isnan(components.weighed) else components.weighed
    left = max(PRECISION + REMAINING * own, components.error)
    if shift <= MEAN_ERROR and ratio <= SD_ERROR:
        return _settled(left)
    return Verdict("corrected", left, "relative error of an sd",
                   f"The numbers shown are corrected and can be used (sds right to about {left:.1%}): a Gaussian "
                   f"posterior alone would be off by up to {shift:.2f} sd in a mean and {ratio:.0%} in an sd "
                   "(fit.uncorrected).")


def _settled(error: float) -> Verdict:
    return Verdict("trust", error, "relative error of an sd",
                   f"Means, sds and intervals can be used as they are (sds right to about {error:.1%}).")


def _by_evidence(inner: Verdict, shift: float, ratio: float) -> Verdict:
    """Where hyperparameters were weighed by a corrected evidence, and q given them is judged as it is."""
    if inner.word == "doubt" or (shift <= MEAN_ERROR and ratio <= SD_ERROR):
        return inner
    left = float(np.nanmax([inner.number, PRECISION + REMAINING * ratio]))
    return Verdict("corrected", left, "relative error of an sd",
                   f"The numbers shown can be used (sds right to about {left:.1%}): their hyperparameters are weighed "
                   f"by a corrected evidence, without which they would be off by up to {shift:.2f} sd in a mean "
                   "(fit.uncorrected).")


def _by_engine(inner: Trust, precision: float) -> Verdict:
    """The engine's verdict on q, where what is shown is q: what it would correct is right, or is not.

    ``precision`` is how far the hyperparameters' own sds are right.
    """
    judgement, moments = inner.judgement, inner.marginals
    if judgement.word == "trust":
        return _settled(float(np.nanmax([judgement.number, precision])))
    if judgement.word != "corrected":
        return judgement
    sd = float((np.abs(1.0 - 1.0 / moments.ratio) - moments.ratio_error).max(initial=0.0))
    mean = float((np.abs(moments.shift) - moments.shift_error).max(initial=0.0))
    if sd < WRONG_SD and mean < WRONG_MEAN:
        return Verdict("trust", sd, "relative error of an sd",
                       f"Means, sds and intervals can be used (sds right to about {sd:.1%}, means to {mean:.2f} sd); "
                       "fit.result.corrected has the exact posterior's.")
    return Verdict("doubt", sd, "relative error of an sd",
                   f"sds are off by up to {sd:.0%}, means by up to {mean:.2f} sd: fit.result.corrected has the exact "
                   "posterior's.")


def changes(fit: Fit) -> tuple[float, float]:
    """What the correction changes most, of all that is shown: a mean in sd, and an sd relative to the exact one."""
    components = fit.components
    assert components.uncorrected is not None
    (mean, sd), (plain_mean, plain_sd) = _weight_moments(components), _weight_moments(components.uncorrected)
    pairs = [(mean, sd, plain_mean, plain_sd)]
    if components.integrated or type(fit).coefficient_rows is not _no_rows():
        shown = fit.coefficient_rows() if not components.integrated else fit.table_rows()
        other = fit.uncorrected
        before = other.coefficient_rows() if not components.integrated else other.table_rows()
        pairs.append(tuple(np.array([getattr(row, name) for row in rows], dtype=float)  # type: ignore[arg-type]
                           for rows in (shown, before) for name in ("mean", "sd")))
    shift = ratio = 0.0
    for mean, sd, plain_mean, plain_sd in pairs:
        spread = np.where(sd > 0, sd, 1.0)
        shift = max(shift, float(np.nan_to_num(np.abs(mean - plain_mean) / spread).max(initial=0.0)))
        ratio = max(ratio, float(np.nan_to_num(np.abs(plain_sd / spread - 1.0)[sd > 0]).max(initial=0.0)))
    return shift, ratio


def _no_rows() -> Any:
    from klimb.models.fit import Fit

    return Fit.coefficient_rows


def _weight_moments(components: Components) -> tuple[Array, Array]:
    means = np.array([part.mean[:MOST_COMPARED] for part in components.parts])
    sds = np.array([part.sd()[:MOST_COMPARED] for part in components.parts])
    mean, variance = mixture_moments(components.weights, means, sds**2)
    return mean, np.sqrt(variance)


def engine_facts(trust: Trust) -> tuple[Fact, ...]:
    """The engine's report as facts."""
    found = trust.to_dict()
    facts = [
        Fact("tail of the importance weights (k-hat)", f"{plain(found['khat'], 2)}, from {found['n_draws']:,} draws"),
        Fact("effective draws", f"{100.0 * found['efficiency']:.0f}%"),
        Fact("log evidence", f"{plain(found['log_evidence'], 6)} ± {plain(found['log_evidence_error'], 2)}"),
        Fact("bound", plain(found["bound"], 6)),
        Fact("sd of the posterior over reported sd",
             f"{found['smallest_sd_ratio']:.3f} to {found['largest_sd_ratio']:.3f}"),
        Fact("largest error of a mean", f"{found['largest_shift']:.3f} sd"),
        Fact("largest skewness", plain(found["largest_skewness"], 2)),
    ]
    if found.get("direction_khat") is not None:
        facts.insert(1, Fact("k-hat of the most influential directions", plain(found["direction_khat"], 2)))
    if found.get("modes"):
        facts.append(Fact("other modes", str(len(found["modes"]))))
    return tuple(facts)
