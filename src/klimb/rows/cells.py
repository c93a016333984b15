"""Cells: rows that are equal in all that a formula names are counted, by the engine that holds them.

A likelihood adds over rows, so a row that occurs n times is one row of weight n: grouped by every column, the response
among them, the fit is that of the rows. Where y is continuous, some families need no more of the responses of a cell
than a few sums (`ResponseSums`); two responses with the same sums, n / 2 times each, then stand for them all.

Engines count (any that narwhals knows, NumPy for arrays), and what they give back is merged and put into an order that
depends on nothing but the cells themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from klimb.errors import need_columns
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import narwhals as nw
from klimb.rows.columns import Codes, Column
from klimb.rows.frames import Frame, read_frame

LARGEST = 1 << 62  # of a number that stands for a row
_N, _Y, _LOST = "_klimb_n", "_klimb_y", "_klimb_lost"  # columns that no table has


@dataclass(frozen=True)
class ResponseSums:
    """What a likelihood needs of the responses of a cell: means of functions of y, and perhaps their variance.

    The functions are "y" and "log y"; ``pair(means, variance)`` gives two responses with these means.
    """

    functions: tuple[str, ...]
    pair: Callable[[Array, Array], tuple[Array, Array]]
    above: float = -np.inf  # y must be larger


def _around(means: Array, variance: Array) -> tuple[Array, Array]:
    sd = np.sqrt(variance)
    return means[0] - sd, means[0] + sd


def _by_logs(means: Array, _: Array) -> tuple[Array, Array]:
    """a + b = 2 A and a b = G^2, with the arithmetic mean A and the geometric mean G <= A."""
    A, G = means[0], np.exp(means[1])
    high = A + np.sqrt(np.maximum((A - G) * (A + G), 0.0))
    return G * (G / high), high


MEAN = ResponseSums(("y",), lambda means, _: (means[0], means[0]), above=-5e-324)
MEAN_AND_VARIANCE = ResponseSums(("y",), _around)
MEAN_AND_LOG = ResponseSums(("y", "log y"), _by_logs, above=0.0)


@dataclass(frozen=True)
class CellKeys:
    """What is grouped by: columns, to how many digits, and the response whose sums are taken (None: it is counted)."""

    names: tuple[str, ...]
    digits: Mapping[str, int]
    response: str | None = None
    sums: ResponseSums | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.names if self.sums is None else (*self.names, _LOST)


@dataclass(frozen=True, eq=False)
class Tally:
    """Groups of rows: their columns, how many rows each has, and what is known of their responses."""

    frame: Frame  # a row for each group
    counts: Array
    means: Array  # (functions of y, groups)
    squares: Array  # sum over the group of (y - mean)^2
    ends: Array  # (2, groups): smallest and largest y
    first: Codes  # of each group, its first row in what was grouped

    def merged(self, by: CellKeys) -> "Tally":
        """Groups that are equal as one, in the order of their values."""
        inverse, first = cell_codes(self.frame, by.keys)
        size = len(first)
        counts: Array = np.bincount(inverse, self.counts, size).astype(np.float64)
        means = np.array([np.bincount(inverse, self.counts * own, size) / counts for own in self.means])
        squares: Array = np.zeros(0)
        ends = np.zeros((2, 0))
        if by.sums is not None:
            with np.errstate(invalid="ignore"):  # a response that is infinite
                away = self.means[0] - means[0][inverse]
            squares = np.bincount(inverse, self.squares + self.counts * away**2, size).astype(np.float64)
            ends = np.array([np.full(size, np.inf), np.full(size, -np.inf)])
            np.minimum.at(ends[0], inverse, self.ends[0])
            np.maximum.at(ends[1], inverse, self.ends[1])
        return Tally(self.frame.taken(first, by.keys), counts, means, squares, ends, first)

    def columns(self, by: CellKeys) -> dict[str, Array]:
        """What an engine gives back beside the columns themselves, by name."""
        if by.sums is None:
            return {_N: self.counts}
        means = {f"{_Y}{k}_mean": own for k, own in enumerate(self.means)}
        return {_N: self.counts, **means, f"{_Y}_var": self.squares / self.counts, f"{_Y}_min": self.ends[0],
                f"{_Y}_max": self.ends[1]}

    def rows(self, by: CellKeys) -> Frame:
        """The cells as a frame of rows that count several times."""
        if by.sums is None:
            return replace(self.frame, copies=self.counts)
        assert by.response is not None
        with np.errstate(all="ignore"):
            low, high = by.sums.pair(self.means, self.squares / self.counts)
        lost = self.frame.read(_LOST).values.astype(bool)
        # A response that the family does not take stays what it is, for the family to refuse.
        small, large = self.ends[0] <= by.sums.above, self.ends[1] == np.inf
        low = np.where(lost, np.nan, np.where(small, self.ends[0], np.where(large, self.ends[1], low)))
        spread = ~(lost | small | large) & (high > low)
        places = np.concatenate([np.arange(len(low)), np.flatnonzero(spread)])
        copies = (np.where(spread, 0.5, 1.0) * self.counts)[places]
        y = Column(by.response, "number", np.concatenate([low, high[spread]]),
                   np.concatenate([lost, np.zeros(int(spread.sum()), dtype=bool)]) if lost.any() else None)
        keys = self.frame.taken(places, by.names)
        return replace(keys, columns=(*by.names, by.response), copies=copies, summed=len(low),
                       _read=lambda name: y if name == by.response else keys.read(name), _cache={})


# -- counting by NumPy


def cell_codes(frame: Frame, names: Sequence[str]) -> tuple[Codes, Codes]:
    """For every row the number of its cell, in the order of the cells' values, and the first row of each cell.

    >>> frame = read_frame({"g": ["b", "a", "b"], "x": [1.0, 2.0, 1.0]})
    >>> cell_codes(frame, ["g", "x"])
    (array([1, 0, 1]), array([1, 0]))
    """
    total, size = np.zeros(frame.n, dtype=np.int64), 1
    for name in names:
        codes, count = _codes(frame.read(name))
        if size > LARGEST // count:
            known, total = np.unique(total, return_inverse=True)
            size = len(known)
        total, size = total * count + codes, size * count
    _, first, inverse = np.unique(total, return_index=True, return_inverse=True)
    return inverse.astype(np.intp), first.astype(np.intp)


def _codes(column: Column) -> tuple[Codes, int]:
    """Codes from 0, in the order of the values, missing values first; and how many there may be."""
    if column.kind != "number":
        codes, labels = column.factor
        return codes + 1, len(labels) + 1
    values, codes = np.unique(column.values, return_inverse=True)
    return np.where(column.lost, 0, codes + 1), len(values) + 1


def count_rows(frame: Frame, by: CellKeys) -> Tally:
    """The groups of a frame in memory, by the library that holds it, or by NumPy."""
    if frame.kind not in ("dict", "numpy"):
        native = nw.from_native(frame.native, eager_only=True)
        if all(name in native.columns and _is_plain(native.schema[name]) for name in by.names):
            return tally_of(grouped(native, by), by)
    return _counted(frame, by)


def _counted(frame: Frame, by: CellKeys) -> Tally:
    ones, none, every = np.ones(frame.n), np.zeros((0, frame.n)), np.arange(frame.n)
    frame = rounded(frame, by.digits)
    if by.sums is None:
        return Tally(frame, ones, none, ones, none, every).merged(by)
    assert by.response is not None
    y = frame.read(by.response).number
    lost = Column(_LOST, "flag", np.isnan(y))
    keyed = replace(frame, columns=(*frame.columns, _LOST), _cache={},
                    _read=lambda name: lost if name == _LOST else frame.read(name))
    with np.errstate(all="ignore"):
        known = {"y": y, "log y": np.log(y)}
        return Tally(keyed, ones, np.array([known[name] for name in by.sums.functions]), np.zeros(frame.n),
                     np.array([y, y]), every).merged(by)


def rounded(frame: Frame, digits: Mapping[str, int]) -> Frame:
    """The same frame with some numeric columns rounded, halves upwards."""
    need_columns(digits, frame.columns, "round= needs names of columns of the data")
    for name in digits:
        if frame.read(name).kind != "number":
            raise frame.read(name).unusable("numbers to be rounded")

    def read(name: str) -> Column:
        column = frame.read(name)
        scale = 10.0 ** digits.get(name, 0)
        return replace(column, values=((column.number * scale + 0.5) // 1.0) / scale) if name in digits else column

    return replace(frame, _read=read, _cache={}) if digits else frame


# -- counting by an engine


def grouped(frame: Any, by: CellKeys) -> Any:
    """A frame of narwhals, lazy or not, with a row for each group."""
    for name, digits in by.digits.items():
        scale = 10.0**digits
        frame = frame.with_columns((((nw.col(name) * scale + 0.5) // 1.0) / scale).alias(name))
    found = [nw.len().alias(_N)]
    if by.sums is None:
        return frame.select(*by.names).group_by(*by.names).agg(*found)
    y = nw.col(_Y)
    functions = {"y": y, "log y": nw.when(y > 0.0).then(y).log()}
    own = {f"{_Y}{k}": functions[name] for k, name in enumerate(by.sums.functions)}
    frame = frame.select(*by.names, nw.col(str(by.response)).cast(nw.Float64()).alias(_Y))
    frame = frame.with_columns(*(values.alias(name) for name, values in own.items()),
                               (y.is_null() | y.is_nan()).alias(_LOST))
    found += [nw.col(name).mean().alias(f"{name}_mean") for name in own]
    found += [y.var(ddof=0).alias(f"{_Y}_var"), y.min().alias(f"{_Y}_min"), y.max().alias(f"{_Y}_max")]
    return frame.group_by(*by.keys).agg(*found)


def tally_of(found: Any, by: CellKeys) -> Tally:
    """The groups that an engine gave back, merged: two kinds of missing value are one, and so is a rounded number."""
    digits = {name: digits for name, digits in by.digits.items() if name in by.names}
    frame = rounded(read_frame(found.to_native()), digits)

    def numbers(name: str) -> Array:
        return np.nan_to_num(frame.read(name).number, nan=0.0, posinf=np.inf, neginf=-np.inf)

    counts, every = frame.read(_N).number, np.arange(frame.n)
    if by.sums is None:
        return Tally(frame, counts, np.zeros((0, frame.n)), counts, np.zeros((2, frame.n)), every).merged(by)
    means = np.array([frame.read(f"{_Y}{k}_mean").number for k in range(len(by.sums.functions))])
    ends = np.array([numbers(f"{_Y}_min"), numbers(f"{_Y}_max")])
    return Tally(frame, counts, means, counts * numbers(f"{_Y}_var"), ends, every).merged(by)


def _is_plain(dtype: Any) -> bool:
    """Whether an engine can group by such a column: numbers, flags, text, categories, dates."""
    return bool(dtype.is_numeric() or dtype.is_temporal()
                or dtype in (nw.Boolean, nw.String, nw.Categorical) or isinstance(dtype, nw.Enum))
