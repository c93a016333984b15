"""``klimb report``: a saved fit as one HTML page."""

from __future__ import annotations

from typing import Any

import click

from klimb.cli.options import level_option, quiet_option


@click.command("report", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="report.html",
              show_default=True, help="Where to write the page; - is standard output.")
@click.option("--title", default="", help="A heading for the page. The formula is shown in any case.")
@level_option(None)
@quiet_option
def command(model: str, output: str, title: str, level: float | None, quiet: bool) -> int:
    """Write a page about the fit saved in MODEL: table, effects, predictions, verdict, priors.

    The page is one file without scripts that needs nothing else: mail it, print it, archive it.

    \b
    Examples:
      klimb report m.klimb
      klimb report m.klimb -o mixed.html --title "Schools, 2024" --interval 0.5
    """
    from klimb.cli.fit import exit_code
    from klimb.cli.predict import load_fit
    from klimb.cli.shell import check_targets, say
    from klimb.models.files import load

    check_targets(output, sources=(model,))
    fit = load_fit(model, load)
    write_report(fit, output, title=title, level=level, command=f"klimb report {model} -o {output}")
    if output != "-":
        say(f"report: {output}", quiet)
    return exit_code(fit)


def write_report(fit: Any, path: str, *, title: str = "", source: str = "", level: float | None = None,
                 command: str = "") -> None:
    """The page of a fit, whole or not at all."""
    from klimb._files import whole_file
    from klimb.cli.shell import emit
    from klimb.report.page import page

    text = page(fit.report(interval=level, title=title, source=source, reproduce=(command,) if command else ()))
    if path == "-":
        emit(text)
        return
    with whole_file(path) as stream:
        stream.write(text)
