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
from contextlib import contextmanager
from typing import Any, final

from klimb.errors import InputError, KlimbError
from klimb.rows.reduction import BlockEngine

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
    if engine is None or isinstance(engine, (ExecutorEngine, Processes, RayEngine, DaskEngine, SparkEngine)):
        return engine
    if isinstance(engine, int) and not isinstance(engine, bool) and engine > 0:
        return Processes(engine)
    if isinstance(engine, str) and engine in STARTED:
        found: BlockEngine = STARTED[engine](address)
        return found
    home = type(engine).__module__.split(".")[0]
    if home in ("distributed", "pyspark"):
        return DaskEngine(client=engine) if home == "distributed" else SparkEngine(session=engine)
    if isinstance(engine, Executor):
        return ExecutorEngine(engine)
    if hasattr(engine, "map"):
        return engine  # type: ignore[no-any-return]
    raise InputError('engine must be "ray", "dask", "spark", a number of processes, an executor, a Dask client or a '
                     "Spark session", repr(engine), "Leave it out to pass over the rows here.")


def engine_of(text: str | None, address: str | None) -> BlockEngine | None:
    """An engine by the words of the command line."""
    if address is not None and text not in STARTED:
        raise InputError("an address belongs to an engine: ray, dask or spark", f"--address {address}",
                         "Name it: --engine ray.")
    return as_engine(int(text) if text is not None and text.isdigit() else text, address)


@contextmanager
def running(engine: BlockEngine | None) -> Iterator[BlockEngine | None]:
    """An engine for as long as a fit takes: what it started for it is ended."""
    try:
        yield engine
    finally:
        if isinstance(engine, (Processes, RayEngine, DaskEngine, SparkEngine)):
            engine.close()


def applied(function: Callable[[Any], Any], block: Any) -> Any:
    """What a worker does; errors of ours come back as what they are."""
    return function(block)


@final
class ExecutorEngine:
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
        self._ray, self.address, self._own = _imported("ray", "ray"), address, False

    def _started(self) -> Any:
        if not self._ray.is_initialized():
            local: dict[str, Any] = {} if self.address else {"_node_ip_address": "127.0.0.1"}
            self._ray.init(address=self.address or "local", include_dashboard=False, log_to_driver=False,
                           logging_level="error", configure_logging=False, **local)
            self._own = True
        return self._ray.remote(applied)

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        task, errors = self._started(), self._ray.exceptions
        shared = self._ray.put(function)
        for running_task in [task.remote(shared, block) for block in blocks]:
            try:
                yield self._ray.get(running_task)
            except errors.RayTaskError as error:
                raise _ours(error.cause) from error
            except errors.RayError as error:
                raise _lost("Ray cluster", error) from error

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._own:
            self._ray.shutdown()
            self._own = False


@final
class DaskEngine:
    """A client of dask.distributed, or a cluster of two processes on loopback that is started here."""

    def __init__(self, address: str | None = None, client: Any = None) -> None:
        self._distributed, self.address, self.client = _imported("distributed", "dask"), address, client
        self._own: tuple[Any, ...] = ()

    def _started(self) -> Any:
        if self.client is None:
            here = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
            cluster = [] if self.address else [self._distributed.LocalCluster(**here)]
            self.client = self._distributed.Client(self.address or cluster[0])
            self._own = (self.client, *cluster)
        return self.client

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        client = self._started()
        try:
            shared = client.scatter(function, broadcast=True, hash=False, timeout=GONE_AFTER)
            for future in [client.submit(applied, shared, block, pure=False, retries=TRIES) for block in blocks]:
                self._wait(future)
                yield future.result(timeout=LOOK_EVERY)
        except KlimbError:
            raise
        except (self._distributed.KilledWorker, self._distributed.CancelledError, TimeoutError, OSError,
                RuntimeError) as error:
            raise _lost("Dask cluster", error) from error

    def _wait(self, future: Any) -> None:
        """Until it is done; no longer than `GONE_AFTER` without a worker or a scheduler."""
        seen = time.monotonic()
        while not future.done():
            try:
                self._distributed.wait(future, timeout=LOOK_EVERY)
            except TimeoutError:
                if self.client.status == "running" and self.client.scheduler_info().get("workers"):
                    seen = time.monotonic()
                elif time.monotonic() - seen > GONE_AFTER:
                    raise

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for part in self._own:
            part.close()
        if self._own:
            self.client, self._own = None, ()


@final
class SparkEngine:
    """A session of Spark, or a local one that is started here: blocks are partitions of an RDD."""

    def __init__(self, address: str | None = None, session: Any = None) -> None:
        self._sql, self.address, self.session, self._own = _imported("pyspark.sql", "spark"), address, session, False

    def _started(self) -> Any:
        if self.session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = self._sql.SparkSession.builder.appName("klimb").config("spark.ui.enabled", "false")
            if self.address is None:
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
                builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
                builder = builder.config("spark.driver.host", "127.0.0.1")
            self.session, self._own = builder.master(self.address or "local[2]").getOrCreate(), True
            self.session.sparkContext.setLogLevel("ERROR")
        return self.session.sparkContext

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        every, context = list(blocks), self._started()
        shared = context.broadcast(function)
        try:
            yield from context.parallelize(every, len(every)).map(lambda block: shared.value(block)).collect()
        except Exception as error:
            raise _from_spark(error) from error
        finally:
            shared.destroy()

    def close(self) -> None:
        """End a session that was started here."""
        if self._own:
            self.session.stop()
            self.session, self._own = None, False


STARTED: dict[str, Any] = {"ray": RayEngine, "dask": DaskEngine, "spark": SparkEngine}


def _lost(what: str, error: Any) -> EngineError:
    return EngineError(f"a {what} that lives through a pass", _first_line(error) or type(error).__name__,
                       "Start it again, and the fit with the same checkpoint= to go on from there.")


def _from_spark(error: Exception) -> KlimbError:
    """The error of a worker in our words: Spark has its text alone."""
    text = str(error)
    for line in text.splitlines():
        name, _, rest = line.strip().partition("klimb.errors.InputError: ")
        if rest and not name:
            expected, _, more = rest.partition("; got ")
            got, _, advice = more.partition(". ")
            return InputError(expected, got, advice)
    return _lost("Spark session", error)


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
