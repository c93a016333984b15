"""Data frames of any make in, and the same make out.

pandas, polars, pyarrow, modin and the other libraries that narwhals knows; a dict of arrays or lists; a structured or
record array of numpy. narwhals is imported only where the data is none of the last two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, listed, need_columns, require
from klimb.numerics.arrays import Array, Index, Mask
from klimb.numerics.lazy import narwhals as nw
from klimb.rows.columns import Column, number_label, read_column, read_objects


@dataclass(frozen=True, eq=False)
class Frame:
    """A data frame behind one small face.

    >>> frame = read_frame({"y": [1.0, 2.0], "g": ["a", "b"]})
    >>> frame.columns, frame.n, frame.kind, frame.column("y")
    (('y', 'g'), 2, 'dict', array([1., 2.]))
    """

    native: Any
    kind: str  # dict, numpy, or the library: pandas, polars, pyarrow, ...
    columns: tuple[str, ...]
    n: int
    _read: Callable[[str], Column]
    copies: Array | None = None  # of a frame of cells: how many rows of the caller's each row stands for
    summed: int = 0  # cells whose responses stand for all of theirs, with the same sums: one in each of so many rows
    begin: int = 0  # position of the first row in its table, for messages
    whole: "Frame | None" = None  # of a frame of cells: the caller's rows, where they are in memory
    _cache: dict[str, Column] = field(default_factory=dict)

    def read(self, name: str) -> Column:
        """A column with its kind, levels and missing values."""
        if name not in self._cache:
            need_columns([name], self.columns, "the name of a column of the data")
            self._cache[name] = self._read(name)
        return self._cache[name]

    def forget(self) -> None:
        """Let go of what was made of columns that are in memory: a column that is asked for again is read again."""
        if self.native is not None:
            self._cache.clear()

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column as a plain array: numbers, booleans, or objects (text) with None where missing."""
        return self.read(name).plain()

    def total(self, rows: Index) -> int:
        """How many rows of the caller's these rows are."""
        return len(rows) if self.copies is None else round(float(self.copies[rows].sum()))

    def with_columns(self, given: Mapping[str, Any]) -> Self:
        """The same with other columns, whether those were there or not."""
        for name, values in given.items():
            require(np.shape(values) == (self.n,), f"{name} must have one value for each of {self.n} rows",
                    f"shape {np.shape(values)}", "Pass one per row.")

        names = tuple(dict.fromkeys((*self.columns, *given)))
        return replace(self, columns=names, _read=partial(self._replaced, given), _cache={})

    def _replaced(self, given: Mapping[str, Any], name: str) -> Column:
        return _read_values(name, given[name]) if name in given else self.read(name)

    def taken(self, rows: Index, names: Sequence[str]) -> "Frame":
        """Some rows of some columns; a row may be taken twice."""
        return Frame(self.native, self.kind, tuple(names), len(rows), partial(self._at, rows))

    def _at(self, rows: Index, name: str) -> Column:
        column = self.read(name)
        missing = None if column.missing is None else column.missing[rows]
        missing = missing if missing is not None and missing.any() else None
        return replace(column, values=column.values[rows], missing=missing)


def read_frame(data: Any) -> Frame:
    """Any data frame as a `Frame`; a `Frame` is given back as it is."""
    if isinstance(data, Frame):
        return data
    if isinstance(data, Mapping):
        return _read_mapping(data)
    if isinstance(data, np.ndarray):
        return _read_structured(data)
    return _read_narwhals(data)


def make_frame(columns: Mapping[str, npt.NDArray[Any]], like: Frame, rows: Index | None = None) -> Any:
    """New columns as a frame of the make of ``like``; pandas keeps its index (at ``rows``, where they are given).

    >>> make_frame({"mean": np.array([0.5])}, read_frame({"x": [1.0]}))
    {'mean': array([0.5])}
    """
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if like.kind == "dict":
        return arrays
    if like.kind == "numpy":
        length = len(next(iter(arrays.values()))) if arrays else 0
        out = np.empty(length, dtype=[(name, values.dtype, values.shape[1:]) for name, values in arrays.items()])
        for name, values in arrays.items():
            out[name] = values
        return out.view(np.recarray) if isinstance(like.native, np.recarray) else out
    source = nw.from_native(like.native, eager_only=True)
    made = nw.from_dict(arrays, backend=source.implementation).to_native()
    if hasattr(like.native, "index") and source.implementation.is_pandas_like():
        index = like.native.index if rows is None else like.native.index[rows]
        if len(index) == len(made):
            made.index = index
    return made


def counted_frame(cells: Frame) -> Any:
    """The columns of cells and, behind them, how many rows each cell has."""
    columns, label = {name: cells.column(name) for name in cells.columns}, "rows"
    while label in columns:
        label += "_"
    return make_frame({**columns, label: np.asarray(cells.copies)}, cells)


# -- one reader per make ----------------------------------------------------------------------------------------------


def _read_mapping(data: Mapping[Any, Any]) -> Frame:
    for name in data:
        require(isinstance(name, str), "names of columns must be text", f"{name!r}", "Rename the column.")
        scalar = isinstance(data[name], (str, bytes)) or not hasattr(data[name], "__len__")
        if scalar or getattr(data[name], "ndim", 1) == 0:
            raise InputError(f"column {name!r} must be a list or an array", f"{data[name]!r:.40}",
                             "Repeat a constant for every row, or leave the column out.")
    lengths = {name: len(values) for name, values in data.items()}
    require(len(set(lengths.values())) <= 1, "columns must have the same length",
            listed(f"{name}: {n}" for name, n in lengths.items()), "Cut or fill the columns that differ.")
    n = next(iter(lengths.values()), 0)
    return Frame(data, "dict", tuple(data), n, partial(_column, _read_values, data))


