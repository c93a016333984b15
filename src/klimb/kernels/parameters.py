"""Named parameters of frozen objects: one flat view for kernels and mean functions.

A leaf is a frozen dataclass; its entries have names such as ``variance`` or ``lengthscale[2]``, and a composite puts
the position of each part in front: ``0.variance``. A rule says of an entry whether it is fixed, its bounds and its
prior.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.priors import PositivePrior

Value: TypeAlias = float | Sequence[float] | Array  # what a user may give; stored as a float or a tuple of floats
Columns: TypeAlias = int | Sequence[int]  # stored as a tuple of ints
LEAST, MOST = 1e-100, 1e100  # positive parameters and inputs within these can be multiplied without overflow


@stored("kernel.rule")
@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for one entry besides its value."""

    fixed: bool = False
    bounds: tuple[float, float] | None = None
    prior: PositivePrior | None = None


FREE = Rule()


@dataclass(frozen=True, slots=True)
class Entry:
    """One number of the flat view."""

    name: str
    value: float
    rule: Rule = FREE


class Parametric(ABC):
    """Something with named parameters. It never changes: every method that alters one returns a new object."""

    @abstractmethod
    def _entries(self) -> tuple[Entry, ...]:
        """All entries, fixed ones included, in the order of the flat view."""

    @abstractmethod
    def _rebuilt(self, entries: Sequence[Entry]) -> Self:
        """The same structure with other values and rules, given in the order of ``_entries``."""

    @property
    def parameters(self) -> dict[str, float]:
        """Every parameter by name, fixed ones included."""
        return {entry.name: entry.value for entry in self._entries()}

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the parameters that are not fixed: the order of every flat vector."""
        return tuple(entry.name for entry in self._entries() if not entry.rule.fixed)

    def fixed(self, *names: str) -> Self:
        """The same with these parameters held at their values (all of them if none is named).

        ``lengthscale`` means all of ``lengthscale[0]``, ``lengthscale[1]``, ...; ``0`` all parameters of part 0.
        """
        return self._changed(dict.fromkeys(names or self.parameters), lambda entry, _: replace(entry.rule, fixed=True))

    def freed(self, *names: str) -> Self:
        """The same with these parameters free again (all of them if none is named)."""
        return self._changed(dict.fromkeys(names or self.parameters), lambda entry, _: replace(entry.rule, fixed=False))

    def bounded(self, bounds: Mapping[str, tuple[float, float]] | None = None, /, **more: tuple[float, float]) -> Self:
        """The same with (lower, upper) for some parameters, by name; a search over them keeps these."""
        return self._changed({**(bounds or {}), **more},
                             lambda entry, pair: replace(entry.rule, bounds=_clean_bounds(entry, pair)))

    def with_parameters(self, values: Mapping[str, Value] | None = None, /, **more: Value) -> Self:
        """The same with other values for some parameters, by name; one number may serve a whole vector."""
        wanted = {**(values or {}), **more}
        changed = list(self._entries())
        for name, value in wanted.items():
            chosen = matching([entry.name for entry in changed], name)
            numbers = as_float(value, name)
            if numbers.ndim > 1 or (numbers.ndim == 1 and len(numbers) != len(chosen)):
                raise InputError(f"{name} takes a number or {len(chosen)} of them", f"shape {numbers.shape}",
                                 "Give one value per entry.")
            for i, number in zip(chosen, np.broadcast_to(numbers, len(chosen)), strict=True):
                changed[i] = replace(changed[i], value=float(number))
        return self._rebuilt(changed)

    def _changed(self, wanted: Mapping[str, Any], rule: Callable[[Entry, Any], Rule]) -> Self:
        """The same with other rules for the entries that the names of ``wanted`` stand for."""
        entries = list(self._entries())
        names = [entry.name for entry in entries]
        for name, argument in wanted.items():
            for i in matching(names, name):
                entries[i] = replace(entries[i], rule=rule(entries[i], argument))
        return self._rebuilt(entries)

    def _with_free(self, values: ArrayLike, name: str, decode: Callable[[float, float], float]) -> Self:
        """The same with the free entries taken from a flat vector; ``decode(number, old value)`` is the new value."""
        numbers = as_float(values, name, ndim=1)
        entries = list(self._entries())
        places = self._free_places()
        require(len(numbers) == len(places), f"{name} must have {len(places)} entries ({', '.join(self.free)})",
                len(numbers), "The order is that of .free; fixed parameters are left out.")
        for i, number in zip(places, numbers, strict=True):
            entries[i] = replace(entries[i], value=decode(float(number), entries[i].value))
        return self._rebuilt(entries)

    def _free_places(self) -> list[int]:
        return [i for i, entry in enumerate(self._entries()) if not entry.rule.fixed]


@dataclass(frozen=True, repr=False)
class Leaf(Parametric):
    """A frozen dataclass whose parameters are some of its fields."""

    parameter_fields: ClassVar[tuple[str, ...]] = ()
    vector_fields: ClassVar[tuple[str, ...]] = ()  # parameters that may be one per column
    _clean: ClassVar[Callable[..., Any]]  # what makes a parameter of a value: `real` or `positive`
    # Names of entries and their rules, set through fixed, bounded and with_priors; not meant to be written by hand.
    rules: tuple[tuple[str, Rule], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name in self.parameter_fields:
            vector = name in self.vector_fields
            object.__setattr__(self, name, self._clean(getattr(self, name), name, type(self).__name__, vector=vector))

    def _check_vectors(self, width: int, what: str) -> None:
        for name in self.vector_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != width:
                raise InputError(f"{what} takes one {name} or {width}", f"{len(value)} values",
                                 f"Pass a single {name}, or one per column.")

    def _check_width(self, width: int) -> None:
        self._check_vectors(width, f"{type(self).__name__} on inputs with {width} column{'s' * (width != 1)}")

    def _vector(self, name: str, width: int) -> Array:
        """A parameter as one number per column."""
        return np.broadcast_to(np.asarray(getattr(self, name), dtype=np.float64), width)

    def _collected(self, name: str, per_column: Array) -> Array:
        """A gradient per column as one per entry of the parameter."""
        return per_column if isinstance(getattr(self, name), tuple) else per_column.sum(keepdims=True)

    def _entries(self) -> tuple[Entry, ...]:
        rules = dict(self.rules)
        return tuple(Entry(name, value, rules.get(name, FREE)) for name, value in self._named_values())

    def _named_values(self) -> Iterable[tuple[str, float]]:
        for name in self.parameter_fields:
            value = getattr(self, name)
            if isinstance(value, tuple):
                yield from ((f"{name}[{d}]", number) for d, number in enumerate(value))
            else:
                yield name, value

    def _rebuilt(self, entries: Sequence[Entry]) -> Self:
        left = iter(entries)
        values: dict[str, Any] = {}
        for name in self.parameter_fields:
            old = getattr(self, name)
            values[name] = tuple(next(left).value for _ in old) if isinstance(old, tuple) else next(left).value
        rules = tuple((entry.name, entry.rule) for entry in entries if entry.rule != FREE)
        return replace(self, **values, rules=rules)

    def __repr__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "rules" and (one.name in self.parameter_fields or value != one.default):
                parts.append(f"{one.name}={value!r}")
        # The calls that set the rules make the whole evaluate back.
        held = ", ".join(map(repr, self._grouped(lambda rule: rule.fixed or None)))
        calls = (("fixed", held), ("bounded", self._grouped(lambda rule: rule.bounds)),
                 ("with_priors", self._grouped(lambda rule: rule.prior)))
        rules = "".join(f".{name}({arguments})" for name, arguments in calls if arguments)
        return f"{type(self).__name__}({', '.join(parts)}){rules}"

    def _grouped(self, part: Callable[[Rule], Any]) -> dict[str, Any]:
        """Name -> part of the rule where it is set; entries of a vector that agree appear under one name."""
        found: dict[str, Any] = {}
        entries = self._entries()
        names = [entry.name for entry in entries]
        for name in self.parameter_fields:
            group = {entries[i].name: part(entries[i].rule) for i in matching(names, name)}
            first = next(iter(group.values()))
            if all(value == first for value in group.values()):
                group = {name: first}
            found.update({key: value for key, value in group.items() if value is not None})
        return found


def matching(names: Sequence[str], wanted: str) -> list[int]:
    """Which entries a name stands for: itself, all of a vector, or all of a part."""
    found = [i for i, name in enumerate(names) if name == wanted or name.startswith((f"{wanted}[", f"{wanted}."))]
    if found:
        return found
    from difflib import get_close_matches

    known = list(dict.fromkeys([*names, *[name.partition("[")[0] for name in names]]))
    tails = {name.rpartition(".")[2]: name for name in reversed(known)}  # "lengthscale" is nearest to "0.lengthscale"
    near = [tails[wanted]] if wanted in tails else get_close_matches(wanted, known, n=1, cutoff=0.0)
    raise InputError("a parameter must be named as in .parameters", f"{wanted!r}",
                     f"Did you mean {near[0]!r}? The names are {', '.join(names)}." if near else "There are none here.")


def as_points(X: ArrayLike, name: str) -> Array:
    """Inputs with one row per point; a 1-d array is one column."""
    array = as_float(X, name)
    array = array[:, None] if array.ndim == 1 else array
    require(array.ndim == 2, f"{name} must have one row per point", f"shape {array.shape}",
            "Reshape it; a 1-d array counts as one column.")
    return array


def per_row(g: ArrayLike, X: Array) -> Array:
    """One finite number per row of ``X``."""
    weights = as_float(g, "g", ndim=1)
    require(len(weights) == len(X), f"g must have one entry per row of X ({len(X)})", len(weights), "Check both.")
    return weights


def real(value: Any, name: str, owner: str, *, vector: bool = False) -> float | tuple[float, ...]:
    """A finite number, or where ``vector`` a tuple of them."""
    array = as_float(value, f"{owner}.{name}")
    if array.ndim > (1 if vector else 0) or array.size == 0:
        raise InputError(f"{owner} needs {name} to be a number{' or one per column' if vector else ''}",
                         f"shape {array.shape}", "Pass a number." if not vector else "Pass a number or a list of them.")
    return float(array) if array.ndim == 0 else tuple(float(x) for x in array)


def positive(value: Any, name: str, owner: str, *, vector: bool = False) -> float | tuple[float, ...]:
    """A positive number, or where ``vector`` a tuple of them."""
    clean = real(value, name, owner, vector=vector)
    for i, number in enumerate(clean if isinstance(clean, tuple) else (clean,)):
        if not LEAST <= number <= MOST:
            where = f" at index {i}" if isinstance(clean, tuple) else ""
            raise InputError(f"{owner} needs {name} > 0, from {LEAST:g} to {MOST:g}", f"{number}{where}",
                             f"Pass a positive {name}; a very large or very small one stands for the limit as well.")
    return clean


def _clean_bounds(entry: Entry, pair: Any) -> tuple[float, float]:
    try:
        lower, upper = (float(limit) for limit in pair)
    except (TypeError, ValueError) as error:
        raise InputError(f"the bounds of {entry.name} must be a pair (lower, upper)", f"{pair!r}",
                         "Pass two numbers.") from error
    if math.isnan(lower) or math.isnan(upper) or not lower < upper:
        raise InputError(f"the bounds of {entry.name} must have lower < upper", f"({lower}, {upper})", "Swap them?")
    require(lower <= entry.value <= upper, f"{entry.name} must lie within its bounds ({lower}, {upper})", entry.value,
            "Set its value first, or widen the bounds.")
    return lower, upper
