"""Effect curves along one column, the others held at typical values, and what a field adds at each of its nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError, require
from klimb.models.linear_parts import named_term
from klimb.models.prediction import checked_interval, class_columns, latent_columns, mean_columns
from klimb.models.tabulate import linear_rows
from klimb.numerics.lazy import scipy_sparse
from klimb.report.records import CoefficientRow, EffectCurve
from klimb.report.text import plain
from klimb.terms.field import Field

if TYPE_CHECKING:
    from klimb.formula.numeric import FormulaVariable
    from klimb.models.formula_fit import FormulaFit

POINTS = 61
MOST_RUG = 200
OPTION = re.compile(r",\s*\w+\s*=[^,()]*")


def effect_curves(fit: FormulaFit, columns: Sequence[str] | str | None = None,
                  interval: float | None = None) -> list[EffectCurve]:
    """A curve for each of ``columns``, or for every column that the formula uses outside groupings."""
    level = fit.interval if interval is None else interval
    checked_interval(level)
    known = {variable.name: variable for variable in _shown(fit)}
    given: Any = known if columns is None else columns
    wanted = list(given) if isinstance(given, (dict, list, tuple)) else [given]
    for name in wanted:
        require(name in known, "effects needs columns that the formula uses", repr(name),
                f"They are {', '.join(known) or 'none'}.")
    return [curve for name in wanted for curve in _curves(fit, known[name], level)]


def _shown(fit: FormulaFit) -> list[FormulaVariable]:
    hidden = fit.encoder.grouping_columns
    return [variable for variable in fit.encoder.variables if variable.name not in hidden]


def _curves(fit: FormulaFit, variable: FormulaVariable, level: float) -> list[EffectCurve]:
    """The curve of one column; a curve for every class where the response has classes."""
    tail = checked_interval(level)
    numeric = variable.kind == "number"
    x: Any = _grid(variable) if numeric else np.array(variable.levels, dtype=object)
    frame: dict[str, Any] = {}
    for other in _shown(fit):
        held: Any = other.typical
        frame[other.name] = x if other.name == variable.name else np.full(len(x), held, dtype=object if
                                                                          isinstance(held, str) else np.float64)
    f = fit.latents(frame, re=False)
    data, likelihood = fit.observed, fit.model.likelihood
    if likelihood.response == "classes":
        found = {f"P({data.name} = {name})": columns for name, columns in class_columns(f, tail, data.levels).items()}
    else:
        found = {likelihood.mean_label(data): latent_columns(f, tail) if likelihood.response == "ordered"
                 else mean_columns(f, tail)}
    shown = tuple(x.tolist()) if numeric else tuple(str(value) for value in x)
    rug, counts = _data(fit, variable)
    return [EffectCurve(variable.name, shown, tuple(columns.get("median", columns["mean"]).tolist()),
                        tuple(columns["lower"].tolist()), tuple(columns["upper"].tolist()), level, variable.name, label,
                        rug, counts, _note(fit, variable)) for label, columns in found.items()]


def _grid(variable: FormulaVariable) -> Any:
    low, high = variable.minimum, variable.maximum
    if variable.whole and high - low < POINTS:
        return np.arange(low, high + 1.0)
    return np.linspace(low, high, POINTS) if high > low else np.array([low])


def _data(fit: FormulaFit, variable: FormulaVariable) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if fit.frame is None or variable.name not in fit.frame.columns:
        return (), ()
    column = fit.frame.read(variable.name)
    if variable.kind == "number":
        values = np.sort(column.number[fit.observed.places])
        step = max(len(values) // MOST_RUG, 1)
        return tuple(values[::step].tolist()), ()
    codes, labels = column.factor
    rows = np.bincount(codes[fit.observed.places], fit.observed.copies, minlength=len(labels))
    counts = dict(zip(labels, np.rint(rows).tolist(), strict=True))
    return (), tuple(int(counts.get(level, 0)) for level in variable.levels)


def _note(fit: FormulaFit, variable: FormulaVariable) -> str:
    hidden = fit.encoder.grouping_columns
    held = [f"{other.name} = {other.typical if isinstance(other.typical, str) else plain(other.typical)}"
            for other in _shown(fit) if other.name != variable.name]
    text = ", ".join(held[:4]) + (", ..." if len(held) > 4 else "")
    groups = "average level of " + ", ".join(sorted(hidden)) if hidden else ""
    return "; ".join(part for part in (text, groups) if part)


# -- fields


def field_term(fit: FormulaFit, name: str | None) -> Field:
    """The field of this name, written with its options or without them, or the only one."""
    fields, plain = [term for term in fit.linear.terms if isinstance(term, Field)], name and OPTION.sub("", name)
    found: Field = named_term(fields, plain, "this needs the name of a structured term")
    return found


def field_rows(fit: FormulaFit, term: Field, tail: float) -> tuple[Any, list[CoefficientRow]]:
    """The nodes of a field and what it adds to f there, as records."""
    nodes, rows = term.at_nodes()
    place = fit.linear.places[fit.linear.terms.index(term)]
    entries = scipy_sparse.coo_array(rows)
    L = scipy_sparse.csr_array((entries.data, (entries.row, entries.col + place.start)),
                               shape=(rows.shape[0], fit.components.parts[0].size))
    return nodes, linear_rows([str(node) for node in nodes], fit.components, L, tail, "level")


def plot_field(fit: FormulaFit, name: str | None, coordinates: Any, ax: Any) -> Any:
    """The curve with its band over time, a map of the areas coloured by their mean, or their levels with intervals."""
    from klimb.report.plots import plot_band, plot_coefficients, plot_map

    term = field_term(fit, name)
    nodes, rows = field_rows(fit, term, 0.5 * (1.0 - fit.interval))
    center, lower, upper = (np.array([getattr(row, end) for row in rows]) for end in ("mean", "lower", "upper"))
    places = term.places()
    if coordinates is None and places is None and np.asarray(nodes).dtype.kind == "f":
        return plot_band(np.asarray(nodes), center, lower, upper, term.name, ax)
    if coordinates is None and places is None:
        return plot_coefficients(rows, fit.interval, ax)
    if coordinates is None:
        return plot_map([tuple(place) for place in np.asarray(places)], center, term.name, ax)
    missing = [node for node in nodes if node not in coordinates]
    if missing:
        raise InputError("coordinates must have every area", f"none of {missing[0]!r}", "Pass one for each.")
    return plot_map([coordinates[node] for node in nodes], center, term.name, ax)
