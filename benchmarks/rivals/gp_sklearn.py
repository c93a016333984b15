"""scikit-learn's GaussianProcessClassifier: Laplace's approximation, not variational, but what one has at hand."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import time

BEGIN = time.perf_counter()
import numpy as np
import sklearn
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common


def laplace(task, watch):
    """The fit at fixed hyperparameters; a lap for every repeat of it, so that the median can be taken."""
    kernel = ConstantKernel(task.variance, "fixed") * RBF(task.lengthscale, "fixed")
    watch.compiling(lambda: GaussianProcessClassifier(kernel=kernel).fit(task.X[:50], task.y[:50]))
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        fitted = GaussianProcessClassifier(kernel=kernel).fit(task.X, task.y).base_estimator_
        seconds.append(time.process_time() - begin)
    probability = fitted.pi_
    watch.cpu = watch.wall = float(np.median(seconds))
    watch.start()
    watch.lap(lambda task: task.sites(np.asarray(fitted.y_train_, float) - probability,
                                      probability * (1.0 - probability)), force=True)


def learn(task, watch):
    kernel = ConstantKernel(task.variance, (1e-3, 1e6)) * RBF(task.lengthscale, (1e-3, 1e4))
    watch.start()
    fitted = GaussianProcessClassifier(kernel=kernel).fit(task.X, task.y).base_estimator_
    variance, lengthscale = np.exp(fitted.kernel_.theta)
    probability = fitted.pi_
    watch.lap(lambda task: task.sites(np.asarray(fitted.y_train_, float) - probability,
                                      probability * (1.0 - probability)), (lengthscale, variance), force=True)


if __name__ == "__main__":
    common.compete({"laplace": laplace, "learn-laplace": learn}, f"scikit-learn {sklearn.__version__}", IMPORTS)
