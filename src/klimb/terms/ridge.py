"""``ridge(x, z, ...)`` and ``ridge(.)``: coefficients of standardised columns, all with one prior scale that is learnt.

    w_j ~ N(0, scale^2)        scale ~ log_normal(median 1, sd 2), in units of the response where f has its unit

Levels have a column each. A coefficient is reported per unit of its column, and the intercept where all columns are 0.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from klimb._stored import stored
from klimb.formula.factors import Factor, learn_factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.likelihoods import Choices
from klimb.priors import LogNormal
from klimb.rows.scaling import Scaling
from klimb.rows.table import Source
from klimb.terms.base import Context, Dense, OneScale, Reported, Term
from klimb.theta import ParameterBlock, PositiveParameter

SCALE = LogNormal(median=1.0, sd=2.0)  # of the prior scale: says little, but that it is neither 0 nor infinite
NAME = "scale(ridge)"


class ColumnsTerm(Term):
    """Columns of a formula, or (without factors) ``count`` columns of a matrix that come standardised."""

    count: int
    used: dict[str, Factor]
    scaling: Scaling | None

    @staticmethod
    def learnt(call: Call, source: Source, text: str) -> tuple[int, dict[str, Factor]]:
        """How many columns a call names, and their factors in order."""
        used = {str(node): learn_factor(node, source, text) for node in bind(call, text)["x"]}
        return sum(len(factor.names(True)) for factor in used.values()), used

    @property
    def size(self) -> int:
        return self.count

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        return tuple(name for factor in self.used.values() for name in factor.names(True))

    def block(self, source: Source) -> Dense:
        every = Dense(np.hstack([factor.block(source, True) for factor in self.used.values()]))
        return every if self.scaling is None else self.settled(every)

    def settled(self, block: Dense) -> Dense:
        assert self.scaling is not None
        return Dense(self.scaling.apply(block.values))

    def report(self) -> Reported | None:
        """Coefficients of columns as they are, from weights of standardised ones."""
        if self.scaling is None:
            return None
        scale = self.scaling.scale
        return Reported(self.coefficient_names, np.diag(1.0 / scale), "fixed", -self.scaling.centre / scale)

    def factors(self) -> dict[str, Factor]:
        return self.used


@stored("term.ridge")
@dataclass(frozen=True, eq=False)
class Ridge(ColumnsTerm, OneScale):
    """Columns whose coefficients share one prior scale."""

    kind = "ridge"
    functions = (Function("ridge", "special", (Parameter("x", "numeric", many=True),),
                          "coefficients that share one prior scale, which is learnt; ridge(.): all other columns"),)
    count: int
    used: dict[str, Factor] = field(default_factory=dict)
    scaling: Scaling | None = None
    name: str = "ridge"
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> "tuple[Ridge, ...]":
        return (cls(*cls.learnt(call, source, text)),)

    @classmethod
    def of_matrix(cls, count: int, choices: Choices, spread: float = 1.0) -> Self:
        """For standardised columns of a matrix."""
        return cls(count, parameters=(_scale(choices, spread),))

    def ready(self, block: Dense, context: Context) -> Self:
        return replace(self, scaling=Scaling.of(block.values, context.shares, centred=context.centred),
                       parameters=(_scale(context.choices, context.units.spread),))


def _scale(choices: Choices, spread: float) -> PositiveParameter:
    return choices.positive(NAME, replace(SCALE, median=spread * SCALE.median), spread, begin=spread)
