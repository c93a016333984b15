"""Fills the records that tables, plots and the HTML page are drawn from."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.frontend import tables
from klimb.frontend.effects import effect_curves, mean_label
from klimb.frontend.predict import checked_interval
from klimb.report.diagnostics import calibration, pit_histogram
from klimb.report.numbers import plain
from klimb.report.records import (
    Calibration,
    Fact,
    FitReport,
    GroupEffects,
    HardRow,
    Loo,
    PitHistogram,
    TrustSummary,
)

if TYPE_CHECKING:
    from klimb.frontend.fit import Fit

MOST_LEVELS = 60  # of a grouping factor shown in a report: the most extreme ones
HARDEST = 5


def fit_report(fit: Fit, *, title: str = "", reproduce: tuple[str, ...] = ()) -> FitReport:
    """All that is said of a fit."""
    return FitReport(
        formula=fit.formula, family=fit.family, level=fit.interval, n=fit.n, dropped=fit.training.dropped,
        bound=fit.bound, converged=fit.converged, status=fit.status.name, advice=fit.status.advice,
        coefficients=tuple(fit.coefficient_rows()), parameters=tuple(fit.parameter_rows()),
        groups=tuple(group for term in fit.shared.layout.groups for group in group_effects(fit, term.name)),
        effects=tuple(effect_curves(fit)), data=data_facts(fit),
        priors=tuple(Fact(name, text) for name, text in fit.priors.items()), trace=fit.trace,
        calibration=calibration_curve(fit), pit=pit(fit), loo=loo_record(fit), trust=fit.trust_summary,
        notes=fit.notes, reproduce=reproduce or (call_text(fit),), versions=versions(), title=title)  # fmt: skip


def call_text(fit: Fit) -> str:
    """The call that makes such a fit."""
    family = fit.shared.family
    return f"klimb.fit({fit.formula!r}, data, family={family.name!r}, link={family.link.name!r})"


def versions() -> tuple[Fact, ...]:
    """What the numbers were made with."""
    import scipy

    import klimb

    return (Fact("klimb", klimb.__version__), Fact("Python", platform.python_version()),
            Fact("numpy", np.__version__), Fact("scipy", scipy.__version__))


def data_facts(fit: Fit) -> tuple[Fact, ...]:
    """Rows, response, groups."""
    facts = [Fact("rows used", str(fit.n)), Fact("rows dropped", str(fit.training.dropped))]
    response = fit.encoder.response
    if response is not None:
        facts.append(Fact("response", response.name))
    if fit.training.levels:
        facts.append(Fact("levels of the response", ", ".join(fit.training.levels)))
    facts += [Fact(f"levels of {term.name}", str(len(term.levels))) for term in fit.shared.layout.groups]
    return tuple(facts)


def group_effects(fit: Fit, name: str) -> list[GroupEffects]:
    """One record per column of a grouping factor; the most extreme levels, in the order of their means."""
    term = fit.group_term(name)
    rows = tables.level_rows(fit.shared, fit.components, term, checked_interval(fit.interval))
    found = []
    for j, column in enumerate(term.columns):
        own = rows[j :: term.size]
        extreme = sorted(own, key=lambda row: -abs(row.mean))[:MOST_LEVELS]
        found.append(GroupEffects(term.name, column, tuple(sorted(extreme, key=lambda row: row.mean)), len(own)))
    return found


def calibration_curve(fit: Fit) -> Calibration | None:
    """Predicted against observed, each row predicted from the others."""
    loo = fit.loo()
    good = np.isfinite(loo.mean) & np.isfinite(loo.variance)
    return calibration(loo.mean[good], loo.variance[good], _class_numbers(fit)[good], level=0.9, label=mean_label(fit))


def _class_numbers(fit: Fit) -> Any:
    return fit.training.y


def pit(fit: Fit) -> PitHistogram | None:
    """Where each row falls in its own predictive distribution."""
    loo = fit.loo()
    good = np.isfinite(loo.at)
    return pit_histogram(loo.below[good], loo.at[good])


def loo_record(fit: Fit) -> Loo:
    """The sum, its error, and the rows that are hardest to predict."""
    loo = fit.loo()
    order = np.argsort(np.where(np.isfinite(loo.log_density), loo.log_density, np.inf))[:HARDEST]
    hardest = tuple(HardRow(int(fit.training.rows[i]) + 1, plain(float(fit.training.y[i])),
                            plain(float(loo.mean[i])), float(loo.log_density[i])) for i in order)  # fmt: skip
    return Loo(loo.elpd, loo.se, fit.n, loo.failed, hardest)


def trust_record(trust: Any) -> TrustSummary:
    """The verdict of ``result.trust`` as plain text and numbers."""
    if trust is None:
        return TrustSummary("unchecked", "This fit was not checked.")
    facts = []
    for line in str(trust).splitlines()[1:]:
        label, _, value = line.partition("  ")
        facts.append(Fact(label.strip(), value.strip()))
    return TrustSummary(trust.verdict, trust.measures, trust.advice, float(trust.number), tuple(facts))
