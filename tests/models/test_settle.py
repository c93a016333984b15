"""One prior scale that loose fits have moved: near the peak that a search from afar finds, with fewer fits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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


def test_a_quarter_of_the_rows_begins_a_wide_fit_and_all_rows_end_it() -> None:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((1100, 1200)) * (rng.random((1100, 1200)) < 0.02)
    y = X @ rng.standard_normal(1200) + rng.logistic(size=1100) > 0
    fit = GLMClassifier(standardize=True).fit(X, y).fit_
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
