"""``ridge(x, z, ...)`` and ``ridge(.)``: coefficients of standardised columns, all with one prior scale that is learnt.

    w_j ~ N(0, scale^2)        scale ~ log_normal(median 1, sd 2), in units of the response where f has its unit

Levels have a column each. A coefficient is reported per unit of its column, and the intercept where all columns are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self, final

import numpy as np

from klimb._stored import stored
from klimb.formula.factors import Factor, learn_factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.likelihoods import Choices
from klimb.numerics.arrays import Array
from klimb.priors import LogNormal
from klimb.rows.scaling import Scaling
from klimb.rows.table import Source
from klimb.terms.base import Context, Dense, OneScale, Reported, TermBlock
from klimb.theta import ParameterBlock, PositiveParameter

SCALE = LogNormal(median=1.0, sd=2.0)  # of the prior scale: says little, but that it is neither 0 nor infinite
NAME = "scale(ridge)"


@final
@stored("term.ridge")
@dataclass(frozen=True, eq=False)
class Ridge(OneScale):
    """Columns of a formula, or (without factors) ``count`` columns of a matrix that come standardised."""

    kind = "ridge"
    functions = (Function("ridge", "special", (Parameter("x", "numeric", many=True),),
                          "coefficients that share one prior scale, which is learnt; ridge(.): all other columns"),)
    count: int
    used: dict[str, Factor] = field(default_factory=dict)
    scaling: Scaling | None = None
    name: str = "ridge"
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> tuple[Ridge, ...]:
        used = learnt_columns(call, source, text)
        return (cls(len(names_of(used)), used),)

    @classmethod
    def of_matrix(cls, count: int, choices: Choices, spread: float = 1.0) -> Ridge:
        """For standardised columns of a matrix."""
        return cls(count, parameters=(_scale(choices, spread),))

    @property
    def size(self) -> int:
        return self.count

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        return names_of(self.used)

    def block(self, source: Source) -> Dense:
        every = Dense(columns_of(self.used, source))
        return every if self.scaling is None else self.settled(every)

    def ready(self, block: TermBlock, context: Context) -> Self:
        assert isinstance(block, Dense)
        return replace(self, scaling=Scaling.of(block.values, context.shares, centred=context.centred),
                       parameters=(_scale(context.choices, context.units.spread),))

    def settled(self, block: TermBlock) -> Dense:
        assert isinstance(block, Dense)
        assert self.scaling is not None
        return Dense(self.scaling.apply(block.values))

    def report(self) -> Reported | None:
        return None if self.scaling is None else per_unit(self.coefficient_names, self.scaling)

    def factors(self) -> dict[str, Factor]:
        return self.used


def _scale(choices: Choices, spread: float) -> PositiveParameter:
    return choices.positive(NAME, replace(SCALE, median=spread * SCALE.median), spread, begin=spread)


def learnt_columns(call: Call, source: Source, text: str) -> dict[str, Factor]:
    """The factors that a call with many columns names, in order."""
    return {str(node): learn_factor(node, source, text) for node in bind(call, text)["x"]}


def names_of(used: dict[str, Factor]) -> tuple[str, ...]:
    """Names of the columns of some factors; levels have a column each."""
    return tuple(name for factor in used.values() for name in factor.names(True))


def columns_of(used: dict[str, Factor], source: Source) -> Array:
    """Their columns."""
    return np.hstack([factor.block(source, True) for factor in used.values()])


def per_unit(names: tuple[str, ...], scaling: Scaling) -> Reported:
    """Coefficients of columns as they are, from weights of standardised ones."""
    return Reported(names, np.diag(1.0 / scaling.scale), "fixed", -scaling.centre / scaling.scale)
