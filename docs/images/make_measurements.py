"""The picture of docs/active-learning.md: where to measure a signal with few jumps, one point after the other.

    python docs/images/make_measurements.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import klimb
from klimb.active import measurement_gains

N, NOISE, SCALE = 64, 0.03, 0.05
MEASURED, CHANCES = 22, 8
POINTS, STEPS = np.eye(N), np.diff(np.eye(N), axis=0)


def reconstruct(chosen: list[int], data: np.ndarray) -> Any:
    """The signal from some of its points, under a Laplace prior on its steps."""
    return klimb.sparse_linear(POINTS[chosen], data[chosen], noise=NOISE, analysis=STEPS, scale=SCALE, tol=1e-3)


def run(signal: np.ndarray, data: np.ndarray, rng: np.random.Generator | None) -> tuple[list[int], list[float], Any]:
    """Points in their order (by design, or at random), errors after each, and the last fit."""
    chosen, errors = [0, N - 1], list[float]()
    while True:
        fit = reconstruct(chosen, data)
        errors.append(float(np.sqrt(np.mean((fit.coef - signal) ** 2))))
        if len(chosen) == MEASURED:
            return chosen, errors, fit
        rest = np.setdiff1d(np.arange(N), chosen)
        if rng is not None:
            chosen.append(int(rng.choice(rest)))
        else:
            gains = measurement_gains(fit.result.posterior, POINTS[rest][:, None], NOISE)
            chosen.append(int(rest[gains.argmax()]))


def main() -> None:
    """Measure, and draw."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from klimb.apps.papers.pictures import BLUE, GREY, INK, ORANGE, STYLE

    signal = np.select([np.arange(N) < 17, np.arange(N) < 30, np.arange(N) < 51], [0.0, 1.0, 0.4], 0.8)
    data = signal + NOISE * np.random.default_rng(1).standard_normal(N)
    chosen, errors, fit = run(signal, data, None)
    chance = [run(signal, data, np.random.default_rng(seed)) for seed in range(CHANCES)]
    with rc_context(STYLE):
        figure = Figure(figsize=(11.0, 3.4), layout="constrained")
        axes = figure.subplots(1, 3)
        for ax, title, points, found in ((axes[0], "by design", chosen, fit),
                                         (axes[1], "at random (one of them)", chance[0][0], chance[0][2])):
            x = np.arange(N)
            mean, spread = found.coef, 2.0 * found.coef_sd
            ax.fill_between(x, mean - spread, mean + spread, color=BLUE, alpha=0.2, lw=0)
            ax.step(x, signal, where="mid", color=GREY, lw=1.2)
            ax.plot(x, mean, color=BLUE)
            ax.plot(points, data[points], "o", color=ORANGE, markersize=4)
            for number, point in enumerate(points[2:10] if found is fit else [], start=3):
                ax.annotate(str(number), (point, data[point]), textcoords="offset points", xytext=(0, 5), ha="center",
                            fontsize=8, color=INK)
            ax.set_title(f"{MEASURED} points {title}", loc="left")
            ax.set_ylim(-0.3, 1.35)
            ax.set_xlabel("place")
        x = np.arange(2, MEASURED + 1)
        curves = np.array([one[1] for one in chance])
        axes[2].plot(x, errors, color=BLUE, label="by design")
        axes[2].plot(x, curves.mean(axis=0), color=GREY, linestyle="--", label=f"at random (mean, range of {CHANCES})")
        axes[2].fill_between(x, curves.min(axis=0), curves.max(axis=0), color=GREY, alpha=0.2, lw=0)
        axes[2].set_xlabel("points measured")
        axes[2].set_ylabel("root mean squared error")
        axes[2].set_ylim(bottom=0.0)
        axes[2].legend()
        figure.savefig(Path(__file__).with_name("measurements.png"), dpi=110, metadata={"Software": None})
    print("design", chosen, np.round(errors, 3).tolist())
    print("random", np.round(curves.mean(axis=0), 3).tolist())


if __name__ == "__main__":
    main()
