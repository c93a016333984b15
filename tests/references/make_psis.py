"""Reference values of Pareto-smoothed importance sampling, made by ArviZ: ``python make_psis.py`` writes psis.json.

Run it where ArviZ (0.2x, the classic package) is installed; klimb itself does not need it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

CASES = [(100, 1.0, 1), (1000, 1.0, 1), (1000, 3.0, 1), (4000, 0.3, 2), (4000, 0.05, 3), (500, 1e-4, 1)]


def main() -> None:
    import arviz

    rows = []
    for seed, (n, factor, power) in enumerate(CASES):
        raw = factor * np.random.default_rng(seed).standard_normal(n) ** power
        smoothed, khat = arviz.psislw(raw.copy())
        rows.append({
            "name": f"{n}-{factor:g}-{power}", "seed": seed, "n": n, "factor": factor, "power": power,
            "khat": float(khat), "largest": np.sort(np.asarray(smoothed))[::-1][:20].tolist(),
        })
    text = json.dumps(rows, indent=1)
    (Path(__file__).parent / "psis.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
