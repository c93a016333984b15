"""Many rows: columns are encoded once, predictions go through them in blocks, and little is kept of each row."""

import gc
import tracemalloc

import numpy as np
import pytest

import klimb
import klimb.models.correctors as correctors
import klimb.models.prediction as prediction
from klimb.models.components import Components

RNG = np.random.default_rng(11)
N, LEVELS = 6000, 60
G = RNG.integers(0, LEVELS, N)
X = RNG.standard_normal(N)
F = 0.4 + 0.6 * X + RNG.standard_normal(LEVELS)[G]
DATA = {"x": X, "t": RNG.random(N), "g": G, "y": F + RNG.standard_normal(N),
        "c": 0.5 * X + RNG.standard_normal(N), "b": (RNG.random(N) < 1.0 / (1.0 + np.exp(-F))).astype(float)}
DATA["c"] += 2.0 * np.sin(6.0 * DATA["t"])


@pytest.mark.parametrize(("formula", "kind"), [("y ~ x + (x | g)", "mean"), ("c ~ s(t) + x", "latent"),
                                               ("y ~ x + (1 | g)", "mean")])
def test_one_gaussian_for_all_hyperparameters(monkeypatch, formula, kind):
    fit = klimb.fit(formula, DATA, hyper="integrate")
    every = fit.predict(kind=kind)
    asked = list[int]()
    plain = Components.straight
    monkeypatch.setattr(Components, "straight", lambda self, *rest, **more: asked.append(len(self.weights)) or plain(
        self, *rest, **more))
    monkeypatch.setattr(prediction, "TOGETHER", 5000)
    monkeypatch.setattr(prediction, "TELLING", 0.1)  # a few thousand rows know less of the hyperparameters
    some = fit.predict(kind=kind)
    assert asked[-1] == 1
    assert len(asked) > 3  # the sample twice, then all rows in blocks
    assert np.allclose(every["mean"], some["mean"], rtol=0.0, atol=1e-10 * every["sd"].max())
    assert np.allclose(every["sd"], some["sd"], rtol=1e-10)
    for name in ("lower", "upper"):
        assert (np.abs(every[name] - some[name]) <= 0.1 * every["sd"]).all()


def test_a_sample_that_can_tell_keeps_all_points(monkeypatch):
    fit = klimb.fit("b ~ x + (1 | g)", DATA, family="bernoulli", hyper="integrate")
    every = fit.predict()
    monkeypatch.setattr(prediction, "TOGETHER", 5000)
    monkeypatch.setattr(prediction, "TELLING", 1e-9)
    some = fit.predict()
    for name in every:
        assert np.allclose(every[name], some[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("formula", ["b ~ x + t + (x | g)", "b ~ poly(x, 2) + s(t)", "b ~ x * t + offset(t)"])
def test_columns_of_the_fit_are_those_of_its_data(formula):
    fit = klimb.fit(formula, DATA, family="bernoulli")
    again, copy = fit.predict(), {name: values.copy() for name, values in DATA.items()}
    other = fit.predict(copy)  # encoded anew
    for name in again:
        assert np.allclose(again[name], other[name], rtol=1e-12, atol=1e-14)


def test_the_data_of_the_caller_stay_as_they_are():
    data = {name: values.astype(float) for name, values in DATA.items()}
    before = {name: values.copy() for name, values in data.items()}
    fit = klimb.fit("y ~ x * t + s(t) + (x | g) + offset(x)", data, hyper="optimise")
    assert all(np.array_equal(data[name], before[name]) for name in data)
    density = fit.loo().log_density.copy()
    fit = klimb.fit("y ~ x", data)
    known = fit.observed.y.copy()
    data["y"] += 1.0
    assert np.array_equal(fit.observed.y, known)
    assert np.isfinite(density).all()


def test_little_is_kept_of_each_row():
    n = 20_000
    g, x = RNG.integers(0, 100, n), RNG.standard_normal(n)
    y = (RNG.random(n) < 1.0 / (1.0 + np.exp(-x - RNG.standard_normal(100)[g]))).astype(float)
    klimb.fit("b ~ x + (1 | g)", DATA, family="bernoulli")  # what is imported is not of the rows
    tracemalloc.start()
    try:
        fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, family="bernoulli")
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert fit.converged
    assert kept <= 260 * n


def test_what_is_surely_negligible_is_found_so_by_draws(monkeypatch):
    n = 30_000
    x = RNG.standard_normal((n, 3))
    y = (RNG.random(n) < 1.0 / (1.0 + np.exp(-x.sum(axis=1)))).astype(float)
    data = {"y": y, **{f"x{j}": x[:, j] for j in range(3)}}
    fit = klimb.fit("y ~ .", data, family="bernoulli")
    assert correctors._surely_negligible(fit.result)
    assert fit.components.efficiency == 1.0
    monkeypatch.setattr(correctors, "MANY_ROWS", 10**9)
    drawn = correctors.corrector_of(fit.result, alone=True)
    assert not drawn.wanted
    assert drawn.variance <= correctors.NEGLIGIBLE
    small = {name: values[:60] for name, values in data.items()}
    monkeypatch.setattr(correctors, "MANY_ROWS", 1)
    assert not correctors._surely_negligible(klimb.fit("y ~ .", small, family="bernoulli").result)
