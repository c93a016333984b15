"""How good is the verdict? Random log-concave problems (false alarms), planted bad fits (misses), and what it costs.

    python -m benchmarks.trust alarms [500]     verdicts over random log-concave problems
    python -m benchmarks.trust planted          verdicts over fits that are bad on purpose
    python -m benchmarks.trust cost             what a default report adds to a fit (a9a needs KLIMB_DATA)
    python -m benchmarks.trust prints FOLDER [NAME ...]    what verdict, leave-one-out, checks and print add to a fit
                                                (FOLDER has the data of structured models)
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from klimb.latents.costs import Shape
from klimb.likelihoods import from_site
from klimb.models.model import Functionals, Model
from klimb.priors import PositivePrior
from klimb.theta import PositiveParameter, Theta

SITES = ("logistic", "probit", "poisson", "binomial", "laplace", "exponential", "gaussian", "negative binomial")


def draw_response(name: str, f: np.ndarray, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """A log-concave site and data that it would give for these latent values."""
    from scipy.special import expit, ndtr

    if name == "logistic":
        return klimb.sites.Logistic(), rng.random(len(f)) < expit(f)
    if name == "probit":
        return klimb.sites.Probit(), rng.random(len(f)) < ndtr(f)
    if name == "poisson":
        return klimb.sites.Poisson(), rng.poisson(np.exp(np.clip(f, -6, 6)))
    if name == "binomial":
        return klimb.sites.Binomial(trials=8), rng.binomial(8, expit(f))
    if name == "laplace":
        return klimb.sites.Laplace(scale=0.5), f + rng.laplace(0.0, 0.5, len(f))
    if name == "exponential":
        return klimb.sites.Exponential(), rng.exponential(np.exp(-np.clip(f, -6, 6)))
    if name == "negative binomial":
        mean = np.exp(np.clip(f, -6, 6))
        return klimb.sites.NegativeBinomial(size=2.0), rng.negative_binomial(2.0, 2.0 / (2.0 + mean))
    return klimb.sites.Gaussian(0.5), f + 0.5 * rng.standard_normal(len(f))


def random_problem(seed: int) -> tuple[str, Any, Any, np.ndarray]:
    """A regression or a Gaussian process with a log-concave likelihood, data drawn from the model itself."""
    rng = np.random.default_rng([2024, seed])
    name = SITES[seed % len(SITES)]
    n = int(rng.integers(15, 150))
    if rng.random() < 0.6:
        d = int(rng.integers(1, 9))
        sd = float(np.exp(rng.uniform(np.log(0.3), np.log(2.0))))
        X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
        latent: Any = klimb.latents.Weights(X, cov=sd**2)
        f = X @ (sd * rng.standard_normal(d))
        label = f"weights {d}"
    else:
        x = np.sort(rng.uniform(0, 5, n))
        variance, lengthscale = float(np.exp(rng.uniform(-1, 1.4))), float(np.exp(rng.uniform(-1.2, 0.7)))
        K = variance * np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2) + 1e-6 * np.eye(n)
        latent = klimb.latents.Kernel(K)
        f = np.linalg.cholesky(K) @ rng.standard_normal(n)
        label = f"gp {n}"
    site, y = draw_response(name, f, rng)
    return f"{name} {label}", latent, site, y


def planted_problems() -> Iterator[tuple[str, Any, Any, np.ndarray]]:
    """Fits that no Gaussian can do justice to."""
    for seed in range(8):  # two groups of data that contradict each other under heavy tails
        rng = np.random.default_rng([7, seed])
        n, gap = int(rng.integers(6, 20)), float(rng.uniform(4.0, 12.0))
        noise = 0.3 * rng.standard_normal(n)
        y = np.concatenate([noise, gap + noise])
        yield (f"bimodal Student-t, gap {gap:.1f}", klimb.latents.Weights(np.ones((2 * n, 1)), cov=100.0),
               klimb.sites.StudentT(df=2.0, scale=0.3), y)
    for seed in range(4):  # the same in a regression: two slopes
        rng = np.random.default_rng([8, seed])
        x, noise = np.tile(rng.standard_normal(20), 2), np.tile(0.1 * rng.standard_normal(20), 2)
        X = np.column_stack([np.ones(40), x])
        y = np.repeat([1.0, -1.0], 20) * (rng.uniform(2.0, 4.0) * x + noise)
        yield "bimodal regression", klimb.latents.Weights(X, cov=25.0), klimb.sites.StudentT(df=2.0, scale=0.1), y
    for seed in range(8):  # labels that a plane separates, nothing but a nearly flat prior to hold the weights
        rng = np.random.default_rng([9, seed])
        d = int(rng.integers(2, 6))
        X = np.column_stack([np.ones(30), rng.standard_normal((30, d - 1))])
        y = X @ rng.standard_normal(d) > 0
        sd = float(10.0 ** rng.uniform(2.0, 4.0))
        yield f"separable, prior sd {sd:.0f}", klimb.latents.Weights(X, cov=sd**2), klimb.sites.Logistic(), y
    for seed in range(4):  # labels of one class only
        rng = np.random.default_rng([10, seed])
        sd = float(10.0 ** rng.uniform(2.0, 4.0))
        yield (f"one class, prior sd {sd:.0f}", klimb.latents.Weights(np.ones((12, 1)), cov=sd**2),
               klimb.sites.Logistic(), np.ones(12))


@dataclass(frozen=True)
class HalfCauchy(PositivePrior):
    """Of a scale that may be near zero or large."""

    scale: float

    def __str__(self) -> str:
        return f"half_cauchy({self.scale:g})"

    def log_density(self, value: float) -> float:
        return float(np.log(2.0 / (np.pi * self.scale)) - np.log1p((value / self.scale) ** 2))

    def slope(self, value: float) -> float:
        r = (value / self.scale) ** 2
        return -2.0 * r / (1.0 + r)

    def typical(self) -> float:
        return self.scale


@dataclass(frozen=True, eq=False)
class Groups(Model):
    """Group means around a common one, y_j ~ N(mu + w_j, noise), w_j ~ N(0, scale^2), with the scale to be found.

    Jointly over (w, log scale) the posterior is a funnel: the smaller the scale, the narrower the w.
    """

    noise: np.ndarray
    at: np.ndarray = field(default_factory=lambda: np.zeros(1))
    theta: Theta = field(default_factory=lambda: Theta.of([PositiveParameter("scale", HalfCauchy(5.0), least=1e-3)]))
    mean_sd: float = 5.0

    @property
    def likelihood(self) -> Any:
        return from_site(klimb.sites.Gaussian(self.noise))

    @property
    def scale(self) -> float:
        return float(np.exp(self.at[0]))

    @property
    def columns(self) -> np.ndarray:
        n = len(self.noise)
        return np.column_stack([np.ones(n), np.eye(n)])

    def _moved(self, at: Any) -> Groups:
        return replace(self, at=at)

    @property
    def latent(self) -> Any:
        variances = np.append(self.mean_sd**2, np.full(len(self.noise), self.scale**2))
        return klimb.latents.Weights(self.columns, cov=variances, form="primal")

    def prior_gradient(self, posterior: Any) -> np.ndarray:
        """Of -KL: sum_j E w_j^2 / scale^2 - 1 per unit of log scale."""
        second = posterior.mean[1:] ** 2 + np.diag(posterior.covariance())[1:]
        return np.array([float((second / self.scale**2 - 1.0).sum())])

    def prepare(self, new: Any) -> np.ndarray:
        return self.columns if new is None else np.asarray(new, dtype=float)

    def functionals(self, prepared: np.ndarray) -> Functionals:
        return Functionals(prepared, np.zeros(len(prepared)), np.zeros(len(prepared)))

    def shape(self) -> Shape:
        n, width = self.columns.shape
        return Shape(n, width, n * width)


EIGHT_SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def planted_funnels() -> Iterator[tuple[str, Groups, np.ndarray]]:
    """Hierarchies whose scale the data hardly know."""
    y, noise = EIGHT_SCHOOLS
    yield "eight schools", Groups(noise), y
    for seed in range(7):
        rng = np.random.default_rng([12, seed])
        n = int(rng.integers(4, 10))
        noise = np.exp(rng.uniform(np.log(3.0), np.log(15.0), n))
        yield f"{n} groups, true scale {noise.mean() / 4:.1f}", Groups(noise), noise / 4 * rng.standard_normal(n) + (
            noise * rng.standard_normal(n))


def alarms(n: int) -> None:
    counts: Counter[str] = Counter()
    seconds = [0.0, 0.0]
    for seed in range(n):
        label, latent, site, y = random_problem(seed)
        begin = time.process_time()
        result = klimb.infer(latent, site, y)
        middle = time.process_time()
        report = result.trust
        seconds[0] += middle - begin
        seconds[1] += time.process_time() - middle
        counts[report.verdict] += 1
        if report.verdict == "doubt":
            print(f"{seed:4d} {label:28s} {report.advice}")
    print(dict(counts), f"fits {seconds[0]:.1f} s, reports {seconds[1]:.1f} s")


def planted() -> None:
    for label, latent, site, y in planted_problems():
        report = klimb.infer(latent, site, y).trust
        print(f"{label:36s} {report.verdict:10s} {report.number:6.2f} {report.measures:30s} k-hat {report.khat:.2f} "
              f"effective {report.efficiency:.2f}")
    for label, model, y in planted_funnels():
        found = klimb.trust(model.fit(y))
        print(f"{label:36s} {found.verdict:10s} {found.number:6.2f} {found.measures}")


def cost() -> None:
    rng = np.random.default_rng(0)
    problems: list[tuple[str, Any, Any, np.ndarray]] = []
    path = Path(os.environ.get("KLIMB_DATA", "")) / "a9a.npz"
    if path.is_file():
        from scipy.sparse import csr_matrix

        with np.load(path) as stored:
            X = csr_matrix((stored["data"].astype(float), stored["indices"], stored["indptr"]),
                           shape=tuple(stored["shape"]))
            y = stored["y"]
        problems.append(("a9a, logistic", klimb.latents.Weights(X, cov=1.0), klimb.sites.Logistic(), y))
    for lengthscale in (0.1, 1.0):
        x = np.sort(rng.uniform(0, 10, 1000))
        K = 2.0 * np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2) + 1e-6 * np.eye(1000)
        f = np.linalg.cholesky(K) @ rng.standard_normal(1000)
        for name in ("logistic", "poisson"):
            site, y = draw_response(name, f, rng)
            problems.append((f"GP n = 1000, {name}, lengthscale {lengthscale}", klimb.latents.Kernel(K), site, y))
    for label, latent, site, y in problems:
        ratios, fits = [], []
        for _ in range(7):
            begin = time.process_time()
            result = klimb.infer(latent, site, y)
            middle = time.process_time()
            report = result.trust
            ratios.append((time.process_time() - middle) / (middle - begin))
            fits.append(middle - begin)
        print(f"{label:42s} fit {np.median(fits):.3f} s, report +{np.median(ratios):.0%}, {report.n_draws} draws, "
              f"verdict {report.verdict}")


def printed_fits(folder: Path) -> Iterator[tuple[str, Any]]:
    """Calls that fit a model, by name."""
    from benchmarks.inducing import problem
    from benchmarks.structured import MODELS, table

    rng = np.random.default_rng(1)
    yield "grouseticks", partial(klimb.fit, "TICKS ~ YEAR + cHEIGHT + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)",
                                 table(folder, "grouseticks"), "poisson")
    for name in ("cbpp", "verbagg", "sleepstudy", "penicillin", "scotland"):
        model = MODELS[name]
        graphs = {} if model.graph is None else {"G": table(folder, model.graph)}
        yield name, partial(klimb.fit, model.formula, model.data(folder), model.family, priors=model.priors,
                            graphs=graphs)
    yield "mcycle s(times)", partial(klimb.fit, "accel ~ s(times)", table(folder, "mcycle"))
    for n, family in ((400, "bernoulli"), (100_000, "bernoulli"), (2_000, "poisson")):
        X = rng.standard_normal((n, 5))
        _, y = draw_response("logistic" if family == "bernoulli" else "poisson", 0.4 * X.sum(axis=1), rng)
        frame = {**{f"x{j}": column for j, column in enumerate(X.T)}, "y": y.astype(float)}
        yield f"{family} {n} x 5", partial(klimb.fit, "y ~ x0 + x1 + x2 + x3 + x4", frame, family)
    x = np.sort(rng.uniform(0.0, 10.0, 300))
    _, y = draw_response("logistic", 2.0 * np.sin(x), rng)
    yield "Gaussian process, n = 300", partial(klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Logistic()).fit, y)
    for n in (10_000, 100_000):
        data = problem(n)
        process = klimb.gp(klimb.kernels.RBF(variance=9.0, lengthscale=1.5), data.X, klimb.sites.Logistic(),
                           inducing=data.Z)
        yield f"inducing points, N = {n}", partial(process.fit, data.y, hyper="fixed")


def prints(folder: Path, names: list[str]) -> None:
    """CPU seconds: medians of three fits, of one where it takes a second."""
    print(f"{'':26s}{'fit':>8s}{'trust':>8s}{'loo':>8s}{'checks':>8s}{'rest':>8s}  trust/fit  all/fit")
    for name, make in printed_fits(folder):
        if names and not any(own in name for own in names):
            continue
        found = []
        while len(found) < 3 and sum(own[0] for own in found) < 2.0:
            marks = [time.process_time()]
            fit = make()
            for part in ("", "trust", "data_loo", "checks", "__str__"):
                answer = getattr(fit, part) if part else None
                if part == "__str__":
                    answer()
                marks.append(time.process_time())
            found.append(np.diff(marks))
        middle = np.median(found, axis=0)
        print(f"{name:26s}" + "".join(f"{own:8.4f}" for own in middle) + f"{middle[1] / middle[0]:9.0%}"
              f"{middle[1:].sum() / middle[0]:9.0%}  {fit.trust.verdict}, {fit.loo().elpd:.3f}, {fit.checks.verdict}",
              flush=True)


def main(arguments: list[str]) -> None:
    what = arguments[0] if arguments else "planted"
    if what == "alarms":
        alarms(int(arguments[1]) if len(arguments) > 1 else 500)
    elif what == "cost":
        cost()
    elif what == "prints":
        prints(Path(arguments[1]), arguments[2:])
    else:
        planted()


if __name__ == "__main__":
    main(sys.argv[1:])
