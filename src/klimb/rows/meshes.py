"""Meshes of triangles: made around points, read from a user, their finite elements, where points lie."""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from math import factorial
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import row_blocks
from klimb.numerics.lazy import scipy_sparse, scipy_spatial

Cells = Index
SLIVER = 1.0  # degrees, of the smallest angle that a user's triangle may have
PEELED = 15.0  # degrees, below which a triangle at the edge of a mesh of our own is taken off
SHARE = 0.4  # of the distance to the second point next to a place that a side of a triangle there has at most
COARSEST = 0.02  # of the extent of the points, of the largest side of a triangle near them
SMOOTHED = 2  # times that nodes go to the middle of their neighbours
GROWTH = 0.3  # by which the spacing grows per unit of distance from the points, where it is given
MOST_NODES = 7000  # of a mesh whose spacing is chosen here
LARGEST = 2_000_000  # of any mesh
INSIDE = 1e-9  # by which a barycentric weight may be negative
_ADVICE = "Pass (nodes, triangles): coordinates, and three numbers of nodes for every triangle, counted from 0."


@dataclass(frozen=True, eq=False)
class Mesh:
    """Nodes in the plane and the triangles between them."""

    nodes: Array  # (n, d)
    cells: Cells  # (m, d + 1)

    @cached_property
    def _edges(self) -> Array:
        """(m, d, d): from the first node of every cell to the others."""
        return np.asarray(self.nodes[self.cells[:, 1:]] - self.nodes[self.cells[:, :1]])

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.inv(self._edges))

    def sizes(self) -> Array:
        """Length or area of every cell."""
        return np.asarray(np.abs(np.linalg.det(self._edges)) / factorial(self.nodes.shape[1]))

    def elements(self) -> tuple[Array, Any]:
        """Of the linear elements: the lumped masses, and the integrals of products of gradients as a CSC matrix."""
        n, k = len(self.nodes), self.cells.shape[1]
        slopes = np.concatenate([-self._inverse.sum(axis=2, keepdims=True), self._inverse], axis=2)
        local = np.einsum("mdi,mdj,m->mij", slopes, slopes, self.sizes())
        masses = np.bincount(self.cells.ravel(), np.repeat(self.sizes() / k, k), n).astype(np.float64)
        rows, columns = np.repeat(self.cells, k, axis=1).ravel(), np.tile(self.cells, k).ravel()
        return masses, scipy_sparse.csc_array((local.ravel(), (rows, columns)), shape=(n, n))

    def rows(self, points: Array) -> tuple[Any, Any]:
        """Rows over the nodes that interpolate at points, and which points lie outside: their rows are empty.

        A field of linear elements with lumped masses has too much of high frequencies: k^2 (1 - T k^2 / (2 d)) stands
        for k^2, T being the average over a cell of the second moment t = sum_i b_i |x_i - x|^2 of barycentric weights.
        A row takes (1 - t k^2 / (2 d)) of them, which is right on average over a cell; (T - t) / (2 d) times a
        Laplacian makes this leading term right at every point. Frequencies beyond the mesh stay lost: in the plane
        about 0.12 (kappa h)^2 of the variance at spacing h, as measured on lattices.
        """
        cell, weights = self.locate(points)
        inside, k = np.flatnonzero(cell >= 0), self.cells.shape[1]
        at, own = self.cells[cell[inside]], weights[inside]
        moment, total = np.zeros(len(points)), np.zeros(len(points))
        for i, j in combinations(range(k), 2):
            square = ((self.nodes[at[:, i]] - self.nodes[at[:, j]]) ** 2).sum(axis=1)
            moment[inside] += own[:, i] * own[:, j] * square
            total[inside] += square / (k * (k + 1))
        plain = scipy_sparse.csr_array((own.ravel(), (np.repeat(inside, k), at.ravel())),
                                       shape=(len(points), len(self.nodes)))
        masses, G = self.elements()
        laplacian = scipy_sparse.diags_array(1.0 / masses) @ G
        smoothed = scipy_sparse.diags_array((total - moment) / (2.0 * (k - 1))) @ (plain @ laplacian)
        return scipy_sparse.csr_array(plain - smoothed), cell < 0

    def locate(self, points: Array) -> tuple[Cells, Array]:
        """The cell of every point, -1 outside, and its barycentric weights, which are 0 outside.

        >>> mesh = Mesh(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([[0, 1, 2]]))
        >>> mesh.locate(np.array([[0.25, 0.25], [1.0, 1.0]]))
        (array([ 0, -1]), array([[0.5 , 0.25, 0.25],
               [0.  , 0.  , 0.  ]]))
        """
        found, weights = np.full(len(points), -1, dtype=np.intp), np.zeros((len(points), self.cells.shape[1]))
        slack = INSIDE * np.ptp(self.nodes, axis=0)
        low, high = self.nodes.min(axis=0) - slack, self.nodes.max(axis=0) + slack
        open_ = np.flatnonzero(((points >= low) & (points <= high)).all(axis=1))
        near = min(8, len(self.cells))
        tree: Any = scipy_spatial.cKDTree(self.nodes[self.cells].mean(axis=1))
        some = tree.query(points[open_], k=[*range(1, near + 1)])[1]
        self._search(points, open_, some, found, weights)
        left = open_[found[open_] < 0]
        for block in row_blocks(len(left), 8 * len(self.cells)):
            every = np.broadcast_to(np.arange(len(self.cells)), (len(left[block]), len(self.cells)))
            self._search(points, left[block], every, found, weights)
        return found, weights

    def _search(self, points: Array, rows: Cells, candidates: Cells, found: Cells, weights: Array) -> None:
        away = points[rows][:, None] - self.nodes[self.cells[candidates, 0]]
        others = np.einsum("ncd,ncdk->nck", away, self._inverse[candidates])
        own = np.concatenate([1.0 - others.sum(axis=2, keepdims=True), others], axis=2)
        best = own.min(axis=2).argmax(axis=1) if len(rows) else np.zeros(0, dtype=np.intp)
        own = own[np.arange(len(rows)), best]
        inside = own.min(axis=1) >= -INSIDE if len(rows) else np.zeros(0, dtype=bool)
        own = np.where(own < INSIDE, 0.0, own)[inside]
        found[rows[inside]] = candidates[np.flatnonzero(inside), best[inside]]
        weights[rows[inside]] = own / own.sum(axis=1, keepdims=True)


