"""Reading tables: what is inferred, what is refused and how, and that memory stays bounded."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import random
import string
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from klimb.cli.tables.read import MISSING, ReadOptions, read_table, stream_table
from klimb.errors import InputError


def written(tmp_path: Path, text: str | bytes, name: str = "data.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return str(path)


def test_kinds_are_inferred(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,b,c,d,e\n1,x,TRUE,,1e-3\n2.5,y,false,,\n,NA,True,NA,-inf\n"))
    assert table.n == 3
    np.testing.assert_array_equal(table.columns["a"], [1.0, 2.5, np.nan])
    assert table.columns["b"].tolist() == ["x", "y", None]
    assert table.columns["c"].dtype == bool
    assert np.isnan(table.columns["d"]).all()
    np.testing.assert_array_equal(table.columns["e"], [1e-3, np.nan, -np.inf])


def test_missing_booleans_are_none(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "a,b\ntrue,1\n?,2\nFALSE,3\n")).columns["a"].tolist() == [True, None, False]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends(tmp_path: Path, mark: str, end: str) -> None:
    text = end.join([mark.join(row) for row in (["y", "a b", "größe"], ["1", "p", "2"], ["3", '"q"', "4"])])
    table = read_table(written(tmp_path, text))
    assert table.header == ("y", "a b", "größe")
    np.testing.assert_array_equal(table.columns["größe"], [2.0, 4.0])
    assert table.columns["a b"].tolist() == ["p", "q"]


def test_a_mark_inside_quotes_is_text(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, '"name, full",x\n"Doe, J ""Jo""",1\n"line\nbreak",2\n'))
    assert table.header == ("name, full", "x")
    assert table.columns["name, full"].tolist() == ['Doe, J "Jo"', "line\nbreak"]


@pytest.mark.parametrize("encoded", [
    "\ufeffé,x\n1,2\n".encode(), "é,x\n1,2\n".encode("utf-16"), gzip.compress("é,x\n1,2\n".encode())],
    ids=["utf-8", "utf-16", "gzip"])
def test_marks_of_encoding_and_gzip(tmp_path: Path, encoded: bytes) -> None:
    assert read_table(written(tmp_path, encoded)).header == ("é", "x")


def test_other_encodings(tmp_path: Path) -> None:
    path = written(tmp_path, "é,x\n1,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"0xe9.*--encoding latin-1"):
        read_table(path)
    assert read_table(path, options=ReadOptions(encoding="latin-1")).header == ("é", "x")
    with pytest.raises(InputError, match="nonsense"):
        read_table(path, options=ReadOptions(encoding="nonsense"))


def test_only_chosen_columns_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,b\n1,oops,2\n1,3,4\n")
    table = read_table(path, lambda header: ["a"])
    assert list(table.columns) == ["a"]
    assert table.header == ("a", "b", "b")
    with pytest.raises(InputError, match=r"'b' for the columns 2, 3"):
        read_table(path)


def numbers_then(word: str, rows: int = 30) -> str:
    return "x,y\n" + "".join(f"{word if i == 21 else i},1\n" for i in range(rows))


def test_a_word_among_numbers_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, numbers_then("n.a."))
    with pytest.raises(InputError, match=r"column 'x' holds numbers in 29 of 30 rows; got 'n.a.' in row 21"):
        read_table(path)
    table = read_table(path, options=ReadOptions(missing=MISSING | {"n.a."}))
    assert np.isnan(table.columns["x"][21])
    assert read_table(path, options=ReadOptions(kinds={"x": "text"})).columns["x"][21] == "n.a."


def test_a_word_after_the_first_chunk_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y\n" + "1,true\n" * 300 + "oops,true\n")
    with pytest.raises(InputError, match=r"'oops' in row 300"):
        read_table(path, options=ReadOptions(cells=1))
    path = written(tmp_path, "x,y\n" + "1,true\n" * 300 + "1,maybe\n")
    with pytest.raises(InputError, match=r"true and false in the first 300 rows; got 'maybe'"):
        read_table(path, options=ReadOptions(cells=1))


def test_identifiers_are_not_numbers(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "id,x\n12_3,1\n4_5,2\n")).columns["id"].tolist() == ["12_3", "4_5"]


def test_decimal_commas(tmp_path: Path) -> None:
    path = written(tmp_path, 'x;name\n1,5;"a,b"\n2,25;c\n')
    with pytest.raises(InputError, match="--decimal ,"):
        read_table(path)
    table = read_table(path, options=ReadOptions(decimal=","))
    np.testing.assert_array_equal(table.columns["x"], [1.5, 2.25])
    assert table.columns["name"].tolist() == ["a,b", "c"]


@pytest.mark.parametrize(("text", "words"), [
    ("", "an empty file"),
    ("\n\n", "an empty file"),
    ("a,b\n1,2\n3\n", r"1 in row 1 \(line 3\)"),
    ("a,b\n1,2,3\n", r"3 in row 0 \(line 2\).*row names"),
    ("a,b\n1,2\n3,4,5,6\n", r"4 in row 1"),
    ('a,b\n1,"2\n' + "3,4\n" * 50_000, r"closed quotes.*line 2 that is open"),
    ('a,b\n1,2\n3,"4', r"closed quotes.*line 3 that is open"),
    ("a,b\n1," + "x" * 200_000 + "\n", r"'x{60}'\.\.\. \(200000 characters\) in row 0"),
    ("a,b\n" + "x" * 200_000 + "\n", r"begins 'x{60}'\.\.\. \(200000 characters\)"),
    ("a,b\n1,\x00\n", r"'\\x00'|null bytes"),
])
def test_broken_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_table(written(tmp_path, text), options=ReadOptions(kinds={"b": "number"}))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("limit", [10, 1 << 17])
def test_cells_are_as_long_as_they_are_whatever_the_limit_of_csv(tmp_path: Path, limit: int) -> None:
    long = "word " * 30_000 + "end"
    before = csv.field_size_limit(limit)
    try:
        table = read_table(written(tmp_path, f'a,b\n1,"{long}"\n2,short'))
        assert csv.field_size_limit() == limit  # as others left it
    finally:
        csv.field_size_limit(before)
    assert table.columns["b"].tolist() == [long, "short"]


