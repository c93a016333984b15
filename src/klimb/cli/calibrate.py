"""``klimb calibrate``: do the intervals of a model hold what they promise? Simulate, fit, count."""

from __future__ import annotations

import json
from typing import Any

import click

from klimb.cli.options import json_option, modelling, quiet_option, reading


@click.command("calibrate", no_args_is_help=True)
@click.argument("formula")
@click.argument("data", metavar="DATA")
@modelling
@click.option("-n", "--simulations", "n", type=click.IntRange(min=1), default=200, show_default=True,
              help="How many data sets to simulate and fit.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated data: the only random part.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to fit in.")
@json_option
@quiet_option
@reading
def command(formula: str, data: str, n: int, seed: int, workers: int, as_json: bool, quiet: bool, **how: Any) -> int:
    """Simulate data from the priors of a model, fit them, and count how often intervals cover the truth.

    The design is that of DATA; standard deviations of groups and other parameters stay at their best for it. Leaves
    with exit code 3 if coverage lies outside what chance explains.

    \b
    Examples:
      klimb calibrate "passed ~ hours + (1 | school)" pupils.csv --family bernoulli
      klimb calibrate "count ~ day" traps.csv --family poisson -n 500 --json
    """
    import klimb
    from klimb.cli import IN_DOUBT
    from klimb.cli.fit import fit_table
    from klimb.cli.shell import emit

    fit = fit_table(formula, data, level=0.9, quiet=quiet, **how)
    found = klimb.calibrate(fit, n=n, seed=seed, workers=workers)
    if as_json:
        emit(json.dumps({"schema": "klimb.calibrate/1", **found.to_dict()}, allow_nan=False))
    else:
        emit(f"{found}\n{'calibrated' if found.calibrated else 'not calibrated: do not rely on these intervals'}")
    return 0 if found.calibrated else IN_DOUBT
