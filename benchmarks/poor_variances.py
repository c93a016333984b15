"""[N]'s open question: how much do poor variances matter? From five Lanczos vectors to exact ones.

    python -m benchmarks.poor_variances            a few minutes; results in benchmarks/results/poor_variances.json
    python -m benchmarks.poor_variances --show     the table, from that file

The same 300 labels are fitted by the double loop with k vectors (local bound) and exactly. Compared are the variances
of labelled rows and of candidates, the means, and the twenty rows that each score would choose; then each learns on by
itself, 100 labels in blocks of 20, and the test error at the end tells what the choices were worth.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import RESULTS
from klimb import sites
from klimb.active import ActiveLearner
from klimb.active.pool import as_pool
from klimb.apps.papers.active_learning import PANELS, ActivePanel, ConvexLearner, split
from klimb.apps.papers.data import Library, TrainTest
from klimb.apps.papers.experiment import Found, Size
from klimb.apps.papers.pictures import PaperTable, as_markdown
from klimb.numerics.arrays import Array

PATH = RESULTS / "poor_variances.json"
VECTORS = {"a9a-gaussian": (5, 10, 20, 40, 80), "reuters": (5, 20, 80, 320)}
LABELS = {"full": 300, "tiny": 20}  # that all are compared at
BLOCKS = {"full": 5, "tiny": 1}  # of K rows, learnt after them
K = {"full": 20, "tiny": 3}
POOL = 3000  # candidates at most
SEEDS = 2
SCORES = ("cu", "ig")
BEST = 20


def pool(panel: ActivePanel, library: Library, size: Size, seed: int) -> tuple[TrainTest, Array]:
    """Some rows of the panel's pool, and those of them that are labelled first."""
    data = split(panel, library, size, seed)
    kept = np.random.default_rng(seed).permutation(len(data.y))[:POOL]
    return TrainTest(data.X[kept], data.y[kept], data.X_test, data.y_test), np.arange(LABELS[size])


def compared(panel: ActivePanel, library: Library, size: Size, k: int | None, seed: int) -> Found:
    """What k vectors change at the same labels, and the errors of learning on."""
    data, first = pool(panel, library, size, seed)
    truth = ActiveLearner(data.X, site=sites.SuperGaussian(sites.Logistic()), cov=panel.cov, intercept=False,
                          initial=0, warm=True)
    truth.teach(first, data.y[first])
    (m, v), free = truth.marginals(), np.arange(len(first), len(data.y))
    best = {score: truth.scores(score)[free] for score in SCORES}
    state, found = truth.state_dict(), Found(labelled=1.0, candidates=1.0, means=0.0)
    for score in SCORES:
        if k is None:
            weights, found[f"same {score}"] = _learnt(truth.load_state(state), data, score, size), 1.0
        else:
            one = ConvexLearner(data.X, data.y, cov=panel.cov, scale=None, k=k, score=score, first=first)
            own_m, own_v = one.belief().marginals(as_pool(data.X))
            same = np.intersect1d(_top(one.scores(own_m, own_v, free)), _top(best[score]))
            known = v > 0.0  # not of an empty row
            ratio = np.divide(own_v, v, out=np.ones_like(v), where=known)
            found |= {"labelled": float(np.median(ratio[first])), "candidates": float(np.median(ratio[free])),
                      "means": float(np.sqrt(np.mean((own_m - m)[known] ** 2 / v[known]))),
                      f"same {score}": len(same) / BEST}
            weights = _learnt(one, data, score, size)
        found[f"error {score}"] = float(np.mean((data.X_test @ weights > 0.0) != (data.y_test > 0.0)))
    return found


def _top(scores: Array) -> Array:
    return np.argsort(-scores, kind="stable")[:BEST]


def _learnt(learner: ConvexLearner | ActiveLearner, data: TrainTest, score: str, size: Size) -> Array:
    """Weights after learning on in blocks."""
    for _ in range(BLOCKS[size]):
        if isinstance(learner, ConvexLearner):
            learner.block(K[size])
        else:
            learner.block(K[size], lambda row: data.y[row], strategy=score)
    return learner.weights


def jobs() -> Iterator[tuple[str, ActivePanel, int | None, int]]:
    """Every number of vectors on every set, and exact variances: a name, and what to compare."""
    for panel in PANELS:
        for k in (*VECTORS.get(panel.key, ()), *([None] if panel.key in VECTORS else [])):
            for seed in range(SEEDS):
                yield f"{panel.key}/{'exact' if k is None else k}/{seed}", panel, k, seed


def shown(results: dict[str, Found]) -> str:
    """A row for every number of vectors, means over the seeds."""
    titles = {panel.key: panel.title for panel in PANELS}
    rows = []
    for key, k in dict.fromkeys(tuple(name.split("/")[:2]) for name in results):
        found = [one for name, one in results.items() if name.startswith(f"{key}/{k}/")]

        def mean(what: str, found: list[Found] = found) -> float:
            return float(np.mean([one[what] for one in found]))

        rows.append((titles[key], k, f"{mean('labelled'):.2f}", f"{mean('candidates'):.2f}", f"{mean('means'):.3f}",
                     *(f"{100 * mean(f'same {score}'):.0f}%" for score in SCORES),
                     *(f"{100 * mean(f'error {score}'):.2f}" for score in SCORES)))
    heads = ("data", "k", "labelled rows", "candidates", "means off by, sd", "same best 20 by uncertainty", "by gain",
             "test error after learning by uncertainty, %", "by gain, %")
    return as_markdown(PaperTable("Variances by k Lanczos vectors, as shares of the exact ones", heads, tuple(rows)))


def main() -> None:
    results = json.loads(PATH.read_text()) if PATH.exists() else {}
    if "--show" not in sys.argv:
        library = Library()
        for name, panel, k, seed in jobs():
            if name not in results:
                results[name] = compared(panel, library, "full", k, seed)
                PATH.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(shown(results))


if __name__ == "__main__":
    main()
