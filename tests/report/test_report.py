"""Reports: what is drawn is what the records say, every text is escaped, and the page needs nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import klimb
from klimb.report import charts
from klimb.report import svg as scales
from klimb.report.diagnostics import calibration, pit_histogram
from klimb.report.page import page
from klimb.report.records import (
    BoundTrace,
    CoefficientRow,
    EffectCurve,
    Fact,
    FitReport,
    FitTrust,
    GroupEffects,
    HardRow,
    Loo,
    to_json,
)
from klimb.report.svg import escape, shorten, standalone
from klimb.report.text import coefficient_cells, table

UGLY = "<script>alert('x')</script> \"& größe 高さ\x00\n"
VOID = {"meta", "img", "link", "br"}


def example(name: str = "wind") -> FitReport:
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 300)
    y = (rng.random(300) < p).astype(float)
    grid = np.linspace(0.0, 30.0, 40)
    curve = 1 / (1 + np.exp(0.2 * grid - 2))
    rows = (CoefficientRow("Intercept", -31.0, 2.0, -34.3, -27.7, 0.0),
            CoefficientRow(name, -0.2, 0.03, -0.25, -0.15, 0.0), CoefficientRow("days", 0.24, 0.04, 0.17, 0.31, 1.0))
    levels = tuple(CoefficientRow(f"{name} {i}", float(mean), 0.3, float(mean) - 0.5, float(mean) + 0.5, None, "level")
                   for i, mean in enumerate(rng.normal(0.0, 0.6, 6)))
    return FitReport(
        formula=f"y ~ {name} + days + (1 | g)", family="bernoulli, logit link", level=0.9, n=300, dropped=2,
        bound=-180.5, converged=True, status="Converged", advice="Nothing to do.", coefficients=rows,
        parameters=(CoefficientRow("sd(g)", 0.6, 0.1, 0.4, 0.8, None, "group"),),
        groups=(GroupEffects(name, "Intercept", levels, 6),),
        effects=(EffectCurve(name, tuple(grid.tolist()), tuple(curve.tolist()), tuple((0.9 * curve).tolist()),
                             tuple((1.1 * curve).tolist()), 0.9, name, f"P({name})",
                             tuple(rng.gamma(4, 2.5, 50).tolist()), note=name),
                 EffectCurve("route", ("a", name, "c"), (0.2, 0.4, 0.3), (0.1, 0.3, 0.2), (0.3, 0.5, 0.4), 0.9, "route",
                             "P(y)", counts=(1, 2, 3))),
        data=(Fact("source", name),), priors=(Fact(name, "normal(0, 1)"),),
        trace=BoundTrace((-300.0, -200.0, -181.0, -180.5), rule=("start", "natural", "natural", "newton")),
        calibration=calibration(p, p * (1 - p), y, label=name),
        pit=pit_histogram(np.where(y == 1, 1 - p, 0.0), np.where(y == 1, 1.0, 1 - p)),
        loo=Loo(-190.0, 9.5, 300, 1, (HardRow(17, name, "0.97", -3.5),)),
        trust=FitTrust("trust", name, name, 0.2, (Fact("Pareto k", "0.20"),)), notes=(name,),
        reproduce=(f"klimb fit '{name}'",), versions=(Fact("klimb", "0.1.0"),), title=name)


class Checker(HTMLParser):
    """Collects tags, checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("name", ["wind", UGLY])
def test_page_stands_alone_and_escapes(name: str) -> None:
    text = page(example(name))
    tags = checked(text).tags
    names = {tag for tag, _ in tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "a"}
    assert not any(set(attributes) & {"src", "href", "style", "onload", "onclick"} for _, attributes in tags)
    assert "url(" not in text
    assert "@import" not in text
    assert "<script>" not in text
    assert "\x00" not in text
    assert len(text) < 200_000


def test_page_says_what_the_records_say() -> None:
    text = page(example())
    words = re.sub(r"<[^>]+>", " ", text)
    for part in ("y ~ wind + days + (1 | g)", "-180.5", "sd(g)", "0.60", "Trust.", "Pareto k", "normal(0, 1)",
                 "2 left out", "1 rows could not be left out", "Intercept by wind, all 6 levels"):
        assert part in words, part


def test_fits_at_all_hyperparameters_are_counted() -> None:
    """Not those of the search alone, which the trace has."""
    data = {"y": np.tile([1.0, 0.0, 3.0, 2.0], 6), "g": np.repeat(list("abcdef"), 4)}
    fit = klimb.fit("y ~ 1 + (1 | g)", data, family="poisson")
    assert fit.n_fits > len(fit.trace.bound)
    assert f"<dt>Fits</dt><dd><b>{fit.n_fits}</b>" in page(fit.report())


