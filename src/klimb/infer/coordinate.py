"""One site after the other: the coordinate ascent that [N] section 2.2 compares its double loop with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import Move, Moves, Step
from klimb.infer.problem import Problem
from klimb.sites.base import Site

ROUNDS, CLOSE = 50, 1e-12  # most rounds of a site with its own marginal, and the relative change at which they end


@final
@dataclass(frozen=True)
class CoordinateAscent(Step):
    """Every site in turn at its own optimum, the others held; a rank-one update each, a sweep an iteration.

    A sweep over N sites of a model with R weights takes N R^2 operations in N steps that wait for each other, where one
    natural step takes them in one matrix product. It is here to compare with. ``sites.SuperGaussian(site)`` makes it
    the algorithm of [N], for the local bound.

    >>> import numpy as np, klimb
    >>> X = np.random.default_rng(0).standard_normal((30, 2))
    >>> problem = klimb.latents.Weights(X), klimb.sites.SuperGaussian(klimb.sites.Logistic()), X[:, 0] > 0
    >>> one, all_ = (klimb.infer(*problem, step=step) for step in (klimb.steps.CoordinateAscent(), None))
    >>> one.converged, bool(abs(one.bound - all_.bound) < 1e-8)
    (True, True)
    """

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        latent, Z = problem.latent, problem.latent.design()
        if latent.n_outputs > 1:
            raise InputError("coordinate ascent needs one latent value per datum", f"{latent.n_outputs}",
                             "Use the default step.")
        start = problem.site.start(problem.y)
        slope, gamma = np.array(start[0]), np.maximum(start[1], 0.0)
        each = [problem.site.rows(np.array([i])) for i in range(len(problem.y))]
        state = problem.at_sites(slope, gamma)
        yield Move(state, "start")
        while True:
            V = np.linalg.inv(np.eye(Z.shape[1]) + Z.T @ (gamma[:, None] * Z))
            u = V @ (Z.T @ (slope - gamma * latent.mean))
            for i, z in enumerate(Z):
                Vz = V @ z
                spread, h = float(z @ Vz), float(z @ u)
                own = _own_optimum(problem, each[i], i, h, spread, slope[i], gamma[i])
                d_slope, d_gamma = own[0] - slope[i], own[1] - gamma[i]
                slope[i], gamma[i] = own
                V -= np.outer(Vz, (d_gamma / (1.0 + d_gamma * spread)) * Vz)
                u += V @ z * (d_slope - d_gamma * (latent.mean[i] + h))
            state = problem.at_sites(slope, gamma)
            yield Move(state, "sweep")


def _own_optimum(problem: Problem, site: Site, i: int, h: float, spread: float, slope: float,
                 gamma: float) -> tuple[float, float]:
    """(slope, gamma) of site ``i`` that the oracle confirms, all others held: rounds with its own marginal."""
    mean, slack, y = float(problem.latent.mean[i]), float(problem.latent.slack[i]), problem.y[i:i + 1]
    rest = 1.0 / spread - gamma  # precision and shift of h without this site
    pull = h / spread - (slope - gamma * mean)
    for _ in range(ROUNDS):
        v = 1.0 / (rest + gamma)
        m = mean + v * (pull + slope - gamma * mean)
        e = site.oracle(y, np.array([m]), np.array([v + slack]))
        before, gamma = gamma, float(e.gamma[0])
        slope = gamma * m - float(e.alpha[0])
        if abs(gamma - before) <= CLOSE * max(abs(gamma), abs(before)):
            break
    problem.n_oracle += 1
    return slope, gamma
