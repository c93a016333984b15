"""Estimators and formulas are doors to one model, and what an estimator holds speaks of the user's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.errors import InputError
from klimb.sklearn import GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor


@pytest.fixture
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((120, 3)) * [1.0, 20.0, 0.1] + [0.0, 50.0, -2.0]
    f = X[:, 0] - 0.05 * (X[:, 1] - 50.0)
    return {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "yes": f + rng.logistic(size=120) > 0,
            "y": 300.0 + 10.0 * f + 5.0 * rng.standard_normal(120), "n": rng.poisson(np.exp(0.5 * f)),
            "k": np.array(["u", "v", "w"])[np.digitize(f + 0.5 * rng.logistic(size=120), [-0.7, 0.7])]}


DOORS = [
    ("yes ~ ridge(a, b, c)", "bernoulli", GLMClassifier()),
    ("yes ~ a + b + c", "bernoulli", GLMClassifier(prior_scale=2.5)),
    ("yes ~ 0 + ridge(a, b, c)", "bernoulli", GLMClassifier(fit_intercept=False)),
    ("k ~ ridge(a, b, c)", "categorical", GLMClassifier()),
    ("k ~ a + b + c", "categorical", GLMClassifier(prior_scale=2.5)),
    ("y ~ ridge(a, b, c)", "gaussian", GLMRegressor()),
    ("y ~ a + b + c", "gaussian", GLMRegressor(prior_scale=2.5)),
    ("y ~ ridge(a, b, c)", "student_t(df=4)", GLMRegressor("student_t(df=4)")),
    ("n ~ ridge(a, b, c)", "poisson", GLMRegressor("poisson")),
    ("y ~ sparse(a, b, c)", "gaussian", SparseLinearRegressor("laplace")),
    ("y ~ sparse(a, b, c, prior=student_t)", "gaussian", SparseLinearRegressor("student_t")),
]


@pytest.mark.parametrize(("formula", "family", "estimator"), DOORS, ids=[f"{a}, {b}" for a, b, _ in DOORS])
def test_one_model_through_two_doors(formula: str, family: str, estimator: Any, table: dict[str, np.ndarray]) -> None:
    """One default prior for one model: coefficients agree within a thousandth of their sd at the same hyper=."""
    fit = klimb.fit(formula, table, family, hyper="optimise")
    X, target = np.column_stack([table["a"], table["b"], table["c"]]), formula.split(" ~ ")[0]
    model = estimator.fit(X, table[target])
    assert model.bound_ == pytest.approx(fit.bound, abs=1e-3)
    mean, sd = (np.asarray(fit.coefficients[column]) for column in ("mean", "sd"))
    own, own_sd = np.atleast_2d(model.coef_), np.atleast_2d(model.coef_std_)
    if estimator.fit_intercept:
        own, own_sd = (np.hstack([np.reshape(first, (-1, 1)), rest])
                       for first, rest in ((model.intercept_, own), (model.intercept_std_, own_sd)))
    assert np.all(np.abs(own.ravel() - mean) < 1e-3 * sd)
    assert np.allclose(own_sd.ravel(), sd, rtol=1e-3)


@pytest.mark.parametrize(("family", "estimator"), [
    ("bernoulli", GLMClassifier()), ("categorical", GLMClassifier()), ("gamma", GLMRegressor("gamma")),
    ("negative_binomial", GLMRegressor("negative_binomial"))], ids=["two", "three", "gamma", "counts"])
def test_predictions_through_two_doors(family: str, estimator: Any) -> None:
    """Few rows, whose posterior is skewed: one Gaussian for f had chances 0.07 and sds of y 98% off."""
    rng = np.random.default_rng(42)
    x = np.repeat(rng.standard_normal(20), 2) if family == "categorical" else rng.standard_normal(8)
    noisy = x + 0.5 * rng.standard_normal(len(x))
    y = {"bernoulli": noisy > 0, "categorical": np.array(["a", "b", "c"])[np.digitize(noisy, [-0.5, 0.5])],
         "gamma": np.exp(noisy), "negative_binomial": np.floor(np.exp(noisy))}[family]
    fit = klimb.fit("y ~ ridge(x)", {"x": x, "y": y}, family, hyper="optimise")
    model, X = estimator.fit(x[:, None], y), np.linspace(-3.0, 3.0, 7)[:, None]
    new = {"x": X[:, 0]}
    if family in ("bernoulli", "categorical"):
        columns = fit.predict(new)
        chances = model.predict_proba(X)
        expected = columns["mean"] if family == "bernoulli" else np.column_stack(list(columns.values()))
        np.testing.assert_allclose(chances[:, 1] if family == "bernoulli" else chances, expected, atol=1e-4)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), chances, atol=1e-6)
        return
    columns = fit.predict(new, kind="response")
    mean, sd = model.predict(X, return_std=True)
    ends = model.predict_quantiles(X, (0.05, 0.95)).T
    for own, name in zip((mean, sd, *ends), ("mean", "sd", "lower", "upper"), strict=True):
        np.testing.assert_allclose(own, columns[name], rtol=1e-3)


def test_the_dot_of_ridge_takes_the_other_columns(table: dict[str, np.ndarray]) -> None:
    data = {name: table[name] for name in ("a", "b", "c", "yes")}
    dot, named = (klimb.fit(f"yes ~ {right}", data, "bernoulli", hyper="optimise")
                  for right in ("b + ridge(.)", "b + ridge(a, c)"))
    assert dot.bound == named.bound
    assert list(dot.coefficients["name"]) == ["Intercept", "b", "a", "c"]
    with pytest.raises(InputError, match="two that are called 'b'"):
        klimb.fit("yes ~ b + ridge(a, b)", data, "bernoulli")
    with pytest.raises(InputError, match="no group"):
        klimb.fit("yes ~ sparse(a) + (1 | g)", {**data, "g": np.arange(120) % 5}, "bernoulli")
    with pytest.raises(InputError, match="prior=student_t"):
        klimb.fit("yes ~ sparse(a, prior=spike)", data, "bernoulli")


def test_levels_have_a_column_each(table: dict[str, np.ndarray]) -> None:
    fit = klimb.fit("y ~ ridge(a, k)", table, hyper="optimise")
    assert list(fit.coefficients["name"]) == ["Intercept", "a", "k[u]", "k[v]", "k[w]"]
    draws = fit.draws(4000)
    mean = dict(zip(fit.coefficients["name"], fit.coefficients["mean"], strict=True))
    sd = dict(zip(fit.coefficients["name"], fit.coefficients["sd"], strict=True))
    for name in mean:
        assert draws[name].mean() == pytest.approx(mean[name], abs=5 * sd[name] / np.sqrt(4000))
    at = fit.predict({"a": [0.0], "k": ["v"]}, kind="latent")["mean"][0]
    assert at == pytest.approx(mean["Intercept"] + mean["k[v]"])


@pytest.mark.parametrize("estimator", [GLMRegressor(dispersion=5.0), GPRegressor(dispersion=5.0), GLMClassifier(),
                                       GPClassifier(variance=1.0, lengthscale=2.0)], ids=lambda one: type(one).__name__)
def test_leave_one_out_speaks_of_the_users_rows(estimator: Any, table: dict[str, np.ndarray]) -> None:
    X = np.column_stack([table["a"], table["b"]])[:40]
    y = table["yes" if hasattr(estimator, "predict_proba") else "y"][:40]
    counts = np.random.default_rng(0).integers(0, 3, 40)
    counts[:3] = [0, 1, 2]
    weighted = estimator.fit(X, y, sample_weight=counts).fit_
    loo, predicted = weighted.loo(), weighted.predict()["mean"]
    assert np.array_equal(np.isnan(loo.log_density), counts == 0)
    assert np.array_equal(np.isnan(predicted), counts == 0)
    assert np.allclose(predicted[counts > 0], weighted.predict(X[counts > 0])["mean"], atol=1e-6)
    assert loo.failed == 0
    repeated = estimator.fit(np.repeat(X, counts, axis=0), np.repeat(y, counts)).fit_.loo()
    assert np.allclose(repeated.log_density, np.repeat(loo.log_density, counts))
    assert loo.elpd == pytest.approx(repeated.elpd)
    assert loo.se == pytest.approx(repeated.se)
    if isinstance(estimator, GLMRegressor):  # Gaussian: exact, so a row is predicted as by the fit without one copy
        row = int(np.flatnonzero(counts == 2)[0])
        model, less = weighted.model, counts.copy()
        less[row] = 1
        rest = GLMRegressor(dispersion=5.0, prior_scale=estimator.prior_scale_)
        rest.fit(X, y, sample_weight=counts)
        kept = rest.fit_.model
        data = rest.fit_.data
        taken = type(data)(data.y, weights=np.where(np.arange(data.n) == data.merged.inverse[row], 1.0, data.weights))
        part = kept.detach(kept.infer(taken).posterior)
        found = kept.functionals(model.prepare(X[row : row + 1]))
        m, v = part.at(found.L, found.rest)
        density = -0.5 * (y[row] - m[0]) ** 2 / (v[0] + 25.0) - 0.5 * np.log(2 * np.pi * (v[0] + 25.0))
        assert rest.fit_.loo().log_density[row] == pytest.approx(density, abs=1e-6)


def test_messages_name_the_users_rows() -> None:
    X = np.random.default_rng(0).standard_normal((30, 2))
    y = np.ones(30)
    y[17] = -2.0
    with pytest.raises(InputError, match="-2 at row 17"):
        GLMRegressor("poisson").fit(X, y)


def test_files_and_wide_models(tmp_path: Any, table: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    X = sp.random(20, 90, density=0.2, random_state=rng, format="csr")
    y = np.where(X @ rng.standard_normal(90) > 0, "up", "down")
    for estimator in (GLMClassifier(), GLMClassifier(multi_class="ovr"), SparseLinearRegressor("laplace")):
        target = y if hasattr(estimator, "predict_proba") else np.asarray(X.sum(axis=1)).ravel()
        model = estimator.fit(X, target)
        model.save(tmp_path / "model.klimb")
        again = klimb.load(tmp_path / "model.klimb")
        assert np.array_equal(again.predict(X), model.predict(X))
        assert np.array_equal(again.coef_, model.coef_)
        assert np.array_equal(again.coef_std_, model.coef_std_)
        assert again.get_params() == model.get_params()
        assert again.bound_ == model.bound_
        assert again.fit_.data is None  # linear models are stored without their data
    assert again.dispersion_ == model.dispersion_
