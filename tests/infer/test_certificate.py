"""Matrices around the best covariance ([S] Theorem 1) and the largest safe proximal step ([A] section 4)."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, methods, sites, steps
from klimb.errors import InputError
from klimb.infer.certificate import _gamma_range
from klimb.infer.problem import Problem
from klimb.infer.result import Status

RNG = np.random.default_rng(4)
Z = RNG.standard_normal((20, 3))
CASES = {
    "rising (2a)": (sites.Poisson(), RNG.poisson(np.exp(0.3 * Z[:, 0])).astype(float)),
    "falling (2b)": (sites.SuperGaussian(sites.Logistic()), RNG.integers(0, 2, 20).astype(float)),
    "mixed, logistic": (sites.Logistic(), RNG.integers(0, 2, 20).astype(float)),
    "mixed, Laplace": (sites.Laplace(0.5), Z[:, 0] + RNG.laplace(size=20)),
}


def smallest(matrix):
    return np.linalg.eigvalsh(matrix).min()


@pytest.mark.parametrize("variance", [0.1, 1.0, 9.0])
@pytest.mark.parametrize("name", CASES)
def test_matrices_enclose_the_best_covariance(name, variance):
    site, y = CASES[name]
    latent = latents.Weights(Z, cov=variance)
    result = klimb.infer(latent, site, y, tol=1e-10)
    found = methods.certificate(result, site, y)
    lower, upper = found.matrices()
    V = result.posterior.covariance()
    assert found.gap < 1e-6
    assert smallest(V - lower) > -1e-8 * variance
    assert smallest(upper - V) > -1e-8 * variance
    rough = methods.certificate(result, site, y, max_iter=2)
    lower, upper = rough.matrices()
    assert smallest(V - lower) > 1e-10 * variance  # wide open after two rounds: strictly between
    assert smallest(upper - V) > 1e-10 * variance
    assert (rough.lower <= found.lower * (1 + 1e-9)).all()
    assert (rough.upper >= found.upper * (1 - 1e-9)).all()


def test_the_sandwich_of_eq_13():
    """The sandwich of [S] Eq. (13), written with T itself, is what the certificate computes for Poisson counts."""
    site, y = CASES["rising (2a)"]
    latent = latents.Weights(Z, cov=1.0)
    result = klimb.infer(latent, site, y, tol=1e-10)
    V, sequence = np.eye(3), []
    for _ in range(4):
        gamma = site.expect(y, result.posterior.m, np.einsum("ij,jk,ik->i", Z, V, Z)).gamma
        V = np.linalg.inv(np.eye(3) + Z.T @ (gamma[:, None] * Z))
        sequence.append(V)
    for rounds in (2, 4):
        lower, upper = methods.certificate(result, site, y, max_iter=rounds).matrices()
        if rounds == 4:
            assert smallest(lower - sequence[0]) > 0
            assert smallest(sequence[1] - upper) > 0
    assert smallest(result.posterior.covariance() - sequence[2]) > 0
    assert smallest(sequence[3] - result.posterior.covariance()) > 0


def test_the_aggregate_condition():
    """Single gamma are negative here; all of them together leave q proper, which is what the sandwich needs."""
    y = Z[:, 0] + RNG.standard_t(3, 20)
    y[:3] += 3.0
    site, latent = sites.StudentT(3.0, 0.5), latents.Weights(Z, cov=0.05)
    result = klimb.infer(latent, site, y, tol=1e-10)
    assert result.posterior.gamma.min() < 0
    found = methods.certificate(result, site, y)
    lower, upper = found.matrices()
    assert smallest(result.posterior.covariance() - lower) > -1e-9
    assert smallest(upper - result.posterior.covariance()) > -1e-9
    assert found.gap < 1e-5
    wide = latents.Weights(Z, cov=100.0)
    with pytest.raises(InputError, match="leave q proper even where all are lowest"):
        methods.certificate(klimb.infer(wide, site, y), site, y)


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Laplace(0.5), sites.StudentT(3.0, 0.5)])
def test_intervals_hold_what_lies_between_the_points_that_were_looked_at(site):
    m = np.linspace(0.5, 4.0, 12)
    problem = Problem(latents.Weights(np.ones((12, 1))), site, np.zeros(12))
    low, high = np.full(12, 1e-2), np.full(12, 30.0)
    least, most = _gamma_range(problem, m, low, high)
    every = np.array([problem.oracle(m, np.full(12, v)).gamma for v in np.geomspace(1e-2, 30.0, 4001)])
    assert (least <= every.min(axis=0)).all()
    assert (every.max(axis=0) <= most).all()
    assert (most - least < 1.5 * np.ptp(every, axis=0)).all()


def test_lipschitz_constants():
    """By hand: logistic gamma is at most 1/4 as v vanishes; a Gaussian's Hessian is constant."""
    flat = methods.safe_step(sites.Gaussian(0.5), [1.0], (0.1, 2.0))
    assert flat.lipschitz == pytest.approx(4.0, rel=1e-6)
    assert flat.alpha == pytest.approx(0.125)
    assert flat.beta == pytest.approx(0.125 / 4.0, rel=1e-6)
    assert methods.safe_step(sites.Logistic(), [0, 1], (1e-6, 1e-5)).lipschitz == pytest.approx(0.25, rel=1e-3)
    narrow, wide = (methods.safe_step(sites.Laplace(1.0), [0.0], (low, 1.0)).lipschitz for low in (0.01, 0.1))
    for found, low in ((narrow, 0.01), (wide, 0.1)):  # the kink: gamma = sqrt(2 / (pi v)) at m = y, and half its slope
        assert found == pytest.approx(0.5 / np.sqrt(2 * np.pi) * low**-1.5, rel=1e-4)
    for site, y in ((sites.Poisson(), [2]), (sites.Exponential(), [1.0]), (sites.StochasticVolatility(), [1.0])):
        found = methods.safe_step(site, y, (0.1, 2.0))
        assert not found.exists
        assert found.beta == 0.0


