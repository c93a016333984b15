"""How time and memory grow with the number of rows: ``python -m benchmarks.rows`` (draws docs/images/rows.png).

Each fit runs in a process of its own, so that its peak memory is its own: logistic regression with 20 columns, the
same with 5,000 groups by formula, a logistic Gaussian process with 100 inducing points in four dimensions, one
over time with counts.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

KINDS = {
    "regression, 20 columns": "glm",
    "5,000 groups, by formula": "groups",
    "process, 100 inducing points": "inducing",
    "process over time": "series",
}
SIZES = (1_000, 10_000, 100_000, 1_000_000)
HERE = Path(__file__).resolve().parent


def one(kind: str, n: int) -> dict[str, float]:
    """One fit: CPU seconds, peak memory, and the memory of the data alone."""
    import klimb

    rng = np.random.default_rng(0)
    if kind == "glm":
        X = rng.standard_normal((n, 20))
        y = rng.random(n) < 1 / (1 + np.exp(-X @ rng.standard_normal(20) / 4))
        latent = klimb.latents.Weights(X, cov=1.0)
        begin = time.process_time()
        done = klimb.infer(latent, klimb.sites.Logistic(), y).converged
    elif kind == "groups":
        data = {"x": rng.standard_normal(n), "g": rng.integers(0, 5000, n)}
        data["y"] = rng.random(n) < 1 / (1 + np.exp(-data["x"] - rng.standard_normal(5000)[data["g"]]))
        begin = time.process_time()
        done = klimb.fit("y ~ x + (1 | g)", data, family="bernoulli", hyper="optimise").converged
    elif kind == "inducing":
        X = rng.uniform(0, 1, (n, 4))
        y = rng.random(n) < 1 / (1 + np.exp(-4 * np.sin(6 * X[:, 0]) * X[:, 1]))
        begin = time.process_time()
        done = (
            klimb.gp(klimb.kernels.RBF(variance=4.0, lengthscale=0.5), X, klimb.sites.Logistic(), inducing=100)
            .fit(y, hyper="fixed")
            .converged
        )
    else:
        t = np.sort(rng.uniform(0, n / 100, n))
        y = rng.poisson(np.exp(np.sin(t)))
        begin = time.process_time()
        done = (
            klimb.series(klimb.kernels.Matern32(variance=1.0, lengthscale=2.0), t, klimb.sites.Poisson())
            .fit(y, hyper="fixed")
            .converged
        )
    seconds = time.process_time() - begin
    return {
        "seconds": seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "converged": bool(done),
    }


def main() -> None:
    """All of them, the table and the picture."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for title, kind in KINDS.items():
        found[title] = {}
        for n in SIZES:
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.rows", kind, str(n)], capture_output=True, text=True, check=True
            )
            found[title][n] = json.loads(run.stdout)
            print(
                f"{title:32} {n:>9,} rows {found[title][n]['seconds']:8.2f} s {found[title][n]['megabytes']:7.0f} MB "
                f"{found[title][n]['converged']}",
                flush=True,
            )
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "rows.json").write_text(json.dumps(found, indent=1))
    draw(found)


def draw(found: dict[str, dict[int, dict[str, float]]]) -> None:
    """Seconds and megabytes against rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    )
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.8), layout="constrained")
    style = zip(("#0072b2", "#009e73", "#d55e00", "#cc79a7"), "osD^", strict=True)
    for (title, by_size), (colour, mark) in zip(found.items(), style, strict=True):
        sizes = [int(n) for n in by_size]
        for axes, what in zip(panels, ("seconds", "megabytes"), strict=True):
            axes.loglog(
                sizes, [row[what] for row in by_size.values()], f"{mark}-", color=colour, label=title, ms=6, lw=1.8
            )
    panels[0].set(title="CPU seconds of the fit", xlabel="rows")
    panels[0].set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    panels[1].set(title="peak memory (MB), data and imports included", xlabel="rows")
    panels[1].set_yticks([100, 200, 500, 1000, 2000], ["100", "200", "500", "1000", "2000"])
    for axes in panels:
        axes.set_xticks(SIZES, ["1,000", "10,000", "100,000", "a million"])
        axes.minorticks_off()
        axes.grid(axis="y", color="#e4e4e4", lw=0.8)
    panels[0].legend(frameon=False, fontsize=9)
    figure.savefig(HERE.parent / "docs" / "images" / "rows.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one(sys.argv[1], 100)  # so that what is imported at its first use is not timed
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
