"""Every latent against dense linear algebra written from the definition, gamma positive, zero and negative."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from klimb import latents
from klimb.errors import NotPositiveDefiniteError
from klimb.infer.problem import Problem
from klimb.sites import Logistic

RNG = np.random.default_rng(3)
N, D = 30, 5
X = RNG.standard_normal((N, D))
COV = np.cov(RNG.standard_normal((D, 40))) + 0.1 * np.eye(D)
LOW_RANK = COV[:, :2] @ COV[:2, :]  # singular: two directions only
LOW_RANK = (LOW_RANK + LOW_RANK.T) / 2
LOW_RANK = LOW_RANK @ LOW_RANK
SPARSE = X * (RNG.random((N, D)) < 0.5)
WIDE = RNG.standard_normal((N, 80))
THIN_SPARSE = scipy.sparse.random(N, 60, density=0.02, random_state=4, format="csr") * 2.0

CASES = {
    "scalar": lambda form: (latents.Weights(X, cov=0.7, form=form), X, 0.7 * np.eye(D)),
    "vector": lambda form: (latents.Weights(X, cov=np.arange(D) / 2, form=form), X, np.diag(np.arange(D) / 2)),
    "matrix": lambda form: (latents.Weights(X, cov=COV, form=form), X, COV),
    "singular": lambda form: (latents.Weights(X, cov=LOW_RANK, form=form), X, LOW_RANK),
    "csr": lambda form: (latents.Weights(scipy.sparse.csr_matrix(SPARSE), cov=COV, form=form), SPARSE, COV),
    "really sparse": lambda form: (
        latents.Weights(THIN_SPARSE, cov=2.0, form=form), THIN_SPARSE.toarray(), 2.0 * np.eye(60)),
    "wide": lambda form: (latents.Weights(WIDE, cov=0.1, form=form), WIDE, 0.1 * np.eye(80)),
}
GAMMAS = {
    "positive": RNG.gamma(1.0, size=N),
    "with zeros": np.where(np.arange(N) % 3 == 0, 0.0, RNG.gamma(1.0, size=N)),
    "all zero": np.zeros(N),
    "signed": np.where(np.arange(N) % 7 == 0, -0.02, RNG.gamma(2.0, size=N)),
    "uneven": 10.0 ** np.linspace(-14, 6, N),
}


def build(name, form):
    if form == "kernel":
        _, design, cov = CASES[name]("auto")
        K = design @ cov @ design.T
        return latents.Kernel((K + K.T) / 2), design, cov
    return CASES[name](form)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("form", ["primal", "dual", "kernel"])
@pytest.mark.parametrize("name", CASES)
def test_factor_against_dense_algebra(name, form, gamma):
    latent, design, cov = build(name, form)
    g = GAMMAS[gamma]
    K = design @ cov @ design.T
    inner = np.linalg.inv(np.eye(N) + K * g)  # (I + K G)^-1
    V = inner @ K
    factor = latent.factor(g)
    scale = max(1.0, np.abs(K).max())
    np.testing.assert_allclose(factor.variances(), np.diag(V), atol=1e-9 * scale)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(N) + K * g)[1], atol=1e-8)
    b = np.random.default_rng(0).standard_normal(N)
    x, Kx = factor.solve(b)
    # In the primal form x = b - gamma V b: for very precise sites its rounding is that of gamma V b.
    slack = 1e-7 * (1 + np.abs(g).max() * (1e-4 if form != "primal" else 0.1))
    np.testing.assert_allclose(x + g * (K @ x), b, atol=slack)
    assert abs(factor.energy(b) - b @ V @ b) <= 1e-8 * scale * N
    np.testing.assert_allclose(Kx, V @ b, atol=1e-8 * scale)
    np.testing.assert_allclose(factor.smooth(b), V @ b, atol=1e-8 * scale)
    np.testing.assert_allclose(np.tril(factor.covariance()), np.tril(V), atol=1e-8 * scale)
    np.testing.assert_allclose(latent.mvm(b), K @ b, atol=1e-10 * scale)
    np.testing.assert_allclose(latent.prior_variances, np.diag(K), atol=1e-12 * scale)
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-7 * scale)


@pytest.mark.parametrize("form", ["primal", "dual", "kernel"])
def test_improper_posteriors_are_refused(form):
    latent, _, _ = build("scalar", form)
    with pytest.raises(NotPositiveDefiniteError):
        latent.factor(np.full(N, -5.0))


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("name", CASES)
def test_weight_space_posterior_and_prediction(name, form):
    latent, design, cov = build(name, form)
    D_ = design.shape[1]
    rng = np.random.default_rng(8)
    a, gamma = rng.standard_normal(N) * 0.1, rng.gamma(1.0, size=N)
    problem = Problem(latent, Logistic(), np.ones(N))
    posterior = problem.posterior(problem.state(a, latent.mvm(a), latent.factor(gamma)))
    V_w = cov - cov @ design.T @ np.linalg.solve(np.linalg.inv(np.diag(gamma)) + design @ cov @ design.T, design @ cov)
    np.testing.assert_allclose(posterior.mean, cov @ design.T @ a, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance(), V_w, atol=1e-8)
    new = rng.standard_normal((7, D_))
    m, v = latent.predict(posterior, new)
    np.testing.assert_allclose(m, new @ cov @ design.T @ a, atol=1e-9)
    np.testing.assert_allclose(v, np.einsum("ij,jk,ik->i", new, V_w, new), atol=1e-8)
    # predicting the sites themselves gives their marginals back
    m, v = latent.predict(posterior, design)
    np.testing.assert_allclose(m, posterior.m, atol=1e-9)
    np.testing.assert_allclose(v, posterior.v, atol=1e-8)
    draws = posterior.sample(200_000 if D_ < 10 else 2_000, rng=1)
    tolerance = 6 * np.sqrt(np.diag(V_w) / len(draws)) + 1e-12
    assert (np.abs(draws.mean(0) - posterior.mean) < tolerance).all()
    if D_ < 10:
        np.testing.assert_allclose(np.cov(draws.T), V_w, atol=0.05 * np.abs(V_w).max())


@pytest.mark.parametrize("signed", [False, True])
def test_kernel_prediction_against_the_joint_gaussian(signed):
    x = np.linspace(0, 3, N)
    new = np.linspace(-0.5, 4, 11)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    cross = np.exp(-0.5 * (new[:, None] - x) ** 2)
    gamma = RNG.gamma(2.0, size=N)
    if signed:
        gamma[::6] = -0.05
    latent = latents.Kernel(K, mean=0.3)
    problem = Problem(latent, Logistic(), np.ones(N))
    a = RNG.standard_normal(N) * 0.1
    posterior = problem.posterior(problem.state(a, 0.3 + K @ a, latent.factor(gamma)))
    m, v = latent.predict(posterior, cross, np.ones(11), mean=0.3)
    joint = np.linalg.inv(np.diag(1 / gamma) + K)  # (K + G^-1)^-1
    np.testing.assert_allclose(m, 0.3 + cross @ a, atol=1e-12)
    np.testing.assert_allclose(v, 1 - np.einsum("ij,jk,ik->i", cross, joint, cross), atol=1e-8)
    m, v = latent.predict(posterior, K, np.diag(K), mean=0.3)
    np.testing.assert_allclose(v, posterior.v, atol=1e-9)
    draws = posterior.sample(4000, rng=0)
    np.testing.assert_allclose(draws.mean(0), posterior.mean, atol=0.1)


def test_mean_field_factor_is_the_diagonal_one():
    latent = latents.MeanField(X, cov=COV)
    gamma = GAMMAS["positive"]
    factor = latent.factor(gamma)
    precision = np.diag(np.linalg.inv(COV)) + X.T**2 @ gamma
    np.testing.assert_allclose(factor.variances(), X**2 @ (1 / precision), atol=1e-12)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(COV)[1] + np.log(precision).sum(), atol=1e-10)
    held = latents.MeanField(X, mean=1.0, cov=[0.0, 1.0, 1.0, 1.0, 1.0])
    problem = Problem(held, Logistic(), np.ones(N))
    posterior = problem.posterior(problem.state(np.zeros(N), np.array(held.mean), held.factor(gamma)))
    assert posterior.mean[0] == 1.0
    assert posterior.covariance()[0, 0] == 0.0
    _, v = held.predict(posterior, X)
    np.testing.assert_allclose(v, posterior.v, atol=1e-12)


def test_auto_takes_the_cheaper_form():
    assert latents.Weights(np.ones((100, 3))).form == "primal"
    assert latents.Weights(np.ones((3, 100))).form == "dual"


def test_prediction_works_in_blocks(monkeypatch):
    """The same answer whatever the block size, so memory can be bounded."""
    from klimb.numerics import dense

    x = np.linspace(0, 1, N)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.1)
    latent = latents.Kernel(K)
    problem = Problem(latent, Logistic(), np.ones(N))
    posterior = problem.posterior(problem.state(np.zeros(N), np.zeros(N), latent.factor(GAMMAS["positive"])))
    cross = np.vstack([K] * 10)
    whole = latent.predict(posterior, cross, np.ones(len(cross)))[1]
    monkeypatch.setattr(dense, "CACHE_DOUBLES", 64 * N)
    pieces = latent.predict(posterior, cross, np.ones(len(cross)))[1]
    np.testing.assert_allclose(whole, pieces, atol=1e-14)


@pytest.mark.parametrize("form", ["dual", "kernel"])
def test_a_site_known_to_sixteen_digits_keeps_its_variance(form):
    """gamma = 1e18 beside a prior variance of 1e4: V_ii is 1 / gamma, not the rounding error of the prior."""
    design = 100.0 * RNG.standard_normal((6, 40))
    latent = latents.Kernel(design @ design.T) if form == "kernel" else latents.Weights(design, form=form)
    gamma = np.array([1e18, 0.5, 1e-12, 0.0, 3.0, 1e10])
    np.testing.assert_allclose(latent.factor(gamma).variances()[[0, 5]], [1e-18, 1e-10], rtol=1e-3)
