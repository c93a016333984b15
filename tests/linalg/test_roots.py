"""Inverse roots by Lanczos's iteration against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.krylov.cg import inverse_roots
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import as_operator

B = scipy.sparse.random(400, 90, density=0.05, random_state=2, format="csr")
A = NormalMatrix(np.linspace(0.2, 2.0, 90), [(as_operator(B, "B"), np.ones(400))])


def test_roots_and_logs_are_those_of_the_matrix() -> None:
    dense, scale = A.dense(), 1.0 / np.sqrt(np.diagonal(A.dense()))
    found = inverse_roots(A, scale, np.eye(90), 1e-9)
    assert_allclose(found.x @ found.x.T, np.linalg.inv(dense), atol=1e-8)
    scaled = scale[:, None] * dense * scale
    assert found.logs.sum() == pytest.approx(np.linalg.slogdet(scaled)[1], abs=1e-8)
    assert_allclose(found.first, np.diagonal(scaled))
    assert found.left <= 1e-9


def test_columns_of_zeros_and_exhausted_spaces() -> None:
    diagonal = NormalMatrix(np.array([4.0, 9.0, 9.0]))
    z = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, -2.0]])
    assert_allclose(inverse_roots(diagonal, np.ones(3), z, 1e-12).x, z / np.array([[2.0], [3.0], [3.0]]), atol=1e-12)
    assert inverse_roots(diagonal, np.ones(3), np.zeros((3, 0)), 1e-6).x.shape == (3, 0)


def test_a_negative_eigenvalue_shows_itself() -> None:
    with pytest.raises(NotPositiveDefiniteError):
        inverse_roots(NormalMatrix(np.array([1.0, -1.0])), np.ones(2), np.ones((2, 1)), 1e-6)
