"""Files: named arrays and a JSON header in one safetensors file, checked on the way in, written all at once.

    write_container("m.klimb", "fit", header, arrays)
    found = read_container("m.klimb", kind="fit")        # found.header, found.arrays["weight_mean"], ...
    klimb.load("m.klimb")                                # the object itself, whatever kind of file it is

The format is described in docs/files.md. Nothing in a file is ever executed: it is numbers and text, and a file that
holds anything this version does not know is refused.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb._files import draft_of
from klimb.errors import InputError, require

FORMAT = 1  # of the container; each kind counts the versions of its own header (``schema``)
KEY = "klimb"  # where the document stands in the safetensors header. One key, because the order of several is random.
DTYPES = frozenset({"float64", "float32", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
                    "bool"})
MOST_HEADER = 90_000_000  # bytes; safetensors refuses more than 100 MB
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
FLOAT = "$float"  # JSON has no words for the non-finite: {"$float": "nan"}

AnyArray: TypeAlias = npt.NDArray[Any]
PathLike: TypeAlias = str | os.PathLike[str]

# Modules whose records a fit may hold: importing them registers all that they are made of.
RECORDS = ("klimb.models.formula_fit", "klimb.models.gp")

# Which class reads which kind, as (module, attribute): each has from_state(header, arrays). By name, because
# estimators live in a layer above this one; a closed list, because a file must not choose what is imported.
READERS: dict[str, tuple[str, str]] = {
    "fit": ("klimb.models.fit", "Fit"),
    "estimator": ("klimb.sklearn.files", "Reader"),
}

_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (.npz, .zip, .keras, PyTorch)"), (b"\x93NUMPY", "a .npy array"),
    (b"\x89HDF", "an HDF5 file"), (b"\x1f\x8b", "a gzip file"), (b"PAR1", "a Parquet file"),
    *((bytes([0x80, protocol]), "a pickle, which can run code when it is opened") for protocol in range(2, 6)),
)


@dataclass(frozen=True, eq=False)
class Container:
    """What a file says: its kind, the header, the arrays, who wrote it and which data it holds."""

    kind: str
    schema: int
    header: dict[str, Any]
    arrays: Mapping[str, AnyArray]
    klimb_version: str
    holds: tuple[str, ...]  # the data in it, in words: ("training inputs",); empty where there are none


# -- writing


def write_container(path: PathLike, kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any], *, schema: int = 1,
                    holds: tuple[str, ...] = ()) -> None:
    """Write ``header`` and ``arrays`` to ``path``, or leave whatever was there untouched.

    Parameters
    ----------
    path : str or path
    kind : str
        What the file is, e.g. "fit"; ``read_container`` can insist on it.
    header : dict
        Text, numbers, booleans, None, lists and dicts of them. Tuples come back as lists; NaN and infinities are kept.
    arrays : dict of arrays
        Real, integer or boolean, of any shape, memory order and byte order; they come back in C order.
    schema : int
        Version of what this kind puts into header and arrays.
    holds : tuple of str
        The data that the file contains, in words, for whoever is about to pass it on.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.klimb")
    ...     write_container(path, "example", {"name": "a fit"}, {"w": np.arange(3.0)})
    ...     found = read_container(path)
    >>> found.kind, found.header, found.arrays["w"]
    ('example', {'name': 'a fit'}, array([0., 1., 2.]))
    """
    from safetensors.numpy import save_file

    import klimb

    for name in arrays:
        if type(name) is not str or name in ("", "__metadata__"):
            raise InputError("arrays need names that are text", repr(name), "Rename it.")
    clean = {name: _storable(name, values) for name, values in arrays.items()}
    document = {
        "format": FORMAT,
        "kind": kind,
        "schema": schema,
        "klimb": klimb.__version__,
        "holds": list(holds),
        "header": _to_json(dict(header), "header"),
        "arrays": {name: {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": _digest(array)}
                   for name, array in clean.items()},
    }
    text = _canonical({"document": document, "sha256": _digest(_canonical(document).encode())})
    require(len(text) <= MOST_HEADER, f"the header of a file may take {MOST_HEADER:,} bytes", f"{len(text):,}",
            "Put long lists of numbers into arrays.")
    try:
        with draft_of(path) as draft:  # a reader sees the old file or the new one
            mode = draft.stat().st_mode & 0o7777
            save_file(clean, draft, metadata={KEY: text})
            os.chmod(draft, mode)  # safetensors keeps others out
    except InputError:
        raise
    except Exception as error:  # OSError, or safetensors' own on a full disk
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} must be a place to write to", reason, "Nothing was changed; try another.") from error


def _storable(name: str, values: Any) -> AnyArray:
    """A contiguous array in native byte order, of a dtype on the list. safetensors would write others as garbage."""
    array = np.asarray(values)
    require(array.dtype.name in DTYPES, f"array {name!r} must hold real numbers, integers or booleans",
            f"dtype {array.dtype}", "Convert it; text belongs into the header.")
    return np.require(array, array.dtype.newbyteorder("="), "C").reshape(array.shape)


# -- reading


def read_container(path: PathLike, kind: str | None = None, *, lazy: bool = False) -> Container:
    """Read a file that `write_container` wrote, or say why not.

    Every array is compared with its checksum; with ``lazy`` that happens when it is first asked for, so that the
    header of a large file costs nothing more. ``kind`` insists on one kind of file.

    >>> read_container("no-such-file.klimb")
    Traceback (most recent call last):
    klimb.errors.InputError: a klimb file is needed; got no-such-file.klimb, which does not exist. Check the path.
    """
    place = Path(path)
    _refuse_what_can_not_be_klimb(place)
    document, stored = _open(place)
    expected, header = document["arrays"], document["header"]
    if set(stored.keys()) != set(expected):
        _damaged(place, f"arrays {sorted(set(stored.keys()) ^ set(expected))} that do not match its list")
    require(kind is None or document["kind"] == kind, f"a klimb file of kind {kind!r} is needed",
            f"{place}, which is of kind {document['kind']!r}", "klimb.load(path) opens any kind.")
    lazily = LazyArrays(place, stored, expected)
    arrays: Mapping[str, AnyArray] = lazily if lazy else dict(lazily)
    return Container(document["kind"], document["schema"], header, arrays, document["klimb"], document["holds"])


def load(path: PathLike) -> Any:
    """The object that was saved to ``path``: a `Fit` or an estimator.

    >>> klimb_file = "m.klimb"  # written by fit.save("m.klimb")
    >>> load(klimb_file)  # doctest: +SKIP
    """
    found = read_container(path)
    require(found.kind in READERS, f"klimb.load reads files of kind {', '.join(sorted(READERS))}",
            f"kind {found.kind!r}", "It was written by a newer klimb, or by write_container: use read_container.")
    module, name = READERS[found.kind]
    for holder in RECORDS:
        import_module(holder)
    reader = getattr(import_module(module), name)
    refuse_other_schema(found, getattr(reader, "schema", 1))
    return reader.from_state(found.header, found.arrays)


def refuse_other_schema(found: Container, known: int) -> None:
    """Raise where a kind of file has another version than this klimb reads."""
    require(found.schema == known, f"this klimb reads files of kind {found.kind!r} in version {known}",
            f"version {found.schema}, by klimb {found.klimb_version}",
            "Update klimb." if found.schema > known else "Use that klimb, or fit again.")


class LazyArrays(Mapping[str, AnyArray]):
    """Arrays of a file by name, each read and compared with its checksum when it is first asked for."""

    def __init__(self, path: Path, stored: Any, expected: dict[str, tuple[str, list[int], str]]) -> None:
        self._path, self._stored, self._expected = path, stored, expected
        self._read: dict[str, AnyArray] = {}

    def __getitem__(self, name: str) -> AnyArray:
        if name not in self._read:
            (dtype, shape, digest), array = self._expected[name], self._stored.get_tensor(name)
            if array.dtype.name != dtype or list(array.shape) != shape:
                _damaged(self._path, f"array {name!r} of another type or shape than its list says")
            if _digest(array) != digest:
                _damaged(self._path, f"array {name!r} with another checksum than when it was written")
            self._read[name] = array
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._expected)

    def __len__(self) -> int:
        return len(self._expected)


def _refuse_what_can_not_be_klimb(path: Path) -> None:
    needed = "a klimb file is needed"
    require(not path.is_dir(), needed, f"{path}, a directory", "Name the file in it.")
    try:
        with path.open("rb") as stream:
            first = stream.read(16)
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError as error:
        raise InputError(needed, f"{path}, which does not exist", "Check the path.") from error
    except OSError as error:
        raise InputError(needed, f"{path}: {error.strerror}", "Check its permissions.") from error
    if first[8:9] == b"{":  # after the length of the header; that length may look like the beginning of a pickle
        if size < int.from_bytes(first[:8], "little") + 8:
            _cut_short(path, size)
        return
    known = [name for magic, name in _FOREIGN if first.startswith(magic)]
    if len(first) < 10 and not known:
        _cut_short(path, size)
    raise InputError(needed, f"{path}, {known[0] if known else f'which begins with {first[:8]!r}'}",
                     "klimb opens only what klimb saved.")


def _cut_short(path: Path, size: int) -> NoReturn:
    raise InputError("a whole klimb file is needed", f"{path}, which ends after {size:,} bytes",
                     "It was cut short, perhaps while copying: copy it again.")


def _open(path: Path) -> tuple[dict[str, Any], Any]:
    """The checked document and the open safetensors file."""
    import safetensors

    try:
        stored: Any = safetensors.safe_open(path, framework="np")
        metadata = stored.metadata() or {}
    except safetensors.SafetensorError as error:
        raise InputError("a whole klimb file is needed", f"{path}: {error}",
                         "It is damaged or cut short: copy it again from where it came.") from error
    require(KEY in metadata, "a klimb file is needed", f"{path}, a safetensors file that klimb did not write",
            "Open it with safetensors.")
    try:
        whole = json.loads(metadata[KEY], object_pairs_hook=_without_repeats)
        document, digest = whole["document"], whole["sha256"]
        version = document["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        _damaged(path, "a header that cannot be read")
    if _digest(_canonical(document).encode()) != digest:
        _damaged(path, "a header with another checksum than when it was written")
    require(version == FORMAT, f"this klimb reads format {FORMAT}", f"{path}, which has format {version}, by klimb "
            f"{document.get('klimb')}", "Update klimb.")
    try:
        return _checked(document), stored
    except (KeyError, TypeError, ValueError, AttributeError):
        _damaged(path, "a header that lacks what a klimb file has")


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    """The parts of a document in the types that they must have; raises the errors of conversion."""
    texts = {name: document[name] for name in ("kind", "klimb")}
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(document["header"], dict):
        raise TypeError
    arrays = {name: (entry["dtype"], entry["shape"], entry["sha256"]) for name, entry in document["arrays"].items()}
    return {**texts, "schema": int(document["schema"]), "holds": tuple(str(word) for word in document["holds"]),
            "header": _from_json(document["header"]), "arrays": arrays}


def _damaged(path: Path, what: str) -> NoReturn:
    raise InputError("an undamaged klimb file is needed", f"{path}, with {what}",
                     "It was changed after it was saved: copy it again from where it came.") from None


# -- JSON that keeps what it was given, and digests


def _digest(content: bytes | AnyArray) -> str:
    """SHA-256, of an array in little-endian order."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    little = content.astype(content.dtype.newbyteorder("<"), copy=False)
    view: Any = np.ascontiguousarray(little).reshape(-1).view(np.uint8)  # bytes without a copy
    return hashlib.sha256(view).hexdigest()


def _canonical(value: Any) -> str:
    """One text for one value: what a checksum can be taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _to_json(value: Any, where: str) -> Any:
    """Plain JSON values; numpy scalars become numbers, tuples lists, and what JSON cannot say is spelled out."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {FLOAT: "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == FLOAT:
                raise InputError("keys of a header must be text", f"{key!r} in {where}", "Rename it.")
        return {key: _to_json(item, f"{where}.{key}") for key, item in value.items()}
    raise InputError("a header holds text, numbers, booleans, None, lists and dicts",
                     f"{type(value).__name__} at {where}", "Convert it, or pass it as an array.")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {FLOAT}:
            return NON_FINITE[value[FLOAT]]
        return {key: _from_json(item) for key, item in value.items()}
    return value
