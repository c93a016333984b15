"""BayesNewton: variational sites by natural gradients (its RBF kernel and Laplace noise are ours: it has none)."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import time

BEGIN = time.perf_counter()
import bayesnewton
import jax
import jax.numpy as jnp
import numpy as np
import objax

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common

jax.config.update("jax_enable_x64", True)


class RBF(bayesnewton.kernels.StationaryKernel):
    """The package has the Markovian kernels only."""

    def K_r2(self, squared):
        return self.variance * jnp.exp(-0.5 * squared)

    def K_r(self, r):
        return self.variance * jnp.exp(-0.5 * r**2)


class Logit(bayesnewton.likelihoods.Bernoulli):
    """The package takes the log of an unguarded sigmoid."""

    def __init__(self):
        super().__init__(link="logit")

    def evaluate_log_likelihood(self, y, f):
        return jnp.squeeze(y * f - jnp.logaddexp(0.0, f))


class DoubleExponential(bayesnewton.likelihoods.Likelihood, bayesnewton.likelihoods.GeneralisedGaussNewtonMixin):
    """Laplace noise."""

    def evaluate_log_likelihood(self, y, f):
        return jnp.squeeze(-jnp.abs(y - f) / common.LAPLACE_SCALE - jnp.log(2 * common.LAPLACE_SCALE))

    def conditional_moments(self, f):
        return f, 2 * common.LAPLACE_SCALE**2 * jnp.ones_like(f)


def likelihood(name):
    if name == "student":
        return bayesnewton.likelihoods.StudentsT(scale=common.STUDENT_SCALE, df=common.STUDENT_DF, fix_scale=True)
    if name == "poisson":
        return bayesnewton.likelihoods.Poisson(link="exp")
    return {"logistic": Logit, "laplace": DoubleExponential}[name]()


def natural(step_size):
    def fit(task, watch):
        kernel = RBF(variance=task.variance, lengthscale=task.lengthscale, fix_variance=True, fix_lengthscale=True)
        data = {"kernel": kernel, "likelihood": likelihood(task.likelihood), "X": task.X, "Y": task.y[:, None]}
        if task.Z is None:
            model = bayesnewton.models.VariationalGP(**data)
        else:
            model = bayesnewton.models.SparseVariationalGP(**data, Z=task.Z)

        @objax.Function.with_vars(model.vars())
        def iterate():
            model.inference(lr=step_size)
            return model.pseudo_likelihood.nat2.sum()

        step = objax.Jit(iterate)
        start = [variable.value for variable in model.vars()]
        watch.compiling(lambda: step().block_until_ready())
        for variable, value in zip(model.vars(), start, strict=True):
            variable.value = value
        watch.start()
        while not watch.over:
            step().block_until_ready()
            watch.lap(posterior(model, task.Z is None))

    return fit


def posterior(model, full):
    if full:
        sites = model.pseudo_likelihood
        return lambda task: task.natural_sites(np.asarray(sites.nat1).ravel(), np.asarray(sites.nat2).ravel())
    return lambda task: task.dense(np.asarray(model.posterior_mean.value).ravel(),
                                   np.asarray(model.posterior_covariance.value))


if __name__ == "__main__":
    common.compete({"natural": natural(1.0), "natural-0.3": natural(0.3)},
                   f"bayesnewton {getattr(bayesnewton, '__version__', '1.3')}, jax {jax.__version__}", IMPORTS)
