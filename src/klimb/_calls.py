"""Texts such as ``normal(0, 1)`` and ``student_t(df=4)`` as a name and its numbers, and what numbers may be."""

import math
from typing import Any

from klimb.errors import InputError, require


def parse_call(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """``name(1, 2, sd=3)`` as the name and its numbers; those without a name are a list under "". No code is run."""
    head, bracket, rest = text.strip().partition("(")
    arguments: dict[str, Any] = {}
    if not bracket:
        return head.strip(), arguments
    if not rest.endswith(")"):
        raise InputError(f"{what} must be a name, with its numbers in brackets", repr(text), "Close the bracket.")
    for part in filter(None, (piece.strip() for piece in rest[:-1].split(","))):
        key, equals, number = part.rpartition("=")
        try:
            value = float(number)
        except ValueError as error:
            raise InputError(f"{what} must have numbers in its brackets", repr(part),
                             f"Write {key.strip()}={number.strip()!r} beside {what}=." if key.strip() == "link" else
                             "Write it as in student_t(df=4).") from error
        if equals:
            arguments[key.strip()] = value
        else:
            arguments.setdefault("", []).append(value)
    return head.strip(), arguments


def checked_number(prior: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{prior} needs a number as {name}", repr(value), f"Pass a number as {name}.") from error
    require(math.isfinite(number), f"{prior} needs a finite {name}", value, "A very wide prior is a large number.")
    return number


def checked_positive(prior: str, name: str, value: Any) -> float:
    number = checked_number(prior, name, value)
    require(number > 0.0, f"{prior} needs {name} > 0", value, f"Pass a positive {name}.")
    return number


def checked_probability(prior: str, name: str, value: Any) -> float:
    number = checked_number(prior, name, value)
    require(0.0 < number < 1.0, f"{prior} needs 0 < {name} < 1", value,
            "Pass how likely the far side of the stated limit is, e.g. 0.05.")
    return number
