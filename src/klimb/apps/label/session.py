"""A labelling session: takes answers, saves each before acknowledging it, and lets the model choose in the background.

One thread owns the model and carries out orders; server threads take answers. The lock is not held while it works.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from klimb.apps.label.figures import CurvePoint, Foreseen, advice, check_curve, share, thinned
from klimb.apps.label.items import LabelItems, Pushes, columns_shown, preview, segments
from klimb.apps.label.journal import Entry, Journal, NotSaved, Settings, of_kind
from klimb.apps.label.model import Choice, Chooser
from klimb.apps.label.progress import LabelProgress, Order
from klimb.errors import InputError, require

HISTORY = 8  # labels given last that the page lists
RECORDED = ("label", "skip", "undo")


class OutOfStep(InputError):
    """An answer to an item that is no longer on the screen: another window was faster."""


class Asked(NamedTuple):
    """An item that was chosen: why, and what the model thought of it then."""
    why: str
    chances: tuple[tuple[float, float, float], ...]  # mean, lower, upper; one per label

    @property
    def guess(self) -> int:
        """The label that seemed most probable."""
        means = [mean for mean, _, _ in self.chances]
        return means.index(max(means))


class Session:
    """All that the page shows and does. `state` is what it shows; `answer` and `undo` are what it does.

    >>> from tempfile import TemporaryDirectory
    >>> from klimb.apps.label.items import items_of
    >>> items, settings = items_of({"t": ["good day", "bad day", "good"]}, text=["t"]), Settings(text=("t",))
    >>> with TemporaryDirectory() as folder, Journal(f"{folder}/a.jsonl") as journal:
    ...     journal.begin(settings.header(items.fingerprint, items.n, "days", "2026-01-01T00:00:00Z"))
    ...     session = Session(items, settings, journal)
    ...     _ = session.settle()  # the first items are being chosen
    ...     session.answer(0, session.state()["item"]["row"], 1)
    ...     session.close()
    >>> session.state()["counts"], session.standing()[0]["label"]
    ([0, 1], 'no')
    """

    def __init__(self, items: LabelItems, settings: Settings, journal: Journal, *, source: str = "",
                 keys: Sequence[str] = "123456789", blind: bool = False,
                 clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.items, self.settings, self.journal = items, settings, journal
        self._page = {"source": source, "keys": list(keys[: len(settings.labels)]), "blind": blind,
                      "labels": list(settings.labels), "journal": journal.path.name}
        self._clock = clock
        self._changed = threading.Condition()
        self._progress = LabelProgress(askable=len(items.askable), batch=settings.batch)
        self._asked: dict[int, Asked] = {}
        self._pushes: dict[int, Pushes] = {}
        self._times: dict[int, str] = {}
        self._points: list[CurvePoint] = []
        self._jobs: deque[tuple[Order, Entry | None]] = deque()
        self._version = 0
        self._trouble = ""
        self._closing = False
        self._chooser = Chooser(items, settings)
        self._replay(journal.entries)
        self._worker = threading.Thread(target=self._work, name="klimb-label-model", daemon=True)
        self._worker.start()

    def _replay(self, entries: Sequence[Entry]) -> None:
        """Tell the story of the journal again: the same answers place the same orders, whose items it remembers."""
        chosen = {entry["order"]: entry for entry in of_kind(entries, "chosen")}
        self._place(chosen)
        for entry in of_kind(entries, *RECORDED):
            if entry["kind"] == "undo":
                self._progress.undo()
            else:
                label = self.settings.labels.index(entry["label"]) if entry["kind"] == "label" else None
                self._progress.answer(entry["row"], label)
                self._times[entry["row"]] = entry["time"]
            self._place(chosen)
        # Of what was chosen in earlier runs, only the items that still wait are looked at again.
        waiting = set(self._progress.queue)
        self._jobs = deque((order, entry) for order, entry in self._jobs
                           if entry is None or not waiting.isdisjoint(entry["rows"]))

    def _place(self, known: dict[int, Entry]) -> None:
        for order in self._progress.place_orders():
            entry = known.get(order.number)
            self._jobs.append((order, entry))
            if entry is not None:
                self._chooser.pass_over(entry["rows"])
                self._take(order, entry)

    def _take(self, order: Order, entry: Entry) -> None:
        """The items of an order join the queue."""
        self._progress.fulfil(order.number, entry["rows"])
        for row, why, chances in zip(entry["rows"], entry["why"], entry["p"], strict=True):
            self._asked[row] = Asked(why, tuple((c[0], c[1], c[2]) for c in chances))
        if entry["labels"]:
            names = ("labels", "error", "entropy", "changed", "agreement")
            self._points.append(CurvePoint(**{name: entry[name] for name in names}))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                order, entry = self._jobs.popleft()
            choice = self._chooser.choose(order) if entry is None else self._chooser.retrace(order, entry["rows"])
            with self._changed:
                self._pushes.update(zip(choice.rows, choice.pushes, strict=True))
                self._trouble = choice.trouble
                if entry is None:
                    self._record(order, choice)
                self._tell()

    def _record(self, order: Order, choice: Choice) -> None:
        point = choice.point
        entry = {"kind": "chosen", "order": order.number, "rows": list(choice.rows), "why": list(choice.why),
                 "p": [[[round(number, 6) for number in chance] for chance in chances] for chances in choice.chances],
                 **{name: value if value is None else round(value, 6) for name, value in point._asdict().items()}}
        try:
            # It reaches the disk with the next answer, which is synced; lost alone, it would be chosen again the same.
            self.journal.append(entry, durable=False)
        except NotSaved as error:
            self._trouble = str(error)
        self._take(order, entry)

    def answer(self, turn: int, row: int, label: int | None) -> None:
        """Label the item on the screen (None: skip it). When this returns, the answer is on the disk."""
        with self._changed:
            self._check(turn)
            if row != self._progress.current:
                raise self._out_of_step(f"row {row}")
            if label is not None and not 0 <= label < len(self.settings.labels):
                raise InputError(f"a label from 0 to {len(self.settings.labels) - 1}", str(label), "Press another key.")
            entry: Entry = {"kind": "skip" if label is None else "label", "turn": turn, "row": row,
                            "id": self.items.ids[row]}
            if label is not None:
                asked = self._asked[row]
                entry |= {"label": self.settings.labels[label], "p": asked.chances[label][0],
                          "guess": self.settings.labels[asked.guess], "why": asked.why}
            entry["time"] = self._now()
            self.journal.append(entry)
            self._times[row] = entry["time"]
            self._progress.answer(row, label)
            self._place({})
            self._tell()

    def undo(self, turn: int) -> None:
        """Take back the last answer."""
        with self._changed:
            self._check(turn)
            row = self._progress.last_step().row
            self.journal.append({"kind": "undo", "turn": turn, "row": row, "time": self._now()})
            self._progress.undo()
            self._place({})
            self._tell()

    def _check(self, turn: int) -> None:
        require(not self._closing, "a session that runs", "one that has ended", "Run klimb label again.")
        if turn != self._progress.turn:
            raise self._out_of_step(f"answer {turn}")

    def _out_of_step(self, what: str) -> OutOfStep:
        return OutOfStep(f"answer {self._progress.turn}, to row {self._progress.current}", what,
                         "Another window was faster; this one now shows the same.")

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def state(self, seen: int | None = None, patience: float = 0.0) -> dict[str, Any]:
        """Everything the page shows, as JSON. If version ``seen`` is the present one, waits ``patience`` seconds."""
        with self._changed:
            if seen == self._version:
                self._changed.wait_for(lambda: self._version != seen or self._closing, patience)
            progress = self._progress
            row = progress.current
            words, text = advice(self._counts(), self.settings.labels, self._points, self._foreseen(), progress.left)
            last = progress.steps[: -HISTORY - 1 : -1]
            return {
                **self._page, "version": self._version, "turn": progress.turn,
                "item": None if row is None else self._item(row),
                "waiting": row is None and progress.left > 0, "closing": self._closing,
                "counts": self._counts(), "skipped": len(progress.skipped), "left": progress.left,
                "total": len(self.items.askable), "can_undo": bool(progress.steps),
                "advice": {"kind": words, "text": text}, "trouble": self._trouble,
                "figures": self._figures(), "history": [{"row": step.row, "label": step.label,
                                                         "text": preview(self.items, step.row)} for step in last],
            }

    def whole_text(self, row: int) -> list[tuple[str, int]]:
        """The text of the item on the screen, however long."""
        with self._changed:
            if row != self._progress.current:
                raise self._out_of_step(f"row {row}")
            return segments(self.items, row, self._pushes.get(row, {}), None)[0]

    def standing(self) -> list[Entry]:
        """The labels that stand, in the order they were given."""
        with self._changed:
            return [{"row": row, "id": self.items.ids[row], "label": self.settings.labels[label],
                     "time": self._times[row], "p": self._asked[row].chances[label][0], "why": self._asked[row].why}
                    for row, label in self._progress.labels.items()]

    def close(self) -> None:
        """End the session; the labels are on the disk already."""
        with self._changed:
            self._closing = True
            self._tell()
        self._worker.join(timeout=10.0)

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until no order is open; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._progress.open_orders, timeout)

    def _item(self, row: int) -> dict[str, Any]:
        asked, pushes = self._asked[row], self._pushes.get(row, {})
        parts, more = segments(self.items, row, pushes)
        return {"row": row, "id": self.items.ids[row], "why": asked.why, "segments": parts, "more": more,
                "columns": columns_shown(self.items, row, pushes), "chances": asked.chances}

    def _counts(self) -> list[int]:
        given = Counter(self._progress.labels.values())
        return [given[label] for label in range(len(self.settings.labels))]

    def _foreseen(self) -> list[Foreseen]:
        return [Foreseen(self._asked[row].guess == label, self._asked[row].why == "check")
                for row, label in self._progress.labels.items()]

    def _figures(self) -> dict[str, Any]:
        foreseen = self._foreseen()
        checks, questions = ([one.right for one in foreseen if one.check is kind] for kind in (True, False))
        return {"curve": [[point.labels, point.error, point.entropy] for point in thinned(self._points)],
                "checks": check_curve(foreseen)[-400:], "foreseen": share(sum(checks), len(checks)),
                "questions": share(sum(questions), len(questions)),
                "changed": self._points[-1].changed if self._points else None}
