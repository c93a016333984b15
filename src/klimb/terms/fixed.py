"""Columns with fixed, wide priors: the intercept, covariates, contrasts of factors, interactions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stan import StanPart, StanScope, said
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.factors import INTERCEPT, Factor, LevelFactor, Product, contrast, design, design_names
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.priors import Normal
from klimb.rows.table import Source
from klimb.terms.base import Context, Dense, Reported, Term, WeightsPrior
from klimb.terms.column_moments import ColumnMoments
from klimb.terms.margins import constant_in, freed, owners
from klimb.theta import ParameterBlock

MOST_CELLS = 300  # levels up to which cells are brought to the constant and contrasts, which takes a dense matrix
LARGEST = 1e150  # entry of a column, and one over the least, so that squares are numbers
WIDTH = 2.5  # prior sd of a coefficient, in units of f over the spread of its column


@stored("term.fixed")
@dataclass(frozen=True, eq=False)
class FixedTerm(Term):
    """All products of the formula with wide priors.

    Inside, every column is freed of the constant and of the columns marginal to it (`klimb.terms.margins`), so that
    its default prior depends on nobody's origin: Z = X mix - centre. `report` has the way back.
    """

    kind = "fixed"
    products: tuple[Product, ...]
    used: dict[str, Factor]
    kept: tuple[int, ...] = ()  # columns of the products that have a weight; all but the intercept of cut points
    centre: Array = field(default_factory=lambda: np.zeros(0))
    mix: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (columns, columns); empty where it is the identity
    mean: Array = field(default_factory=lambda: np.zeros((1, 0)))  # (fields, columns), prior means
    sd: Array = field(default_factory=lambda: np.zeros(0))
    name: str = "fixed"
    parameters: tuple[ParameterBlock, ...] = ()
    follows: Array | None = None

    @cached_property
    def every_name(self) -> tuple[str, ...]:
        """Names of all columns of the products."""
        return design_names(self.products, self.used)

    @property
    def names(self) -> tuple[str, ...]:
        every = self.every_name
        return tuple(every[j] for j in self.kept)

    @property
    def size(self) -> int:
        return len(self.kept)

    def block(self, source: Source) -> Dense:
        if len(self.sd) == len(self.every_name) and not self.mix.size:
            return Dense(design(self.products, self.used, source, self.centre))
        every = Dense(np.asarray(design(self.products, self.used, source)))
        return self.settled(every) if len(self.sd) or not self.products else every

    def settled(self, block: Dense) -> Dense:
        """The block is used up: what may be millions of rows is settled where it stands."""
        every = block.values if len(self.kept) == block.values.shape[1] else block.values[:, list(self.kept)]
        if not self.mix.size:
            every -= self.centre
        else:
            for rows in row_blocks(*every.shape):
                every[rows] = self._settled(every[rows])
        return Dense(every)

    def _settled(self, rows: Array) -> Array:
        """Some rows of the columns that are kept."""
        return np.asarray((rows @ self.mix if self.mix.size else rows) - self.centre)

    def ready(self, block: Dense, context: Context) -> Self:
        every, shares = self.every_name, context.shares
        kept = tuple(j for j, name in enumerate(every) if context.intercept or name != INTERCEPT)
        at = every.index(INTERCEPT) if INTERCEPT in every else -1
        moments, choices = block.moments(shares), context.choices
        for name, size in zip(every, moments.size, strict=True):
            for value, most in ((size, LARGEST), (size / context.units.spread, 1e3 * LARGEST)):
                require(size == 0.0 or 1.0 / most < value < most,
                        f"columns must have sizes from {1.0 / most:g} to {most:g}, also over the sd of f",
                        f"{name!r} with {value:g}", "Change its unit.")
        apart = np.array([choices.given(name) or (choices.given("fixed") and name != INTERCEPT) for name in every],
                         dtype=bool)  # columns with priors of the user's are not taken out of others
        free = freed(block.values, self.products, self.used, shares, apart, moments)
        U, cells = self._around_constant(free, block.values, context)
        centre = np.zeros(len(kept))
        if at >= 0:
            centre = np.where([k == at for k in kept], 0.0, -U[at, list(kept)])
        mix = U[np.ix_(kept, kept)]
        if at in kept:
            mix[kept.index(at)] = np.where(np.arange(len(kept)) == kept.index(at), 1.0, 0.0)
        if np.array_equal(mix, np.eye(len(kept))):
            mix = np.zeros((0, 0))
        placed = replace(self, kept=kept, centre=centre, mix=mix)
        at_kept = list(kept)
        if mix.size:
            moments = ColumnMoments.of(block.values, shares, lambda rows: placed._settled(rows[:, at_kept]))
            largest, spread = moments.size, moments.sd
        else:
            ends = [end[at_kept] - centre for end in (moments.low, moments.high)]
            largest, spread = np.abs(ends).max(axis=0), moments.sd[at_kept]
        unit = np.where(spread > 1e-12 * largest, spread, largest)
        mean, sd = np.zeros((len(context.centre), len(kept))), np.ones(len(kept))
        follows = np.zeros(len(kept))
        for j, k in enumerate(kept):
            if k == at or cells[k]:
                prior = self._level(context, every[k])
                follows[j] = not context.choices.given(every[k]) and (k == at or not context.choices.given("fixed"))
                mean[:, j] = context.centre if follows[j] and len(mean) > 1 else prior.mean
            else:
                default = Normal(0.0, WIDTH * context.units.spread / (float(unit[j]) or 1.0))
                prior = _normal(context, every[k], default, "", "fixed")
                mean[:, j] = prior.mean
            sd[j] = prior.sd
        joint = np.flatnonzero(U[:, cells > 0.0].any(axis=1) & (cells.sum() == 1.0) & (at < 0))
        widths = np.sqrt(U[np.ix_(joint, joint)] ** 2 @ sd[joint] ** 2)
        for place, width in zip(joint.tolist(), widths.tolist(), strict=True):  # the constant and contrasts, inside
            alone = Normal(float(mean[0, joint[0]]) * (len(mean) == 1), width)
            where = "where other columns are at their means; cells share a part"
            context.choices.printed[every[place]] = f"{alone} ({where})"
        return replace(placed, mean=mean, sd=sd, follows=follows if context.follows else None)

    def _around_constant(self, U: Array, X: Array, context: Context) -> tuple[Array, Array]:
        """Which columns have the prior of an intercept where there is none: cells that make up the constant.

        Those of one factor become the constant and its contrasts, so that ``0 + h + k``, ``0 + k + h`` and ``1 + h +
        k`` are one model; unless the user has priors for cells, which are then independent, as printed.
        """
        constant = constant_in(self.products, self.used)
        if constant is None or INTERCEPT in self.every_name:
            return U, np.zeros(len(U))
        own, choices = np.flatnonzero(constant), context.choices
        product = self.products[owners(self.products, self.used)[own[0]]]
        factor = self.used[product[0][0]]
        given = any(choices.given(name) for name in ("fixed", *(self.every_name[k] for k in own)))
        if len(product) > 1 or given or len(own) > MOST_CELLS or not isinstance(factor, LevelFactor):
            return U, constant
        C = contrast(factor.contrast, factor.levels, factor.reference)
        U[np.ix_(own, own)] = np.hstack([np.ones((len(own), 1)), C - context.shares @ X[:, own] @ C])
        return U, np.where(np.arange(len(U)) == own[0], 1.0, 0.0)

    def _level(self, context: Context, name: str) -> Normal:
        """The prior of the intercept, or of a cell: around the mean response."""
        level = float(context.centre[0]) if len(context.centre) == 1 else 0.0
        default = Normal(level, WIDTH * max(context.reach, context.units.spread))
        if name != INTERCEPT:
            return _normal(context, name, default, "", "fixed")
        prior = _normal(context, name, default, "", None)
        level_words = context.follows or ("log frequency of each class" if len(context.centre) > 1 else "")
        words = f"normal({level_words}, {prior.sd:g})" if level_words and prior is default else str(prior)
        context.choices.printed[name] = f"{words} (where other columns are at their means)"
        return prior

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        return WeightsPrior(self.mean[field], self.sd**2)

    def report(self) -> Reported:
        """From the weights of columns inside to the coefficients of the columns as they are written."""
        T = self.mix.copy() if self.mix.size else np.eye(self.size)
        names = self.names
        if INTERCEPT in names:
            T[names.index(INTERCEPT)] -= self.centre
        return Reported(names, T, "fixed")

    def factors(self) -> dict[str, Factor]:
        return self.used

    def stan(self, block: Dense, values: Sequence[str], scope: StanScope) -> StanPart:
        K, mean = self.size, self.mean if scope.classes > 1 else self.mean[0]
        moves = "" if self.follows is None else f" + {scope.follows} * b_follows"
        extra = {} if self.follows is None else {"b_follows": self.follows}
        return StanPart(
            data=(f"matrix[N, {K}] X;" + said(f"freed of the columns marginal to each: {', '.join(self.names)}"),
                  scope.declare(f"vector[{K}]", "b_mean"), f"vector<lower=0>[{K}] b_sd;",
                  *(f"vector[{K}] {name};" for name in extra)),
            values={"X": block.values, "b_mean": mean, "b_sd": self.sd, **extra},
            parameters=(scope.declare(f"vector[{K}]", "b"),), names=("b",), weights="b", shape=(K,), value="X * b{c}",
            model=(f"target += normal_lpdf(b{{c}} | b_mean{{c}}{moves}, b_sd);",))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        return weights


def _normal(context: Context, name: str, default: Normal, note: str, family: str | None) -> Normal:
    prior = context.choices.take(name, default, Normal, note, family)
    assert isinstance(prior, Normal)
    return prior
