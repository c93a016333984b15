"""``offset(x)``: numbers that are added to the linear predictor with coefficient 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from klimb._stan import StanPart, StanScope, said
from klimb._stored import stored
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.numerics.arrays import Array
from klimb.rows.table import Source
from klimb.terms.base import Context, Dense, Term
from klimb.theta import ParameterBlock


@stored("term.offset")
@dataclass(frozen=True, eq=False)
class OffsetTerm(Term):
    """An expression that has no weight."""

    kind = "offset"
    functions = (Function("offset", "special", (Parameter("x", "numeric"),),
                          "added to the linear predictor with coefficient 1"),)
    expression: Numeric
    name: str = "offset"
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[OffsetTerm, ...]":
        """Evaluate once, so that an error shows its place in the formula."""
        expression = learn_numeric(bind(call)["x"], source)
        source.look(expression)
        return (cls(expression),)

    @property
    def size(self) -> int:
        return 0

    def block(self, source: Source) -> Dense:
        return Dense(self.expression.evaluate(source)[:, None])

    def ready(self, block: Dense, context: Context) -> Self:
        return self

    def shift(self, block: Dense) -> Array:
        return block.values[:, 0]

    def stan(self, block: Dense, values: Sequence[str], scope: StanScope) -> StanPart:
        name = f"offset{scope.tag}"
        return StanPart(data=(f"vector[N] {name};" + said(str(self.expression)),), values={name: self.shift(block)},
                        value=name)
