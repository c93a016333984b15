"""``seasonal(t, period=12)``: a pattern that repeats, and may change slowly.

    x_k + x_{k-1} + ... + x_{k-period+1} ~ N(0, s^2)

The prior says nothing of patterns that repeat exactly and sum to zero over a period; they have weights of their own,
with a flat prior, and the field is what is left: how the pattern departs from an exact repetition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stored import stored
from klimb.errors import require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.latents.linear import side_by_side
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_linalg, scipy_sparse
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes, TermBlock
from klimb.terms.field import FLAT, Innovations, IntrinsicField, banded, column_positions, grid, snapped
from klimb.theta import ParameterBlock

MOST_PERIOD = 1000


@stored("term.seasonal")
@dataclass(frozen=True, eq=False)
class Seasonal(IntrinsicField):
    """The departures from a repeating pattern at every whole-number time, then the weights of the pattern."""

    kind = "seasonal"
    functions = (Function("seasonal", "special", (Parameter("t", "numeric"), Parameter("period", "whole")),
                          "a pattern that repeats every period steps of time and may change slowly"),)
    name: str
    expression: Numeric
    period: int
    nodes: Array
    flat_sd: float = FLAT
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[Seasonal, ...]":
        """A node at every whole number of the column's range."""
        arguments = bind(call)
        expression, period = learn_numeric(arguments["t"], source), int(arguments["period"])
        nodes = grid(column_positions(expression, source, whole=True))
        longest = min(MOST_PERIOD, len(nodes) - 1)
        require(2 <= period <= longest, f"expected a period from 2 to {longest} steps", period,
                "It counts steps of the time column.")
        return (cls(f"seasonal({arguments['t']})", expression, period, nodes),)

    def ready(self, block: TermBlock, context: Context) -> Self:
        return replace(self, parameters=(context.sd(self.name, "field"),), flat_sd=FLAT * context.units.spread)

    # -- the prior

    @cached_property
    def _contrasts(self) -> Array:
        """(period, period - 1): patterns that sum to zero, orthonormal (Helmert)."""
        return np.asarray(scipy_linalg.helmert(self.period).T)

    @cached_property
    def _repeating(self) -> Array:
        """The patterns at all nodes."""
        return np.asarray(self._contrasts[np.arange(len(self.nodes)) % self.period])

    @property
    def beside(self) -> tuple[int, float]:
        return self.period - 1, self.flat_sd

    @cached_property
    def innovations(self) -> Innovations:
        n, m, null = len(self.nodes), self.period, self._repeating
        sums = banded([np.ones(n - m + 1)] * m, range(m), (n - m + 1, n))
        # With the first nodes held the sums of the others are a unit triangle: det 1 but for the choice of these nodes.
        logdet = float(np.linalg.slogdet(null.T @ null)[1] - 2.0 * np.linalg.slogdet(null[: m - 1])[1])
        return Innovations(sums, np.linalg.qr(null)[0].T, logdet)

    # -- rows

    def block(self, source: Source) -> Nodes:
        x = snapped(self.expression.evaluate(source))
        whole = np.round(x)
        source.check(whole == x, x, f"{self.name} needs whole-number times", "Count time in steps.")
        step = (whole - self.nodes[0]).astype(np.intp)
        n, m = len(self.nodes), self.period
        inside = (step >= 0) & (step < n)
        known = np.column_stack([np.flatnonzero(inside), step[inside], np.ones(np.count_nonzero(inside))])
        others = [(row, at, value) for row in np.flatnonzero(~inside).tolist()  # the nearest period goes on
                  for at, value in _continued(int(step[row]), n, m)]
        i, j, data = np.vstack([known, np.reshape(others, (-1, 3))]).T
        field_rows = scipy_sparse.csr_array((data, (i.astype(np.intp), j.astype(np.intp))), shape=(len(x), n))
        flat = self._contrasts[step % m]
        beyond = np.maximum(np.maximum(step - (n - 1), -step), 0).astype(np.float64)
        return Nodes(side_by_side([field_rows, flat]), beyond)

    def at_nodes(self) -> tuple[Any, Any]:
        own = scipy_sparse.eye_array(len(self.nodes), format="csr")
        return self.nodes, side_by_side([own, self._repeating])

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """h steps ahead two innovations of every period have come in: x_k = x_{k-period} + e_k - e_{k-1}."""
        if not block.beyond.any():
            return None
        h = block.beyond
        came = np.where(h > 0, np.floor((h - 1) / self.period) + 1, 0.0)
        came += np.where(h > 1, np.floor((h - 2) / self.period) + 1, 0.0)
        return np.asarray(values[0] * np.sqrt(came))[:, None]


def _continued(step: int, n: int, m: int) -> list[tuple[int, float]]:
    """What departures at other times are expected to be, in terms of those at the m - 1 nearest nodes.

    >>> _continued(10, 10, 4), _continued(11, 10, 4)
    ([(7, -1.0), (8, -1.0), (9, -1.0)], [(7, 1.0)])
    """
    mirrored = step < 0
    ahead = (-step if mirrored else step - (n - 1)) % m
    if ahead == 1:
        found = [(n - m + k, -1.0) for k in range(1, m)]
    else:
        found = [(n - 1 - (m - ahead) % m, 1.0)]
    return [(n - 1 - at, value) if mirrored else (at, value) for at, value in found]
