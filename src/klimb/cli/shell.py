"""What commands share: messages, results, files that appear whole or not at all, options of several of them."""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from klimb._files import whole_file
from klimb.cli.tables.read import MISSING, ReadOptions
from klimb.errors import InputError

# Advice is written for Python; at the shell the same is said by options.
SPOKEN = ((re.compile(r'family="([^"]+)"'), r"--family \1"), (re.compile(r'link="([^"]+)"'), r"--link \1"),
          (re.compile(r'pass missing="drop"'), "say --on-missing drop"), (re.compile(r"weights="), "--weights "),
          (re.compile(r"cells=False"), "--no-cells"), (re.compile(r'round=\{"x": 1\}'), "--round x=1"),
          (re.compile(r'klimb\.scan\(path, unreadable="skip"\)'), "--unreadable skip"))
ROW = re.compile(r"\brows? \d")
F = TypeVar("F", bound=Callable[..., Any])
# NAME=VALUE: names of priors and of columns may hold an equals sign, priors before their parenthesis not.
FILE = ("NAME=FILE", re.compile(r"([^=]*[^=\s][^=]*)=(.+)", re.DOTALL))
PAIRS = {"--prior": ("NAME=PRIOR", re.compile(r"([^(]*[^(\s][^(]*)=([^=(]*(?:\(.*)?)", re.DOTALL)),
         "--round": ("NAME=DIGITS", re.compile(r"(.*\S.*)=\s*(-?\d+)\s*", re.DOTALL)),
         "--graph": FILE, "--matrix": FILE, "--mesh": FILE}


def colour_wanted(stream: Any) -> bool:
    """Colour in a terminal, unless NO_COLOR says no (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(
        getattr(stream, "isatty", lambda: False)())


def complain(message: str) -> None:
    """An error, on standard error."""
    head = "\x1b[1;31mklimb:\x1b[0m" if colour_wanted(sys.stderr) else "klimb:"
    for python, option in SPOKEN:
        message = python.sub(option, message)
    hint = "\n(Rows are counted from 0: row 0 is the line below the heading.)" if ROW.search(message) else ""
    with contextlib.suppress(BrokenPipeError):
        print(f"{head} {message}{hint}", file=sys.stderr)


def say(message: str, quiet: bool = False) -> None:
    """A message that is not a result, on standard error."""
    if not quiet:
        with contextlib.suppress(BrokenPipeError):
            print(message, file=sys.stderr, flush=True)


def emit(text: str) -> None:
    """A result, on standard output; names the terminal cannot show are escaped, not fatal.

    A reader that leaves early (``klimb fit ... | head``) is no error: files are still to be written.
    """
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        emit(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        hush()


def named(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """What an option was given, such as ``("x=normal(0, 1)",)``, as a dict."""
    form, pattern = PAIRS[option]
    pairs = {text: pattern.fullmatch(text) for text in texts}
    for text, pair in pairs.items():
        if pair is None:
            raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return {pair[1].strip(): pair[2] for pair in pairs.values() if pair is not None}


def write_text(text: str, path: str) -> None:
    """A result to a file, whole or not at all; - is standard output."""
    if path == "-":
        emit(text.rstrip("\n"))
        return
    with whole_file(path) as stream:
        stream.write(text)


def emit_json(facts: Any) -> None:
    """The same for a result as JSON."""
    emit(json.dumps(facts, ensure_ascii=False, allow_nan=False))


def hush() -> None:
    """The reader of our output has left: write what is still buffered to nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_targets(*targets: str | None, sources: tuple[str, ...] = ()) -> None:
    """Before long work: can these files be written, and is none of them one that is read?"""
    for target in targets:
        if target is None or target == "-":
            continue
        place = Path(target)
        if not place.parent.is_dir():
            raise InputError(f"a directory for {place}", f"{place.parent}, which does not exist", "Make it first.")
        if place.exists() and any(Path(source).exists() and place.samefile(source) for source in sources):
            raise InputError("results go to another file than the one read", f"{place} for both", "Name another file.")


