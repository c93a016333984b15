"""A formula as a list of tokens, each knowing where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

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


@final
@dataclass(frozen=True)
class Token:
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
                raise FormulaError("expected a column name between the back-quotes", "nothing",
                                   "Write `column name`.", text,
                                   span)
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
    """A column's name as one writes it in a formula: with back-quotes where it needs them.

    >>> print(quote("age"), quote("age at entry"))
    age `age at entry`
    """
    simple = _SIMPLE.fullmatch(name) is not None and name not in WORDS
    return name if simple else "`" + name.replace("`", "``") + "`"
