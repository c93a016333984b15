"""The same bits from every engine, on real local clusters of two processes; losses and errors come in our words."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
from klimb.models.progress import StoppedError
from klimb.rows import engines
from klimb.rows.engines import (
    DaskEngine,
    EngineError,
    ExecutorEngine,
    Processes,
    RayEngine,
    SparkEngine,
    as_engine,
    engine_of,
)

N = 3000


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal(N), rng.integers(0, 12, N)
    y = rng.random(N) < 1 / (1 + np.exp(-0.7 * x - rng.standard_normal(12)[g]))
    table = pa.table({"y": y, "x": x, "g": np.array(list("abcdefghijkl"))[g]})
    for k in range(3):
        parquet.write_table(table.slice(k * 1000, 1000), folder / f"part-{k}.parquet", row_group_size=600)
    return folder


def fitted(parts: Path, engine: Any, **more: Any) -> Any:
    return klimb.fit("y ~ x + (1 | g)", str(parts / "part-*.parquet"), "bernoulli", engine=engine, hyper="fixed",
                     progress=False, **more)


def numbers(fit: Any) -> list[float]:
    return [fit.bound, *fit.components.parts[0].mean, *np.ravel(fit.components.parts[0].root)]


class Here:
    """One block after another, in this process, which counts passes."""

    def __init__(self) -> None:
        self.passes = 0

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterable[Any]:
        self.passes += 1
        return map(function, blocks)


@pytest.fixture(scope="module")
def serial(parts: Path) -> list[float]:
    return numbers(fitted(parts, Here()))


def test_threads_and_processes_give_the_same_bits(parts: Path, serial: list[float]) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert numbers(fitted(parts, threads)) == serial
    assert numbers(fitted(parts, 2)) == serial


# -- one cluster for each engine: the same bits from files and from what it holds, losses, errors, who can listen


def work_of(marker: Path) -> Callable[[int], int]:
    """Squares; the first worker that meets block 2 is killed, and block 7 is one that cannot be read."""
    path = str(marker)

    def work(block: int) -> int:
        import os
        import signal

        from klimb.errors import InputError

        if block == 2 and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        if block == 7:
            raise InputError("a good block", "a bad one", "Mend it.")
        return 1 // block if block == 8 else block * block

    return work


class Kept:
    """An engine that a fit does not end."""

    def __init__(self, engine: Any) -> None:
        self.map = engine.map


def listeners() -> list[str]:
    """The addresses at which this process and those below it listen."""
    psutil = pytest.importorskip("psutil")
    me = psutil.Process()
    found = []
    for process in [me, *me.children(recursive=True)]:
        try:
            found += [own.laddr.ip for own in process.net_connections("inet") if own.status == "LISTEN"]
        except psutil.Error:
            continue
    return found


def stands(engine: Any, parts: Path, serial: list[float], marker: Path) -> None:
    assert numbers(fitted(parts, Kept(engine))) == serial
    work = work_of(marker)
    assert list(engine.map(work, range(6))) == [0, 1, 4, 9, 16, 25]
    assert marker.exists()  # a worker was killed
    with pytest.raises(InputError, match=r"^a good block; got a bad one\. Mend it\.$"):
        list(engine.map(work, [1, 7]))
    with pytest.raises(EngineError, match="a pass without errors; got ZeroDivisionError"):
        list(engine.map(lambda block: 1 // block, [0]))
    found = listeners()
    assert found
    assert {ip for ip in found if not ip.endswith("127.0.0.1") and ip != "::1"} == set()


def of_collection(data: Any, engine: Any, **more: Any) -> Any:
    return klimb.fit("y ~ x + (1 | g)", data, "bernoulli", engine=engine, hyper="fixed", progress=False, cells=False,
                     **more)


def tables(parts: Path) -> list[pa.Table]:
    """The row groups of all files."""
    files = [parquet.ParquetFile(path) for path in sorted(parts.glob("*.parquet"))]
    return [file.read_row_group(k) for file in files for k in range(file.num_row_groups)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_ray(parts: Path, serial: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    engine = RayEngine()
    try:
        stands(engine, parts, serial, tmp_path / "killed")
        data = ray.data.from_arrow(tables(parts))
        assert numbers(of_collection(data, engine)) == serial  # which ends the engine, since it was started here
        assert not ray.is_initialized()
        # The scheduler is killed in the middle of a pass: a new one is started, and the pass goes on.
        monkeypatch.setattr(engines, "GONE_AFTER", 3.0)
        results = engine.map(lambda block: __import__("time").sleep(0.5) or block, range(8))
        first = next(results)
        kill_children("gcs_server")
        assert [first, *results] == list(range(8))
    finally:
        engine.close()


def kill_children(name: str) -> None:
    psutil = pytest.importorskip("psutil")
    for process in psutil.Process().children(recursive=True):
        if name in process.name():
            process.kill()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_dask(parts: Path, serial: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    engine = DaskEngine()
    try:
        stands(engine, parts, serial, tmp_path / "killed")
        frames = pytest.importorskip("dask.dataframe")
        delayed = pytest.importorskip("dask").delayed
        data = frames.from_delayed([delayed(table.to_pandas()) for table in tables(parts)])
        client = engine.client
        assert numbers(of_collection(data, client)) == serial
        assert client.status == "running"  # it is the caller's
        assert numbers(of_collection(data, None, checkpoint=tmp_path / "kept")) == serial  # by the client that is there
        # No worker is left: the error is ours, and comes in time.
        monkeypatch.setattr(engines, "GONE_AFTER", 2.0)
        engine._cluster.scale(0)
        with pytest.raises(EngineError, match="a Dask cluster that lives through a pass"):
            list(DaskEngine(client=client).map(abs, [1]))
        # The scheduler is gone.
        engine._cluster.close()
        with pytest.raises(EngineError, match="a Dask cluster that lives through a pass"):
            list(DaskEngine(client=client).map(abs, [1]))
    finally:
        engine.close()
    assert distributed.client._get_global_client() is None


@pytest.mark.filterwarnings("ignore")  # of its own use of pandas
def test_spark(parts: Path, serial: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it lives for seconds only
    engine = SparkEngine()
    try:
        stands(engine, parts, serial, tmp_path / "killed")
        data = engine.session.createDataFrame(pa.concat_tables(tables(parts)).to_pandas()).repartition(3)
        held = of_collection(data, engine.session)
        assert held.bound == pytest.approx(serial[0], abs=1e-9)  # its partitions are other blocks
        monkeypatch.setattr(engines, "GONE_AFTER", 3.0)
        kill_children("java")
        with pytest.raises(EngineError, match="a Spark session that lives through a pass"):
            list(engine.map(abs, [1]))
    finally:
        engine.close()


@pytest.mark.parametrize(("engine", "address"), [("ray", "127.0.0.1:1"), ("dask", "tcp://127.0.0.1:1"),
                                                 ("spark", "spark://127.0.0.1:1")])
def test_an_address_where_nobody_listens(engine: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and Spark wait for minutes; a scheduler that is on its way is waited for."""
    pytest.importorskip({"ray": "ray", "dask": "distributed", "spark": "pyspark"}[engine])
    monkeypatch.setattr(engines, "GONE_AFTER", 0.3)
    begin = time.monotonic()
    with pytest.raises(EngineError, match=f"got nobody who listens at {address}"):
        list(engine_of(engine, address).map(abs, [1]))  # type: ignore[union-attr]
    assert time.monotonic() - begin < 20.0  # it imports the engine


