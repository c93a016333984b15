"""Parallel EP against a sequential one written from the textbook, and against exact integrals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

import klimb
from klimb import latents, methods, sites

RNG = np.random.default_rng(6)
N = 25
INPUTS = RNG.random(N) * 4
K = 3.0 * np.exp(-0.5 * (INPUTS[:, None] - INPUTS) ** 2 / 0.4)
LABELS = np.where(np.sin(2 * INPUTS) + 0.5 * RNG.standard_normal(N) > 0, 1.0, -1.0)


def sequential_probit_ep(K, y, sweeps=100):
    """One site at a time, the whole posterior recomputed after each: slow and plain."""
    n = len(y)
    gamma, slope = np.zeros(n), np.zeros(n)
    for _ in range(sweeps):
        for i in range(n):
            V = np.linalg.solve(np.eye(n) + K * gamma, K)  # (I + K G)^-1 K
            m = V @ slope
            cavity_v = 1 / (1 / V[i, i] - gamma[i])
            cavity_m = cavity_v * (m[i] / V[i, i] - slope[i])
            z = y[i] * cavity_m / np.sqrt(1 + cavity_v)
            ratio = np.exp(norm.logpdf(z) - log_ndtr(z))
            mean = cavity_m + y[i] * cavity_v * ratio / np.sqrt(1 + cavity_v)
            var = cavity_v - cavity_v**2 * ratio * (z + ratio) / (1 + cavity_v)
            gamma[i] = 1 / var - 1 / cavity_v
            slope[i] = mean / var - cavity_m / cavity_v
    V = np.linalg.solve(np.eye(n) + K * gamma, K)
    m = V @ slope
    cavity_v = 1 / (1 / np.diag(V) - gamma)
    cavity_m = cavity_v * (m / np.diag(V) - slope)
    # Rasmussen & Williams' form of the evidence, with site means slope / gamma
    site_m, site_v = slope / gamma, 1 / gamma
    log_z = log_ndtr(y * cavity_m / np.sqrt(1 + cavity_v)).sum()
    log_z += 0.5 * np.log(cavity_v + site_v).sum() + (0.5 * (cavity_m - site_m) ** 2 / (cavity_v + site_v)).sum()
    total = K + np.diag(site_v)
    log_z -= 0.5 * np.linalg.slogdet(total)[1] + 0.5 * site_m @ np.linalg.solve(total, site_m)
    return m, np.diag(V), log_z


def test_parallel_agrees_with_sequential():
    m, v, evidence = sequential_probit_ep(K, LABELS)
    result = methods.ep(latents.Kernel(K), sites.Probit(), LABELS, tol=1e-9)
    assert result.converged
    np.testing.assert_allclose(result.posterior.m, m, atol=1e-6)
    np.testing.assert_allclose(result.posterior.v, v, atol=1e-6)
    assert abs(result.bound - evidence) < 1e-6


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Probit(), sites.Poisson(), sites.Laplace(0.5),
                                  sites.StudentT(4.0, 0.5)], ids=lambda s: type(s).__name__)
def test_one_site_is_exact(site):
    """With one datum EP matches the exact moments and evidence, with a prior mean and slack as well."""
    y, mean, variance, slack = 1.0, 0.4, 2.0, 0.3
    result = methods.ep(latents.Weights([[1.0]], mean=mean, cov=variance, slack=slack), site, [y], tol=1e-11)
    z = np.linspace(-14, 14, 200_001)
    f = mean + np.sqrt(variance + slack) * z
    weights = np.exp(site.log_density(np.full_like(f, y), f) - 0.5 * z**2)
    evidence = np.log(weights.sum() * (z[1] - z[0]) / np.sqrt(2 * np.pi))
    assert result.converged
    assert abs(result.bound - evidence) < 1e-7
    share = variance / (variance + slack)  # h given f
    mean_f = (weights * f).sum() / weights.sum()
    var_f = (weights * (f - mean_f) ** 2).sum() / weights.sum()
    np.testing.assert_allclose(result.posterior.m[0], mean + share * (mean_f - mean), atol=1e-6)
    np.testing.assert_allclose(result.posterior.v[0] - slack, share * slack + share**2 * var_f, atol=1e-6)


def test_ep_lies_above_the_bound_and_near_the_truth():
    latent = latents.Kernel(K[:8, :8])
    y = LABELS[:8]
    bound = klimb.infer(latent, sites.Logistic(), y).bound
    evidence = methods.ep(latent, sites.Logistic(), y).bound
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(K[:8, :8] + 1e-10 * np.eye(8))
    draws = rng.standard_normal((400_000, 8)) @ root.T
    likelihood = np.exp(-np.logaddexp(0, -draws * y).sum(1))
    truth, error = np.log(likelihood.mean()), likelihood.std() / likelihood.mean() / np.sqrt(len(draws))
    assert bound <= truth + 4 * error
    assert abs(evidence - truth) < 0.01 + 4 * error


def test_weights_and_kernel_agree():
    X = RNG.standard_normal((40, 3))
    y = RNG.poisson(np.exp(0.5 * X[:, 0]))
    one = methods.ep(latents.Weights(X, cov=2.0), sites.Poisson(), y, tol=1e-9)
    other = methods.ep(latents.Kernel(2.0 * X @ X.T), sites.Poisson(), y, tol=1e-9)
    assert abs(one.bound - other.bound) < 1e-8
    np.testing.assert_allclose(one.posterior.m, other.posterior.m, atol=1e-7)


def test_a_row_of_zeros_is_a_known_site():
    X = np.vstack([RNG.standard_normal((20, 2)), np.zeros((1, 2))])
    y = np.r_[RNG.integers(0, 2, 20), 1]
    with_row = methods.ep(latents.Weights(X), sites.Logistic(), y, tol=1e-8)
    without = methods.ep(latents.Weights(X[:-1]), sites.Logistic(), y[:-1], tol=1e-8)
    assert with_row.converged
    assert abs(with_row.bound - without.bound + np.log(2)) < 1e-7


def test_precise_data_that_contradict_each_other():
    """Repeated inputs with different outcomes, next to no noise: sweeps from the data alone wander for hundreds."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((12, 2)), 2, axis=0)
    y = rng.standard_normal(24)
    squared = ((X[:, None] - X) ** 2).sum(-1)
    for lengthscale, variance in ((0.4, 9.0), (2.0, 1.0)):
        result = methods.ep(latents.Kernel(variance * np.exp(-0.5 * squared / lengthscale**2)), sites.Laplace(0.007), y)
        assert result.converged
        assert result.n_iter < 60
