"""The tree of a formula: names, numbers, calls, operators, bars. Every node knows where it stands in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, final

from klimb.formula.errors import Span
from klimb.formula.tokens import quote


@final
@dataclass(frozen=True)
class Name:
    """A column of the data."""

    name: str
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return quote(self.name)


@final
@dataclass(frozen=True)
class Number:
    """0 and 1 as terms; any number as an argument."""

    value: float
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return repr(int(self.value)) if self.value == int(self.value) and abs(self.value) < 1e15 else repr(self.value)


@final
@dataclass(frozen=True)
class Text:
    """A string, as an argument."""

    value: str
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return '"' + self.value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@final
@dataclass(frozen=True)
class Word:
    """True, False or None, as an argument."""

    value: bool | None
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return repr(self.value)


@final
@dataclass(frozen=True)
class Items:
    """``[1, 2, 3]``, as an argument."""

    items: tuple[Node, ...]
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return "[" + ", ".join(str(item) for item in self.items) + "]"


@final
@dataclass(frozen=True)
class Call:
    """A function of the closed list with its arguments; keyword arguments have a name."""

    function: str
    arguments: tuple[tuple[str | None, Node], ...]
    span: Span = field(compare=False)
    name_span: Span = field(compare=False)

    def __str__(self) -> str:
        inner = ", ".join(str(value) if key is None else f"{key}={value}" for key, value in self.arguments)
        return f"{self.function}({inner})"


@final
@dataclass(frozen=True)
class Dot:
    """Every column that the formula does not use in another way."""

    span: Span = field(compare=False)

    def __str__(self) -> str:
        return "."


@final
@dataclass(frozen=True)
class Operation:
    """``left operator right``; a sign has no left side."""

    operator: str
    left: Node | None
    right: Node
    span: Span = field(compare=False)
    operator_span: Span = field(compare=False)

    def __str__(self) -> str:
        if self.left is None:
            return f"{self.operator}{self.right}"
        return f"({self.left} {self.operator} {self.right})"


@final
@dataclass(frozen=True)
class Bar:
    """``(effects | groups)``: coefficients that differ between the levels of a grouping."""

    effects: Node
    groups: Node
    correlated: bool
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return f"({self.effects} {'|' if self.correlated else '||'} {self.groups})"


Node: TypeAlias = Name | Number | Text | Word | Items | Call | Dot | Operation | Bar


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below ``node``."""
    if isinstance(node, Call):
        return tuple(value for _, value in node.arguments)
    if isinstance(node, Operation):
        return (node.right,) if node.left is None else (node.left, node.right)
    if isinstance(node, Bar):
        return (node.effects, node.groups)
    return node.items if isinstance(node, Items) else ()
