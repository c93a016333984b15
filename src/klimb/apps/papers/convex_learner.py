"""The active learner of [N] as it is printed: the local bound, k Lanczos vectors, one outer iteration after a block.

A block (section 3) begins with a Lanczos run that estimates the marginals of all rows, from below. Rows are then chosen
one by one; including one takes a linear system, which corrects its own variance and moves all marginals. At the end the
sites are fitted together: the variances z of that outer iteration are the marginals that the inclusions kept valid, so
that it costs nothing but its inner loop, and there is one Lanczos run a block.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from klimb import latents, sites, steps
from klimb.active.batch import best_row
from klimb.active.lanczos import KrylovBelief
from klimb.active.marginals import Marginals
from klimb.active.pool import as_pool, take_rows
from klimb.active.scores import as_score
from klimb.active.shortlist import Shortlist
from klimb.infer.loop import infer
from klimb.infer.matrixfree.engine import Engine
from klimb.infer.matrixfree.mean import best_mean
from klimb.infer.matrixfree.target import BoundTarget
from klimb.infer.problem import Problem
from klimb.numerics.arrays import Array

FIRST_OUTER = 5  # outer iterations of the first fit: "we never run more than 5"
GOAL = 1e-4  # of the inner loop, in posterior standard deviations
SITE = sites.SuperGaussian(sites.Logistic())


@final
class ConvexLearner:
    """A pool with its ``answers``; weights have prior N(0, cov I), or Laplace of scale ``scale`` where it is given.

    A sparsity prior has one site per weight and no Gaussian factor: I is appended to the rows, for good.
    """

    def __init__(self, pool: Any, answers: Array, *, cov: float, scale: float | None, k: int, score: str,
                 first: Array) -> None:
        n, D = pool.shape
        self._k, self._cov, self._scale, self._score = k, cov, scale, as_score(score)
        self._all, self._prior = as_pool(pool), np.zeros(0, dtype=np.intp)
        if scale is not None:
            from scipy.sparse import csr_matrix, eye, vstack

            self._all = as_pool(vstack([csr_matrix(pool), eye(D)], format="csr"))
            self._prior = np.arange(n, n + D)
        self._answers, self.labelled, self._free = answers, first, np.arange(n + len(self._prior)) < n
        self._free[first] = False
        problem = self._problem()
        step = steps.DoubleLoop("local", "lanczos", max_outer=FIRST_OUTER, vectors=min(k, D))
        fit = infer(problem.latent, problem.site, problem.y, step=step)
        self.weights, self._gamma = fit.posterior.mean, fit.posterior.gamma

    def _problem(self) -> Problem:
        """The labelled rows, and the sites of a sparsity prior behind them."""
        B: Any = take_rows(self._all, self.labelled)
        y, D = self._answers[self.labelled], B.shape[1]
        if self._scale is None:
            return Problem(latents.Implicit(B, cov=self._cov), SITE, y)
        from scipy.sparse import eye

        site = sites.Stack([(SITE, len(y)), (sites.SuperGaussian(sites.Laplace(self._scale)), D)])
        return Problem(latents.Implicit([B, eye(D, format="csr")], cov=None), site, np.concatenate([y, np.zeros(D)]))

    def marginals(self) -> Marginals:
        """Of all rows: one Lanczos run at the present sites."""
        latent = self._problem().latent.implicit()
        belief = KrylovBelief(latent.precision(self._gamma), self.weights, self._k)
        return Marginals.of(self._all, SITE, belief)

    def block(self, size: int) -> None:
        """Choose and include ``size`` rows, then fit all sites with one outer iteration."""
        now, corrected = self.marginals(), dict[int, float]()
        for _ in range(size):
            pick = best_row(self._score, now, self._free, Shortlist())
            now, new = now.include(pick, float(SITE.validate(self._answers[[pick]])[0]))
            corrected[pick] = float(new.v[0]) - float(now.v[pick])  # what Lanczos had missed of its variance
            self._free[pick] = False
        self.labelled = np.concatenate([self.labelled, np.array(list(corrected), dtype=np.intp)])
        z = now.v[np.concatenate([self.labelled, self._prior])]
        z[len(self.labelled) - size : len(self.labelled)] += list(corrected.values())
        self._refit(z, now.weights)

    def _refit(self, z: Array, u: Array) -> None:
        """The inner loop at variances ``z``; then every site is what its marginal asks for."""
        target = BoundTarget(self._problem(), "local")
        solver = Engine(target.latent, "lanczos", GOAL, 0, 1).solve
        mean = best_mean(target, z, target.mean_at(u, z), solver, GOAL).mean
        self.weights, self._gamma = mean.u, np.array(mean.e.gamma)
