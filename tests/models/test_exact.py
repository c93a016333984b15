"""Exact draws: right where the posterior is known, the same face as any fit, and no verdict over chains that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.errors import InputError
from klimb.latents import DrawnWeights
from klimb.latents.weights_posterior import DenseWeights
from klimb.models import exact as module
from klimb.models.joint import named_draws

stanli = pytest.importorskip("stanli", reason="exact draws are made by stanli, of the extra exact")

RNG = np.random.default_rng(11)
N = 120
DATA: dict[str, Any] = {"x": RNG.standard_normal(N), "z": RNG.uniform(-1, 1, N), "g": RNG.choice(list("abcdefgh"), N)}
LEVELS = 0.8 * RNG.standard_normal(8)[np.unique(DATA["g"], return_inverse=True)[1]]
DATA["count"] = RNG.poisson(np.exp(0.5 + 0.4 * DATA["x"] + LEVELS))
DATA["y"] = 2.0 + DATA["x"] + LEVELS + RNG.standard_normal(N)
DATA["grade"] = np.digitize(DATA["y"], [1.0, 2.0, 3.0])
DATA["kind"] = np.array(["p", "q", "r"])[np.digitize(DATA["y"] + RNG.standard_normal(N), [1.5, 2.5])]
NEW = {"x": [0.0, 1.5], "z": [0.1, -0.5], "g": ["a", "never seen"]}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    fit = klimb.fit("count ~ x + (1 | g)", DATA, "poisson")
    return fit, fit.exact(draws=2000)


def test_a_posterior_that_is_known_in_closed_form() -> None:
    """With sigma held everything is Gaussian, and klimb's own numbers are exact."""
    fit = klimb.fit("y ~ x * z", DATA, priors={"sigma": 1.0})
    found = fit.exact()
    for one, two in zip(fit.table_rows(), found.table_rows(), strict=True):
        assert abs(one.mean - two.mean) < 0.08 * one.sd
        assert abs(one.sd / two.sd - 1.0) < 0.06
        assert abs(one.lower - two.lower) < 0.15 * one.sd
    assert found.trust.verdict == "verified"
    assert found.trust.number < 0.06
    assert found.mode == "fixed"


def test_the_verdict_and_what_is_printed(pair: tuple[Any, Any]) -> None:
    fit, found = pair
    assert found.trust.verdict == "verified"
    assert found.trust == found.trust_summary
    assert found.trust.to_dict()["facts"]["divergent transitions"] == "0"
    assert str(found.trust).startswith("verified by 2,000 exact draws")
    assert klimb.trust(found).verdict == "verified"
    assert found.trust.advice.startswith("verified by 2,000 exact draws: largest error of an sd ")
    assert "rhat at most 1.00" in str(found)
    assert "bulk ess at least" in str(found)
    assert "sampling error" in found.trust.advice
    assert found.converged
    assert fit.trust.verdict != "verified"
    worst = max(abs(a.sd / b.sd - 1.0) for a, b in zip(fit.table_rows(), found.table_rows(), strict=True))
    assert abs(found.trust.number - worst) < 0.01


def test_the_same_face(pair: tuple[Any, Any]) -> None:
    fit, found = pair
    for kind in ("mean", "latent", "response"):
        new = NEW if kind == "latent" else DATA  # the mean count of a new level has no variance to speak of
        one, two = fit.predict(new, kind=kind), found.predict(new, kind=kind)
        assert set(one) == set(two)
        np.testing.assert_allclose(two["mean"], one["mean"], atol=0.2 * one["sd"].max())
        np.testing.assert_allclose(two["sd"], one["sd"], rtol=0.15)
        assert (two["lower"] <= two["mean"]).all()
        assert (two["mean"] <= two["upper"]).all()
    levels = found.random_effects("g")
    np.testing.assert_allclose(levels["mean"], fit.random_effects("g")["mean"], atol=0.1)
    assert (levels["sd"] > 0).all()
    assert found.sample(7, NEW).shape == (7, 2)
    assert found.simulate(5, NEW).shape == (5, 2)
    assert set(found.draws(10)) == set(fit.draws(10))
    assert abs(found.loo().elpd - fit.loo().elpd) < 1.0
    assert "Verified" in _page(found)


