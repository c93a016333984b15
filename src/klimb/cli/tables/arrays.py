"""Tables of arrays: npz, Parquet, and svmlight."""

import zipfile
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from klimb.cli.tables.read import Choice, ReadOptions, Table
from klimb.errors import InputError, require
from klimb.numerics.svmlight import parse

LIMIT = 1 << 28  # entries of the dense table: 2 GiB of float64


def read_npz(source: Any, choose: Choice) -> Table:
    """Vectors are columns; a matrix X gives X1, X2, ...; all need the same number of rows."""
    try:
        stored = np.load(source, allow_pickle=False)
        require(hasattr(stored, "files"), "an npz file holds arrays by name", "a single array (npy)",
                "Write it with numpy.savez.")
        columns: dict[str, Any] = {}
        for name in stored.files:
            array = stored[name]
            require(array.ndim < 3, "arrays of a table have one or two axes", f"{name!r} of shape {array.shape}",
                    "Save its slices under names of their own.")
            if array.ndim == 1:
                columns[name] = array
            elif array.ndim == 2:
                columns.update({f"{name}{index + 1}": array[:, index] for index in range(array.shape[1])})
    except (zipfile.BadZipFile, EOFError, ValueError, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | InputError):
            raise
        raise InputError("an npz file holds arrays of numbers or text", str(error).split("\n")[0],
                         "Write it with numpy.savez(path, y=y, X=X).") from error
    lengths = {name: len(column) for name, column in columns.items()}
    require(len(set(lengths.values())) <= 1, "all arrays of an npz file need the same number of rows",
            ", ".join(f"{name}: {length}" for name, length in list(lengths.items())[:6]),
            "Save the arrays of one table in one file.")
    wanted = choose(tuple(columns))
    rows = next(iter(lengths.values()), 0)
    return Table({name: columns[name] for name in wanted}, rows, tuple(columns))


def stream_parquet(source: Any, choose: Choice, options: ReadOptions, *, whole: bool = False) -> Iterator[Table]:
    """Row groups one after the other, the wanted columns alone."""
    pa, parquet = _pyarrow("read", "write the table as CSV")
    try:
        file = parquet.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError("a Parquet file", str(error).split("\n")[0], "Check the file, or its --format.") from error
    header, first = tuple(file.schema_arrow.names), 0
    wanted = list(choose(header))
    size = max(256, options.cells // max(len(wanted), 1))
    whole = whole or file.metadata.num_rows == 0
    for piece in [file.read(wanted)] if whole else file.iter_batches(batch_size=size, columns=wanted):
        yield Table({name: _from_arrow(piece.column(name), pa) for name in wanted}, piece.num_rows, header, first)
        first += piece.num_rows


def _pyarrow(done: str, instead: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise InputError(f"Parquet files are {done} by pyarrow", "no such package",
                         f"Run: python -m pip install 'klimb[parquet]', or {instead}.") from missing
    return pyarrow, pyarrow.parquet


def _from_arrow(column: Any, pa: Any) -> Any:
    """float64 with NaN, bool, or objects with None."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if (pa.types.is_boolean(kind) and column.null_count == 0) or pa.types.is_temporal(kind):
        return column.to_numpy(zero_copy_only=False)
    return np.array(column.to_pylist(), dtype=object)


def write_parquet(stream: Any, columns: dict[str, Any]) -> None:
    """Columns as a Parquet file."""
    pa, parquet = _pyarrow("written", "write .csv")
    arrays = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), stream)


def read_svmlight(stream: TextIO, choose: Choice) -> Table:
    """The label as ``y``, the features as ``x1``, ``x2``, ... (numbered as the file does); absent entries are zero."""
    labels, features, values, ends = parse(stream, "Check that line, or the --format.")
    low, high = int(features.min(initial=1)), int(features.max(initial=0))
    require(low >= 0, "features of svmlight are numbered from 0 or 1", f"{low}", "Renumber them.")
    header = ("y", *[f"x{index}" for index in range(min(low, 1), high + 1)])
    wanted = list(choose(header))
    require(len(wanted) * len(labels) <= LIMIT, "the columns a formula uses are held dense, at most 2 GiB of them",
            f"{len(labels)} rows of {len(wanted)} columns",
            "Name fewer columns, or use klimb.sklearn, whose estimators take sparse matrices.")
    place = {name: index for index, name in enumerate(wanted)}
    column_of = np.full(high + 1, -1)
    for name, at in place.items():
        if name != "y":
            column_of[int(name[1:])] = at
    dense = np.zeros((len(wanted), len(labels)))
    target, rows = column_of[features], np.repeat(np.arange(len(labels)), np.diff(ends))
    keep = target >= 0
    dense[target[keep], rows[keep]] = values[keep]
    if "y" in place:
        dense[place["y"]] = labels
    return Table({name: dense[at] for name, at in place.items()}, len(labels), header)
