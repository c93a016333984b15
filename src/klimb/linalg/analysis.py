"""The analysis of a symmetric sparse pattern: a narrow band where there is one, else a tree of fronts.

In blocks of as many rows as there are bands below the diagonal the factor L of a band is block bidiagonal, and the
inverse of L L' follows a Gauss-Markov chain from the last block to the first,

    Z_k = L_kk^-T L_kk^-1 + W_k Z_{k+1} W_k',        Z_{k,k+1} = W_k Z_{k+1},        W_k = -L_kk^-T L_{k+1,k}',

so that all its blocks come from the scan that marginal covariances of chains come from, in sums of positive terms.
"""

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.chains import marginal_covariances, product, product_tn, solve_band, solve_lower, symmetric
from klimb.linalg.sparse_cholesky import SparseCholesky, SymbolicCholesky
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import csgraph, lapack

WIDEST = 6  # bands below the diagonal up to which this is faster than fronts


def lower_triangle(pattern: Any) -> Index:
    """The places of a CSC pattern's entries on and below the diagonal."""
    return np.flatnonzero(pattern.indices >= np.repeat(np.arange(pattern.shape[1]), np.diff(pattern.indptr)))


def band_order(pattern: Any) -> Index | None:
    """An order of the nodes in which the pattern is a narrow band; None where there is none."""
    n = pattern.shape[0]
    columns = np.repeat(np.arange(n), np.diff(pattern.indptr))
    if np.abs(pattern.indices - columns).max(initial=0) <= WIDEST:
        return np.arange(n)
    if pattern.nnz > (2 * WIDEST + 1) * n:
        return None
    order = np.asarray(csgraph.reverse_cuthill_mckee(pattern.tocsr(), symmetric_mode=True), dtype=np.intp)
    place = np.empty(n, dtype=np.intp)
    place[order] = np.arange(n)
    return order if np.abs(place[pattern.indices] - place[columns]).max(initial=0) <= WIDEST else None


class BandPlan:
    """Where the entries of a pattern stand in LAPACK's lower band, and in the blocks of the inverse."""

    def __init__(self, pattern: Any, order: Index) -> None:
        n = pattern.shape[0]
        place = np.empty(n, dtype=np.intp)
        place[order] = np.arange(n)
        row, column = place[pattern.indices], place[np.repeat(np.arange(n), np.diff(pattern.indptr))]
        self.size, self.order = n, order
        self.below = int(np.abs(row - column).max(initial=0))
        self.lower = np.flatnonzero(row >= column)
        self.at = (row[self.lower] - column[self.lower], column[self.lower])
        self.block = max(self.below, 1)
        self.count = -(-n // self.block)
        first, second = np.minimum(row, column), np.maximum(row, column)
        self.first, self.second = divmod(first, self.block), divmod(second, self.block)

    def factor(self, values: Array) -> "BandFactor":
        """The factor for entries in the order of the pattern."""
        band = np.zeros((self.below + 1, self.size), order="F")
        band[self.at] = values[self.lower]
        factor, info = lapack.dpbtrf(band, lower=1, overwrite_ab=1)
        if info != 0 or not np.isfinite(factor[0]).all():
            raise NotPositiveDefiniteError(f"the leading minor of order {info} is not positive")
        return BandFactor(self, np.asarray(factor))


class BandFactor:
    """L of a band matrix; the same face as that of a sparse factor."""

    def __init__(self, plan: BandPlan, band: Array) -> None:
        self.plan, self.band = plan, band
        self.logdet = 2.0 * float(np.log(band[0]).sum())

    def _ordered(self, b: Array) -> Array:
        return np.asfortranarray(b[self.plan.order].reshape(self.plan.size, -1))

    def _back(self, x: Array, shape: tuple[int, ...]) -> Array:
        out = np.empty((self.plan.size, x.shape[1]))
        out[self.plan.order] = x
        return out.reshape(shape)

    def solve(self, b: Array) -> Array:
        x, _ = lapack.dpbtrs(self.band, self._ordered(b), lower=1, overwrite_b=1)
        return self._back(x, b.shape)

    def half_solve(self, b: Array) -> Array:
        return solve_band(self.band, self._ordered(b), transpose=False).reshape(b.shape)

    def root_solve(self, z: Array) -> Array:
        return self._back(solve_band(self.band, z.reshape(self.plan.size, -1), transpose=True), z.shape)

    @cached_property
    def inverse_entries(self) -> Array:
        plan = self.plan
        s, count = plan.block, plan.count
        band = np.zeros((plan.below + 1, s * count))
        band[:, : plan.size] = self.band
        band[0, plan.size :] = 1.0  # of no consequence: nothing is coupled to what fills the last block up
        diagonal, next_ = np.zeros((s, s, count)), np.zeros((s, s, count))
        for j in range(s):
            column = band[:, j::s]
            for i in range(j, min(j + plan.below + 1, s)):
                diagonal[i, j] = column[i - j]
            for i in range(j + 1):  # row i of the next block
                if s + i - j <= plan.below:
                    next_[i, j] = column[s + i - j]
        inverse = solve_lower(diagonal, np.broadcast_to(np.eye(s)[:, :, None], diagonal.shape))
        W = -product_tn(inverse, next_.transpose(1, 0, 2))
        noise = symmetric(product_tn(inverse, inverse))
        Z = marginal_covariances(W[..., ::-1], noise[..., ::-1])[..., ::-1]
        cross = np.zeros_like(Z)
        cross[..., :-1] = product(W[..., :-1], Z[..., 1:])
        (block, i), (other, j) = plan.first, plan.second
        return np.asarray(np.where(block == other, Z[i, j, block], cross[i, j, block]))


SelectedFactor: TypeAlias = BandFactor | SparseCholesky
Analysis: TypeAlias = BandPlan | SymbolicCholesky


def analysed(pattern: Any, coordinates: Array | None = None) -> Analysis:
    """The cheapest way to factorise matrices of a pattern (CSC, both triangles, its whole diagonal, sorted)."""
    order = band_order(pattern)
    return SymbolicCholesky(pattern, coordinates) if order is None else BandPlan(pattern, order)
