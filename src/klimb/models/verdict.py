"""``fit.trust``: whether the numbers that a fit shows can be believed, and how far; and ``klimb.trust(fit)``.

The numbers shown are the exact posterior's wherever importance weights give it (`klimb.models.correction`); what q
and its bound alone give is kept beside them, and the difference is the size of the correction. What remains is
judged by the tails of the weights, those over the weights of the model and those over its hyperparameters.

A fit at the best hyperparameters says nothing of their own uncertainty. Where the evidence is flat in one of them, or
best at the edge of its range (a variance that wants to be zero: the neck of a funnel), its posterior is far too narrow,
and nothing in the fit there can show it; integrating the hyperparameters out can, which the complete report does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError
from klimb.models.components import Components, Latents
from klimb.models.correction import doubtful
from klimb.models.solution import around
from klimb.models.tabulate import LAST, limits_reached, long_tails
from klimb.numerics.arrays import Array
from klimb.numerics.mixtures import mixture_moments
from klimb.numerics.pareto import RELIABLE
from klimb.report.records import Fact, FitTrust
from klimb.report.text import plain
from klimb.trust import Trust, trust_report
from klimb.trust.gap import leading_error
from klimb.trust.modes import Mode
from klimb.trust.verdict import BEYOND, FEWEST_EFFECTIVE, MEAN_ERROR, MOST_DRAWN, OF_SD, SD_ERROR, Verdict, usable

if TYPE_CHECKING:
    from klimb.models.fit import Fit

MANY_EFFECTIVE, HOPELESS = 2000.0, 1.2  # effective points of theta from which k-hat may go up to this
WRONG_MEAN, WRONG_SD = 0.2, 0.1  # errors of what is shown from which it cannot be called right: in sd, and relative
LEFT_OUT = 0.15, 0.1  # the same by inducing points, as they are estimated: hyperparameters move with them
PRECISION = 0.005  # relative error of an sd that no check goes below
REMAINING = 0.1  # share of a correction that may be left
SECOND = 1.5  # the same of one to leading order, over its square
MOST_COMPARED, HEAVIEST = 4000, 4  # weights, and points of theta
AT_LIMIT, MASS_AT_LIMIT = 2.0, 0.01  # of theta, from its limits, and the share of a posterior that may lie there
UNTOLD, MASS_UNTOLD = 2.0, 0.5  # times what a term can tell, and the share of the posterior from where it is a doubt
NEAR = 3.0  # sds, of both together, up to which a mode counts as shown
EDGE = 1e-3  # distance from a limit, in theta, at which a hyperparameter counts as lying on it
WIDE = 1.0  # sd of theta (mostly logs) from which a hyperparameter counts as hardly determined
SKEWED = 1.0  # skewness of its marginal from which it is no longer summarised by a mode
WIDEST_LOG = 2.0  # sd of a log mean under q above which its own upper tail is not the one of third moments
UNEVEN = 3.0  # ratio of f's sd between likely hyperparameters from which the joint posterior is a funnel
LIKELY = 0.02  # share of the mass from which a point counts as likely


def quick_trust(fit: Fit) -> FitTrust:
    """The verdict from what the fit has computed; for models that nothing was corrected of, from the engine's own."""
    facts: list[Fact] = []
    if np.isfinite(fit.components.n_effective):
        facts += [Fact("k-hat of the weights of hyperparameters", plain(fit.components.khat, 2)),
                  Fact("effective points of hyperparameters", f"{fit.components.n_effective:.0f}")]
    names = [name for name, power in limits_reached(fit.model.theta, fit.components).items() if power > 0.0]
    facts += [Fact("sds that may be zero", ", ".join(names))] if names else []
    left = (0.0, 0.0) if fit.result is None else fit.model.left_out(fit.result.posterior)
    if max(left) > 0.0:
        facts += [Fact("largest error of a mean by inducing points", f"{left[0]:.2f} sd"),
                  Fact("largest error of an sd by inducing points", f"{left[1]:.1%}")]
    judged = (_unfinished(fit) or _unbounded(fit) or _untold(fit) or _badly_integrated(fit) or _left_out(*left)
              or _judged(fit, facts, left[1]))
    given = ""
    if fit.mode == "optimise" and fit.model.theta.size and judged.word != "doubt":
        given = " Given the hyperparameters, which are at their best value."
    return _stated(fit, judged, facts, given)


