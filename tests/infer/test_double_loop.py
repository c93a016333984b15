"""The double loop against direct solvers of the same bound that share none of its code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import scipy.fft
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg

import klimb
from klimb import latents, methods, sites, steps
from klimb.errors import InputError
from klimb.latents.costs import Shape
from klimb.linalg.operators import BlockedOperator
from klimb.models.plan import engine_plan

RNG = np.random.default_rng(5)
N, D = 40, 5
X = RNG.standard_normal((N, D))
WEIGHTS = np.array([2.0, -1.0, 0.0, 0.0, 0.5])
LABELS = np.where(RNG.random(N) < 1 / (1 + np.exp(-X @ WEIGHTS)), 1.0, -1.0)
REAL = X @ WEIGHTS + 0.5 * RNG.standard_t(3, N)
COUNTS = RNG.poisson(np.exp(0.3 * X @ WEIGHTS)).astype(float)

# -- even parts of three sites, written out: log p(y|s) = slope s + g((s - c)^2), and g' -----------------------------

EVEN = {
    "Logistic": (sites.Logistic(), LABELS, LABELS / 2, np.zeros(N),
                 lambda x: -np.log(2 * np.cosh(np.sqrt(x) / 2)), lambda x: -np.tanh(np.sqrt(x) / 2) / (4 * np.sqrt(x))),
    "Laplace": (sites.Laplace(0.7), REAL, np.zeros(N), REAL,
                lambda x: -np.sqrt(x) / 0.7 - np.log(1.4), lambda x: -0.5 / (0.7 * np.sqrt(x))),
    "StudentT": (sites.StudentT(3.0, 0.5), REAL, np.zeros(N), REAL,
                 lambda x: -2 * np.log1p(x / 0.75) + sites.StudentT(3.0, 0.5).log_density([0.0], [0.0])[0],
                 lambda x: -2 / (0.75 + x)),
}


def gaussian_posterior(B, prior, pull, slope, centre, gamma):
    """q with precision prior + B'GB for sites exp(slope (s - c) - gamma (s - c)^2 / 2), and log of its integral."""
    A = prior + B.T @ (gamma[:, None] * B)
    rhs = pull + B.T @ (slope + gamma * centre)
    u = np.linalg.solve(A, rhs)
    return u, A, 0.5 * rhs @ u - 0.5 * np.linalg.slogdet(A)[1]


def direct_local_bound(B, prior, pull, constant, parts):
    """max over all touching points of the Gaussian integral under the tangent bounds, by L-BFGS with its gradient."""
    slope, centre = (np.concatenate([part[k] for part in parts]) for k in (2, 3))
    edges = np.cumsum([0] + [len(part[1]) for part in parts])
    pieces = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]

    def value(log_x):
        x = np.exp(log_x)
        g = np.concatenate([part[4](x[piece]) for part, piece in zip(parts, pieces, strict=True)])
        slopes = np.concatenate([part[5](x[piece]) for part, piece in zip(parts, pieces, strict=True)])
        ahead = np.concatenate([part[5](x[piece] * (1 + 1e-6)) for part, piece in zip(parts, pieces, strict=True)])
        gamma = -2 * slopes
        u, A, integral = gaussian_posterior(B, prior, pull, slope, centre, gamma)
        v = np.einsum("ij,ij->i", B, np.linalg.solve(A, B.T).T)
        total = integral + constant + (g - slopes * x).sum() - slope @ centre - 0.5 * gamma @ centre**2
        square = (B @ u - centre) ** 2 + v
        gradient = (ahead - slopes) / 1e-6 * (square - x)
        return -total, -gradient

    start = np.zeros(edges[-1])
    best = scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B",
                                   options={"maxiter": 5000, "ftol": 0, "gtol": 1e-9, "maxcor": 60})
    gamma = -2 * np.concatenate([part[5](np.exp(best.x[piece])) for part, piece in zip(parts, pieces, strict=True)])
    u, A, _ = gaussian_posterior(B, prior, pull, slope, centre, gamma)
    return -best.fun, u, A


