"""Checks of a fit: wrong models are caught, right ones are not blamed, and what is said can be done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.registries import as_before

import klimb
from benchmarks.checks import Case, available, right, right_cases, wrong_cases
from klimb.cli import run
from klimb.models.check_view import MOST_ROWS, CheckView, kurtosis_score, skew_score, trend
from klimb.models.checks import CHECKS, Suspect, check
from klimb.report.diagnostics import quantile_residuals

EXPECTED = {
    "Poisson on the RAND visits": "dispersion", "a line through a curve": "trend", "a column left out": "trend",
    "groups left out": "group", "a time series taken for independent rows": "order", "heavy tails": "tails",
    "skewed noise": "skew", "noise that grows": "spread", "counts with extra zeros": "zeros",
    "shares that vary more than binomial ones": "dispersion", "an outlier": "outliers",
    "a mean with a floor and a log link": "link",
}


def _fit(case: Case) -> Any:
    if not available(case):
        pytest.skip(f"{case.data}.npz is not in the directory named by KLIMB_DATA")
    return case.fit()


@pytest.mark.parametrize("case", list(wrong_cases()), ids=lambda case: case.name)
def test_wrong_models_are_caught_for_what_is_wrong(case: Case) -> None:
    found = _fit(case).checks
    assert found.verdict == "misfit"
    assert EXPECTED[case.name] in {one.check for one in found.findings}
    assert all(one.effect >= one.threshold and one.sentence and one.next_step for one in found.findings)


@pytest.mark.parametrize("case", list(right_cases()), ids=lambda case: case.name)
def test_right_models_are_not_blamed(case: Case) -> None:
    assert _fit(case).checks.verdict == "fits"


def test_simulated_right_models_of_every_family_are_not_blamed() -> None:
    blamed = [case.name for case in map(right, range(9)) if case.fit().checks.verdict != "fits"]
    assert not blamed


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    x, g = rng.uniform(-2.0, 2.0, 500), rng.integers(0, 20, 500)
    level = 0.7 * rng.standard_normal(20)[g]
    return {"y": rng.poisson(np.exp(0.5 + 0.4 * x + level)), "x": x, "g": np.array([f"g{k}" for k in g])}


# -- the score of a column


def scored(view: CheckView, *columns: Any) -> Any:
    return view.scores(np.array([columns]))[0]


def test_the_score_is_the_fall_of_the_squares() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 80))
    y = 1.0 + x + 0.4 * z + rng.standard_normal(80)
    wide = {"x": "normal(0, 1000)", "Intercept": "normal(0, 1000)"}
    fit = klimb.fit("y ~ x", {"y": y, "x": x}, "gaussian(sigma=3)", priors=wide)
    found = scored(CheckView(fit), z, z**2)
    X = np.column_stack([np.ones(80), x])
    squares = [float(np.sum((y - A @ np.linalg.lstsq(A, y, rcond=None)[0]) ** 2))
               for A in (X, np.column_stack([X, z, z**2]))]
    assert found.size == 2
    assert found.statistic == pytest.approx((squares[0] - squares[1]) / 9.0, rel=1e-4)
    assert scored(CheckView(fit), x).size == 0  # nothing is left of what the model has
    close = klimb.fit("y ~ x", {"y": y, "x": x}, "gaussian(sigma=0.5)", priors=wide)
    assert scored(CheckView(close), z).statistic < 30.0  # not 4 x 9: rows pull four times more than they should


def test_a_score_depends_neither_on_the_units_of_columns_nor_on_rounding() -> None:
    """Columns of which the model has nothing share an eigenvalue, and any of their axes would do."""
    rng = np.random.default_rng(4)
    x, z = rng.standard_normal((2, 400))
    y = x + np.exp(0.8 * z) * rng.standard_normal(400)
    view = CheckView(klimb.fit("y ~ x", {"y": y, "x": x}))
    columns = trend([z])[0]
    first = scored(view, *columns)
    assert scored(view, *(columns + 1e-13 * rng.standard_normal(columns.shape))).statistic == pytest.approx(
        first.statistic, rel=1e-4)
    assert scored(view, *(1e3 * columns)).statistic == pytest.approx(first.statistic, rel=1e-6)
    assert view.scores(columns[None], 1.0)[0].statistic >= first.statistic  # where less will do


def test_a_row_that_counts_twice_is_two_rows() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, 90)
    y, weights = x**2 + 0.3 * rng.standard_normal(90), np.ones(90)
    weights[:30] = 2.0
    twice = np.concatenate([np.arange(30), np.arange(90)])
    one = klimb.fit("y ~ x", {"y": y, "x": x}, weights=weights)
    other = klimb.fit("y ~ x", {"y": y[twice], "x": x[twice]})
    view, long = CheckView(one), CheckView(other)
    # Ranks are taken of rows, so that the column is given here.
    score, longer = scored(view, x**2), scored(long, x[twice] ** 2)
    assert score.statistic == pytest.approx(longer.statistic, rel=1e-4)
    assert view.n_free == pytest.approx(long.n_free, rel=1e-6)
    for name in ("tails", "skew"):
        assert CHECKS[name].look(name, [view]) == CHECKS[name].look(name, [long])


def test_moments_are_scored_as_in_the_literature() -> None:
    z = np.random.default_rng(2).standard_t(6.0, 150)
    assert skew_score(float(stats.skew(z)), 150.0) == pytest.approx(stats.skewtest(z).statistic)
    assert kurtosis_score(float(stats.kurtosis(z)), 150.0) == pytest.approx(stats.kurtosistest(z).statistic)


def test_quantile_residuals_of_counts_are_normal() -> None:
    y = np.random.default_rng(3).poisson(1.5, 4000)
    q = quantile_residuals(stats.poisson.cdf(y - 1, 1.5), stats.poisson.cdf(y, 1.5))
    assert stats.kstest(q, "norm").pvalue > 0.01


def test_a_trend_has_as_many_columns_as_the_data_tell_apart() -> None:
    few, many, none = (trend([values])[0].T for values in (
        np.array([0.0, 1.0, 1.0, 0.0, np.nan]), np.arange(30.0), np.full(4, 2.0)))
    assert few.any(axis=0).tolist() == [True, False, False, False]
    assert not few[4].any()
    assert few[:4, 0] == pytest.approx(np.sqrt(3.0) * np.array([-0.5, 0.5, 0.5, -0.5]))
    expected = np.polynomial.legendre.legvander(np.arange(30.0) / 15.0 - 29.0 / 30.0, 4)[:, 1:]
    assert many == pytest.approx(expected * np.sqrt([3.0, 5.0, 7.0, 9.0]))
    assert none.shape == (4, 4)
    assert not none.any()


# -- significant is not enough


def test_with_many_rows_a_small_misfit_is_none() -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1.0, 1.0, 60_000)
    fit = klimb.fit("y ~ x", {"y": x + 0.1 * x**2 + rng.standard_normal(60_000), "x": x})
    assert fit.checks.verdict == "fits"
    assert fit.checks.rows == MOST_ROWS
    curved = klimb.fit("y ~ x", {"y": x + x**2 + rng.standard_normal(60_000), "x": x})
    assert next(one.check for one in curved.checks.findings) == "trend"


def test_an_outlier_among_very_many_rows_is_found() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal(20_000)
    y = x + rng.standard_normal(20_000)
    y[12_345] += 30.0
    found = klimb.fit("y ~ x", {"y": y, "x": x}).checks
    assert [one.check for one in found.findings] == ["outliers"]
    assert "row 12345 " in found.findings[0].sentence


def test_data_sorted_by_the_response_are_no_time_series() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(300)
    y = x + rng.standard_normal(300)
    order = np.argsort(y)
    found = klimb.fit("y ~ x", {"y": y[order], "x": x[order]}).checks
    assert found.verdict == "fits"
    assert "order" not in found.looked


# -- what is said


def test_next_steps_can_be_pasted_and_gain(counts: dict[str, Any]) -> None:
    fit = klimb.fit("y ~ x", counts, "poisson")
    steps = {one.check: one.next_step for one in fit.checks.findings}
    assert {"group", "dispersion"} <= set(steps)
    for name in ("group", "dispersion"):
        call, _, remark = steps[name].partition("  # gains about ")
        other = eval(call, {"klimb": klimb, "data": counts})
        claimed = float(remark.split()[0].replace(",", ""))
        gained = other.loo().elpd - fit.loo().elpd
        assert 0.5 * claimed < gained < 2.0 * claimed
    assert klimb.fit("y ~ x + (1 | g)", counts, "poisson").checks.verdict == "fits"


def test_tables_files_and_pages_say_it(counts: dict[str, Any], tmp_path: Path) -> None:
    fit = klimb.fit("y ~ x", counts, "poisson")
    line = str(fit).splitlines()[-1]
    assert line.startswith("misfit: residuals differ by g, whose levels")
    assert "print(fit.checks)" in line
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert back.checks == fit.checks
    assert str(back).splitlines()[-1] == line
    assert json.loads(json.dumps(fit.checks.to_dict()))["verdict"] == "misfit"
    fit.to_html(tmp_path / "m.html")
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "Misfit." in page
    assert "Quantile residuals" in page
    assert "(1 | g)" in page
    assert "no misfit found by" in str(fit.checks)
    assert "(1 | g)" in str(fit.checks)


def test_the_command_line_is_strict_where_asked(counts: dict[str, Any], tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "d.csv"
    rows = zip(counts["y"], counts["x"], strict=True)
    table.write_text("y,x\n" + "".join(f"{y},{x:.6f}\n" for y, x in rows))
    command = ["fit", "y ~ x", str(table), "--family", "poisson", "--json", "--quiet"]
    assert run(command) == 0
    assert run([*command, "--strict"]) == 4
    found = json.loads(capsys.readouterr().out.splitlines()[0])["checks"]
    assert found["verdict"] == "misfit"
    assert found["findings"][0]["check"] == "dispersion"
    assert run(["fit", "y ~ x", str(table), "--family", "negative_binomial", "--strict", "--quiet"]) == 0


# -- other doors


def test_what_cannot_be_checked_says_so() -> None:
    few = klimb.fit("y ~ x", {"y": np.arange(8.0), "x": np.arange(8.0) % 3})
    assert few.checks.verdict == "unchecked"
    assert "rows" in few.checks.reason
    assert "misfit" not in str(few)
    assert "fits the data" not in str(few)


def test_every_door_has_checks() -> None:
    rng = np.random.default_rng(8)
    x = np.sort(rng.uniform(0.0, 6.0, 120))
    gp = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson()).fit(rng.poisson(np.exp(1.0 + np.sin(x))))
    assert gp.checks.verdict == "fits"
    assert "order" in gp.checks.looked
    assert "fits the data: 10 checks" not in str(gp)
    assert "fits the data" in str(gp)
    X = rng.standard_normal((150, 3))
    y = X[:, 0] ** 2 + 0.2 * rng.standard_normal(150)
    sparse = klimb.sparse_glm(X, y, site=klimb.sites.Gaussian(0.2))
    assert sparse.checks.verdict == "misfit"


def test_estimators_have_checks() -> None:
    sklearn = pytest.importorskip("klimb.sklearn")
    rng = np.random.default_rng(9)
    X = rng.standard_normal((200, 2))
    right_one = sklearn.GLMRegressor().fit(X, X @ [1.0, -1.0] + 0.5 * rng.standard_normal(200))
    assert right_one.fit_.checks.verdict == "fits"
    bent = sklearn.GLMRegressor().fit(X, X[:, 0] ** 2 + 0.5 * rng.standard_normal(200))
    assert "trend" in {one.check for one in bent.fit_.checks.findings}


def test_a_check_can_be_added(counts: dict[str, Any]) -> None:
    with as_before():

        @check("even")
        def even(view: CheckView) -> Iterator[Suspect]:
            """More even counts than odd ones."""
            share = float(np.mean(view.y % 2 == 0))
            yield Suspect(1e-9, share, share, 0.01, "some counts are even", lambda: "Rejoice.")

        assert "even" in {one.check for one in klimb.fit("y ~ x", counts, "poisson").checks.findings}
    assert "even" not in CHECKS


@pytest.mark.parametrize("missing", ["nothing", "a curve", "groups"])
def test_each_of_several_classes_is_looked_at(missing):
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal(350), rng.integers(0, 10, 350)
    f = np.column_stack([0.0 * x, 0.3 + x, -0.2 - 0.5 * x])
    if missing == "a curve":
        f[:, 1] += x**2
    if missing == "groups":
        f += 1.5 * rng.standard_normal((10, 3))[g]
    kind = np.array(["a", "b", "c"])[np.argmax(f + rng.gumbel(size=f.shape), axis=1)]
    found = klimb.fit("kind ~ x", {"kind": kind, "x": x, "g": g.astype(str)}, family="categorical").checks
    assert found.looked == ("trend", "group")
    assert [one.check for one in found.findings] == {"nothing": [], "a curve": ["trend"], "groups": ["group"]}[missing]
    if missing == "a curve":
        assert "of class b" in found.findings[0].sentence or "of class a" in found.findings[0].sentence


def test_residuals_that_are_all_one_are_no_misfit() -> None:
    fit = klimb.gp(klimb.kernels.RBF(), np.linspace(0.0, 5.0, 40)).fit(np.zeros(40))
    assert fit.checks.verdict == "fits"
    assert "converged" in str(fit)
