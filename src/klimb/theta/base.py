"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together.

A block knows how its entries of theta become what its owner works with (a standard deviation, the root of a covariance
matrix, cut points, a kernel), how gradients come back, its prior per unit of theta, and what a table prints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from klimb._stan import StanPart
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.priors import Prior

RowKind: TypeAlias = Literal["fixed", "group", "smooth", "gp", "field", "parameter", "level",
                             "cut"]  # where a table prints it
Scale: TypeAlias = tuple[Callable[[Array], Array], Callable[[Array], Array]]


class ParameterBlock(ABC):
    """Parameters that are transformed, and have their prior, together. Records: two equal blocks are two blocks."""

    names: tuple[str, ...]  # as printed, of the free entries alone; () where all are held
    kind: RowKind

    @property
    def size(self) -> int:
        """How many entries of theta it has."""
        return len(self.names)

    @abstractmethod
    def search(self) -> tuple[Array, Array, Array]:
        """(d,) each, in theta: where a search starts, and its lower and upper limits."""

    @property
    def start(self) -> Array:
        return self.search()[0]

    @abstractmethod
    def value(self, theta: Array) -> Any:
        """What the owner works with."""

    @abstractmethod
    def pull(self, theta: Array, d_value: Any) -> Array:
        """A gradient in theta from one in the value."""

    @abstractmethod
    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log density per unit of theta (Jacobian included) and its gradient."""

    def log_density(self, theta: Array) -> float:
        """The first of ``log_prior`` alone, where that is cheaper."""
        return self.log_prior(theta)[0]

    def sharp_prior(self, theta: Array) -> Array | None:
        """(S,) of the log prior at many points, where it bends more sharply than a likelihood does; else None."""
        return None

    @abstractmethod
    def reported(self, theta: Array) -> Array:
        """(S, d) of theta as (S, d) of what is printed."""

    def inside(self, theta: Array) -> Array:
        """The same of what the computation works with, which no origin of a covariate moves."""
        return self.reported(theta)

    def priors(self) -> dict[str, Prior | None]:
        """The priors of single parameters, by the names of these."""
        return {}

    @abstractmethod
    def printed(self) -> dict[str, str]:
        """The priors in words, by name."""

    def signed(self) -> tuple[bool, ...]:
        """Of each entry, whether what is printed can be negative, so that P(value > 0) means something."""
        return (False,) * self.size

    def powers(self) -> tuple[float, ...]:
        """Of each entry: 0, or of a logarithm the power with which exp(power theta) is 0 at the simplest model."""
        return tuple(0.0 if signed else 1.0 for signed in self.signed())

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        """Of each entry, the rising map from its own theta to what is printed; None where other entries enter it."""
        return (np.exp,) * self.size

    def endless(self) -> tuple[bool, ...]:
        """Of each entry, whether likelihoods have a limit as it grows without end: its far tail is its prior's."""
        return tuple(power < 0.0 for power in self.powers())

    def scales(self) -> tuple[Scale, ...]:
        """Of each entry, what makes printed values roughly normal, and its inverse."""
        return ((np.asarray, np.asarray),) * self.size

    def stan(self, name: str) -> StanPart:
        """Its parameters in Stan, whose unconstrained values are theta, their prior, and the value as an expression."""
        raise InputError("this needs parameters that can be written in Stan", ", ".join(self.names),
                         "Give the block a method stan.")

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        """The parameters of ``stan`` at theta."""
        raise NotImplementedError

    def unconstrained(self, theta: Array) -> Array:
        """Theta as Stan has parameters without limits."""
        return theta

    def from_stan(self, draws: Sequence[Array]) -> Array:
        """(S, d) of theta from draws of the parameters of ``stan``, (S, ...) each."""
        raise NotImplementedError


