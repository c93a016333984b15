"""The journal: what a session was begun with and what was said since, in a file that survives a crash; a table of it.

A line is a JSON object with a checksum, and a label is acknowledged once its line is on the disk (``fsync``). A crash
can leave one incomplete line at the end, which is kept aside and reported; damage anywhere else is an error.
"""

import csv
import io
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from klimb._files import to_disk
from klimb.errors import InputError, KlimbError, require

Entry: TypeAlias = dict[str, Any]
SCHEMA = "klimb.label/1"
COLUMNS = ("row", "id", "label", "time", "probability", "chosen")
SCORES = ("bald", "cu", "ig", "random")
MOST_LABELS = 9  # one digit key each


class NotSaved(KlimbError):
    """A line could not be brought to the disk; the journal is as it was before."""


class Contents(NamedTuple):
    """What a journal holds: its first line, the lines after it, and the bytes of a line that was cut off."""
    header: Entry
    entries: tuple[Entry, ...]
    torn: bytes


def encode(entry: Entry) -> bytes:
    """One line, with its checksum."""
    text = json.dumps(entry, ensure_ascii=True, allow_nan=False, separators=(",", ":"))[:-1]
    return f'{text},"crc":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def decode(line: bytes) -> Entry | None:
    """The entry of a line without its line end; None if the line is not whole."""
    text, mark, rest = line.rpartition(b',"crc":"')
    if not mark or len(rest) != 10 or rest[8:] != b'"}' or rest[:8] != b"%08x" % zlib.crc32(text):
        return None
    found = json.loads(text + b"}")
    return found if isinstance(found, dict) else None


def read(path: str | Path) -> Contents:
    """Everything a journal says. The file is not changed."""
    content = Path(path).read_bytes()
    lines = content.split(b"\n")
    tail = lines.pop()  # what stands after the last line end: nothing, if the last line is whole
    entries = [decode(line) for line in lines]
    if entries and entries[-1] is None:  # a line end can reach the disk before what it ends
        entries.pop()
        tail = lines[-1] + b"\n" + tail
    for number, entry in enumerate(entries, start=1):
        require(entry is not None, f"each line of the journal {path} carries a checksum that fits it",
                f"line {number}, which does not",
                "Something other than klimb changed it: restore a copy, or begin another with --journal.")
    whole = [entry for entry in entries if entry is not None]
    # Never cut off what is not ours: nothing, the beginning of a first line, or zeros that a crash left in its place.
    first = b'{"schema":"%s"' % SCHEMA.encode()
    ours = tail[:len(first)] == first[:len(tail)] or not tail.strip(b"\0")
    require(whole[0].get("schema") == SCHEMA if whole else ours, f"a journal of klimb label ({SCHEMA})",
            f"{path}, which begins with {str(whole[0])[:60] if whole else repr(content[:40])}",
            "Name another file with --journal.")
    return Contents(whole[0] if whole else {}, tuple(whole[1:]), tail)


