"""Symmetric matrices over the border of crossed grouping factors, without what is known to be zero or never asked for.

Where factors are nested, columns that are ``alone`` share no row or level with each other: the precision has a
diagonal among them, and of their covariances with each other only the variances count. What is held is the block of the
rest, its block with those that are alone, and a diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import lapack

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import cholesky, log_det_from_cholesky, mirror, symmetric_from_lower, triangular_inverse

if TYPE_CHECKING:
    from klimb.latents.crossed_cells import Cells, CellSums


class Parting:
    """Which columns of a border are ``alone``, and where entries of its matrices are held: ``flat`` of a `Border`."""

    def __init__(self, cells: Cells, alone: Index) -> None:
        self.n_dense, self.alone = cells.X.shape[1], alone + cells.X.shape[1]
        self.rest = np.setdiff1d(np.arange(cells.width), self.alone)
        self.shape = r, a = len(self.rest), len(alone)
        self.size = r * r + r * a + a
        rank = np.empty(cells.width, dtype=np.intp)
        rank[self.rest], rank[self.alone] = np.arange(r), r + np.arange(a)
        self._rank = rank[self.n_dense :]
        self.pairs = self._places(*cells.pairs)  # of pairs of sparse columns that share a row
        self.cell_pairs: Index | None = None  # of those that share a level
        if cells.cell_pairs is not None:
            one, other, columns = cells.cell_pairs
            self.cell_pairs = self._places(*np.divmod(columns, cells.n_sparse))
            half = one <= other
            self._one, self._other = one[half], other[half]
            self._at = np.concatenate([self.pairs, self.cell_pairs[half]])

    def _places(self, one: Index, other: Index) -> Index:
        """Where entries of sparse columns are held, in the upper triangle."""
        (r, a), i, j = self.shape, self._rank[one], self._rank[other]
        low, high = np.minimum(i, j), np.maximum(i, j)
        own = r * (r + a) + low - r
        return np.asarray(np.where(high < r, low * r + high, np.where(low < r, r * r + low * a + high - r, own)))

    def left(self, cells: Cells, sums: CellSums, H: Array, dense: Array, mixed: Array) -> Border:
        """Z'GZ - H'H; ``dense`` and ``mixed`` are H'H of dense columns, and of sparse ones with those."""
        B, mixed = self.n_dense, sums.mixed - mixed
        if self.cell_pairs is None:
            border = Border(self, np.zeros(self.size))
            border.flat[self.pairs] = sums.pairs
            border.rest[B:, B:] -= cells.gram(H)
        else:
            taken = np.einsum("ij,ij->i", H[self._one], H[self._other])
            flat = np.asarray(np.bincount(self._at, np.concatenate([sums.pairs, -taken]), self.size), dtype=float)
            border = Border(self, flat)
        border.rest[:B, :B] = sums.gram - dense
        border.rest[:B, B:] = mixed[self.rest[B:] - B].T
        border.across[:B] = mixed[self.alone - B].T
        return border


@dataclass(frozen=True, eq=False)
class Border:
    """A symmetric matrix in parts; of a precision the lower triangle of ``rest`` may be anything."""

    parting: Parting
    flat: Array

    @cached_property
    def rest(self) -> Array:
        r, _ = self.parting.shape
        return self.flat[: r * r].reshape(r, r)

    @cached_property
    def across(self) -> Array:
        """Of the rest with columns that are alone, (r, a)."""
        r, a = self.parting.shape
        return self.flat[r * r : r * (r + a)].reshape(r, a)

    @property
    def alone(self) -> Array:
        """The diagonal of columns that are alone."""
        r, a = self.parting.shape
        return self.flat[r * (r + a) :]

    def scale(self, W: Array) -> None:
        """W times this times W, W a diagonal."""
        at, parting = W[self.parting.rest], self.parting
        self.rest[...] *= at
        self.rest[...] *= at[:, None]
        if parting.shape[1]:
            own = W[parting.alone]
            self.across[...] *= own
            self.across[...] *= at[:, None]
            self.alone[...] *= own**2

    def mixed(self) -> Array:
        """Of sparse columns with dense ones, (S, Bd)."""
        parting, B = self.parting, self.parting.n_dense
        found = np.empty((sum(parting.shape) - B, B))
        found[parting.rest[B:] - B], found[parting.alone - B] = self.rest[B:, :B], self.across[:B].T
        return found

    def diagonal(self) -> Array:
        found = np.empty(sum(self.parting.shape))
        found[self.parting.rest], found[self.parting.alone] = np.diagonal(self.rest), self.alone
        return found


