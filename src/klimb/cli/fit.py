"""``klimb fit``: from a formula and a table to coefficients, a verdict and a file."""

from __future__ import annotations

import json
from typing import Any

import click

from klimb.cli.options import (
    json_option,
    level_option,
    modelling,
    output_option,
    quiet_option,
    read_options,
    reading,
)


@click.command("fit", no_args_is_help=True)
@click.argument("formula")
@click.argument("data", metavar="DATA")
@modelling
@output_option("Save the fit here (for predict, report, compare).")
@click.option("--report", "report_path", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write the HTML report as well.")
@click.option("--exact", is_flag=True, help="Sample the model exactly afterwards, and say how far the fit was off.")
@click.option("--strict", is_flag=True, help="Leave with exit code 4 where the model does not suit the data.")
@level_option()
@json_option
@quiet_option
@reading
def command(formula: str, data: str, output: str | None, report_path: str | None, exact: bool, strict: bool,
            level: float, as_json: bool, quiet: bool, **how: Any) -> int:
    """Fit FORMULA to the table DATA (CSV, Parquet, npz, svmlight; - is standard input) and print the table.

    \b
    Examples:
      klimb fit "y ~ x + z" data.csv
      klimb fit "passed ~ hours + (1 | school)" pupils.csv --family bernoulli \\
          -o m.klimb --report pupils.html
      klimb fit "count ~ s(day) + offset(log(area))" traps.parquet --family poisson
      zcat big.csv.gz | klimb fit "y ~ ." - --json --quiet > fit.json
      klimb fit '`blood pressure` ~ age' survey.csv --prior "age=normal(0, 1)"
    """
    from klimb.cli.shell import check_targets, emit, say

    check_targets(output, report_path, sources=(data,))
    fit = fit_table(formula, data, level=level, quiet=quiet, **how)
    fit = fit.exact() if exact else fit
    if as_json:
        from klimb.cli.facts import fit_json

        emit(json.dumps(fit_json(fit), ensure_ascii=False, allow_nan=False))
    else:
        emit(str(fit))
    if output is not None:
        fit.save(output)
        say(f"saved: {output}", quiet)
    if report_path is not None:
        from klimb.cli.report import write_report

        write_report(fit, report_path, source=data, command=again(formula, data, output, exact=exact, **how))
        say(f"report: {report_path}", quiet)
    return exit_code(fit, strict)


def fit_table(formula: str, data: str, *, family: str, link: str | None, priors: tuple[str, ...], weights: str | None,
              on_missing: str, hyper: Any, level: float, quiet: bool, **how_to_read: Any) -> Any:
    """Read the columns that the formula needs, and fit."""
    from klimb.cli.needs import columns_of
    from klimb.cli.tables.read import read_table

    options = read_options(**how_to_read)
    given = prior_texts(priors)
    table = read_table(data, columns_of(formula, weights), options)
    import klimb

    return klimb.fit(formula, table.columns, family=family, link=link, priors=given, weights=weights,
                     missing=on_missing, hyper=hyper, interval=level, progress=False if quiet else None)


def again(formula: str, data: str, output: str | None, *, family: str, link: str | None, priors: tuple[str, ...],
          weights: str | None, hyper: str, exact: bool = False, **_: Any) -> str:
    """The command that makes the fit again, ready to be pasted into a shell."""
    from shlex import quote

    parts = ["klimb", "fit", quote(formula), quote(data), "--family", quote(family)]
    parts += ["--link", quote(link)] if link else []
    parts += [part for prior in priors for part in ("--prior", quote(prior))]
    parts += ["--weights", quote(weights)] if weights else []
    parts += ["--hyper", hyper] if hyper != "auto" else []
    parts += ["--exact"] if exact else []
    parts += ["-o", quote(output)] if output else []
    return " ".join(parts)


def prior_texts(given: tuple[str, ...]) -> dict[str, str]:
    """``("x=normal(0, 1)",)`` as a dict; names may hold an equals sign, priors before their parenthesis not.

    >>> prior_texts(("x=normal(0, 1)", "a=b=exponential(2)"))
    {'x': 'normal(0, 1)', 'a=b': 'exponential(2)'}
    """
    found = {}
    for text in given:
        name, mark, prior = text.partition("(")
        before, equals, kind = name.rpartition("=")
        if not equals or not before.strip():
            raise click.BadParameter(f"{text!r} is not NAME=PRIOR", param_hint="--prior")
        found[before.strip()] = (kind + mark + prior).strip()
    return found


def exit_code(fit: Any, strict: bool = False) -> int:
    """0 for a fit to rely on, 3 for one that did not converge or is in doubt, with ``strict`` 4 for a misfit."""
    from klimb.cli import IN_DOUBT, MISFIT

    if not fit.converged or fit.trust_summary.verdict == "doubt":
        return IN_DOUBT
    return MISFIT if strict and fit.checks.verdict == "misfit" else 0
