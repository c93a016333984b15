"""Time per label against the size of the pool, and beside an ensemble of ten in scikit-activeml.

    python -m benchmarks.active_speed              klimb: pools of 1e4, 1e5 and 1e6 rows, labels in blocks of 20
    python -m benchmarks.rivals.skactiveml         both in one process, where scikit-activeml is installed
    python -m benchmarks.active_speed --show       both, from benchmarks/results/active_speed.json

CPU seconds of one thread. "inclusion" is one label within a block of 20, the fit at its end included; products are
those with the pool (one vector each) and systems those solved, by the counters of the learner. Beside the ensemble: one
new label and the next row to ask for, by the default score with ``refit=20`` (one label in twenty is fitted, the others
are included), the same with the score "cu", and with a fit for every label; means over 60 labels, medians of five
rounds in turn with the rival.
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
INCLUSIONS = ("seconds", "products", "systems")
WAYS: dict[str, dict[str, Any]] = {"refit=20": {"refit": 20}, "cu, refit=20": {"refit": 20, "score": "cu"},
                                   "every label": {"refit": 1}}


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
    from klimb.active import ActiveLearner

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
    from klimb.active import ActiveLearner

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
            store(f"klimb/{n}", inclusions(*pool_of(n), LABELS))
        for labels in TEXT_LABELS:
            store(f"klimb/reuters/{labels}", inclusions(*text_pool(), labels, cov=9.0))
    store("environment", environment())


def show() -> None:
    found = json.loads(PATH.read_text())
    for kind, heads in (("klimb", INCLUSIONS), ("side by side", ("ensemble", *WAYS))):
        rows = [(key.removeprefix(f"{kind}/"), *(entry[head] for head in heads),
                 *(f"{entry['ensemble'] / entry[way]:.0f}" for way in WAYS if "ensemble" in heads))
                for key, entry in found.items() if key.startswith(f"{kind}/")]
        ratios = tuple(f"ratio, {way}" for way in WAYS) if "ensemble" in heads else ()
        title = f"{kind}: pools of {COLUMNS} columns with {LABELS} labels; Reuters with so many"
        table(title, ("pool", *heads, *ratios), rows)


if __name__ == "__main__":
    show() if "--show" in sys.argv else measure()
