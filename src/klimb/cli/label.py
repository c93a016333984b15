"""``klimb label``: a page that asks for the labels a model can learn most from."""

import contextlib
import os
import sys
import threading
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from klimb.apps.label.journal import COLUMNS, Journal, Settings, agree, csv_text, read, same_data, standing
from klimb.cli.shell import check_targets, file_options, quiet_option, read_options, say, write_text
from klimb.cli.tables.read import read_table
from klimb.errors import InputError, listed, need_columns, require

RESERVED = "suh"  # keys of the page itself: skip, undo, hide


def names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """``a, b, c`` as names."""
    return None if value is None else tuple(name.strip() for name in value.split(","))


@click.command("label", no_args_is_help=True)
@click.argument("data", metavar="DATA")
@click.option("--text", metavar="COLUMN", multiple=True, help="Learn from the words of this column. May be repeated.")
@click.option("--columns", metavar="A,B,C", callback=names, help="Learn from these numeric columns.")
@click.option("--show", metavar="A,B,C", callback=names, help="Show these columns as well, without learning from them.")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of row identifiers; row numbers if not given.")
@click.option("--labels", metavar="A,B", callback=names, help="The labels, two to nine.  [default: yes,no]")
@click.option("--positive", metavar="NAME", help='Short for --labels "NAME,not NAME".')
@click.option("--keys", metavar="X,Y", callback=names, help="A key for each label.  [default: 1,2,...]")
@click.option("--score", type=click.Choice(["bald", "cu", "ig", "random"]),
              help="How items are chosen: by information gain (bald, ig), uncertainty (cu), randomly. [default: bald]")
@click.option("--batch", type=int, metavar="K", help="Items chosen at a time.  [default: 3]")
@click.option("--check", type=int, metavar="N", help="Draw every N-th item at random, to see how good the model really"
                                                     " is; 0 for never.  [default: 5]")
@click.option("--seed", type=int, metavar="N", help="Random seed.  [default: 0]")
@click.option("--journal", metavar="FILE", type=click.Path(dir_okay=False),
              help="Where labels are saved as they are given.  [default: beside DATA, .labels.jsonl]")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False),
              help="The labels as a table, written at the end.  [default: beside DATA, .labels.csv]")
@click.option("--export", is_flag=True, help="Only write that table, from the journal. --out - is standard output.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page.  [default: any free port]")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser, or only print its address.")
@click.option("--blind", is_flag=True, help="Hide the model's predictions (h shows them), which can bias the labeller.")
@quiet_option
@file_options
def command(data: str, journal: str | None, out: str | None, export: bool, port: int, browser: bool, quiet: bool,
            **how: Any) -> int:
    """Label the rows of DATA on a local page, where the model asks for the most informative ones.

    Keys: 1, 2, ... label, s skips, u undoes. Each label is saved before the next item is shown; the same command goes
    on where the last one stopped (nothing but DATA need be said then).

    \b
    Examples:
      klimb label reviews.csv --text review
      klimb label mails.csv --text subject --text body --positive spam
      klimb label sensors.parquet --columns temp,load --show day --labels ok,faulty
      klimb label reviews.csv --export --out - | head
    """
    journal_path = Path(journal) if journal else beside(data, ".labels.jsonl")
    out_path = out or str(beside(data, ".labels.csv"))
    if export:
        require(journal_path.is_file(), "a journal to export", f"no file {journal_path}",
                "Label something first, or name it: --journal.")
        check_out(out_path, str(journal_path))
        write_labels(standing(read(journal_path).entries), out_path, quiet)
        return 0
    check_out(out_path, data)
    with contextlib.ExitStack() as stack:
        serve(stack, data, journal_path, out_path, port, browser, quiet, **how)
    return 0


def beside(data: str, ending: str) -> Path:
    """``reviews.csv.gz`` -> ``reviews.labels.jsonl``."""
    require(data != "-", "a file to label, which is still there the next time", "standard input", "Save it first.")
    place = Path(data)
    name = place.name.removesuffix(".gz")
    return place.with_name((name.rpartition(".")[0] or name) + ending)


def serve(stack: contextlib.ExitStack, data: str, journal_path: Path, out: str, port: int, browser: bool, quiet: bool,
          *, blind: bool, **how: Any) -> None:
    """Read, open, serve until somebody stops it, and write the table."""
    from klimb.apps.label.server import LabelServer
    from klimb.apps.label.session import Session
    journal = stack.enter_context(Journal(journal_path))
    items, settings, keys = begin(journal, data, quiet, **how)
    for note in items.notes:
        say(note, quiet)
    session = Session(items, settings, journal, source=Path(data).name, blind=blind, keys=keys)
    stack.callback(session.close)
    server = LabelServer(session, port)
    stack.callback(server.server_close)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    stack.callback(server.shutdown)
    stack.callback(lambda: write_labels(session.standing(), out, quiet) if session.standing() or out == "-" else None)
    stack.callback(session.close)  # first of all: pages that wait are told
    # Without a screen, a browser for terminals would take ours over.
    screens = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))
    browser = browser and (sys.platform in ("darwin", "win32") or any(screens))
    print(f"The page is at {server.url}" if browser else f"open {server.url}", file=sys.stderr, flush=True)
    say("Press Ctrl-C to stop. Every label is saved as it is given.", quiet)
    if browser:
        threading.Thread(target=webbrowser.open, args=(server.launch_url(),), daemon=True).start()  # without waiting
    with contextlib.suppress(KeyboardInterrupt):
        thread.join()


