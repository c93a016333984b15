"""Bases without a penalty: orthogonal polynomials and B-splines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError
from klimb.formula.errors import FormulaError
from klimb.formula.nodes import Call
from klimb.formula.numeric import counted_quantile
from klimb.numerics.arrays import Array
from klimb.rows.table import Source

LOST = 1e-13  # what a power adds to the lower ones, over itself: rounding leaves nothing of less

@final
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
        # p_{j+1} = (x - alpha_j) p_j - (|p_j|^2 / |p_{j-1}|^2) p_{j-1}
        t = (x - self.shift) / self.size_of_x
        before, now = np.zeros_like(t), np.ones_like(t)
        columns = []
        for j in range(self.degree):
            ratio = self.squares[j] / self.squares[j - 1] if j else 0.0
            before, now = now, (t - self.centers[j]) * now - ratio * before
            columns.append(now / np.sqrt(self.squares[j + 1]))
        return np.column_stack(columns)


def learn_polynomial(x: Array, source: Source, arguments: dict[str, Any], node: Call, text: str) -> PolynomialBasis:
    """Orthogonalise 1, x, x^2, ... over the data (Stieltjes' procedure); a row of weight 2 counts twice."""
    degree = arguments["degree"]
    if not 1 <= degree <= 50:
        raise FormulaError("expected a degree from 1 to 50", str(degree), "Use s(x) for flexible curves.", text,
                           node.span)
    if arguments["raw"]:
        size, reach = float(np.abs(x).max(initial=0.0)), 0.5 * float(np.ptp(x)) if len(x) else 0.0
        if 0.0 < (reach / (size or 1.0)) ** degree < LOST:
            raise FormulaError("expected powers that keep their digits", f"values of {size:.3g} that differ by at most "
                               f"{2 * reach:.3g}", f"Use poly({arguments['x']}, {degree}), which is the same curve, or "
                               "subtract a round number from the column first.", text, node.span)
        return PolynomialBasis(degree, (), ())
    distinct = len(np.unique(x))
    if distinct <= degree:
        raise FormulaError(f"expected at least {degree + 1} different values for degree {degree}", f"{distinct}",
                           "Lower the degree.", text, node.span)
    low, high = float(x.min()), float(x.max())
    shift, size = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
    t = (x - shift) / size
    before, now = np.zeros_like(t), np.ones_like(t)
    centers: list[float] = []
    counts = source.counts
    squares = [float(counts.sum())]
    for j in range(degree):
        centers.append(float((counts * t * now) @ now) / squares[j])
        ratio = squares[j] / squares[j - 1] if j else 0.0
        before, now = now, (t - centers[j]) * now - ratio * before
        squares.append(float((counts * now) @ now))
    return PolynomialBasis(degree, tuple(centers), tuple(squares), shift, size)


@final
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
        return bspline_basis(x, self.degree, self.knots, self.lower, self.upper)[:, 1:]


def bspline_basis(x: Array, degree: int, inner: tuple[float, ...], lower: float, upper: float) -> Array:
    """All B-splines of a degree at x by the recursion of Cox and de Boor; the ends are repeated knots."""
    knots = np.array([lower] * (degree + 1) + list(inner) + [upper] * (degree + 1))
    count = len(knots) - degree - 1
    # The interval of each x; the last one is closed on the right.
    place = np.clip(np.searchsorted(knots, x, side="right") - 1, degree, count - 1)
    basis = np.zeros((len(x), count + degree))
    basis[np.arange(len(x)), place] = 1.0
    for d in range(1, degree + 1):
        raised = np.zeros_like(basis)
        for j in range(len(knots) - d - 1):
            left, right = knots[j + d] - knots[j], knots[j + d + 1] - knots[j + 1]
            if left > 0:
                raised[:, j] += (x - knots[j]) / left * basis[:, j]
            if right > 0:
                raised[:, j] += (knots[j + d + 1] - x) / right * basis[:, j + 1]
        basis = raised
    return basis[:, :count]


def learn_bspline(x: Array, source: Source, arguments: dict[str, Any], node: Call, text: str) -> BSpline:
    """Inner knots at quantiles, unless they are given; a row of weight 2 counts twice."""
    degree, df, knots = arguments["degree"], arguments["df"], arguments["knots"]
    if not 0 <= degree <= 10:
        raise FormulaError("expected a degree from 0 to 10", str(degree), "3 is the usual one.", text, node.span)
    lower = float(x.min()) if arguments["lower"] is None else arguments["lower"]
    upper = float(x.max()) if arguments["upper"] is None else arguments["upper"]
    if knots is not None and df is not None and len(knots) + degree != df:
        raise FormulaError("expected df or knots", "both, and they disagree",
                           f"These knots make df={len(knots) + degree}.", text, node.span)
    if knots is None:
        df = degree if df is None else df
        inner = df - degree
        if inner < 0:
            raise FormulaError(f"expected df of at least the degree, {degree}", str(df),
                               "Raise df or lower the degree.", text, node.span)
        if df > 1000:
            raise FormulaError("expected df of at most 1000", str(df), "Use s(x) or gp(x).", text, node.span)
        inside = (x >= lower) & (x <= upper)
        knots = ()
        if inner and inside.any():
            knots = counted_quantile(x[inside], source.counts[inside], np.linspace(0, 1, inner + 2)[1:-1])
    inner_knots = tuple(sorted(float(knot) for knot in knots))
    if not lower < upper:
        raise InputError(f"{node} needs a column that varies", f"{lower:g} in every row", "Leave it out.")
    if inner_knots and not lower < inner_knots[0] <= inner_knots[-1] < upper:
        raise FormulaError(f"expected inner knots between {lower:g} and {upper:g}",
                           ", ".join(f"{k:g}" for k in inner_knots),
                           "Use fewer columns, or knots inside the range.", text, node.span)
    return BSpline(degree, inner_knots, lower, upper)
