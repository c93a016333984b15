"""What a fit says unasked: columns that are not what they seem, models whose origin matters, priors that overrule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from klimb.errors import InputError, require
from klimb.formula import parse
from klimb.formula.factors import INTERCEPT, Factor, LevelFactor, Product
from klimb.formula.nodes import Name, Operation
from klimb.likelihoods import Likelihood, Observed
from klimb.models.components import Latents, marginal_quantile
from klimb.models.reaching import mean_by_f
from klimb.models.tabulate import limits_reached
from klimb.models.tail_sds import NARROW, by_leading_order, tail_sds
from klimb.priors import PositivePrior
from klimb.report.text import plain
from klimb.rows.columns import count, is_number
from klimb.rows.frames import Frame
from klimb.terms.base import Coded, Dense
from klimb.terms.column_moments import ColumnMoments, collinear
from klimb.terms.encoder import Encoded, Encoder
from klimb.terms.group import Group
from klimb.terms.offset import OffsetTerm
from klimb.trust.collapsed import CollapsedWeights

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit

MOST_CHECKED = 300  # columns up to which collinear ones are looked for
MANY_LEVELS = 20  # more number strings than these, over half of the rows, are a numeric column with quotation marks
ALL_BUT = 0.95  # levels of a group per row: hardly any row shares its level
LIKELIER = 10.0  # nats by which counts are more in proportion to an offset than to its exponential
OVERFLOWING = 50.0  # range of such an offset that no fit survives
TAIL, MOVED, RESTS = 2.5, 0.5, 0.95  # prior sds; posterior sds; share of what is known that is the prior's
MOST = 3  # notes of one kind
LOOKED = 64  # rows up to which each is looked at
MOST_PEAKS, PEAKED, PARTED = 5000, 4.0, -1.4  # rows up to which peaks are looked for, and excess kurtosis


def data_notes(encoder: Encoder, encoded: Encoded, data: Observed, family: Likelihood, frame: Frame,
               alike: Sequence[str], whole: Observed | None = None) -> tuple[str, ...]:
    """What is worth saying before the fit, of columns that are ``alike`` too; an error where it could only fail."""
    every = data if whole is None else whole  # where ``encoded`` and ``data`` are of a sample
    found = [*_order(data, family, frame, encoder), *alike, *_powers(encoder, frame),
             *factor_notes(encoder, every, frame), *_groups(encoder, encoded, every, family), *_response(every, family),
             *_offsets(encoder, encoded, data, family), *_origins(encoder),
             *(note for term in encoder.terms if (note := term.note()))]
    if not any(term.size for term in encoder.terms):
        found.append("the formula has no terms: f is 0, or the offset, in every row. Write y ~ 1 for a mean.")
    if encoded.waiting:
        found.append(f"{count(encoded.waiting, 'row')} without {data.name}: fit.predict() has what they may be.")
    return tuple(dict.fromkeys(found))


def _order(data: Observed, family: Likelihood, frame: Frame, encoder: Encoder) -> Iterator[str]:
    """Ordered levels whose order was not given."""
    response = encoder.response
    if family.response != "ordered" or family.levels or response is None or response.kind != "levels":
        return
    if frame.read(response.columns[0]).is_text:
        yield (f"levels of {response.name} are in alphabetical order, {' < '.join(data.levels)}: pass an ordered "
               'category, or family={"name": "ordinal", "levels": [...]}, for another one.')


def collinear_notes(encoded: Encoded, encoder: Encoder, moments: ColumnMoments | None = None) -> list[str]:
    """Columns that the data cannot tell apart: their coefficients rest on the prior.

    ``moments`` are those of all rows where ``encoded`` is a sample: what varies among them but not here is left out.
    """
    block: Any = encoded.blocks[0]
    values, names = block.values, np.array(encoder.fixed.every_name)
    if not 0 < len(names) <= MOST_CHECKED or (block.moments(encoded.shares) if moments is None else moments).apart:
        return []
    if moments is not None:
        seen = (np.ptp(values, axis=0) > 0.0) | (moments.high == moments.low)
        values, names = values[:, seen], names[seen]
    found = collinear(values, names.tolist())
    more = [f"{len(found) - MOST} more columns are not identified either."] if len(found) > MOST else []
    return [*found[:MOST], *more]


def _powers(encoder: Encoder, frame: Frame) -> Iterator[str]:
    """``x**2`` and ``x:x``, which in a formula are x."""
    nodes: list[Any] = [parse(encoder.formula).right]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, Operation):
            continue
        nodes += [node.left, node.right]
        same = node.operator == "^" or (node.operator in (":", "*") and str(node.left) == str(node.right))
        if same and isinstance(node.left, Name) and frame.read(node.left.name).kind == "number":
            yield (f"{encoder.formula[slice(*node.span)]} is {node.left} in a formula, not its square: write "
                   f"poly({node.left}, 2, raw=True) for {node.left} and its square.")


def factor_notes(encoder: Encoder, data: Observed, frame: Frame) -> Iterator[str]:
    """Factors of one level, of a level per row, and text that reads as numbers, which is an error where it is one."""
    used = {f.column: f for term in encoder.terms for f in term.factors().values() if isinstance(f, LevelFactor)}
    for column, factor in used.items():
        count, plainly = len(factor.levels), factor.name == column and frame.read(column).is_text
        if count == 1:
            yield f"{column!r} has one level, {factor.levels[0]!r}: it is constant and has no effect. Leave it out."
        elif plainly and all(is_number(level) for level in factor.levels):
            if count > max(MANY_LEVELS, 0.5 * data.total):
                raise InputError(f"column {column!r} must hold numbers, or be written C({column})",
                                 f"text that reads as numbers, {count} levels of {data.total:g} rows",
                                 f"Turn the column into numbers for a slope; C({column}) makes it a factor.")
            yield (f"{column!r} is text that reads as numbers, and a factor of {count} levels here: turn it into "
                   f"numbers for a slope; C({column}) says that a factor is meant.")
        elif count > max(MANY_LEVELS, 0.5 * data.total):
            yield (f"{column!r} has {count} levels in {data.total:g} rows, each with a coefficient of its own: (1 | "
                   f"{column}) shares what they have in common, a number (days for dates) gives a slope.")


def _groups(encoder: Encoder, encoded: Encoded, data: Observed, family: Likelihood) -> Iterator[str]:
    """Grouping factors of one level, and those with a level for every row."""
    for term, block in zip(encoder.terms, encoded.blocks, strict=True):
        if not isinstance(term, Group) or not isinstance(block, Coded):
            continue
        if term.n_levels == 1:
            yield (f"{term.name!r} has one level: its sd rests on the prior, and its effect cannot be told from the "
                   f"intercept. Leave (... | {term.name}) out.")
        elif term.n_levels > ALL_BUT * data.total:
            if any(p.scaled for p in family.free):
                why = f"its sd cannot be told from {next(p.name for p in family.free if p.scaled)}. Leave it out."
            elif family.response == "binary" or (family.response == "trials" and data.aux["trials"].max() <= 1.0):
                why = "single outcomes say nothing about its sd, which rests on the prior. Leave it out."
            else:
                why = f"its sd is what y varies more than {family.name} says."
            yield f"{term.name!r} has {term.n_levels} levels in {data.total:g} rows: {why}"


def _response(data: Observed, family: Likelihood) -> Iterator[str]:
    top, seen = data.aux.get("trials", np.ones(data.n)), data.aux.get("status", np.ones(data.n))
    if not seen.any():
        yield ("every row is censored: nothing has been seen to happen, and what the table says rests on the priors. "
               "Check which value of the status column marks an event.")
    if data.n > 1 and np.ptp(data.y) == 0.0 and (family.response != "trials" or np.ptp(top) == 0.0 or data.y[0] == 0.0):
        yield (f"{data.name} is {plain(float(data.y[0]), 6)} in every row: there is nothing to explain, and what the "
               "table says rests on the priors. Check the filter and the column.")
    elif family.name == "binomial" and top.max() <= 1.0:
        yield (f"{data.name} has no trials: every row counts as one. Write cbind(successes, failures) or p(successes, "
               "trials) where rows have several.")


def _offsets(encoder: Encoder, encoded: Encoded, data: Observed, family: Likelihood) -> Iterator[str]:
    """Exposures without their logarithm: y is closer to proportional to them than to their exponentials."""
    total = float(data.shares @ data.y)
    if family.link.name != "log" or total <= 0.0:
        return
    for term, block in zip(encoder.terms, encoded.blocks, strict=True):
        if not isinstance(term, OffsetTerm) or not isinstance(block, Dense):
            continue
        o, w = block.values[:, 0], np.ones(data.n) if data.weights is None else data.weights
        if o.min() <= 0.0 or any(step.function.startswith("log") for step in term.expression.steps):
            continue
        y = w * data.y * (1.0 if family.response == "counts" else 1.0 / total)
        scores = [float(y @ at) - float(y.sum()) * float(logsumexp(at, b=w)) for at in (np.log(o), o)]
        if scores[0] - scores[1] > LIKELIER:
            name, advice = str(term.expression), f"Write offset(log({term.expression}))."
            require(np.ptp(o) <= OVERFLOWING, "an offset must be on the scale of the log of the mean",
                    f"offset({name}) from {o.min():.3g} to {o.max():.3g}, like an exposure", advice)
            yield (f"offset({name}) is added to the log of the mean, but {data.name} looks proportional to "
                   f"{name}: an exposure needs its logarithm. {advice}")


# -- origins


def _origins(encoder: Encoder) -> Iterator[str]:
    """Columns whose origin is part of the model: with another zero the formula spans other functions."""
    fixed = encoder.fixed
    found = dict(_shifted(fixed.products, fixed.used))
    for term in encoder.terms[1:]:
        if isinstance(term, Group):
            own = dict(_shifted(term.effects, term.used))
            if not term.correlated:
                own |= {column: f"intercepts and slopes of {term.name} are independent where {column} is 0; "
                                f"write ({column} | {term.name}) to let the data say" for column in _linear(term.used)}
            found |= {column: why for column, why in own.items() if column not in found}
        elif term.kind in ("ridge", "sparse") and INTERCEPT not in fixed.every_name:
            found |= dict.fromkeys(_linear(term.factors()), f"{term.name}() stands without an intercept")
    for column, why in found.items():
        yield f"the origin of {column!r} matters, another zero is another model: {why}."


def _linear(factors: Mapping[str, Factor]) -> list[str]:
    """Columns that enter as they are."""
    return [f.expression.column for f in factors.values() if not isinstance(f, LevelFactor) and not f.expression.steps]


def _shifted(products: tuple[Product, ...], factors: dict[str, Factor]) -> Iterator[tuple[str, str]]:
    """Columns of products that a shift takes out of the model, and why."""
    def parts(keys: Any) -> tuple[frozenset[str], frozenset[str]]:
        levels = frozenset(key for key in keys if isinstance(factors[key], LevelFactor))
        return levels, frozenset(keys) - levels

    spans = [parts([key for key, _ in product]) for product in products]
    for product in products:
        for key, _ in product:
            factor = factors[key]
            if isinstance(factor, LevelFactor):
                continue
            column, steps = factor.expression.column, factor.expression.steps
            if steps and steps[0].function not in ("center", "scale", "standardize", "exp"):
                yield column, f"{factor.expression} is not linear"
            raw = factor.basis is None or not getattr(factor.basis, "centers", True)
            rest = [other for other, _ in product if other != key]
            levels, numbers = parts(rest)
            if not steps and raw and not any(levels <= mine and numbers == own for mine, own in spans):
                missing = ":".join(rest)
                yield column, f"{key} stands without " + (f"{missing}; add {missing}" if rest else "an intercept")


# -- after the fit


def posterior_notes(fit: FormulaFit, priors: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What is worth saying of the posterior: separation, and priors that overrule the data or stand for them."""
    given = {name for name, prior in (priors or {}).items() if prior != "auto"}
    if "fixed" in given:
        given |= {name for name in fit.encoder.fixed.names if name != INTERCEPT}
    apart = [*_separated(fit), *_one_sided(fit)]
    known = bool(apart) or any("cannot tell" in note or "nothing" in note for note in fit.notes)  # why priors matter
    found = [text for name, text in _conflicts(fit, given) if name in given or not known]
    doubts = (term.doubt(values) for term, values in zip(fit.linear.terms, fit.linear.values, strict=True))
    return (*apart[:MOST], *found[:MOST], *_held(fit, given), *_limits(fit), *_common(fit), *_unsure(fit),
            *_peaked(fit), *(text for times, text in doubts if times > 1.0))


