"""Few rows that say what all rows with Gaussian noise do: the same bound, gradients, weights and tables."""

import numpy as np
import pytest

import klimb
from klimb.likelihoods import likelihood
from klimb.models.linear import LinearModel
from klimb.models.setup import build
from klimb.rows.frames import read_frame
from klimb.terms.encoder import encode

RNG = np.random.default_rng(7)
N, LEVELS = 1500, 120
CODES = np.where(RNG.random(N) < 0.4, 5, RNG.integers(0, LEVELS, N))  # one huge level, tiny ones, some with one row
CODES[:3] = [LEVELS, LEVELS + 1, LEVELS + 1]
X = RNG.standard_normal(N)
X[1:3] = 0.25  # a level whose slope nothing tells from its intercept
DATA = {"x": X, "far": 1e5 + X + 0.1 * RNG.standard_normal(N), "t": RNG.random(N), "g": CODES,
        "o": RNG.standard_normal(N),
        "y": 30.0 + X + RNG.standard_normal(LEVELS + 2)[CODES] + 0.5 * RNG.standard_normal(N)}
WEIGHTS = RNG.choice([0.0, 1.0, 2.0, 0.5], N)
FORMULAS = ["y ~ x", "y ~ x + far + offset(o)", "y ~ x + (1 | g)", "y ~ far + (x | g)", "y ~ s(t) + x + offset(o)",
            "y ~ s(t) + (far | g)", "y ~ 0 + (1 | g)", "y ~ x + (x + t | g)", "y ~ ridge(x, far, t) + (0 + x | g)"]


def built(formula, weights=None, data=DATA, family="gaussian"):
    encoder, encoded = encode(formula, read_frame(data), missing="drop", weights=weights, objects={})
    model, _, observed, _ = build(encoder, encoded, likelihood(family, None), None)
    return model, observed


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_same_at_every_theta(formula, weights):
    model, data = built(formula, weights)
    few, few_data = model.reduced(data)
    assert few.rows.n <= 0.5 * N
    assert np.isclose(few_data.total, data.total, rtol=1e-13)
    rng = np.random.default_rng(1)
    for _ in range(3):
        at = model.at + rng.standard_normal(model.theta.size)
        one, other = model.moved(at), few.moved(at)
        full, small = one.infer(data, tol=1e-12), other.infer(few_data, tol=1e-12)
        assert np.isclose(full.bound, small.bound, rtol=1e-12)
        slopes = one.gradient(full.posterior, data), other.gradient(small.posterior, few_data)
        assert np.allclose(*slopes, rtol=1e-9, atol=1e-9 * np.abs(slopes[0]).max())
        q, p = one.detach(full.posterior), other.detach(small.posterior)
        assert type(q) is type(p)
        assert (np.abs(q.mean - p.mean) <= 1e-9 * q.sd()).all()
        assert np.allclose(q.sd(), p.sd(), rtol=1e-10)


def test_collinear_columns_of_condition_1e6():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(N)
    data = {"a": x, "b": x + 1e-6 * rng.standard_normal(N), "c": rng.standard_normal(N),
            "y": x + rng.standard_normal(N)}
    model, observed = built("y ~ a + b + c", data=data)
    few, few_data = model.reduced(observed)
    full, small = model.infer(observed, tol=1e-12), few.infer(few_data, tol=1e-12)
    q, p = model.detach(full.posterior), few.detach(small.posterior)
    assert (np.abs(q.mean - p.mean) <= 1e-8 * q.sd()).all()
    assert np.isclose(full.bound, small.bound, rtol=1e-12)


@pytest.mark.parametrize("hyper", ["integrate", "optimise"])
@pytest.mark.parametrize("formula", ["y ~ far + (x | g)", "y ~ s(t) + x + offset(o)"])
def test_fits_and_tables(monkeypatch, formula, hyper):
    fit = klimb.fit(formula, DATA, hyper=hyper, tol=1e-12, weights=WEIGHTS)
    assert "without loss" in fit.explain()
    assert fit.explain().startswith(f"{fit.n:,} rows, reduced to ")
    assert len(fit.posterior.m) == fit.n == np.count_nonzero(WEIGHTS)
    monkeypatch.setattr(LinearModel, "reduced", lambda self, data: None)
    plain = klimb.fit(formula, DATA, hyper=hyper, tol=1e-12, weights=WEIGHTS)
    assert "without loss" not in plain.explain()
    one, other = fit.summary(), plain.summary()
    assert list(one["name"]) == list(other["name"])
    sd = np.asarray(other["sd"], dtype=float)
    for column in ("mean", "sd", "lower", "upper"):
        gap = np.abs(np.asarray(one[column], dtype=float) - np.asarray(other[column], dtype=float))
        assert (gap <= 1e-7 * sd).all(), (column, (gap / sd).max())
    assert np.isclose(fit.bound, plain.bound, rtol=1e-10)
    shown, before = fit.predict(), plain.predict()
    assert (np.abs(shown["mean"] - before["mean"]) <= 1e-7 * before["sd"]).all()
    assert np.allclose(fit.loo().log_density, plain.loo().log_density, atol=1e-7, equal_nan=True)


def test_what_is_not_reduced():
    assert built("y ~ x + t")[0].reduced(built("y ~ x + t")[1]) is not None
    few = {name: values[:8] for name, values in DATA.items()}
    for formula, data, family in (("y ~ x + (1 | g)", few, "gaussian"), ("y ~ x", DATA, "student_t"),
                                  ("y ~ gp(t)", DATA, "gaussian"), ("y ~ sparse(x, far, t)", DATA, "gaussian")):
        model, observed = built(formula, data=data, family=family)
        assert model.reduced(observed) is None, formula
    status = (RNG.random(N) < 0.9).astype(float)
    model, observed = built("Surv(y, status) ~ x", data={**DATA, "status": status})
    assert model.reduced(observed) is None
    model, observed = built("y ~ x", np.where(np.arange(N) < 4, 0.5, 0.0))  # two rows in all, as the weights count
    assert model.reduced(observed) is None


def test_noise_free_data_and_a_known_noise():
    data = {"x": DATA["x"], "y": 2.0 + 3.0 * DATA["x"]}
    fit = klimb.fit("y ~ x", data, family="gaussian(sigma=0.1)")
    model, observed = built("y ~ x", data=data)
    _, few_data = model.reduced(observed)
    assert abs(few_data.y[-1]) < 1e-12
    assert np.allclose(fit.coefficients["mean"], [2.0, 3.0], atol=1e-3)