def test_page_without_optional_parts() -> None:
    bare = FitReport("y ~ 1", "gaussian", 0.9, 3, 0, -4.2, False, "Stopped early", "Raise max_iter.", ())
    text = page(bare)
    checked(text)
    assert "Doubt." in text  # not converged
    assert "Raise max_iter." in text
    assert "<h2>Effects" not in text


def test_pages_of_thousands_stay_small() -> None:
    rows = tuple(CoefficientRow(f"x{i}", math.sin(i), 0.1, math.sin(i) - 0.16, math.sin(i) + 0.16, 0.5)
                 for i in range(3000))
    curve = example().effects[0]
    curves = tuple(replace(curve, name=f"x{i}", x_label=f"x{i}",
                           center=tuple((1.0 + i) * value for value in curve.center)) for i in range(80))
    text = page(replace(example(), coefficients=rows, effects=curves,
                        priors=tuple(Fact(row.name, "normal(0, 1)") for row in rows)))
    assert len(text) < 400_000
    assert "the 100 farthest from zero in sds, of 3,000" in text
    assert "the 24 largest of 80" in text
    assert "Effect of x79" in text
    assert "Effect of x55" not in text
    assert "and 2,900 more" in text


@pytest.mark.parametrize("verdict", ["trust", "corrected", "doubt", "unchecked"])
def test_verdicts_differ_in_word_and_shape(verdict: str) -> None:
    report = replace(example(), trust=FitTrust(verdict, "Why."))  # type: ignore[arg-type]
    section = page(report).split('aria-label="verdict"')[1].split("</section>")[0]
    word = {"trust": "Trust.", "corrected": "Corrected.", "doubt": "Doubt.", "unchecked": "Not checked."}[verdict]
    assert word in section
    assert len({page(replace(report, trust=FitTrust(other, "Why."))).split("</svg>")[1]  # type: ignore[arg-type]
                for other in ("trust", "corrected", "doubt", "unchecked")}) == 4


# -- charts ---------------------------------------------------------------------------------------------------------


