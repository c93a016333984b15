"""Outputs shown in the documentation are true: runs the blocks of a page and compares, or writes what came out.

A ``python`` block runs; one that a ``text`` block follows, with nothing between them, must print just that. On the
pages of ``COMMANDS`` a ``console`` block holds commands after ``$`` and what they say. A ``py`` block is shown and not
run: for recorded work that needs hours or data of its own, and the page has to say so. ``python -m tests.transcripts
[PAGE ...]`` brings pages up to date. The site (``docs/theme/hooks.py``) is built by the same rules.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.registries import as_before

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]))
COMMANDS = (ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "command-line.md")
BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]?\d+)?(?![\w])")
NOT_RUN = ("python3 -m venv", "python -m pip", "make ", "git clone", "klimb demo", "eval ")  # shown, not run


def runs(page: Path) -> bool:
    """Whether there is anything on the page to run."""
    kinds = {block.group(1) for block in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    return "python" in kinds or ("console" in kinds and page in COMMANDS)


def corrected(text: str, *, commands_too: bool = True, show: bool = False, name: str = "page",
              names: dict[str, object] | None = None) -> str:
    """The page with every output as it really is; runs in the current directory, all blocks with the same names.

    With ``show``, what a block prints is put after it even where the page has no ``text`` block for it.
    """
    names = {} if names is None else names
    names["__name__"] = "__docs__"
    blocks = list(BLOCK.finditer(text))
    pieces, end, printed = [], 0, ""
    for i, block in enumerate(blocks):
        kind, inside = block.groups()
        pieces.append(text[end : block.start(2)])
        end = block.end(2)
        answered = i + 1 < len(blocks) and follows(block, blocks[i + 1], text)
        if kind == "python":
            line = text[: block.start(2)].count("\n")
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile("\n" * line + inside, name, "exec", dont_inherit=True), names)
            printed = tidy(stream.getvalue())
            if show and printed and not answered:
                pieces.append(f"{inside}```\n\n```text\n{printed}")
                continue
        elif kind == "text" and i > 0 and follows(blocks[i - 1], block, text):
            inside = printed
        elif kind == "console" and commands_too:
            inside = "".join(shown(command) for command in commands(inside))
        pieces.append(inside)
    return "".join([*pieces, text[end:]])


def follows(first: re.Match[str], second: re.Match[str], text: str) -> bool:
    """Whether the second block is there to show what the first one prints."""
    return first.group(1) == "python" and second.group(1) == "text" and not text[first.end() : second.start()].strip()


def commands(inside: str) -> Iterator[str]:
    """The lines after ``$``, with those that a backslash continues."""
    lines = iter(inside.splitlines())
    for line in lines:
        if line.startswith("$ "):
            while line.endswith("\\"):
                line += "\n" + next(lines)
            yield line[2:]


def shown(command: str) -> str:
    """A command and its output, standard error included."""
    if command.startswith(NOT_RUN):
        return f"$ {command}\n"
    return f"$ {command}\n{tidy(output(command))}"


def output(command: str) -> str:
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    simple = words[0] == "klimb" and not any(word in ("|", ">", "<", "&&") or word.startswith("$?") for word in words)
    if simple:  # without the price of a new interpreter
        from klimb.cli import run

        with contextlib.redirect_stdout(io.StringIO()) as stream, contextlib.redirect_stderr(stream):
            run(words[1:])
        return stream.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "klimb"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m klimb "$@"\n')
        script.chmod(0o755)
        paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=60, env={**os.environ, **paths}).stdout


def tidy(printed: str) -> str:
    """Without blanks at the ends of lines, and with one line end at the end."""
    lines = "\n".join(line.rstrip() for line in printed.splitlines()).rstrip()
    return lines + "\n" if lines else ""


def same(one: str, other: str) -> bool:
    """Equal but for the last digits of numbers, which differ between processors and move with tolerances."""
    words, others = NUMBER.split(one), NUMBER.split(other)
    numbers, more = NUMBER.findall(one), NUMBER.findall(other)
    return words == others and all(close(a, b) for a, b in zip(numbers, more, strict=True))


def close(one: str, other: str) -> bool:
    a, b = float(one), float(other)
    digit = 10.0 ** -len(one.partition(".")[2]) if "." in one and "e" not in one else 0.0
    return abs(a - b) <= max(1.01 * digit if digit > 1e-7 else 0.0, 1e-4 * abs(a))


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """An empty directory with the bundled table in it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        data = (ROOT / "src" / "klimb" / "demo" / "summit.csv").read_bytes()
        (Path(folder) / "summit.csv").write_bytes(data)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main(arguments: list[str]) -> None:
    chosen = [Path(argument).resolve() for argument in arguments] or [page for page in PAGES if runs(page)]
    for page in chosen:
        before = page.read_text(encoding="utf-8")
        with workplace(), as_before():
            after = corrected(before, commands_too=page in COMMANDS, name=str(page))
        if not same(before, after):
            page.write_text(after, encoding="utf-8")
            print("written anew:", page.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
