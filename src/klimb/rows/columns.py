"""A column of any data frame as one of a few kinds: numbers, flags, text, categories, dates.

A column keeps which of its values are missing (None, NaN, NaT, a null, a masked entry) and, as a factor, what its
levels are. Levels are known by their label, so that 3, 3.0 and "3" are one level, whatever type the next frame has.
"""

import datetime
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, Index, Mask

Codes: TypeAlias = Index

MISSING = -1  # code of a missing value
SPARSE = 8  # numbers between the first and the last level, over levels, from which those are searched for


@dataclass(frozen=True, eq=False)
class Column:
    """One column, read but not yet encoded."""

    name: str
    kind: str  # number, flag, text, category, date, mixed, other
    values: npt.NDArray[Any]  # numbers as they came; objects for text; codes for category
    missing: Mask | None = None  # None where nothing is missing
    categories: tuple[str, ...] = ()  # of a category: labels in the order of the codes
    ordered: bool = False
    coded_text: bool = False  # a category only because text was read as codes
    finite: bool = False  # known to be nothing but finite numbers

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process go the numbers, or where they are in a mapped file; not what was made of them."""
        return _arrived, tuple(_sent(getattr(self, own.name)) for own in fields(self))

    @cached_property
    def factor(self) -> tuple[Codes, tuple[str, ...]]:
        """Codes and labels of the levels that occur; a missing value has the code MISSING.

        Numbers are sorted as numbers, text by its characters, categories stay in their own order.
        """
        if self.kind == "category":
            return used_levels(self.values.astype(np.intp), self.categories)
        if self.kind in ("number", "flag"):
            return _factor_numbers(self.values, self.missing)
        if self.kind == "text":
            return _factor_text(self.values.tolist(), self.missing)
        if self.kind == "date":
            return _factor_text([_date_label(value) for value in self.values.tolist()], self.missing)
        raise self.unusable("groups or levels")

    @cached_property
    def number(self) -> Array:
        """The values as float64, NaN where missing."""
        if self.kind == "number" or (self.kind == "flag" and self.values.dtype != object):
            if self.values.dtype == np.float64 and self.missing is None:  # the caller's own numbers
                out = self.values.view()
                out.flags.writeable = False
                return out
            out = self.values.astype(np.float64)
            if self.missing is not None:
                out[self.missing] = np.nan
            return out
        if self.kind == "flag":
            return np.array([np.nan if lost else float(bool(value))
                             for value, lost in zip(self.values.tolist(), self.lost, strict=True)])
        raise self.unusable("numbers")

    @property
    def lost(self) -> Mask:
        """Where a value is missing."""
        return np.zeros(len(self), dtype=bool) if self.missing is None else self.missing

    @property
    def is_text(self) -> bool:
        """Whether the column holds text that nobody declared to be a category."""
        return self.kind == "text" or self.coded_text

    @property
    def is_factor(self) -> bool:
        """Whether the column is a factor where a formula only names it."""
        return self.kind in ("text", "category", "flag")

    def plain(self) -> npt.NDArray[Any]:
        """The column as a plain array: floats or integers, booleans, or objects (None where missing)."""
        if self.kind == "number":
            return self.values if self.missing is None else self.number
        if self.kind == "flag":
            return self.values.astype(bool) if self.missing is None else self.number
        if self.kind in ("category", "date"):
            codes, labels = (self.values, self.categories) if self.kind == "category" else self.factor
            return np.asarray(np.array([*labels, None], dtype=object)[codes])
        return self.values

    def unusable(self, wanted: str) -> InputError:
        """Why the column cannot serve as what is wanted."""
        if self.kind == "mixed":
            where = [i for i, value in enumerate(self.values.tolist()) if isinstance(value, str)]
            return InputError(f"column {self.name!r} must hold numbers only or text only",
                              f"{count(len(where), 'text value')} among numbers: {shown(self.values[where], where)}",
                              "Correct these rows, or turn the whole column into text.")
        if self.kind == "date":
            return InputError(f"column {self.name!r} must hold {wanted}", "dates or times",
                              "Turn them into numbers first, for instance days since the first one; C(...) and "
                              "(1 | ...) take them as levels.")
        if self.kind in ("text", "category"):
            values = self.plain()
            odd = [i for i, value in enumerate(values.tolist()) if value is not None and not is_number(value)]
            some = odd or list(range(len(self)))  # all rows, where every one is the name of a number
            return InputError(f"column {self.name!r} must hold {wanted}", f"text: {shown(values[some], some)}",
                              "Correct it, or use the column as a factor.")
        return InputError(f"column {self.name!r} must hold numbers, booleans, text or categories",
                          f"values such as {_short(next(iter(self.values), None))}",
                          "Turn the column into one of these.")


# -- to another process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSlice:
    """Where the numbers of a memory map are, or of a part of it."""

    path: str
    dtype: str
    offset: int
    n: int


def _sent(values: Any) -> Any:
    """Where the numbers are, if they are a part of a mapped file; else what is given."""
    whole = values
    while isinstance(getattr(whole, "base", None), np.ndarray):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or not values.flags.c_contiguous:
        return values
    begin = whole.offset + values.ctypes.data - whole.ctypes.data
    return FileSlice(str(whole.filename), values.dtype.str, begin, len(values))


def _arrived(*parts: Any) -> Column:
    found: list[Any] = [np.memmap(part.path, part.dtype, "r", part.offset, (part.n,)) if isinstance(part, FileSlice)
                        else part for part in parts]
    return Column(*found)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_column(name: str, values: Any) -> Column:
    """A column from a list or an array of numpy."""
    if isinstance(values, np.ma.MaskedArray):
        column = read_column(name, np.asarray(values.data))
        mask = np.ma.getmaskarray(values) | column.lost
        return Column(name, column.kind, column.values, mask if mask.any() else None)
    array = values if isinstance(values, np.ndarray) else _as_array(values)
    require(array.ndim == 1, f"column {name!r} must have one dimension", f"shape {array.shape}",
            "Give every column of a matrix a name of its own.")
    kind = array.dtype.kind
    if kind in "iu":
        return Column(name, "number", array)
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return number_column(name, array)
    if kind == "b":
        return Column(name, "flag", array)
    if kind == "U":
        known: dict[str, str] = {}  # equal texts are one object: 8 bytes a row instead of 61
        texts = array.tolist()
        return Column(name, "text", np.fromiter(map(known.setdefault, texts, texts), dtype=object, count=len(texts)))
    if kind in "mM":
        missing = np.isnat(array)
        return Column(name, "date", array.astype(str).astype(object), missing if missing.any() else None)
    if kind == "S":
        return Column(name, "text", np.char.decode(array, "utf-8", "replace").astype(object))
    if kind == "O":
        return read_objects(name, array)
    return Column(name, "other", array)


def number_column(name: str, array: npt.NDArray[Any]) -> Column:
    """A column of floating point, in which NaN is missing."""
    if isfinite(np.dot(array, array)):  # one read, where two tests of all values take four
        return Column(name, "number", array, finite=True)
    missing = np.isnan(array)
    return Column(name, "number", array, missing if missing.any() else None)


def read_objects(name: str, array: npt.NDArray[Any], missing: Mask | None = None) -> Column:
    """A column of Python objects, by the types that occur among them."""
    from decimal import Decimal

    values = array.tolist()
    if missing is None and set(map(type, values)) == {str}:
        return Column(name, "text", array)
    if missing is None:
        missing = np.fromiter((value is None or (value is not True and _is_nan(value)) for value in values), bool,
                              len(values))
    types = {type(value) for value, lost in zip(values, missing.tolist(), strict=True) if not lost}
    lost = missing if missing.any() else None
    if all(issubclass(t, str) for t in types):
        kind = "text" if types else "number"  # nothing but missing values: any kind would do
    elif all(issubclass(t, (bool, np.bool_)) for t in types):
        kind = "flag"
    elif all(issubclass(t, (numbers.Real, Decimal, np.number, np.bool_)) for t in types):
        kind = "number"
    elif all(issubclass(t, (str, numbers.Real, Decimal, np.number)) for t in types):
        return Column(name, "mixed", array, lost)
    elif all(issubclass(t, (datetime.date, datetime.time, datetime.timedelta, np.datetime64)) for t in types):
        kind = "date"
    else:
        return Column(name, "other", array, lost)
    if kind == "number":
        array = np.array([np.nan if gone else _as_float(value)
                          for value, gone in zip(values, missing.tolist(), strict=True)], dtype=np.float64)
    return Column(name, kind, array, lost)


def _as_array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise InputError("a column must be a list or an array", f"{_short(values)}",
                         "Repeat a constant for every row, or leave the column out.")
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return np.array([None] * len(values), dtype=object)
    if array.dtype.kind in "US" and not all(isinstance(value, str) for value in values):
        array = np.empty(len(values), dtype=object)  # numpy turns [1.0, "a"] into text: keep what came
        array[:] = list(values)
    return array


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf") if value > 0 else float("-inf")


def _is_nan(value: Any) -> bool:
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA compares to nothing
        return type(value).__name__ == "NAType"


# -- levels -----------------------------------------------------------------------------------------------------------


def used_levels(codes: Codes, labels: Sequence[str]) -> tuple[Codes, tuple[str, ...]]:
    """Codes and labels without the levels that do not occur."""
    present = np.zeros(len(labels) + 1, dtype=bool)
    present[codes] = True  # code -1 marks the spare place
    present = present[:-1]
    if present.all():
        return codes, tuple(labels)
    renumber = np.append(np.cumsum(present) - 1, MISSING)
    return renumber[codes], tuple(name for name, there in zip(labels, present.tolist(), strict=True) if there)


def _factor_numbers(values: npt.NDArray[Any], missing: Mask | None) -> tuple[Codes, tuple[str, ...]]:
    if values.dtype == object:
        values = np.array([False if value is None else bool(value) for value in values.tolist()])
    kept = values if missing is None else values[~missing]
    unique, inverse = np.unique(kept, return_inverse=True)
    codes = inverse.astype(np.intp)
    if missing is not None:
        codes = np.full(len(values), MISSING, dtype=np.intp)
        codes[~missing] = inverse
    if unique.dtype.kind in "iu":  # levels by the thousand
        return codes, tuple(map(str, unique.tolist()))
    return codes, tuple(number_label(value) for value in unique)


def number_label(value: Any) -> str:
    """A number as the name of a level: whole numbers without a point.

    >>> number_label(3.0), number_label(0.5), number_label(np.float32(0.1)), number_label(True)
    ('3', '0.5', '0.1', 'True')
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    return str(int(value)) if value == np.floor(value) and abs(value) < 1e15 else str(value)