class PlainBlock(ParameterBlock):
    """Parameters on the whole line that stand for themselves, with a flat prior."""

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        return 0.0, np.zeros(self.size)

    def reported(self, theta: Array) -> Array:
        return np.array(theta)

    def printed(self) -> dict[str, str]:
        return dict.fromkeys(self.names, "flat")

    def signed(self) -> tuple[bool, ...]:
        return (True,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (np.asarray,) * self.size


@dataclass(frozen=True, eq=False)
class Theta:
    """The blocks of a model in order. A block that several owners hold stands once, by identity."""

    blocks: tuple[ParameterBlock, ...]

    @classmethod
    def of(cls, blocks: Sequence[ParameterBlock]) -> Self:
        """The blocks without repetition."""
        return cls(tuple({id(block): block for block in blocks}.values()))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: places go by identity, which a copy does not share."""
        return {"blocks": self.blocks}

    @cached_property
    def _ends(self) -> Array:
        return np.cumsum([0, *(block.size for block in self.blocks)])

    @cached_property
    def _place(self) -> dict[int, int]:
        return {id(block): number for number, block in enumerate(self.blocks)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for block in self.blocks for name in block.names)

    @cached_property
    def _search(self) -> tuple[Array, ...]:
        return tuple(np.hstack([np.zeros((3, 0)), *(block.search() for block in self.blocks)]))

    @property
    def start(self) -> Array:
        return self._search[0]

    @property
    def lower(self) -> Array:
        return self._search[1]

    @property
    def upper(self) -> Array:
        return self._search[2]

    @property
    def powers(self) -> Array:
        """Of all entries, see `ParameterBlock.powers`."""
        return np.array([power for block in self.blocks for power in block.powers()])

    @property
    def size(self) -> int:
        return int(self._ends[-1])

    def slice_of(self, block: ParameterBlock) -> slice:
        """Where the entries of one block stand."""
        number = self._place[id(block)]
        return slice(int(self._ends[number]), int(self._ends[number + 1]))

    def split(self, theta: Array) -> tuple[Array, ...]:
        """One vector per block."""
        return tuple(theta[self._ends[i] : self._ends[i + 1]] for i in range(len(self.blocks)))

    def of_owner(self, theta: Array, blocks: Sequence[ParameterBlock]) -> tuple[Array, ...]:
        """The entries of some owner's blocks."""
        return tuple(theta[self.slice_of(block)] for block in blocks)

    def add(self, total: Array, blocks: Sequence[ParameterBlock], gradients: Sequence[Array]) -> None:
        """Add an owner's gradients, one per block, to the whole gradient."""
        for block, gradient in zip(blocks, gradients, strict=True):
            total[self.slice_of(block)] += gradient

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log density of all blocks per unit of theta, and its gradient."""
        parts = [block.log_prior(own) for block, own in zip(self.blocks, self.split(theta), strict=True)]
        return sum(value for value, _ in parts), np.concatenate([np.zeros(0), *(slope for _, slope in parts)])

    def log_density(self, theta: Array) -> float:
        """Log density of all blocks per unit of theta."""
        return sum(block.log_density(own) for block, own in zip(self.blocks, self.split(theta), strict=True))

    def sharp_prior(self, theta: Array) -> Array:
        """(S,) of the log prior of those blocks whose priors bend more sharply in theta than a likelihood does."""
        own = (block.sharp_prior(theta[:, self.slice_of(block)]) for block in self.blocks)
        return sum((part for part in own if part is not None), np.zeros(len(theta)))

    @cached_property
    def sharp(self) -> Any:
        """Of each entry, whether its block is one of those."""
        return np.repeat([block.sharp_prior(np.zeros((1, block.size))) is not None for block in self.blocks],
                         [block.size for block in self.blocks])

    def reported(self, theta: Array) -> dict[str, Array]:
        """(S, d) of theta as what is printed, by name."""
        found: dict[str, Array] = {}
        for number, block in enumerate(self.blocks):
            own = block.reported(theta[:, self._ends[number] : self._ends[number + 1]])
            found |= {name: own[:, j] for j, name in enumerate(block.names)}
        return found

    def inside(self, theta: Array) -> Array:
        """(S, d) of theta on the scales of what is printed, whatever the origin of the covariates."""
        return np.hstack([block.inside(theta[:, begin:end])
                          for block, begin, end in zip(self.blocks, self._ends[:-1], self._ends[1:], strict=True)])

    def printed(self) -> dict[str, str]:
        """The priors in words."""
        return {name: text for block in self.blocks for name, text in block.printed().items()}
