"""[S] Figures 2-5: the bound against time for GLMs, Gaussian processes, sparse processes and Student-t noise.

As in the paper inputs are standardised, GLMs have prior variance 0.1 (0.001 for flares), processes at most 500 data and
an RBF kernel whose hyperparameters 200 of them have chosen, sparse ones 100 random inducing points; FPb and FPi start
at m = 0 and V = I (0.1 I for counts), the proximal step at the prior. "At once" moves mean and covariance both from the
old mean. GRAD is L-BFGS on the mean and the Cholesky factor of V. A rule that diverges ends where it does.

Figure 1: T of [S] converges where gamma is monotone in v at every datum; the sign of its slope, by differences.
"""

import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klimb import kernels, latents, methods, sites, steps
from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, PaperTable, letter, panels
from klimb.infer.loop import infer
from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.models.evidence import optimise
from klimb.models.gp import gp
from klimb.numerics.arrays import Array

FEW = 200  # data that choose the hyperparameters
INDUCING = 100
CLOSE = 1e-3  # nats below the best bound that count as arrived
KEPT = 160  # points of a trace in the record
FIRST = 5  # iterations at the start that are always kept
FLOOR, ROOF = 1e-7, 1e7  # of the gaps that are drawn
JITTER = 1e-6  # on the diagonal of K, for everyone: GRAD factorises it
ENDS = {"stopped": "out of time", "cycle": "cycles", "diverged": "diverges", "improper": "fails"}
LINES = {"default": (BLUE, "o"), "FPi": (ORANGE, "s"), "at once": (SKY, "D"), "FPb": (PINK, "^"),
         "proximal": (GREEN, "v"), "GRAD": (GREY, "x")}
NAME = "german"
DIFFERENCE = 1e-3  # relative step in v
FLAT = 1e-9  # of gamma: slopes below this are no slopes
POINTS = 200  # of a map, either way
MAPS: dict[str, tuple[sites.Site, float, float, float]] = {  # a site, the datum at which it is shown, largest m and v
    "logistic": (sites.Logistic(), 1.0, 10.0, 30.0), "Laplace noise, y = 0": (sites.Laplace(1.0), 0.0, 6.0, 12.0),
    "Student-t noise, y = 0": (sites.StudentT(3.0, 1 / np.sqrt(3.0)), 0.0, 6.0, 12.0),
    "Poisson, y = 1": (sites.Poisson(), 1.0, 6.0, 12.0)}


class TracePanel(NamedTuple):
    """A data set and its likelihood; for GLMs the variance of the prior."""
    data: str
    likelihood: str
    prior_variance: float | None = None  # of a GLM's weights; a process if None
    inducing: bool = False

    @property
    def name(self) -> str:
        return f"{self.likelihood}, {self.data}"


SITES: dict[str, sites.Site] = {"logistic": sites.Logistic(), "Poisson": sites.Poisson(), "Laplace": sites.Laplace(0.3),
                                "Student-t": sites.StudentT(3.0, 1 / np.sqrt(3.0))}  # the paper's nu = 3, sigma^2 = 1/3


def rows(library: Library, panel: TracePanel, limit: int | None) -> tuple[Array, Array]:
    """Standardised inputs and the target (standardised if it is real) of random rows."""
    data = library.load(panel.data)
    order = np.random.default_rng(0).permutation(len(data.y))[:limit]
    X, y = data.dense[order], data.y[order]
    sd = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
    if SITES[panel.likelihood].response == "real":
        y = (y - y.mean()) / y.std()
    return X, y


class Setting(NamedTuple):
    """What is fitted, and the marginal variances under V = I (0.1 I for counts)."""
    latent: Any
    site: sites.Site
    y: Array
    unit_variances: Array

    def after_one_step(self) -> Posterior:
        """The paper's start, m = 0 and V = I, after one step of FPi: Newton on m at V = I, then T(I) at the new m.

        V = I itself has no place in a state of two numbers a datum. Negative gamma becomes zero ([S] section 3.1).
        """
        problem, mean, v = Problem(self.latent, self.site, self.y), np.array(self.latent.mean), self.unit_variances
        e = problem.oracle(mean, v)
        da, dm = problem.factor(np.maximum(e.gamma, 0.0)).solve(np.asarray(-e.alpha))
        step, least = 1.0, float(e.value.sum())
        while step > 1e-6:  # of the bound at V = I only this depends on the mean
            e = problem.oracle(mean + step * dm, v)
            if float(e.value.sum()) - 0.5 * step**2 * float(da @ dm) >= least:
                break
            step *= 0.5
        factor = problem.factor(np.maximum(e.gamma, 0.0))
        return problem.posterior(problem.state(step * da, mean + step * dm, factor))


