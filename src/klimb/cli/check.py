"""``klimb check``: whether a saved fit can be believed."""

from __future__ import annotations

import json
from typing import Any

import click

from klimb.cli.options import json_option


@click.command("check", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@json_option
def command(model: str, as_json: bool) -> int:
    """Say what is known of how far the fit in the file MODEL can be believed.

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
    found = findings(fit)
    if as_json:
        facts = {name: record.to_dict() for name, record in found.items()}
        emit(json.dumps(facts, ensure_ascii=False, allow_nan=False))
    else:
        emit("\n\n".join(str(record) for record in found.values()))
    return exit_code(fit)


def findings(fit: Any) -> dict[str, Any]:
    """What is checked, by name: records that print, and have ``to_dict``. Whatever else judges a fit goes in here."""
    return {"trust": fit.trust}
