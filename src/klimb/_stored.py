"""Records that can be written to files: one registry, one way from a record to JSON and arrays, and back.

    @stored("prior.normal")
    @dataclass(frozen=True)
    class Normal: ...

    document = pack(record, arrays)          # JSON; arrays by name go into ``arrays``
    record = unpack(document, arrays)        # the same record, to the bit

A stored record is a frozen dataclass whose fields are numbers, text, arrays, tuples, dicts and other stored records.
Its schema is exactly its fields. A document that names an unknown kind, lacks a field, has one too many or one of
another type than the class declares is refused: nothing in a file chooses what is imported or run. Functions cannot be
stored, because they are code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from klimb.errors import InputError

STATES: dict[str, type[Any]] = {}  # every kind of record that a file may hold
ENUMS: dict[str, type[Enum]] = {}
KIND = "$"  # the key that tells a record, an array or a dict from plain JSON
SKIPPED = "stored"  # field(metadata={SKIPPED: False}): left out of files, restored from its default
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_Class = TypeVar("_Class", bound=type[Any])


def stored(kind: str) -> Callable[[_Class], _Class]:
    """Register a frozen dataclass (or an Enum) under ``kind``, the name by which files know it."""

    def register(cls: _Class) -> _Class:
        registry: dict[str, Any] = ENUMS if issubclass(cls, Enum) else STATES
        if registry.setdefault(kind, cls) is not cls and registry[kind].__qualname__ != cls.__qualname__:
            raise InputError("kinds of stored records must have different names", f"{kind!r} twice", "Choose another.")
        registry[kind] = cls
        cls.stored_kind = kind
        return cls

    return register


def stored_fields(cls: type[Any]) -> tuple[str, ...]:
    """The names of the fields that files hold."""
    return tuple(f.name for f in fields(cls) if f.init and f.metadata.get(SKIPPED, True))


def pack(value: Any, arrays: dict[str, Any]) -> Any:
    """``value`` as JSON, its ``arrays`` by names of their places; what stands in several places is written once."""
    return _Packer(arrays).pack(value, "")


class _Packer:
    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self._seen: dict[int, int] = {}  # identity of a record -> its number
        self._names: dict[int, str] = {}  # identity of an array -> its name
        self._alive: list[Any] = []  # so that no identity is used twice

    def pack(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Enum):
            return {KIND: "enum", "kind": _kind_of(value, where), "name": value.name}
        if isinstance(value, int | np.integer):
            return int(value)
        if isinstance(value, float | np.floating):
            number = float(value)
            return number if math.isfinite(number) else {KIND: "number", "value": str(number)}
        if isinstance(value, np.bool_):
            return bool(value)
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, list | tuple):
            return [self.pack(item, f"{where}.{i}") for i, item in enumerate(value)]
        if isinstance(value, Mapping):
            items = [[self.pack(key, where), self.pack(item, f"{where}.{number}")]
                     for number, (key, item) in enumerate(value.items())]
            return {KIND: "dict", "items": items}
        return self._record(value, where)

    def _record(self, value: Any, where: str) -> Any:
        if id(value) in self._seen:
            return {KIND: "again", "number": self._seen[id(value)]}
        kind = _kind_of(value, where)
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return {KIND: kind, **{name: self.pack(getattr(value, name), f"{where}.{name}")
                               for name in stored_fields(type(value))}}

    def _array(self, value: Any, where: str) -> Any:
        if value.dtype.kind in "OUS":
            return {KIND: "texts", "values": [self.pack(item, where) for item in value.ravel().tolist()],
                    "shape": list(value.shape)}
        if id(value) not in self._names:
            name = (where or "array").lstrip(".")
            while name in self._arrays:
                name += "'"
            self._arrays[name] = value
            self._names[id(value)] = name
            self._alive.append(value)
        return {KIND: "array", "name": self._names[id(value)]}


def _kind_of(value: Any, where: str) -> str:
    kind = getattr(type(value), "stored_kind", None)
    if kind is not None and type(value) is (ENUMS if isinstance(value, Enum) else STATES).get(kind):
        return str(kind)
    place = where.lstrip(".") or "the top"
    if hasattr(type(value), "unstored"):
        raise InputError("a file holds numbers and text, without the data of the fit", type(value).unstored,
                         "Keep the coefficients that you need, or fit fewer columns.")
    inside = [getattr(value, f.name, None) for f in fields(value)] if is_dataclass(value) else [value]
    if any(callable(part) and not is_dataclass(part) for part in inside):
        raise InputError("a file holds numbers and text: functions cannot be saved", f"a function at {place}",
                         "Code is not stored: fit again where the function is at hand, or use a named likelihood.")
    raise InputError("a file can hold records that are registered with klimb", f"{type(value).__name__} at {place}",
                     "Decorate the class with klimb's stored(kind).")


def unpack(document: Any, arrays: Mapping[str, Any]) -> Any:
    """What ``pack`` was given; lists come back as tuples."""
    try:
        return _Unpacker(arrays).unpack(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(f"something else ({type(error).__name__}: {error})") from error


class _Unpacker:
    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._records: list[Any] = []

    def unpack(self, document: Any) -> Any:
        if isinstance(document, list):
            return tuple(self.unpack(item) for item in document)
        if not isinstance(document, dict):
            return document
        kind = document.get(KIND)
        rest = {key: value for key, value in document.items() if key != KIND}
        if kind == "array":
            return self._array(rest)
        if kind == "texts":
            return np.array([*self.unpack(rest["values"]), None], dtype=object)[:-1].reshape(rest["shape"])
        if kind == "number":
            return _NON_FINITE[rest["value"]]
        if kind == "dict":
            return {self.unpack(key): self.unpack(value) for key, value in rest["items"]}
        if kind == "again":
            return self._records[rest["number"]]
        if kind == "enum":
            if rest.get("kind") not in ENUMS:
                raise _damaged(f"an unknown kind of value {rest.get('kind')!r}")
            return ENUMS[rest["kind"]][rest["name"]]
        return self._record(kind, rest)

    def _record(self, kind: Any, rest: dict[str, Any]) -> Any:
        if not isinstance(kind, str) or kind not in STATES:
            raise _damaged(f"an unknown kind of record {kind!r}")
        cls = STATES[kind]
        if set(rest) != set(stored_fields(cls)):
            raise _damaged(f"{kind} with the fields {sorted(set(rest) ^ set(stored_fields(cls)))} missing or unknown")
        number = len(self._records)
        self._records.append(None)
        # In the order of the fields, whatever that of the keys: records are numbered as they were written.
        values = {name: self.unpack(rest[name]) for name in stored_fields(cls)}
        hints = _hints(kind)
        for name, value in values.items():
            if not _is(value, hints.get(name, Any)):
                raise _damaged(f"{kind} whose {name} is {type(value).__name__}")
        found = cls(**values)
        self._records[number] = found
        return found

    def _array(self, rest: dict[str, Any]) -> Any:
        if rest.get("name") not in self._arrays:
            raise _damaged(f"no array {rest.get('name')!r}")
        return self._arrays[rest["name"]]


@cache
def _hints(kind: str) -> dict[str, Any]:
    """The declared types of the fields; nothing where a name is known to type checkers alone."""
    try:
        return get_type_hints(STATES[kind])
    except NameError:
        return {}


def _is(value: Any, hint: Any) -> bool:
    """Whether a value that was read is of the declared type; types that say nothing of values allow any."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_is(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_is, value, parts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(_is(k, parts[0]) and _is(v, parts[1]) for k, v in value.items())
    plain = origin if isinstance(origin, type) else hint
    if plain is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if plain is int:
        return isinstance(value, int) and not isinstance(value, bool)
    try:
        return not isinstance(plain, type) or isinstance(value, plain)
    except TypeError:  # a protocol that cannot be asked
        return True


def _damaged(what: str) -> InputError:
    return InputError("a file must hold records that this version of klimb knows", what,
                      "It is damaged, or was written by another version of klimb: use that one.")
