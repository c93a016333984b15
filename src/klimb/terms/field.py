"""Fields: weights on nodes (times, areas, places) with a sparse prior precision that moves with hyperparameters.

A kind of field says which entries its precision may have, what they are at given hyperparameters, and the log
determinant where its constraints hold; gradients, priors and files follow.

    d bound / d value = d log det(Q) / 2 - sum over entries of dQ_ij E[w_i w_j] / 2
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from klimb._stan import StanDefinition, StanPart, StanScope, said
from klimb.errors import InputError
from klimb.formula.numeric import Numeric
from klimb.latents.weights_posterior import Moments
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.rows.columns import match_levels
from klimb.rows.table import Source
from klimb.terms.base import UNSEEN, Context, Nodes, Term, WeightsPrior
from klimb.theta import ParameterBlock

STEP = 1e-5  # relative, of differences of the entries of a precision: they are smooth, known to all digits, and cheap
MOST_WRITTEN = 1500  # nodes of a field in a program in Stan
FLAT = 1e3  # prior sd, in units of the spread of f, of directions that an intrinsic field leaves free
MOST_NODES, MOST_EMPTY = 5_000_000, 1_000_000  # of whole-number positions, and where they are more than twice the data


class Field(Term):
    """A term whose weights have a sparse precision."""

    @cached_property
    @abstractmethod
    def pattern(self) -> Any:
        """A CSC matrix (both triangles, sorted) with an entry wherever the precision may have one."""

    @abstractmethod
    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        """The entries of the precision on the pattern, and its log determinant where the constraints hold."""

    @property
    def size(self) -> int:
        return int(self.pattern.shape[0])

    @abstractmethod
    def at_nodes(self) -> tuple[Any, Any]:
        """What its nodes are called (times, areas, places), and what they add to f as rows over its weights."""

    def places(self) -> Array | None:
        """(n, 2) coordinates of its nodes, where it knows them."""
        return None

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        pattern, (data, logdet) = self.pattern, self.entries(values)
        precision = scipy_sparse.csc_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)
        return WeightsPrior(np.zeros(self.size), np.zeros(0), precision=precision, logdet=logdet)

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[float, ...]:
        pattern = self.pattern
        columns = np.repeat(np.arange(self.size), np.diff(pattern.indptr))
        second = moments.pattern(pattern.indices.astype(np.intp), columns)
        return tuple(0.5 * (logdet - float(entries @ second)) for entries, logdet in self.slopes(values))

    def slopes(self, values: Sequence[Any]) -> list[tuple[Array, float]]:
        """Derivatives of ``entries`` in each value."""
        found = []
        for number, value in enumerate(values):
            step = STEP * max(min(abs(value), abs(1.0 - abs(value))), 1e-8)  # values near 0 and 1 stay on their side
            above, below = (self.entries([*values[:number], moved, *values[number + 1 :]])
                            for moved in (value + step, value - step))
            found.append(((above[0] - below[0]) / (2.0 * step), (above[1] - below[1]) / (2.0 * step)))
        return found

    def ready(self, block: Any, context: Context) -> Self:
        return replace(self, parameters=(context.sd(self.name, "field"), *self.shape_parameters(context)))  # type: ignore[type-var]

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        """Its parameters but for the standard deviation."""
        return ()

    def factor(self) -> Self:
        """The field as a factor of a product: values at its nodes alone."""
        return self

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """Where a row stands at no node of the field, nothing is known but its standard deviation."""
        return None if block.beyond is None else values[0] * block.beyond[:, None]

    # -- in Stan

    def modes(self) -> tuple[Array, Array]:
        """(D, r) and (r,): T with w = T (s .* z) and z ~ N(0, I), and what ``mode_sds`` needs to know of each mode.

        These are the directions in which the precision is diagonal at all values, without those of the constraints.
        """
        raise InputError("Stan text needs a field whose modes are known", self.name, "Give the field a method modes.")

    def mode_sds(self, values: Sequence[str], known: str) -> str:
        """s as an expression of the values; what is known of a mode is 1 where it follows the sd, and else 0."""
        return f"pow({values[0]}, {known})"

    @cached_property
    def _modes(self) -> tuple[Array, Array]:
        if self.size > MOST_WRITTEN:
            raise InputError(f"Stan text is written for fields of at most {MOST_WRITTEN:,} nodes, whose modes it holds",
                             f"{self.name} with {self.size:,}", "Use klimb.trust(fit) to judge the fit as it is.")
        return self.modes()

    def stan_root(self, values: Sequence[str], z: str, w: str, tag: str, columns: int = 0) -> StanPart:
        """The definition of ``w`` by independent standard normals ``z``: vectors, or matrices of so many columns."""
        (T, known), name, root = self._modes, f"known{tag}", f"T{tag}"
        sds = self.mode_sds(values, name)
        kind, scaled = f"vector[{len(T)}]", f"({sds} .* {z})"
        if columns:
            kind, scaled = f"matrix[{len(T)}, {columns}]", f"diag_pre_multiply({sds}, {z})"
        return StanPart(
            data=(f"vector[{len(known)}] {name};" + said(f"of each mode of {self.name}"),
                  f"matrix[{T.shape[0]}, {T.shape[1]}] {root};" + said("the modes at the nodes")),
            values={name: known, root: T}, transformed=(StanDefinition(kind, w, f"{root} * {scaled}"),),
            free=(T.shape[1],))

    def stan(self, block: Nodes, values: Sequence[str], scope: StanScope) -> StanPart:
        tag = scope.tag
        b, z = f"b{tag}", f"z{tag}"
        root, rows = self.stan_root(values, z + "{c}", b, tag), _stan_rows(block.values, b, tag, self.name)
        kind, inner = f"vector[{root.free[0]}]", z + "{c}"
        if len(root.free) > 1:
            kind, inner = f"matrix[{root.free[0]}, {root.free[1]}]", f"to_vector({inner})"
        return replace(rows, data=(*rows.data, *root.data), values={**rows.values, **root.values}, names=(z,),
                       parameters=(scope.declare(kind, "z", f"{self.name} in units of its modes"),),
                       transformed=root.transformed, model=(f"target += std_normal_lpdf({inner});",), weights=b,
                       shape=(self.size,), free=root.free)

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        """z = s .* (T'Q w), because T'Q T = diag(s)^-2."""
        T = self._modes[0]
        pulled = self.prior(values).precision @ T
        return np.asarray(weights @ pulled / np.sqrt(np.einsum("ij,ij->j", T, pulled)))


class LevelField(Field):
    """A field whose nodes are levels of a column."""

    column: str
    labels: tuple[str, ...]

    def level_columns(self) -> tuple[str, ...]:
        return (self.column,)

    def block(self, source: Source) -> Nodes:
        """A one at the node of each row's level; rows of levels that are no node have nothing, and are told."""
        codes = match_levels(*source.factor(self.column), self.labels)
        seen = np.flatnonzero(codes != UNSEEN)
        rows = scipy_sparse.csr_array((np.ones(len(seen)), (seen, codes[seen])), shape=(len(codes), len(self.labels)))
        return Nodes(rows, (codes == UNSEEN).astype(np.float64) if len(seen) < len(codes) else None)

    def at_nodes(self) -> tuple[Any, Any]:
        return self.labels, scipy_sparse.eye_array(len(self.labels), format="csr")


class Innovations(NamedTuple):
    """What an intrinsic field at sd 1 takes for independent: D w, so that its structure matrix is D'D."""

    D: Any
    constraints: Array  # rows C with C w = 0
    logdet: float  # of D'D where these hold
    scale: float = 1.0  # precision of an innovation over a step of the mean length


class IntrinsicField(Field):
    """|D w|^2 / s^2 over nodes, which says nothing of some directions; these may have weights beside, of a known sd."""

    @cached_property
    @abstractmethod
    def innovations(self) -> Innovations:
        """Those of the field."""

    @property
    def beside(self) -> tuple[int, float]:
        """How many other weights there are, and their prior sd."""
        return 0, 1.0

    @cached_property
    def pattern(self) -> Any:
        D = self.innovations.D
        return symmetric_pattern(scipy_sparse.block_diag([D.T @ D, scipy_sparse.eye_array(self.beside[0])]))

    def constraints(self) -> Array:
        rows = self.innovations.constraints
        return np.hstack([rows, np.zeros((len(rows), self.beside[0]))])

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        (D, rows, logdet, _), (k, sd), own = self.innovations, self.beside, self.pattern.data
        data, total = scaled_entries(own[: len(own) - k], logdet, D.shape[1] - len(rows), values[0])
        return np.append(data, np.full(k, sd**-2)), total - 2.0 * k * float(np.log(sd))

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[float, ...]:
        """d bound / ds = (mean'Q mean - sum_i gamma_i Cov(f_i, w_i)) / s: E[w'Q w] itself cancels for many nodes."""
        if moments.explained is None:
            return super().gradient(values, moments)
        D, sd = self.innovations.D, values[0]
        roughness = D @ moments.mean[: D.shape[1]]
        return ((float(roughness @ roughness) / sd**2 - moments.explained(slice(0, D.shape[1]))) / sd,)

    def modes(self) -> tuple[Array, Array]:
        D, rows, _, _ = self.innovations
        vectors, sizes = directions(D, D.shape[1] - len(rows))
        return with_flat(vectors / sizes, self.beside[1], self.beside[0])


def _stan_rows(rows: Any, b: str, tag: str, name: str) -> StanPart:
    """What sparse rows add to f: the node of each where that is all, else their product."""
    rows = scipy_sparse.csr_array(rows)
    if rows.nnz == rows.shape[0] and (np.diff(rows.indptr) == 1).all() and (rows.data == 1.0).all():
        node = f"node{tag}"
        return StanPart(data=(f"array[N] int<lower=1> {node};" + said(f"of {name}"),), values={node: rows.indices + 1},
                        value=f"{b}{{c}}[{node}]")
    entry, column, start = f"entry{tag}", f"column{tag}", f"start{tag}"
    return StanPart(
        data=(f"vector[{rows.nnz}] {entry};" + said(f"rows of {name} over its nodes, as Stan has sparse matrices"),
              f"array[{rows.nnz}] int<lower=1> {column};", f"array[N + 1] int<lower=1> {start};"),
        values={entry: rows.data, column: rows.indices + 1, start: rows.indptr + 1},
        value=f"csr_matrix_times_vector(N, {rows.shape[1]}, {entry}, {column}, {start}, {b}{{c}})")


def with_flat(modes: Array, sd: float, count: int) -> tuple[Array, Array]:
    """Modes, and beside them weights of their own whose standard deviation is known: T, and which of it moves."""
    (n, r), k = modes.shape, count
    flat = np.hstack([np.zeros((k, r)), sd * np.eye(k)])
    return np.vstack([np.hstack([modes, np.zeros((n, k))]), flat]), np.repeat([1.0, 0.0], [r, k])


def directions(matrix: Any, rank: int) -> tuple[Array, Array]:
    """The right singular vectors of the largest singular values of a matrix, and these."""
    _, sizes, rows = np.linalg.svd(matrix.toarray())
    return np.asarray(rows[:rank].T), sizes[:rank]


def scaled_entries(entries: Array, logdet: float, rank: int, sd: float) -> tuple[Array, float]:
    """Those of a precision divided by sd^2."""
    return entries / sd**2, logdet - 2.0 * rank * float(np.log(sd))


def banded(bands: Sequence[Array], offsets: Sequence[int], shape: tuple[int, int]) -> Any:
    """A CSR matrix with these diagonals."""
    every: Any = list(bands)
    return scipy_sparse.diags_array(every, offsets=list(offsets), shape=shape).tocsr()


def symmetric_pattern(matrix: Any) -> Any:
    """A CSC matrix with sorted indices and an entry on all of its diagonal."""
    n, entries, every = matrix.shape[0], scipy_sparse.coo_array(matrix), np.arange(matrix.shape[0])
    rows, columns = np.concatenate([entries.row, every]), np.concatenate([entries.col, every])
    found = scipy_sparse.csc_array((np.concatenate([entries.data, np.zeros(n)]), (rows, columns)), shape=(n, n))
    found.sum_duplicates()
    found.sort_indices()
    return found


def on_pattern(matrix: Any, pattern: Any) -> Array:
    """The entries of a matrix in the order of those of a pattern that has them all."""
    found, n = scipy_sparse.coo_array(matrix), pattern.shape[0]
    keys = np.repeat(np.arange(n, dtype=np.int64), np.diff(pattern.indptr)) * n + pattern.indices
    at = np.searchsorted(keys, found.col.astype(np.int64) * n + found.row)
    return np.bincount(at, found.data, len(keys)).astype(np.float64)


def column_positions(expression: Numeric, source: Source, *, whole: bool = False) -> Array:
    """The different values of a column, those of rows that were left out for want of a response included."""
    column = source.frame.read(expression.column)
    there = np.ones(source.frame.n, dtype=bool) if column.missing is None else ~column.missing
    if source.kept is not None and source.weights is not None:  # a row of weight 0 is not there
        there &= np.isin(np.arange(source.frame.n), source.kept)
    every = Source(source.frame, np.flatnonzero(there))
    positions = snapped(expression.evaluate(every))
    if whole:
        every.check(positions == np.round(positions), positions, f"expected whole-number times in {expression}",
                    "Count time in steps.")
    return np.unique(positions)


def snapped(positions: Array) -> Array:
    """Whole numbers where all are whole but for rounding.

    >>> snapped(np.array([10.0 * 0.3, 1.1 * 10.0, 2.0]))
    array([ 3., 11.,  2.])
    """
    whole = np.round(positions)
    near = np.abs(positions - whole) <= 1e-9 + 4.0 * np.finfo(float).eps * np.abs(positions)
    return np.where(near | np.isnan(positions), whole, positions)


def apart(positions: Array, closest: float) -> Array:
    """Sorted positions without those that are this close to the last one that is kept.

    >>> apart(np.array([0.0, 1.0, 1.3, 1.6, 2.1, 3.0]), 0.5)
    array([0. , 1. , 1.6, 3. ])
    """
    if not (np.diff(positions) <= closest).any():
        return positions
    kept, last = np.zeros(len(positions), dtype=bool), -np.inf
    for place, position in enumerate(positions.tolist()):
        if position - last > closest:
            kept[place], last = True, position
    return positions[kept]


def grid(positions: Array) -> Array:
    """A node at every whole number of their range where positions are whole numbers, else one at each.

    >>> grid(np.array([3.0, 1.0, 6.0])), grid(np.array([0.5, 2.0]))
    (array([1., 2., 3., 4., 5., 6.]), array([0.5, 2. ]))
    """
    positions = np.unique(positions)
    if not len(positions):
        return positions
    if (positions != np.round(positions)).any():
        return positions
    count, most = positions[-1] - positions[0] + 1.0, min(max(MOST_EMPTY, 2 * len(positions)), MOST_NODES)
    if count > most:
        step = float(np.gcd.reduce(np.diff(positions).astype(np.int64))) if count < 2.0**62 else 1.0
        raise InputError(f"{len(positions):,} whole-number positions may span {most:,} steps", f"{count:,.0f}",
                         f"Divide the column by {step:,.0f}." if step > 1.0 else
                         "Divide the column by its natural step. In rw1 and rw2 numbers that are not whole (t + 0.5) "
                         "have a node each.")
    return np.arange(positions[0], positions[-1] + 0.5)
