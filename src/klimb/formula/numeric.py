"""Numbers of a row: a column, or functions of the closed list applied to one, with what they learnt at the fit.

Of the variables enough is kept to draw an effect over its range with all else held at typical values, without the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError
from klimb.formula.functions import bind
from klimb.formula.nodes import Call, Name
from klimb.numerics.arrays import Array
from klimb.rows.table import Source

# function: (its value, smallest argument, whether that argument itself is allowed)
_ELEMENTWISE = {
    "log": (np.log, 0.0, False),
    "log1p": (np.log1p, -1.0, False),
    "log2": (np.log2, 0.0, False),
    "log10": (np.log10, 0.0, False),
    "sqrt": (np.sqrt, 0.0, True),
    "exp": (np.exp, -np.inf, False),
    "abs": (np.abs, -np.inf, False),
}
_LEARNS = {"standardize": 2, "scale": 2, "center": 1}  # numbers that a function keeps


@final
@stored("formula.step")
@dataclass(frozen=True)
class CodedStep:
    """One function, with the numbers it learnt (mean and sd of standardize, mean of center)."""

    function: str
    learnt: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        learns = 0 if self.function in _ELEMENTWISE else _LEARNS.get(self.function)
        if learns != len(self.learnt) or 0.0 in self.learnt[1:] or not np.isfinite(self.learnt).all():
            raise InputError("a function must be one that this version knows, with the numbers that it learnt",
                             f"{self.function!r} with {self.learnt}", "The file may be damaged.")

    def apply(self, values: Array, source: Source, inner: str) -> Array:
        if self.function in _ELEMENTWISE:
            function, lowest, included = _ELEMENTWISE[self.function]
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


@final
@stored("formula.numeric")
@dataclass(frozen=True)
class Numeric:
    """A column and the functions applied to it, innermost first.

    >>> from klimb.formula import parse
    >>> from klimb.rows.frames import read_frame
    >>> source = Source(read_frame({"x": [1.0, 2.0, 4.0]}))
    >>> expression = learn_numeric(parse("~ center(log2(x))").right, source)
    >>> print(expression, expression.evaluate(source))
    center(log2(x)) [-1.  0.  1.]
    """

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


def learn_numeric(node: Any, source: Source) -> Numeric:
    """The expression of a node (a name, or calls of elementwise and stateful functions around one)."""
    chain: list[str] = []
    while isinstance(node, Call):
        chain.append(node.function)
        node = bind(node, "")["x"]
    assert isinstance(node, Name)
    expression = Numeric(node.name)
    for function in reversed(chain):
        learnt: tuple[float, ...] = ()
        if function not in _ELEMENTWISE:
            values = expression.evaluate(source)
            learnt = moments(values, f"{function}({expression})", weights=source.weights)[: _LEARNS[function]]
        step = CodedStep(function, learnt)
        expression = Numeric(expression.column, (*expression.steps, step))
    return expression


def moments(values: Array, what: str, *, weights: Array | None = None) -> tuple[float, float]:
    """Mean and standard deviation (with n - 1, as R's scale()); an error where all values are equal.

    A value of weight 2 counts as two. The values are scaled first, so that neither 1e200 nor 1e-200 loses the spread.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        if what.startswith("center"):
            return low, 1.0
        raise InputError(f"{what} needs a column that varies", f"{low:g} in every row", "Leave the column out.")
    size = max(abs(low), abs(high))
    scaled = values / size
    counts = np.ones(len(values)) if weights is None else weights
    total = float(counts.sum())
    center = float(counts @ scaled) / total
    deviation = scaled - center
    center += float(counts @ deviation) / total
    square = float(counts @ deviation**2) / max(total - 1.0, 0.5 * total)
    return center * size, float(np.sqrt(square)) * size


def counted_quantile(values: Array, counts: Array, p: Any) -> Array:
    """Quantiles of values that count several times, interpolated between neighbours as those of repeated values.

    >>> counted_quantile(np.array([3.0, 1.0]), np.array([1.0, 2.0]), [0.0, 0.5, 0.75])
    array([1., 1., 2.])
    """
    order = np.argsort(values, kind="stable")
    upto, ranked = np.cumsum(counts[order]), values[order]
    place = np.asarray(p) * max(float(upto[-1]) - 1.0, 0.0)
    low = np.floor(place)
    below, above = (ranked[np.minimum(np.searchsorted(upto, k, side="right"), len(ranked) - 1)] for k in (low, low + 1))
    return np.asarray(below + (place - low) * (above - below))


@final
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


def learn_variable(name: str, source: Source, as_levels: bool) -> FormulaVariable:
    """Look at one column."""
    if as_levels or source.column(name).is_factor:
        codes, levels = source.factor(name)
        counts = np.bincount(codes, source.counts, minlength=len(levels))
        return FormulaVariable(name, "levels", levels=levels, commonest=levels[int(np.argmax(counts))])
    values = source.number(name)
    whole = bool((values == np.floor(values)).all())
    middle = float(counted_quantile(values, source.counts, 0.5))
    if whole and middle != np.floor(middle):
        middle = float(np.floor(middle))
    size = float(np.abs(values).max()) or 1.0
    mean = float(source.shares @ (values / size)) * size
    return FormulaVariable(name, "number", float(values.min()), float(values.max()), mean, middle, whole=whole)
