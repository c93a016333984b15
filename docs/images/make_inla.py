"""The picture of docs/tutorials/inla.md: ``python docs/images/make_inla.py FOLDER`` (needs matplotlib).

FOLDER is that of ``benchmarks.structured``: data, and R-INLA's own summaries of the same models with the same priors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "src")]

import klimb  # noqa: E402
from benchmarks.structured import MODELS, graph_of  # noqa: E402

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"
SHOWN = {"tokyo": ("rain in Tokyo", "day", "time"), "mcycle": ("motorcycle accidents", "ms", "times"),
         "ldeaths": ("lung deaths", "month", "t"), "gbpusd": ("log volatility of pounds", "day", "t"),
         "scotland": ("lip cancer, 56 counties in order", "rank of the county", None),
         "kidney": ("kidney catheters, 76 rows in order", "rank of the row", None)}


def linear_predictor(folder: Path, name: str) -> tuple[dict[str, Any], Any, Any]:
    """The data, and the linear predictor of every row by klimb: means and sds, without an offset."""
    model = MODELS[name]
    data = model.data(folder)
    graphs = {"G": graph_of(folder, model.graph)} if model.graph else None
    fit = klimb.fit(model.formula, data, family=model.family, priors=model.priors, graphs=graphs, progress=False)
    shown = fit.predict(kind="latent")
    return data, shown["mean"] - (0.0 if model.offset is None else data[model.offset]), shown["sd"]


def main(folder: Path) -> None:
    """Six rows: klimb's band, R-INLA's band, and the errors of both of their sds against the exact posterior."""
    _, axes = plt.subplots(len(SHOWN), 3, figsize=(10.5, 11.0), layout="constrained")
    for row, (name, (title, along, column)) in zip(axes, SHOWN.items(), strict=True):
        stated = json.loads((folder / "refs" / f"{name}.json").read_text())
        data, mean, sd = linear_predictor(folder, name)
        truth, inla = stated.get("exact") or stated["nuts"]["latent"], stated["inla"]["default"]["eta"]
        exact, exact_sd = np.array(truth["eta"]["mean"]), np.array(truth["eta"]["sd"])
        x = np.argsort(np.argsort(exact)) if column is None else np.asarray(data[column], dtype=float)
        order = np.argsort(x, kind="stable")
        for ax, who, colour, centre, width in ((row[0], "klimb", BLUE, mean, sd),
                                               (row[1], "R-INLA", ORANGE, inla["mean"], inla["sd"])):
            row[2].plot(x[order], 100.0 * (np.asarray(width) / exact_sd - 1.0)[order], color=colour, linewidth=1.0)
            centre, width = np.asarray(centre)[order], 1.645 * np.asarray(width)[order]
            ax.fill_between(x[order], centre - width, centre + width, color=colour, alpha=0.25, linewidth=0)
            ax.plot(x[order], centre, color=colour, linewidth=1.4)
            ax.set_title(f"{who}: {title}", loc="left", fontsize=9.5)
        row[1].set_ylim(row[0].get_ylim())
        row[2].axhline(0.0, color=GREY, linewidth=0.8)
        row[2].set_title("errors of both sds, %", loc="left", fontsize=9.5)
        for ax in row:
            ax.set_xlabel(along, fontsize=9)
            ax.spines[["top", "right"]].set_visible(False)
    plt.savefig(HERE / "inla-beside.png", dpi=72)
    with Image.open(HERE / "inla-beside.png") as drawn:  # few colours are enough, and weigh less
        small = drawn.convert("RGB").quantize(48)
    small.save(HERE / "inla-beside.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
