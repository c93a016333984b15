"""Every table and figure runs from data to page on small invented data, and what is written is what is promised."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from klimb.apps.papers import EXPERIMENTS, run
from klimb.apps.papers.experiment import SCHEMA, Experiment, Job, PaperTable, Record, canonical, shown
from klimb.errors import InputError
from klimb.report.records import to_json


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_every_entry_runs(key: str, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    record = run(key, data=small_data, out=tmp_path, size="tiny", hear=lambda *note: seen.append(note))
    assert record.finished
    stored = json.loads((tmp_path / f"{key}-tiny.json").read_text())
    assert stored["schema"] == SCHEMA
    assert stored["finished"] is True
    assert set(stored["machine"]) >= {"klimb", "python", "numpy", "scipy", "machine", "processors", "blas"}
    assert set(stored["data"]) >= set(EXPERIMENTS[key].data)
    assert [name for name, _, _ in seen[:-1]] == list(stored["results"])  # one call before every job
    assert seen[-1] == ("", len(stored["results"]), len(stored["results"]))
    page = (tmp_path / f"{key}-tiny.md").read_text()
    text = shown(record)
    for one in stored["tables"]:
        assert one["title"] in page
        assert one["title"] in text
        assert all(len(row) == len(one["heads"]) for row in one["rows"])
        assert len(one["rows"]) > 0
    experiment = EXPERIMENTS[key].experiment()
    picture = tmp_path / f"{key}-tiny.png"
    assert picture.exists() == (experiment.draw is not None)
    if experiment.draw is not None:
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert len(EXPERIMENTS[key].caption) > 40
    again: list[tuple[str, int, int]] = []
    monkeypatch.setattr("klimb.apps.papers.experiment.can_draw", lambda: False)  # drawn once is enough
    run(key, data=small_data, out=tmp_path, size="tiny", hear=lambda *note: again.append(note))
    assert again == [seen[-1]]  # nothing is done twice


def test_titles_and_papers_are_known() -> None:
    for key, entry in EXPERIMENTS.items():
        assert key[:2] in ("A-", "B-", "S-", "N-", "G-")
        assert entry.title
        assert canonical(key.upper()) == key


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An experiment of four jobs that notes which were done."""
    done: list[str] = []

    def job(name: str) -> Job:
        def work(results: Any) -> dict[str, Any]:
            done.append(name)
            return {"before": sorted(results), "bad": float("nan"), "array": np.arange(2)}

        return Job(name, work)

    one = Experiment(lambda library, size: [job(name) for name in "abcd"],
                     lambda results: [PaperTable("t", ("job",), tuple((name,) for name in results))])
    monkeypatch.setitem(EXPERIMENTS, "G-test", type("E", (), {
        "title": "four jobs", "data": (), "caption": "", "remarks": (), "experiment": lambda self: one})())
    monkeypatch.setattr("klimb.apps.papers.experiment.canonical", lambda key: "G-test")
    return done


def test_a_run_goes_on_where_it_was_interrupted(counting: list[str], tmp_path: Path) -> None:
    stop = {"after": 2}

    def hear(job: str, number: int, total: int) -> None:
        if job and number == stop["after"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("G-test", out=tmp_path, hear=hear)
    assert counting == ["a", "b"]
    half = json.loads((tmp_path / "G-test.json").read_text())
    assert (list(half["results"]), half["finished"]) == (["a", "b"], False)
    assert half["results"]["b"] == {"before": ["a"], "bad": None, "array": [0, 1]}
    record = run("G-test", out=tmp_path)
    assert counting == ["a", "b", "c", "d"]
    assert record.results["d"]["before"] == ["a", "b", "c"]
    run("G-test", out=tmp_path)
    assert len(counting) == 4
    run("G-test", out=tmp_path, fresh=True)
    assert len(counting) == 8
    assert not list(tmp_path.glob(".*"))  # no partial files are left


def test_too_little_for_a_table(small_data: Path, tmp_path: Path) -> None:
    def hear(job: str, number: int, total: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("S-figure1", data=small_data, out=tmp_path, size="tiny", hear=hear)
    with pytest.raises(InputError, match=r"enough of S-figure1 for its tables; got 1 of 2 parts"):
        run("S-figure1", data=small_data, out=tmp_path, size="tiny", so_far=True)
    assert len(json.loads((tmp_path / "S-figure1-tiny.json").read_text())["results"]) == 1


def test_killed_in_the_middle(small_data: Path, tmp_path: Path) -> None:
    """A real process, killed without warning: what it had done is there, whole, and is not done again."""
    code = ("from klimb.apps.papers import run\n"
            f"run('S-figure4', data={str(small_data)!r}, out={str(tmp_path)!r}, size='tiny',"
            " hear=lambda *note: print(note, flush=True))")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    path = tmp_path / "S-figure4-tiny.json"
    kept = json.loads(path.read_text())
    assert len(kept["results"]) >= 3
    first = dict(kept["cpu_seconds"])
    seen: list[str] = []
    record = run("S-figure4", data=small_data, out=tmp_path, size="tiny", hear=lambda job, *_: seen.append(job))
    assert record.finished
    assert not set(first) & set(seen)
    assert {name: record.cpu_seconds[name] for name in first} == first


def test_other_data_are_not_mixed(small_data: Path, tmp_path: Path) -> None:
    run("S-figure1", data=small_data, out=tmp_path, size="tiny")
    other = tmp_path / "other"
    other.mkdir()
    rng = np.random.default_rng(9)
    np.savez(other / "german.npz", X=rng.standard_normal((20, 3)), y=np.sign(rng.standard_normal(20)))
    with pytest.raises(InputError, match=r"other files \(german.npz\).*--fresh"):
        run("S-figure1", data=other, out=tmp_path, size="tiny")
    assert run("S-figure1", data=other, out=tmp_path, size="tiny", fresh=True).finished


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "x"}', '{"schema": "klimb.reproduce/1"}'])
def test_a_file_that_is_no_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "G-figure1-tiny.json"
    path.write_text(text)
    with pytest.raises(InputError, match="--fresh"):
        run("G-figure1", out=tmp_path, size="tiny")
    assert path.read_text() == text


def test_a_record_of_another_run(tmp_path: Path) -> None:
    Record(tmp_path / "x.json", "G-figure1", "quick").write()
    with pytest.raises(InputError, match="G-figure2"):
        Record.open(tmp_path / "x.json", "G-figure2", "quick")


def test_no_picture_without_matplotlib(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klimb.apps.papers.experiment.can_draw", lambda: False)
    record = run("S-figure1", data=small_data, out=tmp_path, size="tiny")
    assert record.finished
    assert not list(tmp_path.glob("*.png"))
    assert "klimb[plot]" in (tmp_path / "S-figure1-tiny.md").read_text()
    monkeypatch.undo()
    again: list[str] = []
    run("S-figure1", data=small_data, out=tmp_path, size="tiny", hear=lambda job, *_: again.append(job))
    assert (tmp_path / "S-figure1-tiny.png").exists()  # now there is one, and nothing was computed again
    assert again == [""]


def test_only_json_is_kept() -> None:
    with pytest.raises(TypeError, match="set has no JSON form"):
        to_json({"a": {1, 2}})


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean A-table3"):
        run("A-table33", out=tmp_path)
    with pytest.raises(InputError, match="'full', 'quick' or 'tiny'"):
        run("G-figure1", out=tmp_path, size="huge")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="which is a file"):
        run("G-figure1", out=tmp_path / "file")
