"""[A] Table 3 and Figure 1: Gaussian processes over the paper's grids, scored by the log-loss on the other half.

A random half of the data is fitted at every cell of (log l, log sigma), for Laplace noise also of its scale; the
method's own evidence chooses the cell. ``gradient`` is L-BFGS on the bound instead of a grid, ``proximal`` the paper's
iteration; ``-coarse`` walks every second value of the grid, ``proximal-chosen`` runs at the default's best cell only.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klimb import kernels, latents, methods, sites, steps
from klimb.apps.papers.data import Library, TrainTest, halves
from klimb.apps.papers.experiment import EXPERIMENTS, Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import BLUE, INK, NOTHING, ORANGE, PINK, PaperTable, panels, seconds, with_error
from klimb.infer.loop import infer
from klimb.models.evidence import optimise
from klimb.models.gp import gp
from klimb.numerics.arrays import Array

CLASSIFICATION, REGRESSION = EXPERIMENTS["A-table3"].settings["printed"].values()  # splits, log-losses, times
SETS = CLASSIFICATION | REGRESSION
GRID = np.linspace(-1.0, 6.0, 15)  # log l, and log sigma: [A] Table 1
FEW, MANY = np.linspace(-5.0, 1.0, 4), np.linspace(-5.0, 1.0, 15)  # log b; printed is linspace(-5, 1, 2), the ends
NOISE = {"triazines": FEW, "boston": MANY, "space_ga": FEW}
RAW = ("usps_3vs5",)  # pixels in [-1, 1] as they come: standardising blows up those that are nearly constant
ROUNDING = 1e-4  # stationarity below which a fit that stalled did so for lack of digits
STEP = {True: 0.25, False: 1.0}  # the paper's beta, for classification and regression
COARSE = 2
ORDER = ("laplace", "laplace-coarse", "ep", "ep-coarse", "default", "default-coarse", "gradient", "proximal",
         "proximal-coarse", "proximal-chosen")  # of the rows of the table
NAMES = {"laplace": "Laplace", "ep": "EP", "default": "default", "gradient": "default, by gradient",
         "proximal": "proximal"}
MAPPED = "usps_3vs5"
MAPS = {method: NAMES[method] for method in ("laplace", "ep", "default", "proximal")}
COLOURS = {"laplace": PINK, "ep": INK, "proximal": ORANGE, "default": BLUE}
THIN = {"full": 1, "quick": 3, "tiny": 7}
SLOW = ("proximal",)  # a full run walks every second value for these
Cells = Sequence[tuple[int, int, int]]


class Cell(NamedTuple):
    """A fit at one cell of the grid: indices of (log l, log sigma, noise), and what came out."""
    where: tuple[int, int, int]
    bound: float
    loss: float
    status: str
    stationarity: float
    seconds: float


def split(library: Library, name: str, seed: int) -> TrainTest:
    """Inputs (but pixels) and real targets standardised by the half that is trained on."""
    data = library.load(name)
    half = halves(data.dense, data.y, seed)
    mean, sd = (0.0, 1.0) if name in RAW else (half.X.mean(axis=0), half.X.std(axis=0))
    low, unit = (half.y.mean(), half.y.std()) if name in REGRESSION else (0.0, 1.0)
    X, X_test = ((rows - mean) / np.where(sd > 0, sd, 1.0) for rows in (half.X, half.X_test))
    return TrainTest(X, (half.y - low) / unit, X_test, (half.y_test - low) / unit)


def shapes(name: str) -> list[sites.Site]:
    """The likelihoods of the grid: one for classification, one for each noise scale else."""
    return [sites.Logistic()] if name in CLASSIFICATION else [sites.Laplace(float(np.exp(b))) for b in NOISE[name]]


def fitter(classification: bool, method: str) -> Callable[..., Any]:
    """A method with the arguments (latent, site, y)."""
    if method == "proximal":
        # With Laplace noise a step of 1 from the prior runs in a circle; the paper's own start is not the prior either.
        step = steps.Proximal(STEP[classification], start="prior" if classification else "data")
        return lambda latent, site, y: infer(latent, site, y, step=step, tol=1e-4, max_iter=1000)
    rules: dict[str, Callable[..., Any]] = {"laplace": methods.laplace, "ep": methods.ep, "default": infer}
    return rules[method]


def at_cell(fit: Callable[..., Any], site: sites.Site, half: TrainTest, grams: tuple[Array, Array], variance: float
            ) -> tuple[Any, Array, Array, float]:
    """A fit, the marginals of the test rows, and the seconds it took; ``grams`` are kernels of variance 1."""
    begin = time.process_time()
    latent = latents.Kernel(variance * grams[0], check=False)
    result = fit(latent, site, half.y)
    taken = time.process_time() - begin
    m, v = latent.predict(result.posterior, variance * grams[1], np.full(len(half.y_test), variance))
    return result, m, v, taken


def grams_at(half: TrainTest, log_l: float) -> tuple[Array, Array]:
    """Of the training rows, and of the test rows with them."""
    kernel = kernels.RBF(lengthscale=float(np.exp(log_l)))
    return kernel.gram(half.X), kernel.gram(half.X_test, half.X)


def walk(fit: Callable[..., Any], likelihoods: Sequence[sites.Site], half: TrainTest, cells: Cells) -> list[Cell]:
    """Fit and score the cells, each on its own from a cold start."""
    found, known, grams = [], -1, (np.empty(0), np.empty(0))  # the kernel matrices of the present lengthscale
    for where in cells:
        l_index, s_index, shape = where
        if known != l_index:
            known, grams = l_index, grams_at(half, GRID[l_index])
        result, m, v, taken = at_cell(fit, likelihoods[shape], half, grams, float(np.exp(2 * GRID[s_index])))
        found.append(Cell(where, float(result.bound), log_loss(likelihoods[shape], m, v, half.y_test),
                          result.status.name.lower(), float(result.history.stationarity[-1]), taken))
    return found


def log_loss(site: sites.Site, m: Array, v: Array, y: Array) -> float:
    """Minus the mean log predictive probability, in nats."""
    return -float(site.predict(m, v).log_density(y).mean())


def best_of(cells: Sequence[Cell], method: str, noise: tuple[int, ...] | None = None) -> Cell:
    """The cell of the highest evidence; an unfinished variational fit is still a bound, other estimates are not."""
    trusted = [cell for cell in cells if np.isfinite(cell.bound) and (noise is None or cell.where[2] in noise)
               and (cell.status == "converged" or method in ("default", "proximal"))]
    return max(trusted or cells, key=lambda cell: cell.bound)


def summary(cell: Cell) -> Found:
    """Where a cell is, its evidence and its score."""
    l_index, s_index, shape = cell.where
    return {"loss": cell.loss, "bound": cell.bound, "log_l": float(GRID[l_index]), "log_sigma": float(GRID[s_index]),
            "noise": shape}


def by_grid(library: Library, name: str, method: str, seed: int, places: Cells, every: int) -> Found:
    """One method on one split: the chosen cell, the least loss of the grid, and what did not converge."""
    begin = time.process_time()
    cells = walk(fitter(name in CLASSIFICATION, method), shapes(name), split(library, name, seed), places)
    failed: list[list[Any]] = [[*cell.where, cell.status, cell.stationarity]
                               for cell in cells if cell.status != "converged"]
    found = {**summary(best_of(cells, method)), "seconds": time.process_time() - begin, "cells": len(cells),
             "every": every, "failed": len(failed), "rounding": sum(row[-1] <= ROUNDING for row in failed),
             "least": min(cell.loss for cell in cells if np.isfinite(cell.loss)), "first_failures": failed[:20]}
    if name in REGRESSION and len(cells) > 1:
        found["printed"] = summary(best_of(cells, method, (0, len(NOISE[name]) - 1)))
    return found


def by_gradient(library: Library, name: str, seed: int) -> Found:
    """Hyperparameters by L-BFGS on the bound, from one start for all: lengthscale sqrt(D), amplitude 2 or 1."""
    half = split(library, name, seed)
    begin = time.process_time()
    classes = name in CLASSIFICATION
    variance, site, learn = (4.0, sites.Logistic(), ()) if classes else (1.0, sites.Laplace(0.3), "scale")
    kernel = kernels.RBF(variance=variance, lengthscale=float(np.sqrt(half.X.shape[1])))
    best = optimise(gp(kernel, half.X, site, learn=learn), half.y)
    m, v = best.latents(half.X_test).moments()
    return {"loss": log_loss(best.model.new_site(), m, v, half.y_test), "bound": float(best.bound),
            "seconds": time.process_time() - begin, "failed": int(not best.converged), "cells": 1,
            "fits": best.n_fits, "theta": dict(zip(best.model.names, best.model.at.tolist(), strict=True))}


def wanted(name: str, size: Size) -> dict[str, int]:
    """Methods and the number of splits for each."""
    splits, large = SETS[name][0], name in ("usps_3vs5", "space_ga")
    # The curvature of Laplace noise at its mode is zero or infinite: there is no Laplace approximation of it.
    rules: tuple[str, ...] = ("laplace", "ep", "default") if name in CLASSIFICATION else ("ep", "default")
    if size == "tiny":
        return dict.fromkeys((*rules, "gradient", "proximal", "proximal-chosen"), 1)
    if size == "quick":
        return {"gradient": 1} if large else {**dict.fromkeys(rules, 2), "ep": 1, "gradient": 2, "proximal": 1}
    if large or name == "boston":  # which has 15 scales of the noise
        rules = tuple(f"{rule}-coarse" for rule in rules)
    # Figure 1 has the whole grid of one split of USPS, with the proximal rule.
    found = dict.fromkeys((*rules, "gradient", "proximal-chosen" if large else "proximal-coarse"), splits)
    return {**found, "proximal-coarse": 1} if name == "boston" else found


def plan(library: Library, size: Size) -> list[Job]:
    """A job for every set, method and split."""
    thinning = {"full": 1, "quick": 3, "tiny": 14}[size]
    chosen = SETS if size != "tiny" else ("sonar", "triazines")
    return [Job(f"{name}/{method}/{seed}", partial(_work, library, name, method, seed, thinning))
            for name in chosen for method, splits in wanted(name, size).items() for seed in range(splits)]


def _work(library: Library, name: str, method: str, seed: int, thinning: int, results: Results) -> Found:
    rule, _, how = method.partition("-")
    if rule == "gradient":
        return by_gradient(library, name, seed)
    if how == "chosen":
        best = next(results[key] for key in (f"{name}/default/{seed}", f"{name}/default-coarse/{seed}")
                    if key in results)
        i, j = (int(np.argmin(np.abs(GRID - best[key]))) for key in ("log_l", "log_sigma"))
        return by_grid(library, name, rule, seed, [(i, j, int(best["noise"]))], 0)
    every = COARSE if how == "coarse" else thinning
    axis = range(0, len(GRID), every)
    return by_grid(library, name, rule, seed, list(product(axis, axis, range(len(shapes(name))))), every)


def tables(results: Results) -> list[PaperTable]:
    """Ours in bits and in nats beside the paper's."""
    parts = by_parts(results)
    rows = []
    for name, (_, printed, times) in SETS.items():
        for method in sorted({key[1] for key in parts if key[0] == name}, key=ORDER.index):
            records = [found for key, found in parts.items() if key[:2] == (name, method)]
            rule, how = (method + "-").split("-")[:2]
            place = {"laplace": 0, "ep": 1, "gradient": -1}.get(rule, 2)
            every = records[0].get("every", 1)
            ordinal = {2: "second", 3: "third"}.get(every, f"{every}th")
            note = ", at the default's cell" if how == "chosen" else f", every {ordinal} value" if every > 1 else ""
            loss = [record["loss"] for record in records]
            least = [record["least"] for record in records if "least" in record]
            failed, cells, rounding = (sum(record.get(what, other) for record in records)
                                       for what, other in (("failed", 0), ("cells", 1), ("rounding", 0)))
            rows.append((
                name, NAMES[rule] + note, with_error([value / np.log(2) for value in loss], 3), with_error(loss, 3),
                with_error(least, 3) if least and how != "chosen" else NOTHING,
                f"{printed[place]:.3f}" if place >= 0 else NOTHING,
                f"{failed} of {cells}" + (f" ({rounding} by rounding)" if rounding else ""),
                seconds(float(np.mean([record["seconds"] for record in records]))),
                times[place] if place >= 0 and how != "chosen" else NOTHING, str(len(records))))
    heads = ("set", "method", "at the best evidence, bits", "nats", "least over the grid, nats", "paper",
             "not converged", "CPU", "paper's time", "splits")
    return [PaperTable("[A] Table 3: log-loss of the other half", heads, tuple(rows), left=2)]


