"""``klimb fit`` and ``calibrate``: from a formula and a table to coefficients, a verdict and a file."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

import klimb
from klimb.cli import IN_DOUBT, MISFIT, shell
from klimb.cli.tables.read import ReadOptions, read_table
from klimb.errors import InputError, need_columns, require

FEW_COLUMNS = 40  # of a table that is read as a whole
LARGE, LARGE_CSV = 1 << 25, 1 << 28  # bytes of a Parquet and of a CSV file that are not
MESH = "Write it with numpy.savez(path, nodes=nodes, triangles=triangles), or as JSON with these two keys."
CONDITION = re.compile(r"(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)")


@click.command("fit", no_args_is_help=True)
@click.argument("formula")
@click.argument("data", metavar="DATA")
@shell.modelling
@shell.output_option("Save the fit here (for predict, report, compare).")
@click.option("--report", "report_path", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write the HTML report as well.")
@click.option("--exact", is_flag=True, help="Also sample the exact posterior, and report how far the fit was off.")
@click.option("--strict", is_flag=True, help="Exit with code 4 if the model does not fit the data.")
@shell.level_option()
@shell.json_option
@shell.quiet_option
@shell.reading
def command(formula: str, data: str, output: str | None, report_path: str | None, exact: bool, strict: bool,
            level: float, as_json: bool, quiet: bool, **how: Any) -> int:
    """Fit FORMULA to the table DATA (CSV, Parquet, npz, svmlight; - is standard input) and print the table.

    A folder or a glob of Parquet or CSV files need not fit in memory: equal rows are counted and fitted once.

    \b
    Examples:
      klimb fit "y ~ x + z" data.csv
      klimb fit "passed ~ hours + (1 | school)" pupils.csv --family bernoulli \\
          -o m.klimb --report pupils.html
      klimb fit "count ~ s(day) + offset(log(area))" traps.parquet --family poisson
      klimb fit "bought ~ shop + age" "sales/part-*.parquet" --family bernoulli
      zcat big.csv.gz | klimb fit "y ~ ." - --json --quiet > fit.json
      klimb fit '`blood pressure` ~ age' survey.csv --prior "age=normal(0, 1)"
    """
    shell.check_targets(output, report_path, sources=(data,))
    fit = fit_table(formula, data, level=level, quiet=quiet, **how)
    fit = fit.exact() if exact else fit
    shell.emit_json(fit_json(fit)) if as_json else shell.emit(str(fit))
    if output is not None:
        fit.save(output)
        shell.say(f"saved: {output}", quiet)
    if report_path is not None:
        from klimb.cli.saved import write_report
        write_report(fit, report_path, source=data, command=again(formula, data, output, exact=exact, **how))
        shell.say(f"report: {report_path}", quiet)
    return exit_code(fit, strict)


def fit_table(formula: str, data: str, *, family: str, link: str | None, priors: tuple[str, ...], weights: str | None,
              on_missing: str, hyper: Any, graphs: tuple[str, ...], matrices: tuple[str, ...], meshes: tuple[str, ...],
              cells: bool | None, digits: tuple[str, ...], engine: str | None, address: str | None,
              where: tuple[str, ...], unreadable: str, checkpoint: str | None, memory: str | None, level: float,
              quiet: bool, **how_to_read: Any) -> Any:
    """Read the columns that the formula needs, all where they are few so that checks look at them too, and fit.

    Folders, globs and large Parquet files are left where they are: `klimb.fit` counts their cells, or passes over them.
    """
    from klimb.rows.engines import engine_of
    options = shell.read_options(**how_to_read)
    objects = objects_of({"graphs": graphs, "matrices": matrices, "meshes": meshes}, options)
    rounding = {name: int(number) for name, number in shell.named(digits, "--round").items()}
    given = {name: text.strip() for name, text in shell.named(priors, "--prior").items()}
    table: Any = data
    if where or unreadable != "error":
        table = klimb.scan(data, where=[condition(text) for text in where] or None, unreadable=unreadable)
    elif not _past_memory(data, options):
        table = _columns(formula, data, weights, options)
    return klimb.fit(formula, table, family=family, link=link, priors=given, weights=weights, cells=cells,
                     round=rounding, missing=on_missing, hyper=hyper, interval=level, progress=False if quiet else None,
                     engine=engine_of(engine, address), checkpoint=checkpoint, memory=memory,
                     **objects)


def _columns(formula: str, data: str, weights: str | None, options: Any) -> Any:
    try:
        return read_table(data, columns_of(formula, weights, few=0 if data == "-" else FEW_COLUMNS), options).columns
    except InputError:  # of a column that may not be needed
        if data == "-":  # which is read once
            raise
        return read_table(data, columns_of(formula, weights), options).columns


def _past_memory(data: str, options: Any) -> bool:
    """Whether the rows are left where they are: several files, files elsewhere, or one large file."""
    path = Path(data)
    many = path.is_dir() or "://" in data or (not path.exists() and any(mark in data for mark in "*?["))
    if many and replace(options, format=None) != ReadOptions():
        raise InputError("several files are read as they are", "options of how to read them",
                         "Leave --delimiter, --decimal, --missing, --encoding and --text out, or name one file.")
    most = {".parquet": LARGE, ".pq": LARGE, ".csv": LARGE_CSV}.get(path.suffix)
    large = most is not None and path.is_file() and path.stat().st_size > most
    return many or (large and options == ReadOptions())


def objects_of(given: Mapping[str, tuple[str, ...]], options: ReadOptions) -> dict[str, Any]:
    """``{"graphs": ("G=edges.csv",), ...}`` as the keywords of `klimb.fit`."""
    plain = replace(options, format=None, kinds={})  # what was said of the data is not said of these
    readers = {"graphs": ("--graph", _edges), "matrices": ("--matrix", _matrix), "meshes": ("--mesh", _mesh)}
    return {kind: {name: readers[kind][1](path, plain) for name, path in shell.named(texts, readers[kind][0]).items()}
            for kind, texts in given.items()}


def _first_columns(path: str, count: int, what: str, options: ReadOptions) -> list[Any]:
    table = read_table(path, lambda header: header[:count], options)
    if len(table.columns) < count:
        raise InputError(f"a table of {what} needs {count} columns", f"{len(table.header)} in {path}", "One a row.")
    return list(table.columns.values())


def _edges(path: str, options: ReadOptions) -> list[tuple[Any, Any]]:
    return list(zip(*(ends.tolist() for ends in _first_columns(path, 2, "edges", options)), strict=True))


def _matrix(path: str, options: ReadOptions) -> Any:
    """A sparse matrix in a file of SciPy or in Matrix Market form, or triplets: row, column, value."""
    import numpy as np
    from scipy.io import mmread
    from scipy.sparse import coo_array, load_npz
    try:
        if path.endswith(".npz"):
            return load_npz(path)
        if path.removesuffix(".gz").endswith(".mtx"):
            return mmread(path)
    except (ValueError, KeyError, OSError) as error:
        raise _unread(path, "a sparse matrix", error, "Use scipy.sparse.save_npz or scipy.io.mmwrite.") from error
    header = read_table(path, lambda header: header[:1], options).header
    require(len(header) == 3, "a table of a matrix needs 3 columns: row, column and value of each entry that is not 0",
            f"{len(header)} columns in {path}", "A dense matrix M is written as such a table, or by "
            "scipy.io.mmwrite('M.mtx', scipy.sparse.coo_array(M)).")
    rows, columns, values = _first_columns(path, 3, "the entries of a matrix", options)
    if values.dtype.kind not in "fiu":
        raise InputError(f"the third column of {path} must be numbers", repr(values[0]), "Write row, column, value.")
    both = np.concatenate([rows, columns])
    if both.dtype.kind in "fiu":
        if not (np.isfinite(both) & (both >= 0) & (both == np.round(both))).all():
            raise InputError(f"rows and columns of {path} must be names, or whole numbers from 0", f"{both.min():g}",
                             "Count the levels from 0, in their order.")
        names, codes = None, both.astype(np.intp)
    else:
        names, codes = np.unique(both.astype(str), return_inverse=True)
    i, j = codes.reshape(2, -1)
    size = int(codes.max()) + 1
    matrix = coo_array((values.astype(np.float64), (i, j)), shape=(size, size)).tocsc()
    return matrix if names is None else (matrix, names.tolist())


def _mesh(path: str, options: ReadOptions) -> tuple[Any, Any]:
    """Nodes and triangles."""
    import numpy as np
    try:
        written = path.endswith(".json")
        stored: Any = json.loads(Path(path).read_text()) if written else np.load(path, allow_pickle=False)
        return np.asarray(stored["nodes"], dtype=np.float64), np.asarray(stored["triangles"])
    except (ValueError, KeyError, TypeError, IndexError, OSError, EOFError) as error:
        raise _unread(path, "a mesh: nodes and triangles", error, MESH) from error


def _unread(path: str, what: str, error: Exception, advice: str) -> Exception:
    if isinstance(error, FileNotFoundError | PermissionError):
        return error
    return InputError(f"{path} must hold {what}", f"{type(error).__name__}: {str(error).splitlines()[0]}", advice)


def condition(text: str) -> tuple[str, str, Any]:
    """``"year >= 2019"`` as Arrow takes it."""
    found = CONDITION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not COLUMN (==, !=, <, <=, >, >=) VALUE", param_hint="--where")
    name, mark, value = found.groups()
    for kind in (int, float):
        with suppress(ValueError):
            return name, mark, kind(value)
    return name, mark, value.strip("'\"")


def again(formula: str, data: str, output: str | None, *, family: str, **given: Any) -> str:
    """The command that makes the fit again, ready to be pasted into a shell: options that are not at their defaults."""
    words = ["klimb", "fit", formula, data, "--family", family]
    for option in command.params:
        value = given.get(str(option.name))
        if not isinstance(option, click.Option) or value in (None, (), option.default):
            continue
        if isinstance(value, bool):
            words += option.opts if value else option.secondary_opts
        else:
            words += [word for one in (value if option.multiple else (value,)) for word in (option.opts[-1], str(one))]
    return " ".join(map(quote, [*words, "-o", output] if output else words))


def exit_code(fit: Any, strict: bool = False) -> int:
    """0 for a fit to rely on, 3 for one that did not converge or is in doubt, with ``strict`` 4 for a misfit."""
    if not fit.converged or fit.trust_summary.verdict == "doubt":
        return IN_DOUBT
    return MISFIT if strict and fit.checks.verdict == "misfit" else 0


def columns_of(formula: str, *others: str | None, few: int = 0) -> Callable[[tuple[str, ...]], Sequence[str]]:
    """For a header, the columns that ``formula`` uses (all for a dot) and ``others``; errors point at absent ones.

    A header of up to ``few`` columns is read as a whole.
    """
    import klimb.terms  # noqa: F401  whose kinds formulas may call
    from klimb.formula import parse
    from klimb.formula.nodes import Dot, walk
    from klimb.formula.parts import check_columns, used_columns
    parsed = parse(formula)
    extra = [name for name in others if name is not None]

    def choose(header: tuple[str, ...]) -> Sequence[str]:
        check_columns(parsed, header)
        need_columns(extra, header)
        if len(header) <= few or any(isinstance(node, Dot) for node in walk(parsed.right)):
            return header
        used = {name.name for side in (parsed.response, parsed.right) for name in used_columns(side, formula)}
        return [name for name in header if name in used or name in extra]

    return choose


def fit_json(fit: Any) -> dict[str, Any]:
    """The schema ``klimb.fit/1`` of docs/command-line.md: numbers in full precision, null where there is none."""
    from klimb.models.reporting import family_words
    from klimb.report.records import to_json
    loo, trust = None if fit.by_sums else fit.loo(), fit.trust_summary
    return {
        "schema": "klimb.fit/1",
        "klimb": klimb.__version__,
        "formula": fit.formula,
        "family": family_words(fit),
        "interval": fit.interval,
        "rows": fit.n,
        **({} if fit.observed.n_cells is None else {"cells": fit.observed.n_cells}),
        "dropped": fit.observed.dropped,
        "coefficients": to_json(fit.coefficient_rows()),
        "parameters": to_json(fit.parameter_rows()),
        "priors": dict(fit.priors),
        "bound": to_json(fit.bound),
        "converged": fit.converged,
        "status": fit.status.name.lower(),
        "advice": fit.status.advice,
        "loo": None if loo is None else to_json({"elpd": loo.elpd, "se": loo.se, "failed": loo.failed}),
        "trust": to_json({"verdict": trust.verdict, "number": trust.number, "measures": trust.measures,
                          "advice": trust.advice}),
        "checks": fit.checks.to_dict(),
        "notes": list(fit.notes),
    }


@click.command("cache", no_args_is_help=True)
@click.argument("data", metavar="DATA")
@click.option("-o", "--output", metavar="FOLDER", type=click.Path(file_okay=False), required=True,
              help="Folder for the arrays.")
@click.option("--formula", help="Keep only the columns that this formula uses.")
@shell.quiet_option
def cache_command(data: str, output: str, formula: str | None, quiet: bool) -> int:
    """Write the columns of DATA (files of Parquet, CSV, Feather, ORC) as memory maps, which klimb fit reads faster.

    Worth it where a fit passes over the rows often: numbers are not decoded again, and text is not looked up again. A
    fit of FOLDER has the same bits as one of DATA.

    \b
    Examples:
      klimb cache "sales/part-*.parquet" -o sales.cache
      klimb cache big.csv -o big.cache --formula "y ~ x + (1 | g)"
      klimb fit "y ~ x + (1 | g)" big.cache --family bernoulli
    """
    from klimb.rows.scans import as_table
    table = as_table(data)
    names = list(table.columns if formula is None else columns_of(formula)(table.columns))
    klimb.cache(table, output, names)
    shell.say(f"{len(names)} columns: {output}", quiet)
    return 0


@click.command("calibrate", no_args_is_help=True)
@click.argument("formula")
@click.argument("data", metavar="DATA")
@shell.modelling
@click.option("-n", "--simulations", "n", type=click.IntRange(min=1), default=200, show_default=True,
              help="How many data sets to simulate and fit.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulated data.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes.")
@shell.json_option
@shell.quiet_option
@shell.reading
def calibrate_command(formula: str, data: str, n: int, seed: int, workers: int, as_json: bool, quiet: bool,
                      **how: Any) -> int:
    """Simulate data from the priors of a model, fit them, and count how often intervals cover the truth.

    The design is that of DATA; hyperparameters are held at their optimum for it. Exits with code 3 if the coverage
    differs from nominal by more than chance explains.

    \b
    Examples:
      klimb calibrate "passed ~ hours + (1 | school)" pupils.csv --family bernoulli
      klimb calibrate "count ~ day" traps.csv --family poisson -n 500 --json
    """
    fit = fit_table(formula, data, level=0.9, quiet=quiet, **how)
    found = klimb.calibrate(fit, n=n, seed=seed, workers=workers)
    verdict = "calibrated" if found.calibrated else "not calibrated: do not rely on these intervals"
    facts = {"schema": "klimb.calibrate/1", **found.to_dict()}
    shell.emit_json(facts) if as_json else shell.emit(f"{found}\n{verdict}")
    return 0 if found.calibrated else IN_DOUBT
