"""Caches: the same bits as the files, blocks that are sent as places, nothing that is unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
from klimb.rows.blocks import ArrayTable
from klimb.rows.checkpoint import Checkpoint
from klimb.rows.maps import read_cache
from klimb.rows.scans import as_table

N = 2500


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    rng = np.random.default_rng(8)
    x, g = rng.standard_normal(N), rng.choice(["a", "b", "c"], N)
    table = pa.table({"y": rng.random(N) < 0.4, "x": pa.array(np.where(x > 2.0, None, x)), "n": rng.integers(0, 4, N),
                      "g": pa.array(np.where(rng.random(N) < 0.02, None, g)), "day": pa.array([0] * N, pa.date32())})
    (tmp_path / "parts").mkdir()
    for k in range(2):
        parquet.write_table(table.slice(k * 1250, 1250), tmp_path / "parts" / f"{k}.parquet", row_group_size=700)
    return tmp_path / "parts"


class Here:
    def map(self, function: Any, blocks: Any, /) -> Any:
        return map(function, blocks)


def numbers(data: Any, engine: Any) -> list[float]:
    fit = klimb.fit("y ~ x + n + (1 | g)", data, "bernoulli", engine=engine, hyper="fixed", progress=False, cells=False)
    return [fit.n, fit.bound, *fit.components.parts[0].mean]


def test_a_fit_of_the_cache_has_the_bits_of_one_of_the_files(parts: Path, tmp_path: Path) -> None:
    kept = klimb.cache(parts, tmp_path / "kept", ["y", "x", "n", "g"])
    assert numbers(str(kept), Here()) == numbers(str(parts), Here())
    frame = as_table(kept)
    blocks = ArrayTable(frame, ["y", "x", "n", "g"]).blocks  # type: ignore[arg-type]
    assert [len(block.columns["x"]) for block in blocks] == [700, 550, 700, 550]
    sent = pickle.dumps(blocks[1])
    assert len(sent) < 3000  # where the numbers are, not what they are
    for name in ("y", "x", "n", "g"):
        one, other = pickle.loads(sent).columns[name], blocks[1].columns[name]
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.lost, other.lost)
    with pytest.raises(InputError, match=r"a cache holds numbers, booleans and text; got column 'day' \(date\)"):
        klimb.cache(parts, tmp_path / "no")
    with pytest.raises(InputError, match="'z'"):
        klimb.cache(parts, tmp_path / "no", ["z"])


def test_memory_maps_are_sent_as_places(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000.0))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = ArrayTable(as_table({"x": x, "y": np.zeros(1000)}), ["x", "y"])  # type: ignore[arg-type]
    block = pickle.loads(pickle.dumps(table.blocks[0]))
    assert block.columns["x"].values.tolist() == x.tolist()
    assert len(pickle.dumps(ArrayTable(as_table({"x": x}), ["x"]).blocks[0])) < 1000  # type: ignore[arg-type]


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(parts: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = np.array([Evil(mark)] * N, dtype=object)
    kept = klimb.cache(parts, tmp_path / "kept", ["y", "x"])
    np.save(kept / "0.npy", evil, allow_pickle=True)
    with pytest.raises(InputError, match="a folder that klimb cache wrote"):
        read_cache(kept).read("y")
    folder = Checkpoint(tmp_path / "sums", ["rows"])
    np.savez(folder.path("pass"), value=evil)
    assert folder.kept(lambda: {"value": np.ones(2)}, "pass")["value"].tolist() == [1.0, 1.0]
    assert not mark.exists()
    np.load(kept / "0.npy", allow_pickle=True)  # what it would have done
    assert mark.exists()


def test_a_file_is_no_folder_for_a_cache(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"a folder that can be written to; got .*file: File exists"):
        klimb.cache(str(parts), tmp_path / "file")


def test_a_broken_cache_is_refused(parts: Path, tmp_path: Path) -> None:
    kept = klimb.cache(parts, tmp_path / "kept", ["y", "x"])
    np.save(kept / "1.npy", np.zeros(3))
    with pytest.raises(InputError, match="3 values of 'x' for 2500 rows"):
        read_cache(kept).read("x")
    contents = kept / "klimb-cache.json"
    contents.write_text(json.dumps({**json.loads(contents.read_text()), "version": 99}))
    with pytest.raises(InputError, match="version 99"):
        as_table(kept)
    contents.write_text("{")
    with pytest.raises(InputError, match="Write it again"):
        as_table(kept)
