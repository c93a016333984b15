"""The labels as a table: which row, which label, when, and what the model expected before."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from klimb.apps.label.journal import Contents, Entry

COLUMNS = ("row", "id", "label", "time", "probability", "chosen")


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """The labels of a journal that were not taken back, in the order they were given.

    >>> standing([{"kind": "label", "row": 1}, {"kind": "skip", "row": 2}, {"kind": "undo"}, {"kind": "undo"},
    ...           {"kind": "label", "row": 3}])
    [{'kind': 'label', 'row': 3}]
    """
    steps: list[Entry] = []
    for entry in entries:
        if entry["kind"] in ("label", "skip"):
            steps.append(entry)
        elif entry["kind"] == "undo":
            steps.pop()
    return [entry for entry in steps if entry["kind"] == "label"]


def csv_text(labels: Iterable[Entry]) -> str:
    r"""A line per label. ``probability`` is that of the label given, before it was; ``chosen`` says who chose the row.

    >>> csv_text([{"row": 7, "id": "7", "label": "yes", "time": "2026-01-02T03:04:05.678Z", "p": 0.25, "why": "model"}])
    'row,id,label,time,probability,chosen\n7,7,yes,2026-01-02T03:04:05.678Z,0.25,model\n'
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([entry["row"], entry["id"], entry["label"], entry["time"], entry["p"], entry["why"]]
                     for entry in labels)
    return stream.getvalue()


def exported(journal: Contents) -> str:
    """The table of a journal."""
    return csv_text(standing(journal.entries))
