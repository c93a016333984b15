"""Seeded kills of workers and of the driver: the answer has the same bits, and nothing hangs.

    python -m benchmarks.kills workers 10 --engine ray     # one of two workers is killed at a random moment of a fit
    python -m benchmarks.kills driver 10 --engine dask     # the whole fit is killed with SIGKILL and begun again

Engines are 2 (processes), ray, dask and spark, each on loopback. A line for each kill: when it came, how long the fit
took, whether its numbers are those of a fit that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 120_000
WORKERS = {"ray": ("ray::applied", "ray::IDLE"), "dask": ("spawn_main",), "spark": ("pyspark.daemon",),
           "2": ("spawn_main",)}  # in the command lines of their processes


def make(folder: Path) -> None:
    """Six files of a mixed logistic model."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(1)
    effect = 0.7 * rng.standard_normal(300)
    for k in range(6):
        n = ROWS // 6
        x, g = rng.standard_normal(n), rng.integers(0, 300, n)
        y = rng.random(n) < 1 / (1 + np.exp(0.3 - 0.5 * x - effect[g]))
        parquet.write_table(pa.table({"y": y, "x": x, "g": g}), folder / f"part-{k}.parquet")


def fitted(folder: Path, engine: Any, checkpoint: Any = None) -> list[float]:
    """The numbers of one fit."""
    import klimb

    fit = klimb.fit("y ~ x + (1 | g)", str(folder / "part-*.parquet"), "bernoulli", engine=engine, hyper="fixed",
                    checkpoint=checkpoint, progress=False)
    return [fit.bound, *fit.components.parts[0].mean.tolist()]


class Kept:
    """An engine that a fit does not end, so that it serves all of a run; without one, this process."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine

    def map(self, function: Any, blocks: Any, /) -> Any:
        return map(function, blocks) if self.engine is None else self.engine.map(function, blocks)


def victims(engine: str) -> list[Any]:
    """The processes of its workers."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
            ours = any(word in line for word in WORKERS[engine])
            if ours and (engine != "spark" or "pyspark.daemon" in " ".join(process.parent().cmdline())):
                found.append(process)
        except (psutil.Error, AttributeError):
            continue
    return sorted(found, key=lambda process: process.pid)


def workers(folder: Path, count: int, name: str) -> None:
    """Kill one worker of two, each time at another moment."""
    from klimb.rows.engines import as_engine

    truth = fitted(folder, Kept())
    engine = Kept(as_engine(int(name) if name.isdigit() else name))
    fitted(folder, engine)  # starts what has to be started
    begin = time.perf_counter()
    same = fitted(folder, engine) == truth
    usual = time.perf_counter() - begin
    print(json.dumps({"engine": name, "usual": round(usual, 1), "same bits": same}), flush=True)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        at, killed = float(rng.uniform(0.05, 0.95)) * usual, list[int]()

        def kill(rng: Any = rng, killed: list[int] = killed) -> None:
            there = victims(name)
            if there:
                victim = there[int(rng.integers(len(there)))]
                killed.append(victim.pid)
                victim.kill()

        timer = threading.Timer(at, kill)
        timer.start()
        begin = time.perf_counter()
        same = fitted(folder, engine) == truth
        took = time.perf_counter() - begin
        timer.join()
        print(json.dumps({"what": "worker", "engine": name, "seed": seed, "at": round(at, 2), "killed": len(killed),
                          "same bits": same, "seconds": round(took, 1), "usual": round(usual, 1)}), flush=True)
    engine.engine.close()


def driver(folder: Path, count: int, name: str) -> None:
    """Kill the fit itself, and begin it again with its checkpoint."""
    begin = time.perf_counter()
    truth = _run(folder, folder / "never", None, name)
    usual = time.perf_counter() - begin
    same = truth == fitted(folder, Kept())
    print(json.dumps({"engine": name, "usual": round(usual, 1), "same bits": same}), flush=True)
    for seed in range(count):
        rng, kept = np.random.default_rng(seed), folder / f"kept-{seed}"
        at, wanted = float(rng.uniform(0.4, 0.95)) * usual, None
        if seed % 2:  # most of a fit is its start
            at, wanted = 5.0 * usual, int(rng.integers(1, 11))
        killed = _run(folder, kept, at, name, wanted) is None
        sums = len(list(kept.glob("*.npz"))) if kept.exists() else 0
        begin = time.perf_counter()
        same = _run(folder, kept, None, name) == truth
        took = time.perf_counter() - begin
        print(json.dumps({"what": "driver", "engine": name, "seed": seed, "at": round(at, 2), "killed": killed,
                          "sums wanted": wanted, "sums kept": sums, "same bits": same, "seconds": round(took, 1),
                          "usual": round(usual, 1)}), flush=True)


def _run(folder: Path, kept: Path, at: float | None, name: str, wanted: int | None = None) -> list[float] | None:
    """The fit in a process of its own, killed after so many seconds, or when so many sums are kept."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.kills", "once", str(folder), str(kept), "--engine",
                                name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    begin = time.perf_counter()
    while wanted and process.poll() is None and len(list(kept.glob("*.npz"))) < wanted:
        time.sleep(0.01)
        if at is not None and time.perf_counter() - begin > at:
            break
    try:
        output, _ = process.communicate(timeout=0.0 if wanted else at)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
    found: list[float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["workers", "driver", "once"])
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--engine", choices=list(WORKERS), default="2")
    asked = parser.parse_args()
    if asked.what == "once":
        engine = int(asked.engine) if asked.engine.isdigit() else asked.engine
        print(json.dumps(fitted(Path(asked.rest[0]), engine, Path(asked.rest[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        (workers if asked.what == "workers" else driver)(Path(folder), int(asked.rest[0]), asked.engine)


if __name__ == "__main__":
    main()
