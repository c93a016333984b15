"""Quasi-random normal draws: evenly spread, deterministic, better than random ones where it matters."""

from __future__ import annotations

import numpy as np
import pytest

from klimb.errors import InputError
from klimb.numerics.lowdiscrepancy import generating_vector, matched_draws, normal_draws


def test_same_arguments_same_draws() -> None:
    assert np.array_equal(normal_draws(100, 7), normal_draws(100, 7))
    assert not np.array_equal(normal_draws(100, 7), normal_draws(100, 7, seed=1))


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (2, 3), (7, 2), (64, 123), (1000, 80), (40_000, 2), (10, 0)])
def test_shapes_and_finiteness(n: int, dim: int) -> None:
    z = normal_draws(n, dim)
    assert z.shape == (n, dim)
    assert np.isfinite(z).all()


def test_generating_vector_is_the_best_of_all() -> None:
    """The fast search finds what trying every component in turn finds."""
    n, dim = 61, 4
    i = np.arange(n)[:, None]

    def bernoulli(x: np.ndarray) -> np.ndarray:
        return np.asarray(x * x - x + 1 / 6)

    fast = generating_vector(n, dim)
    product = 1 + 2 * np.pi**2 * bernoulli(i[:, 0] * fast[0] / n % 1.0)
    for j in range(1, dim):
        candidates = np.array([g for g in range(1, n) if g not in fast[:j] and n - g not in fast[:j]])
        scores = product @ bernoulli(i * candidates / n % 1.0)
        mine = bernoulli(i[:, 0] * fast[j] / n % 1.0)
        assert product @ mine == pytest.approx(scores.min(), abs=1e-9)
        product = product * (1 + 2 * np.pi**2 / (j + 1) ** 2 * mine)


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_beats_random_numbers(dim: int) -> None:
    slope = 0.6 / np.arange(1, dim + 1)
    exact = np.exp(0.5 * slope @ slope)
    quasi = max(abs(np.exp(normal_draws(2000, dim, seed=s, symmetric=False) @ slope).mean() / exact - 1)
                for s in range(5))
    random = np.sqrt((np.exp(slope @ slope) - 1) / 2000)  # standard error of independent draws
    assert quasi < 0.4 * random


def test_every_coordinate_is_even() -> None:
    """Each of 300 coordinates has its share of draws in every tenth of its range."""
    from scipy.special import ndtr

    counts = [np.histogram(column, bins=10, range=(0, 1))[0] for column in ndtr(normal_draws(1000, 300)).T]
    assert np.abs(np.array(counts) - 100).max() <= 6


def test_matched_moments() -> None:
    z = matched_draws(800, 20)
    assert np.allclose(z.mean(0), 0, atol=1e-12)
    assert np.allclose(z.T @ z / 800, np.eye(20), atol=1e-12)
    wide = matched_draws(101, 90)  # too few draws for all second moments
    assert wide.shape == (102, 90)
    assert np.allclose((wide**2).mean(0), 1)


@pytest.mark.parametrize(("n", "dim"), [(0, 1), (1, -1)])
def test_refuses_nothing(n: int, dim: int) -> None:
    with pytest.raises(InputError):
        normal_draws(n, dim)