def read_mesh(given: Any, name: str) -> Mesh:
    """A user's mesh of triangles, checked.

    >>> read_mesh(([[0, 0], [1, 0], [0, 1]], [[0, 1, 2]]), "M").cells
    array([[0, 1, 2]])
    """
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InputError(f"{name} must be a mesh", type(given).__name__, _ADVICE)
    nodes, cells = as_float(given[0], f"nodes of {name}", ndim=2), np.asarray(given[1])
    if nodes.shape[1] != 2 or cells.ndim != 2 or cells.shape[1] != 3 or not len(cells) or cells.dtype.kind not in "iu":
        raise InputError(f"{name} must have nodes of two coordinates, and triangles of three whole numbers",
                         f"shapes {nodes.shape} and {cells.shape}", _ADVICE)
    if cells.min() < 0 or cells.max() >= len(nodes):
        raise InputError(f"triangles of {name} must count its {len(nodes)} nodes from 0",
                         f"{int(cells.min())} to {int(cells.max())}", _ADVICE)
    mesh = Mesh(nodes, cells.astype(np.intp))
    worst = int(np.argmin(least := smallest_angles(mesh)))
    require(least[worst] >= SLIVER, f"triangles of {name} must have angles of {SLIVER:g} degree or more",
            f"{max(least[worst], 0.0):.2g} degrees in triangle {worst}", "Make the mesh anew without slivers.")
    unused = np.setdiff1d(np.arange(len(nodes)), cells)
    if len(unused):
        raise InputError(f"every node of {name} must belong to a triangle", f"node {unused[0]} does not",
                         "Leave such nodes out.")
    require((most := _on_one_side(mesh)) == 1, f"triangles of {name} must not overlap",
            f"{most} triangles on one side of their common side", "Two triangles may share a side, from its two sides.")
    return mesh


def _on_one_side(mesh: Mesh) -> int:
    """The most triangles that lie on the same side of one of their sides: 1 but where they overlap."""
    (u, v), cells = np.diff(mesh.nodes[mesh.cells], axis=1).transpose(1, 2, 0), mesh.cells
    cells = np.where((u[0] * v[1] < u[1] * v[0])[:, None], cells[:, ::-1], cells)  # all turn the same way
    sides = np.concatenate([cells[:, [0, 1]], cells[:, [1, 2]], cells[:, [2, 0]]])
    return int(np.unique(sides, axis=0, return_counts=True)[1].max())


def smallest_angles(mesh: Mesh) -> Array:
    """Of every triangle, in degrees; 0 where two of its nodes are one."""
    at = mesh.nodes[mesh.cells]
    found = np.full(len(at), np.inf)
    for k in range(3):
        u, v = (at[:, (k + 1) % 3] - at[:, k]).T, (at[:, (k + 2) % 3] - at[:, k]).T
        found = np.minimum(found, np.degrees(np.arctan2(np.abs(u[0] * v[1] - u[1] * v[0]), (u * v).sum(axis=0))))
    return found


