"""Query by committee of ten logistic regressions in scikit-activeml, on the pools of benchmarks.active_speed."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import skactiveml
from skactiveml.classifier import SklearnClassifier
from skactiveml.pool import QueryByCommittee
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.active_speed import LABELS, RIVAL_POOLS, TEXT_LABELS, pool_of, store, text_pool
from benchmarks.measure import one_thread


def query(X: np.ndarray, y: np.ndarray, labels: int, C: float = 1.0, repeats: int = 3) -> float:
    """CPU seconds of one new label: ten refits from scratch and the best row by their disagreement."""
    known = np.full(len(y), np.nan)
    known[:labels] = y[:labels]
    seconds = []
    for k in range(repeats):
        ensemble = SklearnClassifier(BaggingClassifier(LogisticRegression(C=C), n_estimators=10, random_state=k),
                                     classes=[-1.0, 1.0])
        strategy = QueryByCommittee(method="KL_divergence", random_state=k)
        begin = time.process_time()
        row = strategy.query(X, known, ensemble=ensemble, batch_size=1)
        seconds.append(time.process_time() - begin)
        known[row] = y[row]
    return median(seconds)


def main() -> None:
    with one_thread():
        for n in RIVAL_POOLS:
            found = {"query": query(*pool_of(n), LABELS), "version": skactiveml.__version__}
            store(f"scikit-activeml/{n}", found)
            print(n, found, flush=True)
        X, y = text_pool()
        for labels in TEXT_LABELS:  # it takes no sparse pools
            found = {"query": query(X.toarray(), y, labels, C=9.0), "version": skactiveml.__version__}
            store(f"scikit-activeml/reuters/{labels}", found)
            print("reuters", labels, found, flush=True)


if __name__ == "__main__":
    main()
