"""One prior scale that loose fits have moved: near the peak that a search from afar finds, with fewer fits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from klimb.infer.problem import Problem
from klimb.latents.kernel import KernelFactor
from klimb.models.plain_steps import judged
from klimb.models.predicted import Near, sites_in_cavities
from klimb.models.predicted import solved as solve_predicted
from klimb.models.search import find_peak, under
from klimb.models.settle import Settled, settled
from klimb.models.solution import solve
from klimb.sklearn import GLMClassifier


def model_of(n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 6))
    f = 0.7 * X @ rng.standard_normal((6, n_classes))
    y = (f + rng.gumbel(size=f.shape)).argmax(axis=1)
    fit = GLMClassifier().fit(X, y).fit_
    return fit.model.moved(fit.model.theta.start), fit.observed


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_scale_is_near_its_peak(n_classes: int) -> None:
    model, data = model_of(n_classes)
    assert model.settles
    far = find_peak(model, data, tol=1e-6)
    begun = settled(Settled(model), data, 1e-6)
    assert begun.result is not None
    assert begun.result.converged
    assert begun.model.at[0] == pytest.approx(far.model.at[0], abs=5e-4)
    assert begun.n_fits <= 7
    found = solve(model, data, hyper="optimise", spread=False)
    assert found.n_fits == begun.n_fits
    assert found.bound == pytest.approx(far.result.bound, abs=1e-5)
    digits = solve(model, data, hyper="optimise", spread=False, tol=1e-10)
    assert digits.model.at[0] == pytest.approx(find_peak(model, data, tol=1e-2, fit_tol=1e-10).model.at[0], abs=1e-5)


def test_sites_and_scale_move_together_where_newton_directions_are_cheap() -> None:
    """One loose fit or two are enough, and how the bound bends at its optimum is known from that one point."""
    model, data = model_of(3)
    begun = settled(Settled(model), data, 1e-6)
    assert begun.n_fits <= 3
    assert begun.curvature is not None
    heights = [(here := model.moved(begun.model.at + step)).infer(data, tol=1e-9).bound + here.log_prior()[0]
               for step in (-0.1, 0.0, 0.1)]
    assert begun.curvature[0] == pytest.approx((2 * heights[1] - heights[0] - heights[2]) / 0.01, rel=0.2)


def test_sites_and_scale_move_together_by_plain_steps_from_a_mode() -> None:
    """Where rows are many: means and standard deviations within 1e-3 posterior sd of those of a strict fit."""
    rng = np.random.default_rng(4)
    X = np.exp(rng.standard_normal((2600, 8)))  # some rows have a large leverage
    fit = GLMClassifier().fit(X, X @ np.linspace(-1.0, 1.0, 8) + rng.logistic(size=2600) > 0).fit_
    strict = solve(fit.model.moved(fit.model.theta.start), fit.observed, hyper="optimise", spread=False, tol=1e-10)
    assert fit.converged
    assert fit.n_fits <= 3 < strict.n_fits
    assert fit.bound == pytest.approx(strict.bound, abs=1e-4)
    q, exact = fit.result.posterior, strict.result.posterior
    np.testing.assert_allclose((q.m - exact.m) / np.sqrt(exact.v), 0.0, atol=1e-3)
    np.testing.assert_allclose(q.v / exact.v, 1.0, atol=2e-3)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether factorisations of 800 rows or more were in single precision."""
    made, plain = list[bool](), KernelFactor.__init__

    def noted(self: KernelFactor, K: Any, gamma: Any, *, single: bool = False) -> None:
        made.extend([single] * (len(gamma) >= 800))
        plain(self, K, gamma, single=single)

    monkeypatch.setattr(KernelFactor, "__init__", noted)
    return made


