"""The candidates: rows of a dense array, a memory map or a sparse matrix, read in blocks and never copied whole."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.linalg import matrix as designs
from klimb.linalg.matrix import BlockedDesign, CsrDesign, DenseDesign, DesignMatrix, SparseDesign, as_design
from klimb.numerics.arrays import Array, Index, as_float, finite_sum
from klimb.numerics.dense import row_blocks
from klimb.numerics.lazy import scipy_sparse

FINGERPRINT_ROWS = 512
MOST_PAIRED = 1000  # columns up to which products of pairs are worth storing: beyond, labels are fewer than columns


class DenseRows(BlockedDesign):
    """Rows of an array of any number type, in memory or in a file, as float64 blocks; a last column of ones."""

    def __init__(self, values: npt.NDArray[Any], *, intercept: bool) -> None:
        self.values, self.intercept = values, intercept
        self.shape = (values.shape[0], values.shape[1] + intercept)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        for rows in row_blocks(*self.shape):
            yield rows, self.dense_rows(rows)

    def dense_rows(self, rows: slice | Index) -> Array:
        part = self.values[rows]
        if not self.intercept:
            return np.ascontiguousarray(part, dtype=np.float64)
        whole = np.empty((len(part), self.shape[1]))
        whole[:, :-1] = part
        whole[:, -1] = 1.0
        return whole

    def times(self, vector: Array) -> Array:
        """X vector; the ones are added at the end instead of being copied behind every row."""
        slopes = vector[:-1] if self.intercept else vector
        product = np.empty(self.shape[0])
        for rows in row_blocks(*self.shape):
            np.dot(np.ascontiguousarray(self.values[rows], dtype=np.float64), slopes, out=product[rows])
        if self.intercept:
            product += vector[-1]
        return product

    def subset(self, rows: Index) -> DenseDesign:
        return DenseDesign(self.dense_rows(rows))


def as_pool(X: Any, *, intercept: bool = False, name: str = "pool") -> DesignMatrix:
    """Checked candidates, one a row: a design matrix whose last column is ones where ``intercept``."""
    if hasattr(X, "tocsr"):
        if intercept and X.shape[0] and X.shape[1]:
            X = scipy_sparse.hstack([X, scipy_sparse.csr_matrix(np.ones((X.shape[0], 1)))], format="csr")
        if X.shape[1] > MOST_PAIRED:
            matrix = X.tocsr().astype(np.float64)
            matrix.sum_duplicates()
            if designs.worth_pairing(matrix) and finite_sum(matrix.data):
                return SparseDesign(matrix)
        return as_design(X, name)
    values = X if isinstance(X, np.ndarray) and X.dtype.kind in "fiub" else as_float(X, name)
    require(values.ndim == 2 and 0 not in values.shape, f"{name} must have at least one row and one column",
            f"shape {values.shape}", "Pass one candidate per row.")
    pool = DenseRows(values, intercept=intercept)
    for rows, block in pool.blocks() if values.dtype.kind == "f" else ():
        if not finite_sum(block):
            bad = np.argwhere(~np.isfinite(block))
            if len(bad):
                i, j = (int(k) for k in bad[0])
                raise InputError(f"{name} must be finite", f"{block[i, j]} at index ({rows.start + i}, {j})",
                                 "Drop or impute missing values first.")
    return pool


def labelled_rows(pool: DesignMatrix, rows: Index) -> DesignMatrix:
    """Some rows as a design of their own, ready to be fitted."""
    if isinstance(pool, CsrDesign) and pool.shape[1] > MOST_PAIRED:
        return SparseDesign(pool.values[rows])
    return as_design(take_rows(pool, rows), "the labelled rows")


def times_each(pool: DesignMatrix, vectors: Array) -> Array:
    """X vectors for several columns at once: one pass over the pool."""
    if isinstance(pool, CsrDesign | DenseDesign):
        return np.asarray(pool.values @ vectors)
    return np.concatenate([part for _, part in block_products(pool, vectors)])


def block_products(pool: DesignMatrix, vectors: Array) -> Iterator[tuple[slice, Array]]:
    """X vectors for several columns, some rows at a time: one pass over the pool in bounded memory."""
    sparse = isinstance(pool, CsrDesign)
    for rows in row_blocks(pool.shape[0], vectors.shape[1] if sparse else max(pool.shape[1], vectors.shape[1])):
        yield rows, np.asarray((pool.values[rows] if isinstance(pool, CsrDesign) else pool.dense_rows(rows)) @ vectors)


def take_rows(pool: DesignMatrix, rows: Index) -> Any:
    """Some rows as a dense array, or as CSR where the pool is sparse."""
    some: Any = pool.subset(rows)
    return some.values


def row_vector(pool: DesignMatrix, row: int) -> Array:
    """One row as a dense vector."""
    vector: Array = pool.dense_rows(slice(row, row + 1))[0]
    return vector


def fingerprint(pool: DesignMatrix) -> str:
    """By which a saved state knows its pool: the shape, and the numbers of some hundred rows."""
    n, columns = pool.shape
    digest = hashlib.sha256(f"{n} x {columns}".encode())
    for row in np.unique(np.linspace(0, n - 1, min(n, FINGERPRINT_ROWS)).astype(np.intp)):
        digest.update(pool.dense_rows(slice(int(row), int(row) + 1)).tobytes())
    return digest.hexdigest()[:32]


def check_count(k: Any, name: str = "k", least: int = 1, advice: str = "Ask for one row or more.") -> int:
    """``k`` as it is, or an `InputError` unless it is a whole number from ``least``."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < least:
        raise InputError(f"{name} must be a whole number from {least}", f"{k!r}", advice)
    return int(k)


def check_rows(rows: Any, n: int, what: str) -> Index:
    """Distinct row numbers between 0 and n - 1, or an `InputError` that names the first bad one."""
    given = np.atleast_1d(np.asarray(rows))
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        kind = "an empty list" if given.size == 0 else f"{given.dtype} of shape {given.shape}"
        raise InputError(f"{what} must be row numbers of the pool", kind, "Pass the integers that query gave.")
    index = given.astype(np.intp)
    bad = np.flatnonzero((index < 0) | (index >= n))
    if bad.size:
        raise InputError(f"{what} must be row numbers from 0 to {n - 1}", f"{given[bad[0]]} at index {bad[0]}",
                         "Rows are counted from 0, in the order of the pool.")
    first = np.unique(index, return_index=True)[1] if index.size > 1 else index
    if first.size < index.size:
        again = int(np.setdiff1d(np.arange(index.size), first)[0])
        raise InputError(f"{what} must be distinct", f"row {index[again]} twice (index {again})", "Give each row once.")
    return index
