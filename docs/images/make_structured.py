"""The picture of docs/structured.md: ``python docs/images/make_structured.py`` (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import klimb


def main() -> None:
    """Fit both models and draw them side by side."""
    rng = np.random.default_rng(1)
    week = np.arange(150)
    rate = np.exp(1.0 + 0.8 * np.sin(week / 17.0) + 0.3 * (week > 90))
    curve = klimb.fit("y ~ late + rw2(week)", {"week": week, "y": rng.poisson(rate), "late": (week > 90).astype(float)},
                      family="poisson")
    side = 12
    at = np.arange(side * side).reshape(side, side)
    edges = np.vstack([np.column_stack([at[:, :-1].ravel(), at[:, 1:].ravel()]),
                       np.column_stack([at[:-1].ravel(), at[1:].ravel()])])
    across, down = np.divmod(np.arange(side * side), side)
    risk = 0.9 * np.sin(across / 3.0) * np.cos(down / 4.0) + 0.2 * rng.standard_normal(side * side)
    areas = klimb.fit("y ~ bym2(area, graph=G)", {"area": at.ravel(), "y": rng.poisson(4.0 * np.exp(risk))},
                      family="poisson", graphs={"G": edges})
    _, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained", width_ratios=[1.5, 1.0])
    curve.plot_field("rw2(week)", ax=left)
    left.set_xlabel("week")
    squares = {str(k): [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
               for k, (x, y) in enumerate(zip(across.tolist(), down.tolist(), strict=True))}
    areas.plot_field("bym2(area)", coordinates=squares, ax=right)
    plt.savefig(Path(__file__).with_name("structured.png"), dpi=110)


if __name__ == "__main__":
    main()
