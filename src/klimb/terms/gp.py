"""``gp(x, z)``: the inputs of a Gaussian process, each brought to mean 0 and standard deviation 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.errors import listed, nearest
from klimb.formula.errors import FormulaError
from klimb.formula.functions import bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric, moments
from klimb.formula.parts import label
from klimb.rows.table import Source
from klimb.terms.encoded import ProcessBlock


@final
@dataclass(frozen=True)
class Process:
    """What one ``gp()`` learnt: its columns, their means and standard deviations."""

    name: str
    expressions: tuple[Numeric, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    kernel: str
    options: dict[str, Any]

    def block(self, source: Source) -> ProcessBlock:
        columns = [(expression.evaluate(source) - center) / scale
                   for expression, center, scale in zip(self.expressions, self.centers, self.scales, strict=True)]
        return ProcessBlock(self.name, np.column_stack(columns), self.kernel, tuple(map(str, self.expressions)),
                            {**self.options, "centers": self.centers, "scales": self.scales})

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "expressions": [expression.to_json() for expression in self.expressions],
                "centers": list(self.centers), "scales": list(self.scales), "kernel": self.kernel,
                "options": dict(self.options)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Process:
        return cls(str(state["name"]), tuple(map(Numeric.from_json, state["expressions"])),
                   tuple(map(float, state["centers"])), tuple(map(float, state["scales"])), str(state["kernel"]),
                   dict(state["options"]))


def learn_process(call: Call, source: Source, text: str) -> Process:
    """Means and standard deviations of the inputs, and a kernel that there is."""
    from klimb.kernels import KERNELS

    arguments = bind(call, text)
    names = {name.lower(): name for name in KERNELS}
    key = arguments["kernel"].lower().replace("_", "")
    if key not in names:
        raise FormulaError("expected a kernel of klimb.kernels", repr(arguments["kernel"]),
                           f"{nearest(key, names)}They are {listed(names)}.", text, call.span)
    if arguments["points"] is not None and not 2 <= arguments["points"] <= 5000:
        raise FormulaError("expected points from 2 to 5000", str(arguments["points"]),
                           "Leave it out for a good number.", text,
                           call.span)
    expressions = tuple(learn_numeric(node, source) for node in arguments["x"])
    learnt = [moments(expression.evaluate(source), f"gp({expression})") for expression in expressions]
    options = {} if arguments["points"] is None else {"points": arguments["points"]}
    return Process(label(call), expressions, tuple(center for center, _ in learnt),
                   tuple(scale for _, scale in learnt), key, options)
