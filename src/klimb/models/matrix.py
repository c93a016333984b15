"""Linear models of a matrix of columns: what estimators fit. ``y ~ ridge(.)``, and ``y ~ sparse(.)``.

    f = w_0 + x'w        w_0 ~ N(link of the mean of y, (2.5 spread)^2)        x standardised

With several classes there is one such f for each, all with the same prior scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from klimb.errors import require
from klimb.infer.loop import infer
from klimb.infer.problem import Problem
from klimb.infer.start import sites_at, start_at
from klimb.latents.outputs import Outputs
from klimb.latents.weights import Weights
from klimb.likelihoods import Choices, Left, Likelihood, Merged, Observed
from klimb.models.components import Components
from klimb.models.fit import Fit
from klimb.models.linear import LinearModel
from klimb.models.plain_steps import in_single
from klimb.models.predicted import sites_in_cavities
from klimb.models.products import solve_by_products, too_large
from klimb.models.settle import LOOSE, Settled, settle, settled
from klimb.models.solution import Solution, solve
from klimb.numerics.arrays import Array
from klimb.rows.distinct import Rows
from klimb.rows.scaling import Scaling
from klimb.terms.base import Context, Dense, Term
from klimb.terms.fixed import FixedTerm
from klimb.theta import PositiveParameter

BEHIND = 5.0  # nats by which a way to scale columns may be behind at first and still be searched
LEAST_NOISE = 1e-4  # of y's spread: less noise cannot be told from none
ROUGH_TOL = 1e-3  # of the fits that compare ways to scale columns
PART_TOL = 1e-2  # of fits to some of the rows, which say where those to all begin
WARM_TOL = 2.0  # of the first fit of several classes from there, from which steps in sites and scale go on
SOME, LEAST_SOME = 8, 250  # share of rows that find the scale where all need N x N matrices, and the least number
ENOUGH_ROWS = 1000  # from which that is done

Make = Callable[[int, Choices, float], Term]  # number of columns, priors, spread of f -> the term of all columns


@dataclass(frozen=True, eq=False)
class MatrixData:
    """Distinct rows, and their response as a likelihood reads it."""

    rows: Rows
    data: Observed
    likelihood: Likelihood

    @classmethod
    def of(cls, rows: Rows, likelihood: Likelihood, levels: Sequence[str] = (),
           weights: Array | None = None) -> Self:
        """``weights`` are those of the caller's rows, before equal ones were merged."""
        read = likelihood.read(left_of(rows, levels), rows.weights)
        data = replace(read, merged=Merged(rows.inverse, weights))
        return cls(rows, data, likelihood.for_data(data))

    def prepared(self, choices: Choices) -> Likelihood:
        """The likelihood with its free parameters, of which those with the unit of y stay above `LEAST_NOISE`."""
        found, spread = self.likelihood.prepared(self.data, choices), self.likelihood.units(self.data).spread
        blocks = [replace(block, least=max(block.least, LEAST_NOISE * spread))
                  if isinstance(block, PositiveParameter) and own.scaled else block
                  for own, block in zip(found.free, found.parameters, strict=True)]
        return replace(found, parameters=tuple(blocks))

    def model(self, inputs: Scaling, make: Make, priors: dict[str, Any]) -> LinearModel:
        """The intercept (where ``inputs`` has one) and the term of all columns."""
        choices, likelihood, data = Choices(priors), self.likelihood, self.data
        units = likelihood.units(data)
        context = Context(units, likelihood.centre(data), likelihood.reach(data), data.shares, choices,
                          follows=likelihood.centre_words())
        level = FixedTerm(((),) if inputs.intercept else (), {})
        level = level.ready(Dense(np.ones((data.n, int(inputs.intercept)))), context)
        if inputs.products:  # columns are not centred: f where they are 0 is a unit or so from f at their means
            level = replace(level, sd=np.hypot(level.sd, units.spread))
        columns = make(inputs.n_columns, choices, units.spread)
        likelihood = self.prepared(choices)
        choices.finish()
        return LinearModel.of_matrix((level, columns), likelihood, inputs, self.rows.X)


def left_of(rows: Rows, levels: Sequence[str]) -> Left:
    """The response of distinct rows; messages speak of the caller's."""
    first = np.zeros(rows.n, dtype=np.intp)
    places = np.flatnonzero(rows.inverse >= 0)[::-1]
    first[rows.inverse[places]] = places
    return Left("y", rows.y, tuple(levels), first)


