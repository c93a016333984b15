"""What a reproduction is: jobs to be done one by one, tables and a picture made of what they found.

Nothing here knows a paper. An `Experiment` names its jobs in the order in which they run; each returns plain JSON and
may look at what the jobs before it found. The runner keeps every result as soon as it is there, so that a run that was
killed goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from klimb.apps.papers.data import Library

Size: TypeAlias = Literal["full", "quick", "tiny"]  # as the paper; under two minutes; seconds, for tests
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
Found: TypeAlias = dict[str, Any]  # what a job returns: numbers, texts, lists, dicts of them
Results: TypeAlias = Mapping[str, Found]  # by the names of the jobs


class Job(NamedTuple):
    """A piece of an experiment that is done in one go, and once only."""

    name: str  # unique within the experiment, such as "sonar/ep/3"
    work: Callable[[Results], Found]


class PaperTable(NamedTuple):
    """Cells ready to be shown; the first ``left`` columns are text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


class Experiment(NamedTuple):
    """One table or figure of a paper."""

    plan: Callable[[Library, Size], Sequence[Job]]
    tables: Callable[[Results], Sequence[PaperTable]]
    draw: Callable[[Results, Path], None] | None = None
    caption: str = ""  # of the picture: what to see; this and the remarks stand in notes.md
    remarks: tuple[str, ...] = ()  # why figures differ from the paper's


def by_parts(results: Results) -> dict[tuple[str, ...], Found]:
    """Results by the parts of their names.

    >>> by_parts({"sonar/ep/3": {"loss": 0.5}})
    {('sonar', 'ep', '3'): {'loss': 0.5}}
    """
    return {tuple(name.split("/")): found for name, found in results.items()}