def _stated(fit: Fit, judged: Verdict, facts: list[Fact], given: str = "") -> FitTrust:
    remedy = f" {remedy_of(fit)}" if judged.word == "doubt" else given
    return FitTrust(judged.word, judged.measures, judged.advice + remedy, judged.number, tuple(facts))


def _judged(fit: Fit, facts: list[Fact], left_out: float) -> Verdict:
    """What is shown of weights whose hyperparameters were integrated out well; ``facts`` are added to."""
    assert fit.result is not None
    components, problem, estimated = fit.components, fit.result.problem, estimated_sds(fit)
    precision = max(PRECISION, components.error, estimated, left_out)
    if estimated:
        facts.append(Fact("error of sds, which are estimated", f"{100.0 * estimated:.1g}% at most for 19 rows of 20"))
    if problem is not None and problem.site.gamma_trend == "constant":
        facts.append(Fact("q given the hyperparameters", "exact"))
        return usable(precision)
    if components.uncorrected is None and not components.efficiency >= 1.0:  # nothing could be corrected
        facts += engine_facts(fit.result.trust)
        return _by_engine(fit.result.trust, precision)
    shift, ratio = (0.0, 0.0) if components.uncorrected is None else changes(fit)
    small = shift <= MEAN_ERROR and ratio <= SD_ERROR
    if problem is not None and not problem.site.log_concave:
        reports: list[tuple[Array, Trust]] = [(fit.model.at, fit.result.trust), *(() if small else _farthest(fit))]
        for theta, inner in reports:
            if any(mode.matters and not _covered(fit, theta, mode) for mode in inner.modes):
                facts += engine_facts(inner)
                return inner.judgement
    if components.uncorrected is None:
        return usable(precision)
    if np.isnan(components.efficiency):  # theta weighed by a corrected evidence, q to leading order
        facts += [Fact("largest change of a mean by the corrected evidence", f"{shift:.2f} sd"),
                  *engine_facts(fit.result.trust)]
        mended = _mended(components)
        engine = _by_engine(fit.result.trust, precision, mended)
        moved = max(precision, PRECISION + REMAINING * ratio)
        left = float(np.nanmax([engine.number, moved]))
        if left > WRONG_SD and engine.measures == OF_SD and mended and moved <= WRONG_SD:
            error = float("nan") if _beyond_data(fit) else _beside_chains(fit)
            if np.isfinite(error):
                facts.append(Fact("largest error of an sd of f, beside chains", f"{error:.1%}"))
                left = max(moved, error)
                engine = usable(left) if left <= WRONG_SD else engine
        if left > WRONG_SD and engine.word != "doubt":
            return Verdict("doubt", left, OF_SD, f"sds may be off by {left:.0%}: the posterior is too far from "
                           "Gaussian for a correction to leading order.")
        return engine if engine.word == "doubt" or small else Verdict(
            "corrected", left, OF_SD, "The numbers shown are corrected to leading order and can be used (sds right to "
            f"about {left:.1%}): by the bound instead of the evidence they would be off by up to {shift:.2f} sd in a "
            f"mean and {ratio:.0%} in an sd (fit.uncorrected).")
    facts += [Fact("largest change of a mean by the correction", f"{shift:.2f} sd"),
              Fact("largest change of an sd", f"{ratio:.1%}"),
              Fact("effective draws behind it", f"{components.efficiency:.0%}")]
    if np.isfinite(components.gain):
        facts += [Fact("log evidence", plain(fit.bound + components.gain, 6)), Fact("bound", plain(fit.bound, 6))]
    if doubtful(components.efficiency, components.correction_khat):
        return Verdict("doubt", components.correction_khat, "tail of the importance weights (k-hat)",
                       f"The posterior is too far from Gaussian for a correction ({components.efficiency:.0%} of the "
                       "draws are effective).")
    own = ratio if np.isnan(components.weighed) else components.weighed
    left = max(PRECISION + REMAINING * own, components.error)
    return usable(left) if small else Verdict(
        "corrected", left, OF_SD, f"The numbers shown are corrected and can be used (sds right to about {left:.1%}): a "
        f"Gaussian posterior alone would be off by up to {shift:.2f} sd in a mean and {ratio:.0%} in an sd "
        "(fit.uncorrected).")


def estimated_sds(fit: Fit) -> float:
    """The relative standard error that sds of f have at most at 19 sites of 20; 0 where they were computed."""
    if fit.result is None or fit.result.certified:
        return 0.0
    return 0.5 * float(np.quantile(fit.result.variance_error / np.maximum(fit.result.posterior.v, 1e-300), 0.95))


