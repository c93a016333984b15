"""GPflow: VGP and SVGP by natural gradients of a given step, VGP by L-BFGS, and learning the hyperparameters."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import os
import time
from contextlib import suppress

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
BEGIN = time.perf_counter()
import gpflow
import numpy as np
import tensorflow as tf

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Logit(gpflow.likelihoods.ScalarLikelihood):
    """``Bernoulli(invlink=tf.sigmoid)`` takes the log of a probability that underflows; this does not."""

    def _scalar_log_prob(self, X, F, Y):
        return Y * F - tf.nn.softplus(F)

    def _conditional_mean(self, X, F):
        return tf.sigmoid(F)

    def _conditional_variance(self, X, F):
        return tf.sigmoid(F) * tf.sigmoid(-F)


class DoubleExponential(gpflow.likelihoods.ScalarLikelihood):
    """Laplace noise is not in the package; its expectations are by the package's quadrature."""

    def _scalar_log_prob(self, X, F, Y):
        return -tf.abs(Y - F) / common.LAPLACE_SCALE - np.log(2 * common.LAPLACE_SCALE)

    def _conditional_mean(self, X, F):
        return F

    def _conditional_variance(self, X, F):
        return 2 * common.LAPLACE_SCALE**2 * tf.ones_like(F)


def likelihood(name):
    if name == "student":
        made = gpflow.likelihoods.StudentT(scale=common.STUDENT_SCALE, df=common.STUDENT_DF)
        gpflow.set_trainable(made, False)
        return made
    return {"logistic": Logit, "laplace": DoubleExponential, "poisson": gpflow.likelihoods.Poisson}[name]()


def model(task, learn=False):
    kernel = gpflow.kernels.SquaredExponential(variance=task.variance, lengthscales=task.lengthscale)
    data = (task.X, task.y[:, None])
    if task.Z is None:
        made = gpflow.models.VGP(data, kernel, likelihood(task.likelihood))
        loss = made.training_loss_closure()
    else:
        made = gpflow.models.SVGP(kernel, likelihood(task.likelihood), task.Z.copy(), num_data=task.n)
        gpflow.set_trainable(made.inducing_variable, False)
        loss = made.training_loss_closure(tuple(map(tf.convert_to_tensor, data)))
    gpflow.set_trainable(kernel, learn)
    return made, loss


def posterior(made):
    return lambda task: task.whitened(made.q_mu.numpy()[:, 0], made.q_sqrt.numpy()[0])


def hyperparameters(made):
    return float(made.kernel.lengthscales.numpy()), float(made.kernel.variance.numpy())


def natural(step_size):
    def fit(task, watch):
        made, loss = model(task)
        gpflow.set_trainable(made.q_mu, False)
        gpflow.set_trainable(made.q_sqrt, False)
        optimiser = gpflow.optimizers.NaturalGradient(gamma=step_size)
        step = tf.function(lambda: optimiser.minimize(loss, [(made.q_mu, made.q_sqrt)]))
        start = made.q_mu.numpy().copy(), made.q_sqrt.numpy().copy()
        watch.compiling(step)
        made.q_mu.assign(start[0])
        made.q_sqrt.assign(start[1])
        watch.start()
        while not watch.over:
            step()
            watch.lap(posterior(made))

    return fit


def lbfgs(learn):
    """L-BFGS on all parameters at once, the hyperparameters among them or not."""

    def fit(task, watch):
        optimiser = gpflow.optimizers.Scipy()
        made, loss = model(task, learn)
        watch.compiling(lambda: optimiser.minimize(loss, made.trainable_variables, options={"maxiter": 1}))
        made, loss = model(task, learn)

        def note(_, variables, values):
            if watch.over:
                raise StopIteration
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            watch.lap(posterior(made), hyperparameters(made) if learn else None)

        watch.start()
        with suppress(StopIteration):
            optimiser.minimize(loss, made.trainable_variables, step_callback=note,
                               options={"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-13, "gtol": 1e-6})
        watch.lap(posterior(made), hyperparameters(made) if learn else None, force=True)

    return fit


def natural_and_adam(task, watch):
    """Natural steps on q in turn with Adam on the hyperparameters, the package's own advice."""
    made, loss = model(task, learn=True)
    gpflow.set_trainable(made.q_mu, False)
    gpflow.set_trainable(made.q_sqrt, False)
    on_q, on_theta = gpflow.optimizers.NaturalGradient(gamma=1.0), tf.optimizers.Adam(0.05)

    @tf.function
    def step():
        on_q.minimize(loss, [(made.q_mu, made.q_sqrt)])
        on_theta.minimize(loss, made.trainable_variables)

    watch.compiling(step)
    watch.start()
    while not watch.over:
        step()
        watch.lap(posterior(made), hyperparameters(made))


if __name__ == "__main__":
    common.compete({"natural": natural(1.0), "natural-0.3": natural(0.3), "lbfgs": lbfgs(False),
                    "learn-lbfgs": lbfgs(True), "learn-natural-adam": natural_and_adam},
                   f"gpflow {gpflow.__version__}, tensorflow {tf.__version__}", IMPORTS)
