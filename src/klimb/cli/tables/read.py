"""Which reader for which file (by name, by the first bytes, or by what the user says), and what it gives back."""

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

from klimb.errors import InputError, require

ENDINGS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".dat": "csv", ".parquet": "parquet", ".pq": "parquet",
           ".npz": "npz", ".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight"}
GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
MISSING = frozenset({"", "NA", "NaN", "nan", "N/A", "n/a", "NULL", "null", "?"})

Kind: TypeAlias = Literal["number", "boolean", "text"]
Choice: TypeAlias = Callable[[tuple[str, ...]], Sequence[str]]


@dataclass(frozen=True)
class ReadOptions:
    """How to read a table, where its own text does not say it."""
    format: str | None = None  # csv, parquet, npz, svmlight; None: by name and content
    delimiter: str | None = None  # None: the one that fits the first lines
    decimal: str = "."
    missing: frozenset[str] = MISSING
    kinds: dict[str, Kind] = field(default_factory=dict)  # columns whose kind is known beforehand
    encoding: str = "utf-8"
    cells: int = 1 << 18  # entries held as text at any time: what bounds the memory


class Table(NamedTuple):
    """Some rows of a table: equally long arrays by name, and the number of rows that came before."""
    columns: dict[str, Any]
    n: int
    header: tuple[str, ...]  # every column the file has, read or not
    first: int = 0


def all_columns(header: tuple[str, ...]) -> Sequence[str]:
    """A choice that reads everything."""
    return header


def read_table(path: str, choose: Choice = all_columns, options: ReadOptions | None = None) -> Table:
    """The whole table, of which only the chosen columns are held."""
    with closing(_tables(path, choose, options or ReadOptions(), whole=True)) as tables:
        return next(tables)


def stream_table(path: str, choose: Choice = all_columns, options: ReadOptions | None = None) -> Iterator[Table]:
    """The table in pieces of some thousand rows; at least one piece, which may be empty."""
    return _tables(path, choose, options or ReadOptions(), whole=False)


def _tables(path: str, choose: Choice, options: ReadOptions, *, whole: bool) -> Generator[Table, None, None]:
    with _open(path) as (stream, head):
        kind = options.format or _kind(path, head)
        if kind == "csv":
            from klimb.cli.tables.csvfile import stream_csv
            with _text(stream, options) as text:
                yield from stream_csv(text, choose, options, whole=whole)
        elif kind == "svmlight":
            from klimb.cli.tables.arrays import read_svmlight
            with _text(stream, options) as text:
                yield read_svmlight(text, choose)
        else:
            from klimb.cli.tables.arrays import read_npz, stream_parquet
            source = stream if stream.seekable() else io.BytesIO(stream.read())
            if kind == "npz":
                yield read_npz(source, choose)
            else:
                yield from stream_parquet(source, choose, options, whole=whole)


@contextmanager
def _open(path: str) -> Iterator[tuple[Any, bytes]]:
    """The bytes of a file or of standard input, unpacked if gzip packed them, and the first few of them."""
    if path == "-":
        if sys.stdin.isatty():
            raise InputError("'-' reads a table from standard input", "a terminal", "Pipe a file in: ... < data.csv")
        opened: Any = nullcontext(getattr(sys.stdin, "buffer", sys.stdin))
    elif Path(path).is_dir():
        raise InputError("a table to read", f"the directory {path}", "Name a file in it.")
    else:
        opened = open(path, "rb")  # noqa: SIM115 (the next line closes it)
    with opened as stream:
        try:
            head = _peek(stream)
            if head.startswith(GZIP):
                stream = io.BufferedReader(gzip.GzipFile(fileobj=stream))
                head = _peek(stream)
            yield stream, head
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError("a gzip file that is complete", str(error), "Copy or pack it again.") from error


def _peek(stream: Any) -> bytes:
    if hasattr(stream, "peek"):
        return bytes(stream.peek(8)[:8])
    here = stream.tell()
    head = stream.read(8)
    stream.seek(here)
    return bytes(head)


def _kind(path: str, head: bytes) -> str:
    if head.startswith(PARQUET):
        return "parquet"
    if head.startswith(ZIP):
        return "npz"
    kind = ENDINGS.get(Path(path[:-3] if path.endswith(".gz") else path).suffix.lower(), "csv")
    require(kind not in ("parquet", "npz"), f"{path} should be a {kind} file by its name",
            f"bytes that begin {head[:4]!r}", "Check the file, or say what it is with --format.")
    return kind


@contextmanager
def _text(stream: IO[bytes], options: ReadOptions) -> Iterator[io.TextIOWrapper]:
    encoding = options.encoding
    head = _peek(stream)
    if encoding == "utf-8":  # a byte order mark says it better
        encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = io.TextIOWrapper(stream, encoding=encoding, newline="")
    except LookupError as error:
        raise InputError("an encoding that Python knows", repr(encoding), "Try utf-8, latin-1 or cp1252.") from error
    try:
        yield text
    except UnicodeError as error:
        got = f"byte 0x{error.object[error.start]:02x}" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"the text should be {options.encoding}", got,
                         "Say --encoding latin-1 (or cp1252) if the file comes from an older program.") from error
    finally:
        text.detach()  # standard input is not ours to close
