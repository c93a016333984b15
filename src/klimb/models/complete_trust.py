"""The complete report on a fit: the engine's result at the best hyperparameters, and what choosing those hides.

A fit at the best hyperparameters says nothing of their own uncertainty. Where the evidence is flat in one of them, or
best at the edge of its range (a variance that wants to be zero: the neck of a funnel), its posterior is far too narrow,
and nothing in the fit there can show it; integrating the hyperparameters out can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from klimb.errors import InputError
from klimb.models.components import Components, Latents
from klimb.models.solution import around
from klimb.numerics.arrays import Array
from klimb.trust import Trust, Verdict, trust_report
from klimb.trust.verdict import BEYOND, SD_ERROR, Judged

if TYPE_CHECKING:
    from klimb.models.fit import Fit

EDGE = 1e-3  # distance from a limit, in theta, at which a hyperparameter counts as lying on it
WIDE = 1.0  # sd of theta (mostly logs) from which a hyperparameter counts as hardly determined
SKEWED = 1.0  # skewness of its marginal from which it is no longer summarised by a mode
UNEVEN = 3.0  # ratio of f's sd between likely hyperparameters from which the joint posterior is a funnel
LIKELY = 0.02  # share of the mass from which a point counts as likely


@final
@dataclass(frozen=True, eq=False)
class CompleteTrust(Judged):
    """The complete report on a fit: that of the engine's result, and what its hyperparameters add.

    For hyperparameters at their best value, ``sd_ratio`` is, per latent value of the data, the sd of f with them
    integrated out over the sd at the best; ``shift`` the distance of the means in sd. ``unevenness`` is the largest
    ratio of an sd between likely hyperparameters.
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
    inner: Trust  # of the result at the best hyperparameters
    integrated: Components = field(repr=False)

    def __str__(self) -> str:
        lines = [f"verdict       {self.verdict}: {self.advice}"]
        for name, mode, mean, sd in zip(self.names, self.mode, self.mean, self.sd, strict=True):
            lines.append(f"{name:13s} best {mode:.3f}, mean {mean:.3f}, sd {sd:.3f}, in theta")
        if self.names:
            lines.append(f"sd of f       up to {float(self.sd_ratio.max()):.2f} times the one at the best")
        lines.append(f"at the best   {self.inner.verdict}: {self.inner.advice}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON and reports."""
        return {
            **self._judged(),
            "names": list(self.names), "mode": self.mode.tolist(), "mean": self.mean.tolist(), "sd": self.sd.tolist(),
            "skewness": self.skewness.tolist(), "at_bound": list(self.at_bound),
            "largest_sd_ratio": float(self.sd_ratio.max(initial=1.0)), "unevenness": self.unevenness,
            "inner": self.inner.to_dict(),
        }


def judge(fit: Fit, *, draws: int, seed: int) -> CompleteTrust:
    """The complete report; it integrates out hyperparameters that were chosen, which costs some dozen fits.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0, 6, 12)
    >>> fit = klimb.fit("y ~ (1 | g)", {"y": np.sin(x) > 0, "g": np.arange(12) // 3}, "bernoulli", hyper="optimise")
    >>> report = klimb.trust(fit)
    >>> report.verdict != "trust", bool(report.sd_ratio.max() > 1.05)
    (True, True)
    """
    if fit.result is None or fit.data is None:
        raise InputError("a verdict needs the engine's result", "a fit from a file",
                         "fit.trust_summary has the verdict of the session of the fit.")
    inner = trust_report(fit.result, draws=draws, seed=seed, complete=True)
    chosen = fit.mode == "optimise" and not fit.components.integrated and fit.model.theta.size > 0
    average = around(fit.peak(), fit.data, integrate=True).components if chosen else fit.components
    theta, weights, model = average.theta, average.weights, fit.model
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
    uneven = _unevenness(f)
    verdict = inner.judgement
    if chosen:
        verdict = _judge(model.names, sd, skewness, at_bound, ratio, shift, uneven, inner)
    return CompleteTrust(verdict, model.names, model.at, mean, sd, skewness, at_bound, ratio, shift, uneven, inner,
                         average)


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
                       "are nearly as good. Give it a prior, or use a sampler.")
    wide = [f"{name} (sd {s:.1f})" for name, s, g in zip(names, sd, skewness, strict=True)
            if s > WIDE or (s > 0.5 * WIDE and abs(g) > SKEWED)]
    if unevenness > UNEVEN or (wide and error > SD_ERROR) or error > BEYOND:
        what = f"Hardly determined: {', '.join(wide)}. " if wide else ""
        return Verdict("doubt", unevenness, "ratio of an sd of f between likely hyperparameters",
                       f"The posterior is a funnel: the spread of f changes {unevenness:.1f}-fold between likely "
                       f'hyperparameters. {what}Integrate them out (hyper="integrate"), or sample.')
    moved = float(shift.max(initial=0.0))
    if error > SD_ERROR or moved > 0.1:
        return Verdict("corrected", max(error, 0.0), "relative error of an sd",
                       f"Choosing the hyperparameters understates sds of f by up to {error / (1 + error):.0%}: "
                       'integrate them out with hyper="integrate".')
    return inner.judgement
