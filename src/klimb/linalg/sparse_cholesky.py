"""Cholesky of sparse matrices with selected inverse: a pattern is analysed once, then values are factorised.

Before the fronts (`klimb.linalg.fronts`), sets of nodes that are not coupled to each other are eliminated at
once: leaves, levels of a group, half of a chain. With the set first, M = [[D, C], [C', A]] and D is diagonal: L11 =
D^1/2, L21' = D^-1/2 C, and A - L21 L21' is what is left to factorise. For the inverse, with Z22 that of what is left,
Z12 = -D^-1 C Z22 and diag Z11 = 1/D - rowsums(D^-1 C * Z12). Products over pairs of neighbours are listed once, where
they are few; otherwise they are products of sparse matrices, and what is left is dense.

A narrow band has no fronts. In blocks of as many rows as there are bands below the diagonal its factor L is block
bidiagonal, and the inverse of L L' follows a Gauss-Markov chain from the last block to the first,

    Z_k = L_kk^-T L_kk^-1 + W_k Z_{k+1} W_k',        Z_{k,k+1} = W_k Z_{k+1},        W_k = -L_kk^-T L_{k+1,k}',

so that all its blocks come from the scan that marginal covariances of chains come from, in sums of positive terms.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.chains import marginal_covariances, product, product_tn, solve_band, solve_lower, symmetric
from klimb.linalg.fronts import FrontFactor, FrontTree
from klimb.linalg.ordering import Integers, transposition
from klimb.numerics.arrays import Array, Index, Mask
from klimb.numerics.lazy import csgraph, lapack, scipy_sparse

FEW = 3  # neighbours up to which elimination does not add entries: d (d - 1) new ones for 2 d + 1
SMALL = 1000  # fewer nodes are not worth a set of their own
SHARE = 0.2  # of the nodes that a set must hold
DENSITY = 0.25  # of a pattern from which on there is nothing to gain
PAIRS = 4_000_000  # products of neighbours that are listed
BLOCK = 4_000_000  # entries of Z12 that are held at once
LOST = 16.0 * np.finfo(float).eps  # a pivot below this share of its diagonal entry has no digit left
DENSE = 10.0  # a row with more than this many times sqrt(n) entries is eliminated last
WIDEST = 6  # bands below the diagonal up to which this is faster than fronts


def independent_set(pattern: Any, last: Mask) -> "IndependentSet | None":
    """The next set worth its elimination, or nothing. ``last`` marks nodes that stay."""
    size = pattern.shape[0]
    degree = np.diff(pattern.indptr) - 1
    if size - int(last.sum()) <= 1 or size < SMALL or pattern.nnz > DENSITY * size**2:
        return None
    row, column = pattern.indices, np.repeat(np.arange(size), degree + 1)
    inner = ~last[row] & ~last[column] & (row != column)
    row, column = row[inner], column[inner]
    sparse_degree = np.bincount(column, minlength=size)
    # All at once, if what stays is dense and small. It has to touch every edge, so at least ``least`` nodes stay.
    least = int(np.searchsorted(np.cumsum(np.sort(sparse_degree)[::-1]), len(row) // 2))
    if least**2 <= 2.0 * float((degree.astype(float) ** 2).sum()):
        taken = _greedy(row, column, sparse_degree, ~last)
        kept, pairs = _remainder(degree, taken)
        if kept**2 <= 2.0 * pairs and 2 * kept < size:
            return IndependentSet(pattern, taken, dense=True)
    few = ~last & (sparse_degree <= FEW)
    if few.sum() >= SHARE * size:
        taken = _greedy(row, column, sparse_degree, few)
        kept, pairs = _remainder(degree, taken)
        if kept <= (1.0 - SHARE) * size and pairs <= min(PAIRS, 4.0 * pattern.nnz):
            return IndependentSet(pattern, taken, dense=False)
    return None


def _remainder(degree: Integers, taken: Mask) -> tuple[int, float]:
    """How many nodes stay, and how many products of neighbours their elimination takes."""
    return int((~taken).sum()), float((degree[taken].astype(float) ** 2).sum())


def _greedy(row: Integers, column: Integers, degree: Integers, allowed: Mask) -> Mask:
    """A set to which none can be added, low degrees first: each pass takes those that come before all neighbours."""
    size = len(degree)
    key = np.empty(size, dtype=np.int64)
    mixed = (np.arange(size) * 2654435761) % 4294967296  # breaks ties without long runs of waiting nodes
    key[np.lexsort((mixed, degree))] = np.arange(size)
    taken, open_ = np.zeros(size, dtype=bool), allowed.copy()
    while open_.any():
        live = open_[row] & open_[column]
        row, column = row[live], column[live]
        beaten = np.zeros(size, dtype=bool)
        beaten[column[key[row] < key[column]]] = True
        chosen = open_ & ~beaten
        taken |= chosen
        open_ &= beaten
        open_[row[chosen[column]]] = False
    taken[-1] &= not taken.all()  # one node stays
    return taken


class IndependentSet:
    """The set, the pattern of what is left, and the places of entries in both."""

    def __init__(self, pattern: Any, taken: Mask, *, dense: bool) -> None:
        size = pattern.shape[0]
        self.entries, self.dense = pattern.nnz, dense
        self.taken, self.kept = np.flatnonzero(taken), np.flatnonzero(~taken)
        number = np.empty(size, dtype=np.int64)
        number[self.taken], number[self.kept] = np.arange(len(self.taken)), np.arange(len(self.kept))
        row, column = pattern.indices, np.repeat(np.arange(size), np.diff(pattern.indptr))
        self.pivots = np.flatnonzero(taken[column] & (row == column))
        self.couplings = np.flatnonzero(taken[column] & ~taken[row])
        self.inner = np.flatnonzero(~taken[column] & ~taken[row])
        self.mirrored = transposition(pattern)[self.couplings]
        self.of = number[column[self.couplings]]
        self.neighbour = number[row[self.couplings]]
        self.starts = np.searchsorted(self.of, np.arange(len(self.taken) + 1))
        left = len(self.kept)
        inner_key = number[column[self.inner]] * left + number[row[self.inner]]
        count = np.diff(self.starts)
        self.listed = int((count**2).sum()) <= PAIRS
        if self.listed:  # every coupling with every other one of the same node
            repeat = count[self.of]
            self.first = np.repeat(np.arange(len(self.of)), repeat)
            begin = np.cumsum(repeat) - repeat
            self.second = np.arange(len(self.first)) - begin[self.first] + self.starts[self.of[self.first]]
            self.pairs = self.neighbour[self.first] * left + self.neighbour[self.second]
        if dense:
            self.places, rows, ends = inner_key, np.tile(np.arange(left), left), np.arange(left + 1) * left
        else:
            keys, where = np.unique(np.concatenate([inner_key, self.pairs]), return_inverse=True)
            self.places, self.pairs = where[:len(inner_key)], where[len(inner_key):]
            rows, ends = keys % left, np.searchsorted(keys, np.arange(left + 1) * left)
        ones = np.ones(len(rows), dtype=np.int8)
        self.rest = scipy_sparse.csc_array((ones, rows.astype(np.int32), ends), shape=(left, left))

    def eliminate(self, values: Array) -> "tuple[EliminatedSet, Array]":
        """The columns of L that belong to the set, and the entries of what is left."""
        root = np.sqrt(values[self.pivots])
        if not (root > 0.0).all():
            raise NotPositiveDefiniteError("a diagonal entry is not positive")
        scaled = values[self.couplings] / root[self.of]
        left = np.zeros(self.rest.nnz)
        left[self.places] = values[self.inner]
        part = EliminatedSet(self, root, scaled)
        if self.listed:
            left -= np.bincount(self.pairs, scaled[self.first] * scaled[self.second], len(left))
        else:
            left -= (part.matrix.T @ part.matrix).toarray().ravel()
        return part, left


@dataclass(frozen=True)
class EliminatedSet:
    """D^1/2 and D^-1/2 C of an independent set."""

    plan: IndependentSet
    root: Array
    scaled: Array

    @property
    def matrix(self) -> Any:
        """D^-1/2 C as a sparse matrix."""
        plan = self.plan
        shape = (len(plan.taken), len(plan.kept))
        return scipy_sparse.csr_array((self.scaled, plan.neighbour, plan.starts), shape=shape)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """L11^-1 x1 and x2 - L21 L11^-1 x1."""
        y = x[self.plan.taken] / self.root[:, None]
        return y, x[self.plan.kept] - self.matrix.T @ y

    def backward(self, y: Array, x: Array) -> Array:
        """L^-T of y for the set, given the rest of the solution."""
        out = np.empty((len(y) + len(x), x.shape[1]))
        out[self.plan.kept] = x
        out[self.plan.taken] = (y - self.matrix @ x) / self.root[:, None]
        return out

    def inverse_entries(self, left: Array) -> Array:
        """Entries of the inverse on the whole pattern, from those of what is left."""
        plan = self.plan
        out = np.empty(plan.entries)
        out[plan.inner] = left[plan.places]
        weights = self.scaled / self.root[plan.of]
        if plan.listed:
            coupled = -np.bincount(plan.first, weights[plan.second] * left[plan.pairs], len(weights)).astype(float)
        else:
            coupled = self._coupled_dense(left.reshape(len(plan.kept), -1))
        out[plan.couplings] = out[plan.mirrored] = coupled
        out[plan.pivots] = self.root**-2 - np.bincount(plan.of, weights * coupled, len(self.root))
        return out

    def _coupled_dense(self, inverse: Array) -> Array:
        """Entries of -D^-1 C Z22 on the pattern of C, some rows at a time."""
        plan, matrix = self.plan, self.matrix
        out = np.empty(len(plan.of))
        step = max(1, BLOCK // max(1, len(inverse)))
        for begin in range(0, len(plan.taken), step):
            block = matrix[begin:begin + step] @ inverse
            at = slice(plan.starts[begin], plan.starts[min(begin + step, len(plan.taken))])
            out[at] = block[plan.of[at] - begin, plan.neighbour[at]]
        return np.asarray(-out / self.root[plan.of])


class SymbolicCholesky:
    """The analysis of a symmetric pattern: order of elimination, tree of fronts, places of the entries.

    ``pattern`` is CSC with both triangles, its whole diagonal, sorted and without duplicates. Separators are found in
    space where there are ``coordinates`` (n, d) of the nodes, else in the graph.
    """

    def __init__(self, pattern: Any, coordinates: Array | None = None) -> None:
        self.pattern = pattern
        self.size: int = pattern.shape[0]
        degree = np.diff(pattern.indptr)
        last = degree > max(16.0, DENSE * np.sqrt(self.size))
        nodes = np.arange(self.size)
        pivots = np.flatnonzero(pattern.indices == np.repeat(nodes, degree))
        self.stages: list[IndependentSet] = []
        self.diagonal = np.zeros(0, dtype=np.int64)  # places of the diagonal's entries in the order of elimination
        while (stage := independent_set(pattern, last)) is not None:
            self.stages.append(stage)
            self.diagonal = np.concatenate([self.diagonal, pivots[nodes[stage.taken]]])
            pattern, last, nodes = stage.rest, last[stage.kept], nodes[stage.kept]
        self.tree = FrontTree(pattern, last, None if coordinates is None else coordinates[nodes])
        self.diagonal = np.concatenate([self.diagonal, pivots[nodes[self.tree.order]]])

    def factor(self, values: Array) -> "SparseCholesky":
        """The factor for entries in the order of ``pattern.data``; only one triangle is looked at."""
        return SparseCholesky(self, values)


class SparseCholesky:
    """P M P' = L L' with what follows from it. Made by `SymbolicCholesky.factor`."""

    def __init__(self, symbolic: SymbolicCholesky, values: Array) -> None:
        self.symbolic = symbolic
        self._parts: list[EliminatedSet] = []
        left = np.asarray(values, dtype=float)
        with np.errstate(all="ignore"):  # whatever is not a number ends in a pivot
            for stage in symbolic.stages:
                part, left = stage.eliminate(left)
                self._parts.append(part)
            self._core = FrontFactor(symbolic.tree, left[symbolic.tree.lower])
            roots = np.concatenate([*(part.root for part in self._parts), self._core.roots])
            sound = (roots**2 > LOST * np.asarray(values)[symbolic.diagonal]) & np.isfinite(roots)
        if not sound.all():
            raise NotPositiveDefiniteError("a pivot has no digit left: the matrix is singular to working precision")
        self.logdet = 2.0 * float(np.log(roots).sum())

    def half_solve(self, b: Array) -> Array:
        """L^-1 P b for b of shape (n,) or (n, k): the squared length is b' M^-1 b."""
        x = np.array(b, dtype=float).reshape(len(b), -1)
        done = []
        for part in self._parts:
            y, x = part.forward(x)
            done.append(y)
        done.append(self._core.forward(x[self.symbolic.tree.order]))
        return np.concatenate(done).reshape(np.shape(b))

    def root_solve(self, z: Array) -> Array:
        """P' L^-T z: has covariance M^-1 where the entries of z are independent with variance 1."""
        z_ = np.array(z, dtype=float).reshape(len(z), -1)
        sizes = [len(stage.taken) for stage in self.symbolic.stages]
        *parts, core = np.split(z_, np.cumsum(sizes))
        x = np.empty_like(core)
        x[self.symbolic.tree.order] = self._core.backward(core)
        for part, y in zip(reversed(self._parts), reversed(parts), strict=True):
            x = part.backward(y, x)
        return x.reshape(np.shape(z))

    def solve(self, b: Array) -> Array:
        """M^-1 b for b of shape (n,) or (n, k)."""
        return self.root_solve(self.half_solve(b))

    @cached_property
    def inverse_entries(self) -> Array:
        """Entries of M^-1 in the order of ``pattern.data``."""
        values = self._core.inverse_entries()
        for part in reversed(self._parts):
            values = part.inverse_entries(values)
        return values


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