@pytest.mark.parametrize("variance", [0.5, 4.0])
def test_the_condition_of_eq_8_holds_with_alpha(variance):
    """(dm, dv)' grad_1 KL >= alpha |(dm, dv)|^2 for Gaussians with variances up to ``variance``."""
    alpha = methods.safe_step(sites.Logistic(), [1], (0.01, variance)).alpha
    rng = np.random.default_rng(0)
    dm, (v0, v1) = rng.normal(size=4000), rng.uniform(0.01, variance, (2, 4000))
    left = dm**2 / v0 + (v1 - v0) * 0.5 * (1 / v0 - 1 / v1)
    assert (left >= alpha * (dm**2 + (v1 - v0) ** 2) * (1 - 1e-12)).all()
    tight = np.min(left / (dm**2 + (v1 - v0) ** 2))
    assert tight < 3 * alpha


def test_safe_steps_converge_and_counts_have_none():
    one = latents.Weights(np.ones((1, 1)), cov=2.0)
    safe = methods.safe_step(sites.Logistic(), [1], (0.05, 2.0))
    result = klimb.infer(one, sites.Logistic(), [1], step=steps.Proximal(0.99 * safe.beta), max_iter=3000)
    assert result.converged
    assert (np.diff(result.history.bound) > -1e-12).all()
    wide = latents.Weights(3 * RNG.standard_normal((50, 3)))
    diverging = klimb.infer(wide, sites.Poisson(), np.arange(50.0) % 4, step=steps.Proximal(0.25))
    assert diverging.status is Status.DIVERGED


@pytest.mark.parametrize("variances", [(0.0, 1.0), (2.0, 1.0)])
def test_bad_ranges(variances):
    with pytest.raises(InputError, match="0 < low <= high"):
        methods.safe_step(sites.Logistic(), [1], variances)
