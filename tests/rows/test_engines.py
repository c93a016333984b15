"""The same bits from every engine, on real local clusters of two processes; losses and errors come in our words."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
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


def test_ray_gives_the_same_bits(parts: Path, serial: list[float]) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    assert numbers(fitted(parts, "ray")) == serial
    assert not ray.is_initialized()  # what was started for the fit has ended


def test_dask_gives_the_same_bits(parts: Path, serial: list[float]) -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    assert numbers(fitted(parts, "dask")) == serial


@pytest.mark.filterwarnings("ignore")  # of its own use of pandas
def test_spark_gives_the_same_bits(parts: Path, serial: list[float]) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime")
    assert numbers(fitted(parts, "spark")) == serial


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
        """Fails in its fourth pass."""

        passes = 0

        def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
            self.passes += 1
            for number, block in enumerate(blocks):
                if self.passes == 4 and number == 2:
                    raise KeyboardInterrupt
                yield function(block)

    with pytest.raises(KeyboardInterrupt):
        fitted(parts, Ends(), checkpoint=tmp_path / "kept")
    first, again, once_more = Here(), Here(), Here()
    assert numbers(fitted(parts, first)) == serial
    assert numbers(fitted(parts, again, checkpoint=tmp_path / "kept")) == serial
    assert again.passes == first.passes - 2  # those that are sums over sites; moments are taken anew
    assert numbers(fitted(parts, once_more, checkpoint=tmp_path / "kept")) == serial
    assert once_more.passes == 2  # the moments, and the draws of the verdict
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:50])  # as after a full disk
    assert numbers(fitted(parts, Here(), checkpoint=tmp_path / "kept")) == serial


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
