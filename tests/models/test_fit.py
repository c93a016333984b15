"""klimb.fit from outside: tables, predictions, printing, states, comparison, odd data, messages."""

from __future__ import annotations

import pickle
import types

import numpy as np
import pandas as pd
import pytest

import klimb
from klimb.errors import InputError
from klimb.models.formula_fit import FormulaFit

RNG = np.random.default_rng(2)
N = 90
X, Z = RNG.standard_normal(N), 5 + 2 * RNG.standard_normal(N)
G = np.array([f"g{i}" for i in RNG.integers(0, 9, N)])
EFFECT = dict(zip(sorted(set(G)), 0.8 * RNG.standard_normal(9), strict=True))
F = 0.4 + 0.9 * X - 0.3 * (Z - 5) + np.array([EFFECT[g] for g in G])
DATA = {
    "x": X, "z": Z, "g": G, "real": F + 0.5 * RNG.standard_normal(N),
    "label": np.where(RNG.random(N) < 1 / (1 + np.exp(-F)), "yes", "no"), "count": RNG.poisson(np.exp(0.5 * F)),
    "size": RNG.gamma(3.0, np.exp(F) / 3.0), "share": RNG.beta(8 / (1 + np.exp(-F)), 8 / (1 + np.exp(F))),
    "grade": np.array(["a low", "b middle", "c high"])[np.digitize(F + RNG.logistic(size=N), [-0.5, 1.0])],
    "wins": RNG.binomial(7, 1 / (1 + np.exp(-F))), "trials": np.full(N, 7),
}
NEW = {"x": [0.0, 1.0, -0.5], "z": [5.0, 4.0, 6.0], "g": ["g1", "g1", "never seen"]}
FAMILIES = {
    "gaussian": "real", "student_t": "real", "laplace": "real", "bernoulli": "label", "poisson": "count",
    "negative_binomial": "count", "gamma": "size", "exponential": "size", "beta": "share", "ordinal": "grade",
    "stochastic_volatility": "real", "binomial": "p(wins, trials)",
}


