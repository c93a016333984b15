"""Bridges to klimb.boost: klimb's own models against quadrature, other packages where they are installed."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb.errors import InputError


def test_two_modes_of_a_robust_regression() -> None:
    """Contradicting data and Student-t noise: two modes, which one Gaussian cannot show."""
    y = np.array([-4.0, -4.2, -3.9, 4.0, 4.1, 3.8])
    latent = klimb.latents.Weights(np.ones((6, 1)), cov=25.0)
    site = klimb.sites.StudentT(df=2.0, scale=0.5)
    result = klimb.infer(latent, site, y)
    bridge = klimb.bridges.latent(result)
    q = bridge.boost()
    w = np.linspace(-40, 40, 80_001)
    log_p = site.log_density(y, np.broadcast_to(w[:, None], (len(w), 6))).sum(1) - w**2 / 50 - 0.5 * np.log(50 * np.pi)
    density = np.exp(log_p - log_p.max())
    evidence = np.log(np.trapezoid(density, w)) + log_p.max()
    density /= np.trapezoid(density, w)
    assert q.n_components > 1
    assert result.bound < q.bound < evidence + 3 * q.bound_error
    assert q.bound == pytest.approx(evidence, abs=0.05)
    draws = bridge.parameters(q.sample(20_000))["w"][:, 0]
    above = np.trapezoid(np.where(w > 0, density, 0.0), w)
    assert (draws > 0).mean() == pytest.approx(above, abs=0.05)


def test_weights_and_kernels_are_one_posterior() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5, 2))
    y = np.array([0.0, 1.0, 1.0, 2.0, 0.0])
    site = klimb.sites.Poisson()
    weights = klimb.bridges.latent(klimb.infer(klimb.latents.Weights(X, cov=0.5), site, y))
    kernel = klimb.bridges.latent(klimb.infer(klimb.latents.Kernel(0.5 * X @ X.T + 1e-9 * np.eye(5)), site, y))
    assert weights.boost().bound == pytest.approx(kernel.boost().bound, abs=0.02)
    assert kernel.parameters(np.zeros((3, kernel.dim)))["f"].shape == (3, 5)
    e = rng.standard_normal((1, weights.dim))
    numeric = [(weights.log_density(e + h) - weights.log_density(e - h)).item() / 2e-6 for h in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(weights.gradient(e)[0], numeric, atol=1e-6)


def test_hyperparameters_of_a_process() -> None:
    x = np.linspace(0, 4, 15)
    y = np.sin(2 * x)
    model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson())
    counts = np.round(np.exp(1 + y))
    bridge = klimb.bridges.hyperparameters(model, counts)
    assert bridge.names == tuple(model.names)
    theta = model.at + 0.1
    steps = 1e-4 * np.eye(bridge.dim)
    numeric = [(bridge.log_density(theta + h) - bridge.log_density(theta - h)) / 2e-4 for h in steps]
    np.testing.assert_allclose(bridge.gradient(theta), numeric, rtol=1e-3, atol=1e-3)
    assert bridge.log_density(np.full(bridge.dim, 1e6)) == -np.inf


def test_latent_says_what_it_bridges() -> None:
    X, site, y = np.array([[1.0, 0.3], [1.0, -0.2], [1.0, 2.0]]), klimb.sites.Logistic(), [0, 1, 1]
    for model in (klimb.latents.Weights(X, slack=0.1), klimb.latents.Implicit(X)):
        with pytest.raises(InputError, match="without slack.*got " + type(model).__name__):
            klimb.bridges.latent(klimb.infer(model, site, y))
    whole, restricted = (klimb.bridges.latent(klimb.infer(latent(X, cov=2.0), site, y))
                         for latent in (klimb.latents.Weights, klimb.latents.MeanField))
    points = np.random.default_rng(0).standard_normal((4, 2))
    np.testing.assert_allclose(restricted.log_density(points), whole.log_density(points), rtol=1e-12)
    assert list(restricted.parameters(points)) == ["w"]


def test_dynesty_pairs_give_the_evidence() -> None:
    """A Gaussian likelihood well inside a uniform prior: the evidence is one over the prior's volume."""
    def loglike(t: np.ndarray) -> float:
        return float(-0.5 * np.sum((t - 1) ** 2) / 0.01 - np.log(0.01 * 2 * np.pi))

    bridge = klimb.bridges.dynesty(loglike, lambda u: 6 * u - 3, 2, names=["a", "b"])
    q = bridge.boost()
    assert q.bound == pytest.approx(np.log(1 / 36), abs=0.01)
    assert bridge.parameters(q.sample(2000))["b"].mean() == pytest.approx(1.0, abs=0.02)


