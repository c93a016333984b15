"""What is said of a fit: plain text, and the records that tables, plots and the HTML page are drawn from."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from klimb.models.check_view import looked_at
from klimb.models.prediction import checked_interval
from klimb.models.verdict import estimated_sds
from klimb.report.diagnostics import calibration, pit_histogram, quantile_residuals
from klimb.report.records import CalibrationBins, Fact, FitReport, GroupEffects, HardRow, Loo, PitHistogram
from klimb.report.text import coefficient_cells, plain, table, visible

if TYPE_CHECKING:
    from klimb.models.fit import Fit
    from klimb.models.formula_fit import FormulaFit

MOST_LEVELS = 30  # of a grouping factor shown in a report: the most extreme ones
HARDEST = 5
MOST_PRIORS = 30  # that the plain text has
TREATED = {"optimise": "at their best value", "integrate": "integrated out", "fixed": "held"}
MOST_RESIDUALS = 300  # drawn against normal ones


def fit_report(fit: FormulaFit, *, title: str = "", reproduce: Sequence[str] = (), source: str = "",
               interval: float | None = None) -> FitReport:
    """All that is said of a fit; ``source`` names the data, ``reproduce`` holds the lines that make it again."""
    level, own = fit.interval if interval is None else float(interval), fit.model.likelihood
    checked_interval(level)
    call = f"klimb.fit({fit.formula!r}, data, family={own.name!r}, link={own.link.name!r})"
    return FitReport(
        formula=fit.formula, family=family_words(fit), level=level, n=fit.n, dropped=fit.observed.dropped,
        bound=fit.bound, converged=fit.converged, status=fit.status.name.replace("_", " ").capitalize(),
        advice=fit.status.advice, coefficients=tuple(fit.coefficient_rows(level)),
        parameters=tuple(fit.parameter_rows(level)),
        groups=tuple(group for term in fit.groups for group in group_effects(fit, term.name, level)),
        effects=tuple(fit.effects(interval=level)), data=data_facts(fit, source),
        priors=tuple(Fact(name, text) for name, text in fit.priors.items()), trace=fit.trace, n_fits=fit.n_fits,
        calibration=calibration_curve(fit, level), pit=pit(fit, level), loo=loo_record(fit), trust=fit.trust_summary,
        checks=fit.checks, residuals=residuals(fit), notes=fit.notes,
        reproduce=tuple(reproduce) or (call,), versions=versions(), title=title)


def versions() -> tuple[Fact, ...]:
    """What the numbers were made with."""
    import scipy

    import klimb

    return (Fact("klimb", klimb.__version__), Fact("Python", platform.python_version()),
            Fact("numpy, scipy", f"{np.__version__}, {scipy.__version__}"))


# -- the data


def family_words(fit: FormulaFit) -> str:
    """The family, and of which outcome a probability speaks."""
    return f"{fit.family}; P({outcome(fit)})" if fit.model.likelihood.response == "binary" else fit.family


def outcome(fit: FormulaFit) -> str:
    """What happens with the probability that a model of two outcomes gives: the level that counts as 1."""
    levels, name = fit.observed.levels, fit.observed.name
    return f"{name} = {levels[1]}" if len(levels) == 2 else f"{name} = 1"


def data_facts(fit: FormulaFit, source: str = "") -> tuple[Fact, ...]:
    """Where the rows come from, how many there are, what the response looks like."""
    facts = [Fact("source", source)] if source else []
    data = fit.observed
    dropped = data.dropped
    facts.append(Fact("rows", f"{fit.n + dropped:,}, of which {dropped:,} left out for missing values" if dropped
                      else f"{fit.n:,}"))
    if data.n_cells is not None:
        facts.append(Fact("cells", f"{data.n_cells:,}" + ", by the sums of their responses" * fit.by_sums))
    y, kind, copies = data.y, fit.model.likelihood.response, np.ones(data.n) if data.copies is None else data.copies
    if kind == "binary":
        facts.append(Fact("response", f"{outcome(fit)} in {round(float(copies @ (y > 0))):,} of {fit.n:,} rows"))
    elif kind in ("ordered", "classes"):
        counts = np.bincount(y.astype(int), copies, minlength=len(data.levels))
        facts.append(Fact("response", ", ".join(f"{name}: {count:.0f}" for name, count in
                                                zip(data.levels, counts.tolist(), strict=True))))
    else:
        span = "" if fit.by_sums else f", from {plain(float(y.min()))} to {plain(float(y.max()))}"
        facts.append(Fact("response", f"{data.name}: mean {plain(float(copies @ y / copies.sum()))}{span}"))
    if "status" in data.aux:
        facts.append(Fact("events", f"{round(float(copies @ data.aux['status'])):,}; the other times are censored"))
    for term in fit.groups:
        facts.append(Fact(f"levels of {term.name}", f"{len(term.levels):,}"))
    return tuple(facts)


def group_effects(fit: FormulaFit, name: str, interval: float | None = None) -> list[GroupEffects]:
    """One record per column of a grouping factor; the most extreme levels, in the order of their means."""
    term = fit.group_term(name)
    rows = fit.level_rows(term, interval)
    found = []
    for j, column in enumerate(term.columns):
        own = [replace(row, name=level) for row, level in zip(rows[j :: len(term.columns)], term.levels, strict=True)]
        extreme = sorted(own, key=lambda row: -abs(row.mean))[:MOST_LEVELS]
        found.append(GroupEffects(term.name, column, tuple(sorted(extreme, key=lambda row: row.mean)), len(own)))
    return found


# -- predictions of each row from the others


def calibration_curve(fit: FormulaFit, level: float = 0.9) -> CalibrationBins | None:
    """Observed against predicted means; None where there are too few rows, or where data are censored."""
    if fit.model.likelihood.response == "classes" or "status" in fit.observed.aux or fit.by_sums:
        return None
    loo, data = fit.loo(), fit.observed
    y, mean, variance, trials = data.y, loo.mean, loo.variance, data.aux.get("trials")
    if trials is not None:  # of unlike sizes: compare shares
        y, mean, variance = y / trials, mean / trials, variance / trials**2
    binary = fit.model.likelihood.response == "binary"
    label = f"P({outcome(fit)})" if binary else f"share of {fit.observed.name}" if trials is not None else (
        fit.observed.name)
    return calibration(mean, variance, y, level=level, label=label, counts=data.copies)


def pit(fit: FormulaFit, level: float = 0.9) -> PitHistogram | None:
    """The place of each datum in its prediction; None for yes or no and for classes, whose place says nothing."""
    if fit.model.likelihood.response in ("binary", "classes") or fit.by_sums:
        return None
    loo = fit.loo()
    return pit_histogram(loo.below, loo.at, level=level, counts=fit.observed.copies)


def residuals(fit: FormulaFit) -> tuple[float, ...]:
    """Quantile residuals at `MOST_RESIDUALS` evenly spaced ranks; none for yes or no and for classes."""
    if fit.model.likelihood.response in ("binary", "classes") or fit.by_sums:
        return ()
    loo = fit.loo().some(looked_at(np.arange(fit.observed.n), fit.observed.copies))
    found = quantile_residuals(loo.below, loo.at)
    found = np.sort(found[np.isfinite(found)])
    if len(found) > MOST_RESIDUALS:
        found = np.quantile(found, (np.arange(MOST_RESIDUALS) + 0.5) / MOST_RESIDUALS)
    return tuple(found.tolist())


def loo_record(fit: FormulaFit) -> Loo | None:
    """The leave-one-out sum and the rows that it finds hardest; None where no row can be left out."""
    if fit.by_sums:
        return None
    loo = fit.loo()
    terms = np.where(np.isfinite(loo.log_density), loo.log_density, np.inf)
    data = fit.observed
    most = HARDEST if data.copies is None else 0  # cells have no place in a table
    hardest = [int(i) for i in np.argsort(terms, kind="stable")[:most] if np.isfinite(terms[i])]

    def shown(i: int) -> str:
        after = "" if data.aux.get("status", np.ones(data.n))[i] else "+"  # censored
        return data.levels[int(data.y[i])] if data.levels else plain(float(data.y[i]), 4) + after

    rows = tuple(HardRow(int(data.places[i]), shown(i), plain(float(loo.mean[i])), float(loo.log_density[i]))
                 for i in hardest)
    return Loo(loo.elpd, loo.se, fit.n, loo.failed, rows)


# -- plain text


def summary_text(fit: Fit) -> str:
    """``print(fit)``, the same characters everywhere: model, data, table, priors, and how far to believe it."""
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
