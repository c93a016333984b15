"""log Z and its derivatives, the adaptive panels, and the searches, against closed forms and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, log_expit, log_ndtr

from klimb.numerics.adaptive import (
    GAUSS_WEIGHTS,
    KRONROD_NODES,
    KRONROD_WEIGHTS,
    Panels,
    derivative_free_moments,
    gaussian_average,
    integrate,
)
from klimb.numerics.responses import double_exponential_tilted, lognormal_moments, sigmoid_moments
from klimb.numerics.search import highest_point, monotone_root, smallest_integer
from klimb.numerics.tilted import tilted


def logistic(rows, f):
    return log_expit(f), expit(-f), -expit(f) * expit(-f)


def probit(rows, f):
    ratio = np.exp(-0.5 * f * f - log_ndtr(f)) / np.sqrt(2.0 * np.pi)
    return log_ndtr(f), ratio, -ratio * (ratio + f)


def poisson(y):
    def log_factor(rows, f):
        return y[rows] * f - np.exp(f), y[rows] - np.exp(f), -np.exp(f)

    return log_factor


GRID_M, GRID_V = (a.ravel() for a in np.meshgrid([-300.0, -20.0, -2.0, 0.0, 0.7, 5.0, 40.0, 300.0],
                                                 10.0 ** np.arange(-12.0, 7.0, 2.0)))


def test_a_probit_has_its_closed_form():
    m, v = np.broadcast_arrays(np.linspace(-30.0, 6.0, 19)[:, None], 10.0 ** np.arange(-12.0, 7.0))
    t = tilted(probit, m.ravel(), v.ravel(), log_concave=True)
    x, root = m.ravel() / np.sqrt(1.0 + v.ravel()), np.sqrt(1.0 + v.ravel())
    ratio = np.exp(-0.5 * x * x - log_ndtr(x)) / np.sqrt(2.0 * np.pi)
    assert_allclose(t.log_z, log_ndtr(x), rtol=1e-12, atol=1e-15)
    assert_allclose(t.slope, ratio / root, rtol=1e-11)
    # the reference itself cancels where x is very negative
    assert_allclose(t.curvature, -ratio * (ratio + x) / root**2, rtol=1e-8)


def test_a_gaussian_factor_has_its_closed_form_with_two_modes_allowed_or_not():
    for log_concave in (True, False):
        t = tilted(lambda rows, f: (-0.5 * (f - 3.0) ** 2, 3.0 - f, -np.ones_like(f)), GRID_M, GRID_V,
                   log_concave=log_concave, centre=np.full_like(GRID_M, 3.0), width=np.ones_like(GRID_M))
        shrunk = 1.0 / (1.0 + GRID_V)
        assert_allclose(t.log_z, -0.5 * (np.log1p(GRID_V) + shrunk * (GRID_M - 3.0) ** 2), rtol=1e-13)
        assert_allclose(t.slope, shrunk * (3.0 - GRID_M), rtol=1e-12)
        assert_allclose(t.curvature, -shrunk, rtol=1e-12)


@pytest.mark.parametrize("log_factor", [logistic, poisson(np.zeros(80)), poisson(np.full(80, 7.0)),
                                        poisson(np.full(80, 1e6))], ids=["logistic", "zero", "seven", "million"])
def test_derivatives_agree_with_differences_of_log_z(log_factor):
    v = np.array([1e-2, 1.0, 30.0, 1e4])
    m, v = (a.ravel() for a in np.meshgrid(np.array([-8.0, -1.0, 0.3, 2.0, 15.0]), v))
    step = 1e-3 * np.maximum(1.0, np.sqrt(v))
    at = [tilted(log_factor, m + k * step, v, log_concave=True) for k in (-2, -1, 0, 1, 2)]
    slope = (8.0 * (at[3].log_z - at[1].log_z) - (at[4].log_z - at[0].log_z)) / (12.0 * step)
    curvature = (8.0 * (at[3].slope - at[1].slope) - (at[4].slope - at[0].slope)) / (12.0 * step)
    scale = (np.abs(at[2].log_z) * 1e-12 + 1e-15) / step
    assert np.all(np.abs(at[2].slope - slope) <= 1e-7 * np.abs(slope) + scale)
    assert np.all(np.abs(at[2].curvature - curvature) <= 1e-7 * np.abs(curvature) + np.abs(slope) * 1e-12 / step)


def test_no_nan_and_no_warning_anywhere_on_the_wide_grid():
    for log_factor in (logistic, probit, poisson(np.zeros(80)), poisson(np.full(80, 1e6))):
        t = tilted(log_factor, GRID_M, GRID_V, log_concave=True)
        for part in (t.log_z, t.slope, t.curvature):
            assert np.isfinite(part).all()
        assert np.all(t.curvature <= 0.0)


def test_far_tails_have_relative_accuracy():
    # sigmoid(f) = e^f far to the left: log Z = m + v/2
    m, v = np.array([-300.0, -300.0, -200.0]), np.array([1e-6, 4.0, 50.0])
    assert_allclose(tilted(logistic, m, v, log_concave=True).log_z, m + 0.5 * v, rtol=1e-15)


def test_zero_variance_is_the_point():
    t = tilted(logistic, np.array([-2.0, 0.5]), np.zeros(2), log_concave=True)
    for found, expected in zip((t.log_z, t.slope, t.curvature), logistic(None, np.array([-2.0, 0.5])), strict=True):
        assert_allclose(found, expected, rtol=1e-13)


def test_a_datum_far_away_leaves_two_modes():
    # exp(g) = 1/(1 + f^2), a Cauchy at 0, under N(m, v): the convolution is the real part of the Faddeeva function.
    from scipy.special import wofz

    m, v = np.array([8.0, 30.0, 30.0, 100.0]), np.array([9.0, 100.0, 1.0, 400.0])
    t = tilted(lambda rows, f: (-np.log1p(f * f), -2.0 * f / (1.0 + f * f), 2.0 * (f * f - 1.0) / (1.0 + f * f) ** 2),
               m, v, log_concave=False, centre=np.zeros(4), width=np.ones(4))
    s = np.sqrt(v)
    exact = np.pi * wofz((m + 1j) / (s * np.sqrt(2.0))).real / (s * np.sqrt(2.0 * np.pi))
    assert_allclose(t.log_z, np.log(exact), rtol=1e-13)


# -- the double exponential


def test_the_double_exponential_agrees_with_quadrature():
    offset, v = (a.ravel() for a in np.meshgrid([-40.0, -3.0, -0.2, 0.0, 1.5, 12.0], 10.0 ** np.arange(-4.0, 5.0)))
    rate = np.full_like(v, 2.0)
    found = double_exponential_tilted(offset, v, rate)

    def kink(rows, f):
        return -2.0 * np.abs(f - offset[rows]), 2.0 * np.sign(offset[rows] - f), np.zeros_like(f)

    direct = tilted(kink, np.zeros_like(v), v, log_concave=True, smooth=False)
    assert_allclose(found.log_z, direct.log_z, rtol=1e-12)
    assert_allclose(found.slope, direct.slope, rtol=1e-9, atol=1e-10)
    assert np.all(np.abs(found.curvature - direct.curvature) <= 1e-9 * np.abs(found.curvature) + 1e-13 / v)


def test_the_double_exponential_keeps_its_curvature_where_it_is_narrow_and_where_it_is_far():
    # narrow: the tilted distribution is the double exponential itself, so that 1 + v curvature = Var / v
    t = double_exponential_tilted(np.zeros(1), np.array([1e6]), np.array([1e3]))
    assert_allclose(t.curvature, -1e-6, rtol=1e-11)
    far = double_exponential_tilted(np.array([30.0, 300.0]), np.array([1.0, 1e-12]), np.ones(2))
    assert_allclose(far.slope, 1.0, rtol=1e-15)
    assert np.all(far.curvature <= 0.0)
    assert np.all(far.curvature > -1e-100)


# -- panels, averages, searches


def test_the_nested_rule_is_exact_for_polynomials():
    for degree in range(32):
        exact = 0.0 if degree % 2 else 2.0 / (degree + 1)
        assert abs(KRONROD_WEIGHTS @ KRONROD_NODES**degree - exact) < 1e-15
        if degree < 20:
            assert abs(GAUSS_WEIGHTS @ KRONROD_NODES**degree - exact) < 1e-15


def test_panels_close_in_on_kinks_and_steps_wherever_they_are():
    place = np.concatenate([np.linspace(-0.999, 0.999, 41), [-1.0 + 1e-9, 1.0 - 1e-4, 1e-12]])
    panels = Panels(np.arange(place.size), np.full(place.size, -1.0), np.ones(place.size))

    def functions(rows, x):
        return np.stack([np.abs(x - place[rows]), (x > place[rows]).astype(float)])

    found = integrate(functions, panels, place.size, 2)
    assert_allclose(found.values[0], 0.5 * ((1.0 + place) ** 2 + (1.0 - place) ** 2), rtol=1e-12)
    assert_allclose(found.values[1], 1.0 - place, rtol=1e-10, atol=1e-12)


def test_noise_does_not_bisect_for_ever():
    calls = []

    def noisy(rows, x):
        calls.append(x.size)
        return (1.0 + 1e-9 * np.sin(1e12 * x))[None]

    found = integrate(noisy, Panels(np.zeros(1, dtype=int), np.zeros(1), np.ones(1)), 1, 1)
    assert_allclose(found.values, 1.0, atol=1e-8)
    assert not found.closed[0]
    assert sum(calls) < 1e5


def test_averages_of_growing_functions():
    v = np.array([0.0, 1.0, 25.0, 100.0])
    found = gaussian_average(lambda rows, f: np.exp(f)[None], np.zeros(4), v, 1)[0]
    assert_allclose(found, np.exp(0.5 * v), rtol=1e-13)


def test_moments_of_sigmoid_and_exponential():
    m, v = np.array([-300.0, -3.0, 0.0, 2.0, 40.0]), np.array([1e-10, 1e-4, 0.5, 9.0, 4.0])
    mean, within, between = sigmoid_moments(m, v)
    direct = gaussian_average(lambda rows, f: np.stack([expit(f), expit(f) * expit(-f)]), m, v, 2)
    assert_allclose(mean, direct[0], rtol=1e-12)
    assert_allclose(within, direct[1], rtol=1e-12)
    # sigmoid(f)(1 - sigmoid(f)) + its variance is the variance of a coin, mean (1 - mean)
    assert_allclose((within + between)[1:4], (mean * (1.0 - mean))[1:4], rtol=1e-11)
    assert_allclose(between[0], np.exp(-600.0) * 1e-10, rtol=1e-9)
    first, second, spread = lognormal_moments(np.array([0.3, 400.0]), np.array([1e-12, 1e6]))
    assert_allclose([first[0], second[0], spread[0]], [np.exp(0.3), np.exp(0.6), 1e-12 * np.exp(0.6)], rtol=1e-11)
    assert np.isinf([first[1], second[1], spread[1]]).all()


def test_searches():
    target = np.array([-7.0, 0.0, 1e-3, 250.0])
    found = monotone_root(lambda rows, t: np.tanh(0.01 * (t - target[rows])), np.zeros(4), np.ones(4))
    assert_allclose(found, target, rtol=1e-12, atol=1e-14)
    k = np.array([0.0, 1.0, 2.0, 17.0, 123456.0, 2.0**60])
    assert_allclose(smallest_integer(lambda rows, t: t - k[rows], k.size), k, rtol=1e-15)
    assert np.isinf(smallest_integer(lambda rows, t: np.full_like(t, -1.0), 1))
    centre, width, inside = highest_point(lambda rows, x: -np.abs(x - target[rows]), [np.zeros(4), target + 0.3])
    assert_allclose(centre, target, atol=1e-5)
    assert inside.all()
    assert np.all((width >= 0.5) & (width <= 1.0))


def test_values_alone_give_the_moments_of_a_kink_at_any_distance():
    rng = np.random.default_rng(3)
    offset, v = rng.normal(size=300) * 5.0, 10.0 ** rng.uniform(-4.0, 4.0, size=300)
    value, alpha, gamma = derivative_free_moments(lambda rows, f: -np.abs(f), offset, v)
    from scipy.special import erf

    s = np.sqrt(v)
    density = np.exp(-0.5 * offset**2 / v) / (s * np.sqrt(2.0 * np.pi))
    assert_allclose(value, -(2.0 * v * density + offset * erf(offset / (s * np.sqrt(2.0)))), rtol=1e-12)
    assert_allclose(alpha, erf(offset / (s * np.sqrt(2.0))), rtol=1e-10, atol=1e-11)
    rounding = 1e-13 * (1.0 + np.abs(offset)) / np.minimum(v, 1.0)
    assert np.all(np.abs(gamma - 2.0 * density) <= 1e-10 * density + rounding)
