"""Columns brought to mean 0 and variance 1, so that one prior can serve them all; sparse ones stay sparse."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.errors import require
from klimb.linalg.matrix import DenseDesign, DesignMatrix
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks
from klimb.numerics.lazy import scipy_sparse

CONSTANT = 1e-12  # deviation over mean that is rounding: that of a mean over a million rows is some 1e-13
SMALL = 2**22  # entries (32 MB) up to which a sparse matrix is copied to a dense one
FILLED = 0.05  # share of entries from which that pays where columns outnumber rows: products of rows alone are asked


@stored("scaling")
@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x - centre) / scale, column by column, after a column of ones where there is an ``intercept``."""

    centre: Array
    scale: Array
    intercept: bool = False
    products: bool = False  # rows stay sparse and are not centred: for engines that only multiply

    @staticmethod
    def none(n_columns: int) -> "Scaling":
        """Columns as they are."""
        return Scaling(np.zeros(n_columns), np.ones(n_columns))

    @staticmethod
    def of(X: Any, weights: Array | None, *, centred: bool = True, each: bool = True,
           intercept: bool = False) -> "Scaling":
        """Mean and standard deviation of the columns (without ``centred``: 0 and the root of the mean square).

        A column that is constant but for rounding keeps the scale 1. Without ``each`` all columns have one scale, the
        root of their mean variance, so that they keep their sizes beside each other.
        """
        share = np.full(X.shape[0], 1.0 / X.shape[0]) if weights is None else weights / weights.sum()
        size = largest_entries(X)  # columns are divided by this first, so that no square overflows or vanishes
        unit = np.where(size > 0.0, size, 1.0)
        mean, square = _moments(X, share, unit)
        if centred:
            deviation = np.sqrt(np.maximum(_variance(X, share, unit, mean), 0.0))
            deviation[deviation <= CONSTANT * np.abs(mean)] = 0.0
        else:
            mean, deviation = np.zeros_like(mean), np.sqrt(square)
        scale = deviation * unit
        if not each:
            largest = float(scale.max(initial=0.0)) or 1.0
            varies = scale[scale > 0.0] / largest
            scale = np.full_like(scale, largest * np.sqrt(np.mean(varies**2)) if varies.size else 1.0)
        return Scaling(mean * unit, np.where(scale > 0.0, scale, 1.0), intercept)

    def by_products(self) -> Self:
        """The same for an engine that only multiplies: columns are not centred."""
        return replace(self, centre=np.zeros_like(self.centre), products=True)

    @property
    def n_columns(self) -> int:
        """How many columns X has, the intercept's not counted."""
        return len(self.scale)

    def apply(self, X: Any) -> Any:
        """Scaled rows, dense or (where X is sparse and large) sparse and not centred: see `design_of`."""
        if not hasattr(X, "tocsr"):
            return (X - self.centre) / self.scale
        return (X @ scipy_sparse.diags_array(1.0 / self.scale)).tocsr()

    def design(self, X: Any) -> Any:
        """Scaled rows, with a column of ones in front where there is an intercept: a `DesignMatrix`, or CSR."""
        given = X if hasattr(X, "tocsr") else np.asarray(X, dtype=np.float64)
        require(given.ndim == 2 and given.shape[1] == self.n_columns, f"X must have {self.n_columns} columns",
                f"shape {given.shape}", "Use the columns of the fit.")
        return self._design(scipy_sparse.csr_array(given) if self.products else given)

    def _design(self, X: Any) -> Any:
        if hasattr(X, "tocsr") and not self.products:
            size = float(np.prod(X.shape, dtype=np.float64))
            X = X.toarray() if size <= SMALL and (X.shape[0] > X.shape[1] or X.nnz > FILLED * size) else X
        Z = self.apply(X)
        if not hasattr(Z, "tocsr"):
            return DenseDesign(np.column_stack([np.ones(len(Z)), Z]) if self.intercept else Z)
        shift = self.centre / self.scale
        if self.intercept:
            Z = scipy_sparse.hstack([np.ones((Z.shape[0], 1)), Z], format="csr")
            shift = np.concatenate([[0.0], shift])
        return Z if self.products else CentredDesign(Z, shift)