@pytest.mark.parametrize("variance", [1e-2, 1.0, 1e4])
@pytest.mark.parametrize("name", EVEN)
def test_local_bound_with_a_gaussian_prior_is_the_optimum_of_a_direct_solver(name, variance):
    part = EVEN[name]
    constant = -0.5 * D * np.log(variance)
    bound, u, A = direct_local_bound(X, np.eye(D) / variance, np.zeros(D), constant, [part])
    result = klimb.infer(latents.Implicit(X, cov=variance), part[0], part[1], step=steps.DoubleLoop("local"), tol=1e-8)
    assert result.converged
    assert result.certified
    assert result.bound_error == 0.0
    assert abs(result.bound - bound) < 1e-8 * max(1.0, abs(bound))
    np.testing.assert_allclose(result.posterior.mean, u, atol=1e-5)
    np.testing.assert_allclose(result.posterior.covariance(), np.linalg.inv(A), rtol=1e-4, atol=1e-6 * variance)
    assert (np.diff(result.history.bound) > -1e-10 * abs(bound)).all()


@pytest.mark.parametrize("prior", ["Laplace", "StudentT"])
@pytest.mark.parametrize("name", EVEN)
def test_local_bound_with_a_sparsity_prior_is_the_optimum_of_a_direct_solver(name, prior):
    """No Gaussian prior at all: the identity is appended to the design, as in [N] section 2."""
    data, own = EVEN[name], EVEN[prior]
    penalty = (own[0], np.zeros(D), np.zeros(D), np.zeros(D), own[4], own[5])
    B = np.vstack([X, np.eye(D)])
    constant = 0.5 * D * np.log(2 * np.pi)
    bound, u, A = direct_local_bound(B, np.zeros((D, D)), np.zeros(D), constant, [data, penalty])
    site = sites.Stack([(data[0], N), (own[0], D)])
    latent = latents.Implicit([X, np.eye(D)], cov=None)
    result = klimb.infer(latent, site, np.r_[data[1], np.zeros(D)], step=steps.DoubleLoop("local"), tol=1e-8)
    assert result.converged
    assert abs(result.bound - bound) < 1e-7
    np.testing.assert_allclose(result.posterior.mean, u, atol=1e-5)
    np.testing.assert_allclose(result.posterior.covariance(), np.linalg.inv(A), rtol=1e-4, atol=1e-7)
    assert (np.diff(result.history.bound) > -1e-9).all()


def test_sparse_linear_model_is_the_optimum_of_a_direct_solver():
    noise = 0.5
    own = EVEN["Laplace"]
    penalty = (own[0], np.zeros(D), np.zeros(D), np.zeros(D), own[4], own[5])
    constant = -0.5 * N * np.log(2 * np.pi * noise**2) - 0.5 * REAL @ REAL / noise**2 + 0.5 * D * np.log(2 * np.pi)
    bound, u, A = direct_local_bound(np.eye(D), X.T @ X / noise**2, X.T @ REAL / noise**2, constant, [penalty])
    fit = klimb.sparse_linear(X, REAL, noise=noise, scale=0.7, bound="local", tol=1e-8)
    assert abs(fit.bound - bound) < 1e-8
    np.testing.assert_allclose(fit.coef, u, atol=1e-7)
    np.testing.assert_allclose(fit.coef_sd, np.sqrt(np.diag(np.linalg.inv(A))), rtol=1e-6)


# -- the algorithms that [N] compares with -----------------------------------------------------------------------------


def tangent_gamma(part, square):
    return -2 * part[5](square)


@pytest.mark.parametrize("name", ["Laplace", "Logistic"])
def test_the_baselines_of_the_paper_end_where_the_double_loop_does(name):
    """Coordinate ascent and direct gradients on the local bound: [N] section 2.2."""
    part = EVEN[name]
    double = klimb.infer(latents.Implicit(X, cov=2.0), part[0], part[1], step=steps.DoubleLoop("local"), tol=1e-9)
    weights, local = latents.Weights(X, cov=2.0), sites.SuperGaussian(part[0])
    swept = klimb.infer(weights, local, part[1], step=steps.CoordinateAscent(), tol=1e-8)
    direct = methods.direct_gradient(weights, local, part[1], tol=1e-6)
    for other in (swept, direct):
        assert other.converged
        assert abs(other.bound - double.bound) < 1e-7
        np.testing.assert_allclose(other.posterior.gamma, double.posterior.gamma, rtol=1e-4)
    assert (np.diff(swept.history.bound) > -1e-10).all()  # every sweep raises the bound
    assert set(swept.history.rule[1:]) == {"sweep"}
    assert direct.n_iter > 2 * double.n_iter
    with pytest.raises(InputError, match="positive precisions; got StudentT"):
        methods.direct_gradient(weights, sites.StudentT(3.0, 1.0), REAL)


