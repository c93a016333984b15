"""``besag(region, graph=G)``, ``bym2(...)`` and ``car(...)``: effects of areas that are like their neighbours.

    besag:  w'R w / s^2 with R = D - W of the graph, sum zero on every connected part: the intrinsic autoregression
    bym2:   s (sqrt(1 - phi) v + sqrt(phi) u) with v independent and u as in besag (Riebler and others 2016)
    car:    precision ((1 - rho) I + rho (D - W)) / s^2, which is proper (Leroux and others 2000)

The intrinsic part is scaled on every connected part, so that at sd 1 the geometric mean of its areas' variances is 1
and the sd means the same whatever the graph; an area without neighbours has a standard normal of its own there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.errors import require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.latents.linear import side_by_side
from klimb.latents.precision import Precision
from klimb.linalg.sparse_cholesky import Analysis, analysed
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import SHARE_LOGITS, Beta, PCShare
from klimb.rows.graphs import Edges, Graph, read_graph
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.field import LevelField, directions, scaled_entries, symmetric_pattern, with_flat
from klimb.theta import ParameterBlock

LOST = 1e-8  # a squared distance per area below which rounding shows

_ARGUMENTS = (Parameter("region", "column"), Parameter("graph", "object"))


@stored("term.areas")
@dataclass(frozen=True, eq=False)
class Areas(LevelField):
    """A field over the nodes of a graph; of a BYM2 model, the independent parts and then the structured ones."""

    kind = "areas"
    functions = (
        Function("besag", "special", _ARGUMENTS, "areas like their neighbours: intrinsic autoregression on a graph",
                 joins=True),
        Function("bym2", "special", _ARGUMENTS, "areas, partly like their neighbours and partly on their own: BYM2",
                 joins=True),
        Function("car", "special", _ARGUMENTS, "areas like their neighbours: proper autoregression (Leroux)",
                 joins=True))
    name: str
    model: str
    column: str
    labels: tuple[str, ...]
    edges: Edges
    scale: Array  # of the intrinsic part at each node, by its connected part
    logdet: float  # of that part once scaled, without its null space
    variance: float = 1.0  # of its areas at sd 1, their mean
    first: str = ""  # see `Graph`
    weighted: bool = False  # the same
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[Areas, ...]":
        """The graph that the fit was given by this name, over the regions of the data."""
        arguments = bind(call)
        column, wanted = arguments["region"].name, str(arguments["graph"])
        require(wanted in source.objects, f"expected a graph called {wanted} beside the data", "none",
                f"Pass klimb.fit(..., graphs={{{wanted!r}: edges}}), --graph {wanted}=edges.csv.")
        codes, levels = source.factor(column)
        appeared = tuple(levels[k] for k in dict.fromkeys(codes.tolist()))
        graph = read_graph(source.objects[wanted], levels, appeared, wanted)
        require(graph.n >= 2, "expected at least two regions", graph.n, "Leave the term out.")
        name, unit = f"{call.function}({column})", np.ones(graph.n)
        found = cls(name, call.function, column, graph.labels, graph.edges, unit, 0.0, first=graph.first,
                    weighted=graph.weighted)
        return (found if call.function == "car" else found._scaled(),)

    def note(self) -> str:
        told = []
        if self.first:
            told.append(f"the graph of {self.name} counts regions from 0: its 0 is read as level {self.first} of "
                        f"{self.column!r}. Where that is wrong, name regions by their levels, as text.")
        if self.weighted:
            told.append(f"the weights of the graph of {self.name} are not used: all neighbours count alike. "
                        f"generic({self.column}, Q=...) takes a precision matrix with weights.")
        return " ".join(told)

    # -- the prior

    @property
    def n(self) -> int:
        return len(self.labels)

    @cached_property
    def _laplacian(self) -> Any:
        """D - W."""
        i, j = self.edges.T
        W = scipy_sparse.coo_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([j, i]))),
                                   shape=(self.n, self.n)).tocsc()
        return symmetric_pattern(scipy_sparse.diags_array(W.sum(axis=0)) - W)

    @cached_property
    def _parts(self) -> Any:
        """The connected part of every node."""
        return Graph(self.labels, self.edges).parts()

    @cached_property
    def _null(self) -> Array:
        """An orthonormal basis of the null space of the intrinsic part: a level for each part of two areas or more."""
        sizes = np.bincount(self._parts)
        joined = np.flatnonzero(sizes > 1)
        return np.where(self._parts[:, None] == joined, sizes[joined] ** -0.5, 0.0)

    @cached_property
    def _structure(self) -> Any:
        """The scaled structure matrix; an area without neighbours has a 1."""
        alone = np.bincount(self._parts)[self._parts] == 1
        R = symmetric_pattern(self._laplacian + scipy_sparse.diags_array(alone.astype(np.float64)))
        R.data *= self.scale[R.indices]  # both ends of an edge belong to one part
        return R

    def _scaled(self) -> Self:
        """With the geometric mean of the variances at sd 1 made 1 in every connected part."""
        prior, part = Precision(self._structure, None, self._null.T), self._parts
        sizes = np.bincount(part)
        variances = prior.prior_variances
        scale = np.exp(np.bincount(part, np.log(variances)) / sizes)
        free = sizes - (sizes > 1)  # dimensions that are not constrained
        return replace(self, scale=scale[part], logdet=prior.prior_logdet + float(free @ np.log(scale)),
                       variance=float((variances / scale[part]).mean()))

    @cached_property
    def pattern(self) -> Any:
        if self.model == "car":
            return self._laplacian
        R = self._structure
        own = scipy_sparse.eye_array(self.n)
        return R if self.model == "besag" else symmetric_pattern(scipy_sparse.block_diag([own, R]))

    def constraints(self) -> Array | None:
        if self.model == "car":
            return None
        basis = self._null.T
        return basis if self.model == "besag" else np.hstack([np.zeros_like(basis), basis])

    @cached_property
    def _symbolic(self) -> Analysis:
        return analysed(self.pattern)

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        sd, own = values[0], self.pattern.data
        if self.model == "car":
            data = values[1] * own
            data[self._diagonal] += 1.0 - values[1]
            return scaled_entries(data, self._symbolic.factor(data).logdet, self.n, sd)
        rank = self.n - self._null.shape[1]
        if self.model == "besag":
            return scaled_entries(own, self.logdet, rank, sd)
        share = values[1]
        first, one = scaled_entries(own[: self.n], 0.0, self.n, sd * np.sqrt(1.0 - share))
        second, two = scaled_entries(own[self.n :], self.logdet, rank, sd * np.sqrt(share))
        return np.concatenate([first, second]), one + two

    @cached_property
    def _diagonal(self) -> Any:
        columns = np.repeat(np.arange(self.n), np.diff(self.pattern.indptr))
        return np.flatnonzero(self.pattern.indices == columns)

    def modes(self) -> tuple[Array, Array]:
        """Of BYM2, modes of the structured part (1) and areas of their own (0); of `car`, eigenvalues of D - W."""
        if self.model == "car":
            return directions(self._laplacian, self.n)
        vectors, sizes = directions(self._structure, self.n - self._null.shape[1])
        modes, ones = vectors / np.sqrt(sizes), np.ones(len(sizes))
        if self.model == "besag":
            return modes, ones
        T, structured = with_flat(modes, 1.0, self.n)
        return np.roll(T, self.n, axis=0), structured  # areas of their own come first among the weights

    def mode_sds(self, values: Sequence[str], known: str) -> str:
        if self.model == "car":
            return f"{values[0]} * inv_sqrt(1 - {values[1]} + {values[1]} * {known})"
        if self.model == "bym2":
            return f"{values[0]} * sqrt(1 - {values[1]} + (2 * {values[1]} - 1) * {known})"
        return super().mode_sds(values, known)

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        if self.model == "besag":
            return ()
        if self.model == "car" or len(self.edges) == 0:
            name = "phi" if self.model == "bym2" else "rho"
            return (context.choices.bounded(f"{name}({self.name})", Beta(1.0, 1.0), 0.0, 1.0),)
        share = context.choices.bounded(f"phi({self.name})", PCShare(), 0.0, 1.0)
        if isinstance(share.prior, PCShare):
            share = replace(share, prior=replace(share.prior, log_distances=self.log_distances()))
        return (share,)

    def log_distances(self) -> tuple[float, ...]:
        """Of BYM2, the log distance from phi = 0 at the shares of a `PCShare` (Riebler and others 2016).

        With Sigma = (1 - phi) I + phi R^-, distance^2 = 2 KL(N(0, Sigma) || N(0, I)) = tr(Sigma) - n - log det(Sigma),
        and log det(Sigma) is that of phi I + (1 - phi) R, a sparse matrix, less that of R, but for the null space.
        Small shares lose the digits of that difference; there the distance is proportional to the share.
        """
        R, n, null = self._structure, self.n, self._null.shape[1]
        diagonal = np.flatnonzero(R.indices == np.repeat(np.arange(n), np.diff(R.indptr)))
        plan, found = analysed(R), list[float]()
        for logit in reversed(SHARE_LOGITS):
            share, rest = 1.0 / (1.0 + np.exp(-logit)), 1.0 / (1.0 + np.exp(logit))
            values = rest * R.data
            values[diagonal] += share
            logdet = plan.factor(values).logdet - null * logit - self.logdet
            squared = n * share * (self.variance - 1.0) - logdet
            if squared > LOST * n:
                found.append(0.5 * float(np.log(squared)))
            else:
                found.append(found[-1] - float(np.log1p(np.exp(-logit)) - np.log1p(np.exp(-logit - 1.0))))
        return tuple(reversed(found))

    def factor(self) -> Self:
        """Of BYM2, the structured part."""
        return replace(self, model="besag") if self.model == "bym2" else self

    # -- rows

    def block(self, source: Source) -> Nodes:
        found = super().block(source)
        return found if self.model != "bym2" else replace(found, values=side_by_side([found.values, found.values]))

    def at_nodes(self) -> tuple[Any, Any]:
        labels, rows = super().at_nodes()
        return labels, rows if self.model != "bym2" else side_by_side([rows, rows])
