"""GPJax: natural gradients on the dual (site) and on the whitened parameters."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import time

BEGIN = time.perf_counter()
import equinox as eqx
import gpjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as distributions
import scipy.linalg as sla
from gpjax.natural_gradients import natural_gradient_step, partition_variational
from gpjax.parameters import val

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common

jax.config.update("jax_enable_x64", True)


class Logit(gpjax.likelihoods.Bernoulli):
    """The package's Bernoulli is probit."""

    def link_function(self, f):
        return distributions.Bernoulli(logits=f)


class DoubleExponential(gpjax.likelihoods.Bernoulli):
    """Laplace noise."""

    def link_function(self, f):
        return distributions.Laplace(f, common.LAPLACE_SCALE)


def likelihood(name):
    if name == "student":
        return gpjax.likelihoods.StudentT(common.STUDENT_DF, common.STUDENT_SCALE)
    return {"logistic": Logit, "laplace": DoubleExponential, "poisson": gpjax.likelihoods.Poisson}[name]()


def natural(step_size, dual):
    def fit(task, watch):
        kernel = gpjax.kernels.RBF(lengthscale=task.lengthscale, variance=task.variance)
        prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel)
        families = gpjax.variational_families
        family = families.DualVariationalGaussian if dual else families.WhitenedVariationalGaussian
        bound = gpjax.objectives.dual_elbo if dual else gpjax.objectives.elbo
        data = gpjax.Dataset(X=jnp.asarray(task.X), y=jnp.asarray(task.y)[:, None])
        q, fixed = partition_variational(family(model=prior * likelihood(task.likelihood),
                                                inducing_inputs=jnp.asarray(task.points)))
        step = eqx.filter_jit(lambda q: natural_gradient_step(q, fixed, data, lambda model, part: -bound(model, part),
                                                              jnp.asarray(step_size)))
        watch.compiling(lambda: jax.block_until_ready(step(q)[1]))
        watch.start()
        while not watch.over:
            q, loss = step(q)
            loss.block_until_ready()
            watch.lap(lambda task, q=q: posterior(task, q, dual))

    return fit


def posterior(task, q, dual):
    if not dual:
        mean, root = val(q.variational_mean), val(q.variational_root_covariance)
        return task.whitened(np.asarray(mean).ravel(), np.asarray(root))
    slope, matrix = np.asarray(val(q.dual_vector)).ravel(), np.asarray(val(q.dual_matrix))
    precision = np.eye(len(slope)) + task.root.T @ matrix @ task.root
    V = sla.inv(0.5 * (precision + precision.T))
    return task.whitened(V @ (task.root.T @ slope), sla.cholesky(0.5 * (V + V.T), lower=True))


if __name__ == "__main__":
    common.compete({"dual": natural(1.0, True), "dual-0.3": natural(0.3, True), "natural": natural(1.0, False)},
                   f"gpjax {gpjax.__version__}, jax {jax.__version__}", IMPORTS)
