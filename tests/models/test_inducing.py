"""Choosing and optimising inducing points."""

from __future__ import annotations

import re

import numpy as np
import pytest

import klimb
from klimb import kernels, sites
from klimb.errors import InputError
from klimb.kernels import choose_inducing
from klimb.kernels.inducing_points import GreedyPoints, explaining_points
from klimb.models.evidence import optimise
from klimb.models.inducing import enough_inducing, optimise_inducing, with_points

RNG = np.random.default_rng(11)
N = 300
X = RNG.random((N, 2)) * 4
F = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
KERNEL = kernels.RBF(variance=1.5, lengthscale=[0.8, 1.6])
DATA = {
    "logistic": (sites.Logistic(), np.where(F + 0.5 * RNG.standard_normal(N) > 0.5, 1, 0)),
    "poisson": (sites.Poisson(), RNG.poisson(np.exp(F))),
    "student-t": (sites.StudentT(4.0, 0.3), F + 0.3 * RNG.standard_t(4, N)),
}


def bound_of(model, y, tol=1e-6):
    return model.fit(y, hyper="fixed", tol=tol).bound


def reason_of(fit):
    return re.search(r"\((\w+)\)", fit.notes[0])[1]


def test_greedy_points_minimise_what_is_unexplained_at_each_step():
    pool = X[:50]
    points = GreedyPoints(KERNEL, pool)
    five = points.extend(5)
    eight = points.extend(8)
    np.testing.assert_array_equal(eight[:5], five)
    np.testing.assert_array_equal(eight, GreedyPoints(KERNEL, pool).extend(8))
    K, Kuu, Kuf = KERNEL.gram(pool), KERNEL.gram(eight), KERNEL.gram(eight, pool)
    left = np.trace(K - Kuf.T @ np.linalg.solve(Kuu, Kuf)) / np.trace(K)
    assert abs(points.unexplained - left) < 1e-8


@pytest.mark.parametrize("method", ["greedy", "kmeans++"])
def test_choices_are_distinct_rows_and_reproducible(method):
    Z = choose_inducing(KERNEL, X, 20, method=method, seed=3)
    assert len(np.unique(Z, axis=0)) == 20
    assert all((z == X).all(axis=1).any() for z in Z)
    np.testing.assert_array_equal(Z, choose_inducing(KERNEL, X, 20, method=method, seed=3))
    assert len(choose_inducing(KERNEL, np.tile(X[:4], (3, 1)), 10, method=method)) == 4  # the rest would repeat


def test_many_rows_are_thinned():
    many = np.random.default_rng(0).random((30_000, 1))
    Z = choose_inducing(kernels.RBF(lengthscale=0.2), many, 8)
    assert Z.shape == (8, 1)
    assert Z.min() < 0.01
    assert Z.max() > 0.99


def test_auto_explains_all_but_a_thousandth():
    model = klimb.gp(KERNEL, X, sites.Logistic(), inducing="auto")
    assert len(model.Z) < N
    assert model.latent.slack.sum() <= 1e-3 * KERNEL.diag(X).sum()
    assert len(explaining_points(KERNEL, X, most=7)) == 7
    with pytest.raises(InputError, match="a number, points or \"auto\"; got 'many'"):
        klimb.gp(KERNEL, X, sites.Logistic(), inducing="many")


@pytest.mark.parametrize("name", DATA)
def test_enough_points_are_within_the_tolerance_of_the_full_process(name):
    site, y = DATA[name]
    model = klimb.gp(KERNEL, X, site)
    full = bound_of(model, y)
    for tol in (1.0, 0.1):
        found = enough_inducing(model, y, tol=tol)
        assert found.converged
        assert reason_of(found) in ("explained", "settled")
        assert full - found.bound < 2 * tol
        assert (np.diff(found.trace.bound) >= -1e-5).all()
        assert found.trace.rule[-1] == f"{len(found.model.Z)} points"
        assert found.model.Z.shape[1] == 2
        assert len(found.model.Z) < N


def test_enough_respects_limits():
    site, y = DATA["logistic"]
    rough = klimb.gp(kernels.Matern12(variance=4.0, lengthscale=0.1), X, site)
    found = enough_inducing(rough, y, tol=1e-3, most=40)
    assert (reason_of(found), len(found.model.Z)) == ("limit", 40)
    smooth = klimb.gp(kernels.RBF(lengthscale=1e4), X, site)
    assert reason_of(enough_inducing(smooth, y)) in ("explained", "exhausted")
    for bad in ({"tol": 0.0}, {"most": 0}):
        with pytest.raises(InputError, match=r"tol must be positive|most must be at least 1"):
            enough_inducing(rough, y, **bad)