@contextlib.contextmanager
def terminate_softly() -> Iterator[None]:
    """A request to terminate ends the command as an error would, so that what must be cleaned up is."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: nothing to install
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


file_options = together(  # how a file is read, whatever its columns mean
        click.option("--format", "file_format", type=click.Choice(["csv", "parquet", "npz", "svmlight"]),
                     help="Format of DATA, if its name and first bytes do not tell."),
        click.option("--delimiter", metavar="CHAR", help=r"Separator of CSV: , ; | or \t. Guessed if not given."),
        click.option("--decimal", type=click.Choice([".", ","]), default=".", show_default=True,
                     help="Decimal mark in CSV."),
        click.option("--missing", "missing_words", metavar="WORD", multiple=True,
                     help="A further word for a missing value, besides NA, NaN, N/A, NULL, ? and empty."
                          " May be repeated."),
        click.option("--encoding", default="utf-8", show_default=True, help="Text encoding of CSV and svmlight."))
reading = together(file_options, click.option("--text", "text_columns", metavar="COLUMN", multiple=True,
                   help="Read this column as text even if it looks like numbers. May be repeated."))
modelling = together(  # of a command that fits a formula to a table; `fit_table` takes their values as keywords
        click.option("--family", default="gaussian", show_default=True, metavar="NAME",
                     help="Distribution of y: gaussian, bernoulli, binomial, poisson, negative_binomial, gamma,"
                          " student_t(df=4), ..."),
        click.option("--link", metavar="NAME", help="Link function: logit, probit, cloglog, ..."),
        click.option("--prior", "priors", metavar="NAME=PRIOR", multiple=True,
                     help='Change a prior: "x=normal(0, 1)". The table lists the names. May be repeated.'),
        click.option("--weights", metavar="COLUMN", help="Column of weights: how often each row counts."),
        click.option("--on-missing", type=click.Choice(["drop", "error", "predict"]), default="drop", show_default=True,
                     help="What to do with rows that have missing values."),
        click.option("--hyper", type=click.Choice(["auto", "optimise", "integrate", "fixed"]), default="auto",
                     show_default=True, help="Whether sds of groups and other hyperparameters are optimised, "
                     "integrated out, or held where they start."),
        click.option("--graph", "graphs", metavar="NAME=FILE", multiple=True,
                     help="A graph used in the formula: a table of two columns, one edge per row. May be repeated."),
        click.option("--cells/--no-cells", default=None,
                     help="Whether to count equal rows and fit each once; by default where that is cheaper."),
        click.option("--round", "digits", metavar="NAME=DIGITS", multiple=True,
                     help="Round a column, for fewer distinct rows: age=0. May be repeated."),
        click.option("--engine", metavar="NAME", help="Process rows by ray, dask, spark, or this many processes."),
        click.option("--address", metavar="ADDRESS", help="The engine's scheduler; without it one is started."),
        click.option("--where", metavar="CONDITION", multiple=True,
                     help='Fit only rows that satisfy a condition: "year >= 2019". May be repeated.'),
        click.option("--unreadable", type=click.Choice(["error", "skip"]), default="error", show_default=True,
                     help="What to do with files that cannot be read."),
        click.option("--checkpoint", metavar="FOLDER", help="Save progress here, to resume from."),
        click.option("--memory", metavar="SIZE", help='What each process may take, such as "2 GB".'),
        click.option("--matrix", "matrices", metavar="NAME=FILE", multiple=True,
                     help="A matrix used in the formula: SciPy npz, mtx, or a table (row, column, value)."),
        click.option("--mesh", "meshes", metavar="NAME=FILE", multiple=True,
                     help="A mesh used in the formula: npz or JSON with nodes and triangles."))


def read_options(*, file_format: str | None, delimiter: str | None, decimal: str, missing_words: tuple[str, ...],
                 text_columns: tuple[str, ...], encoding: str) -> Any:
    """What the reader takes, from the values of `reading`."""
    mark = {"\\t": "\t", "tab": "\t", "space": " "}.get(delimiter, delimiter) if delimiter else None
    if mark is not None and len(mark) != 1:
        raise click.BadParameter(f"{delimiter!r} is not one character", param_hint="--delimiter")
    return ReadOptions(file_format, mark, decimal, MISSING | frozenset(missing_words),
                       dict.fromkeys(text_columns, "text"), encoding)


def output_option(help_text: str, **more: Any) -> Callable[[F], F]:
    """``-o FILE``."""
    return click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help=help_text, **more)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No messages and no progress on standard error.")


def level_option(default: float | None = 0.9) -> Callable[[F], F]:
    """``--interval 0.9``."""
    return click.option("--interval", "level", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
                        default=default, show_default=default is not None, metavar="MASS",
                        help="Probability of the credible intervals, between 0 and 1.")