TABLE3 = Experiment(plan, tables)


def half_of(library: Library, size: Size) -> TrainTest:
    """The first of the splits of Table 3; a quick run trains on every second of its rows."""
    half = split(library, MAPPED, 0)
    return half._replace(X=half.X[::2], y=half.y[::2]) if size == "quick" else half


def plan_maps(library: Library, size: Size) -> list[Job]:
    """A job for every method and lengthscale, and one for the probabilities at the cells that were chosen."""
    lines = []
    for method in MAPS:
        axis = list(range(0, len(GRID), 2 if size == "full" and method in SLOW else THIN[size]))
        lines += [Job(f"{method}/{place}", partial(line, library, size, method, place, axis)) for place in axis]
    return [*lines, Job("probabilities", lambda results: probabilities(half_of(library, size), results))]


def line(library: Library, size: Size, method: str, l_index: int, axis: list[int], _: Results) -> Found:
    """The cells of one lengthscale."""
    places = [(l_index, s_index, 0) for s_index in axis]
    cells = walk(fitter(True, method), [sites.Logistic()], half_of(library, size), places)
    return {"log_l": GRID[l_index], "log_sigma": [GRID[cell.where[1]] for cell in cells],
            **{what: [getattr(cell, what) for cell in cells] for what in ("bound", "loss", "seconds", "status")}}


