"""Groupings ``(1 + x | g)``: a code per row and the values that multiply the level's coefficients; never densified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.formula.coding import Product, full_rank
from klimb.formula.factors import Factor, LevelFactor
from klimb.formula.functions import bind
from klimb.formula.nodes import Name
from klimb.formula.parts import Grouping
from klimb.formula.products import design, design_names
from klimb.rows.columns import Codes, match_levels
from klimb.rows.table import Source
from klimb.terms.encoded import UNSEEN, GroupBlock

JOIN = ":"  # levels of g:h are written "a:b"


@final
@dataclass(frozen=True)
class GroupCodec:
    """What one grouping learnt: the levels of its columns, those combinations that occurred, and its effects."""

    name: str
    columns: tuple[str, ...]  # g, h of g:h
    levels: tuple[tuple[str, ...], ...]  # of each column
    cells: tuple[tuple[int, ...], ...] | None  # combinations that occurred; None for one column: all of its levels
    effects: tuple[Product, ...]
    correlated: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the groups."""
        if self.cells is None:
            return self.levels[0]
        return tuple(JOIN.join(levels[k] for levels, k in zip(self.levels, cell, strict=True)) for cell in self.cells)

    def codes(self, source: Source) -> Codes:
        """The group of each row; UNSEEN for one that was not there at the fit."""
        parts = [match_levels(*source.factor(column), levels)
                 for column, levels in zip(self.columns, self.levels, strict=True)]
        if self.cells is None:
            return parts[0]
        sizes = [len(levels) for levels in self.levels]
        known = _flatten([np.array(part) for part in zip(*self.cells, strict=True)], sizes)
        asked = _flatten(parts, sizes)
        place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.where(known[place] == asked, place, UNSEEN)

    def block(self, source: Source, factors: dict[str, Factor]) -> GroupBlock:
        return GroupBlock(self.name, design_names(self.effects, factors), self.labels, self.codes(source),
                          np.asarray(design(self.effects, factors, source)), self.correlated)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "columns": list(self.columns), "levels": [list(levels) for levels in self.levels],
                "cells": None if self.cells is None else [list(cell) for cell in self.cells],
                "effects": [[list(part) for part in product] for product in self.effects],
                "correlated": self.correlated}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> GroupCodec:
        cells = None if state["cells"] is None else tuple(tuple(int(k) for k in cell) for cell in state["cells"])
        return cls(str(state["name"]), tuple(state["columns"]), tuple(map(tuple, state["levels"])), cells,
                   products_from_json(state["effects"]), bool(state["correlated"]))


def products_from_json(state: list[Any]) -> tuple[Product, ...]:
    """Products as they were before they went to JSON."""
    return tuple(tuple((str(key), bool(full)) for key, full in product) for product in state)


def _flatten(parts: list[Codes], sizes: list[int]) -> Codes:
    """One number per combination, in the order of the first column, then the second, ...; -1 where one is unknown."""
    total = np.zeros(len(parts[0]), dtype=np.int64)
    bad = np.zeros(len(parts[0]), dtype=bool)
    for part, size in zip(parts, sizes, strict=True):
        total = total * size + part
        bad |= part < 0
    return np.where(bad, -1, total).astype(np.intp)


def learn_group(grouping: Grouping, source: Source, text: str, factors: dict[str, Factor]) -> GroupCodec:
    """The groups that occur in the data."""
    columns = tuple(node.name if isinstance(node, Name) else bind(node, text)["x"].name for node in grouping.groups)
    coded = [source.factor(column) for column in columns]
    levels = tuple(labels for _, labels in coded)
    cells = None
    if len(columns) > 1:
        sizes = [len(labels) for labels in levels]
        flat = np.unique(_flatten([codes for codes, _ in coded], sizes))
        cells = tuple(tuple(int(k) for k in np.unravel_index(cell, sizes)) for cell in flat.tolist())
    terms = [[str(factor) for factor in term] for term in grouping.effects]
    effects = tuple(full_rank(terms, lambda key: isinstance(factors[key], LevelFactor)))
    return GroupCodec(grouping.name, columns, levels, cells, effects, grouping.correlated)
