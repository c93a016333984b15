"""The report as one HTML page that needs nothing else: no script, no font, no picture from anywhere."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from klimb.report import charts
from klimb.report.records import CoefficientRow, Fact, FitReport
from klimb.report.svg import CHART_STYLE, PAGE_STYLE, escape
from klimb.report.text import coefficient_cells, fixed, percent, plain

LOGO = ('<svg viewBox="0 0 40 24" aria-hidden="true"><path d="M2 22 13 7l6 8L28 3l10 19" fill="none"'
        ' stroke="currentColor" stroke-width="2.6" stroke-linejoin="round" stroke-linecap="round"/></svg>')

MOST_ROWS, MOST_EFFECTS = 100, 24
CHECKED = "What was checked"
T = TypeVar("T")

# Nothing is loaded and nothing runs, whatever a column is called.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# Verdicts differ in shape and word, not only in colour.
SIGNS = {
    "trust": ("Trust", '<circle cx="12" cy="12" r="10.5"/><path class="cut" d="m7 12.5 3.5 3.5L17.5 8.5"/>'),
    "corrected": ("Corrected", '<rect x="1.5" y="1.5" width="21" height="21" rx="5"/>'
                               '<path class="cut" d="M6.5 9.5h11m-11 5h11"/>'),
    "verified": ("Verified", '<path d="M12 1 21.5 5v6.5C21.5 17 17.5 21 12 23 6.5 21 2.5 17 2.5 11.5V5z"/>'
                             '<path class="cut" d="m7.5 12 3.2 3.2 6-6.7"/>'),
    "doubt": ("Doubt", '<path d="M12 1.5 23.2 21.5H.8z"/><path class="cut" d="M12 8.5v6m0 3v.1"/>'),
    "unchecked": ("Not checked", '<circle class="open" cx="12" cy="12" r="10"/><path class="line" d="M8 12h8"/>'),
}


def page(report: FitReport) -> str:
    """The whole page as text."""
    title = report.title or report.formula
    parts = (_header, _verdict, _suits, _tiles, _coefficients, _effects, _groups, _predictions, _climb, _model,
             _reproduce)
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<title>{escape(title)} - klimb</title>\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark">\n<meta name="generator" content="klimb">\n'
            f"<style>\n{PAGE_STYLE}\n{CHART_STYLE}\n</style>\n</head>\n<body>\n<main>\n"
            f"{''.join(part(report) for part in parts)}</main>\n</body>\n</html>\n")


def _header(report: FitReport) -> str:
    lead = f'<h1>{escape(report.title)}</h1>\n<p class="formula">{escape(report.formula)}</p>' if report.title else (
        f'<h1 class="formula">{escape(report.formula)}</h1>')
    dropped = f", {report.dropped:,} left out" if report.dropped else ""
    return (f'<header>\n<p class="brand">{LOGO}<span>klimb</span> report</p>\n{lead}\n'
            f'<p class="sub">{escape(report.family)} · {report.n:,} rows{dropped}'
            f" · {percent(report.level)} intervals</p>\n</header>\n")


def _verdict(report: FitReport) -> str:
    trust = report.trust
    kind = "doubt" if not report.converged and trust.verdict == "unchecked" else trust.verdict
    word = SIGNS[kind][0]
    words = trust.advice or trust.measures
    advice = "" if report.converged else f"{report.status}: {report.advice}"
    facts = _facts(trust.facts)
    more = f"<details><summary>{CHECKED}</summary>{facts}</details>" if facts else ""
    return _banner(kind, "verdict", word, words, (f"<p class=soft>{escape(advice)}</p>" if advice else "") + more)


def _banner(kind: str, label: str, word: str, words: str, more: str) -> str:
    return (f'<section class="verdict {kind}" aria-label="{label}">'
            f'<svg class="sign" viewBox="0 0 24 24" aria-hidden="true">{SIGNS[kind][1]}</svg>'
            f"<div><p><strong>{word}.</strong> {escape(words)}</p>{more}</div></section>\n")


def _suits(report: FitReport) -> str:
    """Whether the model fits the data, and what to do where it does not."""
    checks = report.checks
    if checks.verdict == "unchecked":
        return ""
    kind, word = ("trust", "Fits the data") if checks.verdict == "fits" else ("doubt", "Misfit")
    first = checks.findings[0].sentence if checks.findings else "The checks found no misfit"
    items = "".join(f"<li><b>{escape(one.check)}</b>: {escape(one.sentence)} (effect {escape(plain(one.effect))},"
                    f" threshold {escape(plain(one.threshold))}; p {escape(one.chance)}).<br>"
                    f"<code>{escape(one.next_step)}</code></li>" for one in checks.findings)
    quiet = [name for name in checks.looked if name not in {one.check for one in checks.findings}]
    rest = f"<p>No misfit found by {escape(', '.join(quiet))} ({checks.rows:,} rows).</p>" if quiet else ""
    head = "What was found, and what to do" if items else CHECKED
    found = f"<ul>{items}</ul>" if items else ""
    more = f"<details{' open' if items else ''}><summary>{head}</summary>{found}{rest}</details>"
    return _banner(kind, "does the model fit the data?", word, f"{first[0].upper() + first[1:]}.", more)


def _tiles(report: FitReport) -> str:
    tiles = [("Evidence lower bound", plain(report.bound, 6), "ELBO, of the log evidence")]
    if report.loo is not None:
        tiles.append(("Leave-one-out", f"{plain(report.loo.elpd, 5)}", f"± {plain(report.loo.se, 2)} (log density)"))
    ending = "converged" if report.converged else report.status
    if report.n_fits > 1:
        tiles.append(("Fits", f"{report.n_fits:,}", ending))
    elif report.trace is not None:
        tiles.append(("Iterations", f"{len(report.trace.bound) - 1}", ending))
    tiles.append(("Rows", f"{report.n:,}", f"{report.dropped:,} left out" if report.dropped else "all used"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd><b>{escape(value)}</b><span>{escape(note)}</span></dd></div>"
                    for name, value, note in tiles)
    return f'<dl class="tiles">{cells}</dl>\n'


def _coefficients(report: FitReport) -> str:
    parts = []
    if report.coefficients:
        rows = _most(report.coefficients, MOST_ROWS, lambda row: abs(row.mean) / row.sd if row.sd > 0 else math.inf)
        some = "" if len(rows) == len(report.coefficients) else (
            f" These are the {len(rows)} farthest from zero in sds, of {len(report.coefficients):,}.")
        parts.append(_section("Coefficients", _forest(rows, report.level),
                              "On the scale of the linear predictor. The dashed line is zero; an arrow marks what"
                              f" lies beyond the axis.{some}"))
    if report.parameters:
        heads, cells = coefficient_cells(report.parameters, report.level)
        parts.append(_section("Other parameters", f'<div class="scroll fit" tabindex="0">{_rows(heads, cells)}</div>',
                              "Estimated together with the coefficients."))
    return "".join(parts)


def _forest(rows: Sequence[CoefficientRow], level: float) -> str:
    """A table in which every row draws its interval."""
    heads, cells = coefficient_cells(rows, level)
    limits = charts.coefficient_range(rows)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads[1:])
    body = "".join(f'<tr><th scope="row">{escape(line[0])}</th>'
                   f'<td class="strip">{charts.interval_cell(row, limits)}</td>'
                   + "".join(f"<td>{escape(cell)}</td>" for cell in line[1:]) + "</tr>"
                   for row, line in zip(rows, cells, strict=True))
    return (f'<div class="scroll" tabindex="0"><table class="forest"><thead><tr><td></td>'
            f'<th scope="col" class="strip">interval</th>{head}</tr></thead><tbody>{body}</tbody>'
            f'<tfoot><tr><td></td><td class="strip">{charts.axis_cell(limits)}</td>'
            f"{'<td></td>' * (len(heads) - 1)}</tr></tfoot></table></div>")


def _effects(report: FitReport) -> str:
    if not report.effects:
        return ""
    curves = _most(report.effects, MOST_EFFECTS, lambda curve: max(curve.center) - min(curve.center))
    some = "" if len(curves) == len(report.effects) else (
        f" These are the {len(curves)} largest of {len(report.effects):,}.")
    figures = [_figure(charts.effect_chart(curve), curve.note) for curve in curves]
    return _section("Effects", _grid(figures),
                    f"Predictions along one column, the others at typical values. {percent(report.level)} bands and"
                    f" bars; ticks at the bottom are data.{some}")


def _groups(report: FitReport) -> str:
    figures = []
    for group in report.groups:
        shown = len(group.rows)
        few = f"the {shown} most extreme of {group.total:,}" if shown < group.total else f"all {group.total:,}"
        figures.append(_figure(charts.group_chart(group, report.level), f"{group.column} by {group.name}, {few} levels."
                               " Levels with few rows are shrunk towards the average."))
    return _section("Levels", _grid(figures), "How far each level lies from the average of all.") if figures else ""


def _predictions(report: FitReport) -> str:
    figures = []
    if report.calibration is not None:
        figures.append(_figure(charts.calibration_chart(report.calibration),
                               "Rows in bins of similar predictions. If the model is correct,"
                               f" {percent(report.calibration.level)} of the dots lie within their grey bars."))
    if report.pit is not None:
        covered = ", ".join(f"{percent(nominal)} intervals contain {100.0 * actual:.0f}% of the data"
                            for nominal, actual in report.pit.coverage)
        figures.append(_figure(charts.pit_chart(report.pit), (f"{covered}. " if covered else "")
                               + f"If calibrated, {percent(report.pit.level)} of bars end between the dashed lines."))
    if report.residuals:
        figures.append(_figure(charts.residual_chart(report.residuals, report.n),
                               "Sorted quantile residuals (leave-one-out). Those of a correct model follow the dashed"
                               " line; 95% of them lie in the band."))
    if report.loo is not None:
        loo = report.loo
        cells = [[str(row.row), row.observed, row.predicted, fixed(row.log_density, 2)] for row in loo.hardest]
        rows = _rows(["row", "observed", "predicted", "log density"], cells) if cells else ""
        failed = f" {loo.failed:,} rows could not be left out." if loo.failed else ""
        figures.append(f"<figure><h3>Worst predicted rows</h3>{rows}<figcaption>Rows count from 0. The log density"
                       f" of a row given all the others, summed over {loo.n:,} rows, is {escape(plain(loo.elpd, 5))}"
                       f" ± {escape(plain(loo.se, 2))}.{failed}</figcaption></figure>")
    return _section("Predictions", _grid(figures), "Each row is predicted from all the others, without refitting."
                    ) if figures else ""


def _climb(report: FitReport) -> str:
    chart = charts.bound_chart(report.trace) if report.trace is not None else ""
    words = f"{report.status}. {report.advice}".replace("..", ".")
    if not chart or report.trace is None:
        return ""
    each = "each iteration." if report.trace.unit == "iteration" else "each fit of the search for hyperparameters."
    return _section("Convergence", _grid([_figure(chart, words)]),
                    f"How far below its final value the bound was after {each}")


def _model(report: FitReport) -> str:
    parts = []
    if report.data:
        parts.append(f"<div><h3>Data</h3>{_facts(report.data)}</div>")
    if report.priors:
        more = len(report.priors) - MOST_ROWS
        rest = (Fact(f"and {more:,} more", ""),) if more > 0 else ()
        parts.append(f"<div><h3>Priors</h3>{_facts((*report.priors[:MOST_ROWS], *rest))}</div>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    if notes:
        parts.append(f"<div><h3>Notes</h3><ul>{notes}</ul></div>")
    return _section("Data and priors", f'<div class="columns">{"".join(parts)}</div>') if parts else ""


def _reproduce(report: FitReport) -> str:
    lines = "\n".join(escape(part) for line in report.reproduce for part in line.splitlines() or [""])
    code = f'<pre tabindex="0"><code>{lines}</code></pre>' if lines else ""
    inside = code + (f'<div class="short">{_facts(report.versions)}</div>' if report.versions else "")
    return _section("Reproduce", inside, "The fit is deterministic: the same data give the same numbers."
                    ) if inside else ""


def _most(items: Sequence[T], limit: int, size: Callable[[T], float]) -> Sequence[T]:
    """The ``limit`` largest items, in the order they came: a page of thousands helps nobody."""
    if len(items) <= limit:
        return items
    keep = sorted(sorted(range(len(items)), key=lambda i: -size(items[i]))[:limit])
    return [items[i] for i in keep]


def _section(title: str, inside: str, lead: str = "") -> str:
    words = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{words}\n{inside}\n</section>\n"


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="grid{" single" if len(figures) == 1 else ""}">{"".join(figures)}</div>'


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}</figure>"


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' if name else "<td></td>" for name in heads)
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>'
                   + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _facts(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    rows = "".join(f"<div><dt>{escape(fact.label)}</dt><dd>{escape(fact.value)}</dd></div>" for fact in facts)
    return f'<dl class="facts">{rows}</dl>'
