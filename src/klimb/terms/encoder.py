"""From a formula and a frame to the blocks of a model, and the same again for every later frame.

`encode` looks at the data of the fit; the `Encoder` it gives back holds all that was learnt (levels, means, knots,
...), encodes new frames in the same way and goes to JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np

from klimb.errors import InputError, listed
from klimb.formula import Formula, parse
from klimb.formula.coding import Product, full_rank
from klimb.formula.errors import FormulaError
from klimb.formula.factors import Factor, LevelFactor, NumberFactor, factor_from_json, learn_factor
from klimb.formula.functions import bind
from klimb.formula.left import Response, learn_response
from klimb.formula.nodes import Call, Node
from klimb.formula.numeric import Numeric, Step, learn_numeric, moments
from klimb.formula.parts import Grouping, Term, Terms, expand, used_columns
from klimb.formula.products import design, design_names
from klimb.formula.variables import Variable, learn_variable
from klimb.rows.frames import read_frame
from klimb.rows.table import Source, complete_rows
from klimb.terms.encoded import Encoded, FixedBlock
from klimb.terms.gp import Process, learn_process
from klimb.terms.groups import GroupCodec, learn_group, products_from_json
from klimb.terms.smooths import Smooth, learn_smooth

VERSION = 1
_KEYS = {"version", "formula", "missing", "response", "variables", "factors", "fixed", "groups", "smooths", "processes",
         "offsets"}
_Learnt = TypeVar("_Learnt")


@final
@dataclass(frozen=True)
class Encoder:
    """All that a formula learnt from the data of the fit."""

    formula: str
    missing: str
    response: Response | None
    variables: tuple[Variable, ...]  # the columns of the right side, with their ranges and typical values
    factors: dict[str, Factor]  # as the formula writes them
    fixed: tuple[Product, ...]
    groups: tuple[GroupCodec, ...]
    smooths: tuple[Smooth, ...]
    processes: tuple[Process, ...]
    offsets: tuple[Numeric, ...]

    def encode(self, frame: Any, *, response: bool = False, missing: str | None = None) -> Encoded:
        """The blocks of another frame; with ``response`` its response as well."""
        frame = read_frame(frame)
        names = self.predictors
        if response and self.response is not None:
            names = (*self.response.columns, *names)
        absent = [name for name in names if name not in frame.columns]
        if absent:
            raise InputError(f"the data must have the columns of {self.formula!r}",
                             f"no column {listed(map(repr, absent), 5)}", f"The columns are: {listed(frame.columns)}.")
        source, dropped = complete_rows(frame, list(names), self.missing if missing is None else missing)
        return self._blocks(source, dropped, response)

    def _blocks(self, source: Source, dropped: int, response: bool) -> Encoded:
        target = self.response.encode(source) if response and self.response is not None else None
        offset = np.zeros(source.n)
        for expression in self.offsets:
            offset += expression.evaluate(source)
        fixed = FixedBlock(design(self.fixed, self.factors, source), self.fixed_names)
        groups = tuple(group.block(source, self.factors) for group in self.groups)
        smooths = tuple(block for smooth in self.smooths for block in smooth.blocks(source, self.factors))
        processes = tuple(process.block(source) for process in self.processes)
        return Encoded(target, fixed, groups, smooths, processes, offset, source.rows, dropped)

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """Names of the columns with fixed priors."""
        return design_names(self.fixed, self.factors)

    @property
    def predictors(self) -> tuple[str, ...]:
        """The columns that a frame needs for prediction."""
        return tuple(variable.name for variable in self.variables)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON; floats survive exactly."""
        return {"version": VERSION, "formula": self.formula, "missing": self.missing,
                "response": self.response.to_json() if self.response else None,
                "variables": [variable.to_json() for variable in self.variables],
                "factors": {key: factor.to_json() for key, factor in self.factors.items()},
                "fixed": [[list(part) for part in product] for product in self.fixed],
                "groups": [group.to_json() for group in self.groups],
                "smooths": [smooth.to_json() for smooth in self.smooths],
                "processes": [process.to_json() for process in self.processes],
                "offsets": [expression.to_json() for expression in self.offsets]}

    @classmethod
    def from_json(cls, state: Any) -> Encoder:
        """The encoder whose ``to_json`` gave ``state``; anything else is refused."""
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != VERSION:
            raise InputError(f"the state of an encoder, version {VERSION}", f"version {version!r}",
                             "It was written by another version of klimb: use that one.")
        if set(state) != _KEYS:
            raise InputError("the parts of an encoder's state",
                             listed(sorted(set(state) ^ _KEYS)) + " missing or unknown",
                             "The file may be damaged, or from another version of klimb.")
        try:
            json.dumps(state, allow_nan=False)  # what is not finite, or not JSON, did not come from us
            encoder = cls(str(state["formula"]), str(state["missing"]),
                          Response.from_json(state["response"]) if state["response"] else None,
                          tuple(map(Variable.from_json, state["variables"])),
                          {key: factor_from_json(factor) for key, factor in state["factors"].items()},
                          products_from_json(state["fixed"]), tuple(map(GroupCodec.from_json, state["groups"])),
                          tuple(map(Smooth.from_json, state["smooths"])),
                          tuple(map(Process.from_json, state["processes"])),
                          tuple(map(Numeric.from_json, state["offsets"])))
            encoder._check()
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("the state of an encoder", f"something else ({type(error).__name__}: {error})",
                             "The file may be damaged.") from error
        return encoder

    def _check(self) -> None:
        """Everything that is named is there."""
        parse(self.formula)
        products = [*self.fixed, *(product for group in self.groups for product in group.effects)]
        for key in [*(key for product in products for key, _ in product), *(s.by for s in self.smooths if s.by)]:
            if key not in self.factors:
                raise KeyError(key)


