"""The contract of an exponential family: log p(x) = <natural, statistics(x)> - log_partition(natural) + log_base(x).

KL(q||p) = <natural_q - natural_p, mean_q> - A_q + A_p, in forms of their own where that loses digits. The base is 1/x
for shapes and concentrations, so that a natural parameter is the shape itself. Arrays carry their plates first.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from klimb.numerics.arrays import Array, as_float, refuse

Naturals: TypeAlias = tuple[Array, ...]


class NaturalPart:
    """A usual parameter that is a natural one times a constant."""

    def __init__(self, index: int, factor: float = 1.0) -> None:
        self.index, self.factor = index, factor

    def __get__(self, member: "Family", family: "type[Family]") -> Array:
        part = member.natural[self.index]
        return part if self.factor == 1.0 else self.factor * part


class Family(ABC):
    """A distribution, or one per plate, of an exponential family. Members are records of their natural parameters."""
    event_ndims: ClassVar[tuple[int, ...]]  # how many trailing axes of each natural parameter belong to the event

    def __init__(self, natural: Naturals) -> None:
        self.natural = natural

    @classmethod
    def from_natural(cls, natural: Naturals) -> Self:
        """The member with these natural parameters; ``Family(...)`` itself takes the usual ones."""
        member = cls.__new__(cls)
        Family.__init__(member, natural)
        return member

    @property
    def plates(self) -> tuple[int, ...]:
        """Shape of the independent copies."""
        return self.natural[0].shape[: self.natural[0].ndim - self.event_ndims[0]]

    @property
    def dimension(self) -> int:
        """Entries of the event, 1 for scalars."""
        shaped = zip(self.natural, self.event_ndims, strict=True)
        return next((part.shape[-1] for part, ndim in shaped if ndim), 1)

    @abstractmethod
    def log_partition(self) -> Array:
        """A(natural), one number per plate."""

    @abstractmethod
    def mean_parameters(self) -> Naturals:
        """E[statistics] = gradient of the log-partition, in the shapes of the natural parameters."""

    @cached_property
    def moments(self) -> Naturals:
        """The same, computed once."""
        return self.mean_parameters()

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """``n`` draws, first axis the draws."""

    @property
    @abstractmethod
    def mean(self) -> Array:
        """E[x]."""

    def inner(self, left: Naturals, right: Naturals) -> Array:
        """<left, right> over the event axes: one number per plate."""
        total: Any = 0.0
        for a, b, ndim in zip(left, right, self.event_ndims, strict=True):
            product = a * b
            total = total + (product.sum(axis=tuple(range(-ndim, 0))) if ndim else product)
        return np.asarray(total)

    def log_base(self, statistics: Naturals) -> Array | float:
        """Log of the base measure, linear in the statistics for every family here."""
        return 0.0

    def entropy(self) -> Array:
        """-E log p, one number per plate."""
        return self.log_partition() - self.inner(self.natural, self.moments) - self.log_base(self.moments)

    def kl(self, other: Self) -> Array:
        """KL(self || other), one number per plate; never negative."""
        gap = tuple(a - b for a, b in zip(self.natural, other.natural, strict=True))
        divergence = self.inner(gap, self.moments) - self.log_partition() + other.log_partition()
        return np.asarray(np.maximum(divergence, 0.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(plates={self.plates})"


def generator(rng: np.random.Generator | int | None) -> np.random.Generator:
    """A generator from a seed; None is seed 0, so that draws repeat."""
    return np.random.default_rng(0 if rng is None else rng)


def matvec(matrix: Array, vector: Array) -> Array:
    """matrix @ vector, plate by plate."""
    return np.asarray((matrix @ vector[..., None])[..., 0])


def positive(value: Any, name: str) -> Array:
    """``value`` as a positive float array, or an `InputError` that names the first entry that is not."""
    array = as_float(value, name)
    refuse(array <= 0, array, f"{name} must be positive",
           "A shape, rate, precision or concentration of zero is not a proper prior: use a small positive number such"
           " as 1e-3.")
    return array