def drawn(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(standalone(chart))


def marks(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [part for part in root.iter() if part.get("class") == kind]


def test_charts_are_well_formed_whatever_names_hold() -> None:
    report = example(UGLY)
    assert report.trace is not None
    assert report.calibration is not None
    assert report.pit is not None
    for chart in (*map(charts.effect_chart, report.effects), charts.coefficient_chart(report.coefficients, 0.9),
                  charts.group_chart(report.groups[0], 0.9), charts.bound_chart(report.trace),
                  charts.calibration_chart(report.calibration), charts.pit_chart(report.pit),
                  charts.interval_cell(report.coefficients[1], (-1.0, 1.0)), charts.axis_cell((-1.0, 1.0))):
        root = drawn(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_effect_chart_draws_every_point_in_place() -> None:
    curve = EffectCurve("x", (0.0, 1.0, 2.0), (1.0, 3.0, 2.0), (0.0, 2.0, 1.0), (2.0, 4.0, 3.0), 0.9, "x", "y",
                        (0.5, 9.0))
    root = drawn(charts.effect_chart(curve))
    line = marks(root, "line")[0].get("points", "").split()
    x, y = zip(*((float(a), float(b)) for a, b in (point.split(",") for point in line)), strict=True)
    assert x[0] < x[1] < x[2]
    assert y[1] < y[2] < y[0]  # larger values are higher up
    assert math.isclose((y[0] - y[2]) / (y[0] - y[1]), 0.5, abs_tol=0.01)
    assert marks(root, "rug")[0].get("d", "").count("M") == 1  # 9.0 lies outside


def test_a_column_that_never_changes_is_a_dot() -> None:
    root = drawn(charts.effect_chart(EffectCurve("x", (1.0,), (2.0,), (1.0,), (3.0,), 0.9, "x", "y")))
    assert len(marks(root, "dot")) == 1
    assert marks(root, "line") == []


def test_gaps_where_numbers_are_missing() -> None:
    nan = math.nan
    curve = EffectCurve("x", (0.0, 1.0, 2.0, 3.0, 4.0), (1.0, 2.0, nan, 1.0, 2.0), (0.0, 1.0, nan, 0.0, 1.0),
                        (2.0, 3.0, nan, 2.0, 3.0), 0.9, "x", "y")
    chart = charts.effect_chart(curve)
    assert len(marks(drawn(chart), "line")) == 2
    assert "nan" not in chart


def test_what_lies_beyond_the_axis_is_an_arrow() -> None:
    rows = example().coefficients  # an intercept of -31 beside slopes below one
    root = drawn(charts.coefficient_chart(rows, 0.9))
    assert len(marks(root, "arrow")) == 1
    assert len(marks(root, "dot")) == 2


def test_bound_chart_needs_a_climb() -> None:
    assert charts.bound_chart(BoundTrace(())) == ""
    assert charts.bound_chart(BoundTrace((-1.0,))) == ""
    assert charts.bound_chart(BoundTrace((-1.0, -1.0))) == ""
    assert "nan" not in charts.bound_chart(BoundTrace((-math.inf, -5.0, -2.0, -1.0)))


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e6, 1e300])
def test_any_size_of_number_can_be_drawn(size: float) -> None:
    curve = EffectCurve("x", (0.0, size), (size, 2 * size), (0.0, size), (2 * size, 3 * size), 0.9, "x", "y")
    rows = [CoefficientRow("x", size, size / 2, size / 4, 2 * size, 1.0)]
    for chart in (charts.effect_chart(curve), charts.coefficient_chart(rows, 0.9)):
        drawn(chart)
        assert "nan" not in chart
        assert "inf" not in chart.replace("info", "")
    table(*coefficient_cells(rows, 0.9))


def test_ticks_are_round_and_inside() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        low, high = sorted(rng.normal(size=2) * 10.0 ** rng.integers(-8, 8))
        values = scales.round_numbers(low, high, 5)
        assert 2 <= len(values) <= 11
        assert all(low - 1e-6 * (high - low) <= value <= high + 1e-6 * (high - low) for value in values)
        assert len(set(scales.labels(values))) == len(values)
        digits = {f"{abs(value):.12e}".split("e")[0].rstrip("0") for value in np.diff(values)}
        assert len(np.unique(np.round(np.diff(values) / (values[1] - values[0]), 6))) == 1, digits


def test_long_names_are_shortened_by_columns() -> None:
    assert shorten("高さ高さ高さ", 7) == "高さ高…"
    assert escape("\x1b[31m") == r"\x1b[31m"


# -- text -----------------------------------------------------------------------------------------------------------


def test_table_lines_up_wide_letters() -> None:
    lines = table(["", "mean"], [["高さ", "1.0"], ["e\u0301", "-10.0"], ["new\nline", "2.0"]]).split("\n")
    assert len(lines) == 4
    assert lines[1] == "高さ         1.0"
    assert lines[3] == r"new\nline    2.0"


def test_digits_follow_the_uncertainty() -> None:
    rows = [CoefficientRow("a", 12.3456, 0.0123, 12.32, 12.37), CoefficientRow("b", 1.0, 3.0, -4.0, 6.0)]
    text = table(*coefficient_cells(rows, 0.9))
    assert "12.346" in text
    assert "5%" in text
    assert "P(>0)" not in text
    for mean, sd, positive, shown in ((1.0, 0.2, 0.9999, ">0.99"), (1.0, 0.01, 1.0, ">0.99"),
                                      (-1.0, 0.01, 0.0, "<0.01"), (1.0, 0.2, 0.95, "0.95"), (1.0, 0.0, 1.0, "1.00")):
        row = CoefficientRow("a", mean, sd, mean - 2 * sd, mean + 2 * sd, positive)
        assert table(*coefficient_cells([row], 0.9)).endswith(f"  {shown}")


def test_records_become_json() -> None:
    stored = json.loads(json.dumps(to_json(example(UGLY)), allow_nan=False))
    assert stored["formula"] == example(UGLY).formula
    assert stored["coefficients"][1]["mean"] == -0.2


# -- calibration ----------------------------------------------------------------------------------------------------


def test_calibration_of_a_right_model_and_of_a_wrong_one() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(4000)
    y = (rng.random(4000) < p).astype(float)
    right, wrong = (calibration(q, q * (1 - q), y) for q in (p, p**3))
    assert right is not None
    assert wrong is not None

    def inside(curve: object) -> float:
        return float(np.mean([low <= seen <= high for low, seen, high in
                              zip(curve.lower, curve.observed, curve.upper, strict=True)]))  # type: ignore[attr-defined]

    assert inside(right) >= 0.7
    assert inside(wrong) <= 0.3
    assert sum(right.counts) == 4000
    # The bins themselves, by hand: ten of like size in the order of the predictions.
    order = np.argsort(p, kind="stable").reshape(10, 400)
    np.testing.assert_allclose(right.observed, y[order].mean(axis=1))
    np.testing.assert_allclose(right.predicted, p[order].mean(axis=1))


def test_like_predictions_stay_together() -> None:
    curve = calibration(np.repeat([0.1, 0.5, 0.9], [90, 5, 5]), np.full(100, 0.1), np.zeros(100))
    assert curve is not None
    assert curve.counts == (90, 10) or curve.counts == (90, 5, 5)
    assert calibration(np.full(100, 0.5), np.full(100, 0.25), np.zeros(100)) is None
    assert calibration([0.5], [0.25], [1.0]) is None


def test_pit_of_counts_is_flat_for_a_right_model() -> None:
    from scipy.stats import poisson

    rng = np.random.default_rng(2)
    rate = rng.gamma(2.0, 1.5, 5000)
    y = rng.poisson(rate)
    right = pit_histogram(poisson.cdf(y - 1, rate), poisson.cdf(y, rate))
    assert right is not None
    np.testing.assert_allclose(right.density, 1.0, atol=0.08)
    np.testing.assert_allclose(sum(right.density) / len(right.density), 1.0, rtol=1e-12)
    np.testing.assert_allclose([actual for _, actual in right.coverage], [0.5, 0.9], atol=0.02)
    wrong = pit_histogram(poisson.cdf(y - 1, 2.0 * rate), poisson.cdf(y, 2.0 * rate))
    assert wrong is not None
    assert wrong.density[0] > 1.8
    assert pit_histogram([0.5], [0.5]) is None


def test_pit_keeps_all_mass_at_the_ends() -> None:
    ends = pit_histogram(np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], 50), bins=4)
    assert ends is not None
    np.testing.assert_allclose(ends.density, [2.0, 0.0, 0.0, 2.0])


