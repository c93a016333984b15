"""d bound / d covariance at the optimum, against differences of refitted bounds."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, sites

RNG = np.random.default_rng(3)
N, M = 14, 5
A = RNG.standard_normal((N + M, N + M))
JOINT = A @ A.T / (N + M) + 0.3 * np.eye(N + M)
K = JOINT[:N, :N]
DATA = {
    "logistic": (sites.Logistic(), RNG.integers(0, 2, N)),
    "poisson": (sites.Poisson(), RNG.poisson(2.0, N)),
    "student-t": (sites.StudentT(3.0, 0.3), np.where(np.arange(N) == 3, 6.0, RNG.standard_normal(N))),
}


def slope(bound_at):
    return (bound_at(1e-5) - bound_at(-1e-5)) / 2e-5


@pytest.mark.parametrize("name", DATA)
def test_kernel(name):
    site, y = DATA[name]
    mean = 0.1 * np.arange(N)
    result = klimb.infer(latents.Kernel(K, mean), site, y, tol=1e-11)
    if name == "student-t":
        assert result.posterior.gamma.min() < 0
    gradient = result.posterior.latent.bound_gradient(result.posterior)
    change = RNG.standard_normal((N, N))
    change = change + change.T

    def bound_at(t):
        return klimb.infer(latents.Kernel(K + t * change, mean), site, y, tol=1e-11, start=result.posterior).bound

    assert abs((gradient * change).sum() - slope(bound_at)) < 1e-5
    shift = RNG.standard_normal(N)
    by_mean = slope(lambda t: klimb.infer(latents.Kernel(K, mean + t * shift), site, y, tol=1e-11).bound)
    assert abs(result.posterior.a @ shift - by_mean) < 1e-5


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_inducing(name):
    site, y = DATA[name]
    Kuu, Kuf, kff = JOINT[N:, N:], JOINT[N:, :N], np.diag(K).copy()
    result = klimb.infer(latents.Inducing(Kuu, Kuf, kff), site, y, tol=1e-11)
    by_cross = np.empty_like(Kuf)
    by_inner, by_diagonal = result.posterior.latent.pull_back(
        [result.posterior], lambda block, part: by_cross.__setitem__((slice(None), block), part))
    changes = [RNG.standard_normal(part.shape) for part in (Kuu, Kuf, kff)]
    changes[0] = changes[0] + changes[0].T
    for which, part in enumerate((by_inner, by_cross, by_diagonal)):
        def bound_at(t, which=which):
            given = zip((Kuu, Kuf, kff), changes, strict=True)
            parts = [p + (t * c if k == which else 0.0) for k, (p, c) in enumerate(given)]
            return klimb.infer(latents.Inducing(*parts), site, y, tol=1e-11).bound

        assert abs((part * changes[which]).sum() - slope(bound_at)) < 1e-5