def remedy_of(fit: Fit) -> str:
    """What can be done about a doubt with this very fit: a call that works."""
    from klimb.models.exact import exact_refused

    if fit.result is not None and _left_out(*fit.model.left_out(fit.result.posterior)) is not None:
        model: Any = fit.model
        if model.automatic:
            return f"More than {len(model.Z)} are needed: klimb.gp(..., inducing={2 * len(model.Z)})."
        return 'klimb.gp(..., inducing="auto") finds how many are enough, up to 500.'
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


def _left_out(mean: float, sd: float) -> Verdict | None:
    if mean <= LEFT_OUT[0] and sd <= LEFT_OUT[1]:
        return None
    return Verdict("doubt", sd, OF_SD, "These inducing points are too few: beside the full Gaussian process means may "
                   f"be off by {mean:.2g} sd, and sds by {sd:.0%}.")


def _unfinished(fit: Fit) -> Verdict | None:
    return None if fit.converged else Verdict("doubt", float("nan"), "convergence", "The fit did not converge "
                                              f"({fit.status.name}). {fit.status.advice}")


def _badly_integrated(fit: Fit) -> Verdict | None:
    """False comparisons with NaN are those of hyperparameters that were not integrated out by importance weights."""
    components = fit.components
    heavy = components.khat > (RELIABLE if components.n_effective < MANY_EFFECTIVE else HOPELESS)
    weighed = heavy or components.n_effective < FEWEST_EFFECTIVE
    if not (weighed or components.error > WRONG_SD):
        return None
    if names := long_tails(fit.model.theta, components):
        intervals = not doubtful(components.efficiency, components.correction_khat)
        return Verdict("doubt", components.error, OF_SD,
                       f"The posterior of {', '.join(names)} has such a long upper tail that sds rest on less than "
                       f"{LAST:.1%} of its mass, and are too small here." + " Intervals can be used." * intervals)
    tail = ""
    if np.isfinite(components.n_effective):
        tail = f"k-hat {components.khat:.2f}, {components.n_effective:.0f} effective points, "
    number, measures = components.error, OF_SD
    if weighed:
        number, measures = components.khat, "tail of the weights of hyperparameters (k-hat)"
    return Verdict("doubt", number, measures,
                   f"The hyperparameters are hard to integrate out: {tail}sds right to about {components.error:.0%}.")


def _unbounded(fit: Fit) -> Verdict | None:
    """Flat priors that nothing bounds: the posterior goes on to the limits of the search, which nobody chose."""
    points, weights = fit.components.marginal_points
    for block in fit.model.theta.blocks if fit.components.integrated else ():
        at = fit.model.theta.slice_of(block)
        _, lower, upper = block.search()
        flat = (block.log_prior(lower)[1] == 0.0) & (block.log_prior(upper)[1] == 0.0)
        mass = weights @ ((points[:, at] < lower + AT_LIMIT) | (points[:, at] > upper - AT_LIMIT))
        for j in np.flatnonzero(flat & (mass > MASS_AT_LIMIT)):
            return Verdict("doubt", float(mass[j]), "share of the posterior at the limits of a hyperparameter",
                           f"The data do not bound {block.names[j]}, whose prior is flat, so its posterior depends "
                           "on the limits of the search. Give it a prior.")
    return None


def _untold(fit: Fit) -> Verdict | None:
    """Most of the posterior at hyperparameters that the nodes of a field cannot tell."""
    linear, (points, weights) = getattr(fit, "linear", None), fit.components.marginal_points
    if linear is None or not linear.sparse:
        return None
    several = [linear.moved(theta).values for theta in points]
    for number in linear.sparse:
        times, texts = zip(*(linear.terms[number].doubt(values[number]) for values in several), strict=True)
        far = np.array(times) > UNTOLD
        if (mass := float(weights @ far)) > MASS_UNTOLD:
            return Verdict("doubt", mass, "share of the posterior beyond what the nodes of a field can tell",
                           texts[int(np.argmax(weights * far))])
    return None


