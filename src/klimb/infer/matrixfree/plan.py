"""What a linear model costs by each engine, before anything is allocated: flops, bytes, and which one to take.

The figures are those of `klimb.latents.costs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, final

from klimb.errors import InputError
from klimb.latents.costs import Option, Shape, cheapest, double_loop, dual, primal

EngineName: TypeAlias = Literal["primal", "dual", "double loop"]


@final
@dataclass(frozen=True)
class EnginePlan:
    """The ways to fit a model of ``n_sites`` x ``n_weights``, and the one that was chosen; ``print`` it.

    >>> print(plan(50_000, 15_000, 4_000_000, memory=8e9))
    50,000 sites, 15,000 weights, 4,000,000 nonzeros; 8.0 GB allowed
      primal       2.4e+13 flops    1,227.7 s     5.5 GB  exact
      dual         8.3e+14 flops   41,835.8 s    80.1 GB  exact  too large
    * double loop  1.2e+11 flops       35.7 s   141.8 MB
    """

    n_sites: int
    n_weights: int
    n_nonzeros: int
    memory: float
    options: tuple[Option, ...]
    choice: EngineName

    def __str__(self) -> str:
        lines = [f"{self.n_sites:,} sites, {self.n_weights:,} weights, {self.n_nonzeros:,} nonzeros; "
                 f"{readable(self.memory)} allowed"]
        for option in self.options:
            mark = "*" if option.name == self.choice else " "
            notes = ["exact"] * option.exact + ["too large"] * (option.bytes > self.memory)
            line = (f"{mark} {option.name:12s} {option.flops:.1e} flops {option.seconds:10,.1f} s "
                    f"{readable(option.bytes):>10s}  {'  '.join(notes)}")
            lines.append(line.rstrip())
        return "\n".join(lines)


def readable(size: float) -> str:
    """A number of bytes, as people write it.

    >>> readable(8e9), readable(1234)
    ('8.0 GB', '1.2 kB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:.0f} B"


def plan(
    n_sites: int, n_weights: int, n_nonzeros: int, *, memory: float, dense: bool = False, exact_engines: bool = True,
    choice: EngineName | None = None, accuracy: float = 0.01,
) -> EnginePlan:
    """The cheapest way that fits into ``memory`` bytes, exact ones favoured; or the given one.

    ``accuracy`` is that of the variances where they are estimated.
    ``dense`` says that products run at the dense rate; without ``exact_engines`` (a flat prior, operators that are not
    stored) only the double loop is there.
    """
    shape = Shape(n_sites, n_weights, n_nonzeros, dense=dense, memory=memory)
    options = [*((primal(shape), dual(shape)) if exact_engines else ()), double_loop(shape, accuracy)]
    chosen = choice or cast(EngineName, cheapest(options, memory).name)
    picked = next(option for option in options if option.name == chosen)
    if picked.bytes > memory:
        raise InputError(
            f"the model must fit into {readable(memory)}", f"{readable(picked.bytes)} for the {chosen} engine "
            f"({n_sites:,} sites, {n_weights:,} weights, {n_nonzeros:,} nonzeros)",
            "Raise memory, drop rare columns, or fit a part of the rows.",
        )
    return EnginePlan(n_sites, n_weights, n_nonzeros, memory, tuple(options), chosen)
