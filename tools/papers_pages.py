"""Puts tables and pictures of the kept records into the pages about the papers.

    python -m tools.papers_pages docs/papers

A page says ``<!-- klimb reproduce A-table2 -->`` ... ``<!-- end -->``; what stands between the two is written anew from
A-table2.json, so that a page never says anything else than the record beside it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from klimb._files import whole_file
from klimb.apps.papers.experiment import EXPERIMENTS, canonical, content, stem
from klimb.errors import InputError

BLOCK = re.compile(r"(<!-- klimb reproduce ([\w-]+)( --quick)? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """The page with every block as its record has it."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{block_of(block[2], bool(block[3]), folder)}\n\n{block[5]}", text)


def block_of(key: str, quick: bool, folder: Path) -> str:
    """Tables, how they were made, the picture, and the remarks of one record."""
    path = folder / f"{stem(key, 'quick' if quick else 'full')}.json"
    command = f"klimb reproduce {key}{' --quick' * quick}"
    if not path.is_file():
        raise InputError(f"expected the record of {key}", f"no file {path}", f"Run {command} --out {folder}.")
    stored = json.loads(path.read_text(encoding="utf-8"))
    chosen, picture = EXPERIMENTS[canonical(key)], path.with_suffix(".png")
    return content(stored, chosen, chosen.experiment().tables(stored["results"]),
                   picture.name if picture.is_file() else "")


def main() -> None:
    """Bring the pages of a folder up to date."""
    for page in sorted(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/papers").glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = filled(before, page.parent)
        if after != before:
            with whole_file(page) as stream:
                stream.write(after)
            print(page)


if __name__ == "__main__":
    main()
