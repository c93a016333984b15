"""Links of the documentation, looked at without a network. ``python -m tests.links`` lists those that lead outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tests.transcripts import PAGES, ROOT

CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def prose(page: Path) -> str:
    """The text without code, where brackets mean other things."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Where the page points, pictures included."""
    return [a or b for a, b in LINK.findall(prose(page))]


def outside(link: str) -> bool:
    return "://" in link or link.startswith("mailto:")


def anchors(page: Path) -> set[str]:
    """The names of its headings, by the rule of GitHub and of the site."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def broken(page: Path) -> Iterator[str]:
    """Links of the page to files or headings that are not there."""
    for link in links(page):
        if outside(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


def main() -> None:
    for page in PAGES:
        for link in sorted({link for link in links(page) if outside(link)}):
            print(f"{page.relative_to(ROOT)}: {link}")


if __name__ == "__main__":
    main()
