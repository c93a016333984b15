"""``klimb compare``: saved fits of the same data, best first."""

from __future__ import annotations

import json
from pathlib import Path

import click

from klimb.cli.options import json_option


@click.command("compare", no_args_is_help=True)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@json_option
def command(models: tuple[str, ...], as_json: bool) -> int:
    """Rank fits of the same data by leave-one-out log density, with the bound beside it.

    \b
    Examples:
      klimb compare plain.klimb mixed.klimb
      klimb compare *.klimb --json | jq '.models[0].name'
    """
    import klimb
    from klimb.cli.predict import load_fit
    from klimb.cli.shell import emit
    from klimb.models.files import load

    if len(models) < 2:
        raise click.UsageError("compare needs at least two files")
    names = unique_names(models)
    found = klimb.compare({name: load_fit(path, load) for name, path in zip(names, models, strict=True)})
    if as_json:
        from klimb.report.records import to_json

        facts = {"schema": "klimb.compare/1", "rows": found.n, "models": to_json(found.rows)}
        emit(json.dumps(facts, ensure_ascii=False, allow_nan=False))
    else:
        emit(str(found))
    return 0


def unique_names(paths: tuple[str, ...]) -> list[str]:
    """File names without their ending where that tells them apart, else the paths.

    >>> unique_names(("a/m.klimb", "a/n.klimb")), unique_names(("a/m.klimb", "b/m.klimb"))
    (['m', 'n'], ['a/m.klimb', 'b/m.klimb'])
    """
    stems = [Path(path).stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(paths)) < len(paths):
        raise click.UsageError("the same file is named twice")
    return list(paths)
