"""NumPyro's SVI on the targets of benchmarks.boosting_targets; run where numpyro is installed.

    PYTHON -m benchmarks.rivals.numpyro_svi [target ...]               full rank
    PYTHON -m benchmarks.rivals.numpyro_svi meanfield [target ...]     a diagonal Gaussian, as in [G]
"""

from __future__ import annotations

import sys
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

from benchmarks.boosting import chosen, divergence, moment_errors, record
from benchmarks.boosting_targets import PROBLEMS

jax.config.update("jax_enable_x64", True)
STEPS, CHUNK, PARTICLES = 5000, 500, 10


def main() -> None:
    meanfield = "meanfield" in sys.argv
    for name in chosen():
        problem = PROBLEMS[name]()

        def model(fn=problem.fn, dim=problem.dim) -> None:
            x = numpyro.sample("x", dist.Normal(0, 1).expand([dim]).to_event(1).mask(False))
            numpyro.factor("target", fn(jax.numpy, x[None])[0])

        guide = (AutoDiagonalNormal if meanfield else AutoMultivariateNormal)(model, init_scale=0.5)
        schedule = lambda i: 0.05 * 0.01 ** (i / STEPS)  # noqa: E731
        svi = SVI(model, guide, numpyro.optim.Adam(schedule), Trace_ELBO(num_particles=PARTICLES))
        state = svi.init(jax.random.PRNGKey(0))
        run = jax.jit(lambda s, svi=svi: jax.lax.scan(lambda t, _: svi.update(t), s, None, length=CHUNK))
        run = run.lower(state).compile()
        trace, seconds = [], 0.0
        for chunk in range(STEPS // CHUNK):
            start = time.process_time()
            state, _ = jax.block_until_ready(run(state))
            seconds += time.process_time() - start
            p = svi.get_params(state)
            mean = np.asarray(p["auto_loc"])
            root = np.diag(np.asarray(p["auto_scale"])) if meanfield else np.asarray(p["auto_scale_tril"])
            kl = divergence(problem, np.ones(1), mean[None], root[None], 20_000)
            trace.append((PARTICLES * CHUNK * (chunk + 1), kl, seconds))
        final = trace[-1][1]
        first = next(row for row in trace if row[1] <= final * 1.05 + 1e-3)  # where it had arrived
        found = {"kl": final, "evaluations": first[0], "seconds": first[2]}
        if problem.dim <= 6:  # for the picture
            found |= {"mean": mean.tolist(), "cov": (root @ root.T).tolist()}
        who = "NumPyro ADVI, mean field" if meanfield else "NumPyro SVI"
        record(who, name, {**found, **moment_errors(problem, mean, np.sqrt(np.diag(root @ root.T)))})


if __name__ == "__main__":
    main()
