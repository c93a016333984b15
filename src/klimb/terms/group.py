"""``(1 + x | g)``: every level of g has its own coefficients, normal with one covariance for all levels."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np

from klimb._stan import StanDefinition, StanPart, StanScope, ToldLevels, said
from klimb._stored import stored
from klimb.formula.factors import INTERCEPT, Factor, LevelFactor, Product, design, design_names, full_rank
from klimb.formula.functions import bind
from klimb.formula.nodes import Name
from klimb.formula.parts import Grouping
from klimb.latents.weights_posterior import Moments
from klimb.numerics.arrays import Array
from klimb.priors import LKJ, Exponential
from klimb.rows.columns import Codes
from klimb.rows.table import Source
from klimb.terms.base import UNSEEN, Coded, Context, Term, WeightsPrior, with_scaled_weights
from klimb.terms.margins import freed
from klimb.theta import GroupCovariance, ParameterBlock

JOIN = ":"  # levels of g:h are written "a:b"


@stored("term.group")
@dataclass(frozen=True, eq=False)
class Group(Term):
    """A grouping factor: the levels of its columns, those combinations that occurred, and its effects."""

    kind = "group"
    name: str
    group_columns: tuple[str, ...]  # g, h of g:h
    group_levels: tuple[tuple[str, ...], ...]  # of each column
    cells: tuple[tuple[int, ...], ...] | None  # combinations that occurred; None for one column: all of its levels
    effects: tuple[Product, ...]
    correlated: bool
    used: dict[str, Factor]
    parameters: tuple[ParameterBlock, ...] = ()
    mix: Array = field(default_factory=lambda: np.zeros((0, 0)))  # the columns inside are X mix; empty: as written

    @classmethod
    def learn(cls, grouping: Grouping, source: Source, text: str, factors: dict[str, Factor]) -> "tuple[Group, ...]":
        """The groups that occur in the data."""
        columns = tuple(node.name if isinstance(node, Name) else bind(node)["x"].name for node in grouping.groups)
        levels = tuple(source.with_waiting.levels(column)[0] for column in columns)
        cells = None
        if len(columns) > 1:
            sizes = [len(labels) for labels in levels]
            flat = source.with_waiting.folded(partial(_combinations, columns, levels), np.union1d, columns)
            cells = tuple(tuple(int(k) for k in np.unravel_index(cell, sizes)) for cell in flat.tolist())
        keys = [[str(factor) for factor in term] for term in grouping.effects]
        effects = tuple(full_rank(keys, lambda key: isinstance(factors[key], LevelFactor)))
        used = {key: factors[key] for product in effects for key, _ in product}
        return (cls(grouping.name, columns, levels, cells, effects, grouping.correlated, used),)

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the groups."""
        if self.cells is None:
            return self.group_levels[0]
        return tuple(JOIN.join(levels[k] for levels, k in zip(self.group_levels, cell, strict=True))
                     for cell in self.cells)

    def level_columns(self) -> tuple[str, ...]:
        return self.group_columns

    @property
    def n_levels(self) -> int:
        return len(self.group_levels[0]) if self.cells is None else len(self.cells)

    @property
    def columns(self) -> tuple[str, ...]:
        """What varies by group: ("Intercept", "x")."""
        return design_names(self.effects, self.used)

    @property
    def size(self) -> int:
        return self.n_levels * len(self.columns)

    def codes(self, source: Source) -> Codes:
        """The group of each row; `UNSEEN` for one that was not there at the fit."""
        parts = [source.codes(column, levels)
                 for column, levels in zip(self.group_columns, self.group_levels, strict=True)]
        if self.cells is None:
            return parts[0]
        sizes = [len(levels) for levels in self.group_levels]
        known = _flatten([np.array(part) for part in zip(*self.cells, strict=True)], sizes)
        asked = _flatten(parts, sizes)
        place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.where(known[place] == asked, place, UNSEEN)

    def block(self, source: Source) -> Coded:
        own = np.broadcast_to(1.0, (source.n, 1)) if self.effects == ((),) else design(self.effects, self.used, source)
        return self.settled(Coded(self.codes(source), np.asarray(own), self.n_levels))

    def settled(self, block: Coded) -> Coded:
        return replace(block, values=block.values @ self.mix) if self.mix.size else block

    def ready(self, block: Coded, context: Context) -> Self:
        """Default priors act on columns freed of what is marginal to them; those of the user on what is printed."""
        columns, choices, k = self.columns, context.choices, len(self.columns)
        mix = np.eye(k)
        if self.correlated:
            mix = freed(block.values, self.effects, self.used, context.shares, np.zeros(k, dtype=bool))
        mixed = np.count_nonzero(mix, axis=1) > 1  # coefficients that others move
        if not mixed.any():
            mix = np.zeros((0, 0))
        freed_block = replace(self, mix=mix).settled(block)
        sizes = np.sqrt(context.shares @ freed_block.values**2)
        sds = []
        for column, size in zip(columns, sizes.tolist(), strict=True):
            unit = context.units.spread / (size or 1.0)
            name = f"sd({self.name})" if column == INTERCEPT else f"sd({column} | {self.name})"
            sds.append(choices.positive(name, Exponential(unit), unit, begin=0.5 * unit, kind="group"))
        if any(not sd.free for sd, moved in zip(sds, mixed, strict=True) if moved) or any(
                sd.support.bounded for sd in sds):
            mix = np.zeros((0, 0))  # what is held or has limits has them as it is printed
        names, prior = self._correlations(context)
        given = any(choices.given(name) for name in (*names, f"cor({self.name})")) or any(
            choices.given(sd.name) for sd, moved in zip(sds, mixed, strict=True) if moved)
        covariance = GroupCovariance(tuple(sds), names, prior, mix=mix, as_printed=given)
        choices.printed.update({name: words for name, words in covariance.printed().items() if name in choices.printed})
        return replace(self, parameters=(covariance,), mix=mix)

    @property
    def uncentred(self) -> Array:
        """From the coefficients of a level inside to those of the columns as they are written."""
        return self.mix if self.mix.size else np.eye(len(self.columns))

    def _correlations(self, context: Context) -> tuple[tuple[str, ...], LKJ]:
        k, columns = len(self.columns), self.columns
        if not self.correlated or k == 1:
            return (), LKJ(2.0)
        names = tuple(f"cor({columns[j]}, {columns[i]} | {self.name})" for i in range(1, k) for j in range(i))
        found = [context.choices.take(name, LKJ(2.0), LKJ, "", f"cor({self.name})") for name in names]
        given = next((prior for prior in found if isinstance(prior, LKJ) and prior != LKJ(2.0)), LKJ(2.0))
        return names, given

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        (root,) = values
        variances = np.tile((root**2).sum(axis=1), self.n_levels)
        return WeightsPrior(np.zeros(self.size), variances, root, self.n_levels)

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[Array, ...]:
        """d bound = tr(R^-1 dR (W - L I)), W = R^-1 M R^-T, M the sum over L levels of E[b b']: R^-T (W - L I) in R."""
        (root,) = values
        inverse = np.linalg.inv(root)
        inside = inverse @ moments.blocks(len(root)) @ inverse.T - self.n_levels * np.eye(len(root))
        return (np.asarray(inverse.T @ inside, dtype=np.float64),)

    def new(self, block: Coded, values: Sequence[Any]) -> Array | None:
        unseen = block.codes < 0
        if not unseen.any():
            return None
        return np.asarray(np.where(unseen[:, None], block.values, 0.0) @ values[0])

    def factors(self) -> dict[str, Factor]:
        return self.used

    def stan(self, block: Coded, values: Sequence[str], scope: StanScope) -> StanPart:
        """Weights ``b``: a vector over levels, or a matrix with a column for each level."""
        tag, k, L, (root,) = scope.tag, len(self.columns), self.n_levels, values
        group, x, b = f"g{tag}", f"x{tag}", f"b{tag}"
        part = StanPart(data=(f"array[N] int<lower=1, upper={L}> {group};" + said(f"level of {self.name}"),),
                        values={group: block.codes + 1}, weights=b, shape=(L,), value=f"{b}{{c}}[{group}]")
        if k == 1:
            if (block.values != 1.0).any():
                part = replace(part, data=(*part.data, f"vector[N] {x};" + said(self.columns[0])), values={
                    **part.values, x: block.values[:, 0]}, value=f"{x} .* {b}{{c}}[{group}]")
            if scope.told is not None:
                return _told_scalars(part, scope.told, root, tag)
            return with_scaled_weights(part, f"vector[{L}]", root, scope, "normal_lpdf({} | 0, {})")
        kind, z = f"matrix[{k}, {L}]", f"z{tag}"
        index = f"{b}[c, :, {group}]" if scope.classes > 1 else f"{b}[:, {group}]"
        part = replace(part, data=(*part.data, f"matrix[{k}, N] {x};" + said(", ".join(self.columns))), values={
            **part.values, x: block.values.T}, value=f"columns_dot_product({x}, {index})'", shape=(k, L))
        if self.mix.size:
            part = replace(part, generated=(StanDefinition(kind, f"level{tag}", f"T{tag} * {b}{{c}}"),))
        prior = (f"std_normal_lpdf(to_vector(mdivide_left_tri_low({root}, {b}{{c}}))) - {L} * "
                 f"sum(log(diagonal({root})))")
        if scope.told is not None:
            return _told_vectors(part, scope.told, root, prior, tag)
        if scope.centred:
            return replace(part, parameters=(scope.declare(kind, "b"),), names=(b,), model=(f"target += {prior};",))
        return replace(part, parameters=(scope.declare(kind, "z", "b in units of their root"),), names=(z,),
                       transformed=(StanDefinition(kind, b, f"{root} * {z}{{c}}"),),
                       model=(f"target += std_normal_lpdf(to_vector({z}{{c}}));",))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        (root,) = values
        levels = weights.reshape(*weights.shape[:-1], self.n_levels, len(root))
        return np.asarray(np.linalg.solve(root, levels[..., None]).reshape(weights.shape))


