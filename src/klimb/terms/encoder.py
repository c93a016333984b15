"""From a formula and a frame to terms, and from any later frame to their columns.

`encode` looks at the data of the fit; the `Encoder` it gives back holds all that was learnt (levels, means, knots,
points, ...) and makes the same columns of new frames.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, listed, nearest
from klimb.formula import Formula, parse
from klimb.formula.errors import FormulaError
from klimb.formula.factors import Factor, LeftSide, LevelFactor, full_rank, learn_factor, learn_response
from klimb.formula.functions import FUNCTIONS
from klimb.formula.nodes import Call, Name, Node
from klimb.formula.numeric import FormulaVariable, learn_variable
from klimb.formula.parts import Grouping, Joined, Parts, expand, used_columns
from klimb.likelihoods import Left
from klimb.numerics.arrays import Array, Index
from klimb.rows.frames import Frame, read_frame
from klimb.rows.table import Learnable, Source, complete_rows
from klimb.terms.base import Coded, Term, TermBlock
from klimb.terms.fixed import FixedTerm
from klimb.terms.group import Group
from klimb.terms.registry import term_of

NOBODY = "(a level that is not in the data)"

_Learnt = TypeVar("_Learnt")


@dataclass(frozen=True, eq=False)
class Encoded:
    """The columns of every term for one frame, rows aligned."""

    blocks: tuple[TermBlock, ...]  # one per term
    left: Left | None  # None where the frame has no response column (prediction)
    rows: Index  # positions of the kept rows in the frame
    dropped: int  # rows left out because a value was missing
    weights: Array | None = None
    waiting: int = 0  # rows without a response that are to be predicted

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def shares(self) -> Array:
        """Weights of the rows that sum to one."""
        return np.full(self.n, 1.0 / self.n) if self.weights is None else self.weights / self.weights.sum()


@stored("encoder")
@dataclass(frozen=True, eq=False)
class Encoder:
    """All that a formula learnt from the data of the fit."""

    formula: str
    missing: str
    response: LeftSide | None
    variables: tuple[FormulaVariable, ...]  # the columns of the right side, with their ranges and typical values
    terms: tuple[Term, ...]  # `FixedTerm` first, then as written

    def encode(self, frame: Any, *, response: bool = False, missing: str | None = None, levels: bool = True) -> Encoded:
        """The columns of another frame; with ``response`` its response as well.

        Without ``levels`` every row counts as one of a level that was not there at the fit, and columns that only
        grouping factors use need not be there.
        """
        frame = read_frame(frame)
        if not levels:
            frame = frame.with_columns(dict.fromkeys(self.grouping_columns, np.full(frame.n, NOBODY, dtype=object)))
        names = self.predictors
        if response and self.response is not None:
            names = (*self.response.columns, *names)
        self.need(names, frame.columns)
        source, dropped = complete_rows(frame, list(names), self.missing if missing is None else missing)
        found = self.blocks(source, dropped, response)
        if levels:
            return found
        return replace(found, blocks=tuple(block.unseen() if isinstance(block, Coded) else block
                                           for block in found.blocks))

    def need(self, names: Iterable[str], columns: Sequence[str]) -> None:
        """An error where some of the names are no columns."""
        absent = [name for name in names if name not in columns]
        if absent:
            raise InputError(f"the data must have the columns of {self.formula!r}",
                             f"no column {listed(map(repr, absent), 5)}",
                             f"{nearest(absent[0], columns)}The columns are: {listed(columns)}.")

    def blocks(self, source: Source, dropped: int, response: bool) -> Encoded:
        """The columns of a source whose rows are complete."""
        left = None
        if response and self.response is not None:
            left = Left(self.response.name, self.response.encode(source), self.response.levels, source.places,
                        self.response.status(source))
        return Encoded(tuple(term.block(source) for term in self.terms), left, source.rows, dropped, source.weights,
                       0 if source.waiting is None else source.frame.total(source.waiting))

    @property
    def predictors(self) -> tuple[str, ...]:
        """The columns that a frame needs for prediction."""
        return tuple(variable.name for variable in self.variables)

    @property
    def grouping_columns(self) -> frozenset[str]:
        """Columns that appear in grouping factors and nowhere else."""
        inside = {column for term in self.terms if isinstance(term, Group) for column in term.group_columns}
        factors = [factor for term in self.terms for factor in term.factors().values()]
        return frozenset(inside - {factor.column if isinstance(factor, LevelFactor) else factor.expression.column
                                   for factor in factors})

    @property
    def fixed(self) -> FixedTerm:
        """The term of columns with fixed priors."""
        first = self.terms[0]
        assert isinstance(first, FixedTerm)
        return first


def encode(formula: str | Formula, frame: Any, *, missing: str = "drop", weights: Array | None = None,
           objects: Mapping[str, Any] | None = None) -> tuple[Encoder, Encoded]:
    """Learn from ``frame`` what ``formula`` asks for, and encode it; rows of weight 0 are left out.

    ``objects`` are graphs, matrices and meshes that terms name.

    >>> data = {"y": [0.0, 1.0, 2.0, 3.0], "x": [1.0, 2.0, 3.0, 5.0], "g": ["a", "b", "a", "b"]}
    >>> encoder, encoded = encode("y ~ x + g + (1 | g)", data)
    >>> encoder.fixed.every_name
    ('Intercept', 'x', 'g[T.b]')
    >>> encoded.blocks[1].codes
    array([0, 1, 0, 1])
    """
    encoder, source, dropped = learnt(parse(formula) if isinstance(formula, str) else formula, read_frame(frame),
                                      missing, weights, objects)
    return encoder, encoder.blocks(source, dropped, response=True)


def learnt(formula: Formula, frame: Frame, missing: str = "drop", weights: Array | None = None,
           objects: Mapping[str, Any] | None = None) -> tuple[Encoder, Source, int]:
    """What ``formula`` asks for of a frame, one column after another; the rows that are complete; how many are not."""
    parts, targets, predictors = needed(formula, frame.columns)
    source, dropped = complete_rows(frame, [*targets, *predictors], missing, learning=True, weights=weights,
                                    targets=targets)
    return learn_terms(formula, parts, replace(source, objects=objects or {}), predictors, missing), source, dropped


def needed(formula: Formula, columns: Sequence[str]) -> tuple[Parts, list[str], tuple[str, ...]]:
    """The terms of a formula for data with these columns, and the columns that its left and its right side use."""
    parts = expand(formula, columns)
    nodes: list[Node] = [*(f for term in parts.fixed for f in term), *parts.nodes()]
    predictors = tuple(dict.fromkeys(name.name for node in nodes for name in used_columns(node, formula.text)))
    return parts, [name.name for name in used_columns(formula.response, formula.text)], predictors


def columns_of_levels(formula: Formula, parts: Parts) -> frozenset[str]:
    """Columns that are levels whatever their type, as far as the formula alone tells."""
    nodes = [node for term in parts.fixed for node in term if isinstance(node, Call)]
    groups = [node for part in parts.others if isinstance(part, Grouping) for node in part.groups]
    return frozenset(name.name for node in (*nodes, *groups) if isinstance(node, Name)
                     or FUNCTIONS[node.function].role == "factor" for name in used_columns(node, formula.text))


def learn_terms(formula: Formula, parts: Parts, source: Learnable, predictors: tuple[str, ...],
                missing: str) -> Encoder:
    """What ``formula``, which consists of ``parts``, asks for of the kept rows."""
    text = formula.text
    every = [*parts.fixed, *(term for part in parts.others if isinstance(part, Grouping) for term in part.effects)]
    factors: dict[str, Factor] = {str(node): _pointing(learn_factor, node, source, text)
                                  for term in every for node in term}
    keys = [[str(node) for node in term] for term in parts.fixed]
    kinds = [term_of(part) for part in parts.others]
    for kind, part in zip(kinds, parts.others, strict=True):
        if hasattr(kind, "fixed_part"):
            keys += _pointing(kind.fixed_part, part, source, text, factors)
    products = tuple(full_rank(sorted(keys, key=len), lambda key: isinstance(factors[key], LevelFactor)))
    fixed = FixedTerm(products, {key: factors[key] for product in products for key, _ in product})
    terms: list[Term] = [fixed]
    for kind, part in zip(kinds, parts.others, strict=True):
        terms += _pointing(kind.learn, part, source, text, factors)
    names = [*fixed.every_name, *(name for term in terms for name in term.coefficient_names)]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:  # tables and predictions go by names
        raise FormulaError("terms with different names", f"two that are called {twice!r}",
                           "Rename a column of the data.", text, (0, len(text)))
    variables = _variables(terms, predictors, source)
    response = None if formula.response is None else _pointing(learn_response, formula.response, source, text)
    return Encoder(text, missing, response, variables, tuple(terms))


def _variables(terms: list[Term], predictors: tuple[str, ...], source: Learnable) -> tuple[FormulaVariable, ...]:
    """What is remembered of each column; those that are only ever levels are levels, whatever their type."""
    every = [factor for term in terms for factor in term.factors().values()]
    levels = {factor.column for factor in every if isinstance(factor, LevelFactor)}
    levels |= {column for term in terms for column in term.level_columns()}
    numbers = {factor.expression.column for factor in every if not isinstance(factor, LevelFactor)}
    return tuple(learn_variable(name, source, name in levels - numbers) for name in predictors)


def _pointing(learn: Callable[..., _Learnt], part: Node | Grouping | Joined, source: Learnable, text: str,
              *more: Any) -> _Learnt:
    """What ``part`` learns; where the data are no good for it, an error that shows its place in the formula."""
    try:
        return learn(part, source, text, *more)
    except InputError as error:
        raise FormulaError.pointing(error, text, part.span) from error
