"""What a formula's model does with rows that are not in memory: a pass over blocks, each encoded where it is read.

A pass sends out the encoder, the model at its theta and q, and gets sums back; the engine maps, and the sums are taken
here, block after block, so that they have the same bits whatever the engine and the number of its workers.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from klimb.infer.loop import Callback
from klimb.infer.problem import ROUNDING
from klimb.infer.result import Result
from klimb.infer.rows import SiteSums, few_rows, infer_rows, sums_of, total_sums
from klimb.latents.base import Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Observed, likelihood
from klimb.linalg.matrix import LARGEST_SINGLE, ColumnDesign
from klimb.models.budget import MemoryLimit
from klimb.models.linear import LinearModel
from klimb.models.linear_parts import LinearRows
from klimb.models.plan import readable
from klimb.models.prior_sites import density_value
from klimb.models.progress import Watched
from klimb.models.row_gradients import add_features
from klimb.models.streamed_classes import PassedWeights, class_sums, solved_classes
from klimb.numerics.arrays import Array
from klimb.numerics.dense import CACHE_DOUBLES
from klimb.rows.blocks import BlockEngine, RowBlock
from klimb.rows.checkpoint import Checkpoint
from klimb.rows.frames import Frame
from klimb.rows.passed import mapped
from klimb.rows.reader import PieceReader, placed
from klimb.terms.base import Moving, Placed
from klimb.terms.encoder import Encoded, Encoder

MOST_KNOWN = 4  # fits that others may start from
FAR = 1e-2  # tolerance of what is done with a cheaper oracle, where a site has one
# The same with one variance for many rows, which takes q off by about D / sqrt(n) of its sd; how many rows in units of
# D^2 that asks for; and which rows give the variance.
NEAR, WIDE, EVERY = 0.3, 100.0, 64
SINGLE = float(np.finfo(np.float32).eps)
OF_PICKLES = 1e3  # bytes beside numbers
MOST_DRAWS = 32  # of weights that a pass of the verdict looks at
NODES, MOST_VALUES = 9, 1 << 21  # of quadrature over a level, and values there that a pass gives back for a block
INNER = 1e-11  # tolerance of a fit of few rows, where priors of weights are no Gaussians
ENOUGH, ROUGH = 10, 1e-3  # rows of a sample for each column, and tolerance, of a fit that a start is taken from


@dataclass(frozen=True, eq=False)
class BlockReader:
    """How rows of a block become columns and data: all that an engine has to know of a formula."""

    encoder: Encoder
    model: Any  # a `LinearModel` without rows; None as long as there are no priors
    weights: str | None
    rows: int  # at a time

    def names(self) -> tuple[str, ...]:
        response = () if self.encoder.response is None else self.encoder.response.columns
        return tuple(dict.fromkeys([*response, *self.encoder.predictors, *([self.weights] if self.weights else [])]))

    def encoded(self, block: RowBlock) -> Iterator[tuple[Frame, Encoded]]:
        """Some rows at a time, and the columns of those that are complete."""
        for frame, source, dropped in PieceReader(self.names(), self.weights, self.encoder.missing,
                                                  self.rows).sources(block):
            if source.n:
                yield frame, self.encoder.blocks(source, dropped, response=True)

    def pieces(self, block: RowBlock) -> Iterator[tuple[LinearRows, Observed]]:
        """The same as rows of the model, with their data."""
        for _, encoded in self.encoded(block):
            assert encoded.left is not None
            rows = self.model.arranged(encoded.blocks)
            offset = rows.shift if rows.shift.any() else None
            yield rows, self.model.likelihood.read(encoded.left, encoded.weights, offset)

    def each(self, work: Callable[[LinearRows, Observed], Any], block: RowBlock) -> list[Any]:
        """What ``work`` makes of the rows of a block, some at a time."""
        with placed(block):
            return [work(rows, data) for rows, data in self.pieces(block)]

    def summed(self, work: Callable[[LinearRows, Observed], SiteSums], block: RowBlock) -> SiteSums | None:
        """The sum of that; None for a block without rows."""
        found = self.each(work, block)
        return total_sums(found) if found else None


def site_sums(reader: BlockReader, q: WeightPosterior | None, sharper: float, rough: bool, rounded: bool,
              block: RowBlock) -> SiteSums | None:
    """The sums of one block at ``q``, or of sites that match each datum."""
    return reader.summed(partial(_sums, reader.model, q, sharper, rough, rounded), block)


def _sums(model: LinearModel, q: WeightPosterior | None, sharper: float, rough: bool, rounded: bool, rows: LinearRows,
          data: Observed) -> SiteSums:
    if len(model.likelihood.fields) > 1:
        return class_sums(model, q, sharper, rough, rows, data)
    site = model.site(data)
    y = site.validate(data.y)
    value, size, slopes = 0.0, 0.0, np.zeros(model.theta.size)
    X, slack = model.with_features(rows)
    if q is None:
        slope, gamma = (np.broadcast_to(part, y.shape) * sharper for part in site.start(y))
    else:
        L = model.rows_over(X, rows.codes, rows.values)
        design = ColumnDesign(L, rounded) if isinstance(L, np.ndarray) else L
        m, v = _with_mean_variance(q, X) if rough else q.at(design, slack)
        e = site.oracle(y, m, v)
        slope, gamma = -e.alpha if rounded else e.gamma * m - e.alpha, e.gamma
        each = e.value + site.constant(y)
        value, size = float(each.sum()), float(np.abs(each).sum())
        if rounded:  # d E log p / dv = -gamma / 2
            size += SINGLE / ROUNDING * float(np.abs(e.gamma) @ v)
        blocks = model.likelihood.parameters
        if blocks:
            own = model.theta.of_owner(model.at, blocks)
            model.theta.add(slopes, blocks, model.likelihood.gradient(own, data, m, v))
        if X is not rows.X:
            add_features(model, slopes, rows, X, slack, q, -e.alpha, e.gamma)
    found = sums_of(X, rows.codes, rows.values, slope, gamma, value, size, slopes, rounded)
    if rounded and q is not None:  # gamma'X m, by the same matrix: a mean is where slopes vanish, whatever that lacks
        found = found._replace(pull=found.pull + found.gram @ q.mean)
    if not rough or q is None:
        return found
    # To first order in what v_i differ from their mean, since d E log p / dv = -gamma / 2: sum_i gamma_i v_i = tr(V G).
    exact = float(np.sum((found.gram @ q.root) * q.root))  # type: ignore[attr-defined]
    return found._replace(value=value - 0.5 * (exact - float(gamma @ v)))


def _may_round(q: WeightPosterior | None, tol: float, n: int) -> bool:
    """Whether single precision, which rounds each block by itself, changes variances of q by less than ``tol``."""
    if q is None:
        return False
    root: Array = q.root  # type: ignore[attr-defined]
    sd = np.linalg.norm(root, axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size = 1.0 / (np.sqrt(n) * sd)  # that of a column, or less
        condition = float(np.linalg.cond(root / sd[:, None])) ** 2 if sd.all() else np.inf
    in_range = size.min() > 1.0 / LARGEST_SINGLE and size.max() < LARGEST_SINGLE
    return bool(in_range and SINGLE * condition <= min(tol, ROUGH) * np.sqrt(max(n * q.size / CACHE_DOUBLES, 1.0)))


def _with_mean_variance(q: WeightPosterior, X: Array) -> tuple[Array, Array]:
    """Means of f, and in place of each variance the mean of some: a product with V less."""
    every, some = ColumnDesign(X), ColumnDesign(X[::EVERY])
    return every.times(q.mean), np.full(len(X), float(q.at(some)[1].mean()))


@dataclass(frozen=True, eq=False)
class RowPasses:
    """The blocks of a table and the engine that goes over them; remembers the sums of fits."""

    blocks: Sequence[RowBlock]
    encoder: Encoder
    engine: BlockEngine | None
    weights: str | None
    n: int
    budget: MemoryLimit
    checkpoint: Checkpoint | None = None
    sample: Observed | None = None  # of some rows, those that a model has in memory; a first fit starts from theirs
    known: list[tuple[Array, SiteSums]] = field(default_factory=list)  # theta of earlier fits, and their sums
    ends: WeakKeyDictionary[Posterior, SiteSums] = field(default_factory=WeakKeyDictionary)  # as long as they are held
    exact: WeakKeyDictionary[Posterior, Any] = field(default_factory=WeakKeyDictionary)  # what q leaves out, put back

    def mapped(self, function: Callable[[Any], Any]) -> Iterable[Any]:
        """function(block) for every block, in order."""
        return mapped(self.engine, function, self.blocks)

    def summed(self, function: Callable[[RowBlock], SiteSums | None], n_levels: int, *identity: Any) -> SiteSums:
        """The sum of function(block) over all blocks; by ``identity`` from the checkpoint, where it is there."""
        if self.checkpoint is None:
            return total_sums(self.mapped(function), n_levels)
        return SiteSums.of_arrays(self.kept(lambda: total_sums(self.mapped(function), n_levels).arrays(), *identity))

    def kept(self, make: Callable[[], Mapping[str, Array]], *identity: Any) -> Mapping[str, Array]:
        """What ``make`` gives by a pass; by ``identity`` from the checkpoint, where it is there."""
        return make() if self.checkpoint is None else self.checkpoint.kept(make, *identity)

    def reader(self, model: LinearModel) -> BlockReader:
        """What a block needs of a model: no rows, nothing that was worked out on the way."""
        bare = replace(model, rows=None, kept={}, passes=None)
        return BlockReader(self.encoder, bare, self.weights, self.rows_at_once(model))

    def sent(self, model: LinearModel) -> float:
        """Bytes of q of a model, which a pass sends to a worker, and of the sums that it gets back at most."""
        B, k, C = model.width, model.level_size, len(model.likelihood.fields)
        return 8.0 * (C * B + C * B * (C * B + (C > 1) * B) + model.n_levels * k * (1 + k + B))

    def rows_at_once(self, model: LinearModel) -> int:
        """How many rows are made at a time; an error where memory is too small for the model."""
        C = len(model.likelihood.fields)
        return self.budget.rows(model.width + (C > 1) * C, model.n_levels, self.sent(model))

    def explain(self, model: LinearModel) -> str:
        """What a pass sends and holds, in words."""
        budget, sums, rows = self.budget, self.sent(model), self.rows_at_once(model)
        driver, worker = budget.total(model.width, sums, rows)
        held = (f"this process takes at most about {readable(max(driver, worker))}" if budget.alone else
                f"a worker takes at most about {readable(worker)}, the driver {readable(driver)}")
        allowed = f" of {readable(budget.limit)} allowed" if isfinite(budget.limit) else ""
        learnt, width = len(pickle.dumps(self.reader(model))), model.width + model.n_levels * model.level_size
        values = 8.0 * max(MOST_VALUES, NODES * model.n_levels) if model.n_levels and model.level_size == 1 else 0.0
        judged = min(values, 8.0 * NODES * MOST_DRAWS * model.n_levels)
        sizes = sums + learnt, sums, 8.0 * MOST_DRAWS * width + sums + learnt, judged
        sent, back, drawn, found = (f"{(size + OF_PICKLES) / 1e6:,.3g} MB" for size in sizes)
        sampled = 0 if self.sample is None else self.sample.n
        return (f"{self.n:,} rows in {len(self.blocks):,} blocks, read again in every pass, by {model.form}\n"
                f"a pass sends {sent} to each worker and gets at most {back} back for a block\n"
                f"one of the verdict sends at most {drawn} and gets {found}; a sample of {sampled:,} rows came once\n"
                f"{rows:,} rows are made into columns at a time; {held}{allowed}")

    def infer(self, model: LinearModel, tol: float, max_iter: int, callback: Callback | None) -> Result:
        """The fit of ``model`` at its theta, from the sums of the nearest one so far."""
        callback = self.engine.heard(callback) if isinstance(self.engine, Watched) else callback
        start = self.near(model.at) or self.predicted(model)
        several, solve = len(model.likelihood.fields) > 1, partial(solved, model, self.n)
        climb = partial(infer_rows, dense_size=model.width, max_iter=max_iter, callback=callback)
        near = FAR if several else NEAR if self._tells_little_of_rows(model) else 0.0
        if tol < near:  # most of the way by cheaper passes
            start = climb(partial(self.look, model, True, near), solve, start=start, tol=near)[1].wanted
        result, state = climb(partial(self.look, model, False, tol), solve, start=start, tol=tol)
        if several:
            weighed = partial(PassedWeights.of, self, model, result.posterior, result.bound)
            result = replace(result, weighed=weighed)
        self.known.append((model.at, state.wanted))
        del self.known[:-MOST_KNOWN]
        self.ends[result.posterior] = state.wanted
        return result

    def _tells_little_of_rows(self, model: LinearModel) -> bool:
        """Whether variances of f are so small that their mean will do while q is far."""
        moving = any(isinstance(block, Moving) for block in model.fitted_rows().blocks)
        several = len(model.likelihood.fields) > 1
        return not moving and not several and not model.n_levels and self.n >= WIDE * model.width**2

    def look(self, model: LinearModel, rough: bool, tol: float, q: Posterior | None, sharper: float = 1.0) -> SiteSums:
        """One pass: the sums at ``q``, by a cheaper oracle where ``rough``; see `klimb.infer.rows.Look`."""
        weights = None if q is None else q.latent.detach(q)
        rounded = self._tells_little_of_rows(model) and _may_round(weights, tol, self.n)
        work = partial(site_sums, self.reader(model), weights, sharper, rough, rounded)
        sums = self.summed(work, model.n_levels, "sites", model.at, weights, sharper, rough, rounded)
        if not model.densities or weights is None:
            return sums
        return sums._replace(value=sums.value + density_value(model, weights))

    def near(self, theta: Array) -> SiteSums | None:
        """The sums of the fit whose theta was nearest, the last of several."""
        if not self.known:
            return None
        return min(reversed(self.known), key=lambda pair: float(np.sum((pair[0] - theta) ** 2)))[1]

    def predicted(self, model: LinearModel) -> SiteSums | None:
        """What the sums will be, by a fit of the sample; it says nothing of levels, most of which it does not have."""
        if self.sample is None or self.sample.n < ENOUGH * model.width:
            return None
        alone = replace(model, rows=replace(model.fitted_rows(), stands_for=0), passes=None, kept={})
        posterior = alone.infer(self.sample, tol=ROUGH).posterior
        q = posterior.latent.detach(posterior)
        with np.errstate(over="ignore", invalid="ignore"):
            found = _sums(alone, q, 1.0, False, False, alone.fitted_rows(), self.sample)
        own = total_sums([found], model.n_levels).scaled(self.n / self.sample.n)
        return own._replace(level_pull=0.0 * own.level_pull, cross=0.0 * own.cross, level_gram=0.0 * own.level_gram)

    def slopes_at(self, posterior: Posterior) -> Array:
        """d value / d parameters of the likelihood at the end of the fit that gave ``posterior``."""
        return self.ends[posterior].slopes


def solved(model: LinearModel, n: int, sums: SiteSums) -> Posterior:
    """q under the prior of ``model``, where its ``n`` rows say what ``sums`` do."""
    if len(model.likelihood.fields) > 1:
        return solved_classes(model, sums, n)
    twin, data = gaussian_twin(model, sums, n)
    return twin.infer(data, tol=INNER).posterior


def gaussian_twin(model: LinearModel, sums: SiteSums, n: int) -> tuple[LinearModel, Observed]:
    """The model of few rows with unit noise that stand for the ``n`` rows of ``sums``, and their data."""
    few, y = standing_for(model, sums, n)
    return replace(few, likelihood=likelihood("gaussian").knowing({"scale": 1.0})), Observed(y)


def standing_for(model: LinearModel, sums: SiteSums, n: int) -> tuple[LinearModel, Array]:
    """The model of few rows with unit noise that say what the ``n`` rows of ``sums`` do, and their responses."""
    X, codes, values, y = few_rows(sums)
    codes = np.maximum(codes, 0 if values.shape[1] else -1)  # a row of no level has no values either
    rows = LinearRows(X, codes, values, (Placed(),) * len(model.terms), np.zeros(len(y)), stands_for=n)
    return replace(model, rows=rows, kept={}, passes=None), y
