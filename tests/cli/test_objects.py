"""Graphs, matrices and meshes from files: the same fit as in Python, and errors that say what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import mmwrite
from scipy.sparse import coo_array, save_npz

import klimb
from klimb.cli import run
from klimb.cli.fit import again

RNG = np.random.default_rng(3)
CHAIN = np.array([[1.0, -1, 0, 0], [-1, 2, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]])
NODES, TRIANGLES = [[-1, -1], [2, -1], [2, 2], [-1, 2], [0.5, 0.5]], [[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]]
DATA: dict[str, Any] = {"g": np.repeat(list("abcd"), 6), "y": RNG.poisson(np.repeat([2.0, 4, 8, 16], 6)),
                        "u": RNG.uniform(size=24), "v": RNG.uniform(size=24)}
CASES = {"generic(g, Q=O)": ("--matrix", ["plain.npz", "plain.mtx", "numbers.csv", "names.csv"], "matrices", CHAIN),
         "spde(u, v, mesh=O)": ("--mesh", ["mesh.npz", "mesh.json"], "meshes", (NODES, TRIANGLES)),
         "besag(g, graph=O)": ("--graph", ["edges.csv"], "graphs", [("a", "b"), ("b", "c"), ("c", "d")])}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("objects")
    sparse = coo_array(CHAIN)
    save_npz(folder / "plain.npz", sparse.tocsc())
    mmwrite(folder / "plain.mtx", sparse)
    triplets = list(zip(sparse.row.tolist(), sparse.col.tolist(), sparse.data.tolist(), strict=True))
    rows = {"numbers": [f"{i},{j},{value}" for i, j, value in triplets],
            "names": [f"{'abcd'[i]},{'abcd'[j]},{value}" for i, j, value in reversed(triplets)],
            "negative": ["-1,0,1", "0,0,1"], "words": ["0,0,much"], "two": ["0,1"],
            "dense": [",".join(map(str, row)) for row in CHAIN.tolist()]}
    for name, lines in rows.items():
        (folder / f"{name}.csv").write_text("\n".join(["i,j,x,z"[: 2 * lines[0].count(",") + 1], *lines]))
    (folder / "edges.csv").write_text("one,other\na,b\nb,c\nc,d\n")
    np.savez(folder / "mesh.npz", nodes=np.array(NODES), triangles=np.array(TRIANGLES))
    (folder / "mesh.json").write_text(json.dumps({"nodes": NODES, "triangles": TRIANGLES}))
    (folder / "half.json").write_text(json.dumps({"nodes": NODES}))
    (folder / "broken.mtx").write_text("nothing\n")
    lines = [",".join(DATA), *(",".join(map(str, row)) for row in zip(*DATA.values(), strict=True))]
    (folder / "data.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("term", CASES)
def test_a_file_serves_as_the_object_does(term: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    option, files, keyword, given = CASES[term]
    expected = klimb.fit(f"y ~ {term}", DATA, family="poisson", hyper="optimise", **{keyword: {"O": given}})
    for file in files:
        capsys.readouterr()
        run(["fit", f"y ~ {term}", str(work / "data.csv"), "--family", "poisson", "--hyper", "optimise", "--json", "-q",
             option, f"O={work / file}"])
        assert json.loads(capsys.readouterr().out)["bound"] == pytest.approx(expected.bound, abs=1e-5)


@pytest.mark.parametrize(("option", "file", "words"), [
    ("--matrix", "negative.csv", "whole numbers from 0"), ("--matrix", "words.csv", "must be numbers"),
    ("--matrix", "two.csv", "needs 3 columns"), ("--matrix", "dense.csv", "got 4 columns in"),
    ("--matrix", "broken.mtx", "must hold a sparse matrix"),
    ("--matrix", "mesh.npz", "must hold a sparse matrix"), ("--matrix", "absent.npz", "absent.npz"),
    ("--mesh", "half.json", "nodes and triangles"), ("--mesh", "plain.npz", "nodes and triangles"),
    ("--mesh", "absent.json", "absent.json"), ("--mesh", "", "is not NAME=FILE")])
def test_errors_say_what_was_expected(option: str, file: str, words: str, work: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    place = f"O={work / file}" if file else "O"
    assert run(["fit", "y ~ u", str(work / "data.csv"), option, place, "-q"]) == (1 if file else 2)
    assert words in capsys.readouterr().err


def test_the_command_of_a_report_names_the_files() -> None:
    command = again("y ~ u", "d.csv", None, family="gaussian", link=None, priors=(), weights=None, hyper="auto",
                    graphs=("G=e.csv",), matrices=("Q=q q.mtx",), meshes=("M=m.npz",))
    assert command.endswith("--graph G=e.csv --matrix 'Q=q q.mtx' --mesh M=m.npz")


def test_hyperparameters_held_where_they_start(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = klimb.fit("y ~ (1 | g)", DATA, family="poisson", hyper="fixed")
    run(["fit", "y ~ (1 | g)", str(work / "data.csv"), "--family", "poisson", "--hyper", "fixed", "--json", "-q"])
    assert json.loads(capsys.readouterr().out)["bound"] == pytest.approx(expected.bound, abs=1e-5)
