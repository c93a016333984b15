"""Inducing points: the whole process at the limit, never better than it, never worse with one point more."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, sites
from klimb.errors import InputError

RNG = np.random.default_rng(12)
X = RNG.random((60, 2)) * 4


def k(A, B):
    return 2.0 * np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(-1) / 0.8**2)


DATA = {
    "logistic": (sites.Logistic(), np.where(np.sin(2 * X[:, 0]) + X[:, 1] - 2 > 0, 1, 0)),
    "poisson": (sites.Poisson(), RNG.poisson(np.exp(np.sin(2 * X[:, 0])))),
    "student-t": (sites.StudentT(3.0, 0.3), np.sin(2 * X[:, 0]) + 0.3 * RNG.standard_t(3, 60)),
}


def inducing(Z, **options):
    return latents.Inducing(k(Z, Z), k(Z, X), 2.0, **options)


@pytest.mark.parametrize("name", DATA)
def test_at_the_inputs_it_is_the_full_process(name):
    site, y = DATA[name]
    full = klimb.infer(latents.Kernel(k(X, X), mean=0.2), site, y, tol=1e-9)
    same = klimb.infer(inducing(X, mean=0.2), site, y, tol=1e-9)
    assert abs(same.bound - full.bound) < 1e-7
    np.testing.assert_allclose(same.posterior.m, full.posterior.m, atol=1e-6)
    np.testing.assert_allclose(same.posterior.v, full.posterior.v, atol=1e-6)
    new = RNG.random((15, 2)) * 5
    expected = full.posterior.latent.predict(full.posterior, k(new, X), np.full(15, 2.0), mean=0.2)
    found = same.posterior.latent.predict(same.posterior, k(new, X), np.full(15, 2.0), mean=0.2)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_one_more_point_never_lowers_the_bound(name):
    site, y = DATA[name]
    full = klimb.infer(latents.Kernel(k(X, X)), site, y, tol=1e-8).bound
    bounds = [klimb.infer(inducing(X[:count]), site, y, tol=1e-8).bound for count in (1, 2, 5, 10, 20, 40)]
    assert (np.diff(bounds) >= -1e-7).all()
    assert bounds[-1] <= full + 1e-7


def test_duplicate_points_are_harmless():
    site, y = DATA["logistic"]
    once = klimb.infer(inducing(X[:12]), site, y)
    twice = klimb.infer(inducing(np.vstack([X[:12], X[:5], X[:5]])), site, y)
    assert twice.converged
    assert abs(once.bound - twice.bound) < 1e-6
    new = X[40:]
    one = once.posterior.latent.predict(once.posterior, k(new, X[:12]), np.full(20, 2.0))
    other = twice.posterior.latent.predict(twice.posterior, k(new, np.vstack([X[:12], X[:5], X[:5]])), np.full(20, 2.0))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_marginals_are_those_of_the_definition():
    """[S] Eq. (4) with explicit inverses."""
    site, y = DATA["logistic"]
    Z = X[:10]
    result = klimb.infer(inducing(Z), site, y)
    Kuu, Kuf = k(Z, Z), k(Z, X)
    D = np.linalg.solve(Kuu, Kuf)
    V_u = np.linalg.inv(np.linalg.inv(Kuu) + D @ (result.posterior.gamma[:, None] * D.T))
    v = 2.0 - np.einsum("ij,ij->j", Kuf, D) + np.einsum("ij,ik,kj->j", D, V_u, D)
    np.testing.assert_allclose(result.posterior.v, v, atol=1e-8)
    m = Kuf.T @ np.linalg.solve(Kuu, Kuf @ result.posterior.a)
    np.testing.assert_allclose(result.posterior.m, m, atol=1e-8)
    assert result.posterior.sample(3, rng=0).shape == (3, 10)


def test_large_data_start_from_a_part():
    rng = np.random.default_rng(1)
    inputs = rng.random((12_000, 1)) * 6
    y = np.where(np.sin(2 * inputs[:, 0]) + 0.5 * rng.standard_normal(12_000) > 0, 1, 0)
    Z = np.linspace(0, 6, 15)[:, None]
    latent = latents.Inducing(k(Z, Z), k(Z, inputs), 2.0)
    result = klimb.infer(latent, sites.Logistic(), y)
    assert result.converged
    assert result.history.n_factor.sum() <= 6


def test_errors():
    with pytest.raises(InputError, match=r"Kuf must have one row per inducing point \(5\).*shape \(4, 60\).*k\(Z, X\)"):
        latents.Inducing(k(X[:5], X[:5]), k(X[:4], X), 2.0)
    with pytest.raises(InputError, match=r"cannot explain more than the prior variance.*one kernel"):
        latents.Inducing(k(X[:5], X[:5]), k(X[:5], X), 0.5)
    latent = inducing(X[:5])
    result = klimb.infer(latent, *DATA["logistic"])
    with pytest.raises(InputError, match=r"one column per inducing point \(5\)"):
        latent.predict(result.posterior, k(X, X), np.full(60, 2.0))


def test_warm_start_takes_fewer_steps_to_the_same_place():
    site, y = DATA["logistic"]
    first = klimb.infer(latents.Kernel(k(X, X)), site, y)
    near = latents.Kernel(1.05 * k(X, X))
    cold, warm = klimb.infer(near, site, y), klimb.infer(near, site, y, start=first.posterior)
    assert abs(cold.bound - warm.bound) < 1e-6
    assert warm.history.n_factor.sum() < cold.history.n_factor.sum()
    with pytest.raises(InputError, match="start must be a posterior of 60 sites"):
        klimb.infer(near, site, y, start=klimb.infer(latents.Kernel(k(X[:5], X[:5])), site, y[:5]).posterior)
