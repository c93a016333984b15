"""Formula fits of rows that are not in memory, beside the floor of a pass: one read and one X'X of that shape.

Passes are told apart: those far from the optimum take one variance for many rows, those that end the fit compute every
one, a second product of that size. The mean is over all passes that sum sites.

    python -m benchmarks.passes make FOLDER --rows 1e7 --columns 50      # Parquet parts and a memory map, seeded
    python -m benchmarks.passes fit FOLDER --family bernoulli --source parquet [--engine 2]
    python -m benchmarks.passes growth FOLDER --rows 1e5,1e6 --columns 10,50   # a line for each, data made and deleted
    python -m benchmarks.passes groups FOLDER --rows 1e7 --levels 1e5     # a mixed model, sorted by group or not

Every figure is of a process of its own: CPU seconds, wall seconds, passes, peak of resident memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

PART = 250_000  # rows of a file, and of a row group


def _columns(rng: np.random.Generator, n: int, d: int) -> dict[str, Any]:
    X = rng.standard_normal((n, d))
    w = np.sin(np.arange(d)) * 0.3
    f = X @ w - 0.5
    return {**{f"x{j}": X[:, j] for j in range(d)}, "b": (rng.random(n) < 1 / (1 + np.exp(-f))).astype(np.float64),
            "p": rng.poisson(np.exp(0.5 * f)).astype(np.float64)}


def make(folder: Path, rows: int, columns: int) -> None:
    """Parquet parts, and a memory map for every column of the same rows."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"x{j}" for j in range(columns)), "b", "p"]
    whole = {name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype="<f8", shape=(rows,))
             for name in names}
    for k, begin in enumerate(range(0, rows, PART)):
        n = min(PART, rows - begin)
        part = _columns(np.random.default_rng([7, k]), n, columns)
        parquet.write_table(pa.table(part), folder / f"part-{k:04d}.parquet", compression="none", use_dictionary=False)
        for name in names:
            whole[name][begin : begin + n] = part[name]
    for column in whole.values():
        column.flush()


def _maps(folder: Path) -> dict[str, Any]:
    return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}


def floor(folder: Path, source: str, columns: int) -> tuple[float, float]:
    """CPU seconds of reading all columns once, and of one X'X over all rows."""
    from klimb.numerics.dense import gram

    begin = time.process_time()
    rows = 0
    for X in _blocks(folder, source, columns):
        rows += len(X)
    read = time.process_time() - begin
    X = np.random.default_rng(0).standard_normal((65_536, columns))
    begin = time.process_time()
    for _ in range(4):
        gram([X], columns)
    return read, (time.process_time() - begin) / 4 * rows / len(X)


def _blocks(folder: Path, source: str, columns: int) -> Any:
    names = [f"x{j}" for j in range(columns)]
    if source == "parquet":
        import pyarrow.dataset as arrow

        for fragment in arrow.dataset(sorted(map(str, folder.glob("part-*.parquet")))).get_fragments():
            for batch in fragment.to_batches(columns=names, batch_size=65_536, use_threads=False):
                yield np.column_stack([batch.column(j).to_numpy() for j in range(columns)])
    else:
        whole = _maps(folder)
        for begin in range(0, len(whole["x0"]), 65_536):
            yield np.column_stack([whole[name][begin : begin + 65_536] for name in names])


def tight_floor(folder: Path, source: str, columns: int, most: int = 32_768) -> float:
    """CPU seconds of the same where columns are read into one matrix that is used again, and multiplied at once."""
    names = [f"x{j}" for j in range(columns)]
    X, total = np.empty((most, columns), order="F"), np.zeros((columns, columns))
    begin = time.process_time()
    if source == "parquet":
        import pyarrow.parquet as parquet

        batches = (batch for path in sorted(folder.glob("part-*.parquet"))
                   for batch in parquet.ParquetFile(path).iter_batches(most, columns=names, use_threads=False))
        parts = ([batch.column(j).to_numpy() for j in range(columns)] for batch in batches)
    else:
        whole = _maps(folder)
        parts = ([whole[name][k : k + most] for name in names] for k in range(0, len(whole["x0"]), most))
    for part in parts:
        n = len(part[0])
        for j, column in enumerate(part):
            X[:n, j] = column
        total += X[:n].T @ X[:n]
    return time.process_time() - begin