def begin(journal: Any, data: str, quiet: bool, *, labels: tuple[str, ...] | None, positive: str | None,
          show: tuple[str, ...] | None, id_column: str | None, text: tuple[str, ...], columns: tuple[str, ...] | None,
          score: str | None, batch: int | None, check: int | None, seed: int | None, keys: tuple[str, ...] | None,
          **how_to_read: Any) -> tuple[Any, Any, str]:
    """Items, settings and keys; the settings are those of the journal, if there is one. It is begun last of all."""
    from klimb.apps.label.items import items_of
    if positive is not None:
        require(labels is None, "--labels or --positive", "both", "Leave one out.")
        labels = (positive, f"not {positive}")
    said = {"labels": labels, "score": score, "batch": batch, "check": check, "seed": seed, "text": text or None,
            "columns": columns}
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    resumed = bool(journal.header)
    settings = agree(journal.header, given, journal.path) if resumed else Settings(**given)
    pressed = check_keys(keys, len(settings.labels))
    table = read_columns(data, settings.text, settings.columns, show or (), id_column, **how_to_read)
    items = items_of(table, text=settings.text, columns=settings.columns, show=show or (), id_column=id_column,
                     tell=progress(quiet))
    if journal.torn:
        say(f"A crash cut off the last line of {journal.path} ({len(journal.torn)} bytes). It had not been acknowledged"
            f" as saved; its bytes are kept in {journal.torn_path}.")
    if resumed:
        same_data(journal.header, items.fingerprint, items.n, journal.path)
        say(f"{journal.path}: going on after {len(standing(journal.entries)):,} labels", quiet)
    else:
        journal.begin(settings.header(items.fingerprint, items.n, Path(data).name,
                                      datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")))
        say(f"{journal.path}: labels are saved here", quiet)
    return items, settings, pressed


def read_columns(data: str, text: tuple[str, ...], columns: tuple[str, ...], show: tuple[str, ...],
                 id_column: str | None, **how_to_read: Any) -> dict[str, Any]:
    """The columns that are needed, and no others."""
    wanted = [*text, *columns, *show, *([] if id_column is None else [id_column])]

    def choose(header: tuple[str, ...]) -> list[str]:
        require(text or columns, "columns for the model to learn from", "none",
                f"Give --text COLUMN or --columns A,B. The columns are: {listed(header)}.")
        need_columns(wanted, header)
        return list(dict.fromkeys(wanted))

    as_text = (*text, *([] if id_column is None or id_column in columns else [id_column]))
    return dict(read_table(data, choose, read_options(text_columns=as_text, **how_to_read)).columns)


def check_keys(keys: tuple[str, ...] | None, count: int) -> str:
    """One key for each label, none of them taken."""
    if keys is None:
        return "123456789"[:count]
    lowered = tuple(key.lower() for key in keys)
    bad = next((key for place, key in enumerate(lowered)
                if len(key) != 1 or key in RESERVED or key.isspace() or key in lowered[:place]), None)
    if bad is not None or len(keys) != count:
        raise InputError(f"{count} different keys of one character, none of them {', '.join(RESERVED)}",
                         ",".join(keys), "Use for example --keys y,n, or leave it out for 1, 2, ...")
    return "".join(lowered)


def progress(quiet: bool) -> Any:
    """How far the reading of texts is, in a terminal."""
    if quiet or not sys.stderr.isatty():
        return None
    return lambda count: print(f"\r{count:,} texts read ", end="", file=sys.stderr, flush=True) \
        if count % 10_000 == 0 else None


def write_labels(labels: list[Any], out: str, quiet: bool) -> None:
    """Labels as a table."""
    write_text(csv_text(labels), out)
    say(f"{len(labels):,} labels: {out}", quiet or out == "-")


def check_out(out: str, source: str) -> None:
    """Before the work: can the table be written, and does it overwrite nothing but an earlier one?"""
    check_targets(out, sources=(source,))
    if out != "-" and Path(out).is_file():
        with open(out, "rb") as stream:  # which may be anything
            begins = stream.readline(200).decode("utf-8", "replace").strip()
        require(begins in ("", ",".join(COLUMNS)), f"a table of labels, or nothing, at {out}",
                f"a file that begins {begins[:40]!r}", "Name another with --out.")
