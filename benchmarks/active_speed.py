"""Time per label against the size of the pool, and beside an ensemble of ten in scikit-activeml.

    python -m benchmarks.active_speed              klimb: pools of 1e4, 1e5 and 1e6 rows, and the single query
    python -m benchmarks.rivals.skactiveml         the ensemble, where scikit-activeml is installed
    python -m benchmarks.active_speed --show       both, from benchmarks/results/active_speed.json

CPU seconds of one thread, medians. "query" is one new label: the fit to all labels and the best row of the pool;
"streamed" the same with ``refit=20``, where one label in twenty is fitted and the others are included.
"inclusion" is one label within a block of 20, the fit at its end included. Products are those with the pool (one
vector each) and systems those solved, by the counters of the learner.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, environment, one_thread, table

PATH = RESULTS / "active_speed.json"
COLUMNS, LABELS, BLOCK = 50, 200, 20
POOLS = (10_000, 100_000, 1_000_000)
RIVAL_POOLS = (10_000, 100_000)
TEXT_LABELS = (200, 500)
HEADS = ("s/inclusion", "products", "systems", "s/query", "s/query, refit=20", "ensemble of 10, s/query", "ratio",
         "ratio, refit=20")


def pool_of(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in single precision and their labels."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    w = rng.standard_normal(COLUMNS) / 3.0
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-(X @ w))), 1.0, -1.0)


def text_pool() -> tuple[Any, np.ndarray]:
    """The 7,770 training documents of Reuters, 8,315 words, sparse, in a random order."""
    from scipy.sparse import csr_matrix

    with np.load(Path(os.environ.get("KLIMB_DATA", "../shared/data")) / "reuters.npz") as z:
        X = csr_matrix((z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"]))
        order = np.random.default_rng(0).permutation(np.flatnonzero(z["train"]))
        return X[order], np.where(z["y"][order] > 0, 1.0, -1.0)


def store(key: str, found: dict[str, Any]) -> None:
    """Add one result to the file."""
    everything = json.loads(PATH.read_text()) if PATH.exists() else {}
    everything[key] = found
    PATH.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def queries(X: Any, y: np.ndarray, labels: int, repeats: int = 5, **more: Any) -> float:
    """CPU seconds of one new label: fit to all labels, best row of the pool."""
    from klimb.design import ActiveLearner

    learner = ActiveLearner(X, warm=True, initial=0, **more)
    learner.teach(np.arange(labels), y[:labels])
    learner.query()
    seconds = []
    for _ in range(repeats):
        row = learner.query()
        begin = time.process_time()
        learner.teach(row, y[row])
        learner.query()
        seconds.append(time.process_time() - begin)
    return median(seconds)


def streamed(X: Any, y: np.ndarray, labels: int, **more: Any) -> float:
    """CPU seconds of one new label with ``refit=20``: the mean over 20 of them, one fit among these."""
    from klimb.design import ActiveLearner

    learner = ActiveLearner(X, warm=True, initial=0, refit=BLOCK, **more)
    learner.teach(np.arange(labels), y[:labels])
    row = learner.query()
    begin = time.process_time()
    for _ in range(BLOCK):
        learner.teach(row, y[row])
        row = learner.query()
    return (time.process_time() - begin) / BLOCK


def inclusions(X: Any, y: np.ndarray, labels: int, repeats: int = 2, **more: Any) -> dict[str, float]:
    """CPU seconds, products with the pool and systems per label of a block of 20."""
    from klimb.design import ActiveLearner
    from klimb.design.batch import best_candidate, score_rows

    learner = ActiveLearner(X, warm=True, initial=0, **more)
    learner.teach(np.arange(labels), y[:labels])
    learner.block(2, lambda row: y[row])
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        learner.block(BLOCK, lambda row: y[row])
        learner.marginals()
        seconds.append((time.process_time() - begin) / BLOCK)
    now, free = learner._now(learner._score), learner.unlabelled
    for _ in range(BLOCK):
        pick = best_candidate(score_rows(learner._score, now, free, shortlist=learner._shortlist), free)
        now, _ = now.include(pick, y[pick])
        free = free[free != pick]
    # A fit: one product for the means, and for the variances one per column of a root of V, or one per new label.
    fit = (1 + min(X.shape[1] + 1, labels)) / BLOCK if X.shape[1] < labels else 1 / BLOCK + 1
    return {"seconds": median(seconds), "products": now.counts.products / BLOCK + fit,
            "systems": now.counts.solves / BLOCK}


def measure() -> None:
    with one_thread():
        for n in POOLS:
            found = inclusions(*pool_of(n), LABELS)
            found["query"] = queries(*pool_of(n), LABELS, 3)
            found["streamed"] = streamed(*pool_of(n), LABELS)
            store(f"klimb/{n}", found)
            print(n, found, flush=True)
        for labels in TEXT_LABELS:
            found = inclusions(*text_pool(), labels, cov=9.0)
            found["query"] = queries(*text_pool(), labels, cov=9.0)
            found["streamed"] = streamed(*text_pool(), labels, cov=9.0)
            store(f"klimb/reuters/{labels}", found)
            print("reuters", labels, found, flush=True)
    store("environment", environment())


def show() -> None:
    found = json.loads(PATH.read_text())
    rows = []
    for n in POOLS:
        own, rival = found[f"klimb/{n}"], found.get(f"scikit-activeml/{n}")
        rows.append((f"{n:,}", own["seconds"], own["products"], own["systems"], own["query"], own["streamed"],
                     *(("-",) * 3 if rival is None else _beside(own, rival))))
    table(f"Pools of {COLUMNS} columns, {LABELS} labels", ("rows", *HEADS), rows)
    rows = []
    for labels in TEXT_LABELS:
        own, rival = found[f"klimb/reuters/{labels}"], found[f"scikit-activeml/reuters/{labels}"]
        rows.append((labels, own["seconds"], own["products"], own["systems"], own["query"], own["streamed"],
                     *_beside(own, rival)))
    table("Reuters, 7,770 documents and 8,315 words", ("labels", *HEADS), rows)


def _beside(own: dict[str, Any], rival: dict[str, Any]) -> tuple[Any, ...]:
    return rival["query"], f"{rival['query'] / own['query']:.0f}", f"{rival['query'] / own['streamed']:.0f}"


if __name__ == "__main__":
    show() if "--show" in sys.argv else measure()
