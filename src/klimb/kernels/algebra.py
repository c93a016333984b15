"""Sums and products of kernels. They are flat: (a + b) + c is one sum of three, whose parts are 0, 1 and 2."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.kernels.base import Kernel
from klimb.kernels.parameters import Entry
from klimb.kernels.tiles import Pairs
from klimb.numerics.arrays import Array


@dataclass(frozen=True, repr=False)
class Composite(Kernel):
    """A kernel made of parts; the parameters of part i are named ``i.name``."""

    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        flat: list[Kernel] = []
        for part in self.parts:
            if not isinstance(part, Kernel):
                raise InputError(f"{type(self).__name__} takes kernels", f"{part!r}", "Wrap numbers in Constant().")
            flat.extend(part.parts if isinstance(part, type(self)) else [part])
        require(len(flat) >= 2, f"{type(self).__name__} takes at least two kernels", len(flat), "Use the one itself.")
        object.__setattr__(self, "parts", tuple(flat))

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(replace(entry, name=f"{i}.{entry.name}")
                     for i, part in enumerate(self.parts) for entry in part._entries())

    def _rebuilt(self, entries: Sequence[Entry]) -> Self:
        parts, begin = [], 0
        for part in self.parts:
            end = begin + len(part._entries())
            own = [replace(entry, name=entry.name.partition(".")[2]) for entry in entries[begin:end]]
            parts.append(part._rebuilt(own))
            begin = end
        return replace(self, parts=tuple(parts))

    def _check_width(self, width: int) -> None:
        for part in self.parts:
            part._check_width(width)

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return self._joined([part._pairs(X, Z, inputs=inputs) for part in self.parts])

    @abstractmethod
    def _joined(self, parts: list[Pairs]) -> Pairs: ...

    def _typical(self, X: Array, shares: Array, variance: float) -> dict[str, float]:
        divisors = self._divisors(X, shares)
        return {f"{i}.{name}": value for i, (part, own) in enumerate(zip(self.parts, divisors, strict=True))
                for name, value in part._typical(X, shares, variance / own).items()}

    @abstractmethod
    def _divisors(self, X: Array, shares: Array) -> list[float]:
        """What the variance of the whole is divided by to be that of each part."""


@dataclass(frozen=True, repr=False)
class Sum(Composite):
    """The covariance of independent effects that add up; made by ``+``.

    >>> from klimb.kernels import RBF, White
    >>> kernel = RBF() + 0.1 * White()
    >>> kernel.parameters
    {'0.variance': 1.0, '0.lengthscale': 1.0, '1.variance': 0.1}
    """

    def _diag(self, X: Array) -> Array:
        return np.asarray(np.sum([part._diag(X) for part in self.parts], axis=0))

    def _diag_pull(self, X: Array, g: Array) -> Array:
        return np.concatenate([part._diag_pull(X, g) for part in self.parts])

    def _scaled(self, factor: float) -> Kernel:
        return replace(self, parts=tuple(part._scaled(factor) for part in self.parts))

    def _joined(self, parts: list[Pairs]) -> Pairs:
        return SumPairs(parts)

    def _divisors(self, X: Array, shares: Array) -> list[float]:
        return [float(len(self.parts))] * len(self.parts)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


@dataclass(frozen=True, repr=False)
class Product(Composite):
    """An effect that is modulated by another; made by ``*``, which leaves one variance free.

    Only the product of the variances can be learnt from data, so ``*`` fixes that of all factors but the first that has
    a free one. A variance with bounds or a prior stays free, and ``freed("1.variance")`` frees one again.

    >>> from klimb.kernels import RBF, Periodic
    >>> 2.0 * (RBF(lengthscale=5.0) * Periodic())
    RBF(variance=2.0, lengthscale=5.0) * Periodic(variance=1.0, lengthscale=1.0, period=1.0).fixed('variance')
    """

    def _diag(self, X: Array) -> Array:
        return np.asarray(np.prod([part._diag(X) for part in self.parts], axis=0))

    def _diag_pull(self, X: Array, g: Array) -> Array:
        values = [part._diag(X) for part in self.parts]
        return np.concatenate([part._diag_pull(X, g * others)
                               for part, others in zip(self.parts, products_of_others(values), strict=True)])

    def _scaled(self, factor: float) -> Kernel:
        return replace(self, parts=(self.parts[0]._scaled(factor), *self.parts[1:]))

    def _joined(self, parts: list[Pairs]) -> Pairs:
        return ProductPairs(parts)

    def _divisors(self, X: Array, shares: Array) -> list[float]:
        return products_of_others([float(shares @ part._diag(X)) for part in self.parts])

    def __repr__(self) -> str:
        text = " * ".join(f"({part!r})" if isinstance(part, Sum) else repr(part) for part in self.parts)
        again = set(self.free) - set(with_one_scale(self).free)  # what * would fix
        return f"({text}).freed({', '.join(map(repr, sorted(again)))})" if again else text


def with_one_scale(product: Product) -> Product:
    """The same with the scale of every factor fixed but for the first one that is free."""
    scales = [_scale(part) for part in product.parts]
    spare = [f"{i}.{name}" for i, name in enumerate(scales) if name is not None][1:]
    return product.fixed(*spare) if spare else product


def _scale(kernel: Kernel) -> str | None:
    """The first free variance without bounds and prior that scales all of a kernel: of a sum, if every term has one."""
    if isinstance(kernel, Composite):
        names = [_scale(part) for part in kernel.parts]
        found = [f"{i}.{name}" for i, name in enumerate(names) if name is not None]
        every = isinstance(kernel, Product) or len(found) == len(names)
        return found[0] if found and every else None
    entries = [entry for entry in kernel._entries() if entry.name.partition("[")[0] == "variance"]
    held = any(entry.rule.fixed or entry.rule.bounds is not None or entry.rule.prior is not None for entry in entries)
    return None if held or not entries else entries[0].name


class JoinedPairs(Pairs):
    """Several kernels bound to the same inputs."""

    _join: ClassVar[np.ufunc]

    def __init__(self, parts: list[Pairs]) -> None:
        self._parts = parts

    def tile(self, rows: slice, columns: slice) -> Array:
        return reduce(self._join, [part.tile(rows, columns) for part in self._parts])

    def gradient(self) -> Array:
        return np.concatenate([part.gradient() for part in self._parts])

    def right_gradient(self) -> Array:
        return np.asarray(np.sum([part.right_gradient() for part in self._parts], axis=0))


class SumPairs(JoinedPairs):
    """The sum of several kernels bound to the same inputs."""

    _join = np.add

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        for part in self._parts[:-1]:
            part.pull(rows, columns, G.copy())
        self._parts[-1].pull(rows, columns, G)


class ProductPairs(JoinedPairs):
    """The product of several kernels bound to the same inputs."""

    _join = np.multiply

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        values = [part.tile(rows, columns) for part in self._parts]
        for part, others in zip(self._parts, products_of_others(values), strict=True):
            part.pull(rows, columns, G * others)


def products_of_others(values: list[Any]) -> list[Any]:
    """For each array the product of all the others, without a division: values may be zero."""
    return [reduce(np.multiply, values[:i] + values[i + 1 :]) for i in range(len(values))]