@pytest.mark.parametrize("method", ["greedy", "kmeans++"])
@pytest.mark.parametrize("name", DATA)
def test_moving_points_raises_the_bound(name, method):
    site, y = DATA[name]
    Z = choose_inducing(KERNEL, X, 8, method=method)
    model = klimb.gp(KERNEL, X, site, inducing=Z)
    start = bound_of(model, y)
    moved = optimise_inducing(model, y, hyperparameters=False)
    assert moved.bound > start + 0.5
    assert moved.bound <= bound_of(klimb.gp(KERNEL, X, site), y) + 1e-6
    assert moved.model.Z.shape == Z.shape
    assert moved.model.kernel == KERNEL
    assert abs(bound_of(moved.model, y) - moved.bound) < 1e-5


def test_points_and_hyperparameters_together():
    site, y = DATA["poisson"]
    model = klimb.gp(KERNEL, X, site, inducing=10)
    alone, together = optimise(model, y), optimise_inducing(model, y)
    assert together.bound > alone.bound
    assert together.converged
    assert together.model.names == model.names
    assert len(with_points(model, model.Z, free=True).names) == len(model.names) + 20


def test_joint_gradient_is_both():
    site, y = DATA["logistic"]
    kernel = KERNEL + 0.5 * kernels.Linear(active_dims=[0])
    model = klimb.gp(kernel, X, site, inducing=X[:9] + 0.01, jitter=1e-4)
    fit = model.fit(y, hyper="fixed", tol=1e-10)
    moving = with_points(model, model.Z, free=True)
    theta, points = np.split(moving.gradient(fit.posterior, fit.data), [model.theta.size])
    points = points.reshape(model.Z.shape) / moving.points.unit
    np.testing.assert_allclose(theta, model.gradient(fit.posterior, fit.data), rtol=1e-8, atol=1e-10)
    direction = RNG.standard_normal(points.shape)
    up, down = (bound_of(klimb.gp(kernel, X, site, inducing=model.Z + t * direction, jitter=1e-4), y, tol=1e-10)
                for t in (1e-4, -1e-4))
    assert abs((points * direction).sum() - (up - down) / 2e-4) < 1e-3 * np.abs(points).sum()


def test_never_worse_than_the_start():
    site, y = DATA["logistic"]
    model = klimb.gp(KERNEL, X, site, inducing=8)
    best = optimise_inducing(model, y, hyperparameters=False)
    again = optimise_inducing(best.model, y, hyperparameters=False, max_iter=3)
    assert again.bound >= best.bound - 1e-6
    assert optimise_inducing(model, y, max_iter=0).bound >= bound_of(model, y) - 1e-6


def test_errors():
    site, y = DATA["logistic"]
    with pytest.raises(InputError, match="the model needs inducing points to move"):
        optimise_inducing(klimb.gp(KERNEL, X, site), y)
    with pytest.raises(InputError, match=r'method must be "greedy" or "kmeans\+\+"; got \'random\''):
        choose_inducing(KERNEL, X, 3, method="random")


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson", "bernoulli"])
def test_points_that_are_too_few_are_a_doubt_and_auto_finds_enough(likelihood):
    # Beside the full Gaussian process, hyperparameters found by each: 0.2 sd of a mean and 10% of an sd are wrong.
    rng = np.random.default_rng(8)
    inputs = 4.0 * rng.random((250, 2))
    f = 2.0 * np.sin(2.0 * inputs[:, 0]) + np.cos(3.0 * inputs[:, 1])
    y = {"gaussian": f + 0.3 * rng.standard_normal(250), "poisson": rng.poisson(np.exp(f)),
         "bernoulli": rng.random(250) < 1.0 / (1.0 + np.exp(-f))}[likelihood]
    full = klimb.gp(kernels.RBF(), inputs, likelihood).fit(y).predict(inputs, kind="latent")
    doubts = 0
    for inducing in (12, 25, 50, 100, "auto"):
        fit = klimb.gp(kernels.RBF(), inputs, likelihood, inducing=inducing).fit(y)
        seen = fit.predict(inputs, kind="latent")
        mean = np.abs((seen["mean"] - full["mean"]) / full["sd"]).max()
        sd = np.abs(seen["sd"] / full["sd"] - 1.0).max()
        if fit.trust.verdict == "doubt":
            doubts += 1
            assert "too few" in fit.trust.advice
            assert mean > 0.05 or sd > 0.05
            assert inducing != "auto"
        else:
            assert mean < 0.2
            assert sd < 0.2 if inducing != "auto" else 0.1
    assert 1 <= doubts <= 3


def test_a_listener_stops_a_fit_that_would_take_more_points() -> None:
    x = np.linspace(0.0, 60.0, 150)[:, None]
    calls = []
    fit = klimb.gp(kernels.RBF(lengthscale=400.0), x, "bernoulli", inducing="auto").fit(
        np.sin(x[:, 0]) > 0.0, callback=lambda progress: bool(calls.append(progress)))
    assert len(calls) == 1
    assert fit.status.name == "STOPPED"
