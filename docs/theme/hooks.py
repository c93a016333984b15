"""What happens when the site is built (named in mkdocs.yml): code runs, the API is listed, nothing is fetched.

- Code blocks run by the rules of ``tests/transcripts.py``. What a page shows as output must come out; what
  it prints without showing it is shown. A page that raises or says something untrue ends the build.
- ``api/`` has one page per public module, from ``klimb.__all__``: a new module is there without being named here.
- CHANGELOG.md, VISION.md and CONTRIBUTING.md become pages, with their links turned to the site.
- After the build, no page may fetch anything from another host.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ.setdefault("MPLBACKEND", "Agg")

from tests.transcripts import COMMANDS, corrected, same, workplace  # noqa: E402

log = logging.getLogger("mkdocs.hooks.klimb")
FROM_ROOT = {"changes": "CHANGELOG.md", "vision": "VISION.md", "contributing": "CONTRIBUTING.md"}
ALSO_OWN = ("klimb.infer.loop.infer", "klimb.models.formula_fit.Fit", "klimb.infer.result.Result",
            "klimb.latents.base.Posterior")    # what those functions return
HEAD_ONLY = "    options: {members: false, show_root_heading: false, show_root_toc_entry: false}"
OUTSIDE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=\"(?:https?:)?//[^\"]+\""
                     r"|<link\b(?![^>]*rel=\"(?:canonical|edit)\")[^>]*\bhref=\"(?:https?:)?//[^\"]+\"")


# -- pages that are made -----------------------------------------------------------------------------------------------

def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The stars in the navigation are filled in, and what nobody named is put at its end."""
    docs = Path(config.docs_dir)
    there = sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md") if path.parent != docs / "theme")
    made = [*(f"api/{name}.md" for name in api_pages()), *(f"project/{name}.md" for name in FROM_ROOT)]
    named = set(pages_of(config.nav))
    left = [page for page in [*there, *made] if page not in named]
    filled = fill(config.nav, left)
    used = set(pages_of(filled))
    more = [page for page in there if page not in used]
    config.nav = [*filled, {"More": more}] if more else filled
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in the folder."""
    for name, text in api_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    for name, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for old, new in (("docs/", "../"), ("VISION.md", "vision.md"), ("CHANGELOG.md", "changes.md")):
            text = text.replace(f"]({old}", f"]({new}")
        files.append(File.generated(config, f"project/{name}.md", content=text))
    return files


def pages_of(nav: Any) -> Iterator[str]:
    """The paths in a navigation, however deep."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from pages_of(value)
    elif isinstance(nav, list):
        for item in nav:
            yield from pages_of(item)


def fill(nav: Any, left: list[str]) -> Any:
    """The navigation with each star replaced by the pages it stands for."""
    if isinstance(nav, dict):
        return {title: fill(inner, left) for title, inner in nav.items()}
    if isinstance(nav, list):
        filled = []
        for item in nav:
            if isinstance(item, str) and item.endswith("/*.md"):
                filled += [page for page in left if page.rpartition("/")[0] == item[: -len("/*.md")]]
            else:
                filled.append(fill(item, left))
        return filled
    return nav


# -- the API -----------------------------------------------------------------------------------------------------------

def api_pages() -> dict[str, str]:
    """Markdown by page: what klimb has itself, then every public module. Nothing is described twice."""
    import klimb

    modules = {name: getattr(klimb, name) for name in (*klimb.__all__, "sklearn")}
    modules = {name: thing for name, thing in sorted(modules.items()) if isinstance(thing, ModuleType)}
    described: set[str] = set()
    own = [*({home(getattr(klimb, name)) for name in klimb.__all__ if name not in modules}), *ALSO_OWN]
    first = ["# klimb", "", "What `import klimb` offers at once. Modules have pages of their own.", ""]
    first += entries(sorted(own, key=lambda path: path.rpartition(".")[2].lower()), described)
    pages = {"klimb": "\n".join(first)}
    for name, module in modules.items():
        head = [f"# klimb.{name}", "", f"::: {module.__name__}", HEAD_ONLY, ""]
        pages[name] = "\n".join([*head, *entries(public(module), described)])
    return pages


def entries(paths: list[str], described: set[str]) -> list[str]:
    """An entry for each, or a reference where another page has it."""
    lines = []
    for path in paths:
        lines += [f"[`{path.rpartition('.')[2]}`][{path}]" if path in described else f"::: {path}", ""]
        described.add(path)
    return lines


def public(module: ModuleType) -> list[str]:
    """Where the public names of a module are defined; modules within it count by theirs."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, thing in vars(module).items()
                 if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__]
    paths = []
    for name in names:
        thing = getattr(module, name)
        if isinstance(thing, ModuleType):
            paths += public(thing)
        else:
            paths.append(home(thing) if hasattr(thing, "__qualname__") else f"{module.__name__}.{name}")
    return paths


def home(thing: Any) -> str:
    """Where a function or class is defined."""
    return f"{thing.__module__}.{thing.__qualname__}"


def module_table() -> str:
    """The modules with the first lines of each."""
    import klimb

    lines = ["", "| module | |", "|---|---|"]
    for name in api_pages():
        module, path = (klimb, "klimb") if name == "klimb" else (getattr(klimb, name), f"klimb.{name}")
        said = " ".join((module.__doc__ or "").strip().split("\n\n")[0].split()).replace("|", "\\|")
        lines.append(f"| [`{path}`]({name}.md) | {said} |")
    return "\n".join(lines) + "\n"


# -- the code of the pages ---------------------------------------------------------------------------------------------

def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Runs the page. What fails is a warning, so that one build names everything that is wrong before it ends."""
    name = page.file.src_uri
    if name == "api/index.md":
        return markdown + module_table()
    source = Path(config.docs_dir) / name
    if not source.exists() or "```" not in markdown:
        return for_the_site(markdown)
    with workplace(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            full = corrected(markdown, commands_too=source in COMMANDS, show=True, name=name)
        except Exception as error:
            log.warning("%s, line %s: its code raises %s: %s", name, line_of(error, name), type(error).__name__, error)
            return markdown
    false = first_false(markdown, full)
    if false is not None:
        log.warning("%s, line %d: this is not what comes out; if the change is meant, "
                    "`python -m tests.transcripts docs/%s` writes it anew", name, false, name)
    return for_the_site(full)


def for_the_site(markdown: str) -> str:
    """Outputs get a look of their own, and bars in code within tables lose the backslash that GitHub needs there."""
    def bars(row: re.Match[str]) -> str:
        return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])

    markdown = re.sub(r"^```text$", "``` { .text .output }", markdown, flags=re.MULTILINE)
    return re.sub(r"^\|.*\|$", bars, markdown, flags=re.MULTILINE)


def line_of(error: BaseException, name: str) -> int | None:
    """The line of the page where it happened."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return lines[-1] if lines else None


def first_false(markdown: str, full: str) -> int | None:
    """The first line of a page that is gone once outputs are true; only further outputs may have come in."""
    lines = iter(full.splitlines())
    for number, line in enumerate(markdown.splitlines(), 1):
        if not any(same(line, other) for other in lines):
            return number
    return None


# -- the finished site -------------------------------------------------------------------------------------------------

def on_post_build(config: MkDocsConfig) -> None:
    """Nothing may be fetched from elsewhere when a page is looked at."""
    found = [f"{page.relative_to(config.site_dir)}: {match}" for page in Path(config.site_dir).rglob("*.html")
             for match in OUTSIDE.findall(page.read_text(encoding="utf-8"))]
    if found:
        raise PluginError("pages that need other hosts: " + "; ".join(found[:5]))
