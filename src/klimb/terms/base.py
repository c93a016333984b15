"""The contract of a term: what one kind of term of a formula knows, in one place.

A term learns from the data what it needs for any other rows (levels, knots, points), makes its columns, has a prior
over their weights at given hyperparameters, gives the gradient of the bound in those, and names what a table shows.

    f = sum over terms of (columns of the row)'(weights of the term) + shifts

A new kind is one file, one entry of `klimb.terms.TERMS` and one row of the documentation.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from klimb._stan import StanDefinition, StanPart, StanScope, said
from klimb.errors import InputError
from klimb.formula.factors import Factor
from klimb.formula.functions import Function
from klimb.latents.weights_posterior import Moments
from klimb.likelihoods import Choices, Units
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import Exponential
from klimb.rows.table import Source
from klimb.sites.base import Site
from klimb.terms.column_moments import ColumnMoments
from klimb.theta import ParameterBlock, PositiveParameter, RowKind

UNSEEN = -1  # code of a level that was not there when the model was fitted


@dataclass(frozen=True, eq=False)
class Dense:
    """Columns as they are."""

    values: Array  # (n, k)
    kept: dict[str, ColumnMoments] = field(default_factory=dict, repr=False)

    def moments(self, shares: Array) -> ColumnMoments:
        """Of the columns, weighted by the ``shares`` of the data; they are worked out once."""
        if "moments" not in self.kept:
            self.kept["moments"] = ColumnMoments.of(self.values, shares)
        return self.kept["moments"]

    def some(self, rows: slice) -> Self:
        """The columns of some rows; every kind of block has them."""
        return replace(self, values=self.values[rows], kept={})


@dataclass(frozen=True, eq=False)
class Coded:
    """A code per row, and the values that multiply the weights of that level: never densified where it is large."""

    codes: Index  # (n,), `UNSEEN` for a level that was not there at the fit
    values: Array  # (n, k)
    n_levels: int

    def some(self, rows: slice) -> Self:
        return replace(self, codes=self.codes[rows], values=self.values[rows])

    def unseen(self) -> Self:
        """The same rows, each of a level that was not there at the fit."""
        return replace(self, codes=np.full_like(self.codes, UNSEEN))

    def dense(self) -> Array:
        """The same as columns, level by level."""
        return np.asarray(self.sparse().toarray())

    def sparse(self) -> Any:
        """The same as a CSR matrix."""
        n, k = self.values.shape
        at = np.flatnonzero(self.codes >= 0)
        columns = self.codes[at, None] * k + np.arange(k)
        counts = np.where(self.codes >= 0, k, 0)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return scipy_sparse.csr_matrix((self.values[at].ravel(), columns.ravel(), starts), shape=(n, self.n_levels * k))


@dataclass(frozen=True, eq=False)
class Nodes:
    """Rows of a field: few nonzeros each, over its nodes and whatever other weights it has."""

    values: Any  # (n, size) CSR matrix
    beyond: Any = None  # what a term needs of rows that stand at no node of it, (n, ...); None where all do

    def some(self, rows: slice) -> Self:
        beyond: Any = None if self.beyond is None else self.beyond[rows] if not isinstance(self.beyond, tuple) else (
            tuple(one.some(rows) for one in self.beyond))  # those of the terms of a product
        return replace(self, values=self.values[rows], beyond=beyond)


@dataclass(frozen=True, eq=False)
class Moving:
    """Inputs whose columns move with the hyperparameters."""

    inputs: Array  # (n, d)

    def some(self, rows: slice) -> Self:
        return replace(self, inputs=self.inputs[rows])


@dataclass(frozen=True, eq=False)
class Placed:
    """Columns that stand in the matrix of the model already."""

    def some(self, rows: slice) -> Self:
        return self


TermBlock: TypeAlias = Dense | Coded | Nodes | Moving | Placed


@dataclass(frozen=True, eq=False)
class WeightsPrior:
    """N(mean, covariance) of the weights of a term, without matrices larger than a level's.

    ``root`` (k, k): every one of ``copies`` levels has N(mean of the level, root root'). ``precision``: a sparse
    matrix on a pattern that does not move, with its log determinant where `Term.constraints` hold. Otherwise
    ``variances`` (D,).
    """

    mean: Array  # (D,)
    variances: Array  # (D,)
    root: Array | None = None
    copies: int = 1
    precision: Any = None  # (D, D) CSC matrix
    logdet: float = 0.0  # of ``precision``


@dataclass(frozen=True, eq=False)
class Reported:
    """What a table shows of a term: names, and the linear map from the term's weights to them."""

    names: tuple[str, ...]
    map: Array | None  # (names, weights); None is the identity
    kind: RowKind
    at_zero: Array | None = None  # (weights,): what the intercept takes from them, so that it speaks of columns at 0


@dataclass(frozen=True, eq=False)
class Context:
    """What a term's default priors depend on, and the priors that the user asked for."""

    units: Units
    centre: Array  # (fields,): where the intercepts' priors are centred
    reach: float  # the scale of the intercept's prior before it is widened
    shares: Array  # (n,): weights of the rows that sum to one
    choices: Choices
    intercept: bool = True  # False where cut points take its part
    follows: str = ""  # the centre in words, where it moves with parameters of the likelihood
    centred: bool = True  # False where f has neither an intercept nor cut points, so that columns are not centred

    def sd(self, name: str, kind: RowKind) -> PositiveParameter:
        """The standard deviation of a part of f whose size at 1 is about 1 everywhere."""
        unit = self.units.spread
        return self.choices.positive(f"sd({name})", Exponential(unit), unit, begin=0.5 * unit, kind=kind)


@dataclass(frozen=True, eq=False)
class FeatureGradients:
    """d bound / d features, by blocks of rows, and what the weights behind them look like."""

    pieces: Iterator[tuple[slice, Array, Array]]  # rows, d bound / d features (n, k), d bound / d slack (n,)
    moments: Array  # E[u u'] - I, (k, k)


class Term(ABC):
    """One term: records; ``ready`` returns the one that knows its prior. Blocks are those of its method ``block``."""

    kind: ClassVar[str]
    functions: ClassVar[tuple[Function, ...]] = ()  # what formulas call it by
    holds: ClassVar[str] = ""  # the data that it keeps, in words, for whoever passes a file on
    name: str
    parameters: tuple[ParameterBlock, ...]
    follows: Array | None = None  # (weights,): 1 where the prior's mean moves with the centre of the likelihood

    @property
    @abstractmethod
    def size(self) -> int:
        """How many weights it has."""

    @abstractmethod
    def block(self, source: Source) -> TermBlock:
        """Its columns for any rows."""

    @abstractmethod
    def ready(self, block: Any, context: Context) -> Self:
        """The term with its priors, which depend on the data of the fit."""

    def settled(self, block: Any) -> Any:
        """The columns of the fit after ``ready`` learnt how to centre and scale them; new rows come so at once."""
        return block

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        """The prior of its weights for one latent field, given the values of its parameters."""
        raise NotImplementedError

    def constraints(self) -> Array | None:
        """Rows C with C w = 0 for its weights; None where there are none."""
        return None

    def columns_at(self, block: Any, values: Sequence[Any]) -> Any:
        """Its sparse columns; they may move with its parameters for rows that stand at none of its nodes."""
        return block.values if isinstance(block, Nodes) else block.sparse()

    def density(self, values: Sequence[Any]) -> Site | None:
        """One site per weight, where their prior is no Gaussian; ``prior`` is then wide, only there to be proper."""
        return None

    def log_taper(self, values: Sequence[Any]) -> float:
        """log int density(w) prior(w) dw: what the bound counts too much where the prior is a density."""
        return 0.0

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[Any, ...]:
        """d bound / d value of each parameter, from q's second moments of the weights."""
        return ()

    def features(self, block: Moving, values: Sequence[Any]) -> tuple[Array, Array]:
        """Columns of a `Moving` block and the variance that they leave unexplained."""
        raise NotImplementedError

    def pull_features(self, block: Moving, values: Sequence[Any], found: FeatureGradients) -> tuple[Any, ...]:
        """d bound / d value of each parameter, through the features."""
        raise NotImplementedError

    def shift(self, block: Any) -> Array | None:
        """What it adds to f without a weight."""
        return None

    def new(self, block: Any, values: Sequence[Any]) -> Array | None:
        """(n, r): root of the variance that levels never seen add to each row; None where there are none."""
        return None

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the coefficients that it will report, for terms other than the fixed one."""
        return ()

    def report(self) -> Reported | None:
        """The coefficients that the table shows; None where only its parameters are shown."""
        return None

    def note(self) -> str:
        """What a fit says of what it chose for itself."""
        return ""

    def doubt(self, values: Sequence[Any]) -> tuple[float, str]:
        """How many times the values of its parameters are beyond what it can tell, and what to do; up to 1 it can.

        Above 1 at the best values this is a note of the fit; far above it in most of the posterior, a doubt.
        """
        return 0.0, ""

    def level_columns(self) -> tuple[str, ...]:
        """The columns that it reads as levels, whatever their type."""
        return ()

    def factors(self) -> dict[str, Factor]:
        """The factors of the formula that it is made of, by key."""
        return {}

    def stan(self, block: Any, values: Sequence[str], scope: StanScope) -> StanPart:
        """Its columns, weights, their prior and what it adds to f in Stan, the values of its parameters by name."""
        raise InputError("this needs a term that can be written in Stan", self.name, "Give the term a method stan.")

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        """(..., D) weights in units of their prior's root: the parameters of a program in Stan that is not centred."""
        return np.asarray(weights / values[0])


class OneScale(Term):
    """A term whose weights are independent with one standard deviation, the value of its only parameter."""

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        return WeightsPrior(np.zeros(self.size), np.full(self.size, values[0] ** 2))

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[float, ...]:
        """d bound / ds = (E|w|^2 / s^2 - D) / s."""
        total = float((moments.mean**2).sum() + moments.variances().sum())
        return ((total / values[0] ** 2 - self.size) / values[0],)

    def stan(self, block: Dense, values: Sequence[str], scope: StanScope) -> StanPart:
        return scaled_columns(self.name, block, values[0], scope)


def scaled_columns(name: str, block: Dense, scale: str, scope: StanScope,
                   density: str = "normal_lpdf({} | 0, {})") -> StanPart:
    """Columns in Stan whose weights have one scale: ``density`` of weights and scale."""
    tag, size = scope.tag, block.values.shape[1]
    part = StanPart(data=(f"matrix[N, {size}] X{tag};" + said(f"columns of {name}"),), values={f"X{tag}": block.values},
                    value=f"X{tag} * b{tag}{{c}}", weights=f"b{tag}", shape=(size,))
    return with_scaled_weights(part, f"vector[{size}]", scale, scope, density)


def with_scaled_weights(part: StanPart, kind: str, scale: str, scope: StanScope, density: str) -> StanPart:
    """The weights ``b`` of a part, as they are or as ``scale`` times ``z``."""
    b, z = f"b{scope.tag}", f"z{scope.tag}"
    if scope.centred:
        return replace(part, parameters=(scope.declare(kind, "b"),), names=(b,),
                       model=(f"target += {density.format(b + '{c}', scale)};",))
    return replace(part, parameters=(scope.declare(kind, "z", "b in units of its scale"),), names=(z,),
                   transformed=(StanDefinition(kind, b, f"{scale} * {z}{{c}}"),),
                   model=(f"target += {density.format(z + '{c}', 1)};",))
