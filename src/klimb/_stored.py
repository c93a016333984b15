"""Records that can be written to files: one registry, one way from a record to JSON and arrays, and back.

    @stored("prior.normal")
    @dataclass(frozen=True)
    class Normal: ...

    document = pack(record, arrays)          # JSON; arrays by name go into ``arrays``
    record = unpack(document, arrays)        # the same record, to the bit

A stored record is a frozen dataclass whose fields are numbers, text, arrays, tuples, dicts and other stored records.
Its schema is exactly its fields. A document that names an unknown kind, lacks a field or has one too many is refused:
nothing in a file chooses what is imported or run. Functions cannot be stored, because they are code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

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


def pack(value: Any, arrays: dict[str, Any], where: str = "") -> Any:
    """``value`` as JSON; its arrays go into ``arrays`` under names made from ``where`` they stand."""
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
        return _pack_array(value, arrays, where)
    if isinstance(value, list | tuple):
        return [pack(item, arrays, f"{where}.{i}") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [[pack(key, arrays, where), pack(item, arrays, f"{where}.{number}")]
                 for number, (key, item) in enumerate(value.items())]
        return {KIND: "dict", "items": items}
    kind = _kind_of(value, where)
    return {KIND: kind, **{name: pack(getattr(value, name), arrays, f"{where}.{name}")
                           for name in stored_fields(type(value))}}


def _pack_array(value: Any, arrays: dict[str, Any], where: str) -> Any:
    if value.dtype.kind in "OUS":
        return {KIND: "texts", "values": [pack(item, arrays, where) for item in value.ravel().tolist()],
                "shape": list(value.shape)}
    name = (where or "array").lstrip(".")
    while name in arrays:
        name += "'"
    arrays[name] = value
    return {KIND: "array", "name": name}


def _kind_of(value: Any, where: str) -> str:
    kind = getattr(type(value), "stored_kind", None)
    if kind is not None and type(value) is {**STATES, **ENUMS}.get(kind):
        return str(kind)
    if callable(value) and not is_dataclass(value):
        raise InputError("a file holds numbers and text", f"a function at {where.lstrip('.') or 'the top'}",
                         "Code is not stored: fit again where the function is at hand, or use a named likelihood.")
    raise InputError("a file can hold records that are registered with klimb", f"{type(value).__name__} at "
                     f"{where.lstrip('.') or 'the top'}", "Decorate the class with klimb's stored(kind).")


def unpack(document: Any, arrays: Mapping[str, Any]) -> Any:
    """What ``pack`` was given; lists come back as tuples."""
    if isinstance(document, list):
        return tuple(unpack(item, arrays) for item in document)
    if not isinstance(document, dict):
        return document
    kind = document.get(KIND)
    rest = {key: value for key, value in document.items() if key != KIND}
    if kind == "array":
        return _array(rest, arrays)
    if kind == "texts":
        return np.array([*unpack(rest["values"], arrays), None], dtype=object)[:-1].reshape(rest["shape"])
    if kind == "number":
        return _NON_FINITE[rest["value"]]
    if kind == "dict":
        return {unpack(key, arrays): unpack(value, arrays) for key, value in rest["items"]}
    if kind == "enum":
        if rest.get("kind") not in ENUMS:
            raise _damaged(f"an unknown kind of value {rest.get('kind')!r}")
        return ENUMS[rest["kind"]][rest["name"]]
    if not isinstance(kind, str) or kind not in STATES:
        raise _damaged(f"an unknown kind of record {kind!r}")
    cls = STATES[kind]
    if set(rest) != set(stored_fields(cls)):
        raise _damaged(f"{kind} with the fields {sorted(set(rest) ^ set(stored_fields(cls)))} missing or unknown")
    values = {name: unpack(value, arrays) for name, value in rest.items()}
    restore = getattr(cls, "restored", None)
    return restore(**values) if restore is not None else cls(**values)


def _array(rest: dict[str, Any], arrays: Mapping[str, Any]) -> Any:
    if rest.get("name") not in arrays:
        raise _damaged(f"no array {rest.get('name')!r}")
    return arrays[rest["name"]]


def _damaged(what: str) -> InputError:
    return InputError("a file must hold records that this version of klimb knows", what,
                      "It is damaged, or was written by another version of klimb: use that one.")
