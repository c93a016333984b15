"""``klimb check``: whether a saved fit can be believed, and whether its model suits the data."""

from __future__ import annotations

import json

import click

from klimb.cli.options import json_option


@click.command("check", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@json_option
def command(model: str, as_json: bool) -> int:
    """Say how far the fit in the file MODEL can be believed, and whether its model suits the data.

    Leaves with 3 where the fit is in doubt, and with 4 where the model does not suit the data.

    \b
    Examples:
      klimb check m.klimb
      klimb check m.klimb --json | jq .trust.verdict
    """
    from klimb.cli.fit import exit_code
    from klimb.cli.predict import load_fit
    from klimb.cli.shell import emit
    from klimb.models.files import load

    fit = load_fit(model, load)
    found = {"trust": fit.trust, "checks": fit.checks}
    if as_json:
        facts = {name: record.to_dict() for name, record in found.items()}
        emit(json.dumps(facts, ensure_ascii=False, allow_nan=False))
    else:
        emit("\n\n".join(str(record) for record in found.values()))
    return exit_code(fit, strict=True)
