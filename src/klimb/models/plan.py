"""The plan of a fit: which latents could serve a model, what each costs, and which one is taken."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from klimb.errors import InputError, require
from klimb.latents import LATENTS
from klimb.latents.costs import Option, Shape, cheapest, double_loop, dual, primal


@dataclass(frozen=True)
class Plan:
    """What each way to fit a model of this shape would cost; ``choice`` is the name of the one that is taken.

    >>> print(planned(Shape(2000, 53, 2000 * 53, n_levels=50, border=3)))
    2,000 sites, 53 weights
      Weights (primal)  1.7e+08 flops      0.0 s     1.3 MB  exact
    * Mixed (arrow)     8.3e+05 flops      0.0 s   563.4 kB  exact
    """

    shape: Shape
    options: tuple[tuple[str, Option], ...]  # by the name of the latent, or of the engine
    choice: str

    def __str__(self) -> str:
        shape = self.shape
        allowed = f", {shape.n_nonzeros:,} nonzeros; {readable(shape.memory)} allowed" if isfinite(shape.memory) else ""
        lines = [f"{shape.n_sites:,} sites, {shape.n_weights:,} weights{allowed}"]
        labels = [name if name == option.name else f"{name} ({option.name})" for name, option in self.options]
        width = max(map(len, labels))
        for label, (name, option) in zip(labels, self.options, strict=True):
            mark = "*" if name == self.choice else " "
            notes = ["exact"] * option.exact + ["too large"] * (option.bytes > shape.memory)
            lines.append((f"{mark} {label:{width}s}  {option.flops:.1e} flops {option.seconds:8,.1f} s "
                          f"{readable(option.bytes):>10s}  {'  '.join(notes)}").rstrip())
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


def planned(shape: Shape, choice: str | None = None) -> Plan:
    """The cheapest latent for a model of this shape that fits into memory, exact ones favoured; or the given one."""
    options = [(name, option) for name, latent in LATENTS.items()
               if name not in ("Outputs", "MeanField", "Implicit") and (option := latent.costs(shape)) is not None]
    require(options, "some latent must be able to serve the model", "none", "Look at klimb.latents.LATENTS.")
    return _chosen(shape, options, choice)


def engine_plan(shape: Shape, choice: str | None = None, *, exact_engines: bool = True, accuracy: float = 0.01) -> Plan:
    """The cheapest engine for a design that fits into memory, exact ones favoured; or the given one.

    ``accuracy`` is that of the variances where they are estimated. Without ``exact_engines`` (a flat prior, operators
    that are not stored) only the double loop is there.

    >>> print(engine_plan(Shape(50_000, 15_000, 4_000_000, dense=False, memory=8e9)))
    50,000 sites, 15,000 weights, 4,000,000 nonzeros; 8.0 GB allowed
      primal       2.4e+13 flops  1,227.7 s     5.5 GB  exact
      dual         8.3e+14 flops 41,835.8 s    80.1 GB  exact  too large
    * double loop  1.2e+11 flops     35.7 s   141.8 MB
    """
    options = [*((primal(shape), dual(shape)) if exact_engines else ()), double_loop(shape, accuracy)]
    plan = _chosen(shape, ((option.name, option) for option in options), choice)
    picked = dict(plan.options)[plan.choice]
    if picked.bytes > shape.memory:
        raise InputError(
            f"the model must fit into {readable(shape.memory)}", f"{readable(picked.bytes)} for the {plan.choice} "
            f"engine ({shape.n_sites:,} sites, {shape.n_weights:,} weights, {shape.n_nonzeros:,} nonzeros)",
            "Raise memory, drop rare columns, or fit a part of the rows.",
        )
    return plan


def _chosen(shape: Shape, options: Iterable[tuple[str, Option]], choice: str | None) -> Plan:
    every = tuple(options)
    if choice is None:
        best = cheapest([option for _, option in every], shape.memory)
        choice = next(name for name, option in every if option is best)
    return Plan(shape, every, choice)
