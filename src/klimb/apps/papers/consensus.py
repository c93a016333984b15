"""[B]'s future work, distributed optimisation: the exact reduction over blocks of rows, and Bregman ADMM beside it.

Block b has a Gaussian q_b of its own with natural parameters lambda_b, t_b are the sums of its sites at q_b, y_b its
dual: docs/papers/kl-proximal.md derives the three sums that are a round.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from klimb import sites
from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import NOTHING, PaperTable
from klimb.errors import NotPositiveDefiniteError
from klimb.infer.minibatch import FactorisedGaussian
from klimb.infer.rows import Block, SiteSums, block_sums, fit_by_sums
from klimb.latents.linear import WeightPrior
from klimb.numerics.arrays import Array

SETS = {"a1a": 0.4, "german": 0.1}  # and the prior variance: near the best of [A] Table 2, that of [S]
BLOCKS = (4, 16)
RULES = (("exact", 0.0), ("natural", 1.0), ("natural", 2.0), ("natural", 4.0), ("mean", 2.0))  # and rho B
NAMES = {"exact": "exact reduction", "natural": "Bregman ADMM, natural duals", "mean": "Bregman ADMM, as printed"}
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


def bregman_admm(blocks: Sequence[Block], prior: WeightPrior, rho: float, duals: str, rounds: int) -> Found:
    """The bound at q_0 after every round (which is not counted as a pass: the method does not look at it)."""
    prior_part = np.column_stack([np.zeros(prior.n_weights), np.eye(prior.n_weights)])
    y = [_stacked(block_sums(SITE, prior, None, block)) for block in blocks]
    centre = prior_part + sum(y)
    local, bounds = [centre] * len(blocks), list[float]()
    for _ in range(rounds):
        try:
            q = _gaussian(centre)
            bounds.append(sum(block_sums(SITE, prior, q, block).value for block in blocks) - q.divergence())
            wanted = [_stacked(block_sums(SITE, prior, _gaussian(one), block))
                      for one, block in zip(local, blocks, strict=True)]
            local = [centre + (t - dual) / rho for t, dual in zip(wanted, y, strict=True)]
            centre = (prior_part + sum(y) + rho * sum(local)) / (1.0 + rho * len(blocks))
            unit = _moments if duals == "mean" else np.asarray
            y = [dual + rho * (unit(one) - unit(centre)) for dual, one in zip(y, local, strict=True)]
        except NotPositiveDefiniteError:
            return {"bounds": bounds, "status": "improper"}
    return {"bounds": bounds, "status": "proper"}


def _stacked(sums: SiteSums) -> Array:
    """Natural parameters as one array: the shift, then the precision."""
    return np.column_stack([sums.pull, sums.gram])


def _gaussian(parameters: Array) -> FactorisedGaussian:
    return FactorisedGaussian.of(parameters[:, 1:], parameters[:, 0])


def _moments(parameters: Array) -> Array:
    """Mean parameters in the units of `_stacked`, where precisions stand for -2 times their natural parameter."""
    q = _gaussian(parameters)
    return np.column_stack([q.mean, -2.0 * (q.root @ q.root.T + np.outer(q.mean, q.mean))])


def plan(library: Library, size: Size) -> list[Job]:
    """Both ways on every set and number of blocks."""
    def work(name: str, count: int, duals: str, share: float, _: Results) -> Found:
        blocks, prior = rows(library, name, count)
        if duals == "exact":
            return {"bounds": fit_by_sums(blocks, SITE, prior, tol=1e-9).bounds, "columns": prior.n_weights}
        return bregman_admm(blocks, prior, share / count, duals, ROUNDS[size])

    return [Job(f"{name}/{count}/{duals}/{share:g}", partial(work, name, count, duals, share))
            for name in SETS for count in BLOCKS for duals, share in RULES]


def tables(results: Results) -> list[PaperTable]:
    """Passes until the bound is close; every round sends as many numbers."""
    parts, lines = by_parts(results), []
    for (name, count, duals, share), found in parts.items():
        exact = parts[name, count, "exact", "0"]
        gaps, D = max(exact["bounds"]) - np.array(found["bounds"]), exact["columns"]
        lines.append((name, NAMES[duals], count, NOTHING if duals == "exact" else f"{float(share) / float(count):.3g}",
                      *(_first(gaps, limit) for limit in CLOSE), f"{gaps[-1]:.1g}",
                      f"{len(gaps)} rounds" if found.get("status") == "improper" else NOTHING,
                      f"{D * (D + 3) // 2:,}"))
    heads = ("set", "method", "blocks", "rho", *(f"passes to {limit:g} nats" for limit in CLOSE), "last gap, nats",
             "improper after", "numbers a block sends")
    return [PaperTable("Distributed optimisation: passes over the rows", heads, tuple(lines), left=2)]


def _first(gaps: Array, limit: float) -> str:
    """Passes until the bound stays within ``limit``: one for the start, one a round."""
    after = int(np.flatnonzero(gaps > limit)[-1]) + 1 if (gaps > limit).any() else 0
    return NOTHING if after == len(gaps) else str(after + 2)


TABLE = Experiment(plan, tables)
