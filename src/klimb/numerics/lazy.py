"""Modules that take long to import, loaded when something of them is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, final


@final
class LazyModule:
    """A module by name: its attributes are its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


scipy_sparse: Any = LazyModule("scipy.sparse")
csgraph: Any = LazyModule("scipy.sparse.csgraph")
