"""How long the labelling page takes, and how soon its model is good.

    python -m benchmarks.labelling [--rows 1000 10000 100000] [--labels 10 50 100 200]
    python -m benchmarks.labelling --quality        needs KLIMB_DATA: imdb, farm_ads, reuters

Time: texts are invented (50 words of a Zipf distribution over 30,000, some of which speak for a label). Seconds of CPU
to start and to choose; seconds of the clock for a key, from the request to the acknowledged label, the journal synced.

Quality: somebody who always knows the answer labels 160 of 2,500 texts, as the page asks; the error on the rest, the
error that the model expects, and when the page says that one could stop. Beside it, items drawn at random.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from klimb.apps.label import Journal, LabelItems, LabelServer, Session, Settings, items_of
from klimb.apps.label.figures import CurvePoint, Foreseen, advice
from klimb.apps.label.items import Vocabulary
from klimb.apps.label.model import Chooser
from klimb.apps.label.progress import LabelProgress


def texts(n: int, words: int = 50, vocabulary: int = 30_000, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts with their true labels."""
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, vocabulary + 1) ** 1.05
    names = np.array([f"w{k}" for k in range(vocabulary)])
    label = rng.integers(0, 2, n)
    picked = rng.choice(vocabulary, (n, words), p=share / share.sum())
    telling = (rng.random((n, words)) < 0.08) & (picked > 100)
    picked = np.where(telling, 100 + 2 * (picked % 150) + label[:, None], picked)
    return [" ".join(names[row]) for row in picked], label.tolist()


def choosing(items: LabelItems, truth: list[int], marks: list[int]) -> list[tuple[int, float]]:
    """CPU seconds for one order when so many labels are known."""
    settings = Settings(text=("t",))
    chooser, progress = Chooser(items, settings), LabelProgress(askable=items.n, batch=settings.batch)
    found, waiting = [], list(marks)
    while waiting:
        for order in progress.place_orders():
            start = time.process_time()
            choice = chooser.choose(order)
            spent = time.process_time() - start
            progress.fulfil(order.number, choice.rows)
            if len(order.labels) >= waiting[0]:
                found.append((len(order.labels), spent))
                waiting.pop(0)
                if not waiting:
                    break
        row = progress.current
        assert row is not None
        progress.answer(row, truth[row])
    return found


def keys(items: LabelItems, truth: list[int], presses: int = 40) -> list[float]:
    """Clock seconds per key, pressed as fast as answers come, while the model works in the background."""
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "a.jsonl") as journal:
        settings = Settings(text=("t",))
        journal.begin(settings.header(items.fingerprint, items.n, "t", "t"))
        session = Session(items, settings, journal)
        server = LabelServer(session)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        headers = {"X-Klimb-Token": server.token, "Content-Type": "application/json"}

        def ask(method: str, path: str, body: Any = None) -> Any:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return json.loads(connection.getresponse().read())

        state, spent = ask("GET", "/api/state"), []
        while state["turn"] < presses:
            if state["item"] is None:
                state = ask("GET", f"/api/state?seen={state['version']}")
                continue
            row = state["item"]["row"]
            start = time.perf_counter()
            state = ask("POST", "/api/answer", {"turn": state["turn"], "row": row, "label": truth[row]})
            spent.append(time.perf_counter() - start)
        connection.close()
        session.close()
        server.shutdown()
        server.server_close()
    return spent


def stored(name: str, n: int, seed: int) -> tuple[LabelItems, list[int]]:
    """Some texts of a data set whose words are counted already."""
    from scipy.sparse import csr_matrix

    folder = Path(os.environ.get("KLIMB_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    with np.load(folder / f"{name}.npz", allow_pickle=False) as found:
        X = csr_matrix((found["data"], found["indices"], found["indptr"]), shape=tuple(found["shape"]), dtype=float)
        rows = np.random.default_rng(seed).permutation(X.shape[0])[:n]
        X, y = abs(X[rows]), found["y"][rows]
    seen = np.bincount(X.indices, minlength=X.shape[1])
    X, seen = X[:, seen >= 2].tocsr(), seen[seen >= 2]
    X.data = (1.0 + np.log(np.maximum(X.data, 1.0))) * (1.0 + np.log((1.0 + n) / (1.0 + seen)))[X.indices]
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X.data /= np.repeat(np.where(length > 0.0, length, 1.0), np.diff(X.indptr))
    names = tuple(map(str, range(X.shape[1])))
    items = LabelItems(X, names, ("",) * n, {}, tuple(map(str, range(n))), np.arange(n),
                       Vocabulary(names, np.ones(len(names)), {}), name)
    return items, (y <= 0).astype(int).tolist()


def quality(name: str, settings: Settings, marks: list[int], n: int = 2500, seed: int = 0) -> None:
    """One session, its errors at so many labels, and where it was told to stop."""
    items, truth = stored(name, n, seed)
    chooser, progress = Chooser(items, settings), LabelProgress(askable=n, batch=settings.batch)
    points: list[CurvePoint] = []
    asked: dict[int, tuple[str, int]] = {}
    waiting, told, stop = list(marks), [], "never"
    while waiting:
        for order in progress.place_orders():
            choice = chooser.choose(order)
            progress.fulfil(order.number, choice.rows)
            for row, why, chances in zip(choice.rows, choice.why, choice.chances, strict=True):
                asked[row] = why, int(chances[1][0] > chances[0][0])
            if not order.labels:
                continue
            points.append(choice.point)
            foreseen = [Foreseen(asked[row][1] == label, asked[row][0] == "check") for row, label in order.labels]
            counts = [sum(label == k for _, label in order.labels) for k in (0, 1)]
            rest = np.setdiff1d(np.arange(n), list(progress.labels))
            error = np.mean((chooser.probabilities()[rest, 0] < 0.5) != np.array(truth)[rest])
            if stop == "never" and advice(counts, settings.labels, points, foreseen, progress.left)[0] == "stop":
                stop = f"at {len(order.labels)} labels, {error:.1%} wrong"
            if len(order.labels) >= waiting[0]:
                told.append(f"{len(order.labels)}: {error:.3f} ({choice.point.error:.3f})")
                waiting.pop(0)
                if not waiting:
                    break
        row = progress.current
        assert row is not None
        progress.answer(row, truth[row])
    print(f"  {name:9} {settings.score:7} seed {seed}  {'  '.join(told)}  stop {stop}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--labels", type=int, nargs="+", default=[10, 50, 100, 200])
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--quality", action="store_true")
    given = parser.parse_args()
    if given.quality:
        print("labels: error on the rest (error the model expects)")
        for name in ("imdb", "farm_ads", "reuters"):
            for settings in (Settings(), Settings(score="random")):
                for seed in range(3):
                    quality(name, settings, [40, 80, 120, 160], seed=seed)
        return
    for n in given.rows:
        words, truth = texts(n)
        start = time.process_time()
        items = items_of({"t": words}, text=["t"])
        read = time.process_time() - start
        start = time.process_time()
        Chooser(items, Settings(text=("t",)))
        directions = time.process_time() - start
        size = f"{n:,} texts, {items.features.shape[1]:,} words"
        print(f"{size}: {read:.1f} s to read, {directions:.1f} s for directions",
              flush=True)
        spent = choosing(items, truth, given.labels)
        print("  a batch: " + ", ".join(f"{seconds:.2f} s at {labels} labels" for labels, seconds in spent), flush=True)
        pressed = keys(items, truth, given.keys)
        print(f"  a key: median {1000 * statistics.median(pressed):.0f} ms, longest {1000 * max(pressed):.0f} ms",
              flush=True)


if __name__ == "__main__":
    main()