def squares(results: Results, method: str, what: str) -> tuple[Array, Array, Array]:
    """log l, log sigma, and a figure at every cell (rows are log l)."""
    lines = sorted((found for key, found in by_parts(results).items() if key[0] == method),
                   key=lambda found: float(found["log_l"]))
    return (np.array([line["log_l"] for line in lines]), np.array(lines[0]["log_sigma"]),
            np.array([[np.nan if value is None else value for value in line[what]] for line in lines], dtype=float))


def chosen(results: Results, method: str, by: str) -> tuple[int, int]:
    """The cell of the highest evidence, or of the least loss."""
    _, _, values = squares(results, method, by)
    best = np.nanargmax(values) if by == "bound" else np.nanargmin(values)
    place = np.unravel_index(int(best), values.shape)
    return int(place[0]), int(place[1])


def probabilities(half: TrainTest, results: Results) -> Found:
    """Probability of the true label of every test image, at each method's own best evidence and at one cell for all."""
    found: Found = {}
    for method in MAPS:
        for what, whose in (("own", method), ("common", "ep")):
            (i, j), (log_l, log_sigma, _) = chosen(results, whose, "bound"), squares(results, whose, "bound")
            _, m, v, _ = at_cell(fitter(True, method), sites.Logistic(), half, grams_at(half, float(log_l[i])),
                                 float(np.exp(2 * log_sigma[j])))
            p = np.exp(sites.Logistic().predict(m, v).log_density(half.y_test))
            found[f"{method}, {what}"] = {"log_l": log_l[i], "log_sigma": log_sigma[j], "p": p.round(5)}
    return found


