"""The picture of docs/boosting.md: [G]'s targets with [G]'s algorithm, klimb's default, and rivals.

    python -m benchmarks.boosting_picture [path]
    python -m benchmarks.boosting_picture expensive     the banana by few evaluations: docs/images/expensive.png

`runs_of` computes what a column shows, `draw` draws columns; the rivals (NumPyro's ADVI, full rank and mean field, and
blackjax's Pathfinder) are read from benchmarks/results/boosting.json, where their own scripts left them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks.boosting import RESULTS
from benchmarks.boosting_targets import PROBLEMS, Problem

TARGETS = ("Cauchy", "four in 1-D", "five in 2-D", "nodal")
PAPER, DEFAULT = "C1", "C3"
RIVALS = {"NumPyro SVI": ("full-rank ADVI", "C2", "--"), "NumPyro ADVI, mean field": ("mean-field ADVI", "C4", ":"),
          "Pathfinder": ("Pathfinder", "C5", "-.")}


@dataclass(frozen=True)
class Runs:
    """A target, [G]'s algorithm and klimb's default on it, and what was recorded of rivals."""

    name: str
    problem: Problem
    paper: Any
    default: Any
    rivals: dict[str, dict[str, Any]]


def runs_of(name: str, n_components: int = 30, seed: int = 1) -> Runs:
    problem = PROBLEMS[name]()
    paper = klimb.boost(problem.values, problem.dim, component="laplacian", n_components=n_components, seed=seed)
    default = klimb.boost(problem.values, problem.dim, gradient=problem.gradient)
    stored = json.loads(RESULTS.read_text()).get(name, {}) if RESULTS.exists() else {}
    return Runs(name, problem, paper, default, {who: stored[who] for who in RIVALS if who in stored})


def draw(columns: list[Runs]) -> Any:
    """Densities or moments above, weights of new components in the middle, divergence against components below."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(columns), figsize=(3.4 * len(columns), 8.4), layout="constrained", squeeze=False)
    for column, runs in enumerate(columns):
        top, middle, below = axes[:, column]
        top.set_title(runs.name)
        {1: curves, 2: ellipses}.get(runs.problem.dim, scatter)(top, runs)
        weights(middle, runs)
        divergences(below, runs)
    axes[1, 0].set_ylabel("weight of the new component")
    axes[2, 0].set_ylabel("KL(q || target), nats")
    return figure