def _side_counts(cells: Cells) -> Cells:
    """(m, 3): how many triangles have the side between each two nodes of a triangle."""
    sides = np.sort(np.concatenate([cells[:, list(pair)] for pair in combinations(range(3), 2)]), axis=1)
    _, which, count = np.unique(sides, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(count[which.ravel()].reshape(3, -1).T, dtype=np.intp)


# -- meshes of our own


def cover(points: Array, spacing: float | None, margin: float) -> tuple[Mesh, float]:
    """A mesh over the points and a margin around them, and its spacing where it is finest.

    It is a lattice of equilateral triangles whose side doubles again and again with the distance from the
    points. Unless the spacing is given, sides are a part of the distance to the second neighbour (`SHARE`): finer where
    points are dense, as far as `MOST_NODES` allow.
    """
    points = np.unique(points, axis=0)
    low, high = points.min(axis=0), points.max(axis=0)
    count = float(np.prod(np.maximum((high - low) / spacing, 1.0))) if spacing is not None else 0.0
    if count > LARGEST:
        raise InputError(f"a mesh may have {LARGEST:,} nodes", f"about {count:,.0f} at a spacing of {spacing:g}",
                         "Choose a larger spacing.")
    h = _smallest(points, float(np.linalg.norm(high - low))) if spacing is None else spacing
    while len(nodes := _lattices(points, h, margin, spacing is None)) > MOST_NODES and spacing is None:
        h *= 1.02 * (len(nodes) / MOST_NODES) ** 0.5
    mesh = _triangulated(nodes)
    for _ in range(SMOOTHED):
        mesh = _triangulated(_between_neighbours(mesh))
    return mesh, h


def _smallest(points: Array, extent: float) -> float:
    """A spacing that is fine enough where points are dense, with at most `MOST_NODES` of it over their extent."""
    second = scipy_spatial.cKDTree(points).query(points, k=[3])[0]
    return float(np.clip(SHARE * np.quantile(second, 0.1), 0.5 * extent / MOST_NODES**0.5, COARSEST * extent))


def _lattices(points: Array, h: float, margin: float, adapt: bool) -> Array:
    """Lattices of spacing h, 2 h, 4 h, ..., each a part of the one before, where that is what is wanted."""
    tree: Any = scipy_spatial.cKDTree(points)
    low, high = points.min(axis=0), points.max(axis=0)
    share, coarsest = SHARE if adapt else GROWTH, COARSEST * np.linalg.norm(high - low)
    found, side = list[Array](), h
    while side <= h or share * margin >= 0.5 * side:
        box = min(2.0 * side / share, margin)
        lattice = low + _triangular(-np.full(2, box), high - low + box, side)
        nearest, second = tree.query(lattice, k=[1, 3])[0].T
        wanted = share * (np.minimum(second, np.maximum(nearest, coarsest / share)) if adapt else nearest)
        found.append(lattice[(wanted >= (side if side > h else 0.0)) & (wanted < 2.0 * side) & (nearest <= margin)])
        side *= 2.0
    return np.vstack(found)


def _triangular(low: Array, high: Array, h: float) -> Array:
    """The lattice of equilateral triangles of side h through the origin, between two corners."""
    height = np.sqrt(0.75) * h
    j = np.arange(np.floor(low[1] / height), np.ceil(high[1] / height) + 1.0)
    i = np.arange(np.floor(low[0] / h), np.ceil(high[0] / h) + 1.0)
    return np.column_stack([(h * (i[None] + 0.5 * np.mod(j, 2.0)[:, None])).ravel(), np.repeat(height * j, len(i))])


def _between_neighbours(mesh: Mesh) -> Array:
    """Nodes, but for those at the edge, in the middle of their neighbours.

    Where sides double, triangles have all shapes and the field is off by some hundredths of an sd; so it is by less.
    """
    sides = np.concatenate([mesh.cells[:, list(pair)] for pair in permutations(range(3), 2)])
    sums = np.stack([np.bincount(sides[:, 0], along[sides[:, 1]]) for along in mesh.nodes.T], axis=1)
    middle = np.asarray(sums / np.bincount(sides[:, 0])[:, None], dtype=np.float64)
    pairs, counts = list(combinations(range(3), 2)), _side_counts(mesh.cells)
    edge = np.concatenate([mesh.cells[counts[:, k] == 1][:, list(pair)].ravel() for k, pair in enumerate(pairs)])
    middle[edge] = mesh.nodes[edge]
    return middle


def _triangulated(nodes: Array) -> Mesh:
    """Delaunay's triangles, without the flat ones that fill the edge up to a convex hull."""
    mesh = Mesh(nodes, scipy_spatial.Delaunay(nodes).simplices.astype(np.intp))
    while (flat := (_side_counts(mesh.cells) == 1).any(axis=1) & (smallest_angles(mesh) < PEELED)).any():
        mesh = Mesh(nodes, mesh.cells[~flat])
    used = np.unique(mesh.cells)
    return Mesh(nodes[used], np.searchsorted(used, mesh.cells))
