"""Rows that are not in memory: lazy frames of any engine, files by path, folder or glob, iterators of Arrow batches.

A `Scan` reads the columns that it is asked for and no others, and ends in a frame: of cells, which its engine counts
(`klimb.rows.cells`), or of the rows themselves where they are few enough.
"""

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from klimb.errors import InputError, need_columns, require
from klimb.numerics.lazy import narwhals as nw
from klimb.numerics.lazy import pyarrow as pa
from klimb.rows.blocks import (
    ArrayTable,
    BlockEngine,
    FileTable,
    HeldTable,
    RowTable,
    readable,
    schema_of_all,
    spooled,
    write_batches,
)
from klimb.rows.cells import CellKeys, Tally, grouped, tally_of
from klimb.rows.columns import kinds_differ
from klimb.rows.engines import DaskEngine, RayEngine, SparkEngine
from klimb.rows.frames import Frame, read_frame, unique_names
from klimb.rows.maps import CONTENTS, read_cache, write_cache
from klimb.rows.workers import first_line

MOST_CELLS = 2_000_000  # of a fit in memory
CHUNK = 1 << 20  # rows that are counted at a time
ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".feather": "feather", ".arrow": "arrow",
           ".ipc": "ipc", ".orc": "orc"}
NAMES_OF_NOTHING = ["", "NA", "NaN", "nan", "N/A", "n/a", "NULL", "null", "?"]


class Scan(ABC):
    """A table that is read when it is asked for."""

    columns: tuple[str, ...]
    again: bool = True  # whether it can be read more than once
    left_out: tuple[str, ...] = ()  # files that could not be read

    @abstractmethod
    def is_number(self, name: str) -> bool:
        """Whether a column holds numbers."""

    @abstractmethod
    def head(self, names: Sequence[str], most: int) -> Frame | None:
        """All rows, where there are no more than ``most``; else None."""

    @abstractmethod
    def count(self) -> int:
        """How many rows there are, of a table that can be read again."""

    @abstractmethod
    def first(self, names: Sequence[str], n: int) -> Frame:
        """The first rows, at most ``n``."""

    @abstractmethod
    def blocks(self, names: Sequence[str], engine: BlockEngine | None = None) -> RowTable:
        """All rows, in blocks that can be read again and again; those of ``engine`` stay there."""

    @abstractmethod
    def tally(self, by: CellKeys) -> Tally:
        """The cells; an error where they are more than `MOST_CELLS`."""

    @abstractmethod
    def collect(self, names: Sequence[str]) -> Frame:
        """All rows."""


class LazyRows(Scan):
    """A lazy frame of narwhals: polars, DuckDB, Ibis, Spark, Dask."""

    def __init__(self, frame: Any) -> None:
        self.frame, self.schema = frame, frame.collect_schema()
        self.columns = tuple(self.schema.names())

    def is_number(self, name: str) -> bool:
        return bool(self.schema[name].is_numeric())

    def _now(self, frame: Any) -> Any:
        return frame.collect(engine="streaming") if frame.implementation.is_polars() else frame.collect()

    def head(self, names: Sequence[str], most: int) -> Frame | None:
        found = read_frame(self._now(self.frame.select(*names).head(most + 1)).to_native())
        return found if found.n <= most else None

    def count(self) -> int:
        return int(self._now(self.frame.select(nw.len())).item())

    def first(self, names: Sequence[str], n: int) -> Frame:
        return read_frame(self._now(self.frame.select(*names).head(n)).to_native())

    def blocks(self, names: Sequence[str], engine: BlockEngine | None = None) -> RowTable:
        kind: Any = {"dask": DaskEngine, "pyspark": SparkEngine}.get(self.frame.implementation.value)
        if kind is not None and (engine is None or isinstance(engine, kind)):
            native = self.frame.select(*names).to_native()
            return held(kind.around(native) if engine is None else engine, native, names)
        return spooled(lambda path: self.frame.select(*names).sink_parquet(str(path)))

    def tally(self, by: CellKeys) -> Tally:
        cells = grouped(self.frame, by)
        found = self._now(cells.head(MOST_CELLS + 1))
        if len(found) > MOST_CELLS:
            raise _too_many(f"{self._now(cells.select(nw.len())).item():,} cells", by)
        return tally_of(found, by)

    def collect(self, names: Sequence[str]) -> Frame:
        return read_frame(self._now(self.frame.select(*names)).to_native())


