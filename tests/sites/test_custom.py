"""Custom: built-in sites rebuilt from their log densities, kinks, derivatives, predictions, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit, log_expit

import klimb.sites as sites
from klimb.errors import InputError
from klimb.sites import Custom

BUILT_IN = [
    (sites.Logistic(), [1.0, -1.0]), (sites.Probit(), [1.0, -1.0]), (sites.CLogLog(), [1.0, -1.0]),
    (sites.Binomial(7), [0.0, 3.0]), (sites.Poisson(2.0), [0.0, 5.0]), (sites.NegativeBinomial(1.5), [0.0, 5.0]),
    (sites.Exponential(), [0.2, 3.0]), (sites.Exponential(mean=True), [0.2, 3.0]), (sites.Gamma(2.0), [0.2, 3.0]),
    (sites.Gaussian(0.7), [-1.0, 3.0]), (sites.Laplace(0.7), [-1.0, 3.0]), (sites.StudentT(4.0, 0.7), [-1.0, 3.0]),
    (sites.StochasticVolatility(), [0.1, -2.0]), (sites.Ordinal([-1.0, 1.0]), [0.0, 1.0]),
    (sites.Ordinal([-1.0, 1.0], link="probit"), [1.0, 2.0]), (sites.Beta(4.0), [0.1, 0.6]),
]
every_site = pytest.mark.parametrize(("site", "data"), BUILT_IN, ids=[repr(site) for site, _ in BUILT_IN])
SUPPORT = {"counts": "counts", "real": "real", "positive": "positive", "unit": "unit"}


def rebuilt(site, **more):
    """The site from its log density, values only."""
    support = SUPPORT.get(site.response) or site.labels()
    return Custom(lambda y, f: site.point(y, f).value + site.constant(y), log_concave=site.log_concave, support=support,
                  **more)


def everyday(data):
    y, m, v = np.meshgrid(data, [-3.0, -0.4, 0.0, 1.1, 4.0], 10.0 ** np.arange(-4.0, 2.5))
    return y.ravel(), m.ravel(), v.ravel()


def close(found, expected, rtol, floor):
    assert np.all(np.abs(found - expected) <= rtol * np.abs(expected) + floor)


@every_site
def test_a_built_in_site_from_its_values(site, data):
    y, m, v = everyday(data)
    found, exact = rebuilt(site).expect(y, m, v), site.expect(y, m, v)
    close(found.value, exact.value, 1e-12, 1e-13)
    # Rounding of g is divided by a length (at most 1/2, at least sqrt(v) beside a kink) and its square: floors.
    size = 1.0 + np.abs(site.log_density(y, m))
    length = np.minimum(np.sqrt(v), 0.5) if isinstance(site, sites.Laplace) else 0.2
    close(found.alpha, exact.alpha, 1e-10, 1e-13 * size / length)
    close(found.gamma, exact.gamma, 1e-8, 1e-13 * size / length**2)


@every_site
def test_with_derivatives_nothing_is_lost(site, data):
    if isinstance(site, sites.Laplace):
        pytest.skip("a kink has no second derivative")

    def derivatives(y, f):
        e = site.point(y, f)
        return -e.alpha, -e.gamma

    y, m, v = everyday(data)
    found, exact = rebuilt(site, derivatives=derivatives).expect(y, m, v), site.expect(y, m, v)
    close(found.value, exact.value, 1e-12, 1e-13)
    close(found.alpha, exact.alpha, 1e-11, 1e-13)
    close(found.gamma, exact.gamma, 1e-11, 1e-13)


@every_site
def test_predictions_from_values(site, data):
    y, m, v = everyday(data)
    found = rebuilt(site).predict(m, v).log_density(y)
    close(found, site.predict(m, v).log_density(y), 1e-11, 1e-12)


@every_site
def test_the_start_is_proper_and_near_the_datum(site, data):
    custom = rebuilt(site)
    y = custom.validate(data)
    slope, gamma = custom.start(y)
    assert np.isfinite(slope).all()
    assert np.all((gamma > 0.0) & np.isfinite(gamma))
    # one step of a Gaussian prior N(0, 1) from there does not lose to no data at all
    mean = slope / (1.0 + gamma)
    assert np.all(site.point(y, mean).value >= site.point(y, np.zeros_like(mean)).value - 1e-9)


def test_five_lines_for_a_kink():
    site = Custom(lambda y, f: -np.abs(y - f), log_concave=True)
    exact = sites.Laplace(1.0)
    y, m = np.array([0.0, 2.0, -1.0]), np.array([0.0, 2.0 + 1e-6, 3.0])
    for v in (1e-10, 1e-6, 1e-2, 1.0, 1e4):
        found, expected = site.expect(y, m, v), exact.oracle(y, m, np.full(3, v))
        assert_allclose(found.value, expected.value, rtol=1e-12, atol=1e-15)
        assert_allclose(found.alpha, expected.alpha, rtol=1e-8, atol=1e-9)
        close(found.gamma, expected.gamma, 1e-8, 1e-14 / v)


def test_a_kink_starts_with_the_width_of_its_peak():
    slope, gamma = Custom(lambda y, f: -np.abs(y - f) / 0.1, log_concave=True).start(np.array([0.0, 7.0]))
    assert np.all((gamma > 50.0) & (gamma < 2000.0))
    assert_allclose(slope / gamma, [0.0, 7.0], atol=0.2)


def test_the_wide_range_has_no_nan_and_no_warning():
    site = Custom(lambda y, f: y * f - np.logaddexp(0.0, f), log_concave=True, support=[0, 1])
    exact = sites.Logistic()
    m, v = (a.ravel() for a in np.meshgrid([-300.0, -20.0, 0.3, 300.0], 10.0 ** np.arange(-12.0, 7.0, 2.0)))
    for label in (0.0, 1.0):
        found, expected = site.expect(np.full(m.size, label), m, v), exact.expect(np.full(m.size, label), m, v)
        close(found.value, expected.value, 1e-12, 1e-13)
        for part in (found.alpha, found.gamma):
            assert np.isfinite(part).all()
        close(found.alpha, expected.alpha, 1e-8, 1e-10)
        p = site.predict(m, v)
        assert np.isfinite(p.log_density(label)).all()
        assert_allclose(p.probabilities(), exact.predict(m, v).probabilities(), rtol=1e-10, atol=1e-14)


def test_zero_variance_is_the_point():
    site = Custom(lambda y, f: -0.5 * (y - f) ** 2)
    e = site.expect([1.0], [0.3], [0.0])
    assert_allclose([e.value[0], e.alpha[0], e.gamma[0]], [-0.245, -0.7, 1.0], rtol=1e-12)


def test_a_density_that_ends():
    site = Custom(lambda y, f: np.where(f > y, -(f - y), -np.inf), log_concave=True)  # y is a lower bound of f
    e = site.expect([0.0, -50.0], [0.0, 0.0], [1.0, 1.0])
    assert e.value[0] == -np.inf
    assert_allclose(e.value[1], -50.0, rtol=1e-13)
    assert not np.isnan([e.alpha, e.gamma]).any()
    log_z = site.predict([0.0], [1.0]).log_density([0.0])
    assert_allclose(log_z, 0.5 + stats.norm.logcdf(-1.0), rtol=1e-10)


def test_two_modes_are_both_found():
    site = Custom(lambda y, f: np.logaddexp(-0.5 * ((f - y) / 0.05) ** 2, -0.5 * ((f + y) / 0.05) ** 2))
    found = site.predict([1.0], [4.0]).log_density([3.0])
    parts = [stats.norm.pdf(centre, 1.0, np.sqrt(4.0 + 0.05**2)) for centre in (-3.0, 3.0)]
    assert_allclose(found, np.log(0.05 * np.sqrt(2.0 * np.pi) * sum(parts)), rtol=1e-9)


def test_args_are_one_per_datum():
    trials = np.array([3.0, 8.0, 5.0])
    site = Custom(lambda y, f, n: y * log_expit(f) + (n - y) * log_expit(-f), args=[trials], log_concave=True,
                  support="counts", cdf=lambda y, f, n: stats.binom.cdf(y, n, expit(f)),
                  moments=lambda f, n: (n * expit(f), n * expit(f) * expit(-f)))
    exact = sites.Binomial(trials)
    y, m, v = np.array([1.0, 8.0, 0.0]), np.array([0.3, -1.0, 2.0]), np.array([0.1, 1.0, 9.0])
    for wrapped in (site, sites.Weighted(site, 1.0)):
        found, expected = wrapped.oracle(y, m, v), exact.oracle(y, m, v)
        assert_allclose(found.value, expected.value, rtol=1e-13)
        assert_allclose(found.gamma, expected.gamma, rtol=1e-10)
    pair = np.stack([m, m + 1.0])
    assert_allclose(site.point(y, pair).gamma, exact.point(y, pair).gamma, rtol=1e-9)
    a, b = site.predict(m, v), exact.predict(m, v)
    assert_allclose(a.mean, b.mean, rtol=1e-12)
    assert_allclose(a.var, b.var, rtol=1e-11)
    assert_allclose(a.quantile([0.1, 0.6]), b.quantile([0.1, 0.6]))
    with pytest.raises(InputError, match=r"args\[0\] with one entry per datum, so y must have 3 entries; got 2"):
        site.validate([1.0, 2.0])


def test_moments_by_quadrature():
    site = Custom(lambda y, f: stats.norm.logpdf(y, f), moments=lambda f: (f, np.ones_like(f)),
                  cdf=lambda y, f: stats.norm.cdf(y, f))
    p = site.predict([0.5, -2.0], [2.0, 1e-8])
    assert_allclose(p.mean, [0.5, -2.0], rtol=1e-13)
    assert_allclose(p.var, [3.0, 1.0 + 1e-8], rtol=1e-12)
    assert_allclose(p.quantile(0.9), stats.norm.ppf(0.9, [0.5, -2.0], np.sqrt([3.0, 1.0 + 1e-8])), rtol=1e-10)
    growing = Custom(lambda y, f: stats.poisson.logpmf(y, np.exp(f)), support="counts",
                     moments=lambda f: (np.exp(f), np.exp(f)))
    q, r = growing.predict([0.5, 0.0], [2.0, 20.0]), sites.Poisson().predict([0.5, 0.0], [2.0, 20.0])
    assert_allclose(q.mean, r.mean, rtol=1e-11)
    assert_allclose(q.var, r.var, rtol=1e-9)


def test_noise_on_f_need_not_be_gaussian():
    """[S] Eq. (1) with f = h + Laplace noise: what T asks for are expectations under q(f), a convolution, on a grid."""
    nodes, weights = np.polynomial.laguerre.laggauss(40)
    noise, share = np.concatenate([nodes, -nodes]) / 2, np.concatenate([weights, weights]) / 2
    site = Custom(lambda y, h: y * h - np.exp(h[:, None] + noise) @ share, log_concave=True, support="counts")
    m, v, y = 0.4, 0.3, 3.0
    f = np.linspace(-20.0, 20.0, 4001)
    q = np.convolve(stats.norm.pdf(f, m, np.sqrt(v)), stats.laplace.pdf(f, 0.0, 0.5), "same") * (f[1] - f[0]) ** 2
    found = site.expect([y], [m], [v])
    assert_allclose(found.value, q @ (y * f - np.exp(f)), rtol=1e-4)
    assert_allclose(found.alpha, q @ np.exp(f) - y, rtol=1e-3)
    assert_allclose(found.gamma, q @ np.exp(f), rtol=1e-4)


def test_facts():
    assert not Custom(lambda y, f: f).log_concave
    classes = Custom(lambda y, f: y * f, support=[2, 0, 1])
    assert classes.discrete
    assert classes.support == "{0, 1, 2}"
    assert classes.labels().tolist() == [0.0, 1.0, 2.0]


def flat(y, f):
    return 0.0 * f


def predicted(**more):
    return Custom(flat, **more).predict(0.0, 1.0)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Custom("logistic"), r"needs a function log_density\(y, f\); got str. Pass the function"),
    (lambda: Custom(flat, derivatives=3), r"needs a function as derivatives; got int"),
    (lambda: Custom(flat, support="angles"), r"support among real, positive, unit, counts.*; got 'angles'"),
    (lambda: Custom(lambda y, f: 1.0).expect([0.0], 0.0, 1.0), r"one value per entry of f, shape .*; got shape \(\)"),
    (lambda: Custom(lambda y, f: "no").expect([0.0], 0.0, 1.0), r"must return an array of numbers; got str"),
    (lambda: Custom(lambda y, f: np.log(f)).expect([2.0], 0.0, 1.0), r"below infinity.*; got nan at f = .*, y = 2"),
    (lambda: Custom(lambda y, f: np.exp(f)).expect([2.0], 800.0, 1.0), r"got inf at f = "),
    (lambda: Custom(flat, derivatives=flat).expect([2.0], 0.0, 1.0), r"the pair \(g', g''\); got ndarray"),
    (lambda: Custom(flat, support="unit").validate([0.5, 1.5]), r"needs y in \(0, 1\); got 1.5 at index 1"),
    (lambda: Custom(flat, support=[1, 2]).validate([3]), r"Custom needs y in \{1, 2\}; got 3.0 at index 0"),
    (lambda: predicted().mean, r"mean and variance of a prediction need .*; got none. Give"),
    (lambda: predicted().quantile(0.5), r"Quantiles of a prediction need .*; got none. Give"),
    (lambda: predicted(moments=lambda f: f).var, r"the pair \(mean, variance\); got ndarray"),
    (lambda: predicted().probabilities(), r"need a site whose y is a class; got Custom"),
])
def test_bad_functions_and_bad_data(make, message):
    with pytest.raises(InputError, match=message):
        make()
