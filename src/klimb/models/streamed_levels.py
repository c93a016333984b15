"""What a bound leaves of the evidence of levels, by one pass: each is integrated out, shared weights at their mean.

    log p(y | theta) ~ log p(beta) + 1/2 log det(2 pi V) + sum_l log int p(y_l | beta, b) N(b; 0, s^2) db

The integral of a level is a sum over nodes around q's own mean, and log p(y_l | beta, b) at a node a sum over rows, so
blocks may hold any rows of any levels. Gaussian levels leave nothing; those of few rows of yes and no do, the more the
larger s is, which is why a bound alone pulls s down.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from klimb.infer.result import Result
from klimb.models.linear import LinearModel
from klimb.models.passes import BlockReader, RowPasses
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.rows.blocks import RowBlock

NODES = 9


def values_at(reader: BlockReader, shared: Array, nodes: Array, block: RowBlock) -> tuple[Any, Array]:
    """The levels in a block, and log p of their rows at their ``nodes``, one a column."""
    L, count = nodes.shape
    total, seen = np.zeros((L, count)), np.zeros(L, dtype=bool)
    with threads_for(0), np.errstate(over="ignore", invalid="ignore"):
        for rows, data in reader.pieces(block):
            site = reader.model.site(data)
            y = site.validate(data.y)
            f, constant = rows.X @ shared, site.constant(y)
            seen[rows.codes] = True
            for j in range(count):
                each = site.point(y, f + rows.values[:, 0] * nodes[rows.codes, j]).value + constant
                total[:, j] += np.bincount(rows.codes, each, minlength=L)
    present = np.flatnonzero(seen)
    return present, total[present]


def evidence_gain(model: LinearModel, passes: RowPasses, result: Result) -> float:
    """Log evidence less the bound of a fit, for levels of one coefficient; 0 where they have more or there are none."""
    if model.level_size != 1:
        return 0.0
    q = result.posterior.latent.detach(result.posterior)
    B, L = model.width, model.n_levels
    every = np.arange(B, B + L)
    sd = np.sqrt(q.covariances(every, every))
    z, weights = np.polynomial.hermite_e.hermegauss(NODES)
    nodes = q.mean[B : B + L, None] + sd[:, None] * z
    values = np.zeros((L, NODES))
    for present, found in passes.mapped(partial(values_at, passes.reader(model), q.mean[:B], nodes)):
        values[present] += found
    scale = float(model.values[model.coded][0][0, 0])
    log_prior = -0.5 * (nodes / scale) ** 2 - np.log(scale * np.sqrt(2.0 * np.pi))
    levels = logsumexp(values + log_prior + np.log(weights) + 0.5 * z**2, axis=1) + np.log(sd)
    mean, cov = model.prior_moments()
    i, j = np.divmod(np.arange(B * B), B)
    V = q.covariances(i, j).reshape(B, B)
    away = q.mean[:B] - mean
    prior = np.diag(cov) if cov.ndim == 1 else cov
    shrunk = np.linalg.slogdet(V)[1] - np.linalg.slogdet(prior)[1]
    return float(levels.sum() - 0.5 * away @ np.linalg.solve(prior, away) + 0.5 * shrunk - result.bound)