def curves(ax: Any, runs: Runs) -> None:
    """Densities in one dimension."""
    x = np.linspace(-15, 15, 1200)
    ax.fill_between(x, np.exp(runs.problem.values(x[:, None])), color="C0", alpha=0.3, label="target")
    for q, colour, who in ((runs.paper, PAPER, "[G]"), (runs.default, DEFAULT, "klimb")):
        ax.plot(x, np.exp(q.log_density(x[:, None])), color=colour, lw=1.1, label=f"{who}, {q.n_components} components")
    for who, found in runs.rivals.items():
        label, colour, style = RIVALS[who]
        mean, variance = found["mean"][0], found["cov"][0][0]
        density = np.exp(-0.5 * (x - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
        ax.plot(x, density, color=colour, ls=style, lw=0.9, label=label)
    ax.set_yticks([])
    ax.set_ylim(0, 1.7 * np.exp(runs.problem.values(x[:, None])).max())
    ax.legend(fontsize=6.5, frameon=False, loc="upper right")


def ellipses(ax: Any, runs: Runs) -> None:
    """Contours of target and default in two dimensions; means and two-sd ellipses of the rivals."""
    runs.default.plot_contours(ax=ax)
    angle = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for who, found in runs.rivals.items():
        label, colour, style = RIVALS[who]
        outline = np.asarray(found["mean"])[:, None] + 2 * np.linalg.cholesky(found["cov"]) @ circle
        ax.plot(*outline, color=colour, ls=style, lw=1.0, label=label)
    ax.plot([], [], color=DEFAULT, lw=1.0, label=f"klimb, {runs.default.n_components} components")
    ax.set_ylim(-11, 16)
    ax.legend(fontsize=6.5, frameon=False, loc="upper right")


def scatter(ax: Any, runs: Runs) -> None:
    """Means, standard deviations and correlations against truth (dashed: equal)."""
    problem = runs.problem
    ends = [min(problem.mean.min(), 0) - 0.3, max(problem.mean.max(), problem.sd.max()) + 0.3]
    ax.set_ylim(ends[0] - 0.2, ends[1] + 1.3)
    ax.plot(ends, ends, "--", color="0.6", lw=0.8)
    found = [(runs.paper.mean, runs.paper.sd, PAPER, "[G]"), (runs.default.mean, runs.default.sd, DEFAULT, "klimb")]
    found += [(np.asarray(one["mean"]), np.sqrt(np.diag(one["cov"])), RIVALS[who][1], RIVALS[who][0])
              for who, one in runs.rivals.items()]
    for mean, sd, colour, who in found:
        ax.plot(problem.mean, mean, "o", ms=4, color=colour, mfc="none", label=f"{who}: means (o), sds (^)")
        ax.plot(problem.sd, sd, "^", ms=4, color=colour, mfc="none")
    ax.set(xlabel="truth", ylabel="estimate")
    ax.legend(fontsize=6.5, frameon=False, loc="upper left")


def weights(ax: Any, runs: Runs) -> None:
    """[G]'s alpha_t, and the weights that the default ends with."""
    alphas = [w[-1] for w in runs.paper.trace["weights"]]
    ax.semilogy(np.arange(1, len(alphas) + 1), np.maximum(alphas, 1e-4), "o-", ms=3, color=PAPER, label="[G]: alpha_t")
    final = np.sort(runs.default.weights)[::-1]
    ax.semilogy(np.arange(1, len(final) + 1), final, "s", ms=4, color=DEFAULT, label="klimb: weights in the end")
    ax.set_ylim(5e-5, 2)
    ax.legend(fontsize=6.5, frameon=False, loc="lower left")


def divergences(ax: Any, runs: Runs) -> None:
    """The log evidence less the bound, against components; rivals are one Gaussian each."""
    for q, colour, label in ((runs.paper, PAPER, "[G]"), (runs.default, DEFAULT, "klimb")):
        gap = np.maximum(runs.problem.log_evidence - np.array(q.trace["bound"]), 1e-4)
        ax.plot(q.trace["n_components"], gap, "o-", ms=3, color=colour, label=label)
    for who, found in runs.rivals.items():
        label, colour, style = RIVALS[who]
        ax.axhline(found["kl"], color=colour, ls=style, lw=0.9, label=label)
    ax.set(yscale="log", xlabel="components", ylim=(1e-3, 30))
    ax.legend(fontsize=6.5, frameon=False)


def expensive(path: Path) -> None:
    """The banana by 35, 70 and 140 evaluations: where they were made, and the mixture over the target."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10.5, 3.4), sharex=True, sharey=True, layout="constrained")
    problem = PROBLEMS["banana"]()
    A, B = np.meshgrid(np.linspace(-7, 7, 160), np.linspace(-5.5, 17, 160))
    grid = np.column_stack([A.ravel(), B.ravel()])
    levels = [-12.0, -8.0, -5.5, -4.0, -3.0, -2.5]
    for ax, budget in zip(axes, (35, 70, 140), strict=True):
        asked: list[np.ndarray] = []

        def counted(x: np.ndarray, asked: list[np.ndarray] = asked) -> np.ndarray:
            asked.append(np.atleast_2d(x))
            return problem.values(x)

        q = klimb.boost(counted, 2, init=[3.0, -4.5], scale=[4.0, 6.0], max_evaluations=budget)
        ax.contourf(A, B, problem.values(grid).reshape(A.shape), levels=[*levels, 0.0], cmap="Blues", alpha=0.8)
        ax.contour(A, B, q.log_density(grid).reshape(A.shape), levels=levels, colors=DEFAULT, linewidths=0.9,
                   linestyles="solid")
        ax.plot(*np.concatenate(asked).T, "k.", ms=3)
        ax.set(title=f"{q.n_values} evaluations: {q.trust.verdict}", xlim=(-7, 7), ylim=(-5.5, 17))
    figure.savefig(path, dpi=90)


def main() -> None:
    import matplotlib

    matplotlib.use("agg")
    if sys.argv[1:] == ["expensive"]:
        expensive(Path("docs/images/expensive.png"))
        return
    columns = [runs_of(name) for name in TARGETS]
    for runs in columns:
        print(runs.name, "[G]", runs.paper.bound - runs.problem.log_evidence, "klimb",
              runs.default.bound - runs.problem.log_evidence)
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/boosting.png")
    draw(columns).savefig(path, dpi=90)
    from PIL import Image  # comes with matplotlib; few colours make a light file

    Image.open(path).convert("RGB").quantize(96).save(path, optimize=True)


if __name__ == "__main__":
    main()