def test_a_header_alone_is_no_rows(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,b\n"))
    assert (table.n, table.header) == (0, ("a", "b"))
    assert [part.n for part in stream_table(written(tmp_path, "a,b\n"))] == [0]


def test_directories_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        read_table(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        read_table(str(tmp_path / "absent.csv"))


def test_pieces_make_the_whole(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [(draw.gauss(0, 1), draw.choice(["a", "b", "NA"]), draw.choice(["true", ""])) for _ in range(1000)]
    path = written(tmp_path, "x,g,t\n" + "".join(f"{x!r},{g},{t}\n" for x, g, t in rows))
    whole = read_table(path)
    parts = list(stream_table(path, options=ReadOptions(cells=1)))
    assert len(parts) == 4
    assert [part.first for part in parts] == [0, 256, 512, 768]
    for name in whole.header:
        joined = np.concatenate([part.columns[name] for part in parts])
        assert all(a == b or (a != a and b != b) for a, b in zip(whole.columns[name], joined, strict=True))
    np.testing.assert_array_equal(whole.columns["x"], [x for x, _, _ in rows])


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Thirty wide columns pass by; one of numbers is kept: what is held is that column and one chunk of text."""
    path = tmp_path / "wide.csv"
    wide = ",".join("w" * 30 for _ in range(30))
    with path.open("w") as stream:
        stream.write("x," + ",".join(f"c{i}" for i in range(30)) + "\n")
        stream.writelines(f"{i}.5,{wide}\n" for i in range(20_000))
    tracemalloc.start()
    try:
        table = read_table(str(path), lambda header: ["x"], ReadOptions(cells=1 << 14))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.n == 20_000
    assert path.stat().st_size > 18e6
    assert peak < 4e6


def test_npz(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, y=np.arange(3.0), X=np.ones((3, 2)), g=np.array(["a", "b", "a"]))
    table = read_table(path)
    assert table.header == ("y", "X1", "X2", "g")
    np.savez(path, y=np.arange(3.0), x=np.ones(2))
    with pytest.raises(InputError, match="y: 3, x: 2"):
        read_table(path)
    np.savez(path, y=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="pickle"):
        read_table(path)
    with pytest.raises(InputError, match="should be a npz file"):
        read_table(written(tmp_path, "a,b\n1,2\n", "b.npz"))
    with pytest.raises(InputError, match="arrays of numbers"):
        read_table(written(tmp_path, b"PK\x03\x04rubbish", "c.npz"))


def test_svmlight(tmp_path: Path) -> None:
    text = "# comment\n+1 1:0.5 3:2 # tail\n-1 qid:4 2:1e-3\n\n"
    table = read_table(written(tmp_path, text, "a.svm"))
    assert table.header == ("y", "x1", "x2", "x3")
    np.testing.assert_array_equal(np.column_stack([table.columns[name] for name in table.header]),
                                  [[1, 0.5, 0, 2], [-1, 0, 1e-3, 0]])
    assert list(read_table(written(tmp_path, text, "a.svm"), lambda header: ["x3"]).columns) == ["x3"]
    with pytest.raises(InputError, match="'1 oops' in line 2"):
        read_table(written(tmp_path, "1 1:2\n1 oops\n", "b.svm"))


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"x": pa.array([1, None, 3]), "g": pa.array(["a", None, "b"]).dictionary_encode(),
                                  "t": [True, False, True], "u": ["unused"] * 3}), path)
    table = read_table(path, lambda header: ["x", "g", "t"])
    np.testing.assert_array_equal(table.columns["x"], [1.0, np.nan, 3.0])
    assert table.columns["g"].tolist() == ["a", None, "b"]
    assert table.columns["t"].dtype == bool
    assert table.header == ("x", "g", "t", "u")
    assert sum(part.n for part in stream_table(path, options=ReadOptions(cells=1))) == 3
    with pytest.raises(InputError, match="Parquet"):
        read_table(written(tmp_path, b"PAR1 rubbish", "b.parquet"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"klimb\[parquet\]"):
        read_table(written(tmp_path, b"PAR1", "b.parquet"))


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_are_a_table_or_an_input_error(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    letters = 'ab1.,;\t\n\r" |-?' if seed % 2 else string.printable + "é\x00\ufeff"
    text = "".join(draw.choice(letters) for _ in range(draw.randint(0, 300)))
    data: Any = text.encode() if seed % 3 else draw.randbytes(200)
    name = draw.choice(["a.csv", "a.svm", "a.npz", "a.parquet", "a.csv.gz"])
    with contextlib.suppress(InputError):
        read_table(written(tmp_path, data, name))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n"))
    monkeypatch.setattr("sys.stdin", stream)
    assert read_table("-").header == ("a", "b")
    assert not stream.closed
