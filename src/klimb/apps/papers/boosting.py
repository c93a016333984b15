"""[G] Figures 1 and 2: boosted mixtures of Gaussians for toy densities, and for the nodal logistic regression.

Three answers: [G]'s algorithm (50 iterations; Figure 1 from several seeds), klimb's default, and ADVI's diagonal
Gaussian. The truth of Figure 2 is a Polya-Gamma Gibbs sampler (Polson, Scott and Windle 2013, section 3).
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import GREEN, GREY, NOTHING, ORANGE, RED, SKY, PaperTable, letter, panels, seconds
from klimb.boosting.api import boost
from klimb.boosting.gaussians import LOG_2PI, Gaussians, nodes
from klimb.boosting.target import LogDensity
from klimb.numerics.arrays import Array

ITERATIONS = {"full": 50, "quick": 30, "tiny": 2}
SEEDS = {"full": (1, 2, 3, 4, 5), "quick": (1, 2), "tiny": (1, 2)}  # of [G] in Figure 1
SWEEPS = {"full": 200_000, "quick": 5000, "tiny": 200}  # of the Gibbs sampler
COLOURS = {"[G]": RED, "klimb": GREEN, "ADVI": ORANGE}
MARKS = {"[G]": "s", "klimb": "o", "ADVI": "^"}


class Toy(NamedTuple):
    """A normalised density on the line or in the plane, with its gradient, and the box in which it is drawn."""
    dim: int
    log_density: LogDensity
    gradient: LogDensity
    box: float


def cauchy() -> Toy:
    """p(x) proportional to 1 / (1 + (x / 2)^2)."""
    def log_density(x: Array) -> Array:
        return np.asarray(-np.log1p((x[:, 0] / 2.0) ** 2) - LOG_2PI)

    def gradient(x: Array) -> Array:
        return np.asarray(-2.0 * x / (4.0 + x**2))

    return Toy(1, log_density, gradient, 15.0)


def mixture(means: Array, covariances: Array, weights: Array, box: float) -> Toy:
    """Gaussians."""
    q = Gaussians(means, np.asarray(np.linalg.cholesky(covariances), dtype=np.float64), weights)
    return Toy(q.dim, q.log_density, lambda x: q.with_slopes(x)[1], box)


def four() -> Toy:
    """Four Gaussians on the line; the paper does not print its own."""
    sd = np.array([0.7, 0.5, 1.0, 0.8])
    means = np.array([[-4.0], [-1.0], [2.0], [6.0]])
    return mixture(means, (sd**2)[:, None, None], np.array([0.2, 0.3, 0.3, 0.2]), 10.0)


def five() -> Toy:
    """Five Gaussians in the plane with random means and covariances."""
    rng = np.random.default_rng(5)
    means = rng.uniform(-6.0, 6.0, (5, 2))
    covariances = np.array([np.cov(rng.standard_normal((2, 6))) + 0.2 * np.eye(2) for _ in range(5)])
    return mixture(means, covariances, rng.dirichlet(5.0 * np.ones(5)), 10.0)


TOYS: dict[str, Callable[[], Toy]] = {"Cauchy": cauchy, "four Gaussians": four, "five Gaussians": five}


def fitted(name: str, log_density: LogDensity, gradient: LogDensity, dim: int, size: Size, seed: int = 1) -> Found:
    """Weights, means and covariances of a mixture, with its trace."""
    begin = time.process_time()
    if name == "ADVI":
        m, s = advi(log_density, gradient, dim)
        return {"weights": [1.0], "means": [m], "covariances": [np.diag(s**2)], "seconds": time.process_time() - begin}
    if name == "[G]":
        q = boost(log_density, dim, component="laplacian", n_components=ITERATIONS[size], seed=seed)
    else:
        q = boost(log_density, dim, gradient=gradient)
    return {"weights": q.weights.round(6), "means": q.means.round(5), "covariances": q.covariances.round(6),
            "bounds": q.trace["bound"], "components": q.trace["n_components"],
            "newest_weight": [step.weights[-1] for step in q.steps], "evaluations": q.n_values,
            "seconds": time.process_time() - begin}


def stored(found: Found) -> Gaussians:
    """The mixture in a record."""
    weights, means, covariances = (np.array(found[key], dtype=float) for key in ("weights", "means", "covariances"))
    return Gaussians(means, np.asarray(np.linalg.cholesky(covariances), dtype=np.float64), weights)


def grid_of(dim: int, reach: float, n: int) -> Array:
    """Points of an even grid on the line or in the plane."""
    axis = np.linspace(-reach, reach, n)
    if dim == 1:
        return axis[:, None]
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def divergence(toy: Toy, found: Found) -> float:
    """KL(q || p) by sums over a fine grid: it owes nothing to the method that made q."""
    n, reach = (40_001, 400.0) if toy.dim == 1 else (401, 40.0)
    x = grid_of(toy.dim, reach, n)
    log_q = stored(found).log_density(x)
    q = np.exp(log_q) * (2 * reach / (n - 1)) ** toy.dim
    return float((q * (log_q - toy.log_density(x))).sum())


def answer(name: str, method: str, size: Size, _: Results) -> Found:
    """One answer to one density; of [G] that of the first seed, with the divergences of all."""
    toy = TOYS[name]()
    answers = [fitted(method, toy.log_density, toy.gradient, toy.dim, size, seed)
               for seed in (SEEDS[size] if method == "[G]" else (1,))]
    kl = [divergence(toy, found) for found in answers]
    return {**answers[0], "kl": kl[0], "seeds": kl}


def plan_figure1(library: Library, size: Size) -> list[Job]:
    """Three densities, three answers; in a tiny run one density of each dimension."""
    chosen = [name for name in TOYS if size != "tiny" or name != "four Gaussians"]
    return [Job(f"{name}/{method}", partial(answer, name, method, size)) for name in chosen for method in COLOURS]


def toy_tables(results: Results) -> list[PaperTable]:
    """The paper prints no figures, so these stand alone."""
    def spread(kl: list[float]) -> str:
        return f"{np.median(kl):.4f}" + (f" ({min(kl):.4f} to {max(kl):.4f})" if len(kl) > 1 else "")

    rows = tuple((name, method, str(len(found["weights"])), spread(found["seeds"]),
                  str(found["evaluations"]) if "evaluations" in found else NOTHING, seconds(found["seconds"]))
                 for (name, method), found in by_parts(results).items())
    heads = ("density", "method", "components", "KL(q || p), nats", "evaluations", "CPU")
    return [PaperTable("[G] Figure 1: how close the mixtures come", heads, rows, left=2)]


def draw_figure1(results: Results, path: Path) -> None:
    """Densities above, divergence and newest weight against iterations below."""
    names = list(dict.fromkeys(key[0] for key in by_parts(results)))
    with panels(path, 3, len(names), (4.2 * len(names), 9.6), height_ratios=[1.5, 1.0, 0.8]) as (_, axes):
        for column, name in enumerate(names):
            toy, found = TOYS[name](), {method: results[f"{name}/{method}"] for method in COLOURS}
            letter(axes[0, column], column, name)
            (_lines if toy.dim == 1 else _contours)(axes[0, column], toy, found)
            for method in ("[G]", "klimb"):
                one = found[method]
                gap = np.maximum(-np.array(one["bounds"], dtype=float), 1e-4)
                style = {"color": COLOURS[method], "marker": MARKS[method], "ms": 3.5, "label": method}
                axes[1, column].plot(one["components"], gap, **style)
                if method == "[G]":
                    axes[2, column].plot(one["components"][1:], one["newest_weight"][1:], **style)
            axes[1, column].axhline(max(found["ADVI"]["kl"], 1e-4), color=ORANGE, ls="--", label="ADVI")
            axes[1, column].set(yscale="log", ylim=(8e-5, 30.0))
            axes[2, column].set(xlabel="components", ylim=(0.0, 1.02), xlim=axes[1, column].get_xlim())
            axes[1, column].legend()
        axes[1, 0].set_ylabel("-bound = KL(q || p)")
        axes[2, 0].set_ylabel("newest weight in [G]")


def _lines(ax: Any, toy: Toy, found: dict[str, Found]) -> None:
    x = np.linspace(-toy.box, toy.box, 1200)[:, None]
    ax.fill_between(x[:, 0], np.exp(toy.log_density(x)), color=SKY, alpha=0.45, lw=0, label="target")
    for method, one in found.items():
        q = stored(one)
        ax.plot(x[:, 0], np.exp(q.log_density(x)), color=COLOURS[method], lw=1.6 if method != "klimb" else 2.2,
                ls="--" if method == "ADVI" else "-", label=f"{method} ({len(q)})")
    ax.set(yticks=[])
    ax.legend(loc="upper right")


def _contours(ax: Any, toy: Toy, found: dict[str, Found]) -> None:
    n = 161
    points = grid_of(2, toy.box, n)
    axis = np.linspace(-toy.box, toy.box, n)
    truth = np.exp(toy.log_density(points)).reshape(n, n)
    levels = truth.max() * np.array([0.03, 0.15, 0.5])
    ax.contourf(axis, axis, truth, levels=[*levels, truth.max() * 1.01], colors=["#dceefa", "#a9d5f2", SKY])
    for method, one in found.items():
        q, style = stored(one), "--" if method == "ADVI" else "-"
        ax.contour(axis, axis, np.exp(q.log_density(points)).reshape(n, n), levels=levels, colors=COLOURS[method],
                   linewidths=1.2, linestyles=style)
        ax.plot([], [], color=COLOURS[method], ls=style, label=f"{method} ({len(q)})")
    ax.locator_params(nbins=5)
    ax.legend(loc="upper right")


FIGURE1 = Experiment(plan_figure1, toy_tables, draw_figure1)


def posterior(library: Library) -> tuple[LogDensity, LogDensity, int]:
    """Log posterior of the nodal regression under N(0, I), with its constant, and the gradient."""
    data = library.load("nodal")
    signed = data.dense * np.where(data.y > 0, 1.0, -1.0)[:, None]
    dim = signed.shape[1]

    def log_density(w: Array) -> Array:
        return np.asarray(-np.logaddexp(0.0, -(w @ signed.T)).sum(axis=1) - 0.5 * (w**2).sum(axis=1)
                          - 0.5 * dim * LOG_2PI)

    def gradient(w: Array) -> Array:
        return np.asarray(expit(-(w @ signed.T)) @ signed - w)

    return log_density, gradient, dim


def truth(library: Library, size: Size) -> Found:
    """Mean and covariance of the draws of a Gibbs sampler, with the standard error of a mean in sd (by 20 batches)."""
    data = library.load("nodal")
    draws = gibbs(data.dense, data.y, SWEEPS[size])
    sd = draws.std(axis=0)
    batches = np.array([part.mean(axis=0) for part in np.array_split(draws, 20)])
    error = float((batches.std(axis=0) / sd).max() / np.sqrt(len(batches)))
    return {"mean": draws.mean(axis=0), "cov": np.cov(draws.T), "error": error, "draws": len(draws)}


def plan_figure2(library: Library, size: Size) -> list[Job]:
    """The truth and three answers."""
    def work(method: str, _: Results) -> Found:
        return truth(library, size) if method == "truth" else fitted(method, *posterior(library), size)

    return [Job(method, partial(work, method)) for method in ("truth", *COLOURS)]


def nodal_tables(results: Results) -> list[PaperTable]:
    """Errors of means, standard deviations and correlations."""
    true_mean, true_cov = np.array(results["truth"]["mean"]), np.array(results["truth"]["cov"])
    sd = np.sqrt(np.diag(true_cov))
    off = ~np.eye(len(sd), dtype=bool)
    rows = []
    for method in COLOURS:
        mean, cov = stored(results[method]).moments()
        own = np.sqrt(np.diag(cov))
        rows.append((method, str(len(results[method]["weights"])), f"{np.abs((mean - true_mean) / sd).max():.3f}",
                     f"{np.abs(own / sd - 1).max():.1%}", f"{np.mean(own / sd - 1):+.1%}",
                     f"{np.abs(cov / np.outer(own, own) - true_cov / np.outer(sd, sd))[off].max():.3f}",
                     seconds(results[method]["seconds"])))
    heads = ("method", "components", "largest error of a mean, sd", "of an sd", "mean error of sds",
             "of a correlation", "CPU")
    one = results["truth"]
    title = f"[G] Figure 2: nodal involvement, against {one['draws']:,} draws of a Polya-Gamma sampler"
    return [PaperTable(f"{title} (whose means are known to {one['error']:.3f} sd)", heads, tuple(rows))]


def draw_figure2(results: Results, path: Path) -> None:
    """Estimates against the truth; dashed where they are equal."""
    mean, cov = np.array(results["truth"]["mean"]), np.array(results["truth"]["cov"])
    lower = np.tril_indices(len(mean), -1)
    with panels(path, 1, 3, (12.6, 4.2)) as (_, axes):
        for method, colour in COLOURS.items():
            own_mean, own_cov = stored(results[method]).moments()
            style = {"color": colour, "marker": MARKS[method], "ls": "", "mfc": "none", "ms": 7, "mew": 1.6}
            axes[0, 0].plot(mean, own_mean, label=method, **style)
            axes[0, 1].plot(np.diag(cov), np.diag(own_cov), **style)
            axes[0, 2].plot(cov[lower], own_cov[lower], **style)
        for index, (ax, title) in enumerate(zip(axes[0], ("means", "variances", "covariances"), strict=True)):
            letter(ax, index, title)
            low, high = min(ax.get_xlim()[0], ax.get_ylim()[0]), max(ax.get_xlim()[1], ax.get_ylim()[1])
            ax.plot([low, high], [low, high], "--", color=GREY, lw=1.0, zorder=0)
            ax.set(xlabel="truth")
            ax.locator_params(nbins=6)
        axes[0, 0].set_ylabel("estimate")
        axes[0, 0].legend()


FIGURE2 = Experiment(plan_figure2, nodal_tables, draw_figure2)


DRAWS = 2000  # of ADVI's bound
TERMS = 200  # of the series of a Polya-Gamma variable
BURN = 0.1  # share of the sweeps that are left out


def advi(log_density: LogDensity, gradient: LogDensity, dim: int) -> tuple[Array, Array]:
    """Mean and standard deviations of the diagonal Gaussian with the best bound over fixed draws, x = m + s z.

    Where ADVI's stochastic gradients end (Giordano, Ingram and Broderick 2024), by L-BFGS.
    """
    z = nodes(DRAWS, dim)

    def objective(theta: Array) -> tuple[float, Array]:
        s = np.exp(theta[dim:])
        x = theta[:dim] + s * z
        slope = gradient(x)
        gradients = slope.mean(axis=0), (slope * z).mean(axis=0) * s + 1.0
        return -float(log_density(x).mean() + theta[dim:].sum()), -np.concatenate(gradients)

    theta = minimize(objective, np.zeros(2 * dim), jac=True, method="L-BFGS-B").x
    return theta[:dim], np.exp(theta[dim:])


def polya_gamma(c: Array, rng: np.random.Generator) -> Array:
    """One draw of PG(1, c_i) for each i: its mean is tanh(c / 2) / (2 c).

    Polson, Scott and Windle, Eq. (1): sum_k g_k / ((k - 1/2)^2 + (c / 2 pi)^2) / (2 pi^2), its tail at its mean.
    """
    k, c = np.arange(TERMS) + 0.5, np.maximum(np.abs(np.asarray(c, dtype=float)), 1e-6)
    rates = 2.0 * np.pi**2 * k**2 + 0.5 * c[:, None] ** 2
    return np.asarray(((rng.exponential(size=rates.shape) - 1.0) / rates).sum(axis=1) + np.tanh(c / 2.0) / (2.0 * c))


def gibbs(X: Array, y: Array, sweeps: int, seed: int = 0) -> Array:
    """Draws of the weights of a logistic regression with labels -1 and 1 under N(0, I), one a row."""
    rng, dim = np.random.default_rng(seed), X.shape[1]
    pull, w, draws = 0.5 * X.T @ np.where(y > 0, 1.0, -1.0), np.zeros(dim), np.empty((sweeps, dim))
    for k in range(sweeps):
        root = np.linalg.cholesky(np.eye(dim) + X.T @ (polya_gamma(X @ w, rng)[:, None] * X))
        mean = np.linalg.solve(root.T, np.linalg.solve(root, pull))
        w = draws[k] = mean + np.linalg.solve(root.T, rng.standard_normal(dim))
    return draws[int(BURN * sweeps):]