def linear_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    y = X @ [1.0, -1.0] + 0.5 * rng.standard_normal(40)
    cov = np.linalg.inv(np.eye(2) + X.T @ X / 0.25)
    return X, y, cov @ X.T @ y / 0.25, np.sqrt(np.diag(cov))


@pytest.mark.filterwarnings("ignore")
def test_pymc() -> None:
    pm = pytest.importorskip("pymc")
    X, y, mean, sd = linear_data()
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=2)
        pm.Normal("y", pm.math.dot(X, w), 0.5, observed=y)
    q = klimb.bridges.pymc(model).boost()
    np.testing.assert_allclose(q.mean, mean, atol=1e-3)
    np.testing.assert_allclose(q.sd, sd, rtol=1e-2)


def test_functions_that_jax_cannot_trace_are_called_as_they_are() -> None:
    pytest.importorskip("jax")
    found = klimb.boost(lambda x: -0.5 * x[0] ** 2 if x[0] > 0.0 else -0.5 * abs(x[0]) ** 2, 1, n_components=1)
    assert found.mean[0] == pytest.approx(0.0, abs=1e-3)
    assert found.sd[0] == pytest.approx(1.0, rel=1e-2)


@pytest.mark.filterwarnings("ignore")
def test_numpyro_and_jax_functions() -> None:
    numpyro = pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro.distributions as dist

    X, y, mean, sd = linear_data()

    def model(X: np.ndarray, y: np.ndarray) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)

    q = klimb.bridges.numpyro(model, X, y).boost()
    np.testing.assert_allclose(q.mean, mean, atol=1e-3)
    np.testing.assert_allclose(q.sd, sd, rtol=1e-2)
    plain = klimb.boost(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), 3)
    assert plain.target._gradient is not None
    np.testing.assert_allclose(plain.mean, 1.0, atol=1e-4)


def banana(theta: np.ndarray) -> float:
    return float(-(theta[0] ** 2) / 8 - 0.5 * (theta[1] - 0.5 * (theta[0] ** 2 - 4)) ** 2)


@pytest.mark.filterwarnings("ignore")
def test_emcee_walks_the_same_density() -> None:
    emcee = pytest.importorskip("emcee")
    sampler = emcee.EnsembleSampler(40, 2, banana)
    sampler.random_state = np.random.RandomState(0).get_state()
    sampler.run_mcmc(np.random.default_rng(0).standard_normal((40, 2)), 3000)
    chain = sampler.get_chain(discard=500, flat=True)
    q = klimb.bridges.emcee(banana, 2).boost()
    levels = (0.05, 0.5, 0.95)
    np.testing.assert_allclose(q.quantiles(levels), np.quantile(chain, levels, axis=0), atol=0.35)


@pytest.mark.filterwarnings("ignore")
def test_dynesty_finds_the_same_evidence() -> None:
    dynesty = pytest.importorskip("dynesty")

    def place(u: np.ndarray) -> np.ndarray:
        return 20 * u - 10

    sampler = dynesty.NestedSampler(banana, place, 2, nlive=200, rstate=np.random.default_rng(0))
    sampler.run_nested(print_progress=False)
    q = klimb.bridges.dynesty(banana, place, 2).boost(tol=0.03)
    found = sampler.results
    assert q.corrected.log_evidence == pytest.approx(found.logz[-1], abs=4 * found.logzerr[-1] + 0.02)


@pytest.mark.filterwarnings("ignore")
def test_arviz_reads_the_draws() -> None:
    arviz = pytest.importorskip("arviz")
    q = klimb.boost(lambda x: -0.5 * (x**2).sum(1), 2, names=["a", "b"])
    for corrected in (False, True):
        summary = arviz.summary(q.to_arviz(2000, corrected=corrected), round_to="none")
        assert list(summary.index) == ["a", "b"]
        assert summary["sd"].to_numpy(dtype=float) == pytest.approx(1.0, abs=0.06)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ImportError, match="pip install pymc"):
        klimb.bridges.pymc(object())


def test_hyperparameters_can_be_boosted() -> None:
    """Its function takes one point and refuses a batch with an error of klimb's own."""
    x = np.linspace(0.0, 6.0, 15)
    bridge = klimb.bridges.hyperparameters(klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1)), np.sin(x))
    q = bridge.boost(n_components=1)
    best = klimb.optimise(klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1)), np.sin(x))
    assert np.all(np.abs(q.mean - best.model.at) < 2.0 * q.sd)
