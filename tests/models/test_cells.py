"""A fit by cells is the fit by rows: numbers, leave-one-out, checks, reports, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.cli import run
from klimb.errors import InputError
from klimb.models.formula_fit import FormulaFit
from klimb.models.reporting import calibration_curve, pit
from klimb.rows import gather

R = np.random.default_rng(11)
N = 1_500


def _table() -> dict[str, Any]:
    g, x, h = R.integers(0, 8, N), R.integers(0, 4, N) / 2, R.choice(["low", "mid", "top"], N)
    e = R.choice([1.0, 2.0, 5.0], N)
    f = -0.4 + 0.5 * x + 0.6 * (h == "mid") + 0.5 * R.standard_normal(8)[g]
    table = {"g": g, "x": x, "h": h, "e": e, "w": R.integers(0, 3, N).astype(float),
             "bought": R.random(N) < 1 / (1 + np.exp(-f)), "count": R.poisson(e * np.exp(0.5 * f)).astype(float),
             "wild": R.poisson(R.gamma(2.0, e * np.exp(0.5 * f) / 2.0)), "value": f + R.standard_normal(N),
             "grade": np.clip(np.floor(f + R.logistic(size=N)), -1, 2) + 1, "time": R.gamma(2.0, np.exp(f) / 2.0),
             "wait": R.exponential(np.exp(f)), "successes": R.binomial(3, 0.4, N), "trials": np.full(N, 3)}
    table["x"] = np.where(R.random(N) < 0.02, np.nan, x)
    table["value"] = np.where(R.random(N) < 0.01, np.nan, table["value"])
    return table


DATA = _table()
FITS = {"bernoulli": "bought ~ x + h + (1 | g)", "poisson": "count ~ x + h + offset(log(e)) + (1 | g)",
        "negative_binomial": "wild ~ x + offset(log(e))", "gaussian": "value ~ x * h + (1 | g)",
        "ordinal": "grade ~ x + h",
        "binomial": "p(successes, trials) ~ x + (1 | g)", "gamma": "time ~ x + h", "exponential": "wait ~ s(x) + h",
        "categorical": "h ~ x", "student_t": "grade ~ x + h"}
SUMMED = {"gaussian", "gamma", "exponential"}


def fitted(family: str, cells: Any, data: Any = None, **more: Any) -> FormulaFit:
    return klimb.fit(FITS[family], DATA if data is None else data, family, cells=cells, tol=1e-12, **more)


def difference(a: FormulaFit, b: FormulaFit) -> float:
    """Largest of means and sds, in posterior sds."""
    return max(max(abs(p.mean - q.mean), abs(p.sd - q.sd)) / q.sd
               for p, q in zip(a.table_rows(), b.table_rows(), strict=True))


@pytest.mark.parametrize("weights", [None, "w"])
@pytest.mark.parametrize("family", list(FITS))
def test_cells_agree_with_rows(family: str, weights: str | None) -> None:
    rows, cells = fitted(family, False, weights=weights), fitted(family, True, weights=weights)
    assert cells.observed.copies is not None
    assert cells.observed.n < rows.observed.n
    assert (cells.n, cells.observed.dropped, cells.by_sums) == (rows.n, rows.observed.dropped, family in SUMMED)
    assert cells.priors == rows.priors
    assert difference(cells, rows) < 1e-8
    assert cells.bound == pytest.approx(rows.bound, abs=1e-8)
    assert cells.trust_summary.verdict == rows.trust_summary.verdict
    for ours, theirs in zip(*(list(fit.predict(DATA).values()) for fit in (cells, rows)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "binomial"])
def test_leaving_out_and_reports_count_rows(family: str) -> None:
    rows, cells = (fitted(family, own, hyper="optimise") for own in (False, True))  # at one point of theta
    assert cells.loo().elpd == pytest.approx(rows.loo().elpd, abs=1e-6)
    assert cells.loo().se == pytest.approx(rows.loo().se, abs=1e-6)
    curves = calibration_curve(cells), calibration_curve(rows)
    assert curves[0] is not None
    assert curves[1] is not None
    assert sum(curves[0].counts) == sum(curves[1].counts) == rows.n
    places = pit(cells), pit(rows)
    if places[0] is not None and places[1] is not None:
        assert places[0].n == places[1].n
        np.testing.assert_allclose(places[0].density, places[1].density, atol=1e-6)
    facts = [{fact.label: fact.value for fact in fit.report().data} for fit in (cells, rows)]
    assert int(facts[0].pop("cells")) == cells.observed.n
    assert facts[0] == facts[1]
    counts = [[curve.counts for curve in fit.effects()] for fit in (cells, rows)]
    assert counts[0] == counts[1]


def test_many_rows_are_left_out_under_all_of_theta() -> None:
    """With few of the points of theta, the likeliest, cells and 4,413 rows were 0.44 nats apart."""
    some = {name: np.tile(values, 3) for name, values in DATA.items()}
    rows, cells = (klimb.fit("grade ~ h + x", some, "ordinal", cells=own, tol=1e-12) for own in (False, True))
    assert len(rows.components.weights) * rows.observed.n > 100_000 > len(cells.components.weights) * cells.observed.n
    assert cells.loo().elpd == pytest.approx(rows.loo().elpd, abs=0.02)
    assert cells.loo().se == pytest.approx(rows.loo().se, abs=0.02)


def test_checks_find_in_cells_what_they_find_in_rows() -> None:
    data = {name: DATA[name] for name in ("wild", "x", "e")}
    rows, cells = (klimb.fit("wild ~ x", data, "poisson", cells=own, missing="drop") for own in (False, ["e"]))
    assert {found.check for found in cells.checks.findings} == {found.check for found in rows.checks.findings}
    for ours, theirs in zip(cells.checks.findings, rows.checks.findings, strict=True):
        assert ours.number == pytest.approx(theirs.number, rel=0.2)
    assert cells.checks.rows == rows.checks.rows == rows.n
    # One residual of a cell that counts 5,000 times would be a misfit.
    found = klimb.fit("y ~ 1", {"y": R.poisson(2.0, 40_000)}, "poisson", cells=True)
    assert found.checks.verdict == "fits"
    assert found.checks.rows == 5_000


def test_the_order_of_rows_and_the_make_of_the_table_change_no_bit() -> None:
    first = fitted("poisson", True)
    order = R.permutation(N)
    mixed = {name: values[order] for name, values in DATA.items()}
    for data in (mixed, pd.DataFrame(mixed), pl.DataFrame(mixed).lazy(), pl.DataFrame(mixed).to_arrow()):
        other = fitted("poisson", True, data)
        np.testing.assert_array_equal(other.observed.weights, first.observed.weights)
        assert other.bound == first.bound
        assert [row.mean for row in other.table_rows()] == [row.mean for row in first.table_rows()]


def test_levels_without_weight_unused_categories_and_huge_counts() -> None:
    levels = pd.Categorical(["a", "b", "a", "c", "b", "a"], categories=["c", "z", "b", "a"])
    frame = pd.DataFrame({"y": [0, 1, 1, 1, 0, 0], "c": levels, "w": [1.0, 2.0**54, 3.0, 0.0, 2.0**54, 1.0]})
    rows, cells = (klimb.fit("y ~ c", frame, "bernoulli", weights="w", cells=own) for own in (False, True))
    assert [row.name for row in cells.table_rows()] == ["Intercept", "c[T.a]"] == [r.name for r in rows.table_rows()]
    assert difference(cells, rows) < 1e-6
    array = klimb.fit("y ~ c", frame, "bernoulli", weights=frame["w"].to_numpy(), cells=True)
    assert array.bound == cells.bound
    assert (cells.n, cells.observed.total) == (5, rows.observed.total)


def test_rows_that_wait_are_predicted() -> None:
    data = {"y": [1.0, 0.0, np.nan, 1.0, 1.0, np.nan], "g": ["a", "b", "c", "a", "b", "c"]}
    rows, cells = (klimb.fit("y ~ (1 | g)", data, "bernoulli", missing="predict", cells=own) for own in (False, True))
    np.testing.assert_allclose(cells.predict()["mean"], rows.predict()["mean"], rtol=1e-4)
    assert "2 rows without y: fit.predict() has what they may be." in cells.notes
    assert cells.notes == rows.notes


def test_rounding_is_the_same_by_rows_and_by_cells() -> None:
    data = {"y": R.poisson(2.0, 400), "x": R.standard_normal(400)}
    rows, cells = (klimb.fit("y ~ x", data, "poisson", cells=own, round={"x": 0}, tol=1e-12) for own in (False, True))
    assert cells.observed.n < 80
    assert difference(cells, rows) < 1e-8
    assert len(cells.predict()["mean"]) == 400  # at x as it is


def test_a_fit_by_cells_says_so_and_keeps_it(tmp_path: Path) -> None:
    cells = fitted("bernoulli", True)
    line = f"{cells.n:,} rows, {cells.observed.n} cells, {cells.observed.dropped} dropped for missing values"
    assert line in str(cells)
    cells.save(tmp_path / "fit.klimb")
    again: Any = klimb.load(tmp_path / "fit.klimb")
    assert str(again) == str(cells)
    assert again.n == cells.n
    assert again.observed.n_cells == cells.observed.n
    assert again.cells is None
    frame = cells.cells
    assert frame["rows"].sum() == N  # rows with missing values are cells too
    assert set(frame) == {"bought", "x", "h", "g", "rows"}


def test_sums_of_cells_are_refused_where_rows_are_needed(tmp_path: Path) -> None:
    fit = fitted("gaussian", True)
    assert f"{fit.observed.summed} cells by sums" in str(fit)
    assert "leave-one-out" not in str(fit)
    assert any("summed up by cells" in note for note in fit.notes)
    with pytest.raises(InputError, match=r"needs each response; got the sums of cells\. Fit with cells=False"):
        fit.loo()
    assert fit.checks.verdict == "unchecked"
    assert "sums of cells" in fit.checks.reason
    report = fit.report()
    assert report.loo is None
    assert report.calibration is None
    assert report.pit is None
    assert report.residuals == ()
    fit.to_html(tmp_path / "page.html")
    fit.save(tmp_path / "fit.klimb")
    again: Any = klimb.load(tmp_path / "fit.klimb")
    assert str(again) == str(fit)
    with pytest.raises(InputError, match="sums of cells"):
        again.loo()


def test_what_needs_rows_says_so() -> None:
    one, other = (klimb.fit(formula, DATA, "bernoulli", cells=True) for formula in ("bought ~ h", "bought ~ h + g"))
    with pytest.raises(InputError, match="cells of the same columns"):
        klimb.compare({"one": one, "other": other})
    one = klimb.fit("bought ~ h", DATA, "bernoulli", cells=["g"])
    found = klimb.compare({"one": one, "other": other})
    rows = klimb.compare({name: klimb.fit(formula, DATA, "bernoulli", cells=False)
                          for name, formula in (("one", "bought ~ h"), ("other", "bought ~ h + g"))})
    assert found.n == rows.n == N
    assert found.rows[1].difference_se == pytest.approx(rows.rows[1].difference_se, rel=1e-4)
    with pytest.raises(InputError, match="draws every row by itself"):
        klimb.calibrate(one, n=2)
    lazy = klimb.fit("bought ~ h", pl.DataFrame(DATA).lazy(), "bernoulli", cells=True)
    with pytest.raises(InputError, match=r"not in memory; .* fit\.cells"):
        lazy.predict()
    assert len(lazy.predict(lazy.cells)) == lazy.observed.n
    with pytest.raises(InputError, match="a column of the data"):
        klimb.fit("bought ~ h", DATA, "bernoulli", cells=["absent"])


def test_errors_name_rows_of_the_caller() -> None:
    bad = {"y": np.concatenate([R.poisson(2.0, 300), [-1.0]]), "g": np.arange(301) % 3}
    with pytest.raises(InputError, match="-1 at row 300"):
        klimb.fit("y ~ C(g)", bad, "poisson", cells=True)
    with pytest.raises(InputError, match="-1 at row 0, counted among the rows that differ"):
        klimb.fit("y ~ C(g)", pl.DataFrame(bad).lazy(), "poisson", cells=True)
    days = pl.DataFrame(bad).with_columns(g=pl.date(2020, 1, 1))
    with pytest.raises(InputError, match=r"got dates or times\.\n"):  # of no row
        klimb.fit("y ~ g", days.lazy(), "poisson", cells=True)


def test_cells_are_found_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LEAST", 1_000)
    monkeypatch.setattr(gather, "SAMPLE", 500)
    few = klimb.fit("bought ~ h", DATA, "bernoulli")
    assert few.observed.n_cells == 6
    assert len(few.predict()["mean"]) == N
    assert klimb.fit("bought ~ value", DATA, "bernoulli").observed.n_cells is None
    assert klimb.fit("value ~ h", DATA).observed.n_cells is None
    assert klimb.fit("value ~ h", pl.DataFrame(DATA).lazy()).by_sums


def test_files_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LEAST", 1_000)
    table = pl.DataFrame(DATA).to_arrow()
    for k in range(3):
        parquet.write_table(table.slice(k * 500, 500), tmp_path / f"part-{k}.parquet")
    for data in (str(tmp_path / "part-*.parquet"), str(tmp_path)):
        assert run(["fit", "bought ~ h + (1 | g)", data, "--family", "bernoulli", "--quiet"]) == 0
        assert f"{N:,} rows, 48 cells" in capsys.readouterr().out
    assert run(["fit", "bought ~ x", data, "--family", "bernoulli", "--round", "x=0", "--cells", "--json", "-q"]) == 0
    assert '"cells": 6' in capsys.readouterr().out
    assert run(["fit", "bought ~ h", data, "--family", "bernoulli", "--decimal", ","]) == 1
    assert "several files are read as they are" in capsys.readouterr().err
    assert run(["fit", "bought ~ h", data, "--family", "bernoulli", "--round", "h"]) == 2
