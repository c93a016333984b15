"""``klimb label`` as it is called: options, errors, exports, two at once, and kill -9."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.apps.label.sessions import end, labeller, open_session, request, reviews, work

from klimb.apps.label.items import items_of
from klimb.apps.label.journal import Settings, read
from klimb.cli import run
from klimb.cli.label import read_columns

READING: dict[str, Any] = {"file_format": None, "delimiter": None, "decimal": ".", "missing_words": (),
                           "encoding": "utf-8"}


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, list[int]]:
    texts, truth = reviews(60)
    path = tmp_path / "reviews.csv"
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "review", "stars"])
        writer.writerows([f"r{k}", text, k % 5] for k, text in enumerate(texts))
    return path, truth


@contextmanager
def running(*arguments: object, cwd: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The command in a process of its own: the process, its port and its token. Killed if it does not end."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, "-m", "klimb", "label", *map(str, arguments), "--no-browser"],
                               stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment,
                               # A shell in the background ignores SIGINT, and so would its children.
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            found = re.search(r"http://127\.0\.0\.1:(\d+)/#token=(\S+)", line)
            if found:
                yield process, int(found[1]), found[2]
                break
        else:
            raise AssertionError(said)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def label_on(port: int, token: str, decide: Any, turns: int, acknowledged: list[int]) -> None:
    """Answer over HTTP until so many turns are done, noting which were acknowledged; ends when the server dies."""
    while True:
        try:
            state = request(port, "GET", "/api/state", token=token)[2]
            while state["item"] is None:
                state = request(port, "GET", f"/api/state?seen={state['version']}", token=token)[2]
            if state["turn"] >= turns:
                return
            what, label = decide(state)
            body = {"turn": state["turn"], "row": state["item"]["row"]} | ({"label": label} if what == "answer" else {})
            status, _, _ = request(port, "POST", f"/api/{what}", body, token=token)
        except (OSError, ValueError, EOFError):
            return
        except Exception as error:
            if type(error).__module__ == "http.client":  # cut off in the middle of an answer
                return
            raise
        assert status == 200
        acknowledged.append(state["turn"])


def answers(journal: Path) -> list[tuple[str, int, str | None]]:
    return [(entry["kind"], entry["row"], entry.get("label")) for entry in read(journal).entries
            if entry["kind"] != "chosen"]


def test_kill_9_loses_nothing_and_resumes_exactly(table: tuple[Path, list[int]], tmp_path: Path) -> None:
    """Killed at random moments while somebody labels as fast as it goes; then compared with a session nobody killed."""
    path, truth = table
    journal = tmp_path / "reviews.labels.jsonl"
    rng = np.random.default_rng(0)
    acknowledged: list[int] = []
    turns, kills = 32, 0
    decide = labeller(truth)
    while not journal.exists() or len(answers(journal)) < turns:
        with running(path, "--text", "review", "-q") as (process, port, token):
            killers: list[subprocess.Popen[bytes]] = []

            def deadly(state: Any, process: Any = process, killers: list[Any] = killers, before: int = kills) -> Any:
                """From the fifth, the twelfth and the nineteenth turn on, death is on its way while labels go on."""
                if before < 3 and not killers and state["turn"] >= 5 + 7 * before:
                    pause = float(rng.uniform(0.0, 0.1))
                    killers.append(subprocess.Popen([sys.executable, "-S", "-c", "import os, time; "
                                                     f"time.sleep({pause}); os.kill({process.pid}, 9)"]))
                return decide(state)

            label_on(port, token, deadly, turns, acknowledged)
            for killer in killers:
                killer.wait()
            kills += len(killers)
        saved = answers(journal)
        assert len(acknowledged) <= len(saved)  # what was acknowledged is there ...
        assert len(saved) <= len(acknowledged) + kills  # ... and at most one more for each kill, saved but not told
        assert acknowledged == sorted(set(acknowledged))
    # Nobody labels this one by HTTP, nobody kills it.
    items = items_of(read_columns(str(path), ("review",), (), (), None, **READING), text=["review"])
    session = open_session(tmp_path / "straight.jsonl", items, Settings(text=("review",)))
    work(session, decide, turns)
    end(session)
    assert answers(journal) == answers(tmp_path / "straight.jsonl")
    assert kills == 3


def test_ctrl_c_writes_the_table(table: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, truth = table
    options = ("--text", "review", "--id", "id", "--show", "stars", "--labels", "good,bad")
    with running(path, *options) as (process, port, token):
        label_on(port, token, labeller(truth, skips=0, undos=0), 7, [])
        # A second one on the same journal is told so.
        done = subprocess.run([sys.executable, "-m", "klimb", "label", str(path), "--no-browser"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 1
        assert "another klimb label has open" in done.stderr
        # A page that waits for news is told at once that the session ends.
        version, seen = -1, request(port, "GET", "/api/state", token=token)[2]["version"]
        while version != seen:
            time.sleep(0.2)
            version, seen = seen, request(port, "GET", "/api/state", token=token)[2]["version"]
        news: list[Any] = []
        page = threading.Thread(target=lambda: news.append(
            request(port, "GET", f"/api/state?seen={seen}", token=token)[2]))
        page.start()
        time.sleep(1.0)  # until the page waits, on a busy machine as well
        process.send_signal(signal.SIGINT)
        page.join(timeout=15)
        assert news[0]["closing"]
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert f"7 labels: {tmp_path / 'reviews.labels.csv'}" in process.stderr.read()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "reviews.labels.csv").read_text())))
    assert list(rows[0]) == ["row", "id", "label", "time", "probability", "chosen"]
    assert [row["label"] for row in rows] == [("good", "bad")[truth[int(row["row"])]] for row in rows]
    assert all(row["id"] == f"r{row['row']}" for row in rows)
    assert all(0.0 <= float(row["probability"]) <= 1.0 for row in rows)


def test_the_name_of_the_table_is_enough_to_go_on(table: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = table
    begun(path)
    monkeypatch.setattr(threading.Thread, "join", _interrupted(threading.Thread.join))
    words = said(capsys, path, "--no-browser", code=0)
    assert "going on after 4 labels" in words
    assert "4 labels: " in words


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    capsys.readouterr()
    assert run(["label", *map(str, arguments)]) == code
    out, err = capsys.readouterr()
    return out + err


def begun(path: Path, **more: Any) -> Path:
    """A journal of a session that was begun and labelled a little."""
    items = items_of(read_columns(str(path), ("review",), (), (), None, **READING), text=["review"])
    session = open_session(path.with_name("reviews.labels.jsonl"), items, Settings(text=("review",), **more))
    work(session, lambda state: ("answer", 0), 4)
    end(session)
    return session.journal.path


@pytest.mark.parametrize(("arguments", "words"), [
    (["--text", "reviw"], "a column of the data; got 'reviw'. Did you mean 'review'? The columns are: id, review,"),
    ([], "columns for the model to learn from; got none. Give --text COLUMN or --columns A,B. The columns are: id,"),
    (["--columns", "stars,id"], "numbers in the column 'id'; got 'r0' in row 0."),
    (["--columns", "stars", "--labels", "yes"], "two to 9 labels, one key each; got 1: yes."),
    (["--text", "review", "--labels", "a,b,a"], "labels that differ; got 'a' twice."),
    (["--text", "review", "--labels", "a,b", "--positive", "c"], "--labels or --positive; got both."),
    (["--text", "review", "--batch", "0"], "--batch of at least 1; got 0."),
    (["--text", "review", "--keys", "a,s"], "2 different keys of one character, none of them s, u, h; got a,s."),
    (["--text", "review", "--keys", "a"], "2 different keys"),
    (["--text", "review", "--journal", "nowhere/a.jsonl"], "got No such file or directory."),
    (["--text", "review", "--out", "nowhere/a.csv"], "a directory for nowhere/a.csv; got nowhere, which does not"),
    (["--text", "review", "--out", "reviews.csv"], "results go to another file than the one read"),
    (["--text", "review", "--export"], "a journal to export; got no file reviews.labels.jsonl."),
])
def test_errors_say_what_to_do(table: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in said(capsys, "reviews.csv", *arguments)
    assert os.listdir(tmp_path) == ["reviews.csv"]  # nothing is left behind


def test_standard_input_can_not_be_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert "got standard input. Save it first." in said(capsys, "-", "--text", "x")


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file or directory" in said(capsys, tmp_path / "none.csv", "--text", "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("content", "words"), [
    ("review\n", "at least two rows to choose from; got 0"),
    ("review\nonly one\n", "at least two rows to choose from; got 1"),
    ("review,x\n,1\n,2\n", "texts in the column 'review'; got 2 rows without any"),
    ("", "an empty file"),
])
def test_tables_without_anything_to_label(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str,
                                          ) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert words in said(capsys, path, "--text", "review")
    assert os.listdir(tmp_path) == ["t.csv"]


def test_another_table_is_noticed(table: tuple[Path, list[int]], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = table
    journal = begun(path)
    before = journal.read_bytes()
    path.write_text(path.read_text().replace("film", "movie", 1))
    assert "the table that" in (words := said(capsys, path))
    assert "was begun with (reviews.csv, 60 rows" in words
    assert journal.read_bytes() == before


def test_other_settings_are_noticed(table: tuple[Path, list[int]], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = table
    begun(path)
    assert "was begun with --score bald, and goes on with it; got --score cu." in said(capsys, path, "--score", "cu")
    assert "begun with --labels yes,no, and goes on with it; got --labels a,b." in said(capsys, path, "--labels", "a,b")
    assert "--text review" in said(capsys, path, "--text", "id")


def test_a_port_that_is_taken(table: tuple[Path, list[int]], capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    path, _ = table
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = said(capsys, path, "--text", "review", "--no-browser", "--port", taken.getsockname()[1])
    assert "on this machine; got Address already in use. Name another with --port" in words


def test_export(table: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = table
    journal = begun(path)
    with open(journal, "ab") as stream:
        stream.write(b'{"kind":"label","row":5')  # a crash, not yet noticed
    before = journal.read_bytes()
    out = said(capsys, path, "--export", "--out", "-", code=0)
    assert len(out.splitlines()) == 5
    assert "4 labels" in said(capsys, path, "--export", code=0)
    assert (tmp_path / "reviews.labels.csv").read_text() == out
    assert journal.read_bytes() == before
    (tmp_path / "precious.csv").write_text("a,b\n1,2\n")
    assert "got a file that begins 'a,b'" in said(capsys, path, "--export", "--out", tmp_path / "precious.csv")
    assert (tmp_path / "precious.csv").read_text() == "a,b\n1,2\n"


def test_a_torn_line_is_reported(table: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = table
    journal = begun(path)
    with open(journal, "ab") as stream:
        stream.write(b'{"kind":"label","row":5')
    monkeypatch.setattr(threading.Thread, "join", _interrupted(threading.Thread.join))
    words = said(capsys, path, "--no-browser", code=0)
    assert f"A crash cut off the last line of {journal} (23 bytes)." in words
    assert "going on after 4 labels" in words
    assert (tmp_path / "reviews.labels.jsonl.torn").read_bytes() == b'{"kind":"label","row":5\n'


def test_the_browser_gets_an_address_for_one_use(table: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    import webbrowser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(threading.Thread, "join", _interrupted(threading.Thread.join))
    monkeypatch.setenv("DISPLAY", ":0")
    path, _ = table
    words = said(capsys, path, "--text", "review", code=0)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#code=\S+", opened[0])
    assert "#token=" in words
    assert opened[0].partition("=")[2] not in words
    # Without a screen, nothing is started that could take over the terminal.
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threading.Thread, "join", _interrupted(threading.Thread.join))
    assert "open http://127.0.0.1" in said(capsys, path, code=0)
    assert len(opened) == 1 or sys.platform != "linux"


def _interrupted(join: Any) -> Any:
    """The first wait for a thread is interrupted, as by Ctrl-C."""
    waits: list[int] = []

    def joined(self: Any, timeout: float | None = None) -> None:
        if timeout is None and not waits:
            waits.append(1)
            raise KeyboardInterrupt
        join(self, timeout)

    return joined


def test_a_text_of_a_megabyte_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("t\n" + "long " * 250_000 + "\nshort\n")
    found = read_columns(str(path), ("t",), (), (), None, **READING)
    assert len(found["t"][0]) == 5 * 250_000


def test_export_is_quick() -> None:
    """It needs neither the model nor scipy."""
    code = ("import sys; from klimb.cli import run; run(['label', 'none.csv', '--export'])\n"
            "print([name for name in ('scipy.sparse', 'scipy.optimize', 'klimb.active') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "a journal to export" in done.stderr