def test_the_gradient_in_log_gamma_is_that_of_the_bound(monkeypatch):
    seen = []

    def stopped(problem, bound, marginals, start, *settings):
        seen.append((bound, start))
        return climb(problem, bound, marginals, start, *settings)

    climb = methods._climb
    monkeypatch.setattr(methods, "_climb", stopped)
    methods.direct_gradient(latents.Weights(X, cov=2.0), sites.Logistic(), LABELS)
    bound, theta = seen[0][0], seen[0][1] + 0.1 * np.random.default_rng(0).standard_normal(D + N)
    wanted = [(bound(theta + h)[0] - bound(theta - h)[0]) / 2e-5 for h in 1e-5 * np.eye(D + N)]
    np.testing.assert_allclose(bound(theta)[1], wanted, atol=1e-6)


def test_a_sweep_is_one_site_after_the_other():
    """The first sweep by hand, with a full inverse for every site."""
    site, y = sites.Logistic(), LABELS
    result = klimb.infer(latents.Weights(X, cov=2.0), site, y, step=steps.CoordinateAscent(), max_iter=1)
    slope, gamma = (np.array(part) for part in site.start(site.validate(y)))
    for i in range(N):
        for _ in range(200):
            V = np.linalg.inv(np.eye(D) / 2 + X.T @ (gamma[:, None] * X))
            m, v = X[i] @ V @ X.T @ slope, X[i] @ V @ X[i]
            e = site.expect(y[i:i + 1], [m], [v])
            slope[i], gamma[i] = e.gamma[0] * m - e.alpha[0], e.gamma[0]
    np.testing.assert_allclose(result.posterior.gamma, gamma, rtol=1e-6)


def test_the_number_of_lanczos_vectors():
    """k of [N] section 2.3: variances from below that rise with k, and the products that they cost."""
    rng = np.random.default_rng(3)
    B = rng.standard_normal((120, 60))
    latent, y = latents.Implicit(B, cov=1.0), (B[:, 0] > 0).astype(float)
    exact = klimb.infer(latent, sites.Logistic(), y, step=steps.DoubleLoop("local", variances="exact"))
    fits = {k: klimb.infer(latent, sites.Logistic(), y, step=steps.DoubleLoop("local", "lanczos", vectors=k))
            for k in (5, 20, 60)}
    means = [fits[k].posterior.v.mean() for k in (5, 20, 60)]
    assert means[0] < means[1] < means[2]
    assert abs(means[2] - exact.posterior.v.mean()) < 0.01 * means[2]  # the accuracy that was asked for
    products = [fits[k].history.n_products.sum() / fits[k].n_iter for k in (5, 60)]
    assert products[1] > products[0] + 60
    with pytest.raises(InputError, match="vectors must be at least 1"):
        steps.DoubleLoop(vectors=5)


def test_coordinate_ascent_and_a_single_loop_end_where_the_double_loop_does():
    """One site at a time with rank-one updates, and all sites at once without an inner loop; Laplace noise."""
    part = EVEN["Laplace"]
    result = klimb.infer(latents.Implicit(X, cov=2.0), part[0], part[1], step=steps.DoubleLoop("local"), tol=1e-9)
    gamma = np.ones(N)
    for _ in range(60):  # coordinate ascent: gamma_i at its own optimum, the others held
        for i in range(N):
            u, A, _ = gaussian_posterior(X, np.eye(D) / 2, np.zeros(D), part[2], part[3], gamma)
            v = X[i] @ np.linalg.solve(A, X[i])
            for _ in range(30):  # its own variance answers to it
                square = (X[i] @ u - part[3][i]) ** 2 + v
                new = float(tangent_gamma(part, square))
                u, A, _ = gaussian_posterior(X, np.eye(D) / 2, np.zeros(D), part[2], part[3],
                                             np.where(np.arange(N) == i, new, gamma))
                v = X[i] @ np.linalg.solve(A, X[i])
            gamma[i] = new
        if np.allclose(gamma, result.posterior.gamma, rtol=1e-6):
            break
    np.testing.assert_allclose(gamma, result.posterior.gamma, rtol=1e-5)
    gamma = np.ones(N)
    for _ in range(600):  # single loop
        u, A, _ = gaussian_posterior(X, np.eye(D) / 2, np.zeros(D), part[2], part[3], gamma)
        v = np.einsum("ij,ij->i", X, np.linalg.solve(A, X.T).T)
        gamma = tangent_gamma(part, (X @ u - part[3]) ** 2 + v)
    np.testing.assert_allclose(gamma, result.posterior.gamma, rtol=1e-6)


