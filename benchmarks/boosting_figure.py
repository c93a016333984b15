"""The picture of docs/papers/boosting.md: [G] Figures 1 and 2 with [G]'s algorithm and klimb's default.

    python -m benchmarks.boosting_figure [path]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import klimb
from benchmarks.boosting_targets import PROBLEMS

PAPER, DEFAULT = "C1", "C3"


def main() -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(13.0, 6.0), layout="constrained")
    for column, name in enumerate(["Cauchy", "four in 1-D", "five in 2-D", "nodal"]):
        problem = PROBLEMS[name]()
        paper = klimb.boost(problem.values, problem.dim, component="laplacian", n_components=30, seed=1)
        default = klimb.boost(problem.values, problem.dim, gradient=problem.gradient)
        top, below = axes[:, column]
        if problem.dim == 1:
            x = np.linspace(-15, 15, 1200)
            top.fill_between(x, np.exp(problem.values(x[:, None])), color="C0", alpha=0.3, label="target")
            top.plot(x, np.exp(paper.log_density(x[:, None])), color=PAPER, lw=1.0, label="[G], 30 components")
            top.plot(x, np.exp(default.log_density(x[:, None])), color=DEFAULT, lw=1.0,
                     label=f"klimb, {default.n_components} components")
            top.set_yticks([])
        elif problem.dim == 2:
            default.plot_contours(ax=top)
        else:
            scatter(top, problem, default, paper)
        top.set_title(name)
        top.legend(fontsize=7, frameon=False, loc="upper right" if problem.dim < 3 else "upper left") \
            if problem.dim != 2 else None
        for q, colour, label in ((paper, PAPER, "[G]"), (default, DEFAULT, "klimb")):
            gap = np.maximum(problem.log_evidence - np.array(q.trace["bound"]), 1e-4)
            below.plot(q.trace["n_components"], gap, "o-", ms=3, color=colour, label=label)
        below.set(yscale="log", xlabel="components", ylim=(1e-3, 30))
        below.legend(fontsize=7, frameon=False)
        print(name, "[G]", paper.bound - problem.log_evidence, "klimb", default.bound - problem.log_evidence)
    axes[1, 0].set_ylabel("log evidence less bound = KL(q || p)")
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/papers/boosting.png")
    figure.savefig(target, dpi=100)


def scatter(ax, problem, default, paper) -> None:  # type: ignore[no-untyped-def]
    """Means and standard deviations against importance sampling (dashed: equal)."""
    ends = [min(problem.mean.min(), 0) - 0.3, max(problem.mean.max(), problem.sd.max()) + 0.3]
    ax.plot(ends, ends, "--", color="0.6", lw=0.8)
    for q, colour, label in ((paper, PAPER, "[G]"), (default, DEFAULT, "klimb")):
        ax.plot(problem.mean, q.mean, "o", ms=4, color=colour, mfc="none", label=f"{label}: means")
        ax.plot(problem.sd, q.sd, "^", ms=4, color=colour, mfc="none", label=f"{label}: sds")
    ax.set(xlabel="truth", ylabel="estimate")


if __name__ == "__main__":
    main()
