"""Operators that are functions: a product and its adjoint, a stack of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.linalg.operators.base import Operator, Rows, as_row_indices
from klimb.linalg.operators.explicit import stack_rows
from klimb.numerics.arrays import Array, finite_sum


@final
class FunctionOperator(Operator):
    """A product and its adjoint, each for the columns of a matrix, as a ``LinearOperator`` offers them.

    A complex operator acts on real vectors; its rows become the real parts followed by the imaginary parts, so that
    B' w = Re(B^H (w_re + i w_im)). Every product is checked for shape and finite numbers.
    """

    def __init__(self, matmat: Callable[[Any], Any], rmatmat: Callable[[Any], Any], shape: tuple[int, int],
                 name: str, *, complex_values: bool = False) -> None:
        self._matmat, self._rmatmat, self._name = matmat, rmatmat, name
        self._complex, self._rows = complex_values, shape[0]
        self.shape = (2 * shape[0] if complex_values else shape[0], shape[1])

    def _times(self, U: Array) -> Array:
        values = self._checked(self._matmat(U if U.ndim == 2 else U[:, None]), self._rows, "matmat")
        if self._complex:
            values = np.concatenate([values.real, values.imag])
        return np.ascontiguousarray(values if U.ndim == 2 else values[:, 0], dtype=np.float64)

    def _transpose_times(self, W: Array) -> Array:
        block = W if W.ndim == 2 else W[:, None]
        if self._complex:
            block = block[: self._rows] + 1j * block[self._rows :]
        values = self._checked(self._rmatmat(block), self.shape[1], "rmatmat").real
        return np.ascontiguousarray(values if W.ndim == 2 else values[:, 0], dtype=np.float64)

    def _checked(self, values: Any, rows: int, product: str) -> Any:
        values = np.asarray(values)
        if values.ndim != 2 or values.shape[0] != rows:
            raise InputError(f"{product} of {self._name} must return {rows} rows", f"shape {values.shape}",
                             "Check the shape that the operator was given.")
        if np.iscomplexobj(values) and not self._complex and np.abs(values.imag).max(initial=0.0) > 0.0:
            raise InputError(f"{product} of {self._name} must be real, as its dtype says", "complex numbers",
                             "Give the operator dtype=complex, then its rows become pairs of real ones.")
        if not finite_sum(values) and not np.isfinite(values).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise InputError(f"{product} of {self._name} must be finite", f"{values[where]} at index {where}",
                             "Check the operator for overflow and for division by zero.")
        return values


@final
class StackedOperator(Operator):
    """Operators of equal width, one below the other."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        self.parts = tuple(parts)
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        self._ends = np.cumsum([part.shape[0] for part in parts])

    def _times(self, U: Array) -> Array:
        return np.concatenate([part.times(U) for part in self.parts])

    def _transpose_times(self, W: Array) -> Array:
        total = np.zeros((self.shape[1], *W.shape[1:]))
        for part, block in zip(self.parts, self._split(W), strict=True):
            total += part.transpose_times(block)
        return total

    def gram_diagonal(self, gamma: Array) -> Array | None:
        total = np.zeros(self.shape[1])
        for part, weights in zip(self.parts, self._split(gamma), strict=True):
            diagonal = part.gram_diagonal(weights)
            if diagonal is None:
                return None
            total += diagonal
        return total

    def row_norms_squared(self, scale: Array) -> Array | None:
        norms = [part.row_norms_squared(scale) for part in self.parts]
        known = [part for part in norms if part is not None]
        return np.concatenate(known) if len(known) == len(norms) else None

    def take(self, rows: Rows) -> Operator:
        """Each run of rows of one part is taken from that part; the order of the rows is kept."""
        wanted = as_row_indices(rows, self.shape[0])
        owner = np.searchsorted(self._ends, wanted, side="right")
        cuts = np.flatnonzero(np.diff(owner)) + 1
        if len(cuts) > 4 * len(self.parts):  # shuffled rows: the parts cannot be taken apart cheaply
            return super().take(wanted)
        starts = np.concatenate([[0], self._ends])
        taken = [self.parts[owner[run[0]]].take(wanted[run] - starts[owner[run[0]]])
                 for run in np.split(np.arange(len(wanted)), cuts) if len(run)]
        return taken[0] if len(taken) == 1 else StackedOperator(taken) if taken else super().take(wanted)

    @property
    def explicit(self) -> Any | None:
        matrices: list[Any] = [part.explicit for part in self.parts]
        if any(matrix is None for matrix in matrices):
            return None
        if not any(hasattr(matrix, "tocsr") for matrix in matrices):
            return np.concatenate(matrices)
        return stack_rows(matrices)

    def dense(self) -> Array:
        return np.concatenate([part.dense() for part in self.parts])

    def gram(self, gamma: Array) -> Array:
        total = np.zeros((self.shape[1], self.shape[1]), order="F")
        for part, weights in zip(self.parts, self._split(gamma), strict=True):
            total += part.gram(weights)
        return total

    def _split(self, rows: Array) -> list[Array]:
        return np.split(rows, self._ends[:-1])
