"""``s(x)``: a natural cubic spline whose wiggliness has one variance, learnt from the data.

A natural cubic spline with knots t_1 < ... < t_k is a straight line plus a combination of functions N_j whose second
derivative is the hat function at the inner knot t_j, so its roughness is a quadratic form in the second derivatives c,

    integral f''^2 = c' R c,        R_jj = (h_{j-1} + h_j) / 3,   R_{j,j+1} = h_j / 6,        h_j = t_{j+1} - t_j.

With R = L L' and b = L'c the roughness is |b|^2: coefficients b that are independent with one variance are the
smoothing spline's prior (Wahba 1978; Green and Silverman 1994, section 2.1, have Q and R), and the line is left to a
fixed column. Beyond the outer knots the second derivative is zero: the curve goes on as a straight line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.formula.errors import FormulaError
from klimb.formula.factors import Factor, LevelFactor
from klimb.formula.functions import bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.formula.parts import label
from klimb.numerics.arrays import Array
from klimb.rows.table import Source
from klimb.terms.encoded import SmoothBlock

_ROWS = 2048
FEWEST = 4  # different values of x that make a curve worth the name


@final
@dataclass(frozen=True)
class Smooth:
    """What one ``s()`` learnt: knots, and the map from the functions N_j to independent coefficients."""

    name: str
    expression: Numeric
    shift: float  # the knots are those of (x - shift) / size, from 0 to 1
    size: float
    knots: tuple[float, ...]
    transform: tuple[tuple[float, ...], ...]  # L'^-1 and the scale, (k - 2, k - 2)
    line: tuple[tuple[float, ...], ...]  # the straight part that is taken out, (2, k - 2)
    by: str | None = None  # key of a factor: a curve per level, or times a number

    @property
    def basis_size(self) -> int:
        """Number of wiggly columns."""
        return len(self.knots) - 2

    def evaluate(self, x: Array) -> Array:
        """The wiggly basis at ``x``, (n, k - 2)."""
        u = (x - self.shift) / self.size
        return without_line(raw_basis(u, np.array(self.knots), np.array(self.transform)), u, np.array(self.line))

    def blocks(self, source: Source, factors: dict[str, Factor]) -> list[SmoothBlock]:
        basis = self.evaluate(self.expression.evaluate(source))
        numbers = range(1, basis.shape[1] + 1)
        if self.by is None:
            return [SmoothBlock(self.name, basis, tuple(f"{self.name}[{j}]" for j in numbers))]
        by = factors[self.by]
        if not isinstance(by, LevelFactor):
            return [SmoothBlock(self.name, basis * by.block(source, True), tuple(f"{self.name}[{j}]" for j in numbers))]
        codes = by.codes(source)
        found = []
        for k, level in enumerate(by.levels):
            name = f"{self.name}[{level}]"
            values = np.where((codes == k)[:, None], basis, 0.0)
            found.append(SmoothBlock(name, values, tuple(f"{name}[{j}]" for j in numbers)))
        return found

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "expression": self.expression.to_json(), "shift": self.shift, "size": self.size,
                "knots": list(self.knots), "transform": [list(row) for row in self.transform],
                "line": [list(row) for row in self.line], "by": self.by}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Smooth:
        knots = tuple(map(float, state["knots"]))
        transform, line = (tuple(tuple(map(float, row)) for row in state[key]) for key in ("transform", "line"))
        k = len(knots) - 2
        if np.shape(transform) != (k, k) or np.shape(line) != (2, k) or np.any(np.diff(knots) <= 0.0):
            raise ValueError(f"the parts of {state['name']} do not fit together")
        return cls(str(state["name"]), Numeric.from_json(state["expression"]), float(state["shift"]),
                   float(state["size"]), knots, transform, line, state["by"])


def raw_basis(u: Array, knots: Array, transform: Array) -> Array:
    """Columns whose coefficients are independent; each with some straight part of no meaning."""
    out = np.empty((len(u), len(knots) - 2))
    for start in range(0, len(u), _ROWS):  # in pieces that stay in the processor's cache
        rows = slice(start, start + _ROWS)
        np.matmul(hats_integrated_twice(u[rows], knots), transform, out=out[rows])
    return out


def without_line(basis: Array, u: Array, line: Array) -> Array:
    """``basis`` less a straight line of every column, in place."""
    for start in range(0, len(u), _ROWS):
        rows = slice(start, start + _ROWS)
        basis[rows] -= line[0] + u[rows, None] * line[1]
    return basis


def hats_integrated_twice(u: Array, knots: Array) -> Array:
    """The functions N_j: zero left of t_{j-1}, second derivative the hat at t_j, straight right of t_{j+1}."""
    left, middle, right = knots[:-2], knots[1:-1], knots[2:]
    area, centroid = 0.5 * (right - left), (left + middle + right) / 3.0
    x = u[:, None]
    # Each piece in the form that does not cancel, so that knots may be very close to each other.
    after, before = np.maximum(x - left, 0.0), np.maximum(right - x, 0.0)
    rising = after * after * after / (6.0 * (middle - left))
    falling = area * (x - centroid) + before * before * before / (6.0 * (right - middle))
    return np.where(x <= middle, rising, falling)


def roughness(knots: Array) -> Array:
    """R: the integrals of products of the hat functions at the inner knots."""
    h = np.diff(knots)
    matrix = np.diag((h[:-1] + h[1:]) / 3.0)
    off = h[1:-1] / 6.0
    return matrix + np.diag(off, 1) + np.diag(off, -1)


def learn_smooth(call: Call, source: Source, text: str) -> Smooth:
    """Knots at quantiles of the different values; the basis orthogonal to the line over the data, of mean square 1."""
    arguments = bind(call, text)
    expression = learn_numeric(arguments["x"], source)
    x = expression.evaluate(source)
    distinct = np.unique(x)
    if len(distinct) < FEWEST:
        raise FormulaError(f"expected at least {FEWEST} different values for a curve",
                           f"{len(distinct)} in {expression}",
                           f"Use {expression} itself, or C({expression.column}).", text, call.span)
    if not 3 <= arguments["k"] <= 1000:
        raise FormulaError("expected k from 3 to 1000", str(arguments["k"]),
                           "10 is the usual one; raise it for wavier curves.",
                           text, call.span)
    shift, size = float(distinct[0]), float(distinct[-1] - distinct[0])
    if not np.isfinite(size):
        raise FormulaError("expected a range that floating point can hold", f"{distinct[0]:g} to {distinct[-1]:g}",
                           "Rescale the column.", text, call.span)
    u = (distinct - shift) / size
    if arguments["knots"] is None:
        knots = np.quantile(u, np.linspace(0.0, 1.0, min(arguments["k"], len(distinct))))
    else:
        inner = (np.array(sorted(set(arguments["knots"]))) - shift) / size
        if inner[0] <= 0.0 or inner[-1] >= 1.0:
            raise FormulaError(f"expected inner knots between {distinct[0]:g} and {distinct[-1]:g}",
                               str(arguments["knots"]),
                               "The ends are knots by themselves.", text, call.span)
        knots = np.concatenate([[0.0], inner, [1.0]])
    knots = np.unique(knots)
    transform = np.linalg.inv(np.linalg.cholesky(roughness(knots)).T)
    u = (x - shift) / size
    basis = raw_basis(u, knots, transform)
    # The line is another term's business: take its least-squares fit out of every column.
    middle = u.mean()
    deviation = u - middle
    slope = (deviation @ basis) / (deviation @ deviation)
    level = basis.mean(axis=0) - slope * middle
    line = np.vstack([level, slope])
    scale = float(np.linalg.norm(without_line(basis, u, line)) / np.sqrt(len(u))) or 1.0
    line = line / scale
    by = None if arguments["by"] is None else str(arguments["by"])
    return Smooth(label(call), expression, shift, size, tuple(knots.tolist()),
                  tuple(map(tuple, (transform / scale).tolist())), tuple(map(tuple, line.tolist())), by)
