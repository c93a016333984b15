"""What a field adds to the linear predictor at each of its nodes: a table, a curve, a map."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError
from klimb.models.linear_parts import named_term
from klimb.models.tabulate import linear_rows
from klimb.numerics.lazy import scipy_sparse
from klimb.report.records import CoefficientRow
from klimb.terms.field import Field

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit

OPTION = re.compile(r",\s*\w+\s*=[^,()]*")


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