@pytest.fixture(scope="module")
def fits():
    return {family: klimb.fit(f"{y} ~ x + z + (1 | g)", DATA, family=family) for family, y in FAMILIES.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_fits_prints_predicts_and_survives_its_file(fits, family, tmp_path):
    fit = fits[family]
    assert fit.converged
    text = str(fit)
    assert text == str(fit)
    assert FAMILIES[family] in text
    assert family in text
    for row in [*fit.coefficient_rows(), *fit.parameter_rows()]:
        infinite = any(note.startswith(f"{row.name} ") and "infinite" in note for note in fit.notes)
        assert infinite or row.lower < row.mean < row.upper
        assert infinite or row.sd > 0
        assert row.lower < row.upper
    assert fit.encoder.fixed.names[-2:] == ("x", "z")
    everything = fit.predict(NEW, kind="all")
    assert all(np.isfinite(values).all() for values in everything.values())
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert type(back) is FormulaFit
    assert str(back) == text
    again = back.predict(NEW, kind="all")
    for name, values in everything.items():
        np.testing.assert_array_equal(values, again[name])
    np.testing.assert_array_equal(fit.sample(4, NEW, seed=1), back.sample(4, NEW, seed=1))


@pytest.mark.parametrize("family", FAMILIES)
def test_reports_are_filled(fits, family):
    report = fits[family].report()
    assert report.n == N
    assert len(report.effects) == 2  # x and z; levels of g are averaged
    assert report.loo is not None
    assert np.isfinite(report.loo.elpd)
    assert report.trust.verdict in ("trust", "corrected", "doubt")
    assert report.groups[0].total == 9
    for curve in report.effects:
        assert np.all(np.array(curve.lower) <= np.array(curve.upper))


def test_a_row_of_the_table_is_what_draws_say(fits):
    for family in ("bernoulli", "gaussian", "ordinal"):
        fit = fits[family]
        draws = fit.draws(40_000, seed=3)
        for row in [*fit.coefficient_rows(), *fit.parameter_rows()]:
            values = draws[row.name]
            assert values.mean() == pytest.approx(row.mean, abs=0.03 * row.sd), (family, row.name)
            assert values.std() == pytest.approx(row.sd, rel=0.05), (family, row.name)
            ends = np.quantile(values, (0.5 - 0.5 * fit.interval, 0.5 + 0.5 * fit.interval))  # the few theta have steps
            np.testing.assert_allclose(ends, (row.lower, row.upper), atol=0.08 * row.sd, err_msg=f"{family} {row.name}")


def test_predictions_of_f_are_what_draws_say(fits):
    fit = fits["poisson"]
    f = fit.predict(NEW, kind="latent")
    draws = fit.sample(40_000, NEW, seed=5)
    np.testing.assert_allclose(draws.mean(axis=0), f["mean"], atol=0.02 * f["sd"].max())
    np.testing.assert_allclose(draws.std(axis=0), f["sd"], rtol=0.03)
    np.testing.assert_allclose(np.quantile(draws, 0.05, axis=0), f["lower"], atol=0.05 * f["sd"].max())
    mean = fit.predict(NEW)
    np.testing.assert_allclose(np.exp(draws).mean(axis=0), mean["mean"], rtol=0.03)
    np.testing.assert_allclose(np.exp(f["upper"]), mean["upper"])


def test_predictions_of_y_are_what_draws_say(fits):
    rng = np.random.default_rng(0)
    fit = fits["gaussian"]
    y = fit.predict(NEW, kind="response", interval=0.8)
    draws = fit.sample(60_000, NEW, seed=5) + rng.standard_normal((60_000, 3)) * 0.0
    sigma = next(row for row in fit.parameter_rows() if row.name == "sigma").mean
    noisy = draws + sigma * rng.standard_normal(draws.shape)
    np.testing.assert_allclose(noisy.std(axis=0), y["sd"], rtol=0.03)
    np.testing.assert_allclose(np.quantile(noisy, 0.1, axis=0), y["lower"], atol=0.05)
    counts = fits["poisson"].predict(NEW, kind="response", interval=0.8)
    noisy = rng.poisson(np.exp(fits["poisson"].sample(60_000, NEW, seed=4)))
    assert np.abs(np.quantile(noisy, 0.9, axis=0) - counts["upper"]).max() <= 1
    np.testing.assert_allclose(noisy.mean(axis=0), counts["mean"], rtol=0.03)


def test_an_unseen_level_has_the_spread_of_levels(fits):
    fit = fits["bernoulli"]
    f = fit.predict({"x": [0.0, 0.0], "z": [5.0, 5.0], "g": ["g1", "nobody"]}, kind="latent")
    sd = next(row for row in fit.parameter_rows() if row.name == "sd(g)")
    assert f["sd"][1] > 0.9 * sd.mean
    assert f["sd"][1] > 1.3 * f["sd"][0]


def test_the_success_level_is_named(fits):
    assert "P(yes)" in str(fits["bernoulli"])
    other = klimb.fit("y ~ x", {"x": X, "y": DATA["label"] == "yes"}, family="binary")
    assert "P(True)" in str(other)
    same = klimb.fit("y ~ x", {"x": X, "y": np.where(DATA["label"] == "yes", 1, -1)}, family="binary")
    assert same.bound == pytest.approx(other.bound, abs=1e-9)


def test_the_unit_of_a_column_changes_nothing_else():
    one = klimb.fit("real ~ x + z + (1 + x | g)", DATA)
    other = klimb.fit("real ~ x + z + (1 + x | g)", {**DATA, "x": 1e5 * X, "z": 1e-3 * Z + 700.0})
    assert other.bound == pytest.approx(one.bound, abs=1e-5)
    rows, moved = one.coefficient_rows(), other.coefficient_rows()
    assert moved[1].mean == pytest.approx(rows[1].mean * 1e-5, rel=1e-5)
    assert moved[2].sd == pytest.approx(rows[2].sd * 1e3, rel=1e-5)
    scaled = klimb.fit("real ~ x + z + (1 + x | g)", {**DATA, "real": 1e6 * DATA["real"]})
    assert scaled.bound + N * np.log(1e6) == pytest.approx(one.bound, abs=1e-5)


def test_an_intercept_alone_has_its_closed_form():
    y = np.array([1.0, 2.0, 4.0])
    fit = klimb.fit("y ~ 1", {"y": y}, family="gaussian(sigma=2)", priors={"Intercept": klimb.priors.normal(1, 3)})
    precision = 1 / 9 + 3 / 4
    row = fit.coefficient_rows()[0]
    assert row.mean == pytest.approx((1 / 9 + y.sum() / 4) / precision, abs=1e-10)
    assert row.sd == pytest.approx(precision**-0.5, abs=1e-10)
    K = 9 + 4 * np.eye(3)
    exact = -0.5 * ((y - 1) @ np.linalg.solve(K, y - 1) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert fit.bound == pytest.approx(exact, abs=1e-9)


def test_a_formula_is_the_engine_called_by_hand():
    fit = klimb.fit("count ~ x + z", DATA, family="poisson")
    design = np.column_stack([np.ones(N), X - X.mean(), Z - Z.mean()])
    latent = klimb.latents.Weights(design, mean=[fit.model.prior_moments()[0][0], 0, 0],
                                   cov=fit.model.prior_moments()[1])
    result = klimb.infer(latent, klimb.sites.Poisson(), DATA["count"])
    assert fit.bound == pytest.approx(result.bound, abs=1e-8)
    w, V = result.posterior.mean, result.posterior.covariance()
    rows = fit.coefficient_rows()
    assert [row.mean for row in rows[1:]] == pytest.approx(w[1:].tolist(), abs=1e-8)
    back = np.array([1.0, -X.mean(), -Z.mean()])
    assert rows[0].mean == pytest.approx(back @ w, abs=1e-8)
    assert rows[0].sd == pytest.approx(np.sqrt(back @ V @ back), abs=1e-8)
    m, v = latent.predict(result.posterior, np.array([[1.0, -X.mean(), 5.0 - Z.mean()]]))
    found = fit.predict({"x": [0.0], "z": [5.0]}, kind="latent")
    assert found["mean"][0] == pytest.approx(m[0], abs=1e-8)
    assert found["sd"][0] == pytest.approx(np.sqrt(v[0]), abs=1e-8)


@pytest.mark.parametrize(("formula", "family"), [
    ("count ~ x", "poisson"), ("real ~ x + s(z) + (1 + x | g)", "gaussian"),
    ("label ~ poly(x, 2) + (1 | g)", "bernoulli"),
    ("real ~ scale(z) + bs(x, df=4)", "student_t"), ("grade ~ x", "ordinal"), ("real ~ gp(z, points=8)", "gaussian"),
    ("p(wins, trials) ~ x", "binomial"), ("grade ~ x", "categorical"),
])
def test_weights_repeat_rows(formula, family):
    """Weight 0 is the row left out, weight 2 the row twice: coefficients, bound and leave-one-out sum."""
    times = np.random.default_rng(0).integers(0, 4, N)
    data = {**DATA, "w": times}
    weighted = klimb.fit(formula, data, family=family, weights="w", tol=1e-8, hyper="optimise")
    repeated = klimb.fit(formula, {name: np.repeat(values, times) for name, values in DATA.items()}, family=family,
                         tol=1e-8, hyper="optimise")
    assert weighted.bound == pytest.approx(repeated.bound, abs=1e-4)
    assert weighted.loo().elpd == pytest.approx(repeated.loo().elpd, abs=1e-4)
    assert weighted.loo().se == pytest.approx(repeated.loo().se, rel=1e-5)
    for one, two in zip(weighted.table_rows(), repeated.table_rows(), strict=True):
        assert one.mean == pytest.approx(two.mean, abs=1e-3 * two.sd), one.name
        assert one.sd == pytest.approx(two.sd, rel=1e-3), one.name
    assert klimb.fit(formula, DATA, family=family, weights=times, tol=1e-8, hyper="optimise").bound == weighted.bound


@pytest.mark.parametrize("family", ["bernoulli", "binomial", "poisson", "gamma", "beta", "exponential"])
def test_the_mean_of_y_is_one_number(fits, family):
    """E[y] is the mean of the mean and of the response; their sds and intervals are of different things."""
    fit = fits[family]
    np.testing.assert_allclose(fit.predict(NEW)["mean"], fit.predict(NEW, kind="response")["mean"], rtol=1e-9)
    assert (fit.predict(NEW)["sd"] < fit.predict(NEW, kind="response")["sd"]).all()


def test_an_offset_shifts_the_intercept():
    plain = klimb.fit("count ~ x", DATA, family="poisson")
    shifted = klimb.fit("count ~ x + offset(log(e))", {**DATA, "e": np.full(N, 2.0)}, family="poisson")
    assert shifted.bound == pytest.approx(plain.bound, abs=1e-8)
    gap = plain.coefficient_rows()[0].mean - shifted.coefficient_rows()[0].mean
    assert gap == pytest.approx(np.log(2.0), abs=1e-8)
    both = shifted.predict({"x": [0.3], "e": [2.0]})["mean"][0]
    assert both == pytest.approx(plain.predict({"x": [0.3]})["mean"][0], rel=1e-8)


def test_missing_values_are_dropped_with_a_count_and_predicted_as_missing():
    holes = {**DATA, "x": np.where(np.arange(N) < 4, np.nan, X)}
    fit = klimb.fit("real ~ x", holes)
    assert "86 rows, 4 dropped for missing values" in str(fit)
    predicted = fit.predict()["mean"]
    assert np.isnan(predicted[:4]).all()
    assert np.isfinite(predicted[4:]).all()
    with pytest.raises(InputError, match="rows 0, 1, 2, 3"):
        klimb.fit("real ~ x", holes, missing="error")


def test_loo_agrees_with_leaving_rows_out():
    data = {name: DATA[name][:25] for name in ("real", "x", "g")}
    priors = {"Intercept": "normal(0.5, 3)", "x": "normal(0, 2)", "sd(g)": "exponential(1)", "sigma": "exponential(1)"}
    fit = klimb.fit("real ~ x + (1 | g)", data, priors=priors)
    for row in (0, 7, 19):
        rest = {name: np.delete(values, row) for name, values in data.items()}
        alone = klimb.fit("real ~ x + (1 | g)", rest, priors=priors)
        f = alone.latents({"x": data["x"][row : row + 1], "g": data["g"][row : row + 1]})
        density = sum(w * np.exp(model.new_site().predict(m, v).log_density(data["real"][row]))[0]
                      for w, model, m, v in zip(f.weights, f.models, f.m, f.v, strict=True))
        # Centred columns move a little without the row, and with them the prior of the intercept.
        assert fit.loo().log_density[row] == pytest.approx(np.log(density), abs=0.02)


def test_compare_sorts_and_refuses_other_data(fits):
    without = klimb.fit("real ~ 1", DATA)
    with_all = fits["gaussian"]
    found = klimb.compare({"without": without, "with": with_all})
    assert [row.name for row in found.rows] == ["with", "without"]
    gap = without.loo().log_density - with_all.loo().log_density
    assert found.rows[1].difference == pytest.approx(gap.sum())
    assert found.rows[1].difference_se == pytest.approx(np.sqrt(N) * gap.std(ddof=1))
    assert "difference" in str(found)
    with pytest.raises(InputError, match="one response"):
        klimb.compare({"a": without, "b": fits["poisson"]})
    half = klimb.fit("real ~ 1", {"real": DATA["real"][:50]})
    with pytest.raises(InputError, match="same rows"):
        klimb.compare({"a": without, "b": half})
    with pytest.raises(InputError, match=r"compare needs fits; got \[FormulaFit"):
        klimb.compare([without])
    with pytest.raises(InputError, match="compare needs fits"):
        klimb.compare({})


def test_compare_takes_fits_with_and_without_names(fits):
    without = klimb.fit("real ~ 1", DATA)
    by_name = klimb.compare({"real ~ 1": without, "real ~ 1 (2)": without, "other": without})
    assert klimb.compare(without, without, other=without) == by_name


def test_own_likelihood(tmp_path):
    fit = klimb.fit("real ~ x", DATA, family=lambda y, f: -np.abs(y - f) / 0.5 - np.log(1.0))
    named = klimb.fit("real ~ x", DATA, family="laplace(scale=0.5)",
                      priors={"Intercept": fit.priors["Intercept"].split(" (")[0], "x": fit.priors["x"]})
    for one, two in zip(fit.coefficient_rows(), named.coefficient_rows(), strict=True):
        assert one.mean == pytest.approx(two.mean, abs=1e-3)
        assert one.sd == pytest.approx(two.sd, rel=1e-2)
    assert "f_mean" in fit.predict(kind="all")
    assert "y_mean" not in fit.predict(kind="all")
    with pytest.raises(InputError, match="cannot be saved"):
        fit.save(tmp_path / "m.klimb")
    assert not list(tmp_path.iterdir())


def test_a_site_with_its_parameters():
    site = klimb.fit("real ~ x", DATA, family=klimb.sites.StudentT(df=4.0, scale=0.7))
    named = klimb.fit("real ~ x", DATA, family="student_t(df=4, scale=0.7)")
    assert site.bound == pytest.approx(named.bound, abs=1e-9)
    assert site.mode == "fixed"
    assert site.model.theta.size == 0
    grades = np.digitize(F, [-0.5, 1.0])
    fixed = klimb.fit("y ~ x", {"x": X, "y": grades}, family=klimb.sites.Ordinal([-0.5, 1.0]))
    assert fixed.encoder.fixed.names == ("Intercept", "x")
    np.testing.assert_allclose(sum(fixed.predict({"x": [0.1]}).values()), 1.0, atol=1e-9)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"family": "poison"}, "Did you mean 'poisson'"),
    ({"family": "poisson"}, "whole numbers from 0"),
    ({"family": "bernoulli", "formula": "real ~ x"}, "0 and 1, -1 and \\+1"),
    ({"family": "gaussian", "formula": "label ~ x"}, "numeric response"),
    ({"family": "bernoulli", "formula": "grade ~ x"}, "two values; got 3"),
    ({"family": "bernoulli", "formula": "label ~ x", "link": "log"}, "logit or probit or cloglog"),
    ({"family": "student_t(dof=3)"}, "scale, df; got 'dof'"),
    ({"family": "student_t(3)"}, "must have names"),
    ({"family": 3}, "a name, a dict, a klimb site"),
    ({"family": klimb.sites.Poisson(exposure=2.0), "formula": "count ~ x"}, "offset\\(log"),
    ({"priors": {"w": "normal(0, 1)"}}, "The names are Intercept, x, fixed, sigma"),
    ({"priors": {"x": "half_normal(1)"}}, "cannot have this kind"),
    ({"priors": {"x": "normal(0, 0)"}}, "sd > 0"),
    ({"priors": {"x": "normal(0"}}, "Close the bracket"),
    ({"priors": {"x": "normal(0, 1, 2)"}}, "arguments of klimb.priors.normal"),
    ({"priors": {"x": "os.system(1)"}}, "must be one of"),
    ({"hyper": "sample"}, '"auto", "optimise", "integrate" or "fixed"'),
    ({"interval": 90}, "between 0 and 1"),
    ({"weights": np.ones(3)}, "one entry per row"),
    ({"weights": -np.ones(N)}, "not be negative; got -1 at row 0"),
    ({"weights": np.zeros(N)}, "some weight must be positive"),
    ({"missing": "impute"}, '"drop", "error" or "predict"'),
    ({"formula": "~ x"}, "response on the left"),
])
def test_messages(arguments, message):
    with pytest.raises(InputError, match=message):
        klimb.fit(**({"formula": "real ~ x", "data": DATA} | arguments))


