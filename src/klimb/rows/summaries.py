"""What all rows say of a column, met some at a time: records of some rows, and the record of both where two meet.

Sums, ranges and counts are those of all rows. Different values are kept up to `MOST_DISTINCT`; beyond it those whose
hashes are smallest stay, a sample of the different values that depends on nothing but what these are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klimb.errors import require
from klimb.linalg.matrix import ColumnDesign
from klimb.numerics.arrays import Array, Index, slices
from klimb.rows.columns import Column, kinds_differ, number_label
from klimb.rows.distinct import Hashes, row_hashes

MOST_DISTINCT = 1 << 16  # quantiles of the different values are off by 1 / sqrt(4 * this) = 0.2% of their rank
MOST_LEVELS = 5_000_000  # of a column
AT_ONCE = 1 << 18  # rows that are hashed at a time


@dataclass(frozen=True)
class NumberFacts:
    """Of numbers that count several times: how often in all, mean, root of the squares about it, and range."""

    total: float
    mean: float
    spread: float
    low: float
    high: float
    whole: bool  # whole numbers only

    @classmethod
    def of(cls, values: Array, weights: Array | None) -> "NumberFacts":
        """Values are divided by the largest first, so that neither 1e200 nor 1e-200 loses the spread."""
        values = np.ascontiguousarray(values)  # read five times, where those of a matrix lie apart
        low, high = float(values.min()), float(values.max())
        size = max(abs(low), abs(high)) or 1.0
        whole = not (values[:1000] % 1.0).any() and bool((values == np.floor(values)).all())
        away, total = values / size, float(len(values)) if weights is None else float(weights.sum())
        centre = float(away.sum() if weights is None else weights @ away) / total
        away -= centre
        centre += float(away.sum() if weights is None else weights @ away) / total
        squares = float(away @ away if weights is None else weights @ away**2)
        spread = sqrt(squares) * size if low < high else 0.0
        return cls(total, centre * size if low < high else low, spread, low, high, whole)

    def plus(self, other: "NumberFacts") -> "NumberFacts":
        """Of the rows of both (Chan, Golub and LeVeque 1979)."""
        total = self.total + other.total
        share, away = other.total / total, other.mean - self.mean
        spread = hypot(self.spread, other.spread, sqrt(self.total * share) * away)
        return NumberFacts(total, self.mean + share * away, spread, min(self.low, other.low),
                           max(self.high, other.high), self.whole and other.whole)


@dataclass(frozen=True, eq=False)
class MatrixMoments:
    """Of columns: how often rows count in all, means, squares and products about them, and ranges."""

    total: float
    mean: Array
    squares: Array  # (K, K)
    low: Array
    high: Array

    @classmethod
    def of(cls, values: Array, weights: Array | None) -> "MatrixMoments":
        w = np.ones(len(values)) if weights is None else weights
        total = float(w.sum())
        mean = w @ values / total if total > 0.0 else values[0] * 1.0
        return cls(total, mean, ColumnDesign(values - mean).weighted_gram(w), values.min(axis=0), values.max(axis=0))

    def plus(self, other: "MatrixMoments") -> "MatrixMoments":
        """Of the rows of both."""
        total = self.total + other.total
        share, away = other.total / total, other.mean - self.mean
        squares = self.squares + other.squares + self.total * share * np.outer(away, away)
        return MatrixMoments(total, self.mean + share * away, squares, np.minimum(self.low, other.low),
                             np.maximum(self.high, other.high))


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Different rows of some columns: all of them, or those with the smallest hashes, in the order of these.

    >>> some = DistinctRows.of(np.array([[3.0], [1.0], [3.0]])).plus(DistinctRows.of(np.array([[2.0]])))
    >>> some.sorted().ravel()
    array([1., 2., 3.])
    """

    rows: Array  # (n, columns)
    hashes: Hashes

    @classmethod
    def of(cls, X: Array) -> "DistinctRows":
        found = cls(X[:0], np.zeros(0, dtype=np.uint64))
        for some in slices(len(X), AT_ONCE):
            rows, hashes = X[some], row_hashes(X[some])
            if len(found.hashes) == MOST_DISTINCT:
                small = hashes < found.hashes[-1]
                rows, hashes = rows[small], hashes[small]
            found = found.plus(cls(rows, hashes))
        return found

    def plus(self, other: "DistinctRows") -> "DistinctRows":
        """Of both."""
        hashes, first = np.unique(np.concatenate([self.hashes, other.hashes]), return_index=True)
        first = first[:MOST_DISTINCT]
        return DistinctRows(np.concatenate([self.rows, other.rows])[first], hashes[:MOST_DISTINCT])

    def sorted(self) -> Array:
        """In the order of their values, column by column."""
        return np.asarray(np.unique(self.rows + 0.0, axis=0))


