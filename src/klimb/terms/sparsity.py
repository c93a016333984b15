"""``sparse(x, z, ...)``: coefficients of standardised columns of which few matter.

    w_j ~ Laplace(scale) or StudentT(2, scale)        scale ~ log_normal(median 0.1, sd 2), in units of the response

The prior of each weight is one more site, on f = w_j itself. What the engine calls the prior is a Gaussian so wide
(`TAPER`) that it only makes the product proper; its share in the normalisation, Z = int p(w) N(w; 0, TAPER^2) dw for
each weight, is taken out of the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from klimb._stan import StanPart, StanScope, literal
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.factors import Factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.latents.weights_posterior import Moments
from klimb.likelihoods import Choices
from klimb.priors import LogNormal
from klimb.rows.scaling import Scaling
from klimb.rows.table import Source
from klimb.sites.base import Site
from klimb.sites.real import Laplace, StudentT
from klimb.terms.base import Context, Dense, WeightsPrior, scaled_columns
from klimb.terms.ridge import ColumnsTerm
from klimb.theta import ParameterBlock, PositiveParameter

TAPER = 1e3  # in units of the response over a column's spread, where coefficients beyond some tens do not happen
SCALE = LogNormal(median=0.1, sd=2.0)  # of the weights' prior scale
DENSITIES = ("laplace", "student_t")
HEAVY = 2.0  # degrees of freedom of the Student-t prior
DIFFERENCE = 1e-5  # in the log of the scale, for the derivative of expected log densities
NAME = "scale(sparse)"


@stored("term.sparse")
@dataclass(frozen=True, eq=False)
class Sparse(ColumnsTerm):
    """Columns of whose coefficients few matter."""

    kind = "sparse"
    functions = (Function("sparse", "special", (Parameter("x", "numeric", many=True),
                                                Parameter("prior", "word", "laplace")),
                          "coefficients of which few matter: Laplace prior, or prior=student_t"),)
    count: int
    density_name: str = "laplace"
    used: dict[str, Factor] = field(default_factory=dict)
    scaling: Scaling | None = None
    spread: float = 1.0  # the unit of the weights
    name: str = "sparse"
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> "tuple[Sparse, ...]":
        density = str(bind(call, text)["prior"])
        require(density in DENSITIES, "expected prior=laplace or prior=student_t", density, "Leave it out for laplace.")
        count, used = cls.learnt(call, source, text)
        return (cls(count, density, used),)

    @classmethod
    def of_matrix(cls, count: int, choices: Choices, spread: float = 1.0, density: str = "laplace") -> Self:
        """For standardised columns of a matrix."""
        return cls(count, density, spread=spread, parameters=(_scale(choices, spread),))

    def ready(self, block: Dense, context: Context) -> Self:
        spread = context.units.spread
        return replace(self, scaling=Scaling.of(block.values, context.shares, centred=context.centred), spread=spread,
                       parameters=(_scale(context.choices, spread),))

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        return WeightsPrior(np.zeros(self.size), np.full(self.size, (TAPER * self.spread) ** 2))

    def density(self, values: Sequence[Any]) -> Site:
        return Laplace(values[0]) if self.density_name == "laplace" else StudentT(HEAVY, values[0])

    def log_taper(self, values: Sequence[Any]) -> float:
        zero, site = np.zeros(1), self.density(values)
        one = site.tilted(zero, zero, np.array([(TAPER * self.spread) ** 2])).log_z + site.constant(zero)
        return self.size * float(one[0])

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[float, ...]:
        """d/d scale of the weights' expected log density less its normalisation, by central differences."""
        zeros, m, v = np.zeros(self.size), moments.mean, moments.variances()
        sides = []
        for sign in (1.0, -1.0):
            moved = (values[0] * float(np.exp(sign * DIFFERENCE)),)
            site = self.density(moved)
            value = float((site.oracle(zeros, m, v).value + site.constant(zeros)).sum())
            sides.append(value - self.log_taper(moved))
        return ((sides[0] - sides[1]) / (2.0 * DIFFERENCE * values[0]),)

    def stan(self, block: Dense, values: Sequence[str], scope: StanScope) -> StanPart:
        """The density of the weights without the taper, which is the engine's and not the model's."""
        density = "double_exponential_lpdf({} | 0, {})"
        if self.density_name != "laplace":
            density = "student_t_lpdf({} | " + literal(HEAVY) + ", 0, {})"
        return scaled_columns(self.name, block, values[0], scope, density)


def _scale(choices: Choices, spread: float) -> PositiveParameter:
    return choices.positive(NAME, replace(SCALE, median=spread * SCALE.median), spread)