def encode(formula: str | Formula, frame: Any, *, missing: str = "drop") -> tuple[Encoder, Encoded]:
    """Learn from ``frame`` what ``formula`` asks for, and encode it.

    >>> data = {"y": [0.0, 1.0, 2.0, 3.0], "x": [1.0, 2.0, 3.0, 5.0], "g": ["a", "b", "a", "b"]}
    >>> encoder, blocks = encode("y ~ x + g + (1 | g)", data)
    >>> blocks.fixed.names
    ('Intercept', 'x', 'g[T.b]')
    >>> blocks.groups[0].codes
    array([0, 1, 0, 1])
    """
    formula = parse(formula) if isinstance(formula, str) else formula
    text, frame = formula.text, read_frame(frame)
    terms = expand(formula, frame.columns)
    factors = dict.fromkeys(f for term in [*terms.fixed, *(t for g in terms.groups for t in g.effects)] for f in term)
    nodes: list[Node] = [*factors, *terms.offsets, *terms.smooths, *terms.processes,
                         *(factor for group in terms.groups for factor in group.groups)]
    predictors = tuple(dict.fromkeys(name.name for node in nodes for name in used_columns(node, text)))
    targets = [name.name for name in used_columns(formula.response, text)]
    source, dropped = complete_rows(frame, [*targets, *predictors], missing, learning=True)
    encoder = _learn(formula, terms, source, predictors, missing)
    return encoder, encoder._blocks(source, dropped, response=True)


def _learn(formula: Formula, terms: Terms, source: Source, predictors: tuple[str, ...], missing: str) -> Encoder:
    text = formula.text
    every: list[Term] = [*terms.fixed, *(term for group in terms.groups for term in group.effects)]
    factors = {str(node): _pointing(learn_factor, node, source, text) for term in every for node in term}
    smooths = tuple(_pointing(learn_smooth, call, source, text) for call in terms.smooths)
    keys = [[str(node) for node in term] for term in terms.fixed]
    for call, smooth in zip(terms.smooths, smooths, strict=True):
        keys += _straight(call, smooth, factors, source, text)
    fixed = full_rank(sorted(keys, key=len), lambda key: isinstance(factors[key], LevelFactor))
    _check_names(design_names(fixed, factors), text)
    groups = tuple(_pointing(learn_group, group, source, text, factors) for group in terms.groups)
    processes = tuple(_pointing(learn_process, call, source, text) for call in terms.processes)
    offsets = tuple(_pointing(learn_offset, call, source, text) for call in terms.offsets)
    levels = {factor.column for factor in factors.values() if isinstance(factor, LevelFactor)}
    levels |= {column for group in groups for column in group.columns}
    numbers = {factor.expression.column for factor in factors.values() if not isinstance(factor, LevelFactor)}
    variables = tuple(learn_variable(name, source, name in levels - numbers) for name in predictors)
    response = None if formula.response is None else _pointing(learn_response, formula.response, source, text)
    return Encoder(text, missing, response, variables, factors, tuple(fixed), groups, smooths, processes, offsets)


def _check_names(names: tuple[str, ...], text: str) -> None:
    """Two columns must not have one name: tables and predictions go by names."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormulaError("terms with different names", f"two that are called {twice!r}",
                           "Rename a column of the data.", text, (0, len(text)))


def learn_offset(call: Call, source: Source, text: str) -> Numeric:
    """The numbers that are added to the linear predictor."""
    expression = learn_numeric(bind(call, text)["x"], source)
    expression.evaluate(source)
    return expression


def _pointing(learn: Callable[..., _Learnt], part: Node | Grouping, source: Source, text: str, *more: Any) -> _Learnt:
    """What ``part`` learns; where the data are no good for it, an error that shows its place in the formula."""
    try:
        return learn(part, source, text, *more)
    except InputError as error:
        raise FormulaError.pointing(error, text, part.span) from error


def _straight(call: Call, smooth: Smooth, factors: dict[str, Factor], source: Source, text: str) -> list[list[str]]:
    """The fixed terms that a smooth leaves to its straight part: a slope, one per level of ``by``, or times ``by``."""
    arguments = bind(call, text)
    slope = str(arguments["x"])
    if slope not in factors:  # the column itself may be a term already
        slope = f"s({slope})[slope]"
        x = smooth.expression.evaluate(source)
        center = Step("center", (moments(x, "center")[0],))
        expression = Numeric(smooth.expression.column, (*smooth.expression.steps, center))
        factors.setdefault(slope, NumberFactor(slope, expression))
    if smooth.by is None:
        return [[slope]]
    if smooth.by not in factors:
        factors[smooth.by] = _pointing(learn_factor, arguments["by"], source, text)
    alone = [] if isinstance(factors[smooth.by], LevelFactor) else [[smooth.by]]
    return [*alone, [smooth.by, slope]]
