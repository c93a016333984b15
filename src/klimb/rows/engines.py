"""Where passes over blocks are run: here, in processes of our own, or on an engine that is there already.

An engine maps a function over blocks and gives the results in the order of the blocks. Scheduling, transport and
retries are those of Ray, Dask and Spark; what is ours is that their errors come as ours, that a pass whose workers were
lost is run again from where it was, and that nobody waits for a scheduler or workers that are gone.
"""

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Self

from klimb.errors import InputError, KlimbError, require
from klimb.rows.blocks import BlockEngine, HeldBlock
from klimb.rows.workers import EngineError, Failure, applied, applied_there, bounded, first_line, itself, listens, serve

TRIES = 3  # of a pass whose workers were lost
GONE_AFTER = 30.0  # seconds without any worker, or without a scheduler
LOOK_EVERY = 2.0  # seconds between looks at workers
LOOPBACK = "127.0.0.1"


def as_engine(engine: Any, address: str | None = None) -> BlockEngine | None:
    """What a user gives as ``engine=``: a name, a number of processes, an executor, a Dask client, a Spark session.

    >>> as_engine(None) is None
    True
    """
    if engine is None or isinstance(engine, Cluster | ExecutorEngine):
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
    require(address is None or text in STARTED, "an address belongs to an engine: ray, dask or spark",
            f"--address {address}", "Name it: --engine ray.")
    return as_engine(int(text) if text is not None and text.isdigit() else text, address)


@contextmanager
def running(engine: BlockEngine | None) -> Iterator[BlockEngine | None]:
    """An engine for as long as a fit takes: what it started for it is ended."""
    try:
        yield engine
    finally:
        if isinstance(engine, Cluster):
            engine.close()


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


