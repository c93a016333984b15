"""`Implicit` with proper Gaussian factors keeps the contract of a latent: the numbers of `Weights`, by products."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import klimb
from klimb import latents, sites, steps
from klimb.errors import NotPositiveDefiniteError
from klimb.infer.problem import Problem
from klimb.sites import Logistic

RNG = np.random.default_rng(11)
N, D, M = 24, 6, 9
B = RNG.standard_normal((N, D))
X, Y = RNG.standard_normal((M, D)), RNG.standard_normal(M)
VARIANCES = np.array([0.1, 1.0, 2.0, 5.0, 1e-3, 30.0])
PRIOR_MEAN = RNG.standard_normal(D)

GAMMAS = {
    "positive": RNG.gamma(1.0, size=N),
    "with zeros": np.where(np.arange(N) % 3 == 0, 0.0, RNG.gamma(1.0, size=N)),
    "all zero": np.zeros(N),
    "signed": np.where(np.arange(N) % 7 == 0, -0.02, RNG.gamma(2.0, size=N)),
    "uneven": 10.0 ** np.linspace(-12, 4, N),
}
KINDS = {"dense": lambda A: A, "sparse": scipy.sparse.csr_matrix, "operator": scipy.sparse.linalg.aslinearoperator}


def build(kind, with_data):
    make = KINDS[kind]
    data = {"X": make(X), "y": Y, "noise": 0.7} if with_data else {}
    latent = latents.Implicit(make(B), mean=PRIOR_MEAN, cov=VARIANCES, **data)
    precision = np.diag(1 / VARIANCES) + (X.T @ X / 0.49 if with_data else 0.0)
    pull = PRIOR_MEAN / VARIANCES + (X.T @ Y / 0.49 if with_data else 0.0)
    cov = np.linalg.inv(precision)
    return latent, cov, cov @ pull


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_factor_against_dense_algebra(kind, with_data, gamma):
    latent, cov, _ = build(kind, with_data)
    g, K = GAMMAS[gamma], B @ cov @ B.T
    V = np.linalg.solve(np.eye(N) + K * g, K)
    factor = latent.factor(g)
    assert factor.exact
    np.testing.assert_allclose(factor.variances(), np.diag(V), rtol=1e-7)
    np.testing.assert_array_equal(factor.variance_error(), 0.0)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(N) + K * g)[1], atol=1e-8)
    b = np.random.default_rng(0).standard_normal(N)
    x, Kx = factor.solve(b)
    np.testing.assert_allclose(Kx, V @ b, atol=1e-7)
    np.testing.assert_allclose(x, b - g * (V @ b), atol=1e-7 * (1 + np.abs(g).max()))
    np.testing.assert_allclose(factor.energy(b), b @ V @ b, rtol=1e-7)
    np.testing.assert_allclose(latent.mvm(b), K @ b, atol=1e-7)
    np.testing.assert_allclose(latent.prior_variances, np.diag(K), rtol=1e-9)
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-9)


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_predictions(kind, with_data):
    latent, cov, mean = build(kind, with_data)
    assert (latent.n_sites, latent.n_weights) == (N, D)
    np.testing.assert_allclose(latent.mean, B @ mean, atol=1e-8)
    a, gamma = 0.1 * RNG.standard_normal(N), RNG.gamma(1.0, size=N)
    problem = Problem(latent, Logistic(), np.ones(N))
    posterior = problem.posterior(problem.state(a, latent.mean + latent.mvm(a), latent.factor(gamma)))
    V_w = np.linalg.inv(np.linalg.inv(cov) + B.T @ (gamma[:, None] * B))
    np.testing.assert_allclose(posterior.mean, mean + cov @ B.T @ a, atol=1e-7)
    np.testing.assert_allclose(posterior.covariance(), V_w, atol=1e-9)
    np.testing.assert_allclose(latent.weight_variances(posterior).value, np.diag(V_w), rtol=1e-8)
    new = RNG.standard_normal((7, D))
    m, v = latent.predict(posterior, new)
    np.testing.assert_allclose(m, new @ posterior.mean, atol=1e-9)
    np.testing.assert_allclose(v, np.einsum("ij,jk,ik->i", new, V_w, new), rtol=1e-7)
    draws = posterior.sample(20_000, rng=1)
    tolerance = 6 * np.sqrt(np.diag(V_w) / len(draws))
    assert (np.abs(draws.mean(0) - posterior.mean) < tolerance).all()
    np.testing.assert_allclose(np.cov(draws.T), V_w, atol=0.05 * np.abs(V_w).max())


def test_improper_posteriors_are_refused():
    latent, _, _ = build("dense", False)
    with pytest.raises(NotPositiveDefiniteError):
        latent.factor(np.full(N, -5.0)).variances()


@pytest.mark.parametrize("step", [steps.Natural(), steps.FixedPoint(), steps.DoubleLoop()])
def test_other_steps_reach_the_same_optimum(step):
    y = np.where(B[:, 0] + 0.3 * RNG.standard_normal(N) > 0, 1.0, -1.0)
    expected = klimb.infer(latents.Weights(B, PRIOR_MEAN, VARIANCES), sites.Logistic(), y)
    found = klimb.infer(latents.Implicit(B, mean=PRIOR_MEAN, cov=VARIANCES), sites.Logistic(), y, step=step)
    assert found.converged
    assert abs(found.bound - expected.bound) < 1e-8
    np.testing.assert_allclose(found.posterior.a, expected.posterior.a, atol=1e-5)


def test_a_point_has_no_variance_anywhere():
    latent, _, _ = build("sparse", False)
    posterior = klimb.methods.map_estimate(latent, Logistic(), np.arange(N) % 2).posterior
    for found in (latent.weight_variances(posterior), latent.predict_variances(posterior, B[:4])):
        assert found.exact
        np.testing.assert_array_equal(found.value, 0.0)
    np.testing.assert_array_equal(latent.predict(posterior, B[:4])[1], 0.0)
    np.testing.assert_array_equal(latent.weight_covariance(posterior), 0.0)
    assert posterior.sample(2, np.random.default_rng(0)).std(axis=0).max() == 0.0
