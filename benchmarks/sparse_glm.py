"""Full Bayesian logistic regression on large and sparse sets, beside scikit-learn's solvers at the same penalty.

    python -m benchmarks.sparse_glm [--sets a9a,w8a,...] [--priors gaussian,laplace] [--keep]

All solvers see the same columns (a column of ones is the intercept, with the prior of the others), so that the mode of
our posterior is scikit-learn's answer: C is the prior variance of the Gaussian and the scale of the Laplace. What we
compute is more: a covariance, and predictions averaged over it. CPU seconds of one thread, all in one process. Solvers
stop at their own default tolerances; the last column says how far from the best penalised loss that was.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import klimb
from benchmarks.measure import RESULTS, environment, one_thread, save, table
from benchmarks.problems import data_dir

Array = NDArray[np.float64]

# name -> (C of both penalties, how the features are made)
SETS = {
    "a9a": (1.0, "as given"), "w8a": (1.0, "as given"), "reuters": (10.0, "as given"), "imdb": (10.0, "tf-idf"),
    "farm_ads": (10.0, "unit rows"), "dexter": (10.0, "unit rows"), "basehock": (10.0, "tf-idf"),
    "arcene": (0.01, "standardised"),
}
SOLVERS = {"gaussian": ("lbfgs", "liblinear", "saga"), "laplace": ("liblinear", "saga")}


class Split(NamedTuple):
    """Training and test rows, each with a column of ones."""

    X: Any
    y: Array
    X_test: Any
    y_test: Array


def split(name: str) -> Split:
    """The set's own split, or every third row (of a fixed shuffle) for testing."""
    from scipy.sparse import csr_matrix, hstack

    X, y, train = _read(name)
    if name == "a9a":
        X_more, y_more, _ = _read("a9a_test")
        from scipy.sparse import vstack

        X, train = vstack([X, X_more], format="csr"), np.r_[np.ones(len(y), bool), np.zeros(len(y_more), bool)]
        y = np.concatenate([y, y_more])
    X = _features(X, train, SETS[name][1])
    if isinstance(X, np.ndarray):
        X = np.hstack([X, np.ones((len(y), 1))])
    else:
        X = hstack([X, csr_matrix(np.ones((len(y), 1)))], format="csr")
    return Split(X[train], y[train], X[~train], y[~train])


def _read(name: str) -> tuple[Any, Array, NDArray[np.bool_]]:
    from scipy.sparse import csr_matrix

    with np.load(data_dir() / f"{name}.npz", allow_pickle=False) as stored:
        y = np.where(stored["y"] > 0, 1.0, -1.0)
        if "X" in stored.files:
            X: Any = stored["X"].astype(np.float64)
        else:
            X = csr_matrix((stored["data"].astype(np.float64), stored["indices"], stored["indptr"]),
                           shape=tuple(stored["shape"]))
        if "train" in stored.files:
            return X, y, stored["train"].astype(bool)
    shuffled = np.random.default_rng(0).permutation(len(y))
    return X, y, shuffled % 3 > 0


def _features(X: Any, train: NDArray[np.bool_], how: str) -> Any:
    if how == "standardised":
        X = X if isinstance(X, np.ndarray) else X.toarray()
        sd = X[train].std(axis=0)
        return (X - X[train].mean(axis=0)) / np.where(sd > 0.0, sd, 1.0)
    if how == "as given":
        return X
    from scipy.sparse import csr_matrix, diags

    X = csr_matrix(X)
    if how == "tf-idf":
        count = np.bincount(X[train].indices, minlength=X.shape[1])
        X.data = 1.0 + np.log(X.data)
        X = X @ diags(np.log((1.0 + train.sum()) / (1.0 + count)) + 1.0)
    norm = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return csr_matrix(diags(1.0 / np.where(norm > 0.0, norm, 1.0)) @ X)


