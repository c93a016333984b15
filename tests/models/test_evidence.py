"""Hyperparameters: gradients against refits, optimum, grid, integration, leave-one-out."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import kernels, sites
from klimb.errors import InputError
from klimb.kernels import choose_inducing
from klimb.kernels.means import ConstantMean, LinearMean
from klimb.models.evidence import integrate, optimise
from klimb.models.inducing import with_points
from klimb.models.loo import loo
from klimb.models.search import grid
from klimb.priors import log_normal

RNG = np.random.default_rng(7)
N = 40
X = RNG.random((N, 2)) * 4
F = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
KERNELS = {
    "rbf": kernels.RBF(variance=2.0, lengthscale=[0.8, 1.5]),
    "matern": kernels.Matern32(variance=1.5, lengthscale=1.2),
    "sum": kernels.Matern52(lengthscale=1.0) + 0.5 * kernels.Linear() + kernels.White(0.1),
    "product": kernels.RBF(lengthscale=2.0) * kernels.Periodic(period=1.7),
}
SITES = {
    "logistic": (sites.Logistic(), (), np.where(F + 0.5 * RNG.standard_normal(N) > 0.5, 1, 0)),
    "poisson": (sites.Poisson(), (), RNG.poisson(np.exp(F))),
    "gaussian": (sites.Gaussian(0.3), ("scale",), F + 0.3 * RNG.standard_normal(N)),
    "laplace": (sites.Laplace(0.3), ("scale",), F + 0.3 * RNG.laplace(size=N)),
    "student-t": (sites.StudentT(4.0, 0.3), ("df", "scale"), F + 0.3 * RNG.standard_t(3, N)),
    "negative binomial": (sites.NegativeBinomial(3.0), ("size",), RNG.poisson(np.exp(F))),
    "gamma": (sites.Gamma(2.0), ("shape",), np.exp(F) * RNG.gamma(2.0, size=N) / 2),
    "beta": (sites.Beta(6.0), ("precision",), RNG.beta(2.0, 3.0, N)),
}


def fixed(model, y, tol=1e-6):
    return model.fit(y, hyper="fixed", tol=tol)


def objective(fit):
    return fit.bound + fit.model.log_prior()[0]


def differences(model, data, step=1e-4):
    """Of the bound alone: a fit would correct its moments too."""
    out = []
    for j in range(model.theta.size):
        sides = []
        for sign in (step, -step):
            theta = model.at.copy()
            theta[j] += sign
            sides.append(model.moved(theta).infer(data, tol=1e-10).bound)
        out.append((sides[0] - sides[1]) / (2 * step))
    return np.array(out)


@pytest.mark.parametrize(("kernel", "inducing"), [
    *((name, None) for name in KERNELS), *((name, 12) for name in KERNELS if name != "sum")])  # White is not for Kuf
def test_gradient_in_every_kernel_parameter(kernel, inducing):
    site, _, y = SITES["logistic"]
    model = klimb.gp(KERNELS[kernel], X, site, inducing=inducing, mean=LinearMean(slope=[0.1, 0.2], intercept=-0.3))
    fit = fixed(model, y, tol=1e-10)
    found = model.gradient(fit.posterior, fit.data)
    np.testing.assert_allclose(found, differences(model, fit.data), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SITES)
def test_gradient_in_every_site_parameter(name):
    site, learn, y = SITES[name]
    model = klimb.gp(KERNELS["matern"], X, site, learn=learn, mean=ConstantMean(0.2))
    fit = fixed(model, y, tol=1e-10)
    assert len(model.names) == 3 + len(learn)
    found = model.gradient(fit.posterior, fit.data)
    np.testing.assert_allclose(found, differences(model, fit.data), rtol=1e-4, atol=1e-5)


def test_gradient_in_the_inducing_points():
    site, _, y = SITES["poisson"]
    model = klimb.gp(KERNELS["rbf"], X, site, inducing=X[:6] + 0.1)
    fit = fixed(model, y, tol=1e-10)
    moving = with_points(model, model.Z, free=True)
    gradient = moving.gradient(fit.posterior, fit.data)[-model.Z.size :].reshape(model.Z.shape) / moving.points.unit
    direction = RNG.standard_normal(gradient.shape)
    moved = [klimb.gp(KERNELS["rbf"], X, site, inducing=model.Z + t * direction) for t in (1e-4, -1e-4)]
    up, down = (fixed(other, y, tol=1e-10).bound for other in moved)
    assert abs((gradient * direction).sum() - (up - down) / 2e-4) < 1e-4


@pytest.mark.parametrize("name", ["gaussian", "logistic", "student-t"])
def test_optimise_finds_a_maximum(name):
    site, learn, y = SITES[name]
    model = klimb.gp(KERNELS["rbf"], X, site, learn=learn)
    best = optimise(model, y)
    assert best.converged, best
    assert best.bound > fixed(model, y).bound
    rng = np.random.default_rng(0)
    for _ in range(6):
        near = best.model.moved(best.model.at + 0.2 * rng.standard_normal(best.model.theta.size))
        assert fixed(near, y).bound < best.bound + 1e-6
    assert "bound=" in repr(best)


def test_gaussian_bound_is_the_exact_evidence_at_the_optimum():
    site, learn, y = SITES["gaussian"]
    best = optimise(klimb.gp(KERNELS["matern"], X, site, learn=learn), y)
    K = best.model.kernel.gram(X) + best.model.new_site().scale**2 * np.eye(N)
    evidence = -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + N * np.log(2 * np.pi))
    assert abs(best.bound - evidence) < 1e-7


def test_restarts_keep_the_best_and_are_reproducible():
    site, learn, y = SITES["gaussian"]
    poor = klimb.gp(kernels.RBF(variance=1e-3, lengthscale=50.0), X, site, learn=learn)
    once, more = optimise(poor, y), optimise(poor, y, restarts=2, seed=1)
    assert objective(more) >= objective(once) - 1e-9
    assert objective(optimise(poor, y, restarts=2, seed=1)) == objective(more)


def test_priors_count():
    site, _, y = SITES["logistic"]
    kernel = kernels.RBF(variance=1.0, lengthscale=1.0)
    free = optimise(klimb.gp(kernel, X, site), y)
    held = optimise(klimb.gp(kernel.with_priors(variance=log_normal(1.0, 0.05)), X, site), y)
    assert abs(np.log(held.model.kernel.variance)) < abs(np.log(free.model.kernel.variance))
    assert objective(held) != held.bound


def test_grid_walks_all_cells_and_agrees_with_cold_fits():
    site, _, y = SITES["logistic"]
    model = klimb.gp(kernels.RBF(), X, site)
    table = grid(model, y, {"variance": np.linspace(-2, 6, 5), "lengthscale": np.linspace(-1, 2, 4)})
    assert table.converged.all()
    assert table.bound.shape == (5, 4)
    for i, a in enumerate(table.axes[0]):
        for j, b in enumerate(table.axes[1]):
            cold = fixed(model.moved(np.array([a, b])), y)
            assert abs(cold.bound - table.bound[i, j]) < 1e-5
    assert table.best_result.bound == table.bound.max()
    assert len(table.table()) == 20
    with pytest.raises(InputError, match=r"hyperparameters among variance, lengthscale; got \['l'\]"):
        grid(model, y, {"l": [1.0]})


def theta_moments(fit):
    weights, theta = fit.components.weights, fit.components.theta
    mean = weights @ theta
    return mean, np.sqrt(weights @ (theta - mean) ** 2)


def test_integration_over_one_and_two_hyperparameters_against_a_dense_grid():
    site, _, y = SITES["gaussian"]
    kernel = kernels.RBF(variance=1.0, lengthscale=1.0).with_priors(
        variance=log_normal(1.0, 1.0), lengthscale=log_normal(1.0, 0.7))
    for names in (("variance",), ()):
        model = klimb.gp(kernel.fixed(*names) if names else kernel, X, site)
        found = integrate(model, y)
        own_mean, own_sd = theta_moments(found)
        d = model.theta.size
        lines = [np.linspace(c - 5 * s, c + 5 * s, 25) for c, s in zip(own_mean, own_sd, strict=True)]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*lines, indexing="ij")], axis=1)
        logs = np.array([objective(fixed(model.moved(t), y)) for t in points])
        cell = np.prod([line[1] - line[0] for line in lines])
        weights = np.exp(logs - logs.max())
        evidence = logs.max() + np.log(weights.sum() * cell)
        weights /= weights.sum()
        mean = weights @ points
        sd = np.sqrt(weights @ (points - mean) ** 2)
        np.testing.assert_allclose(own_mean, mean, atol=0.1 * sd.max())
        np.testing.assert_allclose(own_sd, sd, rtol=0.15)
        assert abs(found.bound - evidence) < 0.1, d
        assert abs(found.components.weights.sum() - 1) < 1e-12
        m, v = found.latents(X[:3] + 0.1).moments()
        assert m.shape == v.shape == (3,)
        assert np.isfinite(found.log_density(y[:3], X[:3] + 0.1)).all()
        assert (found.latents().moments()[1] > 0).all()


def test_integration_over_more_hyperparameters_widens_predictions():
    site, learn, y = SITES["gaussian"]
    model = klimb.gp(KERNELS["rbf"], X, site, learn=learn)
    best = optimise(model, y)
    found = integrate(model, y)
    mean, sd = theta_moments(found)
    assert found.components.theta.shape[1] == 4
    assert abs(mean - best.model.at).max() < 3 * sd.max()
    far = X.max(0) + np.array([[1.0, 1.0]])
    assert found.latents(far).moments()[1] > 0.5 * best.latents(far).moments()[1]


def test_loo_is_exact_for_gaussian_sites_and_close_to_refitting_for_others():
    site, _, y = SITES["gaussian"]
    model = klimb.gp(KERNELS["rbf"], X, site)
    fit = fixed(model, y)
    found = fit.loo()
    np.testing.assert_allclose(found.log_density, loo(fit.posterior, site, y).log_density, rtol=1e-7)
    for i in (0, 7, 23):
        rest = np.arange(N) != i
        part = klimb.gp(KERNELS["rbf"], X[rest], site)
        m, v = fixed(part, y[rest]).latents(X[i : i + 1]).moments()
        np.testing.assert_allclose([found.mean[i], found.variance[i]], [m[0], v[0] + site.scale**2], rtol=1e-6)
        assert abs(found.log_density[i] - site.predict(m, v).log_density(y[i : i + 1])[0]) < 1e-6
    for name in ("logistic", "poisson"):
        site, _, y = SITES[name]
        model = klimb.gp(KERNELS["rbf"], X, site)
        found = fixed(model, y).loo()
        exact = []
        for i in range(N):
            rest = np.arange(N) != i
            part = klimb.gp(KERNELS["rbf"], X[rest], site)
            m, v = fixed(part, y[rest]).latents(X[i : i + 1]).moments()
            exact.append(site.predict(m, v).log_density(y[i : i + 1])[0])
        assert np.abs(found.log_density - exact).max() < 0.15
        assert abs(found.elpd - np.sum(exact)) < 0.5
        pit = found.pit()
        assert ((pit > 0) & (pit < 1)).all()


@pytest.mark.parametrize("name", SITES)
def test_pit_values_are_uniform_under_the_model(name):
    """Data drawn from the model itself: the mean of their PIT values is 1/2 within its error."""
    site, _, y = SITES[name]
    pit = fixed(klimb.gp(KERNELS["rbf"], X, site), y).loo().pit()
    assert np.isfinite(pit).all()
    assert abs(pit.mean() - 0.5) < 4 * 0.3 / np.sqrt(N)


def test_choosing_inducing_points():
    Z = choose_inducing(KERNELS["rbf"], X, 15)
    assert len(np.unique(Z, axis=0)) == 15
    site, _, y = SITES["logistic"]
    greedy = fixed(klimb.gp(KERNELS["rbf"], X, site, inducing=15), y).bound
    first = fixed(klimb.gp(KERNELS["rbf"], X, site, inducing=X[:15]), y).bound
    full = fixed(klimb.gp(KERNELS["rbf"], X, site), y).bound
    assert first < greedy <= full + 1e-6
    twice = np.vstack([X[:5], X[:5]])
    assert len(choose_inducing(KERNELS["rbf"], twice, 10)) == 5  # the rest would repeat
    with pytest.raises(InputError, match="between 1 and 40; got 41"):
        choose_inducing(KERNELS["rbf"], X, 41)


def test_errors_of_gp():
    with pytest.raises(InputError, match="this needs a model of klimb; got int"):
        optimise(3, [0.0])
    with pytest.raises(InputError, match="kernel must be a klimb kernel"):
        klimb.gp("rbf", X)
    with pytest.raises(InputError, match="learn must name positive scalar parameters of Logistic; got 'scale'"):
        klimb.gp(KERNELS["rbf"], X, sites.Logistic(), learn="scale")
    with pytest.raises(InputError, match="at most 40 points with 2 columns"):
        klimb.gp(KERNELS["rbf"], X, sites.Logistic(), inducing=np.ones((3, 1)))
    with pytest.raises(InputError, match="theta must have 3 entries"):
        klimb.gp(KERNELS["rbf"], X, sites.Logistic()).moved([0.0])
    with pytest.raises(InputError, match="free hyperparameters"):
        optimise(klimb.gp(kernels.RBF().fixed(), X, sites.Logistic()), SITES["logistic"][2])
