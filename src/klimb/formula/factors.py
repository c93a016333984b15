"""The factors of a product (numbers, bases, levels), products of them as columns of a design, and the left side.

`learn_factor` and `learn_response` look at the data of the fit once; what they learnt is a plain record that turns any
other frame into the same columns, and goes to a file and back without losing a bit.

A product of factors with levels spans the products of all subsets of them: a:b in full is 1 + a + b + a:b, each by
contrasts. From every term we keep the subsets that no earlier term has spanned, then merge them back as far as
possible with

    rest:(a by contrasts) + rest  =  rest:(a in full)

(the rule of S and R, done for any formula as patsy does). Numeric factors are part of the rest: x:a is spanned by
itself, not by a.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product as every_choice
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, listed, require
from klimb.formula.functions import FUNCTIONS, bind
from klimb.formula.nodes import Call, Name, Node
from klimb.formula.numeric import BSpline, Numeric, PolynomialBasis, learn_bspline, learn_numeric, learn_polynomial
from klimb.formula.parts import label
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.rows.columns import Codes, Column, is_number, match_levels, rows_named, shown
from klimb.rows.table import Learnable, Source

Product: TypeAlias = tuple[tuple[str, bool], ...]  # (factor, in full?) in the order of the term; () is the intercept
INTERCEPT = "Intercept"
MOST_ENTRIES = 2**28  # 2 GiB


def contrast_labels(kind: str, levels: tuple[str, ...], reference: str | None) -> tuple[str, ...]:
    """What the k - 1 columns of a contrast are called."""
    if kind == "Poly":
        return tuple(_ORDERS.get(j, f"^{j}") for j in range(1, len(levels)))
    left_out = left_out_level(kind, levels, reference)
    return tuple(f"{kind[0]}.{level}" for k, level in enumerate(levels) if k != left_out)


def left_out_level(kind: str, levels: tuple[str, ...], reference: str | None) -> int:
    """The level without a column of its own."""
    if reference is not None:
        return levels.index(reference)
    return len(levels) - 1 if kind == "Sum" else 0


def contrast(kind: str, levels: tuple[str, ...], reference: str | None) -> Array:
    """The (k, k - 1) matrix of a contrast: row by row, what a level puts into the columns."""
    k = len(levels)
    if kind == "Poly":
        return orthogonal(np.arange(1.0, k + 1.0), k - 1)
    if kind == "Helmert":
        return np.asarray(np.eye(k, k - 1, -1) * np.arange(1.0, k) - np.triu(np.ones((k, k - 1))))
    left_out = left_out_level(kind, levels, reference)
    matrix = np.delete(np.eye(k), left_out, axis=1)
    if kind == "Sum":
        matrix[left_out] = -1.0
    return matrix


_ORDERS = {1: ".L", 2: ".Q", 3: ".C"}


def orthogonal(points: Array, degree: int) -> Array:
    """Orthonormal polynomials of degree 1 to ``degree`` at few points, each with a positive leading coefficient."""
    centred = (points - points.mean()) / max(float(np.abs(points - points.mean()).max()), 1e-300)
    columns = [np.full(len(points), 1.0 / np.sqrt(len(points)))]
    for _ in range(degree):
        column = columns[-1] * centred
        for _ in ("once", "twice"):  # Gram-Schmidt loses digits the first time
            for other in columns:
                column = column - (other @ column) * other
        columns.append(column / np.linalg.norm(column))
    return np.column_stack(columns[1:]) if degree else np.empty((len(points), 0))


def _codes(source: Source, column: str, levels: tuple[str, ...], what: str, advice: str) -> Codes:
    """Level of each row; an error where one was not there at the fit."""
    codes, labels = source.factor(column)
    known = match_levels(codes, labels, levels)
    if len(known) and known.min() < 0:
        new = [text for text in labels if text not in set(levels)]
        rows = rows_named(source.frame.begin + source.rows[known < 0])
        raise InputError(f"{what} must have levels that were there at the fit: {listed(levels)}",
                         f"{listed(map(repr, new), 5)} in {rows}", advice)
    return known


@stored("formula.number")
@dataclass(frozen=True)
class NumberFactor:
    """One numeric column, or several made of it: ``poly(x, 3)``, ``bs(x, df=5)``."""

    name: str
    expression: Numeric
    basis: PolynomialBasis | BSpline | None = None

    def names(self, full: bool) -> tuple[str, ...]:
        return (self.name,) if self.basis is None else tuple(f"{self.name}[{j + 1}]" for j in range(self.basis.size))

    def check(self, source: Source) -> bool:
        """Whether the basis has columns for all values: True, or an error."""
        assert self.basis is not None
        self.basis.check(self.expression.evaluate(source), self.name, source)
        return True

    def block(self, source: Source, full: bool) -> Array:
        x = self.expression.evaluate(source)
        return x[:, None] if self.basis is None else self.basis.evaluate(x, self.name, source)


@stored("formula.levels")
@dataclass(frozen=True)
class LevelFactor:
    """A column of levels: k columns where it stands alone, k - 1 contrasts beside what it is compared with."""

    name: str
    column: str
    levels: tuple[str, ...]
    contrast: str = "Treatment"
    reference: str | None = None

    def names(self, full: bool) -> tuple[str, ...]:
        labels = self.levels if full else contrast_labels(self.contrast, self.levels, self.reference)
        return tuple(f"{self.name}[{text}]" for text in labels)

    def codes(self, source: Source) -> Codes:
        """Level of each row; an error names the levels that were not there at the fit."""
        return _codes(source, self.column, self.levels, repr(self.column), "A fixed factor has no coefficient for a"
                      " new level: leave these rows out, merge the level with a known one, or fit with"
                      f" (1 | {self.column}), which allows new groups.")

    def block(self, source: Source, full: bool) -> Array:
        codes = self.codes(source)
        if not full and self.contrast != "Treatment":
            return contrast(self.contrast, self.levels, self.reference)[codes]
        # Ones in zeros: no k x k matrix, which for many levels is larger than the data.
        ones = np.zeros((source.n, len(self.levels)))
        ones[np.arange(source.n), codes] = 1.0
        return ones if full else np.delete(ones, left_out_level("Treatment", self.levels, self.reference), axis=1)


Factor: TypeAlias = NumberFactor | LevelFactor


def learn_factor(node: Name | Call, source: Learnable, text: str) -> Factor:
    """What the data say about one factor of a formula."""
    name, role = label(node), "" if isinstance(node, Name) else FUNCTIONS[node.function].role
    if isinstance(node, Name):
        column = source.column(node.name)
        if column.is_factor:
            check_not_numbers(column, source)
            return learn_levels(node, name, source)
    elif role in ("factor", "basis"):
        arguments = bind(node)
        if role == "factor":
            return learn_levels(arguments["x"], name, source, arguments)
        expression = learn_numeric(arguments["x"], source)
        learn = learn_polynomial if node.function == "poly" else learn_bspline
        factor = NumberFactor(name, expression, learn(expression, source, arguments, node))
        source.folded(factor.check, min, [expression.column])
        return factor
    expression = learn_numeric(node, source)
    source.look(expression)  # may refuse values: better now, when the place in the formula is known
    return NumberFactor(name, expression)


def check_not_numbers(column: Column, source: Learnable) -> None:
    """Text that is nearly always a number is a numeric column with a flaw, not a factor with hundreds of levels."""
    if not column.is_text:
        return
    levels, _ = source.levels(column.name)
    odd = [k for k, level in enumerate(levels) if not is_number(level)]
    if len(levels) > 20 and 0 < len(odd) < 0.1 * len(levels):
        where = listed(map(repr, [levels[k] for k in odd]), 3)
        if source.here is not None:
            codes, _ = source.here.factor(column.name)
            rows = np.flatnonzero(np.isin(codes, odd))
            where = shown(np.array(levels, dtype=object)[codes[rows[:3]]], source.here.rows[rows])
        raise InputError(f"column {column.name!r} must hold numbers only or text only",
                         f"text that is mostly numbers, and {where}",
                         f"Correct these rows and turn the column into numbers; C({column.name}) takes it as a factor.")


def learn_levels(node: Name, name: str, source: Learnable, options: dict[str, Any] | None = None) -> LevelFactor:
    """The levels of a column and their coding."""
    found, _ = source.levels(node.name)
    chosen = options or {"contrast": "Treatment", "reference": None, "levels": None}
    levels: Sequence[str] = found
    if chosen["levels"] is not None:
        unknown = [level for level in found if level not in chosen["levels"]]
        require(not unknown, f"expected levels= with every level of {node.name!r}",
                f"{listed(map(repr, unknown), 5)} left out", f"The levels are: {listed(found)}.")
        levels = [level for level in chosen["levels"] if level in set(found)]
    reference = chosen["reference"]
    here = source.here
    if here is not None and here.waiting is not None and reference is None and chosen["contrast"] == "Treatment":
        codes, _ = here.factor(node.name)
        seen = {found[k] for k in np.unique(codes)}  # a level that only waits is compared with, never to
        reference = next(level for level in levels if level in seen)
    if reference is not None:
        require(reference in levels, f"expected a level of {node.name!r} as reference", repr(reference),
                f"The levels are: {listed(levels)}.")
        require(chosen["contrast"] in ("Treatment", "Sum"), "expected reference= with Treatment or Sum",
                chosen["contrast"], "The other contrasts have no reference level.")
    require(chosen["contrast"] != "Poly" or len(levels) <= 40, "expected at most 40 levels for Poly", len(levels),
            "Use s(x) or poly(x, 3).")
    return LevelFactor(name, node.name, tuple(levels), chosen["contrast"], reference)


def full_rank(terms: Iterable[Sequence[str]], has_levels: Callable[[str], bool]) -> list[Product]:
    """The products to build for ``terms``; a factor by its key, numeric ones count as "in full"."""
    spanned: set[frozenset[str]] = set()
    built: list[Product] = []
    for term in terms:
        choices = [((key, None) if has_levels(key) else (key,)) for key in term]
        subsets = [tuple(key for key in choice if key is not None) for choice in every_choice(*choices)]
        fresh = [subset for subset in subsets if frozenset(subset) not in spanned]
        spanned.update(frozenset(subset) for subset in fresh)
        parts = [tuple((key, not has_levels(key)) for key in subset) for subset in sorted(fresh, key=len)]
        built += _merge(parts)
    return built


def _merge(parts: list[Product]) -> list[Product]:
    """Merge until nothing can be merged; every part is the product of exact subsets, shortest first."""
    merged: list[Product] = []
    for part in parts:
        for k, shorter in enumerate(merged):
            extra = set(part) - set(shorter)
            if len(part) == len(shorter) + 1 and len(extra) == 1 and not next(iter(extra))[1]:
                key = next(iter(extra))[0]
                longer = tuple((name, full or name == key) for name, full in part)
                return _merge(sorted([*merged[:k], *merged[k + 1 :], longer], key=len) + parts[parts.index(part) + 1 :])
        merged.append(part)
    return merged


def design_names(products: Sequence[Product], factors: dict[str, Factor]) -> tuple[str, ...]:
    """Names of the columns of all ``products``."""
    found: list[str] = []
    for product in products:
        names = [""]
        for key, full in product:
            names = [f"{old}:{new}" if old else new for new in factors[key].names(full) for old in names]
        found += names if product else [INTERCEPT]
    return tuple(found)


def design(products: Sequence[Product], factors: dict[str, Factor], source: Source, less: Any = 0.0) -> Any:
    """All columns of ``products``, one matrix; ``less`` is taken from them."""
    sizes = [prod(len(factors[key].names(full)) for key, full in product) for product in products]
    if source.n * sum(sizes) > MOST_ENTRIES:
        widest = products[int(np.argmax(sizes))]
        raise InputError(f"at most {MOST_ENTRIES:.0e} numbers in the fixed columns",
                         f"{source.n} rows and {sum(sizes)} columns, {max(sizes)} of them from "
                         f"{':'.join(key for key, _ in widest)!r}",
                         "Many levels are better as groups: (1 | g) keeps one number per row.")
    cache: dict[tuple[str, bool], Array] = {}
    parts = [_columns(product, factors, source, cache) for product in products]
    ends = np.cumsum(sizes, dtype=np.intp).tolist()
    few = source.frame.native is None  # at a time, of rows that are not in memory: column after column
    matrix = np.empty((source.n, sum(sizes)), order="F" if few else "C")
    centre = np.broadcast_to(less, sum(sizes))
    for rows in [slice(None)] if few else row_blocks(*matrix.shape):  # a column of all rows would be slow
        for part, size, end in zip(parts, sizes, ends, strict=True):
            own = slice(end - size, end)
            np.subtract(part[rows], centre[own], out=matrix[rows, own])
    return matrix


def _columns(product: Product, factors: dict[str, Factor], source: Source,
             cache: dict[tuple[str, bool], Array]) -> Array:
    values: Array | None = None
    for key, full in product:
        if (key, full) not in cache:
            cache[key, full] = factors[key].block(source, full)
        block = cache[key, full]
        if values is None:
            values = block
        elif values.shape[1] == 1:
            values = values * block
        else:
            values = (block[:, :, None] * values[:, None, :]).reshape(source.n, block.shape[1] * values.shape[1])
    return np.broadcast_to(np.ones((1, 1)), (source.n, 1)) if values is None else values


@stored("formula.left")
@dataclass(frozen=True)
class LeftSide:
    """What is modelled.

    A number (with the functions applied to it), the code of a level (0, 1, ..., in the order of ``levels``; False and
    True are 0 and 1), successes and trials, two columns, or times and whether they are of events (1, else 0).
    """

    name: str
    kind: Literal["number", "levels", "trials", "times"]
    columns: tuple[str, ...]
    expression: Numeric | None = None
    levels: tuple[str, ...] = ()
    failures: bool = False  # the second column counts failures, not trials

    @property
    def trials(self) -> tuple[str, ...]:
        """The columns whose sum is the number of trials."""
        return () if self.kind != "trials" else self.columns if self.failures else self.columns[1:]

    def encode(self, source: Source) -> Array:
        if self.kind == "trials":
            return self._trials(source)
        if self.kind == "levels":
            codes = _codes(source, self.columns[0], self.levels, "the response", "Leave these rows out.")
            return codes.astype(np.float64)
        assert self.expression is not None
        return self.expression.evaluate(source).copy()  # the fit's own: the caller may write to the data later

    def status(self, source: Source) -> Array | None:
        """1 where a time is that of an event, 0 where it is censored; None where the response is no time."""
        if self.kind != "times":
            return None
        values = source.number(self.columns[1])
        advice = "Give 1 for an event, 0 for a censored time."
        if len(values) and set(np.unique(values)) <= {1.0, 2.0}:
            advice += " Where 1 is censored and 2 the event, as R's survival has it, subtract 1."
        source.check((values == 0.0) | (values == 1.0), values, f"Surv() needs 0 and 1 in {self.columns[1]!r}", advice)
        return values

    def _trials(self, source: Source) -> Array:
        successes, second = (source.number(column) for column in self.columns)
        for name, values in zip(self.columns, (successes, second), strict=True):
            source.check((values >= 0) & (values == np.floor(values)), values,
                         f"{self.name} needs counts in {name!r}", "Give whole numbers from 0 on.")
        trials = successes + second if self.failures else second
        source.check(successes <= trials, successes, f"{self.name} needs no more successes than trials",
                     "Check which column is which: p(successes, trials), cbind(successes, failures).")
        return np.column_stack([successes, trials])


def learn_response(node: Node, source: Learnable, text: str) -> LeftSide:
    """The response of a formula; numbers stay numbers, text and booleans become codes."""
    if isinstance(node, Name):
        column = source.column(node.name)
        if column.is_factor:
            levels, _ = source.levels(node.name)
            if column.kind == "flag":
                levels = ("False", "True")
            return LeftSide(node.name, "levels", (node.name,), levels=levels)
        return _checked(LeftSide(node.name, "number", (node.name,), learn_numeric(node, source)), source)
    if isinstance(node, Call):
        role = FUNCTIONS[node.function].role
        arguments = bind(node)
        if role == "response":
            if node.function == "Surv":
                expression = learn_numeric(arguments["time"], source)
                columns = (expression.column, arguments["status"].name)
                return _checked(LeftSide(str(expression), "times", columns, expression), source)
            columns = tuple(column.name for column in arguments.values())
            return _checked(LeftSide(label(node), "trials", columns, failures=node.function == "cbind"), source)
        if role == "elementwise":
            expression = learn_numeric(node, source)
            if all(step.function not in ("standardize", "scale", "center") for step in expression.steps):
                return _checked(LeftSide(label(node), "number", (expression.column,), expression), source)
    raise InputError("expected one response left of ~", str(node),
                     "Write y, log(y) or another function of one column, cbind(successes, failures), p(y, n), "
                     "y | trials(n) or Surv(time, status).")


def _checked(response: LeftSide, source: Learnable) -> LeftSide:
    """Look at all values now, when the place in the formula is known; those that are passed over are, anyway."""
    if source.here is not None:
        response.encode(source.here)
        response.status(source.here)
    return response
