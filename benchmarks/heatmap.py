"""The heat map of docs/gaussian-processes.md.

    python -m benchmarks.heatmap [path]

The bound of a logistic Gaussian process over its two hyperparameters, on the data of that page, with the optimum that
`optimise` finds from the corner marked beside the best cell of the grid.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import klimb
from klimb.models.search import GAIN, TOL, Evaluator, grid
from klimb.numerics.quasi_newton import climb

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "grid.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=PICTURE)
    path = parser.parse_args().path
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(3)
    X = rng.random((80, 2)) * 4
    f = 2 * np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] - 1
    y = rng.random(80) < 1 / (1 + np.exp(-f))
    model = klimb.gp(klimb.kernels.RBF(), X, klimb.sites.Logistic())
    table = grid(model, y, {"variance": np.linspace(-1, 6, 29), "lengthscale": np.linspace(-2, 2.5, 31)})
    assert table.converged.all()
    evaluate, path_taken = Evaluator(model, model.read(y)), []

    def objective(theta):
        path_taken.append(theta.copy())
        return evaluate.objective(theta)

    best = climb(objective, np.array([5.5, -1.5]), model.theta.lower, model.theta.upper, tol=TOL, gain=GAIN)
    figure, ax = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
    table.plot(ax)
    trace = np.array(path_taken)
    ax.plot(trace[:, 1], trace[:, 0], ".-", color="white", lw=1, ms=4, label=f"optimise, {len(trace)} fits")
    ax.plot(best.x[1], best.x[0], "*", color="white", mec="black", ms=13)
    ax.legend(loc="lower right", frameon=False, labelcolor="white")
    figure.savefig(path, dpi=120)
    print(f"{path}: best cell {table.bound.max():.3f}, optimum {best.value:.3f}, "
          f"{int(table.n_factor.sum())} factorisations for {table.bound.size} cells")


if __name__ == "__main__":
    main()
