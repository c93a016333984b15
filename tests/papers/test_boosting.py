"""[G]: Laplacian gradient boosting with Newton weights, on the paper's targets, beside the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

import klimb
from klimb.boosting.gaussians import Gaussians, log_mixture, nodes
from klimb.boosting.paper import corrective


def cauchy(x: np.ndarray) -> np.ndarray:
    return -np.log1p((x[:, 0] / 2) ** 2) - np.log(2 * np.pi)


def four(x: np.ndarray) -> np.ndarray:
    m, s, w = np.array([-4.0, -1, 2, 6]), np.array([0.7, 0.5, 1.0, 0.8]), np.array([0.2, 0.3, 0.3, 0.2])
    return logsumexp(-0.5 * ((x - m) / s) ** 2 - np.log(s) + np.log(w), axis=1) - 0.5 * np.log(2 * np.pi)


@pytest.mark.parametrize(("log_p", "reached"), [(cauchy, 0.05), (four, 0.25)])  # 0.03 to 0.18 by seed
def test_laplacian_boosting_closes_in(log_p: Callable[[Any], Any], reached: float) -> None:
    """Figure 1 (a), (b): from one wide Gaussian, KL(q || p) falls with every component's weight exact."""
    q = klimb.boost(log_p, 1, component="laplacian", n_components=25)
    bounds = np.array(q.trace["bound"])
    assert bounds[0] < bounds[-1] - 0.4
    assert -reached < bounds[-1] < 3 * q.bound_error
    assert np.all(np.diff(bounds) > -1e-6)  # all at the same nodes, so that Newton's weights never lower it
    last = q.trace["weights"][-1]
    assert last.min() >= 0
    assert last.sum() == pytest.approx(1.0)
    assert klimb.boost(log_p, 1).bound > bounds[-1] - 0.02  # the default is as close with far fewer components


def test_both_directions_are_selectable() -> None:
    inclusive = klimb.boost(four, 1, component="laplacian", divergence="inclusive", n_components=12)
    newton = klimb.boost(four, 1, component="laplacian", n_components=12)
    grid = np.linspace(-30, 30, 60_001)[:, None]
    cover = [float(np.trapezoid(np.exp(four(grid)) * q.log_density(grid), dx=1e-3)) for q in (inclusive, newton)]
    entropy = float(np.trapezoid(np.exp(four(grid)) * four(grid), dx=1e-3))
    assert entropy - cover[0] < 0.5  # KL(p || q) of the inclusive run
    assert klimb.boost(four, 1, component="laplacian", weights="corrective", n_components=4).n_components > 1


def test_refitted_weights_are_the_best_weights() -> None:
    """Convex in the weights: no random direction in the simplex raises the bound."""
    parts = Gaussians(np.array([[-4.0], [0.0], [5.0]]), np.array([[[1.0]], [[2.0]], [[1.5]]]))
    Z = nodes(400, 1)
    values = four(parts.at(Z).reshape(-1, 1)).reshape(3, 400)
    terms = parts.log_densities(parts.at(Z).reshape(-1, 1))

    def bound(w: np.ndarray) -> float:
        return float(w @ (values - log_mixture(w, terms).reshape(3, 400)).mean(axis=1))

    best = corrective(parts, values, Z)
    rng = np.random.default_rng(0)
    assert all(bound(0.9 * best + 0.1 * rng.dirichlet(np.ones(3))) <= bound(best) + 1e-7 for _ in range(50))


def test_nodal(load_data: Callable[[str], Any]) -> None:
    """Figure 2: means, variances and covariances of a logistic regression against importance sampling."""
    data = load_data("nodal")
    y = np.where(data.y > 0, 1.0, -1.0)

    def log_p(w: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0.0, -(w @ data.X.T) * y).sum(1) - 0.5 * (w**2).sum(1)

    def slope(w: np.ndarray) -> np.ndarray:
        return (y / (1 + np.exp((w @ data.X.T) * y))) @ data.X - w

    q = klimb.boost(log_p, 6, gradient=slope)
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(1.3 * q.cov)
    g = rng.chisquare(8, 200_000) / 8
    z = rng.standard_normal((200_000, 6))
    X = q.mean + (z / np.sqrt(g)[:, None]) @ root.T
    log_w = log_p(X) + 7.0 * np.log1p((z**2).sum(1) / g / 8)  # a Student-t with 8 degrees of freedom
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    mean = w @ X
    cov = ((X - mean) * w[:, None]).T @ (X - mean)
    np.testing.assert_allclose(q.mean, mean, atol=0.06)
    np.testing.assert_allclose(q.cov, cov, atol=0.04)
    assert q.khat < 0.7
    np.testing.assert_allclose(q.corrected.mean, mean, atol=0.03)
