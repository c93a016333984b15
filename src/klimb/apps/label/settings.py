"""What a session was begun with. It stands in the first line of the journal, and does not change afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from klimb.apps.label.journal import Entry
from klimb.errors import InputError

SCORES = ("bald", "cu", "ig", "random")
MOST_LABELS = 9  # one digit key each
DEFAULTS: dict[str, Any] = {"labels": ("yes", "no"), "score": "bald", "batch": 3, "check": 5, "seed": 0}


@final
@dataclass(frozen=True)
class Settings:
    """The names of the labels and how items are chosen: ``batch`` at a time by ``score``, every ``check``-th at random.

    >>> Settings(("spam", "fine")).check
    5
    """

    labels: tuple[str, ...] = DEFAULTS["labels"]
    score: str = DEFAULTS["score"]
    batch: int = DEFAULTS["batch"]
    check: int = DEFAULTS["check"]  # 0: never
    seed: int = DEFAULTS["seed"]
    text: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_labels(self.labels)
        if self.score not in SCORES:
            raise InputError(f"--score {', '.join(SCORES[:-1])} or {SCORES[-1]}", repr(self.score), "Choose one.")
        for name, least in (("batch", 1), ("check", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} of at least {least}", str(getattr(self, name)), "Choose a larger one.")

    def header(self, fingerprint: str, rows: int, data: str, began: str) -> Entry:
        """The first line of a journal."""
        return {"kind": "begin", "data": data, "rows": rows, "fingerprint": fingerprint, "labels": list(self.labels),
                "text": list(self.text), "columns": list(self.columns), "score": self.score, "batch": self.batch,
                "check": self.check, "seed": self.seed, "time": began}


def check_labels(labels: Sequence[str]) -> None:
    """Two to nine names, all different, none empty."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(f"two to {MOST_LABELS} labels, one key each", f"{len(labels)}: {', '.join(labels) or 'none'}",
                         "Say --labels yes,no or --positive NAME.")
    for place, name in enumerate(labels):
        if not name.strip() or len(name) > 60:
            raise InputError("labels with a name of 1 to 60 characters", f"{name[:70]!r} at place {place + 1}",
                             "Check the commas of --labels.")
        if name in labels[:place]:
            raise InputError("labels that differ", f"{name!r} twice", "Check --labels.")


def of_header(header: Entry) -> Settings:
    """The settings of a journal."""
    return Settings(tuple(header["labels"]), header["score"], header["batch"], header["check"], header["seed"],
                    tuple(header["text"]), tuple(header["columns"]))


def agree(header: Entry, given: dict[str, Any], journal: object) -> Settings:
    """The settings of a journal that is taken up again; an error if the command says otherwise.

    ``given`` holds what the user said, and only that: what is not said is as it was.
    """
    settings = of_header(header)
    for name, value in given.items():
        before = getattr(settings, name)
        if value != before:
            raise InputError(f"{journal} was begun with --{name} {_spoken(before)}, and goes on with it",
                             f"--{name} {_spoken(value)}",
                             "Leave the option out, or begin another session with --journal OTHER.jsonl.")
    return settings


def same_data(header: Entry, fingerprint: str, rows: int, journal: object) -> None:
    """An error if the table is not the one the journal was begun with: row numbers would mean other items."""
    if header["fingerprint"] != fingerprint:
        raise InputError(f"the table that {journal} was begun with ({header['data']}, {header['rows']:,} rows,"
                         f" fingerprint {header['fingerprint'][:12]})", f"another: {rows:,} rows, fingerprint"
                         f" {fingerprint[:12]}",
                         "Name that table, or begin another session with --journal OTHER.jsonl.")


def _spoken(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple | list) else str(value)
