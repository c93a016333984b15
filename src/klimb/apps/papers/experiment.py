"""What a reproduction is: jobs to be done one by one, tables and a picture made of what they found; and its run.

An `Experiment` names its jobs in the order in which they run; each returns plain JSON and may look at what the jobs
before it found. `EXPERIMENTS` has every table and figure by its key.

    KEY.json   the record and journal: versions, machine, data with digests, CPU seconds, every result
    KEY.md     the tables with the paper's figures beside ours, the picture, and why they differ
    KEY.png    the picture, where there is one and matplotlib is installed

A quick run adds ``-quick`` to these names. A run may be killed at any moment and be continued from what it had done.
"""

import json
import os
import platform
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import fsum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from klimb._files import whole_file
from klimb.apps.papers.data import Library
from klimb.apps.papers.pictures import NEEDS_MATPLOTLIB, PaperTable, as_markdown, can_draw, seconds
from klimb.errors import InputError, nearest, require
from klimb.report.records import to_json
from klimb.report.text import table

Size: TypeAlias = Literal["full", "quick", "tiny"]  # as the paper; under two minutes; seconds, for tests
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
Found: TypeAlias = dict[str, Any]  # what a job returns: numbers, texts, lists, dicts of them
Results: TypeAlias = Mapping[str, Found]  # by the names of the jobs
SCHEMA = "klimb.reproduce/1"
Hear: TypeAlias = Callable[[str, int, int], None]  # job that begins, jobs done, jobs in all


class Job(NamedTuple):
    """A piece of an experiment that is done in one go, and once only."""
    name: str  # unique within the experiment, such as "sonar/ep/3"
    work: Callable[[Results], Found]


class Experiment(NamedTuple):
    """One table or figure of a paper."""
    plan: Callable[[Library, Size], Sequence[Job]]
    tables: Callable[[Results], Sequence[PaperTable]]
    draw: Callable[[Results, Path], None] | None = None


def by_parts(results: Results) -> dict[tuple[str, ...], Found]:
    """Results by the parts of their names: ("sonar", "ep", "3")."""
    return {tuple(name.split("/")): found for name, found in results.items()}


class PaperEntry(NamedTuple):
    """A table or figure, as experiments.toml has it."""
    title: str
    home: str
    data: Sequence[str]
    full: str
    caption: str
    remarks: tuple[str, ...]
    settings: Mapping[str, Any]  # whatever else its table has: what the paper prints, panels

    def experiment(self) -> Experiment:
        """The experiment itself; imports its module."""
        module, _, name = self.home.partition(":")
        found: Experiment = getattr(import_module(f"klimb.apps.papers.{module}"), name)
        return found


def entry(title: str, home: str, data: Sequence[str], full: str, also: str = "", caption: str = "",
          remarks: Sequence[str] = (), **settings: Any) -> PaperEntry:
    """An entry with the words that it shares with others before its own."""
    shared = TABLE["shared"].get(also, {"caption": "", "remarks": ()})
    return PaperEntry(title, home, data, full, f"{shared['caption']} {caption}".strip(),
                      (*shared["remarks"], *remarks), settings)


TABLE = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8"))
PAPERS: dict[str, str] = TABLE["papers"]
EXPERIMENTS: dict[str, PaperEntry] = {key: entry(**facts) for key, facts in TABLE["experiments"].items()}


def canonical(key: str) -> str:
    """The key as it is written in the registry; its letters may be of either case."""
    names = {name.lower(): name for name in EXPERIMENTS}
    if key.lower() in names:
        return names[key.lower()]
    raise InputError("expected the name of a table or figure", repr(key),
                     nearest(key, EXPERIMENTS).replace("'", "") + "klimb reproduce --list names them all.")


@cache
def machine() -> dict[str, Any]:
    """What the figures depend on besides the code: versions, kind of machine, BLAS."""
    import scipy
    import threadpoolctl

    import klimb
    blas = sorted({f"{info.get('internal_api')} {info.get('version')} {info.get('architecture', '')}".strip()
                   for info in threadpoolctl.threadpool_info() if info.get("user_api") == "blas"})
    return {"klimb": klimb.__version__, "python": platform.python_version(), "numpy": np.__version__,
            "scipy": scipy.__version__, "system": platform.system(), "machine": platform.machine(),
            "processors": os.cpu_count(), "blas": blas, "blas_threads": 1}


