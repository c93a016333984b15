"""Exact draws on demand: ``fit.exact()`` samples the fit's program in Stan, from q and with q's covariance as metric.

The draws become the posterior of a fit with the same face: one point of theta and one point of the weights for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from klimb.errors import InputError, require
from klimb.infer.result import Status
from klimb.latents.arrow import DrawnWeights
from klimb.latents.outputs import Several
from klimb.latents.weights_posterior import WeightPosterior
from klimb.models.components import SCORES, Components
from klimb.models.joint import named_draws
from klimb.models.stan import StanProgram
from klimb.models.tabulate import limits_reached
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import bulk_ess, effective, rhat, split
from klimb.report.records import Fact, FitTrust
from klimb.report.text import plain

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit

AGREED = 1.01  # R-hat up to which chains agree
FEWEST = 100  # draws of a chain from which R-hat says something
MOST_DENSE = 300  # parameters up to which the metric is q's whole covariance; above it is its diagonal
METRIC_DRAWS = 1000  # of q at least, for its covariance
# Warm-up steps of a chain, the acceptance rate that step sizes aim at, and whether weights are centred. Below 150 steps
# Stan leaves the metric alone and only adapts the step size; the last attempt, where the others did not do, learns a
# metric of its own, for weights in units of their scale, which make no funnel.
ATTEMPTS: tuple[tuple[int, float, bool | None], ...] = ((149, 0.9, None), (149, 0.99, None), (1000, 0.99, False))
UNTOLD = 0.2  # sampling error of an sd from which it is left out of the comparison: it may not even be finite


@dataclass(frozen=True, eq=False)
class SampledChains:
    """What a sampler found: draws of a variable, all chains one after the other, and where it had trouble."""

    draws: Callable[[str], Array]
    divergent: int
    deepest: int  # transitions that were cut at the deepest tree


@dataclass(frozen=True, eq=False)
class ChainPlan:
    """How long chains are, where they start and the covariance that is their metric; (n,) is a diagonal."""

    count: int
    length: int
    seed: int
    starts: tuple[tuple[dict[str, Array], Array], ...]
    metric: Array


def exact(fit: FormulaFit, draws: int, chains: int, seed: int) -> FormulaFit:
    """The fit whose posterior is draws of a sampler; its verdict compares the fit that it was asked of."""
    require(chains >= 1 and draws >= chains * FEWEST, f"exact needs at least {FEWEST} draws for each chain",
            f"{draws} draws of {chains} chains", "4,000 draws of 4 chains are the default.")
    refused = exact_refused(fit)
    if refused is not None:
        raise refused
    sampler, name = _sampler()
    for warmup, aim, centred in ATTEMPTS:
        program = fit.to_stan(centred=centred)
        found = sampler(program, _planned(fit, program, chains, draws // chains, seed), warmup, aim)
        theta, weights = program.read(found.draws)
        summary = judged_draws(fit, theta, weights, found, chains, name)
        if summary.verdict == "verified":
            break
    order = np.random.default_rng(seed).permutation(len(theta))  # so that any of them stand for all
    by_codes = "Crossed" if fit.linear.sparse else "Mixed"  # a form whose rows take draws of all weights
    model = replace(fit.linear, form=by_codes if fit.linear.coded >= 0 else "Weights")
    return replace(fit, model=model, components=drawn(theta[order], weights[order], len(model.likelihood.fields)),
                   mode="integrate" if model.theta.size else fit.mode, status=Status.CONVERGED, kept_loo=None,
                   kept_trust=summary, result=None)


def exact_refused(fit: Any) -> InputError | None:
    """Why a fit cannot be sampled, if it cannot: the program in Stan has to be there, and theta free."""
    if not hasattr(fit, "to_stan"):
        return InputError("exact draws are for fits by formula", type(fit).__name__, "Write the model as a formula.")
    if fit.mode == "fixed" and fit.model.theta.size:
        return InputError("exact draws the hyperparameters too", 'hyper="fixed", which holds them',
                          'Fit with another hyper, or hold single ones by priors={"sigma": 1.0}, say.')
    try:
        fit.to_stan()
    except InputError as error:
        return error
    return None


def drawn(theta: Array, weights: Array, classes: int = 1) -> Components:
    """Draws of theta and of the weights as equal points."""
    parts: list[WeightPosterior] = [DrawnWeights(w) for w in weights]
    if classes > 1:
        parts = [Several(tuple(DrawnWeights(own) for own in w.reshape(classes, -1))) for w in weights]
    count = len(weights)
    quantiles = np.quantile(theta, ndtr(SCORES), axis=0).T if theta.shape[1] else np.zeros((0, len(SCORES)))
    return Components(np.full(count, 1.0 / count), theta, tuple(parts), np.asarray(quantiles))


def judged_draws(fit: FormulaFit, theta: Array, weights: Array, found: SampledChains, chains: int,
                 name: str) -> FitTrust:
    """The verdict on the draws, and what they say of the sds and means that ``fit`` shows."""
    by_name = named_draws(fit, theta, weights)
    every = np.column_stack([values.reshape(len(theta), -1) for values in by_name.values()])
    in_chains = every.reshape(chains, -1, every.shape[1])
    worst, least = float(rhat(in_chains).max()), float(bulk_ess(in_chains).min())
    errors, shifts = [(0.0, 0.0)], [0.0]
    for row in fit.table_rows():
        own = by_name[row.name]
        square = ((own - own.mean()) ** 2).reshape(chains, -1, 1)
        sd = float(np.sqrt(square.mean()))
        noise = float(square.std() / np.sqrt(effective(split(square))[0])) / (2.0 * sd**2)
        if noise < UNTOLD and np.isfinite(row.sd):
            errors.append((abs(row.sd / sd - 1.0), noise))
            shifts.append(abs(row.mean - float(own.mean())) / sd)
    number, noise = max(errors)
    agreement = f"rhat at most {worst:.3f}, bulk ess at least {least:,.0f}"
    facts = (Fact("exact draws", f"{len(theta):,} of {chains} chains by {name}"), Fact("largest rhat", f"{worst:.4f}"),
             Fact("smallest bulk ess", f"{least:,.0f}"), Fact("divergent transitions", f"{found.divergent}"),
             Fact("transitions at the deepest tree", f"{found.deepest}"),
             Fact("largest error of a mean of the fit", f"{max(shifts):.3f} sd"),
             Fact("largest error of an sd of the fit", f"{number:.1%}"))
    measures = "largest error of an sd of the fit, by exact draws"
    if worst > AGREED or found.divergent or not np.isfinite(worst):
        why = f"{found.divergent} transitions diverged" if found.divergent else "the chains disagree"
        advice = f"The {len(theta):,} exact draws cannot be relied on: {why} ({agreement}). {_remedy(fit, len(theta))}"
        return FitTrust("doubt", measures, advice, number, facts)
    advice = (f"verified by {len(theta):,} exact draws: largest error of an sd {number:.0%} (sampling error "
              f"{noise:.1%}); {agreement}")
    return FitTrust("verified", measures, advice, number, facts)


def _remedy(fit: FormulaFit, draws: int) -> str:
    """What can be sampled instead: sds that may be 0 make funnels, unless their priors have no density there."""
    names = [name for name, power in limits_reached(fit.model.theta, fit.components).items() if power > 0.0]
    if not names:
        return f"More draws may agree: fit.exact(draws={4 * draws})."
    priors = ", ".join(f'"{name}": "gamma(4, {plain(4.0 / fit.hyperparameters[name], 2)})"' for name in names)
    return (f"The data do not rule out 0 for {', '.join(names)}, which makes the posterior hard to sample. A fit whose "
            f"priors are 0 there can be sampled: priors={{{priors}}}.")


def _planned(fit: FormulaFit, program: StanProgram, chains: int, length: int, seed: int) -> ChainPlan:
    """Starts are draws of q, and other modes that its report knows of; the metric is the covariance of many draws."""
    # Weights are put in units of their scale at theta, which has to be the theta that they were drawn under.
    rng, components = np.random.default_rng(seed), replace(fit._spread, points=np.zeros((0, 0)))
    size = program.point(components.theta[0], components.parts[0].mean)[1].size
    theta, weights = components.draw(max(METRIC_DRAWS, 4 * size if size <= MOST_DENSE else 0) + chains, rng)
    for k, mode in enumerate(fit.result.trust.modes[: chains - 1] if fit.result is not None else (), start=1):
        theta[k], weights[k] = fit.model.at, fit.model.detach(mode.posterior).mean
    points = [program.point(t, w) for t, w in zip(theta, weights, strict=True)]
    vectors = np.array([vector for _, vector in points[chains:]])
    variances = np.maximum(vectors.var(axis=0), 1e-12)
    metric = variances
    if size <= MOST_DENSE:
        metric = np.cov(vectors.T, ddof=0).reshape(size, size) + np.diag(1e-6 * variances)
    return ChainPlan(chains, length, seed, tuple(points[:chains]), metric)


# -- samplers


def _sampler() -> tuple[Callable[[StanProgram, ChainPlan, int, float], SampledChains], str]:
    """What samples, and its name."""
    if find_spec("stanli") is not None:
        import stanli

        return by_stanli, f"stanli {stanli.__version__}"
    if find_spec("cmdstanpy") is not None:
        import cmdstanpy

        try:
            return by_cmdstan, Path(cmdstanpy.cmdstan_path()).name
        except ValueError:  # there is no installation
            pass
    raise InputError("exact draws need a sampler", "neither stanli nor CmdStan with cmdstanpy",
                     'pip install "klimb[exact]" brings stanli, which needs no compiler.')


def by_stanli(program: StanProgram, plan: ChainPlan, warmup: int, aim: float) -> SampledChains:
    """Draws by stanli, which interprets the program."""
    import stanli

    found = stanli.Model(stan_code=program.code, data=program.data_json()).sample(
        chains=plan.count, seed=plan.seed + 1, warmup=warmup, samples=plan.length, delta=aim, refresh=0,
        inits=np.array([vector for _, vector in plan.starts]), inv_metric=plan.metric,
        metric="dense_e" if plan.metric.ndim == 2 else "diag_e")
    return SampledChains(lambda name: np.asarray(found[name]), int(found.divergences.sum()),
                   int(found.max_treedepth_hits.sum()))


def by_cmdstan(program: StanProgram, plan: ChainPlan, warmup: int, aim: float) -> SampledChains:
    """Draws by CmdStan, which compiles the program."""
    import cmdstanpy

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.stan"
        program.save(file)
        found = cmdstanpy.CmdStanModel(stan_file=str(file)).sample(
            data=str(file.with_suffix(".data.json")), chains=plan.count, seed=plan.seed + 1, iter_warmup=warmup,
            iter_sampling=plan.length, adapt_delta=aim, show_progress=False,
            inits=[{name: value.tolist() for name, value in named.items()} for named, _ in plan.starts],
            inv_metric=plan.metric, metric="dense_e" if plan.metric.ndim == 2 else "diag_e")
        kept: dict[str, Any] = {name: np.asarray(values) for name, values in found.stan_variables().items()}
        return SampledChains(kept.__getitem__, int(np.sum(found.divergences)), int(np.sum(found.max_treedepths)))