def scores(probability: Array, y: Array) -> dict[str, float]:
    p = np.clip(np.where(y > 0, probability, 1.0 - probability), 1e-300, 1.0)
    return {"log_loss": float(-np.log(p).mean()), "accuracy": float(np.mean((probability > 0.5) == (y > 0)))}


def ours(data: Split, prior: str, C: float, **options: Any) -> dict[str, Any]:
    start = time.process_time()
    scale = np.sqrt(C) if prior == "gaussian" else C
    fit = klimb.sparse_glm(data.X, data.y, prior=prior, scale=scale, intercept=False, **options)
    seconds = time.process_time() - start
    probability = fit.predict(data.X_test)["mean"]
    row = {"solver": "klimb" if not options else f"klimb, {options['accuracy']:.0%}", "seconds": seconds,
           "predict_seconds": time.process_time() - start - seconds, "engine": fit.plan.choice,
           "status": fit.status.name, "certified": fit.certified, "iterations": fit.result.n_iter,
           "products": int(fit.result.n_products), "bound": fit.bound, "bound_error": fit.result.bound_error}
    return row | scores(probability, data.y_test)


def theirs(data: Split, prior: str, C: float, solver: str) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    penalty = {"gaussian": 0.0, "laplace": 1.0}[prior]
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=C, l1_ratio=penalty, solver=solver, fit_intercept=False, max_iter=300)
        model.fit(data.X, data.y)
    seconds = time.process_time() - start
    done = bool(np.max(model.n_iter_) < 300)
    return {"solver": solver, "seconds": seconds, "status": "CONVERGED" if done else "MAX_ITER",
            "iterations": int(np.max(model.n_iter_)), "penalised_loss": penalised_loss(data, prior, C, model.coef_[0]),
            } | scores(model.predict_proba(data.X_test)[:, 1], data.y_test)


def penalised_loss(data: Split, prior: str, C: float, weights: Array) -> float:
    """What scikit-learn's solvers minimise: minus the log posterior, up to a constant."""
    loss = float(np.logaddexp(0.0, -data.y * (data.X @ weights)).sum())
    return loss + float(0.5 * weights @ weights / C if prior == "gaussian" else np.abs(weights).sum() / C)


def with_gaps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with how far a solver stopped from the best penalised loss, as a share of it."""
    losses = [row["penalised_loss"] for row in rows if "penalised_loss" in row]
    return [row | {"gap": row["penalised_loss"] / min(losses) - 1.0} if "penalised_loss" in row else row
            for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--priors", default="gaussian,laplace")
    parser.add_argument("--accuracies", default="0.01,0.1", help="relative errors of the variances to aim for")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--keep", action="store_true", help="store the figures in benchmarks/results")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    accuracies = [float(text) for text in arguments.accuracies.split(",")]
    with one_thread():
        for name in arguments.sets.split(","):
            data, C = split(name), SETS[name][0]
            shape = f"{data.X.shape[0]:,} x {data.X.shape[1]:,}, {_nonzeros(data.X):,} nonzeros"
            for prior in arguments.priors.split(","):
                rows = [ours(data, prior, C, accuracy=accuracy) for accuracy in accuracies]
                rows += [] if arguments.no_rivals else [theirs(data, prior, C, solver) for solver in SOLVERS[prior]]
                rows = with_gaps(rows)
                found[f"{name} {prior}"] = rows
                table(f"{name} ({shape}), {prior}, C = {C}",
                      ["solver", "CPU s", "products", "log loss", "accuracy", "status", "engine", "gap"],
                      [[r["solver"], r["seconds"], r.get("products", ""), r["log_loss"], r["accuracy"], r["status"],
                        r.get("engine", ""), r.get("gap", "")] for r in rows])
                if arguments.keep:
                    path = RESULTS / "sparse_glm.json"  # sets that are run alone join those that are there
                    before = json.loads(path.read_text()) if path.exists() else {}
                    save("sparse_glm", before | found | {"environment": environment()})


def _nonzeros(X: Any) -> int:
    return int(X.nnz) if hasattr(X, "nnz") else int(X.size)


if __name__ == "__main__":
    main()