def test_bad_rows_are_numbered():
    bad = DATA["count"].astype(float)
    bad[[5, 17]] = -1.0, 2.5
    bad = np.append(bad, 1.0)
    data = {"y": bad, "x": np.append(np.where(np.arange(N) == 2, np.nan, X), 0.0)}
    with pytest.raises(InputError, match=r"-1 at row 5, 2\.5 at row 17"):
        klimb.fit("y ~ x", data, family="poisson")


def test_notes_name_what_is_not_identified():
    fit = klimb.fit("real ~ x + x2", {**DATA, "x2": 3 - 2 * X})
    assert "note: 'x2' is 3 Intercept - 2 x: the data cannot tell them apart." in str(fit)
    graded = klimb.fit("y ~ x", {"x": X, "y": np.array(["low", "mid", "high"])[np.digitize(F, [-0.5, 1.0])]}, "ordinal")
    assert "alphabetical order, high < low < mid" in str(graded)
    named = klimb.fit("y ~ x", {"x": X, "y": np.array(["low", "mid", "high"])[np.digitize(F, [-0.5, 1.0])]},
                      {"name": "ordinal", "levels": ["low", "mid", "high"]})
    assert "alphabetical" not in str(named)
    assert named.coefficient_rows()[0].mean > 0


ODD = {
    "separable": ("y ~ x + (1 | g)", {"y": (X > 0) * 1}, "bernoulli"),
    "only successes": ("y ~ x + (1 | g)", {"y": np.ones(N)}, "bernoulli"),
    "no counts": ("y ~ x + (1 | g)", {"y": np.zeros(N)}, "poisson"),
    "constant": ("y ~ x + (1 | g)", {"y": np.full(N, 3.0)}, "gaussian"),
    "one level": ("real ~ x + (1 | h)", {"h": np.array(["only"] * N)}, "gaussian"),
    "a level per row": ("label ~ x + (1 | h)", {"h": np.arange(N).astype(str)}, "bernoulli"),
    "no fixed effects": ("real ~ 0 + (1 | g)", {}, "gaussian"),
    "more columns than rows": ("real ~ " + " + ".join(f"c{j}" for j in range(200)) + " + (1 | g)",
                               {f"c{j}": RNG.standard_normal(N) for j in range(200)}, "gaussian"),
    "far from zero": ("real ~ x + (1 | g)", {"x": X + 1e8, "real": DATA["real"] + 1e8}, "gaussian"),
    "tiny": ("real ~ x + (1 | g)", {"x": 1e-12 * X, "real": 1e-12 * DATA["real"]}, "gaussian"),
    "shares of nearly 0 and 1": ("share ~ x", {"share": np.clip(1 / (1 + np.exp(-20 * X)), 1e-12, 1 - 1e-12)}, "beta"),
    "an outlier": ("real ~ x + (1 | g)", {"real": np.append(DATA["real"][1:], 1e5)}, "student_t"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data_behave(name):
    formula, changed, family = ODD[name]
    fit = klimb.fit(formula, {**DATA, **changed}, family=family)
    assert fit.converged
    for row in [*fit.coefficient_rows(), *fit.parameter_rows()]:
        assert np.isfinite([row.mean, row.sd, row.lower, row.upper]).all(), row
        assert row.lower <= row.upper
    predicted = fit.predict(kind="all")
    predicted |= {"mean": predicted.get("median", predicted["mean"])}  # y with df <= 1 has no mean
    assert all(np.isfinite(predicted[column]).all() for column in ("mean", "lower", "upper", "y_lower", "y_upper"))
    assert str(fit)


def test_one_row_is_enough():
    fit = klimb.fit("y ~ x + (1 | g)", {"y": [1.0], "x": [2.0], "g": ["a"]})
    assert fit.n == 1
    assert np.isfinite(fit.predict()["mean"]).all()


def test_choosing_and_averaging_differ_only_in_width():
    chosen = klimb.fit("real ~ x + (1 | g)", DATA, hyper="optimise")
    averaged = klimb.fit("real ~ x + (1 | g)", DATA, hyper="integrate")
    assert len(chosen.components.parts) == 1
    assert len(averaged.components.parts) > 10
    one, two = chosen.coefficient_rows()[0], averaged.coefficient_rows()[0]
    assert one.mean == pytest.approx(two.mean, abs=0.1 * two.sd)
    assert one.sd < two.sd < 1.3 * one.sd
    assert chosen.parameter_rows()[0].sd > 0


def test_frames_come_back_as_they_went_in():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    columns = {name: DATA[name] for name in ("real", "x", "g")}
    frame = pandas.DataFrame(columns, index=np.arange(N) + 100)
    fit = klimb.fit("real ~ x + (1 | g)", frame)
    assert isinstance(fit.predict(), pandas.DataFrame)
    assert fit.predict().index[0] == 100
    assert isinstance(fit.coefficients, pandas.DataFrame)
    assert list(fit.random_effects("g").columns) == ["level", "column", "mean", "sd", "lower", "upper"]
    assert len(fit.random_effects()) == 9
    assert isinstance(fit.summary(), pandas.DataFrame)
    other = klimb.fit("real ~ x + (1 | g)", polars.DataFrame(columns))
    assert isinstance(other.predict(), polars.DataFrame)
    assert isinstance(other.summary(), polars.DataFrame)
    assert other.bound == pytest.approx(fit.bound, abs=1e-9)
    with pytest.raises(InputError, match="The model has g"):
        fit.random_effects("h")


def test_nothing_is_written_while_fitting(capfd):
    klimb.fit("real ~ x + (1 | g)", DATA)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_progress_goes_to_stderr_when_asked(capfd):
    klimb.fit("real ~ x + (1 | g)", DATA, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "bound" in captured.err


def test_arviz_is_asked_for_when_missing(fits):
    try:
        import arviz
    except ImportError:
        with pytest.raises(InputError, match="pip install arviz"):
            fits["gaussian"].to_arviz()
    else:
        assert arviz.summary(fits["gaussian"].to_arviz(draws=50)) is not None


def test_a_module_that_arviz_takes_for_dm_tree_is_named(fits, monkeypatch):
    base = pytest.importorskip("arviz.data.base")
    monkeypatch.setattr(base, "tree", types.ModuleType("tree"))
    with pytest.raises(InputError, match="for the package dm-tree"):
        fits["gaussian"].to_arviz(draws=5)


def test_plots_are_drawn(fits):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fit = fits["bernoulli"]
    for plot in (fit.plot_effects, fit.plot_coefficients, fit.plot_bound, fit.plot_calibration):
        assert plot() is not None
    plt.close("all")


def test_a_fit_from_a_file_answers_without_its_data(tmp_path, fits):
    path = tmp_path / "m.klimb"
    fits["gaussian"].save(path)
    back = klimb.load(path)
    assert str(back) == str(fits["gaussian"])
    assert back.loo().elpd == fits["gaussian"].loo().elpd
    assert back.report().loo == fits["gaussian"].report().loo
    with pytest.raises(InputError, match="does not hold its data"):
        back.predict()
    with pytest.raises(InputError, match="session of the fit"):
        back.posterior


def test_a_column_may_be_called_like_a_parameter():
    fit = klimb.fit("real ~ sigma + (1 | g)", {**DATA, "sigma": X},
                    priors={"sigma": "normal(0, 1)", "sigma (parameter)": "half_normal(2)"})
    assert [row.name for row in fit.parameter_rows()] == ["sd(g)", "sigma (parameter)"]
    assert fit.priors["sigma"] == "normal(0, 1)"
    assert {"sigma", "sigma (parameter)", "1|g"} <= set(fit.draws(3))


def test_names_of_any_kind():
    odd = {"my y": DATA["real"], "a <b> & \"c\"": X, "größe:z": Z, "g | h": G}
    fit = klimb.fit('`my y` ~ `a <b> & "c"` + `größe:z` + (1 | `g | h`)', odd)
    plain = klimb.fit("real ~ x + z + (1 | g)", DATA)
    assert fit.bound == pytest.approx(plain.bound, abs=1e-9)
    assert str(fit)
    assert len(fit.effects()) == 2


def test_predict_refuses_what_it_does_not_know(fits):
    with pytest.raises(InputError, match='"mean", "latent", "response" or "all"'):
        fits["gaussian"].predict(NEW, kind="median")
    with pytest.raises(InputError, match="no column 'z'"):
        fits["gaussian"].predict({"x": [1.0], "g": ["g1"]})
    with pytest.raises(InputError, match="between 0 and 1"):
        fits["gaussian"].predict(NEW, interval=1.0)
    with pytest.raises(InputError, match="columns that the formula uses"):
        fits["gaussian"].effects("nothing")
    with pytest.raises(InputError, match="columns that the formula uses; got 3"):
        fits["gaussian"].effects(3)
    for number in (-1, 2.5, "many"):
        with pytest.raises(InputError, match=f"a whole number from 0 on; got {number!r}"):
            fits["gaussian"].draws(number)
    assert all(len(values) == 0 for values in fits["gaussian"].draws(0).values())
    with pytest.raises(InputError, match="Did you mean 'X'"):
        fits["gaussian"].predict({"X": [1.0], "z": [1.0], "g": ["g1"]})
    with pytest.raises(InputError, match=r"no .*nowhere\. Create it first"):
        fits["gaussian"].to_html("nowhere/a.html")


def test_two_fits_are_the_same_fit():
    one, two = (klimb.fit("count ~ s(x) + (1 + x | g)", DATA, family="negative_binomial") for _ in range(2))
    assert str(one) == str(two)
    for a, b in zip(one.components.parts, two.components.parts, strict=True):
        np.testing.assert_array_equal(a.mean, b.mean)


def test_latent_values_of_levels_are_those_that_the_printed_cut_points_cut():
    rng = np.random.default_rng(20)
    x, g = rng.normal(10.0, 2.0, 200), rng.integers(0, 10, 200)
    data = {"x": x, "g": g, "y": np.digitize(x - 10.0 + rng.logistic(size=200), [-1.0, 0.0, 2.0])}
    fit = klimb.fit("y ~ x + (1 | g)", data, family="ordinal")
    new = {"x": [8.0, 10.0, 13.0], "g": [1, 2, 3]}
    draws = fit.draws(4000, seed=1)
    f = draws["x"][:, None] * np.array(new["x"]) + draws["1|g"][:, :4][:, new["g"]]
    shown = fit.predict(new, kind="latent")
    np.testing.assert_allclose(shown["mean"], f.mean(axis=0), atol=0.1 * shown["sd"].min())
    np.testing.assert_allclose(shown["sd"], f.std(axis=0), rtol=0.06)
    np.testing.assert_array_equal(fit.predict(new, kind="all")["f_mean"], shown["mean"])
    np.testing.assert_allclose(fit.sample(4000, new).mean(axis=0), shown["mean"], atol=0.1 * shown["sd"].min())
    below = 1.0 / (1.0 + np.exp(f - draws["cut(0 | 1)"][:, None]))
    np.testing.assert_allclose(fit.predict(new)["P(0)"], below.mean(axis=0), atol=0.02)


@pytest.mark.parametrize("prior", ["normal(0)", "normal(mean=0)", "normal()"])
def test_a_normal_prior_in_words_has_a_mean_and_an_sd(prior):
    with pytest.raises(InputError, match="the prior of x must have a mean and an sd"):
        klimb.fit("y ~ x", {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 4.0]}, priors={"x": prior})


@pytest.mark.parametrize(("options", "words"), [
    ({"priors": ["normal(0, 1)"]}, "priors must be a dict"), ({"priors": {1: "normal(0, 1)"}}, "priors must be a dict"),
    ({"graphs": [("a", "b")]}, "graphs must be a dict; got list"), ({"tol": "fine"}, "tol must be a number; got str"),
    ({"family": klimb.sites.Logistic}, "a klimb site .*got <class"),
])
def test_arguments_of_the_wrong_kind_are_named(options, words):
    with pytest.raises(InputError, match=words):
        klimb.fit("real ~ x", DATA, **options)


def test_responses_that_no_family_can_take_are_refused():
    data = {"x": np.arange(60.0), "y": np.linspace(0.0, 1.0, 60), "c": ["a", "b", "c"] * 20}
    with pytest.raises(InputError, match="categorical is for up to 50 levels; got 60"):
        klimb.fit("y ~ x", data, family="categorical")
    with pytest.raises(InputError, match=r"an offset needs one linear predictor; got categorical.*changes no prob"):
        klimb.fit("c ~ offset(x)", data, family="categorical")
    with pytest.raises(InputError, match=r"at most 1e\+151 .* as the response; got 1e\+200 at row 3.*unit"):
        klimb.fit("y ~ x", {**data, "y": np.where(data["x"] == 3.0, 1e200, data["y"])})
    with pytest.raises(InputError, match="more than one column called 'x'"):
        klimb.fit("y ~ x", pd.DataFrame(np.eye(4), columns=["y", "x", "x", "z"]))


def test_units_of_a_response_change_nothing():
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=60), "g": rng.choice(list("abc"), 60), "y": rng.normal(size=60)}
    one, huge = (klimb.fit("y ~ x", {**data, "y": unit * data["y"]}) for unit in (1.0, 1e150))
    assert huge.checks.verdict == one.checks.verdict
    np.testing.assert_allclose(huge.coefficients["mean"] / 1e150, one.coefficients["mean"], atol=1e-4)


