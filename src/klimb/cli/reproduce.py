"""``klimb reproduce``: the tables and figures of the papers, with the papers' figures beside ours."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from klimb.cli import INTERRUPTED, USER_ERROR
from klimb.cli.shell import complain, emit, emit_json, json_option, quiet_option, say
from klimb.errors import InputError

if TYPE_CHECKING:
    from klimb.apps.papers.experiment import Size

PATIENCE = 10.0  # seconds between lines about progress


@click.command("reproduce", no_args_is_help=True)
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=lambda _, __, begun: completions(begun))
@click.option("--list", "listing", is_flag=True, help="List every table and figure with its data and run time.")
@click.option("--quick", is_flag=True, help="A small version of each, within two minutes.")
@click.option("--data", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the data sets; by default $KLIMB_DATA.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), default=Path("reproduced"),
              show_default=True, help="Folder for records, pages and pictures.")
@click.option("--fresh", is_flag=True, help="Discard results of earlier runs.")
@click.option("--so-far", is_flag=True, help="Only show the results of earlier runs.")
@json_option
@quiet_option
def command(keys: tuple[str, ...], listing: bool, quick: bool, data: Path | None, out: Path, fresh: bool,
            so_far: bool, as_json: bool, quiet: bool) -> int:
    """Reproduce tables and figures of the papers: theirs beside ours, a picture, a record.

    KEY is one of --list, or "all". Nothing is downloaded: docs/papers/data.md says where each data set is
    published. Every piece is kept as soon as it is done, so a run that was interrupted goes on where it stopped.

    \b
    Examples:
      klimb reproduce --list
      klimb reproduce G-figure1 --quick
      klimb reproduce A-table2 A-table3 --data ~/uci --out papers
    """
    from klimb.apps.papers.experiment import EXPERIMENTS, canonical, run, shown, stem
    from klimb.apps.papers.pictures import NEEDS_MATPLOTLIB, can_draw
    if fresh and so_far:
        raise click.UsageError("--fresh forgets what --so-far would show: say one of them")
    if listing:
        emit(listed(as_json))
        return 0
    if not keys:
        raise click.UsageError("name a table or figure, or use --list")
    size: Size = "quick" if quick else "full"
    everything = "all" in [key.lower() for key in keys]
    names = list(EXPERIMENTS) if everything else [canonical(key) for key in keys]
    worst = 0
    for name in dict.fromkeys(names):
        try:
            record = run(name, data=data, out=out, size=size, fresh=fresh, so_far=so_far, hear=progress(name, quiet))
        except InputError as error:
            if not everything:
                raise
            complain(f"{name}: {error}")  # a data set that is not there must not keep the others from running
            worst = USER_ERROR
            continue
        except KeyboardInterrupt:
            say(f"klimb: interrupted; results so far are in {out / stem(name, size)}.json: the same command resumes.")
            return INTERRUPTED
        facts = {"experiment": name, "size": size, "record": str(record.path), "tables": record.extra["tables"]}
        emit_json(facts) if as_json else emit(shown(record))
        if EXPERIMENTS[name].experiment().draw is not None and not can_draw():
            say(f"klimb: {NEEDS_MATPLOTLIB}", quiet)
    return worst


def progress(title: str, quiet: bool) -> Callable[[str, int, int], None]:
    """A function to be called with (job, done, total): a line now and then."""
    begin, last = time.monotonic(), [float("-inf")]

    def hear(job: str, done: int, total: int) -> None:
        now = time.monotonic()
        if job and now - last[0] >= PATIENCE:
            last[0] = now
            say(f"{title}: {done} of {total} done, {now - begin:.0f} s, now {job}", quiet)

    return hear


def completions(begun: str) -> list[str]:
    """Keys that begin so, for the shell."""
    from klimb.apps.papers.experiment import EXPERIMENTS
    return [key for key in [*EXPERIMENTS, "all"] if key.lower().startswith(begun.lower())]


def listed(as_json: bool = False) -> str:
    """All that can be reproduced, as a table or as JSON."""
    from klimb.apps.papers.experiment import EXPERIMENTS, PAPERS
    from klimb.report.text import table
    if as_json:
        return json.dumps([{"key": key, "title": one.title, "data": one.data, "full": one.full}
                           for key, one in EXPERIMENTS.items()], ensure_ascii=False)
    rows = [[key, one.title, one.full] for key, one in EXPERIMENTS.items()]
    papers = "\n".join(f"[{letter}] {name}" for letter, name in PAPERS.items())
    return (f"{table(['key', 'what it shows', 'full run'], rows, left=2)}\n\n{papers}\n\n"
            "With --quick each takes less than two minutes. Data sets: docs/papers/data.md.")
