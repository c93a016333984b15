"""Digits of distances where they are hard, limits of extreme parameters, and what an import costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from klimb.kernels import (
    KERNELS,
    RBF,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
)
from klimb.kernels.tiles import SquaredDistances

STATIONARY = [RBF, Matern12, Matern32, Matern52, RationalQuadratic]


def squares(X, lengthscale=1.0, Z=None):
    distances = SquaredDistances(X, X if Z is None else Z, np.broadcast_to(np.float64(lengthscale), X.shape[1]))
    return distances.squared(slice(0, len(X)), slice(0, len(X if Z is None else Z)))[0]


def precise(X, lengthscale=1.0):
    wide = X.astype(np.longdouble)
    return (((wide[:, None] - wide[None]) / np.broadcast_to(lengthscale, X.shape[1])) ** 2).sum(axis=2)


def check_digits(X, lengthscale=1.0, rtol=2e-12):
    found, expected = squares(X, lengthscale), precise(X, lengthscale)
    assert (found >= 0.0).all()
    np.testing.assert_array_equal(np.diag(found), 0.0)
    np.testing.assert_allclose(found, expected.astype(float), rtol=rtol, atol=0.0)


@pytest.mark.parametrize("D", [1, 2, 3, 4, 6, 30])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_near_duplicates_keep_their_digits(D, offset):
    rng = np.random.default_rng(D)
    X = offset + rng.standard_normal((40, D))
    twins = X[:20] + 1e-8 * rng.standard_normal((20, D))
    check_digits(np.vstack([X, twins, X[:5]]))


@pytest.mark.parametrize("D", [2, 8])
def test_a_crowd_far_from_the_origin(D):
    check_digits(1e6 + 1e-8 * np.random.default_rng(1).integers(0, 100, (50, D)))


def test_two_crowds_far_from_each_other():
    rng = np.random.default_rng(2)
    check_digits(np.vstack([rng.standard_normal((40, 8)), 1e7 + rng.standard_normal((40, 8))]))


def test_an_outlier_does_not_cost_the_others_their_digits():
    X = np.random.default_rng(3).standard_normal((100, 10))
    X[17] = 1e9
    check_digits(X, np.geomspace(0.01, 100.0, 10))


def test_duplicates_have_distance_zero():
    X = np.repeat(np.random.default_rng(4).standard_normal((10, 12)), 5, axis=0)
    found = squares(X)
    np.testing.assert_array_equal(found == 0.0, np.repeat(np.repeat(np.eye(10, dtype=bool), 5, axis=0), 5, axis=1))
    np.testing.assert_array_equal(RBF().gram(X) == 1.0, found == 0.0)


def test_matern_sees_small_distances():
    """exp(-r) needs r itself: the square root of rounding noise would be 1e-8."""
    X = np.zeros((6, 9))
    X[:, 0] = 5.0
    X[:, 1] = np.arange(6) * 1e-9
    K = Matern12().gram(np.vstack([X, np.random.default_rng(5).standard_normal((30, 9))]))
    np.testing.assert_allclose(1.0 - K[0, :6], np.arange(6) * 1e-9, rtol=1e-6, atol=1e-16)


@pytest.mark.parametrize("D", [1, 7])
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("ard", [False, True])
def test_extreme_lengthscales_have_the_right_limits(kernel, D, ard):
    X = np.random.default_rng(6).standard_normal((20, D))
    G = np.random.default_rng(7).standard_normal((20, 20))
    for scale, limit, tolerance in [(1e-8, np.eye(20), 1e-7), (1e-90, np.eye(20), 1e-80), (1e8, 1.0, 1e-6)]:
        one = kernel(2.0, np.full(D, scale) if ard else scale)
        np.testing.assert_allclose(one.gram(X), 2.0 * np.broadcast_to(limit, (20, 20)), atol=2 * tolerance)
        gradient = one.gram_vjp(X, G)
        assert gradient[0] == pytest.approx(2.0 * np.vdot(G, np.broadcast_to(limit, (20, 20))), abs=1e-4)
        np.testing.assert_allclose(gradient[1 : 1 + (D if ard else 1)], 0.0, atol=1e-4)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", KERNELS)
def test_no_nan_and_no_warning_at_the_ends_of_the_range(name):
    X = np.random.default_rng(8).standard_normal((6, 5)) * np.array([1e-3, 1.0, 1e3, 1e90, 1e-90])
    X[3] = X[2]
    for value in (1e-100, 1e-8, 1e8, 1e100):
        kernel = KERNELS[name]()
        kernel = kernel.with_parameters(dict.fromkeys(kernel.parameters, value))
        assert not np.isnan(kernel.gram(X)).any()
        assert not np.isnan(kernel.gram(X, X[:2])).any()
        assert not np.isnan(kernel.gram_vjp(X[:, :3], np.eye(6) + 1.0)).any()


def test_rational_quadratic_becomes_rbf():
    X = np.random.default_rng(9).standard_normal((15, 6))
    np.testing.assert_allclose(RationalQuadratic(alpha=1e12).gram(X), RBF().gram(X), rtol=1e-10)
    G = np.ones((15, 15))
    np.testing.assert_allclose(RationalQuadratic(alpha=1e12).gram_vjp(X, G)[:2], RBF().gram_vjp(X, G), rtol=1e-9)


def test_periodic_and_cosine_repeat_far_away():
    t = 1e6 + np.linspace(0.0, 1.0, 7)
    np.testing.assert_allclose(Periodic(period=0.5).gram(t), Periodic(period=0.5).gram(t - 1e6), rtol=1e-7)
    np.testing.assert_allclose(Cosine(lengthscale=0.5).gram(t), Cosine(lengthscale=0.5).gram(t - 1e6), atol=1e-7)


@pytest.mark.parametrize("D", [2, 6])
@pytest.mark.parametrize("kernel", [*STATIONARY, Periodic])
def test_gradients_with_near_duplicates(kernel, D):
    """ARD gradients are sums and a product that cancel for close points; those go by differences."""
    rng = np.random.default_rng(10)
    X = 3.0 + rng.standard_normal((30, D))
    X = np.vstack([X, X[:10] + 1e-4 * rng.standard_normal((10, D)), X[:3]])
    one = kernel(1.5, rng.uniform(0.5, 2.0, D))
    G = rng.standard_normal((43, 43))
    G[:, 30:] *= 1e4
    theta = one.log_parameters
    for i, found in enumerate(one.gram_vjp(X, G)):
        steps = 1e-5 * (np.arange(len(theta)) == i)
        up, down = (np.vdot(G, one.with_log_parameters(theta + sign * steps).gram(X)) for sign in (1, -1))
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-4)


def test_small_lengthscales_leave_no_noise_in_the_gradient():
    """Each point is its own neighbour: without care, sums of 1e16 would have to cancel to nothing."""
    X = np.random.default_rng(12).standard_normal((50, 20))
    kernel = RBF(lengthscale=np.full(20, 1e-8))
    np.testing.assert_array_equal(kernel.gram_vjp(X, np.ones((50, 50)))[1:], 0.0)
    np.testing.assert_array_equal(kernel.cross_vjp(X, X, np.ones((50, 50)))[1], 0.0)


def test_whole_powers_are_exact():
    x = np.arange(-4.0, 5.0)
    for degree in (1, 2, 3, 7):
        np.testing.assert_array_equal(Polynomial(degree, offset=1.0).gram(x), (np.outer(x, x) + 1.0) ** degree)


def test_linear_is_not_centred():
    np.testing.assert_array_equal(Linear().gram([1e3, 1e3 + 1]), [[1e6, 1001e3], [1001e3, 1002001.0]])


def test_import_needs_no_scipy():
    code = "import sys, klimb.kernels; print([name for name in sys.modules if name.startswith('scipy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_benchmark_runs():
    from benchmarks.kernels import run

    found = run(40, 4, repeats=1)
    assert {"RBF", "RBF, two crowds far apart"} <= set(found["kernels"])
