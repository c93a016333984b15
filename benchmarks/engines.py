"""What engines cost and gain: overhead of a pass, and the time of a pass with one and with two workers.

    python -m benchmarks.engines --rows 1e6 --columns 20 --engines here 2 dask ray spark

Every engine is started with one and with two workers on loopback. A pass that does nothing shows the overhead of the
engine; passes at the fitted q show what another worker gains. CPU seconds are those of all its processes, so that they
say something on a machine that others use too; wall seconds do not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = 16
EMPTY, FULL = 20, 5  # passes


def make(folder: Path, rows: int, columns: int) -> None:
    """Parquet files, one for each block."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for k in range(BLOCKS):
        rng, n = np.random.default_rng([5, k]), rows // BLOCKS
        X = rng.standard_normal((n, columns))
        y = rng.random(n) < 1 / (1 + np.exp(-X @ (np.sin(np.arange(columns)) * 0.3)))
        table = pa.table({**{f"x{j}": X[:, j] for j in range(columns)}, "y": y})
        parquet.write_table(table, folder / f"part-{k:02d}.parquet", compression="none", use_dictionary=False)


class Recorder:
    """Runs here, and remembers the work of the last pass of sums and its blocks."""

    def __init__(self) -> None:
        self.work: Any = None
        self.blocks: list[Any] = []

    def map(self, function: Any, blocks: Any, /) -> Any:
        self.blocks = list(blocks)
        if function.func.__name__ == "site_sums":
            self.work = function
        return map(function, self.blocks)


def nothing(block: Any) -> int:
    """What an empty pass does."""
    return 0


def started(name: str, workers: int) -> Any:
    """An engine with so many workers."""
    from klimb.rows.engines import DaskEngine, Processes, RayEngine, SparkEngine

    if name == "2":
        return Processes(workers)
    if name == "dask":
        from distributed import Client, LocalCluster

        return DaskEngine(client=Client(LocalCluster(n_workers=workers, threads_per_worker=1, host="127.0.0.1",
                                                     dashboard_address=None)))
    if name == "ray":
        import ray

        ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        return RayEngine()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers are to have klimb too
    return SparkEngine(session=SparkSession.builder.master(f"local[{workers},3]").config("spark.ui.enabled", "false")
                       .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())


def stopped(name: str, engine: Any) -> None:
    """End what ``started`` began."""
    if name == "2":
        engine.close()
    elif name == "dask":
        engine.client.cluster.close()
        engine.client.close()
    elif name == "ray":
        import ray

        ray.shutdown()
    else:
        engine.session.stop()


def cpu() -> float:
    """CPU seconds of this process and of all below it that live, or have been waited for."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def timed(work: Any, passes: int) -> dict[str, float]:
    """Wall, CPU of all processes and CPU of this one, for a pass."""
    begin = time.perf_counter(), cpu(), time.process_time()
    for _ in range(passes):
        work()
    end = time.perf_counter(), cpu(), time.process_time()
    names = ("wall", "cpu", "cpu here")
    return {name: round((b - a) / passes, 4) for name, a, b in zip(names, begin, end, strict=True)}


def main() -> None:
    """Read the command line."""
    from klimb.infer.rows import total_sums

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--engines", nargs="+", default=["here", "2", "dask", "ray", "spark"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make(folder, int(asked.rows), asked.columns)
        here = Recorder()
        formula = "y ~ " + " + ".join(f"x{j}" for j in range(asked.columns))
        _fit(formula, folder, here)
        truth = total_sums(here.map(here.work, here.blocks), 0)
        if "here" in asked.engines:
            print(json.dumps({"engine": "here", **timed(lambda: list(map(here.work, here.blocks)), FULL)}), flush=True)
        for name in [name for name in asked.engines if name != "here"]:
            for workers in asked.workers:
                engine = started(name, workers)
                run = partial(engine.map, here.work, here.blocks)
                found = total_sums(run(), 0)  # imports what has to be imported
                same = found.value == truth.value and bool((found.gram == truth.gram).all())
                empty = timed(lambda engine=engine: list(engine.map(nothing, here.blocks)), EMPTY)
                full = timed(lambda run=run: list(run()), FULL)
                print(json.dumps({"engine": name, "workers": workers, "same bits": same, "empty": empty, "pass": full}),
                      flush=True)
                stopped(name, engine)


def _fit(formula: str, folder: Path, engine: Any) -> None:
    import klimb

    klimb.fit(formula, str(folder / "part-*.parquet"), "bernoulli", engine=engine, progress=False)


if __name__ == "__main__":
    main()
