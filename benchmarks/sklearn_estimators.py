"""klimb's estimators beside scikit-learn's on real data: accuracy, log loss and seconds, by five-fold cross-validation.

    python -m benchmarks.sklearn_estimators [--quick | --price]
    python -m benchmarks.sklearn_estimators --picture docs/sklearn.png

Every rival is used as its documentation suggests: columns standardised in a pipeline, the penalty by its own
cross-validation where it has one. Seconds are CPU seconds of one fit to four fifths of the data, on one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import ARDRegression, BayesianRidge, LassoCV, LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.measure import cpu, one_thread, save, table
from benchmarks.problems import data_dir, load
from klimb.sklearn import GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor

FOLDS = 5


def scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


def linear_classifiers() -> dict[str, Any]:
    return {"klimb GLMClassifier": GLMClassifier(), "LogisticRegression": scaled(LogisticRegression(max_iter=1000)),
            "LogisticRegressionCV": scaled(LogisticRegressionCV(max_iter=1000, scoring="neg_log_loss"))}


def process_classifiers() -> dict[str, Any]:
    kernel = ConstantKernel(1.0) * Matern(3.0, nu=2.5)
    rival = scaled(GaussianProcessClassifier(kernel))
    return {"klimb GPClassifier": GPClassifier(), "GaussianProcessClassifier": rival}


def regressors() -> dict[str, Any]:
    kernel = ConstantKernel(1.0) * Matern(3.0, nu=2.5) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    return {"klimb GLMRegressor": GLMRegressor(), "BayesianRidge": scaled(BayesianRidge()),
            "klimb SparseLinearRegressor": SparseLinearRegressor(), "LassoCV": scaled(LassoCV()),
            "ARDRegression": scaled(ARDRegression()),
            "klimb GPRegressor": GPRegressor(), "GaussianProcessRegressor": scaled(process)}


def stored(name: str) -> tuple[np.ndarray, np.ndarray]:
    problem = load(name)
    return problem.X, problem.y


def classified(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    rows = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y):
        begin = time.process_time()
        model.fit(X[train], y[train])
        seconds = time.process_time() - begin
        p = model.predict_proba(X[test])
        rows.append((np.mean(model.predict(X[test]) == y[test]), log_loss(y[test], p, labels=np.unique(y)), seconds))
    accuracy, loss, seconds = np.mean(rows, axis=0)
    return {"accuracy": float(accuracy), "log_loss": float(loss), "seconds": float(seconds)}


def regressed(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Relative error (root mean square over the spread of y) and log density of a normal with the predicted sd."""
    rows = []
    for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(X):
        begin = time.process_time()
        model.fit(X[train], y[train])
        seconds = time.process_time() - begin
        try:
            mean, sd = model.predict(X[test], return_std=True)
            density = np.mean(-0.5 * ((y[test] - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi))
        except TypeError:  # LassoCV has no standard deviations
            mean, density = model.predict(X[test]), np.nan
        rows.append((np.sqrt(np.mean((y[test] - mean) ** 2)) / y.std(), -density, seconds))
    error, loss, seconds = np.mean(rows, axis=0)
    return {"error": float(error), "log_loss": float(loss), "seconds": float(seconds)}


def sparse_signal() -> tuple[np.ndarray, np.ndarray]:
    """Five of 200 columns matter, 100 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 200))
    return X, X[:, :5] @ [3.0, -2.0, 1.0, 0.5, 2.0] + 0.5 * rng.standard_normal(100)


def price() -> None:
    """One fit to all rows beside a mode at a given penalty: ratios in one process, and the factorisations by order."""
    from collections import Counter

    from scipy.sparse import csr_array

    from klimb.latents.weights import Weights

    found: dict[str, Any] = {}
    for name in ("digits", "pcmac", "basehock", "dexter", "usps_3vs5", "spambase"):
        kept = None if name == "digits" else np.load(data_dir() / f"{name}.npz")
        X, y = load_digits(return_X_y=True) if kept is None else (kept["X"] if "X" in kept else csr_array(
            (kept["data"], kept["indices"], kept["indptr"]), shape=tuple(kept["shape"])), kept["y"])
        rival = LogisticRegression(max_iter=1000) if hasattr(X, "tocsr") else scaled(LogisticRegression(max_iter=1000))
        orders, factor = Counter[int](), Weights.factor

        def counted(self: Any, gamma: np.ndarray, orders: Any = orders, factor: Any = factor) -> Any:
            orders[self.dense_size] += 1
            return factor(self, gamma)

        Weights.factor = counted  # type: ignore[method-assign]
        GLMClassifier().fit(X, y)
        Weights.factor = factor  # type: ignore[method-assign]
        mode = cpu(lambda rival=rival, X=X, y=y: rival.fit(X, y), 5).seconds
        fit = cpu(lambda X=X, y=y: GLMClassifier().fit(X, y), 3)
        found[name] = {"shape": X.shape, "seconds": fit.seconds, "mode": mode, "ratio": fit.seconds / mode,
                       "factorisations": dict(sorted(orders.items())), "bound": fit.value.bound_}
    table("one fit to all rows", ["data", "GLMClassifier, CPU s", "LogisticRegression", "ratio", "factorisations"],
          [(name, row["seconds"], row["mode"], row["ratio"], row["factorisations"]) for name, row in found.items()])
    save("sklearn_price", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the data that come with scikit-learn")
    parser.add_argument("--picture", help="draw the documentation's picture to this file and stop")
    parser.add_argument("--price", action="store_true", help="one fit to all rows beside a mode, and stop")
    options = parser.parse_args()
    if options.price:
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            price()
        return
    if options.picture:
        draw(options.picture)
        return
    binary = {"breast cancer": load_breast_cancer(return_X_y=True)}
    several = {"wine": load_wine(return_X_y=True), "digits": load_digits(return_X_y=True)}
    numbers = {"diabetes": load_diabetes(return_X_y=True), "5 of 200 columns": sparse_signal()}
    if not options.quick:
        data_dir()  # says what to do where there is none
        binary |= {name: stored(name) for name in ("ionosphere", "sonar", "pima", "german")}
        numbers |= {name: stored(name) for name in ("boston", "concrete", "yacht")}
    found: dict[str, Any] = {}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rivals warn of iterations and bounds; their scores speak for themselves
        for name, (X, y) in (binary | several).items():
            models = linear_classifiers() | process_classifiers()
            if name == "digits":  # the others take minutes
                models = {label: models[label] for label in ("klimb GLMClassifier", "LogisticRegression")}
            for label, model in models.items():
                found.setdefault(name, {})[label] = classified(model, X, y)
            show(name, X, found[name], ("accuracy", "log_loss", "seconds"))
        for name, (X, y) in numbers.items():
            models = {label: model for label, model in regressors().items()
                      if name != "5 of 200 columns" or not ("GP" in label or "Process" in label)}
            for label, model in models.items():
                found.setdefault(name, {})[label] = regressed(model, X, y)
            show(name, X, found[name], ("error", "log_loss", "seconds"))
    if not options.quick:
        save("sklearn_estimators", {"folds": FOLDS, "results": found})


def draw(path: str) -> None:
    """Chances of a class over the plane, and counts with their intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from sklearn.datasets import make_moons

    X, y = make_moons(150, noise=0.25, random_state=0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained")
    across, up = np.meshgrid(np.linspace(-3.0, 4.0, 140), np.linspace(-2.5, 3.0, 110))
    p = GPClassifier().fit(X, y).predict_proba(np.column_stack([across.ravel(), up.ravel()]))[:, 1]
    filled = left.contourf(across, up, p.reshape(across.shape), np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.85)
    lines = left.contour(across, up, p.reshape(across.shape), [0.1, 0.5, 0.9], colors="black", linewidths=0.8)
    left.clabel(lines, [0.5], fontsize=8)
    for label, marker in ((0, "o"), (1, "s")):
        left.plot(*X[y == label].T, marker, mfc=("#2166ac", "#b2182b")[label], mec="white", ms=5, mew=0.6)
    left.set(title="GPClassifier: chance of the squares", xlabel="$x_1$", ylabel="$x_2$")
    figure.colorbar(filled, ax=left)
    rng = np.random.default_rng(0)
    t = rng.uniform(0.0, 10.0, 80)
    counts = rng.poisson(np.exp(1.5 + np.sin(t)))
    model = GPRegressor("poisson").fit(t[:, None], counts)
    grid = np.linspace(0.0, 13.0, 200)[:, None]
    low, high = model.predict_quantiles(grid, (0.05, 0.95)).T
    right.fill_between(grid[:, 0], low, high, step="mid", color="#92c5de", alpha=0.6, label="90 % of new counts")
    right.plot(grid, model.predict(grid), color="#2166ac", label="mean")
    right.plot(grid, np.exp(1.5 + np.sin(grid)), "--", color="black", lw=1, label="truth")
    right.plot(t, counts, "o", mfc="#b2182b", mec="white", ms=5, mew=0.6, label="data")
    right.set(title='GPRegressor("poisson")', xlabel="t", ylabel="count", ylim=(0, 35))
    right.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def show(name: str, X: np.ndarray, rows: dict[str, dict[str, float]], columns: tuple[str, ...]) -> None:
    table(f"{name}, {X.shape[0]} x {X.shape[1]}", ["", *(column.replace("_", " ") for column in columns)],
          [[label, *(f"{row[column]:.3f}" for column in columns)] for label, row in rows.items()])


if __name__ == "__main__":
    main()
