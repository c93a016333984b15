"""CSV, in bounded memory: the rows pass by, and only the wanted columns are kept."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TextIO, final

from klimb.cli.tables.columns import TextColumn, shown
from klimb.cli.tables.records import Choice, ReadOptions, Table
from klimb.errors import InputError

DELIMITERS = (",", ";", "\t", "|")
HEAD = 50  # lines from which the delimiter is guessed
LONGEST_CELL = 1 << 26  # characters; beyond it, a quote was left open


def guess_delimiter(lines: list[str]) -> str:
    r"""The delimiter that cuts the first lines into most columns, all of one length; a comma if none does.

    >>> guess_delimiter(["a;b\n", "1,5;2\n"]), guess_delimiter(["a\tb\n"]), guess_delimiter(["x\n", "1\n"])
    (';', '\t', ',')
    """
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
        header = _header(rows_of_text)
    wanted = list(dict.fromkeys(choose(header)))
    _no_doubles(header, wanted)
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


def _header(rows: _Rows) -> tuple[str, ...]:
    row = next((row for row in rows if row), None)
    if row is None:
        raise InputError("a table needs a line with the names of its columns", "an empty file", "Check the path.")
    return tuple(name.strip() for name in row)


def _no_doubles(header: tuple[str, ...], wanted: list[str]) -> None:
    for name in wanted:
        places = [index + 1 for index, other in enumerate(header) if other == name]
        if len(places) > 1:
            raise InputError("columns that are used need names of their own",
                             f"{shown(name)} for the columns {', '.join(map(str, places))}", "Rename one of them.")


def _blocks(rows: _Rows, header: tuple[str, ...], size: int) -> Iterator[list[list[str]]]:
    """Lists of rows, each as long as the header; blank lines are left out."""
    seen = 0
    while True:
        block: list[list[str]] = []
        with _long_cells():
            for row in rows:
                if len(row) != len(header):
                    if not row:
                        continue
                    raise _ragged(row, header, seen + len(block), rows.line)
                block.append(row)
                if len(block) == size:
                    break
        if not block:
            return
        seen += len(block)
        yield block


def _ragged(row: list[str], header: tuple[str, ...], number: int, line: int) -> InputError:
    advice = "Check that line for a missing or unquoted delimiter, or name the delimiter with --delimiter."
    if number == 0 and len(row) == len(header) + 1:
        advice = ("If the first column holds row names without a heading (as R writes them), give the heading line a"
                  " name for it.")
    return InputError(f"every row needs the {len(header)} columns of the heading",
                      f"{len(row)} in row {number} (line {line}), which begins {shown(row[0])}", advice)


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module keeps one limit for the whole program: ours while rows are read, and the caller's afterwards."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@final
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