@dataclass
class Record:
    """The file of one run, as far as it has come."""
    path: Path
    experiment: str
    size: Size
    data: dict[str, Any] = field(default_factory=dict)  # set -> files, digest, rows, columns
    results: dict[str, Found] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # by job
    finished: bool = False
    extra: dict[str, Any] = field(default_factory=dict)  # title, tables, ... of a finished run

    @classmethod
    def open(cls, path: Path, experiment: str, size: Size) -> "Record":
        """What an earlier run left, or an empty record."""
        if not path.exists():
            return cls(path, experiment, size)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            head = (stored["schema"], stored["experiment"], stored["size"])
            if head != (SCHEMA, experiment, size):
                raise ValueError(f"that of {head}")
            return cls(path, experiment, size, stored["data"], stored["results"], stored["cpu_seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"expected {path} to be the record of {experiment} ({size}, {SCHEMA})",
                             f"{type(error).__name__}: {error}",
                             "Move it away, name another folder with --out, or begin anew with --fresh.") from error

    def keep(self, job: str, found: Found, cpu_seconds: float) -> None:
        """Add what a job found, and write the file."""
        self.results[job] = to_json(found)
        self.cpu_seconds[job] = round(cpu_seconds, 3)
        self.write()

    @property
    def facts(self) -> dict[str, Any]:
        """What its file holds."""
        return {"schema": SCHEMA, "experiment": self.experiment, "size": self.size, "finished": self.finished,
                **self.extra, "machine": machine(), "total_cpu_seconds": round(sum(self.cpu_seconds.values()), 1),
                "data": self.data, "cpu_seconds": self.cpu_seconds, "results": self.results}

    def write(self) -> None:
        """The whole record, in the place of the last one."""
        with whole_file(self.path) as stream:
            stream.write(compact(to_json(self.facts)) + "\n")


def compact(value: Any, indent: int = 0) -> str:
    """JSON with one entry of an object per line and lists on a line of their own: small, and good to read in a diff."""
    if isinstance(value, dict) and value:
        blanks = " " * (indent + 1)
        inside = ",\n".join(f"{blanks}{json.dumps(key, ensure_ascii=False)}: {compact(one, indent + 1)}"
                            for key, one in value.items())
        return f"{{\n{inside}\n{' ' * indent}}}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def run(key: str, *, data: str | Path | None = None, out: str | Path = "reproduced", size: Size = "full",
        fresh: bool = False, so_far: bool = False, hear: Hear | None = None) -> Record:
    """Reproduce a table or figure; go on where an earlier run stopped.

    Parameters
    ----------
    key : str
        Such as "A-table2"; `klimb.apps.papers.EXPERIMENTS` has them all.
    data : path, optional
        The folder of the data sets; by default the one KLIMB_DATA names.
    out : path
        Where record, page and picture go; made if it is not there.
    size : "full", "quick" or "tiny"
        As the paper has it; within two minutes; within seconds, to see that everything runs.
    fresh : bool
        Forget what an earlier run found.
    so_far : bool
        Do nothing more; make tables, page and picture of what is there.
    hear : callable, optional
        Called with (job, done, total) before every job, and at the end.

    Examples
    --------
    >>> import klimb.apps.papers, tempfile
    >>> record = klimb.apps.papers.run("G-figure1", out=tempfile.mkdtemp(), size="tiny")
    >>> record.finished, sorted(record.results)[0]
    (True, 'Cauchy/ADVI')
    """
    name = canonical(key)
    chosen = EXPERIMENTS[name]
    require(size in SIZES, "size must be 'full', 'quick' or 'tiny'", repr(size), "Leave it out for a full run.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError("expected a folder for the results", f"{folder}, which is a file", "Name another with --out.")
    library = Library(data)
    facts = {one: library.facts(one) for one in chosen.data}  # before any work: a missing file is said at once
    if not so_far:
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(name, size)}.json"
    if fresh:
        path.unlink(missing_ok=True)
    record = Record.open(path, name, size)
    for one, found in facts.items():
        before = record.data.get(one)
        require(not record.results or before is None or before["sha256"] == found["sha256"],
                f"expected the data set {one} of {record.path}", f"other files ({', '.join(found['files'])})",
                "Begin anew with --fresh, or name another folder with --out.")
    record.data.update(facts)
    experiment = chosen.experiment()
    jobs = experiment.plan(library, size)
    if not so_far:
        _work(record, jobs, hear)
    elif not record.results:
        raise InputError("expected an earlier run to show", f"nothing in {path}", "Run it without --so-far first.")
    try:
        _finish(record, chosen, experiment, jobs)
    except (LookupError, ValueError):
        if record.finished or not so_far:
            raise
        raise InputError(f"expected enough of {name} for its tables", f"{len(record.results)} of {len(jobs)} parts",
                         "Let it run on: the same command without --so-far.") from None
    return record


