"""Draws the pictures of the tutorials from the numbers of their code: ``python docs/images/make_tutorials.py [NAME]``.

Each function runs the blocks of its page, as the site does, and draws what they leave behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.transcripts import corrected, workplace  # noqa: E402

# Okabe and Ito's colours, which all eyes tell apart.
BLUE, ORANGE, GREEN, SKY, PURPLE, BLACK = "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#cc79a7", "#222222"
plt.rcParams.update(
    {
        "font.size": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11.5,
        "legend.frameon": False,
        "axes.titlelocation": "left",
        "figure.dpi": 110,
        "savefig.dpi": 110,
        "lines.linewidth": 1.8,
        "axes.labelcolor": BLACK,
    }
)


def names_of(page: str) -> dict[str, Any]:
    """What the code of a page defines."""
    names: dict[str, Any] = {}
    with workplace():
        corrected((ROOT / "docs" / page).read_text(encoding="utf-8"), commands_too=False, name=page, names=names)
    return names


def save(figure: Any, name: str) -> None:
    """As a picture of few bytes."""
    target = HERE / f"{name}.png"
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(target, metadata={"Software": None})
    plt.close(figure)
    try:
        from PIL import Image

        Image.open(target).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    except ImportError:
        pass
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")


def points() -> None:
    """Point estimates and posteriors, with many and with few data."""
    page = names_of("tutorials/point-estimates.md")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.2))
    rows, spread = page["fit"].coefficients, page["bunch"].data.std(axis=0)
    place = np.arange(10)[::-1]
    left.errorbar(
        page["estimate"][1:] * spread,
        place + 0.14,
        xerr=1.64 * page["error"][1:] * spread,
        fmt="o",
        ms=4,
        color=ORANGE,
        label="least squares",
    )
    center = np.array(rows["mean"][1:]) * spread
    sides = np.abs(np.array([rows["lower"][1:], rows["upper"][1:]]) * spread - center)
    left.errorbar(center, place - 0.14, xerr=sides, fmt="s", ms=4, color=BLUE, label="klimb")
    left.set(
        yticks=place,
        yticklabels=rows["name"][1:],
        title="diabetes: 442 patients",
        xlabel="progression per sd of the column",
    )
    left.legend(loc="upper left", fontsize=9)
    rows, place = page["nodes"].coefficients, np.arange(5)[::-1]
    center = np.array(rows["mean"][1:])
    sides = np.abs(np.array([rows["lower"][1:], rows["upper"][1:]]) - center)
    right.plot(page["point"].coef_[0], place + 0.14, "o", color=ORANGE, label="maximum likelihood")
    right.errorbar(center, place - 0.14, xerr=sides, fmt="s", ms=4, color=BLUE, label="klimb")
    right.set(
        yticks=place,
        yticklabels=rows["name"][1:],
        title="nodal involvement: 53 patients",
        xlabel="log odds",
        ylim=(-1.1, 4.5),
    )
    right.legend(loc="lower left", fontsize=9, ncols=2)
    for axes in (left, right):
        axes.axvline(0.0, color="#999999", lw=0.8, zorder=0)
    save(figure, "tutorial-points")


def inla() -> None:
    """The rate of disasters, and the hyperparameters behind it."""
    page = names_of("tutorials/inla.md")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7), width_ratios=(1.75, 1))
    years, rate, coal = page["new"]["year"], page["rate"], page["coal"]
    left.plot(coal["year"], coal["disasters"], ".", color="#8a8a8a", ms=5, label="counts")
    left.fill_between(years, rate["lower"], rate["upper"], color=SKY, alpha=0.45, lw=0, label="90% interval")
    left.plot(years, rate["mean"], color=BLUE, label="rate")
    left.axvline(1962.5, color="#999999", lw=0.8, ls="--")
    left.text(1963.5, 5.6, "no data", fontsize=9, color="#666666")
    left.set(title="disasters a year", xlim=(1849, 1976), ylim=(-0.15, 6.3))
    left.legend(loc="upper center", bbox_to_anchor=(0.62, 1.0), fontsize=9)
    draws = page["process"].draws(4000)
    sd, scale = (draws[next(key for key in draws if key.startswith(word))] for word in ("sd", "lengthscale"))
    places, count = np.unique(np.column_stack([scale * np.std(coal["year"]), sd]), axis=0, return_counts=True)
    right.scatter(*places.T, s=900 * count / count.max(), color=BLUE, alpha=0.75, lw=0)
    right.set(
        title="integrated out", xlabel="lengthscale (years)", ylabel="sd of the log rate", xscale="log", yscale="log"
    )
    for axis, ticks in ((right.xaxis, (10, 20, 50, 100, 200)), (right.yaxis, (0.3, 0.5, 1, 2, 4))):
        axis.set_ticks(ticks, [str(tick) for tick in ticks])
        axis.set_minor_locator(plt.NullLocator())
    save(figure, "tutorial-inla")


def digits() -> None:
    """Doubtful digits, and the probabilities of two approximations."""
    page = names_of("tutorials/gaussian-processes.md")
    order = np.random.default_rng(0).permutation(len(page["X"]))
    test = order[200:]
    best = page["best"]
    chance = np.asarray(best.model.observe(best.result.posterior, page["X"][test]).mean)
    doubtful = np.argsort(np.abs(chance - 0.5))[:6]
    figure = plt.figure(figsize=(9.2, 3.9), layout="constrained")
    grid = figure.add_gridspec(2, 4, width_ratios=(1, 1, 1, 3.6))
    for k, i in enumerate(doubtful):
        axes = figure.add_subplot(grid[k // 3, k % 3])
        axes.imshow(page["X"][test[i]].reshape(8, 8), cmap="Greys")
        axes.set_axis_off()
        axes.set_title(
            f"P(8) = {chance[i]:.2f}\nit is {'8' if page['eight'][test[i]] else '3'}", fontsize=10, loc="center"
        )
    axes = figure.add_subplot(grid[:, 3])
    rank = np.argsort(chance)
    axes.plot(page["chance"][rank], "o", ms=3.5, color=ORANGE, label="Laplace (scikit-learn)")
    axes.plot(chance[rank], "o", ms=3.5, color=BLUE, label="variational (klimb)")
    axes.axhline(0.5, color="#999999", lw=0.8)
    axes.set(
        title="P(8) of the 157 test digits",
        xlabel="test digits, sorted",
        ylim=(-0.03, 1.03),
        xticks=[0, 50, 100, 150],
    )
    axes.legend(loc="lower right", fontsize=9)
    save(figure, "tutorial-digits")


def lynx() -> None:
    """Fitted curves ten years beyond the data, and two parameters that trade off."""
    page = names_of("tutorials/strange-density.md")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7), width_ratios=(1.75, 1))
    years, fine = np.arange(1900, 1921), np.arange(1900, 1931)
    for k, (name, colour, dots) in enumerate((("hares", BLUE, page["hare"]), ("lynxes", ORANGE, page["lynx"]))):
        low, middle, high = np.quantile(page["paths"][k], (0.05, 0.5, 0.95), axis=0)
        left.fill_between(fine, low, high, color=colour, alpha=0.22, lw=0)
        left.plot(fine, middle, color=colour)
        left.plot(years, dots, "o" if k == 0 else "s", color=colour, ms=4.5, label=name)
    left.axvline(1920.5, color="#999999", lw=0.8, ls="--")
    left.text(1921, 96, "no data", fontsize=9, color="#666666")
    left.set(title="thousands of pelts", xlim=(1899.5, 1930), ylim=(0, 105), xticks=range(1900, 1931, 5))
    left.legend(loc="upper center", ncols=2, fontsize=9)
    cloud = page["q"].sample(3000)
    right.plot(cloud[:, 0], cloud[:, 2], ".", ms=2.2, color=GREEN, alpha=0.5)
    right.set(title="draws of the mixture", xlabel="alpha: hares breed", ylabel="gamma: lynxes die")
    save(figure, "tutorial-lynx")


def loop() -> None:
    """The bound of a model with one datum as a landscape, and how five rules approach the optimum of a larger one."""
    page = names_of("one-loop.md")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.1), layout="constrained", width_ratios=(1.15, 1))
    m, sd = np.meshgrid(np.linspace(-1.2, 5.2, 200), np.geomspace(0.07, 2.6, 200))
    value = 6 * m - np.exp(m + sd**2 / 2) - (m**2 + sd**2) / 8 + np.log(sd)  # the bound, up to a constant
    left.contour(
        m,
        sd,
        value - value.max(),
        levels=[-100, -30, -10, -3, -1, -0.3, -0.1, -0.03],
        colors="#9aa7af",
        linewidths=0.8,
        linestyles="solid",
    )
    plain, guarded = np.array(page["plain"]), np.array(page["guarded"])
    left.plot(plain[:, 0], plain[:, 1], "o-", color=ORANGE, ms=5, lw=1.4, label="plain rule, from the prior")
    for k, (x, y, _) in enumerate(plain):
        left.annotate(str(k), (x, y), textcoords="offset points", xytext=(6, 5), color=ORANGE, fontsize=10)
    left.plot(guarded[:, 0], guarded[:, 1], "s-", color=BLUE, ms=6, label="klimb's default")
    left.set(yscale="log", xlabel="mean of q", ylabel="sd of q", title="one count, y = 6: what steps do")
    left.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    left.minorticks_off()
    left.legend(loc="lower left", fontsize=9)
    best = max(run.bound for run in page["runs"].values())
    colours = (BLUE, ORANGE, SKY, GREEN, PURPLE)
    for (name, run), colour, mark in zip(page["runs"].items(), colours, "sovd^", strict=True):
        gap = np.maximum(best - np.asarray(run.history.bound), 1e-10)
        right.semilogy(
            gap[:80], mark + "-", color=colour, ms=3.5, lw=1.3, markevery=1 if len(gap) < 12 else 4, label=name
        )
    right.set(title="300 data: nats below the optimum", xlabel="iterations", ylim=(1e-9, 1e4))
    right.legend(loc="upper right", fontsize=9)
    save(figure, "one-loop")


def labels() -> None:
    """Errors against labels bought, and what was asked for."""
    page = names_of("tutorials/labels-to-buy.md")
    figure = plt.figure(figsize=(9.2, 3.9), layout="constrained")
    grid = figure.add_gridspec(4, 5, width_ratios=(5.2, 1, 1, 1, 1))
    axes = figure.add_subplot(grid[:, 0])
    bought = 5 * np.arange(1, 25)
    for score, colour, title in (("random", ORANGE, "drawn at random"), ("bald", BLUE, "chosen (bald)")):
        curves = []
        for heap in range(6):
            order = np.random.default_rng(heap).permutation(len(page["X"]))
            page["pool"], page["test"] = order[:1297], order[1297:]
            curves.append(page["buy"](score, seed=heap)[1][:, 0])
        mean, error = np.mean(curves, axis=0), np.std(curves, axis=0, ddof=1) / np.sqrt(6)
        axes.fill_between(bought, 100 * (mean - error), 100 * (mean + error), color=colour, alpha=0.2, lw=0)
        axes.plot(bought, 100 * mean, color=colour, label=title)
        print(score, mean[[5, 11, 17, 23]].round(4))
    axes.set(title="test digits wrong (%)", xlabel="labels bought", ylim=(0, 12), xlim=(5, 120))
    axes.legend(loc="lower left", fontsize=9)
    learner = page["asked"]
    order = np.random.default_rng(0).permutation(len(page["X"]))[:1297]
    for k, row in enumerate(learner.labelled[60:76]):
        small = figure.add_subplot(grid[k // 4, 1 + k % 4])
        small.imshow(page["X"][order[row]].reshape(8, 8), cmap="Greys")
        small.set_axis_off()
        if k == 0:
            small.set_title("asked for: labels 61 to 76")
    save(figure, "tutorial-labels")


PICTURES: dict[str, Callable[[], None]] = {
    "points": points,
    "inla": inla,
    "digits": digits,
    "lynx": lynx,
    "loop": loop,
    "labels": labels,
}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        PICTURES[chosen]()
