"""What a user adds from outside: one kernel, one likelihood, one term, one latent, a page each, at work everywhere.

Nothing of the package is touched: each is registered, used in every place that should know it, and taken out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.registries import as_before

import klimb
from klimb import sites
from klimb._stored import stored
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.kernels import KERNELS
from klimb.kernels.stationary import Stationary
from klimb.latents import LATENTS
from klimb.latents.base import Factor, Latent
from klimb.latents.costs import Option
from klimb.likelihoods import Likelihood, SiteParameter
from klimb.likelihoods import register as register_likelihood
from klimb.priors import Exponential
from klimb.terms import Dense
from klimb.terms import register as register_term
from klimb.terms.base import OneScale

# -- a kernel: a function of r^2, the squared distance in lengthscales, and how steep it is


@final
@dataclass(frozen=True, repr=False)
class Cauchy(Stationary):
    """variance / (1 + r^2)."""

    def _profile(self, r2):
        return 1.0 / (1.0 + r2)

    def _slope(self, r2, value):
        return -(value**2)


# -- a likelihood: a site with a parameter that is estimated


@final
@dataclass(frozen=True, eq=False)
class Doubled(Likelihood):
    """Measurements whose noise is Laplace around f, with its own name for the scale."""

    name, aliases, about, response = "doubled", ("twice",), "measurements with Laplace noise", "real"
    links: ClassVar = {"identity": sites.Laplace}
    site_parameters = (SiteParameter("spread", "scale", Exponential, scaled=True),)


# -- a term: waves of a known period, one variance for all


@final
@dataclass(frozen=True, eq=False)
class Season(OneScale):
    """season(x, period): waves of the period and its harmonics."""

    kind = "season"
    functions = (Function("season", "special", (Parameter("x", "numeric"), Parameter("period", "number")),
                          "waves of a known period"),)
    name: str
    expression: Numeric
    period: float
    waves: int = 2
    parameters: tuple[Any, ...] = field(default=())

    @classmethod
    def learn(cls, call, source, text, factors):
        arguments = bind(call, text)
        return (cls(f"season({arguments['x']})", learn_numeric(arguments["x"], source), arguments["period"]),)

    @property
    def size(self):
        return 2 * self.waves

    def block(self, source):
        angle = 2 * np.pi * self.expression.evaluate(source)[:, None] * np.arange(1, self.waves + 1) / self.period
        return Dense(np.hstack([np.cos(angle), np.sin(angle)]))

    def ready(self, block, context):
        scale = context.units.spread
        return replace(self, parameters=(context.choices.positive(f"sd({self.name})", Exponential(scale), scale,
                                                                  begin=0.5 * scale, kind="smooth"),))


# -- a latent: a linear model by the dense formulas over all data, for a few of them


@final
class GramFactor(Factor):
    def __init__(self, K, gamma):
        self.gamma = gamma
        B = np.eye(len(K)) + K * gamma
        self.logdet = np.linalg.slogdet(B)[1]
        self.V = np.linalg.solve(B, K)

    def variances(self):
        return np.diag(self.V)

    def smooth(self, b):
        return self.V @ b

    def covariance(self):
        return self.V


@final
class Gram(Latent):
    """f = X w, w ~ N(mean, S), with nothing but N x N matrices."""

    reports = "weight"

    def __init__(self, X, mean, S, slack):
        self.X, self.w, self.S, self.K = X, mean, S, X @ S @ X.T
        self.n_sites, self.n_weights = X.shape
        self.dense_size, self.mean, self.slack = len(X), X @ mean, slack

    @classmethod
    def costs(cls, shape):
        return Option("gram", 1.0, 1e-9, 8.0 * shape.n_sites**2, True) if shape.linear and shape.n_sites < 60 else None

    @classmethod
    def of_parts(cls, parts, kept):
        X, mean, S = parts.dense()
        return cls(X, mean, np.diag(S) if S.ndim == 1 else S, parts.slack)

    @property
    def prior_variances(self):
        return np.diag(self.K)

    def mvm(self, a):
        return self.K @ a

    def factor(self, gamma):
        return GramFactor(self.K, gamma)

    def design(self):
        return self.X @ np.linalg.cholesky(self.S + 1e-12 * np.eye(len(self.S)))

    def weight_mean(self, posterior):
        return self.w + self.S @ self.X.T @ posterior.a

    def weight_covariance(self, posterior):
        cross = self.S @ self.X.T
        G = posterior.gamma[:, None]
        return self.S - cross @ np.linalg.solve(np.eye(self.n_sites) + G * self.K, G * cross.T)

    def draw(self, rng):
        w = rng.multivariate_normal(self.w, self.S)
        return w, self.X @ w


@pytest.fixture
def registered() -> Iterator[None]:
    """Each of the four is known for the length of a test."""
    with as_before():
        KERNELS["Cauchy"] = stored("kernel.Cauchy")(Cauchy)
        register_likelihood(Doubled)
        register_term(stored("term.season")(Season))
        LATENTS["Gram"] = Gram
        yield


@pytest.fixture(name="data")
def _data() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    t, x = np.sort(rng.uniform(0.0, 24.0, 150)), rng.standard_normal(150)
    g = rng.integers(0, 5, 150)
    y = 1.0 + 0.5 * x + np.sin(2 * np.pi * t / 12.0) + 0.3 * g + 0.3 * rng.laplace(size=150)
    return {"t": t, "x": x, "g": [f"g{k}" for k in g], "y": y}


@pytest.mark.usefixtures("registered")
class TestExtensions:
    def test_a_formula_with_all_of_them(self, data: dict[str, Any], tmp_path: Path) -> None:
        fit = klimb.fit("y ~ x + season(t, period=12) + gp(t, kernel=cauchy, points=12) + (1 | g)", data, "doubled")
        assert fit.converged
        names = list(fit.summary()["name"])
        assert {"x", "sd(season(t))", "lengthscale(gp(t))", "spread", "sd(g)"} <= set(names)
        assert "spread" in str(fit)
        assert fit.predict({"t": [30.0], "x": [0.0], "g": ["new"]})["sd"][0] > 0
        assert fit.sample(3, data).shape == (3, 150)
        assert fit.trust.verdict in ("trust", "corrected", "doubt")
        fit.save(tmp_path / "m.klimb")
        again = klimb.load(tmp_path / "m.klimb")
        assert_array_equal(again.predict(data)["mean"], fit.predict(data)["mean"])
        fit.to_html(tmp_path / "m.html")
        assert "season(t)" in (tmp_path / "m.html").read_text(encoding="utf-8")

    def test_the_term_is_right(self, data: dict[str, Any]) -> None:
        """Its own bound, by the engine with the same columns and variances."""
        fit = klimb.fit("y ~ x + season(t, period=12)", data, priors={"sd(season(t))": 0.7, "sigma": 0.5})
        model = fit.model
        mean, cov = model.prior_moments()
        by_hand = klimb.infer(klimb.latents.Weights(model.rows.X, mean, cov), sites.Gaussian(0.5), data["y"])
        assert fit.bound == pytest.approx(by_hand.bound, abs=1e-8)

    def test_the_likelihood_is_the_one_it_is_made_of(self, data: dict[str, Any]) -> None:
        mine = klimb.fit("y ~ x", data, "doubled")
        theirs = klimb.fit("y ~ x", data, "laplace")
        assert mine.bound == pytest.approx(theirs.bound, abs=1e-9)
        assert klimb.gp(Cauchy(), data["t"], "twice").fit(data["y"]).converged

    def test_the_plan_takes_the_latent_by_its_cost(self, data: dict[str, Any]) -> None:
        few = {name: values[:50] for name, values in data.items()}
        fit = klimb.fit("y ~ x + (1 | g)", few)
        assert fit.model.form == "Gram"
        assert "* Gram" in fit.explain()
        sds, predicted = fit.coefficients["sd"], fit.predict(few)["mean"]
        del LATENTS["Gram"]
        usual = klimb.fit("y ~ x + (1 | g)", few)
        assert fit.bound == pytest.approx(usual.bound, abs=1e-6)
        assert_allclose(sds, usual.coefficients["sd"], rtol=1e-5)
        assert_allclose(predicted, usual.predict(few)["mean"], atol=1e-5)

    def test_the_latent_in_the_engine(self, data: dict[str, Any]) -> None:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((30, 3))
        latent = Gram(X, np.zeros(3), np.eye(3), np.zeros(30))
        y = rng.poisson(np.exp(X @ [0.3, -0.2, 0.1]))
        result = klimb.infer(latent, sites.Poisson(), y)
        usual = klimb.infer(klimb.latents.Weights(X), sites.Poisson(), y)
        assert result.bound == pytest.approx(usual.bound, abs=1e-8)
        assert result.trust.verdict == usual.trust.verdict
        assert klimb.methods.mean_field(latent, sites.Poisson(), y).converged
        assert klimb.calibrate(latent, sites.Poisson(), n=5).n == 5