def _page(fit: Any) -> str:
    from klimb.report.page import page

    return page(fit.report())


def test_tables_are_those_of_the_draws(pair: tuple[Any, Any]) -> None:
    _, found = pair
    theta = found.components.theta
    weights = np.array([part.mean for part in found.components.parts])
    named = named_draws(found, theta, weights)
    for row in found.table_rows():
        own = named[row.name]
        assert abs(row.mean - own.mean()) < 1e-9
        assert abs(row.sd - own.std()) < 1e-9
        np.testing.assert_allclose([row.lower, row.upper], np.quantile(own, [0.05, 0.95]), atol=0.05 * row.sd)
    f = found.predict({"x": [1.0], "z": [0.0], "g": ["a"]}, kind="latent")
    draws = named["Intercept"] + named["x"] + named["1|g"][:, 0]
    np.testing.assert_allclose([f["mean"][0], f["sd"][0]], [draws.mean(), draws.std()], rtol=1e-9)
    np.testing.assert_allclose(f["upper"][0], np.quantile(draws, 0.95), atol=0.01 * draws.std())


def test_it_is_saved_and_loaded(pair: tuple[Any, Any], tmp_path: Path) -> None:
    _, found = pair
    found.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert str(back) == str(found)
    assert back.trust.verdict == "verified"
    one, two = found.predict(NEW), back.predict(NEW)
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_the_same_seed_gives_the_same_draws(pair: tuple[Any, Any]) -> None:
    fit, found = pair
    again, other = fit.exact(draws=2000), fit.exact(draws=2000, seed=1)
    np.testing.assert_array_equal(again.components.theta, found.components.theta)
    assert (other.components.theta != found.components.theta).all()


MODELS = {"slopes": ("y ~ x + (1 + z | g)", "gaussian", {}), "levels": ("grade ~ x + (1 | g)", "ordinal", {}),
          "classes": ("kind ~ x", "categorical", {}), "few weights": ("count ~ 0 + (1 | g)", "poisson", {}),
          "crossed": ("count ~ ridge(x, z) + (1 | g)", "negative_binomial", {"weights": np.full(N, 2.0)})}


@pytest.mark.parametrize("name", list(MODELS))
def test_generated_quantities_are_what_klimb_prints(name: str) -> None:
    """Draws that klimb reads from a program, and what the program itself says of them."""
    formula, family, options = MODELS[name]
    fit = klimb.fit(formula, DATA, family, hyper="optimise", **options)
    program = fit.to_stan()
    found = stanli.Model(stan_code=program.code, data=program.data_json()).sample(
        chains=1, warmup=100, samples=30, seed=4, refresh=0, inits=program.point(fit.model.at,
                                                                                fit.components.parts[0].mean)[1])
    named = named_draws(fit, *program.read(lambda variable: np.asarray(found[variable])))
    for variable in found.variables:
        values = np.asarray(found[variable])
        if variable == "coefficient":
            own = fit.encoder.fixed.names
            if len(fit.model.likelihood.fields) == 1:
                np.testing.assert_allclose(values, np.column_stack([named[one] for one in own]), rtol=1e-6, atol=1e-9)
            else:
                for c, level in enumerate(fit.model.likelihood.fields):
                    expected = np.column_stack([named[f"{level}: {one}"] for one in own])
                    np.testing.assert_allclose(values[:, c], expected, rtol=1e-6, atol=1e-9)
        elif variable == "cut":
            expected = np.column_stack([named[one] for one in fit.model.theta.blocks[-1].names])
            np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-9)
        elif variable == "printed_sd_1":
            np.testing.assert_allclose(values, np.column_stack([named["sd(g)"], named["sd(z | g)"]]), rtol=1e-6)
        elif variable == "printed_cor_1":
            np.testing.assert_allclose(values[:, 1, 0], named["cor(Intercept, z | g)"], rtol=1e-6, atol=1e-9)
        elif variable == "level_1":
            np.testing.assert_allclose(values[:, 1], named["z|g"], rtol=1e-6, atol=1e-9)
    assert "coefficient" in program.code or name == "few weights"


