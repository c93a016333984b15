"""Tables in blocks of rows that stay where they are: row groups of files, slices of arrays.

A block is a small record that can be sent to another process and reads its rows there, a few at a time. A `RowTable`
has all blocks, and reads one column at a time, which is what a formula learns levels, knots and means from.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import slices
from klimb.rows.columns import Column, read_column
from klimb.rows.frames import Frame, read_frame

BLOCK_ROWS = 1 << 18  # of a table in memory


class RowBlock(Protocol):
    """Some rows, read where the work is done."""

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        """The columns ``names`` of the block, at most about ``rows`` rows at a time, in order."""

    def identity(self) -> Any:
        """What tells these rows from others: records of text, numbers and arrays."""


class RowTable(ABC):
    """A table in blocks."""

    columns: tuple[str, ...]
    n: int
    blocks: Sequence[RowBlock]

    @abstractmethod
    def column(self, name: str) -> Column:
        """One column of all rows."""

    @abstractmethod
    def whole(self, names: Sequence[str]) -> Frame:
        """All rows of some columns, in memory."""

    def frame(self) -> Frame:
        """All rows behind the face of a frame that reads a column when it is asked for, and remembers only the last."""
        return Frame(None, "dict", self.columns, self.n, self.column, _cache=Recent())


@final
class Recent(dict[str, Any]):
    """A dictionary that forgets all but the entry that came last."""

    def __setitem__(self, name: str, value: Any) -> None:
        self.clear()
        super().__setitem__(name, value)


@final
@dataclass(frozen=True, eq=False)
class ArrayBlock:
    """Rows of columns in memory."""

    columns: dict[str, Column]

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        n = len(next(iter(self.columns.values())))
        for some in slices(n, rows):
            part = {name: _part(self.columns[name], some) for name in names}
            yield Frame(None, "dict", tuple(names), some.stop - some.start, part.__getitem__)

    def identity(self) -> Any:
        return self.columns


@final
class ArrayTable(RowTable):
    """A frame in memory, or in memory maps."""

    def __init__(self, frame: Frame, names: Sequence[str]) -> None:
        self._frame, self.columns, self.n = frame, frame.columns, frame.n
        whole = {name: frame.read(name) for name in names}
        self.blocks = tuple(ArrayBlock({name: _part(column, rows) for name, column in whole.items()})
                            for rows in slices(frame.n, BLOCK_ROWS))

    def column(self, name: str) -> Column:
        return self._frame.read(name)

    def whole(self, names: Sequence[str]) -> Frame:
        return self._frame


@final
@dataclass(frozen=True, eq=False)
class FileBlock:
    """A row group of a Parquet file, or a whole file of another kind: a fragment of Arrow, which can be pickled."""

    fragment: Any
    schema: Any

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        import pyarrow as pa

        try:
            for batch in self._batches(list(names), rows):
                columns = {name: arrow_column(name, batch.column(name)) for name in names}
                yield Frame(None, "dict", tuple(names), batch.num_rows, columns.__getitem__)
        except (pa.ArrowException, OSError) as error:
            raise InputError("files that can be read to their end", f"{self.fragment.path}: {error}".split("\n")[0],
                             "Write the file again, or leave it out.") from error

    def _batches(self, names: list[str], rows: int) -> Iterable[Any]:
        if hasattr(self.fragment, "row_groups") and {*names} <= {*self.fragment.physical_schema.names}:
            import pyarrow.parquet as parquet

            groups = [group.id for group in self.fragment.row_groups]
            with self.fragment.open() as stream:  # no more of a row group in memory than is asked for
                yield from parquet.ParquetFile(stream).iter_batches(rows, groups, names, use_threads=False)
            return
        yield from self.fragment.to_batches(schema=self.schema, columns=names, batch_size=rows, batch_readahead=1,
                                            use_threads=False)

    def identity(self) -> Any:
        path = Path(self.fragment.path)
        size = (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else ()
        return str(path), size, [group.id for group in getattr(self.fragment, "row_groups", None) or []]


@final
class FileTable(RowTable):
    """Files of Arrow: Parquet, Feather, CSV, ORC."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.columns = tuple(dataset.schema.names)
        fragments = [part for fragment in dataset.get_fragments() for part in _row_groups(fragment)]
        self.blocks = tuple(FileBlock(fragment, dataset.schema) for fragment in fragments)
        self.n = int(dataset.count_rows())

    def column(self, name: str) -> Column:
        import pyarrow as pa

        try:
            values = self._dataset.to_table(columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise InputError("files that can be read to their end", str(error).split("\n")[0],
                             "Write the file again, or leave it out.") from error
        return arrow_column(name, values)

    def whole(self, names: Sequence[str]) -> Frame:
        return read_frame(self._dataset.to_table(columns=list(names)))


def spooled(write: Callable[[Path], Any]) -> FileTable:
    """Rows that come once, or are expensive to make again, in a Parquet file of a folder that goes with the table."""
    import pyarrow.dataset as arrow

    folder = tempfile.mkdtemp(prefix="klimb-")
    try:
        path = Path(folder, "rows.parquet")
        write(path)
        table = FileTable(arrow.dataset(path))
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(table, shutil.rmtree, folder)
    return table


def write_batches(tables: Iterable[Any], path: Path) -> None:
    """Tables of Arrow as one file; text in levels, so that they may differ."""
    import pyarrow.parquet as parquet

    writer: Any = None
    for table in tables:
        writer = parquet.ParquetWriter(path, table.schema, compression="none") if writer is None else writer
        writer.write_table(table)
    if writer is None:
        raise InputError("data with at least one row", "no rows", "Check how the data were read.")
    writer.close()


def _row_groups(fragment: Any) -> Iterable[Any]:
    return fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment]


def _part(column: Column, rows: slice) -> Column:
    missing = None if column.missing is None else column.missing[rows]
    return replace(column, values=column.values[rows], missing=missing)


def arrow_column(name: str, values: Any) -> Column:
    """A column of Arrow; text is read as codes of its levels, so that a row costs no object."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        whole = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
        found = whole.dictionary_encode().unify_dictionaries()
        labels = np.array(found.chunk(0).dictionary.to_pylist() if found.num_chunks else [], dtype=str)
        order = np.argsort(labels)
        place = np.empty(len(order) + 1, dtype=np.intp)
        place[order], place[-1] = np.arange(len(order)), -1
        indices = [chunk.indices.fill_null(len(order)).to_numpy(zero_copy_only=False) for chunk in found.chunks]
        codes = place[np.concatenate(indices)] if indices else np.zeros(0, dtype=np.intp)
        missing = codes < 0 if found.null_count else None
        return Column(name, "category", codes, missing, tuple(labels[order].tolist()), coded_text=True)
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not values.null_count):
        numbers = values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
        return read_column(name, numbers)  # nulls of floating point are NaN
    return read_frame(pa.table({name: values})).read(name)
