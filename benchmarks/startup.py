"""What a user waits for before the first number: start-up, imports, from the shell to a table, size on disk.

    python -m benchmarks.startup            CPU seconds of fresh interpreters (median), and modules imported
    python -m benchmarks.startup --size     bytes of a fresh environment with klimb alone (builds one: a minute)

CPU seconds of a process count its children and both kinds of time; the machine's other work adds to them, so compare
lines of one run, not of two machines.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from statistics import median

from benchmarks.measure import table

HEAVY = ("pandas", "matplotlib", "sklearn", "scipy.stats", "arviz", "polars", "pyarrow", "scipy.optimize", "rich",
         "narwhals")
# Byte code is written and found again, as on a user's machine, whatever this shell says about it.
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
               "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
               "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "klimb-startup-bytecode")}
FORMULA = "summit ~ wind + days + party + start + route + (1 | guide)"


def cpu_seconds(command: list[str], repeats: int) -> float:
    """Median CPU seconds of a process, after one warm-up that writes byte code."""
    taken = []
    for _ in range(repeats + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True, env=ENVIRONMENT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(taken[1:])


def imported(statement: str) -> list[str]:
    """Which of the heavy packages a statement brings in."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=ENVIRONMENT).stderr.split()


def times(repeats: int) -> None:
    import klimb.demo

    data = str(Path(klimb.demo.__file__).with_name("summit.csv"))
    python = [sys.executable, "-c"]
    fit = f"from klimb.cli import run; run(['fit', {FORMULA!r}, {data!r}, '--family', 'bernoulli'])"
    cases = {
        "python": "pass", "import numpy": "import numpy", "import scipy.special": "import scipy.special",
        "import scipy.stats": "import scipy.stats", "import klimb": "import klimb",
        "the engine: klimb.infer, sites, latents": "import klimb; klimb.infer; klimb.sites; klimb.latents",
        "klimb --help": "from klimb.cli import run; run(['--help'])",
        "klimb fit --help": "from klimb.cli import run; run(['fit', '--help'])",
        "klimb fit: 400 rows, one random effect": fit,
    }
    rows = [(name, cpu_seconds([*python, code], repeats), " ".join(imported(code)) or "none")
            for name, code in cases.items()]
    table("From the shell (CPU seconds)", ["what", "seconds", "heavy packages imported"], rows)


def sizes() -> None:
    """Megabytes of klimb and what it depends on, installed into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        site = next(Path(folder).glob("lib/python*/site-packages"))
        before = weigh(site)
        root = Path(__file__).resolve().parent.parent
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", str(root)], check=True)
        bare = weigh(site)
        subprocess.run([python, "-m", "compileall", "-q", str(site)], check=False, capture_output=True)
        compiled = weigh(site)
    names = sorted((name for name in bare if bare[name] != before.get(name)), key=lambda name: -bare[name])
    rows = [(name, bare[name] / 1e6, (compiled[name] - bare[name]) / 1e6) for name in names if bare[name] > 1e5]
    total = sum(bare[name] for name in names), sum(compiled[name] - bare[name] for name in names)
    table("A fresh install (MB)", ["package", "files", "byte code"], [*rows, ("all", total[0] / 1e6, total[1] / 1e6)])


def weigh(folder: Path) -> dict[str, int]:
    """Bytes of each entry of a folder."""
    return {part.name: sum(file.stat().st_size for file in ([part] if part.is_file() else part.rglob("*"))
                           if file.is_file()) for part in folder.iterdir()}


def main(repeats: int = 7) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="store_true", help="measure the size of a fresh install instead")
    if parser.parse_args().size:
        sizes()
    else:
        times(repeats)


if __name__ == "__main__":
    main()
