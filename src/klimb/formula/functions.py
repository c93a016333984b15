"""The functions that a formula may call, and how their arguments are read.

Nothing of a formula is ever evaluated as Python: a call is looked up here by name, or refused. Kinds of terms add their
functions when they are registered (`klimb.terms`).
"""

from typing import Any, NamedTuple

import numpy as np

from klimb.errors import listed, nearest
from klimb.formula.errors import FormulaError
from klimb.formula.nodes import Call, Dot, Items, Name, Node, Value

REQUIRED = object()

# What an argument may be, in the words of the error message.
KINDS = {
    "numeric": "a numeric column, or a function of one",
    "column": "a column",
    "whole": "a whole number",
    "number": "a number",
    "numbers": "a list of numbers such as [1, 2.5]",
    "flag": "True or False",
    "word": 'a name, such as "matern52"',
    "contrast": "Treatment, Sum, Helmert or Poly",
    "level": "a level of the factor, in quotation marks",
    "levels": 'a list of levels such as ["low", "high"]',
    "object": "the name of what was passed beside the data",
}
CONTRASTS = {"treatment": "Treatment", "sum": "Sum", "helmert": "Helmert", "poly": "Poly"}


class Parameter(NamedTuple):
    """An argument by name; ``many`` takes all positional arguments."""

    name: str
    kind: str
    default: Any = REQUIRED
    many: bool = False


class Function(NamedTuple):
    """A function that formulas may call; ``role`` says where it may stand."""

    name: str
    role: str  # elementwise, stateful, basis, factor, special, response
    parameters: tuple[Parameter, ...]
    summary: str
    joins: bool = False  # whether : joins it with another such


_X = Parameter("x", "numeric")

# Functions of each number: what they do, the smallest argument, whether that itself is allowed, and all of it in words.
ELEMENTWISE = {
    "log": (np.log, 0.0, False, "natural logarithm; needs x > 0"),
    "log1p": (np.log1p, -1.0, False, "log(1 + x); needs x > -1"),
    "log2": (np.log2, 0.0, False, "logarithm to base 2; needs x > 0"),
    "log10": (np.log10, 0.0, False, "logarithm to base 10; needs x > 0"),
    "sqrt": (np.sqrt, 0.0, True, "square root; needs x >= 0"),
    "exp": (np.exp, -np.inf, False, "exponential"),
    "abs": (np.abs, -np.inf, False, "absolute value"),
}
FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        *(Function(name, "elementwise", (_X,), words) for name, (*_, words) in ELEMENTWISE.items()),
        Function("standardize", "stateful", (_X,), "(x - mean) / sd, with mean and sd of the data of the fit"),
        Function("scale", "stateful", (_X,), "the same as standardize"),
        Function("center", "stateful", (_X,), "x - mean"),
        Function("poly", "basis", (_X, Parameter("degree", "whole", 1), Parameter("raw", "flag", False)),
                 "orthogonal polynomials up to degree; raw=True for x, x^2, ..."),
        Function("bs", "basis",
                 (_X, Parameter("df", "whole", None), Parameter("knots", "numbers", None),
                  Parameter("degree", "whole", 3), Parameter("lower", "number", None),
                  Parameter("upper", "number", None)),
                 "B-spline basis without penalty; df columns, or inner knots given"),
        Function("C", "factor",
                 (Parameter("x", "column"), Parameter("contrast", "contrast", "Treatment"),
                  Parameter("reference", "level", None), Parameter("levels", "levels", None)),
                 "x as a factor, with a contrast, a reference level, an order of levels"),
        Function("cbind", "response", (Parameter("successes", "column"), Parameter("failures", "column")),
                 "left of ~: successes and failures"),
        Function("p", "response", (Parameter("successes", "column"), Parameter("trials", "column")),
                 "left of ~: successes and trials"),
        Function("Surv", "response", (Parameter("time", "numeric"), Parameter("status", "column")),
                 "left of ~: times, censored where status is 0"),
    )
}
_ADVICE = {"I": "Arithmetic is not evaluated: make the column in your data first (poly(x, 2, raw=True): x and x^2).",
           "factor": "Write C(x).", "as.factor": "Write C(x).", "Treatment": 'Write C(x, Treatment, reference="a").',
           "ns": "Use s(x), or bs(x, df=5) without penalty.", "cr": "Use s(x).", "te": "Use gp(x, z).",
           "ti": "Use gp(x, z).", "t2": "Use gp(x, z).", "np.log": "Write log(x).", "np.sqrt": "Write sqrt(x).",
           "np.exp": "Write exp(x).", "np.log1p": "Write log1p(x).", "Q": "Write the name between back-quotes.",
           "proportion": "Write p(successes, trials).", "prop": "Write p(successes, trials)."}

_HINTS = {("s", "k"): " A surface over two columns is gp(x, z).",
          ("gp", "x"): " A factor may group it: gp(x) + (1 | g)."}


