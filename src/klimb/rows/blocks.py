"""Tables in blocks of rows that stay where they are: row groups of files, slices of arrays, partitions of engines.

A block is a small record that can be sent to another process and reads its rows there, a few at a time. A `RowTable`
has all blocks.
"""

import hashlib
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import slices
from klimb.numerics.lazy import pyarrow as pa
from klimb.rows.columns import Column, kinds_differ, number_column, read_column
from klimb.rows.frames import Frame, read_frame
from klimb.rows.maps import Cached

BLOCK_ROWS = 1 << 18  # of a table in memory
PAGE, PAGES = 1 << 20, 3  # bytes of a page of Parquet, and how many of them a column holds that is to be unpacked
OTHER_FORMATS = 5e7  # bytes of a reader of CSV, Feather or ORC
UNREADABLE = 'Write the file again, or leave it out: klimb.scan(path, unreadable="skip").'


class BlockEngine(Protocol):
    """Where a function meets its blocks; every `concurrent.futures.Executor` is one. The caller sums, in order."""

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterable[Any]:
        """function(block) for every block, in the order of ``blocks``."""


class RowBlock(Protocol):
    """Some rows, read where the work is done."""

    @property
    def name(self) -> str:
        """Of the file that they are in, for messages."""

    @property
    def begin(self) -> int:
        """The position of the first one there."""

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        """The columns ``names`` of the block, at most about ``rows`` rows at a time, in order."""

    def identity(self) -> Any:
        """What tells these rows from others: records of text, numbers and arrays."""

    def size(self, names: Sequence[str]) -> float:
        """Bytes that reading these columns takes beside what is made of some rows at a time."""


@runtime_checkable
class RowTable(Protocol):
    """A table in blocks."""

    columns: tuple[str, ...]
    n: int
    blocks: Sequence[RowBlock]


@dataclass(frozen=True, eq=False)
class ArrayBlock:
    """Rows of columns in memory."""

    columns: dict[str, Column]
    begin: int = 0
    name: str = ""

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        n = len(next(iter(self.columns.values())))
        for some in slices(n, rows):
            part = {name: _part(self.columns[name], some) for name in names}
            yield Frame(None, "dict", tuple(names), some.stop - some.start, part.__getitem__)

    def identity(self) -> Any:
        return self.columns

    def size(self, names: Sequence[str]) -> float:
        return 8.0 * len(names) * len(self.columns[names[0]])


class ArrayTable(RowTable):
    """A frame in memory, or in memory maps."""

    def __init__(self, frame: Frame, names: Sequence[str]) -> None:
        self.columns, self.n = frame.columns, frame.n
        whole = {name: frame.read(name) for name in names}
        blocks = frame.native.rows if isinstance(frame.native, Cached) else slices(frame.n, BLOCK_ROWS)
        self.blocks = tuple(ArrayBlock({name: _part(column, rows) for name, column in whole.items()}, rows.start)
                            for rows in blocks)