def _told_scalars(part: StanPart, told: ToldLevels, sd: str, tag: str) -> StanPart:
    """One weight for each level, in units of what its rows and its prior say of it together."""
    L, B = told.lean.shape[0], told.lean.shape[2]
    lean = f" - lean{tag} * b" if B else ""
    return replace(
        part, parameters=(f"vector[{L}] z{tag};" + said("b in units of what rows and prior say"),), names=(f"z{tag}",),
        data=(*part.data, f"vector[{L}] told{tag};" + said("precision that the rows give each level"),
              f"vector[{L}] pull{tag};", *((f"matrix[{L}, {B}] lean{tag};",) if B else ())),
        values={**part.values, f"told{tag}": told.precision[:, 0, 0], f"pull{tag}": told.pull[:, 0],
                **({f"lean{tag}": told.lean[:, 0]} if B else {})},
        transformed=(StanDefinition(f"vector[{L}]", f"width{tag}", f"inv_sqrt(inv_square({sd}) + told{tag})"),
                     StanDefinition(f"vector[{L}]", f"b{tag}",
                                    f"square(width{tag}) .* (pull{tag}{lean}) + width{tag} .* z{tag}")),
        model=(f"target += normal_lpdf(b{tag} | 0, {sd}) + sum(log(width{tag}));",))


