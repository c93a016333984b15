"""``spde(x, y)``: a smooth surface over two coordinates: a Matern field by finite elements.

A Matern field solves (kappa^2 - Laplace) tau f = white noise (Whittle). With linear elements on a mesh, lumped masses C
and stiffness G (Lindgren, Rue and Lindstrom 2011, alpha = 2),

    Q = tau^2 (kappa^4 C + 2 kappa^2 G + G C^-1 G) = tau^2 K C^-1 K,        K = kappa^2 C + G,
    log det Q = n log tau^2 + 2 log det K - log det C,

so that only K, which is sparser than Q, is factorised. In the plane nu = 1 (`terms.curve` has lines). The range is
sqrt(8) / kappa, where the correlation is about 0.14, and tau follows from the standard deviation. The mesh goes on far
beyond the data, by large triangles. Its edge, which reflects the field, adds to the variance of the field's level from
ranges of the margin on: the precision of the level is that at which the variance in the middle is sd^2.

What Q says of the field's level, kappa^4 C, would be lost in the rounding of G C^-1 G where ranges are long. The weight
of one node is therefore that level, and those of the others are what is left of the field there: T'Q T with T the
identity but for a column of ones, in which G, whose rows sum to 0, has no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from klimb._stan import StanDefinition, StanPart, literal, said
from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.linalg.sparse_cholesky import SymbolicCholesky
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import pc_lengthscale
from klimb.rows.meshes import COARSEST, Cells, Mesh, cover, read_mesh
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.curve import FEW, TYPICAL, MaternCurve
from klimb.terms.field import Field, directions, on_pattern, symmetric_pattern
from klimb.theta import ParameterBlock

MARGIN = 20.0  # of the mesh around the data, of the same: large triangles cost little
NEAR = 1.5  # of the largest sides of triangles near data: the field misses more at places in larger ones


@stored("term.spde")
@dataclass(frozen=True, eq=False)
class MaternField(Field):
    """A Matern field at the nodes of a mesh; values are its standard deviation and its range."""

    kind = "spde"
    functions = (Function("spde", "special", (Parameter("x", "numeric", many=True), Parameter("mesh", "object", None),
                                              Parameter("spacing", "number", None)),
                          "a Matern field over one or two coordinates, by finite elements", joins=True),)
    name: str
    expressions: tuple[Numeric, ...]
    extent: float  # the largest distance between places, about
    spacing: float  # of the mesh where it is finest; 0 for a user's mesh
    nodes: Array
    cells: Cells
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> tuple[Field, ...]:
        """A mesh around the places of the data, or the one that the fit was given."""
        arguments = bind(call)
        expressions = tuple(learn_numeric(node, source) for node in arguments.get("x", ()))
        require(1 <= len(expressions) <= 2, "expected one or two coordinates", str(len(expressions)),
                "Write spde(x, y) for places, spde(x) for a line.")
        name, given, spacing = f"spde({', '.join(map(str, arguments['x']))})", arguments["mesh"], arguments["spacing"]
        require(spacing is None or spacing > 0.0, "expected a positive spacing", spacing, "Leave it out.")
        if len(expressions) == 1:
            require(given is None, "expected two coordinates with a mesh of triangles", "1",
                    "Write spde(x, y, mesh=...).")
            return MaternCurve.learn(name, expressions[0], source, spacing)
        places = np.unique(np.column_stack([expression.evaluate(source) for expression in expressions]), axis=0)
        require(len(places) >= 3, "expected at least three different places", str(len(places)), "Use (1 | g).")
        extent = float(np.linalg.norm(np.ptp(places, axis=0)))
        if given is None:
            mesh, spacing = cover(places, spacing, MARGIN * extent)
        else:
            mesh, spacing = _named_mesh(given, source, places), 0.0
        return (cls(name, expressions, extent, float(spacing), mesh.nodes, mesh.cells),)

    def note(self) -> str:
        if not self.spacing:
            return ""
        return (f"{self.name} has a mesh of {len(self.nodes):,} nodes, {self.spacing:.2g} apart where the data are "
                "dense; spacing= chooses another.")

    def doubt(self, values: Sequence[Any]) -> tuple[float, str]:
        return FEW * self.spacing / values[1], (
            f"range({self.name}) is {values[1]:.2g}, and triangles of the mesh have sides of {self.spacing:.2g} or "
            f"more: pass spacing={0.1 * values[1]:.1g}.")

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        typical = TYPICAL * self.extent
        prior = pc_lengthscale(typical, 0.5, 2)
        return (context.choices.positive(f"range({self.name})", prior, typical, kind="field"),)

    # -- the prior

    @property
    def size(self) -> int:
        return len(self.nodes)

    @cached_property
    def _mesh(self) -> Mesh:
        return Mesh(self.nodes, self.cells)

    @cached_property
    def _middle(self) -> int:
        """The node whose weight is the field's level."""
        middle = 0.5 * (self.nodes.min(axis=0) + self.nodes.max(axis=0))
        return int(((self.nodes - middle) ** 2).sum(axis=1).argmin())

    @cached_property
    def _level(self) -> Any:
        """T: the field at all nodes from the weights."""
        every, others = np.arange(self.size), np.delete(np.arange(self.size), self._middle)
        columns = np.append(every, np.full(len(others), self._middle))
        return scipy_sparse.csc_array((np.ones(len(columns)), (np.append(every, others), columns)))

    @cached_property
    def _parts(self) -> tuple[Any, Array, Array, Array]:
        """The pattern of Q, and the entries of T'C T, T'G T and T'G C^-1 G T on it."""
        (masses, G), T = self._mesh.elements(), self._level
        others = scipy_sparse.diags_array(np.where(np.arange(self.size) == self._middle, 0.0, 1.0))
        square = others @ G @ scipy_sparse.diags_array(1.0 / masses) @ G @ others
        C, G = T.T @ scipy_sparse.diags_array(masses) @ T, others @ G @ others
        pattern = symmetric_pattern(abs(C) + abs(square))
        square = 0.5 * (square + square.T)  # to the bit: one triangle stands for both
        return pattern, on_pattern(C, pattern), on_pattern(G, pattern), on_pattern(square, pattern)

    @property
    def pattern(self) -> Any:
        return self._parts[0]

    @cached_property
    def _operator(self) -> tuple[SymbolicCholesky, Array, Array, Any]:
        """The analysis of K, the entries of G, the masses, and where the diagonal stands."""
        masses, G = self._mesh.elements()
        G = symmetric_pattern(G)
        diagonal = np.flatnonzero(G.indices == np.repeat(np.arange(self.size), np.diff(G.indptr)))
        return SymbolicCholesky(G, self.nodes), G.data, masses, diagonal

    def _rates(self, values: Sequence[Any]) -> tuple[float, float]:
        """kappa and tau^2: sd^2 = 1 / (4 pi kappa^2 tau^2)."""
        kappa = float(np.sqrt(8.0) / values[1])
        return kappa, 1.0 / (4.0 * np.pi * (kappa * values[0]) ** 2)

    @cached_property
    def _latest(self) -> dict[float, tuple[Any, Array]]:
        return {}

    def _solved(self, kappa: float) -> tuple[Any, Array]:
        """The factor of K, and K^-1 of the pair; the latest are remembered, because prior and gradient ask for them."""
        if kappa not in self._latest:
            symbolic, G, masses, diagonal = self._operator
            data = G.copy()
            data[diagonal] += kappa**2 * masses
            factor = symbolic.factor(data)
            self._latest.clear()
            self._latest[kappa] = factor, factor.solve(self._pair)
        return self._latest[kappa]

    @cached_property
    def _pair(self) -> Array:
        """(n, 2): the node in the middle, and the row of f there."""
        unit = np.zeros((self.size, 2))
        unit[self._middle, 0] = 1.0
        unit[:, 1] = self._mesh.rows(self.nodes[[self._middle]])[0].toarray()[0]
        return unit

    def _edge(self, kappa: float) -> Array:
        """Variances in units of sd^2 of the node in the middle, as the mesh has it and as it should be.

        What f has there beyond sd^2 comes from the edge of the mesh.
        """
        X, masses = self._solved(kappa)[1], self._operator[2][:, None]
        node, row = 4.0 * np.pi * kappa**2 * (X * masses * X).sum(axis=0)
        return np.array([node, node - row + 1.0])

    def _edge_slopes(self, kappa: float) -> Array:
        """Those of ``_edge`` in log kappa."""
        (factor, X), masses = self._solved(kappa), self._operator[2][:, None]
        pulled = masses * X
        slopes = 8.0 * np.pi * kappa**2 * (X * pulled).sum(axis=0)
        slopes -= 16.0 * np.pi * kappa**4 * (pulled * factor.solve(pulled)).sum(axis=0)
        return np.array([slopes[0], slopes[0] - slopes[1]])

    @cached_property
    def _at_level(self) -> int:
        """The place of the level's own entry."""
        first, last = self.pattern.indptr[self._middle : self._middle + 2]
        return int(first + np.searchsorted(self.pattern.indices[first:last], self._middle))

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        """With the precision of the level changed, so that f has the variance sd^2 in the middle."""
        kappa, tau2 = self._rates(values)
        (_, C, G, square), (edge, own) = self._parts, self._edge(kappa)
        data = tau2 * (kappa**4 * C + 2.0 * kappa**2 * G + square)
        data[self._at_level] += (1.0 / own - 1.0 / edge) / values[0] ** 2
        logdet = self.size * np.log(tau2) + 2.0 * self._solved(kappa)[0].logdet - np.log(self._operator[2]).sum()
        return data, float(logdet + np.log(edge / own))

    def slopes(self, values: Sequence[Any]) -> list[tuple[Array, float]]:
        """By traces: d log det K / d kappa = 2 kappa sum_i C_i (K^-1)_ii, and d kappa / d range = -kappa / range."""
        kappa, tau2 = self._rates(values)
        (_, C, _, square), edge, slopes = self._parts, self._edge(kappa), self._edge_slopes(kappa)
        _, _, masses, diagonal = self._operator
        by_kappa = 2.0 * tau2 * (kappa**4 * C - square)  # times kappa
        by_kappa[self._at_level] += float(np.diff(-slopes / edge**2)[0]) / values[0] ** 2
        trace = float(masses @ self._solved(kappa)[0].inverse_entries[diagonal])
        logdet_by_kappa = 4.0 * kappa**2 * trace - 2.0 * self.size - float(np.diff(slopes / edge)[0])
        return [(-2.0 / values[0] * self.entries(values)[0], -2.0 * self.size / values[0]),
                (-by_kappa / values[1], -logdet_by_kappa / values[1])]

    def modes(self) -> tuple[Array, Array]:
        """The field by modes of C^-1/2 G C^-1/2, which has the eigenvalues of the Laplacian on the mesh."""
        masses, G = self._mesh.elements()
        root = scipy_sparse.diags_array(masses**-0.5)
        vectors, sizes = directions(root @ G @ root, self.size)
        return root @ vectors, sizes

    def mode_sds(self, values: Sequence[str], known: str) -> str:
        """1 / (tau (kappa^2 + eigenvalue))."""
        kappa = f"(sqrt(8) / {values[1]})"
        return f"{values[0]} * {literal(np.sqrt(4.0 * np.pi))} * {kappa} / (square({kappa}) + {known})"

    def stan_root(self, values: Sequence[str], z: str, w: str, tag: str, columns: int = 0) -> StanPart:
        """The field by its modes, the level of which then gets the variance that it should have."""
        made = super().stan_root(values, z, free := f"modes{tag}", tag, columns)
        n, at, middle, size = self.size, self._middle + 1, f"middle{tag}", f"vector[{self.size}]"
        steps = ("{", f"{size} known = square({self.mode_sds(values, f'known{tag}')});",
                 f"{size} share = T{tag} * (known .* T{tag}[{at}]');",
                 f"real wanted = share[{at}] - sum(known .* square({middle})) + square({values[0]});",
                 f"{w}{{c}} = {free}{{c}} + share / share[{at}] * ({free}{{c}}[{at}] "
                 f"* (sqrt(wanted / share[{at}]) - 1));",
                 f"for (j in 1:{n}) if (j != {at}) {w}{{c}}[j] -= {w}{{c}}[{at}];", "}")
        return replace(
            made, data=(*made.data, f"{size} {middle};" + said("modes in the middle of the mesh")),
            values={**made.values, middle: self._pair[:, 1] @ self._modes[0]},
            transformed=(*made.transformed, StanDefinition(f"matrix[{n}, {columns}]" if columns else size, w, "",
                                                           steps=steps)))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        (kappa, tau2), (T, sizes), masses = self._rates(values), self._modes, self._operator[2]
        factor, (edge, own) = self._solved(kappa)[0], self._edge(kappa)
        share = factor.solve(masses * factor.solve(self._pair[:, 0]))
        level = weights[..., self._middle]
        field = weights @ self._level.T.toarray()
        field -= np.multiply.outer(level * (1.0 - np.sqrt(edge / own)), share / share[self._middle])
        return np.asarray(field @ (masses[:, None] * T) * (np.sqrt(tau2) * (kappa**2 + sizes)))

    # -- rows

    def block(self, source: Source) -> Nodes:
        places = np.column_stack([expression.evaluate(source) for expression in self.expressions])
        rows, outside = self._mesh.rows(places)
        sides = np.where(outside, np.inf, rows @ np.sqrt(self._operator[2] / np.sqrt(0.75)))
        coarse = sides > self._near
        return Nodes(scipy_sparse.csr_array(rows @ self._level), np.where(coarse, sides, 0.0) if coarse.any() else None)

    @property
    def _near(self) -> float:
        """The largest side of a triangle near data, about; a user's mesh is taken as it is."""
        return NEAR * max(self.spacing, COARSEST * self.extent) if self.spacing else 1e300

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """What large triangles far from the data lose of the variance, and all of it outside the mesh."""
        if block.beyond is None:
            return None
        outside = np.isinf(block.beyond)
        sides = np.where(outside, self._near, block.beyond)
        share = _lost(self._rates(values)[0] * sides) * np.clip(sides / self._near - 1.0, 0.0, 1.0)
        return np.asarray(values[0] * np.sqrt(np.where(outside, 1.0, share)))[:, None]

    def at_nodes(self) -> tuple[Sequence[Any], Any]:
        return [f"{x:.6g}, {y:.6g}" for x, y in self.nodes], self._mesh.rows(self.nodes)[0] @ self._level

    def places(self) -> Array:
        return self.nodes


