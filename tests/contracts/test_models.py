"""The contract of `Model`, for every kind of it: gradients, functionals, detached weights, files, draws."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import klimb
from klimb import kernels, sites
from klimb._stored import pack, unpack
from klimb.kernels.means import ConstantMean
from klimb.models.fit import Fit
from klimb.models.inducing import with_points

RNG = np.random.default_rng(2)
N, OLD = 45, 40  # the last rows are new to the models
X = RNG.uniform(0.0, 4.0, (N, 2))
F = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
COUNTS, REAL, LABELS = RNG.poisson(np.exp(F)), F + 0.3 * RNG.standard_normal(N), np.digitize(F, [0.0, 1.0])
MEAN = ConstantMean(0.2)

# Of each kind: how to make it for some rows, and y.
KERNEL_MODELS: dict[str, tuple[Any, Any]] = {
    "kernel": (lambda rows: klimb.gp(kernels.RBF().fixed("variance"), X[rows], sites.Poisson(), mean=MEAN), COUNTS),
    "kernel with jitter": (lambda rows: klimb.gp(kernels.Matern32() + kernels.White(0.1), X[rows], sites.StudentT(4.0),
                                                 learn="scale", jitter=1e-3), REAL),
    "inducing": (lambda rows: klimb.gp(kernels.RBF(), X[rows], sites.Gaussian(0.3), learn="scale", inducing=X[:12],
                                       mean=MEAN), REAL),
    "moving points": (lambda rows: with_points(klimb.gp(kernels.RBF(), X[rows], sites.Poisson(), inducing=X[:3]),
                                               X[:3], free=True), COUNTS),
    "markov": (lambda rows: klimb.series(kernels.Matern52() + kernels.Matern12(variance=0.2), X[rows, 0],
                                         sites.Poisson(), mean=MEAN), COUNTS),
    "classes": (lambda rows: klimb.gp(kernels.RBF(variance=2.0), X[rows], sites.Softmax(3)), LABELS),
    "a kernel per class": (lambda rows: klimb.gp([kernels.RBF(), kernels.Matern32(), kernels.RBF(variance=2.0)],
                                                 X[rows], sites.Softmax(3), mean=MEAN), LABELS),
    "classes through points": (lambda rows: klimb.gp(kernels.RBF(), X[rows], sites.Softmax(3), inducing=X[:9]), LABELS),
}
NOISY = "kernel with jitter"  # f at the rows of the fit has noise of its own
NAMES = [*KERNEL_MODELS, "by name", "linear"]


def inputs(name: str, rows: Any) -> Any:
    return X[rows, 0] if name == "markov" else X[rows]


def fitted(name: str, hyper: Any = "fixed", tol: float = 1e-10) -> Fit:
    if name == "linear":
        table = {"y": COUNTS[:OLD], "x": X[:OLD, 0], "g": np.arange(OLD) % 7}
        fit = klimb.fit("y ~ x + (1 + x | g)", table, family="poisson", hyper="optimise")
        return fit.model.fit(COUNTS[:OLD], hyper=hyper, tol=tol)
    if name == "by name":
        model, y = klimb.gp(kernels.RBF().fixed("variance"), X[:OLD], "negative_binomial"), COUNTS
    else:
        make, y = KERNEL_MODELS[name]
        model = make(slice(0, OLD))
    return model.fit(y[:OLD], hyper=hyper, tol=tol)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_refits(name: str) -> None:
    fit = fitted(name)
    model, data = fit.model, fit.observed
    gradient = model.gradient(fit.posterior, data)
    assert gradient.shape == (model.theta.size,) == (len(model.names),)
    for j, step in enumerate(1e-4 * np.eye(model.theta.size)):
        sides = [model.moved(model.at + sign * step).infer(data, start=fit.posterior, tol=1e-10).bound
                 for sign in (1.0, -1.0)]
        assert gradient[j] == pytest.approx((sides[0] - sides[1]) / 2e-4, abs=2e-5), model.names[j]


@pytest.mark.parametrize("name", NAMES)
def test_functionals_of_its_own_rows_are_the_marginals_of_the_posterior(name: str) -> None:
    fit = fitted(name)
    f = fit.uncorrected.latents()
    np.testing.assert_allclose(f.m[0], fit.posterior.m, atol=1e-8)
    np.testing.assert_allclose(f.v[0], fit.posterior.v, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in KERNEL_MODELS if name != NOISY])
def test_predictions_are_the_posterior_of_rows_that_count_nothing(name: str) -> None:
    make, y = KERNEL_MODELS[name]
    fit, whole = fitted(name), make(slice(0, N)).fit(y, hyper="fixed", weights=np.arange(N) < OLD, tol=1e-10)
    fields = len(fit.model.likelihood.fields)
    f = fit.uncorrected.latents(inputs(name, slice(OLD, N)))
    for found, expected in ((f.m, whole.posterior.m), (f.v, whole.posterior.v)):
        np.testing.assert_allclose(found.reshape(fields, -1), expected.reshape(fields, N)[:, OLD:], atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_packed_predicts_the_same_bits(name: str) -> None:
    hyper = "integrate" if name in ("kernel", "by name") else "optimise"  # some are enough
    fit = fitted(name, hyper, tol=1e-6)
    arrays: dict[str, Any] = {}
    back = unpack(json.loads(json.dumps(pack(fit, arrays))), arrays)
    if name == "linear":  # its rows are the formula's business: the weights must come back
        for one, other in zip(fit.components.parts, back.components.parts, strict=True):
            np.testing.assert_array_equal(one.sd(), other.sd())
        return
    for new in (None, inputs(name, slice(OLD, N))):
        found, expected = back.predict(new, kind="all"), fit.predict(new, kind="all")
        assert list(found) == list(expected)
        for column, values in expected.items():
            np.testing.assert_array_equal(found[column], values)
    np.testing.assert_array_equal(back.loo().log_density, fit.loo().log_density)
    np.testing.assert_equal(back.hyperparameters, fit.hyperparameters)  # NaN where a mean is infinite


@pytest.mark.parametrize("name", NAMES)
def test_draws_have_the_moments_of_predictions(name: str) -> None:
    fit = fitted(name)
    new = None if name == "linear" else inputs(name, slice(OLD, N))
    m, v = fit.latents(new).moments()
    draws = fit.sample(20_000, new, seed=1)
    np.testing.assert_allclose(draws.mean(axis=0), m, atol=6.0 * np.sqrt(v.max() / 20_000))
    np.testing.assert_allclose(draws.var(axis=0), v, rtol=0.08)
    np.testing.assert_array_equal(draws, fit.sample(20_000, new, seed=1))


def test_no_matrix_of_all_sites_is_kept_for_a_point_of_theta() -> None:
    """Dozens of points, each with an n x n matrix, would be most of what a fit holds; a model can make them again."""
    fit = fitted("kernel", "integrate", tol=1e-6)
    assert len(fit.components.parts) > 5
    arrays: dict[str, Any] = {}
    pack(fit.components.parts, arrays)
    assert max(array.size for array in arrays.values()) < OLD * OLD  # corrections: OLD x the directions that sites see
    assert all(part.K is None for part in fit.uncorrected.components.parts)
    arrays = {}
    pack(fit.uncorrected.components.parts, arrays)
    assert max(array.size for array in arrays.values()) == OLD


def test_predictions_need_memory_for_some_rows_at_a_time() -> None:
    import tracemalloc

    x = np.linspace(0.0, 10.0, 400)
    fit = klimb.gp(kernels.RBF(), x, sites.Gaussian(0.1)).fit(np.sin(x), hyper="fixed")
    many = np.linspace(0.0, 10.0, 20_000)
    fit.latents(many[:10])
    tracemalloc.start()
    fit.latents(many)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.6 * 8 * len(many) * len(x)
