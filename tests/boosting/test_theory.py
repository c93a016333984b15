"""[G] Theorem 1 and its rate on a box, Lemma 1, and the covariance S / 2 of Eq. (17)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.boosting_theory import divergence, greedy, mass_set, smoothness
from klimb.boosting.gaussians import one_gaussian
from klimb.boosting.paper import residual_peak
from klimb.boosting.target import Target
from klimb.errors import InputError

X = np.linspace(-2.0, 2.0, 201)
CELL = X[1] - X[0]


def normalised(log_density):
    values = np.exp(log_density - log_density.max())
    return values / (CELL * values.sum())


FAMILY = np.array([normalised(-0.5 * ((X - m) / s) ** 2) for m in np.linspace(-1.8, 1.8, 9) for s in (0.7, 1.4)])
P = normalised(np.logaddexp(-0.5 * ((X + 1.0) / 0.5) ** 2, -0.5 * ((X - 0.8) / 0.6) ** 2))


def test_strong_smoothness_and_convexity():
    """Eq. (5), (6) and Lemma 1 for random members of the family."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        q1, q2 = FAMILY[rng.choice(len(FAMILY), 2, replace=False)]
        left, right = smoothness(q1, q2, P, CELL)
        assert left <= right
        alpha = rng.random()
        mix = (1 - alpha) * q1 + alpha * q2
        assert divergence(mix, P, CELL) <= (1 - alpha) * divergence(q1, P, CELL) + alpha * divergence(q2, P, CELL)
        assert divergence(P, mix, CELL) <= (1 - alpha) * divergence(P, q1, CELL) + alpha * divergence(P, q2, CELL)


def test_the_rate():
    """The excess stays below 4 C / (t + 2), C from the floor a; t times the excess tends to a constant."""
    found = greedy(P, FAMILY, CELL, 160)
    t = np.arange(len(found.excess))
    assert found.floor == pytest.approx(FAMILY.min())
    apart = [CELL * ((one - other) ** 2).sum() for one in FAMILY for other in FAMILY]
    assert found.constant == pytest.approx(max(apart) / FAMILY.min())
    assert (found.excess >= -1e-9).all()
    assert (np.diff(found.divergence) <= 1e-12).all()
    assert (found.excess[1:] <= 4 * found.constant / (t[1:] + 2)).all()
    scaled = t * found.excess
    assert 0.8 < scaled[160] / scaled[80] < 1.25
    assert found.excess[160] < 0.01 * found.excess[0]
    assert found.tolerance.max() == 0.0


def test_the_tolerance_of_the_functional_gradient():
    """Steps along log(q / p) lose something against the best step: eps_t >= 0, and the sequence vanishes."""
    found = greedy(P, FAMILY, CELL, 40, choose="gradient")
    assert (found.tolerance >= -1e-12).all()
    assert found.tolerance.max() > 1e-3
    assert found.tolerance[-5:].max() < 0.1 * found.tolerance[:5].max()
    assert found.excess[40] < 0.1 * found.excess[0]


def test_the_set_that_holds_most_of_the_mass():
    wide = np.linspace(-30.0, 30.0, 6001)
    cell = wide[1] - wide[0]
    p = 1 / (np.pi * (1 + wide**2))  # Cauchy: no floor on the line
    mask, a = mass_set(p, cell, 0.1)
    assert cell * p[mask].sum() >= 0.9 * cell * p.sum()
    edge = np.abs(wide[mask]).max()
    assert a == pytest.approx(1 / (np.pi * (1 + edge**2)))
    inside = cell * p.sum() * 0.9 * np.pi / 2
    assert edge == pytest.approx(np.tan(inside), rel=0.02)
    with pytest.raises(InputError, match="between 0 and 1"):
        mass_set(p, cell, 0.0)
    with pytest.raises(InputError, match="positive on the whole grid"):
        greedy(np.zeros(3), np.ones((2, 3)), 1.0, 1)


def test_a_new_component_has_half_the_covariance_of_the_residual():
    """[G] Eq. (17): log(f / q) = -(x - eta)' S^-1 (x - eta) / 2 gives N(eta, S / 2), not N(eta, S)."""
    precision, centre = np.array([[30.0, 6.0], [6.0, 20.0]]), np.array([0.4, -0.3])

    def log_density(x):
        away = x - centre
        return -0.5 * np.einsum("ni,ij,nj->n", away, precision, away)

    target = Target(log_density, 2)
    first = one_gaussian(np.zeros(2), np.eye(2))
    found = residual_peak(target, first, first, np.random.default_rng(0))
    S = np.linalg.inv(precision - np.eye(2))  # Hessian of log q - log f
    eta = S @ (precision @ centre)
    np.testing.assert_allclose(found.means[0], eta, atol=1e-3)
    np.testing.assert_allclose(found.covariances[0], S / 2, rtol=1e-2, atol=1e-4)
