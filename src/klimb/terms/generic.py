"""``generic(g, Q=M)``: effects of levels with a precision matrix of the user's own; ``iid(g)``: independent ones.

    w ~ N(0, s^2 Q^-1)

A singular Q (an intrinsic field) says nothing of its null space: there the effects are 0, by constraints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, NotPositiveDefiniteError, listed, require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.linalg.sparse_cholesky import analysed
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.rows.table import Source
from klimb.terms.base import Nodes
from klimb.terms.field import LevelField, directions, scaled_entries, symmetric_pattern
from klimb.theta import ParameterBlock

MOST_DENSE = 3000  # levels up to which the null space of a matrix is looked for
SINGULAR = 1e-9  # eigenvalues below this, of the largest, are 0
NEARLY = 1e-5  # the same where the rank is given


@stored("term.generic")
@dataclass(frozen=True, eq=False)
class UserPrecision(LevelField):
    """Effects of levels with a given precision; its null space is constrained to 0."""

    kind = "generic"
    functions = (Function("generic", "special", (Parameter("g", "column"), Parameter("Q", "object"),
                                                 Parameter("rank", "whole", None)),
                          "levels with a precision matrix of your own", joins=True),
                 Function("iid", "special", (Parameter("g", "column"),), "independent levels, as a factor of products",
                          joins=True))
    name: str
    column: str
    labels: tuple[str, ...]
    data: Array
    indices: Any
    indptr: Any
    null: Array  # (levels, dimension): an orthonormal basis of the null space
    logdet: float
    spread: float  # the mean variance of a level at sd 1
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[UserPrecision, ...]":
        """The matrix that the fit was given by this name, over the levels of the data."""
        arguments = bind(call)
        column = arguments["g"].name
        levels = source.factor(column)[1]
        if call.function == "iid":
            Q, labels, rank = symmetric_pattern(scipy_sparse.eye_array(len(levels))), levels, None
        else:
            wanted, rank = arguments["Q"], arguments["rank"]
            require(wanted in source.objects, f"expected a matrix called {wanted} beside the data", "none",
                    f"Pass klimb.fit(..., matrices={{{wanted!r}: Q}}).")
            Q, labels = read_precision(source.objects[wanted], levels, wanted)
        require(len(labels) >= 2, "expected at least two levels", len(labels), "Leave the term out.")
        null, logdet, spread = _null_space(Q, rank, str(arguments.get("Q")))
        return (cls(f"{call.function}({column})", column, labels, Q.data, Q.indices, Q.indptr, null, logdet, spread),)

    @cached_property
    def pattern(self) -> Any:
        n = len(self.labels)
        return scipy_sparse.csc_array((self.data, self.indices, self.indptr), shape=(n, n))

    def constraints(self) -> Array | None:
        return self.null.T if self.null.shape[1] else None

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        return scaled_entries(self.data, self.logdet, len(self.labels) - self.null.shape[1], values[0])

    def modes(self) -> tuple[Array, Array]:
        vectors, sizes = directions(self.pattern, self.size - self.null.shape[1])
        return vectors / np.sqrt(sizes), np.ones(len(sizes))

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """A level that the matrix does not have varies as much as those that it has."""
        return super().new(block, (values[0] * np.sqrt(self.spread),))


def read_precision(given: Any, levels: Sequence[str], name: str) -> tuple[Any, tuple[str, ...]]:
    """A symmetric matrix in CSC form, and the label of each of its rows: those of the data in their order, or as named.

    >>> Q, labels = read_precision(([[2.0, -1.0], [-1.0, 2.0]], ["b", "a"]), ["a", "b"], "M")
    >>> Q.toarray().tolist(), labels
    ([[2.0, -1.0], [-1.0, 2.0]], ('b', 'a'))
    """
    names: Any = None
    if isinstance(given, tuple) and len(given) == 2:
        given, names = given
    elif hasattr(given, "index") and hasattr(given, "columns"):  # a data frame
        given, names = given.to_numpy(), given.index
    matrix = given if hasattr(given, "tocsc") else np.asarray(given, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be a square matrix", f"shape {matrix.shape}", "It has a row for every level.")
    Q = symmetric_pattern(scipy_sparse.csc_array(matrix, dtype=np.float64))
    require(np.isfinite(Q.data).all(), f"{name} must be finite", "NaN or infinity", "Check how it was made.")
    away = abs(Q - Q.T)
    require(not away.nnz or away.max() <= 1e-8 * abs(Q).max(), f"{name} must be symmetric",
            f"a difference of {away.max():.3g} to its transpose", "Pass both triangles.")
    if names is None and Q.shape[0] != len(levels):
        raise InputError(f"{name} must have a row for each of the {len(levels)} levels", f"{Q.shape[0]} rows",
                         "Pass (matrix, level names) where it has more.")
    labels = tuple(levels) if names is None else tuple(map(str, np.asarray(names).tolist()))
    if len(labels) != Q.shape[0] or len(set(labels)) < len(labels):
        raise InputError(f"{name} must have a different name for each of its {Q.shape[0]} rows",
                         f"{len(set(labels))} different ones", "Pass (matrix, level names).")
    missing = [level for level in levels if level not in set(labels)]
    require(not missing, f"{name} must have the levels of the data", f"no {listed(map(repr, missing), 3)}",
            "Name levels as the column does.")
    return Q, labels


def _null_space(Q: Any, rank: int | None, name: str) -> tuple[Array, float, float]:
    """An orthonormal basis of the null space, the log determinant without it, and the mean variance."""
    n = Q.shape[0]
    if n > MOST_DENSE or (Q.nnz == n and Q.data.min() > 0.0):
        try:
            if rank is not None and rank < n:
                raise NotPositiveDefiniteError("by what the user says")
            factor = analysed(Q).factor(Q.data)
        except NotPositiveDefiniteError as error:
            raise InputError(f"{name} must be positive definite where it has more than {MOST_DENSE} levels",
                             f"{n} levels, and a singular matrix", "Add a little to its diagonal.") from error
        diagonal = Q.indices == np.repeat(np.arange(n), np.diff(Q.indptr))
        return np.zeros((n, 0)), float(factor.logdet), float(factor.inverse_entries[diagonal].mean())
    values, vectors = np.linalg.eigh(Q.toarray())
    top = float(np.abs(values).max())
    require(values[0] >= -SINGULAR * top and top != 0.0, f"{name} must be positive semi-definite",
            f"an eigenvalue of {values[0]:.3g}", "It is a precision matrix: the inverse of a covariance.")
    zero = int(np.count_nonzero(values <= SINGULAR * top)) if rank is None else n - rank
    if not 0 <= zero < n or (zero and values[zero - 1] > NEARLY * top) or values[zero] <= 0.0:
        raise InputError(f"rank must be that of {name}", f"{rank}, where eigenvalues are {values[0]:.3g}, ...",
                         "Leave it out to have it found.")
    rest = values[zero:]
    return vectors[:, :zero], float(np.log(rest).sum()), float((1.0 / rest).sum() / n)
