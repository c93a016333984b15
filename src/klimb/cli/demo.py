"""``klimb demo``: the bundled example."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("demo")
@click.option("-o", "--output", "folder", metavar="DIRECTORY", default=".", show_default=True,
              type=click.Path(file_okay=False, path_type=Path), help="Where the three files go.")
def command(folder: Path) -> int:
    """Fit the bundled example (a mixed logistic regression), predict, and write report, picture and table.

    \b
    Examples:
      klimb demo
      klimb demo -o /tmp/klimb-demo
    """
    from klimb.cli.fit import exit_code
    from klimb.cli.shell import emit
    from klimb.demo.run import run

    folder.mkdir(parents=True, exist_ok=True)
    return exit_code(run(folder, emit))
