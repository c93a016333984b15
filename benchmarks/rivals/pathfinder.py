"""Multi-path Pathfinder (blackjax) on the targets of benchmarks.boosting_targets; run where blackjax is installed.

Eight paths from N(0, 2^2 I), each with 200 draws per ELBO as in blackjax's default. The KL is of the best path by its
ELBO; evaluations are counted from below: one per L-BFGS step and 200 per ELBO, over all paths.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from blackjax.vi import pathfinder

from benchmarks.boosting import chosen, moment_errors, record
from benchmarks.boosting_targets import PROBLEMS

jax.config.update("jax_enable_x64", True)
PATHS, DRAWS = 8, 200


def main() -> None:
    for name in chosen():
        problem = PROBLEMS[name]()
        log_density = lambda x, fn=problem.fn: fn(jax.numpy, x[None])[0]  # noqa: E731
        starts = jax.numpy.asarray(2.0 * np.random.default_rng(0).standard_normal((PATHS, problem.dim)))
        keys = jax.random.split(jax.random.PRNGKey(0), PATHS)
        fit = jax.jit(jax.vmap(lambda k, x, f=log_density: pathfinder.approximate(k, f, x, num_samples=DRAWS)))
        jax.block_until_ready(fit(keys, starts))
        start = time.process_time()
        states, info = jax.block_until_ready(fit(keys, starts))
        seconds = time.process_time() - start
        elbo = np.asarray(states.elbo)
        best = int(np.nanargmax(np.where(np.isfinite(elbo), elbo, np.nan)))
        one = jax.tree.map(lambda leaf, i=best: leaf[i], states)
        X, log_q = pathfinder.sample(jax.random.PRNGKey(9), one, 50_000)
        X, log_q = np.asarray(X), np.asarray(log_q)
        kl = float(np.mean(log_q - problem.values(X)) + problem.log_evidence)
        steps = int(np.isfinite(np.asarray(info.path.elbo)).sum())
        found = {"kl": kl, "evaluations": steps * (DRAWS + 1), "seconds": seconds}
        if problem.dim <= 6:  # for the picture
            found |= {"mean": X.mean(0).tolist(), "cov": np.atleast_2d(np.cov(X.T)).tolist()}
        record("Pathfinder", name, {**found, **moment_errors(problem, X.mean(0), X.std(0))})


if __name__ == "__main__":
    main()
