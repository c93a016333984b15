"""Particles from a start to a density whose mass, means and sds are known."""

import numpy as np
import pytest
from scipy.special import logsumexp

import klimb
from klimb.boosting.gaussians import Gaussians
from klimb.trust.tempered import tempered


def start(*means: float, dim: int = 1, width: float = 1.0) -> Gaussians:
    count = len(means)
    centres = np.array([np.full(dim, mean) for mean in means])
    return Gaussians(centres, np.tile(width * np.eye(dim), (count, 1, 1)))


def test_a_gaussian_far_from_the_start_in_many_directions() -> None:
    dim = 30
    scales = np.geomspace(0.3, 3.0, dim)

    def log_density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = (z - 2.0) / scales
        return -0.5 * (away**2).sum(axis=1), -away / scales

    found = tempered(log_density, start(0.0, dim=dim), length=24)
    mean = found.weights @ found.z
    assert np.abs((mean - 2.0) / scales).max() < 0.2
    np.testing.assert_allclose(np.sqrt(found.weights @ (found.z - mean) ** 2), scales, rtol=0.15)
    expected = np.log(scales).sum() + 0.5 * dim * np.log(2.0 * np.pi)
    assert found.log_evidence == pytest.approx(expected, abs=0.5)
    assert 0.0 < found.error < 0.15
    assert found.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("odds", [1.0, 1e-3])
def test_modes_that_no_chain_goes_between(odds: float) -> None:
    """A mode far away counts by its mass, however little that is."""

    def log_density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        terms = np.stack([-0.5 * z[:, 0] ** 2, np.log(odds) - 0.5 * (z[:, 0] - 40.0) ** 2])
        share = np.exp(terms - logsumexp(terms, axis=0))
        return logsumexp(terms, axis=0), (-share[0] * z[:, 0] - share[1] * (z[:, 0] - 40.0))[:, None]

    found = tempered(log_density, start(0.0, 40.0, width=1.3), length=12)
    far = float(found.weights[found.z[:, 0] > 20.0].sum())
    assert far == pytest.approx(odds / (1.0 + odds), rel=0.15)
    assert set(np.unique(found.owner)) == {0, 1}


def test_the_same_seed_gives_the_same_particles() -> None:
    def log_density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -np.cosh(z).sum(axis=1), -np.sinh(z)

    one, two = (tempered(log_density, start(0.0, dim=3), length=6, seed=4) for _ in range(2))
    np.testing.assert_array_equal(one.z, two.z)


def test_hundreds_of_directions_that_are_each_far_from_gaussian():
    """Weights are of no use in 220 directions; draws say what second-order theory does, and by how much they err."""
    x = np.sort(np.random.default_rng(0).uniform(0.0, 26.0, 260))
    K = 25.0 * np.exp(-0.5 * ((x[:, None] - x) / 0.15) ** 2) + 1e-6 * np.eye(260)
    f = np.linalg.cholesky(K) @ np.random.default_rng(1).standard_normal(260)
    y = np.random.default_rng(2).poisson(np.exp(np.clip(0.3 * f - 1.5, -20.0, 4.0)))
    result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.Poisson(), y)
    assert result.trust.verdict == "doubt"
    assert result.trust.advice.endswith("from the exact posterior.")
    assert result.trust.context.coordinates.dim > 200
    found = result.trust.sampled(8)
    assert 0.0 < found.error < 0.2
    ratio = found.sd / np.sqrt(result.posterior.v)
    assert abs(np.median(ratio) - np.median(result.trust.marginals.ratio)) < 0.05
