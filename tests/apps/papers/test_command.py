"""``klimb reproduce`` at the shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from klimb.apps.papers import EXPERIMENTS
from klimb.cli import run
from klimb.errors import InputError


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["key", "what", "it", "shows", "full", "run"]
    assert [line.split()[0] for line in lines[1 : len(EXPERIMENTS) + 1]] == list(EXPERIMENTS)
    assert "[A] Khan et al." in out
    assert run(["reproduce", "--list", "--json"]) == 0
    assert {one["key"] for one in json.loads(capsys.readouterr().out)} == set(EXPERIMENTS)


def test_the_list_is_light() -> None:
    code = ("import sys\nfrom klimb.cli import run\nrun(['reproduce', '--list'])\n"
            "print([name for name in ('scipy.sparse', 'matplotlib', 'scipy.optimize', 'klimb.infer.loop')"
            " if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_quick_run(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "s-figure1", "--quick", "--data", str(small_data), "--out", str(tmp_path / "a" / "b")]
    assert run(command) == 0
    out, err = capsys.readouterr()
    assert "[S] Figure 1: the data after one step" in out
    assert str(tmp_path / "a" / "b" / "S-figure1-quick.png") in out
    assert "S-figure1: 0 of 2 done" in err
    assert run([*command, "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["tables"][0]["heads"][0] == "logistic model"


def test_several_at_once(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLIMB_DATA", str(small_data))
    assert run(["reproduce", "A-table1", "S-figure1", "A-table1", "--quick", "--out", str(tmp_path), "-q"]) == 0
    assert capsys.readouterr().out.count("[A] Table 1") == 1
    assert len(list(tmp_path.glob("*.json"))) == 2


@pytest.mark.parametrize(("arguments", "words"), [
    (["A-table9"], "expected the name of a table or figure; got 'A-table9'. Did you mean A-table"),
    (["A-table2"], "neither --data nor KLIMB_DATA"),
    (["A-table2", "--data", "/nowhere"], "which is no folder"),
])
def test_errors_are_one(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KLIMB_DATA", raising=False)
    assert run(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 1
    assert words.removeprefix("expected ") in capsys.readouterr().err
    assert not (tmp_path / "out").exists()  # nothing is begun that cannot be ended


def test_all_goes_on_without_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def noted(key: str, **_: Any) -> Any:
        begun.append(key)
        raise InputError(f"the data set of {key}", "no such file", "Put it there.")

    monkeypatch.setattr("klimb.apps.papers.experiment.run", noted)
    assert run(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 1
    assert begun == list(EXPERIMENTS)
    assert capsys.readouterr().err.count("no such file") == len(EXPERIMENTS)


def test_so_far(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "S-figure1", "--quick", "--data", str(small_data), "--out", str(tmp_path), "-q"]
    assert run([*command, "--so-far"]) == 1
    assert "Run it without --so-far first" in capsys.readouterr().err
    assert run(command) == 0
    path = tmp_path / "S-figure1-quick.json"
    before = json.loads(path.read_text())
    assert run([*command, "--so-far"]) == 0
    assert json.loads(path.read_text())["cpu_seconds"] == before["cpu_seconds"]
    assert run([*command, "--so-far", "--fresh"]) == 2


def test_no_key_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--quick"]) == 2
    assert "--list" in capsys.readouterr().err


def test_interrupted(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                     monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("klimb.apps.papers.logistic.look", stop)
    assert run(["reproduce", "A-table1", "--data", str(small_data), "--out", str(tmp_path)]) == 130
    assert "the same command resumes" in capsys.readouterr().err


def test_without_matplotlib(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klimb.apps.papers.experiment.can_draw", lambda: False)
    monkeypatch.setattr("klimb.apps.papers.pictures.can_draw", lambda: False)
    assert run(["reproduce", "S-figure1", "--quick", "--data", str(small_data), "--out", str(tmp_path)]) == 0
    assert "klimb[plot]" in capsys.readouterr().err
