"""Tables by path, folder, glob and iterator: what is read, and what is said where nothing can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as parquet
import pytest

from klimb.errors import InputError
from klimb.rows import gather
from klimb.rows.scans import BatchRows, LazyRows, as_table

TABLE = pa.table({"y": [0, 1, None, 1], "g": ["a", "NA", "b", "a"], "unused": [1.0, 2.0, 3.0, 4.0]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(3):
        parquet.write_table(TABLE, tmp_path / f"part-{k}.parquet")
    return tmp_path


def test_files_by_name_by_folder_and_by_glob(folder: Path) -> None:
    for path, rows in ((folder / "part-0.parquet", 4), (folder, 12), (str(folder / "part-*.parquet"), 12)):
        scan = as_table(path)
        assert isinstance(scan, BatchRows)
        assert scan.columns == ("y", "g", "unused")
        found = scan.collect(["g", "y"])
        assert found.n == rows
        assert set(found.columns) == {"g", "y"}
        assert scan.head(["y"], rows - 1) is None
        assert scan.head(["y"], rows) is not None


def test_folders_named_by_a_value_have_it_as_a_column(tmp_path: Path) -> None:
    pyarrow.dataset.write_dataset(TABLE, tmp_path, format="parquet", partitioning=["g"], partitioning_flavor="hive")
    assert set(as_table(tmp_path).columns) == {"y", "g", "unused"}


def test_csv_knows_words_for_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,g\n1,a\n?,NA\n3,\n")
    scan = as_table(tmp_path / "t.csv")
    assert isinstance(scan, BatchRows)
    found = scan.collect(["y", "g"])
    assert found.read("y").lost.tolist() == [False, True, False]
    assert found.read("g").lost.tolist() == [False, True, True]


def test_what_cannot_be_read_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="Nothing is there"):
        as_table(folder / "absent-*.parquet")
    (folder / "part-3.csv").write_text("y\n1\n")
    with pytest.raises(InputError, match="files of one kind"):
        as_table(folder)
    (folder / "part-1.parquet").write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(InputError, match=r"Arrow can read; got .*part-1\.parquet"):
        gather.gather(as_table(str(folder / "part-*.parquet")), gather.Wanted(("y",), "y", cells=True))
    with pytest.raises(InputError, match="batches of Arrow"):
        as_table(iter([np.ones(3)]))


def test_lazy_frames_are_not_read_before_they_are_asked() -> None:
    pl = pytest.importorskip("polars")

    def refuse(_: object) -> object:
        raise AssertionError("read too soon")

    lazy = pl.LazyFrame({"y": [1.0]}).map_batches(refuse, schema={"y": pl.Float64})
    assert isinstance(as_table(lazy), LazyRows)
