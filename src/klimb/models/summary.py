"""``print(fit)``: plain text, the same characters everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from klimb.models.verdict import estimated_sds
from klimb.report.text import coefficient_cells, plain, table, visible

if TYPE_CHECKING:
    from klimb.models.fit import Fit

MOST_PRIORS = 30
TREATED = {"optimise": "at their best value", "integrate": "integrated out", "fixed": "held"}


def summary_text(fit: Fit) -> str:
    """The model, its data, the table, the priors, and how far to believe it."""
    blocks = [_model(fit), _table(fit), _priors(fit), _quality(fit)]
    return "\n\n".join(block for block in blocks if block)


def _model(fit: Fit) -> str:
    lines = [visible(fit.title), fit.family]
    if fit.data is not None:
        levels, dropped = fit.data.levels, fit.data.dropped
        if fit.model.likelihood.response == "binary" and len(levels) == 2:
            lines[1] += f"; P({visible(levels[1])})"
        cells = fit.data.n_cells
        rows = f"{fit.n} rows" if cells is None else f"{fit.n:,} rows, {cells:,} cells" + " by sums" * fit.by_sums
        rows += f", {dropped} dropped for missing values" if dropped else ""
        lines.append("; ".join([rows, *(visible(words) for words in fit.sizes())]))
    return "\n".join(lines)


def _table(fit: Fit) -> str:
    parts = []
    for head, rows in zip(("coefficient", "parameter"), fit.printed_rows, strict=True):
        if rows:
            heads, cells = coefficient_cells(rows, fit.interval)
            parts.append(table([head, *heads[1:]], cells))
    return "\n\n".join(parts)


def _priors(fit: Fit) -> str:
    shown = list(fit.prior_words().items())
    lines = [[name, text] for name, text in shown[:MOST_PRIORS]]
    if len(shown) > MOST_PRIORS:
        lines.append([f"and {len(shown) - MOST_PRIORS} more", "see fit.prior_words()"])
    return table(["prior", ""], lines, left=2) if lines else ""


def _quality(fit: Fit) -> str:
    line = f"evidence lower bound (ELBO) {plain(fit.bound, 6)}"
    if fit.result is not None and fit.result.bound_error > 0.0:
        line += f" ± {plain(fit.result.bound_error, 1)}"
    if (fit.data is not None and not fit.by_sums) or fit.kept_loo is not None:
        loo = fit.loo()
        if np.isfinite(loo.elpd):
            line += f"; leave-one-out {plain(loo.elpd, 6)} (se {plain(loo.se, 2)})"
    lines = [line, f"{fit.status.name.lower()}" + ("" if fit.converged else f": {fit.status.advice}")]
    if fit.model.theta.size:
        lines[1] += f"; hyperparameters {TREATED[fit.mode]}"
    if fit.result is not None and not fit.result.certified:
        lines[1] += f"; variances estimated (sds to {100.0 * estimated_sds(fit):.1g}%)"
    trust = fit.trust_summary
    if trust.verdict != "unchecked":
        word = {"trust": "trust it: ", "corrected": "corrected: ", "doubt": "in doubt: ", "verified": ""}
        lines.append(word[trust.verdict] + trust.advice)
    if fit.checks.verdict != "unchecked":
        lines.append(visible(fit.checks.headline))
    lines += [f"note: {note}" for note in fit.notes]
    return "\n".join(lines)
