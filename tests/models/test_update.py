"""Adding data: the answer of the full refit for less, or of one Gaussian that stands for all old data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import klimb
from klimb import kernels, sites
from klimb.errors import InputError
from klimb.infer.problem import Problem
from klimb.infer.start import local_sites
from klimb.kernels.means import ConstantMean
from klimb.latents import Posterior

RNG = np.random.default_rng(5)
N, OLD = 260, 240
X = RNG.random((N, 2)) * 4
F = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
KERNEL = kernels.RBF(variance=2.0, lengthscale=0.9)
DATA = {
    "logistic": (sites.Logistic(), np.where(F + 0.5 * RNG.standard_normal(N) > 0.5, 1, 0)),
    "poisson": (sites.Poisson(), RNG.poisson(np.exp(F))),
    "student-t": (sites.StudentT(4.0, 0.3), F + 0.3 * RNG.standard_t(4, N)),
    "gaussian": (sites.Gaussian(0.3), F + 0.3 * RNG.standard_normal(N)),
}


def fixed(model, y):
    return model.fit(y, hyper="fixed")


def process(rows, site, inducing=None):
    return klimb.gp(KERNEL, X[rows], site, inducing=inducing, mean=ConstantMean(0.4))


@pytest.mark.parametrize("inducing", [None, X[:30]], ids=["full", "inducing"])
@pytest.mark.parametrize("name", DATA)
def test_update_is_the_full_refit_for_less(name, inducing):
    site, y = DATA[name]
    old = process(slice(0, OLD), site, inducing)
    refit = fixed(process(slice(0, N), site, inducing), y)
    result = fixed(old, y[:OLD]).update(X[OLD:], y[OLD:])
    assert result.converged
    assert abs(result.bound - refit.bound) < 1e-6
    np.testing.assert_allclose(result.posterior.m, refit.posterior.m, atol=1e-5)
    np.testing.assert_array_equal(result.model.X, X)
    assert result.history.n_factor.sum() <= refit.history.n_factor.sum()


@pytest.mark.parametrize("inducing", [None, X[:30]], ids=["full", "inducing"])
@pytest.mark.parametrize("name", ["logistic", "poisson", "student-t"])
def test_a_few_new_data_cost_a_fraction(name, inducing):
    site, y = DATA[name]
    old = process(slice(0, N - 1), site, inducing)
    refit = fixed(process(slice(0, N), site, inducing), y)
    result = fixed(old, y[:-1]).update(X[-1:], y[-1:])
    assert abs(result.bound - refit.bound) < 1e-6
    assert result.history.n_factor.sum() <= 0.75 * refit.history.n_factor.sum()


def test_data_one_after_the_other():
    site, y = DATA["poisson"]
    fit = fixed(process(slice(0, 50), site), y[:50])
    for i in range(50, 60):
        fit = fit.update(X[i : i + 1], y[i : i + 1])
    assert abs(fit.bound - fixed(process(slice(0, 60), site), y[:60]).bound) < 1e-6


def test_parameters_that_are_one_per_datum():
    exposure = RNG.random(N) + 0.5
    y = RNG.poisson(exposure * np.exp(F))
    both, before = sites.Poisson(exposure=exposure), sites.Poisson(exposure=exposure[:OLD])
    old = fixed(process(slice(0, OLD), before), y[:OLD])
    with pytest.raises(InputError, match="Poisson has one exposure per datum, so new data need theirs; got 240 values"):
        old.update(X[OLD:], y[OLD:])
    result = old.update(X[OLD:], y[OLD:], site=both)
    assert abs(result.bound - fixed(process(slice(0, N), both), y).bound) < 1e-6


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("v", [1e-6, 1.0, 50.0])
def test_local_sites_are_near_each_datum_s_own_optimum(name, v):
    """Against a process of one point each, which is what N(m, v) is."""
    site, y = DATA[name]
    m = RNG.standard_normal(20)
    latent = klimb.latents.Kernel(v * np.eye(20), mean=m)
    around = Posterior(latent, np.zeros(20), np.zeros(20), m, np.full(20, v), 0.0)
    slope, gamma = local_sites(Problem(latent, site, y[:20]), m, np.full(20, v), around)
    assert np.isfinite(slope + gamma).all()
    found = klimb.infer(latent, site, y[:20]).bound
    variance = v / (1 + gamma * v)
    mean = m + variance * (slope - gamma * m)
    kl = 0.5 * ((mean - m) ** 2 / v + variance / v - 1 - np.log(variance / v))
    bound = (site.expect(y[:20], mean, variance).value - kl).sum()
    assert bound <= found + 1e-6
    if name != "student-t":
        assert found - bound < 0.1 * 20


def test_a_summary_is_exact_for_gaussian_data():
    site, y = DATA["gaussian"]
    Z = X[:30]
    summary = fixed(process(slice(0, 100), site, Z), y[:100]).summarise()
    for begin in range(100, N, 40):
        part = slice(begin, min(begin + 40, N))
        summary = summary.absorb(X[part], y[part])
    fit = fixed(process(slice(0, N), site, Z), y)
    assert summary.n_seen == N
    assert summary.weight_mean.shape == (30,)
    assert abs(summary.bound - fit.bound) < 1e-6
    new = RNG.random((50, 2)) * 5
    np.testing.assert_allclose(summary.predict(new), fit.latents(new).moments(), atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson", "student-t"])
def test_a_summary_is_close_for_other_data(name):
    site, y = DATA[name]
    Z = X[:30]
    summary = fixed(process(slice(0, 160), site, Z), y[:160]).summarise().absorb(X[160:], y[160:])
    fit = fixed(process(slice(0, N), site, Z), y)
    assert summary.status.name == "CONVERGED"
    m, v = fit.latents(X[:50] + 0.05).moments()
    found, spread = summary.predict(X[:50] + 0.05)
    assert (np.abs(found - m) < 0.5 * np.sqrt(v)).all()
    np.testing.assert_allclose(spread, v, rtol=0.25)
    assert abs(summary.bound - fit.bound) < 2.0


def test_a_summary_predicts_as_its_model():
    site, y = DATA["logistic"]
    fit = fixed(process(slice(0, N), site, X[:30]), y)
    new = RNG.random((20, 2)) * 4
    np.testing.assert_allclose(fit.summarise().predict(new), fit.latents(new).moments(), atol=1e-9)


def test_errors():
    site, y = DATA["logistic"]
    fit = fixed(process(slice(0, OLD), site), y[:OLD])
    with pytest.raises(InputError, match="at one value of its hyperparameters, with its data"):
        replace(fit, data=None).update(X[:1], y[:1])
    with pytest.raises(InputError, match=r"X_new must have 2 columns; got shape \(20, 1\)"):
        fit.update(X[OLD:, 0], y[OLD:])
    with pytest.raises(InputError, match="y_new must have 20 entries; got 19"):
        fit.update(X[OLD:], y[OLD + 1 :])
    with pytest.raises(InputError, match="a summary needs inducing points"):
        fit.summarise()