def stem(key: str, size: Size) -> str:
    """The name of the files of a run, without their endings."""
    return key if size == "full" else f"{key}-{size}"


def _work(record: Record, jobs: Sequence[Job], hear: Hear | None) -> None:
    """The jobs that are still to be done, with one BLAS thread: CPU seconds then measure work."""
    import threadpoolctl
    tell = hear or (lambda *_: None)
    left = [job for job in jobs if job.name not in record.results]
    done = len(jobs) - len(left)
    with threadpoolctl.threadpool_limits(limits=1):
        for number, job in enumerate(left):
            tell(job.name, done + number, len(jobs))
            begin = time.process_time()
            found = job.work(record.results)
            record.keep(job.name, found, time.process_time() - begin)
    tell("", len(jobs), len(jobs))


def _finish(record: Record, chosen: PaperEntry, experiment: Experiment, jobs: Sequence[Job]) -> None:
    results = {job.name: record.results[job.name] for job in jobs if job.name in record.results}  # in planned order
    record.finished = len(results) == len(jobs)
    tables = experiment.tables(results)
    record.extra = {"title": chosen.title, "paper": PAPERS[record.experiment[0]],
                    "jobs": len(jobs), "tables": [one._asdict() for one in tables]}
    record.write()
    picture = record.path.with_suffix(".png") if experiment.draw is not None and can_draw() else None
    if experiment.draw is not None and picture is not None:
        experiment.draw(results, picture)
    text = content(record.facts, chosen, tables, "" if picture is None else picture.name)
    with whole_file(record.path.with_suffix(".md")) as stream:
        stream.write(f"# {record.experiment}: {chosen.title}\n\n"
                     f"[{record.experiment[0]}] is {record.extra['paper']}.\n\n{text}\n")


def content(stored: dict[str, Any], chosen: PaperEntry, tables: Sequence[PaperTable], picture: str) -> str:
    """Tables, how they were made, the picture if there is one, and the remarks of one record."""
    option = "" if stored["size"] == "full" else f" --{stored['size']}"
    done = "" if stored["finished"] else f" ({len(stored['results'])} of {stored['jobs']} parts so far)"
    made = (f"`klimb reproduce {stored['experiment']}{option}`{done}: {seconds(fsum(stored['cpu_seconds'].values()))}"
            " of CPU time.")
    parts = [*map(as_markdown, tables), made]
    if picture:
        parts.append(f"![{chosen.title[0].upper()}{chosen.title[1:]}]({picture})\n\n*{chosen.caption}*")
    elif chosen.experiment().draw is not None:
        parts.append(NEEDS_MATPLOTLIB)
    return "\n\n".join([*parts, *_listed(chosen.remarks)])


def shown(record: Record) -> str:
    """What the terminal is told: tables, remarks, and where the files are."""
    tables = [PaperTable(**one) for one in record.extra["tables"]]
    files = [path for ending in (".json", ".md", ".png") if (path := record.path.with_suffix(ending)).exists()]
    shown = [f"{one.title}\n\n{table(one.heads, one.rows, one.left)}" for one in tables]
    return "\n\n".join([*shown, *_listed(EXPERIMENTS[record.experiment].remarks), "\n".join(map(str, files))])


def _listed(remarks: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {remark}" for remark in remarks)] if remarks else []
