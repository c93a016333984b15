"""Data as a likelihood needs them: a clean response with its trials, weights, offset and levels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float

ResponseKind: TypeAlias = Literal["binary", "trials", "counts", "real", "positive", "nonnegative", "unit", "ordered",
                                  "classes", "any"]
MOST_LEVELS = 50  # of an ordered response
LARGEST = 1e151  # so that sums of squares are numbers


@dataclass(frozen=True, eq=False)
class Left:
    """The left side of a formula, or the response that was passed as an array: what a likelihood reads."""

    name: str
    values: Array  # (n,) numbers or codes of ``levels``; (n, 2) successes and trials
    levels: tuple[str, ...] = ()
    rows: Any = None  # positions in the caller's data, for messages; None: 0, 1, ...
    status: Array | None = None  # (n,) of times: 1 is an event, 0 a censored one

    @classmethod
    def of(cls, y: Any, name: str = "y") -> Self:
        """An array: numbers as they are, anything else as levels in sorted order."""
        array = np.asarray(y)
        if array.dtype.kind in "OUS":
            labels, codes = np.unique(array.astype(str), return_inverse=True)
            return cls(name, codes.astype(np.float64), tuple(labels.tolist()))
        if array.dtype.kind == "b":
            return cls(name, array.astype(np.float64), ("False", "True"))
        return cls(name, as_float(array, name))


@stored("observed.merged")
@dataclass(frozen=True, eq=False)
class Merged:
    """Where each of the caller's rows is among data that are merged and sorted, and how often it counts."""

    inverse: Any  # (rows of the caller,) whole numbers, -1 for a row that counts for nothing
    weights: Array | None = None


@stored("observed")
@dataclass(frozen=True, eq=False)
class Observed:
    """Clean data. ``aux`` has what the site needs beside y, one entry per datum: trials, or status (0 is censored)."""

    y: Array
    aux: Mapping[str, Array] = field(default_factory=dict)
    weights: Array | None = None  # how often each datum counts
    offset: Array | None = None  # added to f
    levels: tuple[str, ...] = ()  # of classes, in order, by name
    rows: Array | None = None  # positions of the data in the caller's table
    dropped: int = 0  # rows of that table that were left out
    name: str = "y"
    merged: Merged | None = None  # where rows of the table that are equal became one datum
    copies: Array | None = None  # of data that are cells: how many rows of the table each stands for
    summed: int = 0  # cells of which one or two y stand for all responses, with the same sums
    sampled_from: int = 0  # rows of a table that these are a sample of; 0 where they are all

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def total(self) -> float:
        """How many data there are, copies counted."""
        return float(self.n if self.weights is None else self.weights.sum())

    @property
    def counts(self) -> Array:
        """How often each datum counts."""
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def n_rows(self) -> int:
        """Rows of the table that were used."""
        return self.sampled_from or (self.n if self.copies is None else round(float(self.copies.sum())))

    @property
    def n_cells(self) -> int | None:
        """How many cells these rows are in; None where each is fitted by itself."""
        return None if self.copies is None else self.summed or self.n

    @property
    def shares(self) -> Array:
        """Weights that sum to one: what means and scales are taken with."""
        return np.asarray(self.counts / self.counts.sum())

    @property
    def places(self) -> Any:
        """Positions of the data in the caller's table."""
        return np.arange(self.n) if self.rows is None else self.rows

    def take(self, rows: Any) -> Self:
        """Some of the data."""
        given = (("weights", self.weights), ("offset", self.offset), ("copies", self.copies))
        optional: dict[str, Any] = {name: None if value is None else value[rows] for name, value in given}
        return replace(self, y=self.y[rows], aux={name: value[rows] for name, value in self.aux.items()},
                       rows=self.places[rows], **optional)


def read_response(left: Left, kind: ResponseKind, name: str, wanted: tuple[str, ...] = ()) -> Observed:
    """The response as a likelihood of this kind needs it; ``wanted`` are levels in the order that the user gave."""
    array = np.asarray(left.values, dtype=np.float64)
    require(array.shape[0] != 0, "a fit needs at least one row", "none", "Check the filter, and the missing values.")
    if left.status is not None:
        return replace(read_response(replace(left, status=None), kind, name, wanted), aux={"status": left.status})
    if kind == "trials" or (kind == "binary" and array.ndim == 2):
        return _read_trials(left)
    require(array.ndim == 1, f"{name} needs one response column", "successes and trials",
            'Use family="binomial" for successes and trials.')
    if kind == "binary":
        return _read_binary(left)
    if kind in ("ordered", "classes"):
        return _read_levels(left, name, kind, wanted)
    if left.levels and left.levels != ("False", "True"):
        raise InputError(f"{name} needs a numeric response", f"text with the levels {_some(left.levels)}",
                         'Use family="bernoulli" for two names, "ordinal" for ordered ones.')
    if kind in _TESTS:
        ok, words, advice = _TESTS[kind]
        _refuse(~np.asarray(ok(array), dtype=bool), array, left, f"{name} needs {words} as the response", advice)
    return Observed(array, name=left.name)