@pytest.mark.parametrize("name", ["slopes", "levels", "classes"])
def test_other_models_are_verified_too(name: str) -> None:
    formula, family, options = MODELS[name]
    fit = klimb.fit(formula, DATA, family, **options)
    found = fit.exact(draws=2400)
    assert found.trust.verdict == "verified"
    one, two = fit.predict(NEW), found.predict(NEW)
    for column in (column for column in one if column.startswith(("mean", "P("))):
        np.testing.assert_allclose(two[column], one[column], atol=0.25)
    assert [row.name for row in found.table_rows()] == [row.name for row in fit.table_rows()]
    assert str(found)


def test_leave_one_out_of_draws() -> None:
    """Importance sampling over draws is close to leaving a row out in closed form."""
    fit = klimb.fit("y ~ x", DATA, priors={"sigma": 1.0})
    one, two = fit.loo(), fit.exact(draws=2000).loo()
    np.testing.assert_allclose(two.log_density, one.log_density, atol=0.1)
    np.testing.assert_allclose(two.pit(), one.pit(), atol=0.03)


def test_divergent_transitions_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A funnel that is sampled as it stands: weights are parameters, steps are long."""
    data = {"y": np.random.default_rng(3).standard_normal(16), "g": np.arange(16) // 2}
    fit = klimb.fit("y ~ (1 | g)", data)
    monkeypatch.setattr(module, "ATTEMPTS", ((149, 0.5, True),))
    found = fit.exact(draws=1000)
    assert found.trust.verdict == "doubt"
    assert "diverged" in found.trust.advice
    assert "in doubt" in str(found)
    monkeypatch.undo()
    assert fit.exact(draws=1000).trust.verdict == "verified"


@pytest.mark.parametrize(("groups", "rows", "apart"), [(2, 40, 1.0), (3, 300, 0.0), (3, 300, 1.0)])
def test_few_groups_are_no_funnel(groups: int, rows: int, apart: float) -> None:
    """An sd that may be zero, and one that the rows tell, with the same parametrisation."""
    rng = np.random.default_rng(14)
    g = np.arange(rows) % groups
    data = {"g": g, "y": apart * g + rng.standard_normal(rows)}
    found = klimb.fit("y ~ 1 + (1 | g)", data, priors={"sd(g)": "exponential(1)"}).exact()  # 2,000 have rhat 1.01
    assert found.trust.verdict == "verified", found.trust.advice


def test_two_sds_that_cannot_be_told_apart_are_sampled_as_advised() -> None:
    """One row for each group: both sds reach down to 0, and the doubt names priors under which draws are verified."""
    data = {"y": np.random.default_rng(1).standard_normal(8), "g": np.arange(8)}
    drawn = klimb.fit("y ~ 1 + (1 | g)", data).exact(draws=4000, seed=1)
    if drawn.trust.verdict == "doubt":
        priors = json.loads(drawn.trust.advice.split("priors=")[1].removesuffix("."))
        assert set(priors) == {"sd(g)", "sigma"}
        told = klimb.fit("y ~ 1 + (1 | g)", data, priors=priors)
        # One divergent transition in 4,000 is a doubt, and it comes and goes with the rounding of a fit.
        verdicts = [told.exact(draws=4000, seed=seed).trust.verdict for seed in range(1, 7)]
        assert verdicts.count("verified") >= 4
    else:
        assert drawn.trust.verdict == "verified"


def test_two_modes_are_a_doubt() -> None:
    """Chains start from every mode that the report of the fit knows, and then they disagree."""
    y = np.array([-10.0, -10.1, -9.9, 10.0, 10.1, 9.9])
    found = klimb.fit("y ~ 1", {"y": y}, "student_t(df=1, scale=0.1)").exact(draws=800)
    assert found.trust.verdict == "doubt"
    assert "the chains disagree" in found.trust.advice


@pytest.mark.parametrize(("right", "graphs"), [
    ("x + rw1(t)", {}), ("x + besag(g, graph=G)", {"G": [(a, b) for a, b in zip("abcdefgh", "bcdefgha", strict=True)]}),
    ("x + rw2(t) + (1 | g)", {})])
def test_fields(right: str, graphs: dict[str, Any]) -> None:
    """Their draws keep the constraints, are verified, and have the same face: predictions, forecasts, curves, files."""
    t = np.arange(N) % 15
    counts = np.random.default_rng(3).poisson(np.exp(0.5 + 0.4 * DATA["x"] + LEVELS + np.sin(t / 2.0)))
    data, new = {**DATA, "t": t, "count": counts}, {**NEW, "g": ["a", "b"], "t": [3, 17]}
    fit = klimb.fit(f"count ~ {right}", data, "poisson", graphs=graphs)
    found = fit.exact(draws=2000)
    assert found.trust.verdict == "verified"
    one, two = (some.predict(new, kind="latent") for some in (fit, found))
    np.testing.assert_allclose(one["mean"], two["mean"], atol=0.1 * two["sd"].max())
    np.testing.assert_allclose(one["sd"], two["sd"], rtol=0.15)
    for term, place in zip(found.linear.terms, found.linear.places, strict=True):
        held = term.constraints() if hasattr(term, "constraints") else None
        if held is not None:
            assert max(np.abs(held @ part.mean[place]).max() for part in found.components.parts[:20]) < 1e-8
    assert found.draws(3)["Intercept"].shape == (3,)
    name = next(term.name for term in found.linear.terms if hasattr(term, "at_nodes"))
    assert len(found.field(name)["mean"]) == len(fit.field(name)["mean"])


def test_refuses_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    held = klimb.fit("y ~ x", DATA, hyper="fixed")
    with pytest.raises(InputError, match="draws the hyperparameters too"):
        held.exact()
    fit = klimb.fit("y ~ x", DATA)
    with pytest.raises(InputError, match="100 draws for each chain"):
        fit.exact(draws=300)
    curve = klimb.fit("y ~ gp(z)", DATA, hyper="optimise")
    with pytest.raises(InputError, match="columns stand still"):
        curve.exact()
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"klimb\[exact\]"):
        fit.exact()


def test_one_draw_is_a_gaussian_without_spread() -> None:
    mean, L, every = np.array([1.0, -2.0, 0.5]), np.arange(6.0).reshape(2, 3), np.arange(3)
    one, other = DrawnWeights(mean), DenseWeights(mean, np.zeros(3))
    for a, b in zip((*one.at(L, 0.5), *one.joint(L, np.ones(2))), (*other.at(L, 0.5), *other.joint(L, np.ones(2))),
                    strict=True):
        np.testing.assert_allclose(a, b)
    np.testing.assert_array_equal(one.covariances(every, every), np.zeros(3))
    np.testing.assert_array_equal(one.sample(2, np.random.default_rng(0)), [mean, mean])
    np.testing.assert_array_equal(one.covariance_with(L, slice(0, 2)), np.zeros((2, 2)))


def test_by_cmdstan_where_it_is_installed() -> None:
    cmdstanpy = pytest.importorskip("cmdstanpy", reason="needs cmdstanpy and an installation of CmdStan")
    try:
        cmdstanpy.cmdstan_path()
    except ValueError:
        pytest.skip("needs an installation of CmdStan")
    fit = klimb.fit("count ~ x + (1 | g)", DATA, "poisson")
    program = fit.to_stan()
    plan = module._planned(fit, program, 2, 200, 0)
    found = module.by_cmdstan(program, plan, *module.ATTEMPTS[0][:2])
    theta, weights = program.read(found.draws)
    assert theta.shape == (400, 1)
    assert weights.shape == (400, 10)


def test_the_metric_is_of_weights_under_their_own_theta() -> None:
    """Far points of theta were paired with weights of others: those in units of their scale were up to 1e4 long."""
    edges = [(i, j) for i in range(25) for j in (i + 1, i + 5) if j < 25 and (j == i + 5 or j % 5)]
    data = {"y": np.random.default_rng(4).poisson(0.4, 25), "r": np.arange(25)}
    fit = klimb.fit("y ~ bym2(r, graph=G)", data, "poisson", graphs={"G": edges})
    program = fit.to_stan()
    plan = module._planned(fit, program, 4, 1000, 0)
    modes = slice(-len(plan.starts[0][0]["z_1"]), None)  # standard normal before the data, and nearly so after them
    assert 0.5 < np.diag(plan.metric)[modes].min() < np.diag(plan.metric)[modes].max() < 2.0
