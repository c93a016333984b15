"""A fit as a JSON header and named arrays, and back: what `klimb.models.files` writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError
from klimb.infer.result import Status
from klimb.latents.mixed import ArrowPosterior
from klimb.likelihoods.families import FAMILIES, Family, resolve_family
from klimb.models.formula_model import Parts, Shared
from klimb.models.hyper import Hyper
from klimb.models.loo import LeaveOneOut, Moments
from klimb.models.predict import Component
from klimb.numerics.arrays import Array
from klimb.priors import as_prior
from klimb.report.records import BoundTrace, Fact, TrustSummary
from klimb.terms.design import GroupTerm, Layout, ProcessTerm, Rows, SmoothTerm
from klimb.terms.encoder import Encoder

if TYPE_CHECKING:
    from klimb.models.formula_fit import Fit

SCHEMA = 1
LOO = ("log_density", "mean", "variance", "below", "at")


def to_state(fit: Fit) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the arrays. Of the data they hold the response, and the points of processes."""
    shared, layout = fit.shared, fit.shared.layout
    header = {
        "schema": SCHEMA, "formula": fit.formula, "encoder": fit.encoder.to_json(), "family": _family_state(fit),
        "layout": {
            "fixed": list(layout.fixed), "width": layout.width,
            "groups": [[g.name, list(g.columns), g.correlated, g.begin] for g in layout.groups],
            "smooths": [[s.name, s.begin, s.size, s.scale] for s in layout.smooths],
            "processes": [[p.name, p.kernel, list(p.columns), p.begin, p.options] for p in layout.processes],
        },
        "hypers": [[h.name, h.shape, _exact(h.prior), h.start, h.unit, h.least, h.depth] for h in shared.hypers],
        "parts": {"groups": [[list(a), list(b)] for a, b in shared.parts.groups],
                  "smooths": list(shared.parts.smooths), "processes": list(shared.parts.processes),
                  "site": shared.parts.site, "cuts": list(shared.parts.cuts)},
        "trials": "trials" in shared.constants, "priors": [list(pair) for pair in fit.priors.items()],
        "bound": fit.bound, "mode": fit.mode, "status": fit.status.name, "n_fits": fit.n_fits,
        "interval": fit.interval, "notes": list(fit.notes),
        "trace": [list(fit.trace.bound), list(fit.trace.stationarity), list(fit.trace.rule)],
        "dropped": fit.training.dropped, "levels": list(fit.training.levels), "trust": _trust_state(fit.trust_summary),
    }
    loo = fit.loo()
    arrays: dict[str, Any] = {
        "centre": layout.centre, "prior_mean": shared.mean, "prior_sd": shared.sd, "quantiles": fit.quantiles,
        "covariance": fit.covariance,
        "y": fit.training.y, "rows": np.asarray(fit.training.rows, dtype=np.int64),
        **{f"points.{i}": p.points for i, p in enumerate(layout.processes)},
        **{f"loo.{name}": getattr(loo, name) for name in LOO},
        "component.weight": np.array([part.weight for part in fit.components]),
        "component.full": np.array([part.full for part in fit.components]).reshape(len(fit.components), -1),
        **{f"component.{name}": np.array([getattr(part.q, name) for part in fit.components])
           for name in ("mean", "root", "level_mean", "pull", "level_cov")},
    }
    for name in ("trials", "weights"):
        if getattr(fit.training, name) is not None:
            arrays[name] = getattr(fit.training, name)
    return header, arrays


def from_state(header: dict[str, Any], arrays: dict[str, Any]) -> Fit:
    """The fit whose ``to_state`` gave these."""
    from klimb.models.formula_fit import Fit, Training

    if header.get("schema") != SCHEMA:
        raise InputError(f"a fit of schema {SCHEMA}", repr(header.get("schema")),
                         "It was written by another version of klimb: use that one.")
    encoder = Encoder.from_json(header["encoder"])
    shared = _shared(header, arrays, encoder)
    parts = [np.asarray(arrays[f"component.{name}"]) for name in ("mean", "root", "level_mean", "pull", "level_cov")]
    components = tuple(
        Component(float(weight), np.asarray(full), ArrowPosterior(*(part[i] for part in parts)))
        for i, (weight, full) in enumerate(zip(arrays["component.weight"], arrays["component.full"], strict=True))
    )
    weights = np.asarray(arrays["weights"]) if "weights" in arrays else None
    training = Training(np.asarray(arrays["y"]), np.asarray(arrays["rows"], dtype=np.intp), int(header["dropped"]),
                        tuple(header["levels"]), np.asarray(arrays["trials"]) if "trials" in arrays else None, weights)
    moments = Moments(*(np.asarray(arrays[f"loo.{name}"]) for name in LOO[1:]))
    loo = LeaveOneOut(np.asarray(arrays["loo.log_density"]), weights, lambda: moments)
    bound, stationarity, rule = header["trace"]
    return Fit(header["formula"], encoder, shared, components, training, dict(header["priors"]), float(header["bound"]),
               header["mode"], Status[header["status"]], BoundTrace(tuple(bound), tuple(stationarity), tuple(rule)),
               int(header["n_fits"]), float(header["interval"]), tuple(header["notes"]),
               np.asarray(arrays["quantiles"]), np.asarray(arrays["covariance"]),
               kept_loo=loo, kept_trust=_trust(header["trust"]))


