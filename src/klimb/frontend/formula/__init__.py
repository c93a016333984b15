"""A small Wilkinson grammar: ``parse("y ~ x * z + s(t) + (1 + x | g)")``. Nothing is ever evaluated as Python."""

from klimb.frontend.formula.errors import FormulaError
from klimb.frontend.formula.grammar import Formula, parse
from klimb.frontend.formula.tokens import quote

__all__ = ["Formula", "FormulaError", "parse", "quote"]
