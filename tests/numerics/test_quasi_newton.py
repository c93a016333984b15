"""The small quasi-Newton climb: valleys, boxes, cliffs, noise."""

from __future__ import annotations

import numpy as np
import pytest

from klimb.numerics.quasi_newton import climb

WIDE = np.full(2, 50.0)


def rosenbrock(x):
    value = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    slope = np.array([-2 * (1 - x[0]) - 400 * x[0] * (x[1] - x[0] ** 2), 200 * (x[1] - x[0] ** 2)])
    return -float(value), -slope


def test_a_curved_valley():
    found = climb(rosenbrock, np.array([-1.2, 1.0]), -WIDE, WIDE, tol=1e-5)
    assert found.converged
    np.testing.assert_allclose(found.x, 1.0, atol=1e-5)


def test_a_top_outside_the_box():
    def hill(x):
        return -float(np.sum((x - 3) ** 2)), -2 * (x - 3)

    found = climb(hill, np.zeros(2), -np.ones(2), np.array([1.0, 9.0]), tol=1e-6)
    assert found.converged
    np.testing.assert_allclose(found.x, [1.0, 3.0], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_any_curvature(scale):
    visited = []

    def hill(x):
        visited.append(x)
        return -scale * float(np.sum((x - 2) ** 2)), -2 * scale * (x - 2)

    found = climb(hill, np.zeros(2), -WIDE, WIDE, tol=1e-6 * scale)
    assert found.converged
    assert len(visited) < 25
    np.testing.assert_allclose(found.x, 2.0, atol=1e-5)


def test_a_cliff_is_stepped_back_from():
    def edge(x):
        if x[0] > 1.0:
            return -np.inf, np.zeros(1)
        return float(x[0]), np.ones(1)

    found = climb(edge, np.zeros(1), np.full(1, -5.0), np.full(1, 5.0), tol=1e-6)
    assert 0.9 < found.x[0] <= 1.0
    assert not found.converged


def test_a_small_promise_is_enough():
    def noisy(x):
        noise = 1e-3 * np.sin(1e6 * x)
        return -1e4 * float(x @ x), -2e4 * x + 1e3 * noise

    found = climb(noisy, np.full(1, 0.7), np.full(1, -5.0), np.full(1, 5.0), tol=1e-8, gain=1e-4)
    assert found.converged
    assert abs(found.x[0]) < 1e-3
