"""Engines that map a function over blocks: an executor, Ray, Dask, Spark. Scheduling, transport and retries are theirs."""

from __future__ import annotations

from typing import Any

from klimb.errors import InputError
from klimb.rows.reduction import BlockEngine


def as_engine(engine: Any) -> BlockEngine | None:
    """What a user gives as ``engine=``."""
    if engine is None or hasattr(engine, "map"):
        return engine  # type: ignore[no-any-return]
    raise InputError("engine must be an executor", repr(engine), "Pass a concurrent.futures executor, or leave it out.")
