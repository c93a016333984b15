"""Times that may be censored, and rows whose response is missing, from the formula to predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import klimb
from klimb import sites
from klimb.errors import InputError

RNG = np.random.default_rng(11)
N = 90
X = RNG.standard_normal(N)
TRUE = RNG.weibull(1.6, N) * 5.0 * np.exp(-0.5 * X)
LIMIT = np.quantile(TRUE, RNG.uniform(0.4, 1.0, N))
DATA: dict[str, Any] = {"time": np.minimum(TRUE, LIMIT), "status": (TRUE <= LIMIT).astype(int), "x": X,
                        "h": RNG.choice(["u", "v", "w"], N), "g": np.arange(N) % 12}
# The survival functions of other people, of y given f.
TAILS: dict[str, tuple[Any, Any]] = {
    "Weibull": (sites.Weibull(1.7), lambda y, f: stats.weibull_min.logsf(y, 1.7, scale=np.exp(-f / 1.7))),
    "Exponential": (sites.Exponential(), lambda y, f: stats.expon.logsf(y, scale=np.exp(-f))),
    "Exponential mean": (sites.Exponential(mean=True), lambda y, f: stats.expon.logsf(y, scale=np.exp(f))),
    "Gamma": (sites.Gamma(2.3), lambda y, f: stats.gamma.logsf(y, 2.3, scale=np.exp(f) / 2.3)),
    "Gaussian": (sites.Gaussian(0.7), lambda y, f: stats.norm.logsf(y, f, 0.7)),
}


@pytest.fixture(scope="module")
def fit() -> Any:
    return klimb.fit("Surv(time, status) ~ x + (1 | g)", DATA, family="weibull")


# -- the site


def test_weibull_is_that_of_scipy() -> None:
    f, shape, y = np.array([-1.0, 0.3, 2.0]), 1.7, np.array([0.2, 1.0, 3.0])
    theirs, site = stats.weibull_min(shape, scale=np.exp(-f / shape)), sites.Weibull(shape)
    assert_allclose(site.log_density(y, f), theirs.logpdf(y), rtol=1e-12)
    assert_allclose(site.cdf(y, f), theirs.cdf(y), rtol=1e-12)
    known = site.predict(f, np.zeros(3))
    assert_allclose(known.mean, theirs.mean(), rtol=1e-12)
    assert_allclose(known.var, theirs.var(), rtol=1e-11)
    assert_allclose(known.quantile(0.3), theirs.ppf(0.3), rtol=1e-9)
    shift, slope = site.mean_predictor
    assert_allclose(np.exp(shift + slope * f), theirs.mean(), rtol=1e-12)


@pytest.mark.parametrize("name", TAILS)
def test_censored_data_have_the_average_of_the_log_survival_function(name: str) -> None:
    site, log_tail = TAILS[name]
    y, m, v = np.array([0.3, 2.0, 1.5]), np.array([0.2, 0.5, 1.0]), np.array([0.3, 0.2, 0.01])
    z = np.linspace(-8.0, 8.0, 4001)[:, None]  # the trapezoidal rule is exact to rounding
    weight = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (z[1] - z[0])
    g = log_tail(y, m + np.sqrt(v) * z)
    found = sites.Censored(site, np.zeros(3)).expect(y, m, v)
    assert_allclose(found.value, (weight * g).sum(axis=0), rtol=1e-9)
    assert_allclose(found.alpha, (weight * g * -z).sum(axis=0) / np.sqrt(v), rtol=1e-8, atol=1e-10)
    assert_allclose(found.gamma, (weight * g * (1.0 - z * z)).sum(axis=0) / v, rtol=1e-7, atol=1e-9)
    chance = sites.Censored(site, 0.0).log_predictive(y, m, v)
    assert_allclose(np.exp(chance), (weight * np.exp(g)).sum(axis=0), rtol=1e-9)


def test_gamma_tails_go_on_where_they_are_no_numbers() -> None:
    site = sites.Gamma(2.0)
    f = np.linspace(-6.0, -3.0, 400)
    x = 2.0 * 3.0 * np.exp(-f)
    exact = np.log1p(x) - x  # shape 2: (1 + x) exp(-x)
    found = site.survivor_point(np.full(400, 3.0), f)
    assert_allclose(found.value, exact, rtol=1e-8)
    assert_allclose(found.alpha, -(x**2) / (1.0 + x), rtol=1e-5)
    assert_allclose(found.gamma, x**2 * (2.0 + x) / (1.0 + x) ** 2, rtol=1e-2)
    assert exact.min() < -745.0
    with pytest.raises(InputError, match="cannot be censored"):
        sites.Censored(sites.Laplace(1.0), 0.0).expect([1.0], [0.0], [1.0])


def test_events_and_censored_data_side_by_side() -> None:
    site, y = sites.Weibull([1.0, 2.0, 0.5]), np.array([0.5, 1.0, 4.0])
    mixed = sites.Censored(site, [1.0, 0.0, 1.0])
    seen, lost = site.expect(y, 0.2, 0.3), sites.Censored(site, 0.0).expect(y, 0.2, 0.3)
    assert_allclose(mixed.expect(y, 0.2, 0.3).value, [seen.value[0], lost.value[1], seen.value[2]])
    assert mixed.gamma_trend == "rising"
    assert sites.Censored(sites.Gaussian(1.0), 0.0).gamma_trend == "mixed"
    slope, gamma = mixed.start(y)
    assert np.isfinite(slope).all()
    assert (gamma > 0.0).all()
    with pytest.raises(InputError, match="log-concave"):
        sites.Censored(sites.StudentT(3.0, 1.0), 0.0)
    with pytest.raises(InputError, match="status 0 or 1"):
        sites.Censored(site, [1.0, 2.0, 1.0])


# -- fits


def test_gradient_is_that_of_the_bound(fit: Any) -> None:
    """With the default prior of the intercept, whose mean moves with the shape."""
    model, data = fit.model, fit.observed
    at = model.theta.start + 0.1
    here = model.moved(at)
    gradient = here.gradient(here.infer(data, tol=1e-10).posterior, data)
    for k in range(model.theta.size):
        step = 1e-4 * np.eye(model.theta.size)[k]
        bounds = [model.moved(at + sign * step).infer(data, tol=1e-10).bound for sign in (1.0, -1.0)]
        assert gradient[k] == pytest.approx((bounds[0] - bounds[1]) / 2e-4, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("right", ["x + (1 | g)", "0 + h + x"])
def test_the_unit_of_time_does_not_matter(right: str) -> None:
    unit = 86_400.0
    one = klimb.fit(f"Surv(time, status) ~ {right}", DATA, family="weibull")
    two = klimb.fit(f"Surv(time, status) ~ {right}", {**DATA, "time": unit * DATA["time"]}, family="weibull")
    for a, b in zip(one.parameter_rows(), two.parameter_rows(), strict=True):
        assert abs(a.mean - b.mean) < 1e-3 * a.sd
        assert a.sd == pytest.approx(b.sd, rel=1e-3)
    last = [next(row for row in fit.coefficient_rows() if row.name == "x") for fit in (one, two)]
    assert abs(last[0].mean - last[1].mean) < 1e-3 * last[0].sd
    shift = DATA["status"].sum() * np.log(unit)
    assert two.loo().elpd == pytest.approx(one.loo().elpd - shift, abs=1e-2)
    assert_allclose(two.predict()["mean"], unit * one.predict()["mean"], rtol=1e-4)
    assert_allclose(two.predict(kind="response")["upper"], unit * one.predict(kind="response")["upper"], rtol=1e-4)


@pytest.mark.parametrize("right", ["x", "ridge(x, z)"])
def test_regular_times_are_found_in_every_unit(right: str) -> None:
    """With a shape of a hundred t^shape moves by powers of ten between two points of the search."""
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((2, 80))
    time = 100.0 + 2.0 * x + rng.standard_normal(80)
    fits = [klimb.fit(f"time ~ {right}", {"x": x, "z": z, "time": unit * time}, "weibull", hyper="optimise")
            for unit in (0.01, 1.0, 100.0)]
    assert all(fit.converged for fit in fits)
    for fit, unit in zip(fits, (0.01, 1.0, 100.0), strict=True):
        assert fit.hyperparameters["shape"] == pytest.approx(fits[0].hyperparameters["shape"], rel=1e-3)
        assert fit.bound + 80 * np.log(unit) == pytest.approx(fits[0].bound + 80 * np.log(0.01), abs=1e-3)
        assert_allclose(fit.predict()["mean"], unit * time, rtol=0.05)


def test_slopes_in_the_shape_of_censored_rows() -> None:
    """Against differences, where these are good; weights count rows."""
    rng = np.random.default_rng(2)
    y, m, v = rng.weibull(1.5, 20), rng.standard_normal(20), rng.uniform(0.01, 1.0, 20)
    status, counts = (np.arange(20) % 3 > 0).astype(float), 1.0 + np.arange(20) % 2

    def value(shape: float) -> float:
        site = sites.Weighted(sites.Censored(sites.Weibull(shape), status), counts)
        return float(site.expect(y, m, v).value.sum())

    found = sites.Weighted(sites.Censored(sites.Weibull(1.7), status), counts).parameter_slopes(y, m, v)
    assert found is not None
    assert found["shape"] == pytest.approx((value(1.7 + 1e-5) - value(1.7 - 1e-5)) / 2e-5, rel=1e-7)


def test_priors_are_printed_and_may_be_given(fit: Any) -> None:
    assert fit.priors["Intercept"].startswith("normal(-shape * log(")
    assert fit.priors["shape"] == "log_normal(1, 1)"
    assert f"{DATA['status'].sum()} events" in str(fit)
    given = klimb.fit("Surv(time, status) ~ x", DATA, family="weibull",
                      priors={"Intercept": "normal(0, 10)", "shape": "exponential(2)"}, hyper="optimise")
    assert given.priors["Intercept"].startswith("normal(0, 10)")
    assert given.priors["shape"] == "exponential(2)"
    held = klimb.fit("Surv(time, status) ~ x", DATA, family="weibull(shape=1.6)")
    assert not held.parameter_rows()
    assert held.predict()["mean"][0] == pytest.approx(fit.predict()["mean"][0], rel=0.3)


def test_shape_1_is_exponential() -> None:
    same: dict[str, Any] = {"priors": {"Intercept": "normal(0, 5)", "fixed": "normal(0, 5)"}}
    one = klimb.fit("Surv(time, status) ~ x", DATA, family="weibull(shape=1)", **same)
    two = klimb.fit("Surv(time, status) ~ x", DATA, family="exponential", link="minus log", **same)
    assert_allclose(one.coefficients["mean"], two.coefficients["mean"], rtol=1e-6)
    assert one.bound == pytest.approx(two.bound, abs=1e-6)
    assert_allclose(one.predict()["mean"], two.predict()["mean"], rtol=1e-6)


def test_predictions_are_of_the_time_itself(fit: Any) -> None:
    new = {"x": [-1.0, 0.5], "g": [3, 99]}
    mean, response = fit.predict(new), fit.predict(new, kind="response")
    assert_allclose(mean["mean"], response["mean"], rtol=1e-9)
    draws = fit.simulate(40_000, new, seed=2)
    assert_allclose(draws.mean(axis=0), mean["mean"], rtol=0.03)
    assert_allclose(np.mean(draws <= response["lower"], axis=0), 0.05, atol=0.006)
    assert_allclose(np.mean(draws <= response["upper"], axis=0), 0.95, atol=0.006)
    assert (mean["lower"] < mean["mean"]).all()
    assert (mean["mean"] < mean["upper"]).all()


def test_leave_one_out_of_a_censored_row() -> None:
    row = int(np.flatnonzero(DATA["status"] == 0)[0])
    fit = klimb.fit("Surv(time, status) ~ x", DATA, family="weibull(shape=1.6)")
    rest = klimb.fit("Surv(time, status) ~ x", {name: np.delete(values, row) for name, values in DATA.items()},
                     family="weibull(shape=1.6)", priors={name: fit.priors[name] for name in ("x",)})
    f = rest.predict({"x": [X[row]]}, kind="latent")
    site = sites.Weibull(1.6)
    expected = sites.Censored(site, 0.0).log_predictive(DATA["time"][[row]], f["mean"], f["sd"] ** 2)[0]
    loo = fit.loo()
    assert loo.log_density[row] == pytest.approx(expected, abs=0.01)
    assert loo.at[row] == 1.0
    assert 1.0 - loo.below[row] == pytest.approx(np.exp(loo.log_density[row]), abs=1e-9)
    assert loo.pit()[row] == pytest.approx(0.5 * (loo.below[row] + 1.0))
    seen = DATA["status"] == 1
    assert_allclose(loo.below[seen], loo.at[seen])


def test_a_right_model_is_not_blamed(fit: Any) -> None:
    assert fit.checks.verdict == "fits"
    assert {"trend", "tails", "outliers"} <= set(fit.checks.looked)
    report = fit.report()
    assert report.calibration is None
    assert report.pit is not None
    assert any(fact.label == "events" for fact in report.data)
    with pytest.raises(InputError, match="censored"):
        fit.plot_calibration()


@pytest.mark.parametrize("family", ["gamma", "gaussian"])
def test_other_families_use_what_censored_rows_say(family: str) -> None:
    """Rows cut at their limit as if they were events would say that times are shorter."""
    left = "Surv(log(time), status)" if family == "gaussian" else "Surv(time, status)"
    plain = "log(time)" if family == "gaussian" else "time"
    fit, cut = (klimb.fit(f"{side} ~ x", DATA, family=family) for side in (left, plain))
    truth = klimb.fit(f"{plain} ~ x", {**DATA, "time": TRUE}, family=family)
    means = [float(np.mean(one.predict()["mean"])) for one in (cut, fit, truth)]
    assert means[0] < means[1]
    assert abs(means[1] - means[2]) < 0.5 * abs(means[0] - means[2])


# -- bad input


@pytest.mark.parametrize(("changed", "match"), [
    ({"time": np.where(np.arange(N) == 4, 0.0, DATA["time"])}, "above 0.*0 at row 4"),
    ({"time": np.where(np.arange(N) == 4, -2.0, DATA["time"])}, "above 0.*-2 at row 4"),
    ({"status": DATA["status"] + 1}, "subtract 1"),
    ({"status": np.where(np.arange(N) == 7, 3, DATA["status"])}, "0 and 1 in 'status'.*3.0 at row 7"),
    ({"status": np.where(DATA["status"] == 1, "dead", "alive")}, "must hold numbers"),
])
def test_bad_times_and_statuses_are_named(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=f"(?s){match}"):
        klimb.fit("Surv(time, status) ~ x", {**DATA, **changed}, family="weibull")


def test_families_without_censoring_say_so() -> None:
    with pytest.raises(InputError, match="weibull"):
        klimb.fit("Surv(time, status) ~ x", DATA, family="student_t")
    with pytest.raises(InputError, match="by name"):
        klimb.fit("Surv(time, status) ~ x", DATA, family=lambda y, f: -((y - f) ** 2))
    with pytest.raises(InputError, match="status"):
        klimb.fit("Surv(time) ~ x", DATA, family="weibull")


def test_missing_times_and_booleans() -> None:
    time = DATA["time"].copy()
    time[3] = np.nan
    flags = klimb.fit("Surv(time, status) ~ x", {**DATA, "time": time, "status": DATA["status"] == 1}, family="weibull",
                      hyper="optimise")
    numbers = klimb.fit("Surv(time, status) ~ x", {**DATA, "time": time}, family="weibull", hyper="optimise")
    assert flags.observed.dropped == 1
    assert flags.bound == numbers.bound


# -- doors


def test_files_keep_what_was_censored(fit: Any, tmp_path: Path) -> None:
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    new = {"x": [0.0], "g": [1]}
    assert back.predict(new, kind="response")["upper"] == fit.predict(new, kind="response")["upper"]
    assert str(back) == str(fit)


def test_the_command_line_fits_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from klimb.cli import run

    columns = ["time", "status", "x"]
    rows = [",".join(columns), *(",".join(str(DATA[name][i]) for name in columns) for i in range(N))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("x\n0.5\n")
    model = str(tmp_path / "m.klimb")
    call = ["fit", "Surv(time, status) ~ x", str(tmp_path / "t.csv"), "--family", "weibull", "--hyper", "optimise"]
    assert run([*call, "-o", model]) == 0
    assert f"{DATA['status'].sum()} events" in capsys.readouterr().out
    assert run(["predict", model, str(tmp_path / "new.csv")]) == 0
    assert capsys.readouterr().out.startswith("mean,sd,lower,upper")


def test_kidney_is_that_of_long_sampling(data_dir: Path) -> None:
    folder = data_dir.parent / "structured"
    if not (folder / "refs" / "kidney.json").exists():
        pytest.skip(f"no structured references at {folder}")
    table = np.genfromtxt(folder / "data" / "kidney.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    names = {name.strip('"'): name for name in table.dtype.names}
    raw = {name: np.asarray(table[names[name]], dtype=float) for name in ("id", "time", "status", "age", "sex")}
    data = {"t": raw["time"] / 100.0, "status": raw["status"], "age10": (raw["age"] - raw["age"].mean()) / 10.0,
            "fem": (raw["sex"] == 2.0).astype(float), "id": raw["id"].astype(int)}
    fit = klimb.fit("Surv(t, status) ~ age10 + fem + (1 | id)", data, family="weibull",
                    priors={"Intercept": "normal(0, 10)", "fixed": "normal(0, 10)", "sd(id)": "exponential(1)",
                            "shape": "log_normal(1, 1)"})
    truth = json.loads((folder / "refs" / "kidney.json").read_text())["nuts"]
    assert fit.trust.verdict == "corrected"
    for row, exact in zip(fit.coefficient_rows(), truth["fixed"], strict=True):
        assert abs(row.mean - exact["mean"]) < 0.05 * exact["sd"]
        assert row.sd == pytest.approx(exact["sd"], rel=0.05)
    for row, name in zip(fit.parameter_rows(), ("sd_id", "alpha"), strict=True):
        assert abs(row.mean - truth["hyper"][name]["mean"]) < 0.1 * truth["hyper"][name]["sd"]
        assert row.sd == pytest.approx(truth["hyper"][name]["sd"], rel=0.1)
    eta, f = truth["latent"]["eta"], fit.predict(kind="latent")
    assert np.abs((f["mean"] - eta["mean"]) / eta["sd"]).max() < 0.05
    assert_allclose(f["sd"], eta["sd"], rtol=0.05)


# -- rows without a response


def with_holes() -> dict[str, Any]:
    y = 1.0 + X + RNG.standard_normal(N)
    g, h, x = DATA["g"].astype(object), DATA["h"].astype(object), X.copy()
    y[:4], g[:3], x[4], y[5], x[5] = np.nan, "nobody", np.nan, np.nan, np.nan
    return {"y": y, "x": x, "g": np.array([str(level) for level in g], dtype=object), "h": h}


def test_rows_without_a_response_are_predicted() -> None:
    data = with_holes()
    fit = klimb.fit("y ~ x + (1 | g)", data, missing="predict")
    drop = klimb.fit("y ~ x + (1 | g)", data)
    assert (fit.n, fit.observed.dropped, drop.observed.dropped) == (N - 6, 2, 6)
    assert any("4 rows without y" in note for note in fit.notes)
    found, plain = fit.predict(), drop.predict()
    for name in found:
        assert np.isnan(found[name][[4, 5]]).all()
        assert np.isfinite(np.delete(found[name], [4, 5])).all()
        assert_allclose(np.delete(found[name], [4, 5]), np.delete(plain[name], [4, 5]), rtol=2e-3, atol=2e-3)
    assert fit.bound == pytest.approx(drop.bound, abs=1e-6)


def test_levels_without_a_response_have_their_prior() -> None:
    data = with_holes()
    data["h"][0] = "new"
    fit = klimb.fit("y ~ x + h + (1 | g) + (1 | g:h)", data, missing="predict")
    effects = fit.random_effects("g")
    place = list(effects["level"]).index("nobody")
    points, weights = fit.components.theta, fit.components.weights
    sds = np.array([fit.linear.moved(theta).hyperparameters["sd(g)"] for theta in points])
    assert effects["mean"][place] == pytest.approx(0.0, abs=1e-9)
    assert effects["sd"][place] == pytest.approx(np.sqrt(weights @ sds**2), rel=1e-6)
    assert "nobody:new" in fit.random_effects("g:h")["level"]
    row = next(row for row in fit.coefficient_rows() if row.name == "h[T.new]")
    assert row.sd > 1.0
    assert np.isfinite(fit.predict()["mean"][0])
    with pytest.raises(InputError, match="'new' in row 0"):
        klimb.fit("y ~ x + h", data).predict()


def test_times_without_a_response_are_nodes() -> None:
    t, y = np.arange(40), np.sin(np.arange(40) / 6.0) + 0.1 * RNG.standard_normal(40)
    y[30:] = np.nan
    fit = klimb.fit("y ~ rw1(t)", {"t": t, "y": y}, missing="predict")
    sd = fit.predict()["sd"]
    assert (np.diff(sd[29:]) > 0.0).all()


def test_missing_has_three_words() -> None:
    with pytest.raises(InputError, match="predict"):
        klimb.fit("y ~ x", with_holes(), missing="impute")
    with pytest.raises(InputError, match="missing values in"):
        klimb.fit("y ~ x", with_holes(), missing="error")