@dataclass(frozen=True, eq=False)
class LevelCounts:
    """The levels of a column, and how often each counts; of an ordered category also those that do not occur."""

    values: npt.NDArray[Any]  # numbers, or labels
    counts: Array
    order: str  # "number", "text", "given", or "own": that of a category without one, as long as all agree

    @classmethod
    def of(cls, column: Column, rows: Index | None, weights: Array | None) -> "LevelCounts":
        """Of some rows (None: of all), none of which is missing."""
        if column.kind in ("number", "flag") and column.values.dtype != object:
            kept = column.values if rows is None else column.values[rows]
            values, codes = np.unique(kept, return_inverse=True)
            return cls(values, np.bincount(codes, weights, len(values)).astype(np.float64), "number")
        given = column.kind == "category" and not column.coded_text
        codes, labels = (column.values.astype(np.intp), column.categories) if given else column.factor
        codes = codes if rows is None else codes[rows]
        if column.kind in ("number", "flag"):  # objects, some of them missing
            values = np.array([label == "True" for label in labels])
            return cls(values, np.bincount(codes, weights, len(values)).astype(np.float64), "number")
        order = "text" if not given else "given" if column.ordered else "own"
        return cls(np.array(labels, dtype=object), np.bincount(codes, weights, len(labels)).astype(np.float64), order)

    def plus(self, other: "LevelCounts") -> "LevelCounts":
        """Of both: numbers by size, text by its characters, ordered categories as they came first."""
        order = self.order if self.order == other.order else "text"
        if len(self.values) == len(other.values) and (self.values == other.values).all():
            return LevelCounts(self.values, self.counts + other.counts, order)
        if order == "given":
            known: dict[Any, None] = dict.fromkeys([*self.values.tolist(), *other.values.tolist()])
            values = np.array(list(known), dtype=object)
            place = {value: k for k, value in enumerate(known)}
            codes = np.array([place[value] for value in [*self.values.tolist(), *other.values.tolist()]], dtype=np.intp)
        else:
            values, codes = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.bincount(codes, np.concatenate([self.counts, other.counts])).astype(np.float64)
        return LevelCounts(values, counts, "text" if order == "own" else order)

    def labels(self) -> tuple[tuple[str, ...], Array]:
        """The levels that occur, and their counts."""
        there = self.counts > 0.0
        if self.order != "number":
            return tuple(map(str, self.values[there].tolist())), self.counts[there]
        whole = self.values.dtype.kind in "iu"
        return tuple(map(str if whole else number_label, self.values[there].tolist())), self.counts[there]


@dataclass(frozen=True, eq=False)
class ColumnFacts:
    """What rows say of one column: its kind, how many values are missing, and what the others are."""

    name: str
    kind: str
    coded_text: bool
    ordered: bool
    where: str  # the first rows that have any value
    missing: int
    numbers: NumberFacts | None
    levels: LevelCounts | None

    @classmethod
    def of(cls, column: Column, rows: Index | None, weights: Array | None, where: str, as_levels: bool) -> Self:
        """Of rows that are kept (None: of all of them)."""
        missing = 0 if column.missing is None else int(column.missing.sum())
        numbers, levels, any_kept = None, None, len(column) if rows is None else len(rows)
        if any_kept and column.kind in ("number", "flag"):
            with np.errstate(over="ignore", invalid="ignore"):
                values = column.number
                numbers = NumberFacts.of(values if rows is None else values[rows], weights)
        if any_kept and (column.is_factor or column.kind == "date" or (as_levels and numbers is not None)):
            levels = LevelCounts.of(column, rows, weights)
        return cls(column.name, column.kind, column.coded_text, column.ordered,
                   where if missing < len(column) else "", missing, numbers, levels)

    def plus(self, other: "ColumnFacts") -> "ColumnFacts":
        """Of the rows of both; an error where one has numbers and the other text."""
        first = self if self.where or not other.where else other
        if self.where and other.where and self._family != other._family:
            raise kinds_differ(self.name, f"{_KINDS[self._family]} in {self.where}, {_KINDS[other._family]} in "
                                          f"{other.where}")
        levels = _both(LevelCounts.plus, self.levels, other.levels)
        require(levels is None or len(levels.values) <= MOST_LEVELS,
                f"column {self.name!r} must have at most {MOST_LEVELS:,} levels", "more", "Make fewer levels of it.")
        return ColumnFacts(self.name, first.kind, first.coded_text, first.ordered, first.where,
                           self.missing + other.missing, _both(NumberFacts.plus, self.numbers, other.numbers), levels)

    @property
    def _family(self) -> str:
        return "text" if self.kind == "category" else self.kind

    def column(self) -> Column:
        """A column of this kind without rows."""
        return Column(self.name, self.kind, np.zeros(0), None, (), self.ordered, self.coded_text)


_KINDS = {"text": "text", "number": "numbers", "flag": "True and False", "date": "dates", "mixed": "numbers and text",
          "other": "other values"}


def _both(plus: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else plus(one, other)
