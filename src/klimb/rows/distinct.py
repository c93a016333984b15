"""Rows that repeat are counted instead: a fit sees each distinct (x, y) once, with its weight, in an order of its own.

A datum that appears three times and one of weight 3 are then the same problem to the last bit, the order of the rows
does not matter, and tables with many repeated rows are as cheap as their distinct ones. The order is that of a hash of
each row, which is the same for dense and sparse matrices.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import require
from klimb.numerics.arrays import Array, Index, Mask
from klimb.numerics.dense import row_blocks
from klimb.rows.frames import Frame

Hashes: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct rows, and the way back."""

    X: Any  # dense or CSR
    y: Array
    weights: Array | None  # None where all are 1
    inverse: Index  # the distinct row of every row that was given, -1 where that counts for nothing

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def total(self) -> float:
        """The sum of the weights: how many data there are."""
        return float(self.n if self.weights is None else self.weights.sum())


def distinct_rows(X: Any, y: Array, weights: Array | None = None, *, merge: bool = True) -> Rows:
    """Drop rows of weight zero, merge equal ones (unless told not to), sort by hash.

    >>> rows = distinct_rows(np.array([[1.0], [2.0], [1.0]]), np.array([0.0, 1.0, 0.0]))
    >>> sorted(zip(rows.X.ravel().tolist(), rows.y.tolist(), rows.weights.tolist()))
    [(1.0, 0.0, 2.0), (2.0, 1.0, 1.0)]
    >>> bool((rows.X[rows.inverse, 0] == [1.0, 2.0, 1.0]).all())
    True
    """
    inverse = np.full(len(y), -1, dtype=np.intp)
    used = np.arange(len(y))
    if weights is not None and not np.all(weights > 0.0):
        used = np.flatnonzero(weights > 0.0)
        require(used.size != 0, "some sample_weight must be positive", "all zero", "Leave sample_weight out.")
        X, y, weights = X[used], y[used], weights[used]
    if hasattr(X, "tocsr"):
        X = X.tocsr(copy=True)
        X.sum_duplicates()
        X.eliminate_zeros()
    y = np.ascontiguousarray(y, dtype=np.float64) + 0.0
    hashes = row_hashes(X) + _mix(y.view(np.uint64) + np.uint64(0x5851F42D4C957F2D))
    order = np.argsort(hashes, kind="stable")
    same = np.zeros(len(y), dtype=bool)  # as the row before
    if merge:
        pairs = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        first, second = order[pairs], order[pairs + 1]
        same[pairs + 1] = _equal_rows(X, first, second) & (y[first] == y[second])
    inverse[used[order]] = np.cumsum(~same) - 1
    if same.any():
        begins = np.flatnonzero(~same)
        each = np.ones(len(y)) if weights is None else weights[order]
        return Rows(X[order[begins]], y[order[begins]], np.add.reduceat(each, begins), inverse)
    if weights is not None:
        weights = None if np.all(weights == 1.0) else weights[order]
    return Rows(X[order], y[order], weights, inverse)


def row_hashes(X: Any) -> Hashes:
    """A 64-bit sum over the nonzero entries of each row, so that dense and sparse rows agree."""
    columns = _mix(np.arange(1, X.shape[1] + 1, dtype=np.uint64))
    if hasattr(X, "tocsr"):
        entries = _mix(X.data.astype(np.float64).view(np.uint64) + columns[X.indices])
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(entries, dtype=np.uint64)])
        return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    hashes = np.empty(len(X), dtype=np.uint64)
    for rows in row_blocks(len(X), X.shape[1]):
        block = np.ascontiguousarray(X[rows], dtype=np.float64) + 0.0
        entries = _mix(block.view(np.uint64) + columns)
        entries[block == 0.0] = 0
        hashes[rows] = entries.sum(axis=1, dtype=np.uint64)
    return hashes


def _mix(x: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that scatters neighbours (the finalising step of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _equal_rows(X: Any, first: Index, second: Index) -> Mask:
    if hasattr(X, "tocsr"):
        difference = (X[first] - X[second]).tocsr()
        difference.eliminate_zeros()
        return np.asarray(np.diff(difference.indptr) == 0)
    return np.asarray((X[first] == X[second]).all(axis=1))


def content_shares(frame: Frame, names: Sequence[str]) -> Array:
    """A number from 0 to 1 for each row that depends on nothing but what the row holds in these columns.

    Rows below 0.01 are a sample of one in a hundred, the same wherever the rows are and in whatever order they come.
    """
    total = np.zeros(frame.n, dtype=np.uint64)
    for name in names:
        column, salt = frame.read(name), _mix(np.array([zlib.crc32(name.encode())], dtype=np.uint64)) | np.uint64(1)
        if column.kind == "number":
            entries = np.ascontiguousarray(column.number + 0.0).view(np.uint64)
            entries ^= entries >> np.uint64(32)  # whole numbers have no lower half
        else:
            codes, labels = column.factor
            entries = np.array([zlib.crc32(label.encode()) for label in (*labels, "")], dtype=np.uint64)[codes]
        with np.errstate(over="ignore"):
            total += np.multiply(entries, salt, out=entries)
    return np.asarray(_mix(total) / 2.0**64)