def _told_vectors(part: StanPart, told: ToldLevels, root: str, prior: str, tag: str) -> StanPart:
    """The same for k weights of each level."""
    L, k, B = told.lean.shape
    kind, low = f"matrix[{k}, {k}]", f"cholesky_decompose(inverse{tag} + told{tag}[l])"
    lean = f" - lean{tag}[l] * b" if B else ""
    steps = (f"vector[{L}] volume{tag};", f"for (l in 1:{L}) {{", f"  {kind} low = {low};",
             f"  vector[{k}] away = mdivide_left_tri_low(low, pull{tag}[l]{lean}) + z{tag}[:, l];",
             f"  b{tag}[:, l] = mdivide_right_tri_low(away', low)';",
             f"  volume{tag}[l] = -sum(log(diagonal(low)));", "}")
    return replace(
        part, names=(f"z{tag}",),
        parameters=(f"matrix[{k}, {L}] z{tag};" + said("b in units of what rows and prior say"),),
        data=(*part.data, f"array[{L}] {kind} told{tag};" + said("precision that the rows give each level"),
              f"array[{L}] vector[{k}] pull{tag};", *((f"array[{L}] matrix[{k}, {B}] lean{tag};",) if B else ())),
        values={**part.values, f"told{tag}": told.precision, f"pull{tag}": told.pull,
                **({f"lean{tag}": told.lean} if B else {})},
        transformed=(StanDefinition(kind, f"inverse{tag}",
                                    f"crossprod(mdivide_left_tri_low({root}, identity_matrix({k})))"),
                     StanDefinition(f"matrix[{k}, {L}]", f"b{tag}", "", steps=steps)),
        model=(f"target += {prior.replace('{c}', '')} + sum(volume{tag});",))


def _combinations(columns: Sequence[str], levels: Sequence[tuple[str, ...]], source: Source) -> Codes:
    """Which levels of several columns occur together."""
    parts = [source.codes(column, known) for column, known in zip(columns, levels, strict=True)]
    return np.unique(_flatten(parts, [len(known) for known in levels]))


def _flatten(parts: list[Codes], sizes: list[int]) -> Codes:
    """One number per combination, in the order of the first column, then the second, ...; -1 where one is unknown."""
    total = np.zeros(len(parts[0]), dtype=np.int64)
    bad = np.zeros(len(parts[0]), dtype=bool)
    for part, size in zip(parts, sizes, strict=True):
        total = total * size + part
        bad |= part < 0
    return np.where(bad, -1, total).astype(np.intp)