def _by_engine(inner: Trust, precision: float, mended: float = 0.0) -> Verdict:
    """The engine's verdict on q, where what is shown is q: what it would correct is right, or is not.

    ``precision`` is how far the hyperparameters' own sds are right, ``mended`` what sds have grown by already.
    """
    judgement, moments = inner.judgement, inner.marginals
    if judgement.word == "trust":
        return usable(float(np.nanmax([_left(judgement.number, mended), precision])))
    if judgement.word != "corrected":
        return judgement
    sd = _left(float((np.abs(1.0 - 1.0 / moments.ratio) - moments.ratio_error).max(initial=0.0)), mended)
    mean = float((np.abs(moments.shift) - moments.shift_error).max(initial=0.0))
    if sd < WRONG_SD and mean < WRONG_MEAN:
        return Verdict("trust", sd, OF_SD, f"Means, sds and intervals can be used (sds right to about {sd:.1%}, means "
                       f"to {mean:.2f} sd); fit.result.corrected has the exact posterior's.")
    return Verdict("doubt", sd, OF_SD, f"sds are off by up to {sd:.0%}, means by up to {mean:.2f} sd: "
                   "fit.result.corrected has the exact posterior's.")


def _beyond_data(fit: Fit) -> bool:
    """Whether f is so wide somewhere that ends of e^f are not those of f that is right to some percent of its sd."""
    assert fit.result is not None
    link = fit.model.likelihood.link.name.split()
    return "log" in link and bool(fit.result.posterior.v.max(initial=0.0) > WIDEST_LOG**2)


def _beside_chains(fit: Fit) -> float:
    """The error of sds to leading order at the likeliest theta and at both ends of the likely ones, on average."""
    components = fit.components
    every = [components.theta[int(np.argmax(components.weights))], *components.ends()]
    results = [fit.model.moved(theta).infer(fit.data) for theta in every] if fit.data is not None else []
    errors = [leading_error(one.problem, one.posterior) for one in results if one.problem is not None]
    return float(np.mean(errors)) if errors else float("nan")


def _mended(components: Components) -> float:
    """What sds of the weights changed by at the same theta, the likeliest ones; the evidence moves theta as well."""
    assert components.uncorrected is not None
    plain = components.uncorrected
    before, most = {theta.tobytes(): part for theta, part in zip(plain.theta, plain.parts, strict=True)}, 0.0
    for k in np.argsort(-components.weights, kind="stable")[:HEAVIEST]:
        now, own = components.parts[k], before.get(components.theta[k].tobytes())
        if own is not None and own is not now:
            sd = now.sd()[:MOST_COMPARED]
            most = max(most, float(np.abs(own.sd()[:MOST_COMPARED] / np.maximum(sd, 1e-300) - 1.0).max(initial=0.0)))
    return most


def _left(error: float, mended: float) -> float:
    """What is left of the error of an sd, most of which may have been ``mended``."""
    return max(error - mended, 0.0) + max(REMAINING * mended, SECOND * mended**2)


def changes(fit: Fit) -> tuple[float, float]:
    """What the correction changes most, of all that is shown: a mean in sd, and an sd relative to the exact one."""
    components, other = fit.components, fit.uncorrected
    shift = ratio = 0.0
    for now, before in ((fit, other), (components, other.components)):
        (mean, sd), (plain_mean, plain_sd) = _moments(now), _moments(before)
        spread = np.where(sd > 0, sd, 1.0)
        shift = max(shift, float(np.nan_to_num(np.abs(mean - plain_mean) / spread).max(initial=0.0)))
        ratio = max(ratio, float(np.nan_to_num(np.abs(plain_sd / spread - 1.0)[sd > 0]).max(initial=0.0)))
    return shift, ratio


def _moments(of: Fit | Components) -> tuple[Array, Array]:
    """Means and sds of the rows of a table, those of hyperparameters that were integrated out among them, or weights.
    """
    if not isinstance(of, Components):
        rows = of.table_rows() if of.components.integrated else of.coefficient_rows()
        return np.array([row.mean for row in rows], dtype=float), np.array([row.sd for row in rows], dtype=float)
    means = np.array([part.mean[:MOST_COMPARED] for part in of.parts])
    sds = np.array([part.sd()[:MOST_COMPARED] for part in of.parts])
    mean, variance = mixture_moments(of.weights, means, sds**2)
    return mean, np.sqrt(variance)


def engine_facts(trust: Trust) -> list[Fact]:
    """The engine's report as facts."""
    found = trust.to_dict()
    directions, modes = found["direction_khat"], len(found["modes"])
    return [
        Fact("tail of the importance weights (k-hat)", f"{plain(found['khat'], 2)}, from {found['n_draws']:,} draws"),
        *([Fact("k-hat of the most influential directions", plain(directions, 2))] if directions is not None else []),
        Fact("effective draws", f"{100.0 * found['efficiency']:.0f}%"),
        Fact("log evidence", f"{plain(found['log_evidence'], 6)} ± {plain(found['log_evidence_error'], 2)}"),
        Fact("bound", plain(found["bound"], 6)),
        Fact("sd of the posterior over reported sd",
             f"{found['smallest_sd_ratio']:.3f} to {found['largest_sd_ratio']:.3f}"),
        Fact("largest error of a mean", f"{found['largest_shift']:.3f} sd"),
        Fact("largest skewness", plain(found["largest_skewness"], 2)),
        *([Fact("other modes", str(modes))] if modes else []),
    ]