def _lost(x: Array) -> Array:
    """The share of its variance that a field loses on equilateral triangles of side h, on average over one: of kappa h.
    """
    logs, shares = _lost_shares()
    return np.asarray(np.interp(np.log(np.maximum(x, 1e-9)), logs, shares, left=0.0, right=1.0))


@cache
def _lost_shares() -> tuple[Array, Array]:
    """By sums over all frequencies of such a lattice, where G has the symbol (2 / sqrt(3)) (3 - sum of three cosines).
    """
    angle = 2.0 * np.pi * np.arange(128) / 128.0
    one, two = angle[:, None], angle
    cosines = np.cos(one) + np.cos(two) + np.cos(one - two)
    G, C, logs = 2.0 / np.sqrt(3.0) * (3.0 - cosines), np.sqrt(0.75), np.linspace(np.log(0.1), np.log(100.0), 60)
    kept = [float(np.mean((0.5 + cosines / 6.0) * 4.0 * np.pi * x**2 * C / (C * x**2 + G) ** 2)) for x in np.exp(logs)]
    return logs, 1.0 - np.array(kept)


def _named_mesh(wanted: str, source: Source, places: Array) -> Mesh:
    """The mesh that the fit was given by this name, with all places of the data inside."""
    require(wanted in source.objects, f"expected a mesh called {wanted} beside the data", "none",
            f"Pass klimb.fit(..., meshes={{{wanted!r}: (nodes, triangles)}}).")
    mesh = read_mesh(source.objects[wanted], wanted)
    outside = np.flatnonzero(mesh.locate(places)[0] < 0)
    if len(outside):
        raise InputError(f"expected all places of the data inside {wanted}",
                         f"{len(outside)} outside, such as {tuple(places[outside[0]].tolist())}",
                         "Extend the mesh beyond the data, by about the range.")
    return mesh
