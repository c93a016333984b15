"""Nested dissection: an order of elimination that keeps a Cholesky factor sparse.

A separator is a set of nodes without which a graph falls into two halves. Eliminated after both halves, it is the only place where
they meet. All parts of one depth are split at once, so that the work is a few passes over the edges for each of the log2(n) depths.
Halves are those of the coordinate along which a part is longest; where no coordinates are given they are made from distances
in the graph. The separator is the smallest set of nodes that touches every edge between the halves (König's theorem).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_bipartite_matching

from klimb.numerics.arrays import Array

LEAF = 64  # nodes that are eliminated together at the bottom: a dense block of this order costs less than calls for its parts
POOR = 0.4  # a separator that holds more of its part than this is no use: the part is then eliminated as one
LANDMARKS = 8
HUB = 1.5  # a node with more than this many times the median number of neighbours is no way for distances
SMOOTHING = 8  # passes that turn distances, which are whole numbers, into coordinates

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Dissection:
    """``front`` of every node and the ``parent`` of every front (-1 at a root); parents have smaller numbers."""

    front: Integers
    parent: Integers


def dissect(graph: Any, coordinates: Array, rotate: bool = False, leaf: int = LEAF) -> Dissection:
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
        def border(upper: Mask, nodes: Integers = nodes, label: Integers = label, count: int = len(above)) -> Array:
            side[nodes] = upper
            crossing = side[head] != side[tail]
            touched = np.zeros(size, dtype=bool)
            touched[np.where(side[head[crossing]], tail[crossing], head[crossing])] = True
            return np.bincount(label, touched[nodes], count)

        side[nodes] = _halves(coordinates[nodes], label, sizes, border, rotate)
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


def _halves(points: Array, label: Integers, sizes: Integers, sides: Callable[[Mask], Array], rotate: bool) -> Mask:
    """Which nodes lie in the upper half of their part, along the direction that leaves the smallest border."""
    best, key = np.full(len(sizes), np.inf), np.empty(len(label))
    for projected in _directions(points, label, sizes, rotate):
        mean = np.bincount(label, projected, len(sizes)) / sizes
        upper = projected > mean[label]
        share = np.bincount(label, upper, len(sizes)) / sizes
        with np.errstate(divide="ignore", invalid="ignore"):
            score = sides(upper) / (share * (1.0 - share))
        better = score < best
        best[better] = score[better]
        key[better[label]] = projected[better[label]]
    order = np.lexsort((key, label))
    start = np.cumsum(sizes) - sizes
    upper = np.empty(len(label), dtype=bool)
    upper[order] = np.arange(len(label)) - start[label[order]] >= (sizes // 2)[label[order]]
    return upper


def _directions(points: Array, label: Integers, sizes: Integers, rotate: bool) -> Iterator[Array]:
    """Projections of the nodes: on the two axes along which a part is longest, on their sum and on their difference."""
    d = points.shape[1]
    centred = points - np.stack([np.bincount(label, x, len(sizes)) / sizes for x in points.T], axis=1)[label]
    moments = np.empty((len(sizes), d, d))
    for i in range(d):
        for j in range(i + 1 if rotate else 1):
            k = j if rotate else i
            moments[:, i, k] = moments[:, k, i] = np.bincount(label, centred[:, i] * centred[:, k], len(sizes))
    if rotate and d > 1:
        axes = np.linalg.eigh(moments)[1][:, :, ::-1][:, :, :2]
        first, second = (np.einsum("nd,nd->n", centred, axes[label, :, k]) for k in range(2))
    else:
        length = np.einsum("kii->ki", moments)
        longest = np.argsort(-length, axis=1, kind="stable")
        first = np.take_along_axis(centred, longest[label, :1], 1)[:, 0]
        second = np.take_along_axis(centred, longest[label, -1:] if d == 1 else longest[label, 1:2], 1)[:, 0]
    yield first
    if d > 1:
        yield second
        yield first + second
        yield first - second


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
    """Distances to a few nodes that are far from each other, smoothed over neighbours."""
    ways = _connected(_without_hubs(graph))
    nearest = _distances(ways, int(_distances(ways, 0).argmax()))
    columns = [nearest]
    for _ in range(min(LANDMARKS, graph.shape[0]) - 1):
        columns.append(_distances(ways, int(nearest.argmax())))
        nearest = np.minimum(nearest, columns[-1])
    table = np.stack(columns, axis=1)
    degree = np.maximum(np.diff(ways.indptr), 1)[:, None]
    for _ in range(SMOOTHING):
        table = 0.5 * (table + (ways @ table) / degree)
    return table


def _without_hubs(graph: Any) -> csr_array:
    """The graph without the edges of nodes that have many: they are short cuts, and distances are to look like those in space.

    The long edges along the hull of a triangulation are an example. A hub keeps the edge to its neighbour of lowest degree.
    """
    size, degree = graph.shape[0], np.diff(graph.indptr)
    head, tail = np.repeat(np.arange(size), degree), graph.indices
    hub = degree > HUB * np.median(degree)
    of_hub = np.flatnonzero(hub[head] & (head != tail))
    nearest = of_hub[np.lexsort((degree[tail[of_hub]], head[of_hub]))]
    nearest = nearest[np.flatnonzero(np.diff(head[nearest], prepend=-1))]
    keep = np.flatnonzero(~hub[head] & ~hub[tail])
    i, j = np.concatenate([head[keep], head[nearest], tail[nearest]]), np.concatenate([tail[keep], tail[nearest], head[nearest]])
    return csr_array((np.ones(len(i)), (i, j)), shape=graph.shape)


def _connected(graph: csr_array) -> csr_array:
    """The graph with one edge more between one component and the next."""
    count, component = connected_components(graph, directed=False)
    if count == 1:
        return graph
    first = np.unique(component, return_index=True)[1]
    links = csr_array((np.ones(count - 1), (first[:-1], first[1:])), shape=graph.shape)
    return csr_array(graph + links + links.T)


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
