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
from klimb.active.batch import best_candidate
from klimb.active.belief import KrylovBelief
from klimb.active.inclusion import include
from klimb.active.marginals import Pending
from klimb.active.pool import Index, as_pool, row_vector, take_rows
from klimb.active.scores import Candidates, as_score
from klimb.infer.loop import infer
from klimb.infer.matrixfree.engine import Engine
from klimb.infer.matrixfree.mean import BoundTarget, best_mean
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
                 first: Index) -> None:
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
        step = steps.DoubleLoop("local", "lanczos", max_outer=FIRST_OUTER, vectors=self._vectors)
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

    def belief(self) -> KrylovBelief:
        """The Gaussian of the present sites; its variances take one Lanczos run."""
        return KrylovBelief(self._problem().latent.implicit().precision(self._gamma), self.weights, self._vectors)

    @property
    def _vectors(self) -> int:
        """k; beside one prior variance for all weights the Krylov space ends one vector after the labelled rows."""
        most = self._all.shape[1] if len(self._prior) else len(self.labelled) + 1
        return min(self._k, most, self._all.shape[1])

    def scores(self, m: Array, v: Array, rows: Index) -> Array:
        """Of candidates with these marginals."""
        return self._score.of(Candidates(SITE, m[rows], v[rows]))

    def block(self, size: int) -> None:
        """Choose and include ``size`` rows, then fit all sites with one outer iteration."""
        belief = self.belief()
        (m, v), pending, u, picks = belief.marginals(self._all), Pending(belief), self.weights, list[int]()
        for _ in range(size):
            rows = np.flatnonzero(self._free & (v > 0.0))  # what falls below zero within a block is removed from it
            pick = best_candidate(self.scores(m, v, rows), rows)
            x = row_vector(self._all, pick)
            d = pending.times(x)
            mean, variance = np.array([x @ u]), np.array([x @ d])  # the solution corrects what Lanczos missed
            new = include(SITE, SITE.validate(self._answers[[pick]]), mean, variance)
            kappa = np.exp(new.log_kappa[0])
            c, e = float(new.gamma[0] / kappa), float((new.slope[0] - new.gamma[0] * mean[0]) / kappa)
            w = self._all.times(d)
            m, v, u = m + e * w, v - c * w * w, u + e * d
            v[pick], pending = new.v[0], pending.including(d, c, e)
            self._free[pick] = False
            picks.append(pick)
        self.labelled = np.concatenate([self.labelled, np.array(picks, dtype=np.intp)])
        model = np.concatenate([self.labelled, self._prior])
        lost = model[v[model] <= 0.0]
        if lost.size:  # those of model sites are needed: by solving systems
            v[lost] = pending.variances(take_rows(self._all, lost))
        self._refit(v[model], u)

    def _refit(self, z: Array, u: Array) -> None:
        """The inner loop at variances ``z``; then every site is what its marginal asks for."""
        target = BoundTarget(self._problem(), "local")
        solver = Engine(target.latent, "lanczos", GOAL, 0, 1).solve
        mean = best_mean(target, z, target.mean_at(u, z), solver, GOAL).mean
        self.weights, self._gamma = mean.u, np.array(mean.e.gamma)