def test_rows_that_lack_values_are_predicted_as_missing(fits):
    gaps = {"x": [np.nan, np.nan], "z": [0.0, 1.0], "g": ["g1", "g2"]}
    for kind in ("mean", "response", "all"):
        names = list(fits["gaussian"].predict(NEW, kind=kind))
        lost = fits["gaussian"].predict(gaps, kind=kind)
        assert list(lost) == names
        assert all(np.isnan(values).all() and len(values) == 2 for values in lost.values())
        none = fits["gaussian"].predict(pd.DataFrame(gaps)[:0], kind=kind)
        assert (list(none), len(none)) == (names, 0)


def test_trials_of_new_rows():
    rng = np.random.default_rng(2)
    data = {"x": rng.normal(size=60), "n": rng.integers(1, 9, 60)}
    data["s"] = rng.binomial(data["n"], 0.4)
    data["f"] = data["n"] - data["s"]
    whole, apart = (klimb.fit(f"{left} ~ x", data, family="binomial") for left in ("p(s, n)", "cbind(s, f)"))
    new = {"x": [0.0, 1.0, 2.0], "n": [5, None, 7]}
    mean, p = (whole.predict(new, kind=kind)["mean"] for kind in ("response", "mean"))
    np.testing.assert_allclose(mean / p, [5.0, np.nan, 7.0])  # the column of successes is not needed
    np.testing.assert_allclose(apart.predict({"x": [0.0], "s": [2], "f": [3]}, kind="response")["mean"], mean[:1])
    assert np.nanmax(whole.simulate(200, new)) > 1.0
    with pytest.raises(InputError, match="column 'n' must hold numbers"):
        whole.predict({"x": [0.0], "n": ["five"]}, kind="response")
    rows = {"x": [0.0] * 6, "n": [5] * 6, "s": list(range(6))}
    np.testing.assert_allclose(np.exp(whole.log_density(new=rows)).sum(), 1.0)