@contextmanager
def readable(path: str = "") -> Iterator[None]:
    """Errors of Arrow, of files that are not there or are broken, in our words."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError("files that can be read to their end", f"{path}{error}".split("\n")[0].rstrip("."),
                         UNREADABLE) from error


@dataclass(frozen=True, eq=False)
class FileBlock:
    """A row group of a Parquet file, or a whole file of another kind: a fragment of Arrow, which can be pickled."""

    fragment: Any
    schema: Any
    where: Any = None  # an expression of Arrow, that rows have to meet
    seen: tuple[Any, ...] = ()  # of its file, when the table was made: size, time, and the machine by whose clock
    begin: int = 0

    @property
    def name(self) -> str:
        path = str(getattr(self.fragment, "path", ""))
        return path if self.where is None else f"{path}, counted among rows of a group that are chosen"

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        path = getattr(self.fragment, "path", "a table")
        with readable(f"{path}: "):
            now = _state(self.fragment)
            if self.seen and (now[0] != self.seen[0] or (now[2] == self.seen[2] and now != self.seen)):
                raise InputError("files that stay as they are while a fit passes over them",
                                 f"{path}, which has changed or is gone", "Begin the fit again.")
            yield from (arrow_frame(batch, names) for batch in self._batches(list(names), rows))

    def _batches(self, names: list[str], rows: int) -> Iterable[Any]:
        in_file = self.where is None and hasattr(self.fragment, "row_groups")
        if in_file and {*names} <= {*self.fragment.physical_schema.names}:
            import pyarrow.parquet as parquet

            groups = [group.id for group in self.fragment.row_groups]
            with self.fragment.open() as stream:  # no more of a row group in memory than is asked for
                yield from parquet.ParquetFile(stream).iter_batches(rows, groups, names, use_threads=False)
            return
        yield from self.fragment.to_batches(schema=self.schema, columns=names, filter=self.where, batch_size=rows,
                                            batch_readahead=1, use_threads=False)

    def identity(self) -> Any:
        groups = [group.id for group in getattr(self.fragment, "row_groups", None) or []]
        return getattr(self.fragment, "path", ""), self.seen[:2], str(self.where), groups

    def size(self, names: Sequence[str]) -> float:
        if not hasattr(self.fragment, "row_groups"):
            return OTHER_FORMATS
        known = self.fragment.metadata
        places = [k for k, name in enumerate(known.schema.names) if name in names]
        chunks = [known.row_group(group.id).column(k) for group in self.fragment.row_groups for k in places]
        total = sum(chunk.total_uncompressed_size for chunk in chunks)
        total += sum(PAGES * min(chunk.total_uncompressed_size, PAGE) for chunk in chunks
                     if chunk.has_dictionary_page or chunk.compression != "UNCOMPRESSED")
        return float(total if self.where is None else 3 * total)  # a filter takes whole row groups


def _row_groups(fragment: Any, where: Any) -> Iterator[tuple[Any, int]]:
    """The row groups of a file that may have rows to keep, and where they begin in it; a file without them."""
    if not hasattr(fragment, "split_by_row_group"):
        yield fragment, 0
        return
    sizes = [group.num_rows for group in fragment.row_groups]
    begins = dict(zip([group.id for group in fragment.row_groups], np.cumsum([0, *sizes]).tolist(), strict=False))
    for part in fragment.split_by_row_group(where):
        yield part, begins[part.row_groups[0].id] if where is None else 0


def _state(fragment: Any) -> tuple[Any, ...]:
    if not hasattr(fragment, "filesystem"):
        return ()
    found = fragment.filesystem.get_file_info(fragment.path)
    return found.size, found.mtime_ns, platform.node()


class FileTable(RowTable):
    """Files of Arrow: Parquet, Feather, CSV, ORC."""

    def __init__(self, dataset: Any, where: Any = None) -> None:
        self._dataset, self._where = dataset, where
        self.columns = tuple(dataset.schema.names)
        with readable():
            files = [(fragment, _state(fragment)) for fragment in dataset.get_fragments(where)]
            self.blocks = tuple(FileBlock(part, dataset.schema, where, seen, begin)
                                for fragment, seen in files for part, begin in _row_groups(fragment, where))
            self.n = int(dataset.count_rows(filter=where))

    def whole(self, names: Sequence[str]) -> Frame:
        """All rows of some columns, in memory."""
        return read_frame(self._dataset.to_table(columns=list(names), filter=self._where))


def schema_of_all(dataset: Any, untyped: bool = False) -> tuple[Any, dict[str, str]]:
    """Types that hold what every file has, and what the columns are that have no such type, in words.

    Arrow takes the types of the first file and turns what others have into these: 2.5 into True, the text 2.5 into a
    number. A column that is text in one file is text in all where files are ``untyped``.
    """
    schemas: dict[Any, str] = {}
    for fragment in dataset.get_fragments():
        schemas.setdefault(fragment.physical_schema.remove_metadata(), getattr(fragment, "path", "a table"))
    found, mixed = dataset.schema, dict[str, str]()
    for name in dict.fromkeys(name for own in schemas for name in own.names):
        own = [(schema.field(name), path) for schema, path in schemas.items() if name in schema.names]
        fields = [*([found.field(name)] if name in found.names else []), *(field for field, _ in own)]
        kinds = {kind: path for field, path in reversed(own) if (kind := _kind_of(field.type))}
        if len(kinds) > 1 and untyped:
            fields = [pa.field(name, pa.string())]
        elif len(kinds) > 1:
            mixed[name] = ", ".join(f"{kind} in {path}" for kind, path in reversed(kinds.items()))
        field = next((field for some in (fields, map(_without_codes, fields)) if (field := _unified(some))), fields[0])
        place = found.get_field_index(name)
        found = found.append(field) if place < 0 else found.set(place, field)
    return found, mixed


def _unified(fields: Iterable[Any]) -> Any:
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.unify_schemas([pa.schema([field]) for field in fields], promote_options="permissive").field(0)
    return None


def _without_codes(field: Any) -> Any:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _kind_of(type_: Any) -> str:
    """What a type of Arrow holds, in words; nothing where that is open."""
    known, type_ = pa.types, type_.value_type if pa.types.is_dictionary(type_) else type_
    if known.is_null(type_):
        return ""
    if known.is_integer(type_) or known.is_floating(type_) or known.is_decimal(type_):
        return "numbers"
    text = known.is_string(type_) or known.is_large_string(type_) or known.is_string_view(type_)
    return "text" if text else "True and False" if known.is_boolean(type_) else "dates" if known.is_temporal(
        type_) else str(type_)


def spooled(write: Callable[[Path], Any]) -> FileTable:
    """Rows that come once, or are expensive to make again, in Parquet files of a folder that goes with the table."""
    import pyarrow.dataset as arrow

    folder = tempfile.mkdtemp(prefix="klimb-")
    try:
        write(Path(folder, "rows.parquet"))
        files = sorted(Path(folder).iterdir(), key=lambda path: (len(path.name), path.name))
        schema, mixed = schema_of_all(arrow.dataset(files))
        for name, kinds in mixed.items():
            raise kinds_differ(name, kinds)
        table = FileTable(arrow.dataset(files, schema=schema))
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(table, shutil.rmtree, folder)
    return table


def write_batches(tables: Iterable[Any], path: Path) -> None:
    """Tables of Arrow as a file, and others beside it from where their types differ."""
    import pyarrow.parquet as parquet

    writer: Any = None
    for k, table in enumerate(tables):
        if writer is not None and writer.schema != table.schema:
            writer.close()
            writer, path = None, path.with_stem(f"rows-{k}")
        writer = parquet.ParquetWriter(path, table.schema, compression="none") if writer is None else writer
        writer.write_table(table)
    require(writer is not None, "data with at least one row", "no rows", "Check how the data were read.")
    writer.close()


def _part(column: Column, rows: slice) -> Column:
    missing = None if column.missing is None else column.missing[rows]
    return replace(column, values=np.asarray(column.values)[rows], missing=missing)


def arrow_frame(batch: Any, names: Sequence[str]) -> Frame:
    """The columns ``names`` of a batch or a table of Arrow."""
    known = dict(zip(batch.schema.names, batch.columns, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):
        columns = {name: arrow_column(name, known[name]) for name in names}
    return Frame(None, "dict", tuple(names), batch.num_rows, columns.__getitem__)


def arrow_column(name: str, values: Any) -> Column:
    """A column of Arrow; text is read as codes of its levels, so that a row costs no object."""
    kind = values.type
    if kind == pa.float64() and not values.null_count and not isinstance(values, pa.ChunkedArray):
        return number_column(name, values.to_numpy())
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


@dataclass(frozen=True, eq=False)
class TableBlock:
    """The rows of a block, where they are."""

    table: Any  # of Arrow
    begin: int = 0
    name: str = "a partition of the data"

    @classmethod
    def of(cls, data: Any) -> Self:
        """From what an engine gives to a worker: a table of Arrow, or a data frame of pandas."""
        return cls(data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False))

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        whole = self.table.select(list(names)).combine_chunks()
        for begin in range(0, whole.num_rows, rows):
            yield arrow_frame(whole.slice(begin, rows), names)

    def identity(self) -> Any:
        text = hashlib.sha256()
        for batch in self.table.combine_chunks().to_batches():
            text.update(batch.serialize())
        return self.table.num_rows, text.hexdigest()


@dataclass(frozen=True, eq=False)
class HeldBlock:
    """A block by the name that its engine has for it."""

    data: Any
    number: int = 0
    known: tuple[Any, ...] = ()
    begin: int = 0
    name: str = ""

    def identity(self) -> Any:
        return self.known

    def size(self, names: Sequence[str]) -> float:
        return 8.0 * len(names) * (self.known[0] if self.known else 0)


class HeldTable(RowTable):
    """A table in blocks that ``engine`` holds, and passes over."""

    def __init__(self, engine: BlockEngine, blocks: Sequence[HeldBlock], names: Sequence[str]) -> None:
        self.engine, self.columns = engine, tuple(names)
        known = list(engine.map(TableBlock.identity, blocks))
        self.n = sum(rows for rows, _ in known)
        self.blocks: Any = [HeldBlock(block.data, block.number, own) for block, own in zip(blocks, known, strict=True)]
