"""Programs in Stan say klimb's joint density, for every family, term and prior, and hold nothing of the user's text."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.stats import multivariate_normal, norm
from tests.contracts.test_terms import DATA as FIELD_DATA
from tests.contracts.test_terms import GRAPHS, MATRICES, written

import klimb
from klimb.errors import InputError
from klimb.likelihoods import LIKELIHOODS
from klimb.terms import TERMS
from klimb.terms.field import Field

RNG = np.random.default_rng(8)
N = 50
DATA: dict[str, Any] = {"x": RNG.standard_normal(N), "z": RNG.uniform(0.0, 5.0, N), "g": RNG.choice(list("abcdef"), N),
                        "h": RNG.choice(list("uvw"), N), "often": RNG.integers(1, 4, N), "area": RNG.uniform(1, 2, N)}
RESPONSES: dict[str, Any] = {
    "real": RNG.normal(2.0, 3.0, N), "binary": RNG.integers(0, 2, N), "counts": RNG.poisson(3.0, N),
    "positive": RNG.gamma(2.0, 1.0, N), "nonnegative": RNG.exponential(2.0, N), "unit": RNG.beta(2.0, 3.0, N),
    "ordered": RNG.integers(0, 4, N), "classes": RNG.choice(["p", "q", "r"], N),
}
TRIALS = {"s": RNG.integers(0, 5, N), "t": RNG.integers(5, 9, N)}


def fitted(right: str, family: Any, link: str | None = None, **options: Any) -> Any:
    """A model of random data, at the hyperparameters where a search starts: only its joint density counts."""
    kind = LIKELIHOODS[family.partition("(")[0] if isinstance(family, str) else family["name"]].response
    left = "p(s, t)" if kind == "trials" else "y"
    data = {**DATA, **(TRIALS if kind == "trials" else {"y": RESPONSES[kind]})}
    return klimb.fit(f"{left} ~ {right}", data, family, link=link, hyper="fixed", **options)


def joint(fit: Any, theta: Any, w: Any) -> float:
    """klimb's log p(y, w, theta), per unit of theta, of its own parts."""
    model = fit.linear.moved(theta)
    fields = len(model.likelihood.fields)
    rows = model.prepare(None)
    by_field = w.reshape(fields, -1)
    f = np.zeros((fields, rows.n))
    total = model.log_prior()[0]
    for number in range(fields):
        parts = zip(model.terms, rows.blocks, model.places, model.values, model.priors(number), strict=True)
        for term, block, place, values, prior in parts:
            if prior is None:
                continue
            own = by_field[number, place]
            f[number] += (block.dense() if hasattr(block, "codes") else block.values) @ own
            density = term.density(values)
            if density is not None:
                total += density.log_density(np.zeros(term.size), own).sum()
            elif prior.precision is not None:  # per unit of the weights that the constraints leave
                held = term.constraints()
                rank = term.size - (0 if held is None else len(held))
                total += 0.5 * (prior.logdet - rank * np.log(2.0 * np.pi) - own @ (prior.precision @ own))
            elif prior.root is None:
                total += norm.logpdf(own, prior.mean, np.sqrt(prior.variances)).sum()
            else:
                k = len(prior.root)
                total += multivariate_normal(np.zeros(k), prior.root @ prior.root.T).logpdf(own.reshape(-1, k)).sum()
    return float(total + model.site(fit.data).log_density(fit.data.y, f.ravel()).sum())


def volume(program: Any, theta: Any) -> float:
    """log |dw / dz| of terms whose parameters are in units of their prior's root, or of what rows and prior say."""
    here, total = program.model.moved(theta), 0.0
    for block, _ in program.blocks:  # Stan has logits, of which theta is the asinh
        own = theta[program.model.theta.slice_of(block)]
        logits = block.unconstrained(own)
        total -= 0.5 * float(np.log1p(logits[logits != own] ** 2).sum())
    for found in program.terms:
        if found.centred:
            continue
        if found.told is not None:
            root = here.values[found.number][0]
            inside = np.linalg.inv(root @ root.T) + found.told.precision
            total -= 0.5 * float(np.linalg.slogdet(inside)[1].sum())
            continue
        if isinstance(found.term, Field):
            total -= 0.5 * len(program.model.likelihood.fields) * found.term.prior(here.values[found.number]).logdet
            continue
        root = np.atleast_2d(here.values[found.number][0])
        copies = found.term.size // len(root) * len(program.model.likelihood.fields)
        total += copies * float(np.log(np.diagonal(root)).sum())
    return total


