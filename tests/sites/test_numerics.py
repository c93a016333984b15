"""The special functions behind the sites, against mpmath, and the tiers of the quadratures against each other."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from klimb.numerics.normal import half_normal_loss, log_interval_derivatives, log_ndtr_derivatives
from klimb.numerics.softplus import BEND, MILLS, folded_moments, rough_moments
from klimb.numerics.special import (
    exponentials,
    gamma_family,
    log_binomial,
    log_gamma_half_step,
    stirling_error,
)
from klimb.sites import Logistic

DIGITS = 40


def exact(function: object, *columns: np.ndarray) -> np.ndarray:
    with mpmath.workdps(DIGITS):
        return np.array([float(function(*map(mpmath.mpf, map(float, row)))) for row in zip(*columns, strict=True)])


def stirling(x: mpmath.mpf) -> mpmath.mpf:
    return (x - 0.5) * mpmath.log(x) - x + mpmath.log(2 * mpmath.pi) / 2


def test_gamma_functions() -> None:
    x = np.concatenate((np.linspace(0.05, 40.0, 60), np.geomspace(50.0, 1e12, 12)))
    rest = exact(lambda t: mpmath.loggamma(t) - stirling(t), x)
    np.testing.assert_allclose(stirling_error(x), rest, rtol=1e-12, atol=3e-15)
    half_step = exact(lambda t: mpmath.loggamma(t + 0.5) - mpmath.loggamma(t), x)
    np.testing.assert_allclose(log_gamma_half_step(x), half_step, rtol=1e-14, atol=1e-15)
    above = x[x >= 1.0]
    for got, order in zip(gamma_family(above), (None, 0, 1), strict=True):
        expected = exact(mpmath.loggamma if order is None else lambda t, k=order: mpmath.psi(k, t), above)
        np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-14)


def test_log_binomial() -> None:
    n = np.array([1.0, 5.0, 1e3, 1e6, 1e6, 2.5, 1e6 + 0.5])
    k = np.array([1.0, 2.0, 500.0, 3.0, 5e5, 0.0, 1e6])
    expected = exact(lambda a, b: mpmath.loggamma(a + 1) - mpmath.loggamma(b + 1) - mpmath.loggamma(a - b + 1), n, k)
    np.testing.assert_allclose(log_binomial(n, k), expected, rtol=1e-14, atol=2e-15)


def test_expm1_minus() -> None:
    u = np.concatenate((np.linspace(-3.0, 3.0, 61), np.geomspace(1e-12, 600.0, 40), -np.geomspace(1e-12, 600.0, 40)))
    np.testing.assert_allclose(exponentials(u)[2], exact(lambda t: mpmath.expm1(t) - t, u), rtol=2e-15, atol=0)
    assert exponentials(np.array([1000.0]))[2][0] == np.inf


def upper(t: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(t / mpmath.sqrt(2)) / 2


def density(t: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)


def test_normal_functions() -> None:
    t = np.concatenate((np.linspace(-12.0, 30.0, 120), -np.geomspace(12.0, 1e4, 12)))
    value, ratio, curvature = log_ndtr_derivatives(t)

    def r(x: mpmath.mpf) -> mpmath.mpf:
        return density(x) / upper(-x)

    def log_phi(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log1p(-upper(x)) if x > 0 else mpmath.log(upper(-x))

    with mpmath.workdps(60):
        np.testing.assert_allclose(value, exact(log_phi, t), rtol=2e-13)
        np.testing.assert_allclose(ratio, exact(r, t), rtol=2e-13)
        np.testing.assert_allclose(curvature, exact(lambda x: r(x) * (r(x) + x), t), rtol=2e-13)
    a = np.linspace(0.0, 30.0, 61)
    np.testing.assert_allclose(half_normal_loss(a), exact(lambda x: density(x) - x * upper(x), a), rtol=2e-13)


@pytest.mark.parametrize("width", [1e-6, 1e-2, 0.7, 1.6, 3.0, 12.0])
def test_interval(width: float) -> None:
    a = np.linspace(-20.0, 20.0, 83)
    b = a + width

    def mass(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
        return upper(x) - upper(y) if x + y > 0 else upper(-y) - upper(-x)

    def value(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log(mass(x, y))

    def slope(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
        return (density(x) - density(y)) / mass(x, y)

    def curvature(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
        return slope(x, y) ** 2 - (x * density(x) - y * density(y)) / mass(x, y)

    got = log_interval_derivatives(a, b)
    for g, h in zip(got, (value, slope, curvature), strict=True):
        # The width b - a is only known to the rounding of b.
        np.testing.assert_allclose(g, exact(h, a, b), rtol=1e-12, atol=1e-14 / min(width, 1.0) * 1e-2)


def test_softplus_tiers_meet() -> None:
    """Across the boundaries between the tiers the moments do not jump."""
    m = -np.concatenate((np.linspace(0.0, 12.0, 25), [40.0, 150.0, 300.0]))
    for boundary in (1e-8, 4e-6, 1e-4, 6e-4, 2e-3, 5e-3, 9e-3, 1.5e-2, 2.2e-2, 3e-2, 4e-2, 0.12, 0.4, 1.0, 2.5, 6.0):
        below = folded_moments(m, np.full_like(m, boundary))
        above = folded_moments(m, np.full_like(m, np.nextafter(boundary, 7.0)))
        for x, y in zip(below, above, strict=True):
            np.testing.assert_allclose(x, y, rtol=3e-13)


def test_normal_distribution_functions_of_rough_moments() -> None:
    """To ten digits where they are large, and never negative where they are small."""
    x = np.linspace(0.0, 60.0, 600_001)
    found = np.polynomial.polynomial.polyval(1.0 / (1.0 + BEND * x), MILLS) * np.exp(-0.5 * x * x)
    assert np.abs(found - ndtr(-x)).max() < 1.1e-10
    assert (found >= 0.0).all()


def test_softplus_far_from_an_optimum() -> None:
    """A mixture of normal distribution functions is close at any mean and variance."""
    m, v = (grid.ravel() for grid in np.meshgrid(np.linspace(-40.0, 40.0, 161), np.geomspace(1e-6, 1e5, 45)))
    for near, exact in zip(rough_moments(m, v), folded_moments(m, v), strict=True):
        np.testing.assert_allclose(near, exact, rtol=0.0, atol=1.5e-8)
    site, y = Logistic(), np.where(m > 3.0, 1.0, -1.0)
    assert site.rough(1e-6) is site  # whose answers are to be exact
    rough, exact = site.rough(1e-3).oracle(y, m, v), site.oracle(y, m, v)
    np.testing.assert_allclose(np.stack([rough.value, rough.alpha, rough.gamma]),
                               np.stack([exact.value, exact.alpha, exact.gamma]), rtol=0.0, atol=1.5e-8)


@pytest.mark.parametrize("v", [6.5, 30.0, 250.0])
def test_softplus_in_the_far_tail(v: float) -> None:
    """m far below -v/2, where e^f N(f; m, v) peaks away from m: against the trapezoid rule in extended precision."""
    for m in -v * np.array([0.51, 0.8, 1.0, 1.3, 2.0, 3.0]):
        sd = np.sqrt(v)
        low, high = min(m + v - 15 * sd, -50.0), max(m + v + 15 * sd, 50.0)
        f = np.arange(np.floor(low), np.ceil(high), 1 / 16).astype(np.longdouble)  # exact numbers
        density = 1 / 16 / np.sqrt(2 * np.longdouble(np.pi) * v) * np.exp(-((f - m) ** 2) / (2 * np.longdouble(v)))
        e = np.exp(-np.abs(f))
        softplus, sigmoid = np.maximum(f, 0) + np.log1p(e), np.where(f > 0, 1, e) / (1 + e)
        got = folded_moments(np.array([m]), np.array([v]))
        for value, h in zip(got, (softplus, sigmoid, e / (1 + e) ** 2), strict=True):
            np.testing.assert_allclose(value[0], float((h * density).sum()), rtol=3e-13)
