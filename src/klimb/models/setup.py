"""From encoded data, a family and the user's priors to a model: default priors scaled to the data, starts, names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.likelihoods.families import Family
from klimb.likelihoods.outcomes import Response
from klimb.models.formula_model import FormulaModel, Parts, Shared, process_kernel
from klimb.models.hyper import Hyper, cut_theta
from klimb.numerics.arrays import Array
from klimb.priors import LKJ, Dirichlet, Exponential, Fixed, LogNormal, Normal, PositivePrior, Prior, as_prior
from klimb.terms.design import INTERCEPT, GroupTerm, Layout, ProcessTerm, Rows, make_layout
from klimb.terms.encoded import Encoded

WIDTH = 2.5  # prior sd of a coefficient, for a change of one sd in its column and in units of the response's scale


@final
class Choices:
    """The user's priors by name; remembers which were used and what every parameter got."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self._given = dict(given or {})
        self._names: list[str] = []
        self.printed: dict[str, str] = {}

    def take(self, name: str, default: Prior, kind: type[Prior] | tuple[type[Prior], ...], note: str = "",
             family: str | None = None) -> Prior:
        """The prior of ``name``: the user's, that of its ``family`` of names, or the default."""
        self._names.append(name)
        if family is not None and family not in self._names:
            self._names.append(family)
        value = self._given.get(name, self._given.get(family, "auto") if family is not None else "auto")
        prior = default if isinstance(value, str) and value == "auto" else as_prior(value, name)
        if not isinstance(prior, kind):
            raise InputError(f"{name} cannot have this kind of prior", str(prior), f"Its default is {default}.")
        self.printed[name] = str(prior) + (note if prior is default else "")
        return prior

    def finish(self) -> None:
        """An error for a name that nothing has."""
        for name in self._given:
            if name not in self._names:
                near = get_close_matches(name, self._names, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                raise InputError("priors must name parts of the model", repr(name),
                                 f"{hint}The names are {', '.join(dict.fromkeys(self._names))}.")


@final
@dataclass(frozen=True, eq=False)
class Setup:
    """A model ready to be fitted, its data, and the priors as they are printed."""

    model: FormulaModel
    y: Array
    priors: dict[str, str]
    scale: float


def build(encoded: Encoded, response: Response, family: Family, *, priors: Mapping[str, Any] | None = None,
          weights: Array | None = None) -> Setup:
    """The model of a formula's blocks."""
    cut = family.response == "ordered" and "cutpoints" not in family.known  # free cut points are the intercept
    if family.response == "ordered" and not cut and len(response.levels) != len(family.known["cutpoints"]) + 1:
        raise InputError(f"the response must have {len(family.known['cutpoints']) + 1} levels",
                         f"{len(response.levels)}", "There is one cut point less than levels.")
    layout = make_layout(encoded, intercept=not cut)
    rows = layout.rows(encoded)
    choices = Choices(priors)
    scale = response_scale(response, family)
    mean, sd = _fixed_priors(layout, rows, response, family, scale, choices)
    hypers, parts = _hypers(encoded, layout, response, family, scale, choices)
    choices.finish()
    constants = {"trials": response.trials} if response.trials is not None else {}
    shared = Shared(layout, rows, _with_trials(family, response), constants, weights, mean, sd, tuple(hypers), parts)
    full = np.array([np.log(h.prior.value) if isinstance(h.prior, Fixed) else h.start for h in hypers])
    return Setup(FormulaModel(shared, full), response.y, choices.printed, scale)


def _with_trials(family: Family, response: Response) -> Family:
    """bernoulli with trials is binomial."""
    if response.trials is None or family.response == "trials":
        return family
    if family.link.name != "logit":
        raise InputError("trials need the logit link", family.link.name, "Give one row per trial for other links.")
    from klimb.likelihoods.families import resolve_family

    return resolve_family("binomial")


def response_scale(response: Response, family: Family) -> float:
    """The unit of f: the sd of y where f has its unit, else 1."""
    sd = float(np.std(response.y))
    if family.response == "any":  # nobody knows what f is to y: wide enough for a location, and for a logarithm
        return max(sd, 1.0)
    if not family.scaled:
        return 1.0
    size = float(np.abs(response.y).max(initial=0.0))
    return sd if sd > 1e-12 * size and sd > 0 else (size or 1.0)


def _level(response: Response, family: Family) -> float:
    """Where the intercept's prior is centred: the link of the mean response, moderated."""
    y = response.y
    n = len(y)
    if family.response in ("ordered", "any"):
        return 0.0
    if family.link.name == "minus log":
        return -float(np.log(y.mean() or 1.0))
    if family.name in ("bernoulli", "binomial"):
        trials = float(np.sum(response.trials)) if response.trials is not None else float(n)
        share = (float(y.sum()) + 0.5) / (trials + 1.0)
        return float(family.link.apply(np.asarray(share)))
    if family.name == "stochastic_volatility":
        return float(np.log(np.mean(y**2) or 1.0))
    if family.response == "counts":
        return float(np.log((y.sum() + 0.5) / n))
    if family.response in ("positive", "nonnegative"):
        return float(np.log(y.mean() or 1.0))
    if family.response == "unit":
        return float(family.link.apply(np.asarray(y.mean())))
    return float(y.mean()) if family.name != "student_t" else float(np.median(y))


def _fixed_priors(layout: Layout, rows: Rows, response: Response, family: Family, scale: float,
                  choices: Choices) -> tuple[Array, Array]:
    mean, sd = np.zeros(max(layout.width, 1)), np.ones(max(layout.width, 1))
    if layout.width == 0:
        sd[:] = 0.0  # a column of zeros that holds the place
    spread = rows.X[:, : len(layout.fixed)].std(axis=0)
    for j, name in enumerate(layout.fixed):
        if name == INTERCEPT:
            level = _level(response, family) - float(rows.offset.mean())
            reach = float(np.sqrt(np.mean(response.y**2))) if family.response == "any" else scale
            default, kin = Normal(level, WIDTH * max(reach, scale)), None
            note = " (where other columns are at their means)"
        else:
            size = float(np.abs(rows.X[:, j]).max(initial=0.0))
            unit = float(spread[j]) if spread[j] > 1e-12 * size else size
            default, note, kin = Normal(0.0, WIDTH * scale / (unit or 1.0)), "", "fixed"
        prior = choices.take(name, default, Normal, note, kin)
        assert isinstance(prior, Normal)
        mean[j], sd[j] = prior.mean, prior.sd
    return mean, sd


_POSITIVE = (PositivePrior, Fixed)


def _hypers(encoded: Encoded, layout: Layout, response: Response, family: Family, scale: float,
            choices: Choices) -> tuple[list[Hyper], Parts]:
    hypers: list[Hyper] = []

    def add(hyper: Hyper) -> int:
        hypers.append(hyper)
        return len(hypers) - 1

    def positive(name: str, default: PositivePrior, unit: float, start: float | None = None,
                 least: float = 0.0) -> int:
        while name in choices.printed:  # a column of the data has this name
            name += " (parameter)"
        prior = choices.take(name, default, _POSITIVE)
        begin = start if start is not None else (prior.typical() if isinstance(prior, PositivePrior) else 1.0)
        return add(Hyper(name, "positive", prior, float(np.log(begin)), unit, least))

    groups = []
    for term, block in zip(layout.groups, encoded.groups, strict=True):
        sds = []
        for j, column in enumerate(term.columns):
            unit = scale / (float(np.sqrt(np.mean(block.values[:, j] ** 2))) or 1.0)
            sds.append(positive(sd_name(term, column), Exponential(unit), unit, 0.5 * unit))
        groups.append((tuple(sds), _correlations(term, choices, add)))
    smooths = tuple(positive(f"sd({t.name})", Exponential(scale), scale, 0.5 * scale) for t in layout.smooths)
    processes = tuple(_process(t, scale, positive) for t in layout.processes)
    site = {}
    for parameter in family.free:
        unit = scale if parameter.scaled else 1.0
        start = 0.7 * unit if parameter.scaled else None
        site[parameter.field] = positive(parameter.name, parameter.prior(scale), unit, start, parameter.least)
    free_cuts = family.response == "ordered" and "cutpoints" not in family.known
    cuts = _cuts(response, family, choices, add) if free_cuts else ()
    return hypers, Parts(tuple(groups), smooths, processes, site, cuts)


def sd_name(term: GroupTerm, column: str) -> str:
    """``sd(g)`` for the intercepts of g, ``sd(x | g)`` for the slopes of x."""
    return f"sd({term.name})" if column == INTERCEPT else f"sd({column} | {term.name})"


def _correlations(term: GroupTerm, choices: Choices, add: Any) -> tuple[int, ...]:
    if not term.correlated or term.size == 1:
        return ()
    places = []
    for i in range(1, term.size):
        for j in range(i):
            name = f"cor({term.columns[j]}, {term.columns[i]} | {term.name})"
            prior = choices.take(name, LKJ(2.0), LKJ, "", f"cor({term.name})")
            places.append(add(Hyper(name, "correlation", prior, 0.0, depth=0.5 * (term.size - 2 - j))))
    return tuple(places)


def _process(term: ProcessTerm, scale: float, positive: Any) -> dict[str, int]:
    places = {}
    for name in process_kernel(term, {}).free:
        if name == "variance":
            places[name] = positive(f"sd({term.name})", Exponential(scale), scale, 0.5 * scale)
        else:
            places[name] = positive(f"{name}({term.name})", LogNormal(1.0, 1.0), 1.0)
    return places


def _cuts(response: Response, family: Family, choices: Choices, add: Any) -> tuple[int, ...]:
    prior = choices.take("cutpoints", Dirichlet(1.0), Dirichlet, " (chances of the levels at f = 0)")
    K = len(response.levels)
    counts = np.bincount(response.y.astype(np.intp), minlength=K) + 0.5
    share = np.cumsum(counts)[:-1] / counts.sum()
    start = cut_theta(np.asarray(family.link.apply(share)))
    return tuple(add(Hyper(f"cut({response.levels[k]} | {response.levels[k + 1]})", "cut", prior, float(value)))
                 for k, value in enumerate(start))
