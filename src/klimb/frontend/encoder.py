"""From a formula and a frame to the blocks of a model, and the same again for every later frame.

`encode` looks at the data of the fit; the `Encoder` it gives back holds all that was learnt (levels, means, knots,
...), encodes new frames in the same way and goes to JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.frontend.coding import Product, full_rank
from klimb.frontend.encoded import Encoded, FixedBlock
from klimb.frontend.factors import Factor, LevelFactor, factor_from_json, learn_factor
from klimb.frontend.formula import Formula, parse
from klimb.frontend.formula.errors import listed
from klimb.frontend.formula.functions import bind
from klimb.frontend.formula.nodes import Call, Name
from klimb.frontend.formula.terms import Term, expand, label, used_columns
from klimb.frontend.frames import Frame, read_frame
from klimb.frontend.groups import GroupCodec, learn_group, products_from_json
from klimb.frontend.numeric import Numeric, learn_numeric
from klimb.frontend.products import design, design_names
from klimb.frontend.response import Response, learn_response
from klimb.frontend.source import Source, complete_rows
from klimb.numerics.arrays import Array

VERSION = 1


@final
@dataclass(frozen=True)
class Encoder:
    """All that a formula learnt from the data of the fit."""

    formula: str
    missing: str
    response: Response | None
    factors: dict[str, Factor]  # by label
    fixed: tuple[Product, ...]
    groups: tuple[GroupCodec, ...]
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
        return Encoded(target, fixed, groups, (), (), offset, source.rows, dropped)

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """Names of the columns with fixed priors."""
        return design_names(self.fixed, self.factors)

    @property
    def predictors(self) -> tuple[str, ...]:
        """The columns that a frame needs for prediction."""
        found: dict[str, None] = {}
        used = {key for product in [*self.fixed, *(p for g in self.groups for p in g.effects)] for key, _ in product}
        for key, factor in self.factors.items():
            if key in used:
                found[factor.column if isinstance(factor, LevelFactor) else factor.expression.column] = None
        for expression in self.offsets:
            found[expression.column] = None
        for group in self.groups:
            found.update(dict.fromkeys(group.columns))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON; floats survive exactly."""
        return {"version": VERSION, "formula": self.formula, "missing": self.missing,
                "response": self.response.to_json() if self.response else None,
                "factors": {key: factor.to_json() for key, factor in self.factors.items()},
                "fixed": [[list(part) for part in product] for product in self.fixed],
                "groups": [group.to_json() for group in self.groups],
                "offsets": [expression.to_json() for expression in self.offsets]}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Encoder:
        """The encoder whose ``to_json`` gave ``state``."""
        if not isinstance(state, dict) or state.get("version") != VERSION:
            version = state.get("version") if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state of an encoder, version {VERSION}", repr(version),
                             "It was written by another version of klimb: use that one.")
        return cls(str(state["formula"]), str(state["missing"]),
                   Response.from_json(state["response"]) if state["response"] else None,
                   {key: factor_from_json(factor) for key, factor in state["factors"].items()},
                   products_from_json(state["fixed"]),
                   tuple(GroupCodec.from_json(group) for group in state["groups"]),
                   tuple(Numeric.from_json(expression) for expression in state["offsets"]))


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
    frame = read_frame(frame)
    terms = expand(formula, frame.columns)
    every: list[Term] = [*terms.fixed, *(term for group in terms.groups for term in group.effects)]
    nodes: dict[str, Name | Call] = {label(factor): factor for term in every for factor in term}
    text = formula.text
    names = dict.fromkeys(name.name for side in (formula.response,) for name in used_columns(side, text))
    for node in nodes.values():
        names.update(dict.fromkeys(name.name for name in used_columns(node, text)))
    for call in terms.offsets:
        names.update(dict.fromkeys(name.name for name in used_columns(call, text)))
    for group in terms.groups:
        names.update(dict.fromkeys(name.name for factor in group.groups for name in used_columns(factor, text)))
    source, dropped = complete_rows(frame, list(names), missing)
    if not source.n:
        raise InputError("data with at least one row", "no rows", "Check how the data were read.")
    response = learn_response(formula.response, source, text) if formula.response is not None else None
    factors = {key: learn_factor(node, source, text) for key, node in nodes.items()}
    fixed = full_rank([[label(factor) for factor in term] for term in terms.fixed],
                      lambda key: isinstance(factors[key], LevelFactor))
    encoder = Encoder(text, missing, response, factors, tuple(fixed),
                      tuple(learn_group(group, source, factors, text) for group in terms.groups),
                      tuple(learn_numeric(bind(call, text)["x"], source) for call in terms.offsets))
    return encoder, encoder._blocks(source, dropped, response=True)
