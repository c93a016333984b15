"""How long the labelling page takes: to start, to choose, and to answer a key while the model is choosing.

    python -m benchmarks.labelling [--rows 1000 10000 100000] [--labels 10 50 100 200]

Texts are invented (50 words of a Zipf distribution over 30,000, some of which speak for a label). Seconds of CPU for what
the model does, seconds of the clock for a key: from the request to the acknowledged label, the journal synced.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from klimb.label import Items, Journal, LabelServer, Session, Settings, items_of
from klimb.label.model import Chooser
from klimb.label.progress import Progress


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


def choosing(items: Items, truth: list[int], marks: list[int]) -> list[tuple[int, float]]:
    """CPU seconds for one order when so many labels are known."""
    settings = Settings(text=("t",))
    chooser, progress = Chooser(items, settings), Progress(askable=items.n, batch=settings.batch)
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


def keys(items: Items, truth: list[int], presses: int = 40) -> list[float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--labels", type=int, nargs="+", default=[10, 50, 100, 200])
    given = parser.parse_args()
    for n in given.rows:
        words, truth = texts(n)
        start = time.process_time()
        items = items_of({"t": words}, text=["t"])
        read = time.process_time() - start
        start = time.process_time()
        Chooser(items, Settings(text=("t",)))
        directions = time.process_time() - start
        print(f"{n:,} texts, {items.features.shape[1]:,} words: {read:.1f} s to read, {directions:.1f} s for directions")
        spent = choosing(items, truth, given.labels)
        print("  a batch: " + ", ".join(f"{seconds:.2f} s at {labels} labels" for labels, seconds in spent), flush=True)
        pressed = keys(items, truth)
        print(f"  a key: median {1000 * statistics.median(pressed):.0f} ms, longest {1000 * max(pressed):.0f} ms",
              flush=True)


if __name__ == "__main__":
    main()