def _unsure(fit: FormulaFit) -> Iterator[str]:
    """Rows whose mean is known to an order of magnitude, among some of those of the fit."""
    whole, rows = fit.components, fit.linear.rows
    if rows is None or mean_by_f(fit.model) is None:
        return
    heaviest = int(np.argmax(whole.weights))
    here = fit.model.moved(whole.theta[heaviest])
    functionals = here.functionals(rows)
    m, v = whole.parts[heaviest].at(functionals.L, functionals.rest)
    wide = np.flatnonzero(v > NARROW**2)
    step = max(-(-len(wide) // LOOKED), 1)
    if not wide.size:
        return
    looked, parted = wide[::step], whole.parted
    some = rows.some(looked)
    ending = "" if whole.parts[0].points.size else "; fit.exact().predict() has them"
    if (found := whole.pointed(fit.model, some)) is not None:
        unsure = np.isnan(found.mean_columns(0.05)["sd"])
    else:
        f, skewness = Latents(np.ones(1), (m + functionals.shift)[None, looked], v[None, looked], (here,)), None
        if not by_leading_order(here, parted):
            f, skewness = parted.straight(parted.models(fit.model), some)
        unsure = np.isnan(tail_sds(f, skewness, parted, np.zeros(some.n)))
    if count := step * int(unsure.sum()):
        yield (f"means of {'about ' * (step > 1)}{count:,} row{'s' * (count > 1)} are known to an order of magnitude "
               'only: read their intervals. Their sds in predict(kind="mean") rest on the far tail and are NaN'
               f"{ending}.")


def _peaked(fit: FormulaFit) -> Iterator[str]:
    """Rows of levels whose f is so far from Gaussian that mean, sd and skewness do not tell its intervals."""
    problem = None if fit.result is None else fit.result.problem
    if fit.result is None or problem is None or problem.site.log_concave or not problem.site.separable:
        return
    q = fit.result.posterior
    shocks = q.latent.shocks(q) if len(q.m) <= MOST_PEAKS else None
    if shocks is None or shocks.wide or not shocks.own.size:
        return
    peaks = CollapsedWeights(problem, q, shocks, bound=0.0).settled(np.zeros((1, shocks.dim))).peaks()
    if number := int(((peaks > PEAKED) | (peaks < PARTED)).sum()):
        yield (f"f of {number:,} row{'s' * (number > 1)} in levels with few data has several modes or a narrow peak: "
               "the ends of intervals there, and of those levels, may be off by half an sd and more (means and sds are "
               "not). fit.exact() has them.")


def _common(fit: FormulaFit) -> Iterator[str]:
    """What no data tell of several classes."""
    if fit.components.parts[0].couples:
        yield ("the data determine differences between classes; what all classes have in common depends on the prior "
               f"alone and is part of every sd. fit.log_odds({fit.model.likelihood.fields[0]!r}) has the differences.")


def _separated(fit: FormulaFit) -> Iterator[str]:
    """Complete separation: the fixed columns, weighed as they are, put every row on its side."""
    data, fixed = fit.observed, fit.encoder.fixed
    if fit.model.likelihood.response not in ("binary", "ordered", "trials"):
        return
    if fixed.size < 1 or np.ptp(data.y) == 0.0 or data.aux.get("trials", np.ones(1)).max() > 1.0:
        return
    heaviest = fit.components.parts[int(np.argmax(fit.components.weights))]
    place, rows = fit.linear.places[0], fit.linear.rows
    assert rows is not None
    f = rows.X[:, place] @ heaviest.mean[place]
    order = np.argsort(data.y, kind="stable")
    y, f = data.y[order], f[order]
    jumps = np.flatnonzero(np.diff(y) > 0.0)
    if all(f[: k + 1].max() < f[k + 1 :].min() for k in jumps):
        yield (f"complete separation: a combination of the columns predicts every {data.name} without error, so the "
               "data give coefficients no upper limit; how large they are rests on the priors. State priors that you "
               "can defend, or leave the column out that gives the answer away.")


def _one_sided(fit: FormulaFit) -> Iterator[str]:
    """Levels of a factor in which every row has the same outcome at the end of its range."""
    data, response = fit.observed, fit.model.likelihood.response
    if response not in ("binary", "trials", "counts") or fit.frame is None or np.ptp(data.y) == 0.0:
        return
    top = data.aux.get("trials", np.ones(data.n) if response == "binary" else np.full(data.n, np.inf))
    single = [product[0][0] for product in fit.encoder.fixed.products if len(product) == 1]
    for factor in (fit.encoder.fixed.used[key] for key in single):
        if not isinstance(factor, LevelFactor) or len(factor.levels) < 2:
            continue
        codes, labels = fit.frame.read(factor.column).factor
        own = codes[data.places]
        rows = np.bincount(own, minlength=len(labels))
        for same, end in ((data.y == 0.0, "0"), (data.y == top, "1" if response == "binary" else "all trials")):
            full = np.flatnonzero((np.bincount(own, same, minlength=len(labels)) == rows) & (rows > 0))
            yield from (f"every row with {factor.column} = {labels[k]!r} has {data.name} = {end}: how far its "
                        "coefficient goes rests on the prior." for k in full.tolist())


def _conflicts(fit: FormulaFit, given: set[str]) -> Iterator[tuple[str, str]]:
    """Coefficients that rest on their priors, lie in their tails, or are moved by more than half an sd.

    Default priors must do both: those that shrink what the data hardly say are not in conflict with them.

    Without its prior N(mu, s0^2) a coefficient with posterior N(m, s^2), given theta, has m' = m + s^2 (m - mu) / (s0^2
    - s^2) and s'^2 = s^2 s0^2 / (s0^2 - s^2): the Sherman-Morrison formula, so that the others are counted; by Cauchy
    and Schwarz no linear function of the coefficients moves by more sds. m' is (m - mu) / sqrt(s0^2 - s^2) sds from mu
    where both are uncertain.
    """
    fixed, fields, place = fit.encoder.fixed, fit.model.likelihood.fields, fit.linear.places[0]
    some = fit.components.pruned(0.05)
    for number, field in enumerate(fields if fixed.size else ()):
        every: Any = some.parts
        own = [part if len(fields) == 1 else part.parts[number] for part in every]
        index = np.arange(own[0].size)[place]
        m = np.array([part.mean[index] for part in own])
        variance = np.array([part.covariances(index, index) for part in own])
        moving = some.theta if fit.linear.terms[0].follows is not None else some.theta[:1]  # prior means that move
        means = [known.mean for theta in moving if (known := fit.linear.moved(theta).priors(number)[0]) is not None]
        gap, wide = m - means, fixed.sd**2
        left = np.where(variance < (1.0 - 1e-9) * wide, wide - variance, np.inf)  # inf: the data say nothing at all
        shares, scores = some.weights @ (variance / wide), np.abs(some.weights @ (gap / np.sqrt(left)))
        freely, moved = some.weights @ (m + variance / left * gap), some.weights @ (np.sqrt(variance) / left * gap)
        loosely = np.sqrt(some.weights @ (wide / left * variance))
        for j, name in enumerate(fixed.names):
            words, prior, share = name if len(fields) == 1 else f"{field}: {name}", fit.priors.get(name, ""), shares[j]
            if share > RESTS and scores[j] <= TAIL:
                yield name, (f"{words} rests on its prior, {prior}: the data add {100 * (1 - share):.0f}% of what is "
                             "known about it.")
            elif (max if name in given else min)(abs(moved[j]) / MOVED, scores[j] / TAIL) > 1.0:
                yield name, (f"prior-data conflict on {words}: the data alone would say {plain(freely[j], 3)} (sd "
                             f"{plain(loosely[j], 3)}), {plain(scores[j], 2)} sds from what its prior, {prior}, "
                             f"expects. The prior moves the estimate by {plain(abs(moved[j]), 2)} sd, and the estimate "
                             f"follows {100 * share:.0f}% of any change of the prior's mean.")


def _held(fit: FormulaFit, given: set[str]) -> Iterator[str]:
    """The same for positive parameters with priors of the user's, to first order, on their logarithms."""
    points, weights = fit.components.marginal_points
    for block in fit.model.theta.blocks if fit.components.integrated else ():
        values = block.reported(points[:, fit.model.theta.slice_of(block)])
        for name, prior in block.priors().items():
            if name not in given or name not in block.names or not isinstance(prior, PositivePrior):
                continue
            own = values[:, block.names.index(name)]
            if not own.min() > 0.0:  # a uniform prior may be that of a correlation
                continue
            logs = np.log(own)
            middle = float(weights @ logs)
            sd = float(np.sqrt(weights @ (logs - middle) ** 2))
            slope = prior.slope(float(np.exp(middle)))  # of the log density: what the prior adds to the data's own
            if sd * abs(slope) > MOVED:
                yield (f"prior-data conflict on {name}: its prior, {prior}, moves it {'up' if slope > 0.0 else 'down'} "
                       f"by about {plain(sd * abs(slope), 2)} sd, to {plain(float(np.exp(middle)), 3)}.")


def _limits(fit: FormulaFit) -> Iterator[str]:
    """Parameters of which the data leave open that they are at the end of their range."""
    for name, power in limits_reached(fit.model.theta, fit.components).items():
        if power > 0.0:
            yield f"{name} reaches down to 0: the data do not rule out a model without it."
            continue
        median = float(np.exp(marginal_quantile(fit.components.quantiles[fit.model.names.index(name)], np.array(0.5))))
        moments = "mean and sd are" if np.isnan(fit.hyperparameters[name]) else "sd is"
        ending = f" Its posterior {moments} infinite under its prior; its " if power >= -2.0 else " Its "
        yield (f"{name} reaches up to infinity: the data do not rule out the simpler model without it.{ending}"
               f"median is {plain(median, 3)}.")
