"""A column of text becomes numbers, booleans or levels, a chunk at a time."""

from __future__ import annotations

import re
from typing import Any, final

import numpy as np

from klimb.cli.tables.records import Kind, ReadOptions
from klimb.errors import InputError

TRUTH = {"true": True, "false": False}
MOSTLY = 0.8  # from this share of numbers on, a word among them is a mistake, not a level
LONGEST_SHOWN = 60  # characters of a cell in a message
COMMA_NUMBER = re.compile(r"\s*[-+]?\d+,\d+\s*")


def number(text: str) -> float | None:
    """The number a text says, or None. Python's own reading, without underscores.

    >>> number(" 1.5e3 "), number("12_3"), number("x")
    (1500.0, None, None)
    """
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def shown(cell: str) -> str:
    """A cell as a message quotes it: a long one is cut.

    >>> print(shown("maybe"), shown("a" * 70))
    'maybe' 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'... (70 characters)
    """
    return repr(cell) if len(cell) <= LONGEST_SHOWN else f"{cell[:LONGEST_SHOWN]!r}... ({len(cell)} characters)"


@final
class TextColumn:
    """Takes chunks of text and decides, from the first that says something, what the column holds."""

    def __init__(self, name: str, options: ReadOptions, semicolons: bool = False) -> None:
        self.name = name
        self.options = options
        self.semicolons = semicolons
        self.kind: Kind | None = options.kinds.get(name)
        self._rows = 0
        self._parts: list[Any] = []
        self._blank = 0  # rows so far that were missing, before the kind was known
        self._levels: dict[str, int] = {}

    def add(self, values: list[str]) -> None:
        """The next rows of the column."""
        if self.kind is None:
            self.kind = self._decide(values)
        if self.kind is None:
            self._blank += len(values)
        else:
            read = {"number": self._numbers, "boolean": self._booleans, "text": self._text}[self.kind]
            self._parts.append(read(values))
        self._rows += len(values)

    def take(self) -> Any:
        """The rows added since the last call, as an array: float64, bool, or objects with None for missing."""
        parts, blank = self._parts, self._blank
        self._parts, self._blank = [], 0
        if self.kind is None:
            return np.full(blank, np.nan)
        if self.kind == "text":
            codes = np.concatenate([np.full(blank, -1, np.int64), *parts])
            levels = np.array([*self._levels, None], dtype=object)  # a code of -1 finds the None
            self._levels = {}
            return levels[codes]
        if self.kind == "boolean" and (blank or any(part.dtype == object for part in parts)):
            return np.concatenate([np.full(blank, None, object), *parts])
        start = [np.full(blank, np.nan)] if blank else []
        return np.concatenate([*start, *parts]) if parts or blank else np.zeros(0)

    # -- what it is --------------------------------------------------------------------------------------------------

    def _decide(self, values: list[str]) -> Kind | None:
        said = [value for value in values if value.strip() not in self.options.missing]
        if not said:
            return None
        numbers = sum(self._number(value) is not None for value in said)
        if numbers == len(said):
            return "number"
        if numbers == 0 and all(value.strip().lower() in TRUTH for value in said):
            return "boolean"
        if numbers >= MOSTLY * len(said):
            index = next(i for i, value in enumerate(values)
                         if value.strip() not in self.options.missing and self._number(value) is None)
            raise self._not_a_number(values[index], self._rows + index, f"in {numbers} of {len(said)} rows")
        if self.semicolons and self.options.decimal == "." and all(
                COMMA_NUMBER.fullmatch(value) or number(value) is not None for value in said):
            raise InputError(f"column {shown(self.name)} of a file with semicolons should hold numbers with decimal"
                             " points", shown(said[0]), "Say --decimal , if the comma is the decimal sign.")
        return "text"

    def _not_a_number(self, value: str, row: int, where: str) -> InputError:
        return InputError(f"column {shown(self.name)} holds numbers {where}", f"{shown(value)} in row {row}",
                          f"Correct it, say --missing {shown(value)} if it stands for a missing value, or --text"
                          f" {shown(self.name)} if the column holds names.")

    def _number(self, value: str) -> float | None:
        return number(value.replace(self.options.decimal, ".") if self.options.decimal != "." else value)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _numbers(self, values: list[str]) -> Any:
        together = "".join(values)
        if "_" not in together and together.isascii() and self.options.decimal == ".":
            try:
                return np.fromiter(map(float, values), np.float64, len(values))
            except ValueError:
                pass
        out = np.empty(len(values))
        for index, value in enumerate(values):
            found = self._number(value)
            if found is None:
                if value.strip() not in self.options.missing:
                    raise self._not_a_number(value, self._rows + index, f"in the first {self._rows + index} rows")
                found = np.nan
            out[index] = found
        return out

    def _booleans(self, values: list[str]) -> Any:
        out = [None if value.strip() in self.options.missing else TRUTH.get(value.strip().lower(), value)
               for value in values]
        for index, value in enumerate(out):
            if isinstance(value, str):
                row = self._rows + index
                raise InputError(f"column {shown(self.name)} holds true and false in the first {row} rows",
                                 f"{shown(value)} in row {row}",
                                 f"Correct it, or say --text {shown(self.name)} to read the column as names.")
        return np.array(out, dtype=bool) if None not in out else np.array(out, dtype=object)

    def _text(self, values: list[str]) -> Any:
        levels, missing = self._levels, self.options.missing
        codes = [levels.setdefault(value, len(levels)) for value in values]
        # Missing words get a code like any other, and lose it here: once per word, not once per row.
        out = np.array(codes, dtype=np.int64)
        for word in set(values):
            if word.strip() in missing:
                out[out == levels[word]] = -1
        return out
