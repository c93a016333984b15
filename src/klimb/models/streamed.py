"""Formula fits of rows that are not in memory: what the terms learn, their priors, the fit by passes, the verdict.

    learn      passes over columns as they are: levels, means, missing values, knots; the response
    moments    one pass: means, covariances and ranges of every term's columns, which default priors go by; a sample
    fit        passes (`klimb.models.passes`); with Gaussian noise two of them say all there is to know
    judge      one pass of draws

A sample of the rows, chosen by what they hold, is kept for leave-one-out and the checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import klimb
from klimb.errors import InputError, require
from klimb.formula import Formula
from klimb.infer.result import Result
from klimb.infer.rows import SiteSums, few_rows, sums_of
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Likelihood, Observed
from klimb.models.budget import MemoryLimit
from klimb.models.components import Components
from klimb.models.linear import LinearModel
from klimb.models.linear_parts import LinearRows, check_size
from klimb.models.model import HyperMode, Listen
from klimb.models.notes import collinear_notes, data_notes, factor_notes
from klimb.models.passes import MOST_DRAWS, BlockReader, RowPasses, solved, standing_for
from klimb.models.reduction import finished
from klimb.models.responses import few_responses
from klimb.models.setup import with_priors
from klimb.models.solution import Solution, solve
from klimb.models.streamed_levels import Levels, along, exact_of
from klimb.models.streamed_theta import solve_on_sums
from klimb.models.verdict import PRECISION, WRONG_MEAN
from klimb.numerics.arrays import Array
from klimb.numerics.dense import psd_square_root
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.report.records import Fact, FitTrust
from klimb.rows.blocks import BlockEngine, RowBlock, RowTable
from klimb.rows.checkpoint import Checkpoint
from klimb.rows.distinct import content_shares
from klimb.rows.frames import Frame, read_frame
from klimb.rows.passed import PassedSource
from klimb.rows.quantiles import counted_quantile
from klimb.rows.reader import PieceReader, placed
from klimb.rows.summaries import MatrixMoments
from klimb.rows.table import complete_rows
from klimb.terms.base import Coded, Dense, Moving, TermBlock
from klimb.terms.column_moments import ColumnMoments
from klimb.terms.encoder import Encoded, Encoder, columns_of_levels, learn_terms, needed
from klimb.terms.group import Group
from klimb.terms.registry import term_of

SAMPLE = 20_000  # rows that are kept, about
DRAWS, SEED = (8, MOST_DRAWS), 20260103  # of the verdict: so many, and so many where those leave it open
SHARED_DRAWS = (4, 16)  # of the shared weights alone, each of which takes the integrals of all levels
CLEAR = 0.1  # share of a doubt up to which few draws leave nothing open
SAFETY = 4.0  # times the estimate: levels of ten binary rows moved their sd by 2.6 times as much
GROWTH = 3.0  # half the power of an sd that the evidence beyond a bound grows with (2 was found), and some more
KINDS = ("fixed", "offset", "group", "smooth", "ridge", "sparse", "gp")


def term_moments(block: TermBlock, weights: Array | None) -> MatrixMoments | None:
    """Of the columns of one term; None where it has none of its own."""
    if not isinstance(block, Dense | Coded) or not block.values.shape[1]:
        return None
    return MatrixMoments.of(block.values, weights)


def moment_rows(own: MatrixMoments, width: int) -> tuple[Array, ColumnMoments]:
    """2 ``width`` rows with this mean and covariance, two more with the range, and the moments themselves."""
    K = len(own.mean)
    covariance = own.squares / own.total
    sd = np.sqrt(np.diagonal(covariance))
    unit = np.where(sd > 0.0, sd, 1.0)
    correlation = covariance / np.outer(unit, unit)
    root = np.zeros((K, width))
    found = psd_square_root(0.5 * (correlation + correlation.T), "the correlations of columns")
    root[:, : found.shape[1]] = unit[:, None] * found
    away = np.sqrt(width) * root.T
    rows = np.vstack([own.mean + away, own.mean - away, own.low, own.high])
    mean = np.clip(own.mean, own.low, own.high)
    return rows, ColumnMoments(own.low, own.high, mean, np.where(own.high > own.low, sd, 0.0), correlation)


def block_moments(reader: BlockReader, share: float, block: RowBlock
                  ) -> tuple[list[MatrixMoments | None] | None, list[dict[str, Array]]]:
    """The moments of every term's columns in a block, and the rows of it that are in the sample."""
    total: list[MatrixMoments | None] | None = None
    sample: list[dict[str, Array]] = []
    names = reader.names()
    with placed(block):
        for frame, encoded in reader.encoded(block):
            own = [term_moments(part, encoded.weights) for part in encoded.blocks]
            total = own if total is None else _together(total, own)
            chosen = encoded.rows[content_shares(frame, names)[encoded.rows] < share]
            if len(chosen):
                some = frame.taken(chosen, names)  # flags among which none is missing stay flags
                sample.append({name: some.column(name) for name in names})
    return total, sample


