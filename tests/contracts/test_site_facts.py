"""What every site of the registry promises: derivatives, normalisation, declared facts, starts."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate

from klimb import sites
from klimb.sites import SITES
from klimb.sites.base import Site

# One or more instances of every class; a class that is missing here fails `test_every_site_is_covered`.
INSTANCES: dict[str, Site] = {
    "Logistic": sites.Logistic(),
    "Probit": sites.Probit(),
    "CLogLog": sites.CLogLog(),
    "Binomial": sites.Binomial(trials=9),
    "Poisson": sites.Poisson(),
    "Poisson exposure": sites.Poisson(exposure=0.02),
    "NegativeBinomial": sites.NegativeBinomial(size=1.7),
    "Exponential": sites.Exponential(),
    "Exponential mean": sites.Exponential(mean=True),
    "Gamma": sites.Gamma(shape=2.3),
    "Weibull": sites.Weibull(shape=1.4),
    "Gaussian": sites.Gaussian(scale=0.6),
    "Laplace": sites.Laplace(scale=0.6),
    "StudentT": sites.StudentT(df=3.0, scale=0.6),
    "ExponentialPower": sites.ExponentialPower(scale=0.6, power=1.4),
    "ExponentialPower cusp": sites.ExponentialPower(scale=0.6, power=0.7),
    "Sech2": sites.Sech2(scale=0.6),
    "StochasticVolatility": sites.StochasticVolatility(),
    "Ordinal": sites.Ordinal(cutpoints=[-1.0, 0.2, 2.0]),
    "Ordinal probit": sites.Ordinal(cutpoints=[-1.0, 0.2, 2.0], link="probit"),
    "Beta": sites.Beta(precision=4.0),
}
DATA: dict[str, list[float]] = {
    "Binomial": [0, 3, 9], "Poisson": [0, 2, 40], "NegativeBinomial": [0, 2, 40], "Exponential": [0.0, 0.3, 4.0],
    "Gamma": [0.3, 4.0], "Weibull": [0.3, 4.0], "Gaussian": [-1.0, 2.0], "Laplace": [-1.0, 2.0],
    "StudentT": [-1.0, 2.0], "ExponentialPower": [-1.0, 2.0], "Sech2": [-1.0, 2.0],
    "StochasticVolatility": [-2.0, 0.0, 0.1], "Ordinal": [0, 1, 2, 3], "Beta": [0.02, 0.5, 0.9],
}
MEANS, VARIANCES = (-6.0, -1.0, 0.0, 0.7, 4.0), (1e-6, 1e-2, 0.3, 2.0, 20.0, 300.0)

each_site = pytest.mark.parametrize("site", INSTANCES.values(), ids=list(INSTANCES))


def data(site: Site) -> np.ndarray:
    return site.validate(DATA.get(type(site).__name__, [0, 1]))


def grid(site: Site) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y, m, v = np.meshgrid(data(site), MEANS, VARIANCES, indexing="ij")
    return y.ravel(), m.ravel(), v.ravel()


@each_site
def test_the_value_alone_is_that_of_a_point(site: Site) -> None:
    y, f = (values.ravel() for values in np.meshgrid(data(site), [-40.0, *MEANS, 40.0], indexing="ij"))
    f = np.stack([f, 0.5 * f])
    np.testing.assert_allclose(site.value(y, f), site.point(y, f).value, rtol=1e-14)


@each_site
def test_slopes_in_parameters_are_differences_of_the_expectation(site: Site) -> None:
    y, m, v = grid(site)
    counts = 1.0 + np.arange(len(y)) % 3
    found = sites.Weighted(sites.Offset(site, 0.4), counts).parameter_slopes(y, m, v)
    if found is None:  # then the likelihood takes differences itself
        return
    for name, slopes in found.items():
        here = np.atleast_1d(np.asarray(getattr(site, name), dtype=float))
        for k, slope in enumerate(np.atleast_1d(slopes)):
            move = 1e-5 * np.eye(len(here))[k]
            up, down = (replace(site, **{name: here + step if len(here) > 1 else float((here + step)[0])})
                        for step in (move, -move))
            terms = counts * (up.expect(y, m + 0.4, v).value - down.expect(y, m + 0.4, v).value) / 2e-5
            assert slope == pytest.approx(terms.sum(), rel=1e-6, abs=1e-7 * np.abs(terms).sum())


def test_every_site_is_covered() -> None:
    assert {type(site) for site in INSTANCES.values()} == set(SITES.values())


@each_site
def test_facts_are_declared(site: Site) -> None:
    assert isinstance(site.log_concave, bool)
    assert isinstance(site.super_gaussian, bool)
    assert isinstance(site.discrete, bool)
    assert site.gamma_trend in ("rising", "falling", "constant", "mixed")
    assert site.support


@each_site
def test_alpha_is_minus_the_derivative_in_m(site: Site) -> None:
    y, m, v = grid(site)
    h = 1e-3 * np.sqrt(1e-2 + v)
    e = site.oracle(y, m, v)
    values = [site.oracle(y, m + k * h, v).value for k in (-2, -1, 1, 2)]
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
    size = np.abs(e.alpha) + h * np.abs(e.gamma) + 1e-13 * np.abs(e.value) / h
    kink = np.sqrt(v) < 10 * h  # Laplace: the differences see the kink
    np.testing.assert_array_less(np.abs(slope + e.alpha)[~kink], (3e-8 * size + 1e-10)[~kink])


@each_site
def test_gamma_is_minus_twice_the_derivative_in_v(site: Site) -> None:
    y, m, v = grid(site)
    h = 1e-3 * np.minimum(v, 1.0)
    e = site.oracle(y, m, v)
    values = [site.oracle(y, m, v + k * h).value for k in (-2, -1, 1, 2)]
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
    bound = 1e-8 * np.abs(e.gamma) + 1e-14 * np.abs(e.value) / h + 1e-12
    np.testing.assert_array_less(np.abs(2 * slope + e.gamma), bound)


@each_site
def test_no_variance_is_the_point(site: Site) -> None:
    y, m, _ = grid(site)
    e, p = site.oracle(y, m, np.zeros_like(m)), site.point(y, m)
    for name in ("value", "alpha", "gamma"):
        np.testing.assert_allclose(getattr(e, name), getattr(p, name), rtol=1e-14, atol=0)


@each_site
def test_tiny_variance_is_close_to_the_point(site: Site) -> None:
    y, m, _ = grid(site)
    m = m + 0.012345
    e, p = site.oracle(y, m, np.full_like(m, 1e-13)), site.point(y, m)
    for name in ("value", "alpha", "gamma"):
        np.testing.assert_allclose(getattr(e, name), getattr(p, name), rtol=1e-9, atol=1e-12)


@each_site
@pytest.mark.parametrize("f", [-2.0, 0.3, 1.5])
def test_density_is_normalised(site: Site, f: float) -> None:
    if site.discrete:
        binary = np.array([-1.0, 1.0])
        levels = {"Binomial": np.arange(10.0), "Ordinal": np.arange(4.0), "Logistic": binary, "Probit": binary,
                  "CLogLog": binary}.get(type(site).__name__, np.arange(600.0))
        total = np.exp(site.log_density(levels, np.full(len(levels), f))).sum()
    else:
        low, high = {"[0, inf)": (0.0, np.inf), "(0, inf)": (0.0, np.inf), "(0, 1)": (0.0, 1.0)}.get(
            site.support, (-np.inf, np.inf))

        def density(y: float) -> float:
            return float(np.exp(site.log_density([y], [f]))[0])

        inner = 0.5 if high == 1.0 else 1.0 if low == 0.0 else f
        total = sum(integrate.quad(density, a, b, epsabs=1e-11, limit=200)[0] for a, b in ((low, inner), (inner, high)))
    assert total == pytest.approx(1.0, abs=2e-8)


@each_site
def test_oracle_is_the_integral_of_the_point(site: Site) -> None:
    rng = np.random.default_rng(5)
    for y in data(site):
        m, s = rng.normal() * 2.0, float(np.exp(rng.normal()))
        if not site.smooth:
            m, s = y + 6.0 * s, s * 0.5  # away from the kink, where the curvature is a point mass
        clean = np.array([y])
        e = site.oracle(clean, np.array([m]), np.array([s * s]))
        for name in ("value", "alpha", "gamma"):
            def integrand(z: float, name: str = name, clean: np.ndarray = clean, m: float = m, s: float = s) -> float:
                part = getattr(site.point(clean, np.array([m + s * z])), name)
                return float(part[0]) * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", integrate.IntegrationWarning)
                expected = integrate.quad(integrand, -14.0, 18.0, points=(-3.0, 0.0, 3.0), epsabs=1e-13, limit=400)[0]
            assert getattr(e, name)[0] == pytest.approx(expected, rel=1e-8, abs=3e-7)


@each_site
def test_log_concave_means_gamma_is_not_negative(site: Site) -> None:
    e = site.oracle(*grid(site))
    if site.log_concave:
        assert (e.gamma >= 0.0).all()
    else:
        y, f = np.repeat(data(site), 401), np.tile(np.linspace(-40.0, 40.0, 401), data(site).size)
        assert (site.point(y, f).gamma < 0.0).any()


@each_site
def test_gamma_trend(site: Site) -> None:
    m = np.repeat(MEANS, 40)
    v = np.tile(np.geomspace(1e-3, 300.0, 40), len(MEANS))
    trends = set()
    for y in data(site):
        gamma = site.oracle(np.full_like(m, y), m, v).gamma.reshape(len(MEANS), 40)
        change, size = np.diff(gamma, axis=1), np.abs(gamma[:, 1:]) + 1e-300
        trends |= {int(k) for k in np.unique(np.sign(np.where(np.abs(change) > 1e-12 * size, change, 0.0)))}
    expected = {"rising": {1}, "falling": {-1}, "constant": set(), "mixed": {-1, 1}}[site.gamma_trend]
    assert trends - {0} == expected


@each_site
def test_super_gaussian(site: Site) -> None:
    """log p(y|f) - slope f is even around some centre, and convex and falling in the square of the distance."""
    if not site.super_gaussian:
        return
    x = np.linspace(0.05, 8.0, 200)
    for y in data(site):
        declared, centre = (float(part[0]) for part in site.symmetry(np.array([y])))
        right = site.point(np.full_like(x, y), centre + np.sqrt(x)).value
        left = site.point(np.full_like(x, y), centre - np.sqrt(x)).value
        even = 0.5 * (right + left)
        slope = (right - left) / (2.0 * np.sqrt(x))
        np.testing.assert_allclose(slope, declared, atol=1e-10)
        assert (np.diff(even) < 0.0).all()
        assert (np.diff(even, 2) > -1e-15).all()


@each_site
def test_start_is_a_proper_site(site: Site) -> None:
    slope, gamma = site.start(data(site))
    assert slope.shape == gamma.shape == data(site).shape
    assert np.isfinite(slope).all()
    assert np.isfinite(gamma).all()
    assert (gamma >= 0.0).all()


@each_site
def test_parameters_per_datum_are_those_of_each_datum(site: Site) -> None:
    y, m, v = grid(site)
    stretched = {name: np.full(y.size, float(getattr(site, name))) for name in site.per_datum}
    if not stretched:
        return
    vector = type(site)(**stretched)
    some = np.array([1, 5, 7, 20])
    whole, scalar = vector.oracle(y, m, v), site.oracle(y, m, v)
    part = vector.rows(some).oracle(y[some], m[some], v[some])
    for name in ("value", "alpha", "gamma"):
        np.testing.assert_allclose(getattr(whole, name), getattr(scalar, name), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(getattr(part, name), getattr(whole, name)[some], rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(np.broadcast_to(vector.constant(y), y.shape),
                                   np.broadcast_to(site.constant(y), y.shape), rtol=1e-14, atol=0)


@each_site
def test_point_broadcasts_over_leading_axes(site: Site) -> None:
    y = data(site)
    f = np.linspace(-2.0, 2.0, 3)[:, None] + np.zeros(y.size)
    e = site.point(y, f)
    for row, latent in zip(e.value, f, strict=True):
        np.testing.assert_array_equal(row, site.point(y, latent).value)


@each_site
def test_extremes_give_no_nan_and_no_warning(site: Site) -> None:
    corners = np.array([(m, v) for m in (-300.0, -1.0, 0.0, 300.0) for v in (0.0, 1e-12, 1.0, 300.0, 1e6)])
    for y in data(site):
        e = site.expect(np.full(len(corners), y), corners[:, 0], corners[:, 1])
        assert not np.isnan(np.stack((e.value, e.alpha, e.gamma))).any()