def test_entries_may_stand_for_several_rows() -> None:
    rng = np.random.default_rng(3)
    p, counts = rng.random(60), rng.integers(1, 9, 60)
    y = np.arange(60) % 2 * 1.0
    entries = calibration(p, p * (1 - p), y, counts=counts.astype(float))
    rows = calibration(*(np.repeat(values, counts) for values in (p, p * (1 - p), y)))
    assert entries is not None
    assert rows is not None
    assert entries.counts == rows.counts
    for name in ("predicted", "observed", "lower", "upper"):
        np.testing.assert_allclose(getattr(entries, name), getattr(rows, name), rtol=1e-12)
    places = pit_histogram(0.5 * p, p, counts=counts.astype(float)), pit_histogram(*np.repeat([0.5 * p, p], counts, 1))
    assert places[0] is not None
    assert places[1] is not None
    np.testing.assert_allclose(places[0].density, places[1].density, rtol=1e-12)
    assert places[0].n == places[1].n == counts.sum()


# -- matplotlib -----------------------------------------------------------------------------------------------------


def test_plots_draw_the_same_numbers() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    from klimb.report import plots

    report = example("$wind$ _a")
    assert report.trace is not None
    assert report.calibration is not None
    axes = plots.plot_effects(report.effects)
    np.testing.assert_array_equal(axes.flat[0].lines[0].get_ydata(), report.effects[0].center)
    ax = plots.plot_coefficients(report.coefficients, 0.9)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), [row.mean for row in report.coefficients])
    np.testing.assert_allclose(plots.plot_bound(report.trace).lines[0].get_ydata(), [119.5, 19.5, 0.5])
    np.testing.assert_array_equal(plots.plot_calibration(report.calibration).lines[1].get_ydata(),
                                  report.calibration.observed)
    given = pyplot.subplots()[1]
    assert plots.plot_calibration(report.calibration, ax=given) is given
    for number in pyplot.get_fignums():
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")


def test_plots_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    from klimb.errors import PlotError
    from klimb.report import plots

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"klimb\[plot\]"):
        plots.plot_bound(BoundTrace((-2.0, -1.0)))


# -- in a browser ---------------------------------------------------------------------------------------------------


def browse(text: str, folder: Path, name: str) -> tuple[list[str], bytes]:
    """What the console of a browser said, and a screenshot."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for found in map(shutil.which, names) if found), None)
    if browser is None:
        pytest.skip("no chromium on this machine to open the report in")
    source, picture = folder / f"{name}.html", folder / f"{name}.png"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                           "--no-first-run", "--enable-logging=stderr", "--window-size=800,900", "--hide-scrollbars",
                           f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", source.as_uri()],
                          capture_output=True, text=True, timeout=120, check=False)
    if not picture.exists():
        pytest.skip(f"chromium does not run here: {done.stderr[-300:]}")
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], picture.read_bytes()


@pytest.mark.slow
def test_page_opens_in_a_browser_without_a_word(tmp_path: Path) -> None:
    text = page(example(UGLY))
    said, picture = browse(text, tmp_path, "good")
    assert said == []
    assert len(picture) > 20_000  # something was drawn
    # The test can fail: a script and a picture from elsewhere are refused, and the console says so.
    planted = text.replace("</main>", '<script>1</script><img src="https://example.org/a.png"></main>')
    said, _ = browse(planted, tmp_path, "planted")
    assert len(said) == 2
