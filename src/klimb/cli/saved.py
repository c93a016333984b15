"""Commands about saved fits: ``klimb check``, ``compare``, ``info``, ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from klimb.cli.fit import exit_code
from klimb.cli.predict import load_fit
from klimb.cli.shell import check_targets, emit, emit_json, json_option, level_option, quiet_option, say, write_text


@click.command("check", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@json_option
def check_command(model: str, as_json: bool) -> int:
    """Say how far the fit in the file MODEL can be believed, and whether its model suits the data.

    Leaves with 3 where the fit is in doubt, and with 4 where the model does not suit the data.

    \b
    Examples:
      klimb check m.klimb
      klimb check m.klimb --json | jq .trust.verdict
    """
    fit = load_fit(model)
    found = {"trust": fit.trust, "checks": fit.checks}
    if as_json:
        emit_json({name: record.to_dict() for name, record in found.items()})
    else:
        emit("\n\n".join(str(record) for record in found.values()))
    return exit_code(fit, strict=True)


@click.command("compare", no_args_is_help=True)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@json_option
def compare_command(models: tuple[str, ...], as_json: bool) -> int:
    """Rank fits of the same data by leave-one-out log density, with the bound beside it.

    \b
    Examples:
      klimb compare plain.klimb mixed.klimb
      klimb compare *.klimb --json | jq '.models[0].name'
    """
    import klimb

    if len(models) < 2:
        raise click.UsageError("compare needs at least two files")
    names = unique_names(models)
    found = klimb.compare({name: load_fit(path) for name, path in zip(names, models, strict=True)})
    if as_json:
        from klimb.report.records import to_json

        emit_json({"schema": "klimb.compare/1", "rows": found.n, "models": to_json(found.rows)})
    else:
        emit(str(found))
    return 0


def unique_names(paths: tuple[str, ...]) -> list[str]:
    """File names without their ending where that tells them apart, else the paths."""
    stems = [Path(path).stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(paths)) < len(paths):
        raise click.UsageError("the same file is named twice")
    return list(paths)


@click.command("info", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@json_option
def info_command(model: str, as_json: bool) -> int:
    """Say what the file MODEL holds: which model, who wrote it, whether data are inside.

    \b
    Examples:
      klimb info m.klimb
      klimb info m.klimb --json | jq .arrays
    """
    from klimb.report.text import table

    facts = file_facts(model)
    if as_json:
        emit_json(facts)
        return 0
    arrays = facts.pop("arrays")
    holds = facts.pop("holds")
    facts["size"] = f"{facts['size'] / 1000:.0f} kB"
    lines = [[name, str(value)] for name, value in facts.items() if value not in (None, "")]
    lines.append(["holds data", ", ".join(holds) if holds else "no"])
    lines.append(["arrays", f"{len(arrays)}, {sum(part['bytes'] for part in arrays) / 1000:.0f} kB"])
    emit(table(["file", model], lines, left=2))
    return 0


def file_facts(path: str) -> dict[str, Any]:
    """The facts of a file, ready for JSON."""
    from klimb.models.files import read_container

    found = read_container(path)
    header = found.header
    return {
        "kind": found.kind,
        "model": header.get("title"),
        "family": header.get("family"),
        "klimb": found.klimb_version,
        "schema": found.schema,
        "size": Path(path).stat().st_size,
        "holds": list(found.holds),
        "arrays": [{"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
                   for name, array in found.arrays.items()],
    }


@click.command("report", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="report.html",
              show_default=True, help="Where to write the page; - is standard output.")
@click.option("--title", default="", help="A heading for the page. The formula is shown in any case.")
@level_option(None)
@quiet_option
def report_command(model: str, output: str, title: str, level: float | None, quiet: bool) -> int:
    """Write a page about the fit saved in MODEL: table, effects, predictions, verdict, priors.

    The page is one file without scripts that needs nothing else: mail it, print it, archive it.

    \b
    Examples:
      klimb report m.klimb
      klimb report m.klimb -o mixed.html --title "Schools, 2024" --interval 0.5
    """
    check_targets(output, sources=(model,))
    fit = load_fit(model)
    write_report(fit, output, title=title, level=level, command=f"klimb report {model} -o {output}")
    if output != "-":
        say(f"report: {output}", quiet)
    return exit_code(fit)


def write_report(fit: Any, path: str, *, title: str = "", source: str = "", level: float | None = None,
                 command: str = "") -> None:
    """The page of a fit, whole or not at all."""
    from klimb.report.page import page

    report = fit.report(interval=level, title=title, source=source, reproduce=(command,) if command else ())
    write_text(page(report), path)
