"""Where passes over blocks are run: here, in processes of our own, or on an engine that is there already.

An engine maps a function over blocks and gives the results in the order of the blocks. Scheduling, transport and
retries are those of Ray, Dask and Spark; what is ours is that their errors come as ours, and that nobody waits for
workers that are gone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from typing import Any, final

from klimb.errors import InputError, KlimbError
from klimb.rows.reduction import BlockEngine

NAMES = ("ray", "dask", "spark")
TRIES = 3  # of a pass whose workers were lost
GONE_AFTER = 45.0  # seconds without any worker
LOOK_EVERY = 5.0  # seconds between looks at workers


@final
class EngineError(InputError):
    """An engine could not finish a pass."""


def as_engine(engine: Any, address: str | None = None) -> BlockEngine | None:
    """What a user gives as ``engine=``: a name, a number of processes, an executor, a Dask client, a Spark session.

    >>> as_engine(None) is None
    True
    """
    if engine is None or isinstance(engine, (Processes, RayEngine, DaskEngine, SparkEngine)):
        return engine
    if isinstance(engine, bool) or (isinstance(engine, int) and engine < 1):
        raise InputError("engine as a number must be how many processes there shall be", repr(engine), "Pass 2, say.")
    if isinstance(engine, int):
        return Processes(engine)
    if engine == "ray":
        return RayEngine(address)
    if engine == "dask":
        return DaskEngine(_dask_client(address))
    if engine == "spark":
        return SparkEngine(_spark_session(address))
    home = type(engine).__module__.split(".")[0]
    if home == "distributed":
        return DaskEngine(engine)
    if home == "pyspark":
        return SparkEngine(engine)
    if isinstance(engine, Executor):
        return Pool(engine)
    if hasattr(engine, "map"):
        return engine  # type: ignore[no-any-return]
    raise InputError('engine must be "ray", "dask", "spark", a number of processes, an executor, a Dask client or a '
                     "Spark session", repr(engine), "Leave it out to pass over the rows here.")


def applied(function: Callable[[Any], Any], block: Any) -> Any:
    """What a worker does; errors of ours come back as what they are."""
    return function(block)


@final
class Pool:
    """Any executor of `concurrent.futures`."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        try:
            yield from self.executor.map(function, blocks)
        except BrokenExecutor as error:
            raise EngineError("workers that live through a pass", f"{type(error).__name__}: {error}",
                              "Pass engine=2 for processes that are started again, or a new executor.") from error


@final
class Processes:
    """Processes of our own, started again where one is lost; a pass that was lost with it is run again."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: Any = None

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        todo, done = list(blocks), 0
        for attempt in range(TRIES):
            try:
                for result in self._running().map(function, todo[done:]):
                    done += 1
                    yield result
                return
            except BrokenExecutor as error:
                self.close()
                if attempt == TRIES - 1:
                    raise EngineError(f"processes that live through a pass, in {TRIES} tries", str(error),
                                      "Memory may be short: use fewer processes.") from error

    def _running(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import get_context

            self._pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"))
        return self._pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@final
class RayEngine:
    """Tasks of Ray, here (on loopback, without its dashboard) or on the cluster at ``address``."""

    def __init__(self, address: str | None = None) -> None:
        self._ray = _imported("ray", "ray")
        if not self._ray.is_initialized():
            local: dict[str, Any] = {} if address else {"_node_ip_address": "127.0.0.1"}
            self._ray.init(address=address or "local", include_dashboard=False, log_to_driver=False,
                           logging_level="error", configure_logging=False, **local)
        self._task = self._ray.remote(applied)

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        shared = self._ray.put(function)
        waiting = [self._task.remote(shared, block) for block in blocks]
        for task in waiting:
            try:
                yield self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                raise _ours(error.cause) from error
            except self._ray.exceptions.RayError as error:
                raise EngineError("a Ray cluster that lives through a pass", _first_line(error),
                                  "Start it again, and the fit with the same checkpoint=.") from error


@final
class DaskEngine:
    """A client of dask.distributed."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        try:
            shared = self.client.scatter(function, broadcast=True, hash=False, timeout=GONE_AFTER)
            waiting = [self.client.submit(applied, shared, block, pure=False, retries=TRIES) for block in blocks]
            for future in waiting:
                self._wait(future)
                yield future.result(timeout=LOOK_EVERY)
        except KlimbError:
            raise
        except (KilledWorker, FutureCancelledError, TimeoutError, OSError, RuntimeError) as error:
            raise EngineError("a Dask cluster that lives through a pass", _first_line(error) or type(error).__name__,
                              "Start it again, and the fit with the same checkpoint=.") from error

    def _wait(self, future: Any) -> None:
        """Until it is done; no longer than `GONE_AFTER` without a worker or a scheduler."""
        seen = time.monotonic()
        while not future.done():
            try:
                from distributed import wait

                wait(future, timeout=LOOK_EVERY)
            except TimeoutError:
                if self.client.status == "running" and self.client.scheduler_info().get("workers"):
                    seen = time.monotonic()
                elif time.monotonic() - seen > GONE_AFTER:
                    raise


@final
class SparkEngine:
    """A session of Spark: blocks are partitions of an RDD."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        every, context = list(blocks), self.session.sparkContext
        shared = context.broadcast(function)
        try:
            yield from context.parallelize(every, len(every)).map(lambda block: shared.value(block)).collect()
        except Exception as error:
            raise _from_spark(error) from error
        finally:
            shared.destroy()


def _from_spark(error: Exception) -> KlimbError:
    """The error of a worker in our words: Spark has its text alone."""
    text = str(error)
    for line in text.splitlines():
        name, _, rest = line.strip().partition("klimb.errors.InputError: ")
        if rest and not name:
            expected, _, more = rest.partition("; got ")
            got, _, advice = more.partition(". ")
            return InputError(expected, got, advice)
    return EngineError("a Spark session that lives through a pass", _first_line(error),
                       "Start it again, and the fit with the same checkpoint=.")


def _ours(cause: Any) -> Exception:
    """An error of a worker: ours as it is, others as a failed pass."""
    if isinstance(cause, KlimbError):
        return cause
    return EngineError("a pass without errors", f"{type(cause).__name__}: {_first_line(cause)}",
                       "Run it without engine= to see where it comes from.")


def _first_line(error: Any) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]


def _imported(name: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as missing:
        raise InputError(f"engine={extra!r} needs {name}", "no such package",
                         f'Run: python -m pip install "klimb[{extra}]".') from missing


def _dask_client(address: str | None) -> Any:
    distributed = _imported("distributed", "dask")
    if address:
        return distributed.Client(address)
    try:
        return distributed.get_client()
    except ValueError:
        return distributed.Client(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None)


def _spark_session(address: str | None) -> Any:
    sql = _imported("pyspark.sql", "spark")
    builder = sql.SparkSession.builder.appName("klimb").config("spark.ui.enabled", "false")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if address is None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    return builder.master(address or "local[2]").getOrCreate()
