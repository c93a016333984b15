"""Threads: never more than were asked for, all given back, and the same answers."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import threadpoolctl

import klimb
from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.matrix import DenseDesign
from klimb.models import prediction
from klimb.numerics import dense
from klimb.numerics.dense import cholesky, n_threads, shares, threads_for, together, triangular_inverse

N = 1201


@pytest.fixture
def few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads from a few thousand entries on."""
    monkeypatch.setattr(dense, "SPARED", 2048)
    monkeypatch.setattr(dense.shares, "__defaults__", (2048, 1.0))


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"}


def run(asked: int, work: Any) -> Any:
    dense._libraries()  # loads all there is to be limited
    with threadpoolctl.threadpool_limits(asked, "blas"):
        before = blas_threads()
        with threads_for(1):
            assert blas_threads() == {1}
            assert n_threads() == min(before)
            found = work()
        assert blas_threads() == before
        assert n_threads() == 1
    return found


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_no_more_threads_than_were_asked_for(asked: int) -> None:
    alive, most, lock = [0], [0], threading.Lock()

    def task() -> int:
        with lock:
            alive[0] += 1
            most[0] = max(most[0], alive[0])
        np.linalg.norm(np.ones((300, 300)) @ np.ones((300, 300)))
        inside = len(together([n_threads, n_threads])) * n_threads()  # tasks have no threads of their own
        with lock:
            alive[0] -= 1
        return inside

    before = threading.active_count()
    assert run(asked, lambda: together([task] * 8)) == [2] * 8
    assert most[0] <= asked
    assert threading.active_count() == before


def test_large_matrices_get_the_threads_back() -> None:
    def nested() -> list[set[int]]:
        with threads_for(dense.LARGE):
            found = [blas_threads()]
            with threads_for(1):
                found.append(blas_threads())
        return [*found, blas_threads()]

    assert run(2, nested) == [{2}, {1}, {1}]


def test_a_fit_and_what_is_asked_of_it_hold_blas_at_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small matrices by several threads of BLAS, which spin while they wait, took ten times the CPU time of the fit.
    seen = list[set[int]]()
    data = {"x": np.linspace(-1.0, 1.0, 30), "y": np.arange(30.0) % 7, "g": [f"g{k % 5}" for k in range(30)]}
    watched = prediction.columns_of

    def columns_of(*args: Any) -> Any:
        seen.append(blas_threads())
        return watched(*args)

    monkeypatch.setattr(prediction, "columns_of", columns_of)
    with threadpoolctl.threadpool_limits(2, "blas"):
        fit = klimb.fit("y ~ x + (1 | g)", data, progress=lambda *_: seen.append(blas_threads()))
        fits = len(seen)
        assert fit.predict()["mean"].shape == (30,)
        assert blas_threads() == {2}
    assert 0 < fits < len(seen)
    assert set().union(*seen) == {1}


def test_settings_of_the_caller_hold_in_every_thread() -> None:
    def overflow() -> float:
        return float(np.exp(np.array([1e4]))[0])

    def quiet() -> list[float]:
        with np.errstate(over="ignore"):
            return together([overflow, overflow])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(2, quiet) == [np.inf, np.inf]


def test_an_error_in_a_thread_is_the_callers() -> None:
    def fail() -> None:
        raise NotPositiveDefiniteError("no")

    with pytest.raises(NotPositiveDefiniteError):
        run(2, lambda: together([fail, fail]))


def test_factors_by_halves() -> None:
    A = np.random.default_rng(0).standard_normal((N, N))
    S = A @ A.T + N * np.eye(N)

    def both() -> tuple[np.ndarray, np.ndarray]:
        lower = cholesky(S.copy(order="F"))
        return lower.copy(), triangular_inverse(lower)

    lower, inverse = run(2, both)
    assert np.array_equal(lower, np.tril(lower))
    assert np.allclose(lower @ lower.T, S, rtol=1e-13, atol=1e-10)
    assert np.allclose(inverse @ lower, np.eye(N), atol=1e-12)
    one = run(1, both)
    assert np.allclose(lower, one[0], rtol=1e-12, atol=1e-12)
    assert np.array_equal(run(2, both)[1], inverse)  # the same bits again
    S[1000, 1000] = -1.0
    for asked in (1, 2):
        with pytest.raises(NotPositiveDefiniteError, match="order 1001 "):
            run(asked, both)


@pytest.mark.usefixtures("few_entries")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_are_shared(sign: float) -> None:
    rng = np.random.default_rng(1)
    X, gamma = rng.standard_normal((N, 7)), sign * rng.random(N)
    root = np.triu(rng.standard_normal((7, 7)))
    assert len(run(3, lambda: shares(N, 7))) == 3
    for asked in (1, 3):
        assert np.allclose(run(asked, lambda: DenseDesign(X).weighted_gram(gamma)), X.T @ (gamma[:, None] * X))
        assert np.allclose(run(asked, lambda: DenseDesign(X).transpose_times(gamma)), X.T @ gamma)
        norms, product = run(asked, lambda: DenseDesign(X).row_norms_squared(root, upper=True, times=root[0]))
        assert np.allclose(norms, ((X @ root) ** 2).sum(axis=1))
        assert np.allclose(product, X @ root[0])


@pytest.mark.usefixtures("few_entries")
def test_fits_agree() -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((N, 3))
    y, exposure = rng.poisson(np.exp(X[:, 0])), rng.random(N) + 0.5
    found = []
    for asked in (1, 2):
        with threadpoolctl.threadpool_limits(asked, "blas"):
            found.append(klimb.infer(klimb.latents.Weights(X), klimb.sites.Poisson(exposure), y, tol=1e-12).posterior)
    sd = np.sqrt(np.diagonal(found[0].covariance()))
    assert np.abs((found[0].mean - found[1].mean) / sd).max() < 1e-8
