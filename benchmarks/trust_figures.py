"""The pictures of docs/trust.md: ``python -m benchmarks.trust_figures [directory]``; needs matplotlib.

What the corrected marginals are compared with is a long random-walk chain.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import klimb


def separable() -> tuple[klimb.infer.Result, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(15)
    X = np.column_stack([np.ones(20), rng.standard_normal((20, 2))])
    y = np.where(X @ [0.3, 2.0, -1.0] > 0, 1.0, -1.0)
    return klimb.infer(klimb.latents.Weights(X, cov=25.0), klimb.sites.Logistic(), y), X, y


def long_chain(X: np.ndarray, y: np.ndarray, n: int = 400_000) -> np.ndarray:
    """A long random-walk Metropolis run for the separable problem, 64 chains side by side."""
    rng = np.random.default_rng(0)
    chains = 64
    w = 5.0 * rng.standard_normal((chains, X.shape[1]))

    def log_density(at: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0.0, -(at @ X.T) * y).sum(1) - 0.02 * (at**2).sum(1)

    here, kept = log_density(w), []
    for step in range(n // chains * 5):
        trial = w + np.array([2.0, 3.0, 2.0]) * rng.standard_normal(w.shape)
        there = log_density(trial)
        accept = np.log(rng.random(chains)) < there - here
        w, here = np.where(accept[:, None], trial, w), np.where(accept, there, here)
        if step > 2000 and step % 5 == 0:
            kept.append(w.copy())
    return np.concatenate(kept)


def main(arguments: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from klimb.trust.plots import plot_marginals

    out = Path(arguments[0] if arguments else "docs/images")
    out.mkdir(parents=True, exist_ok=True)
    result, X, y = separable()
    draws = long_chain(X, y)
    report = klimb.trust(result)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.7), layout="constrained")
    for ax, own in zip(axes, draws.T[:3], strict=True):
        heights, edges = np.histogram(own, bins=60, density=True)
        middles = 0.5 * (edges[1:] + edges[:-1])
        ax.fill_between(middles, heights, step="mid", color="#c9d7e4", lw=0, label="long chain", zorder=0)
    plot_marginals(report, [0, 1, 2], axes, ["intercept", "first slope", "second slope"])
    figure.savefig(out / "trust-marginals.png", dpi=130)
    figure, ax = plt.subplots(figsize=(6.4, 2.3), layout="constrained")
    report.ladder.plot(ax)
    figure.savefig(out / "trust-ladder.png", dpi=130)
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.3), layout="constrained", sharey=True)
    result.trust.plot_signs(axes)
    figure.savefig(out / "trust-signs.png", dpi=130)
    rng = np.random.default_rng(5)
    counts = klimb.latents.Weights(np.column_stack([np.ones(50), rng.standard_normal((50, 3))]))
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 2.8), layout="constrained", sharey=True)
    klimb.calibrate(counts, klimb.sites.Logistic(), n=500).plot(axes[0])
    correlated = np.column_stack([np.ones(60), 1.0 + 0.2 * rng.standard_normal(60)])
    klimb.calibrate(klimb.latents.MeanField(correlated, cov=4.0), klimb.sites.Logistic(), n=500).plot(axes[1])
    for ax, title in zip(axes, ("logistic regression", "mean field, correlated columns"), strict=True):
        ax.set_title(f"{title}\n{ax.get_title()}", fontsize=9)
    axes[1].set_ylabel("")
    figure.savefig(out / "trust-calibration.png", dpi=130)


if __name__ == "__main__":
    main(sys.argv[1:])
