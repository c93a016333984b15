"""``s(x, k=500)``: the curve of `klimb.terms.smooth` with many knots, in a basis where each row has four nonzeros.

A natural cubic spline with k knots is a combination of k functions: cubic B-splines, the outermost two at either end
joined to their neighbours so that the second derivative is 0 there. With c = D w the second derivatives at the inner
knots, which three neighbouring weights make, the roughness is

    integral f''^2 = c'R c = w'D'R D w,

so that the weights have a precision with three bands beside its diagonal. It says nothing of straight lines: two
constraints make the curve orthogonal to them over the data, as the columns of the dense form are. Both forms are the
same prior of the same curve.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.formula.factors import Factor, LevelFactor
from klimb.formula.numeric import Numeric
from klimb.latents.costs import Shape, primal, sparse_factor
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_interpolate, scipy_linalg, scipy_sparse
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.field import Innovations, IntrinsicField, banded
from klimb.theta import ParameterBlock

CHEAPER, WORTH = 10.0, 0.1  # times that bands must be cheaper than columns, and the seconds from which that matters


def bands_pay(n: int, k: int) -> bool:
    """Whether ``k`` knots cost much less as bands than as columns of ``n`` rows."""
    columns = primal(Shape(n, k, n * k)).seconds
    bands = sparse_factor(Shape(n, k, 4 * n, border=k, sparse=k, dense=False, fields=True)).seconds
    return columns > max(CHEAPER * bands, WORTH)


@stored("term.knots")
@dataclass(frozen=True, eq=False)
class ManyKnots(IntrinsicField):
    """One curve with many knots; ``line`` are rows C with C w = 0, over the data that it was learnt from."""

    kind = "knots"
    name: str
    expression: Numeric
    origin: float  # the knots are those of (x - origin) / width, from 0 to 1
    width: float
    knots: Array
    line: Array  # (2, k)
    by: Factor | None = None  # a curve per level, or times a number
    level: int = -1
    norm: float = 1.0  # of the roughness: the sd is the typical size of the curve
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def over(cls, name: str, expression: Numeric, place: tuple[float, float, Array], by: Factor | None,
             source: Source) -> "ManyKnots":
        """With knots at (origin, width, knots), orthogonal to straight lines over the rows of the source."""
        curve = cls(name, expression, *place, np.zeros((0, len(place[2]))), by)
        x = expression.evaluate(source)
        rows, u = curve._rows(x), (x - curve.origin) / curve.width
        moved = np.vstack([source.shares, source.shares * (u - source.shares @ u)])
        line = np.asarray((rows.T @ moved.T).T)
        return replace(curve, line=line / np.linalg.norm(line, axis=1, keepdims=True))

    @property
    def size(self) -> int:
        return len(self.knots)

    # -- the prior

    @cached_property
    def _basis(self) -> tuple[Any, Any]:
        """B-splines and the map from the weights to their coefficients."""
        k = len(self.knots)
        padded = np.concatenate([np.zeros(3), self.knots, np.ones(3)])
        splines = scipy_interpolate.BSpline(padded, np.eye(k + 2), 3)
        ends = splines.derivative(2)(np.array([0.0, 1.0]))
        first, last = -ends[0, 1:3] / ends[0, 0], -ends[1, -3:-1] / ends[1, -1]
        rows = np.concatenate([[0, 0], np.arange(1, k + 1), [k + 1, k + 1]])
        columns = np.concatenate([[0, 1], np.arange(k), [k - 2, k - 1]])
        join = scipy_sparse.csr_array((np.concatenate([first, np.ones(k), last]), (rows, columns)), shape=(k + 2, k))
        return splines, join

    @cached_property
    def _root(self) -> Any:
        """A root T of the structure matrix T'T: R = L L', T = L'D."""
        h = np.diff(self.knots)
        R = np.zeros((2, len(h) - 1))
        R[0], R[1, :-1] = (h[:-1] + h[1:]) / 3.0, h[1:-1] / 6.0
        lower = scipy_linalg.cholesky_banded(R, lower=True)
        splines, join = self._basis
        second = splines.derivative(2)(self.knots[1:-1])  # of every B-spline at the inner knots: three are not 0
        small = np.abs(second) <= 1e-9 * np.abs(second).max(axis=1, keepdims=True)
        bends = scipy_sparse.csr_array(np.where(small, 0.0, second)) @ join
        n = len(h) - 1
        return banded([lower[0], lower[1, :-1]], [0, 1], (n, n)) @ bends

    @cached_property
    def _bordered(self) -> tuple[Array, float]:
        """[[T'T, C'], [C, 0]], T'T scaled to numbers of size 1, and the scale."""
        Q = (self._root.T @ self._root).toarray()
        size = float(np.abs(Q).max())
        return np.block([[Q / size, self.line.T], [self.line, np.zeros((2, 2))]]), size

    @cached_property
    def innovations(self) -> Innovations:
        bordered, size = self._bordered
        logdet = np.linalg.slogdet(bordered)[1] + (self.size - 2) * (np.log(size) + 2.0 * np.log(self.norm))
        return Innovations(self.norm * self._root, self.line, float(logdet))

    def ready(self, block: Nodes, context: Context) -> Self:
        """Its norm is the root of the average prior variance over rows, at sd 1 and norm 1."""
        rows, (bordered, size) = block.values, self._bordered
        V = np.linalg.inv(bordered)[: self.size, : self.size] / size
        gram = scipy_sparse.coo_array(rows.T @ (scipy_sparse.diags_array(context.shares) @ rows))
        norm = float(np.sqrt(V[gram.row, gram.col] @ gram.data)) or 1.0
        return replace(self, norm=norm, parameters=(context.sd(self.name, "smooth"),))

    def modes(self) -> tuple[Array, Array]:
        free = np.linalg.qr(self.line.T, mode="complete")[0][:, 2:]  # what the constraints leave
        return free @ np.linalg.inv(self._root @ free) / self.norm, np.ones(self.size - 2)

    # -- rows

    def _rows(self, x: Array) -> Any:
        """Four nonzeros a row; beyond the outer knots the curve goes on as a straight line."""
        splines, join = self._basis
        u = (x - self.origin) / self.width
        inside = np.clip(u, 0.0, 1.0)
        rows = scipy_sparse.csr_array(scipy_interpolate.BSpline.design_matrix(inside, splines.t, 3))
        beyond = u - inside
        if beyond.any():
            slopes = scipy_sparse.csr_array(splines.derivative()(np.array([0.0, 1.0])))
            ends = scipy_sparse.csr_array((beyond, (np.arange(len(u)), (beyond > 0.0).astype(int))), shape=(len(u), 2))
            rows = rows + ends @ slopes
        return scipy_sparse.csr_array(rows @ join)

    def block(self, source: Source) -> Nodes:
        rows = self._rows(self.expression.evaluate(source))
        if isinstance(self.by, LevelFactor):
            rows = scipy_sparse.diags_array((self.by.codes(source) == self.level).astype(float)) @ rows
        elif self.by is not None:
            rows = scipy_sparse.diags_array(np.asarray(self.by.block(source, True))[:, 0]) @ rows
        rows = scipy_sparse.csr_array(rows)
        rows.eliminate_zeros()
        return Nodes(rows)

    def at_nodes(self) -> tuple[Any, Any]:
        x = self.origin + self.width * self.knots
        return x, self._rows(x)

    def factors(self) -> dict[str, Factor]:
        return {} if self.by is None else {self.by.name: self.by}
