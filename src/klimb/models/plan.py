"""The plan of a fit: which latents could serve a model, what each costs, and which one is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from klimb.errors import InputError
from klimb.infer.matrixfree.plan import readable
from klimb.latents import LATENTS
from klimb.latents.costs import Option, Shape, cheapest


@final
@dataclass(frozen=True)
class Plan:
    """What each latent would cost for a model of this shape; ``choice`` is the name of the one that is taken.

    >>> print(planned(Shape(2000, 53, 2000 * 53, n_levels=50, border=3)))
    2,000 sites, 53 weights
      Weights (primal)  1.7e+08 flops      0.0 s     1.3 MB  exact
    * Mixed (arrow)     8.3e+05 flops      0.0 s   563.4 kB  exact
    """

    shape: Shape
    options: tuple[tuple[str, Option], ...]  # by the latent's name
    choice: str

    def __str__(self) -> str:
        lines = [f"{self.shape.n_sites:,} sites, {self.shape.n_weights:,} weights"]
        labels = [f"{name} ({option.name})" for name, option in self.options]
        width = max(map(len, labels))
        for label, (name, option) in zip(labels, self.options, strict=True):
            mark = "*" if name == self.choice else " "
            notes = ["exact"] * option.exact + ["too large"] * (option.bytes > self.shape.memory)
            lines.append((f"{mark} {label:{width}s}  {option.flops:.1e} flops {option.seconds:8,.1f} s "
                          f"{readable(option.bytes):>10s}  {'  '.join(notes)}").rstrip())
        return "\n".join(lines)


def planned(shape: Shape, choice: str | None = None) -> Plan:
    """The cheapest latent for a model of this shape that fits into memory, exact ones favoured; or the given one."""
    options = [(name, option) for name, latent in LATENTS.items()
               if name not in ("Outputs", "MeanField", "Implicit") and (option := latent.costs(shape)) is not None]
    if not options:
        raise InputError("some latent must be able to serve the model", "none", "Look at klimb.latents.LATENTS.")
    if choice is None:
        best = cheapest([option for _, option in options], shape.memory)
        choice = next(name for name, option in options if option is best)
    return Plan(shape, tuple(options), choice)
