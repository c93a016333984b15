"""``s(x)``: a natural cubic spline whose wiggliness has one variance, learnt from the data.

A natural cubic spline with knots t_1 < ... < t_k is a straight line plus a combination of functions N_j whose second
derivative is the hat function at the inner knot t_j, so its roughness is a quadratic form in the second derivatives c,

    integral f''^2 = c' R c,        R_jj = (h_{j-1} + h_j) / 3,   R_{j,j+1} = h_j / 6,        h_j = t_{j+1} - t_j.

With R = L L' and b = L'c the roughness is |b|^2: coefficients b that are independent with one variance are the
smoothing spline's prior (Wahba 1978; Green and Silverman 1994, section 2.1, have Q and R), and the line is left to a
fixed column. Beyond the outer knots the second derivative is zero: the curve goes on as a straight line.
"""

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.formula.factors import Factor, LevelFactor, NumberFactor, learn_factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import CodedStep, Numeric, distinct_values, learn_numeric, moments
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.rows.summaries import MatrixMoments
from klimb.rows.table import Learnable, Source
from klimb.terms.base import Context, Dense, OneScale
from klimb.terms.knots import ManyKnots, bands_pay
from klimb.theta import ParameterBlock

FEWEST = 4  # different values of x that make a curve worth the name


