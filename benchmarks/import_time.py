"""What ``import klimb`` costs beside ``import numpy``: CPU seconds of fresh interpreters, median."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from benchmarks.measure import table

CODE = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def seconds(module: str, repeats: int) -> float:
    """Median CPU seconds of ``import module`` in a fresh interpreter, after one warm-up."""
    runs = [subprocess.run([sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True)
            for _ in range(repeats + 1)]
    return median(float(run.stdout) for run in runs[1:])


def main(repeats: int = 7) -> None:
    base = seconds("numpy", repeats)
    rows = [(name, taken, taken / base) for name in ("numpy", "scipy.special", "klimb", "scipy.stats")
            for taken in [seconds(name, repeats)]]
    table("import time (CPU seconds)", ["module", "seconds", "numpy = 1"], rows)


if __name__ == "__main__":
    main()
