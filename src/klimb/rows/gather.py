"""Which rows a fit sees: the caller's, or cells of them where that pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from klimb.errors import InputError, need_columns, require
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import narwhals as nw
from klimb.rows.blocks import ArrayTable, BlockEngine, RowTable
from klimb.rows.cells import CellKeys, ResponseSums, cell_codes, count_rows, rounded
from klimb.rows.columns import read_column
from klimb.rows.frames import Frame, read_frame
from klimb.rows.scans import Scan, TooManyCells

LEAST = 50_000  # rows from which cells are looked for, and up to which rows are read into memory as they are
SHARE = 0.2  # cells per row up to which they pay
MOST_ROWS = 2_000_000  # that are read into memory where cells do not pay
SAMPLE = 10_000  # rows that are looked at first
HARDLY = 0.99  # of the first rows that differ, from which cells are not counted
MOST_READ = 2**25  # numbers of rows elsewhere that are read into memory
MOST_ENTRIES = 2**27  # numbers of a table in memory (1 GiB) from which its rows are not encoded all at once
TAKEN = 400.0  # bytes of memory for each number of a table that is fitted in memory, where those are limited
SEED = 20260103
OWN_WEIGHTS = "_klimb_weights"  # the column of weights that are given as an array


@dataclass(frozen=True)
class Wanted:
    """What a fit needs of a table: names of columns, digits that some are rounded to, and how y may be summed up.

    ``cells`` is None (where it pays), False, or True; ``sums`` is what the family needs of ``response``, None where it
    needs all of it.
    """

    names: tuple[str, ...]
    response: str = ""
    sums: ResponseSums | None = None
    cells: bool | None = None
    digits: Mapping[str, Any] = field(default_factory=dict)
    passes: bool = False  # whether rows that are no cells shall be passed over, however few they are
    engine: BlockEngine | None = None  # by which engine
    memory: float = inf  # bytes that a fit may take

    def __post_init__(self) -> None:
        need_columns(self.digits, self.names, "round= needs names of columns that the formula uses")
        for name, digits in self.digits.items():
            if not isinstance(digits, (int, np.integer)) or abs(int(digits)) > 300:
                raise InputError("round= needs a whole number of digits", f"{digits!r} for {name!r}",
                                 'Write round={"x": 1} for tenths, -2 for hundreds.')

    def keys(self, sums: ResponseSums | None) -> CellKeys:
        names = {*self.names} - ({self.response} if sums is not None else set())
        return CellKeys(tuple(sorted(names)), self.digits, self.response if sums is not None else None, sums)


def gather(table: Frame | Scan, wanted: Wanted, weights: Array | None = None) -> Frame | RowTable:
    """The rows of a table, or its cells: a frame of which ``copies`` says how many rows each row stands for.

    Rows that are too many for memory, and those that an engine passes over, are a table in blocks.

    Weights that are given as an array are one more column, `OWN_WEIGHTS`, of cells.

    >>> frame = read_frame({"y": [0, 1, 1, 1], "g": ["a", "a", "b", "b"]})
    >>> cells = gather(frame, Wanted(("y", "g"), "y", cells=True))
    >>> cells.column("g").tolist(), cells.column("y").tolist(), cells.copies.tolist()
    (['a', 'a', 'b'], [0, 1, 1], [1.0, 1.0, 2.0])
    """
    found = _of_scan(table, wanted, weights) if isinstance(table, Scan) else _of_frame(table, wanted, weights)
    if isinstance(found, RowTable) or found.copies is None:
        return found
    kept = {*wanted.names, *([OWN_WEIGHTS] if weights is not None else [])}
    return replace(found, columns=(*(name for name in table.columns if name in kept), *(kept - {*table.columns})))


def _of_frame(frame: Frame, wanted: Wanted, weights: Array | None) -> Frame | RowTable:
    if wanted.cells is False or not frame.n:
        return _rows_of(frame, wanted, weights)
    own = _weighed(frame, weights)
    by = wanted.keys(wanted.sums if wanted.cells and frame.read(wanted.response).kind == "number" else None)
    by = by if weights is None else replace(by, names=(*by.names, OWN_WEIGHTS))
    try:
        if wanted.cells or _may_pay(own, by):
            found = count_rows(own, by)
            if wanted.cells or len(found.counts) <= SHARE * frame.n:
                return replace(found.rows(by), whole=frame)
    except InputError:  # of a column that holds neither numbers nor levels, which the formula points at
        pass
    return _rows_of(frame, wanted, weights)


def _rows_of(frame: Frame, wanted: Wanted, weights: Array | None) -> Frame | RowTable:
    """The rows of a frame as they are, in blocks where they are many."""
    many = frame.n * len(wanted.names) > min(MOST_ENTRIES, wanted.memory / TAKEN)
    if not frame.n or not (wanted.passes or many):
        return rounded(frame, wanted.digits)
    own = _weighed(rounded(frame, wanted.digits), weights)
    return ArrayTable(own, [*wanted.names, *([OWN_WEIGHTS] if weights is not None else [])])


def _weighed(frame: Frame, weights: Array | None) -> Frame:
    """The frame with weights as a column."""
    if weights is None:
        return frame
    if len(weights) != frame.n:
        raise InputError(f"weights must have one entry per row ({frame.n})", f"{len(weights)}", "Pass one per row.")
    column = read_column(OWN_WEIGHTS, weights)
    return Frame(frame.native, "dict", (*frame.columns, OWN_WEIGHTS), frame.n,
                 lambda name: column if name == OWN_WEIGHTS else frame.read(name))


def _may_pay(frame: Frame, by: CellKeys) -> bool:
    """Whether a sample of the rows repeats itself as often as that of few cells would."""
    if frame.n < LEAST:
        return False
    rows = np.sort(np.random.default_rng(SEED).choice(frame.n, SAMPLE, replace=False))
    if frame.kind in ("dict", "numpy"):
        sample = frame.taken(rows, by.names)
    else:
        native = nw.from_native(frame.native, eager_only=True).select(*by.names)
        sample = read_frame(native[rows].to_native())
    most = 2.5 * SHARE * frame.n  # a sample is no census: what it lets through is counted
    return len(cell_codes(rounded(sample, by.digits), by.names)[1]) <= float(most * -np.expm1(-SAMPLE / most))


def _of_scan(scan: Scan, wanted: Wanted, weights: Array | None) -> Frame | RowTable:
    require(weights is None, "weights of rows that are not in memory must be one of their columns", "an array",
            'Name the column: weights="w".')
    for name in wanted.digits:
        require(scan.is_number(name), "round= needs columns of numbers", repr(name), "Leave it out.")
    if wanted.cells is None and not wanted.passes and (few := scan.head(wanted.names, LEAST)) is not None:
        return rounded(few, wanted.digits)
    if wanted.cells is False or (wanted.cells is None and not wanted.digits and _all_differ(scan, wanted.names)):
        return _all_rows(scan, wanted)
    by = wanted.keys(wanted.sums if scan.is_number(wanted.response) else None)
    try:
        found = scan.tally(by)
    except TooManyCells:
        if wanted.cells or not scan.again:
            raise
        return _all_rows(scan, wanted)
    if wanted.cells is None and scan.again and len(found.counts) > SHARE * float(found.counts.sum()):
        return _all_rows(scan, wanted)
    return found.rows(by)


def _all_rows(scan: Scan, wanted: Wanted) -> Frame | RowTable:
    """Rows as they are: in memory, or in blocks where they are many or an engine is there for them."""
    table: Any = None if scan.again else scan.blocks(wanted.names, wanted.engine)  # in a file, then
    rows = scan.count() if table is None else table.n
    most = min(MOST_READ, wanted.memory / TAKEN)
    if not wanted.passes and rows <= MOST_ROWS and rows * len(wanted.names) <= most:
        return rounded(scan.collect(wanted.names) if table is None else table.whole(wanted.names), wanted.digits)
    require(not wanted.digits, "round= makes cells of rows, and these are too many for memory", dict(wanted.digits),
            "Round to fewer digits, or leave round= out.")
    return scan.blocks(wanted.names, wanted.engine) if table is None else table


def _all_differ(scan: Scan, names: Sequence[str]) -> bool:
    """Whether the first rows hardly repeat themselves: more cells than memory holds, then, or next to it."""
    first = scan.first(names, LEAST)
    return first.n > SAMPLE and len(cell_codes(first, names)[1]) > HARDLY * first.n