@pytest.mark.parametrize(("fails", "words"), [(True, r"Nanny failed to start\."), (False, "nothing for 0 seconds")])
def test_a_cluster_of_dask_that_does_not_start_is_started_again(fails: bool, words: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its processes was killed while it started, which it says or waits for."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    tried = []

    def start(**_: Any) -> Any:
        tried.append(1)
        if fails:
            raise RuntimeError("Nanny failed to start.")
        time.sleep(30.0)

    monkeypatch.setattr(engines, "GONE_AFTER", 0.1)
    monkeypatch.setattr(distributed, "LocalCluster", start)
    with pytest.raises(EngineError, match=f"a Dask cluster that lives through a pass; got {words}"):
        list(DaskEngine().map(abs, [1]))
    assert len(tried) == engines.TRIES


def killed_once(marker: str, block: int) -> int:
    """Ends its own process the first time that it meets block 2."""
    if block == 2:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return block * block
        os.kill(os.getpid(), signal.SIGKILL)
    return block * block


def test_a_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    engine = Processes(2)
    found = list(engine.map(partial(killed_once, str(tmp_path / "once")), range(6)))
    engine.close()
    assert found == [0, 1, 4, 9, 16, 25]


def test_a_process_that_is_killed_while_it_answers_holds_up_nobody(tmp_path: Path) -> None:
    engine = Processes(2)
    found = list(engine.map(partial(killed_while_it_answers, str(tmp_path / "once")), range(4)))
    engine.close()
    assert [len(one) for one in found] == [1 << 20] * 4


def killed_while_it_answers(once: str, block: int) -> bytes:
    """The first time that half of the answer is in the pipe the process is killed."""
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        for pipe in [one for one in gc.get_objects() if isinstance(one, Connection) and one.writable]:
            with suppress(OSError):
                os.write(pipe.fileno(), struct.pack("!i", 1 << 20) + b"half")
        time.sleep(60.0)
    except FileExistsError:
        pass
    return bytes(1 << 20)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_processes_end_with_their_driver(tmp_path: Path) -> None:
    script = ("import sys\nfrom klimb.rows.engines import Processes\nfrom tests.rows.test_engines import slow\n"
              "if __name__ == '__main__':\n    list(Processes(2).map(slow, [sys.argv[1]] * 2))\n")
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2])
    begin = time.monotonic()
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() - begin < 60.0:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    while any(map(runs, workers)) and time.monotonic() - begin < 120.0:
        time.sleep(0.05)
    assert not any(map(runs, workers))


