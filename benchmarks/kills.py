"""Seeded kills of workers and of the driver: the answer has the same bits, and nothing hangs.

    python -m benchmarks.kills workers 30        # one of two processes is killed at a random moment of a fit
    python -m benchmarks.kills driver 30         # the whole fit is killed with SIGKILL and begun again

A line for each kill: when it came, how long the fit took, whether its numbers are those of a fit that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 120_000


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


def workers(folder: Path, count: int) -> None:
    """Kill one process of two."""
    from klimb.rows.engines import Processes

    begin = time.perf_counter()
    truth = fitted(folder, Processes(2))
    usual = time.perf_counter() - begin
    for seed in range(count):
        engine, at = Processes(2), float(np.random.default_rng(seed).uniform(0.1, 0.9)) * usual
        killed: list[int] = []

        def kill(engine: Processes = engine, killed: list[int] = killed) -> None:
            pool = engine._pool
            if pool is not None and pool._processes:
                victim = sorted(pool._processes)[0]
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        timer = threading.Timer(at, kill)
        timer.start()
        begin = time.perf_counter()
        same = fitted(folder, engine) == truth
        timer.join()
        print(json.dumps({"what": "worker", "seed": seed, "at": round(at, 2), "killed": len(killed), "same bits": same,
                          "seconds": round(time.perf_counter() - begin, 1), "usual": round(usual, 1)}), flush=True)


def driver(folder: Path, count: int) -> None:
    """Kill the fit itself, and begin it again with its checkpoint."""
    begin = time.perf_counter()
    truth = _run(folder, folder / "never", None)
    usual = time.perf_counter() - begin
    for seed in range(count):
        at, kept = float(np.random.default_rng(seed).uniform(0.3, 0.95)) * usual, folder / f"kept-{seed}"
        _run(folder, kept, at)
        sums = len(list(kept.glob("*.npz"))) if kept.exists() else 0
        begin = time.perf_counter()
        same = _run(folder, kept, None) == truth
        print(json.dumps({"what": "driver", "seed": seed, "at": round(at, 2), "sums kept": sums, "same bits": same,
                          "seconds": round(time.perf_counter() - begin, 1), "usual": round(usual, 1)}), flush=True)


def _run(folder: Path, kept: Path, at: float | None) -> list[float] | None:
    """The fit in a process of its own, killed after so many seconds."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.kills", "once", str(folder), str(kept)],
                               stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=at)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    found: list[float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["workers", "driver", "once"])
    parser.add_argument("rest", nargs="+")
    asked = parser.parse_args()
    if asked.what == "once":
        print(json.dumps(fitted(Path(asked.rest[0]), None, Path(asked.rest[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        (workers if asked.what == "workers" else driver)(Path(folder), int(asked.rest[0]))


if __name__ == "__main__":
    main()