class Cluster(ABC):
    """Workers that may be lost: what they had not given back is asked for again."""

    expected: str
    advice = "Start it again, and the fit with the same checkpoint= to go on from there."
    own = False  # whether it was started here
    address: str | None = None

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        todo, done = list(blocks), 0
        for attempt in range(1, TRIES + 1):
            try:
                for found in self.answers(function, todo[done:]):
                    if isinstance(found, Failure):
                        raise found.error
                    done += 1
                    yield found
                return
            except KlimbError:
                raise
            except Exception as error:
                again = self.own or self.alive()
                if self.own:
                    self.close()
                if attempt == TRIES or not again:
                    raise EngineError(self.expected, first_line(error), self.advice) from error

    @abstractmethod
    def answers(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> Iterable[Any]:
        """What `applied` gives for every block, in order; any error is taken for a loss."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether there are a scheduler and workers."""

    @abstractmethod
    def close(self) -> None:
        """End what was started here, and leave what was not."""

    def wait(self, done: Callable[[float], Any]) -> None:
        """Until ``done``, which waits for so many seconds; no longer than `GONE_AFTER` without workers."""
        seen = time.monotonic()
        while not done(LOOK_EVERY):
            if self.alive():
                seen = time.monotonic()
            elif time.monotonic() - seen > GONE_AFTER:
                raise TimeoutError(f"no worker, or no scheduler, for {GONE_AFTER:.0f} seconds")
            else:
                time.sleep(0.1)  # where to look takes no time

    def meet(self) -> None:
        """Wait for a scheduler that may be on its way, no longer than `GONE_AFTER`: engines wait for minutes."""
        begin = time.monotonic()
        while self.address is not None and not listens(self.address):
            if time.monotonic() - begin > GONE_AFTER:
                raise EngineError(self.expected, f"nobody who listens at {self.address}",
                                  "Check the address, or start the scheduler there.")
            time.sleep(0.2)


class Processes(Cluster):
    """Processes of our own, started again where one is lost.

    Each has a pipe of its own, and no lock is shared, so that one that is killed while it reads or writes is an end of
    file, for which nobody waits; so is a driver that is killed, and its processes end.
    """

    expected = f"processes that live through a pass, in {TRIES} tries"
    advice = "Memory may be short: use fewer processes."
    own = True

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: dict[Any, Any] = {}  # processes by our end of their pipes

    def _started(self) -> list[Any]:
        from multiprocessing import get_context

        context = get_context("spawn")
        while len(self._pool) < self.workers:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pool[ours] = process
        return list(self._pool)

    def answers(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> Iterable[Any]:
        from multiprocessing.connection import wait

        todo, found, done = iter(enumerate(blocks)), dict[int, Any](), 0
        busy: dict[Any, int] = {}  # which block each works on

        def give(pipe: Any) -> None:
            for number, block in islice(todo, 1):
                pipe.send((function, block))
                busy[pipe] = number

        try:
            for pipe in self._started():
                give(pipe)
            while busy:
                ready: list[Any] = wait(list(busy))
                for pipe in ready:
                    found[busy[pipe]] = pipe.recv()
                    del busy[pipe]
                    give(pipe)
                while done in found:
                    yield found.pop(done)
                    done += 1
        except (EOFError, OSError) as error:
            raise ConnectionError("a process that ended before it answered") from error
        finally:
            if busy:  # what they still answer is not for the next pass
                self.close()

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        for pipe, process in self._pool.items():
            pipe.close()
            process.kill()
            process.join(GONE_AFTER)
        self._pool = {}


class RayEngine(Cluster):
    """Tasks of Ray, here (on loopback, without its dashboard) or on the cluster at ``address``."""

    expected = "a Ray cluster that lives through a pass"

    def __init__(self, address: str | None = None) -> None:
        self._ray, self.address, self._tasks = _imported("ray", "ray"), address, ()

    def _started(self) -> tuple[Any, ...]:
        ray = self._ray
        if not ray.is_initialized():
            self.meet()
            self.own = True  # from here on: what starts in part is ended, and started again
            if self.address is None:  # as on desktops: else its processes listen on every interface
                ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
            ray.init(address=self.address or "local", include_dashboard=False, log_to_driver=False,
                     logging_level="error", configure_logging=False)
            if self.address is None and ray.util.get_node_ip_address() != LOOPBACK:
                self.close()
                raise EngineError("a Ray that listens on loopback alone", f"version {ray.__version__}, which does not",
                                  "Set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or call ray.init yourself.")
        if not self._tasks:
            self._tasks = tuple(ray.remote(max_retries=TRIES)(work) for work in (applied, applied_there))
        return self._tasks

    def answers(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> Iterable[Any]:
        anywhere, there = self._started()
        self.wait(lambda _: self.alive())  # what is sent to a scheduler that is gone waits for it
        shared = self._ray.put(function)
        for task in [there.remote(shared, block.data) if isinstance(block, HeldBlock)
                     else anywhere.remote(shared, block) for block in blocks]:
            self.wait(partial(self._is_done, task))
            yield self._ray.get(task, timeout=GONE_AFTER)

    def _is_done(self, task: Any, seconds: float) -> bool:
        return bool(self._ray.wait([task], timeout=seconds)[0])

    def alive(self) -> bool:
        """Ray ends a process that asks a scheduler which does not answer for a minute: look whether it listens."""
        return listens(self._ray.get_runtime_context().gcs_address) and any(
            node["Alive"] and node["Resources"].get("CPU") for node in self._ray.nodes())

    def hold(self, dataset: Any) -> list[HeldBlock]:
        """The blocks of a Ray dataset."""
        self._started()
        return [HeldBlock(block) for block in dataset.materialize().to_arrow_refs()]

    def close(self) -> None:
        if self.own:
            with suppress(TimeoutError):
                bounded(self._ray.shutdown, GONE_AFTER)
            self.own, self._tasks = False, ()


class DaskEngine(Cluster):
    """A client of dask.distributed, or a cluster of two processes on loopback that is started here."""

    expected = "a Dask cluster that lives through a pass"

    def __init__(self, address: str | None = None, client: Any = None) -> None:
        self._distributed, self.address, self.client = _imported("distributed", "dask"), address, client
        self._cluster: Any = None

    @classmethod
    def around(cls, _: Any) -> Self:
        """The one whose client is there, or one that is started."""
        with suppress(ValueError):
            return cls(client=_imported("distributed", "dask").default_client())
        return cls()

    def _started(self) -> Any:
        if self.client is None:
            self.meet()
            self.own = True  # from here on: what starts in part is ended, and started again
            if self.address is None:
                self._cluster = bounded(lambda: self._distributed.LocalCluster(
                    n_workers=2, threads_per_worker=1, host=LOOPBACK, silence_logs="ERROR",
                    scheduler_kwargs={"dashboard": False, "dashboard_address": f"{LOOPBACK}:0"},  # of its HTTP server
                    preload="import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"), 2.0 * GONE_AFTER)
            self.client = self._distributed.Client(self.address or self._cluster, timeout=GONE_AFTER)
        return self.client

    def answers(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> Iterable[Any]:
        client = self._started()
        self.wait(lambda _: self.alive())
        # A result, which is made again with its worker: what is scattered is lost, or waits for ever for one that is.
        with _imported("dask", "dask").config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            shared = client.submit(itself, function, pure=False)
        for future in [client.submit(applied_there if isinstance(block, HeldBlock) else applied, shared,
                                     block.data if isinstance(block, HeldBlock) else block, pure=False, retries=TRIES)
                       for block in blocks]:
            self.wait(partial(self._is_done, future))
            yield future.result(timeout=GONE_AFTER)

    def _is_done(self, future: Any, seconds: float) -> bool:
        with suppress(TimeoutError):
            self._distributed.wait(future, timeout=seconds)
            return True
        return False

    def alive(self) -> bool:
        return self.client.status == "running" and bool(self.client.scheduler_info().get("workers"))

    def hold(self, frame: Any) -> list[HeldBlock]:
        """The partitions of a Dask data frame."""
        return [HeldBlock(future) for future in self._started().compute(frame.to_delayed())]

    def close(self) -> None:
        if self.own:
            for part in (self.client, self._cluster):
                with suppress(Exception):
                    bounded(part.close, GONE_AFTER)
            self.client, self._cluster, self.own = None, None, False


class SparkEngine(Cluster):
    """A session of Spark, or a local one that is started here: blocks are partitions."""

    expected = "a Spark session that lives through a pass"

    def __init__(self, address: str | None = None, session: Any = None) -> None:
        self._sql, self.address, self.session = _imported("pyspark.sql", "spark"), address, session

    @classmethod
    def around(cls, frame: Any) -> Self:
        """The one whose data frame it is."""
        return cls(session=frame.sparkSession)

    def _started(self) -> Any:
        if self.session is None:
            self.meet()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = self._sql.SparkSession.builder.appName("klimb").config("spark.ui.enabled", "false")
            if self.address is None:
                os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
                for option in ("spark.driver.bindAddress", "spark.driver.host"):
                    builder = builder.config(option, LOOPBACK)
            self.session, self.own = builder.master(self.address or f"local[2,{TRIES}]").getOrCreate(), True
            self.session.sparkContext.setLogLevel("OFF" if self.address is None else "ERROR")
        return self.session.sparkContext

    def answers(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> Iterable[Any]:
        context, pickling = self._started(), _imported("pyspark.cloudpickle", "spark")
        shared = context.broadcast(pickling.dumps(function))  # functions that are defined on the way go too
        held = bool(blocks) and isinstance(blocks[0], HeldBlock)
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(_of_partitions(blocks, shared) if held else context.parallelize(blocks, len(blocks)).map(
                    lambda block: applied(pickling.loads(shared.value), block)).collect())
            except BaseException as error:
                found.append(error)

        def ended(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            self.wait(ended)
        finally:
            with suppress(Exception):
                shared.destroy()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]  # type: ignore[no-any-return]

    def alive(self) -> bool:
        """Whether there is an executor beside the driver; in local mode the driver is the one."""
        with suppress(Exception):
            context = self.session.sparkContext
            known = context._jsc.sc().getExecutorMemoryStatus().size()
            return bool(known > (0 if context.master.startswith("local[") else 1))
        return False

    def hold(self, frame: Any) -> list[HeldBlock]:
        """The partitions of a Spark data frame, which is kept as it is."""
        kept = frame.persist()
        return [HeldBlock(kept, number) for number in range(kept.rdd.getNumPartitions())]

    def close(self) -> None:
        if self.own:
            with suppress(Exception):
                self.session.stop()
            self.session, self.own = None, False


STARTED: dict[str, Any] = {"ray": RayEngine, "dask": DaskEngine, "spark": SparkEngine}


def _of_partitions(blocks: Sequence[HeldBlock], shared: Any) -> list[Any]:
    """What workers of Spark give for the partitions of a data frame, which come to them as batches of Arrow."""
    import pickle

    empty = blocks[0].data.limit(0).toArrow()

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        table = pa.Table.from_batches(batches, empty.schema)
        task: Any = TaskContext.get()
        found = pickle.dumps(applied_there(pickle.loads(shared.value), table))
        yield pa.RecordBatch.from_pydict({"number": pa.array([task.partitionId()], pa.int32()), "found": [found]})

    rows = blocks[0].data.mapInArrow(work, "number int, found binary").collect()
    found = {row["number"]: row["found"] for row in rows}
    return [pickle.loads(found[block.number]) for block in blocks]


def _imported(name: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as missing:
        raise InputError(f"engine={extra!r} needs {name}", "no such package",
                         f'Run: python -m pip install "klimb[{extra}]".') from missing
