"""Commands about saved fits: ``klimb predict``, ``check``, ``compare``, ``info``, ``report``."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import click

import klimb
from klimb._files import whole_file
from klimb.cli import shell
from klimb.cli.fit import exit_code
from klimb.cli.tables.read import stream_table
from klimb.errors import need_columns, require

Piece: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
KINDS = ("mean", "latent", "response", "all")
OTHERS = (".xlsx", ".xls", ".ods", ".gz", ".zip", ".bz2", ".xz", ".feather", ".arrow", ".db", ".pkl")  # no text
EFFECTS: dict[str, Any] = {"own": True, "none": False, "new": "new"}


@click.command("predict", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="DATA")
@shell.output_option("Write here instead of standard output: .csv, .jsonl, .npz or .parquet.")
@click.option("--kind", type=click.Choice(KINDS), default="mean", show_default=True,
              help="The mean of y, the linear predictor, y itself with its noise, or all three.")
@click.option("--re", "effects", type=click.Choice(tuple(EFFECTS)), default="own", show_default=True,
              help="Random effects: of the rows' own levels, none, or of new levels.")
@click.option("--keep", metavar="COLUMN", multiple=True, help="Copy this column of DATA to the output. Repeatable.")
@click.option("--keep-all", is_flag=True, help="Copy every column of DATA to the output.")
@shell.level_option(None)
@click.option("--json", "as_json", is_flag=True, help="Write JSON lines instead of CSV: one object per row.")
@shell.quiet_option
@shell.reading
def command(model: str, data: str, output: str | None, kind: str, effects: str, keep: tuple[str, ...], keep_all: bool,
            level: float | None, as_json: bool, quiet: bool, **how_to_read: Any) -> int:
    """Predict the rows of DATA (- is standard input) with the fit saved in MODEL.

    Columns: mean, sd, lower, upper, one row for each row of DATA; empty where a value that is needed is missing.

    \b
    Examples:
      klimb predict m.klimb new.csv > predictions.csv
      klimb predict m.klimb new.csv --kind response --interval 0.5 --keep id
      klimb predict m.klimb new.csv --re none
      klimb predict m.klimb new.parquet --keep-all -o predictions.parquet
      cut -d, -f2- big.csv | klimb predict m.klimb - --json | jq .mean
    """
    shell.check_targets(output, sources=(model, data))
    suffix = Path(output or "").suffix.lower()
    require(suffix not in OTHERS, "a file of predictions ends in .csv, .jsonl, .npz or .parquet", f"{output}",
            "Choose one of these, or leave -o out and pipe standard output.")
    fit = load_fit(model)
    options = shell.read_options(**how_to_read)
    options = replace(options, kinds={**kinds_of(fit), **options.kinds})
    pieces = predicted(fit, data, options, kind, level, keep, keep_all, EFFECTS[effects])
    if suffix in (".npz", ".parquet"):
        rows = write_arrays(pieces, str(output), suffix[1:])
    else:
        try:
            rows = write_lines(pieces, output, as_json or suffix == ".jsonl")
        except BrokenPipeError:  # the reader has seen enough
            shell.hush()
            return 0
    if output:
        shell.say(f"predicted {rows:,} rows: {output}", quiet)
    return 0


def load_fit(path: str) -> Any:
    """The fit in a file; an error if the file holds something else."""
    from klimb.models.files import load
    found = load(path)
    require(hasattr(found, "formula"), "a file saved by klimb fit", f"{path}, which holds a {type(found).__name__}",
            "Predict with it in Python: klimb.load(path).")
    return found


def kinds_of(fit: Any) -> dict[str, Any]:
    """Columns to be read as text because they hold levels: "007" is not 7 where the fit had text."""
    from klimb.cli.tables.csvfile import number
    from klimb.rows.columns import number_label
    def plain_number(label: str) -> bool:
        value = number(label)
        return value is not None and value == value and number_label(value) == label

    return {variable.name: "text" for variable in fit.encoder.variables
            if variable.kind == "levels" and not all(map(plain_number, variable.levels))
            and not set(variable.levels) <= {"True", "False"}}


def predicted(fit: Any, data: str, options: Any, kind: str, level: float | None, keep: tuple[str, ...],
              keep_all: bool, effects: Any = True) -> Iterator[Piece]:
    """The kept columns and the predictions, piece by piece."""
    skipped = () if effects is True else fit.encoder.grouping_columns
    predictors = [name for name in fit.encoder.predictors if name not in skipped]
    needed = {*predictors, *(fit.encoder.response.columns if "trials" in fit.observed.aux else ())}

    def choose(header: tuple[str, ...]) -> list[str]:
        need_columns(keep, header, "--keep needs a column of the data")
        fit.encoder.need(predictors, header)
        return [name for name in header if keep_all or name in needed or name in keep]

    for piece in stream_table(data, choose, options):
        kept = list(piece.columns) if keep_all else list(keep)
        frame = {name: values for name, values in piece.columns.items() if name in needed}
        columns = fit.predict(frame, interval=level, kind=kind, re=effects) if piece.n else {}
        # A kept column that has the name of a prediction is renamed.
        yield {f"data_{name}" if name in columns else name: piece.columns[name] for name in kept}, columns


def write_lines(pieces: Iterator[Piece], output: str | None, as_json: bool) -> int:
    """CSV with a heading, or a JSON object per row; the number of rows."""
    rows = 0
    if output is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale: column names are data
    place: Any = whole_file(output) if output else nullcontext(sys.stdout)
    with place as stream:
        for kept, columns in pieces:
            names = [*kept, *columns]
            cells = [*(_plain(values, whole=True) for values in kept.values()), *map(_plain, columns.values())]
            if as_json:
                stream.writelines(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n"
                                  for row in zip(*cells, strict=True))
            else:
                writer = csv.writer(stream, lineterminator="\n")
                if rows == 0 and names:
                    writer.writerow(names)
                writer.writerows(["" if cell is None else cell for cell in row] for row in zip(*cells, strict=True))
            rows += len(cells[0]) if cells else 0
        stream.flush()
    return rows


def _plain(values: Any, whole: bool = False) -> list[Any]:
    """Python's own numbers, which print with all their digits; None where there is none.

    With ``whole``, whole numbers lose their point, as they had none in most tables they were read from.
    """
    found = [None if value != value else value for value in values.tolist()]
    if whole and values.dtype.kind == "f" and all(value is None or value.is_integer() for value in found):
        return [None if value is None else int(value) for value in found]
    return found


def write_arrays(pieces: Iterator[Piece], output: str, suffix: str) -> int:
    """All rows in one file of arrays."""
    import numpy as np
    parts = [{**kept, **columns} for kept, columns in pieces]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    with whole_file(output, "wb") as stream:
        if suffix == "npz":
            plain = {name: values.astype(str) if values.dtype == object else values for name, values in joined.items()}
            np.savez(stream, **plain)  # type: ignore[arg-type]
        else:
            from klimb.cli.tables.arrays import write_parquet
            write_parquet(stream, joined)
    return len(next(iter(joined.values()))) if joined else 0


@click.command("check", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@shell.json_option
def check_command(model: str, as_json: bool) -> int:
    """Report whether the fit saved in MODEL can be trusted, and whether its model fits the data.

    Leaves with 3 where the fit is in doubt, and with 4 where the model does not suit the data.

    \b
    Examples:
      klimb check m.klimb
      klimb check m.klimb --json | jq .trust.verdict
    """
    fit = load_fit(model)
    found = {"trust": fit.trust, "checks": fit.checks}
    facts = {name: record.to_dict() for name, record in found.items()}
    shell.emit_json(facts) if as_json else shell.emit("\n\n".join(map(str, found.values())))
    return exit_code(fit, strict=True)


@click.command("compare", no_args_is_help=True)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@shell.json_option
def compare_command(models: tuple[str, ...], as_json: bool) -> int:
    """Rank fits of the same data by leave-one-out log density, with the bound beside it.

    \b
    Examples:
      klimb compare plain.klimb mixed.klimb
      klimb compare *.klimb --json | jq '.models[0].name'
    """
    from klimb.report.records import to_json
    if len(models) < 2:
        raise click.UsageError("compare needs at least two files")
    names = unique_names(models)
    found = klimb.compare({name: load_fit(path) for name, path in zip(names, models, strict=True)})
    facts = {"schema": "klimb.compare/1", "rows": found.n, "models": to_json(found.rows)}
    shell.emit_json(facts) if as_json else shell.emit(str(found))
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
@shell.json_option
def info_command(model: str, as_json: bool) -> int:
    """Show what the file MODEL contains: which model, what wrote it, whether data are included.

    \b
    Examples:
      klimb info m.klimb
      klimb info m.klimb --json | jq .arrays
    """
    from klimb.models.files import read_container
    from klimb.report.text import table
    found = read_container(model)
    facts: dict[str, Any] = {
        "kind": found.kind, "model": found.header.get("title"), "family": found.header.get("family"),
        "klimb": found.klimb_version, "schema": found.schema, "size": Path(model).stat().st_size,
        "holds": list(found.holds),
        "arrays": [{"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
                   for name, array in found.arrays.items()]}
    if as_json:
        shell.emit_json(facts)
        return 0
    arrays = facts.pop("arrays")
    holds = facts.pop("holds")
    facts["size"] = f"{facts['size'] / 1000:.0f} kB"
    lines = [[name, str(value)] for name, value in facts.items() if value not in (None, "")]
    lines += [["holds data", ", ".join(holds) if holds else "no"],
              ["arrays", f"{len(arrays)}, {sum(part['bytes'] for part in arrays) / 1000:.0f} kB"]]
    shell.emit(table(["file", model], lines, left=2))
    return 0


@click.command("report", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="report.html",
              show_default=True, help="Where to write the page; - is standard output.")
@click.option("--title", default="", help="A heading for the page. The formula is shown in any case.")
@shell.level_option(None)
@shell.quiet_option
def report_command(model: str, output: str, title: str, level: float | None, quiet: bool) -> int:
    """Write a page about the fit saved in MODEL: table, effects, predictions, verdict, priors.

    The page is one self-contained file without scripts: mail it, print it, archive it.

    \b
    Examples:
      klimb report m.klimb
      klimb report m.klimb -o mixed.html --title "Schools, 2024" --interval 0.5
    """
    shell.check_targets(output, sources=(model,))
    fit = load_fit(model)
    write_report(fit, output, title=title, level=level, command=f"klimb report {model} -o {output}")
    if output != "-":
        shell.say(f"report: {output}", quiet)
    return exit_code(fit)


def write_report(fit: Any, path: str, *, title: str = "", source: str = "", level: float | None = None,
                 command: str = "") -> None:
    """The page of a fit, whole or not at all."""
    from klimb.report.page import page
    report = fit.report(interval=level, title=title, source=source, reproduce=(command,) if command else ())
    shell.write_text(page(report), path)
