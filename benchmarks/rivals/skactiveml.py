"""Query by committee of ten logistic regressions in scikit-activeml, in turn with klimb's learner in one process."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import skactiveml
from skactiveml.classifier import SklearnClassifier
from skactiveml.pool import QueryByCommittee
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.active_speed import LABELS, RIVAL_POOLS, TEXT_LABELS, WAYS, per_label, pool_of, store, text_pool
from benchmarks.measure import one_thread

ROUNDS = 5


def query(X: np.ndarray, y: np.ndarray, labels: int, C: float = 1.0, repeats: int = 2) -> float:
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


def beside(X: Any, y: np.ndarray, labels: int, cov: float = 1.0) -> dict[str, Any]:
    """Both, in turn; the rival takes no sparse pools."""
    dense = X.toarray() if hasattr(X, "toarray") else X
    rounds: dict[str, list[float]] = {name: [] for name in ("ensemble", *WAYS)}
    for _ in range(ROUNDS):
        rounds["ensemble"].append(query(dense, y, labels, C=cov))
        for name, way in WAYS.items():
            rounds[name].append(per_label(X, y, labels, cov=cov, **way))
    return {**{name: median(seconds) for name, seconds in rounds.items()}, "version": skactiveml.__version__}


def main() -> None:
    with one_thread():
        for n in RIVAL_POOLS:
            store(f"side by side/{n}", beside(*pool_of(n), LABELS))
        for labels in TEXT_LABELS:
            store(f"side by side/reuters/{labels}", beside(*text_pool(), labels, cov=9.0))


if __name__ == "__main__":
    main()
