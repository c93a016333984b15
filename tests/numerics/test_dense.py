"""Dense linear algebra: what klimb does itself where LAPACK is slow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.dense import SMALLEST_HALF, triangular_inverse


@pytest.mark.parametrize("n", [1, 2, SMALLEST_HALF, SMALLEST_HALF + 1, 131, 300])
def test_triangular_inverse(n: int) -> None:
    A = np.random.default_rng(n).standard_normal((n, n))
    lower = np.linalg.cholesky(A @ A.T + 0.1 * np.eye(n))
    expected = solve_triangular(lower, np.eye(n), lower=True)
    in_place = np.array(lower, order="F")
    found = triangular_inverse(in_place)
    assert np.shares_memory(found, in_place)
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
    untouched = lower.copy()
    np.testing.assert_allclose(triangular_inverse(untouched), found, rtol=1e-14)
    assert n == 1 or np.array_equal(untouched, lower)  # in C order it is copied
    assert not np.triu(found, 1).any()


def test_triangular_inverse_keeps_relative_accuracy() -> None:
    """Scales that span the range of float64 do not mix."""
    scale = np.logspace(-120, 120, 200)
    A = np.tril(np.random.default_rng(0).uniform(0.1, 1.0, (200, 200)), -1) / 200 + np.eye(200)
    expected = triangular_inverse(np.asfortranarray(A))
    found = triangular_inverse(np.asfortranarray(A * scale[:, None]))
    np.testing.assert_allclose(found * scale, expected, rtol=1e-9, atol=1e-13)


def test_triangular_inverse_of_a_singular_matrix() -> None:
    lower = np.asfortranarray(np.tril(np.ones((100, 100))))
    lower[70, 70] = 0.0
    with pytest.raises(NotPositiveDefiniteError, match="zero at 70"):
        triangular_inverse(lower)