@stored("term.smooth")
@dataclass(frozen=True, eq=False)
class Smooth(OneScale):
    """One curve: knots, and the map from the functions N_j to independent coefficients."""

    kind = "smooth"
    functions = (Function("s", "special", (Parameter("x", "numeric"), Parameter("k", "whole", 10),
                                           Parameter("by", "column", None), Parameter("knots", "numbers", None),
                                           Parameter("sparse", "flag", None)),
                          "smooth curve: penalised cubic spline with k knots; by= gives a curve per level"),)
    name: str
    expression: Numeric
    origin: float  # the knots are those of (x - origin) / width, from 0 to 1
    width: float
    knots: Array
    transform: Array  # L'^-1 and the scale, (k - 2, k - 2)
    line: Array  # the straight part that is taken out, (2, k - 2)
    by: Factor | None = None  # a curve per level, or times a number
    level: int = -1  # of ``by``, which this curve is for
    norm: float = 1.0  # the basis is divided by it, so that the coefficients' sd is the typical size of the curve
    parameters: tuple[ParameterBlock, ...] = ()

    def __post_init__(self) -> None:
        k = len(self.knots) - 2
        if self.transform.shape != (k, k) or self.line.shape != (2, k) or (np.diff(self.knots) <= 0.0).any():
            raise InputError("a curve needs ascending knots and matrices of their size",
                             f"{len(self.knots)} knots, shapes {self.transform.shape} and {self.line.shape}",
                             "The file may be damaged.")

    @classmethod
    def learn(cls, call: Call, source: Learnable, text: str, factors: dict[str, Factor]) -> tuple[Any, ...]:
        """Knots at quantiles of the different values; the basis orthogonal to the line over the data."""
        arguments = bind(call)
        expression = learn_numeric(arguments["x"], source)
        by = None if arguments["by"] is None else factors[str(arguments["by"])]
        name = f"s({arguments['x']}{f', by={by.name}' if by is not None else ''})"
        origin, width, knots = _knots(expression, arguments, source)
        here, sparse = source.here, arguments["sparse"]
        if here is not None and (bands_pay(here.n, len(knots)) if sparse is None else sparse):
            return _of_levels(ManyKnots.over(name, expression, (origin, width, knots), by, here))
        require(not sparse, "expected rows in memory for a curve by bands", "rows that are passed over",
                "Leave sparse=True out.")
        transform = np.linalg.inv(np.linalg.cholesky(roughness(knots)).T)
        # The line is another term's business: take its least-squares fit out of every column.
        of_place = partial(_moments, expression, origin, width, knots)
        found: MatrixMoments = source.folded(of_place, MatrixMoments.plus, [expression.column])
        squares, cross = found.squares[1:, 1:], found.squares[0, 1:]
        slope = cross / found.squares[0, 0]
        left = transform.T @ (squares - np.outer(cross, slope)) @ transform
        scale = float(np.sqrt(max(np.trace(left), 0.0) / found.total)) or 1.0
        line = np.vstack([found.mean[1:] - slope * found.mean[0], slope]) @ transform
        return _of_levels(cls(name, expression, origin, width, knots, transform / scale, line / scale, by))

    @classmethod
    def fixed_part(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> list[list[str]]:
        """The fixed terms that a curve leaves to its straight part: a slope, one per level of ``by``, or times it."""
        arguments = bind(call)
        slope = str(arguments["x"])
        expression = learn_numeric(arguments["x"], source)
        if slope not in factors:  # the column itself may be a term already
            slope = f"s({slope})[slope]"
            center = CodedStep("center", (moments(source.numbers(expression), "center")[0],))
            factors.setdefault(slope, NumberFactor(slope, Numeric(expression.column, (*expression.steps, center))))
        if arguments["by"] is None:
            return [[slope]]
        by = str(arguments["by"])
        if by not in factors:
            factors[by] = learn_factor(arguments["by"], source, text)
        alone = [] if isinstance(factors[by], LevelFactor) else [[by]]
        return [*alone, [by, slope]]

    @property
    def size(self) -> int:
        return len(self.knots) - 2

    def evaluate(self, x: Array) -> Array:
        """The wiggly basis at ``x``, (n, k - 2)."""
        u, out = (x - self.origin) / self.width, np.empty((len(x), self.size))
        for rows in row_blocks(*out.shape):
            straight = self.line[0] + u[rows, None] * self.line[1]
            out[rows] = hats_integrated_twice(u[rows], self.knots) @ self.transform - straight
        return out

    def block(self, source: Source) -> Dense:
        basis = self.evaluate(self.expression.evaluate(source))
        if isinstance(self.by, LevelFactor):
            basis = np.where((self.by.codes(source) == self.level)[:, None], basis, 0.0)
        elif self.by is not None:
            basis = basis * self.by.block(source, True)
        return Dense(basis / self.norm)

    def ready(self, block: Dense, context: Context) -> Self:
        norm = float(np.sqrt(context.shares @ (block.values**2).sum(axis=1))) or 1.0
        return replace(self, norm=self.norm * norm, parameters=(context.sd(self.name, "smooth"),))

    def settled(self, block: Dense) -> Dense:
        return Dense(block.values / self.norm)

    def factors(self) -> dict[str, Factor]:
        return {} if self.by is None else {self.by.name: self.by}


def _of_levels(curve: Any) -> tuple[Any, ...]:
    """The curve, or one for each level of ``by``."""
    if not isinstance(curve.by, LevelFactor):
        return (curve,)
    return tuple(replace(curve, name=f"{curve.name}[{level}]", level=k) for k, level in enumerate(curve.by.levels))


def _knots(expression: Numeric, arguments: dict[str, Any], source: Learnable) -> tuple[float, float, Array]:
    """The origin and width of x, and knots between 0 and 1."""
    facts = source.numbers(expression)
    require(3 <= arguments["k"] <= 1000, "expected k from 3 to 1000", str(arguments["k"]),
            "10 is the usual one; raise it for wavier curves.")
    origin, width = facts.low, facts.high - facts.low
    require(np.isfinite(width), "expected a range that floating point can hold", f"{facts.low:g} to {facts.high:g}",
            "Rescale the column.")
    distinct = np.unique([facts.low, *distinct_values([expression], source)[:, 0], facts.high])
    require(len(distinct) >= FEWEST, f"expected at least {FEWEST} different values for a curve",
            f"{len(distinct)} in {expression}", f"Use {expression} itself, or C({expression.column}).")
    if arguments["knots"] is None:
        u = (distinct - origin) / width
        return origin, width, np.unique(np.quantile(u, np.linspace(0.0, 1.0, min(arguments["k"], len(distinct)))))
    inner = (np.array(sorted(set(arguments["knots"]))) - origin) / width
    require(inner[0] > 0.0 and inner[-1] < 1.0, f"expected inner knots between {facts.low:g} and {facts.high:g}",
            str(arguments["knots"]), "The ends are knots by themselves.")
    return origin, width, np.unique(np.concatenate([[0.0], inner, [1.0]]))


def _moments(expression: Numeric, origin: float, width: float, knots: Array, source: Source) -> MatrixMoments:
    """Of the place of x between the outer knots, and of the functions N_j there."""
    u = (expression.evaluate(source) - origin) / width
    parts = [MatrixMoments.of(np.column_stack([u[rows], hats_integrated_twice(u[rows], knots)]),
                              None if source.weights is None else source.weights[rows])
             for rows in row_blocks(len(u), len(knots))]
    return reduce(MatrixMoments.plus, parts)


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
