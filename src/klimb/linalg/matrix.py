"""A design matrix with the few products that linear models need, each in cache-sized blocks.

A ``root`` S is a vector (a diagonal matrix) or a matrix with one row per column of the design.

Of sparse designs, X' diag(gamma) X and x_i' V x_i are linear in the products x_ij x_ik. With some 15 nonzeros a row
there are a hundred of them, against D^2 in a dense product, and with the products stored once both become one sparse
product with a vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.linalg.csr import rows_by_length, times_rows, with_data
from klimb.numerics import in_place
from klimb.numerics.arrays import Array, Index, as_float, check_finite_csr
from klimb.numerics.dense import row_blocks, shares, together
from klimb.numerics.lazy import scipy_sparse

DENSE_ENOUGH = 0.04  # share of nonzeros from which BLAS on the dense copy beats sparse products
LARGE, WIDE, MOSTLY_ZERO = 100_000, 32, 0.2  # a dense array of this size, width and share of nonzeros may be sparse
DENSE_LIMIT = 2**27  # entries (1 GiB) up to which a sparse matrix may be copied to a dense one
WORTHWHILE = 1 / 20  # pairs a row over D^2 up to which pairs beat dense products, the time to build them included
MOST_PAIRS = 50_000_000  # 600 MB
LARGEST_SINGLE = 1e12  # entry whose square times a million rows is a number of 32 bits
_LAST: "WeakKeyDictionary[DesignMatrix, tuple[ref[Array], Array]]" = WeakKeyDictionary()  # X' vector, with its vector
CANCELLED = 1e-7  # x'Vx over (sum_j |x_j| sd_j)^2 below which the sum of pairs has lost too many digits


class DesignMatrix(ABC):
    """N x D. The last X' vector is kept: the loop asks for it twice, to judge a state and to step away from it."""

    shape: tuple[int, int]
    rounding = float(np.finfo(float).eps)

    @property
    def exact(self) -> "DesignMatrix":
        """In double precision."""
        return self

    def lost(self, a: Array, root: Array) -> float:
        """What a'f loses beyond the rounding of its sum, where weights have the prior root S."""
        del a, root
        return 0.0

    def single(self) -> "DesignMatrix":
        """In single precision, where that is faster and has room for squares of the entries."""
        return self

    @abstractmethod
    def times(self, vector: Array) -> Array:
        """X vector; or X times a few columns."""

    def transpose_times(self, vector: Array) -> Array:
        """X' vector."""
        last = _LAST.get(self)  # read once: another thread may replace it
        if last is None or last[0]() is not vector:
            last = _LAST[self] = (ref(vector), self._transpose_times(vector))
        return last[1]

    @abstractmethod
    def _transpose_times(self, vector: Array) -> Array: ...

    @abstractmethod
    def weighted_gram(self, gamma: Array) -> Array:
        """X' diag(gamma) X as a dense D x D array, gamma of any sign."""

    @abstractmethod
    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        """|x_i' S|^2 for each row, and X times from the same pass (or zeros); ``upper``: S is upper triangular."""

    @abstractmethod
    def subset(self, rows: Index) -> "DesignMatrix":
        """Some rows."""

    @abstractmethod
    def dense_rows(self, rows: slice) -> Array:
        """A block of rows as a dense array."""

    @abstractmethod
    def dense(self) -> Array:
        """The whole matrix as a dense array."""

    def scaled_blocks(self, root: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of rows of X S."""
        for rows in row_blocks(self.shape[0], max(self.shape[1], root.shape[-1])):
            block = self.dense_rows(rows)
            yield rows, block * root if root.ndim == 1 else block @ root

    def outer_gram(self, root: Array) -> Array:
        """X S S' X', N x N."""
        N = self.shape[0]
        scaled = np.empty((N, root.shape[-1]))
        for rows, block in self.scaled_blocks(root):
            scaled[rows] = block
        return np.asarray(scaled @ scaled.T)


class BlockedDesign(DesignMatrix):
    """A dense design read in blocks of rows that fit the cache: the sums are the same wherever the blocks come from."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """All rows in order, in contiguous blocks as `row_blocks` cuts them; a block is not to be written to."""

    def times(self, vector: Array) -> Array:
        product = np.empty((self.shape[0], *vector.shape[1:]))
        for rows, block in self.blocks():
            np.dot(block, vector, out=product[rows])
        return product

    def _transpose_times(self, vector: Array) -> Array:
        total = np.zeros(self.shape[1])
        for rows, block in self.blocks():
            total += vector[rows] @ block
        return total

    def weighted_gram(self, gamma: Array) -> Array:
        D = self.shape[1]
        gram = np.zeros((D, D), order="F")
        signed = bool(gamma.min() < 0)
        weight = gamma if signed else np.sqrt(gamma)
        scratch = np.empty(0)
        for rows, block in self.blocks():
            if scratch.size < block.size:
                scratch = np.empty(block.size)
            scaled = np.multiply(block, weight[rows, None], out=scratch[: block.size].reshape(block.shape))
            if signed:
                gram += block.T @ scaled
            else:  # half the flops of a general product
                in_place.add_square(scaled.T, gram)
        if not signed:  # what is above the diagonal is still zero
            gram = np.add(gram, gram.T, order="F")
            gram.flat[:: D + 1] *= 0.5
        return np.asarray(gram)

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        norms, product = np.empty(self.shape[0]), np.zeros(self.shape[0])
        factor = np.asfortranarray(root) if root.ndim == 2 else root
        scratch = np.empty(0)
        for rows, block in self.blocks():
            if times is not None:
                np.dot(block, times, out=product[rows])
            if root.ndim == 1:
                scaled = block * root
            elif upper:  # in place on a copy: (S' x_i) for every row, seen as the columns of the transpose
                if scratch.size < block.size:
                    scratch = np.empty(block.size)
                scaled = scratch[: block.size].reshape(block.shape)
                np.copyto(scaled, block)
                in_place.times_triangle(factor, scaled.T, how=b"LUT")
            else:
                scaled = block @ root
            np.einsum("ij,ij->i", scaled, scaled, out=norms[rows])
        return norms, product

    def dense(self) -> Array:
        values = np.empty(self.shape)
        for rows, block in self.blocks():
            values[rows] = block
        return values


class StoredDesign(BlockedDesign):
    """All rows in memory."""

    values: Array

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        return ((rows, self.values[rows]) for rows in row_blocks(*self.shape))

    def times(self, vector: Array) -> Array:
        return np.asarray(self.values @ vector)

    def subset(self, rows: Index) -> "DenseDesign":
        return DenseDesign(self.values[rows])

    def dense_rows(self, rows: slice) -> Array:
        return self.values[rows]

    def dense(self) -> Array:
        return self.values


class DenseDesign(StoredDesign):
    """One after the other, contiguous."""

    def __init__(self, values: Array) -> None:
        self.values = np.ascontiguousarray(values)
        self.shape = (values.shape[0], values.shape[1])

    def single(self) -> DesignMatrix:
        from klimb.linalg.single import SingleDesign

        small = self.values.size < LARGE or max(-self.values.min(), self.values.max()) > LARGEST_SINGLE
        return self if small else SingleDesign(self)

    def _transpose_times(self, vector: Array) -> Array:
        return np.asarray(sum(together([partial(np.matmul, vector[rows], self.values[rows])
                                        for rows in shares(*self.shape)])))

    def weighted_gram(self, gamma: Array) -> Array:
        """The sum over the threads' shares of the rows."""
        found = together([partial(BlockedDesign.weighted_gram, DenseDesign(self.values[rows]), gamma[rows])
                          for rows in shares(*self.shape)])
        return found[0] if len(found) == 1 else np.asarray(sum(found))

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        found = together([partial(BlockedDesign.row_norms_squared, DenseDesign(self.values[rows]), root, upper=upper,
                                  times=times) for rows in shares(*self.shape)])
        if len(found) == 1:
            return found[0]
        return np.concatenate([norms for norms, _ in found]), np.concatenate([product for _, product in found])


class ColumnDesign(StoredDesign):
    """Column after column, as files have them: nothing is transposed on the way.

    With ``rounded`` columns Gram matrices (of positive weights) and norms are computed in single precision, block by
    block, and added in double precision; products with a vector are not.
    """

    def __init__(self, values: Array, rounded: bool = False) -> None:
        self.values = np.asfortranarray(values)
        self.shape = (values.shape[0], values.shape[1])
        self._kind = np.dtype(np.float32 if rounded else np.float64)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        width = max(self.shape[1] * self._kind.itemsize // 8, 1)
        return ((rows, self.values[rows]) for rows in row_blocks(self.shape[0], width))

    def _scratch(self, width: int, kind: Any) -> npt.NDArray[Any]:
        return np.empty((len(next(self.blocks())[1]), width), kind, order="F")

    def _transpose_times(self, vector: Array) -> Array:
        return np.asarray(self.values.T @ vector)

    def weighted_gram(self, gamma: Array) -> Array:
        gram, signed = np.zeros((self.shape[1], self.shape[1])), bool(gamma.min() < 0)
        scratch = self._scratch(self.shape[1], gamma.dtype if signed else self._kind)
        weight = gamma[:, None] if signed else np.sqrt(gamma).astype(self._kind)[:, None]
        for rows, block in self.blocks():
            scaled = scratch[: len(block)]
            np.multiply(block, weight[rows], out=scaled, dtype=scaled.dtype, casting="same_kind")
            gram += (block if signed else scaled).T @ scaled  # BLAS knows A'A, and does half of it
        return gram

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        factor, D = np.asfortranarray(np.diag(root) if root.ndim == 1 else root, self._kind), self.shape[1]
        upper = upper or root.ndim == 1
        scratch = self._scratch(factor.shape[1], self._kind)
        ends = [D // 3, 2 * D // 3, D] if upper else [factor.shape[1]]  # thirds of a triangle: no product in place
        norms, product = np.empty(self.shape[0]), np.zeros(self.shape[0])
        for rows, block in self.blocks():
            if times is not None:
                product[rows] = block @ times
            some, scaled, begin = block.astype(self._kind, copy=False), scratch[: len(block)], 0
            for end in ends:
                own = slice(0, end if upper else D)
                np.matmul(some[:, own], factor[own, begin:end], out=scaled[:, begin:end])
                begin = end
            norms[rows] = np.einsum("ij,ij->i", scaled, scaled)
        return norms, product


class ScaledRows(BlockedDesign):
    """X S, of which only the rows that are asked for exist."""

    def __init__(self, X: DesignMatrix, root: Array) -> None:
        self._X, self._root = X, root
        self.shape = (X.shape[0], root.shape[-1])

    def _scaled(self, block: Array) -> Array:
        return np.ascontiguousarray(block * self._root if self._root.ndim == 1 else block @ self._root)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        return self._X.scaled_blocks(self._root)

    def subset(self, rows: Index) -> DenseDesign:
        return DenseDesign(self._scaled(self._X.subset(rows).dense()))

    def dense_rows(self, rows: slice) -> Array:
        return self._scaled(self._X.dense_rows(rows))


def as_design(X: Any, name: str) -> DesignMatrix:
    """A checked design matrix from an array or a scipy.sparse matrix (or one that was checked before)."""
    if isinstance(X, DesignMatrix):
        return X
    if hasattr(X, "tocsr"):
        return _sparse_design(X, name)
    values = as_float(X, name, ndim=2)
    check_not_empty(values.shape, name)
    if values.size >= LARGE and values.shape[1] >= WIDE and np.count_nonzero(values) <= MOSTLY_ZERO * values.size:
        matrix = scipy_sparse.csr_matrix(values)
        if worth_pairing(matrix):
            return PairedDesign(matrix)
    return DenseDesign(values)


def _sparse_design(X: Any, name: str) -> DesignMatrix:
    matrix = X.tocsr().astype(np.float64)
    matrix.sum_duplicates()
    check_not_empty(matrix.shape, name)
    check_finite_csr(matrix, name)
    if worth_pairing(matrix):
        return PairedDesign(matrix)
    if matrix.nnz > DENSE_ENOUGH * np.prod(matrix.shape) and np.prod(matrix.shape) <= DENSE_LIMIT:
        return DenseDesign(matrix.toarray())
    return SparseDesign(matrix)


def check_not_empty(shape: tuple[int, ...], name: str) -> None:
    """An `InputError` unless this is the shape of a matrix with rows and columns."""
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{name} must have at least one row and one column", f"shape {shape}", "Pass some data.")


class CsrDesign(DesignMatrix):
    """What designs kept as scipy.sparse CSR share; the transpose is kept for the products that need it."""

    def __init__(self, matrix: Any) -> None:
        self.values = matrix
        self._transpose = matrix.T.tocsr()
        self.shape = (matrix.shape[0], matrix.shape[1])

    def times(self, vector: Array) -> Array:
        return np.asarray(self.values @ vector)

    def _transpose_times(self, vector: Array) -> Array:
        return np.asarray(self._transpose @ vector)

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        product = np.zeros(self.shape[0]) if times is None else self.times(times)
        if root.ndim == 2:
            return self._norms(root), product
        return np.asarray(with_data(self.values, self.values.data**2) @ root**2), product

    def _norms(self, root: Array) -> Array:
        """|x_i' S|^2 in blocks of rows."""
        return _row_norms(self.values, root)

    def outer_gram(self, root: Array) -> Array:
        if root.ndim == 2:
            return super().outer_gram(root)
        scaled = self.values.multiply(root).tocsr()
        return np.asarray((scaled @ scaled.T).toarray())

    def subset(self, rows: Index) -> "CsrDesign":
        return type(self)(self.values[rows])

    def dense_rows(self, rows: slice) -> Array:
        return np.asarray(self.values[rows].toarray())

    def dense(self) -> Array:
        return np.asarray(self.values.toarray())


class SparseDesign(CsrDesign):
    """Any sparsity."""

    def weighted_gram(self, gamma: Array) -> Array:
        return np.asfortranarray((self._transpose @ times_rows(self.values, gamma)).toarray())


class PairedDesign(CsrDesign):
    """Short rows: the products of pairs in each row are stored, rows grouped by their number of nonzeros."""

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix)
        self._order, self._pairs = _pair_products(matrix)
        self._longest = float(np.asarray(abs(matrix).sum(axis=1)).max(initial=0.0))  # sum of sizes of a row

    def weighted_gram(self, gamma: Array) -> Array:
        D = self.shape[1]
        upper = (self._pairs.T @ gamma[self._order]).reshape(D, D)
        gram = upper + upper.T
        gram.flat[:: D + 1] *= 0.5
        return np.asfortranarray(gram)

    def _norms(self, root: Array) -> Array:
        V = root @ root.T
        sd = np.sqrt(np.diagonal(V))
        V *= 2.0
        V.flat[:: len(V) + 1] *= 0.5  # each pair stands for two entries, but for the squares
        norms = np.empty(self.shape[0])
        norms[self._order] = self._pairs @ V.ravel()
        # A sum of products may cancel (wide priors on collinear columns): such rows are done again as |x'S|^2.
        if norms.min(initial=np.inf) < CANCELLED * (self._longest * float(sd.max(initial=0.0))) ** 2:
            lost = np.flatnonzero(norms < CANCELLED * (abs(self.values) @ sd) ** 2)
            norms[lost] = _row_norms(self.values[lost], root)
        return norms


def worth_pairing(matrix: Any) -> bool:
    """Whether the rows of a CSR matrix are short enough for `PairedDesign`."""
    counts = np.diff(matrix.indptr).astype(np.int64)
    pairs = int((counts * (counts + 1) // 2).sum())
    D = matrix.shape[1]
    return bool(D * D < 2**31 and pairs <= min(WORTHWHILE * matrix.shape[0] * D * D, MOST_PAIRS))


def _row_norms(matrix: Any, root: Array) -> Array:
    norms = np.empty(matrix.shape[0])
    for rows in row_blocks(matrix.shape[0], root.shape[1]):
        block = matrix[rows] @ root
        np.einsum("ij,ij->i", block, block, out=norms[rows])
    return norms


def _pair_products(matrix: Any) -> tuple[Index, Any]:
    """(order, P): row r of P holds x_j x_k at column j D + k, j <= k, for row order[r] of the matrix."""
    N, D = matrix.shape
    matrix.sort_indices()
    binary = bool((matrix.data == 1.0).all())
    order, columns, data, lengths = [], [], [], []
    for rows, entries in rows_by_length(matrix):
        index = matrix.indices[entries].astype(np.int32)
        first, second = np.triu_indices(index.shape[1])
        order.append(rows)
        columns.append((index[:, first] * np.int32(D) + index[:, second]).ravel())
        lengths.append(np.full(len(rows), len(first)))
        if not binary:
            value = matrix.data[entries]
            data.append((value[:, first] * value[:, second]).ravel())
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    flat = np.concatenate(columns)
    values = np.ones(len(flat)) if binary else np.concatenate(data)
    return np.concatenate(order), scipy_sparse.csr_matrix((values, flat, indptr), shape=(N, D * D))
