"""Tables by path, folder, glob and iterator: what is read, and what is said where nothing can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as parquet
import pytest
from pyarrow import fs

from klimb.errors import InputError
from klimb.rows import gather
from klimb.rows.blocks import FileTable
from klimb.rows.scans import BatchRows, LazyRows, as_table, scan

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
    with pytest.raises(InputError, match=r"read to their end; got .*part-1\.parquet"):
        gather.gather(as_table(str(folder / "part-*.parquet")), gather.Wanted(("y",), "y", cells=True))
    with pytest.raises(InputError, match="batches of Arrow"):
        as_table(iter([np.ones(3)]))


@pytest.mark.parametrize(("one", "other", "kinds"), [
    ([True, False], [0.3, 0.4], "True and False in .*part-0.parquet, numbers in .*part-1"),
    ([1.0, 2.0], ["0.5", "2.5"], "numbers in .*part-0.parquet, text in .*part-1"),
    (["a", "b"], [1, 2], "text in .*part-0.parquet, numbers in .*part-1")])
@pytest.mark.parametrize("read", ["collect", "blocks", "tally", "first"])
def test_files_that_differ_in_kind_are_not_read_as_the_first(tmp_path: Path, one: list[object], other: list[object],
                                                             kinds: str, read: str) -> None:
    """Arrow turns 0.3 into True, and the text 0.5 into a number; columns that are not asked for may be anything."""
    for k, values in enumerate((one, other)):
        parquet.write_table(pa.table({"x": values, "y": [0, 1]}), tmp_path / f"part-{k}.parquet")
    found = as_table(tmp_path)
    assert isinstance(found, BatchRows)
    by = gather.Wanted(("x", "y"), "y").keys(None)
    with pytest.raises(InputError, match=f"'x' must be of one kind in all rows; got {kinds}"):
        {"collect": found.collect, "blocks": found.blocks, "tally": lambda _: found.tally(by),
         "first": lambda names: found.first(names, 3)}[read](["x", "y"])
    assert found.collect(["y"]).column("y").tolist() == [0, 1, 0, 1]


def test_one_column_whose_types_differ_does_not_decide_for_others(tmp_path: Path) -> None:
    """Text and levels have no type of both in Arrow; x, which is whole in the first file, is not in the second."""
    texts = pa.array(["a", "b"])
    parquet.write_table(pa.table({"x": [1, 2], "g": texts}), tmp_path / "part-0.parquet")
    parquet.write_table(pa.table({"x": [0.5, 1.5], "g": texts.dictionary_encode()}), tmp_path / "part-1.parquet")
    found = as_table(tmp_path).collect(["x", "g"])  # type: ignore[union-attr]
    assert found.column("x").tolist() == [1.0, 2.0, 0.5, 1.5]
    assert found.column("g").tolist() == ["a", "b", "a", "b"]


def test_csv_has_no_types_that_could_differ(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("g\n01\n2\n")
    (tmp_path / "b.csv").write_text("g\nx\n")
    assert as_table(tmp_path).collect(["g"]).column("g").tolist() == ["01", "2", "x"]  # type: ignore[union-attr]


def test_a_file_that_breaks_on_the_way_is_named(folder: Path) -> None:
    path = folder / "part-1.parquet"
    kept = path.read_bytes()
    end = 8 + int.from_bytes(kept[-8:-4], "little")  # what the file knows of its pages stays as it is
    path.write_bytes(b"\xff" * (len(kept) - end) + kept[-end:])
    by = gather.Wanted(("g",), "g").keys(None)
    for read in (lambda found: found.collect(["g"]), lambda found: found.tally(by)):
        with pytest.raises(InputError, match=r"read to their end; got .*part-1\.parquet"):
            read(as_table(folder))


def test_streams_that_change_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers and then others are numbers; text after numbers, or a column less, is an error in our words."""
    monkeypatch.setattr("klimb.rows.scans.CHUNK", 2)

    def stream(**other: object) -> BatchRows:
        found = as_table(iter([pa.table({"x": [1, 2], "y": [0, 1]}), pa.table(other)]))
        assert isinstance(found, BatchRows)
        return found

    table = stream(x=[0.5, 1.5], y=[1, 1]).blocks(["x", "y"])
    found = [frame.column("x") for block in table.blocks for frame in block.frames(["x"], 9)]
    assert np.concatenate(found).tolist() == [1.0, 2.0, 0.5, 1.5]
    for other, words in (({"x": ["a", "b"], "y": [1, 1]}, "one kind in all rows"), ({"y": [1]}, "the same columns")):
        for read in ("blocks", "collect"):
            with pytest.raises(InputError, match=words):
                getattr(stream(**other), read)(["x", "y"])