def held(engine: Any, collection: Any, names: Sequence[str]) -> HeldTable:
    """A collection of an engine as a table; what was started for it is ended where that fails."""
    try:
        return HeldTable(engine, engine.hold(collection), names)
    except BaseException:
        engine.close()
        raise


class BatchRows(Scan):
    """Batches of Arrow, which ``open`` gives for some names of columns; they are counted chunk by chunk."""

    def __init__(self, open_: Callable[[list[str]], Iterable[Any]], schema: Any, dataset: Any = None,
                 where: Any = None, of_ray: Any = None, mixed: Mapping[str, str] = MappingProxyType({})) -> None:
        self._open, self.schema, self.columns = open_, schema, tuple(schema.names)
        self.dataset, self.where, self.of_ray, self.mixed = dataset, where, of_ray, mixed
        self.again = dataset is not None or of_ray is not None
        self._read: list[Any] = []  # by ``head``, where it cannot be read again

    def is_number(self, name: str) -> bool:
        from pyarrow import types

        kind = self.schema.field(name).type
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    def _chunks(self, names: Sequence[str], size: int) -> Iterator[Any]:
        """Tables of about ``size`` rows."""
        batches: list[Any] = []
        waiting = 0
        self._of_one_kind(names)
        with readable():
            for batch in chain(self._read, self._open(list(names))):
                table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
                need_columns(names, table.column_names, "batches that all have the same columns")
                batches.append(table.select(list(names)))
                waiting += batch.num_rows
                if waiting >= size:
                    yield joined(batches)
                    batches, waiting = [], 0
        if batches:
            yield joined(batches)

    def _of_one_kind(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.mixed:
                raise kinds_differ(name, self.mixed[name])

    def head(self, names: Sequence[str], most: int) -> Frame | None:
        if self.dataset is not None and hasattr(self.dataset.format, "read_options") and self.count() > most:
            return None  # Parquet knows how many rows it has
        found = next(self._chunks(names, most + 1), None)
        if found is None:
            return read_frame({name: [] for name in names})
        if found.num_rows <= most:
            return read_frame(found)
        self._read = [] if self.again else [found]
        return None

    def count(self) -> int:
        with readable():
            return int(self.dataset.count_rows(filter=self.where) if self.of_ray is None else self.of_ray.count())

    def first(self, names: Sequence[str], n: int) -> Frame:
        if self.dataset is not None:
            blocks = self.blocks(names).blocks
            return next((part for block in blocks for part in block.frames(names, n) if part.n), read_frame({}))
        found = next(self._chunks(names, n), None)
        if found is not None and not self.again:
            self._read = [found]
        return read_frame({name: [] for name in names} if found is None else found.slice(0, n))

    def blocks(self, names: Sequence[str], engine: BlockEngine | None = None) -> RowTable:
        self._of_one_kind(names)
        if self.dataset is not None:
            return FileTable(self.dataset, self.where)
        if self.of_ray is not None and (engine is None or isinstance(engine, RayEngine)):
            return held(engine or RayEngine(), self.of_ray.select_columns(list(names)), names)
        return spooled(lambda path: write_batches(self._chunks(names, CHUNK), path))

    def tally(self, by: CellKeys) -> Tally:
        names = [*by.names, *([by.response] if by.response is not None else [])]
        parts, waiting, rows = list[Any](), 0, 0
        for table in self._chunks(names, CHUNK):
            try:
                part = grouped(nw.from_native(table, eager_only=True), by).to_native()
            except pa.ArrowNotImplementedError:
                for name in by.names:
                    _ = read_frame(table).read(name).factor  # an error for what is neither numbers nor levels
                raise
            parts.append(part)
            waiting, rows = waiting + len(part), rows + len(table)
            if waiting > CHUNK + 2 * len(parts[0]):
                parts = [_merged(parts, by)]
                waiting = len(parts[0])
                if waiting > MOST_CELLS:
                    raise _too_many(f"{waiting:,} cells in the first {rows:,} rows", by)
        found = tally_of(nw.from_native(joined(parts), eager_only=True), by)
        if len(found.counts) > MOST_CELLS:
            raise _too_many(f"{len(found.counts):,} cells", by)
        return found

    def collect(self, names: Sequence[str]) -> Frame:
        tables = list(self._chunks(names, CHUNK))
        return read_frame(joined(tables)) if tables else read_frame({name: [] for name in names})


def joined(tables: list[Any]) -> Any:
    """Tables of Arrow as one."""
    try:
        return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    except pa.ArrowException as error:
        raise InputError("columns of one kind in all rows", first_line(error), "Write them with one type.") from error


def _merged(parts: list[Any], by: CellKeys) -> Any:
    """Groups of several chunks as those of one."""
    table = joined(parts)
    tally = tally_of(nw.from_native(table, eager_only=True), by)
    table = table.take(pa.array(tally.first))
    for name, values in tally.columns(by).items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


class TooManyCells(InputError):
    """Rows that are not in memory have more cells than memory holds."""


def _too_many(found: str, by: CellKeys) -> TooManyCells:
    return TooManyCells(f"rows that are not in memory must have at most {MOST_CELLS:,} different combinations of "
                        f"{', '.join(by.names)}", found,
                        'Round a number: round={"x": 1}. Name fewer columns, or fit a sample of the rows; cells=False '
                        "passes over all of them.")


# -- what a user gives


def as_table(data: Any) -> Frame | Scan:
    """Data of any make: a `Frame` where they are in memory, else a `Scan`."""
    if isinstance(data, (Frame, Scan)):
        return data
    if isinstance(data, (Mapping, np.ndarray)):
        return read_frame(data)
    if isinstance(data, (str, os.PathLike)):
        return read_cache(data) if os.path.exists(os.path.join(data, CONTENTS)) else scan(data)
    if hasattr(data, "to_batches") and hasattr(data, "scanner"):  # a dataset of Arrow
        return _of_dataset(data)
    if type(data).__module__.startswith("ray.data"):
        return BatchRows(lambda names: data.select_columns(names).iter_batches(batch_size=None, batch_format="pyarrow"),
                         data.schema().base_schema, of_ray=data)
    if isinstance(data, Iterator) or hasattr(data, "read_next_batch"):
        return _of_iterator(iter(data))
    unique_names(data)
    lazy = nw.from_native(data, pass_through=True)
    return LazyRows(lazy) if isinstance(lazy, nw.LazyFrame) else read_frame(data)


def cache(data: Any, folder: Any, columns: Sequence[str] | None = None) -> Path:
    """Write columns of a table (all by default) as memory maps, for fits that read them repeatedly.

    Text becomes codes; blocks stay what they are, so that ``klimb.fit(formula, folder)`` has the same bits as the fit
    of ``data``. Blocks are read twice: for the levels of text, and to be written.
    """
    table = as_table(data)
    names = list(table.columns if columns is None else columns)
    need_columns(names, table.columns)
    return write_cache(table.blocks(names) if isinstance(table, Scan) else ArrayTable(table, names), names, folder)


def scan(path: Any, *, where: Any = None, unreadable: str = "error", filesystem: Any = None) -> Scan:
    """Files as a lazy table, with options that a path alone cannot express.

    Parameters
    ----------
    path : str, path or list of them
        A file, a folder, a glob, or an address that Arrow knows (``s3://``, ``gs://``, ``file://``).
    where : expression of pyarrow, or list of (column, comparison, value)
        Rows to keep. Files and row groups that have none of them are not read.
    unreadable : "error" or "skip"
        What happens to files that are missing or cannot be read to their end. "skip" reads all of them once to find
        out, leaves them out, and the fit says how many they were.
    filesystem : filesystem of pyarrow or fsspec
        Where the paths are.

    >>> import pyarrow as pa, pyarrow.parquet as parquet, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> parquet.write_table(pa.table({"x": [1, 2, 3]}), f"{folder}/a.parquet")
    >>> scan(f"{folder}/*.parquet", where=[("x", ">", 1)]).count()
    2
    """
    if unreadable not in ("error", "skip"):
        raise InputError('unreadable must be "error" or "skip"', repr(unreadable), "Choose one of the two.")
    try:
        import pyarrow.dataset as arrow
        from pyarrow.parquet import filters_to_expression
    except ImportError as missing:
        raise InputError("files are read by pyarrow", "no such package",
                         "Run: python -m pip install 'klimb[parquet]', or read them first.") from missing
    found, filesystem = _listed(path, filesystem)
    kind = _kind(found)
    lost: tuple[str, ...] = ()
    how: Any = _csv() if kind == "csv" else kind
    if unreadable == "skip":
        lost = tuple(name for name in found if not _whole(name, how, filesystem))
        if len(lost) == len(found):
            raise InputError("files of which some can be read", f"{len(lost)} that cannot", "Write them again.")
    kept = [name for name in found if name not in lost]
    with readable():
        given: dict[str, Any] = {"format": how, "partitioning": "hive", "filesystem": filesystem}
        schema, mixed = schema_of_all(arrow.dataset(kept, **given), untyped=kind == "csv")
        dataset = arrow.dataset(kept, schema=schema, **given)
    return _of_dataset(dataset, filters_to_expression(where) if isinstance(where, list) else where, lost, mixed)


def _listed(path: Any, filesystem: Any) -> tuple[list[str], Any]:
    """The names of files, and where they are; those of a list are taken as they are."""
    from pyarrow import fs

    if isinstance(path, (list, tuple)):
        return [os.fspath(name) for name in path], filesystem
    name = os.fspath(path)
    if filesystem is None and "://" in name:
        try:
            filesystem, name = fs.FileSystem.from_uri(name)
        except (pa.ArrowException, OSError) as error:
            raise InputError("an address that Arrow knows", f"{name!r}: {first_line(error)}",
                             "Write s3://, gs://, abfs://, hdfs:// or file://, or pass filesystem=.") from error
    if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    whole = any(mark in name for mark in "*?[")
    if filesystem is None:
        found = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
        if os.path.isdir(name):
            found = sorted(glob.glob(os.path.join(name, "**"), recursive=True))
        found = [one for one in found if os.path.isfile(one)]
    elif not whole and filesystem.get_file_info(name).type == fs.FileType.File:
        found = [name]
    else:
        top = name.split("*")[0].split("?")[0].split("[")[0].rpartition("/")[0] if whole else name
        every = filesystem.get_file_info(fs.FileSelector(top, allow_not_found=True, recursive=True))
        found = sorted(one.path for one in every if one.is_file and (not whole or fnmatch(one.path, name)))
    found = [one for one in found if not os.path.basename(one).startswith(("_", "."))]
    require(found, "a file, a folder or a glob of files", repr(os.fspath(path)), "Nothing is there: check the path.")
    return found, filesystem


def _kind(files: Sequence[str]) -> str:
    kinds = {ENDINGS.get(Path(name).suffix.lower(), Path(name).suffix) for name in files}
    kind = next(iter(kinds), "nothing")
    require(len(kinds) <= 1 and kind in ENDINGS.values(), f"files of one kind: {', '.join(ENDINGS)}",
            ", ".join(sorted(kinds)) or "none", "Name the files by a glob: folder/*.parquet.")
    return kind


def _whole(name: str, how: Any, filesystem: Any) -> bool:
    """Whether a file can be read to its end."""
    import pyarrow.dataset as arrow

    with suppress(InputError), readable():
        for _ in arrow.dataset(name, format=how, filesystem=filesystem).to_batches(batch_readahead=1):
            pass
        return True
    return False


def _csv() -> Any:
    """CSV in which words for a missing value are missing, in text too."""
    import pyarrow.csv
    import pyarrow.dataset as arrow

    return arrow.CsvFileFormat(convert_options=pyarrow.csv.ConvertOptions(null_values=NAMES_OF_NOTHING,
                                                                          strings_can_be_null=True))


def _of_dataset(dataset: Any, where: Any = None, left_out: tuple[str, ...] = (),
                mixed: Mapping[str, str] = MappingProxyType({})) -> BatchRows:
    def batches(names: list[str]) -> Iterator[Any]:
        for fragment in dataset.get_fragments(where):  # one by one, so that an error says in which it is
            with readable(f"{getattr(fragment, 'path', 'a table')}: "):
                yield from fragment.to_batches(schema=dataset.schema, columns=names, filter=where)

    found = BatchRows(batches, dataset.schema, dataset, where, mixed=mixed)
    found.left_out = left_out
    return found


def _of_iterator(batches: Iterator[Any]) -> BatchRows:
    first = next(batches, None)
    if first is None or not hasattr(first, "schema") or not hasattr(first, "num_rows"):
        raise InputError("an iterator must give batches of Arrow", "none" if first is None else type(first).__name__,
                         "Give pyarrow.RecordBatch or pyarrow.Table objects, or a data frame.")
    every = chain([first], batches)
    return BatchRows(lambda _: every, first.schema)
