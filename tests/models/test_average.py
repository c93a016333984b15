"""The lattice of hyperparameters: which of its nodes are fitted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.infer.result import Status
from klimb.likelihoods import Observed
from klimb.models.average import DROP, _plain_components, _surely_low
from klimb.models.components import SCORES
from klimb.models.linear import LinearModel
from klimb.models.model import Model
from klimb.models.search import Evaluator, curvature, find_peak, held_curvature
from klimb.models.verdict import quick_trust


def along(*nodes: tuple[float, float]) -> tuple[dict[tuple[int, ...], float], Any]:
    """Values and slopes at the nodes (0, 0), (1, 0), ..."""
    values = {(k, 0): value for k, (value, _) in enumerate(nodes)}
    return values, {(k, 0): SimpleNamespace(slope=np.array([slope, 0.0])) for k, (_, slope) in enumerate(nodes)}


def test_a_node_far_down_a_parabola_is_foretold() -> None:
    values, points = along(*((-1.1 * k**2, -2.2 * k) for k in range(3)))
    assert _surely_low((3, 0), (2, 0), 1.0, values, points) == pytest.approx(-9.9)
    mirrored = ({(-k, 0): value for (k, _), value in values.items()},
                {(-k, 0): SimpleNamespace(slope=-one.slope) for (k, _), one in points.items()})
    assert _surely_low((-3, 0), (-2, 0), 1.0, *mirrored) == pytest.approx(-9.9)


def test_a_node_that_may_count_is_fitted() -> None:
    assert _surely_low((3, 0), (2, 0), 1.0, *along((0.0, -1.0), (-1.0, -1.0), (-2.0, -1.0))) is None  # a straight tail
    assert _surely_low((3, 0), (2, 0), 1.0, *along((0.0, 0.0), (-0.5, -1.0), (-3.0, -4.0))) is None  # less: too little
    unknown = (-0.9 * DROP, np.nan)
    assert _surely_low((2, 0), (1, 0), 1.0, *along((0.0, 0.0), unknown)) is None  # nobody knows how it goes on


def crossed() -> tuple[Model, Observed]:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 80, 900), rng.integers(0, 70, 900)
    y = 0.5 + rng.standard_normal(80)[a] + 0.6 * rng.standard_normal(70)[b] + rng.standard_normal(900)
    data = {"y": y, "a": a.astype(str), "b": b.astype(str)}
    fit = klimb.fit("y ~ 1 + (1 | a) + (1 | b)", data, priors={"sigma": 1.0}, hyper="optimise", progress=False)
    return fit.model, fit.data


def test_the_curvature_with_sites_held_is_that_of_gaussian_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sites do not move with the variances, so that differences of gradients of whole fits are the same."""
    monkeypatch.setattr(LinearModel, "holds_sites", True)  # Gaussian data are searched without
    model, data = crossed()
    peak = find_peak(model, data)
    evaluate = Evaluator(peak.model, data)
    held = held_curvature(peak.model, data, peak.result.posterior, np.zeros(2))
    assert held is not None
    np.testing.assert_allclose(held, curvature(peak, evaluate), rtol=0.05, atol=0.5)
    assert peak.n_fits <= 6


def test_the_spread_of_chosen_hyperparameters_is_that_of_the_bound() -> None:
    """Second differences of bounds, of which no gradient is asked."""
    rng = np.random.default_rng(6)
    x = np.sort(rng.uniform(0.0, 6.0, 60))
    fit = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson()).fit(rng.poisson(np.exp(np.sin(x))))
    h, axes = 0.01, np.eye(2)

    def height(theta: np.ndarray) -> float:
        model = fit.model.moved(theta)
        return float(model.infer(fit.observed, tol=1e-9).bound + model.log_prior()[0])

    hessian = np.array([[(height(fit.model.at + h * (i + j)) - height(fit.model.at + h * (i - j))
                          - height(fit.model.at + h * (j - i)) + height(fit.model.at - h * (i + j))) / (4.0 * h**2)
                         for j in axes] for i in axes])
    sds = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    np.testing.assert_allclose(np.sqrt(np.diag(fit._spread.covariance)), sds, rtol=5e-3)


def test_a_stated_error_above_a_tenth_is_a_doubt_that_has_it_as_number() -> None:
    rng, g = np.random.default_rng(0), np.repeat(np.arange(8), 5)
    fit = klimb.fit("y ~ 1 + (1 | g)", {"y": rng.normal(size=40) + rng.normal(size=8)[g], "g": g})
    for error, word in ((0.09, "trust"), (0.11, "doubt")):
        found = quick_trust(replace(fit, components=replace(fit.components, error=error)))
        assert (found.verdict, found.number, found.measures) == (word, error, "relative error of an sd")