def largest_entries(X: Any) -> Array:
    """Largest absolute entry of every column."""
    if hasattr(X, "tocsr"):
        return np.asarray(abs(X).max(axis=0).toarray(), dtype=np.float64).ravel()
    return np.asarray(np.abs(X).max(axis=0))


def _moments(X: Any, share: Array, unit: Array) -> tuple[Array, Array]:
    """Weighted means of x / unit and of its square."""
    if hasattr(X, "tocsr"):
        squares = X.copy()
        squares.data = (squares.data / unit[squares.indices]) ** 2
        return np.asarray(X.T @ share) / unit, np.asarray(squares.T @ share)
    mean, square = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for rows in row_blocks(*X.shape):
        block = X[rows] / unit
        mean += share[rows] @ block
        square += share[rows] @ block**2
    return mean, square


def _variance(X: Any, share: Array, unit: Array, mean: Array) -> Array:
    """Around the mean, in a second pass; entries that are not stored are 0 and deviate by the mean."""
    if hasattr(X, "tocsr"):
        there, away = X.copy(), X.copy()
        there.data = np.ones_like(X.data)
        away.data = (X.data / unit[X.indices] - mean[X.indices]) ** 2
        full = np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]  # there the difference is not 0 but rounding
        absent = np.where(full, 0.0, np.maximum(1.0 - there.T @ share, 0.0))
        return np.asarray(away.T @ share + absent * mean**2)
    variance = np.zeros(X.shape[1])
    for rows in row_blocks(*X.shape):
        variance += share[rows] @ (X[rows] / unit - mean) ** 2
    return variance


class CentredDesign(DesignMatrix):
    """Z - 1 shift' for a sparse Z: the columns are centred without ever being filled in."""

    def __init__(self, Z: Any, shift: Array) -> None:
        self._Z, self._shift = Z, shift
        self._transpose = Z.T.tocsr()
        self.shape = (Z.shape[0], Z.shape[1])

    def times(self, vector: Array) -> Array:
        return np.asarray(self._Z @ vector - self._shift @ vector)

    def _transpose_times(self, vector: Array) -> Array:
        return np.asarray(self._transpose @ vector - self._shift * vector.sum())

    def weighted_gram(self, gamma: Array) -> Array:
        scaled = self._Z.copy()
        scaled.data = scaled.data * np.repeat(gamma, np.diff(scaled.indptr))
        gram = np.asfortranarray((self._transpose @ scaled).toarray())
        # (Z - 1h')'G(Z - 1h') = Z'GZ - h u' - (u - |gamma| h) h' with u = Z'gamma
        u = self._transpose @ gamma
        gram -= np.outer(self._shift, u)
        gram -= np.outer(u - gamma.sum() * self._shift, self._shift)
        return np.asarray(0.5 * (gram + gram.T))

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        norms = np.empty(self.shape[0])
        for rows, block in self.scaled_blocks(root):
            np.einsum("ij,ij->i", block, block, out=norms[rows])
        return norms, np.zeros(self.shape[0]) if times is None else self.times(times)

    def scaled_blocks(self, root: Array) -> Any:
        moved = self._shift * root if root.ndim == 1 else self._shift @ root
        for rows in row_blocks(self.shape[0], max(self.shape[1], root.shape[-1])):
            block = self._Z[rows]
            yield rows, (block.toarray() * root if root.ndim == 1 else block @ root) - moved

    def outer_gram(self, root: Array) -> Array:
        if root.ndim == 2:
            return super().outer_gram(root)
        scaled = self._Z.copy()
        scaled.data = scaled.data * root[scaled.indices]
        gram = np.asarray((scaled @ scaled.T).toarray())
        moved = self._shift * root
        across = scaled @ moved
        gram -= across[:, None]
        gram -= across - moved @ moved
        return gram

    def columns(self, columns: slice) -> Array:
        """Some columns as a dense array."""
        return np.asarray(self._transpose[columns].toarray().T - self._shift[columns])

    def subset(self, rows: Index) -> "CentredDesign":
        return CentredDesign(self._Z[rows], self._shift)

    def dense_rows(self, rows: slice) -> Array:
        return np.asarray(self._Z[rows].toarray() - self._shift)

    def dense(self) -> Array:
        return self.dense_rows(slice(None))