def setting(library: Library, panel: TracePanel, limit: int | None) -> Setting:
    """A panel, ready to be fitted."""
    X, y = rows(library, panel, limit)
    site = SITES[panel.likelihood]
    unit = 0.1 if panel.likelihood == "Poisson" else 1.0
    if panel.prior_variance is not None:
        X = np.column_stack([np.ones(len(y)), X])
        if panel.likelihood == "Laplace":  # the scale of least squares' residuals on the first data
            few = X[:FEW], y[:FEW]
            site = sites.Laplace(float(np.abs(few[1] - few[0] @ np.linalg.lstsq(*few, rcond=None)[0]).mean()))
        return Setting(latents.Weights(X, cov=panel.prior_variance), site, y, unit * (X**2).sum(axis=1))
    kernel = kernels.RBF(variance=1.0, lengthscale=float(np.sqrt(X.shape[1])))
    learn = ("scale",) if panel.likelihood == "Laplace" else ()
    best: Any = optimise(gp(kernel, X[:FEW], site, learn=learn), y[:FEW]).model
    model = gp(best.kernel, X, best.new_site(), inducing=X[:INDUCING] if panel.inducing else None, jitter=JITTER)
    if not panel.inducing:
        return Setting(model.latent, model.new_site(), y, np.full(len(y), unit))
    Kuu, Kuf = best.kernel.gram(X[:INDUCING]), best.kernel.gram(X[:INDUCING], X)
    D = np.linalg.solve(Kuu + JITTER * np.eye(len(Kuu)), Kuf)  # f_i = d_i'u + noise of variance c_i: [S] Eq. (4)
    slack = np.maximum(best.kernel.diag(X) - (Kuf * D).sum(axis=0), 0.0)
    return Setting(model.latent, model.new_site(), y, slack + unit * (D**2).sum(axis=0))


def rule(name: str, this: Setting) -> Callable[[Any], Any]:
    """A way to fit, as a function of a callback."""
    latent, site, y = this.latent, this.site, this.y
    if name == "GRAD":
        return lambda callback: methods.cholesky_gradient(latent, site, y, callback=callback)
    negative: Any = "keep" if site.log_concave else "clip"  # [S] section 4 replaces negative gamma by zero
    step: Mapping[str, Any] = {
        "default": None, "FPi": steps.FixedPoint(negative=negative, start="data"),
        "at once": steps.FullNatural(start="data"),
        "FPb": steps.FixedPoint(batch=True, negative=negative, start="data"),
        "proximal": steps.Proximal(0.25 if isinstance(site, sites.Logistic) else 1.0)}

    def run(callback: Any) -> Any:
        start = this.after_one_step() if name in ("FPi", "FPb", "at once") else None
        return infer(latent, site, y, step=step[name], max_iter=5000, callback=callback, start=start)

    return run


def traced(run: Callable[[Any], Any], cap: float) -> Found:
    """The bound after every iteration, with CPU seconds; at most ``cap`` of them."""
    begin = time.process_time()
    clock: list[float] = []

    def note(_: Any) -> bool:
        clock.append(time.process_time() - begin)
        return clock[-1] < cap

    result = run(note)
    bound = np.asarray(result.history.bound)
    clock += [time.process_time() - begin] * (len(bound) - len(clock))  # the last one ends without a call
    even = np.linspace(0, len(bound) - 1, min(KEPT, len(bound))).astype(int)  # however many the time allows
    kept = np.union1d(np.arange(min(FIRST, len(bound))), even)
    return {"seconds": np.round(np.array(clock)[kept], 4), "bound": bound[kept], "iterations": len(bound) - 1,
            "status": result.status.name.lower()}