def _factor_text(values: list[Any], missing: Mask | None) -> tuple[Codes, tuple[str, ...]]:
    if missing is not None:
        values = [None if lost else value for value, lost in zip(values, missing.tolist(), strict=True)]
    # A dictionary is several times faster here than sorting a million strings.
    found = set(values)
    found.discard(None)
    levels = sorted(found)
    place: dict[Any, int] = {level: k for k, level in enumerate(levels)}
    place[None] = MISSING
    return np.fromiter(map(place.__getitem__, values), np.intp, len(values)), tuple(str(level) for level in levels)


def _date_label(value: Any) -> str | None:
    """One text for one time, whatever library wrote it; midnight is the day."""
    if value is None:
        return None
    text = str(value).replace("T", " ")
    return (text.rstrip("0").rstrip(".") if "." in text else text).removesuffix(" 00:00:00")


@lru_cache(maxsize=4)
def _whole_levels(labels: tuple[str, ...]) -> tuple[npt.NDArray[np.int64], Codes] | None:
    """Levels that are whole numbers, in the order of these, and where each is; None where some are not.

    Where hardly a number is left out between the first and the last, the places are those of all numbers between them.
    """
    try:
        numbers = np.array([int(label) for label in labels], dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    if not len(labels) or tuple(map(str, numbers.tolist())) != labels:
        return None
    order = np.argsort(numbers)
    first, last = int(numbers[order[0]]), int(numbers[order[-1]])
    if last - first > SPARSE * len(numbers):
        return numbers[order], order
    every = np.full(last - first + 1, MISSING, dtype=np.intp)
    every[numbers - first] = np.arange(len(numbers))
    return np.arange(first, last + 1), every


@lru_cache(maxsize=4)
def _places(labels: tuple[str, ...]) -> dict[str, int]:
    """Which label is where; kept, since rows in blocks ask again and again."""
    return {label: k for k, label in enumerate(labels)}


def match_levels(codes: Codes, labels: Sequence[str], known: Sequence[str]) -> Codes:
    """Codes in terms of ``known``; -1 where a label is not among them (or the value is missing)."""
    place = _places(tuple(known))
    table = np.array([place.get(label, -1) for label in labels] + [-1], dtype=np.intp)
    return table[codes]


def codes_among(column: Column, known: tuple[str, ...]) -> Codes:
    """The codes of a column in terms of ``known``; whole numbers need no labels, of which there may be 100,000."""
    if "factor" in vars(column) and column.factor[1] == known:
        return column.factor[0]
    whole = _whole_levels(known) if column.kind == "number" and column.missing is None else None
    if whole is None or column.values.dtype.kind not in "iu" or column.values.dtype == np.uint64:
        return match_levels(*column.factor, known)
    numbers, places = whole
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        at = column.values.astype(np.int64) - numbers[0]
    else:
        at = np.searchsorted(numbers, column.values)
    at = np.clip(at, 0, len(numbers) - 1)
    return np.where(numbers[at] == column.values, places[at], MISSING)


# -- words for messages -----------------------------------------------------------------------------------------------


def count(number: int, noun: str) -> str:
    """``1 row``, ``3 rows``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def kinds_differ(name: str, kinds: str) -> InputError:
    """The error for a column that is of several kinds."""
    return InputError(f"column {name!r} must be of one kind in all rows", kinds,
                      "Correct these rows, or write the column with one type.")


def rows_named(rows: Sequence[int] | npt.NDArray[Any], most: int = 5) -> str:
    """``row 3``, or ``rows 3, 7, 8, ... (12 in all)``, counted from 0."""
    first = ", ".join(str(int(row)) for row in rows[:most])
    if len(rows) == 1:
        return f"row {first}"
    return f"rows {first}" if len(rows) <= most else f"rows {first}, ... ({len(rows)} in all)"


def shown(values: npt.NDArray[Any], rows: Sequence[int] | npt.NDArray[Any]) -> str:
    """The first of some values and where they stand: ``'n/a' at row 3, '?' at row 9, ... (12 in all)``."""
    parts = [f"{_short(value)} at row {int(row)}" for value, row in zip(values[:3], rows, strict=False)]
    return ", ".join(parts) + (f", ... ({len(rows)} in all)" if len(rows) > len(parts) else "")


def _short(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def is_number(value: Any) -> bool:
    """Whether text, or anything else, reads as a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
