"""Gaussian rows without fits: evidence, gradient and posterior beside dense normal densities that share no code."""

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

import klimb
from klimb.models.search import Evaluator


def data(shift: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    n, g = 150, rng.integers(0, 40, 150)
    x = rng.standard_normal(n)
    y = shift + 0.5 * x + rng.standard_normal(40)[g] + 0.4 * rng.standard_normal(40)[g] * x + rng.standard_normal(n)
    return {"y": y, "x": x, "g": np.char.add("g", g.astype(str)), "n": rng.integers(1, 4, n).astype(float),
            "h": np.char.add("h", rng.integers(0, 5, n).astype(str))}


FORMULAS = {"intercepts": ("y ~ x + (1 | g)", None), "slopes": ("y ~ x + (1 + x | g)", None),
            "two groups": ("y ~ x + (1 | g) + (1 | h)", None), "few levels": ("y ~ x + (1 + x | h)", None),
            "smooth": ("y ~ s(x)", None), "counts of rows": ("y ~ x + (1 | g)", "n")}


@pytest.mark.parametrize("shift", [0.0, 1e5])
@pytest.mark.parametrize("name", FORMULAS)
def test_what_sums_say_is_what_the_normal_density_of_all_rows_says(name, shift) -> None:
    formula, weights = FORMULAS[name]
    fit = klimb.fit(formula, data(shift), weights=weights, hyper="optimise", progress=False)
    few = fit.model.reduced(fit.observed)
    model, observed = (fit.model, fit.observed) if few is None else few
    squares = model.closed(observed)
    assert squares is not None
    rng = np.random.default_rng(0)
    for _ in range(3):
        here = model.moved(model.at + 0.5 * rng.standard_normal(model.theta.size))
        found = squares.at(here)
        bound, mean, sd = dense(fit, here)
        assert found.bound == pytest.approx(bound, abs=1e-6 + 1e-9 * shift)
        np.testing.assert_allclose(found.part.sd(), sd, rtol=1e-6)
        assert np.abs((found.part.mean - mean) / sd).max() < 1e-7 + 1e-11 * shift
        for j, step in enumerate(1e-4 * np.eye(model.theta.size)):
            sides = [squares.at(model.moved(here.at + sign * step)).bound for sign in (1.0, -1.0)]
            slope = (sides[0] - sides[1]) / 2e-4
            assert found.gradient[j] == pytest.approx(slope, rel=1e-5, abs=1e-4 + 1e-7 * shift)


def dense(fit, here) -> tuple[float, np.ndarray, np.ndarray]:
    """By the covariance of all rows, each as often as it counts."""
    rows, copies = fit.model.fitted_rows(), np.round(fit.observed.counts).astype(int)
    mean, cov = here.prior_moments()
    X, k = np.asarray(rows.X), rows.values.shape[1]
    parts = [np.diag(cov) if cov.ndim == 1 else cov]
    if here.coded >= 0:
        L, R = here.n_levels, here.values[here.coded][0]
        levels = np.zeros((len(X), L, k))
        levels[np.arange(len(X)), rows.codes] = rows.values
        X, parts = np.hstack([X, levels.reshape(len(X), -1)]), [*parts, *[R @ R.T] * L]
    prior, noise = block_diag(*parts), here.new_site().scale ** 2
    mean = np.concatenate([mean, np.zeros(len(prior) - len(mean))])
    X, y = np.repeat(X, copies, axis=0), np.repeat(fit.observed.y, copies)
    K = X @ prior @ X.T + noise * np.eye(len(X))
    bound = multivariate_normal(X @ mean, K).logpdf(y)
    gain = np.linalg.solve(K, X @ prior).T
    V = prior - gain @ X @ prior
    return float(bound), mean + gain @ (y - X @ mean), np.sqrt(np.diagonal(V))


def test_a_search_over_gaussian_rows_fits_no_sites() -> None:
    fit = klimb.fit("y ~ x + (1 | g)", data(0.0), hyper="optimise", progress=False)
    evaluate = Evaluator(fit.model, fit.observed)
    found = evaluate(fit.model.at)
    assert found.result is None
    assert found.possible
    assert found.objective == pytest.approx(fit.result.bound + fit.model.log_prior()[0], abs=1e-8)