def figure(title: str, *chosen: TracePanel) -> Experiment:
    """A job for every panel and rule, and a row of seconds to arrive for every panel."""
    def plan(library: Library, size: Size) -> list[Job]:
        cap = {"full": 15.0, "quick": 2.0, "tiny": 0.1}[size]
        whole = {"full": None, "quick": 4000, "tiny": 60}[size]

        @lru_cache(maxsize=1)  # rules of a panel follow each other
        def ready(panel: TracePanel) -> Setting:
            return setting(library, panel, whole if panel.prior_variance is not None or panel.inducing else
                           {"full": 500, "quick": 300, "tiny": 60}[size])

        def job(panel: TracePanel, name: str) -> Job:
            return Job(f"{panel.name}/{name}", lambda _: traced(rule(name, ready(panel)), cap))

        return [job(panel, name) for panel in chosen for name in LINES]

    def tables(results: Results) -> list[PaperTable]:
        parts, best = by_parts(results), bests(results)
        lines = tuple((panel, *(arrival(parts[panel, name], top) for name in LINES)) for panel, top in best.items())
        return [PaperTable(f"{title}: CPU seconds to stay within {CLOSE:g} nats of the best bound",
                           ("likelihood, data", *LINES), lines)]

    return Experiment(plan, tables, draw)


def bests(results: Results) -> dict[str, float]:
    """The best bound of every panel."""
    best: dict[str, float] = {}
    for (panel, _), found in by_parts(results).items():
        top = max((value for value in found["bound"] if value is not None), default=-np.inf)
        best[panel] = max(top, best.get(panel, -np.inf))
    return best


def arrival(trace: Found, best: float) -> str:
    """CPU seconds until the bound stays close to the best one."""
    away = [place for place, value in enumerate(trace["bound"]) if value is None or value < best - CLOSE]
    if away and away[-1] == len(trace["bound"]) - 1:
        if trace["status"] == "converged":
            return f"{best - trace['bound'][-1]:.1g} low"
        return _end(trace)
    return f"{trace['seconds'][away[-1] + 1 if away else 0]:.2g}"


def draw(results: Results, path: Path) -> None:
    """Distance to the best bound against CPU seconds, a panel for every data set."""
    parts, best = by_parts(results), bests(results)
    columns = 3 if len(best) > 4 else 2
    lines = -(-len(best) // columns)
    with panels(path, lines, columns, (4.2 * columns, 3.4 * lines + 0.3), sharey=True) as (figure, axes):
        for index, (ax, (panel, top)) in enumerate(zip(axes.flat, best.items(), strict=False)):
            for name, (colour, marker) in LINES.items():
                trace = parts[panel, name]
                gap = np.clip(top - np.array(trace["bound"], dtype=float), FLOOR, ROOF)
                gap[1:][(gap[1:] == ROOF) & (gap[:-1] == ROOF)] = np.nan  # a line that leaves the picture ends there
                ax.plot(np.maximum(trace["seconds"], 1e-3), gap, color=colour, marker=marker, ms=3.5, lw=1.4,
                        label=name)
            letter(ax, index, panel)
            ax.set(xscale="log", yscale="log", ylim=(FLOOR / 2, 1e3 * ROOF))
            ax.xaxis.set_minor_formatter("")
            ax.grid(alpha=0.25)
            ended = [f"{name}: {_end(parts[panel, name])}" for name in LINES if _end(parts[panel, name])]
            ax.text(0.98, 0.97, "\n".join(ended), transform=ax.transAxes, ha="right", va="top", fontsize=8.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5})
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LINES))
        for ax in axes[:, 0]:
            ax.set_ylabel("nats below the best bound")
        for ax in axes[-1]:
            ax.set_xlabel("CPU seconds")


def _end(trace: Found) -> str:
    """How a trace ended, if not at the optimum."""
    status = str(trace["status"])
    return "" if status == "converged" else ENDS.get(status, status.replace("_", " "))


FIGURE2 = figure(
    "[S] Figure 2, GLMs", TracePanel("a9a", "logistic", 0.1), TracePanel("abalone", "Poisson", 0.1),
    TracePanel("space_ga", "Laplace", 0.1), TracePanel("german", "logistic", 0.1),
    TracePanel("flares", "Poisson", 0.001), TracePanel("boston", "Laplace", 0.1))
FIGURE3 = figure(
    "[S] Figure 3, processes", TracePanel("german", "logistic"), TracePanel("flares", "Poisson"),
    TracePanel("boston", "Laplace"), TracePanel("ionosphere", "logistic"), TracePanel("abalone", "Poisson"),
    TracePanel("stock", "Laplace"))
FIGURE4 = figure("[S] Figure 4, 100 inducing points", TracePanel("stock", "Laplace", inducing=True),
                 TracePanel("space_ga", "Laplace", inducing=True))
