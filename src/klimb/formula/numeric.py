"""Numbers of a row: a column, functions applied to it, and bases without a penalty (polynomials, B-splines).

Of the variables enough is kept to draw an effect over its range with all else held at typical values, without the data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, Literal

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.formula.functions import ELEMENTWISE, bind
from klimb.formula.nodes import Call, Name
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_interpolate
from klimb.rows.summaries import DistinctRows, NumberFacts
from klimb.rows.table import Learnable, Source

_LEARNS = {"standardize": 2, "scale": 2, "center": 1}  # numbers that a function keeps
LOST = 1e-13  # what a power adds to the lower ones, over itself: rounding leaves nothing of less


@stored("formula.step")
@dataclass(frozen=True)
class CodedStep:
    """One function, with the numbers it learnt (mean and sd of standardize, mean of center)."""

    function: str
    learnt: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        learns = 0 if self.function in ELEMENTWISE else _LEARNS.get(self.function)
        if learns != len(self.learnt) or 0.0 in self.learnt[1:] or not np.isfinite(self.learnt).all():
            raise InputError("a function must be one that this version knows, with the numbers that it learnt",
                             f"{self.function!r} with {self.learnt}", "The file may be damaged.")

    def apply(self, values: Array, source: Source, inner: str) -> Array:
        if self.function in ELEMENTWISE:
            function, lowest, included, _ = ELEMENTWISE[self.function]
            with np.errstate(all="ignore"):
                good = values >= lowest if included else values > lowest
                sign = ">=" if included else ">"
                source.check(good, values, f"{self.function}({inner}) needs {inner} {sign} {lowest:g}",
                             "Correct these rows, or choose another transformation.")
                out: Array = function(values)
            source.check(np.isfinite(out), values, f"{self.function}({inner}) must be finite",
                         "The values are too large for it: rescale the column.")
            return out
        shifted = values - self.learnt[0]
        return shifted / self.learnt[1] if len(self.learnt) > 1 else shifted


@stored("formula.numeric")
@dataclass(frozen=True)
class Numeric:
    """A column and the functions applied to it, innermost first."""

    column: str
    steps: tuple[CodedStep, ...] = ()

    def evaluate(self, source: Source) -> Array:
        values = source.number(self.column)
        text = self.column
        for step in self.steps:
            values = step.apply(values, source, text)
            text = f"{step.function}({text})"
        return values

    def __str__(self) -> str:
        text = self.column
        for step in self.steps:
            text = f"{step.function}({text})"
        return text


def learn_numeric(node: Any, source: Learnable) -> Numeric:
    """The expression of a node (a name, or calls of elementwise and stateful functions around one)."""
    chain: list[str] = []
    while isinstance(node, Call):
        chain.append(node.function)
        node = bind(node)["x"]
    assert isinstance(node, Name)
    expression = Numeric(node.name)
    for function in reversed(chain):
        learnt: tuple[float, ...] = ()
        if function not in ELEMENTWISE:
            learnt = moments(source.numbers(expression), f"{function}({expression})")[: _LEARNS[function]]
        expression = Numeric(expression.column, (*expression.steps, CodedStep(function, learnt)))
    return expression


def moments(facts: NumberFacts, what: str) -> tuple[float, float]:
    """Mean and standard deviation (with n - 1, as R's scale()); an error where all values are equal.

    A value of weight 2 counts as two.
    """
    if facts.low == facts.high:
        if what.startswith("center"):
            return facts.low, 1.0
        raise InputError(f"{what} needs a column that varies", f"{facts.low:g} in every row", "Leave the column out.")
    return facts.mean, facts.spread / sqrt(max(facts.total - 1.0, 0.5 * facts.total))


def distinct_values(expressions: Sequence[Numeric], source: Learnable) -> Array:
    """Different values of an expression, or rows of several, in order: a sample where they are very many."""
    names = [expression.column for expression in expressions]
    found: DistinctRows = source.folded(partial(_distinct, tuple(expressions)), DistinctRows.plus, names)
    return found.sorted()


def _distinct(expressions: Sequence[Numeric], source: Source) -> DistinctRows:
    return DistinctRows.of(np.column_stack([expression.evaluate(source) for expression in expressions]))


@stored("formula.variable")
@dataclass(frozen=True)
class FormulaVariable:
    """A column that the formula uses on its right side."""

    name: str
    kind: Literal["number", "levels"]
    minimum: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    median: float = 0.0
    levels: tuple[str, ...] = ()
    commonest: str = ""
    whole: bool = False  # whole numbers only

    @property
    def typical(self) -> float | str:
        """The median of numbers (rounded where all are whole), the commonest level."""
        return self.median if self.kind == "number" else self.commonest


def learn_variable(name: str, source: Learnable, as_levels: bool) -> FormulaVariable:
    """Look at one column."""
    if as_levels or source.column(name).is_factor:
        levels, counts = source.levels(name)
        return FormulaVariable(name, "levels", levels=levels, commonest=levels[int(np.argmax(counts))])
    facts, middle = source.numbers(Numeric(name)), source.median(name)
    if facts.whole and middle != np.floor(middle):
        middle = float(np.floor(middle))
    return FormulaVariable(name, "number", facts.low, facts.high, facts.mean, middle, whole=facts.whole)


@stored("formula.polynomial")
@dataclass(frozen=True)
class PolynomialBasis:
    """``poly(x, degree)``: polynomials that are orthonormal over the data of the fit, or plain powers."""

    degree: int
    centers: tuple[float, ...]  # alpha_j of the three-term recurrence; empty for plain powers
    squares: tuple[float, ...]  # squared norms of p_0, ..., p_degree
    shift: float = 0.0  # x is first brought to a range around 0 of size 1, against overflow
    size_of_x: float = 1.0

    @property
    def size(self) -> int:
        return self.degree

    def check(self, x: Array, name: str, source: Source) -> None:
        """An error for values whose powers are too large."""
        if not self.centers:
            with np.errstate(over="ignore"):
                highest = np.power(x, self.degree)
            source.check(np.isfinite(highest), x, f"{name} must be finite", "Rescale the column.")

    def evaluate(self, x: Array, name: str, source: Source) -> Array:
        self.check(x, name, source)
        if not self.centers:
            return np.asarray(np.power(x[:, None], np.arange(1, self.degree + 1)))
        _, *polynomials = self.orthogonal((x - self.shift) / self.size_of_x)
        return np.column_stack([one / np.sqrt(square)
                                for one, square in zip(polynomials, self.squares[1:], strict=True)])

    def orthogonal(self, t: Array) -> Iterator[Array]:
        """p_0, p_1, ... with p_{j+1} = (t - alpha_j) p_j - (|p_j|^2 / |p_{j-1}|^2) p_{j-1}."""
        before, now = np.zeros_like(t), np.ones_like(t)
        yield now
        for j, center in enumerate(self.centers):
            ratio = self.squares[j] / self.squares[j - 1] if j else 0.0
            before, now = now, (t - center) * now - ratio * before
            yield now


def learn_polynomial(expression: Numeric, source: Learnable, arguments: dict[str, Any], node: Call) -> PolynomialBasis:
    """Orthogonalise 1, x, x^2, ... over the data (Stieltjes' procedure); a row of weight 2 counts twice."""
    degree, facts = arguments["degree"], source.numbers(expression)
    require(1 <= degree <= 50, "expected a degree from 1 to 50", str(degree), "Use s(x) for flexible curves.")
    shift, reach = 0.5 * facts.low + 0.5 * facts.high, 0.5 * facts.high - 0.5 * facts.low
    if arguments["raw"]:
        size = max(abs(facts.low), abs(facts.high))
        require(not 0.0 < (reach / (size or 1.0)) ** degree < LOST, "expected powers that keep their digits",
                f"values of {size:.3g} that differ by at most {2 * reach:.3g}",
                f"Use poly({arguments['x']}, {degree}), which is the same, or subtract a round number first.")
        return PolynomialBasis(degree, (), ())
    distinct = len(distinct_values([expression], source))
    require(distinct > degree, f"expected at least {degree + 1} different values for degree {degree}", distinct,
            "Lower the degree.")
    basis = PolynomialBasis(degree, (), (facts.total,), shift, reach)
    for _ in range(degree):
        for what in ("center", "square"):
            found = source.folded(partial(_stieltjes, basis, expression, what), float.__add__, [expression.column])
            if what == "center":
                basis = replace(basis, centers=(*basis.centers, found / basis.squares[-1]))
            else:
                basis = replace(basis, squares=(*basis.squares, found))
    return basis


def _stieltjes(basis: PolynomialBasis, expression: Numeric, what: str, source: Source) -> float:
    """Of the last polynomial whose square is known, sum t p^2; of the next one, sum p^2."""
    t, counts = (expression.evaluate(source) - basis.shift) / basis.size_of_x, source.counts
    *_, now = basis.orthogonal(t)
    return float((counts * t * now) @ now if what == "center" else (counts * now) @ now)


@stored("formula.bspline")
@dataclass(frozen=True)
class BSpline:
    """``bs(x)``: B-splines between two ends; the first one is left out, because the intercept has its place."""

    degree: int
    knots: tuple[float, ...]  # inner knots
    lower: float
    upper: float

    @property
    def size(self) -> int:
        return len(self.knots) + self.degree

    def check(self, x: Array, name: str, source: Source) -> None:
        """An error for values beyond the ends."""
        source.check((x >= self.lower) & (x <= self.upper), x,
                     f"{name} needs values between {self.lower:g} and {self.upper:g}, where it was fitted",
                     "Outside, a B-spline says nothing: give bs() lower= and upper= when fitting, or use s(x), which "
                     "goes on as a straight line.")

    def evaluate(self, x: Array, name: str, source: Source) -> Array:
        self.check(x, name, source)
        knots = [self.lower] * (self.degree + 1) + [*self.knots] + [self.upper] * (self.degree + 1)
        basis = scipy_interpolate.BSpline.design_matrix(x, knots, self.degree, extrapolate=True)  # `check` saw the ends
        return np.asarray(basis.toarray()[:, 1:])


def learn_bspline(expression: Numeric, source: Learnable, arguments: dict[str, Any], node: Call) -> BSpline:
    """Inner knots at quantiles, unless they are given; a row of weight 2 counts twice."""
    degree, df, knots = arguments["degree"], arguments["df"], arguments["knots"]
    require(0 <= degree <= 10, "expected a degree from 0 to 10", str(degree), "3 is the usual one.")
    facts = source.numbers(expression)
    lower = facts.low if arguments["lower"] is None else arguments["lower"]
    upper = facts.high if arguments["upper"] is None else arguments["upper"]
    if knots is not None and df is not None:
        require(len(knots) + degree == df, "expected df or knots", "both, and they disagree",
                f"These knots make df={len(knots) + degree}.")
    if knots is None:
        df = degree if df is None else df
        inner = df - degree
        require(inner >= 0, f"expected df of at least the degree, {degree}", str(df), "Raise df or lower the degree.")
        require(df <= 1000, "expected df of at most 1000", str(df), "Use s(x) or gp(x).")
        knots = ()
        if inner and lower <= facts.high and upper >= facts.low:
            knots = source.quantiles(expression, np.linspace(0, 1, inner + 2)[1:-1], lower, upper)
    inner_knots = tuple(sorted(float(knot) for knot in knots))
    require(lower < upper, f"{node} needs a column that varies", f"{lower:g} in every row", "Leave it out.")
    require(not inner_knots or lower < inner_knots[0] <= inner_knots[-1] < upper,
            f"expected inner knots between {lower:g} and {upper:g}", ", ".join(f"{k:g}" for k in inner_knots),
            "Use fewer columns, or knots inside the range.")
    return BSpline(degree, inner_knots, lower, upper)
