"""Figures about a source tree: its size by room, classes asked for by name, names that stand twice, calls of a fit.

    python tools/measure.py [TREE] [--calls]

TREE is a checkout of klimb (default: this one). With ``--calls`` two small fits are run from it and profiled.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

LONGEST = 440  # lines of a module
ROOTS = {"Latent", "Factor", "Factorisation"}  # what latents and factors derive from
HOMES = {"priors", "sites", "likelihoods", "conjugate"}  # a distribution may have its name once in each of these
KERNEL = {"latents", "kernels"}  # a latent and a covariance function may both be called Kernel
INSIDE = re.compile(r"\blatents\b|\b(linalg|numerics)\.factors\b")  # modules that define latents and factors
BROAD = r"isinstance\(|issubclass\(|\btype\([^)]*\) (is|in|==|!=)|^\s*case\b"  # ways to ask for a class
FITS = {
    'klimb.fit("y ~ x + (1 | g)")': 'klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g})',
    "GPClassifier().fit": "klimb.sklearn.GPClassifier().fit(np.stack([x, y], axis=1), label)",
}
PROFILED = """
import sys
import numpy as np
import klimb
import klimb.sklearn
rng = np.random.default_rng(0)
x, g = rng.standard_normal(60), np.repeat(list("abcdef"), 10)
y = 1.0 + x + np.repeat(rng.standard_normal(6), 10) + 0.5 * rng.standard_normal(60)
label = x + 0.3 * rng.standard_normal(60) > 0.0
home = klimb.__path__[0]
seen, calls = set(), [0, 0]
def watch(frame, event, _):
    if event == "call":
        calls[0] += 1
        if frame.f_code.co_filename.startswith(home):
            calls[1] += 1
            seen.add(frame.f_code.co_filename)
{fit}  # imports happen here
sys.setprofile(watch)
{fit}
sys.setprofile(None)
print(len(seen), calls[1], calls[0])
"""


class Tree:
    """The modules below ``src/klimb`` of a checkout: their text and their syntax."""

    def __init__(self, root: Path) -> None:
        self.src = root / "src"
        self.klimb = self.src / "klimb"
        self.text = {path.relative_to(self.klimb): path.read_text(encoding="utf-8")
                     for path in sorted(self.klimb.rglob("*.py"))}
        self.syntax = {path: ast.parse(text) for path, text in self.text.items()}

    def classes(self) -> Iterator[tuple[Path, ast.ClassDef]]:
        """Classes at the top level of a module."""
        for path, module in self.syntax.items():
            yield from ((path, node) for node in module.body if isinstance(node, ast.ClassDef))

    def lines(self, path: Path) -> int:
        return self.text[path].count("\n")


def room(path: Path) -> str:
    """The package or module at the top to which a module belongs."""
    return path.parts[0].removesuffix(".py")


def of_latents(path: Path) -> bool:
    """Whether a module defines latents or factors."""
    return bool(INSIDE.search(".".join(path.with_suffix("").parts)))


def derived(tree: Tree) -> set[str]:
    """Classes of latents and factors: what derives from their bases, and the bases."""
    found = set(ROOTS)
    inside = [node for path, node in tree.classes() if of_latents(path)]
    while True:
        more = {node.name for node in inside
                if any(re.split(r"[.\[]", ast.unparse(base))[-1] in found for base in node.bases)} - found
        if not more:
            return found & {node.name for node in inside}
        found |= more


def everything(tree: Tree) -> set[str]:
    """All classes of the rooms of latents and factors."""
    return {node.name for path, node in tree.classes() if of_latents(path)}


def elsewhere(module: ast.Module) -> set[str]:
    """Names that a module imports from, or defines, somewhere else than in the rooms of latents and factors."""
    found = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and not INSIDE.search(node.module or ""):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def asking(tree: Tree, names: set[str], question: str) -> list[str]:
    """Lines outside ``latents/`` that match ``question`` and name one of the classes."""
    found = []
    for path, text in tree.text.items():
        if path.parts[0] == "latents" or not (asked := names - elsewhere(tree.syntax[path])):
            continue
        name = re.compile(rf"(?<!kernels\.)\b({'|'.join(sorted(asked))})\b")
        for number, line in enumerate(text.splitlines(), 1):
            if (begin := re.search(question, line)) and name.search(line, begin.start()):
                found.append(f"{path}:{number}")
    return found


def twice(tree: Tree) -> dict[str, list[str]]:
    """Public class names that stand in several modules, where they may not."""
    places: dict[str, list[Path]] = defaultdict(list)
    for path, node in tree.classes():
        if not node.name.startswith("_"):
            places[node.name].append(path)
    return {name: [str(path) for path in paths] for name, paths in sorted(places.items())
            if len(paths) > 1 and not apart(paths, KERNEL if name == "Kernel" else HOMES)}


def apart(paths: list[Path], homes: set[str]) -> bool:
    """Whether every path lies in another one of the homes."""
    rooms = [homes & {part.removesuffix(".py") for part in path.parts} for path in paths]
    return all(len(own) == 1 for own in rooms) and len(set.union(*rooms)) == len(paths)


def run(tree: Tree, code: str) -> str:
    """What a program prints that imports klimb from the tree."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                          env={**os.environ, **threads, "PYTHONPATH": str(tree.src)})
    return done.stdout.strip()


def report(tree: Tree) -> Iterator[str]:
    """The figures, line by line."""
    lines, modules = Counter[str](), Counter[str]()
    for path in tree.text:
        lines[room(path)] += tree.lines(path)
        modules[room(path)] += 1
    yield f"{'room':<14} {'lines':>7} {'modules':>8}"
    for name in sorted(lines):
        yield f"{name:<14} {lines[name]:>7,} {modules[name]:>8}"
    yield f"{'in all':<14} {lines.total():>7,} {modules.total():>8}"
    long = [path for path in tree.text if tree.lines(path) > LONGEST]
    yield f"\nmodules above {LONGEST} lines: {len(long)}"
    yield from (f"  {path} ({tree.lines(path)})" for path in long)
    names = derived(tree)
    asked = asking(tree, names, r"isinstance\(")
    broad = asking(tree, everything(tree), BROAD)
    yield f"\nlines outside latents/ with isinstance( and a latent or factor: {len(asked)} in {files(asked)} modules"
    yield f"  by a broad count (any class of these rooms; issubclass, type() is, case): {len(broad)} in {files(broad)}"
    yield from (f"  {place}" for place in broad)
    doubles = twice(tree)
    yield f"\npublic class names that stand twice or more: {len(doubles)}"
    yield from (f"  {name}: {', '.join(paths)}" for name, paths in doubles.items())
    yield f"\nnames in klimb.__all__: {run(tree, 'import klimb; print(len(klimb.__all__))')}"


def files(places: list[str]) -> int:
    """In how many modules the places are."""
    return len({place.split(":")[0] for place in places})


def main() -> None:
    """Print the figures of the tree that the command line names."""
    parser = argparse.ArgumentParser(description="Figures about a source tree of klimb.")
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--calls", action="store_true", help="run two small fits and count modules and calls")
    options = parser.parse_args()
    tree = Tree(options.tree.resolve())
    for line in report(tree):
        print(line)
    if options.calls:
        print("\nwhat a fit passes through    klimb modules   klimb calls   Python calls")
        for name, fit in FITS.items():
            seen, own, calls = run(tree, PROFILED.format(fit=fit)).split()
            print(f"{name:<28} {seen:>13} {int(own):>13,} {int(calls):>14,}")


if __name__ == "__main__":
    main()