def lookup(call: Call, text: str) -> Function:
    """The function that ``call`` names, or an error that lists what there is."""
    function = FUNCTIONS.get(call.function)
    if function is not None:
        return function
    advice = _ADVICE.get(call.function, "")
    if call.function.startswith("contr."):
        advice = "Write C(x, Treatment), C(x, Sum), C(x, Helmert) or C(x, Poly)."
    advice = advice or nearest(call.function, FUNCTIONS)
    raise FormulaError("expected one of the functions that formulas know", f"{call.function}()",
                       f"{advice.strip()} They are {listed(FUNCTIONS, 99)}. Nothing is evaluated as Python: make other "
                       "columns in your data first.".strip(), text, call.name_span)


def bind(call: Call, text: str = "") -> dict[str, Any]:
    """The arguments of ``call`` by parameter name, checked; nodes for columns, plain values for the rest."""
    function = lookup(call, text)
    known = {parameter.name: parameter for parameter in function.parameters}
    given: dict[str, Any] = {}
    positional = iter(function.parameters)
    for key, value in call.arguments:
        if key is None:
            first = function.parameters[0]
            parameter = first if first.many else next(positional, None)
            if parameter is None:
                raise FormulaError(f"expected at most {len(known)} arguments: {usage(function)}",
                                   f"{len(call.arguments)}", "Take some out.", text, value.span)
        else:
            parameter = known.get(key)
            if parameter is None:
                raise FormulaError(f"expected an argument of {usage(function)}", f"{key}=",
                                   nearest(key, known) + f"Its arguments are {listed(known)}.", text, value.span)
        converted = _convert(value, parameter, function, text)
        if parameter.many:
            given.setdefault(parameter.name, []).append(converted)
        elif parameter.name in given:
            raise FormulaError(f"expected {parameter.name} once", f"{parameter.name} twice",
                               f"Write {usage(function)}.", text, value.span)
        else:
            given[parameter.name] = converted
    for parameter in function.parameters:
        if parameter.name not in given:
            if parameter.default is REQUIRED:
                raise FormulaError(f"expected {KINDS[parameter.kind]} as {parameter.name}", f"{call}",
                                   f"Write {usage(function)}.", text, call.span)
            given[parameter.name] = parameter.default
    return given


def usage(function: Function) -> str:
    """How a call looks."""
    parts = []
    for parameter in function.parameters:
        if parameter.many:
            parts.append(f"{parameter.name}, ...")
        else:
            parts.append(parameter.name if parameter.default is REQUIRED else f"{parameter.name}={parameter.default}")
    return f"{function.name}({', '.join(parts)})"


def columns_of(node: Node, text: str) -> list[Name]:
    """The columns that a name or a call reads (not words such as ``Treatment``)."""
    if isinstance(node, Name):
        return [node]
    if not isinstance(node, Call):
        return []
    found: list[Name] = []
    for value in bind(node, text).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (Name, Call)):
                found += columns_of(item, text)
    return found


def _convert(value: Node, parameter: Parameter, function: Function, text: str) -> Any:
    if parameter.many and isinstance(value, Dot):  # replaced by columns when the formula is expanded
        return value
    converted = _as(parameter.kind, value)
    if converted is _UNFIT:
        raise FormulaError(f"expected {KINDS[parameter.kind]} as {parameter.name} of {function.name}()", str(value),
                           f"Write {usage(function)}.{_HINTS.get((function.name, parameter.name), '')}", text,
                           value.span)
    if parameter.kind == "numeric" and isinstance(value, Call):
        inner = lookup(value, text)
        bind(value, text)
        if inner.role not in ("elementwise", "stateful"):
            raise FormulaError(f"expected {KINDS['numeric']} inside {function.name}()", f"{value}",
                               f"{inner.name}() cannot stand inside {function.name}().", text, value.span)
    return converted


_UNFIT = object()


def _as(kind: str, value: Node) -> Any:
    """An argument as this kind of parameter takes it, or `_UNFIT`."""
    match kind, value:
        case ("numeric", Name() | Call()) | ("column", Name()):
            return value
        case "whole", Value(value=float() as number) if number.is_integer():
            return int(number)
        case (("number", Value(value=float() as plain)) | ("flag", Value(value=(True | False) as plain))
              | ("word" | "object" | "level", Value(value=str() as plain)) | ("word" | "object", Name(name=plain))):
            return plain
        case "level", Value():
            return str(value)
        case "contrast", Value(value=str() as word) | Name(name=word):
            return CONTRASTS.get(word.lower().removeprefix("contr."), _UNFIT)
        case ("numbers" | "levels"), Items(items=items) if items:
            found = tuple(_as(kind.removesuffix("s"), item) for item in items)
            distinct = kind == "numbers" or len(set(found)) == len(found)
            return found if _UNFIT not in found and distinct else _UNFIT
    return _UNFIT
