"""Fields: weights on nodes (times, areas, places) with a sparse prior precision that moves with hyperparameters.

A kind of field says which entries its precision may have, what they are at given hyperparameters, and the log
determinant where its constraints hold; gradients, priors and files follow.

    d bound / d value = d log det(Q) / 2 - sum over entries of dQ_ij E[w_i w_j] / 2
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stan import StanPart, StanScope
from klimb.errors import InputError
from klimb.latents.weights_posterior import Moments
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import Exponential
from klimb.rows.columns import match_levels
from klimb.rows.table import Source
from klimb.terms.base import UNSEEN, Context, Nodes, Term, TermBlock, WeightsPrior
from klimb.theta import ParameterBlock, PositiveParameter

STEP = 1e-5  # relative, of differences of the entries of a precision: they are smooth, known to all digits, and cheap
FLAT = 1e3  # prior sd, in units of the spread of f, of directions that an intrinsic field leaves free


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
            sides = []
            for moved in (value + step, value - step):
                sides.append(self.entries([*values[:number], moved, *values[number + 1 :]]))
            found.append(((sides[0][0] - sides[1][0]) / (2.0 * step), (sides[0][1] - sides[1][1]) / (2.0 * step)))
        return found

    def ready(self, block: TermBlock, context: Context) -> Self:
        return replace(self, parameters=(self.scale_parameter(context), *self.shape_parameters(context)))  # type: ignore[type-var]

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        """Its parameters but for the standard deviation."""
        return ()

    def factor(self) -> Self:
        """The field as a factor of a product: values at its nodes alone."""
        return self

    def scale_parameter(self, context: Context) -> PositiveParameter:
        """The standard deviation of the field, whose size at 1 is about 1 everywhere."""
        scale = context.units.spread
        return context.choices.positive(f"sd({self.name})", Exponential(scale), scale, begin=0.5 * scale, kind="field")

    def stan(self, block: TermBlock, values: Sequence[str], scope: StanScope) -> StanPart:
        raise InputError("Stan text is written for terms with few columns or independent weights",
                         f"{self.name}, whose precision is a sparse matrix",
                         "Use klimb.trust(fit) to judge the fit as it is.")


def rows_of_levels(source: Source, column: str, labels: tuple[str, ...]) -> Nodes:
    """A one at the node of each row's level; rows of levels that are no node have nothing, and are told."""
    codes = match_levels(*source.factor(column), labels)
    seen = np.flatnonzero(codes != UNSEEN)
    rows = scipy_sparse.csr_array((np.ones(len(seen)), (seen, codes[seen])), shape=(len(codes), len(labels)))
    return Nodes(rows, (codes == UNSEEN).astype(np.float64) if len(seen) < len(codes) else None)


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
