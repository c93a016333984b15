"""Sums over blocks of rows have the same bits wherever, and in whatever order, the blocks are worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.errors import InputError
from klimb.infer.rows import Block, Rows, SumsFit, block_sums, fit_by_sums, rows_of, total_sums
from klimb.latents.linear import WeightPrior
from klimb.latents.weights_posterior import DenseWeights
from klimb.rows.kernel_rows import RowSource

COV = np.array([2.0, 0.5, 1.0, 3.0])


def some_rows(seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((90 + 7 * seed, 4))
    return X, (rng.random(len(X)) < 1 / (1 + np.exp(-X @ [1.5, -1.0, 0.0, 0.3]))) * 1.0


def fitted(engine: Any = None, blocks: list[Block] | None = None) -> SumsFit:
    here: list[Block] = [partial(some_rows, seed) for seed in range(5)]
    return fit_by_sums(blocks or here, klimb.sites.Logistic(), WeightPrior(0.3, COV, 4), engine=engine)


class Backwards:
    """The last block is worked on first."""

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterable[Any]:
        return [function(block) for block in list(blocks)[::-1]][::-1]


def same_bits(one: SumsFit, other: SumsFit) -> bool:
    return (one.bounds == other.bounds and np.array_equal(one.posterior.mean, other.posterior.mean)
            and np.array_equal(one.posterior.root, other.posterior.root))


def test_same_bits_for_any_number_of_workers() -> None:
    serial = fitted()
    assert same_bits(serial, fitted(Backwards()))
    for workers in (1, 3):
        with ThreadPoolExecutor(workers) as threads:
            assert same_bits(serial, fitted(threads))
    for workers in (1, 2):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            assert same_bits(serial, fitted(processes))


def test_rows_in_memory_are_those_that_are_read() -> None:
    assert same_bits(fitted(), fitted(blocks=[some_rows(seed) for seed in range(5)]))
    X, y = rows_of(partial(some_rows, 1))
    assert (X.shape, y.shape) == ((97, 4), (97,))


def test_sums_are_those_of_all_rows() -> None:
    site, prior = klimb.sites.Logistic(), WeightPrior(0.0, 1.0, 4)
    q = DenseWeights(np.array([0.2, -0.1, 0.4, 0.0]), np.triu(np.full((4, 4), 0.3)))
    X, y = (np.concatenate(part) for part in zip(*(some_rows(seed) for seed in range(3)), strict=True))
    total = total_sums([block_sums(site, prior, q, some_rows(seed)) for seed in range(3)], 0)
    e = site.oracle(site.validate(y), X @ q.mean, ((X @ q.root) ** 2).sum(axis=1))
    np.testing.assert_allclose(total.value, e.value.sum(), rtol=1e-12)
    np.testing.assert_allclose(total.gram, (X.T * e.gamma) @ X, rtol=1e-12)
    np.testing.assert_allclose(total.pull, X.T @ (e.gamma * (X @ q.mean) - e.alpha), rtol=1e-11)


@pytest.mark.parametrize(("site", "cov", "targets"), [
    (klimb.sites.Logistic(), 1.0, lambda f, rng: (f > rng.logistic(size=len(f))) * 1.0),
    (klimb.sites.Poisson(), 1e4, lambda f, rng: rng.poisson(np.exp(f))),
    (klimb.sites.StudentT(4.0, 0.5), 4.0, lambda f, rng: f + rng.standard_t(4, len(f))),
])
def test_the_optimum_is_that_of_infer(site: Any, cov: float, targets: Any) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 5))
    y = targets(X @ [1.0, -0.5, 0.2, 0.0, 0.7], rng)
    fit = fit_by_sums([(X[:40], y[:40]), (X[40:], y[40:])], site, WeightPrior(0.0, cov, 5), tol=1e-8)
    whole = klimb.infer(klimb.latents.Weights(X, cov=cov), site, y, tol=1e-9)
    sd = np.sqrt(np.diag(whole.posterior.covariance()))
    assert fit.status.name == "CONVERGED"
    assert fit.bound == pytest.approx(whole.bound, abs=1e-8)
    np.testing.assert_allclose((fit.posterior.mean - whole.posterior.mean) / sd, 0.0, atol=1e-6)
    covariance = fit.posterior.root @ fit.posterior.root.T
    np.testing.assert_allclose(covariance, whole.posterior.covariance(), atol=1e-6 * sd.max() ** 2)
    assert min(np.diff(fit.bounds)) > -1e-9  # the bound judged every step


def test_the_bound_judges_every_step() -> None:
    """With next to no Laplace noise full natural steps overshoot."""
    rng = np.random.default_rng(0)
    X = 3.0 * rng.standard_normal((40, 6))
    y = X @ rng.standard_normal(6) + 0.3 * rng.standard_normal(40)
    fit = fit_by_sums([(X[:20], y[:20]), (X[20:], y[20:])], klimb.sites.Laplace(0.01), WeightPrior(0.0, 1.0, 6))
    assert fit.passes > len(fit.bounds) + 1  # some were refused
    assert min(np.diff(fit.bounds)) > -1e-6
    whole = klimb.infer(klimb.latents.Weights(X), klimb.sites.Laplace(0.01), y)
    assert fit.bound == pytest.approx(whole.bound, abs=1e-3)


def test_a_wide_prior_does_not_run_away() -> None:
    rng = np.random.default_rng(0)
    X = 30.0 * rng.standard_normal((200, 3))
    y = (X[:, 0] + 5.0 * rng.standard_normal(200) > 0) * 1.0
    fit = fit_by_sums([(X, y)], klimb.sites.Logistic(), WeightPrior(0.0, 1e6, 3))
    assert fit.bound == pytest.approx(klimb.infer(klimb.latents.Weights(X, cov=1e6), klimb.sites.Logistic(), y).bound,
                                      abs=1e-6)


def test_few_passes_are_a_status_and_bad_settings_are_refused() -> None:
    blocks: list[Block] = [some_rows(0)]
    fit = fit_by_sums(blocks, klimb.sites.Logistic(), WeightPrior(0.0, 1.0, 4), max_passes=2)
    assert (fit.status.name, fit.passes) == ("MAX_ITER", 2)
    with pytest.raises(InputError, match="tol must be positive"):
        fit_by_sums(blocks, klimb.sites.Logistic(), WeightPrior(0.0, 1.0, 4), tol=0.0)


def test_sparse_blocks_have_the_bits_of_dense_ones() -> None:
    X = sp.random_array((300, 12), density=0.2, rng=np.random.default_rng(3), format="csr")
    y = np.asarray(X.sum(axis=1)).ravel() > 1.0
    cuts = [slice(0, 100), slice(100, 300)]
    prior = WeightPrior(0.0, 1.0, 12)
    one = fit_by_sums([(X[rows], y[rows]) for rows in cuts], klimb.sites.Logistic(), prior)
    other = fit_by_sums([(X.toarray()[rows], y[rows]) for rows in cuts], klimb.sites.Logistic(), prior)
    assert one.bound == other.bound
    np.testing.assert_array_equal(one.posterior.mean, other.posterior.mean)
    stream = RowSource(lambda: (X[rows] for rows in cuts))
    assert stream.shape == (300, 12)
    np.testing.assert_array_equal(stream.take(np.array([5, 250])), X.toarray()[[5, 250]])
