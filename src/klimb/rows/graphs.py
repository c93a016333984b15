"""Graphs over the levels of a column, from whatever people have: edges, neighbours, adjacency matrices, libraries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import InputError, listed, require
from klimb.numerics.arrays import Index
from klimb.numerics.lazy import csgraph, scipy_sparse

Edges = Index
Found: TypeAlias = tuple[list[Any], list[tuple[Any, Any]], list[float]]  # nodes, edges, weights where there are any
_ADVICE = "Pass pairs of levels, a dict of neighbours, a sparse adjacency matrix, a networkx graph or a libpysal W."


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes by the label of their level, and edges as pairs of their numbers, each once."""

    labels: tuple[str, ...]
    edges: Edges  # (E, 2), the smaller number first
    first: str = ""  # the level that its number 0 was read as, where that is not plain from the names of the levels
    weighted: bool = False  # whether its edges came with weights that differ, which are not kept

    @property
    def n(self) -> int:
        return len(self.labels)

    def parts(self) -> Index:
        """The connected part of every node."""
        matrix = scipy_sparse.coo_array((np.ones(len(self.edges)), tuple(self.edges.T)), shape=(self.n, self.n))
        return np.asarray(csgraph.connected_components(matrix, directed=False)[1], dtype=np.intp)


def read_graph(given: Any, levels: Sequence[str], appeared: Sequence[str], name: str) -> Graph:
    """The graph over ``levels``; ``appeared`` has them in the order of the rows, for graphs that count regions.

    >>> graph = read_graph([("a", "b"), ("c", "b")], ["a", "b", "c"], ["a", "b", "c"], "G")
    >>> graph.labels, graph.edges.tolist()
    (('a', 'b', 'c'), [[0, 1], [1, 2]])
    """
    named, joined, weights = _pairs(given, name, len(levels))
    nodes, pairs = [_whole(node) for node in named], [(_whole(i), _whole(j)) for i, j in joined]
    found, first = _labels_of(nodes, levels, appeared, name)
    known = {node: k for k, node in enumerate(nodes)}
    labels = list(dict.fromkeys([*levels, *found]))
    place = {label: k for k, label in enumerate(labels)}
    at = [place[label] for label in found]
    edges = np.array([(at[known[i]], at[known[j]]) for i, j in pairs], dtype=np.intp).reshape(-1, 2)
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if len(loops):
        raise InputError(f"{name} must not join a region to itself", f"{labels[edges[loops[0], 0]]!r}",
                         "Leave these pairs out.")
    return Graph(tuple(labels), np.unique(np.sort(edges, axis=1), axis=0), first, len(set(weights)) > 1)


def _pairs(given: Any, name: str, regions: int) -> Found:
    """The nodes that a graph names, its edges, and weights of these."""
    if hasattr(given, "adjacency") and hasattr(given, "edges"):  # networkx
        ends = given.edges(data="weight", default=1.0) if callable(given.edges) else []
        return list(given.nodes), [(i, j) for i, j, *_ in given.edges], [weight for *_, weight in ends]
    weights: list[float] = []
    if hasattr(given, "neighbors") and isinstance(given.neighbors, Mapping):  # libpysal
        weights = [weight for own in (getattr(given, "weights", None) or {}).values() for weight in own]
        given = given.neighbors
    if isinstance(given, Mapping):
        if all(np.ndim(value) == 1 and not isinstance(value, str) for value in given.values()):
            columns = list(given.values())
            if len(columns) == 2 and set(given) == {"i", "j"}:
                return _from_pairs(list(zip(*(_plain(column) for column in columns), strict=True)))
            return *_from_neighbours(given, name), weights
        raise InputError(f"{name} must map each region to its neighbours", repr(given)[:60], _ADVICE)
    if hasattr(given, "tocoo"):
        return _from_matrix(given, name, regions)
    if isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) == 2:  # an adjacency matrix and its names
        nodes, pairs, weights = _pairs(given[0], name, regions)
        names = _plain(given[1])
        if len(set(names)) != len(nodes):
            raise InputError(f"{name} must have a name of its own for each of its {len(nodes)} regions",
                             f"{len(set(names))} different names", "Pass (matrix, names) in one order.")
        return names, [(names[i], names[j]) for i, j in pairs], weights
    if hasattr(given, "columns") and not isinstance(given, np.ndarray):  # a data frame of two columns
        first, second = list(given.columns)[:2]
        return _from_pairs(list(zip(_plain(given[first]), _plain(given[second]), strict=True)))
    array = np.asarray(given)
    if array.ndim == 2 and array.shape[1] == 2 and not (array.shape[0] == 2 and array.dtype.kind == "f"):
        return _from_pairs([(i, j) for i, j in array.tolist()])
    if array.ndim == 2 and array.shape[0] == array.shape[1]:
        return _from_matrix(scipy_sparse.coo_array(array), name, regions)
    raise InputError(f"{name} must be a graph", f"{type(given).__name__} of shape {array.shape}", _ADVICE)


