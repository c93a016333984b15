"""``print(fit)``: plain text, the same characters everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from klimb.report.digits import plain
from klimb.report.text import coefficient_cells, table, visible

if TYPE_CHECKING:
    from klimb.models.formula_fit import Fit

MOST_PRIORS = 30
TREATED = {"optimise": "chosen by the evidence", "integrate": "averaged over"}


def summary_text(fit: Fit) -> str:
    """The model, its data, the table, the priors, and how far to believe it."""
    blocks = [_model(fit), _table(fit), _priors(fit), _quality(fit)]
    return "\n\n".join(block for block in blocks if block)


def _model(fit: Fit) -> str:
    levels, family = fit.training.levels, fit.shared.family
    success = f"; P({visible(levels[1])})" if family.response == "binary" and len(levels) == 2 else ""
    lines = [visible(fit.formula), fit.family + success]
    rows = f"{fit.n} rows"
    if fit.training.dropped:
        rows += f", {fit.training.dropped} dropped for missing values"
    for term in fit.shared.layout.groups:
        rows += f"; {len(term.levels)} levels of {visible(term.name)}"
    return "\n".join([*lines, rows])


def _table(fit: Fit) -> str:
    coefficients, parameters = fit.coefficient_rows(), fit.parameter_rows()
    parts = []
    if coefficients:
        heads, cells = coefficient_cells(coefficients, fit.interval)
        parts.append(table(["coefficient", *heads[1:]], cells))
    if parameters:
        heads, cells = coefficient_cells(parameters, fit.interval)
        parts.append(table(["parameter", *heads[1:]], cells))
    return "\n\n".join(parts)


def _priors(fit: Fit) -> str:
    shown = list(fit.priors.items())
    lines = [[name, text] for name, text in shown[:MOST_PRIORS]]
    if len(shown) > MOST_PRIORS:
        lines.append([f"and {len(shown) - MOST_PRIORS} more", "see fit.priors"])
    return table(["prior", ""], lines, left=2) if lines else ""


def _quality(fit: Fit) -> str:
    line = f"bound {plain(fit.bound, 6)}"
    loo = fit.loo()
    if np.isfinite(loo.elpd):
        line += f"; leave-one-out {plain(loo.elpd, 6)} (se {plain(loo.se, 2)})"
    lines = [line, f"{fit.status.name.lower()}" + ("" if fit.converged else f": {fit.status.advice}")]
    if fit.mode in TREATED:
        lines[1] += f"; parameters {TREATED[fit.mode]}"
    trust = fit.trust_summary
    if trust.verdict != "unchecked":
        word = {"trust": "trust it", "corrected": "needs correction", "doubt": "in doubt"}[trust.verdict]
        lines.append(f"{word}: {trust.advice}")
    lines += [f"note: {note}" for note in fit.notes]
    return "\n".join(lines)
