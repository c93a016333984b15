"""Crossed factors by products: what is exact equals the factorised border, what is estimated is as near as it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix, hstack

import klimb
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents import ArrowRows, Crossed, CrossedProducts
from klimb.latents.coordinates import coordinates_of

N, L, S = 1500, 120, 80
RNG = np.random.default_rng(5)
CODES, OTHER, X = RNG.integers(0, L, N), RNG.integers(0, S, N), RNG.standard_normal(N)
GAMMA = RNG.gamma(2.0, 0.2, N)
DENSE = np.column_stack([np.ones(N), X])


def by_level(codes: Any, values: Any, size: int) -> Any:
    k = values.shape[1]
    rows, columns = np.repeat(np.arange(N), k), (codes[:, None] * k + np.arange(k)).ravel()
    return csr_matrix((values.ravel(), (rows, columns)), shape=(N, size * k))


ONES = np.ones((N, 1))
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "two factors": (by_level(OTHER, ONES, S), None, {"roots": [(0.7, S)]}),
    "three factors": (hstack([by_level(OTHER, ONES, S), by_level(OTHER * 7 % 11, ONES, 11)]).tocsr(), None,
                      {"roots": [(0.7, S), (0.4, 11)]}),
    "slopes": (by_level(OTHER, DENSE, S), DENSE,
               {"roots": [(np.array([[0.7, 0.0], [0.2, 0.3]]), S)], "group_cov": np.array([[1.0, 0.3], [0.3, 0.5]]),
                "cov": np.array([[6.0, 0.5], [0.5, 3.0]])}),
    "an sd of zero": (by_level(OTHER, ONES, S), None, {"roots": [(0.0, S)]}),
}


def latents(name: str) -> tuple[Crossed, CrossedProducts]:
    sparse, values, given = CASES[name]
    settings = {"n_levels": L, "mean": [0.3, 0.0], "cov": 4.0, **given}
    return tuple(kind(DENSE, sparse, CODES, values, **settings) for kind in (Crossed, CrossedProducts))


@pytest.mark.parametrize("name", CASES)
def test_systems_are_exact_and_estimates_as_near_as_they_say(name: str) -> None:
    direct, products = (latent.factor(GAMMA) for latent in latents(name))
    b = RNG.standard_normal(N)
    assert_allclose(products.smooth(b), direct.smooth(b), rtol=1e-7, atol=1e-9)
    assert products.energy(b) == pytest.approx(direct.energy(b), rel=1e-8)
    assert abs(products.logdet - direct.logdet) < 4 * products.log_det_error + 1e-6
    assert not products.exact
    assert products.log_det_error < 1.0
    v, error = products.variances(), products.variance_error()
    assert_allclose(v, direct.variances(), rtol=0.25)
    seen = error > 1e-9 * v
    if seen.any():
        away = (v - direct.variances())[seen] / error[seen]
        assert 0.5 < away.std() < 1.6
        assert np.median(np.abs(v / direct.variances() - 1.0)) < 0.02


@pytest.mark.parametrize("name", CASES)
def test_weights_without_their_data(name: str) -> None:
    y = (RNG.random(N) < 0.5).astype(float)
    q = []
    for latent in latents(name):
        posterior = klimb.infer(latent, klimb.sites.Logistic(), y).posterior
        q.append((latent.detach(posterior), latent.weight_covariance(posterior)))
    (direct, cov), (found, other) = q
    assert_allclose(found.mean, direct.mean, atol=0.02 * np.sqrt(np.diagonal(cov)).max())
    assert_allclose(other, cov, atol=0.02 * cov.max())
    assert_allclose(found.sd()[:2], direct.sd()[:2], rtol=1e-3)  # those of dense columns are computed
    assert_allclose(found.sd(), direct.sd(), rtol=0.15, atol=1e-9)
    assert np.median(np.abs(found.sd() - direct.sd()) / np.maximum(direct.sd(), 1e-9)) < 0.01
    levels = RNG.integers(-1, L, 12)  # some never seen, at rows that the fit did not have
    rows = ArrowRows(RNG.standard_normal((12, 2)), levels, np.ones((12, direct.level_mean.shape[1])),
                     CASES[name][0][RNG.integers(0, N, 12)])
    for one, another in zip(found.joint(rows), direct.joint(rows), strict=True):
        assert_allclose(one, another, atol=0.01)
    assert_allclose(found.at(rows)[1], direct.at(rows)[1], rtol=0.12)
    shift = slice(0, 2)
    assert_allclose(found.covariance_with(rows, shift), direct.covariance_with(rows, shift), atol=1e-3)
    k = 2 if name == "slopes" else 1
    border, own = slice(2, 2 + S * k), slice(len(direct.shared), direct.size)
    for at in (border, own):
        assert_allclose(found.block_covariance(at, k), direct.block_covariance(at, k), rtol=0.01,
                        atol=0.02 * direct.block_covariance(at, k).max())
    draws = found.sample(4000, np.random.default_rng(0))
    assert_allclose(draws.std(axis=0), direct.sd(), rtol=0.12, atol=1e-9)
    assert found.sample(0, np.random.default_rng(0)).shape == (0, direct.size)


def test_standard_coordinates_are_a_root_and_its_transpose() -> None:
    latent = latents("two factors")[1]
    posterior = klimb.infer(latent, klimb.sites.Logistic(), RNG.random(N) < 0.5).posterior
    found = coordinates_of(posterior)
    z, slopes = RNG.standard_normal((3, found.dim)), RNG.standard_normal((3, N))
    d = found.deviations(z)
    assert_allclose(np.einsum("ij,ij->i", d, slopes), np.einsum("ij,ij->i", z, found.pull(slopes)), rtol=1e-4)


def test_the_same_random_numbers_make_the_bound_smooth() -> None:
    sparse, _, _ = CASES["two factors"]
    base = CrossedProducts(DENSE, sparse, CODES, n_levels=L, roots=[(0.7, S)])
    logs = []
    for sd in (0.70, 0.71, 0.72):
        latent = CrossedProducts.__new__(CrossedProducts)
        latent._build(base.cells, 0.0, 1.0, [(sd, S)], 1.0, np.zeros(N))
        direct = Crossed(DENSE, sparse, CODES, n_levels=L, roots=[(sd, S)])
        logs.append(latent.factor(GAMMA).logdet - direct.factor(GAMMA).logdet)
    assert max(logs) - min(logs) < 0.02


def test_what_cannot_be_is_refused() -> None:
    latent = latents("two factors")[1]
    with pytest.raises(NotPositiveDefiniteError):
        latent.factor(np.full(N, -1.0))
    large = CrossedProducts(np.ones((6000, 1)), csr_matrix((np.ones(6000), (np.arange(6000), np.arange(6000) % 70))),
                            np.arange(6000), n_levels=6000)
    posterior = klimb.infer(large, klimb.sites.Gaussian(1.0), np.zeros(6000)).posterior
    with pytest.raises(InputError, match="covariance of all weights"):
        posterior.covariance()
