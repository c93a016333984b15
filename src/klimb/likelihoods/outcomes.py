"""The response column as the family needs it: labels, counts, trials, ordered levels; errors name rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.likelihoods.families import Family
from klimb.numerics.arrays import Array

MOST_LEVELS = 50


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


def read_response(raw: Any, family: Family, rows: Any, levels: tuple[str, ...] = ()) -> Response:
    """``raw`` as the family's data: (n,) numbers, codes of ``levels`` where there are any, or (n, 2) with trials."""
    array = np.asarray(raw, dtype=np.float64)
    if array.shape[0] == 0:
        raise InputError("a fit needs at least one row", "none", "Check the filter, and the missing values.")
    kind = family.response
    if kind == "trials" or (kind == "binary" and array.ndim == 2):
        return _read_trials(array, rows, levels)
    if array.ndim != 1:
        raise InputError(f"{family.name} needs one response column", "successes and trials",
                         'Use family="binomial" for successes and trials.')
    if kind == "binary":
        return _read_binary(array, rows, levels)
    if kind == "ordered":
        return _read_ordered(array, rows, levels, family.levels)
    if levels and levels != ("False", "True"):
        raise InputError(f"{family.name} needs a numeric response", f"text with the levels {_some(levels)}",
                         'Use family="bernoulli" for two names, "ordinal" for ordered ones.')
    tests: dict[str, tuple[Callable[[Array], Any], str, str]] = {
        "counts": (lambda v: (v >= 0) & (v == np.floor(v)), "whole numbers from 0",
                   'Use family="gamma" or "gaussian" for measurements.'),
        "positive": (lambda v: v > 0, "numbers above 0", 'Use family="gaussian", or model the zeros apart.'),
        "nonnegative": (lambda v: v >= 0, "numbers of at least 0", "Waiting times are not negative: check the sign."),
        "unit": (lambda v: (v > 0) & (v < 1), "numbers strictly between 0 and 1",
                 'Use family="binomial" with counts, or shrink exact 0 and 1 inwards.'),
    }
    if kind in tests:
        ok, words, advice = tests[kind]
        _refuse(~np.asarray(ok(array), dtype=bool), array, rows, f"{family.name} needs {words} as the response", advice)
    return Response(array)


def _read_binary(y: Array, rows: Any, levels: tuple[str, ...]) -> Response:
    if len(levels) > 2:
        raise InputError("bernoulli needs a response with two values", f"{len(levels)}: {_some(levels)}",
                         'Compare with one of them first, or use family="ordinal" if they are ordered.')
    if len(levels) == 1:  # nothing but successes
        return Response(np.ones(len(y)), levels=(f"not {levels[0]}", levels[0]))
    if levels:
        return Response(y, levels=levels)
    _refuse(~np.isin(y, (0.0, 1.0, -1.0)), y, rows, "bernoulli needs 0 and 1, -1 and +1, or two names",
            'Recode the response, or use family="poisson" for counts, "gaussian" for measurements.')
    if (y == -1.0).any():
        _refuse(y == 0.0, y, rows, "bernoulli needs 0 and 1, or -1 and +1, not both codings",
                "Code the response one way.")
        return Response((y > 0).astype(np.float64))
    return Response(y)


def _read_trials(array: Array, rows: Any, levels: tuple[str, ...]) -> Response:
    if array.ndim == 1:
        plain = _read_binary(array, rows, levels) if levels else Response(array)
        _refuse(~np.isin(plain.y, (0.0, 1.0)), array, rows, "binomial needs successes and trials (or 0 and 1)",
                "Write cbind(successes, failures), or p(successes, trials), on the left of the formula.")
        return Response(plain.y, np.ones(len(array)), plain.levels)
    _refuse(array[:, 1] < 1, array[:, 1], rows, "binomial needs at least one trial in every row",
            "Drop the rows that had no trial.")
    return Response(array[:, 0].copy(), array[:, 1].copy())


def _read_ordered(y: Array, rows: Any, levels: tuple[str, ...], wanted: tuple[str, ...]) -> Response:
    if levels:
        names, index = levels, y
    else:
        values, found = np.unique(y, return_inverse=True)
        names, index = tuple(f"{value:g}" for value in values), found.astype(np.float64)
    if wanted:
        unknown = [name for name in names if name not in wanted]
        if unknown:
            raise InputError(f"the response must have the levels {_some(wanted)}", f"{_some(tuple(unknown))} as well",
                             "Name all levels, lowest first.")
        place = np.array([wanted.index(name) for name in names], dtype=np.float64)
        names, index = wanted, place[index.astype(np.intp)]
    if len(names) > MOST_LEVELS:
        raise InputError(f"ordinal is for up to {MOST_LEVELS} levels", f"{len(names)}",
                         'Use family="gaussian", or cut the response into levels first.')
    if len(names) < 2:
        raise InputError("ordinal needs at least two levels", f"only {names[0]!r}", "There is nothing to learn here.")
    return Response(index, levels=names)


def _some(levels: tuple[str, ...]) -> str:
    return ", ".join(levels[:5]) + (", ..." if len(levels) > 5 else "")


def _refuse(bad: Any, array: Any, rows: Any, expected: str, advice: str) -> None:
    if not bad.any():
        return
    at = np.flatnonzero(bad)
    shown = ", ".join(f"{array[i]:g} at row {int(rows[i])}" for i in at[:3])
    raise InputError(expected, shown + (f", ... ({len(at)} in all)" if len(at) > 3 else ""), advice)