def test_draws_of_two_outcomes_are_numbered_as_predictions_are(fits):
    fit = fits["bernoulli"]
    y = fit.simulate(4000, NEW)
    assert set(np.unique(y)) == {0.0, 1.0}
    np.testing.assert_allclose(y.mean(axis=0), fit.predict(NEW, kind="response")["mean"], atol=0.04)


def test_log_densities_of_a_frame_are_those_of_its_own_rows():
    rng = np.random.default_rng(3)
    data = {"x": rng.normal(size=80), "t": rng.exponential(size=80), "k": rng.choice(list("abc"), 80)}
    data["ends"] = (data["t"] < 1.5).astype(int)
    data["t"] = np.minimum(data["t"], 1.5)
    times = klimb.fit("Surv(t, ends) ~ x", data, family="exponential")
    rows = {"x": [0.3, 0.3], "t": [1.5, 1.5], "ends": [0, 1]}
    fine = np.linspace(1e-4, 1.5, 4001)  # 1 - the integral of the density of events is that of a censored time
    density = np.exp(times.log_density(new={"x": np.full(4001, 0.3), "t": fine, "ends": np.ones(4001, int)}))
    survival = 1.0 - np.trapezoid(density, fine) - 1e-4 * density[0]
    np.testing.assert_allclose(np.exp(times.log_density(new=rows)), [survival, density[-1]], rtol=1e-4)
    classes = klimb.fit("k ~ x", data, family="categorical")
    chances = classes.predict({"x": [0.5] * 3})
    found = classes.log_density(np.array(["c", "a", "c"]), {"x": [0.5, np.nan, 0.5]})
    np.testing.assert_allclose(np.exp(found), [chances["P(c)"][0], np.nan, chances["P(c)"][0]], rtol=1e-6)