def test_an_eighth_of_the_rows_begins_a_wide_fit_and_all_rows_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((1100, 1200)) * (rng.random((1100, 1200)) < 0.02)
    y = X @ rng.standard_normal(1200) + rng.logistic(size=1100) > 0
    made = counted(monkeypatch)
    fit = GLMClassifier(standardize=True).fit(X, y).fit_
    assert len(made) <= 4
    assert made.count(False) <= 2
    monkeypatch.undo()
    peak = find_peak(fit.model.moved(fit.model.theta.start), fit.observed, tol=1e-5)
    assert fit.model.by_gram
    assert fit.model.at[0] == pytest.approx(peak.model.at[0], abs=5e-3)  # of which bounds know the square
    heights = [model.infer(fit.observed, tol=1e-9).bound + model.log_prior()[0] for model in (fit.model, peak.model)]
    assert heights[0] == pytest.approx(heights[1], abs=1e-6)
    assert fit.bound == pytest.approx(heights[0] - fit.model.log_prior()[0], abs=1e-5)


def test_marginals_and_slope_of_a_wide_model_follow_its_scale_with_the_sites_held() -> None:
    """In closed form, beside differences between factorisations at other scales."""
    rng = np.random.default_rng(6)
    X = rng.standard_normal((40, 60))
    fit = GLMClassifier().fit(X, X[:, 0] + rng.logistic(size=40) > 0.5).fit_
    model, q = fit.model, fit.result.posterior
    assert model.by_gram
    V = q.factorised().covariance()
    V = np.tril(V) + np.tril(V, -1).T
    dm, dv, bend = model._grams.held(q, lambda b: V**2 @ b)
    step = 1e-4
    models = [model.moved(model.at + move) for move in (step, -step)]
    up, down = (under(other.latent, q) for other in models)
    slopes = [other.prior_gradient(moved)[0] for other, moved in zip(models, (up, down), strict=True)]
    np.testing.assert_allclose(dm, (up.m - down.m) / (2 * step), atol=1e-6)
    np.testing.assert_allclose(dv, (up.v - down.v) / (2 * step), atol=1e-6)
    assert bend == pytest.approx((slopes[0] - slopes[1]) / (2 * step), rel=1e-5)


def test_single_precision_on_the_way_leaves_the_answer_in_double() -> None:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((600, 700)) * (rng.random((600, 700)) < 0.05)
    fit = GLMClassifier(standardize=True).fit(X, X @ rng.standard_normal(700) + rng.logistic(size=600) > 0).fit_
    begun = settled(Settled(replace(fit.model.moved(fit.model.theta.start), loose=True)), fit.observed, 1e-6)
    assert not fit.model.loose
    assert not begun.model.loose
    assert begun.result is not None
    exact = begun.model.infer(fit.observed, tol=1e-10).posterior
    q = begun.result.posterior
    np.testing.assert_allclose((q.m - exact.m) / np.sqrt(exact.v), 0.0, atol=1e-3)
    np.testing.assert_allclose(q.v, exact.v, rtol=2e-3)
    again = begun.model.latent.factor(q.gamma)
    np.testing.assert_allclose(q.v, again.variances(), rtol=1e-10)  # of its own sites, in double precision


