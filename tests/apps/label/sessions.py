"""What the tests of the labelling page share: a table of invented reviews, somebody who labels them, a plain client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from klimb.apps.label.items import LabelItems, items_of
from klimb.apps.label.journal import Journal, Settings
from klimb.apps.label.session import Session

GOOD = ["wonderful", "moving", "brilliant", "superb", "charming", "funny", "delightful", "warm"]
BAD = ["dull", "boring", "awful", "tedious", "clumsy", "lifeless", "weak", "bland"]
PLAIN = ["the", "a", "film", "story", "actor", "plot", "scene", "music", "camera", "ending", "hero",
         "city", "night", "dialogue"]
HOSTILE = ["<script>window.hacked = true</script>", '"><img src=x onerror="window.hacked=true">',
           "</div></main><h1>gone</h1>", "javascript:window.hacked=true", "\u202egnal si siht\u202c & \x07 bell nul",
           "&lt;b&gt; {{constructor}} ${window.hacked=true}", "<svg/onload=window.hacked=true>", "😀\u200d💻"]


def reviews(n: int = 80, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts, and their true labels (0: liked)."""
    rng = np.random.default_rng(seed)
    texts, truth = [], []
    for _ in range(n):
        liked = rng.random() < 0.5
        words = [str(rng.choice(PLAIN if rng.random() > 0.2 else (GOOD if liked else BAD)))
                 for _ in range(rng.integers(6, 20))]
        texts.append(" ".join(words))
        truth.append(0 if liked else 1)
    return texts, truth


def make_items(n: int = 80, seed: int = 0) -> tuple[LabelItems, list[int]]:
    texts, truth = reviews(n, seed)
    return items_of({"review": texts}, text=["review"]), truth


def open_session(path: Path, items: LabelItems, settings: Settings | None = None, **more: Any) -> Session:
    """A session on a journal, begun or taken up again."""
    journal = Journal(path)
    settings = settings or Settings(text=("review",))
    if not journal.header:
        journal.begin(settings.header(items.fingerprint, items.n, "reviews.csv", "2026-01-01T00:00:00Z"))
    return Session(items, settings, journal, **more)


def end(session: Session) -> None:
    session.close()
    session.journal.close()


def labeller(truth: list[int], skips: int = 7, undos: int = 11) -> Callable[[dict[str, Any]], tuple[str, int | None]]:
    """Somebody who skips every 7th item and takes back every 11th answer; decides by the turn and the row alone."""

    def decide(state: dict[str, Any]) -> tuple[str, int | None]:
        turn = state["turn"]
        if undos and turn % undos == undos - 1:
            return "undo", None
        if skips and turn % skips == skips - 1:
            return "skip", None
        return "answer", truth[state["item"]["row"]]

    return decide


def work(session: Session, decide: Callable[[dict[str, Any]], tuple[str, int | None]], turns: int) -> list[Any]:
    """Answer until so many turns are done; what was on the screen, and what was said."""
    story = []
    while True:
        state = session.state()
        if state["turn"] >= turns or (state["item"] is None and not state["waiting"]):
            return story
        if state["item"] is None:
            assert session.settle()
            continue
        what, label = decide(state)
        story.append((state["turn"], state["item"]["row"], what, label))
        if what == "undo":
            session.undo(state["turn"])
        else:
            session.answer(state["turn"], state["item"]["row"], label)


def request(port: int, method: str, path: str, body: Any = None, *, token: str | None = None,
            headers: dict[str, str] | None = None, raw: bytes | None = None) -> tuple[int, dict[str, str], Any]:
    """Status, headers and content of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        said = {"Host": f"127.0.0.1:{port}"}
        if token is not None:
            said["X-Klimb-Token"] = token
        if body is not None:
            said["Content-Type"] = "application/json"
            raw = json.dumps(body).encode()
        said |= headers or {}
        connection.request(method, path, raw, {name: value for name, value in said.items() if value != ""})
        reply = connection.getresponse()
        content = reply.read()
        found = dict(reply.getheaders())
        kind = found.get("Content-Type", "")
        return reply.status, found, json.loads(content) if kind == "application/json" else content
    finally:
        connection.close()
