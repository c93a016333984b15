"""Columns of a design: their ranges, means, sds and correlations, and in words which of them say nothing new."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.dense import gram, row_blocks, triangle_by_rows
from klimb.rows.scaling import largest_entries

CLEARLY = 1e-6  # share of a column, and eigenvalue of the correlations, below which a QR factorisation has to tell
FOLDED = 32  # rows that are taken as one long one, where a ufunc of short rows spends its time between them
TOLERANCE = 1e-13  # share of a column's length that must be new: the square of a column around 1e6 has 1e-12
INTERCEPT = "Intercept"


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Weighted, in two passes that copy nothing: least and largest entry, mean and sd, and how columns correlate."""

    low: Array
    high: Array
    mean: Array
    sd: Array
    correlation: Array  # (columns, columns); zero for columns that are constant

    @property
    def size(self) -> Array:
        """Largest absolute entry of every column."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @classmethod
    def of(cls, values: Any, shares: Array, made: Callable[[Array], Array] | None = None) -> Self:
        """Of the columns that ``made`` makes of blocks of rows, or of those as they are."""
        n = len(shares)
        if not n:
            nothing = np.zeros(values.shape[1])
            return cls(nothing, nothing, nothing, nothing, np.zeros((len(nothing), len(nothing))))
        blocks = list(row_blocks(n, max(values.shape[1], 1)))

        def part(rows: slice) -> Array:
            return values[rows] if made is None else made(values[rows])

        first = part(blocks[0])
        low, high, total = first[0].copy(), first[0].copy(), np.zeros(first.shape[1])
        for rows in blocks:
            block = part(rows)
            np.minimum(low, _over_rows(np.minimum, block), out=low)
            np.maximum(high, _over_rows(np.maximum, block), out=high)
            total += shares[rows] @ block
        mean = np.clip(total / shares.sum(), low, high)
        # Rows are divided by the largest entry, so that the squares of 1e200 have a sum.
        unit = np.where(high > low, np.maximum(np.abs(high - mean), np.abs(low - mean)), 1.0)
        root = np.sqrt(shares)[:, None]
        squares = gram((root[rows] * ((part(rows) - mean) / unit) for rows in blocks), len(mean))
        size = np.sqrt(np.diagonal(squares))
        scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
        return cls(low, high, mean, unit * size, squares * np.outer(scale, scale))

    @property
    def apart(self) -> bool:
        """Whether no column is made up of others, or of the constant: clearly, as far as squares can tell."""
        varies = self.high > self.low
        if (~varies).sum() > 1 or (self.size == 0.0).any() or (self.sd[varies] <= CLEARLY * self.size[varies]).any():
            return False
        return bool(np.linalg.eigvalsh(self.correlation[np.ix_(varies, varies)]).min(initial=1.0) > CLEARLY)


def _over_rows(ends: np.ufunc, block: Array) -> Array:
    """The least or largest entry of every column."""
    whole = len(block) // FOLDED * FOLDED
    if not whole or not block.size or not block.flags.c_contiguous:
        return np.asarray(ends.reduce(block, axis=0))
    folded = ends.reduce(block[:whole].reshape(-1, FOLDED * block.shape[1]), axis=0).reshape(FOLDED, -1)
    return np.asarray(ends.reduce(np.vstack([folded, block[whole:]]), axis=0))


def collinear(matrix: Any, names: Sequence[str]) -> list[str]:
    """One sentence for every column that the columns before it make up.

    >>> x = np.array([1.0, 2.0, 4.0, 7.0])
    >>> print(*collinear(np.column_stack([np.ones(4), x, 3 - 2 * x, 0 * x]), ["Intercept", "x", "z", "w"]), sep="\\n")
    'z' is 3 Intercept - 2 x: the data cannot tell them apart.
    'w' is zero in every row: the data say nothing about its coefficient.
    """
    n, p = matrix.shape
    if len(names) != p:
        raise ValueError(f"{p} columns and {len(names)} names")
    if not n or not p:
        return []
    found = []
    sizes = largest_entries(matrix)
    R = _triangle(matrix, np.where(sizes > 0.0, sizes, 1.0))
    basis: list[int] = []  # columns that are needed
    Q = np.zeros((p, 0))  # orthonormal, in the coordinates of R
    T = np.zeros((0, 0))  # R[:, basis] = Q T
    for j in range(p):
        column = R[:, j]
        if sizes[j] == 0.0:
            found.append(f"{names[j]!r} is zero in every row: the data say nothing about its coefficient.")
            continue
        inside = Q.T @ column
        rest = column - Q @ inside
        again = Q.T @ rest
        rest, inside = rest - Q @ again, inside + again
        new = float(np.linalg.norm(rest))
        if new <= TOLERANCE * float(np.linalg.norm(column)):
            weights = np.linalg.solve(T, inside) * sizes[j] / sizes[basis]
            found.append(_sentence(names[j], [names[k] for k in basis], weights, sizes[basis] / sizes[j]))
            continue
        T = np.block([[T, inside[:, None]], [np.zeros((1, len(basis))), np.array([[new]])]])
        Q = np.column_stack([Q, rest / new])
        basis.append(j)
    return found


def _triangle(matrix: Any, sizes: Array) -> Array:
    """R of a QR of the scaled columns, some rows at a time."""

    def blocks() -> Iterator[Array]:
        for rows in row_blocks(*matrix.shape):
            part = matrix[rows]
            yield np.asarray(part.toarray() if hasattr(part, "toarray") else part, dtype=np.float64) / sizes

    return triangle_by_rows(blocks, matrix.shape[1])


def _sentence(name: str, others: list[str], weights: Array, sizes: Array) -> str:
    parts = [(weight, other) for weight, other, size in zip(weights.tolist(), others, sizes.tolist(), strict=True)
             if abs(weight) * size > 1e-7]
    if len(parts) == 1 and parts[0][1] == INTERCEPT:
        return f"{name!r} is {parts[0][0]:.6g} in every row: the data cannot tell it from the intercept."
    if len(parts) > 8:
        return (f"{name!r} is a combination of {len(parts)} other columns, such as "
                f"{', '.join(repr(other) for _, other in parts[:4])}: the data cannot tell them apart.")
    text = ""
    for weight, other in parts:
        sign = ("-" if not text else " - ") if weight < 0 else ("" if not text else " + ")
        size = _plain(abs(weight))
        text += f"{sign}{other}" if size == "1" else f"{sign}{size} {other}"
    return f"{name!r} is {text}: the data cannot tell them apart."


def _plain(weight: float) -> str:
    """A weight as a short fraction where it is one, else with six digits."""
    simple = Fraction(weight).limit_denominator(12)
    if 0 < simple < 10_000 and abs(float(simple) - weight) < 1e-8 * weight:
        return str(simple)
    return f"{weight:.6g}"
