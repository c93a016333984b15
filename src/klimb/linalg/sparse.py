"""Sparse designs: general ones, and ones with few nonzeros a row (dummy variables, words).

X' diag(gamma) X and x_i' V x_i are linear in the products x_ij x_ik. With some 15 nonzeros a row there are a hundred of
them, against D^2 in a dense product, and with the products stored once both become one sparse product with a vector.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks

WORTHWHILE = 1 / 20  # pairs a row over D^2 up to which pairs beat dense products, the time to build them included
MOST_PAIRS = 50_000_000  # 600 MB
CANCELLED = 1e-7  # x'Vx over (sum_j |x_j| sd_j)^2 below which the sum of pairs has lost too many digits


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
        squares = self.values.copy()
        squares.data = squares.data**2
        return np.asarray(squares @ root**2), product

    def _norms(self, root: Array) -> Array:
        """|x_i' S|^2 in blocks of rows."""
        return _row_norms(self.values, root)

    def outer_gram(self, root: Array) -> Array:
        if root.ndim == 2:
            return super().outer_gram(root)
        scaled = self.values.multiply(root).tocsr()
        return np.asarray((scaled @ scaled.T).toarray())

    def dense_rows(self, rows: slice) -> Array:
        return np.asarray(self.values[rows].toarray())

    def dense(self) -> Array:
        return np.asarray(self.values.toarray())


@final
class SparseDesign(CsrDesign):
    """Any sparsity."""

    def weighted_gram(self, gamma: Array) -> Array:
        scaled = self.values.copy()
        scaled.data = scaled.data * np.repeat(gamma, np.diff(scaled.indptr))
        return np.asfortranarray((self._transpose @ scaled).toarray())

    def subset(self, rows: npt.NDArray[np.intp]) -> SparseDesign:
        return SparseDesign(self.values[rows])


@final
class PairedDesign(CsrDesign):
    """Short rows: the products of pairs in each row are stored, rows grouped by their number of nonzeros."""

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix)
        self._order, self._pairs = _pair_products(matrix)

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
        lost = np.flatnonzero(norms < CANCELLED * (abs(self.values) @ sd) ** 2)
        if lost.size:
            norms[lost] = _row_norms(self.values[lost], root)
        return norms

    def subset(self, rows: npt.NDArray[np.intp]) -> PairedDesign:
        return PairedDesign(self.values[rows])


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


def _pair_products(matrix: Any) -> tuple[npt.NDArray[np.intp], Any]:
    """(order, P): row r of P holds x_j x_k at column j D + k, j <= k, for row order[r] of the matrix."""
    from scipy.sparse import csr_matrix

    N, D = matrix.shape
    matrix.sort_indices()
    counts = np.diff(matrix.indptr)
    order = np.argsort(counts, kind="stable")
    binary = bool((matrix.data == 1.0).all())
    columns, data, lengths = [], [], []
    edges = np.flatnonzero(np.diff(counts[order], prepend=-1))  # where the groups of equal counts begin
    for rows in np.split(order, edges[1:]):
        entries = matrix.indptr[rows][:, None] + np.arange(counts[rows[0]])
        index = matrix.indices[entries].astype(np.int32)
        first, second = np.triu_indices(index.shape[1])
        columns.append((index[:, first] * np.int32(D) + index[:, second]).ravel())
        lengths.append(np.full(len(rows), len(first)))
        if not binary:
            value = matrix.data[entries]
            data.append((value[:, first] * value[:, second]).ravel())
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    flat = np.concatenate(columns)
    values = np.ones(len(flat)) if binary else np.concatenate(data)
    return order, csr_matrix((values, flat, indptr), shape=(N, D * D))