def fit(folder: Path, family: str, source: str, engine: Any) -> dict[str, Any]:
    """One fit, in this process."""
    import klimb

    data: Any = str(folder / "part-*.parquet") if source == "parquet" else _maps(folder)
    columns = len(list(folder.glob("x*.npy")))
    y = {"bernoulli": "b", "poisson": "p"}[family]
    formula = f"{y} ~ " + " + ".join(f"x{j}" for j in range(columns))
    counted = _Counted()
    watched = _Watched()
    cpu, wall = time.process_time(), time.perf_counter()
    found = klimb.fit(formula, data, family, engine=engine or counted, progress=False)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    record = {"rows": found.n, "columns": columns, "family": family, "source": source, "engine": str(engine),
              "cpu": round(cpu, 2), "cpu of workers": round(children.ru_utime + children.ru_stime, 2),
              "wall": round(wall, 2), "passes": counted.passes, "cpu of passes": np.round(counted.each, 2).tolist(),
              "far": counted.far, "bound": found.bound, "verdict": found.trust.verdict,
              "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
              "peak GB without pages of files": round(watched.peak / 2**20, 3)}
    read, syrk = np.min([floor(folder, source, columns) for _ in range(3)], axis=0)
    tight = min(tight_floor(folder, source, columns) for _ in range(3))
    record |= {"read": round(read, 3), "X'X": round(syrk, 3), "tight floor": round(tight, 3)}
    each = {"far": counted.each[: counted.far], "end": counted.each[counted.far :], "all": counted.each}
    return record | {f"{name} over {what}": round(float(np.mean(some)) / by, 2) for name, some in each.items() if some
                     for what, by in (("floor", read + syrk), ("tight floor", tight))}  # workers have their own clocks


class _Watched:
    """The peak of memory that is no page of a mapped file, looked at every 20 ms, in kB."""

    def __init__(self) -> None:
        self.peak = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            text = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, int(text.split("RssAnon:")[1].split()[0]))
            time.sleep(0.02)


class _Counted:
    """Runs here, and counts passes and their time."""

    def __init__(self) -> None:
        self.passes, self.cpu = 0, 0.0
        self.each: list[float] = []  # of the passes that sites are summed in
        self.far = 0  # how many of them, the first, take one variance for many rows

    def map(self, function: Any, blocks: Any, /) -> Any:
        self.passes += 1
        before = self.cpu
        for block in blocks:
            begin = time.process_time()
            found = function(block)
            self.cpu += time.process_time() - begin
            yield found
        if function.func.__name__ == "site_sums":
            self.each.append(self.cpu - before)
            self.far += function.args[3]


def groups(folder: Path, rows: int, levels: int, order: str) -> dict[str, Any]:
    """A mixed logistic model of many groups, its rows sorted by group or not."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    import klimb

    path = folder / f"groups-{order}-{rows}-{levels}"
    if not path.exists():
        path.mkdir(parents=True)
        effect = 0.8 * np.random.default_rng(11).standard_normal(levels)
        for k, begin in enumerate(range(0, rows, PART)):
            rng, n = np.random.default_rng([13, k]), min(PART, rows - begin)
            here = np.arange(begin, begin + n) * levels // rows if order == "sorted" else rng.integers(0, levels, n)
            x = rng.standard_normal(n)
            y = rng.random(n) < 1 / (1 + np.exp(0.5 - 0.4 * x - effect[here]))
            parquet.write_table(pa.table({"y": y, "x": x, "g": here}), path / f"part-{k:04d}.parquet")
    counted = _Counted()
    cpu, wall = time.process_time(), time.perf_counter()
    found = klimb.fit("y ~ x + (1 | g)", str(path), "bernoulli", engine=counted, progress=False)
    table = found.summary()
    return {"rows": found.n, "levels": levels, "order": order, "cpu": round(time.process_time() - cpu, 2),
            "wall": round(time.perf_counter() - wall, 2), "passes": counted.passes,
            "cpu per pass": round(counted.cpu / counted.passes, 3), "verdict": found.trust.verdict,
            "means": dict(zip(table["name"], np.round(table["mean"], 4).tolist(), strict=True)),
            "sds": dict(zip(table["name"], np.round(table["sd"], 5).tolist(), strict=True)),
            "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)}


def growth(folder: Path, rows: str, columns: str, engine: str | None) -> None:
    """A line for every number of rows and of columns; each fit in a process of its own."""
    for n, d in itertools.product(rows.split(","), columns.split(",")):
        make(folder, int(float(n)), int(d))
        for source in ("parquet", "memmap"):
            subprocess.run([sys.executable, "-m", "benchmarks.passes", "fit", str(folder), "--source", source,
                            *(["--engine", engine] if engine else [])], check=True)
        shutil.rmtree(folder)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "fit", "groups", "growth"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="1e7")
    parser.add_argument("--columns", default="50")
    parser.add_argument("--levels", type=float, default=1e5)
    parser.add_argument("--order", choices=["sorted", "mixed"], default="mixed")
    parser.add_argument("--family", choices=["bernoulli", "poisson"], default="bernoulli")
    parser.add_argument("--source", choices=["parquet", "memmap"], default="parquet")
    parser.add_argument("--engine")
    asked = parser.parse_args()
    engine = int(asked.engine) if asked.engine and asked.engine.isdigit() else asked.engine
    if asked.what == "make":
        make(asked.folder, int(float(asked.rows)), int(asked.columns))
    elif asked.what == "growth":
        growth(asked.folder, asked.rows, asked.columns, asked.engine)
    elif asked.what == "fit":
        print(json.dumps(fit(asked.folder, asked.family, asked.source, engine)))
    else:
        print(json.dumps(groups(asked.folder, int(float(asked.rows)), int(asked.levels), asked.order)))


if __name__ == "__main__":
    main()
