"""From tokens to the tree of a formula, by recursive descent.

    formula     = [response] "~" sum
    response    = sum | sum "|" "trials" "(" name ")"
    sum         = ["+" | "-"] product { ("+" | "-") product }
    product     = nesting { ("*" | "/") nesting }
    nesting     = interaction { "%in%" interaction }
    interaction = power { ":" power }
    power       = atom [ ("^" | "**") number ]
    atom        = name | number | "." | call | "(" sum [ ("|" | "||") sum ] ")"
    call        = name "(" [ argument { "," argument } ] ")"
    argument    = [ name "=" ] ( number | string | True | False | None | name | call | "[" argument, ... "]" )

The order in which operators bind is R's.
"""

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

from klimb.formula.errors import FormulaError, Span
from klimb.formula.functions import bind
from klimb.formula.nodes import WORDS, Bar, Call, Dot, Items, Name, Node, Operation, Token, Value, tokenize

DEEPEST = 60  # nested parentheses; far beyond what anybody writes, far below Python's own limit
LONGEST = 100_000  # characters
_WORDS = {"True": True, "TRUE": True, "False": False, "FALSE": False, "None": None, "NULL": None}
_ARITHMETIC = ("Arithmetic is not evaluated inside functions: make the column in your data first "
               "(log1p(x) is log(1 + x); poly(x, 2, raw=True) gives x and x^2).")