# -- the KL bound ------------------------------------------------------------------------------------------------------

KL_CASES = {
    "Logistic": (sites.Logistic(), LABELS), "Poisson": (sites.Poisson(), COUNTS), "Laplace": (sites.Laplace(0.7), REAL),
    "StudentT": (sites.StudentT(3.0, 0.5), REAL), "Gaussian": (sites.Gaussian(0.5), REAL),
}


@pytest.mark.parametrize("variance", [1e-8, 1e-2, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("name", KL_CASES)
def test_kl_bound_equals_the_exact_engine(name, variance):
    site, y = KL_CASES[name]
    expected = klimb.infer(latents.Weights(X, mean=0.1, cov=variance), site, y, tol=1e-8)
    result = klimb.infer(latents.Implicit(X, mean=0.1, cov=variance), site, y, step=steps.DoubleLoop("kl"), tol=1e-8)
    assert result.converged
    assert result.certified
    assert abs(result.bound - expected.bound) < 1e-6 * max(1.0, abs(expected.bound)) * 1e-2
    sd = np.sqrt(np.diag(expected.posterior.covariance()))
    assert (np.abs(result.posterior.mean - expected.posterior.mean) < 1e-5 * sd).all()
    np.testing.assert_allclose(result.posterior.v, expected.posterior.v, rtol=1e-5)
    np.testing.assert_allclose(result.posterior.kl, expected.posterior.kl, rtol=1e-5, atol=1e-6)
    assert (np.diff(result.history.bound) > -1e-9 * abs(expected.bound)).all()


def test_kl_bound_of_a_flat_prior_is_the_best_gaussian():
    """L-BFGS on the mean and the Cholesky factor of q, for a sparse logistic regression without Gaussian factors."""
    site = sites.Stack([(sites.Logistic(), N), (sites.Laplace(0.4), D)])
    B, y = np.vstack([X, np.eye(D)]), np.r_[LABELS, np.zeros(D)]
    lower = np.tril_indices(D)

    def negative(theta):
        u, L = theta[:D], np.zeros((D, D))
        L[lower] = theta[D:]
        e = site.expect(y, B @ u, np.einsum("ij,ij->i", B @ L, B @ L))
        diagonal = np.diagonal(L)
        value = e.value.sum() + np.log(np.abs(diagonal)).sum() + 0.5 * D * (1 + np.log(2 * np.pi))
        slope_L = -(B.T * e.gamma) @ (B @ L)
        slope_L[np.diag_indices(D)] += 1 / diagonal
        return -value, -np.r_[-B.T @ e.alpha, slope_L[lower]]

    start = np.r_[np.zeros(D), np.eye(D)[lower]]
    best = scipy.optimize.minimize(negative, start, jac=True, method="L-BFGS-B",
                                   options={"maxiter": 2000, "ftol": 0, "gtol": 1e-9})
    result = klimb.infer(latents.Implicit([X, np.eye(D)], cov=None), site, y, tol=1e-8)
    assert abs(result.bound + best.fun) < 1e-7
    np.testing.assert_allclose(result.posterior.mean, best.x[:D], atol=1e-4)
    fit = klimb.sparse_glm(X, LABELS, prior="laplace", scale=0.4, intercept=False, tol=1e-8)
    assert abs(fit.bound + best.fun) < 1e-7


def test_the_bounds_are_ordered_and_the_local_one_is_loose_for_wide_priors():
    """1-D logistic, prior variance 100, five equal labels: exact -0.87, Gaussian KL -1.07, local -2.04."""
    ones, y = np.ones((5, 1)), np.ones(5)
    local, kl = (klimb.infer(latents.Implicit(ones, cov=100.0), sites.Logistic(), y, step=steps.DoubleLoop(bound)).bound
                 for bound in ("local", "kl"))
    assert round(local, 2) == -2.04
    assert round(kl, 2) == -1.07
    assert local < kl < -0.87


# -- Gaussian data beside the sites, other steps, other latents -------------------------------------------------------


def test_gaussian_data_are_sites_by_another_name():
    """X, y, noise as Gaussian factors, or as Gaussian sites in a stack: one bound, one posterior."""
    Z, z = RNG.standard_normal((12, D)), RNG.standard_normal(12)
    factors = klimb.infer(latents.Implicit(X, X=Z, y=z, noise=0.3, cov=2.0), sites.Logistic(), LABELS, tol=1e-8)
    both = sites.Stack([(sites.Logistic(), N), (sites.Gaussian(0.3), 12)])
    stacked = klimb.infer(latents.Weights(np.vstack([X, Z]), cov=2.0), both, np.r_[LABELS, z], tol=1e-8)
    assert abs(factors.bound - stacked.bound) < 1e-8
    np.testing.assert_allclose(factors.posterior.mean, stacked.posterior.mean, atol=1e-6)
    natural = klimb.infer(latents.Implicit(X, X=Z, y=z, noise=0.3, cov=2.0), sites.Logistic(), LABELS,
                          step=steps.Natural(), tol=1e-8)
    assert abs(natural.bound - stacked.bound) < 1e-8


def test_complex_measurements_are_pairs_of_real_ones():
    F = RNG.standard_normal((9, D)) + 1j * RNG.standard_normal((9, D))
    z = RNG.standard_normal(9) + 1j * RNG.standard_normal(9)
    pairs = klimb.sparse_linear(np.vstack([F.real, F.imag]), np.r_[z.real, z.imag], noise=0.4, scale=0.5)
    whole = klimb.sparse_linear(scipy.sparse.linalg.aslinearoperator(F), z, noise=0.4, scale=0.5)
    assert abs(pairs.bound - whole.bound) < 1e-9
    np.testing.assert_allclose(pairs.coef, whole.coef, atol=1e-8)


@pytest.mark.parametrize("kind", ["dense", "csr", "operator", "stack"])
def test_every_kind_of_operator_gives_the_same_fit(kind):
    made = {"dense": X, "csr": scipy.sparse.csr_matrix(X), "operator": scipy.sparse.linalg.aslinearoperator(X),
            "stack": [X[:10], scipy.sparse.csr_matrix(X[10:])]}[kind]
    result = klimb.infer(latents.Implicit(made, cov=1.5), sites.Logistic(), LABELS)
    expected = klimb.infer(latents.Weights(X, cov=1.5), sites.Logistic(), LABELS)
    assert abs(result.bound - expected.bound) < 1e-9
    m, v = result.posterior.latent.predict(result.posterior, X[:4])
    expected_m, expected_v = expected.posterior.latent.predict(expected.posterior, X[:4])
    np.testing.assert_allclose(m, expected_m, atol=1e-6)
    np.testing.assert_allclose(v, expected_v, rtol=1e-5)


def test_warm_starts_take_fewer_products():
    latent = latents.Implicit(X, cov=1.0)
    first = klimb.infer(latent, sites.Logistic(), LABELS)
    again = klimb.infer(latent, sites.Logistic(), LABELS, start=first.posterior)
    assert again.n_products < first.n_products / 2
    assert abs(again.bound - first.bound) < 1e-9


def test_products_are_counted_and_nothing_is_lost():
    latent = latents.Implicit(X, cov=1.0)
    before = latent.n_products
    result = klimb.infer(latent, sites.Logistic(), LABELS, step=steps.DoubleLoop(variances="sampling", accuracy=0.2))
    assert result.n_products == latent.n_products - before == result.history.n_products.sum()
    assert result.history.n_products.min() > 0


# -- estimated variances ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sampling", "diagonal", "bracket"])
def test_estimates_are_within_their_stated_errors(method):
    rng = np.random.default_rng(0)
    rows, columns = 400, 60
    design = scipy.sparse.csr_matrix(rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.2))
    labels = rng.random(rows) < 1 / (1 + np.exp(-design @ rng.standard_normal(columns)))
    exact = klimb.infer(latents.Implicit(design, cov=1.0), sites.Logistic(), labels)
    latent = latents.Implicit(design, cov=1.0)
    step = steps.DoubleLoop(variances=method, accuracy=0.05)
    result = klimb.infer(latent, sites.Logistic(), labels, step=step)
    assert result.status is klimb.infer.Status.ESTIMATED
    assert result.converged
    assert not result.certified
    dense = design.toarray()
    A = np.eye(columns) + dense.T @ (result.posterior.gamma[:, None] * dense)
    v = np.einsum("ij,ij->i", dense, np.linalg.solve(A, dense.T).T)  # what the estimates estimate
    assert np.mean(np.abs(result.posterior.v - v) <= 2.5 * result.variance_error + 1e-9 * v) > 0.9
    claimed = max(0.05, np.median(0.6745 * result.variance_error / result.posterior.v))
    assert np.median(np.abs(result.posterior.v / exact.posterior.v - 1)) < 1.5 * claimed  # nearly the same gamma
    assert abs(result.bound - exact.bound) < 4 * result.bound_error + 0.05
    sd = np.sqrt(np.diag(exact.posterior.covariance()))
    assert (np.abs(result.posterior.mean - exact.posterior.mean) < 0.1 * sd).all()
    same = klimb.infer(latent, sites.Logistic(), labels, step=step)
    assert same.bound == result.bound
    assert np.array_equal(same.posterior.v, result.posterior.v)
    variances = latent.weight_variances(result.posterior)
    np.testing.assert_allclose(variances.value, np.diag(result.posterior.covariance()), rtol=0.1)


def test_draws_have_the_posterior_mean_and_covariance():
    result = klimb.infer(latents.Implicit([X, np.eye(D)], cov=None), *_sparse_logistic())
    draws = result.posterior.sample(4000, rng=0)
    V = result.posterior.covariance()
    assert (np.abs(draws.mean(0) - result.posterior.mean) < 5 * np.sqrt(np.diag(V) / 4000)).all()
    np.testing.assert_allclose(np.cov(draws.T), V, atol=0.1 * np.abs(V).max())


def _sparse_logistic():
    return sites.Stack([(sites.Logistic(), N), (sites.Laplace(0.4), D)]), np.r_[LABELS, np.zeros(D)]


@pytest.mark.parametrize("cov", [1.0, None])
def test_trust_reports_on_small_models_and_says_why_not_on_large_ones(cov):
    site, y = _sparse_logistic()
    result = klimb.infer(latents.Implicit([X, np.eye(D)], cov=cov), site, y)
    assert abs(result.trust.bound - result.bound) < 1e-6
    assert result.trust.log_evidence >= result.bound
    if cov is not None:
        same = klimb.infer(latents.Weights(np.vstack([X, np.eye(D)]), cov=cov), site, y)
        assert abs(same.trust.log_evidence - result.trust.log_evidence) < 0.02
    wide = scipy.sparse.csr_matrix((np.ones(6000), (np.zeros(6000, dtype=int), np.arange(6000))), shape=(2, 6000))
    large = klimb.infer(latents.Implicit(wide, cov=1e-4), sites.Logistic(), [1, 0])
    with pytest.raises(InputError, match="6000"):
        _ = large.trust
    with pytest.raises(InputError, match="5,184,000,000 bytes"):
        latents.Implicit(scipy.sparse.hstack([wide] * 3), cov=1e-4).weight_covariance(large.posterior)


# -- extremes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e3, 1e8])
@pytest.mark.parametrize("prior", ["gaussian", "laplace", "student", "sech2"])
def test_extreme_scales_of_the_prior(prior, scale):
    fit = klimb.sparse_glm(X, LABELS, prior=prior, scale=scale, engine="double loop")
    assert fit.result.converged
    assert np.isfinite(fit.bound)
    assert np.isfinite(fit.coef).all()
    assert (fit.coef_sd > 0).all()
    if scale <= 1e-3:
        assert (np.abs(fit.coef) < 10 * scale).all()


@pytest.mark.parametrize("design", [np.ones((1, 1)), np.ones((7, 1)), np.tile(X[:, :1], 3), 1e-12 * X, 1e6 * X])
def test_extreme_designs(design):
    y = LABELS[: len(design)]
    result = klimb.infer(latents.Implicit(design, cov=1.0), sites.Logistic(), y)
    expected = klimb.infer(latents.Weights(design, cov=1.0), sites.Logistic(), y)
    assert result.converged
    assert abs(result.bound - expected.bound) < 1e-6 * max(1.0, abs(expected.bound))


def test_separable_labels_and_wide_priors():
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    for cov in (1.0, 1e4):
        result = klimb.infer(latents.Implicit(X, cov=cov), sites.Logistic(), y)
        expected = klimb.infer(latents.Weights(X, cov=cov), sites.Logistic(), y)
        assert result.converged
        assert abs(result.bound - expected.bound) < 1e-6


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_latents_that_are_not_known_by_products_give_their_design():
    """The same optimum as that of the natural step, in the terms of the latent itself; a mean of f is no part of it."""
    K = X @ X.T + np.eye(N)
    for latent in (latents.Weights(X, mean=0.4), latents.Kernel(K, mean=0.7), latents.Mixed(X, np.arange(N) % 4)):
        natural = klimb.infer(latent, sites.Logistic(), LABELS)
        double = klimb.infer(latent, sites.Logistic(), LABELS, step=steps.DoubleLoop())
        assert double.converged
        np.testing.assert_allclose(double.bound, natural.bound, atol=1e-8)
        np.testing.assert_allclose(double.posterior.mean, natural.posterior.mean, atol=1e-5)
        np.testing.assert_allclose(double.posterior.covariance(), natural.posterior.covariance(), atol=1e-5)
        again = klimb.infer(latent, sites.Logistic(), LABELS, step=steps.DoubleLoop(), start=natural.posterior)
        assert again.n_iter <= 1


def test_bad_input_is_refused_in_three_parts():
    wrong = scipy.sparse.linalg.LinearOperator((N, D), matvec=lambda u: X @ u, rmatvec=lambda w: 2 * X.T @ w)
    cases = [
        (lambda: latents.Implicit(wrong), "adjoint"),
        (lambda: latents.Implicit(np.where(X > 2, np.nan, X)), "finite"),
        (lambda: latents.Implicit(X, cov=0.0), "cov must be positive"),
        (lambda: latents.Implicit(X, cov=[1.0, 2.0]), "shape"),
        (lambda: latents.Implicit(X, cov=np.nan), "finite"),
        (lambda: latents.Implicit(X, y=[1.0]), "y without X"),
        (lambda: latents.Implicit(X, X=X), "X without y"),
        (lambda: latents.Implicit(X, X=X[:, :2], y=np.ones(N)), "columns"),
        (lambda: latents.Implicit(X, X=X, y=np.ones(3)), "one entry per row"),
        (lambda: latents.Implicit(X, X=X, y=np.ones(N), noise=-1.0), "noise must be positive"),
        (lambda: latents.Implicit("words"), "B must be"),
        (lambda: steps.DoubleLoop(bound="tight"), "bound must be"),
        (lambda: steps.DoubleLoop(variances="magic"), "variances must be"),
        (lambda: steps.DoubleLoop(accuracy=2.0), "accuracy"),
        (lambda: steps.DoubleLoop(max_outer=0), "max_outer"),
        (lambda: klimb.infer(latents.Weights(X, slack=1), sites.Logistic(), LABELS, step=steps.DoubleLoop()), "slack"),
        (lambda: klimb.infer(latents.Implicit(X), sites.Poisson(), COUNTS, step=steps.DoubleLoop("local")), "super"),
        (lambda: klimb.infer(latents.Implicit(X, cov=None), sites.Logistic(), LABELS, step=steps.Natural()), "Double"),
        (lambda: klimb.sparse_glm(X, LABELS, prior="horseshoe"), "prior must be"),
        (lambda: klimb.sparse_glm(X, LABELS, scale=-1.0), "scale must be positive"),
        (lambda: klimb.sparse_glm(X, LABELS, scale=[1.0, 2.0]), "one per coefficient"),
        (lambda: klimb.sparse_glm(X, LABELS, engine="fast"), "engine must be"),
        (lambda: klimb.sparse_glm(X, LABELS, prior="laplace", engine="dual"), "Gaussian prior"),
        (lambda: klimb.sparse_glm(X, LABELS[:3]), "one entry per site"),
        (lambda: klimb.sparse_glm(X, LABELS, memory=10.0), "must fit into"),
        (lambda: klimb.sparse_linear(X, REAL, noise=0.0), "noise must be positive"),
        (lambda: klimb.sparse_linear(X, REAL, noise=1.0, analysis=[np.eye(D), np.eye(3)]), "columns"),
        (lambda: klimb.sparse_linear(X, REAL, noise=1.0, analysis=[np.eye(D)], scale=[1.0, 2.0]), "each of the 1"),
    ]
    for make, words in cases:
        with pytest.raises(InputError, match=words) as caught:
            make()
        assert caught.value.advice


@pytest.mark.parametrize("variances", ["auto", "sampling"])
def test_improper_posteriors_are_refused(variances):
    """A flat prior, and a direction that neither sites nor data see."""
    B = np.column_stack([X[:, :3], X[:, 0] + X[:, 1]])
    with pytest.raises(InputError, match="undetermined"):
        klimb.infer(latents.Implicit(B, cov=None), sites.Laplace(1.0), REAL, step=steps.DoubleLoop(variances=variances))


def test_systems_that_can_not_be_solved_mark_the_result():
    """A smooth transform with little noise: condition 1e12, of which nothing but products is known."""
    size, noise = 90, 1e-5
    spectrum = 10.0 ** np.linspace(0, -4, size)
    blur = scipy.sparse.linalg.LinearOperator(
        (size, size), matvec=lambda u: spectrum * scipy.fft.dct(u.ravel(), norm="ortho"),
        rmatvec=lambda w: scipy.fft.idct(spectrum * w.ravel(), norm="ortho"))
    y = blur @ np.repeat([0.0, 1.0, -1.0], 30) + noise * RNG.standard_normal(size)
    fit = klimb.sparse_linear(blur, y, noise=noise, scale=0.1, variances="sampling", accuracy=0.2)
    assert fit.status is klimb.infer.Status.UNSOLVED
    assert not fit.result.converged
    assert "noise" in fit.status.advice
    assert fit.result.bound_error == np.inf
    assert any("residual" in note for note in fit.result.notes)
    exact = klimb.sparse_linear(blur, y, noise=noise, scale=0.1)  # a factorisation can
    assert exact.certified
    assert np.sqrt(np.mean((exact.coef - np.repeat([0.0, 1.0, -1.0], 30)) ** 2)) < 0.1


def test_operators_that_break_down_on_the_way_are_named():
    calls = []

    def product(u):
        calls.append(1)
        return X @ u if len(calls) < 10 else np.full(N, np.nan)

    broken = scipy.sparse.linalg.LinearOperator((N, D), matvec=product, rmatvec=lambda w: X.T @ w, dtype=float)
    with pytest.raises(InputError, match="must be finite"):
        klimb.infer(latents.Implicit(broken), sites.Logistic(), LABELS, step=steps.DoubleLoop(variances="sampling"))


def test_plans_name_their_numbers():
    huge, tall = (Shape(*counts, dense=False, memory=8e9)
                  for counts in ((677_399, 47_236, 50_000_000), (32_561, 123, 451_592)))
    text = str(engine_plan(huge))
    assert "* double loop" in text
    assert "too large" in text
    assert engine_plan(tall).choice == "primal"
    assert engine_plan(Shape(200, 10_000, 2_000_000, memory=8e9)).choice == "dual"
    with pytest.raises(InputError, match="GB for the double loop"):
        engine_plan(replace(huge, memory=1e9))


@pytest.mark.parametrize("prior", ["laplace", "gaussian"])
def test_blocks_in_files_give_the_fit_of_rows_in_memory(prior, tmp_path):
    rows = scipy.sparse.random(900, 60, density=0.1, random_state=0, format="csr")
    y = np.random.default_rng(0).random(900) < 1 / (1 + np.exp(-rows @ np.r_[4.0, -4.0, 3.0, np.zeros(57)]))
    for k in range(3):
        scipy.sparse.save_npz(tmp_path / f"{k}.npz", rows[300 * k : 300 * (k + 1)])
    memory = klimb.sparse_glm(rows, y, prior=prior, scale=0.5, engine="double loop")
    with ThreadPoolExecutor(2) as engine:
        blocks = BlockedOperator([tmp_path / f"{k}.npz" for k in range(3)], engine)
        fit = klimb.sparse_glm(blocks, y, prior=prior, scale=0.5)
        np.testing.assert_allclose((fit.coef - memory.coef) / memory.coef_sd, 0.0, atol=1e-8)
        np.testing.assert_allclose(fit.coef_sd, memory.coef_sd, rtol=1e-8)
        assert fit.intercept == pytest.approx(memory.intercept, abs=1e-8)
        assert fit.bound == pytest.approx(memory.bound, abs=1e-8)
