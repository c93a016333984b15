"""Sites at another theta, foretold from those of earlier fits."""

from __future__ import annotations

import numpy as np

import klimb
from klimb.latents.base import Posterior
from klimb.models.search import Evaluator, find_peak
from klimb.models.sites_near import SitesNear


def remembered(points: np.ndarray) -> SitesNear:
    """Sites whose slopes and gammas are affine in theta."""
    latent, known = klimb.latents.Weights(np.eye(3)), SitesNear()
    for one in points:
        slope, gamma = np.array([1.0, 2.0, 3.0]) + one[0], np.full(3, 5.0) + 0.3 * one[1]
        known.add(one, Posterior(latent, slope, gamma, np.zeros(3), np.ones(3), 0.0))
    return known


def test_affine_sites_are_foretold_exactly() -> None:
    known = remembered(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.2]]))
    found = known.at(np.array([0.7, 0.4]))
    assert found is not None
    start = found()
    np.testing.assert_allclose(start.a, np.array([1.0, 2.0, 3.0]) + 0.7, rtol=1e-6)
    np.testing.assert_allclose(start.gamma, 5.0 + 0.3 * 0.4, rtol=1e-6)  # kept in single precision


def test_quadratic_sites_are_foretold_exactly_where_fits_are_enough() -> None:
    points = np.array([[i, j] for i in (-1.0, 0.0, 1.0) for j in (-1.0, 0.0, 1.0)])
    latent, known = klimb.latents.Weights(np.eye(3)), SitesNear()
    for x, y in points:
        slope = np.array([x * x, x * y, y + 1.0])
        known.add(np.array([x, y]), Posterior(latent, slope, np.full(3, 5.0 + y * y), np.zeros(3), np.ones(3), 0.0))
    found = known.at(np.array([0.4, 1.3]))  # beyond what is known
    assert found is not None
    np.testing.assert_allclose(found().a, [0.16, 0.52, 2.3], atol=1e-5)
    np.testing.assert_allclose(found().gamma, 5.0 + 1.69, rtol=1e-5)


def test_steps_of_long_data_keep_the_digits_that_predictions_have() -> None:
    n, rng = 20_000, np.random.default_rng(0)
    latent, known, slopes = klimb.latents.Weights(np.eye(3)), SitesNear(), rng.standard_normal((2, n))
    points = 0.3 * rng.standard_normal((12, 2))

    def sites(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 1e4 * slopes[0] + theta @ slopes, 5.0 + np.abs(theta @ slopes[::-1])

    for theta in points:
        slope, gamma = sites(theta)
        known.add(theta, Posterior(latent, slope, gamma, np.zeros(n), np.ones(n), 0.0))
    assert known.last is not None
    np.testing.assert_allclose(known.last().gamma, sites(points[-1])[1], rtol=1e-6)
    held = sum(values.nbytes for _, values in known._steps) / n
    assert held == 4 * (len(known._thetas) - 1)  # two bytes of each slope and gamma
    found = known.at(np.array([0.1, 0.05]))
    assert found is not None
    np.testing.assert_allclose(found().a, sites(np.array([0.1, 0.05]))[0], rtol=1e-6, atol=0.01)


def test_nothing_is_foretold_from_too_few_or_far_away() -> None:
    assert remembered(np.array([[0.0, 0.0], [1.0, 0.0]])).at(np.array([0.5, 0.5])) is None
    assert remembered(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).at(np.array([40.0, 40.0])) is None


def test_fits_near_others_need_fewer_factorisations() -> None:
    rng = np.random.default_rng(0)
    data = {"t": np.arange(200), "y": rng.poisson(np.exp(np.sin(np.arange(200) / 20.0)))}
    fit = klimb.fit("y ~ rw2(t)", data, family="poisson", hyper="optimise")
    peak = find_peak(fit.model, fit.observed)
    evaluate = Evaluator(peak.model, fit.observed)
    steps = [-0.2, -0.1, 0.0, 0.1, 0.2, 0.05]
    counts = []
    for step in steps:
        result = evaluate(peak.model.at + step, start=peak.result.posterior).result
        assert result is not None
        counts.append(result.n_iter)
    assert counts[-1] < counts[0]
