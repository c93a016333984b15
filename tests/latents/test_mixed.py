"""The arrow-shaped latent against dense algebra and against Weights on the same model written out."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents import Mixed, Weights

RNG = np.random.default_rng(5)
N, B, L = 40, 3, 7
X = RNG.standard_normal((N, B))
CODES = RNG.integers(0, L - 1, N)  # level L - 1 has no rows
SLOPES = np.column_stack([np.ones(N), RNG.standard_normal(N)])
COV = np.diag([1.0, 4.0, 0.3])
COV[0, 1] = COV[1, 0] = 0.5
PRIORS = {
    "intercept": (np.ones((N, 1)), np.array([[0.7]])),
    "slopes": (SLOPES, np.array([[0.7, -0.3], [-0.3, 1.5]])),
    "singular": (SLOPES, np.array([[1.0, 2.0], [2.0, 4.0]])),
    "nothing": (SLOPES, np.zeros((2, 2))),
}
GAMMAS = {
    "positive": RNG.gamma(1.0, size=N),
    "zero": np.zeros(N),
    "signed": np.where(np.arange(N) % 7 == 0, -0.02, RNG.gamma(2.0, size=N)),
    "uneven": 10.0 ** np.linspace(-12, 4, N),
}


def written_out(values, group_cov):
    """The same model as one dense design with one dense prior."""
    k = values.shape[1]
    design = np.zeros((N, B + L * k))
    design[:, :B] = X
    for j in range(k):
        design[np.arange(N), B + CODES * k + j] = values[:, j]
    cov = np.zeros((B + L * k, B + L * k))
    cov[:B, :B] = COV
    for l in range(L):
        cov[B + l * k : B + (l + 1) * k, B + l * k : B + (l + 1) * k] = group_cov
    return design, cov


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("prior", PRIORS)
def test_factor_against_dense_algebra(prior, gamma):
    values, group_cov = PRIORS[prior]
    latent = Mixed(X, CODES, values, n_levels=L, cov=COV, group_cov=group_cov)
    design, cov = written_out(values, group_cov)
    K, g = design @ cov @ design.T, GAMMAS[gamma]
    V = np.linalg.solve(np.eye(N) + K * g, K)
    factor = latent.factor(g)
    b = RNG.standard_normal(N)
    scale = np.abs(K).max()
    np.testing.assert_allclose(factor.variances(), np.diag(V), atol=1e-9 * scale)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(N) + K * g)[1], atol=1e-8)
    np.testing.assert_allclose(factor.smooth(b), V @ b, atol=1e-8 * scale)
    assert abs(factor.energy(b) - b @ V @ b) < 1e-8 * scale * N
    np.testing.assert_allclose(factor.covariance(), V, atol=1e-8 * scale)
    np.testing.assert_allclose(latent.mvm(b), K @ b, atol=1e-10 * scale)
    np.testing.assert_allclose(latent.prior_variances, np.diag(K), atol=1e-12 * scale)
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-9 * scale)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_fit_is_that_of_weights(prior):
    values, group_cov = PRIORS[prior]
    y = RNG.poisson(np.exp(0.3 * X[:, 0]))
    mean = [0.3, 0.0, -0.2]
    mixed = klimb.infer(Mixed(X, CODES, values, n_levels=L, mean=mean, cov=COV, group_cov=group_cov),
                        klimb.sites.Poisson(), y, tol=1e-10)
    design, cov = written_out(values, group_cov)
    dense = klimb.infer(Weights(design, mean=np.append(mean, np.zeros(design.shape[1] - B)), cov=cov, form="primal"),
                        klimb.sites.Poisson(), y, tol=1e-10)
    assert mixed.converged
    assert mixed.bound == pytest.approx(dense.bound, abs=1e-9)
    np.testing.assert_allclose(mixed.posterior.mean, dense.posterior.mean, atol=1e-8)
    np.testing.assert_allclose(mixed.posterior.covariance(), dense.posterior.covariance(), atol=1e-8)
    m, v = mixed.posterior.latent.predict(mixed.posterior, X, CODES, values)
    np.testing.assert_allclose(m, mixed.posterior.m, atol=1e-9)
    np.testing.assert_allclose(v, mixed.posterior.v, atol=1e-9)


def test_an_unseen_level_has_its_prior_variance():
    latent = Mixed(X, CODES, group_cov=2.0)
    q = klimb.infer(latent, klimb.sites.Logistic(), RNG.random(N) < 0.5).posterior
    zero = np.zeros((1, B))
    m, v = latent.predict(q, zero, [-1])
    assert m[0] == 0.0
    assert v[0] == pytest.approx(2.0)


def test_draws_have_the_moments():
    values, group_cov = PRIORS["slopes"]
    latent = Mixed(X, CODES, values, n_levels=L, cov=COV, group_cov=group_cov)
    q = klimb.infer(latent, klimb.sites.Logistic(), RNG.random(N) < 0.5).posterior
    draws = q.sample(40_000, 1)
    sd = np.sqrt(np.diag(q.covariance()))
    np.testing.assert_allclose(draws.mean(0), q.mean, atol=0.03 * sd.max())
    np.testing.assert_allclose(np.cov(draws.T), q.covariance(), atol=0.06 * sd.max() ** 2)


def test_thinned_rows_see_the_same_prior():
    values, group_cov = PRIORS["slopes"]
    latent = Mixed(X, CODES, values, n_levels=L, cov=COV, group_cov=group_cov, slack=np.linspace(0, 1, N))
    rows = np.array([3, 1, 20, 8])
    thinned = latent.thin(rows)
    np.testing.assert_allclose(thinned.prior_variances, latent.prior_variances[rows])
    np.testing.assert_allclose(thinned.slack, latent.slack[rows])
    e = np.eye(N)[:, rows]
    K = np.column_stack([latent.mvm(e[:, j]) for j in range(4)])[rows]
    np.testing.assert_allclose(np.column_stack([thinned.mvm(v) for v in np.eye(4)]), K, atol=1e-12)


def test_a_hundred_thousand_levels():
    n, levels = 200_000, 100_000
    rng = np.random.default_rng(0)
    codes = rng.integers(0, levels, n)
    Xl = np.column_stack([np.ones(n), rng.standard_normal(n)])
    f = Xl @ [0.2, 1.0] + rng.standard_normal(levels)[codes]
    result = klimb.infer(Mixed(Xl, codes, n_levels=levels, cov=10.0), klimb.sites.Logistic(),
                         rng.random(n) < 1 / (1 + np.exp(-f)))
    assert result.converged
    assert abs(result.posterior.latent.detach(result.posterior).shared[1] - 1.0) < 0.1


def test_bad_input_is_named():
    with pytest.raises(InputError, match="whole numbers"):
        Mixed(X, CODES[:5])
    with pytest.raises(InputError, match="-1 at index 3"):
        Mixed(X, np.where(np.arange(N) == 3, -1, CODES))
    with pytest.raises(InputError, match="2 x 2 matrix"):
        Mixed(X, CODES, SLOPES, group_cov=np.eye(3))
    with pytest.raises(NotPositiveDefiniteError):
        Mixed(X, CODES, group_cov=4.0).factor(np.full(N, -1.0))


def test_the_trust_report_is_that_of_the_model_written_out():
    from klimb.latents.coordinates import coordinates_of

    values, group_cov = PRIORS["slopes"]
    y = np.random.default_rng(5).poisson(np.exp(0.3 * X[:, 0]))  # the same whichever tests ran before
    design, cov = written_out(values, group_cov)
    found = []
    for latent in (Mixed(X, CODES, values, n_levels=L, cov=COV, group_cov=group_cov),
                   Weights(design, cov=cov, form="primal")):
        result = klimb.infer(latent, klimb.sites.Poisson(), y, tol=1e-10)
        coordinates = coordinates_of(result.posterior)
        z = np.eye(coordinates.dim)
        columns = []

        def visit(rows, deviations, columns=columns):
            columns.append(deviations)
            return deviations

        gram = coordinates.sweep(z, visit)  # Z'Z, row by row
        Z = np.hstack(columns).T
        np.testing.assert_allclose(Z @ Z.T, result.posterior.factorised().covariance(), atol=1e-8)
        np.testing.assert_allclose(gram, Z.T @ Z, atol=1e-9)
        report = coordinates.report(z, slice(None))
        np.testing.assert_allclose(np.sqrt((report**2).sum(axis=0)), coordinates.sd, atol=1e-10)
        found.append(result.trust)
    assert found[0].verdict == found[1].verdict
    assert found[0].log_evidence == pytest.approx(found[1].log_evidence, abs=0.05)


def test_latents_of_the_same_rows_keep_them_once() -> None:
    """An average over hyperparameters makes dozens: nothing of the length of the data belongs to each alone."""
    latent = Mixed(X, CODES, SLOPES, n_levels=L, cov=COV, group_cov=PRIORS["slopes"][1])
    other = latent.with_prior(0.0, COV, 2.0 * PRIORS["slopes"][1])
    other.factor(np.ones(N)).variances()
    mine = {id(value) for value in vars(latent).values()}
    assert all(id(value) in mine for value in vars(other).values() if getattr(value, "size", 0) >= N)
    assert other.shared is latent.shared
