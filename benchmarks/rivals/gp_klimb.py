"""klimb itself, run and written down like its rivals."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import time

BEGIN = time.perf_counter()
import numpy as np
import scipy.linalg as sla

import klimb
from klimb.models.search import GAIN, TOL, Evaluator
from klimb.numerics.quasi_newton import climb

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common

REPEATS = 5
SITES = {"logistic": klimb.sites.Logistic(), "poisson": klimb.sites.Poisson(),
         "laplace": klimb.sites.Laplace(common.LAPLACE_SCALE),
         "student": klimb.sites.StudentT(common.STUDENT_DF, common.STUDENT_SCALE)}


def model_of(task, rows=slice(None)):
    kernel = klimb.kernels.RBF(variance=task.variance, lengthscale=task.lengthscale)
    points = None if task.Z is None else task.Z[: max(len(task.X[rows]) // 2, 1)]
    return klimb.gp(kernel, task.X[rows], SITES[task.likelihood], inducing=points, jitter=common.JITTER / task.variance)


def posterior(q):
    """The marginals of a posterior of klimb's, by the common code."""
    if isinstance(q.latent, klimb.latents.Kernel):
        return lambda task: task.sites(q.a, q.gamma)

    def describe(task):
        turn = sla.solve_triangular(task.root, q.latent.root, lower=True)  # our whitened coordinates in theirs
        return task.whitened(turn @ q.mean, sla.cholesky(turn @ q.covariance() @ turn.T, lower=True))

    return describe


def default(task, watch):
    """`klimb.infer`, from inputs to posterior: the median time of several fits at every iteration.

    The loop is deterministic, so its state after k iterations is that of a fit with ``max_iter=k``.
    """
    watch.compiling(lambda: model_of(task, slice(0, 60)).fit(task.y[:60]))
    moments = []
    for _ in range(REPEATS):
        begin, marks = time.process_time(), []
        result = klimb.infer(model_of(task).latent, SITES[task.likelihood], task.y,
                             callback=lambda _, marks=marks: marks.append(time.process_time()))
        marks.append(time.process_time())
        moments.append(np.array(marks) - begin)
    latent = model_of(task).latent
    for k, seconds in enumerate(np.median(moments, axis=0)):
        q = klimb.infer(latent, SITES[task.likelihood], task.y, max_iter=k).posterior
        watch.cpu = watch.wall = float(seconds)
        watch.start()
        watch.lap(posterior(q), force=True)
    watch.about.update(factorisations=int(result.history.n_factor.sum()), bound=result.bound)


def hyperparameters(model):
    return model.kernel.lengthscale, model.kernel.variance


def learn(task, watch):
    """The search of klimb.optimise, with a note of every evaluation."""
    watch.compiling(lambda: klimb.optimise(model_of(task, slice(0, 60)), task.y[:60]))
    watch.start()
    model = model_of(task)
    evaluate, latest = Evaluator(model, model.read(task.y)), [None]

    def objective(theta):
        found = evaluate(theta, start=latest[0])
        latest[0] = found.result.posterior
        gradient = evaluate.gradient(found)
        watch.lap(posterior(latest[0]), hyperparameters(found.model))
        return found.objective, gradient

    climb(objective, model.at, model.theta.lower, model.theta.upper, tol=TOL, gain=GAIN, max_iter=200)
    best = evaluate.best
    result = best.model.infer(evaluate.data, start=best.result.posterior)
    watch.lap(posterior(result.posterior), hyperparameters(best.model), force=True)
    watch.about.update(fits=evaluate.n_fits, bound=result.bound)


if __name__ == "__main__":
    common.compete({"default": default, "learn": learn}, f"klimb {klimb.__version__}", IMPORTS)
