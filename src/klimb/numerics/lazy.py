"""Modules that take long to import, loaded when something of them is first asked for."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module by name: its attributes are its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)  # found directly from now on
        return value


scipy_sparse: Any = LazyModule("scipy.sparse")
scipy_fft: Any = LazyModule("scipy.fft")
scipy_interpolate: Any = LazyModule("scipy.interpolate")
scipy_linalg: Any = LazyModule("scipy.linalg")
scipy_spatial: Any = LazyModule("scipy.spatial")
scipy_optimize: Any = LazyModule("scipy.optimize")
ndimage: Any = LazyModule("scipy.ndimage")
csgraph: Any = LazyModule("scipy.sparse.csgraph")
blas: Any = LazyModule("scipy.linalg.blas")
lapack: Any = LazyModule("scipy.linalg.lapack")
narwhals: Any = LazyModule("narwhals")
pyarrow: Any = LazyModule("pyarrow")