_TESTS: dict[str, tuple[Any, str, str]] = {
    "real": (lambda v: (np.abs(v) <= LARGEST) & ((np.ptp(v) == 0.0) | (np.ptp(v) >= 1.0 / LARGEST)),
             f"numbers of at most {LARGEST:g} that differ by {1.0 / LARGEST:g} or more", "Change its unit."),
    "counts": (lambda v: (v >= 0) & (v == np.floor(v)), "whole numbers from 0",
               'Use family="gamma" or "gaussian" for measurements.'),
    "positive": (lambda v: v > 0, "numbers above 0", 'Use family="gaussian", or model the zeros apart.'),
    "nonnegative": (lambda v: v >= 0, "numbers of at least 0", "Waiting times are not negative: check the sign."),
    "unit": (lambda v: (v > 0) & (v < 1), "numbers strictly between 0 and 1",
             'Use family="binomial" with counts, or shrink exact 0 and 1 inwards.'),
}


def _read_binary(left: Left) -> Observed:
    y, levels = left.values, left.levels
    require(len(levels) <= 2, "bernoulli needs a response with two values", f"{len(levels)}: {_some(levels)}",
            'Compare with one of them first, or use family="categorical", or "ordinal" if they are ordered.')
    if len(levels) == 1:  # nothing but successes
        return Observed(np.ones(len(y)), levels=(f"not {levels[0]}", levels[0]), name=left.name)
    if levels:
        return Observed(y, levels=levels, name=left.name)
    _refuse(~np.isin(y, (0.0, 1.0, -1.0)), y, left, "bernoulli needs 0 and 1, -1 and +1, or two names",
            'Recode the response, or use family="poisson" for counts, "gaussian" for measurements.')
    if (y == -1.0).any():
        _refuse(y == 0.0, y, left, "bernoulli needs 0 and 1, or -1 and +1, not both codings",
                "Code the response one way.")
        return Observed((y > 0).astype(np.float64), name=left.name)
    return Observed(y, name=left.name)


def _read_trials(left: Left) -> Observed:
    array = left.values
    if array.ndim == 1:
        plain = _read_binary(left) if left.levels else Observed(array, name=left.name)
        _refuse(~np.isin(plain.y, (0.0, 1.0)), array, left, "binomial needs successes and trials (or 0 and 1)",
                "Write cbind(successes, failures), or p(successes, trials), on the left of the formula.")
        return replace(plain, aux={"trials": np.ones(len(array))})
    _refuse(array[:, 1] < 1, array[:, 1], left, "binomial needs at least one trial in every row",
            "Drop the rows that had no trial.")
    return Observed(array[:, 0].copy(), {"trials": array[:, 1].copy()}, name=left.name)


def _read_levels(left: Left, name: str, kind: ResponseKind, wanted: tuple[str, ...]) -> Observed:
    if left.levels:
        names, index = left.levels, left.values
    else:
        values, found = np.unique(left.values, return_inverse=True)
        names, index = tuple(f"{value:g}" for value in values), found.astype(np.float64)
    if wanted:
        unknown = tuple(level for level in names if level not in wanted)
        require(not unknown, f"the response must have the levels {_some(wanted)}", f"{_some(unknown)} as well",
                "Name all levels, lowest first.")
        place = np.array([wanted.index(level) for level in names], dtype=np.float64)
        names, index = wanted, place[index.astype(np.intp)]
    require(len(names) <= MOST_LEVELS or (kind == "classes" and left.levels),  # names of classes may be many
            f"{name} is for up to {MOST_LEVELS} levels", len(names),
            'Use family="gaussian", or cut the response into levels first.')
    if len(names) < 2:
        raise InputError(f"{name} needs at least two levels", f"only {names[0]!r}", "There is nothing to learn here.")
    return Observed(np.asarray(index), levels=names, name=left.name)


def _some(levels: tuple[str, ...]) -> str:
    return ", ".join(levels[:5]) + (", ..." if len(levels) > 5 else "")


def _refuse(bad: Any, array: Array, left: Left, expected: str, advice: str) -> None:
    if not bad.any():
        return
    at = np.flatnonzero(bad)
    rows = np.arange(len(array)) if left.rows is None else left.rows  # where the caller finds them
    shown = ", ".join(f"{array[i]:g} at row {int(rows[i])}" for i in at[:3])
    raise InputError(expected, shown + (f", ... ({len(at)} in all)" if len(at) > 3 else ""), advice)
