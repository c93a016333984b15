"""What the command line does beside the models: help, usage, messages, files, exit codes, start-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from klimb._files import whole_file
from klimb.cli import run
from klimb.cli.app import COMMANDS
from klimb.errors import InputError

HEAVY = ("pandas", "polars", "matplotlib", "sklearn", "scipy.stats", "arviz", "pyarrow")


def python(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60,
                          check=False, **more)  # type: ignore[call-overload, no-any-return]


def test_help_lists_every_command_and_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name}" in listed
        assert run([name, "--help"]) == 0
        own = capsys.readouterr().out
        assert "Examples:" in own, name
        assert f"klimb {name}" in own.split("Examples:")[1], name
        assert max(map(len, own.splitlines())) <= 90, name


@pytest.mark.parametrize(("arguments", "words"), [
    (["fti"], "Did you mean 'fit'?"),
    (["nonsense"], "The commands are"),
    (["fit", "y ~ x", "a.csv", "--nonsense"], "--nonsense"),
    (["fit", "y ~ x", "a.csv", "--interval", "1.5"], "--interval"),
    (["fit", "y ~ x", "a.csv", "--prior", "normal(0, 1)"], "NAME=PRIOR"),
    (["fit", "y ~ x", "a.csv", "--delimiter", "ab"], "--delimiter"),
    (["compare", "one.klimb"], "at least two"),
    (["compare", "one.klimb", "one.klimb"], "named twice"),
    (["completion", "powershell"], "powershell"),
])
def test_usage_errors_are_two(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_KLIMB_COMPLETE" in capsys.readouterr().out


def test_completion_completes() -> None:
    done = python("-m", "klimb", env={**os.environ, "_KLIMB_COMPLETE": "bash_complete", "COMP_WORDS": "klimb pre",
                                      "COMP_CWORD": "1"})
    assert done.stdout.strip() == "plain,predict"


def test_light_imports() -> None:
    """Neither ``import klimb`` nor ``klimb --help`` brings in a heavy package."""
    code = ("import sys\n{}\nprint([name for name in " + repr(HEAVY) + " if name in sys.modules],"
            " 'numpy' in sys.modules, file=sys.stderr)")
    assert python("-c", code.format("import klimb")).stderr.strip() == "[] False"
    assert python("-c", code.format("from klimb.cli import run; run(['--help'])")).stderr.strip() == "[] False"
    assert python("-c", code.format("from klimb.cli import run; run(['fit', '--help'])")).stderr.strip() == "[] False"


def test_a_whole_file_or_none(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("before")
    with pytest.raises(KeyboardInterrupt), whole_file(target) as stream:  # noqa: PT012
        stream.write("half")
        raise KeyboardInterrupt
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]
    with whole_file(target) as stream:
        stream.write("after\n")
    assert target.read_text() == "after\n"
    assert os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(InputError, match=r"no .*absent\. Create it first"), whole_file(tmp_path / "absent" / "a.txt"):
        pass


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    from klimb.cli.shell import colour_wanted

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour_wanted(Terminal())
    assert not colour_wanted(object())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour_wanted(Terminal())


WRITER = """
import sys, time
from klimb.cli import run
from klimb.cli.app import app
import click

@app.command("linger")
@click.argument("path")
def linger(path):
    from klimb._files import whole_file
    with whole_file(path) as stream:
        stream.write("half")
        stream.flush()
        print("ready", flush=True)
        time.sleep(60)

app.get_command = lambda ctx, name: linger
app.resolve_command = lambda ctx, args: (args[0], linger, args[1:])
sys.exit(run(["linger", sys.argv[1]]))
"""


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_nothing(tmp_path: Path, kind: signal.Signals, code: int) -> None:
    target = tmp_path / "a.txt"
    # A shell that runs the tests in the background has their children ignore SIGINT.
    with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, preexec_fn=lambda: signal.signal(kind, signal.SIG_DFL)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(kind)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


def test_python_m_klimb_and_version() -> None:
    done = python("-m", "klimb", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "klimb")


def test_errors_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "y ~ x", str(tmp_path / "absent.csv")]) == 1
    assert capsys.readouterr().err == f"klimb: {tmp_path / 'absent.csv'}: No such file or directory\n"
    assert run(["info", str(tmp_path / "absent.klimb")]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("y,x\n1,2\n")
    assert run(["fit", "y ~ xx", str(tmp_path / "a.csv")]) == 1
    message = capsys.readouterr().err
    assert "    y ~ xx\n        ^^\n" in message
    assert "Did you mean 'x'?" in message
    assert run(["predict", str(tmp_path / "a.csv"), str(tmp_path / "a.csv")]) == 1
    assert "klimb" in capsys.readouterr().err


def test_json_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,x\n" + "".join(f"{i % 3},{i}\n" for i in range(12)))
    assert run(["fit", "y ~ x", str(tmp_path / "a.csv"), "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["schema"] == "klimb.fit/1"


def test_only_columns_of_the_formula_are_read() -> None:
    from klimb.cli.fit import columns_of

    header = ("y", "w", *(f"x{i}" for i in range(3000)), "unused")
    long = "y ~ " + " + ".join(header[2:-1])
    assert columns_of(long, "w")(header) == list(header[:-1])
    assert columns_of("y ~ . - x1")(header) == header
    assert columns_of("y ~ log(x5) + (x7 | x9)")(header) == ["y", "x5", "x7", "x9"]