def inside(fit: Any, w: Any) -> Any:
    """Independent weights; those of fields are made a draw of their prior, which keeps their constraints."""
    by_class = w.reshape(len(fit.model.likelihood.fields), -1)
    for term, place, values in zip(fit.linear.terms, fit.linear.places, fit.linear.values, strict=True):
        if isinstance(term, Field):
            held, Q = term.constraints(), term.prior(values).precision.toarray()
            U = np.eye(term.size) if held is None else null_space(held)
            lower = np.linalg.cholesky(U.T @ Q @ U)
            drawn = by_class[:, place][:, : U.shape[1]] @ np.linalg.inv(lower) @ U.T
            by_class[:, place] = drawn / max(1.0, np.abs(drawn).max())  # some weights have a flat prior
    return by_class.ravel()


def check(fit: Any) -> Any:
    """The program's density is the joint at random points, and what it reads and reports is what klimb does."""
    stanli = pytest.importorskip("stanli", reason="log densities of Stan programs are evaluated by stanli")
    for centred in (True, False, None):
        program = fit.to_stan(centred=centred)
        sampler = stanli.Model(stan_code=program.code, data=program.data_json())
        bridge = stanli.bridgestan_model(stan_code=program.code, data=program.data_json()) if find_spec(
            "bridgestan") else None
        rng = np.random.default_rng(3)
        for _ in range(4):
            theta = fit.model.theta.start + 0.3 * rng.standard_normal(fit.model.theta.size)
            w = inside(fit, 0.3 * rng.standard_normal(fit.components.parts[0].size))
            named, at = program.point(theta, w)
            if bridge is not None:
                text = json.dumps({name: value.tolist() for name, value in named.items()})
                np.testing.assert_allclose(bridge.param_unconstrain_json(text), at, atol=1e-9)
            expected = joint(fit, theta, w) + volume(program, theta)
            assert abs(sampler.log_prob_grad(at)[0] - expected) < 1e-8
    return program


PAIRS = [(name, link) for name, kind in LIKELIHOODS.items() for link in kind.links]


@pytest.mark.parametrize(("name", "link"), PAIRS)
def test_every_likelihood(name: str, link: str) -> None:
    check(fitted("x + (1 | g)", name, link))


@pytest.mark.parametrize("name", [name for name, kind in LIKELIHOODS.items() if kind.censorable])
def test_censored_times(name: str) -> None:
    data = {**DATA, "y": 30.0 * RESPONSES["positive"], "seen": DATA["x"] < 0.8}
    fit = klimb.fit("Surv(y, seen) ~ x + offset(area) + (1 | g)", data, name, hyper="fixed", weights="often")
    code = check(fit).code
    assert "_lccdf" in code


def field_fit(right: str, family: str = "poisson", **options: Any) -> Any:
    return klimb.fit(f"y ~ {right}", FIELD_DATA, family, hyper="fixed", graphs=GRAPHS, matrices=MATRICES, **options)


@pytest.mark.parametrize("right", [
    "rw2(t)", "rw1(t, cyclic=True)", "rw2(t, cyclic=True)", "rw2(u)", "ar1(u)", "ar(t, p=3)", "besag(g, graph=H)",
    "bym2(g, graph=H)", "car(g, graph=H)", "spde(z)", "generic(g, Q=R)", "iid(g):ar(h, p=2)",
    "iid(g):spde(z, spacing=0.5)", "spde(z, spacing=0.5):iid(g)",
    "besag(g, graph=H):rw1(h)", "rw1(h):besag(g, graph=G)", "x + rw1(t) + bym2(g, graph=G) + (1 | h)"])
def test_every_kind_of_field(right: str) -> None:
    rough = np.eye(6) - 1.0 / 6.0
    uneven = {**FIELD_DATA, "u": np.round(2.0 * FIELD_DATA["z"]) ** 2 / 30.0}
    fit = klimb.fit(f"y ~ {right}", uneven, "poisson", hyper="fixed", matrices={"R": rough},
                    graphs={**GRAPHS, "H": [("a", "b"), ("b", "c"), ("d", "e")]})
    check(fit)


