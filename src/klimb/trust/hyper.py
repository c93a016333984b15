"""What choosing hyperparameters, instead of averaging over them, hides: a trust report for `Optimum`.

A fit at the best hyperparameters is exact about f and blind to the hyperparameters' own uncertainty. Where the evidence
is flat in one of them, or best at the edge of its range (a variance that wants to be zero: the neck of a funnel), the
plugged-in posterior is far too sure of itself, and nothing in the fit at the mode can show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.hyper import Optimum
from klimb.infer.integrate import Integrated, integrate
from klimb.numerics.arrays import Array
from klimb.trust.report import Trust
from klimb.trust.verdict import BEYOND, SD_ERROR, Verdict, Word

EDGE = 1e-3  # distance from a bound, in theta, at which a hyperparameter counts as lying on it
WIDE = 1.0  # sd of theta (mostly logs) from which a hyperparameter counts as hardly determined
SKEWED = 1.0  # skewness of its marginal from which it is no longer summarised by a mode
UNEVEN = 3.0  # ratio of f's sd between likely hyperparameters from which the joint posterior is a funnel
LIKELY = 0.02  # share of the mass from which a point counts as likely


@final
@dataclass(frozen=True, eq=False)
class HyperTrust:
    """How much the fit at the best hyperparameters understates, by comparison with the average over them.

    ``sd_ratio`` is, per site, the sd of f averaged over the hyperparameters over the sd at their best values; ``shift``
    the distance of the means in sd. ``unevenness`` is the largest ratio of a site's sd between likely hyperparameters.
    """

    judgement: Verdict
    names: tuple[str, ...]
    mode: Array
    mean: Array
    sd: Array
    skewness: Array
    at_bound: tuple[str, ...]
    sd_ratio: Array
    shift: Array
    unevenness: float
    inner: Trust  # of the fit at the mode
    integrated: Integrated = field(repr=False)

    @property
    def verdict(self) -> Word:
        return self.judgement.word

    @property
    def number(self) -> float:
        return self.judgement.number

    @property
    def measures(self) -> str:
        return self.judgement.measures

    @property
    def advice(self) -> str:
        return self.judgement.advice

    def __str__(self) -> str:
        lines = [f"verdict       {self.verdict}: {self.advice}"]
        for name, mode, mean, sd in zip(self.names, self.mode, self.mean, self.sd, strict=True):
            lines.append(f"{name:13s} mode {mode:.3f}, mean {mean:.3f}, sd {sd:.3f}")
        lines.append(f"sd of f       up to {float(self.sd_ratio.max()):.2f} times the one at the mode")
        lines.append(f"at the mode   {self.inner.verdict}: {self.inner.advice}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON and reports."""
        return {
            "verdict": self.verdict, "number": self.number, "measures": self.measures, "advice": self.advice,
            "names": list(self.names), "mode": self.mode.tolist(), "mean": self.mean.tolist(), "sd": self.sd.tolist(),
            "skewness": self.skewness.tolist(), "at_bound": list(self.at_bound),
            "largest_sd_ratio": float(self.sd_ratio.max()), "unevenness": self.unevenness,
            "inner": self.inner.to_dict(),
        }


def hyper_trust(optimum: Optimum, *, integrated: Integrated | None = None) -> HyperTrust:
    """Compare the fit at the best hyperparameters with the average over them; costs `integrate` (some dozen fits).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.evidence import optimise
    >>> from klimb.trust import hyper_trust
    >>> x = np.linspace(0, 6, 12)
    >>> best = optimise(klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Logistic()), np.sin(x) > 0)
    >>> report = hyper_trust(best)
    >>> report.verdict != "trust", bool(report.sd_ratio.max() > 1.05)
    (True, True)
    """
    problem = optimum.result.problem
    if problem is None:
        raise InputError("trust needs the data of the fit", "an Optimum without them", "Use the one optimise returned.")
    average = integrate(optimum.model, problem.y, optimum=optimum) if integrated is None else integrated
    theta, weights = average.theta, average.weights
    mean, sd = average.mean(), average.sd()
    skewness = weights @ ((theta - mean) / np.maximum(sd, 1e-12)) ** 3
    lower, upper = optimum.model.bounds
    mode = optimum.model.theta
    at_bound = tuple(name for name, t, low, high in zip(average.names, mode, lower, upper, strict=True)
                     if t - low < EDGE or high - t < EDGE)
    m, v = average.marginals()
    here = optimum.result.posterior
    plugged = np.sqrt(np.maximum(here.v, 1e-300))
    ratio, shift = np.sqrt(v) / plugged, np.abs(m - here.m) / np.sqrt(np.maximum(v, 1e-300))
    likely = [result.posterior.v for result, w in zip(average.results, weights, strict=True) if w > LIKELY]
    spread = np.array(likely) if likely else here.v[None]
    unevenness = float(np.sqrt((spread.max(0) / np.maximum(spread.min(0), 1e-300)).max()))
    inner = optimum.result.trust
    verdict = _judge(average.names, sd, skewness, at_bound, ratio, shift, unevenness, inner)
    return HyperTrust(verdict, average.names, mode, mean, sd, skewness, at_bound, ratio, shift, unevenness, inner,
                      average)


def _judge(names: tuple[str, ...], sd: Array, skewness: Array, at_bound: tuple[str, ...], ratio: Array, shift: Array,
           unevenness: float, inner: Trust) -> Verdict:
    if inner.verdict == "doubt":
        return inner.judgement
    error = float(np.maximum(ratio - 1.0, 0.0).max(initial=0.0))
    if at_bound:
        return Verdict("doubt", error, "relative error of an sd",
                       f"{', '.join(at_bound)} went to the end of its range: its best value says nothing of those that "
                       "are nearly as good. Give it a prior, or use a sampler.")
    wide = [f"{name} (sd {s:.1f})" for name, s, g in zip(names, sd, skewness, strict=True)
            if s > WIDE or (s > 0.5 * WIDE and abs(g) > SKEWED)]
    if unevenness > UNEVEN or (wide and error > SD_ERROR) or error > BEYOND:
        what = f"Hardly determined: {', '.join(wide)}. " if wide else ""
        return Verdict("doubt", unevenness, "ratio of a site's sd between likely hyperparameters",
                       f"The posterior is a funnel: the spread of f changes {unevenness:.1f}-fold between likely "
                       f"hyperparameters. {what}Average over them (klimb.infer.integrate), or sample.")
    moved = float(shift.max(initial=0.0))
    if error > SD_ERROR or moved > 0.1:
        return Verdict("corrected", max(error, 0.0), "relative error of an sd",
                       f"Choosing the hyperparameters understates sds of f by up to {error / (1 + error):.0%}: average "
                       "over them with klimb.infer.integrate.")
    return Verdict(inner.verdict, inner.number, inner.measures, inner.advice)