def _column(read: Callable[[str, Any], Column], data: Any, name: str) -> Column:
    """With what it is read by, as functions without a name of their own cannot be pickled."""
    return read(name, data[name])


def _read_values(name: str, values: Any) -> Column:
    plain = isinstance(values, (np.ndarray, list, tuple, range))
    if plain or not (hasattr(values, "dtype") or hasattr(values, "type")):
        return read_column(name, values)
    try:
        series = nw.from_native(values, series_only=True)
    except TypeError:
        return read_column(name, np.asarray(values))
    return _read_series(name, series)


def _read_structured(data: npt.NDArray[Any]) -> Frame:
    if data.dtype.names is None:
        raise InputError("data must be a data frame or a dict of columns",
                         f"an array of shape {data.shape} without names",
                         'Give the columns names: {"x": X[:, 0], "z": X[:, 1]}.')
    require(data.ndim == 1, "a structured array must have one dimension", f"shape {data.shape}", "Flatten it.")
    return Frame(data, "numpy", data.dtype.names, len(data), partial(_column, read_column, data))


def _read_narwhals(data: Any) -> Frame:
    if type(data).__name__ == "RecordBatch" and hasattr(data, "schema"):  # of pyarrow: narwhals knows tables alone
        data = import_module("pyarrow").Table.from_batches([data])
    unique_names(data)
    try:
        frame = nw.from_native(data, allow_series=False)
    except TypeError as error:
        raise InputError("data must be a data frame (pandas, polars, pyarrow, ...) or a dict of columns",
                         type(data).__name__, 'For arrays write {"x": x, "y": y}.') from error
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    for name in frame.columns:
        require(isinstance(name, str), "names of columns must be text", f"{name!r}",
                "Rename the columns: data.columns = [str(name) for name in data.columns].")
    return Frame(frame.to_native(), frame.implementation.name.lower(), tuple(frame.columns), len(frame),
                 partial(_column, _read_series, frame))


def unique_names(data: Any) -> None:
    """pandas and arrow allow the same name twice; narwhals would fail later, and not say why."""
    names = getattr(data, "columns", ()) if hasattr(data, "iloc") else getattr(data, "column_names", ())
    every = list(names) if isinstance(names, (list, tuple)) or hasattr(data, "iloc") else []
    twice = [name for name in dict.fromkeys(every) if every.count(name) > 1]
    require(not twice, "every column must have a name of its own",
            f"more than one column called {listed(map(repr, twice))}", "Rename or drop the duplicates.")


def _read_series(name: str, series: Any) -> Column:
    """A series of narwhals."""
    dtype = series.dtype
    null = series.is_null()
    missing = null.to_numpy().astype(bool) if null.any() else None
    if isinstance(dtype, (nw.Categorical, nw.Enum)):
        return _read_categories(name, series, missing)
    if dtype.is_numeric():
        if missing is not None or dtype.is_decimal() or dtype in (nw.Int128, nw.UInt128):
            series = series.cast(nw.Float64())
            values = series.to_numpy() if missing is None else series.fill_null(np.nan).to_numpy()
            return read_column(name, values.astype(np.float64))
        return read_column(name, series.to_numpy())
    if isinstance(dtype, nw.Boolean):
        if missing is None:
            return Column(name, "flag", series.to_numpy().astype(bool))
        return Column(name, "flag", _objects(series.to_list(), missing), missing)
    if isinstance(dtype, nw.String):
        return Column(name, "text", _objects(series.to_list(), missing), missing)
    if dtype.is_temporal():
        return Column(name, "date", _objects([str(value) for value in series.to_list()], missing), missing)
    return read_objects(name, _objects(series.to_list(), missing), missing)


def _read_categories(name: str, series: Any, missing: Mask | None) -> Column:
    if series.implementation.is_pandas_like():
        native = series.to_native()
        labels = tuple(number_label(value) if isinstance(value, (int, float, np.number)) else str(value)
                       for value in native.cat.categories.tolist())
        return Column(name, "category", np.asarray(native.cat.codes, dtype=np.intp), missing, labels,
                      bool(native.cat.ordered))
    values = series.cast(nw.String()).to_list()
    native_type = getattr(series.to_native(), "type", None)
    ordered = True
    if isinstance(series.dtype, nw.Enum):
        labels = tuple(str(level) for level in series.dtype.categories)
    elif getattr(native_type, "ordered", False):  # an ordered dictionary of arrow
        labels = tuple(str(level) for level in series.to_native().combine_chunks().dictionary.to_pylist())
    else:  # these libraries number categories as they meet them: an order of no meaning
        labels, ordered = tuple(sorted(set(values) - {None})), False
    place: dict[str | None, int] = {label: k for k, label in enumerate(labels)}
    place[None] = -1
    codes = np.fromiter(map(place.__getitem__, values), np.intp, len(values))
    return Column(name, "category", codes, missing, labels, ordered)


def _objects(values: list[Any], missing: Mask | None) -> npt.NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    if missing is not None:
        out[missing] = None
    return out