def holds(fit: Fit) -> tuple[str, ...]:
    """The data in a file of this fit, in words."""
    points = ("points of processes, which may be inputs of the data",) if fit.shared.layout.processes else ()
    return ("the response", *points)


def _family_state(fit: Fit) -> dict[str, Any]:
    family = fit.shared.family
    if family.name not in FAMILIES:
        raise InputError("a fit with a likelihood of your own cannot be saved", f"family {family.name!r}",
                         "Functions do not go into files: keep the script, and fit again.")
    known = {key: np.asarray(value).tolist() for key, value in family.known.items()}
    return {"name": family.name, "link": family.link.name, "known": known}


def _family(state: dict[str, Any]) -> Family:
    family = resolve_family({"name": state["name"], "link": state["link"]})
    known = {key: np.array(value) if isinstance(value, list) else value for key, value in state["known"].items()}
    return replace(family, known=known, free=tuple(p for p in family.free if p.field not in known))


def _exact(prior: Any) -> str:
    """A prior as text with all its digits."""
    name = next(key for key in _NAMES if type(prior).__name__.lower() == key.replace("_", ""))
    return f"{name}({', '.join(repr(float(value)) for value in vars(prior).values())})"


_NAMES = ("normal", "exponential", "half_normal", "log_normal", "gamma", "lkj", "dirichlet", "fixed")


def _shared(header: dict[str, Any], arrays: dict[str, Any], encoder: Encoder) -> Shared:
    state = header["layout"]
    groups = tuple(GroupTerm(name, tuple(columns), codec.labels, bool(correlated), int(begin))
                   for (name, columns, correlated, begin), codec in zip(state["groups"], encoder.groups, strict=True))
    smooths = tuple(SmoothTerm(name, int(begin), int(size), float(scale))
                    for name, begin, size, scale in state["smooths"])
    processes = tuple(ProcessTerm(name, kernel, tuple(columns), np.asarray(arrays[f"points.{i}"]), int(begin), options)
                      for i, (name, kernel, columns, begin, options) in enumerate(state["processes"]))
    layout = Layout(tuple(state["fixed"]), np.asarray(arrays["centre"]), groups, smooths, processes,
                    int(state["width"]))
    hypers = tuple(Hyper(name, shape, as_prior(prior, name), float(start), float(unit), float(least), float(depth))
                   for name, shape, prior, start, unit, least, depth in header["hypers"])
    p = header["parts"]
    parts = Parts(tuple((tuple(a), tuple(b)) for a, b in p["groups"]), tuple(p["smooths"]), tuple(p["processes"]),
                  dict(p["site"]), tuple(p["cuts"]))
    none = Rows(np.zeros((0, max(layout.width, 1))), np.zeros(0, dtype=np.intp), np.zeros((0, 0)),
                tuple(np.zeros((0, term.points.shape[1])) for term in processes), (), np.zeros(0))
    constants = {"trials": 1.0} if header["trials"] else {}
    return Shared(layout, none, _family(header["family"]), constants, None, np.asarray(arrays["prior_mean"]),
                  np.asarray(arrays["prior_sd"]), hypers, parts)


def _trust_state(trust: TrustSummary) -> dict[str, Any]:
    return {"verdict": trust.verdict, "headline": trust.headline, "advice": trust.advice, "number": trust.number,
            "facts": [[fact.label, fact.value] for fact in trust.facts]}


def _trust(state: dict[str, Any]) -> TrustSummary:
    return TrustSummary(state["verdict"], state["headline"], state["advice"], state["number"],
                        tuple(Fact(label, value) for label, value in state["facts"]))
