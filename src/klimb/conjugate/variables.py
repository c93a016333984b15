"""Unknowns of a network, the views others have of them, and the state of knowledge about them."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from klimb.conjugate.families import Family, Naturals
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse

Plates: TypeAlias = tuple[int, ...]
NetworkState: TypeAlias = "dict[Variable, Any]"  # the factor of every variable, which keeps its mean parameters


class Evidence(ABC):
    """A term of the bound, E log p(something | variables), that sends each of its variables a message.

    The message is the gradient of the term in the variable's mean parameters, [A] Eq. (4)-(5).
    """

    variables: "tuple[Variable, ...]"
    exact: bool = True  # whether a message does not depend on its variable's own factor: a full step cannot overshoot

    @abstractmethod
    def expected_log(self, state: NetworkState) -> float:
        """The term itself."""

    @abstractmethod
    def message(self, to: "Variable", state: NetworkState) -> Naturals:
        """Its gradient in the mean parameters of ``to``."""


class Conditional(ABC):
    """p(x | parents), conjugate: its natural parameter is linear in every parent's statistics."""
    family: type[Family]
    plates: Plates
    variables: "tuple[Variable, ...]"  # unknown parents
    dimension: int = 1  # entries of x, or classes that it may be
    separate: bool = False  # whether the message to one parent does not depend on the others

    def member(self, natural: Naturals) -> Family:
        """The factor of x with these natural parameters."""
        return self.family.from_natural(natural)

    @abstractmethod
    def natural(self, state: NetworkState) -> Naturals:
        """Expected natural parameters of x."""

    def log_partition(self, state: NetworkState) -> Array:
        """Expected log-partition, one per plate; zero for classes."""
        return np.zeros(())

    def divergence(self, factor: Family, state: NetworkState) -> Array:
        """E KL(factor || p(x | parents)) over the parents' factors, one per plate."""
        gap = tuple(a - b for a, b in zip(factor.natural, self.natural(state), strict=True))
        return factor.inner(gap, factor.moments) - factor.log_partition() + self.log_partition(state)

    def message(self, to: "Variable", x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        """What x, known by its mean parameters, says about a parent."""
        raise AssertionError("there are no parents")


class Summand:
    """A sum of normal variables, predictors and numbers is a predictor."""

    def __add__(self, other: Any) -> Any:
        from klimb.conjugate.means import SumPredictor, as_predictor
        return SumPredictor((as_predictor(self), as_predictor(other)))

    __radd__ = __add__


class Variable(Summand):
    """An unknown with its conditional distribution; made by `gamma`, `normal`, ... of `klimb.conjugate`."""

    def __init__(self, conditional: Conditional, name: str) -> None:
        self.conditional, self.name = conditional, name
        self.family, self.plates, self.dimension = conditional.family, conditional.plates, conditional.dimension

    def observe(self, values: Any) -> Evidence:
        """The evidence of having seen these values; NaN is missing."""
        from klimb.conjugate.observations import ObservedVariable
        return ObservedVariable(self, values)

    def __getitem__(self, index: Any) -> "View":
        """The copies at these positions of the first plate, one per entry of ``index``."""
        return View(self, index)

    def __repr__(self) -> str:
        return f"{self.name}: {self.family.__name__}, plates {self.plates}"


class View(Summand):
    """A variable as a child sees it: whole, or row by row through an index."""

    def __init__(self, variable: Variable, index: Any = None) -> None:
        self.variable, self.index = variable, None
        if index is None:
            return
        rows = np.asarray(index)
        require(variable.plates, f"{variable.name} must have a plate to be indexed", "a variable without plates",
                f"Give it plates, e.g. plates=({int(rows.max(initial=0)) + 1},).")
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise InputError(f"the index of {variable.name} must be a vector of integers",
                             f"{rows.dtype} of shape {rows.shape}", "Number the groups 0, 1, ... first.")
        size = variable.plates[0]
        wrong = (rows < 0) | (rows >= size)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise InputError(f"the index of {variable.name} must lie in 0..{size - 1}", f"{rows[i]} at index {i}",
                             "Its first plate has that many copies: give it more, or renumber.")
        self.index = rows.astype(np.intp)

    @property
    def plates(self) -> Plates:
        if self.index is None:
            return self.variable.plates
        return (len(self.index), *self.variable.plates[1:])

    @cached_property
    def _scatter(self) -> Any:
        assert self.index is not None
        E = len(self.index)
        return scipy_sparse.csr_array((np.ones(E), (self.index, np.arange(E))), shape=(self.variable.plates[0], E))

    def moments(self, state: NetworkState) -> Naturals:
        """Mean parameters, one per plate of the view."""
        known: Naturals = state[self.variable].moments
        return known if self.index is None else tuple(part[self.index] for part in known)

    def collect(self, message: Naturals) -> Naturals:
        """A message with the plates of a child, summed over what the variable shares among them."""
        parts = []
        for part, ndim in zip(message, self.variable.family.event_ndims, strict=True):
            total = sum_to(part, self.plates, ndim)
            if self.index is not None:
                rows = np.broadcast_to(total, (*self.plates, *total.shape[total.ndim - ndim :]))
                flat = self._scatter @ rows.reshape(len(self.index), -1)
                total = flat.reshape(self.variable.plates[0], *rows.shape[1:])
            parts.append(total)
        return tuple(parts)


def as_view(value: Variable | View) -> View:
    """A variable as a view of the whole of it."""
    return value if isinstance(value, View) else View(value)


def sum_to(array: Array, plates: Plates, event_ndim: int) -> Array:
    """Sum over the leading axes that ``plates`` lacks or has as one; spread where the array itself has one."""
    lead = array.ndim - event_ndim - len(plates)
    if lead > 0:
        array = array.sum(axis=tuple(range(lead)))
    if lead < 0:
        array = array.reshape((1,) * -lead + array.shape)
    event = array.shape[len(plates) :]
    axes = tuple(i for i, size in enumerate(plates) if size == 1 and array.shape[i] != 1)
    if axes:
        array = array.sum(axis=axes, keepdims=True)
    return np.broadcast_to(array, (*plates, *event))


def common_plates(name: str, *shapes: Plates) -> Plates:
    """The plates that all of these broadcast to, or an `InputError` that names the node."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise InputError(f"the plates of {name} and of its parents must broadcast", f"{', '.join(map(str, shapes))}",
                         "Plates match from the right as NumPy shapes do: (N, D) goes with (D,), (N, 1) and (). Use "
                         "variable[index] to give each row its own copy.") from error
