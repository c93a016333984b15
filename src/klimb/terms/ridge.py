"""Coefficients of standardised columns: ``ridge(x, ...)`` with one scale, ``sparse(x, ...)`` of which few matter.

    ridge:   w_j ~ N(0, scale^2)                                     scale ~ log_normal(median 1, sd 2)
    sparse:  w_j ~ Laplace(scale) or StudentT(2, scale)              scale ~ log_normal(median 0.1, sd 2)

The scale is learnt, and in units of the response where f has its unit. Levels have a column each. A coefficient is
reported per unit of its column, and the intercept where all columns are 0.

A sparse prior of a weight is one more site, on f = w_j itself. What the engine calls the prior is a Gaussian so wide
(`TAPER`) that it only makes the product proper; its share in the normalisation, Z = int p(w) N(w; 0, TAPER^2) dw for
each weight, is taken out of the bound.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from klimb._stan import StanPart, StanScope, literal
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.factors import Factor, learn_factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.latents.weights_posterior import Moments
from klimb.likelihoods import Choices
from klimb.priors import LogNormal
from klimb.rows.scaling import Scaling
from klimb.rows.table import Source
from klimb.sites.base import Site
from klimb.sites.real import Laplace, StudentT
from klimb.terms.base import Context, Dense, OneScale, Reported, Term, WeightsPrior, scaled_columns
from klimb.theta import ParameterBlock

SPREAD = 2.0  # sd of the log of the prior scale: says little, but that it is neither 0 nor infinite
TAPER = 1e3  # in units of the response over a column's spread, where coefficients beyond some tens do not happen
DENSITIES = ("laplace", "student_t")
HEAVY = 2.0  # degrees of freedom of the Student-t prior
DIFFERENCE = 1e-5  # in the log of the scale, for the derivative of expected log densities
RIDGE, SPARSE = "scale(ridge)", "scale(sparse)"


class ColumnsTerm(Term):
    """Columns of a formula, or (without factors) ``count`` columns of a matrix that come standardised."""

    scale_name: ClassVar[str]
    typical: ClassVar[float]  # median of the scale
    count: int
    used: dict[str, Factor]
    scaling: Scaling | None

    @abstractmethod
    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior: ...

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> tuple[Self, ...]:
        """How many columns a call names, and their factors in order."""
        used = {str(node): learn_factor(node, source, text) for node in bind(call)["x"]}
        return (cls(sum(len(factor.names(True)) for factor in used.values()), used=used),)  # type: ignore[call-arg]

    @classmethod
    def of_matrix(cls, count: int, choices: Choices, spread: float = 1.0, **facts: Any) -> Self:
        """For standardised columns of a matrix."""
        return replace(cls(count, **facts), **cls._scaled(choices, spread))  # type: ignore[call-arg, type-var]

    @classmethod
    def _scaled(cls, choices: Choices, spread: float) -> dict[str, Any]:
        """The unit of the weights, and their scale."""
        prior = LogNormal(spread * cls.typical, SPREAD)
        return {"spread": spread, "parameters": (choices.positive(cls.scale_name, prior, spread),)}

    def ready(self, block: Dense, context: Context) -> Self:
        scaling = Scaling.of(block.values, context.shares, centred=context.centred)
        return replace(self, scaling=scaling, **self._scaled(context.choices, context.units.spread))  # type: ignore[type-var]

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
class Ridge(OneScale, ColumnsTerm):
    """Columns whose coefficients share one prior scale."""

    kind, scale_name, typical = "ridge", RIDGE, 1.0
    functions = (Function("ridge", "special", (Parameter("x", "numeric", many=True),),
                          "coefficients that share one prior scale, which is learnt; ridge(.): all other columns"),)
    count: int
    used: dict[str, Factor] = field(default_factory=dict)
    scaling: Scaling | None = None
    spread: float = 1.0  # the unit of the weights
    name: str = "ridge"
    parameters: tuple[ParameterBlock, ...] = ()


@stored("term.sparse")
@dataclass(frozen=True, eq=False)
class Sparse(ColumnsTerm):
    """Columns of whose coefficients few matter."""

    kind, scale_name, typical = "sparse", SPARSE, 0.1
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
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> tuple[Self, ...]:
        density = str(bind(call)["prior"])
        require(density in DENSITIES, "expected prior=laplace or prior=student_t", density, "Leave it out for laplace.")
        return tuple(replace(found, density_name=density) for found in super().learn(call, source, text, factors))

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
