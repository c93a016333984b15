"""``rw1(t)`` and ``rw2(t)``: random walks of first and second order over time, or over any ordered column.

    rw1:  (w_{i+1} - w_i) / sqrt(h_i) ~ N(0, s^2)        rw2:  (slope after i - slope before i) / sqrt(h) ~ N(0, s^2)

with h_i the steps and h the mean of the two steps beside node i: on a grid of whole numbers the first and second
differences, elsewhere the Galerkin form of Lindgren and Rue (2008), whose field is straight between its nodes. A walk
is intrinsic: it says nothing of the level (rw1, rw2) and of the straight line (rw2). The field is what is left without
them; the level is the intercept's, and the line has a weight of its own with a flat prior. It is scaled: at sd 1 the
geometric mean of the nodes' variances is 1, so that the sd means the same whatever the length and the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.errors import require
from klimb.formula.errors import FormulaError
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.latents.linear import side_by_side
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes, TermBlock
from klimb.terms.field import FLAT, Innovations, IntrinsicField, apart, banded, column_positions, grid
from klimb.theta import ParameterBlock

CLOSE = 1e-11  # variance of what a step adds at sd 1, below which its nodes are one: precisions lose as many digits

_ARGUMENTS = (Parameter("t", "numeric"), Parameter("cyclic", "flag", False))


@stored("term.walk")
@dataclass(frozen=True, eq=False)
class Walk(IntrinsicField):
    """A walk over its nodes; the last weight of a second-order one is that of the straight line."""

    kind = "walk"
    functions = (
        Function("rw1", "special", _ARGUMENTS, "random walk of first order: a rough curve over time", joins=True),
        Function("rw2", "special", _ARGUMENTS, "random walk of second order: a smooth curve over time", joins=True))
    name: str
    expression: Numeric
    order: int
    cyclic: bool
    nodes: Array
    line_sd: float = FLAT  # prior sd of the straight line, per sd of the nodes; 0: there is none
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[Walk, ...]":
        """Nodes at all positions of the column, those of rows without a response included."""
        arguments, order = bind(call), int(call.function[-1])
        expression = learn_numeric(arguments["t"], source)
        nodes = _kept(grid(column_positions(expression, source)), order)
        fewest = order + (2 if arguments["cyclic"] else 1)
        require(len(nodes) >= fewest, f"expected at least {fewest} different positions for {call.function}()",
                f"{len(nodes)} in {expression}", f"Use {expression} itself.")
        steps = np.diff(nodes)
        if arguments["cyclic"] and steps.max() - steps.min() > 1e-9 * steps.max():
            raise FormulaError("expected equal steps for a cycle", f"steps from {steps.min():g} to {steps.max():g}",
                               "Round the column to whole numbers first.", text, call.span)
        return (cls(f"{call.function}({arguments['t']})", expression, order, bool(arguments["cyclic"]), nodes),)

    # -- the prior

    @property
    def _with_line(self) -> bool:
        return self.order == 2 and not self.cyclic and self.line_sd > 0.0

    @property
    def beside(self) -> tuple[int, float]:
        return (1, self.line_sd) if self._with_line else (0, 1.0)

    @cached_property
    def innovations(self) -> Innovations:
        return (_cycle if self.cyclic else _path)(self.nodes, self.order)

    def ready(self, block: TermBlock, context: Context) -> Self:
        return replace(self, parameters=(context.sd(self.name, "field"),), line_sd=FLAT * context.units.spread)

    def factor(self) -> Self:
        return replace(self, line_sd=0.0)

    # -- rows

    def block(self, source: Source) -> Nodes:
        x = self.expression.evaluate(source)
        if self.cyclic:
            step = (self.nodes[-1] - self.nodes[0]) / (len(self.nodes) - 1)
            x = self.nodes[0] + np.mod(x - self.nodes[0], len(self.nodes) * step)
        left, share = between(x, self.nodes, self.cyclic)
        right, n = (left + 1) % len(self.nodes), len(x)
        if self.order == 1:  # beyond its ends a walk of first order stays where it was
            share = np.clip(share, 0.0, 1.0)
        rows, columns = np.repeat(np.arange(n), 2), np.stack([left, right], axis=1).ravel()
        values = np.stack([1.0 - share, share], axis=1).ravel()
        kept = values != 0.0
        matrix = scipy_sparse.csr_array((values[kept], (rows[kept], columns[kept])), shape=(n, len(self.nodes)))
        if self._with_line:
            matrix = side_by_side([matrix, self._line(x)[:, None]])
        return Nodes(matrix, np.maximum(x - self.nodes[-1], 0.0) + np.minimum(x - self.nodes[0], 0.0))

    def at_nodes(self) -> tuple[Any, Any]:
        rows: Any = scipy_sparse.eye_array(len(self.nodes), format="csr")
        if self._with_line:
            rows = side_by_side([rows, self._line(self.nodes)[:, None]])
        return self.nodes, rows

    def _line(self, x: Array) -> Array:
        return np.asarray((x - self.nodes.mean()) / self.nodes.std())

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """Beyond the ends the walk goes on, by steps like the last one: h steps add h (rw1) or h (h + 1) (2 h + 1) / 6.

        Less than a step is one step of its own.
        """
        if self.cyclic or not block.beyond.any():
            return None
        steps, h = np.diff(self.nodes), np.abs(block.beyond)
        if self.order == 2:
            last = np.where(block.beyond > 0.0, steps[-1], steps[0])
            h = np.where(h < last, 0.5 * h**2 * (h + last), h * (h + last) * (2.0 * h + last) / 6.0)
        mean = float(steps.mean())
        return np.asarray(values[0] * np.sqrt(h / (self.innovations.scale * mean ** (2 * self.order - 1))))[:, None]


def between(x: Array, nodes: Array, cyclic: bool) -> tuple[Any, Array]:
    """The node to the left of each x, and how far it is on the way to the next; beyond the ends less than 0 or above 1.

    >>> between(np.array([0.0, 2.5, 4.0, 5.0]), np.array([0.0, 1.0, 3.0, 4.0]), False)
    (array([0, 1, 2, 2]), array([0.  , 0.75, 1.  , 2.  ]))
    """
    last = len(nodes) - (1 if cyclic else 2)
    left = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, last)
    steps = np.diff(nodes, append=2.0 * nodes[-1] - nodes[-2]) if cyclic else np.diff(nodes)
    share = (x - nodes[left]) / steps[left]
    return left, np.where(np.abs(share) < 1e-9, 0.0, share)


def _differences(nodes: Array, order: int) -> Any:
    """D with structure matrix D'D: first differences over the roots of their steps, or second ones of Galerkin's."""
    h, n = np.diff(nodes), len(nodes)
    if order == 1:
        return banded([-(h**-0.5), h**-0.5], [0, 1], (n - 1, n))
    root = np.sqrt(2.0 / (h[:-1] + h[1:]))
    bands = [root / h[:-1], -root * (1.0 / h[:-1] + 1.0 / h[1:]), root / h[1:]]
    return banded(bands, [0, 1, 2], (n - 2, n))


def _path(nodes: Array, order: int) -> Innovations:
    """D'D, scaled. With the first nodes held at 0 the others' D is a triangle, which stays exact at any length."""
    steps = np.diff(nodes)
    steps = steps / steps.mean()
    positions = np.append(0.0, np.cumsum(steps))
    D = _differences(positions, order)
    basis, triangle = _unknown(positions, order)
    scale = _scale(steps, basis)
    logdet = 2.0 * float(np.log(np.abs(D.diagonal(order))).sum() + np.log(np.abs(np.diagonal(triangle))).sum())
    logdet += (len(nodes) - order) * float(np.log(scale))
    if order == 2:  # the determinant of level and line at the nodes that are held
        logdet -= 2.0 * float(np.log(steps[0]))
    return Innovations(np.sqrt(scale) * D, basis.T, logdet, scale)


def _kept(nodes: Array, order: int) -> Array:
    """Nodes that are not so close to each other that they are the same to the walk; whole numbers are all kept."""
    if len(nodes) <= order or (nodes == np.round(nodes)).all():
        return nodes
    steps = np.diff(nodes)
    mean = steps.mean()
    scale = _scale(steps / mean, _unknown((nodes - nodes[0]) / mean, order)[0])
    return apart(nodes, mean * (CLOSE * scale) ** (1.0 / (2 * order - 1)))


def _unknown(positions: Array, order: int) -> tuple[Array, Array]:
    """An orthonormal basis of the level, and of the line, and what they are in it."""
    null = np.column_stack([np.ones(len(positions)), positions - positions.mean()])[:, :order]
    return np.linalg.qr(null)


def _scale(steps: Array, basis: Array) -> float:
    """The geometric mean of the variances of the nodes."""
    return float(np.exp(np.log(_free_variances(steps, basis)).mean()))


def _free_variances(steps: Array, basis: Array) -> Array:
    """Variances of the nodes at sd 1 without level and line: diag((I - N N') G (I - N N')).

    G is the covariance of a walk that is 0 at its first node, of second order at its last one as well, where it is a
    string under white noise: G = B diag(m) B, B_ij = t_i (E - t_j) / E for i <= j, m_i the mean of the steps beside i.
    """
    t = np.append(0.0, np.cumsum(steps))
    if basis.shape[1] == 1:
        own, pushed = t, np.append(0.0, np.cumsum(steps * np.cumsum(basis[:0:-1, 0])[::-1]))[:, None]
    else:
        back = np.append(np.cumsum(steps[::-1])[::-1], 0.0)  # to the end
        loads = 0.5 * np.append(steps, 0.0) + 0.5 * np.append(0.0, steps)
        loads[[0, -1]] = 0.0
        own = _pulled(t, back, loads[:, None], 2)[:, 0]
        pushed = _pulled(t, back, loads[:, None] * _pulled(t, back, basis, 1), 1)
    own = own + np.einsum("ij,jk,ik->i", basis, basis.T @ pushed, basis)
    found = own - 2.0 * np.einsum("ij,ij->i", pushed, basis)
    return np.asarray(np.maximum(found, 1e-15 * np.abs(own) + 1e-300))  # a node far off is on the line to all digits


def _pulled(t: Array, back: Array, loads: Array, power: int) -> Array:
    """The sum over nodes j of B_ij^power loads_j."""
    left, right = (t / t[-1])[:, None] ** power, (back / t[-1])[:, None] ** power
    before = np.cumsum(left * loads, axis=0)
    after = np.cumsum((right * loads)[::-1], axis=0)[::-1] - right * loads
    return np.asarray(t[-1] ** power * (right * before + left * after))


def _cycle(nodes: Array, order: int) -> Innovations:
    """Differences around a circle: a circulant matrix, whose eigenvalues are known."""
    n = len(nodes)
    require(n > 2 * order, f"a cycle of order {order} needs more than {2 * order} nodes", n, "Use C(x).")
    values = (4.0 * np.sin(np.pi * np.arange(1, n) / n) ** 2) ** order
    scale = float(np.sum(1.0 / values) / n)
    rows, weights = np.arange(n), {1: (-1.0, 1.0), 2: (1.0, -2.0, 1.0)}[order]
    columns = np.concatenate([(rows + lag) % n for lag in range(order + 1)])
    data = np.sqrt(scale) * np.repeat(weights, n)
    D = scipy_sparse.csr_array((data, (np.tile(rows, order + 1), columns)), shape=(n, n))
    return Innovations(D, np.full((1, n), n**-0.5), float(np.log(scale * values).sum()), scale)
