"""Sparse A by levels of its graph: block tridiagonal Cholesky and selected inversion.

The nodes at distance 0, 1, 2, ... from one end of a connected graph only touch the level before and after, so A is
block tridiagonal in them. A grid of 256 x 256 pixels has some 500 levels of up to 256. What is needed of A^-1, the
entries within a row of B, lies in one block or between two neighbours: the backward pass of the factorisation has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.factors.dense import Factorisation
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator, SparseOperator
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, log_det_from_cholesky
from klimb.numerics.threads import threads_for

SMALLEST_BLOCK = 64  # rows up to which levels are joined: fewer calls of LAPACK


@final
@dataclass(frozen=True, eq=False)
class Levels:
    """``order``: the nodes level by level; block b holds order[edges[b]:edges[b + 1]]."""

    order: npt.NDArray[np.intp]
    edges: npt.NDArray[np.intp]

    @cached_property
    def sizes(self) -> npt.NDArray[np.intp]:
        """The number of nodes in each block."""
        return np.diff(self.edges)

    @property
    def doubles(self) -> int:
        """Numbers that the factorisation stores."""
        sizes = self.sizes.astype(float)
        return int((sizes**2).sum() + (sizes[1:] * sizes[:-1]).sum())

    @property
    def flops(self) -> float:
        """Of the factorisation and of the selected inverse together, roughly."""
        sizes = self.sizes.astype(float)
        pairs = np.maximum(sizes[1:], sizes[:-1])
        return float((sizes**3).sum() + 6.0 * (pairs**3).sum())


def find_levels(pattern: Any) -> Levels:
    """Levels of the graph of a symmetric CSR matrix, begun at an end of each of its components."""
    from scipy.sparse.csgraph import connected_components

    n_components, label = connected_components(pattern, directed=False)
    # From any node the farthest one is near an end of its component; from there the levels are many and small.
    roots = np.unique(label, return_index=True)[1]
    for _ in range(2):
        distance = _distances(pattern, roots)
        by_distance = np.lexsort((distance, label))
        roots = by_distance[np.flatnonzero(np.diff(label[by_distance], append=n_components))]
    distance = _distances(pattern, roots)
    depth = np.zeros(n_components, dtype=np.intp)
    np.maximum.at(depth, label, distance + 1)
    level = distance + (np.cumsum(depth) - depth)[label]
    order = np.argsort(level, kind="stable")
    ends = np.cumsum(np.bincount(level))
    edges, last = [0], 0
    for end in ends:  # join small levels
        if end - last >= SMALLEST_BLOCK:
            edges.append(int(end))
            last = end
    if last < len(order):
        edges.append(len(order))
    return Levels(order, np.array(edges, dtype=np.intp))


def _distances(pattern: Any, roots: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(pattern, directed=False, indices=roots, unweighted=True, min_only=True)).astype(np.intp)


def sparse_pattern(A: NormalMatrix) -> Any | None:
    """Where A may have entries, as CSR of ones; None where an operator is not stored as a sparse matrix."""
    from scipy.sparse import identity

    total: Any = identity(A.size, format="csr")
    for operator in A.operators:
        if not isinstance(operator, SparseOperator):
            return None
        ones = operator.matrix.copy()
        ones.data = np.ones_like(ones.data)
        total = total + ones.T @ ones
    return total.tocsr()


@final
class LevelFactorisation(Factorisation):
    """Block tridiagonal Cholesky: diagonal blocks L_b, blocks below them C_b = A_{b,b-1} L_{b-1}^-T."""

    def __init__(self, A: NormalMatrix, levels: Levels) -> None:
        self._levels = levels
        self._edges = levels.edges
        self._rank = np.empty(A.size, dtype=np.intp)
        self._rank[levels.order] = np.arange(A.size)
        diagonal = A.diagonal()
        if diagonal is None or not (diagonal > 0.0).all():
            raise NotPositiveDefiniteError("the diagonal is not positive")
        self._scale = 1.0 / np.sqrt(diagonal)[levels.order]  # unit diagonal, in the order of the levels
        with threads_for(int(levels.sizes.max())):
            self._lower, self._below = self._factorise(_permuted(A, levels.order))
        self.log_det = (sum(log_det_from_cholesky(block) for block in self._lower)
                        - 2.0 * float(np.log(self._scale).sum()))

    def _factorise(self, matrix: Any) -> tuple[list[Array], list[Array]]:
        from scipy.linalg.blas import dtrsm

        lower: list[Array] = []
        below: list[Array] = [np.empty((0, 0))]
        for b in range(len(self._edges) - 1):
            rows = slice(self._edges[b], self._edges[b + 1])
            strip = matrix[rows]
            block = np.asfortranarray(strip[:, rows].toarray())
            block *= self._scale[rows]
            block *= self._scale[rows, None]
            if b:
                before = slice(self._edges[b - 1], self._edges[b])
                side = np.asfortranarray(strip[:, before].toarray())
                side *= self._scale[before]
                side *= self._scale[rows, None]
                side = np.asarray(dtrsm(1.0, lower[-1], side, side=1, lower=1, trans_a=1, overwrite_b=1))
                block -= side @ side.T
                below.append(side)
            lower.append(cholesky(np.asfortranarray(block)))
        return lower, below

    def solve(self, rhs: Array) -> Array:
        from scipy.linalg.blas import dtrsm

        columns = rhs[:, None] if rhs.ndim == 1 else rhs
        x = columns[self._levels.order] * self._scale[:, None]
        blocks = [slice(self._edges[b], self._edges[b + 1]) for b in range(len(self._edges) - 1)]
        for b, rows in enumerate(blocks):
            if b:
                x[rows] -= self._below[b] @ x[blocks[b - 1]]
            x[rows] = dtrsm(1.0, self._lower[b], x[rows], lower=1)
        for b, rows in reversed(list(enumerate(blocks))):
            if b + 1 < len(blocks):
                x[rows] -= self._below[b + 1].T @ x[blocks[b + 1]]
            x[rows] = dtrsm(1.0, self._lower[b], x[rows], lower=1, trans_a=1)
        x *= self._scale[:, None]
        return x[self._rank].reshape(rhs.shape)

    def factor_times(self, noise: Array) -> Array:
        """R noise, A = R R': for noise of unit covariance, draws with covariance A."""
        columns = noise[:, None] if noise.ndim == 1 else noise
        draws = np.empty_like(columns)
        for b in range(len(self._lower)):
            rows = slice(self._edges[b], self._edges[b + 1])
            draws[rows] = np.tril(self._lower[b]) @ columns[rows]
            if b:
                draws[rows] += self._below[b] @ columns[self._edges[b - 1] : self._edges[b]]
        draws /= self._scale[:, None]
        return np.asarray(draws[self._rank].reshape(noise.shape))

    def variances(self, B: Operator) -> Array:
        if not isinstance(B, SparseOperator):
            return self._by_solves(B)
        with threads_for(int(self._levels.sizes.max())):
            matrix = B.matrix[:, self._levels.order].tocsr()
            matrix.data *= self._scale[matrix.indices]
            block_of = np.repeat(np.arange(len(self._levels.sizes)), self._levels.sizes)[matrix.indices]
            filled = np.flatnonzero(np.diff(matrix.indptr))
            first, last = np.zeros(matrix.shape[0], dtype=np.intp), np.zeros(matrix.shape[0], dtype=np.intp)
            first[filled] = np.minimum.reduceat(block_of, matrix.indptr[filled])
            last[filled] = np.maximum.reduceat(block_of, matrix.indptr[filled])
            values = self._selected(matrix, last)
            wide = np.flatnonzero(last - first > 1)  # rows of another model: not within two neighbouring blocks
            if len(wide):
                values[wide] = self._by_solves(B.take(wide))
            return values

    def _selected(self, matrix: Any, last: npt.NDArray[np.intp]) -> Array:
        """b_i' Z b_i from the blocks of Z = A^-1, last block first, each used and forgotten.

        With W = A_{b,b-1} S_{b-1}^-1:  Z_{b,b-1} = -Z_bb W,  Z_{b-1,b-1} = S_{b-1}^-1 + W' Z_bb W.
        """
        from scipy.linalg.blas import dtrsm
        from scipy.linalg.lapack import dpotri

        values = np.zeros(matrix.shape[0])
        by_block = np.argsort(last, kind="stable")
        bounds = np.searchsorted(last[by_block], np.arange(len(self._lower) + 1))
        Z = _symmetric_inverse(dpotri, self._lower[-1])
        for b in reversed(range(len(self._lower))):
            rows = by_block[bounds[b] : bounds[b + 1]]
            own = slice(self._edges[b], self._edges[b + 1])
            if b == 0:
                values[rows] = _quadratic(matrix[rows], own, Z)
                break
            W = np.asarray(dtrsm(1.0, self._lower[b - 1], self._below[b], side=1, lower=1))
            side = -(Z @ W)
            before = _symmetric_inverse(dpotri, self._lower[b - 1])
            before -= W.T @ side
            strip = matrix[rows]
            left = strip[:, self._edges[b - 1] : self._edges[b]]
            right = strip[:, own]
            values[rows] = (_row_sums(right, right @ Z) + 2.0 * _row_sums(left, right @ side)
                            + _row_sums(left, left @ before))
            Z = before
        return values

    def _by_solves(self, B: Operator) -> Array:
        values = np.empty(B.shape[0])
        for begin in range(0, B.shape[0], 256):
            rows = B.take(slice(begin, begin + 256)).dense()
            values[begin : begin + 256] = np.einsum("ij,ji->i", rows, self.solve(np.ascontiguousarray(rows.T)))
        return values


def _permuted(A: NormalMatrix, order: npt.NDArray[np.intp]) -> Any:
    from scipy.sparse import diags_array

    total: Any = diags_array(A.shift, format="csr")
    for operator, weights in A.parts:
        assert isinstance(operator, SparseOperator)
        total = total + operator.sparse_gram(weights)
    return total.tocsr()[order][:, order]


def _symmetric_inverse(dpotri: Any, lower: Array) -> Array:
    inverse, info = dpotri(lower, lower=1)
    if info != 0:
        raise NotPositiveDefiniteError(f"the factor has a zero at {info - 1}")
    return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T)


def _quadratic(strip: Any, columns: slice, Z: Array) -> Array:
    part = strip[:, columns]
    return _row_sums(part, part @ Z)


def _row_sums(sparse: Any, dense: Array) -> Array:
    """sum_j sparse_ij dense_ij."""
    return np.asarray(sparse.multiply(dense).sum(axis=1)).ravel()
