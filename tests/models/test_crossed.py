"""Crossed and nested random effects by formula: the sparse border tells what the dense one does, wherever asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import klimb
import klimb.latents.shocks as shocks
import klimb.models.average as average
import klimb.models.linear as linear
import klimb.models.linear_parts as linear_parts
from klimb.latents import Crossed, Mixed, Weights
from klimb.models.linear_parts import nested
from klimb.terms.base import Coded

N, A, B = 500, 90, 70
RNG = np.random.default_rng(4)
ONE, OTHER, X = RNG.integers(0, A, N), RNG.integers(0, B, N), RNG.standard_normal(N)
F = 0.5 * X + 0.8 * RNG.standard_normal(A)[ONE] + 0.5 * RNG.standard_normal(B)[OTHER]
DATA: dict[str, Any] = {
    "x": X, "a": ONE, "b": OTHER, "half": OTHER % 2, "w": RNG.integers(1, 3, N).astype(float),
    "y": F + 0.7 * RNG.standard_normal(N), "z": (RNG.random(N) < 1 / (1 + np.exp(-F))).astype(int),
    "k": RNG.poisson(np.exp(F)), "o": np.digitize(F + RNG.logistic(size=N), [-1.0, 0.5, 2.0]),
    "c": np.array(list("uvw"))[np.digitize(F + RNG.logistic(size=N), [-1.0, 1.0])],
}
MODELS: dict[str, dict[str, Any]] = {
    "gaussian": {"formula": "y ~ x + (1 | a) + (1 | b)"},
    "weights": {"formula": "y ~ x + (1 | a) + (1 | b)", "weights": "w"},
    "bernoulli": {"formula": "z ~ x + (1 | a) + (1 | b)", "family": "bernoulli"},
    "poisson": {"formula": "k ~ x + (1 | a) + (1 | b)", "family": "poisson"},
    "ordinal": {"formula": "o ~ x + (1 | a) + (1 | b)", "family": "ordinal"},
    "classes": {"formula": "c ~ x + (1 | a) + (1 | b)", "family": "categorical"},
    "slopes": {"formula": "y ~ x + (1 + x | a) + (1 | b)"},
    "slopes beside": {"formula": "y ~ x + (1 | a) + (1 + x | b)"},
    "no intercepts": {"formula": "y ~ (0 + x || a) + (1 | b)"},
    "nested": {"formula": "y ~ x + (1 | b/a)"},
    "three": {"formula": "y ~ s(x) + (1 | a) + (1 | b) + (1 | half)"},
}


def both(monkeypatch: Any, formula: str, **settings: Any) -> tuple[Any, Any]:
    """The fit with a sparse border, and the same with a dense one."""
    ours = klimb.fit(formula, DATA, **settings)
    monkeypatch.setattr(linear, "FEW_LEVELS", 10**9)
    return ours, klimb.fit(formula, DATA, **settings)


@pytest.mark.parametrize("name", MODELS)
def test_bound_and_gradient_are_those_of_a_dense_border(name, monkeypatch):
    fits = both(monkeypatch, **MODELS[name], hyper="fixed")
    assert [fit.model.form for fit in fits] == ["Crossed", "Mixed"]
    ours, dense = fits
    theta = ours.model.at + 0.1 * np.arange(len(ours.model.at))
    results = [fit.model.moved(theta).infer(fit.data, tol=1e-8) for fit in fits]
    assert results[0].bound == pytest.approx(results[1].bound, abs=1e-6)
    slopes = [fit.model.moved(theta).gradient(one.posterior, fit.data) for fit, one in zip(fits, results, strict=True)]
    assert_allclose(slopes[0], slopes[1], atol=1e-4)
    assert_allclose([row.mean for row in ours.table_rows()], [row.mean for row in dense.table_rows()], atol=1e-5)
    assert_allclose([row.sd for row in ours.table_rows()], [row.sd for row in dense.table_rows()], rtol=1e-5)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "slopes beside", "classes"])
def test_all_that_a_fit_has(name, monkeypatch, tmp_path):
    ours, dense = both(monkeypatch, **MODELS[name], hyper="fixed")
    levels = [fit.random_effects(group) for fit in (ours, dense) for group in ("a", "b")] if name != "classes" else []
    for one, other in zip(levels[:2], levels[2:], strict=True):
        assert_allclose(one["mean"], other["mean"], atol=1e-5)
        assert_allclose(one["sd"], other["sd"], rtol=1e-5)
    new = {key: values[:80].copy() for key, values in DATA.items()}
    new["a"][0], new["b"][1] = 999, 999  # levels that were not there
    for rows in (None, new):
        one, other = ours.predict(rows), dense.predict(rows)
        for column in one:
            assert_allclose(one[column], other[column], atol=1e-5)
    assert ours.loo().elpd == pytest.approx(dense.loo().elpd, abs=1e-3)
    assert ours.sample(7, new).shape[0] == 7
    assert_allclose(np.cov(ours.sample(4000, {key: values[:4] for key, values in DATA.items()}).T),
                    np.cov(dense.sample(4000, {key: values[:4] for key, values in DATA.items()}).T), atol=0.15)
    assert_allclose(ours.covariance["x" if name != "classes" else "v: x"],
                    dense.covariance["x" if name != "classes" else "v: x"], atol=1e-6)
    ours.save(tmp_path / "fit.klimb")
    again = klimb.load(tmp_path / "fit.klimb")
    for column, values in ours.predict(new).items():
        assert_array_equal(again.predict(new)[column], values)
    assert_array_equal(again.sample(5, new, seed=3), ours.sample(5, new, seed=3))


def test_few_levels_stay_dense():
    fit = klimb.fit("y ~ x + (1 | a) + (1 | half)", DATA, hyper="fixed")
    assert fit.model.form == "Mixed"
    assert fit.linear.rows is not None
    assert fit.linear.rows.sparse is None


def test_hyperparameters_by_a_corrected_evidence(monkeypatch):
    """Small groups of yes and no: the sd that a bound alone would give is too low, and the evidence puts it right."""
    rng = np.random.default_rng(8)
    one, other = np.repeat(np.arange(150), 3), rng.integers(0, 40, 450)
    f = 2.5 * rng.standard_normal(150)[one] + 0.5 * rng.standard_normal(40)[other]
    data = {"z": (rng.random(450) < 1 / (1 + np.exp(-f))).astype(int), "a": one, "b": other}
    exact = klimb.fit("z ~ (1 | a) + (1 | b)", data, "bernoulli")
    assert exact.model.form == "Mixed"
    monkeypatch.setattr(linear, "FEW_LEVELS", 8)
    monkeypatch.setattr(shocks, "MOST_SHARED", 8)
    fit = klimb.fit("z ~ (1 | a) + (1 | b)", data, "bernoulli")
    assert fit.model.form == "Crossed"
    wanted, found, plain = ({row.name: row for row in one.table_rows()} for one in (exact, fit, fit.uncorrected))
    sd = wanted["sd(a)"].sd
    assert abs(plain["sd(a)"].mean - wanted["sd(a)"].mean) > 0.6 * sd
    assert abs(found["sd(a)"].mean - wanted["sd(a)"].mean) < 0.2 * sd
    assert fit.trust.verdict == "corrected"
    assert "evidence" in fit.trust.advice


@pytest.mark.parametrize(("formula", "family", "sds"), [
    ("y ~ x + (1 | b/a)", "gaussian", {"sd(b)": 0.5, "sd(b:a)": 0.6, "sigma": 0.7}),
    ("z ~ x + (1 + x || b/a)", "bernoulli", {"sd(b)": 0.5, "sd(b:a)": 0.6, "sd(x | b)": 0.3, "sd(x | b:a)": 0.2}),
    ("k ~ x + (1 | half/b/a)", "poisson", {"sd(half)": 0.2, "sd(half:b)": 0.5, "sd(half:b:a)": 0.6})])
def test_nested_levels_of_any_number_have_a_sparse_factor(formula, family, sds, monkeypatch):
    plain = klimb.fit(formula, DATA, family, priors=sds)
    monkeypatch.setattr(linear_parts, "MOST_CROSSED", 60)
    fit = klimb.fit(formula, DATA, family, priors=sds)
    assert plain.model.form == "Crossed"
    assert fit.model.form == "Precision"
    assert_allclose(fit.bound, plain.bound, atol=1e-4)
    for group in (term.name for term in fit.groups):
        found, wanted = fit.random_effects(group), plain.random_effects(group)
        assert_array_equal(found["level"], wanted["level"])
        assert_allclose(found["mean"], wanted["mean"], atol=2e-3)
        assert_allclose(found["sd"], wanted["sd"], rtol=2e-3)
    new = {"x": [0.0, 1.0], "half": [0, 1], "b": [3, 999], "a": [5, 5]}
    assert_allclose(fit.predict(new)["mean"], plain.predict(new)["mean"], rtol=2e-3)


def test_levels_that_are_not_nested_are_known():
    fine = Coded(np.array([0, 0, 1, 2, -1]), np.ones((5, 1)), 3)
    assert nested([fine, Coded(np.array([1, 1, 0, 0, 1]), np.ones((5, 1)), 2)])
    assert not nested([Coded(np.array([1, 0, 0, 0, 1]), np.ones((5, 1)), 2), fine])


def test_calibration_and_draws_of_the_prior():
    latent = klimb.fit("k ~ x + (1 | a) + (1 | b)", DATA, "poisson", priors={"sd(a)": 0.5, "sd(b)": 0.4}).model.latent
    found = klimb.calibrate(latent, klimb.sites.Poisson(), n=12, seed=1)
    assert 0.8 < found.overall(0.9) <= 1


@pytest.fixture
def by_products(monkeypatch):
    """Crossed factors go to products, as they do where a dense border would take too long."""
    for latent in (Crossed, Mixed, Weights):
        monkeypatch.setattr(latent, "costs", classmethod(lambda cls, shape: None))


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "slopes beside", "three"])
def test_products_say_what_the_factor_does(name, monkeypatch, request):
    settings = {**MODELS[name], "hyper": "optimise"}
    direct = klimb.fit(data=DATA, **settings)
    request.getfixturevalue("by_products")
    fit = klimb.fit(data=DATA, **settings)
    assert (direct.model.form, fit.model.form) == ("Crossed", "CrossedProducts")
    assert "* CrossedProducts" in fit.model.explain()
    assert fit.bound == pytest.approx(direct.bound, abs=4 * fit.result.bound_error + 0.05)
    for one, other in zip(fit.table_rows(), direct.table_rows(), strict=True):
        assert abs(one.mean - other.mean) < 0.05 * other.sd
        assert one.sd == pytest.approx(other.sd, rel=0.03)
    for group in ("a", "b"):
        found, wanted = fit.random_effects(group), direct.random_effects(group)
        sd = np.array(wanted["sd"])
        assert (np.abs(np.array(found["mean"]) - wanted["mean"]) < 0.05 * sd).all()
        assert_allclose(found["sd"], sd, rtol=0.1)
    new = {"x": [0.0, 1.0], "half": [0, 1], "a": [3, 9999], "b": [9999, 5]}
    for column in ("mean", "sd"):
        assert_allclose(fit.predict(new)[column], direct.predict(new)[column], rtol=0.02, atol=0.005)


def test_everything_is_there_by_products(request, tmp_path):
    direct = klimb.fit("z ~ x + (1 | a) + (1 | b)", DATA, "bernoulli")
    request.getfixturevalue("by_products")
    fit = klimb.fit("z ~ x + (1 | a) + (1 | b)", DATA, "bernoulli")
    assert fit.mode == "integrate"
    assert "variances estimated (sds to" in str(fit)
    assert "error of sds, which are estimated" in str(fit.trust)
    assert fit.trust.verdict == "trust"
    new = {"x": [0.0, 1.0, 2.0], "a": [3, 9999, 4], "b": [9999, 5, 6]}
    draws = fit.sample(2000, new, seed=1)
    found = fit.predict(new, kind="latent")
    assert_allclose(np.std(draws, axis=0), found["sd"], rtol=0.1)
    assert fit.loo().elpd == pytest.approx(direct.loo().elpd, abs=0.1)
    fit.save(tmp_path / "fit.klimb")
    again = klimb.load(tmp_path / "fit.klimb")
    for column in ("mean", "sd"):
        assert_allclose(again.predict(new)[column], fit.predict(new)[column])
        assert_allclose(again.random_effects("b")[column], fit.random_effects("b")[column])
    assert str(again.trust) == str(fit.trust)


@pytest.mark.parametrize(("formula", "family"), [
    ("z ~ x + (1 | a)", "bernoulli"), ("k ~ x + (1 | a) + (1 | b)", "poisson")])
def test_few_points_of_an_expensive_model_say_what_a_lattice_does(formula, family, monkeypatch):
    lattice = klimb.fit(formula, DATA, family, hyper="integrate")
    monkeypatch.setattr(average, "EXPENSIVE", 0.0)
    monkeypatch.setattr(average, "BENT", 1.0)
    few = klimb.fit(formula, DATA, family, hyper="integrate")
    d = few.model.theta.size
    assert len(few.components.weights) == 3**d
    assert few.n_fits < lattice.n_fits
    assert few.components.error < 0.1
    assert few.bound == pytest.approx(lattice.bound, abs=0.05)
    for one, other in zip(few.table_rows(), lattice.table_rows(), strict=True):
        assert abs(one.mean - other.mean) < 0.1 * other.sd
        assert one.sd == pytest.approx(other.sd, rel=0.1)
        assert_allclose([one.lower, one.upper], [other.lower, other.upper], atol=0.15 * other.sd)