def runs(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


def slow(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(1.0)


def test_workers_that_always_die_are_an_error_in_words() -> None:
    engine = Processes(1)
    with pytest.raises(EngineError, match=r"processes that live through a pass, in 3 tries.*fewer processes"):
        list(engine.map(_dies, [1]))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor, \
            pytest.raises(EngineError, match="workers that live through a pass"):
        list(ExecutorEngine(executor).map(_dies, [1]))


def _dies(block: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return block


def test_a_file_that_cannot_be_read_is_named(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "parts")
    broken = tmp_path / "parts" / "part-1.parquet"
    data = bytearray(broken.read_bytes())
    data[40:900] = b"\xff" * 860
    broken.write_bytes(bytes(data))
    for engine in (Here(), 2):
        with pytest.raises(InputError, match=r"part-1\.parquet|read"):
            fitted(tmp_path / "parts", engine)


def test_a_fit_that_was_cut_short_goes_on(parts: Path, tmp_path: Path, serial: list[float]) -> None:
    class Ends:
        """Fails in its sixth pass: three that learn, and two for the posterior, have ended."""

        passes = 0

        def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
            self.passes += 1
            for number, block in enumerate(blocks):
                if self.passes == 6 and number == 2:
                    raise KeyboardInterrupt
                yield function(block)

    with pytest.raises(KeyboardInterrupt):
        fitted(parts, Ends(), checkpoint=tmp_path / "kept")
    first, again, once_more = Here(), Here(), Here()
    assert numbers(fitted(parts, first)) == serial
    assert numbers(fitted(parts, again, checkpoint=tmp_path / "kept")) == serial
    assert again.passes == first.passes - 2  # those that are sums over sites; the formula is learnt anew
    assert numbers(fitted(parts, once_more, checkpoint=tmp_path / "kept")) == serial
    assert once_more.passes == 3  # for the formula; the integrals of levels are kept, those of the verdict's draws too
    with pytest.MonkeyPatch.context() as patch:  # what another version made of the rows is not taken for ours
        patch.setattr(klimb, "__version__", "0.0.1")
        assert numbers(fitted(parts, other := Here(), checkpoint=tmp_path / "kept")) == serial
    assert other.passes == first.passes
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:50])  # as after a full disk
    assert numbers(fitted(parts, Here(), checkpoint=tmp_path / "kept")) == serial


def test_a_callback_hears_of_every_block_and_stops_the_work(parts: Path, tmp_path: Path, serial: list[float],
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    assert numbers(fitted_with(parts, progress=told.append)) == serial
    blocks = [one for one in told if one.passes]
    assert [one.done for one in blocks[:6]] == [500, 1000, 1500, 2000, 2500, 3000]  # six blocks, taken as alike
    assert {one.total for one in blocks} == {N}
    assert len(blocks) == 6 * blocks[-1].passes
    assert np.isnan(blocks[0].bound)
    assert blocks[-1].bound == pytest.approx(serial[0])
    assert all(one.left >= 0.0 for one in blocks)
    with pytest.raises(StoppedError, match=r"a callback that returned False in pass 4\..*checkpoint="):
        fitted_with(parts, progress=lambda one: one.passes < 4, checkpoint=tmp_path / "kept")
    assert numbers(fitted_with(parts, checkpoint=tmp_path / "kept", progress=True)) == serial
    shown = capsys.readouterr().err
    assert re.search(r"rows of pass 1: [\d,]+ of about 3,000, [\d.]+ s, .* s left in this pass", shown)


def fitted_with(parts: Path, **more: Any) -> Any:
    return klimb.fit("y ~ x + (1 | g)", str(parts / "part-*.parquet"), "bernoulli", hyper="fixed", engine=Here(),
                     **more)


def test_what_an_engine_may_be() -> None:
    assert as_engine(None) is None
    assert isinstance(as_engine(3), Processes)
    assert isinstance(engine_of("2", None), Processes)
    here = Here()
    assert as_engine(here) is here
    for bad in ("spork", 0, True, object()):
        with pytest.raises(InputError, match='engine must be "ray", "dask", "spark", a number of processes'):
            as_engine(bad)
    with pytest.raises(InputError, match="an address belongs to an engine"):
        engine_of("2", "tcp://elsewhere:8786")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name, engine in (("ray", RayEngine), ("distributed", DaskEngine), ("pyspark.sql", SparkEngine)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=rf'needs {name}.*pip install "klimb\['):
            engine()
