"""R of a tall matrix in blocks: equal to LAPACK's QR up to signs, whatever the condition."""

import numpy as np
import pytest

from klimb.numerics.dense import gram, triangle


def blocks(A, size):
    return lambda: (A[k : k + size] for k in range(0, len(A), size))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-9, 1e-14])
def test_against_qr(scale):
    rng = np.random.default_rng(2)
    A = rng.standard_normal((900, 6))
    A[:, 5] = A[:, 0] + scale * A[:, 5]
    A *= [1.0, 1e150, 1e-80, 3.0, 1e6, 1.0] if scale == 1e-9 else 1.0
    R, known = triangle(blocks(A, 64), 6), np.linalg.qr(A, mode="r")
    R, known = R * np.sign(np.diagonal(R))[:, None], known * np.sign(np.diagonal(known))[:, None]
    size = np.linalg.norm(A, axis=0)
    assert np.array_equal(R, np.triu(R))
    assert (np.abs(R - known) <= 1e-13 * size).all()


def test_zero_columns_few_rows_and_gram():
    A = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]])
    R = triangle(blocks(A, 1), 3)
    assert R.shape == (3, 3)
    assert np.allclose(R.T @ R, A.T @ A, atol=1e-13)
    assert np.allclose(gram([A[:1], A[1:]], 3), A.T @ A)
