"""Graphs, matrices and meshes that a formula names, from files: ``--graph G=edges.csv`` and the like."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from klimb.cli.shell import named
from klimb.cli.tables.read import ReadOptions, read_table
from klimb.errors import InputError, require

_MESH = "Write it with numpy.savez(path, nodes=nodes, triangles=triangles), or as JSON with these two keys."


def objects_of(given: Mapping[str, tuple[str, ...]], options: ReadOptions) -> dict[str, Any]:
    """``{"graphs": ("G=edges.csv",), ...}`` as the keywords of `klimb.fit`."""
    plain = replace(options, format=None, kinds={})  # what was said of the data is not said of these
    readers = {"graphs": ("--graph", _edges), "matrices": ("--matrix", _matrix), "meshes": ("--mesh", _mesh)}
    return {kind: {name: readers[kind][1](path, plain) for name, path in named(texts, readers[kind][0]).items()}
            for kind, texts in given.items()}


def _columns(path: str, count: int, what: str, options: ReadOptions) -> list[Any]:
    table = read_table(path, lambda header: header[:count], options)
    if len(table.columns) < count:
        raise InputError(f"a table of {what} needs {count} columns", f"{len(table.header)} in {path}", "One a row.")
    return list(table.columns.values())


def _edges(path: str, options: ReadOptions) -> list[tuple[Any, Any]]:
    return list(zip(*(ends.tolist() for ends in _columns(path, 2, "edges", options)), strict=True))


def _matrix(path: str, options: ReadOptions) -> Any:
    """A sparse matrix in a file of SciPy or in Matrix Market form, or triplets: row, column, value."""
    from scipy.io import mmread
    from scipy.sparse import coo_array, load_npz

    try:
        if path.endswith(".npz"):
            return load_npz(path)
        if path.removesuffix(".gz").endswith(".mtx"):
            return mmread(path)
    except (ValueError, KeyError, OSError) as error:
        raise _unread(path, "a sparse matrix", error, "Use scipy.sparse.save_npz or scipy.io.mmwrite.") from error
    header = read_table(path, lambda header: header[:1], options).header
    require(len(header) == 3, "a table of a matrix needs 3 columns: row, column and value of each entry that is not 0",
            f"{len(header)} columns in {path}", "A dense matrix M is written as such a table, or by "
            "scipy.io.mmwrite('M.mtx', scipy.sparse.coo_array(M)).")
    rows, columns, values = _columns(path, 3, "the entries of a matrix", options)
    if values.dtype.kind not in "fiu":
        raise InputError(f"the third column of {path} must be numbers", repr(values[0]), "Write row, column, value.")
    both = np.concatenate([rows, columns])
    if both.dtype.kind in "fiu":
        if not (np.isfinite(both) & (both >= 0) & (both == np.round(both))).all():
            raise InputError(f"rows and columns of {path} must be names, or whole numbers from 0", f"{both.min():g}",
                             "Count the levels from 0, in their order.")
        names, codes = None, both.astype(np.intp)
    else:
        names, codes = np.unique(both.astype(str), return_inverse=True)
    i, j = codes.reshape(2, -1)
    size = int(codes.max()) + 1
    matrix = coo_array((values.astype(np.float64), (i, j)), shape=(size, size)).tocsc()
    return matrix if names is None else (matrix, names.tolist())


def _mesh(path: str, options: ReadOptions) -> tuple[Any, Any]:
    """Nodes and triangles."""
    try:
        written = path.endswith(".json")
        stored: Any = json.loads(Path(path).read_text()) if written else np.load(path, allow_pickle=False)
        return np.asarray(stored["nodes"], dtype=np.float64), np.asarray(stored["triangles"])
    except (ValueError, KeyError, TypeError, IndexError, OSError, EOFError) as error:
        raise _unread(path, "a mesh: nodes and triangles", error, _MESH) from error


def _unread(path: str, what: str, error: Exception, advice: str) -> Exception:
    if isinstance(error, FileNotFoundError | PermissionError):
        return error
    return InputError(f"{path} must hold {what}", f"{type(error).__name__}: {str(error).splitlines()[0]}", advice)
