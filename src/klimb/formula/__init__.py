"""A small Wilkinson grammar: ``parse("y ~ x * z + s(t) + (1 + x | g)")``. Nothing is ever evaluated as Python."""

from klimb.formula.errors import FormulaError
from klimb.formula.grammar import Formula, parse
from klimb.formula.nodes import quote

__all__ = ["Formula", "FormulaError", "parse", "quote"]
