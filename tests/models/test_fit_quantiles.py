"""Quantiles of mixtures: of normals, and of predictive distributions, against their own distribution functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, ndtr

from klimb import likelihoods, sites
from klimb.models.components import Latents, marginal_quantiles
from klimb.models.prediction import mean_moments, response_quantile
from klimb.numerics.mixtures import mixture_above, mixture_moments, mixture_quantile, sd_beyond
from klimb.sites.prediction import predictive_cdf

RNG = np.random.default_rng(4)
WEIGHTS = RNG.dirichlet(np.ones(6))


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 50.0])
@pytest.mark.parametrize("p", [0.001, 0.05, 0.5, 0.975])
def test_quantiles_of_normals(scale, p):
    means, sds = scale * RNG.standard_normal((6, 40)), np.exp(RNG.standard_normal((6, 40)))
    found = mixture_quantile(WEIGHTS, means, sds, p)
    np.testing.assert_allclose(WEIGHTS @ ndtr((found - means) / sds), p, atol=1e-9)


@pytest.mark.parametrize(("p", "means", "sds"), [
    (0.3, [-5.5, -0.8, 5.8, -2.3, 5.2, 2.1], [2.5, 2.4, 0.5, 0.2, 0.8, 7.8]),
    (0.5, [-1.3, -2.8, -4.3, -6.5, -3.1, 8.4], [1.6, 0.3, 0.9, 12.9, 3.2, 0.7]),
])
def test_newton_would_go_back_and_forth_between_parts_that_lie_apart(p, means, sds):
    """It ends 0.18 and 0.11 of the mass away after a hundred steps."""
    every, rng = np.full(6, 1.0 / 6.0), np.random.default_rng(0)
    means = np.column_stack([means, 3.0 * rng.standard_normal((6, 2_000))])
    sds = np.column_stack([sds, 0.1 + np.exp(rng.standard_normal((6, 2_000)))])
    found = mixture_quantile(every, means, sds, p)
    np.testing.assert_allclose(every @ ndtr((found - means) / sds), p, atol=1e-9)


def test_mean_and_sd_of_a_chance_from_few_nodes_are_those_of_many():
    likelihood = likelihoods.likelihood("bernoulli")
    model = SimpleNamespace(likelihood=likelihood, new_site=lambda _: sites.Logistic())
    m, sd = (grid.ravel() for grid in np.meshgrid(np.linspace(-25.0, 25.0, 101), [0.0, 0.05, 0.3, 0.499, 0.6, 2.0]))
    mean, variance = mean_moments(model, m, sd**2)
    nodes, mass = np.polynomial.hermite_e.hermegauss(180)
    p = expit(m + sd * nodes[:, None])
    expected = mass @ p / mass.sum()
    np.testing.assert_allclose(mean, expected, rtol=2e-10)
    np.testing.assert_allclose(variance, mass @ (p - expected) ** 2 / mass.sum(), rtol=1e-5, atol=1e-25)


def test_parts_without_width():
    means, sds = np.array([[0.0], [1.0]]), np.zeros((2, 1))
    found = mixture_quantile(np.array([0.4, 0.6]), means, sds, 0.5)
    assert found[0] == pytest.approx(1.0, abs=1e-6)
    assert mixture_above(np.array([0.4, 0.6]), means, sds)[0] == pytest.approx(0.8)  # a point at 0 counts half
    mean, variance = mixture_moments(np.array([0.4, 0.6]), means, sds)
    assert (mean[0], variance[0]) == (pytest.approx(0.6), pytest.approx(0.24))


SITES = {
    "gaussian": [sites.Gaussian(s) for s in (0.4, 0.5, 0.6, 0.7, 0.9, 1.2)],
    "laplace": [sites.Laplace(s) for s in (0.4, 0.5, 0.6, 0.7, 0.9, 1.2)],
    "student": [sites.StudentT(df, 0.5) for df in (2.0, 3.0, 4.0, 6.0, 9.0, 20.0)],
    "gamma": [sites.Gamma(s) for s in (0.5, 0.8, 1.0, 2.0, 5.0, 9.0)],
    "beta": [sites.Beta(s) for s in (1.0, 2.0, 3.0, 5.0, 8.0, 20.0)],
    "exponential": [sites.Exponential(mean=True)] * 6,
}
COUNTS = {
    "poisson": [sites.Poisson()] * 6,
    "negative binomial": [sites.NegativeBinomial(s) for s in (0.2, 0.5, 1.0, 2.0, 9.0, 50.0)],
    "binomial": [sites.Binomial(30.0)] * 6,
}


def latents(spread):
    m = 0.5 + spread * RNG.standard_normal((6, 5))
    return Latents(WEIGHTS, m, 0.3 * np.exp(spread * RNG.standard_normal((6, 5))), ())


def distribution(f, parts, y):
    return sum(w * predictive_cdf(s, y, m, v) for w, s, m, v in zip(f.weights, parts, f.m, f.v, strict=True))


@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("spread", [0.05, 0.8])
@pytest.mark.parametrize("name", SITES)
def test_quantiles_of_measurements(name, spread, p):
    f, parts = latents(spread), SITES[name]
    np.testing.assert_allclose(distribution(f, parts, response_quantile(f, parts, p)), p, atol=2e-6)


@pytest.mark.parametrize("p", [0.05, 0.95])
def test_quantiles_at_steep_ends(p):
    """Secants alone miss one beta mixture in four."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        f = Latents(WEIGHTS, 0.5 + 0.8 * rng.standard_normal((6, 5)), 0.3 * np.exp(rng.standard_normal((6, 5))), ())
        y = response_quantile(f, SITES["beta"], p)
        assert (np.abs(distribution(f, SITES["beta"], y) - p) < 2e-6)[y < 1.0 - 1e-11].all()


@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("spread", [0.05, 0.8])
@pytest.mark.parametrize("name", COUNTS)
def test_quantiles_of_counts(name, spread, p):
    f, parts = latents(spread), COUNTS[name]
    found = response_quantile(f, parts, p)
    assert (distribution(f, parts, found) >= p).all()
    below = found - 1.0
    assert (np.where(below >= 0, distribution(f, parts, np.maximum(below, 0.0)), 0.0) < p).all()


@pytest.mark.parametrize("sd", [0.5, 1.0, 1.2])
def test_the_sd_that_lies_beyond_a_lattice(sd: float) -> None:
    """Log-normal values on a lattice that ends seven nats down, against the sd that is known."""
    z = np.arange(-4, 5) * 0.9
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    x = np.exp(sd * z)
    own = np.sqrt(weights @ (x - weights @ x) ** 2)
    lost = np.sqrt(np.exp(2.0 * sd**2) - np.exp(sd**2)) / own - 1.0
    assert 0.8 * lost < sd_beyond(x, -0.5 * z**2, 4.5) < 2.0 * lost
    assert sd_beyond(z, -0.5 * z**2, 4.5) == 0.0  # not positive


def test_one_point_alone_has_its_value_as_every_quantile() -> None:
    """A lattice may end at its first node; bins as wide as the last digit of 14 stopped it."""
    for value in (14.148426196463543, -0.25, 0.0, 3e8):
        np.testing.assert_allclose(marginal_quantiles(np.array([[value]]), np.ones(1)), value, rtol=1e-7, atol=1e-7)