# -- with every check


def complete_trust(fit: Fit, *, draws: int, seed: int) -> FitTrust:
    """The verdict of ``fit.trust`` with the engine's complete report; hyperparameters that were chosen are judged too.

    Those are integrated out for it, which costs some dozen fits.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0, 6, 12)
    >>> fit = klimb.fit("y ~ (1 | g)", {"y": np.sin(x) > 0, "g": np.arange(12) // 3}, "bernoulli", hyper="optimise")
    >>> klimb.trust(fit).verdict
    'doubt'
    """
    if fit.result is None or fit.data is None:
        raise InputError("a verdict needs the engine's result", "a fit from a file",
                         "fit.trust_summary has the verdict of the session of the fit.")
    inner = trust_report(fit.result, draws=draws, seed=seed, complete=True)
    if fit.components.integrated or not (fit.mode == "optimise" and fit.model.theta.size):
        return replace(fit.trust, facts=(*fit.trust.facts, *engine_facts(inner)))
    average, model = around(fit.peak(), fit.data, integrate=True).components, fit.model
    mean, variance = mixture_moments(average.weights, average.theta, np.zeros_like(average.theta))
    sd = np.sqrt(variance)
    prepared = model.prepare(None)
    f = average.at(model, prepared)
    (m, v), (here, plugged) = f.moments(), fit.components.at(model, prepared).moments()
    ratio = np.sqrt(v / np.maximum(plugged, 1e-300))
    moved = float((np.abs(m - here) / np.sqrt(np.maximum(v, 1e-300))).max(initial=0.0))
    found = _chosen_well(fit, average, sd, float(np.maximum(ratio - 1.0, 0.0).max(initial=0.0)), moved, _unevenness(f))
    facts = [Fact(f"{name} in theta", f"best {best:.3f}, mean {middle:.3f}, sd {width:.3f}")
             for name, best, middle, width in zip(model.names, model.at, mean, sd, strict=True)]
    facts.append(Fact("sd of f over that at the best hyperparameters", f"up to {float(ratio.max()):.2f}"))
    return _stated(fit, inner.judgement if inner.verdict == "doubt" or found is None else found,
                   [*facts, *engine_facts(inner)])


def _unevenness(f: Latents) -> float:
    """The largest ratio of an sd of f between likely hyperparameters."""
    likely = f.v[(f.weights > LIKELY) | (f.weights == f.weights.max())]
    return float(np.sqrt((likely.max(axis=0) / np.maximum(likely.min(axis=0), 1e-300)).max()))


def _chosen_well(fit: Fit, average: Components, sd: Array, error: float, moved: float,
                 unevenness: float) -> Verdict | None:
    """What choosing the hyperparameters hides: ``error`` of sds of f, how far means ``moved``; None where little."""
    model, (points, weights) = fit.model, average.marginal_points
    away = points - weights @ points
    ends = np.minimum(model.at - model.theta.lower, model.theta.upper - model.at) < EDGE
    if ends.any():
        return Verdict("doubt", error, OF_SD, f"{', '.join(np.array(model.names)[ends])} went to the end of its range: "
                       "its best value says nothing of those that are nearly as good.")
    skewness = np.abs(weights @ (away / np.maximum(sd, 1e-12)) ** 3)
    wide = [f"{name} (sd {s:.1f})" for name, s, g in zip(model.names, sd, skewness, strict=True)
            if s > WIDE or (s > 0.5 * WIDE and g > SKEWED)]
    if unevenness > UNEVEN or (wide and error > SD_ERROR) or error > BEYOND:
        what = f" Hardly determined: {', '.join(wide)}." if wide else ""
        return Verdict("doubt", unevenness, "ratio of an sd of f between likely hyperparameters",
                       f"The posterior is a funnel: the spread of f changes {unevenness:.1f}-fold between likely "
                       f"hyperparameters.{what}")
    if error > SD_ERROR or moved > MEAN_ERROR:
        return Verdict("corrected", error, OF_SD, "Choosing the hyperparameters understates sds of f by up to "
                       f'{error / (1 + error):.0%}: integrate them out with hyper="integrate".')
    return None
