"""Exact factorisations of a precision A: dense of D x D, of N x N where N is less, multifrontal where A is sparse."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.csr import rows_by_length, times_rows, with_data
from klimb.linalg.normal_matrix import NormalMatrix, Preconditioner, SurrogateMatrix
from klimb.linalg.operators.base import BLOCK_DOUBLES, Operator, SparseOperator, StackedOperator, as_row_indices
from klimb.linalg.sparse_cholesky import SymbolicCholesky
from klimb.numerics.arrays import Array, Index, pieces, slices
from klimb.numerics.dense import cholesky, log_det_from_cholesky, threads_for, triangular_inverse
from klimb.numerics.lazy import blas, lapack, scipy_sparse

GATHER_COST = 100  # flops of a dense product that one gathered entry of the covariance costs
CANCELLED_PAIRS = 1e-7  # b'Vb over (sum_j |b_j| sd_j)^2 below which the sum of pairs has lost too many digits
CANCELLED = 1e-6  # of the prior variance below which what is left after subtraction is computed in another way
REFINEMENTS = 2
WORTH_INVERSE = 0.5  # systems, as a share of N, from which L^-1 (a third of N of them) pays
FEW = 0.05  # share of nonzeros up to which a sparse row times L^-1 is cheaper than a triangular solve
STRONG, FAINT = 1.0, 1e-4  # g_i k_ii: where (M^-1)_ii tells v_i, and where even L and L^-1 together do not
SPARSE_BLOCK = 2**20  # doubles of a product of sparse rows with L^-1 that are held at a time


class Factorisation(Preconditioner):
    """A = R R' in some form: a preconditioner that is exact for A, and close for its neighbours."""

    @abstractmethod
    def variances(self, B: Operator) -> Array:
        """diag(B A^-1 B')."""


class PrimalFactorisation(Factorisation):
    """Cholesky of A itself; A is scaled to unit diagonal first, so that scales of weights do no harm."""

    def __init__(self, A: NormalMatrix) -> None:
        with threads_for(A.size):
            dense = A.dense()
            diagonal = dense.diagonal()
            if not (diagonal > 0.0).all():
                raise NotPositiveDefiniteError(f"the diagonal has {diagonal.min():.6g}")
            self._scale = 1.0 / np.sqrt(diagonal)
            dense *= self._scale
            dense *= self._scale[:, None]
            self._lower = cholesky(dense)
        self.log_det = log_det_from_cholesky(self._lower) - 2.0 * float(np.log(self._scale).sum())

    def solve(self, rhs: Array) -> Array:
        scale = self._scale if rhs.ndim == 1 else self._scale[:, None]
        return np.asarray(lapack.dpotrs(self._lower, scale * rhs, lower=1)[0] * scale)

    def variances(self, B: Operator) -> Array:
        matrix = _stored(B)
        with threads_for(len(self._scale)):
            if hasattr(matrix, "tocsr"):
                pairs = float((np.diff(matrix.indptr).astype(float) ** 2).sum())
                if GATHER_COST * pairs < float(matrix.shape[0]) * matrix.shape[1] ** 2:
                    return self._by_pairs(matrix)
            return self._by_solves(matrix)

    def _by_solves(self, matrix: Any) -> Array:
        """|L^-1 S b_i|^2, S the scale."""
        N, D = matrix.shape
        values = np.empty(N)
        for some in _blocks(N, D):
            block = matrix[some]
            rows = np.asarray(block.toarray() if hasattr(block, "toarray") else block) * self._scale
            half = blas.dtrsm(1.0, self._lower, rows.T, lower=1)
            np.einsum("ji,ji->i", half, half, out=values[some])
        return values

    def _by_pairs(self, matrix: Any) -> Array:
        """sum_jk b_ij b_ik V_jk over the nonzeros of each row, rows with equally many of them together."""
        V = self._covariance
        values, bound = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[0])
        sd = np.sqrt(V.diagonal())
        for chosen, entries in rows_by_length(matrix):
            index = matrix.indices[entries]
            b = matrix.data[entries] * self._scale[index]
            block = V[index[:, :, None], index[:, None, :]]
            values[chosen] = np.einsum("nj,njk,nk->n", b, block, b, optimize=True)
            bound[chosen] = (np.abs(b) * sd[index]).sum(axis=1) ** 2
        lost = np.flatnonzero(values < CANCELLED_PAIRS * bound)
        if len(lost):
            values[lost] = self._by_solves(matrix[as_row_indices(lost, matrix.shape[0])])
        return values

    @cached_property
    def _covariance(self) -> Array:
        """Of the scaled A."""
        lower, info = lapack.dpotri(self._lower, lower=1)
        if info != 0:
            raise NotPositiveDefiniteError(f"the factor has a zero at {info - 1}")
        lower += np.tril(lower, -1).T
        return np.asarray(lower)