class BorderFactor:
    """(I + W'PW)^-1 for a precision P, which is overwritten, and a root W of the prior, (width,) or sparse.

    Columns that are alone are eliminated one by one: with D their diagonal and B = S_ra D^-1, what is left of the rest
    is S_rr - B D B' = (R'R)^-1.
    """

    def __init__(self, P: Border, W: Any) -> None:
        self._W, self._parting, self._B = W, P.parting, np.zeros((0, 0))
        self.log_det, self.sds = 0.0, np.zeros(sum(P.parting.shape))  # of columns that are alone, given the rest
        if W.ndim == 2:
            S = W.T @ (W.T @ mirror(P.rest.T)).T
        else:
            P.scale(W)
            S = P.rest
        S.flat[:: len(S) + 1] += 1.0
        if P.parting.shape[1]:
            self._D = pivots = P.alone + 1.0
            if not pivots.min() > 0.0:
                raise NotPositiveDefiniteError("a pivot is not positive")
            self._B = P.across / pivots
            S = S - self._B @ P.across.T
            self.log_det, self.sds[P.parting.alone] = float(np.log(pivots).sum()), 1.0 / np.sqrt(pivots)
        lower = cholesky(S.T)
        self.log_det += log_det_from_cholesky(lower)
        self._R = triangular_inverse(lower)

    def solve(self, b: Array) -> Array:
        """W S^-1 W'b."""
        W, R, (rest, alone) = self._W, self._R, (self._parting.rest, self._parting.alone)
        if W.ndim == 2:
            return np.asarray(W @ (R.T @ (R @ (W.T @ b))))
        if not len(alone):
            return np.asarray(W * (R.T @ (R @ (W * b))))
        b = W * b
        x, own = np.empty(len(b)), b[alone]
        x[rest] = of_rest = R.T @ (R @ (b[rest] - self._B @ own))
        x[alone] = own / self._D - of_rest @ self._B
        return np.asarray(W * x)

    def covariance(self) -> Border:
        """W S^-1 W', as far as it is held."""
        W = self._W
        if self._parting.shape[1]:
            V = Border(self._parting, np.empty(self._parting.size))
            np.matmul(self._R.T, self._R, out=V.rest)
            np.matmul(V.rest, -self._B, out=V.across)
            V.alone[...] = 1.0 / self._D - np.einsum("ij,ij->j", self._B, V.across)
        else:
            S = symmetric_from_lower(lapack.dlauum(self._R, lower=1)[0]).T
            V = Border(self._parting, (S if W.ndim == 1 else np.ascontiguousarray(W @ (W @ S).T)).ravel())
        if W.ndim == 1:
            V.scale(W)
        return V

    def root(self, alone: bool = True) -> Array:
        """A root of it, in columns for the rest and, if wanted, for those that are ``alone``."""
        W, R, (r, a) = self._W, self._R, self._parting.shape
        if W.ndim == 2:
            return np.asarray(W @ R.T)
        if not a:
            return np.asarray(W[:, None] * R.T)
        found, at, own = np.zeros((r + a, r + a if alone else r)), self._parting.rest, self._parting.alone
        found[at, :r] = W[at, None] * R.T
        found[own, :r] = -W[own, None] * (R @ self._B).T
        if alone:
            found[own, np.arange(r, r + a)] = W[own] * self.sds[own]
        return found
