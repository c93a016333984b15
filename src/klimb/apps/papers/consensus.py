"""[B]'s future work: distributed optimisation. The exact reduction over blocks of rows, and Bregman ADMM beside it.

Consensus: block b has a Gaussian q_b of its own, and all of them shall equal q_0. With mean parameters mu, natural ones
lambda, the prior lambda_p and t_b, the sums of the sites of block b at q_b (their natural parameters),

    min  sum_b F_b(mu_b) + KL(q_0 || p)        mu_b = mu_0        F_b = - E log p(y_b | f),  grad F_b = -t_b

Bregman ADMM (Wang and Banerjee 2014) has KL in place of the squared distance. Its three steps, F_b linearised as in [A]
Eq. (7), are sums of natural parameters:

    lambda_b <- lambda_0 + (t_b - y_b) / rho
    lambda_0 <- (lambda_p + sum_b y_b + rho sum_b lambda_b) / (1 + rho B)
    y_b      <- y_b + rho (mu_b - mu_0)

A fixed point has y_b = t_b and lambda_0 = lambda_p + sum_b t_b, the optimum. y has the unit of lambda, not of mu: the
last step as it is printed depends on the unit of the weights. "natural" takes it along lambda_b - lambda_0 instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klimb import sites
from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, PaperTable, Results, Size, by_parts
from klimb.apps.papers.tables import NOTHING
from klimb.errors import NotPositiveDefiniteError
from klimb.infer.by_sums import block_sums, fit_by_sums
from klimb.infer.minibatch import FactorisedGaussian
from klimb.latents.prior import WeightPrior
from klimb.numerics.arrays import Array
from klimb.rows.reduction import Block

SETS = {"a1a": 0.4, "german": 0.1}  # and the prior variance: near the best of [A] Table 2, that of [S]
BLOCKS = (4, 16)
SHARES = (1.0, 2.0, 4.0)  # rho B: the weight of all blocks' KL beside that of the prior
ROUNDS = {"full": 80, "quick": 40, "tiny": 30}
CLOSE = (1e-2, 1e-4)  # nats below the best bound
SITE = sites.Logistic()


def rows(library: Library, name: str, n_blocks: int) -> tuple[list[Block], WeightPrior]:
    """Blocks of a set in an order that a seed fixes, and the prior; columns of german are standardised."""
    data = library.load(name)
    X, y = (data.dense[data.train], data.y[data.train]) if name == "a1a" else (data.dense, data.y)
    if name == "german":
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(0).permutation(len(y))
    prior = WeightPrior(0.0, SETS[name], X.shape[1])
    return [(X[part], y[part]) for part in np.array_split(order, n_blocks)], prior


def reduction(blocks: Sequence[Block], prior: WeightPrior) -> Found:
    """The exact reduction: one round is one pass, and sends q out and its sums back."""
    fit = fit_by_sums(blocks, SITE, prior, tol=1e-9)
    return {"bounds": fit.bounds, "status": fit.status.name.lower()}


def bregman_admm(blocks: Sequence[Block], prior: WeightPrior, rho: float, duals: str, rounds: int) -> Found:
    """The bound at q_0 after every round (which is not counted as a pass: the method does not look at it)."""
    prior_part = np.column_stack([np.zeros(prior.n_weights), np.eye(prior.n_weights)])
    y = [_stacked(block_sums(SITE, prior, None, block)) for block in blocks]
    centre = prior_part + sum(y)
    local, bounds, status = [centre] * len(blocks), list[float](), "max_iter"
    for _ in range(rounds):
        try:
            q = _gaussian(centre)
            bounds.append(sum(block_sums(SITE, prior, q, block)[0] for block in blocks) - q.divergence())
            wanted = [_stacked(block_sums(SITE, prior, _gaussian(one), block))
                      for one, block in zip(local, blocks, strict=True)]
            local = [centre + (t - dual) / rho for t, dual in zip(wanted, y, strict=True)]
            centre = (prior_part + sum(y) + rho * sum(local)) / (1.0 + rho * len(blocks))
            towards = [one - centre for one in local] if duals == "natural" else [
                _moments(one) - _moments(centre) for one in local]
            y = [dual + rho * step for dual, step in zip(y, towards, strict=True)]
        except NotPositiveDefiniteError:
            status = "improper"
            break
    return {"bounds": bounds, "status": status}


def _stacked(sums: tuple[float, Array, Array]) -> Array:
    """Natural parameters as one array: the shift, then the precision."""
    return np.column_stack(sums[1:])


def _gaussian(parameters: Array) -> FactorisedGaussian:
    return FactorisedGaussian.of(parameters[:, 1:], parameters[:, 0])


def _moments(parameters: Array) -> Array:
    """Mean parameters in the units of `_stacked`, where precisions stand for -2 times their natural parameter."""
    q = _gaussian(parameters)
    return np.column_stack([q.mean, -2.0 * (q.root @ q.root.T + np.outer(q.mean, q.mean))])


def plan(library: Library, size: Size) -> list[Job]:
    """Both ways on every set and number of blocks."""
    def job(name: str, count: int, share: float, duals: str) -> Job:
        def work(_: Results) -> Found:
            blocks, prior = rows(library, name, count)
            found = reduction(blocks, prior) if duals == "exact" else bregman_admm(
                blocks, prior, share / count, duals, ROUNDS[size])
            return {**found, "columns": prior.n_weights, "share": share}

        return Job(f"{name}/{count}/{duals}/{share:g}", work)

    return [job(name, count, share, duals) for name in SETS for count in BLOCKS
            for share, duals in ((0.0, "exact"), *((share, "natural") for share in SHARES), (2.0, "mean"))]


def tables(results: Results) -> list[PaperTable]:
    """Rounds until the bound is close; every round sends as many numbers."""
    parts = by_parts(results)
    names = {"exact": "exact reduction", "natural": "Bregman ADMM, natural duals", "mean": "Bregman ADMM, as printed"}
    lines = []
    for (name, count, duals, _), found in parts.items():
        best = max(parts[name, count, "exact", "0"]["bounds"])
        D = found["columns"]
        gaps = best - np.array(found["bounds"])
        lines.append((name, names[duals], count, f"{found['share'] / float(count):.3g}" if found["share"] else NOTHING,
                      *(_first(gaps, limit) for limit in CLOSE), f"{gaps[-1]:.1g}",
                      f"{len(gaps)} rounds" if found["status"] == "improper" else NOTHING, f"{D * (D + 3) // 2:,}"))
    heads = ("set", "method", "blocks", "rho", *(f"passes to {limit:g} nats" for limit in CLOSE), "last gap, nats",
             "improper after", "numbers a block sends")
    return [PaperTable("Distributed optimisation: passes over the rows", heads, tuple(lines), left=2)]


def _first(gaps: Array, limit: float) -> str:
    """Passes until the bound stays within ``limit``: one for the start, one a round."""
    away: Any = np.flatnonzero(gaps > limit)
    after = int(away[-1]) + 1 if away.size else 0
    return NOTHING if after == len(gaps) else str(after + 2)


TABLE = Experiment(plan, tables, remarks=(
    "A round of the exact reduction sends q to the blocks and adds their sums, D + D (D + 1) / 2 numbers a block; it is"
    " `klimb.infer.by_sums.fit_by_sums`, and has the same bits for any number of processes.",
    "Bregman ADMM sends as many numbers. Its q_0 moves by a step that the KL of all blocks damps, so that a large rho B"
    " is slow, and with a small one some block is left with a Gaussian that is not proper.",
    "As it is printed, the dual step is in mean parameters, whose unit is another one: on german it crawls, elsewhere"
    " some block soon has no proper Gaussian. Duals in natural parameters go the same way and have no unit.",
))
