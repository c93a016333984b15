"""The rows of a frame that are encoded, and the checks that every numeric value passes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, Index, Mask
from klimb.rows.columns import Codes, Column, codes_among, count, rows_named, shown, used_levels
from klimb.rows.frames import Frame
from klimb.rows.quantiles import counted_quantile
from klimb.rows.summaries import NumberFacts


class Expression(Protocol):
    """A column and the functions that are applied to it; equal ones are one key."""

    @property
    def column(self) -> str:
        """What it reads."""

    @property
    def steps(self) -> tuple[Any, ...]:
        """What is applied."""

    def evaluate(self, source: "Source") -> Array:
        """Its values for the kept rows."""


def numbers_of(expression: Expression, source: "Source") -> NumberFacts:
    """What the kept rows say of an expression."""
    return NumberFacts.of(expression.evaluate(source), source.weights)


class Learnable(ABC):
    """Rows that terms learn from, in memory (`Source`) or passed over (`klimb.rows.passed`).

    Both tell levels, numbers, quantiles, and sums of what some rows say (``folded``).
    """

    frame: Frame
    objects: Mapping[str, Any]
    _facts: dict[Expression, NumberFacts]

    @property
    @abstractmethod
    def here(self) -> "Source | None":
        """Itself where columns of all rows can be had."""

    @property
    @abstractmethod
    def n(self) -> int:
        """How many rows are kept."""

    @property
    @abstractmethod
    def with_waiting(self) -> "Learnable":
        """The kept rows and those that are to be predicted."""

    @abstractmethod
    def column(self, name: str) -> Column:
        """A column, of which at least the kind is right."""

    @abstractmethod
    def levels(self, name: str) -> tuple[tuple[str, ...], Array]:
        """The levels of a column that occur, and how often each counts."""

    def numbers(self, expression: Expression) -> NumberFacts:
        """Range, mean and spread."""
        if expression not in self._facts:
            self._facts[expression] = self.numbers_anew(expression)
        return self._facts[expression]

    @abstractmethod
    def numbers_anew(self, expression: Expression) -> NumberFacts:
        """The same, worked out."""

    @abstractmethod
    def look(self, expression: Expression) -> None:
        """An error where a value cannot be had."""

    @abstractmethod
    def quantiles(self, expression: Expression, p: Array, lower: float, upper: float) -> Array:
        """Of the values between two numbers."""

    @abstractmethod
    def median(self, name: str) -> float:
        """Of a numeric column, for what is typical of it."""

    @abstractmethod
    def folded(self, work: "Callable[[Source], Any]", join: Callable[[Any, Any], Any], names: Iterable[str]) -> Any:
        """What ``work`` says of all rows; ``join`` makes that of some and of others what it says of both.

        It reads no other columns than ``names``, and may go to other processes.
        """


@dataclass(frozen=True, eq=False)
class Source(Learnable):
    """A frame and the rows of it that are kept (None: all of them)."""

    frame: Frame
    kept: Index | None = None
    weights: Array | None = None  # how often each kept row counts
    objects: Mapping[str, Any] = field(default_factory=dict)  # graphs, matrices and meshes that formulas name
    waiting: Index | None = None  # rows that are to be predicted: their levels are learnt as well
    _numbers: dict[str, Array] = field(default_factory=dict)  # columns that were asked for already
    _facts: dict[Expression, NumberFacts] = field(default_factory=dict)

    @property
    def here(self) -> "Source":
        return self

    @property
    def n(self) -> int:
        return self.frame.n if self.kept is None else len(self.kept)

    @property
    def rows(self) -> Index:
        """Positions of the kept rows in the frame."""
        return np.arange(self.frame.n, dtype=np.intp) if self.kept is None else self.kept

    @property
    def places(self) -> Index | None:
        """Positions of the kept rows in the table, for messages; None where they are 0, 1, ..."""
        return self.frame.begin + self.rows if self.frame.begin else self.kept

    @property
    def counts(self) -> Array:
        """How often each row counts."""
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def shares(self) -> Array:
        """Weights of the rows that sum to one: what is learnt from the data is learnt with them."""
        if self.weights is None:
            return np.full(self.n, 1.0 / max(self.n, 1))
        return np.asarray(self.weights / self.weights.sum())

    def column(self, name: str) -> Column:
        return self.frame.read(name)

    def number(self, name: str) -> Array:
        """A column as finite float64."""
        if name not in self._numbers:
            column = self.frame.read(name)
            values = column.number
            if self.kept is not None:
                values = values[self.kept]
            if not column.finite:
                self.check(np.isfinite(values), values, f"column {name!r} must hold finite numbers",
                           "Drop these rows or correct them.")
            if self.frame.native is None:  # rows that are not in memory stay where they are
                return values
            self._numbers[name] = values
        return self._numbers[name]

    def factor(self, name: str) -> tuple[Codes, tuple[str, ...]]:
        """A column as codes and the labels of the levels that occur in the kept rows, or in those that wait."""
        codes, labels = self.frame.read(name).factor
        if self.kept is None:
            return codes, labels
        found, labels = used_levels(codes[self.with_waiting.rows], labels)
        return found[: len(self.kept)], labels

    def codes(self, name: str, known: tuple[str, ...]) -> Codes:
        """A column as codes of levels that are known; -1 for all others."""
        codes = codes_among(self.frame.read(name), known)
        return codes if self.kept is None else codes[self.kept]

    @property
    def with_waiting(self) -> "Source":
        """The kept rows and those that wait behind them."""
        if self.waiting is None or self.kept is None:
            return self
        return Source(self.frame, np.concatenate([self.kept, self.waiting]))

    # -- what terms learn from

    def levels(self, name: str) -> tuple[tuple[str, ...], Array]:
        codes, labels = self.factor(name)
        return labels, np.bincount(codes, self.weights, len(labels)).astype(np.float64)

    def numbers_anew(self, expression: Expression) -> NumberFacts:
        return numbers_of(expression, self)

    def look(self, expression: Expression) -> None:
        expression.evaluate(self)

    def quantiles(self, expression: Expression, p: Array, lower: float, upper: float) -> Array:
        x = expression.evaluate(self)
        inside = (x >= lower) & (x <= upper)
        return counted_quantile(x[inside], self.counts[inside], p)

    def median(self, name: str) -> float:
        return float(counted_quantile(self.number(name), self.weights, 0.5))

    def folded(self, work: "Callable[[Source], Any]", join: Callable[[Any, Any], Any], names: Iterable[str]) -> Any:
        return work(self)

    def check(self, good: Mask, values: npt.NDArray[Any], expected: str, advice: str) -> None:
        """An `InputError` with the rows where ``good`` is False, if there are any."""
        if good.all():
            return
        bad = np.flatnonzero(~good)
        raise InputError(expected, shown(values[bad], self.frame.begin + self.rows[bad]), advice)


def complete_rows(frame: Frame, names: list[str], missing: str, *, learning: bool = False,
                  weights: Array | None = None, targets: Sequence[str] = ()) -> tuple[Source, int]:
    """The rows without a missing value in the columns ``names``, and how many were left out.

    ``missing`` is "drop", "error" or "predict": rows that lack nothing but one of ``targets`` then wait. No rows at all
    are an error when there is something to learn from them. A row of weight 0 is left out, and is not counted.
    """
    require(not learning or frame.n, "data with at least one row", "no rows", "Check how the data were read.")
    if missing not in ("drop", "error", "predict"):
        raise InputError('missing must be "drop", "error" or "predict"', repr(missing), "Choose one of the three.")
    counted = np.ones(frame.n, dtype=bool) if weights is None else weights != 0.0
    waits, lost, holes = np.full(frame.n, missing == "predict"), np.zeros(frame.n, dtype=bool), list[str]()
    for name in names:
        mask = frame.read(name).missing
        if mask is not None and (mask := mask & counted).any():
            holes.append(f"{name!r}: {rows_named(frame.begin + np.flatnonzero(mask))}")
            lost |= mask
            if name not in targets:
                waits &= ~mask
    require(not holes or missing != "error", "no value may be missing", "missing values in " + "; ".join(holes),
            'Fill them in, or pass missing="drop" to leave these rows out.')
    if not holes and counted.all():
        return Source(frame, None, weights), 0
    kept = np.flatnonzero(counted & ~lost)
    if not len(kept) and learning:
        raise no_complete_row(frame.n, holes)
    waiting = np.flatnonzero(waits & lost)
    source = Source(frame, kept, None if weights is None else weights[kept], waiting=waiting if len(waiting) else None)
    return source, frame.total(np.flatnonzero(lost)) - frame.total(waiting)


def no_complete_row(n: int, holes: Sequence[str]) -> InputError:
    """Why there is nothing to learn from."""
    return InputError("at least one complete row", f"{count(n, 'row')}, all with a missing value in "
                      + "; ".join(holes), "Fill values in, or leave the column with most gaps out of the formula.")
