"""From the text of a formula to tokens, and the nodes of its tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from klimb.formula.errors import FormulaError, Span

_PATTERN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>(?:[^\W0-9]|\.(?=[^\W0-9]))[\w.]*)
  | (?P<operator>%in%|\|\||\*\*|[-~+:*/^|(),=.\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_SIMPLE = re.compile(r"[^\W0-9][\w.]*")
_UNCLOSED = {"`": "back-quote", '"': "quotation mark", "'": "quotation mark"}
WORDS = frozenset({"True", "False", "TRUE", "FALSE", "None", "NULL"})  # values, never columns (unless back-quoted)


class Token(NamedTuple):
    """One word of a formula; ``kind`` is name, number, string, operator (then also ``text``) or end."""

    kind: str
    text: str  # what it means: the name without its back-quotes, the string without its quotation marks
    span: Span
    quoted: bool = False

    def is_operator(self, *texts: str) -> bool:
        return self.kind == "operator" and self.text in texts


def tokenize(text: str) -> list[Token]:
    """The tokens of ``text`` and one that marks its end."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise _unknown(text, position)
        kind, word, span = match.lastgroup or "", match.group(), match.span()
        position = match.end()
        if kind == "quoted":
            if len(word) == 2:
                raise FormulaError("expected a column name between the back-quotes", "nothing", "Write `column name`.",
                                   text, span)
            tokens.append(Token("name", word[1:-1].replace("``", "`"), span, quoted=True))
        elif kind == "string":
            tokens.append(Token("string", re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL), span))
        elif kind != "space":
            tokens.append(Token(kind, word, span))
    tokens.append(Token("end", "", (len(text), len(text))))
    return tokens


def _unknown(text: str, position: int) -> FormulaError:
    character, span = text[position], (position, position + 1)
    if character in _UNCLOSED:
        return FormulaError(f"expected a closing {_UNCLOSED[character]}", "the end of the formula",
                            f"Close what begins here with another {character}", text, span)
    if character == "%":
        return FormulaError("expected %in%, the only operator with percent signs", repr(text[position : position + 6]),
                            "a %in% b means b:a.", text, span)
    advice = {"<": "Comparisons are not evaluated: make the column in your data first.",
              ">": "Comparisons are not evaluated: make the column in your data first.",
              "!": "Only '- term' takes a term out."}.get(
        character, "Names with other characters go between back-quotes: `name`.")
    return FormulaError("expected names, numbers and the operators ~ + - : * / ^ . | ( )", repr(character), advice,
                        text, span)


def quote(name: str) -> str:
    """A column's name as one writes it in a formula: with back-quotes where it needs them."""
    simple = _SIMPLE.fullmatch(name) is not None and name not in WORDS
    return name if simple else "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Name:
    """A column of the data."""

    name: str
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return quote(self.name)


@dataclass(frozen=True)
class Value:
    """0 and 1 as terms; any number, a string, True, False or None as an argument."""

    value: float | str | bool | None
    span: Span = field(compare=False)

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return '"' + self.value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        return f"{self.value:.0f}" if whole else repr(self.value)


@dataclass(frozen=True)
class Items:
    """``[1, 2, 3]``, as an argument."""

    items: tuple[Node, ...]
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return "[" + ", ".join(str(item) for item in self.items) + "]"


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


@dataclass(frozen=True)
class Dot:
    """Every column that the formula does not use in another way."""

    span: Span = field(compare=False)

    def __str__(self) -> str:
        return "."


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


@dataclass(frozen=True)
class Bar:
    """``(effects | groups)``: coefficients that differ between the levels of a grouping."""

    effects: Node
    groups: Node
    correlated: bool
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return f"({self.effects} {'|' if self.correlated else '||'} {self.groups})"


Node: TypeAlias = Name | Value | Items | Call | Dot | Operation | Bar


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below ``node``."""
    if isinstance(node, Call):
        return tuple(value for _, value in node.arguments)
    if isinstance(node, Operation):
        return (node.right,) if node.left is None else (node.left, node.right)
    if isinstance(node, Bar):
        return (node.effects, node.groups)
    return node.items if isinstance(node, Items) else ()


def walk(node: Node | None, *leaves: type) -> Iterator[Node]:
    """``node`` and all below it, but nothing below ``leaves``. A long sum is a deep tree: no recursion."""
    stack = [] if node is None else [node]
    while stack:
        top = stack.pop()
        yield top
        stack += () if isinstance(top, leaves) else children(top)
