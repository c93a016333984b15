"""``klimb info``: what a file holds, without loading its arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from klimb.cli.options import json_option


@click.command("info", no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@json_option
def command(model: str, as_json: bool) -> int:
    """Say what the file MODEL holds: which model, who wrote it, whether data are inside.

    \b
    Examples:
      klimb info m.klimb
      klimb info m.klimb --json | jq .arrays
    """
    from klimb.cli.shell import emit
    from klimb.report.text import table

    facts = file_facts(model)
    if as_json:
        emit(json.dumps(facts, ensure_ascii=False, allow_nan=False))
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