def test_draws_stand_at_their_rows_and_are_nan_where_values_are_missing():
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=50), "y": rng.normal(size=50), "h": rng.choice(list("abc"), 50)}
    for formula, family in (("y ~ x", "gaussian"), ("h ~ x", "categorical")):
        fit = klimb.fit(formula, data, family)
        for draw in (fit.sample, fit.simulate):
            all_rows, some = draw(4, {"x": [0.0, np.nan, 2.0]}), draw(4, {"x": [0.0, 2.0]})
            by_class = all_rows.reshape(4, -1, 3)
            assert np.isnan(by_class[:, :, 1]).all()
            np.testing.assert_array_equal(by_class[:, :, [0, 2]].reshape(4, -1), some)
            assert draw(0, {"x": [0.0, np.nan]}).size == 0


@pytest.mark.parametrize("make", [dict, pd.DataFrame, lambda d: pd.DataFrame(d).to_records(index=False)])
def test_a_fit_is_pickled_with_its_data(make):
    rng = np.random.default_rng(1)
    data = make({"x": rng.normal(size=40), "y": rng.normal(size=40)})
    fit = klimb.fit("y ~ x", data)
    again = pickle.loads(pickle.dumps(fit))
    assert str(again) == str(fit)
    np.testing.assert_array_equal(again.predict()["mean"], fit.predict()["mean"])


