"""The complete report on a fit: the engine's result at the best hyperparameters, and what choosing those hides.

A fit at the best hyperparameters says nothing of their own uncertainty. Where the evidence is flat in one of them, or
best at the edge of its range (a variance that wants to be zero: the neck of a funnel), its posterior is far too narrow,
and nothing in the fit there can show it; integrating the hyperparameters out can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from klimb.errors import InputError
from klimb.models.components import Latents
from klimb.models.solution import around
from klimb.models.verdict import FitTrust, engine_facts, remedy_of
from klimb.numerics.arrays import Array
from klimb.report.records import Fact
from klimb.trust import Trust, Verdict, trust_report
from klimb.trust.verdict import BEYOND, SD_ERROR

if TYPE_CHECKING:
    from klimb.models.fit import Fit

EDGE = 1e-3  # distance from a limit, in theta, at which a hyperparameter counts as lying on it
WIDE = 1.0  # sd of theta (mostly logs) from which a hyperparameter counts as hardly determined
SKEWED = 1.0  # skewness of its marginal from which it is no longer summarised by a mode
UNEVEN = 3.0  # ratio of f's sd between likely hyperparameters from which the joint posterior is a funnel
LIKELY = 0.02  # share of the mass from which a point counts as likely


def judge(fit: Fit, *, draws: int, seed: int) -> FitTrust:
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
    theta, weights = average.theta, average.weights
    mean = weights @ theta
    sd = np.sqrt(weights @ (theta - mean) ** 2)
    skewness = weights @ ((theta - mean) / np.maximum(sd, 1e-12)) ** 3
    at_bound = tuple(name for name, t, low, high in zip(model.names, model.at, model.theta.lower, model.theta.upper,
                                                        strict=True) if t - low < EDGE or high - t < EDGE)
    prepared = model.prepare(None)
    f = average.at(model, prepared)
    (m, v), (here, plugged) = f.moments(), fit.components.at(model, prepared).moments()
    ratio = np.sqrt(v / np.maximum(plugged, 1e-300))
    shift = np.abs(m - here) / np.sqrt(np.maximum(v, 1e-300))
    found = _judge(model.names, sd, skewness, at_bound, ratio, shift, _unevenness(f), inner)
    facts = [Fact(f"{name} in theta", f"best {best:.3f}, mean {middle:.3f}, sd {width:.3f}")
             for name, best, middle, width in zip(model.names, model.at, mean, sd, strict=True)]
    facts.append(Fact("sd of f over that at the best hyperparameters", f"up to {float(ratio.max()):.2f}"))
    remedy = f" {remedy_of(fit)}" if found.word == "doubt" else ""
    return FitTrust(found.word, found.number, found.measures, found.advice + remedy, (*facts, *engine_facts(inner)))


def _unevenness(f: Latents) -> float:
    """The largest ratio of an sd of f between likely hyperparameters."""
    likely = f.v[(f.weights > LIKELY) | (f.weights == f.weights.max())]
    return float(np.sqrt((likely.max(axis=0) / np.maximum(likely.min(axis=0), 1e-300)).max()))


def _judge(names: tuple[str, ...], sd: Array, skewness: Array, at_bound: tuple[str, ...], ratio: Array, shift: Array,
           unevenness: float, inner: Trust) -> Verdict:
    if inner.verdict == "doubt":
        return inner.judgement
    error = float(np.maximum(ratio - 1.0, 0.0).max(initial=0.0))
    if at_bound:
        return Verdict("doubt", error, "relative error of an sd",
                       f"{', '.join(at_bound)} went to the end of its range: its best value says nothing of those that "
                       "are nearly as good.")
    wide = [f"{name} (sd {s:.1f})" for name, s, g in zip(names, sd, skewness, strict=True)
            if s > WIDE or (s > 0.5 * WIDE and abs(g) > SKEWED)]
    if unevenness > UNEVEN or (wide and error > SD_ERROR) or error > BEYOND:
        what = f"Hardly determined: {', '.join(wide)}. " if wide else ""
        return Verdict("doubt", unevenness, "ratio of an sd of f between likely hyperparameters",
                       f"The posterior is a funnel: the spread of f changes {unevenness:.1f}-fold between likely "
                       f'hyperparameters. {what}'.rstrip())
    moved = float(shift.max(initial=0.0))
    if error > SD_ERROR or moved > 0.1:
        return Verdict("corrected", max(error, 0.0), "relative error of an sd",
                       f"Choosing the hyperparameters understates sds of f by up to {error / (1 + error):.0%}: "
                       'integrate them out with hyper="integrate".')
    return inner.judgement