def map_tables(results: Results) -> list[PaperTable]:
    """The least loss of the grid, the loss at the best evidence, the time of the whole grid."""
    lines = []
    shown = results.get("probabilities", {})
    for method, name in MAPS.items():
        log_l, log_sigma, loss = squares(results, method, "loss")
        status = [one for key, found in by_parts(results).items() if key[0] == method for one in found["status"]]
        time = squares(results, method, "seconds")[2]
        i, j = chosen(results, method, "bound")
        p, q = chosen(results, method, "loss")
        same = -np.log(np.maximum(np.array(shown[f"{method}, common"]["p"], dtype=float), 1e-300)).mean()
        lines.append((name, f"{loss[i, j] / np.log(2):.3f}", f"{loss[i, j]:.3f}", f"({log_l[i]:g}, {log_sigma[j]:g})",
                      f"{loss[p, q]:.3f}", f"({log_l[p]:g}, {log_sigma[q]:g})", f"{same:.3f}",
                      seconds(float(time.sum())), f"{sum(one != 'converged' for one in status)} of {len(status)}"))
    heads = ("method", "loss at the best evidence, bits", "nats", "(log l, log sigma)", "least loss, nats", "there",
             "all at EP's cell, nats", "CPU, whole grid", "not converged")
    return [PaperTable("[A] Figure 1: USPS 3 against 5, one split", heads, tuple(lines))]


