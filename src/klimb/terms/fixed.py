"""Columns with fixed, wide priors: the intercept, covariates, contrasts of factors, interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import numpy as np

from klimb._stan import StanPart, StanScope, said
from klimb._stored import stored
from klimb.formula.coding import Product
from klimb.formula.factors import Factor
from klimb.formula.products import INTERCEPT, design, design_names
from klimb.numerics.arrays import Array
from klimb.priors import Normal
from klimb.rows.table import Source
from klimb.terms.base import Context, Dense, Reported, Term, TermBlock, WeightsPrior
from klimb.terms.margins import constant_in, freed
from klimb.theta import ParameterBlock

WIDTH = 2.5  # prior sd of a coefficient, in units of f over the spread of its column


@final
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

    @property
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
        every = Dense(np.asarray(design(self.products, self.used, source)))
        return self.settled(every) if len(self.sd) or not self.products else every

    def settled(self, block: TermBlock) -> Dense:
        assert isinstance(block, Dense)
        every = block.values if len(self.kept) == block.values.shape[1] else block.values[:, list(self.kept)]
        if self.mix.size:
            every = every @ self.mix
        return Dense(every - self.centre if self.centre.any() else every)

    def ready(self, block: TermBlock, context: Context) -> Self:
        assert isinstance(block, Dense)
        every, shares = self.every_name, context.shares
        kept = tuple(j for j, name in enumerate(every) if context.intercept or name != INTERCEPT)
        U = self._freed(block.values, context)
        at = every.index(INTERCEPT) if INTERCEPT in every else -1
        centre = np.zeros(len(kept))
        if at >= 0:
            centre = np.where([k == at for k in kept], 0.0, -U[at, list(kept)])
        mix = U[np.ix_(kept, kept)]
        if at in kept:
            mix[kept.index(at)] = np.where(np.arange(len(kept)) == kept.index(at), 1.0, 0.0)
        if np.array_equal(mix, np.eye(len(kept))):
            mix = np.zeros((0, 0))
        placed = replace(self, kept=kept, centre=centre, mix=mix)
        Z = placed.settled(block).values
        largest = np.abs(Z).max(axis=0, initial=0.0)
        spread = np.sqrt(shares @ (Z - shares @ Z) ** 2)
        unit = np.where(spread > 1e-12 * largest, spread, largest)
        mean, sd = np.zeros((len(context.centre), len(kept))), np.ones(len(kept))
        cells = self._cells(at >= 0)
        for j, k in enumerate(kept):
            if k == at or cells[k]:
                prior = self._level(context, every[k])
                mean[:, j] = prior.mean if len(context.centre) == 1 else context.centre
            else:
                default = Normal(0.0, WIDTH * context.units.spread / (float(unit[j]) or 1.0))
                prior = _normal(context, every[k], default, "", "fixed")
                mean[:, j] = prior.mean
            sd[j] = prior.sd
        return replace(placed, mean=mean, sd=sd)

    def _freed(self, X: Array, context: Context) -> Array:
        """The map to columns freed of their margins; those with priors of the user's are not taken out of others."""
        alone = np.array([context.choices.given(name) for name in self.every_name], dtype=bool)
        return freed(X, self.products, self.used, context.shares, alone)

    def _cells(self, has_intercept: bool) -> Array:
        """Which columns are cells that stand for the constant where there is no intercept."""
        constant = None if has_intercept else constant_in(self.products, self.used)
        return np.zeros(len(self.every_name)) if constant is None else constant

    def _level(self, context: Context, name: str) -> Normal:
        """The prior of the intercept, or of a cell: around the mean response."""
        level = float(context.centre[0]) if len(context.centre) == 1 else 0.0
        default = Normal(level, WIDTH * max(context.reach, context.units.spread))
        if name != INTERCEPT:
            return _normal(context, name, default, "", "fixed")
        return _normal(context, name, default, " (where other columns are at their means)", None)

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

    def stan(self, block: TermBlock, values: Sequence[str], scope: StanScope) -> StanPart:
        assert isinstance(block, Dense)
        K, mean = self.size, self.mean if scope.classes > 1 else self.mean[0]
        return StanPart(
            data=(f"matrix[N, {K}] X;" + said(f"freed of the columns marginal to each: {', '.join(self.names)}"),
                  scope.declare(f"vector[{K}]", "b_mean"), f"vector<lower=0>[{K}] b_sd;"),
            values={"X": block.values, "b_mean": mean, "b_sd": self.sd},
            parameters=(scope.declare(f"vector[{K}]", "b"),), names=("b",), weights="b", shape=(K,), value="X * b{c}",
            model=("target += normal_lpdf(b{c} | b_mean{c}, b_sd);",))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        return weights


def _normal(context: Context, name: str, default: Normal, note: str, family: str | None) -> Normal:
    prior = context.choices.take(name, default, Normal, note, family)
    assert isinstance(prior, Normal)
    return prior