def learnt_moments(reader: BlockReader, passes: RowPasses, share: float) -> tuple[list[MatrixMoments | None], Frame]:
    """Of all rows, and the sample: one pass."""
    total: list[MatrixMoments | None] | None = None
    sample: list[dict[str, Array]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for own, some in passes.mapped(partial(block_moments, reader, share)):
            sample += some
            total = own if total is None else total if own is None else _together(total, own)
    if total is None:
        raise InputError("at least one complete row", "none", "Fill values in, or leave columns with gaps out.")
    for term, found in zip(reader.encoder.terms, total, strict=True):
        if found is not None and not np.isfinite(found.squares).all():
            raise InputError("columns whose squares have a sum over all rows", f"numbers up to "
                             f"{max(np.abs(found.low).max(), np.abs(found.high).max()):.3g} in {term.name!r}",
                             "Rescale the column: standardize(x), or another unit.")
    columns = {name: np.concatenate([part[name] for part in sample]) for name in reader.names()} if sample else {}
    return total, read_frame(columns)


def _together(one: list[MatrixMoments | None], other: list[MatrixMoments | None]) -> list[MatrixMoments | None]:
    return [a if b is None else b if a is None else a.plus(b) for a, b in zip(one, other, strict=True)]


def rows_with(moments: Sequence[MatrixMoments | None], encoder: Encoder) -> tuple[list[TermBlock], Array]:
    """Few rows as the terms' columns, with the means, covariances and ranges of all, and their shares."""
    width = max([len(own.mean) for own in moments if own is not None], default=1)
    shares = np.concatenate([np.full(2 * width, 0.5 / width), np.zeros(2)])
    blocks: list[TermBlock] = []
    for term, own in zip(encoder.terms, moments, strict=True):
        rows, found = (np.zeros((len(shares), 0)), None) if own is None else moment_rows(own, width)
        if isinstance(term, Group):
            blocks.append(Coded(np.zeros(len(rows), dtype=np.intp), rows, term.n_levels))
        else:
            blocks.append(Dense(rows, {} if found is None else {"moments": found}))
    return blocks, shares


def squares_of(model: LinearModel, q: WeightPosterior | None, rows: LinearRows, data: Observed) -> SiteSums:
    """Sums of squares and products of [X y], y less what ``q`` expects: all that rows with Gaussian noise say."""
    y = data.y if data.offset is None else data.y - data.offset
    y = y if q is None else y - q.at(model.functionals(rows).L)[0]
    return sums_of(np.column_stack([rows.X, y]), rows.codes, rows.values, np.zeros(data.n), data.counts,
                   float(data.counts.sum()))


def reduced_passes(model: LinearModel, passes: RowPasses, observed: Observed) -> tuple[LinearModel, Observed] | None:
    """Few rows that say what all rows with Gaussian noise do, by two passes: the second is of what the first leaves.

    A sum of squares loses the digits of a residual beside those of y; what a first fit leaves has them.
    """
    reader, B = passes.reader(model), model.width
    first = passes.summed(partial(reader.summed, partial(squares_of, reader.model, None)), model.n_levels, "squares")
    noise = model.new_site(None).oracle(np.zeros(1), np.zeros(1), np.zeros(1)).gamma[0]
    own = SiteSums(0.0, 0.0, first.gram[:B, B], first.gram[:B, :B], first.cross[:, :, B], first.cross[:, :, :B],
                   first.level_gram, np.zeros(0)).scaled(float(noise))
    posterior = solved(model, passes.n, own)
    q = posterior.latent.detach(posterior)
    sums = passes.summed(partial(reader.summed, partial(squares_of, reader.model, q)), model.n_levels, "squares", q)
    both, codes, values, _ = few_rows(sums)
    of_level = codes >= 0
    R = np.asarray(np.linalg.qr(both[~of_level], mode="r"))
    R = np.vstack([R, np.zeros((B + 1 - len(R), B + 1))])
    found = finished(codes[of_level], values[of_level], both[of_level], R,
                     replace(observed, weights=np.array([sums.value])), passes.n, len(model.terms))
    if found is None:
        return None
    rows, few = found
    fitted = q.at(model.rows_over(rows.X, rows.codes, rows.values))[0]
    return replace(model, rows=rows, passes=None, kept={}), replace(few, y=few.y + fitted)


def log_densities(model: LinearModel, draws: Array, q: WeightPosterior, rows: LinearRows, data: Observed) -> Array:
    """sum_i log p(y_i | f_i) of some rows at draws of the weights, one a row."""
    site = model.site(data)
    y = site.validate(data.y)
    X, slack = model.with_features(rows)
    f = q.push(model.rows_over(X, rows.codes, rows.values), draws)
    constant = float(np.broadcast_to(site.constant(y), y.shape).sum())
    return np.array([float((site.oracle(y, one, slack) if slack.any() else site.point(y, one)).value.sum()) + constant
                     for one in f])


def judged(model: LinearModel, result: Result, passes: RowPasses, levels: Levels | None,
           components: Components) -> FitTrust:
    """The verdict from the log weights of some draws: what of log p a Gaussian cannot say, over all rows.

    log w = log p(y | w) - log p(few rows | w) + log evidence of those, since q is the exact posterior of the few. At
    the optimum of the bound log w has no part that is linear or quadratic, so means (in sd) and sds are off by about
    its variance; that of L levels which each have their own part moves what they share by 1 / sqrt(L) of it, and their
    sds by what half of it, the evidence that the bound lacks, grows with them. With ``levels`` that were integrated
    out, log w is that of the shared weights alone.
    """
    group = [] if model.coded < 0 or levels is not None else [
        np.arange(model.theta.size)[model.theta.slice_of(block)] for block in model.terms[model.coded].parameters]
    away = components.theta - components.weights @ components.theta
    spread = float(np.sqrt(components.weights @ away**2)[np.concatenate(group)].max()) if group else 0.0
    several = 1 if levels is not None else max(model.n_levels, 1)
    for n_draws in DRAWS[several > 1 :] if levels is None else SHARED_DRAWS:  # small levels are never clear
        if levels is None:
            logs = _log_weights(model, result, passes, n_draws)
        else:
            logs = levels.log_weights(matched_draws(n_draws, levels.q.root.shape[1]))
        variance = float(logs.var(ddof=1))
        shift = max(SAFETY / float(np.sqrt(several)), GROWTH * spread) * variance
        if shift <= CLEAR * WRONG_MEAN:
            break
    alone = "" if levels is None else " of the weights that all levels share"
    facts = (Fact("variance of the log weights", f"{variance:.2g}{alone}, from {n_draws} draws over all rows"),
             *([Fact("random effects", "not integrated out: sds of levels are those of the bound")] * (several > 1)))
    if shift <= WRONG_MEAN:
        error = max(PRECISION, min(shift, SAFETY * variance / several))
        means = f", means to {shift:.2f} sd" if shift > 0.01 else ""
        return FitTrust("trust", "relative error of an sd", "Means, sds and intervals can be used as they are (sds "
                            f"right to about {error:.1%}{means}).", error, facts)
    return FitTrust("doubt", "error of a mean, in sd", f"A Gaussian may miss means by up to {shift:.2f} sd: small "
                        "levels are skewed, and all of them together move what they share. A fit of rows in memory is "
                        "corrected for that: fit a sample of whole levels beside this one.", shift, facts)


def _log_weights(model: LinearModel, result: Result, passes: RowPasses, n_draws: int) -> Array:
    posterior = result.posterior
    q = posterior.latent.detach(posterior)
    few, y = standing_for(model, passes.ends[posterior], passes.n)
    assert few.rows is not None
    L = model.rows_over(few.rows.X, few.rows.codes, few.rows.values)
    draws = q.sample(n_draws, np.random.default_rng(SEED))
    reader = passes.reader(model)
    parts = passes.mapped(partial(reader.each, partial(log_densities, reader.model, draws, q)))
    logs = np.sum([np.sum(own, axis=0) for own in parts if own], axis=0)
    logs += 0.5 * ((y - q.push(L, draws)) ** 2).sum(axis=1)
    done = len(y)
    for number, site in model.densities:  # less the Gaussians that stand for them in q
        w = draws[:, model.places[number]]
        own = slice(done, done := done + w.shape[1])
        slope = posterior.a[own] + posterior.gamma[own] * posterior.m[own]
        logs += (site.point(np.zeros(w.shape[1]), w).value - w * (slope - 0.5 * posterior.gamma[own] * w)).sum(axis=1)
    return np.asarray(logs)


def learnt(parsed: Formula, table: RowTable, weights: str | None, missing: str, objects: Mapping[str, Any],
           engine: BlockEngine | None, budget: MemoryLimit) -> tuple[Encoder, PassedSource]:
    """What a formula asks for of all rows, by passes; an error where the model is not one of sums over rows."""
    parts, targets, predictors = needed(parsed, table.columns)
    require(missing != "predict", 'rows that are not in memory need missing="drop" or "error"', '"predict"',
            "Predict for a frame of these rows after the fit.")
    odd = next((part for part in parts.others if term_of(part).kind not in KINDS), None)
    if odd is not None:
        raise InputError("rows that are not in memory may have terms with columns of their own: "
                         f"{', '.join(KINDS)}", parsed.text[slice(*odd.span)], "Write s(x) for a curve, gp(x) for a "
                         "field. Or leave the term out, or fit a sample of the rows.")
    names = tuple(dict.fromkeys([*targets, *predictors]))
    pieces = PieceReader(names, weights, missing, budget.rows(len(names)))  # refuses what cannot be
    source = replace(PassedSource.over(table, pieces, engine, columns_of_levels(parsed, parts)), objects=objects)
    return learn_terms(parsed, parts, source, predictors, missing), source


def fit_streamed(parsed: Formula, table: RowTable, family: Likelihood, *, weights: str | None,
                 priors: Mapping[str, Any] | None, hyper: HyperMode, missing: str, tol: float, listen: Listen | None,
                 engine: BlockEngine | None, objects: Mapping[str, Any], budget: MemoryLimit,
                 checkpoint: Any = None) -> "Streamed":
    """The solution of a formula over a table in blocks, with what a fit keeps beside it."""
    names = [name for names in needed(parsed, table.columns)[1:] for name in names]
    budget = replace(budget, sample=min(SAMPLE, table.n), block=max(
        block.size([*names, *([weights] if weights is not None else [])]) for block in table.blocks))
    encoder, source = learnt(parsed, table, weights, missing, objects, engine, budget)
    assert encoder.response is not None
    observed = few_responses(encoder.response, family, source)
    list(factor_notes(encoder, observed, source.frame))  # an error before a level for each row has a column
    if family.response == "classes" and any(term.kind == "gp" for term in encoder.terms):
        raise InputError("rows that are not in memory need a family with one latent value per row for gp(x)",
                         family.name, "Write s(x) for a curve, fit two classes at a time as bernoulli "
                         '(klimb.scan(path, where=[(name, "in", [one, other])])), or fit a sample.')
    if family.response in ("ordered", "classes"):
        family = replace(family, levels=observed.levels)  # those of all blocks
    reader = BlockReader(encoder, None, weights, 1)
    passes = RowPasses(table.blocks, encoder, engine, weights, source.n, budget)
    width = len(encoder.fixed.every_name) + sum(term.size for term in encoder.terms[1:] if not isinstance(term, Group))
    reader = replace(reader, rows=budget.rows(width))
    moments, sample = learnt_moments(reader, passes, min(1.0, SAMPLE / table.n))
    encoder = with_medians(encoder, sample, weights)
    blocks, shares = rows_with(moments, encoder)
    learnt_family, bare = family, encoder
    terms, family, printed = with_priors(encoder, blocks, shares, observed, family, priors)
    encoder = replace(encoder, terms=terms)
    notes = notes_on(bare, encoder, moments, source.frame, sample, learnt_family, observed, weights)
    kept = None if checkpoint is None else Checkpoint(checkpoint, (
        klimb.__version__, parsed.text, family.label, missing, printed, [block.identity() for block in table.blocks]))
    passes = replace(passes, encoder=encoder, checkpoint=kept)
    several = len(family.fields) > 1
    sizes = [term.size if isinstance(term, Group) and not several else 0 for term in terms]
    coded = int(np.argmax(sizes)) if max(sizes) > 0 else -1
    model = LinearModel(terms, family, np.zeros(0), coded, (), "Weights" if coded < 0 else "Mixed", passes=passes)
    check_size(0, model.width * len(family.fields))
    model = model.moved(model.theta.start)
    passes.rows_at_once(model)
    rows, some = _sampled(model, encoder, sample, weights, source.n)
    some = replace(some, dropped=source.facts.dropped, sampled_from=source.n)
    passes = replace(passes, sample=some)
    model = replace(model, rows=rows, passes=passes)
    moving = any(isinstance(block, Moving) for block in rows.blocks)  # sums of one theta say nothing of another
    few = reduced_passes(model, passes, observed) if family.by_squares(observed) and not moving else None
    if few is not None:
        solution = solve(*few, hyper=hyper, tol=tol, listen=listen)
        at_best = replace(model.moved(solution.model.at), passes=None, kept={"by passes": passes.explain(model)})
        return Streamed(replace(solution, model=at_best), some, encoder, printed, sample, None, notes)
    by_sums = None if moving or several else solve_on_sums(model, passes, some, hyper, tol, listen)
    solution = by_sums or solve(model, some, hyper=hyper, tol=tol, listen=listen)
    if several or not solution.result.converged:  # what q of several classes lacks is put right already
        return Streamed(solution, some, encoder, printed, sample, None, notes)
    levels, corrected = None, solution.components.uncorrected is not None
    if not moving and (solution.mode == "fixed" or corrected):  # theta is not what a bound made of it
        levels = Levels.of(solution.model, passes, solution.result)
    if levels is not None:
        exact, _ = exact_of(solution.model, passes, solution.result)
        if solution.mode == "fixed":
            solution = replace(solution, components=along(solution.components, solution.model.at, (levels.q, exact)))
        levels = replace(levels, q=exact)
    trust = judged(solution.model, solution.result, passes, levels, solution.components)
    return Streamed(solution, some, encoder, printed, sample, trust, notes)


@dataclass(frozen=True, eq=False)
class Streamed:
    """A solution, the sample of the data that is kept, what was learnt, priors in words, the verdict, and notes."""

    solution: Solution
    sample: Observed
    encoder: Encoder
    printed: dict[str, str]
    frame: Frame
    trust: FitTrust | None
    notes: tuple[str, ...]

    def alone(self) -> Solution:
        """The sample fitted by itself at the best hyperparameters: the checks need the sites of its rows."""
        model = self.solution.model
        model = replace(model, passes=None, kept={}, rows=replace(model.rows, stands_for=0))
        return solve(model, replace(self.sample, sampled_from=0), hyper="fixed")


def with_medians(encoder: Encoder, sample: Frame, weights: str | None) -> Encoder:
    """Numeric columns are typically what they are in the sample."""
    if not sample.n:
        return encoder
    counts = None if weights is None else sample.read(weights).number
    variables = []
    for own in encoder.variables:
        median = own.median
        if own.kind == "number":
            median = float(counted_quantile(sample.read(own.name).number, counts, 0.5))
        variables.append(replace(own, median=float(np.floor(median)) if own.whole else median))
    return replace(encoder, variables=tuple(variables))


def notes_on(bare: Encoder, encoder: Encoder, moments: Sequence[MatrixMoments | None], kinds: Frame, sample: Frame,
             family: Likelihood, observed: Observed, weights: str | None) -> tuple[str, ...]:
    """What a fit in memory says of its data, from moments and responses of all rows and columns of the sample.

    Columns are looked at before priors move them, by ``bare``; ``kinds`` is a frame that says of what type they are.
    """
    encoded = _encoded(bare, sample, weights)
    assert encoded.left is not None
    own = moments[0]
    alike = [] if own is None else collinear_notes(encoded, bare, moment_rows(own, len(own.mean))[1])
    few = family.read(encoded.left, encoded.weights)
    return data_notes(encoder, encoded, few, family, kinds, alike, observed)


def _encoded(encoder: Encoder, sample: Frame, weights: str | None) -> Encoded:
    names = [*(() if encoder.response is None else encoder.response.columns), *encoder.predictors]
    counts = None if weights is None else sample.read(weights).number
    return encoder.blocks(*complete_rows(sample, names, "drop", weights=counts, learning=True), response=True)


def _sampled(model: LinearModel, encoder: Encoder, sample: Frame, weights: str | None,
             n: int) -> tuple[LinearRows, Observed]:
    encoded = _encoded(encoder, sample, weights)
    assert encoded.left is not None
    rows = model.arranged(encoded.blocks)
    return (replace(rows, stands_for=n),
            model.likelihood.read(encoded.left, encoded.weights, rows.shift if rows.shift.any() else None))