def draw(results: Results, path: Path) -> None:
    """Heat maps as in the paper, and the sorted probabilities."""
    with panels(path, 2, 5, (14.0, 6.0), width_ratios=[1, 1, 1, 1.2, 1.35]) as (figure, axes):
        for what, line, label in (("loss", axes[0], "log-loss, bits"), ("seconds", axes[1], "log10 CPU seconds")):
            maps = {method: squares(results, method, what) for method in MAPS}
            shown = {method: values / np.log(2) if what == "loss" else np.log10(np.maximum(values, 1e-4))
                     for method, (_, _, values) in maps.items()}
            together = np.concatenate([values[np.isfinite(values)] for values in shown.values()])
            low, high = float(together.min()), float(np.minimum(together.max(), 1.0 if what == "loss" else np.inf))
            for ax, (method, values) in zip(line, shown.items(), strict=False):
                log_l, log_sigma, _ = maps[method]
                picture = ax.pcolormesh(log_l, log_sigma, values.T, vmin=low, vmax=high, cmap="cividis",
                                        shading="nearest", rasterized=True)
                if method == "proximal":
                    figure.colorbar(picture, ax=ax, label=label, pad=0.02)
                ax.set_title(MAPS[method])
                if what == "loss":
                    (p, q), (i, j) = chosen(results, method, "loss"), chosen(results, method, "bound")
                    ax.plot(log_l[p], log_sigma[q], "o", ms=11, mfc="none", mec="white", mew=2)
                    ax.plot(log_l[i], log_sigma[j], "x", ms=8, color="white", mew=2)
        for ax in axes[:, 0]:
            ax.set_ylabel("log sigma")
        for ax in axes[1, :4]:
            ax.set_xlabel("log l")
        _sorted(axes[0, 4], results["probabilities"], "own", "each at its own best evidence")
        _sorted(axes[1, 4], results["probabilities"], "common", "all at EP's cell")


def _sorted(ax: Any, found: Found, what: str, title: str) -> None:
    order = np.argsort(np.array(found[f"ep, {what}"]["p"], dtype=float), kind="stable")
    x = np.arange(len(order))
    for method, size in (("laplace", 2.5), ("proximal", 6.0), ("default", 2.5)):  # default lies on proximal
        ax.plot(x, np.array(found[f"{method}, {what}"]["p"], dtype=float)[order], ".", ms=size, color=COLOURS[method],
                label=MAPS[method])
    ax.plot(x, np.array(found[f"ep, {what}"]["p"], dtype=float)[order], color=INK, lw=1.4, label="EP")
    ax.set(title=title, xlabel="test images, sorted by EP's probability", ylabel="probability of the true label",
           ylim=(-0.02, 1.02))
    ax.legend(markerscale=3)


FIGURE1 = Experiment(plan_maps, map_tables, draw)
