"""`GLMClassifier` on texts beside scikit-learn's logistic regression: accuracy, log loss, CPU seconds.

    python -m benchmarks.sklearn_texts

tf-idf of the data sets that `klimb reproduce N-figure2` uses, one split each. The rivals: liblinear at its default
penalty, and with the penalty chosen by five-fold cross-validation over ten values, as `LogisticRegressionCV` does.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss

from benchmarks.measure import one_thread, save, table
from benchmarks.problems import data_dir
from klimb.apps.papers.active_learning import tf_idf
from klimb.apps.papers.data import Library
from klimb.sklearn import GLMClassifier

TRAIN = {"imdb": 25_000, "farm_ads": 2900, "reuters": 7770}
HEADS = ("accuracy", "log loss", "s to fit", "s to predict")


def models() -> dict[str, Any]:
    return {"klimb GLMClassifier": GLMClassifier(), "LogisticRegression": LogisticRegression(solver="liblinear"),
            "LogisticRegressionCV": LogisticRegressionCV(Cs=10, cv=5, solver="liblinear", scoring="neg_log_loss")}


def texts(name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and the rows to fit and to test on."""
    found = Library(data_dir()).load(name)
    X = found.X if name == "reuters" else tf_idf(found.X)
    if name == "reuters":
        train = np.asarray(found.train, dtype=bool)
        return X, found.y > 0, np.flatnonzero(train), np.flatnonzero(~train)
    order = np.random.default_rng(0).permutation(X.shape[0])
    return X, found.y > 0, order[: TRAIN[name]], order[TRAIN[name] :]


def measured(model: Any, X: Any, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[train], y[train])
    middle = time.process_time()
    p = model.predict_proba(X[test])[:, 1]
    end = time.process_time()
    return {"accuracy": float(np.mean((p > 0.5) == y[test])), "log loss": float(log_loss(y[test], p)),
            "s to fit": middle - begin, "s to predict": end - middle}


def main() -> None:
    found: dict[str, Any] = {}
    with one_thread():
        for name in TRAIN:
            X, y, train, test = texts(name)
            found[name] = {kind: measured(model, X, y, train, test) for kind, model in models().items()}
            table(f"{name}: {len(train):,} of {X.shape[0]:,} texts, {X.shape[1]:,} words", ("model", *HEADS),
                  [(kind, *(row[head] for head in HEADS)) for kind, row in found[name].items()])
    save("sklearn_texts", found)


if __name__ == "__main__":
    main()
