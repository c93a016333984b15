"""What ``import klimb`` costs beside ``import numpy``: CPU seconds of fresh interpreters, median."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from benchmarks.measure import table

CODE = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def seconds(statement: str, repeats: int) -> float:
    """Median CPU seconds of ``statement`` in a fresh interpreter, after one warm-up."""
    runs = [subprocess.run([sys.executable, "-c", CODE.format(statement)], capture_output=True, text=True, check=True)
            for _ in range(repeats + 1)]
    return median(float(run.stdout) for run in runs[1:])


def main(repeats: int = 7) -> None:
    statements = ("import numpy", "import klimb", "import klimb; klimb.infer; klimb.sites; klimb.latents",
                  "import scipy.special", "import scipy.stats")
    taken = {statement: seconds(statement, repeats) for statement in statements}
    rows = [(statement, spent, spent / taken["import numpy"]) for statement, spent in taken.items()]
    table("import time (CPU seconds)", ["statement", "seconds", "numpy = 1"], rows)


if __name__ == "__main__":
    main()
