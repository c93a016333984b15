"""The response column as the family needs it: labels, counts, trials, ordered levels; errors name rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.frontend.families import Family
from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True, eq=False)
class Response:
    """Clean data: ``y`` for the site, ``trials`` of a binomial, ``levels`` of classes in order, by name."""

    y: Array
    trials: Array | None = None
    levels: tuple[str, ...] = ()

    @property
    def success(self) -> str | None:
        """The level counted as 1, where y was given by two names."""
        return self.levels[1] if len(self.levels) == 2 else None


def read_response(raw: Any, family: Family, rows: Any, levels: Sequence[str] = ()) -> Response:
    """``raw`` (n,) or (n, 2) [successes, trials] as the family's data; ``levels`` are those of an earlier fit."""
    array = np.asarray(raw)
    if array.shape[0] == 0:
        raise InputError("a fit needs at least one row", "none", "Check the filter, and the missing values.")
    kind = family.response
    if kind == "trials" or (kind == "binary" and array.ndim == 2):
        return _read_trials(array, rows)
    if array.ndim != 1:
        raise InputError(f"{family.name} needs one response column", f"{array.shape[1]}",
                         'Use family="binomial" for successes and trials.')
    if kind == "binary":
        return _read_binary(array, rows, levels)
    if kind == "ordered":
        return _read_ordered(array, rows, levels)
    y = _numbers(array, rows, family)
    _refuse(~np.isfinite(y), array, rows, f"{family.name} needs finite numbers", "Drop or mend these rows.")
    tests: dict[str, tuple[Callable[[Array], Any], str, str]] = {
        "counts": (lambda v: (v >= 0) & (v == np.floor(v)), "whole numbers from 0",
                   'Use family="gamma" or "gaussian" for measurements.'),
        "positive": (lambda v: v > 0, "numbers above 0", 'Use family="gaussian", or model the zeros apart.'),
        "nonnegative": (lambda v: v >= 0, "numbers of at least 0", "Waiting times are not negative: check the sign."),
        "unit": (lambda v: (v > 0) & (v < 1), "numbers strictly between 0 and 1",
                 'Use family="binomial" with counts, or shrink exact 0 and 1 inwards.'),
    }  # fmt: skip
    if kind in tests:
        ok, words, advice = tests[kind]
        _refuse(~np.asarray(ok(y), dtype=bool), array, rows, f"{family.name} needs {words}", advice)
    return Response(y)


def _read_binary(array: Any, rows: Any, levels: Sequence[str]) -> Response:
    if array.dtype.kind == "b":
        return Response(array.astype(np.float64), levels=("False", "True"))
    if array.dtype.kind in "iuf":
        y = array.astype(np.float64)
        _refuse(~np.isin(y, (0.0, 1.0, -1.0)), array, rows, "bernoulli needs 0 and 1, -1 and +1, or two names",
                'Recode the response, or use family="poisson" for counts, "gaussian" for measurements.')
        if (y == -1.0).any():
            _refuse(y == 0.0, array, rows, "bernoulli needs 0 and 1, or -1 and +1, not both codings",
                    "Code the response one way.")
            return Response((y > 0).astype(np.float64))
        return Response(y)
    text = np.array([str(value) for value in array])
    found = list(levels) if levels else sorted(set(text))
    if len(found) > 2:
        raise InputError("bernoulli needs a response with two values", f"{len(found)}: {', '.join(found[:5])}"
                         + (", ..." if len(found) > 5 else ""), 'Compare with one of them first, or use '
                         'family="ordinal" if they are ordered.')  # fmt: skip
    if len(found) == 1:
        found = [f"not {found[0]}", found[0]]
    return Response((text == found[1]).astype(np.float64), levels=tuple(found))


def _read_trials(array: Any, rows: Any) -> Response:
    if array.ndim == 1:
        y = _numbers(array, rows, None)
        _refuse(~np.isin(y, (0.0, 1.0)), array, rows, "binomial needs successes and trials (or 0 and 1)",
                "Write cbind(successes, failures) ~ ... on the left of the formula.")
        return Response(y, np.ones(len(y)))
    wins, trials = _numbers(array[:, 0], rows, None), _numbers(array[:, 1], rows, None)
    _refuse(~((wins >= 0) & (wins == np.floor(wins))), wins, rows, "binomial needs whole numbers of successes",
            "Check the response columns.")
    _refuse(~((trials >= 1) & (trials == np.floor(trials))), trials, rows,
            "binomial needs at least one trial in every row", "Drop the rows that had no trial.")
    _refuse(wins > trials, wins, rows, "binomial needs no more successes than trials", "Check the response columns.")
    return Response(wins, trials)


def _read_ordered(array: Any, rows: Any, levels: Sequence[str]) -> Response:
    if array.dtype.kind in "iufb":
        y = array.astype(np.float64)
        _refuse(~np.isfinite(y), array, rows, "ordinal needs finite levels", "Drop or mend these rows.")
        values = np.unique(y)
        if len(values) > 50:
            raise InputError("ordinal is for up to 50 levels", f"{len(values)} distinct numbers",
                             'Use family="gaussian", or cut the response into levels first.')  # fmt: skip
        names = tuple(f"{value:g}" for value in values)
        index = np.searchsorted(values, y).astype(np.float64)
    else:
        text = np.array([str(value) for value in array])
        names = tuple(levels) if levels else tuple(sorted(set(text)))
        place = {name: float(i) for i, name in enumerate(names)}
        unknown = np.array([value not in place for value in text])
        _refuse(unknown, text, rows, f"ordinal has the levels {', '.join(names)}", "Name all levels, in order.")
        index = np.array([place[value] for value in text])
    if len(names) < 2:
        raise InputError("ordinal needs at least two levels", f"only {names[0]!r}", "There is nothing to learn here.")
    return Response(index, levels=names)


def _numbers(array: Any, rows: Any, family: Family | None) -> Array:
    try:
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    name = family.name if family is not None else "binomial"
    bad = [i for i, value in enumerate(array) if not _is_number(value)]
    i = bad[0] if bad else 0
    raise InputError(f"{name} needs a numeric response", f"{array[i]!r} in row {int(rows[i])} ({len(bad)} such)",
                     'Use family="bernoulli" for two names, "ordinal" for ordered ones.')


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _refuse(bad: Any, array: Any, rows: Any, expected: str, advice: str) -> None:
    if not bad.any():
        return
    at = np.flatnonzero(bad)
    shown = ", ".join(f"{array[i]} in row {int(rows[i])}" for i in at[:3])
    more = f" ({len(at)} such rows)" if len(at) > 3 else ""
    raise InputError(expected, shown + more, advice)
