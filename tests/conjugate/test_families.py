"""Every identity of an exponential family, for every family: the log-partition knows all the rest."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from klimb.conjugate.families import (
    Beta,
    Categorical,
    Dirichlet,
    Family,
    Gamma,
    MultivariateNormal,
    Normal,
    NormalGamma,
    NormalWishart,
    TiedNormalWishart,
    Wishart,
)
from klimb.errors import InputError


def spd(seed: int, D: int = 3, plates: tuple[int, ...] = ()) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(*plates, D, D + 2))
    return root @ np.swapaxes(root, -1, -2)


R = np.random.default_rng(0)
PAIRS = {
    "normal": (Normal(R.normal(size=4), R.gamma(2, size=4)), Normal(R.normal(size=4), R.gamma(2, size=4))),
    "multivariate": (MultivariateNormal(R.normal(size=(2, 3)), spd(1, plates=(2,))),
                     MultivariateNormal(R.normal(size=(2, 3)), spd(2, plates=(2,)))),
    "gamma": (Gamma(R.gamma(2, size=5), R.gamma(2, size=5)), Gamma(R.gamma(2, size=5), R.gamma(2, size=5))),
    "wishart": (Wishart([5.0, 3.5], spd(3, plates=(2,))), Wishart([4.0, 7.0], spd(4, plates=(2,)))),
    "normal-gamma": (NormalGamma(R.normal(size=3), R.gamma(2, size=3), R.gamma(2, size=3), R.gamma(2, size=3)),
                     NormalGamma(R.normal(size=3), R.gamma(2, size=3), R.gamma(2, size=3), R.gamma(2, size=3))),
    "normal-wishart": (NormalWishart(R.normal(size=(2, 3)), [1.0, 2.0], [4.0, 5.0], spd(5, plates=(2,))),
                       NormalWishart(R.normal(size=(2, 3)), [3.0, 0.2], [6.0, 3.0], spd(6, plates=(2,)))),
    "tied": (TiedNormalWishart(R.normal(size=(2, 3)), [1.0, 2.0], 4.0, spd(5)),
             TiedNormalWishart(R.normal(size=(2, 3)), [0.5, 7.0], 6.0, spd(6))),
    "beta": (Beta(R.gamma(2, size=3), R.gamma(2, size=3)), Beta(R.gamma(2, size=3), R.gamma(2, size=3))),
    "dirichlet": (Dirichlet(R.gamma(2, size=(2, 4))), Dirichlet(R.gamma(2, size=(2, 4)))),
    "categorical": (Categorical([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]), Categorical([[0.4, 0.5, 0.1], [0.6, 0.1, 0.3]])),
}
BOTH = pytest.mark.parametrize(("q", "p"), PAIRS.values(), ids=PAIRS)


def _matrix(mu: np.ndarray, L: np.ndarray) -> tuple[np.ndarray, ...]:
    """Statistics of means and a precision matrix."""
    Lm = np.einsum("...ij,...j->...i", L, mu)
    return Lm, (mu * Lm).sum(-1), L, np.linalg.slogdet(L)[1]


STATISTICS = {  # of draws
    Normal: lambda x: (x, x * x),
    MultivariateNormal: lambda x: (x, x[..., :, None] * x[..., None, :]),
    Gamma: lambda x: (np.log(x), x),
    Wishart: lambda x: (np.linalg.slogdet(x)[1], x),
    NormalGamma: lambda x: (x[..., 1] * x[..., 0], x[..., 1] * x[..., 0] ** 2, x[..., 1], np.log(x[..., 1])),
    NormalWishart: lambda x: _matrix(x[..., -1], x[..., :-1]),
    TiedNormalWishart: lambda x: (*_matrix(x[..., :-3, :], x[..., None, -3:, :])[:2], x[..., -3:, :],
                                  np.linalg.slogdet(x[..., -3:, :])[1]),
    Beta: lambda x: (np.log(x), np.log1p(-x)),
    Dirichlet: lambda x: (np.log(x),),
    Categorical: lambda x: ((x[..., None] == np.arange(3)).astype(float),),
}


def log_density(q: Family, x: float | np.ndarray) -> np.ndarray:
    each = STATISTICS[type(q)](np.asarray(x, dtype=float))
    return q.inner(q.natural, each) - q.log_partition() + q.log_base(each)


@BOTH
def test_gradient_of_the_log_partition_is_the_mean(q: Family, p: Family):
    rng = np.random.default_rng(1)
    for _ in range(5):
        directions = []
        for part, ndim in zip(q.natural, q.event_ndims, strict=True):
            step = rng.normal(size=part.shape) * 0.05 * (np.abs(part).min() + 0.02)
            square = ndim == 2 and part.shape[-1] == part.shape[-2]
            directions.append(step + np.swapaxes(step, -1, -2) if square else step)
        h = 1e-5

        def at(t: float, along=directions) -> np.ndarray:
            return type(q).from_natural(tuple(a + t * b for a, b in zip(q.natural, along, strict=True))).log_partition()

        slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        np.testing.assert_allclose(slope, q.inner(tuple(directions), q.mean_parameters()), rtol=1e-6, atol=1e-9)


@BOTH
def test_divergence_by_its_own_form_is_that_of_the_log_partition(q: Family, p: Family):
    np.testing.assert_allclose(q.kl(p), Family.kl(q, p), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(q.entropy(), Family.entropy(q), rtol=1e-9, atol=1e-12)
    assert np.all(q.kl(p) > 0)
    np.testing.assert_allclose(q.kl(q), 0.0, atol=1e-13)


@BOTH
def test_draws_have_the_mean_parameters_and_the_entropy(q: Family, p: Family):
    draws = q.sample(40_000, 3)
    each = STATISTICS[type(q)](draws)
    for mean, values in zip(q.mean_parameters(), each, strict=True):
        error = (values.mean(0) - mean) / (values.std(0) / np.sqrt(len(values)) + 1e-12)
        assert np.abs(error).max() < 4.5
    heights = log_density(q, draws)
    ratio = (-heights.mean(0) - q.entropy()) / (heights.std(0) / np.sqrt(len(draws)) + 1e-12)
    assert np.abs(ratio).max() < 4.5


def test_densities_are_the_known_ones():
    np.testing.assert_allclose(log_density(Gamma(2.5, 4.0), 0.7), stats.gamma(2.5, scale=0.25).logpdf(0.7))
    np.testing.assert_allclose(log_density(Normal(1.0, 4.0), 0.2), stats.norm(1.0, 0.5).logpdf(0.2))
    np.testing.assert_allclose(log_density(Beta(2.0, 3.0), 0.2), stats.beta(2, 3).logpdf(0.2))
    x = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(log_density(Dirichlet([1.5, 2.0, 0.7]), x), stats.dirichlet([1.5, 2.0, 0.7]).logpdf(x))
    P, rate, value = spd(1), spd(2), spd(3)
    np.testing.assert_allclose(log_density(MultivariateNormal([1.0, 0.0, 2.0], P), x),
                               stats.multivariate_normal([1.0, 0.0, 2.0], np.linalg.inv(P)).logpdf(x))
    known = stats.wishart(4.5, np.linalg.inv(rate)).logpdf(value)
    np.testing.assert_allclose(log_density(Wishart(4.5, rate), value), known)
    joint = log_density(NormalGamma(1.0, 2.0, 3.0, 4.0), np.array([0.3, 0.8]))
    np.testing.assert_allclose(joint, stats.gamma(3, scale=0.25).logpdf(0.8) + stats.norm(1, 1.6**-0.5).logpdf(0.3))
    mu = np.array([0.3, -1.0, 0.5])
    joint = log_density(NormalWishart(x, 2.0, 4.5, rate), np.column_stack([value, mu]))
    known = stats.wishart(4.5, np.linalg.inv(rate)).logpdf(value) + stats.multivariate_normal(
        x, np.linalg.inv(2.0 * value)).logpdf(mu)
    np.testing.assert_allclose(joint, known)


@pytest.mark.parametrize("shape", [1e-8, 1e-3, 0.7, 15.9, 16.1, 1e4, 1e9, 1e13])
@pytest.mark.parametrize("factor", [1 + 1e-6, 1.3, 50.0])
def test_gamma_keeps_its_digits_at_extremes(shape: float, factor: float):
    with mpmath.workdps(60):
        a, b, c, d = mpmath.mpf(shape), mpmath.mpf(3.0), mpmath.mpf(shape * factor), mpmath.mpf(2.0)
        shapes = (a - c) * mpmath.digamma(a) - mpmath.loggamma(a) + mpmath.loggamma(c)
        kl = shapes + c * mpmath.log(b / d) + a * (d - b) / b
        entropy = a - mpmath.log(b) + mpmath.loggamma(a) + (1 - a) * mpmath.digamma(a)
        same = shapes + c * mpmath.log(a / c) + c - a
    np.testing.assert_allclose(Gamma(shape, 3.0).kl(Gamma(shape * factor, 2.0)), float(kl), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(Gamma(shape, 3.0).entropy(), float(entropy), rtol=1e-12, atol=1e-12)
    # equal means: what remains is the difference of the shapes alone
    close = Gamma(shape, 3.0).kl(Gamma(shape * factor, 3.0 * (shape * factor / shape)))
    np.testing.assert_allclose(close, float(same), rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Gamma(-1.0, 1.0), "shape must be positive; got -1.0"),
    (lambda: Normal([0.0, np.nan], 1.0), "mean must be finite"),
    (lambda: Wishart(1.0, np.eye(3)), "dof must exceed D - 1 = 2"),
    (lambda: Wishart(5.0, np.ones((2, 3))), "square matrix"),
    (lambda: MultivariateNormal([0.0, 1.0], np.eye(3)), "must fit"),
    (lambda: MultivariateNormal([0.0, 1.0], -np.eye(2)).root, "positive definite"),
    (lambda: Dirichlet([1.0, 0.0]), "concentration must be positive; got 0.0 at index 1 (1 such value)"),
    (lambda: Categorical([0.5, 0.6]), "sum to one"),
])
def test_bad_parameters_are_named(make, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
        make()
