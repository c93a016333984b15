"""CSV, in bounded memory: the rows pass by, and only the wanted columns are kept."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TextIO

import numpy as np

from klimb.cli.tables.read import Choice, Kind, ReadOptions, Table
from klimb.errors import InputError, require

TRUTH = {"true": True, "false": False}
MOSTLY = 0.8  # from this share of numbers on, a word among them is a mistake, not a level
LONGEST_SHOWN = 60  # characters of a cell in a message
COMMA_NUMBER = re.compile(r"\s*[-+]?\d+,\d+\s*")
DELIMITERS = (",", ";", "\t", "|")
HEAD = 50  # lines from which the delimiter is guessed
LONGEST_CELL = 1 << 26  # characters; beyond it, a quote was left open


def number(text: str) -> float | None:
    """The number a text says, or None. Python's own reading, without underscores."""
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def shown(cell: str) -> str:
    """A cell as a message quotes it: a long one is cut."""
    return repr(cell) if len(cell) <= LONGEST_SHOWN else f"{cell[:LONGEST_SHOWN]!r}... ({len(cell)} characters)"


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
        self._words: dict[str, str | None] = {}  # as they are, None for what is missing

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
        if self.kind == "text" or (self.kind == "boolean" and (blank or any(part.dtype == object for part in parts))):
            self._words = {}
            return np.concatenate([np.full(blank, None, object), *parts])
        start = [np.full(blank, np.nan)] if blank else []
        return np.concatenate([*start, *parts]) if parts or blank else np.zeros(0)

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
        words, missing = self._words, self.options.missing  # each is looked at, and stored, once
        return np.array([words[word] if word in words else words.setdefault(
            word, None if word.strip() in missing else word) for word in values], dtype=object)


def guess_delimiter(lines: list[str]) -> str:
    """The delimiter that cuts the first lines into most columns, all of one length; a comma if none does."""
    best, columns = ",", 1
    for mark in DELIMITERS:
        widths = {len(row) for row in csv.reader(lines, delimiter=mark, skipinitialspace=True) if row}
        if len(widths) == 1 and (count := widths.pop()) > columns:
            best, columns = mark, count
    if columns > 1:
        return best
    # Ragged: the one that the header uses most.
    head = next(csv.reader(lines), [])
    return max(DELIMITERS, key=lambda mark: sum(cell.count(mark) for cell in head) + (mark == "," and len(head) - 1))


def stream_csv(stream: TextIO, choose: Choice, options: ReadOptions, *, whole: bool = False) -> Iterator[Table]:
    """Tables of some rows each; one of all rows if ``whole``. A file with a header alone gives one table of no rows."""
    opening = list(islice(stream, HEAD))
    with _long_cells():
        mark = options.delimiter or guess_delimiter(opening)
        rows_of_text = _Rows(chain(opening, stream), mark)
        header = tuple(name.strip() for name in next((row for row in rows_of_text if row), ()))
    require(header, "a table needs a line with the names of its columns", "an empty file", "Check the path.")
    wanted = list(dict.fromkeys(choose(header)))
    for name in wanted:
        places = [index + 1 for index, other in enumerate(header) if other == name]
        require(len(places) < 2, "columns that are used need names of their own",
                f"{shown(name)} for the columns {', '.join(map(str, places))}", "Rename one of them.")
    places = [header.index(name) for name in wanted]
    columns = [TextColumn(name, options, semicolons=mark == ";") for name in wanted]
    size = max(256, options.cells // max(len(header), 1))
    first = rows = 0
    for block in _blocks(rows_of_text, header, size):
        for column, place in zip(columns, places, strict=True):
            column.add([row[place] for row in block])
        rows += len(block)
        if not whole:
            yield Table({name: column.take() for name, column in zip(wanted, columns, strict=True)}, len(block), header,
                        first)
            first = rows
    if whole or rows == 0:
        yield Table({name: column.take() for name, column in zip(wanted, columns, strict=True)}, rows, header)


def _blocks(rows: "_Rows", header: tuple[str, ...], size: int) -> Iterator[list[list[str]]]:
    """Lists of rows, each as long as the header; blank lines are left out."""
    seen = 0
    while True:
        block: list[list[str]] = []
        with _long_cells():
            for row in rows:
                if len(row) != len(header):
                    if not row:
                        continue
                    number = seen + len(block)
                    advice = ("Check that line for a missing or unquoted delimiter, or name the delimiter with"
                              " --delimiter.")
                    if number == 0 and len(row) == len(header) + 1:
                        advice = ("If the first column holds row names without a heading (as R writes them), give the"
                                  " heading line a name for it.")
                    raise InputError(f"every row needs the {len(header)} columns of the heading", f"{len(row)} in row"
                                     f" {number} (line {rows.line}), which begins {shown(row[0])}", advice)
                block.append(row)
                if len(block) == size:
                    break
        if not block:
            return
        seen += len(block)
        yield block


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module keeps one limit for the whole program: ours while rows are read, and the caller's afterwards."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _Rows:
    """The rows of the text, with the errors of csv in our words; a quote that nothing closes is one of them."""

    def __init__(self, lines: Iterator[str], mark: str) -> None:
        self._ended = False
        self._reader = csv.reader(chain(lines, self._end()), delimiter=mark, skipinitialspace=mark != " ")

    def _end(self) -> Iterator[str]:
        self._ended = True
        yield from ()

    @property
    def line(self) -> int:
        return self._reader.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        begin = self.line + 1
        try:
            row = next(self._reader)
        except csv.Error as error:
            raise self._broken(f"{error} near line {self.line}") from error
        if self._ended:  # csv asked for another line and gave a row all the same: it was inside a quoted cell
            raise self._broken(f"a quote in the row of line {begin} that is open at the end of the file")
        return row

    @staticmethod
    def _broken(got: str) -> InputError:
        return InputError("a table of text needs closed quotes and no null bytes", got,
                          "Check the quotes on that line, or say what the file is with --format.")