class Journal:
    """A journal opened for writing. Only one process may have it open; the lock ends with the process, however it ends.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with Journal(f"{folder}/a.jsonl") as journal:
    ...         journal.begin({"labels": ["yes", "no"]})
    ...         journal.append({"kind": "label", "row": 0, "label": "yes"})
    ...     with Journal(f"{folder}/a.jsonl") as journal:
    ...         journal.header["labels"], journal.entries
    (['yes', 'no'], ({'kind': 'label', 'row': 0, 'label': 'yes'},))
    """

    def __init__(self, path: str | Path) -> None:
        """Open the journal and read it; an empty one still has to `begin`."""
        self.path = Path(path)
        self._size = -1
        self._file = _open(self.path)
        try:
            _lock(self._file, self.path)
            self.header, self.entries, self.torn = read(self.path)
            self._size = os.path.getsize(self.path) - len(self.torn)
            if self.torn:  # its bytes are kept beside the journal before they are cut off
                with open(self.torn_path, "ab") as stream:
                    stream.write(self.torn + b"\n")
                    stream.flush()
                    os.fsync(stream.fileno())
                os.ftruncate(self._file, self._size)
                os.fsync(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def begin(self, header: Entry) -> None:
        """Write the first line."""
        self.header = {"schema": SCHEMA, **header}
        self.append(self.header)
        if os.name == "posix":
            to_disk(self.path.parent)  # where the name of a new file is

    def append(self, *entries: Entry, durable: bool = True) -> None:
        """Add lines. When this returns they are on the disk (or, if not ``durable``, will be with the next that is)."""
        if self._file < 0:
            raise NotSaved(f"{self.path} is closed")
        line = b"".join(map(encode, entries))
        left = memoryview(line)
        try:
            os.lseek(self._file, self._size, os.SEEK_SET)
            while left:
                left = left[os.write(self._file, left):]
            if durable:
                os.fsync(self._file)
        except OSError as error:
            try:  # back to the last line that is whole; should even this fail, the line is torn, and reading says so
                os.ftruncate(self._file, self._size)
            except OSError:
                self.close()
            raise NotSaved(f"{self.path}: {error.strerror or error}. Nothing was recorded; make room or check the disk,"
                           " and answer again.") from error
        self._size += len(line)

    def close(self) -> None:
        """Give the journal back. One that was never begun leaves no file behind."""
        if self._file >= 0:
            if self._size == 0:
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def torn_path(self) -> Path:
        """Where torn lines are kept."""
        return self.path.with_name(self.path.name + ".torn")


def _open(path: Path) -> int:
    require(not path.is_dir(), "a file for the journal", f"the directory {path}", "Name a file in it with --journal.")
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise InputError(f"a journal that can be written at {path}", error.strerror or str(error),
                         "Name a file in another directory with --journal.") from error


def _lock(file: int, path: Path) -> None:
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt
            os.lseek(file, 1 << 30, os.SEEK_SET)  # a byte that is never written
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        raise InputError(f"a journal that is not in use at {path}", "one that another klimb label has open",
                         "Use that page or stop it (Ctrl-C where it runs), or begin another with --journal.") from error


def of_kind(entries: Iterable[Entry], *kinds: str) -> list[Entry]:
    """The entries of some kinds, in their order."""
    return [entry for entry in entries if entry.get("kind") in kinds]


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """The labels of a journal that were not taken back, in the order they were given."""
    steps: list[Entry] = []
    for entry in entries:
        if entry["kind"] in ("label", "skip"):
            steps.append(entry)
        elif entry["kind"] == "undo":
            steps.pop()
    return [entry for entry in steps if entry["kind"] == "label"]


def csv_text(labels: Iterable[Entry]) -> str:
    """A line per label: ``probability`` is that of the label before it was given, ``chosen`` says who chose the row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([entry[name] for name in ("row", "id", "label", "time", "p", "why")] for entry in labels)
    return stream.getvalue()


@dataclass(frozen=True)
class Settings:
    """Names of the labels and how items are chosen: ``batch`` at a time by ``score``, every ``check``-th at random."""
    labels: tuple[str, ...] = ("yes", "no")
    score: str = "bald"
    batch: int = 3
    check: int = 5  # 0: never
    seed: int = 0
    text: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(2 <= len(self.labels) <= MOST_LABELS, f"two to {MOST_LABELS} labels, one key each",
                f"{len(self.labels)}: {', '.join(self.labels) or 'none'}", "Use --labels yes,no or --positive NAME.")
        for place, name in enumerate(self.labels):
            require(name.strip() and len(name) <= 60, "labels with a name of 1 to 60 characters",
                    f"{name[:70]!r} at place {place + 1}", "Check the commas of --labels.")
            require(name not in self.labels[:place], "labels that differ", f"{name!r} twice", "Check --labels.")
        if self.score not in SCORES:
            raise InputError(f"--score {', '.join(SCORES[:-1])} or {SCORES[-1]}", repr(self.score), "Choose one.")
        for name, least in (("batch", 1), ("check", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} of at least {least}", str(getattr(self, name)), "Choose a larger one.")

    def header(self, fingerprint: str, rows: int, data: str, began: str) -> Entry:
        """The first line of a journal."""
        return {"kind": "begin", "data": data, "rows": rows, "fingerprint": fingerprint, **asdict(self), "time": began}


def agree(header: Entry, given: dict[str, Any], journal: object) -> Settings:
    """The settings of a journal that is taken up again; an error where what the user said (``given``) is different."""
    kept: dict[str, Any] = {part.name: tuple(value) if isinstance(value := header[part.name], list) else value
                            for part in fields(Settings)}
    settings = Settings(**kept)
    for name, value in given.items():
        before = getattr(settings, name)
        require(value == before, f"{journal} was begun with --{name} {_spoken(before)}, and goes on with it",
                f"--{name} {_spoken(value)}",
                "Leave the option out, or begin another session with --journal OTHER.jsonl.")
    return settings


def same_data(header: Entry, fingerprint: str, rows: int, journal: object) -> None:
    """An error if the table is not the one the journal was begun with: row numbers would mean other items."""
    require(header["fingerprint"] == fingerprint, f"the table that {journal} was begun with ({header['data']},"
            f" {header['rows']:,} rows, fingerprint {header['fingerprint'][:12]})",
            f"another: {rows:,} rows, fingerprint {fingerprint[:12]}",
            "Name that table, or begin another session with --journal OTHER.jsonl.")


def _spoken(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple | list) else str(value)
