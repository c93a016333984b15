"""What a fit by passes takes of memory, and how many rows are made at a time so that it stays below a limit.

The estimates are of what a process takes beyond what it held before the fit, by phases that follow each other:

    learn     levels and different values of columns, which no estimate knows before; the columns of some rows
    pass      sums in the driver; columns of some rows, sums and the rows of a block in a worker
    judge     the sample of the rows, which is fitted and checked in memory
"""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from klimb.errors import InputError, require
from klimb.models.plan import readable

LIBRARIES = 130e6  # bytes of libraries that are loaded on the way, and of what an allocator keeps
COPIES, AT_WORK = 12, 10  # of sums in the driver, and of the columns of some rows in a worker
IN_PASSES, CHECKED = 4, 13  # copies of the sample's columns during passes, and while it is fitted and checked
ENTRIES = 3 << 20  # of the columns that are made at a time, where memory allows it
FEWEST = 256  # rows at a time
MEMORY = 8e9  # bytes that sums may take where no limit is given
SHOWN = 0.05  # share of the memory from which a part is named
UNITS = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30}


def as_bytes(given: Any) -> float:
    """A limit of memory as a user writes it; none is infinite.

    >>> as_bytes("1.5 GB"), as_bytes(2_000_000), as_bytes(None)
    (1500000000.0, 2000000.0, inf)
    """
    if given is None:
        return inf
    text = str(given).strip().upper()
    unit = text.lstrip("0123456789.+-E_" if isinstance(given, str) else "0123456789.+-E_INF").strip()
    try:
        size = float(text[: len(text) - len(unit)]) * UNITS[unit]
    except (KeyError, ValueError):
        size = 0.0
    require(size > 0.0, "memory must be a number of bytes, or text with a unit", repr(given),
            'Write memory="2 GB" or memory=2e9.')
    return size


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that each process may take, and what is known of the rows."""

    limit: float
    block: float = 0.0  # bytes of the largest block while it is read
    sample: int = 0  # rows of the sample
    alone: bool = True  # whether passes are run in the driver

    def driver(self, width: int, sums: float, copies: int = CHECKED) -> float:
        """Bytes of the driver without a worker's: by default while the sample is fitted."""
        return LIBRARIES + COPIES * sums + 8.0 * copies * self.sample * (width + 8)

    def worker(self, width: int, sums: float, rows: int) -> float:
        """Bytes of a worker in a pass, the driver's among them where passes are run there."""
        own = self.driver(width, sums, IN_PASSES) if self.alone else LIBRARIES
        return own + 2.0 * sums + self.block + 8.0 * AT_WORK * rows * (width + 8)

    def total(self, width: int, sums: float, rows: int) -> tuple[float, float]:
        """Bytes that the driver, and that a worker takes at most."""
        return self.driver(width, sums), self.worker(width, sums, rows)

    def rows(self, width: int, n_levels: int = 0, sums: float = 0.0) -> int:
        """How many rows of so many columns are made at a time; an error where the limit is too low for any."""
        most = max(1024, ENTRIES // (width + 8))
        least = max(self.total(width, sums, FEWEST))
        if least > self.limit or (not isfinite(self.limit) and COPIES * sums > MEMORY):
            limit, least = (self.limit, least) if isfinite(self.limit) else (MEMORY, COPIES * sums)
            parts = {"libraries": LIBRARIES, "a block of rows": self.block,
                     f"sums of {n_levels:,} levels beside {width:,} columns": COPIES * sums,
                     f"a sample of {self.sample:,} rows": 8.0 * CHECKED * self.sample * (width + 8)}
            found = ", ".join(f"{readable(size)} for {what}" for what, size in parts.items() if size >= SHOWN * least)
            raise InputError(f"each process may take {readable(limit)} of memory",
                             f"a model that needs {readable(least)} ({found})",
                             f'Write memory="{readable(1.1 * least)}", use fewer columns or levels, smaller row groups '
                             "of files, or a sample of the rows.")
        return int(min(most, (self.limit - self.worker(width, sums, 0)) / (8.0 * AT_WORK * (width + 8))))


def check_in_memory(model: Any, limit: float) -> None:
    """An error where rows that are in memory cannot be fitted within the limit."""
    if not isfinite(limit):
        return
    plan, rows = model.plan(), model.fitted_rows()
    needed = LIBRARIES + 8.0 * AT_WORK * rows.n * model.width + dict(plan.options)[plan.choice].bytes
    require(needed <= limit, f"each process may take {readable(limit)} of memory", f"a model of {rows.n:,} rows and "
            f"{model.width:,} columns that needs {readable(needed)}",
            f'Write memory="{readable(1.1 * needed)}", use fewer columns, or pass over them: engine=1.')