def wide_model(n: int, d: int, scale: float, seed: int) -> tuple[Any, Any]:
    """Sparse columns in units that leave the weights a common scale, at the best of it."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.03)
    fit = GLMClassifier(standardize=False).fit(X, scale * X @ rng.standard_normal(d) + rng.logistic(size=n) > 0).fit_
    return fit.model, fit.observed


def test_a_move_of_the_scale_that_went_too_far_is_halved() -> None:
    model, data = wide_model(200, 600, 30.0, 0)
    begun = settled(Settled(model.moved(model.at - 1.5)), data, 1e-2)
    path = np.array(begun.path)
    assert (path[1:] < np.maximum.accumulate(path)[:-1] - 1.0).any()  # it went too far
    assert begun.model.at[0] == pytest.approx(model.at[0], abs=0.1)
    assert path[-1] == pytest.approx(model.infer(data).bound + model.log_prior()[0], abs=0.1)


@pytest.mark.parametrize("away", [-0.5, 0.5])
def test_sites_and_scale_are_solved_for_with_predicted_variances(away: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another scale few factorisations lead to the peak, most of them in single precision."""
    model, data = wide_model(850, 900, 1.0, 1)
    assert model.by_gram
    made = counted(monkeypatch)
    begun = settled(Settled(replace(model.moved(model.at + away), loose=True)), data, 1e-6)
    assert len(made) <= 8
    assert made.count(False) <= 3
    assert begun.result is not None
    assert begun.result.converged
    monkeypatch.undo()
    strict = settled(Settled(model), data, 1e-10)
    assert strict.result is not None
    assert begun.model.at[0] == pytest.approx(strict.model.at[0], abs=1e-3)
    q, exact = begun.result.posterior, strict.result.posterior
    np.testing.assert_allclose((q.m - exact.m) / np.sqrt(exact.v), 0.0, atol=1e-3)
    np.testing.assert_allclose(q.v, exact.v, rtol=2e-3)
    heights = [one.model.infer(data, tol=1e-9).bound + one.model.log_prior()[0] for one in (begun, strict)]
    assert heights[0] == pytest.approx(heights[1], abs=1e-6)


def test_predicted_variances_are_those_of_factorisations_to_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the error of a solution for them falls with the square of the distance."""
    monkeypatch.setattr("klimb.models.predicted.LEFT", 0.0)
    model, data = wide_model(60, 90, 1.0, 2)
    q = model.infer(data).posterior
    problem = Problem(model.latent, model.site(data), data.y)
    rng = np.random.default_rng(0)
    factors = [np.exp(size * rng.standard_normal(len(q.a))) for size in (0.2, 0.02)]
    errors = []
    for factor in factors:
        state = problem.at_sites(q.a + factor * q.gamma * q.m, factor * q.gamma)
        found = judged(model, problem, state, lambda other, posterior: other.gradient(posterior, data)[0]
                       + other.log_prior()[1][0])
        near = Near.of(state, float(model.at[0]))
        assert near is not None
        solved = solve_predicted(found, near, 1e-6)
        assert solved is not None
        moved = model.moved(solved[2])
        errors.append(Problem(moved.latent, problem.site, data.y).at_sites(*solved[:2]).stationarity)
    assert errors[1] <= 0.05 * errors[0]


def test_predicted_variances_follow_a_scale_that_moves_far() -> None:
    """As sites that all grow take information from each other: variances to first order are three times as far off."""
    model, data = wide_model(300, 400, 1.0, 2)
    q = model.infer(data).posterior
    near = Near.of(Problem(model.latent, model.site(data), data.y).at_sites(q.a + q.gamma * q.m, q.gamma), 0.0)
    assert near is not None
    left, share = 1.0 / q.v - q.gamma, np.exp(1.0)
    exact = KernelFactor(share * model.latent.mvm(np.eye(300)), q.gamma).variances()
    found, first = near.left(left, left, q.gamma, share * q.gamma), near.by_squares(q.v * (share - 1.0) * q.gamma)
    for _ in range(5):
        found = near.left(left, found, q.gamma, share * q.gamma)
    first = left * np.exp((first / q.v - (share - 1.0) * q.gamma) / left)
    errors = [np.abs(np.log(share / (one + share * q.gamma) / exact)).mean() for one in (found, first)]
    assert errors[0] < 0.35 * errors[1]


def test_sites_of_rows_that_others_predict_meet_in_their_means() -> None:
    model, data = wide_model(300, 400, 1.0, 2)
    q, problem = (strict := model.infer(data, tol=1e-9)).posterior, Problem(model.latent, model.site(data), data.y)
    assert strict.converged
    nothing = np.zeros(300)
    slope, gamma = sites_in_cavities(problem, 1.0 / q.v - q.gamma, problem.latent.mean, nothing, np.full(300, 0.2))
    assert problem.at_sites(slope, gamma).stationarity < 0.6 < problem.at_sites(nothing, gamma).stationarity