@pytest.mark.parametrize(("mass", "status"), [(1e-3, Status.CONVERGED), (0.1, Status.STALLED)])
def test_points_that_stall_count_by_their_mass(mass: float, status: Status) -> None:
    points: list[Any] = [SimpleNamespace(theta=np.zeros(1), status=Status.CONVERGED),
                         SimpleNamespace(theta=np.ones(1), status=Status.STALLED)]
    log_w = np.log([1.0 - mass, mass])
    assert _plain_components([None, None], points, log_w, np.zeros((1, len(SCORES))))[1] is status


def test_a_volatility_whose_correlation_is_open_is_not_in_doubt() -> None:
    """At correlations within 1e-6 of 1 its prior is singular, and five fits with 6e-4 of the mass stall."""
    rng = np.random.default_rng(5)
    y = rng.standard_normal(80) * np.exp(0.5 * np.cumsum(rng.normal(0.0, 0.3, 80)))
    fit = klimb.fit("y ~ ar1(t)", {"y": y, "t": np.arange(80)}, "stochastic_volatility")
    assert fit.converged
    assert fit.trust.verdict != "doubt"


def test_an_intercept_beside_a_field_that_may_be_its_level() -> None:
    """Its variance is mostly that of a few points where rho is nearly 1: sums over a wide lattice were 7% too large."""
    side, y = 5, np.array([3, 0, 2, 2, 5, 2, 9, 7, 6, 2, 1, 10, 4, 3, 2, 1, 3, 3, 3, 4, 0, 1, 0, 1, 1])
    edges = [(i, j) for i in range(side**2) for j in (i + 1, i + side) if j < side**2 and (j > i + 1 or j % side)]
    fit = klimb.fit("y ~ car(r, graph=G)", {"y": y, "r": np.arange(25)}, "poisson", graphs={"G": edges},
                    priors={"Intercept": "normal(1, 2.5)", "sd(car(r))": "exponential(1)", "rho(car(r))": "beta(1, 1)"})
    shown = fit.coefficients["sd"][0]
    assert abs(shown / intercept_sd(y, edges) - 1.0) < 0.035


def intercept_sd(y: Any, edges: list[tuple[int, int]]) -> float:
    """By sums over a grid of log sd and logit of rho, at each by importance sampling around the mode."""
    n, rng = len(y), np.random.default_rng(3)
    laplacian = np.zeros((n, n))
    for i, j in edges:
        laplacian[[i, j], [i, j]] += 1.0
        laplacian[[i, j], [j, i]] -= 1.0
    values = np.maximum(np.linalg.eigvalsh(laplacian), 0.0)
    draws = rng.standard_normal((2000, n + 1))
    draws = np.vstack([draws, -draws])
    draws = draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / len(draws))).T
    A, m0, found = np.hstack([np.ones((n, 1)), np.eye(n)]), np.r_[1.0, np.zeros(n)], []
    for log_sd in np.arange(-3.4, 2.0, 0.4):
        for logit in np.arange(-7.0, 13.0, 1.0):
            rho, rest = 1.0 / (1.0 + np.exp(-logit)), 1.0 / (1.0 + np.exp(logit))
            P = np.diag(np.r_[1.0 / 2.5**2, np.zeros(n)])
            P[1:, 1:] = (rho * laplacian + rest * np.eye(n)) / np.exp(2.0 * log_sd)
            w = np.r_[np.log(y.mean()), np.zeros(n)]
            for _ in range(30):
                rate = np.exp(A @ w)
                H = P + A.T @ (rate[:, None] * A)
                step = np.linalg.solve(H, A.T @ (y - rate) - P @ (w - m0))
                w = w + step * min(1.0, 2.0 / np.abs(A @ step).max())
            C = np.linalg.cholesky(np.linalg.inv(H))
            X = w + draws @ C.T
            f = X @ A.T
            log_w = f @ y - np.exp(f).sum(1) - 0.5 * (((X - m0) @ P) * (X - m0)).sum(1) + 0.5 * (draws**2).sum(1)
            log_w += 0.5 * np.log(rho * values + rest).sum() - n * log_sd + np.log(np.diagonal(C)).sum()
            own = np.exp(log_w - log_w.max())
            prior = log_sd - np.exp(log_sd) + np.log(rho) + np.log(rest)
            found.append((log_w.max() + np.log(own.mean()) + prior, own @ X[:, 0] / own.sum(),
                          own @ X[:, 0] ** 2 / own.sum()))
    heights, mean, square = np.array(found).T
    weights = np.exp(heights - heights.max())
    weights /= weights.sum()
    return float(np.sqrt(weights @ square - (weights @ mean) ** 2))