def _plain(column: Any) -> list[Any]:
    return list(np.asarray(column).tolist())


def _from_pairs(pairs: list[tuple[Any, Any]]) -> Found:
    return list(dict.fromkeys(node for pair in pairs for node in pair)), pairs, []


def _from_neighbours(given: Mapping[Any, Any], name: str) -> tuple[list[Any], list[tuple[Any, Any]]]:
    nodes = dict.fromkeys(given)
    for region, others in given.items():
        for other in _plain(others):
            require(other in nodes, f"{name} must name every neighbour as a region of its own", repr(other),
                    f"It is a neighbour of {region!r}.")
            require(region in _plain(given[other]), f"{name} must be symmetric",
                    f"{other!r} is a neighbour of {region!r}, but not the other way round", "Name both.")
    return list(nodes), [(region, other) for region, others in given.items() for other in _plain(others)]


def _from_matrix(given: Any, name: str, regions: int) -> Found:
    matrix = given.tocoo()
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be a square adjacency matrix", f"shape {matrix.shape}", _ADVICE)
    require(matrix.shape[0] >= regions, f"{name} must have a row for each of the {regions} regions of the data",
            f"{matrix.shape[0]} rows", "Rows of regions without neighbours are zero.")
    if not np.isfinite(matrix.data).all():
        raise InputError(f"{name} must hold finite numbers", "nan or infinity", "Write 0 where regions do not touch.")
    away = abs(matrix.tocsr() - matrix.T.tocsr()).tocoo()
    if away.nnz and away.max() > 0:
        k = int(np.argmax(away.data))
        raise InputError(f"{name} must be symmetric", f"entries {int(away.row[k])}, {int(away.col[k])} differ",
                         "Add its transpose.")
    kept = (matrix.data != 0) & (matrix.row != matrix.col)
    pairs = list(zip(matrix.row[kept].tolist(), matrix.col[kept].tolist(), strict=True))
    return list(range(matrix.shape[0])), pairs, np.unique(matrix.data[kept]).tolist()


def _labels_of(nodes: list[Any], levels: Sequence[str], appeared: Sequence[str], name: str) -> tuple[list[str], str]:
    """The label of the level that each node stands for: by name, or by number where none of them is a name.

    Levels 1, 2, ... are counted from 0 where the graph has a 0 and they do not; the graph of a region 0 without data
    looks the same. Levels that are text are counted in the order of the rows. The level read as 0 is said in both.
    """
    names, have, first = [str(node) for node in nodes], set(levels), ""
    whole = all(isinstance(node, int) and not isinstance(node, bool) for node in nodes)
    numbered = whole and all(level.isdigit() for level in levels)
    if numbered and nodes and min(nodes) == 0 and "0" not in have:
        first = "1" if have <= set(names) else ""
        names = [str(node + 1) for node in nodes]
    elif whole and nodes and not have & set(names):
        require(max(nodes) < len(levels) and min(nodes) >= 0, f"{name} must count the {len(levels)} regions from 0",
                f"region {max(nodes)}", "Name regions by their levels instead.")
        names, first = [appeared[node] for node in nodes], appeared[0]
    named = set(names)
    missing, unknown = [level for level in levels if level not in named], [name for name in names if name not in have]
    require(not missing or not unknown, f"{name} must have the regions of the data",
            f"no region {listed(map(repr, missing), 3)}, but {listed(map(repr, unknown), 3)}",
            "Name regions as the column does.")
    return names, first


def _whole(node: Any) -> Any:
    """Numbers that are whole, as tables and arrays may hold them, as integers."""
    return int(node) if isinstance(node, float | np.integer) and node == int(node) else node
