"""Nested dissection: an order of elimination that keeps a Cholesky factor sparse.

A separator is a set of nodes without which a graph falls into two halves. Eliminated after both halves, it is the only place where
they meet. All parts of one depth are split at once, so that the work is a few passes over the edges for each of the log2(n) depths.
Halves are those of the coordinate along which a part is longest; where no coordinates are given they are made from distances
in the graph. The separator is the smallest set of nodes that touches every edge between the halves (König's theorem).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_bipartite_matching

from klimb.numerics.arrays import Array

LEAF = 64  # nodes that are eliminated together at the bottom: a dense block of this order costs less than calls for its parts
POOR = 0.5  # a separator that holds more of its part than this is no use: the part is then eliminated as one
LANDMARKS = 8
SMOOTHING = 8  # passes that turn distances, which are whole numbers, into coordinates

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Dissection:
    """``front`` of every node and the ``parent`` of every front (-1 at a root); parents have smaller numbers."""

    front: Integers
    parent: Integers


def dissect(graph: Any, coordinates: Array, leaf: int = LEAF) -> Dissection:
    """Fronts of a symmetric graph (CSR or CSC, the diagonal is ignored) with coordinates of shape (n, d)."""
    size = graph.shape[0]
    head = np.repeat(np.arange(size), np.diff(graph.indptr))
    tail = graph.indices.astype(np.int64)
    head, tail = head[head < tail], tail[head < tail]
    front = np.full(size, -1)
    parents: list[Integers] = []
    count, nodes, label, above = 0, np.arange(size), np.zeros(size, dtype=np.int64), np.array([-1])
    side, place = np.zeros(size, dtype=bool), np.full(size, -1)
    while len(nodes):
        sizes = np.bincount(label, minlength=len(above))
        # the halves of every part, and the separators between them
        side[nodes] = _halves(coordinates[nodes], label, sizes)
        cut = side[head] != side[tail]
        separator = np.zeros(size, dtype=bool)
        separator[_cover(head[cut], tail[cut], side)] = True
        lost = np.bincount(label[separator[nodes]], minlength=len(above))
        whole = (sizes <= leaf) | (lost > POOR * sizes)
        ends = whole[label] | separator[nodes]  # these nodes are placed now
        own = whole | (lost > 0)
        number = np.where(own, count + np.cumsum(own) - 1, above)
        front[nodes[ends]] = number[label[ends]]
        parents.append(above[own])
        count += int(own.sum())
        # what is left: two parts for each that was split
        nodes, label = nodes[~ends], label[~ends]
        half = 2 * label + side[nodes]
        present, label = np.unique(half, return_inverse=True)
        above = number[present // 2]
        place[:] = -1
        place[nodes] = label
        keep = (place[head] >= 0) & (place[head] == place[tail])
        head, tail = head[keep], tail[keep]
    return Dissection(front, np.concatenate(parents) if parents else np.zeros(0, dtype=np.int64))


def _halves(points: Array, label: Integers, sizes: Integers) -> Mask:
    """Which nodes lie in the upper half of their part along its longest direction."""
    spread = np.empty((points.shape[1], len(sizes)))
    for j, x in enumerate(points.T):
        mean = np.bincount(label, x, len(sizes)) / np.maximum(sizes, 1)
        spread[j] = np.bincount(label, (x - mean[label]) ** 2, len(sizes))
    axis = np.argmax(spread * (1.0 + 1e-9 * np.arange(points.shape[1], 0, -1))[:, None], axis=0)
    key = np.take_along_axis(points, axis[label][:, None], 1)[:, 0]
    order = np.lexsort((key, label))
    start = np.cumsum(sizes) - sizes
    upper = np.empty(len(label), dtype=bool)
    upper[order] = np.arange(len(label)) - start[label[order]] >= (sizes // 2)[label[order]]
    return upper


def _cover(head: Integers, tail: Integers, side: Mask) -> Integers:
    """The fewest nodes that touch every edge between lower and upper nodes.

    With a largest matching M, let Z be what alternating paths reach from the unmatched lower nodes. The lower nodes outside Z
    and the upper ones in Z touch every edge and are as many as M has edges.
    """
    if not len(head):
        return np.zeros(0, dtype=np.int64)
    low, up = np.where(side[head], tail, head), np.where(side[head], head, tail)
    lows, i = np.unique(low, return_inverse=True)
    ups, j = np.unique(up, return_inverse=True)
    graph = csr_array((np.ones(len(i), dtype=np.int8), (i, j)), shape=(len(lows), len(ups)))
    partner = maximum_bipartite_matching(graph, perm_type="column")  # of every lower node
    mate = np.full(len(ups), -1)
    mate[partner[partner >= 0]] = np.flatnonzero(partner >= 0)
    reached_low, reached_up = partner < 0, np.zeros(len(ups), dtype=bool)
    while True:
        fresh = np.unique(j[reached_low[i] & ~reached_up[j]])
        if not len(fresh):
            break
        reached_up[fresh] = True
        reached_low[mate[fresh]] = True  # a largest matching leaves no upper node of an alternating path unmatched
    return np.concatenate([lows[~reached_low], ups[reached_up]])


def invented_coordinates(graph: Any) -> Array:
    """Three coordinates from the distances to a few nodes that are far from each other, smoothed over neighbours."""
    size = graph.shape[0]
    graph = _connected(graph)
    nearest = _distances(graph, int(_distances(graph, 0).argmax()))
    columns = [nearest]
    for _ in range(min(LANDMARKS, size) - 1):
        columns.append(_distances(graph, int(nearest.argmax())))
        nearest = np.minimum(nearest, columns[-1])
    table = np.stack(columns, axis=1)
    degree = np.maximum(np.diff(graph.indptr), 1)[:, None]
    for _ in range(SMOOTHING):
        table = 0.5 * (table + (graph @ table) / degree)
    table -= table.mean(axis=0)
    values, axes = np.linalg.eigh(table.T @ table)
    axes = axes[:, ::-1][:, :3]
    return np.asarray(table @ (axes * np.where(axes.sum(axis=0) < 0.0, -1.0, 1.0)))


def _connected(graph: Any) -> csr_array:
    """The graph with one edge more between one component and the next."""
    count, component = connected_components(graph, directed=False)
    ones = np.ones(graph.nnz)
    linked = csr_array((ones, graph.indices, graph.indptr), shape=graph.shape)
    if count == 1:
        return linked
    first = np.unique(component, return_index=True)[1]
    links = csr_array((np.ones(count - 1), (first[:-1], first[1:])), shape=graph.shape)
    return csr_array(linked + links + links.T)


def _distances(graph: csr_array, source: int) -> Array:
    """Edges from one node to every other. Pointers to predecessors double their reach in every pass."""
    _, pointer = breadth_first_order(graph, source, directed=True)
    pointer = pointer.astype(np.int64)
    pointer[source] = source
    distance = np.ones(len(pointer))
    distance[source] = 0.0
    while (pointer != source).any():
        distance += distance[pointer]
        pointer = pointer[pointer]
    return distance