def test_what_cannot_be_grouped_is_said(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [[1.0], [2.0]]}), tmp_path / "part-0.parquet")
    with pytest.raises(InputError, match="'x' must hold numbers, booleans, text or categories; got values such as"):
        gather.gather(as_table(tmp_path), gather.Wanted(("x",), "x", cells=True))


def test_lazy_frames_are_not_read_before_they_are_asked() -> None:
    pl = pytest.importorskip("polars")

    def refuse(_: object) -> object:
        raise AssertionError("read too soon")

    lazy = pl.LazyFrame({"y": [1.0]}).map_batches(refuse, schema={"y": pl.Float64})
    assert isinstance(as_table(lazy), LazyRows)


def test_addresses_and_filesystems_of_arrow(folder: Path) -> None:
    here = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    memory = fsspec_memory()
    for path, where in ((f"file://{folder}", None), (f"file://{folder}/part-*.parquet", None), ("", here),
                        ("part-*.parquet", here), ("part-[01].parquet", here), ("/klimb/rows.parquet", memory)):
        found = scan(path, filesystem=where)
        rows = {"part-[01].parquet": 8, "/klimb/rows.parquet": 4}.get(path, 12)
        assert found.collect(["g", "y"]).n == rows
        assert isinstance(table := found.blocks(["y", "g"]), FileTable)
        assert sum(frame.n for block in table.blocks for frame in block.frames(["y", "g"], 3)) == rows
    with pytest.raises(InputError, match="Nothing is there"):
        scan(f"file://{folder}/none-*.parquet")
    with pytest.raises(InputError, match=r"an address that Arrow knows; got 'foo://b': .*foo"):
        scan("foo://b")


def fsspec_memory() -> object:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    with memory.open("/klimb/rows.parquet", "wb") as stream:
        parquet.write_table(TABLE, stream)
    return memory


def test_rows_are_chosen_where_they_are_read(tmp_path: Path) -> None:
    x = np.arange(3000)
    parquet.write_table(pa.table({"x": x, "z": x % 7}), tmp_path / "rows.parquet", row_group_size=1000)
    for where in ([("x", ">=", 2100), ("z", "!=", 0)], (pc.field("x") >= 2100) & (pc.field("z") != 0)):
        found = scan(tmp_path / "rows.parquet", where=where)
        chosen = x[(x >= 2100) & (x % 7 != 0)]
        assert found.count() == len(chosen)
        assert found.collect(["x"]).column("x").tolist() == chosen.tolist()
        table = found.blocks(["x"])
        assert len(table.blocks) == 1  # by the ranges that Parquet keeps, two of three row groups are not read
        assert table.n == len(chosen)
        read = [frame.column("x") for block in table.blocks for frame in block.frames(["x"], 100)]
        assert np.concatenate(read).tolist() == chosen.tolist()
        assert table.whole(["x"]).column("x").tolist() == chosen.tolist()
        assert found.first(["x"], 5).n <= 5


def test_files_that_cannot_be_read_are_left_out_by_choice(folder: Path) -> None:
    (folder / "part-1.parquet").write_bytes((folder / "part-1.parquet").read_bytes()[:-20])
    paths = [folder / f"part-{k}.parquet" for k in range(4)]  # the last is not there
    with pytest.raises(InputError, match=r"part-[13]\.parquet.*unreadable=\"skip\""):
        scan(paths).count()
    found = scan(paths, unreadable="skip")
    assert found.count() == 8
    assert [Path(name).name for name in found.left_out] == ["part-1.parquet", "part-3.parquet"]
    with pytest.raises(InputError, match="files of which some can be read"):
        scan(paths[3:], unreadable="skip")
    with pytest.raises(InputError, match='unreadable must be "error" or "skip"'):
        scan(paths, unreadable="drop")


def test_files_that_change_while_they_are_passed_over_are_refused(folder: Path) -> None:
    table = as_table(folder).blocks(["y", "g"])  # type: ignore[union-attr]
    assert [frame.n for block in table.blocks for frame in block.frames(["g"], 9)] == [4, 4, 4]
    parquet.write_table(TABLE.slice(1), folder / "part-1.parquet")
    with pytest.raises(InputError, match=r"stay as they are.*part-1\.parquet, which has changed"):
        [frame.n for block in table.blocks for frame in block.frames(["g"], 9)]
