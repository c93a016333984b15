"""``spde(x, y)``: a smooth surface over two coordinates, or a curve over one: a Matern field by finite elements.

A Matern field solves (kappa^2 - Laplace) tau f = white noise (Whittle). With linear elements on a mesh, lumped masses C
and stiffness G (Lindgren, Rue and Lindstrom 2011, alpha = 2),

    Q = tau^2 (kappa^4 C + 2 kappa^2 G + G C^-1 G) = tau^2 K C^-1 K,        K = kappa^2 C + G,
    log det Q = n log tau^2 + 2 log det K - log det C,

so that only K, which is sparser than Q, is factorised. In the plane nu = 1; on a line alpha = 2 means nu = 3/2. The
range is sqrt(8 nu) / kappa, where the correlation is about 0.14, and tau follows from the standard deviation. The mesh
goes on beyond the data, so that its edge does not reach them. A range of many times that mesh counts as the longest one
at which kappa^4 C is not lost in the rounding of G C^-1 G: the field is nearly a constant by then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klimb._stan import literal
from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.linalg.sparse_cholesky import SymbolicCholesky
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import pc_lengthscale
from klimb.rows.meshes import Cells, Mesh, cover, read_mesh
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.field import Field, directions, on_pattern, symmetric_pattern
from klimb.theta import ParameterBlock

TYPICAL = 0.2  # median of the range in the default prior, of the largest distance between places
FEW = 5.0  # spacings in a range, below which the mesh does not tell it
MARGIN = 1.0  # of the mesh around the data, of the same
LOST = 1e-13  # kappa^4 C over G C^-1 G: the variance of the field's level is known to some 2% there


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
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[MaternField, ...]":
        """A mesh around the places of the data, or the one that the fit was given."""
        arguments = bind(call)
        expressions = tuple(learn_numeric(node, source) for node in arguments.get("x", ()))
        require(1 <= len(expressions) <= 2, "expected one or two coordinates", str(len(expressions)),
                "Write spde(x, y) for places, spde(x) for a line.")
        name, given, spacing = f"spde({', '.join(map(str, arguments['x']))})", arguments["mesh"], arguments["spacing"]
        places = np.unique(np.column_stack([expression.evaluate(source) for expression in expressions]), axis=0)
        require(len(places) >= 3, "expected at least three different places", str(len(places)), "Use (1 | g).")
        require(spacing is None or spacing > 0.0, "expected a positive spacing", spacing, "Leave it out.")
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

    def doubt(self, values: Sequence[Any]) -> str:
        if values[1] >= FEW * self.spacing:
            return ""
        return (f"range({self.name}) is {values[1]:.2g}, and triangles of the mesh have sides of {self.spacing:.2g} or "
                f"more: pass spacing={0.1 * values[1]:.1g}.")

    def beyond(self, reported: Mapping[str, Array]) -> tuple[Array | float, str]:
        name = f"range({self.name})"
        far = np.where(reported.get(name, np.zeros(1)) > self._longest, 1.0, 0.0)
        return far, (f"{name} may be longer than {self._longest:.3g}, from where on the mesh does not tell it, so that "
                     f"sd({self.name}) and the intercept have too little spread")

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        typical = TYPICAL * self.extent
        prior = pc_lengthscale(typical, 0.5, len(self.expressions))
        return (context.choices.positive(f"range({self.name})", prior, typical, kind="field"),)

    # -- the prior

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def _smoothness(self) -> float:
        return 2.0 - 0.5 * len(self.expressions)

    @cached_property
    def _mesh(self) -> Mesh:
        return Mesh(self.nodes, self.cells)

    @cached_property
    def _parts(self) -> tuple[Any, Array, Array, Array]:
        """The pattern of Q, and the entries of C, G and G C^-1 G on it."""
        masses, G = self._mesh.elements()
        product = G @ scipy_sparse.diags_array(1.0 / masses) @ G
        square = symmetric_pattern(0.5 * (product + product.T))  # to the bit: one triangle stands for both
        return square, on_pattern(scipy_sparse.diags_array(masses), square), on_pattern(G, square), square.data

    @property
    def pattern(self) -> Any:
        return self._parts[0]

    @cached_property
    def _operator(self) -> tuple[SymbolicCholesky, Array, Array, Any]:
        """The analysis of K, the entries of G, the masses, and where the diagonal stands."""
        masses, G = self._mesh.elements()
        G = symmetric_pattern(G)
        diagonal = np.flatnonzero(G.indices == np.repeat(np.arange(self.size), np.diff(G.indptr)))
        return SymbolicCholesky(G, self.nodes if self.nodes.shape[1] > 1 else None), G.data, masses, diagonal

    def _rates(self, values: Sequence[Any]) -> tuple[float, float]:
        """kappa and tau^2: sd^2 = Gamma(nu) / (Gamma(2) (4 pi)^(d/2) kappa^(2 nu) tau^2)."""
        kappa, nu = np.sqrt(8.0 * self._smoothness) / min(values[1], self._longest), self._smoothness
        return kappa, (1.0 / (4.0 * np.pi) if nu == 1.0 else 0.25) / (kappa ** (2.0 * nu) * values[0] ** 2)

    @cached_property
    def _longest(self) -> float:
        """The longest range that is told from longer ones."""
        diagonal = self.pattern.indices == np.repeat(np.arange(self.size), np.diff(self.pattern.indptr))
        _, C, _, square = self._parts
        return float(np.sqrt(8.0 * self._smoothness) / (LOST * (square[diagonal] / C[diagonal]).max()) ** 0.25)

    @cached_property
    def _latest(self) -> dict[float, Any]:
        return {}

    def _factor(self, kappa: float) -> Any:
        """Of K; the latest one is remembered, because prior and gradient ask for it."""
        if kappa not in self._latest:
            symbolic, G, masses, diagonal = self._operator
            data = G.copy()
            data[diagonal] += kappa**2 * masses
            self._latest.clear()
            self._latest[kappa] = symbolic.factor(data)
        return self._latest[kappa]

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        kappa, tau2 = self._rates(values)
        _, C, G, square = self._parts
        logdet = self.size * np.log(tau2) + 2.0 * self._factor(kappa).logdet - np.log(self._operator[2]).sum()
        return tau2 * (kappa**4 * C + 2.0 * kappa**2 * G + square), float(logdet)

    def slopes(self, values: Sequence[Any]) -> list[tuple[Array, float]]:
        """By traces: d log det K / d kappa = 2 kappa sum_i C_i (K^-1)_ii, and d kappa / d range = -kappa / range."""
        kappa, tau2 = self._rates(values)
        _, C, G, square = self._parts
        _, _, masses, diagonal = self._operator
        Q, n, nu = tau2 * (kappa**4 * C + 2.0 * kappa**2 * G + square), self.size, self._smoothness
        by_kappa = 4.0 * tau2 * (kappa**4 * C + kappa**2 * G) - 2.0 * nu * Q  # times kappa
        trace = float(masses @ self._factor(kappa).inverse_entries[diagonal])
        logdet_by_kappa = 4.0 * kappa**2 * trace - 2.0 * nu * n
        per_range = -1.0 / values[1] if values[1] <= self._longest else 0.0
        return [(-2.0 / values[0] * Q, -2.0 * n / values[0]), (per_range * by_kappa, per_range * logdet_by_kappa)]

    def modes(self) -> tuple[Array, Array]:
        """Those of C^-1/2 G C^-1/2, which has the eigenvalues of the Laplacian on the mesh."""
        masses, G = self._mesh.elements()
        root = scipy_sparse.diags_array(masses**-0.5)
        vectors, sizes = directions(root @ G @ root, self.size)
        return root @ vectors, sizes

    def mode_sds(self, values: Sequence[str], known: str) -> str:
        """sd kappa^nu / sqrt(sd^2 kappa^(2 nu) tau^2) / (kappa^2 + eigenvalue)."""
        nu = self._smoothness
        kappa, size = f"(sqrt({8.0 * nu}) / {values[1]})", np.sqrt(4.0 * np.pi if nu == 1.0 else 4.0)
        return f"{values[0]} * {literal(size)} * pow({kappa}, {nu}) / (square({kappa}) + {known})"

    # -- rows

    def block(self, source: Source) -> Nodes:
        places = np.column_stack([expression.evaluate(source) for expression in self.expressions])
        rows, outside = self._mesh.rows(places)
        return Nodes(rows, outside.astype(np.float64) if outside.any() else None)

    def at_nodes(self) -> tuple[Sequence[Any], Any]:
        names: Any = self.nodes[:, 0] if self.nodes.shape[1] == 1 else [f"{x:.6g}, {y:.6g}" for x, y in self.nodes]
        return names, self._mesh.rows(self.nodes)[0]

    def places(self) -> Array | None:
        return self.nodes if self.nodes.shape[1] == 2 else None


def _named_mesh(wanted: str, source: Source, places: Array) -> Mesh:
    """The mesh that the fit was given by this name, with all places of the data inside."""
    require(wanted in source.objects, f"expected a mesh called {wanted} beside the data", "none",
            f"Pass klimb.fit(..., meshes={{{wanted!r}: (nodes, triangles)}}).")
    mesh = read_mesh(source.objects[wanted], wanted)
    require(places.shape[1] == 2, "expected two coordinates with a mesh of triangles", str(places.shape[1]),
            "Write spde(x, y, mesh=...).")
    outside = np.flatnonzero(mesh.locate(places)[0] < 0)
    if len(outside):
        raise InputError(f"expected all places of the data inside {wanted}",
                         f"{len(outside)} outside, such as {tuple(places[outside[0]].tolist())}",
                         "Extend the mesh beyond the data, by about the range.")
    return mesh
