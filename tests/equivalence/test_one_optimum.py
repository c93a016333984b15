"""Every rule and method that optimises the bound reaches one optimum, whatever the form of the latent."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, methods, sites, steps
from klimb.errors import InputError

RNG = np.random.default_rng(20)
N, D = 60, 4
X = RNG.standard_normal((N, D))
W = RNG.standard_normal(D)
SIGMA = np.array([[1.0, 0.3, 0.0, 0.0], [0.3, 1.0, 0.2, 0.0], [0.0, 0.2, 1.0, 0.0], [0.0, 0.0, 0.0, 0.5]])
MEAN = np.array([0.1, -0.2, 0.0, 0.3])

PROBLEMS = {
    "logistic": (sites.Logistic(), (RNG.random(N) < 1 / (1 + np.exp(-X @ W))) * 1.0),
    "poisson": (sites.Poisson(), RNG.poisson(np.exp(0.5 * X @ W)).astype(float)),
    "laplace": (sites.Laplace(0.5), X @ W + 0.5 * RNG.laplace(size=N)),
    "student-t": (sites.StudentT(3.0, 0.5), X @ W + 0.5 * RNG.standard_t(3, size=N)),
}
LATENTS = {
    "primal": lambda: latents.Weights(X, MEAN, SIGMA, form="primal"),
    "dual": lambda: latents.Weights(X, MEAN, SIGMA, form="dual"),
    "kernel": lambda: latents.Kernel(X @ SIGMA @ X.T, X @ MEAN),
}
TIGHT = 1e-9
RULES = {
    "natural": lambda latent, site, y: klimb.infer(latent, site, y, tol=TIGHT),
    "plain natural": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, step=steps.Natural(1, newton=False)),
    "anderson": lambda latent, site, y: klimb.infer(latent, site, y, tol=TIGHT, step=steps.Natural(5, newton=False)),
    "proximal": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, max_iter=5000, step=steps.Proximal(0.25, start="data")),
    "fixed point, incremental": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, step=steps.FixedPoint(start="data")),
    "full natural": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, step=steps.FullNatural(start="data")),
    "fixed point, gradient where gamma < 0": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, step=steps.FixedPoint(negative="gradient", start="data")),
    "fixed point, batch": lambda latent, site, y: klimb.infer(
        latent, site, y, tol=TIGHT, step=steps.FixedPoint(batch=True, start="data")),
    "cholesky gradient": lambda latent, site, y: methods.cholesky_gradient(latent, site, y, tol=1e-7),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def problem(request):
    site, y = PROBLEMS[request.param]
    return site, y, klimb.infer(LATENTS["primal"](), site, y, tol=TIGHT)


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_reaches_the_same_optimum(problem, rule, latent):
    site, y, reference = problem
    result = RULES[rule](LATENTS[latent](), site, y)
    assert result.converged, result
    assert abs(result.bound - reference.bound) < 1e-8
    np.testing.assert_allclose(result.posterior.m, reference.posterior.m, atol=1e-6)
    np.testing.assert_allclose(result.posterior.v, reference.posterior.v, rtol=1e-6)
    np.testing.assert_allclose(result.posterior.kl, reference.posterior.kl, atol=1e-6)


def test_the_optimum_is_one_of_the_full_bound(problem):
    """An independent evaluation of the bound, dense and from w alone, is stationary and largest there."""
    site, y, reference = problem
    mean, cov = reference.posterior.mean, reference.posterior.covariance()

    def bound(mean, cov):
        expected = site.expect(y, X @ mean, np.einsum("ij,jk,ik->i", X, cov, X)).value.sum()
        gap, inverse = mean - MEAN, np.linalg.inv(SIGMA)
        kl = 0.5 * (np.trace(inverse @ cov) + gap @ inverse @ gap - D)
        return expected - kl - 0.5 * (np.linalg.slogdet(SIGMA)[1] - np.linalg.slogdet(cov)[1])

    best = bound(mean, cov)
    assert abs(best - reference.bound) < 1e-9
    rng = np.random.default_rng(5)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(5):
            root = np.eye(D) + size * rng.standard_normal((D, D))
            assert bound(mean + size * rng.standard_normal(D), cov) < best
            assert bound(mean, root @ cov @ root.T) < best


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_gaussian_sites_are_exact_at_once(form):
    y = X @ W + 0.3 * np.random.default_rng(1).standard_normal(N)
    result = klimb.infer(latents.Weights(X, MEAN, SIGMA, form=form), sites.Gaussian(0.3), y)
    precision = np.linalg.inv(SIGMA) + X.T @ X / 0.09
    cov = np.linalg.inv(precision)
    mean = cov @ (np.linalg.solve(SIGMA, MEAN) + X.T @ y / 0.09)
    marginal = X @ SIGMA @ X.T + 0.09 * np.eye(N)
    gap = y - X @ MEAN
    evidence = -0.5 * (gap @ np.linalg.solve(marginal, gap) + np.linalg.slogdet(marginal)[1] + N * np.log(2 * np.pi))
    assert result.converged
    assert result.n_iter <= 1
    assert abs(result.bound - evidence) < 1e-9
    np.testing.assert_allclose(result.posterior.mean, mean, atol=1e-10)
    np.testing.assert_allclose(result.posterior.covariance(), cov, atol=1e-12)


def test_point_sites_are_laplace(problem):
    site, y, _ = problem
    if isinstance(site, sites.Laplace):  # no curvature at its mode, but a mode
        with pytest.raises(InputError, match=r"curvature at its mode; got Laplace, which has a kink\. Use klimb.infer"):
            methods.laplace(latents.Weights(X), site, y)
        mode = methods.map_estimate(latents.Weights(X, MEAN, SIGMA), site, y)
        assert mode.converged
        best = site.log_density(y, X @ mode.posterior.mean).sum()
        gap = mode.posterior.mean - MEAN
        best -= 0.5 * gap @ np.linalg.solve(SIGMA, gap)
        rng = np.random.default_rng(0)
        for size in (1e-1, 1e-2, 1e-3):
            for step in size * rng.standard_normal((20, D)):
                moved = site.log_density(y, X @ (mode.posterior.mean + step)).sum()
                assert moved - 0.5 * (gap + step) @ np.linalg.solve(SIGMA, gap + step) < best + 1e-6
        return
    by_site = klimb.infer(latents.Weights(X, MEAN, SIGMA), sites.Point(site), y, tol=TIGHT)
    by_name = methods.laplace(latents.Kernel(X @ SIGMA @ X.T, X @ MEAN), site, y, tol=TIGHT)
    mode = methods.map_estimate(latents.Weights(X, MEAN, SIGMA), site, y, tol=TIGHT)
    assert by_site.converged
    assert by_name.converged
    assert mode.converged
    assert abs(by_site.bound - by_name.bound) < 1e-8
    # by hand: the mode by an independent optimiser, the evidence from the Hessian there
    from scipy.optimize import minimize

    inverse = np.linalg.inv(SIGMA)

    def negative(w):
        return -site.log_density(y, X @ w).sum() + 0.5 * (w - MEAN) @ inverse @ (w - MEAN)

    found = minimize(negative, by_site.posterior.mean + 0.05, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(by_site.posterior.mean, found.x, atol=1e-5)
    np.testing.assert_allclose(mode.posterior.mean, by_site.posterior.mean, atol=1e-8)
    curvature = site.point(site.validate(y), X @ by_site.posterior.mean).gamma
    hessian = X.T @ (curvature[:, None] * X) + inverse
    evidence = -found.fun - 0.5 * (np.linalg.slogdet(hessian)[1] + np.linalg.slogdet(SIGMA)[1])
    assert abs(by_site.bound - evidence) < 1e-6
    assert not mode.posterior.covariance().any()


def test_mean_field_is_below_the_full_bound_and_is_the_best_diagonal(problem):
    site, y, reference = problem
    result = methods.mean_field(latents.Weights(X, MEAN, SIGMA), site, y, tol=TIGHT)
    assert result.converged
    assert result.bound < reference.bound
    # by hand: L-BFGS on (mean, log sd)
    from scipy.optimize import minimize

    inverse = np.linalg.inv(SIGMA)

    def negative(theta):
        mean, v = theta[:D], np.exp(2 * theta[D:])
        e = site.expect(y, X @ mean, X**2 @ v)
        gap = mean - MEAN
        kl = 0.5 * (np.diag(inverse) @ v + gap @ inverse @ gap - D + np.linalg.slogdet(SIGMA)[1]) - theta[D:].sum()
        gradient_v = X.T**2 @ e.gamma / 2 + np.diag(inverse) / 2 - 0.5 / v
        return -(e.value.sum() - kl), np.concatenate([X.T @ e.alpha + inverse @ gap, 2 * v * gradient_v])

    found = minimize(negative, np.zeros(2 * D), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    assert abs(result.bound + found.fun) < 1e-8
    np.testing.assert_allclose(np.diag(result.posterior.covariance()), np.exp(2 * found.x[D:]), rtol=1e-5)


def test_the_full_natural_step_is_the_default_with_r_zero():
    site, y = PROBLEMS["poisson"]
    latent = LATENTS["primal"]()
    one = klimb.infer(latent, site, y, step=steps.FullNatural(start="data"))
    other = klimb.infer(latent, site, y, step=steps.Natural(1, newton=False))
    np.testing.assert_allclose(one.history.bound, other.history.bound, rtol=1e-12)
    np.testing.assert_allclose(one.history.stationarity, other.history.stationarity, rtol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_incremental_fixed_point_alternates(name):
    """[S] section 4 with dense matrices in weight space: a Newton step on m at V, then T(V) at the new m."""
    site, y = PROBLEMS[name]
    inverse, m, V = np.linalg.inv(SIGMA), MEAN.copy(), SIGMA.copy()

    def expect(m, V):
        return site.expect(y, X @ m, np.einsum("ij,jk,ik->i", X, V, X))

    def bound(m, V):
        gap, log_volumes = m - MEAN, np.linalg.slogdet(SIGMA)[1] - np.linalg.slogdet(V)[1]
        return expect(m, V).value.sum() - 0.5 * (np.trace(inverse @ V) + gap @ inverse @ gap - D + log_volumes)

    bounds, lengths = [], []
    for _ in range(4):
        e = expect(m, V)
        direction = -np.linalg.solve(inverse + X.T @ (e.gamma[:, None] * X), X.T @ e.alpha + inverse @ (m - MEAN))
        length = 1.0
        while bound(m + length * direction, V) < bound(m, V):
            length /= 2
        m = m + length * direction
        V = np.linalg.inv(inverse + X.T @ (expect(m, V).gamma[:, None] * X))
        bounds.append(bound(m, V))
        lengths.append(length)
    result = klimb.infer(LATENTS["dual"](), site, y, step=steps.FixedPoint(), max_iter=4, tol=1e-12)
    np.testing.assert_allclose(result.history.bound[1:], bounds, rtol=1e-10)
    np.testing.assert_array_equal(result.history.step[1:], lengths)
    np.testing.assert_allclose(result.posterior.mean, m, atol=1e-9)
    np.testing.assert_allclose(result.posterior.covariance(), V, atol=1e-9)


def test_proximal_steps_follow_the_papers_equations():
    """[A] Eq. (16)-(17) written with dense matrices in weight space, three steps from V_0 = Sigma (gamma_0 = 0)."""
    site, y = PROBLEMS["logistic"]
    beta = 0.7
    r = 1 / (1 + beta)
    inverse = np.linalg.inv(SIGMA)
    m, V = MEAN.copy(), SIGMA.copy()
    bounds = []
    for _ in range(3):
        e = site.expect(y, X @ m, np.einsum("ij,jk,ik->i", X, V, X))
        V_inverse = np.linalg.inv(V)
        m = m - np.linalg.solve((1 - r) * inverse + r * V_inverse, (1 - r) * (X.T @ e.alpha + inverse @ (m - MEAN)))
        V = np.linalg.inv(r * V_inverse + (1 - r) * (inverse + X.T @ (e.gamma[:, None] * X)))
        gap = m - MEAN
        expected = site.expect(y, X @ m, np.einsum("ij,jk,ik->i", X, V, X)).value.sum()
        log_volumes = np.linalg.slogdet(SIGMA)[1] - np.linalg.slogdet(V)[1]
        kl = 0.5 * (np.trace(inverse @ V) + gap @ inverse @ gap - D + log_volumes)
        bounds.append(expected - kl)
    result = klimb.infer(LATENTS["dual"](), site, y, step=steps.Proximal(beta), max_iter=3)
    np.testing.assert_allclose(result.history.bound[1:], bounds, rtol=1e-12)
    np.testing.assert_allclose(result.posterior.mean, m, atol=1e-10)
    np.testing.assert_allclose(result.posterior.covariance(), V, atol=1e-10)


@pytest.mark.parametrize("variance", [0.1, 4.0, 100.0])
@pytest.mark.parametrize("labels", [[1], [1, 1, 1, 1, 1], [1, -1, 1]])
def test_local_bound_below_bound_below_evidence(variance, labels):
    """[N] <= [A], [S] <= log evidence for one weight, the local bound by its own coordinate ascent."""
    y = np.array(labels, dtype=float)
    result = klimb.infer(latents.Weights(np.ones((len(y), 1)), cov=variance), sites.Logistic(), y, tol=TIGHT)
    grid = np.linspace(-12 * np.sqrt(variance) - 40, 12 * np.sqrt(variance) + 40, 400_001)
    log_prior = -0.5 * grid**2 / variance - 0.5 * np.log(2 * np.pi * variance)
    log_joint = log_prior - np.logaddexp(0, -np.outer(y, grid)).sum(0)
    evidence = np.log(np.exp(log_joint).sum() * (grid[1] - grid[0]))
    xi = np.ones_like(y)
    for _ in range(2000):  # log sigmoid(x) >= log sigmoid(xi) + (x - xi)/2 - lambda(xi) (x^2 - xi^2)
        curvature = np.tanh(xi / 2) / (4 * xi)
        v = 1 / (1 / variance + 2 * curvature.sum())
        m = v * y.sum() / 2
        xi = np.full_like(y, np.sqrt(v + m**2))
    local = 0.5 * np.log(v / variance) + 0.5 * m**2 / v
    local += (-np.logaddexp(0, -xi) - xi / 2 + np.tanh(xi / 2) / (4 * xi) * xi**2).sum()
    assert local <= result.bound + 1e-10
    assert result.bound <= evidence + 1e-10
    by_site = klimb.infer(latents.Weights(np.ones((len(y), 1)), cov=variance), sites.SuperGaussian(sites.Logistic()), y)
    assert by_site.converged
    assert abs(by_site.bound - local) < 1e-6


@pytest.mark.parametrize("wrap", [
    lambda site: site, lambda site: sites.Weighted(site, 1.5), lambda site: sites.Offset(site, 0.3)])
def test_the_local_bound_lies_below_for_every_super_gaussian_site(problem, wrap):
    site, y, _ = problem
    site = wrap(site)
    if not site.super_gaussian:
        site, y = wrap(sites.NegativeBinomial(2.0)), np.round(np.abs(y))
    latent = LATENTS["dual"]()
    local, full = klimb.infer(latent, sites.SuperGaussian(site), y), klimb.infer(latent, site, y)
    assert local.converged
    assert local.bound < full.bound
    e = sites.SuperGaussian(site).expect(y, full.posterior.m, full.posterior.v)
    assert (e.value <= site.expect(y, full.posterior.m, full.posterior.v).value + 1e-10).all()
    # the oracle's derivatives are those of its value
    for name, step, scale in (("alpha", (1e-6, 0.0), -1.0), ("gamma", (0.0, 1e-6), -2.0)):
        m, v = full.posterior.m, full.posterior.v
        up = sites.SuperGaussian(site).expect(y, m + step[0], v + step[1]).value
        down = sites.SuperGaussian(site).expect(y, m - step[0], v - step[1]).value
        np.testing.assert_allclose(getattr(e, name), scale * (up - down) / 2e-6, rtol=1e-5, atol=1e-7)


def test_weights_with_slack_equal_an_explicit_extra_weight_per_site():
    """f_i = x_i'w + e_i with e_i ~ N(0, c_i): as slack, and as N more weights; the second can only be better."""
    site, y = PROBLEMS["poisson"]
    slack = np.linspace(0.0, 0.3, N)
    slim = klimb.infer(latents.Weights(X, MEAN, SIGMA, slack=slack), site, y, tol=TIGHT)
    assert slim.converged
    wide = np.hstack([X, np.diag(np.sqrt(slack))])
    cov = np.block([[SIGMA, np.zeros((D, N))], [np.zeros((N, D)), np.eye(N)]])
    full = klimb.infer(latents.Weights(wide, np.append(MEAN, np.zeros(N)), cov), site, y, tol=TIGHT)
    assert slim.bound < full.bound
    kernel_form = klimb.infer(latents.Weights(X, MEAN, SIGMA, slack=slack, form="dual"), site, y, tol=TIGHT)
    assert abs(kernel_form.bound - slim.bound) < 1e-8
