"""Predictions of every site: log densities against stored mpmath integrals, moments, quantiles, probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit

import klimb.sites as sites
from klimb.errors import InputError
from klimb.sites.prediction import predictive_cdf

REFERENCES = json.loads((Path(__file__).parents[1] / "references" / "prediction_references.json").read_text())
M, V = np.array([-2.0, 0.0, 0.4, 1.5]), np.array([1e-6, 0.3, 1.0, 4.0])


def site_of(name):
    return eval(name, vars(sites))


def digits(found, exact, discrete):
    scale = np.maximum(np.abs(exact), 0.0 if discrete else 1.0)
    error = np.divide(np.abs(found - exact), scale, out=np.zeros_like(scale), where=found != exact)
    return -np.log10(np.maximum(error, 1e-17))


@pytest.mark.parametrize("name", REFERENCES)
def test_log_density_has_its_digits(name):
    site = site_of(name)
    y, m, v, exact = np.array(REFERENCES[name]).T
    found = digits(site.predict(m, v).log_density(y), exact, site.discrete)
    assert found.min() >= 12.0, f"{found.min():.1f} digits at {REFERENCES[name][int(found.argmin())]}"


def test_every_site_has_references():
    assert {name.split("(")[0] for name in REFERENCES} == set(sites.SITES)


@pytest.mark.parametrize("name", REFERENCES)
def test_no_nan_over_the_wide_range(name):
    site = site_of(name)
    m, v = (a.ravel() for a in np.meshgrid([-300.0, -30.0, 0.0, 3.0, 300.0], [0.0, 1e-12, 1e-3, 1.0, 100.0, 1e6]))
    p = site.predict(m, v)
    for y in np.unique(np.array(REFERENCES[name])[:, 0]):
        log_density = p.log_density(y)
        assert not np.isnan(log_density).any()
        assert not np.any(log_density == np.inf)
        if site.discrete:
            assert np.all(log_density <= 0.0)
    assert not np.isnan(p.mean).any()
    assert not np.isnan(p.var).any()
    assert np.all(p.var >= 0.0)


# -- densities and probabilities add up to one, and their moments are the moments


@pytest.mark.parametrize("site", [sites.Poisson(2.0), sites.NegativeBinomial(1.5), sites.Binomial(12)], ids=repr)
def test_counts_add_up(site):
    m, v = np.array([-1.0, 0.4, 1.2]), np.array([0.05, 0.01, 0.1])
    p = site.predict(m, v)
    top = 13 if isinstance(site, sites.Binomial) else 400
    k = np.arange(top, dtype=float)
    every = site.predict(np.tile(m, top), np.tile(v, top))
    mass = np.exp(every.log_density(np.repeat(k, 3))).reshape(top, 3)
    assert_allclose(mass.sum(axis=0), 1.0, rtol=1e-11)
    mean = k @ mass
    assert_allclose(p.mean, mean, rtol=1e-9)
    assert_allclose(p.var, np.einsum("kn,kn->n", (k[:, None] - mean) ** 2, mass), rtol=1e-6)
    for level in (0.05, 0.5, 0.99):
        found = p.quantile(level)
        cumulative = np.cumsum(mass, axis=0)
        assert_allclose(found, np.argmax(cumulative >= level, axis=0))


@pytest.mark.parametrize(("site", "grid", "y_of"), [
    (sites.Gaussian(0.7), (-4.0, 4.0), np.sinh),
    (sites.Laplace(0.7), (-5.0, 5.0), np.sinh),
    (sites.StudentT(9.0, 0.7), (-9.0, 9.0), np.sinh),
    (sites.StochasticVolatility(), (-4.5, 4.5), np.sinh),
    (sites.Exponential(), (-32.0, 7.0), np.exp),
    (sites.Exponential(mean=True), (-32.0, 8.0), np.exp),
    (sites.Gamma(2.5), (-14.0, 7.0), np.exp),
    (sites.Beta(4.0), (-30.0, 30.0), expit),
], ids=lambda x: repr(x) if isinstance(x, sites.Site) else "")
def test_densities_add_up(site, grid, y_of):
    m, v = 0.4, 0.3
    p = site.predict(m, v)
    t = np.linspace(*grid, 2401)
    y = y_of(t)
    slope = {np.sinh: np.cosh(t), np.exp: y, expit: y * expit(-t)}[y_of]
    density = np.exp(site.predict(np.full(t.size, m), v).log_density(y)) * slope  # of t
    mean = np.trapezoid(y * density, t)
    # The trapezoidal rule is as good as exact where the density has no kink.
    assert_allclose(np.trapezoid(density, t), 1.0, rtol=1e-6 if y_of is expit else 1e-9)
    assert_allclose(p.mean[0], mean, rtol=1e-6, atol=1e-8)
    assert_allclose(p.var[0], np.trapezoid((y - mean) ** 2 * density, t), rtol=1e-6)
    cumulative = np.cumsum(density) * (t[1] - t[0])  # to half a step
    for level in (0.02, 0.5, 0.9):
        q = p.quantile(level)
        assert_allclose(predictive_cdf(site, q, np.array([m]), np.array([v])), level, rtol=1e-11)
        assert abs(np.interp(q[0], y, cumulative - 0.5 * density * (t[1] - t[0])) - level) < 1e-4


def test_quantiles_of_gaussians_and_of_certain_latents():
    p = sites.Gaussian(2.0).predict(M, V)
    assert_allclose(p.quantile([0.1, 0.9]), stats.norm.ppf([[0.1, 0.9]] * 4, M[:, None], np.sqrt(V + 4.0)[:, None]))
    at = np.array([0.3, 2.0])
    for site, exact in [(sites.Gamma(3.0), stats.gamma.ppf(0.7, 3.0, scale=np.exp(at) / 3.0)),
                        (sites.Laplace(0.5), stats.laplace.ppf(0.7, at, 0.5)),
                        (sites.StudentT(3.0, 0.5), stats.t.ppf(0.7, 3.0, at, 0.5)),
                        (sites.StochasticVolatility(), stats.norm.ppf(0.7, 0.0, np.exp(at / 2))),
                        (sites.Exponential(), stats.expon.ppf(0.7, scale=np.exp(-at))),
                        (sites.Poisson(), stats.poisson.ppf(0.7, np.exp(at))),
                        (sites.Binomial(9), stats.binom.ppf(0.7, 9, 1 / (1 + np.exp(-at)))),
                        (sites.NegativeBinomial(2.0), stats.nbinom.ppf(0.7, 2.0, 2 / (2 + np.exp(at))))]:
        assert_allclose(site.predict(at, 0.0).quantile(0.7), exact, rtol=1e-10, err_msg=repr(site))
    assert_allclose(sites.StochasticVolatility().predict(at, 1.0).quantile(0.3),
                    -sites.StochasticVolatility().predict(at, 1.0).quantile(0.7), rtol=1e-12)


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Probit(), sites.CLogLog(), sites.Ordinal([-1.0, 0.3, 2.0]),
                                  sites.Ordinal([-1.0, 0.3, 2.0], link="probit")], ids=repr)
def test_class_probabilities(site):
    m, v = (a.ravel() for a in np.meshgrid([-200.0, -3.0, 0.0, 0.7, 30.0], [0.0, 1e-8, 1.0, 50.0, 1e6]))
    p = site.predict(m, v)
    table = p.probabilities()
    assert_allclose(table.sum(axis=1), 1.0, atol=1e-15)
    assert np.all(table >= 0.0)
    levels = np.arange(table.shape[1])
    assert_allclose(p.mean, table @ levels, rtol=1e-15)
    coded = site.labels()
    for k in levels:
        # relative accuracy in the log density, also where a class is all but certain or all but impossible
        assert_allclose(table[:, k], np.exp(p.log_density(coded[k])), rtol=1e-12, atol=1e-300)
    assert_allclose(p.quantile(0.5), np.argmax(np.cumsum(table, axis=1) >= 0.5, axis=1))


def test_nearly_certain_counts_keep_their_digits():
    # P(y > 0) = E e^f to first order
    p = sites.Poisson().predict([-60.0], [1.0])
    assert_allclose(p.log_density([0]), -np.exp(-59.5), rtol=1e-12)


def test_moments_that_do_not_exist():
    assert np.isnan(sites.StudentT(1.0).predict([0.0], [1.0]).mean).all()
    assert np.isnan(sites.StudentT(0.5).predict([0.0], [1.0]).var).all()
    p = sites.StudentT(np.array([1.5, 3.0]), 2.0).predict([1.0, 1.0], [1.0, 1.0])
    assert_allclose(p.mean, 1.0)
    assert_allclose(p.var, [np.inf, 13.0])
    assert np.isinf(sites.Poisson().predict([0.0], [1e6]).mean).all()


def test_parameters_per_datum_and_one_y_for_all():
    site = sites.Binomial(trials=[5.0, 7.0])
    p = site.predict([0.0, 0.0], 1.0)
    assert_allclose(p.log_density(2), [sites.Binomial(5).predict(0.0, 1.0).log_density(2)[0],
                                       sites.Binomial(7).predict(0.0, 1.0).log_density(2)[0]], rtol=1e-14)


def test_errors_have_three_parts():
    p = sites.Gaussian(1.0).predict([0.0], [1.0])
    with pytest.raises(InputError, match=r"need a site whose y is a class; got Gaussian.*Use log_d"):
        p.probabilities()
    with pytest.raises(InputError, match=r"strictly between 0 and 1; got 1.0 at index 1 .*Pass levels"):
        p.quantile([0.5, 1.0])
    with pytest.raises(InputError, match=r"variance v must be at least 0; got -1.0 at index 1"):
        sites.Gaussian(1.0).predict([0.0, 0.0], [1.0, -1.0])
    with pytest.raises(InputError, match=r"m must be finite; got nan at index 0"):
        sites.Gaussian(1.0).predict([np.nan], [1.0])
    with pytest.raises(InputError, match=r"m and v must have one length .*; got shapes \(2,\), \(3,\)"):
        sites.Gaussian(1.0).predict([0.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"1 dimension; got shape \(1, 2\)"):
        sites.Gaussian(1.0).predict([[0.0, 1.0]], 1.0)
    with pytest.raises(InputError, match="one trials per datum"):
        sites.Binomial(trials=[5.0, 7.0]).predict([0.0, 0.0, 0.0], 1.0)
    with pytest.raises(InputError, match="Logistic needs y in"):
        sites.Logistic().predict([0.0], [1.0]).log_density([3])
