"""Operators and the precision they make: every kind against its dense matrix, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import (
    BlockedOperator,
    DenseOperator,
    Operator,
    SparseOperator,
    StackedOperator,
    as_operator,
    as_real_pairs,
)
from klimb.linalg.operators.base import FunctionOperator, column_blocks
from klimb.linalg.operators.convert import check_adjoint

RNG = np.random.default_rng(0)
DENSE = RNG.standard_normal((7, 5))
SPARSE = sparse.random(9, 5, 0.4, random_state=0, format="csr")
FOURIER = np.fft.fft(np.eye(5))[:3]


def fourier(rows: int = 3, size: int = 5, dtype: type = complex, shift: float = 0.0, scale: float = 1.0):
    """The first rows of a discrete Fourier transform; ``shift`` and ``scale`` break the adjoint."""

    def adjoint(w):
        full = np.zeros(size, dtype=complex)
        full[:rows] = np.ravel(w)
        return scale * size * np.fft.ifft(full) + shift

    return LinearOperator((rows, size), matvec=lambda u: np.fft.fft(np.ravel(u))[:rows], rmatvec=adjoint, dtype=dtype)


def gaps(n: int) -> LinearOperator:
    def adjoint(w):
        w = np.ravel(w)
        return np.concatenate([[0.0], w]) - np.concatenate([w, [0.0]])

    return LinearOperator((n - 1, n), matvec=lambda u: np.diff(np.ravel(u)), rmatvec=adjoint, dtype=float)


CASES = {
    "dense": (DENSE, DENSE),
    "list": (DENSE.tolist(), DENSE),
    "integers": (np.arange(10).reshape(2, 5), np.arange(10.0).reshape(2, 5)),
    "float32": (DENSE.astype(np.float32), DENSE.astype(np.float32).astype(float)),
    "non-contiguous": (DENSE[::2, ::-1], DENSE[::2, ::-1]),
    "complex": (FOURIER, as_real_pairs(FOURIER)),
    "csr": (SPARSE, SPARSE.toarray()),
    "coo with duplicates": (sparse.coo_matrix(([1.0, 2.0, 3.0], ([0, 0, 1], [4, 4, 0])), (2, 5)),
                            np.array([[0, 0, 0, 0, 3.0], [3.0, 0, 0, 0, 0]])),
    "sparse array": (sparse.csc_array(SPARSE), SPARSE.toarray()),
    "sparse complex": (sparse.csr_matrix(FOURIER), as_real_pairs(FOURIER)),
    "function": (gaps(5), np.diff(np.eye(5), axis=0)),
    "complex function": (fourier(), as_real_pairs(FOURIER)),
    "wrapped matrix": (aslinearoperator(DENSE), DENSE),
    "stack of dense": ([DENSE, DENSE[:2]], np.vstack([DENSE, DENSE[:2]])),
    "stack of sparse": ((SPARSE, sparse.identity(5)), np.vstack([SPARSE.toarray(), np.eye(5)])),
    "stack of all": ([SPARSE, gaps(5), fourier(), DENSE],
                     np.vstack([SPARSE.toarray(), np.diff(np.eye(5), axis=0), as_real_pairs(FOURIER), DENSE])),
    "blocks": (BlockedOperator([DENSE, lambda: SPARSE]), np.vstack([DENSE, SPARSE.toarray()])),
    "blocks with ones": (BlockedOperator([DENSE[:, :4], SPARSE[:, :4]]).with_ones(),
                         np.column_stack([np.vstack([DENSE, SPARSE.toarray()])[:, :4], np.ones(16)])),
    "one row": (DENSE[:1], DENSE[:1]),
    "one column": (DENSE[:, :1], DENSE[:, :1]),
    "zeros": (np.zeros((3, 5)), np.zeros((3, 5))),
}


@pytest.mark.parametrize("case", CASES)
def test_products(case):
    given, dense = CASES[case]
    operator = as_operator(given, "B")
    N, D = dense.shape
    assert operator.shape == (N, D)
    U, W, gamma = RNG.standard_normal((D, 3)), RNG.standard_normal((N, 3)), RNG.uniform(0.0, 2.0, N)
    np.testing.assert_allclose(operator.times(U), dense @ U, atol=1e-12)
    np.testing.assert_allclose(operator.times(U[:, 0]), dense @ U[:, 0], atol=1e-12)
    np.testing.assert_allclose(operator.transpose_times(W), dense.T @ W, atol=1e-12)
    np.testing.assert_allclose(operator.transpose_times(W[:, 1]), dense.T @ W[:, 1], atol=1e-12)
    assert operator.n_products == 8
    np.testing.assert_allclose(operator.dense(), dense, atol=1e-12)
    np.testing.assert_allclose(operator.gram(gamma), dense.T @ (gamma[:, None] * dense), atol=1e-12)
    np.testing.assert_allclose(operator.gram(-gamma), -dense.T @ (gamma[:, None] * dense), atol=1e-12)
    diagonal, norms = operator.gram_diagonal(gamma), operator.row_norms_squared(np.arange(D) + 1.0)
    assert (diagonal is None) == (norms is None) == ("function" in case or case == "stack of all")
    if diagonal is not None:
        np.testing.assert_allclose(diagonal, gamma @ dense**2, atol=1e-12)
        np.testing.assert_allclose(norms, dense**2 @ (np.arange(D) + 1.0), atol=1e-12)
    if operator.explicit is not None:
        explicit = operator.explicit
        np.testing.assert_allclose(explicit if isinstance(explicit, np.ndarray) else explicit.toarray(), dense)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [slice(0, 2), [0], [-1, 0, 0], "mask", "backwards"])
def test_some_rows(case, rows):
    given, dense = CASES[case]
    operator = as_operator(given, "B")
    N = len(dense)
    chosen = {"mask": np.arange(N) % 2 == 0, "backwards": np.arange(N)[::-1]}.get(rows, rows) if isinstance(
        rows, str) else rows
    part = operator.take(chosen)
    expected = dense[chosen]
    W = RNG.standard_normal((len(expected), 2))
    np.testing.assert_allclose(part.dense(), expected, atol=1e-12)
    np.testing.assert_allclose(part.transpose_times(W), expected.T @ W, atol=1e-12)
    np.testing.assert_allclose(part.take([0]).dense(), expected[:1], atol=1e-12)
    weights = RNG.uniform(size=len(expected))
    if (diagonal := part.gram_diagonal(weights)) is not None:
        np.testing.assert_allclose(diagonal, weights @ expected**2, atol=1e-12)


def test_kinds():
    assert isinstance(as_operator(DENSE, "B"), DenseOperator)
    assert isinstance(as_operator([SPARSE, sparse.identity(5)], "B"), SparseOperator)
    assert isinstance(as_operator(gaps(4), "B"), FunctionOperator)
    stack = as_operator([DENSE, SPARSE], "B")
    assert isinstance(stack, StackedOperator)
    assert isinstance(stack.take(slice(2, 5)), DenseOperator)
    assert as_operator(stack, "B") is stack
    assert isinstance(as_operator([DENSE], "B"), DenseOperator)


def test_the_users_matrix_is_not_touched():
    matrix = sparse.csr_matrix(([1.0, 2.0], ([0, 0], [1, 1])), (1, 2))
    matrix.has_canonical_format = False
    before = matrix.data.copy()
    as_operator(matrix, "B")
    np.testing.assert_array_equal(matrix.data, before)


def broken(product):
    return LinearOperator((3, 4), matvec=product, rmatvec=lambda w: np.zeros(4), dtype=float)


@pytest.mark.parametrize(("given", "message"), [
    (fourier(scale=2.0), "adjoint of its matvec"),
    (fourier(shift=0.1), "adjoint of its matvec"),
    (fourier(dtype=float), "must be real, as its dtype says"),
    (LinearOperator((3, 4), matvec=lambda u: u[:3], dtype=float), "products with its transpose"),
    (broken(lambda u: np.full(3, np.nan)), "must be finite"),
    (np.ones(4), "dimension"),
    (np.ones((0, 4)), "at least one row"),
    (sparse.csr_matrix((3, 0)), "at least one row"),
    (np.array([[1.0, np.inf]]), "must be finite; got inf at index"),
    (sparse.csr_matrix([[0.0, 1.0], [np.nan, 0.0]]), r"got nan at index \(1, 0\)"),
    (np.array([[np.inf, -np.inf]]), "must be finite; got inf at index"),
    (sparse.csr_matrix([[np.inf, -np.inf]]), r"got inf at index \(0, 0\) \(2 such values\)"),
    (np.ones((0, 4), dtype=complex), "at least one row"),
    (np.array(1j), "dimension"),
    ([DENSE, np.ones((2, 4))], r"equally many columns; got \[5, 4\]"),
    ([[1.0, 2.0], [3.0]], "must be a matrix"),
    ("words", "must be a matrix of numbers"),
    (np.array([["a", "b"]]), "must be an array of numbers"),
    (None, "must be a matrix of numbers"),
    ([], "dimension"),
])
def test_what_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        as_operator(given, "B")


def test_numbers_whose_sum_overflows_are_no_reason_to_warn():
    large = np.full((1, 3), 1e308)
    assert as_operator(large, "B").shape == as_operator(sparse.csr_matrix(large), "B").shape == (1, 3)


def test_an_adjoint_with_a_wrong_boundary_is_found():
    n = 65_536

    def adjoint(w):
        u = np.concatenate([[0.0], w]) - np.concatenate([w, [0.0]])
        u[-1] *= 0.5
        return u

    difference = LinearOperator((n - 1, n), matvec=lambda u: np.diff(np.ravel(u)),
                                rmatvec=lambda w: adjoint(np.ravel(w)), dtype=float)
    with pytest.raises(InputError, match="adjoint"):
        as_operator(difference, "B")


def test_single_precision_is_allowed_to_say_so():
    matrix = DENSE.astype(np.float32)

    def product(M, x):
        return (M @ np.ravel(x).astype(np.float32)).astype(np.float64)

    def operator(dtype):
        return LinearOperator(matrix.shape, matvec=lambda u: product(matrix, u), rmatvec=lambda w: product(matrix.T, w),
                              dtype=dtype)

    as_operator(operator(np.float32), "B")
    with pytest.raises(InputError, match="dtype=float32"):
        as_operator(operator(np.float64), "B")


def test_a_function_that_breaks_later_is_found():
    seen = []

    def product(u):
        seen.append(1)
        return np.ravel(u) if len(seen) < 4 else np.full(3, np.inf)

    operator = as_operator(LinearOperator((3, 3), matvec=product, rmatvec=np.ravel, dtype=float), "B")
    while len(seen) < 3:
        operator.times(np.ones(3))
    with pytest.raises(InputError, match="overflow"):
        operator.times(np.ones(3))


def test_products_need_the_right_shape():
    operator = as_operator(DENSE, "B")
    for wrong in (np.ones(4), np.ones((7, 2)), np.ones((5, 2, 2))):
        with pytest.raises(InputError, match="needs 5 rows"):
            operator.times(wrong)
    with pytest.raises(InputError, match="slice, a mask or indices"):
        operator.take([99])


def test_check_adjoint_of_ones_own_operator():
    class Doubled(Operator):
        shape = (2, 2)

        def _times(self, U):
            return 2.0 * U

        def _transpose_times(self, W):
            return W

    with pytest.raises(InputError, match="adjoint"):
        check_adjoint(Doubled(), "B")


def test_blocks_of_columns_cover_everything_and_stay_small():
    blocks = list(column_blocks(100, 10**6))
    assert [b.start for b in blocks[1:]] == [b.stop for b in blocks[:-1]]
    assert blocks[0].start == 0
    assert blocks[-1].stop == 100
    assert all((b.stop - b.start) * 10**6 <= 2**24 for b in blocks)


# -- the precision -----------------------------------------------------------------------------------------------------


def test_normal_matrix():
    B, X = as_operator(SPARSE, "B"), as_operator(DENSE, "X")
    gamma, d = np.linspace(-0.1, 2.0, 9), RNG.uniform(1.0, 2.0, 5)
    A = NormalMatrix(d, [(X, 4.0), (B, gamma)])
    dense = np.diag(d) + 4.0 * DENSE.T @ DENSE + SPARSE.T @ np.diag(gamma) @ SPARSE
    np.testing.assert_allclose(A.dense(), dense, atol=1e-12)
    np.testing.assert_allclose(A.diagonal(), np.diagonal(dense))
    U = RNG.standard_normal((5, 70))
    np.testing.assert_allclose(A.times(U), dense @ U, atol=1e-11)
    np.testing.assert_allclose(A.times(U[:, :1]), dense @ U[:, :1], atol=1e-11)
    np.testing.assert_allclose(A.times(U[:, 3]), dense @ U[:, 3], atol=1e-11)
    assert A.n_products == 4 * 72
    assert not A.positive
    with pytest.raises(NotPositiveDefiniteError):
        A.perturbation(1, np.random.default_rng(0))
    assert NormalMatrix(d, [(as_operator(gaps(5), "B"), 1.0)]).diagonal() is None


def test_perturbations_have_the_precision_as_covariance():
    B = as_operator(DENSE, "B")
    A = NormalMatrix(np.array([0.0, 1.0, 2.0, 0.5, 0.1]), [(B, np.arange(7.0))])
    draws = A.perturbation(40_000, np.random.default_rng(1))
    covariance, dense = draws @ draws.T / 40_000, A.dense()
    scale = np.sqrt(np.outer(np.diagonal(dense), np.diagonal(dense)))
    assert np.abs((covariance - dense) / scale).max() < 5.0 * np.sqrt(2.0 / 40_000)


def test_normal_matrix_checks_its_parts():
    B = as_operator(DENSE, "B")
    with pytest.raises(InputError, match="must be 7 x 4"):
        NormalMatrix(np.ones(4), [(B, 1.0)])
    with pytest.raises(InputError, match="7 weights"):
        NormalMatrix(np.ones(5), [(B, np.ones(6))])
    with pytest.raises(InputError, match="weights of the precision must be finite"):
        NormalMatrix(np.ones(5), [(B, np.full(7, np.nan))])
    with pytest.raises(InputError, match="diagonal of the precision must be finite"):
        NormalMatrix(np.array([1.0, np.inf, 1, 1, 1]), [(B, 1.0)])


def test_blocks_must_have_equal_columns_and_finite_numbers():
    with pytest.raises(InputError, match="equally many columns"):
        BlockedOperator([DENSE, DENSE[:, :3]])
    with pytest.raises(InputError, match="no block"):
        BlockedOperator([])
    with pytest.raises(InputError, match="a block must be finite"):
        BlockedOperator([DENSE, np.full((2, 5), np.nan)])
