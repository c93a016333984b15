"""The grammar: what it reads, what the operators mean, and errors that point."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import klimb.terms  # noqa: F401  whose kinds formulas may call
from klimb.errors import InputError
from klimb.formula import FormulaError, parse, quote
from klimb.formula.errors import pointed
from klimb.formula.functions import FUNCTIONS
from klimb.formula.nodes import tokenize
from klimb.formula.parts import Grouping, expand
from klimb.terms import TERMS

assert TERMS  # which adds the functions of terms
COLUMNS = ["y", "a", "b", "c", "x", "z", "g", "h"]


def terms(text: str, columns: list[str] | None = None) -> list[str]:
    expanded = expand(parse(text), columns or COLUMNS)
    return [":".join(map(str, term)) or "1" for term in expanded.fixed]


def message(text: str, columns: list[str] | None = None) -> str:
    with pytest.raises(FormulaError) as caught:
        expand(parse(text), columns or COLUMNS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y ~ 1", ["1"]),
        ("y ~ 0", []),
        ("y ~ -1", []),
        ("y ~ x", ["1", "x"]),
        ("y~x+0", ["x"]),
        ("y ~ x - 1", ["x"]),
        ("y ~ -1 + x", ["x"]),
        ("y ~ 0 + x + 1", ["1", "x"]),
        ("y ~ x - 0", ["1", "x"]),
        ("y ~ (0 + x) + z", ["x", "z"]),
        ("y ~ +x", ["1", "x"]),
        ("y ~ x + x", ["1", "x"]),
        ("y ~ x:z + z:x", ["1", "x:z"]),
        ("y ~ a:b + a", ["1", "a", "a:b"]),
        ("y ~ a*b", ["1", "a", "b", "a:b"]),
        ("y ~ a*b*c", ["1", "a", "b", "c", "a:b", "a:c", "b:c", "a:b:c"]),
        ("y ~ a*b*c - a:b:c", ["1", "a", "b", "c", "a:b", "a:c", "b:c"]),
        ("y ~ a/b", ["1", "a", "a:b"]),
        ("y ~ a/b/c", ["1", "a", "a:b", "a:b:c"]),
        ("y ~ (a + b)/c", ["1", "a", "b", "a:b:c"]),
        ("y ~ a/(b + c)", ["1", "a", "a:b", "a:c"]),
        ("y ~ b %in% a", ["1", "a:b"]),
        ("y ~ a + b %in% a", ["1", "a", "a:b"]),
        ("y ~ (a + b + c)^2", ["1", "a", "b", "c", "a:b", "a:c", "b:c"]),
        ("y ~ (a + b)**2", ["1", "a", "b", "a:b"]),
        ("y ~ (a + b)^9", ["1", "a", "b", "a:b"]),
        ("y ~ x^2", ["1", "x"]),
        ("y ~ a:b*c", ["1", "c", "a:b", "a:b:c"]),  # : binds closer than *
        ("y ~ a + b:c", ["1", "a", "b:c"]),
        ("y ~ .", ["1", "a", "b", "c", "x", "z", "g", "h"]),
        ("y ~ . - a - x:z", ["1", "b", "c", "x", "z", "g", "h"]),
        ("y ~ .:a", ["1", "a", "a:b", "c:a", "x:a", "z:a", "g:a", "h:a"]),
        ("y ~ . + (1 | g) + offset(z) + s(x)", ["1", "a", "b", "c", "h"]),
        ("log(y) ~ . - g - h - a - b", ["1", "c", "x", "z"]),
        ("~ x", ["1", "x"]),
        ("y ~ log(x) + log( x )", ["1", "log(x)"]),
        ("y ~ poly(x, 2) + poly(x, degree=2)", ["1", "poly(x, 2)", "poly(x, degree=2)"]),
        ("y ~ (1 + a):b", ["1", "b", "a:b"]),
    ],
)
def test_operators(text: str, expected: list[str]) -> None:
    found = terms(text)
    assert [frozenset(term.split(":")) for term in found] == [frozenset(term.split(":")) for term in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1 | g)", [("g", ["1"], True)]),
        ("(1 + x | g)", [("g", ["1", "x"], True)]),
        ("(x | g)", [("g", ["1", "x"], True)]),
        ("(0 + x | g)", [("g", ["x"], True)]),
        ("(x - 1 | g)", [("g", ["x"], True)]),
        ("(x || g)", [("g", ["1", "x"], False)]),
        ("(1 | g/h)", [("g", ["1"], True), ("g:h", ["1"], True)]),
        ("(1 | g:h)", [("g:h", ["1"], True)]),
        ("(a*x | g) + (1 | h)", [("g", ["1", "a", "x", "a:x"], True), ("h", ["1"], True)]),
        ("(1 | C(g))", [("C(g)", ["1"], True)]),
        ("(1 | g) + (1 | g)", [("g", ["1"], True)]),
    ],
)
def test_groupings(text: str, expected: list[tuple[str, list[str], bool]]) -> None:
    groups = [part for part in expand(parse(f"y ~ x + {text}"), COLUMNS).others if isinstance(part, Grouping)]
    found = [(g.name, [":".join(map(str, term)) or "1" for term in g.effects], g.correlated) for g in groups]
    assert found == expected


def test_names_of_every_kind() -> None:
    columns = ["y", "my column", "it's", 'say "hi"', "back`tick", "größe", "変数", "a.b", "_x", "True", "x~z", "1st",
               ".hidden"]
    text = "y ~ " + " + ".join(quote(name) for name in columns[1:])
    expanded = expand(parse(text), columns)
    assert [term[0].name for term in expanded.fixed[1:]] == columns[1:]  # type: ignore[union-attr]


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4, unique=True))
def test_any_name_can_be_quoted(names: list[str]) -> None:
    expanded = expand(parse("~ " + " + ".join(map(quote, names))), names)
    assert [term[0].name for term in expanded.fixed[1:]] == names  # type: ignore[union-attr]


def test_response_forms() -> None:
    assert str(parse("y | trials(n) ~ x").response) == "p(y, n)"
    assert str(parse("p(y, n) ~ x").response) == "p(y, n)"
    assert str(parse("cbind(a, b) ~ x").response) == "cbind(a, b)"
    assert parse("~ x").response is None


def test_calls_print_as_they_read() -> None:
    text = 'C(a, Sum, reference="b", levels=["b", "c\\"d"])'
    node = parse(f"y ~ {text}").right
    assert str(node) == text
    assert str(parse(f"y ~ {node}").right) == text
    assert str(parse("y ~ bs(x, knots=c(1, 2.5), lower=-1e3)").right) == "bs(x, knots=[1, 2.5], lower=-1000)"


@pytest.mark.parametrize(
    ("text", "under", "says"),
    [
        ("y ~ agee", "agee", "The columns are: y, a, b, c, x, z, g, h."),
        ("y ~ x +", "", "the end of the formula"),
        ("y ~ x z", "z", "Join terms with +"),
        ("y ~ x + ) z", ")", "expected a term"),
        ("y ~ (x", "(", "Close what begins here"),
        ("y ~ x)", ")", "One parenthesis too many?"),
        ("y = x", "y", "y ~ x"),
        ("y ~ x ~ z", "~", "two sides"),
        ("y ~ x | g", "|", "Write (1 | g)"),
        ("y ~ (1 | g | h)", "|", "one bar"),
        ("y ~ 2 + x", "2", "0 or 1"),
        ("y ~ log(x + 1)", "+", "Arithmetic is not evaluated"),
        ("y ~ I(x)", "I", "Arithmetic is not evaluated"),
        ("y ~ __import__(os)", "__import__", "Nothing is evaluated as Python"),
        ("y ~ lgo(x)", "lgo", "Did you mean 'log'?"),
        ("y ~ np.log(x)", "np.log", "Write log(x)"),
        ("y ~ poly(x, degre=2)", "2", "Did you mean 'degree'?"),
        ("y ~ poly(x, 2.5)", "2.5", "a whole number"),
        ("y ~ poly(x, 2, True, 3)", "3", "at most 3 arguments"),
        ("y ~ poly()", "poly()", "a numeric column"),
        ("y ~ poly(x, x=a)", "a", "once"),
        ("y ~ poly(degree=2, x)", "x", "keyword arguments last"),
        ("y ~ C(x, Tretment)", "Tretment", "Treatment, Sum, Helmert or Poly"),
        ("y ~ C(log(x))", "log(x)", "a column"),
        ("y ~ log(poly(x, 2))", "poly(x, 2)", "cannot stand inside"),
        ("y ~ s(x, z)", "z", "gp(x, z)"),
        ('y ~ C(a, Treatment("p"))', "Treatment", "reference="),
        ("y ~ s(x):a", "s(x)", "by=g"),
        ("y ~ gp(x)*a", "gp(x)", "on its own"),
        ("y ~ offset(x)/a", "offset(x)", "on its own"),
        ("y ~ (1 | g):x", "(1 | g)", "(1 + x | g)"),
        ("y ~ (s(x) | g)", "s(x)", "Move it out"),
        ("y ~ (1 | log(g))", "log(g)", "to which group"),
        ("y ~ (1 | 1)", "1", "a column right of the bar"),
        ("y ~ (0 | g)", "0", "(1 | g) or (0 + x | g)"),
        ("y ~ a:0", ":", "can only be added"),
        ("y ~ x^z", "z", "poly(x, 2)"),
        ("y ~ x^0", "0", "from 1 to 99"),
        ("y ~ x^2^2", "^", "one power"),
        ('y ~ "x"', '"x"', "back-quotes"),
        ("y ~ `x", "`", "closing back-quote"),
        ("y ~ 'x", "'", "closing quotation mark"),
        ("y ~ ``", "``", "a column name"),
        ("y ~ x > 3", ">", "Comparisons are not evaluated"),
        ("y ~ x %% 3", "%", "%in%"),
        ("y ~ x ; z", ";", "operators"),
        ("y ~ True", "True", "`True`"),
        ("y ~ cbind(a, b)", "cbind(a, b)", "left of ~"),
        ("y | weights(z) ~ x", "weights", "trials(n)"),
        ("y ~ log(x,)", ")", "after the comma"),
        ("y ~ log(x", "", "after the arguments of log()"),
        ("y ~ bs(x, knots=[])", "[]", "a list of numbers"),
        ("y ~ bs(x, df=1e999)", "1e999", "finite"),
        ("y ~ bs(x, df=-1e999)", "-1e999", "finite"),
        ("x", "x", "y ~ x + (1 | g)"),
    ],
)
def test_errors_point(text: str, under: str, says: str) -> None:
    shown = message(text).split("\n")
    assert says in message(text)
    line, carets = shown[1], shown[2]
    assert line == "    " + text
    marked = line[len(carets) - len(carets.lstrip()) : len(carets)]
    assert marked == under or (under == "" and carets.strip() == "^" and len(carets) >= len(line))


def test_nearest_column_is_named() -> None:
    assert "Did you mean 'Age'?" in message("y ~ age", ["y", "Age", "weight"])
    assert "98 more" in message("y ~ missing", ["y", *(f"v{i}" for i in range(117))])


def test_carets_stand_right_under_wide_and_tabbed_text() -> None:
    assert pointed("y ~ 変数 + q", (9, 10)) == ("y ~ 変数 + q", " " * 11 + "^")
    assert pointed("y ~\tx + q", (8, 9)) == ("y ~ x + q", " " * 8 + "^")
    assert pointed("y ~ x +\n  q + z", (10, 11)) == ("  q + z", "  ^")


def test_error_survives_pickle() -> None:
    with pytest.raises(FormulaError) as caught:
        parse("y ~ (x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert isinstance(again, InputError)


def test_not_text() -> None:
    with pytest.raises(FormulaError, match="as text"):
        parse(3)  # type: ignore[arg-type]


def test_long_and_deep_formulas() -> None:
    many = [f"v{i}" for i in range(3000)]
    assert len(terms("~ " + " + ".join(many), many)) == 3001
    assert len(terms("~ " + ":".join(many[:300]), many)) == 2
    assert "nested parentheses" in message("y ~ " + "(" * 500 + "x" + ")" * 500)
    assert "nested" in message("y ~ " + "log(" * 500 + "x" + ")" * 500)
    assert "at most 5000 terms" in message("y ~ (" + " + ".join(many[:40]) + ")^5", ["y", *many])
    assert "at most 5000 terms" in message("y ~ " + " * ".join(many[:40]), ["y", *many])
    assert "characters" in message("y ~ " + "x" * 200_000)


TOKENS = ["y", "x", "a", "g", "~", "+", "-", ":", "*", "/", "^", "**", "2", "0", "1", "1.5", ".", "|", "||", "(", ")",
          ",", "=", "[", "]", "%in%", '"s"', "`b c`", "True", "c(", *(f"{name}(" for name in FUNCTIONS), "rw1(", "I("]


@settings(max_examples=400)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join),
                 st.lists(st.sampled_from(TOKENS), max_size=14).map(lambda parts: "y ~ " + "".join(parts))))
@example("y ~ \\")
@example("y ~ '\\")
@example("y ~ 1e999")
@example("\x00")
@example("y ~ ٣")
@example("y ~ x²")
@example("y ~ x^٣")
@example("y ~ \ud800")
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a FormulaError may come out, whatever goes in; and every message can be printed."""
    try:
        expand(parse(text), COLUMNS)
    except FormulaError as error:
        str(error)


@given(st.text(st.characters(exclude_characters="`'\""), max_size=30))
def test_tokens_cover_the_text(text: str) -> None:
    try:
        tokens = tokenize(text)
    except FormulaError:
        return
    kept = "".join(text[slice(*token.span)] for token in tokens)
    assert "".join(kept.split()) == "".join(text.split())
