"""The rule of integration for fits that are far from the optimum: cheaper, and close enough."""

from __future__ import annotations

import numpy as np

from klimb import sites
from klimb.numerics.softmax import EXACT, FAR, ROUGH, gumbel_normal, softmax_moments


def test_rules_by_tolerance():
    site = sites.Softmax(3)
    assert [site.rough(tol).rule for tol in (0.0, 1e-3, 0.3)] == [ROUGH, ROUGH, FAR]


def test_each_rule_is_as_close_as_it_says():
    rng = np.random.default_rng(0)
    m, v = 4.0 * rng.standard_normal((6, 400)), np.exp(2.0 * rng.standard_normal((6, 400)))
    y = rng.integers(0, 6, 400)
    exact = softmax_moments(y, m, v)
    for rule, error in ((ROUGH, 1e-6), (FAR, 1e-3)):
        found = softmax_moments(y, m, v, rule)
        assert np.abs(found.value - exact.value).max() < error
        assert np.abs(found.probabilities - exact.probabilities).max() < error
        assert np.abs(found.curvature - exact.curvature).max() < error


def test_a_distribution_does_not_depend_on_which_others_are_asked_for():
    t, v = np.linspace(-8.0, 50.0, 40), np.array([1e-3, 0.3, 2.0, 40.0])
    together = gumbel_normal(EXACT).evaluate(np.tile(t, (4, 1)), v)
    for j, one in enumerate(v):
        for k, value in enumerate(t):
            alone = gumbel_normal(EXACT).evaluate(np.array([[value]]), np.array([one]))
            assert np.allclose([alone[0][0, 0], alone[1][0, 0]], [together[0][j, k], together[1][j, k]], atol=1e-14)