class Formula(NamedTuple):
    """A formula that has been read: its text and the trees of its two sides."""

    text: str
    response: Node | None  # None for "~ x"
    right: Node

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Formula:
    """Read a formula; a `FormulaError` points at what cannot be read."""
    if not isinstance(text, str):
        raise FormulaError('expected a formula as text, such as "y ~ x + (1 | g)"', type(text).__name__,
                           "Put it in quotes.")
    if len(text) > LONGEST:
        raise FormulaError(f"expected a formula of at most {LONGEST} characters", f"{len(text)}",
                           "Write . for all other columns.")
    return _Parser(text).formula()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def take(self) -> Token:
        token = self.tokens[self.position]
        self.position += token.kind != "end"
        return token

    def expect(self, operator: str, why: str) -> Token:
        if not self.token.is_operator(operator):
            raise self.wrong(f"{operator!r} {why}", "Check the parentheses and commas.")
        return self.take()

    def wrong(self, expected: str, advice: str, token: Token | None = None) -> FormulaError:
        token = token or self.token
        got = "the end of the formula" if token.kind == "end" else repr(self.text[slice(*token.span)])
        return FormulaError(f"expected {expected}", got, advice, self.text, token.span)

    def formula(self) -> Formula:
        response = None
        if not self.token.is_operator("~"):
            if not any(token.is_operator("~") for token in self.tokens):
                end = self.tokens[-1]
                raise self.wrong("a response, then ~, then terms", "Write for instance y ~ x + (1 | g).",
                                 end if len(self.tokens) == 1 else self.tokens[0])
            response = self.response()
        self.expect("~", "between the response and the terms")
        right = self.sum()
        if self.token.is_operator("|", "||"):
            raise self.wrong("parentheses around a grouping", "Write (1 | g).")
        if self.token.is_operator("~"):
            raise self.wrong("one ~", "A formula has two sides.")
        self.finished()
        return Formula(self.text, response, right)

    def response(self) -> Node:
        left = self.sum()
        if self.token.is_operator("|"):  # y | trials(n), as in brms
            bar = self.take()
            name = self.token
            if not (name.kind == "name" and name.text == "trials"):
                raise self.wrong("trials(n) behind the bar",
                                 "Write y | trials(n), p(y, n) or cbind(successes, failures).")
            self.take()
            self.expect("(", "after trials")
            trials = self.argument()
            end = self.expect(")", "after the column with the trials")
            if not isinstance(left, Name):
                raise FormulaError("expected a column of successes left of the bar", str(left),
                                   "Write y | trials(n).", self.text, left.span)
            left = Call("p", ((None, left), (None, trials)), (left.span[0], end.span[1]), bar.span)
            bind(left, self.text)
        return left

    def finished(self) -> None:
        token = self.token
        if token.kind == "end":
            return
        if token.kind == "operator":
            advice = {")": "One parenthesis too many?", "=": "Write ~ between the response and the terms.",
                      ",": "Terms are joined with +."}.get(token.text, "Check the operators before it.")
        else:
            advice = "Join terms with +; names with spaces go between back-quotes: `name`."
        raise self.wrong("an operator such as + between terms", advice)

    def chain(self, operators: tuple[str, ...], operand: Callable[[], Node], first: Node | None = None) -> Node:
        left = operand() if first is None else first
        while self.token.is_operator(*operators):
            token = self.take()
            right = operand()
            left = Operation(token.text, left, right, (left.span[0], right.span[1]), token.span)
        return left

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"at most {DEEPEST} nested parentheses", "Multiply the formula out.")
        signed = None
        if self.token.is_operator("+", "-"):
            sign = self.take()
            operand = self.product()
            signed = Operation(sign.text, None, operand, (sign.span[0], operand.span[1]), sign.span)
        total = self.chain(("+", "-"), self.product, signed)
        self.depth -= 1
        return total

    def product(self) -> Node:
        return self.chain(("*", "/"), self.nesting)

    def nesting(self) -> Node:
        return self.chain(("%in%",), self.interaction)

    def interaction(self) -> Node:
        return self.chain((":",), self.power)

    def power(self) -> Node:
        left = self.atom()
        if self.token.is_operator("^", "**"):
            token = self.take()
            exponent = self.token
            if exponent.kind != "number" or not exponent.text.isdigit() or not 1 <= int(exponent.text[:9]) <= 99:
                raise self.wrong("a whole number from 1 to 99 as the power",
                                 "(a + b + c)^2 means all terms up to two-way interactions; "
                                 "for the square of a column use poly(x, 2).")
            self.take()
            right = Value(float(exponent.text), exponent.span)
            left = Operation("^", left, right, (left.span[0], exponent.span[1]), token.span)
            if self.token.is_operator("^", "**"):
                raise self.wrong("one power", "Use parentheses.")
        return left

    def atom(self) -> Node:
        token = self.token
        if token.kind == "name":
            if not token.quoted and self.tokens[self.position + 1].is_operator("("):
                return self.call()
            if not token.quoted and token.text in WORDS:
                raise self.wrong("a term", f"If a column has this name, write `{token.text}`.")
            self.take()
            return Name(token.text, token.span)
        if token.kind == "number":
            self.take()
            return self.finite(token.text, token.span)
        if token.kind == "string":
            raise self.wrong("a term", f"Names of columns go between back-quotes: `{token.text}`.")
        if token.is_operator("."):
            self.take()
            return Dot(token.span)
        if token.is_operator("("):
            return self.parentheses()
        advice = "Write a column, a function of one, or something in parentheses."
        if token.is_operator(")") and self.position and self.tokens[self.position - 1].is_operator("("):
            advice = "Write something between the parentheses."
        raise self.wrong("a term", advice)

    def parentheses(self) -> Node:
        opening = self.take()
        inner = self.sum()
        if self.token.is_operator("|", "||"):
            bar = self.take()
            groups = self.sum()
            if self.token.is_operator("|", "||"):
                raise self.wrong("one bar in a grouping", "Write (1 | g) + (1 | h), or (1 | g:h).")
            end = self.expect(")", "after the grouping")
            return Bar(inner, groups, bar.text == "|", (opening.span[0], end.span[1]))
        if not self.token.is_operator(")"):
            if self.token.kind == "end":
                raise self.wrong("a closing parenthesis", "Close what begins here.", opening)
            raise self.wrong("an operator or a closing parenthesis", "Join terms with +.")
        self.take()
        return inner

    def call(self) -> Call:
        name = self.take()
        self.take()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"at most {DEEPEST} nested parentheses", "Make the column in your data first.")
        arguments: list[tuple[str | None, Node]] = []
        while not self.token.is_operator(")"):
            key = None
            if self.token.kind == "name" and self.tokens[self.position + 1].is_operator("="):
                key = self.take().text
                self.take()
            elif arguments and arguments[-1][0] is not None:
                raise self.wrong("keyword arguments last", "Put arguments without a name first.")
            arguments.append((key, self.argument()))
            self.separator(")", f"after the arguments of {name.text}()")
        end = self.take()
        self.depth -= 1
        call = Call(name.text, tuple(arguments), (name.span[0], end.span[1]), name.span)
        bind(call, self.text)
        return call

    def separator(self, closing: str, why: str) -> None:
        """A comma that something follows, or the closing mark (which stays)."""
        if self.token.is_operator(","):
            self.take()
            if self.token.is_operator(closing):
                raise self.wrong("an argument after the comma", "Take the comma out.")
        elif self.token.is_operator("+", "-", "*", "/", "^", "**", ":"):
            raise self.wrong(f"',' or {closing!r} {why}", _ARITHMETIC)
        elif not self.token.is_operator(closing):
            raise self.wrong(f"',' or {closing!r} {why}", "Check the parentheses and commas.")

    def argument(self) -> Node:
        token = self.token
        if token.is_operator("-", "+"):
            sign = self.take()
            if self.token.kind != "number":
                raise self.wrong("a number after the sign", _ARITHMETIC)
            number = self.take()
            return self.finite(sign.text + number.text, (sign.span[0], number.span[1]))
        if token.kind == "number":
            self.take()
            return self.finite(token.text, token.span)
        if token.kind == "string":
            self.take()
            return Value(token.text, token.span)
        if token.kind == "name":
            if not token.quoted and self.tokens[self.position + 1].is_operator("("):
                return self.items(")", 2) if token.text == "c" else self.call()
            self.take()
            if not token.quoted and token.text in WORDS:
                return Value(_WORDS[token.text], token.span)
            return Name(token.text, token.span)
        if token.is_operator("["):
            return self.items("]", 1)
        if token.is_operator("."):
            self.take()
            return Dot(token.span)
        raise self.wrong("an argument", _ARITHMETIC if token.is_operator("(") else "Check the parentheses and commas.")

    def finite(self, number: str, span: Span) -> Value:
        if not isfinite(float(number)):
            raise FormulaError("expected a finite number", self.text[slice(*span)], "Use a smaller one.", self.text,
                               span)
        return Value(float(number), span)

    def items(self, closing: str, opening: int) -> Items:
        """``[1, 2]``, or ``c(1, 2)`` as in R."""
        start = self.token.span[0]
        for _ in range(opening):
            self.take()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"at most {DEEPEST} nested lists", "Lists hold numbers or strings.")
        found: list[Node] = []
        while not self.token.is_operator(closing):
            found.append(self.argument())
            self.separator(closing, "in the list")
        end = self.take()
        self.depth -= 1
        return Items(tuple(found), (start, end.span[1]))
