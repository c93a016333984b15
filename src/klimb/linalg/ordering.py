"""Nested dissection: an order of elimination that keeps a Cholesky factor sparse.

A separator is a set of nodes without which a graph falls into two halves. Eliminated after both halves, it is the
only place where they meet. All parts of one depth are split at once, so that the work is a few passes over the edges
for each of the log2(n) depths. Parts are halved across one of four directions in space; where no coordinates are given
they are made from distances in the graph. The separator is the smallest set that touches every edge between the halves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.numerics.arrays import Array, Mask
from klimb.numerics.lazy import csgraph, scipy_sparse

LEAF = 96  # nodes eliminated together at the bottom: a dense block of this order costs less than calls for its parts
POOR = 0.4  # a separator that holds more of its part than this is no use: the part is then eliminated as one
LANDMARKS = 6
LONG = 3.0  # a part so many times longer than wide is cut across
HUB = 1.5  # a node with more than this many times the median number of neighbours is no way for distances
SMOOTHING = 8  # passes that turn distances, which are whole numbers, into coordinates

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dissection:
    """``front`` of every node and the ``parent`` of every front (-1 at a root); parents have smaller numbers."""

    front: Integers
    parent: Integers


def transposition(pattern: Any) -> Integers:
    """The place of entry (j, i) for each entry (i, j) of a symmetric CSC pattern."""
    places = scipy_sparse.csc_array((np.arange(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
    return np.asarray(places.tocsr().data)


def dissect(graph: Any, coordinates: Array, *, rotate: bool = False) -> Dissection:
    """Fronts of a symmetric graph with coordinates (n, d); ``rotate``: each part has principal axes of its own."""
    size = graph.shape[0]
    points = np.ascontiguousarray(coordinates.T)
    head = np.repeat(np.arange(size), np.diff(graph.indptr))
    tail = graph.indices.astype(np.int64)
    head, tail = head[head < tail], tail[head < tail]
    front, parents, count = np.full(size, -1), [np.zeros(0, dtype=np.int64)], 0
    # nodes are sorted by their part; ``above`` is the front of the separator that made the part
    nodes, sizes, above = np.arange(size), np.array([size]), np.array([-1])
    upper = np.zeros(size, dtype=bool)
    while len(nodes):
        parts = _Parts(nodes, sizes, points.take(nodes, axis=1), head, tail)
        order, high = parts.halves(rotate)
        nodes, label = nodes[order], parts.label
        upper[nodes] = high
        cut = np.flatnonzero(upper[head] != upper[tail])
        separator = np.zeros(size, dtype=bool)
        separator[_cover(head[cut], tail[cut], upper)] = True
        lost = np.bincount(label[separator[nodes]], minlength=len(sizes))
        whole = (sizes <= LEAF) | (lost > POOR * sizes)
        own = whole | (lost > 0)
        number = np.where(own, count + np.cumsum(own) - 1, above)
        parents.append(above[own])
        count += int(own.sum())
        placed = whole[label] | separator[nodes]
        front[nodes[placed]] = number[label[placed]]
        # what is left are two parts for each that was split
        halves = np.bincount((2 * label + high)[~placed], minlength=2 * len(sizes))
        nodes, sizes, above = nodes[~placed], halves[halves > 0], number[np.flatnonzero(halves) // 2]
        part = np.full(size, -1)
        part[nodes] = np.repeat(np.arange(len(sizes)), sizes)
        keep = np.flatnonzero((part[head] == part[tail]) & (part[head] >= 0))
        head, tail = head[keep], tail[keep]
    return Dissection(front, np.concatenate(parents))


class _Parts:
    """The parts of one depth: ``nodes`` part after part, their coordinates of shape (d, nodes), edges inside parts."""

    def __init__(self, nodes: Integers, sizes: Integers, points: Array, head: Integers, tail: Integers) -> None:
        self.nodes, self.sizes, self.head, self.tail = nodes, sizes, head, tail
        self.starts = np.cumsum(sizes) - sizes
        self.label = np.repeat(np.arange(len(sizes)), sizes)
        self.points = points - np.repeat(self._sums(points) / sizes, sizes, axis=1)

    def _sums(self, values: Array) -> Array:
        return np.asarray(np.add.reduceat(values, self.starts, axis=-1))

    def halves(self, rotate: bool) -> tuple[Integers, Mask]:
        """An order with the lower half of each part first, and who is upper: across the direction of least border."""
        directions = self._directions(rotate)
        best, key = np.full(len(self.sizes), np.inf), directions[0]
        for projected in directions if len(directions) > 1 else []:
            high = projected > 0.0
            share = self._sums(high.astype(float)) / self.sizes
            with np.errstate(divide="ignore", invalid="ignore"):
                score = self._borders(high) / (share * (1.0 - share))
            better = score < best
            best[better] = score[better]
            key = np.where(better[self.label], projected, key)
        least, most = np.minimum.reduceat(key, self.starts), np.maximum.reduceat(key, self.starts)
        unit = (key - least[self.label]) / np.where(most > least, 1.001 * (most - least), 1.0)[self.label]
        order = np.argsort(self.label + unit, kind="stable")
        rank = np.arange(len(order)) - self.starts[self.label]
        return order, rank >= (self.sizes // 2)[self.label]

    def _borders(self, high: Mask) -> Array:
        """How many nodes of each lower half have a neighbour in the upper one."""
        upper = np.zeros(self.nodes.max() + 1, dtype=bool)
        upper[self.nodes] = high
        cut = np.flatnonzero(upper[self.head] != upper[self.tail])
        touched = np.zeros(len(upper), dtype=bool)
        touched[np.where(upper[self.head[cut]], self.tail[cut], self.head[cut])] = True
        return self._sums(touched[self.nodes].astype(float))

    def _directions(self, rotate: bool) -> list[Array]:
        """Projections on the two axes along which a part is longest, on their sum and on their difference."""
        x, label = self.points, self.label
        top = (-1, -min(2, len(x)))
        if rotate:
            moments = np.empty((len(self.sizes), len(x), len(x)))
            for i in range(len(x)):
                moments[:, i, :i + 1] = self._sums(x[i] * x[:i + 1]).T
            lengths, axes = np.linalg.eigh(moments)  # reads the lower triangle
            first, second = (np.einsum("dn,dn->n", x, np.repeat(axes[:, :, k].T, self.sizes, axis=1)) for k in top)
        else:
            lengths = self._sums(x * x).T
            axis = np.argsort(lengths, axis=1, kind="stable")
            first, second = (x[axis[label, k], np.arange(len(label))] for k in top)
            lengths = np.take_along_axis(lengths, axis, 1)
        if len(x) == 1 or (LONG**2 * lengths[:, -2] < lengths[:, -1])[label].mean() > 0.9:
            return [first]
        return [first, second, first + second, first - second]


def _cover(head: Integers, tail: Integers, side: Mask) -> Integers:
    """The fewest nodes that touch every edge between lower and upper nodes (König's theorem).

    With a largest matching M, let Z be what alternating paths reach from the unmatched lower nodes. The lower nodes
    outside Z and the upper ones in Z touch every edge and are as many as M has edges.
    """
    if not len(head):
        return np.zeros(0, dtype=np.int64)
    low, up = np.where(side[head], tail, head), np.where(side[head], head, tail)
    lows, i = np.unique(low, return_inverse=True)
    ups, j = np.unique(up, return_inverse=True)
    graph = scipy_sparse.csr_array((np.ones(len(i), dtype=np.int8), (i, j)), shape=(len(lows), len(ups)))
    partner = csgraph.maximum_bipartite_matching(graph, perm_type="column")  # of every lower node
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


def _without_hubs(graph: Any) -> Any:
    """The graph without edges of nodes with many, but for one to their neighbour of lowest degree: they are short cuts.

    The long edges along the hull of a triangulation are an example.
    """
    size, degree = graph.shape[0], np.diff(graph.indptr)
    head, tail = np.repeat(np.arange(size), degree), graph.indices
    hub = degree > HUB * np.median(degree)
    of_hub = np.flatnonzero(hub[head] & (head != tail))
    nearest = of_hub[np.lexsort((degree[tail[of_hub]], head[of_hub]))]
    nearest = nearest[np.flatnonzero(np.diff(head[nearest], prepend=-1))]
    keep = np.flatnonzero(~hub[head] & ~hub[tail])
    i = np.concatenate([head[keep], head[nearest], tail[nearest]])
    j = np.concatenate([tail[keep], tail[nearest], head[nearest]])
    return scipy_sparse.csr_array((np.ones(len(i)), (i, j)), shape=graph.shape)


def _connected(graph: Any) -> Any:
    """The graph with one edge more between one component and the next."""
    count, component = csgraph.connected_components(graph, directed=False)
    if count == 1:
        return graph
    first = np.unique(component, return_index=True)[1]
    links = scipy_sparse.csr_array((np.ones(count - 1), (first[:-1], first[1:])), shape=graph.shape)
    return scipy_sparse.csr_array(graph + links + links.T)


def _distances(graph: Any, source: int) -> Array:
    """Edges from one node to every other. Pointers to predecessors double their reach in every pass."""
    _, pointer = csgraph.breadth_first_order(graph, source, directed=True)
    pointer = pointer.astype(np.int64)
    pointer[source] = source
    distance = np.ones(len(pointer))
    distance[source] = 0.0
    while (pointer != source).any():
        distance += distance[pointer]
        pointer = pointer[pointer]
    return distance