class DualFactor(Factorisation):
    """Woodbury's form. Needs a positive ``shift`` and no negative weight."""

    def __init__(self, A: NormalMatrix) -> None:
        if not A.positive or A.shift.min() <= 0.0:
            raise NotPositiveDefiniteError("the dual form needs a positive diagonal and positive weights")
        self._A = A
        self._rows = A.operators[0] if len(A.parts) == 1 else StackedOperator(A.operators)
        self._weights = np.concatenate([weights for _, weights in A.parts])
        self._matrix = _stored(self._rows)
        self._root = np.sqrt(self._weights)
        N = len(self._root)
        with threads_for(N):
            inner = _product(self._matrix, 1.0 / A.shift, self._matrix).T  # symmetric; Fortran order as LAPACK has it
            self._prior = inner.diagonal().copy()
            inner *= self._root
            inner *= self._root[:, None]
            inner.flat[:: N + 1] += 1.0
            self._lower = cholesky(inner)
        self.log_det = log_det_from_cholesky(self._lower) + float(np.log(A.shift).sum())

    def solve(self, rhs: Array) -> Array:
        """A^-1 r = d^-1 (r - B' G^1/2 M^-1 G^1/2 B d^-1 r)."""
        shift, root = (self._A.shift, self._root) if rhs.ndim == 1 else (self._A.shift[:, None], self._root[:, None])
        inner = lapack.dpotrs(self._lower, root * self._rows.times(rhs / shift), lower=1)[0]
        return np.asarray((rhs - self._rows.transpose_times(root * inner)) / shift)

    def variances(self, B: Operator) -> Array:
        with threads_for(len(self._root)):
            begin = 0
            for operator in self._A.operators:
                end = begin + operator.shape[0]
                if operator is B:
                    return self._own(begin, end)
                begin = end
            return self._subtracted(_stored(B))

    def _own(self, begin: int, end: int) -> Array:
        """v_i = k_ii - |L^-1 G^1/2 k_i|^2 for rows of A itself, in the form that keeps most digits.

        With M = L L' = I + G^1/2 K G^1/2 the vector in there is (L' - L^-1) e_i / g_i^1/2, so that L and its inverse
        tell all; and where g_i k_ii > 1, v_i = (1 - (M^-1)_ii) / g_i loses none.
        """
        weights, prior = self._weights[begin:end], self._prior[begin:end]
        gain = weights * prior
        values = np.empty(end - begin)
        strong, middle = gain > STRONG, (gain > FAINT) & (gain <= STRONG)
        known = np.flatnonzero(strong | middle)
        invert = self._inverts(len(known))
        for block in _blocks(len(known), len(self._root)):
            chosen = known[block]
            half = self._inverse_columns(begin + chosen, invert)
            inverse = np.einsum("ij,ij->j", half, half)
            half -= self._lower[begin + chosen].T
            taken = np.einsum("ij,ij->j", half, half) / weights[chosen]
            values[chosen] = np.where(strong[chosen], (1.0 - inverse) / weights[chosen],
                                      np.maximum(prior[chosen] - taken, np.finfo(float).eps * prior[chosen]))
        faint = np.flatnonzero(~(strong | middle))
        if len(faint):
            values[faint] = self._subtracted(self._matrix[begin + faint])
        return values

    def _inverse_columns(self, chosen: Index, invert: bool) -> Array:
        """L^-1 e_i, one a column: some of L^-1, or by solving."""
        if invert:
            return np.asarray(self._inverse[:, chosen])
        units = np.zeros((len(self._root), len(chosen)), order="F")
        units[chosen, np.arange(len(chosen))] = 1.0
        return self._halves(units)

    def _inverts(self, n_systems: int) -> bool:
        """Whether L^-1 is there, or worth computing for so many systems."""
        return "_inverse" in self.__dict__ or n_systems > WORTH_INVERSE * len(self._root)

    @cached_property
    def _inverse(self) -> Array:
        """L^-1."""
        return triangular_inverse(self._lower.copy(order="F"))

    def _subtracted(self, matrix: Any) -> Array:
        """k_ii - |L^-1 G^1/2 B d^-1 b_i|^2, no lower than what rounding can tell from zero."""
        values = np.empty(matrix.shape[0])
        scale = 1.0 / self._A.shift
        sparse = hasattr(matrix, "multiply") and hasattr(self._matrix, "multiply")
        invert = sparse and self._inverts(matrix.shape[0])
        if sparse:
            columns = times_rows(self._matrix, self._root).T.tocsr()  # B' G^1/2
        for block in _blocks(matrix.shape[0], len(self._root) if sparse else max(len(self._root), matrix.shape[1])):
            rows = matrix[block]
            squares = rows.multiply(rows) if hasattr(rows, "multiply") else rows * rows
            prior = np.asarray(squares @ scale).ravel()
            if sparse:
                taken = self._sparse_half_norms(_times_columns(rows, scale) @ columns, invert)
            else:
                cross = _product(self._matrix, scale, rows)
                taken = self._half_norms(np.asfortranarray(self._root[:, None] * cross))
            left = np.maximum(prior - taken, np.finfo(float).eps * prior)
            lost = np.flatnonzero(left < CANCELLED * prior)
            for part in _blocks(len(lost), matrix.shape[1]):
                left[lost[part]] = self._refined(rows[lost[part]])
            values[block] = left
        return values

    def _sparse_half_norms(self, rows: Any, invert: bool) -> Array:
        """|L^-1 c|^2 for each row c: by L^-1, which is as exact, where c has few nonzeros, else by solving."""
        N, counts = len(self._root), np.diff(rows.indptr)
        values = np.zeros(len(counts))
        few = counts <= FEW * N if invert else counts == 0
        if invert:
            inverse = self._inverse.T  # in C order, as products with sparse rows want it
            sparse, step = np.flatnonzero(few), max(64, SPARSE_BLOCK // N)
            for chosen in pieces(sparse, step):
                half = rows[chosen] @ inverse
                values[chosen] = np.einsum("ij,ij->i", half, half)
        many = np.flatnonzero(~few)
        if len(many):
            values[many] = self._half_norms(np.asarray(rows[many].toarray()).T)
        return values

    def _refined(self, rows: Any) -> Array:
        """b'A^-1 b by solving, with the residual solved for again: where a difference has lost its digits."""
        b = np.ascontiguousarray((rows.toarray() if hasattr(rows, "toarray") else rows).T)
        x = self.solve(b)
        for _ in range(REFINEMENTS):
            x += self.solve(b - self._A.times(x))
        return np.asarray(np.maximum(np.einsum("ij,ij->j", b, x), 0.0))

    def _half_norms(self, columns: Array) -> Array:
        """|L^-1 c|^2 for each column c; overwrites them."""
        half = self._halves(columns)
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def _halves(self, columns: Array) -> Array:
        """L^-1 times the columns; overwrites them."""
        return np.asarray(blas.dtrsm(1.0, self._lower, columns, lower=1, overwrite_b=1))


def _stored(operator: Operator) -> Any:
    matrix = operator.explicit
    return operator.dense() if matrix is None else matrix


def _blocks(count: int, width: int) -> Iterator[slice]:
    return slices(count, max(64, BLOCK_DOUBLES // width))


def _times_columns(matrix: Any, scale: Array) -> Any:
    """A sparse matrix with its columns multiplied by numbers; indices are shared, not copied."""
    return with_data(matrix, matrix.data * scale[matrix.indices])


def _product(left: Any, scale: Array, right: Any) -> Array:
    """left diag(scale) right' as a dense array; either may be sparse."""
    if hasattr(left, "multiply") and hasattr(right, "multiply"):
        return np.asarray((_times_columns(left, scale) @ right.T).toarray())
    if hasattr(right, "multiply"):
        return np.asarray((right @ (left * scale).T).T)
    return np.asarray(left @ (right * scale).T)


def sparse_pattern(A: NormalMatrix) -> Any | None:
    """Where A may have entries, as CSC of ones; None where an operator is not stored as a sparse matrix."""
    total: Any = scipy_sparse.eye_array(A.size, format="csr")
    for operator in A.operators:
        if not isinstance(operator, SparseOperator):
            return None
        ones = with_data(operator.matrix, np.ones_like(operator.matrix.data))
        total = total + ones.T @ ones
    return total.tocsc().sorted_indices()


def analysed(pattern: Any) -> SymbolicCholesky:
    """The analysis of a pattern; the last few are kept, since weights change more often than patterns."""
    return _analysed(pattern.indptr.tobytes(), pattern.indices.tobytes(), pattern.indices.dtype.str, pattern.shape[0])


@lru_cache(maxsize=4)
def _analysed(indptr: bytes, indices: bytes, dtype: str, size: int) -> SymbolicCholesky:
    places = np.frombuffer(indices, dtype)
    entries = (np.ones(len(places)), places, np.frombuffer(indptr, dtype))
    return SymbolicCholesky(scipy_sparse.csc_array(entries, shape=(size, size)))


class SparseFactorisation(Factorisation, SurrogateMatrix):
    """Cholesky of A scaled to unit diagonal, whose pattern was analysed before; a part of a matrix may stand for it."""

    def __init__(self, A: NormalMatrix, symbolic: SymbolicCholesky) -> None:
        diagonal = A.diagonal()
        if diagonal is None or not (diagonal > 0.0).all():
            raise NotPositiveDefiniteError("the diagonal is not positive")
        self._A, self.diagonal, self._scale = A, diagonal, 1.0 / np.sqrt(diagonal)
        self._pattern = symbolic.pattern
        self._factor = symbolic.factor(self._entries())
        self.log_det = self._factor.logdet - 2.0 * float(np.log(self._scale).sum())

    def _entries(self) -> Array:
        """The scaled A in the order of the pattern, which may have places where A has nothing."""
        total: Any = scipy_sparse.diags_array(self._A.shift, format="csc")
        for operator, weights in self._A.parts:
            assert isinstance(operator, SparseOperator)
            total = total + operator.transpose @ times_rows(operator.matrix, weights)
        total = total.tocsc().sorted_indices()
        size, nodes = len(self._scale), np.arange(len(self._scale), dtype=np.int64)
        columns, known = (np.repeat(nodes, np.diff(matrix.indptr)) for matrix in (total, self._pattern))
        places = np.searchsorted(known * size + self._pattern.indices, columns * size + total.indices)
        values = np.zeros(len(known))
        values[places] = total.data * self._scale[total.indices] * self._scale[columns]
        return values

    def solve(self, rhs: Array) -> Array:
        scale = self._scale if rhs.ndim == 1 else self._scale[:, None]
        return self._factor.solve(scale * rhs) * scale

    def factor_times(self, noise: Array) -> Array:
        """R noise, A = R R': for noise of unit covariance, draws with covariance A."""
        scale = self._scale if noise.ndim == 1 else self._scale[:, None]
        return self._A.times(scale * self._factor.root_solve(noise))

    def variances(self, B: Operator) -> Array:
        """b'Z b from the entries of Z = A^-1 within the pattern; rows that need others are solved for."""
        if not isinstance(B, SparseOperator):
            return self._by_solves(B)
        matrix, inverse = _times_columns(B.matrix, self._scale), self._pattern.copy()
        inverse.data = self._factor.inverse_entries
        ones = with_data(matrix, np.ones_like(matrix.data))
        values = _row_sums(matrix @ inverse, matrix)
        other = np.flatnonzero(_row_sums(ones @ self._pattern, ones) < np.diff(matrix.indptr).astype(float) ** 2)
        if len(other):
            values[other] = self._by_solves(B.take(other))
        return values

    def known_variances(self, B: Operator) -> Array | None:
        return self.variances(B) if isinstance(B, SparseOperator) else None

    @cached_property
    def inverse_diagonal(self) -> Array:
        return self.variances(SparseOperator(scipy_sparse.eye_array(self._A.size, format="csr")))

    def _by_solves(self, B: Operator) -> Array:
        values = np.empty(B.shape[0])
        for some in slices(B.shape[0], 256):
            rows = B.take(some).dense()
            values[some] = np.einsum("ij,ji->i", rows, self.solve(np.ascontiguousarray(rows.T)))
        return values


def _row_sums(left: Any, right: Any) -> Array:
    """sum_j left_ij right_ij of two sparse matrices."""
    return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()