@pytest.mark.parametrize(("x", "y", "words"), [
    (1e300, 1.0, r"columns must have sizes from 1e-150 to 1e\+150.*'x' with"),
    (1e-300, 1.0, r"columns must have sizes from 1e-150 to 1e\+150.*'x' with"),
    (1e90, 1e-90, r"also over the sd of f; got 'x'"),
    (1.0, 1e-200, "gaussian needs numbers of at most .* that differ by 1e-151 or more"),
])
def test_sizes_whose_squares_are_no_numbers_are_refused(x, y, words):
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=words):
        klimb.fit("y ~ x", {"x": x * rng.normal(size=20), "y": y * rng.normal(size=20)})
    fit = klimb.fit("y ~ x", {"x": 1e70 * np.arange(9.0), "y": 1e-70 * np.sin(np.arange(9.0))})
    assert fit.trust.verdict == "trust"


@pytest.mark.parametrize("given", [{}, {"cutpoints": "dirichlet(1)"}])
def test_the_prior_of_cut_points_says_where_it_acts(given):
    """By sums over a grid: at the mean of x, far from 0, the levels are equally likely under the prior."""
    x, y = np.arange(50.0, 62.0), np.array([0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1])
    fit = klimb.fit("y ~ x", {"x": x, "y": y}, "ordinal", priors={"x": "normal(0, 0.3)", **given})
    assert fit.priors["cutpoints"] == "dirichlet(1) (probabilities of the levels where columns are at their means)"
    b, p = np.meshgrid(np.linspace(-1.2, 1.8, 600), (np.arange(400) + 0.5) / 400, indexing="ij")
    cut = np.log(p / (1.0 - p))  # the lower level has chance p at the mean
    logs = -0.5 * (b / 0.3) ** 2
    for place, level in zip(x - x.mean(), y, strict=True):
        logs -= np.logaddexp(0.0, (b * place - cut) * (-1.0 if level else 1.0))
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    for name, value in (("x", b), ("cut(0 | 1)", cut + b * x.mean())):
        row, mean = next(row for row in fit.table_rows() if row.name == name), float((mass * value).sum())
        sd = float(np.sqrt((mass * (value - mean) ** 2).sum()))
        assert row.mean == pytest.approx(mean, abs=0.03 * sd)
        assert row.sd == pytest.approx(sd, rel=0.03)