@pytest.mark.parametrize("right", ["rw1(t)", "ar1(t)", "ar1(h):car(g, graph=G)"])
def test_fields_of_several_classes(right: str) -> None:
    data = {**FIELD_DATA, "y": np.array(["p", "q", "r"])[np.minimum(FIELD_DATA["y"], 2)]}
    check(klimb.fit(f"y ~ {right}", data, "categorical", hyper="fixed", graphs=GRAPHS))


@pytest.mark.parametrize("kind", list(TERMS))
def test_every_term(kind: str) -> None:
    if issubclass(TERMS[kind], Field):
        check(field_fit(written(kind)))
        return
    fit = fitted(written(kind), "poisson")
    if kind == "gp":
        with pytest.raises(InputError, match="columns move with its lengthscale"):
            fit.to_stan()
        return
    check(fit)


PRIORS = {"Intercept": "normal(1, 4)", "x": "normal(0.5, 2)", "sd(g)": "half_normal(2)", "sigma": "gamma(2, 1)"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "row weights": ("x + (1 | g)", "poisson", {"weights": "often"}),
    "row weights by row": ("x", "bernoulli", {"weights": "often", "link": "cloglog"}),
    "offset and weights": ("x + offset(log(area))", "negative_binomial", {"weights": "often"}),
    "priors": ("x + (1 | g)", "gaussian", {"priors": PRIORS}),
    "log normal": ("x + (1 | g)", "gaussian", {"priors": {"sd(g)": "log_normal(1, 0.5)"}}),
    "held": ("x + (1 | g)", "student_t(df=4)", {"priors": {"sd(g)": 0.7, "scale": "exponential(2, power=0.5)"}}),
    "slopes": ("x + (1 + x + z | g)", "gaussian", {}),
    "independent slopes": ("x + (1 + x || g)", "poisson", {}),
    "slopes alone": ("x + (0 + x | g)", "poisson", {}),
    "one slope held": ("x + (1 + z | g)", "poisson", {"priors": {"sd(z | g)": 0.3}}),
    "both held": ("x + (1 + z || g)", "poisson", {"priors": {"sd(z | g)": 0.3, "sd(g)": 0.5}}),
    "crossed": ("x * h + (1 | g) + (1 | h) + (1 | g:h)", "bernoulli", {}),
    "curves": ("s(z, by=h) + ridge(x)", "poisson", {}),
    "cell means": ("0 + h + (1 | g)", "gaussian", {}),
    "no fixed columns": ("0 + (1 | g)", "poisson", {}),
    "heavy tails": ("sparse(x, z, prior=student_t)", "gaussian", {}),
    "cut points": ("x + h + ridge(z)", "ordinal", {"priors": {"cutpoints": "dirichlet(2)"}}),
    "cut points, probit": ("x", "ordinal", {"link": "probit", "priors": {"cutpoints": "dirichlet(1.5)"}}),
    "classes": ("x + (1 + z | g) + s(z)", "categorical", {}),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_what_models_are_made_of(name: str) -> None:
    right, family, options = MODELS[name]
    check(fitted(right, family, **options))


PRINTED = ({"sd(g)": "half_normal(2)"}, {"sd(g)": 0.4}, {"cor(g)": "lkj(3)", "sd(z | g)": 0.4})


@pytest.mark.parametrize("priors", PRINTED)
@pytest.mark.parametrize("slopes", ["z", "z + x", "z * x"])
def test_priors_on_what_is_printed(priors: dict[str, Any], slopes: str) -> None:
    check(fitted(f"x + (1 + {slopes} | g)", "poisson", priors=priors))


def test_an_sd_that_is_held_is_held_as_it_is_printed() -> None:
    check(fitted("x + (1 + z | g)", "poisson", priors={"sd(g)": 0.4}))


def test_refuses_in_words() -> None:
    data = {**DATA, "y": RESPONSES["real"]}
    own = klimb.fit("y ~ x", data, lambda y, f: -abs(y - f), hyper="fixed")
    with pytest.raises(InputError, match=r"likelihood that can be written in Stan(.|\n)*custom"):
        own.to_stan()


@pytest.mark.parametrize(("formula", "priors"), [
    ("x + (1 + z | g)", {"sd(g)": 0.4}), ("x + (x*z | g)", {"sd(x | g)": "half_normal(1)"}), ("0 + h + x", {})])
def test_groups_with_priors_as_printed_and_cells(formula: str, priors: dict[str, Any]) -> None:
    check(fitted(formula, "poisson", priors=priors))


def test_a_fit_from_a_file_has_no_rows(tmp_path: Path) -> None:
    fit = fitted("x", "poisson")
    fit.save(tmp_path / "m.klimb")
    with pytest.raises(InputError, match="rows of the fit"):
        klimb.load(tmp_path / "m.klimb").to_stan()


NASTY = ["x; } model { target += 1;", "a */ b /* c", "// x", "#include <evil.stan>", "new\nline }",
         "é\u2028\u0085}", "\"q\"\\"]


@pytest.mark.parametrize("name", NASTY)
def test_names_and_levels_stay_out_of_the_text(name: str) -> None:
    """The statements of a program do not depend on how columns, levels and responses are called."""
    stanli = pytest.importorskip("stanli")

    def program(column: str, group: str, levels: list[str], response: str) -> Any:
        columns = {column: DATA["x"], group: np.array(levels)[np.unique(DATA["g"], return_inverse=True)[1]],
                   response: RESPONSES["ordered"], "h": np.array(levels[:3])[np.unique(DATA["h"],
                                                                                    return_inverse=True)[1]]}
        quoted = [f"`{text}`" for text in (response, column, group)]
        formula = "{0} ~ {1} + h + s({1}) + (1 + {1} | {2}) + offset({1})".format(*quoted)
        return klimb.fit(formula, columns, "ordinal", hyper="fixed").to_stan()

    plain = program("x", "g", list("abcdef"), "y")
    nasty = program(name, name + "g", [f"{k}{name}" for k in range(6)], name + "y")
    without = re.compile(r" *//.*")
    assert [without.sub("", line) for line in nasty.code.split("\n")] == [
        without.sub("", line) for line in plain.code.split("\n")]
    comments = "".join(line.partition("//")[2] for line in nasty.code.split("\n"))
    assert re.fullmatch(r"[A-Za-z0-9 _.,:()|+~^*=<>\[\]-]*", comments)
    q = 0.1 * np.arange(stanli.Model(stan_code=plain.code, data=plain.data_json()).n_unconstrained)
    one, two = (stanli.Model(stan_code=p.code, data=p.data_json()).log_prob_grad(q)[0] for p in (plain, nasty))
    assert one == two


def test_the_program_is_saved_with_its_data(tmp_path: Path) -> None:
    program = fitted("x + (1 | g)", "poisson").to_stan()
    program.save(tmp_path / "m.stan")
    assert (tmp_path / "m.stan").read_text() == program.code == str(program)
    kept = json.loads((tmp_path / "m.data.json").read_text())
    assert kept["N"] == N
    np.testing.assert_array_equal(kept["X"], program.data["X"])


def test_levels_are_written_in_units_of_what_rows_and_prior_say() -> None:
    g = np.repeat(np.arange(12), 40)
    effects = 3.0 * np.random.default_rng(2).standard_normal(12)
    y = effects[g] + np.random.default_rng(3).standard_normal(480)
    fit = klimb.fit("y ~ (1 | g)", {"y": y, "g": g})
    program = fit.to_stan()
    assert "target += normal_lpdf(b_1 | 0, sd_1) + sum(log(width_1));" in program.code
    rng = np.random.default_rng(0)
    for change in (-4.0, -2.0, 0.0, 1.0):  # whatever the scale, the levels of a Gaussian response are N(0, I) there
        theta = fit.model.at + change * np.array([name == "sd(g)" for name in fit.model.names])
        q = fit.model.detach(fit.model.moved(theta).infer(fit.data).posterior)
        z = np.array([program.point(theta, w)[0]["z_1"] for w in q.sample(4000, rng)])
        np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=0.1)
        np.testing.assert_allclose(np.cov(z.T), np.eye(12), atol=0.1)
