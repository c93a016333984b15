"""Standard coordinates and log weights: every latent against the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import klimb
from klimb import sites
from klimb.latents.coordinates import NEGLIGIBLE, coordinates_of, pivoted_root
from klimb.latents.markov import MarkovCoordinates
from klimb.trust.importance import draw
from klimb.trust.weights import LogWeights, bends, expected, most_variance

N, D = 12, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D))
T = np.sort(RNG.random(N) * 3)
ROOT = RNG.standard_normal((D, D))
COV = ROOT @ ROOT.T / D + 0.1 * np.eye(D)
WIDE = RNG.standard_normal((N, 30))
LEVELS = RNG.integers(0, 4, N)


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(a[:, None] - b))


def sparse() -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(np.where(np.abs(X) > 1.2, X, 0.0))


LATENTS = {
    "weights": lambda: klimb.latents.Weights(X, mean=0.3, cov=COV),
    "weights, dual": lambda: klimb.latents.Weights(X, mean=0.3, cov=COV, form="dual"),
    "more weights than data": lambda: klimb.latents.Weights(WIDE, cov=0.5),
    "sparse": lambda: klimb.latents.Weights(sparse(), cov=2.0),
    "slack": lambda: klimb.latents.Weights(X, cov=1.0, slack=0.2),
    "rank one": lambda: klimb.latents.Weights(X, cov=np.ones((D, D))),
    "fixed weight": lambda: klimb.latents.Weights(X, cov=[1.0, 0.0, 1.0, 1.0, 1.0]),
    "kernel": lambda: klimb.latents.Kernel(kernel(T, T), mean=0.2),
    "mean field": lambda: klimb.latents.MeanField(X, mean=0.3, cov=COV),
    "mean field, diagonal": lambda: klimb.latents.MeanField(X, cov=0.7),
    "markov": lambda: klimb.latents.Markov(T, 1.0, 1.0, 1.5),
    "inducing": lambda: klimb.latents.Inducing(kernel(T[::3], T[::3]), kernel(T[::3], T), 1.0, mean=0.1),
    "mixed": lambda: klimb.latents.Mixed(X[:, :2], LEVELS, X[:, 3:], cov=[1.0, 2.0],
                                         group_cov=[[1.0, 0.3], [0.3, 0.5]]),
    "outputs": lambda: klimb.latents.Outputs([klimb.latents.Weights(X), klimb.latents.Kernel(kernel(T, T)),
                                              klimb.latents.Markov(T)]),
}


def fitted(name: str, heavy: bool = False) -> Any:
    latent = LATENTS[name]()
    rng = np.random.default_rng(1)
    if name == "outputs":
        return klimb.infer(latent, klimb.sites.Softmax(3), rng.integers(0, 3, N))
    if heavy:  # negative gamma
        return klimb.infer(latent, klimb.sites.StudentT(3.0, 0.5), 2 * rng.standard_normal(N))
    return klimb.infer(latent, klimb.sites.Logistic(), rng.integers(0, 2, N))


def weights_of(result: Any) -> LogWeights:
    return LogWeights(result.problem, result.posterior, coordinates_of(result.posterior))


@pytest.mark.parametrize("heavy", [False, True], ids=["log-concave", "heavy tails"])
@pytest.mark.parametrize("name", LATENTS)
def test_coordinates(name: str, heavy: bool) -> None:
    """Z Z' has q's variances, Z' is its adjoint, and what is reported has q's means and sds."""
    result = fitted(name, heavy)
    q, coordinates = result.posterior, coordinates_of(result.posterior)
    unit = np.eye(coordinates.dim)
    assert np.allclose((coordinates.deviations(unit) ** 2).sum(0) + q.latent.slack, q.v, rtol=NEGLIGIBLE)
    rng = np.random.default_rng(2)
    z, slopes = rng.standard_normal((4, coordinates.dim)), rng.standard_normal((4, q.latent.n_sites))
    assert (coordinates.deviations(z) * slopes).sum() == pytest.approx((z * coordinates.pull(slopes)).sum())
    if name != "outputs":
        expected = q.covariance().diagonal() if coordinates.kind == "weight" else q.v
        assert np.allclose(coordinates.sd**2, expected, rtol=1e-8, atol=1e-12)
        assert np.allclose(coordinates.mean, q.mean if coordinates.kind == "weight" else q.m)
    spread = (coordinates.report(unit, slice(None)) ** 2).sum(0)
    assert np.all(spread <= coordinates.sd**2 * (1 + 1e-8))


@pytest.mark.parametrize("heavy", [False, True], ids=["log-concave", "heavy tails"])
@pytest.mark.parametrize("name", LATENTS)
def test_log_weights(name: str, heavy: bool) -> None:
    """The gradient is one, and the mean under q is the bound."""
    result = fitted(name, heavy)
    log_weights = weights_of(result)
    dim = log_weights.coordinates.dim
    z = np.random.default_rng(3).standard_normal((3, dim))
    value, gradient = log_weights(z)
    steps = 1e-5 * np.eye(dim)
    numeric = np.array([(log_weights(z + step)[0] - log_weights(z - step)[0]) / 2e-5 for step in steps])
    assert np.allclose(gradient, numeric.T, atol=2e-7)
    assert np.isfinite(value).all()
    assert log_weights.mean == pytest.approx(result.bound, abs=1e-9)
    sample = draw(log_weights, 4000)
    error = sample.log_weights.std() / np.sqrt(4000)
    assert sample.log_weights.mean() == pytest.approx(result.bound, abs=4 * error + 1e-9)


def test_log_weight_by_definition() -> None:
    """log p(y, w) - log q(w) with dense matrices."""
    result = fitted("weights")
    q, log_weights = result.posterior, weights_of(result)
    z = np.random.default_rng(4).standard_normal((5, D))
    w = q.mean + log_weights.coordinates.report(z, slice(None))

    def log_normal(x: np.ndarray, mean: Any, cov: np.ndarray) -> np.ndarray:
        off = x - mean
        return -0.5 * (np.einsum("ij,jk,ik->i", off, np.linalg.inv(cov), off) + np.linalg.slogdet(2 * np.pi * cov)[1])

    likelihood = klimb.sites.Logistic().log_density(result.problem.y, w @ X.T).sum(1)
    expected = likelihood + log_normal(w, 0.3, COV) - log_normal(w, q.mean, q.covariance())
    assert np.allclose(log_weights(z)[0], expected, atol=1e-9)


def test_long_chains_never_form_a_matrix() -> None:
    t = np.linspace(0, 60, 900)
    y = np.random.default_rng(5).poisson(np.exp(np.sin(t)))
    result = klimb.infer(klimb.latents.Markov(t, 1.0, 2.0, 1.5), klimb.sites.Poisson(), y)
    coordinates = coordinates_of(result.posterior)
    assert isinstance(coordinates, MarkovCoordinates)
    assert np.allclose(coordinates.sd**2, result.posterior.v)
    dense = klimb.infer(klimb.latents.Kernel(result.posterior.latent.gram()), klimb.sites.Poisson(), y)
    assert np.abs(result.trust.corrected.sd / dense.trust.corrected.sd - 1).max() < 0.06
    assert result.trust.log_evidence == pytest.approx(dense.trust.log_evidence, abs=0.1)


def test_pivoted_root_of_a_singular_matrix() -> None:
    A = np.random.default_rng(6).standard_normal((8, 3))
    root = pivoted_root(A @ A.T)
    assert root.shape == (8, 3)
    assert np.allclose(root @ root.T, A @ A.T)
    assert pivoted_root(np.zeros((4, 4))).shape == (4, 0)


def test_draws_that_data_rule_out_have_no_weight() -> None:
    """exp overflows for f of a thousand: such a draw has weight zero, not nan."""
    result = klimb.infer(klimb.latents.Weights(np.full((2, 1), 1e3), cov=1e6), klimb.sites.Poisson(), [0, 0])
    log_weights = weights_of(result)
    values, gradient = log_weights(np.array([[0.0], [1e6]]))
    assert np.isfinite(values[0])
    assert values[1] == -np.inf
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Poisson(), sites.StudentT(4.0, 0.05), sites.Laplace(0.1)])
def test_expectations_at_many_draws_are_those_of_the_oracle(site: sites.Site) -> None:
    """Three calls of the oracle tell smooth sites everywhere; sharp ones are asked at every draw."""
    rng = np.random.default_rng(3)
    y = site.validate(rng.integers(0, 2, 300).astype(float))
    v = 10.0 ** rng.uniform(-6, 0.5, 300)
    f = rng.standard_normal(300) + 10.0 ** rng.uniform(-2, 0.2, 300) * rng.standard_normal((40, 300))
    value, alpha = expected(site, y, f, v)
    assert np.array_equal(expected(site, y, f, v, slopes=False)[0], value)
    exact = [site.oracle(y, row, v) for row in f]
    np.testing.assert_allclose(value, [e.value for e in exact], rtol=1e-9, atol=2e-4)
    np.testing.assert_allclose(alpha, [e.alpha for e in exact], rtol=1e-9, atol=2e-3)


def test_what_the_variance_of_log_weights_is_at_most() -> None:
    """No less than over draws, and than the sums over all pairs of sites; the bound without a pass is above both."""
    rng = np.random.default_rng(6)
    rows, y = rng.standard_normal((400, 3)), (rng.random(400) < 0.3).astype(float)
    result = klimb.infer(klimb.latents.Weights(rows, cov=1.0), sites.Logistic(), y)
    problem, q = result.problem, result.posterior
    V = rows @ q.covariance() @ rows.T
    third, fourth = bends(problem.site, problem.y, q)
    left_out = float(third @ V**3 @ third) / 6.0 + float(fourth @ V**4 @ fourth) / 24.0
    g = np.abs(rng.standard_normal(400))
    assert q.factor.energy_of_squares(g) == pytest.approx(float(g @ V**2 @ g), rel=1e-10)
    close, simple = (most_variance(problem.site, problem.y, q, enough) for enough in (0.0, np.inf))
    assert left_out < close < simple < 50.0 * left_out
    drawn = draw(weights_of(result), 4000).log_weights.var()
    assert 0.8 * left_out < drawn < close
