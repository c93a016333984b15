"""The published files as they are: LIBSVM, UCI, CSV, ARFF, npz, compressed or not; and what is wrong with others."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from pathlib import Path

import numpy as np
import pytest

from klimb.apps.papers.data import CATALOGUE, Library
from klimb.errors import InputError


def write(folder: Path, files: dict[str, str]) -> Library:
    for name, text in files.items():
        (folder / name).write_text(text)
    return Library(folder)


def test_libsvm_in_two_parts(tmp_path: Path) -> None:
    library = write(tmp_path, {"a1a": "-1 3:1 11:1 \n+1 1:0.5 123:1\n", "a1a.t": "# a comment\n+1 2:1\n\n-1\n"})
    data = library.load("a1a")
    assert data.X.shape == (4, 123)
    assert data.X[1, 0] == 0.5
    assert data.X[1, 122] == 1.0
    np.testing.assert_array_equal(data.y, [-1, 1, 1, -1])
    np.testing.assert_array_equal(data.train, [True, True, False, False])
    assert data.dense.shape == (4, 123)
    assert library.load("a1a") is data  # read once


@pytest.mark.parametrize(("ending", "opener"), [(".bz2", bz2.open), (".gz", gzip.open), (".xz", lzma.open)])
def test_compressed(ending: str, opener: object, tmp_path: Path) -> None:
    with opener(tmp_path / f"colon-cancer{ending}", "wt") as stream:  # type: ignore[operator]
        stream.write("1 1:-0.25 2000:2\n-1 2:1\n")
    data = Library(tmp_path).load("colon")
    assert data.X.shape == (2, 2000)
    assert isinstance(data.X, np.ndarray)
    np.testing.assert_array_equal(data.y, [1, -1])
    assert Library(tmp_path).facts("colon")["files"] == [f"colon-cancer{ending}"]


def test_uci_tables(tmp_path: Path) -> None:
    library = write(tmp_path, {
        "ionosphere.data": "1,0,0.99539,g\n1,0,-0.2,b\n",
        "sonar.all-data": "0.02,0.0371,R\n0.0453,0.0523,M\n",
        "housing.data": " 0.00632  18.00   2.310  24.00\n 0.02731   0.00   7.070  21.60\n",
        "german.data-numeric": "   1   6   4   2 \n   2  48   2   1 \n",
        "abalone.data": "M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\nI,0.33,0.25,0.08,0.2,0.09,0.04,0.055,7\n",
        "flare.data2": ("*** : From FLARES\nH A X 1 3 1 1 1 1 1 0 0 0\nD R O 1 3 1 1 2 1 1 2 0 0\n"),
    })
    np.testing.assert_array_equal(library.load("ionosphere").y, [1, -1])
    np.testing.assert_array_equal(library.load("sonar").y, [-1, 1])
    np.testing.assert_array_equal(library.load("boston").y, [24.0, 21.6])
    assert library.load("boston").X.shape == (2, 3)
    np.testing.assert_array_equal(library.load("german").y, [1, -1])
    abalone = library.load("abalone")
    assert abalone.X.shape == (2, 10)
    np.testing.assert_array_equal(abalone.X[:, :3], [[0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(abalone.y, [15, 7])
    flares = library.load("flares")
    assert flares.X.shape == (2, 2 + 2 + 2 + 7)
    np.testing.assert_array_equal(flares.y, [0, 2])


def test_the_challenge_files(tmp_path: Path) -> None:
    row = " ".join(["1"] + ["0"] * 9999)
    library = write(tmp_path, {
        "arcene_train.data": f"{row}\n{row}\n", "arcene_train.labels": "1\n-1\n",
        "arcene_valid.data": f"{row}\n", "arcene_valid.labels": "-1\n",
        "dexter_train.data": "1:3 20000:7 \n", "dexter_train.labels": "1\n",
        "dexter_valid.data": "2:1\n", "dexter_valid.labels": "-1\n"})
    arcene = library.load("arcene")
    assert arcene.X.shape == (3, 10_000)
    np.testing.assert_array_equal(arcene.train, [True, True, False])
    dexter = library.load("dexter")
    assert dexter.X.shape == (2, 20_000)
    assert dexter.X[0, 19_999] == 7.0
    assert not library.has("gisette")


def test_digits_from_either_source(tmp_path: Path) -> None:
    def pixels(first: float) -> str:
        return " ".join([f"{first}"] + ["-1"] * 255)

    zips = write(tmp_path, {"zip.train": f"3.0 {pixels(0.5)}\n5.0 {pixels(0.1)}\n", "zip.test": f"7 {pixels(1)}\n"})
    np.testing.assert_array_equal(zips.load("usps").y, [3, 5, 7])
    both = zips.load("usps_3vs5")
    np.testing.assert_array_equal(both.y, [1, -1])
    assert both.X[0, 0] == 0.5
    other = tmp_path / "libsvm"
    other.mkdir()
    svm = write(other, {"usps": "4 1:0.5 256:-1\n6 1:0.1\n", "usps.t": "8 1:1\n"})  # labels are digit + 1
    np.testing.assert_array_equal(svm.load("usps").y, [3, 5, 7])
    np.testing.assert_array_equal(svm.load("usps_3vs5").train, [True, True])


def test_csv_and_arff(tmp_path: Path) -> None:
    library = write(tmp_path, {
        "nodal.csv": '"rownames","m","r","aged","stage","grade","xray","acid"\n1,1,1,0,1,1,1,1\n2,1,0,1,0,0,0,0\n',
        "stock.arff": "% stock\n@relation stock\n@attribute a real\n@data\n1.5,2,3\n4,5,6\n",
        "triazines.csv": "a,b,y\n1,2,0.5\n\n3,4,0.7\n"})
    nodal = library.load("nodal")
    assert nodal.X.shape == (2, 6)
    np.testing.assert_array_equal(nodal.X[:, 0], 1.0)
    np.testing.assert_array_equal(nodal.y, [1, -1])
    np.testing.assert_array_equal(library.load("stock").y, [3, 6])
    np.testing.assert_array_equal(library.load("triazines").y, [0.5, 0.7])


def test_nodal_as_shipped_elsewhere(tmp_path: Path) -> None:
    library = write(tmp_path, {"nodal.csv": "aged,stage,y\n0,1,1\n1,0,0\n"})
    np.testing.assert_array_equal(library.load("nodal").X, [[1, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize(("files", "name", "words"), [
    ({"a1a": "1 2:x\n", "a1a.t": "1 1:1\n"}, "a1a", r"lines label.*'1 2:x' in line 1. Take a1a"),
    ({"a1a": "1 124:1\n", "a1a.t": "1 1:1\n"}, "a1a", "from 1 to 123; got feature 124"),
    ({"a1a": "1 0:1\n", "a1a.t": "1 1:1\n"}, "a1a", "number its features from 1"),
    ({"a1a": "", "a1a.t": "1 1:1\n"}, "a1a", "at least one row"),
    ({"sonar.all-data": "0.1,0.2,X\n"}, "sonar", "one of M, R at the end"),
    ({"sonar.all-data": "0.1,0.2,R\n0.1,M\n"}, "sonar", "2 numbers in every line.*line 2"),
    ({"sonar.all-data": "a,0.2,R\n"}, "sonar", "hold numbers"),
    ({"housing.data": "1 2 3\n1 2\n"}, "boston", "3 numbers in every line.*line 2"),
    ({"flare.data2": "* x\nH A X 1\n"}, "flares", "ten whole numbers in every line.*line 2"),
    ({"flare.data2": "* x\nH A X 1 2 3 4 5 6 7 0 0 none\n"}, "flares", "ten whole numbers in every line.*line 2"),
    ({"flare.data2": "* x\n"}, "flares", "at least one row"),
    ({"abalone.data": "M,1,2,3,4,5,6,7,8\nM,1,2\n"}, "abalone", "a letter and eight numbers.*line 2"),
    ({"abalone.data": "X,1,2,3,4,5,6,7,8\n"}, "abalone", "a letter and eight numbers.*line 1"),
    ({"abalone.data": "M,1,2,3,4,5,6,7,?\n"}, "abalone", "a letter and eight numbers.*line 1"),
    ({"abalone.data": ""}, "abalone", "at least one row"),
    ({f"dexter_{part}.{kind}": "20001:3\n" for part in ("train", "valid") for kind in ("data", "labels")}, "dexter",
     "number its features from 1 to 20000; got feature 20001"),
    ({"nodal.csv": "a,b\n1,2\n"}, "nodal", "column y or r; got a, b"),
    ({"nodal.csv": ""}, "nodal", "an empty file"),
    ({"nodal.csv": "a,y\n"}, "nodal", "at least one row.*line 2"),
    ({"triazines.csv": "a,y\n1,zwei\n"}, "triazines", "numbers below the heading.*line 2"),
    ({"triazines.csv": "a,y\nnan,1\n"}, "triazines", "X of triazines must be finite"),
    ({"stock.npz": "this is no npz"}, "stock", "npz file of plain arrays"),
])
def test_what_is_wrong_is_said(files: dict[str, str], name: str, words: str, tmp_path: Path) -> None:
    library = write(tmp_path, files)
    with pytest.raises(InputError, match=words):
        library.load(name)


def test_npz_without_the_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "sonar.npz", Z=np.eye(2))
    with pytest.raises(InputError, match="hold y, and X or data, indices"):
        Library(tmp_path).load("sonar")
    np.savez(tmp_path / "sonar.npz", X=np.eye(2), y=np.ones(3))
    with pytest.raises(InputError, match="2 rows and 3 targets"):
        Library(tmp_path).load("sonar")


def test_a_missing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"colon as colon.npz, or colon-cancer, or colon.csv; got no such file in .*"
                                         r"LIBSVM data page.*docs/papers/data.md"):
        Library(tmp_path).load("colon")
    monkeypatch.delenv("KLIMB_DATA", raising=False)
    with pytest.raises(InputError, match="neither --data nor KLIMB_DATA"):
        Library().load("colon")
    with pytest.raises(InputError, match="which is no folder"):
        Library(tmp_path / "nowhere").load("colon")
    monkeypatch.setenv("KLIMB_DATA", str(tmp_path))
    assert Library().folder == tmp_path
    (tmp_path / "a1a").write_text("1 1:1\n")  # one of two files is not the set
    assert not Library().has("a1a")


def test_a_change_of_the_file_is_noticed(tmp_path: Path) -> None:
    before = write(tmp_path, {"sonar.all-data": "1,2,R\n"}).facts("sonar")["sha256"]
    after = write(tmp_path, {"sonar.all-data": "1,3,R\n"}).facts("sonar")["sha256"]
    assert before != after


def test_the_page_names_every_set_and_file(root: Path) -> None:
    page = (root / "docs" / "papers" / "data.md").read_text()
    for name, one in CATALOGUE.items():
        assert f"| `{name}` |" in page, name
        for form in one.forms:
            for file in form:
                assert re.search(rf"`{re.escape(file)}`", page), file


@pytest.mark.data
def test_the_stored_sets_have_the_published_shapes(data_dir: Path) -> None:
    library = Library(data_dir)
    for name, shape in (("a1a", (32_561, 123)), ("colon", (62, 2000)), ("usps_3vs5", (1540, 256)), ("nodal", (53, 6)),
                        ("flares", (1066, 23)), ("german", (1000, 24)), ("abalone", (4177, 10))):
        assert library.load(name).X.shape == shape
