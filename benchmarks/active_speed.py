"""Time per label against the size of the pool, and beside an ensemble of ten in scikit-activeml.

    python -m benchmarks.active_speed              klimb: pools of 1e4, 1e5 and 1e6 rows, and the single query
    python -m benchmarks.rivals.skactiveml         the ensemble, where scikit-activeml is installed
    python -m benchmarks.active_speed --show       both, from benchmarks/results/active_speed.json

CPU seconds of one thread, means over 60 labels. "query" is one new label: the fit to all labels and the best row of the
pool; "streamed" the same with ``refit=20``, where one label in twenty is fitted and the others are included.
"unsure" is that again, with the score "cu".
"inclusion" is one label within a block of 20, the fit at its end included. Products are those with the pool (one
vector each) and systems those solved, by the counters of the learner.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, environment, one_thread, table

PATH = RESULTS / "active_speed.json"
COLUMNS, LABELS, BLOCK, SPAN = 50, 200, 20, 60
POOLS = (10_000, 100_000, 1_000_000)
RIVAL_POOLS = (10_000, 100_000)
TEXT_LABELS = (200, 500)
KINDS = ("seconds", "products", "systems", "query", "streamed", "unsure")
HEADS = ("s/inclusion", "products", "systems", "s/query", "s/query, refit=20", "the same, cu",
         "ensemble of 10, s/query", "ratio", "ratio, refit=20", "ratio, cu")


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


def per_label(X: Any, y: np.ndarray, labels: int, refit: int, **more: Any) -> float:
    """CPU seconds of one new label, from teaching it to the next row to ask for: the mean over `SPAN` of them."""
    from klimb.design import ActiveLearner

    learner = ActiveLearner(X, warm=True, initial=0, refit=refit, **more)
    learner.teach(np.arange(labels), y[:labels])
    row = learner.query()
    begin = time.process_time()
    for _ in range(SPAN):
        learner.teach(row, y[row])
        row = learner.query()
    return (time.process_time() - begin) / SPAN


def inclusions(X: Any, y: np.ndarray, labels: int, **more: Any) -> dict[str, float]:
    """CPU seconds, products with the pool and systems per label in blocks of 20, the fits at their ends included."""
    from klimb.design import ActiveLearner

    learner = ActiveLearner(X, warm=True, initial=0, **more)
    learner.teach(np.arange(labels), y[:labels])
    learner.block(2, lambda row: y[row])
    before, kept = replace(learner.counts), learner._kept.n_products
    begin = time.process_time()
    for _ in range(SPAN // BLOCK):
        learner.block(BLOCK, lambda row: y[row])
    seconds = (time.process_time() - begin) / SPAN
    counts = learner.counts
    # All marginals of a fit take one product for the means and, for the variances, one per column of a root of V; where
    # labels are fewer than columns, one per new label, since the others are kept. Rows alone cost their share of all.
    columns, fits, alone = X.shape[1] + 1, counts.fits - before.fits, (counts.rows - before.rows) / X.shape[0]
    products = counts.products - before.products + fits + alone * (1 + min(columns, labels))
    products += fits * columns if columns <= labels else learner._kept.n_products - kept
    return {"seconds": seconds, "products": products / SPAN, "systems": (counts.solves - before.solves) / SPAN}


def measure() -> None:
    with one_thread():
        for n in POOLS:
            found = inclusions(*pool_of(n), LABELS)
            found["query"] = per_label(*pool_of(n), LABELS, refit=1)
            found["streamed"] = per_label(*pool_of(n), LABELS, refit=BLOCK)
            found["unsure"] = per_label(*pool_of(n), LABELS, refit=BLOCK, score="cu")
            store(f"klimb/{n}", found)
            print(n, found, flush=True)
        for labels in TEXT_LABELS:
            found = inclusions(*text_pool(), labels, cov=9.0)
            found["query"] = per_label(*text_pool(), labels, refit=1, cov=9.0)
            found["streamed"] = per_label(*text_pool(), labels, refit=BLOCK, cov=9.0)
            found["unsure"] = per_label(*text_pool(), labels, refit=BLOCK, cov=9.0, score="cu")
            store(f"klimb/reuters/{labels}", found)
            print("reuters", labels, found, flush=True)
    store("environment", environment())


def show() -> None:
    found = json.loads(PATH.read_text())
    rows = []
    for n in POOLS:
        own, rival = found[f"klimb/{n}"], found.get(f"scikit-activeml/{n}")
        rows.append((f"{n:,}", *(own[kind] for kind in KINDS), *(("-",) * 4 if rival is None else _beside(own, rival))))
    table(f"Pools of {COLUMNS} columns, {LABELS} labels", ("rows", *HEADS), rows)
    rows = []
    for labels in TEXT_LABELS:
        own, rival = found[f"klimb/reuters/{labels}"], found[f"scikit-activeml/reuters/{labels}"]
        rows.append((labels, *(own[kind] for kind in KINDS), *_beside(own, rival)))
    table("Reuters, 7,770 documents and 8,315 words", ("labels", *HEADS), rows)


def _beside(own: dict[str, Any], rival: dict[str, Any]) -> tuple[Any, ...]:
    return rival["query"], *(f"{rival['query'] / own[kind]:.0f}" for kind in ("query", "streamed", "unsure"))


if __name__ == "__main__":
    show() if "--show" in sys.argv else measure()