def fit_matrix(given: MatrixData, ways: Sequence[Scaling], make: Make, priors: dict[str, Any], *, tol: float,
               max_iter: int) -> Fit:
    """The fit at its best hyperparameters, with the columns scaled in the best of several ways."""
    models = [given.model(way, make, priors) for way in ways]
    if too_large(given.rows.X, given.likelihood.name, models[0].new_site()):
        models = [given.model(way.by_products(), make, priors) for way in ways]
    begun = [Settled(model) for model in models]
    if models[0].settles and models[0].by_gram and given.rows.n >= ENOUGH_ROWS:
        n, k = given.rows.n, max(given.rows.n // SOME, LEAST_SOME)
        data = given.data.take(slice(k))
        parts = [_of_first(model, given, data.n, alone=len(models) == 1) for model in models]
        begun = _best([_from_unit_scale(part, data) for part in parts], BEHIND * k / n)
        begun = _best([settled(replace(one, tol=LOOSE), data, PART_TOL) for one in begun], BEHIND * k / n)
        begun = [_from_part(one, models, given.data) for one in begun]
    elif len(models) > 1:
        begun = _best([_from_unit_scale(model, given.data) for model in models], BEHIND)
    found = [solved(one, given.data, tol, max_iter) for one in begun]
    return Fit.of(max(found, key=lambda solution: solution.bound), given.data)


def _best(begun: Sequence[Settled], behind: float) -> list[Settled]:
    """Those whose objective is within so many nats of the best."""
    best = max(one.objective for one in begun)
    return [one for one in begun if one.objective >= best - behind]


def _of_first(model: LinearModel, given: MatrixData, k: int, *, alone: bool) -> LinearModel:
    """The same with the first ``k`` distinct rows, which their hashes have put in order: a sample by content."""
    kept = model._grams.of_first(k) if alone else {}
    return replace(model, rows=model._placed(given.rows.X[:k]), kept=kept)


def _from_part(part: Settled, models: Sequence[LinearModel], data: Observed) -> Settled:
    """Where all rows begin: at the scale that some found, with the sites that their posterior predicts."""
    model = next(one for one in models if one.inputs is part.model.inputs)
    q: Any = part.posterior
    site = model.site(data)
    assert part.before is not None
    here = in_single(model.moved(np.array([part.before[0]])), site.separable)
    latent: Any = here.latent
    found = [own.marginals_from_first(few) for own, few in zip(latent.parts, q.latent.split(q), strict=True)]
    m, v = (np.concatenate(values) for values in zip(*found, strict=True))
    k = len(q.a)
    if site.separable:  # what the sites of some leave, the others meet
        a, seen = np.zeros(len(m)), np.zeros(len(m))
        a[:k], seen[:k] = q.a, q.gamma
        problem = Problem(latent, site.rough(), data.y)
        gamma = np.where(seen > 0.0, seen, np.maximum(problem.oracle(m, v).gamma, 0.01 / v))
        slope, gamma = sites_in_cavities(problem, 1.0 / v - seen, m, a, gamma)
    else:
        slope, gamma = sites_at(site, data.y, m, v)
    start = start_at(latent, slope, gamma)
    tol = np.inf if site.separable else WARM_TOL
    return Settled(here, start, curvature=part.curvature, tol=tol)


def solved(begun: Settled, data: Observed, tol: float, max_iter: int) -> Solution:
    """The model at its best hyperparameters, by products where its matrix only multiplies."""
    if begun.model.by_products:
        return solve_by_products(begun.model, data, tol=tol)
    return solve(begun.model, data, hyper="optimise", tol=tol, search_iter=max_iter, spread=False, begun=begun)


def _from_unit_scale(model: LinearModel, data: Observed) -> Settled:
    """A loose fit at the prior scale that lets f vary by one or so, and the scale moved: to compare ways to scale X."""
    block = model.terms[-1].parameters[0]
    at = model.at.copy()
    at[model.theta.slice_of(block)] -= 0.5 * np.log(model.terms[-1].size)
    begun = Settled(model.moved(at))
    if model.settles:
        return settle(begun, data)
    return replace(begun, objective=begun.model.infer(data, tol=ROUGH_TOL).bound)


def absorb(fit: Fit, rows: Rows, levels: Sequence[str], *, tol: float) -> Fit:
    """The fit after more data, the posterior so far being the prior; hyperparameters stay.

    Exact for a Gaussian likelihood; for others earlier rows stay as they were approximated when they came.
    """
    model, part = fit.model, fit.components.parts[0]
    assert isinstance(model, LinearModel)
    assert model.inputs is not None
    require(not model.by_products, "partial_fit needs the covariance of all coefficients",
            f"{part.size:,} of them, fitted by products alone", "Fit all rows at once, or fewer columns.")
    likelihood = model.likelihood
    data = likelihood.read(left_of(rows, levels), rows.weights)
    design, latents = model.inputs.design(rows.X), []
    for own in getattr(part, "parts", (part,)):
        mean, covariance = own.joint(np.eye(own.size))
        latents.append(Weights(design, mean, covariance))
    latent = latents[0] if len(latents) == 1 else Outputs(latents)
    result = infer(latent, model.site(data), data.y, tol=tol)
    components = Components(np.ones(1), fit.components.theta, (latent.detach(result.posterior),),
                            fit.components.quantiles)
    return replace(fit, model=replace(model, rows=None), components=components, bound=fit.bound + result.bound,
                   status=result.status, data=None, result=result)