FIGURE5 = figure("[S] Figure 5, Student-t noise", TracePanel("boston", "Student-t"), TracePanel("stock", "Student-t"))


def slope_sign(site: sites.Site, y: Array, m: Array, v: Array) -> Array:
    """The sign of d gamma / dv, 0 where it is flat."""
    h = DIFFERENCE * v
    ahead, behind = (site.expect(y, m, v + sign * h).gamma for sign in (1.0, -1.0))
    level = np.maximum(np.abs(ahead) + np.abs(behind), 1e-12)
    return np.asarray(np.sign(np.where(np.abs(ahead - behind) > FLAT * level, ahead - behind, 0.0)))


def sign_map(site: sites.Site, y: float, reach: float, top: float) -> Array:
    """The sign on a grid of |m| up to ``reach`` and v up to ``top``, rows of one v each."""
    m, v = np.meshgrid(np.linspace(-reach, reach, POINTS), top * np.arange(1, POINTS + 1) / POINTS)
    return slope_sign(site, np.full(m.size, y), m.ravel(), v.ravel()).reshape(m.shape)


def one_step(library: Library, model: str, rows: int, _: Results) -> Found:
    """(m, v) of every datum after one step from m = 0 and V = I: the state that the second update sees."""
    this = setting(library, TracePanel(NAME, "logistic", 0.1 if model == "GLM" else None), rows)
    site, y, posterior = this.site, this.y, this.after_one_step()
    m = posterior.m * y  # as if every label were +1: gamma is even in m, so the map is the same
    signs = slope_sign(site, np.ones(len(y)), m, posterior.v)
    return {"m": m.round(4), "v": posterior.v.round(4), "growing": int((signs > 0).sum()),
            "falling": int((signs < 0).sum())}


def sign_tables(results: Results) -> list[PaperTable]:
    """How many data lie where gamma grows."""
    rows = []
    for model, paper in (("GLM", "some grow, some fall"), ("GP", "all on one side (2b)")):
        found = results[model]
        total = len(found["m"])
        rows.append((model, str(total), f"{found['growing'] / total:.1%}", f"{found['falling'] / total:.1%}", paper))
    heads = ("logistic model", "data", "gamma grows with v", "gamma falls with v", "paper")
    return [PaperTable("[S] Figure 1: the data after one step", heads, tuple(rows))]


def draw_signs(results: Results, path: Path) -> None:
    """Three panels as in the paper, and three more likelihoods below."""
    from matplotlib.colors import ListedColormap
    colours = ListedColormap(["#bcd7ea", "#ffffff", "#f6d9a8"])  # falling, flat, growing
    with panels(path, 2, 3, (12.0, 7.2)) as (_, axes):
        places = zip(["logistic", "logistic", *MAPS], [None, "GLM", "GP", None, None, None], strict=True)
        for index, (ax, (name, model)) in enumerate(zip(axes.flat, places, strict=True)):
            site, y, reach, top = MAPS[name]
            if model is not None:
                m, v = np.array(results[model]["m"]), np.array(results[model]["v"])
                reach, top = 1.15 * max(float(np.abs(m).max()), 0.5), 1.15 * float(v.max())
                ax.plot(m, v, ".", ms=3, color=INK, alpha=0.6)
            ax.imshow(sign_map(site, y, reach, top), origin="lower", extent=(-reach, reach, 0.0, top),
                      aspect="auto", cmap=colours, vmin=-1, vmax=1, interpolation="nearest", rasterized=True)
            letter(ax, index, name if model is None else f"logistic, data of a {model} after one step")
        for ax in axes[-1]:
            ax.set_xlabel("mean m")
        for ax in axes[:, 0]:
            ax.set_ylabel("variance v")
        axes[0, 0].plot([], [], "s", color="#f6d9a8", mec=ORANGE, label="gamma grows with v")
        axes[0, 0].plot([], [], "s", color="#bcd7ea", mec=BLUE, label="gamma falls with v")
        axes[0, 0].legend(loc="upper center")


SCATTERED = {"full": 1000, "quick": 500, "tiny": 40}  # data of the two scatters; the maps behind them need none
FIGURE1 = Experiment(lambda library, size: [Job(model, partial(one_step, library, model, SCATTERED[size]))
                                            for model in ("GLM", "GP")], sign_tables, draw_signs)
