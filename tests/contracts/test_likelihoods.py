"""Everything in LIKELIHOODS fits by formula, predicts, draws, is judged, is saved and loaded, prints, is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.errors import InputError
from klimb.likelihoods import LIKELIHOODS, Likelihood

RNG = np.random.default_rng(4)
N = 60
X = RNG.standard_normal(N)
F = 0.3 + 0.6 * X
MEAN = np.exp(F)
CHANCE = 1.0 / (1.0 + np.exp(-F))
# A response for every kind that a likelihood may ask for; one that is registered later has its kind among these.
RESPONSES: dict[str, Any] = {
    "binary": (RNG.random(N) < CHANCE).astype(float), "counts": RNG.poisson(MEAN), "real": F + 0.4 * RNG.normal(size=N),
    "positive": RNG.gamma(3.0, MEAN / 3.0), "nonnegative": RNG.exponential(MEAN),
    "unit": RNG.beta(6.0 * CHANCE, 6.0 * (1.0 - CHANCE)),
    "ordered": np.array(["a", "b", "c"])[np.digitize(F + RNG.logistic(size=N), [-0.5, 1.0])],
    "classes": np.array(["a", "b", "c"])[np.digitize(F + RNG.logistic(size=N), [-0.5, 1.0])],
}
NEW = {"x": [-1.0, 0.0, 2.0]}
DOCS = (Path(__file__).parents[2] / "docs" / "fit.md").read_text(encoding="utf-8")


def fitted(kind: type[Likelihood], link: str | None = None, censored: bool = False, **more: Any) -> Any:
    if kind.response == "trials":
        data = {"x": X, "y": RNG.binomial(5, CHANCE), "n": np.full(N, 5)}
        return klimb.fit("p(y, n) ~ x", data, family=kind.name, link=link, **more)
    y = RESPONSES[kind.response]
    if censored:
        limit = np.quantile(y, 0.7)
        return klimb.fit("Surv(y, seen) ~ x", {"x": X, "y": np.minimum(y, limit), "seen": y < limit}, kind.name, **more)
    return klimb.fit("y ~ x", {"x": X, "y": y}, family=kind.name, link=link, **more)


CENSORED = [f"{name} censored" for name, kind in LIKELIHOODS.items() if kind.censorable]


@pytest.fixture(scope="module", params=[*LIKELIHOODS, *CENSORED])
def fit(request: pytest.FixtureRequest) -> Any:
    name, _, word = request.param.partition(" ")
    return fitted(LIKELIHOODS[name], censored=bool(word))


def test_fits_and_prints(fit: Any) -> None:
    assert fit.converged
    assert np.isfinite(fit.bound)
    for word in (fit.model.likelihood.name, "evidence lower bound (ELBO)", "leave-one-out", "y"):
        assert word in str(fit)
    assert np.isfinite(fit.loo().elpd)
    for row in fit.table_rows():  # a moment that is infinite is not shown, and a note says so
        infinite = any(note.startswith(f"{row.name} ") and "infinite" in note for note in fit.notes)
        assert infinite or np.isfinite([row.mean, row.sd]).all()


@pytest.mark.parametrize("kind", ["mean", "latent", "response"])
def test_predicts_at_new_data(fit: Any, kind: str) -> None:
    found = fit.predict(NEW, kind=kind)
    assert all(len(values) == 3 and np.isfinite(values).all() for values in found.values())
    if fit.model.likelihood.response in ("ordered", "classes") and kind == "mean":
        np.testing.assert_allclose(sum(found.values()), 1.0, atol=1e-8)
    elif "mean" in found:
        assert set(found) == {"mean", "sd", "lower", "upper"}


def test_draws(fit: Any) -> None:
    fields = len(fit.model.likelihood.fields)
    f = fit.sample(2000, NEW, seed=1)
    assert f.shape == (2000, 3 * fields)
    shown = fit.predict(NEW, kind="latent")
    mean, sd = (np.concatenate([values for name, values in shown.items() if name.startswith(word)])
                for word in ("mean", "sd"))
    np.testing.assert_allclose(f.mean(axis=0), mean, atol=6.0 * sd.max() / np.sqrt(2000.0))
    y = fit.simulate(50, NEW, seed=1)
    assert y.shape == (50, 3)
    assert np.array_equal(y, fit.simulate(50, NEW, seed=1))


def test_is_judged(fit: Any) -> None:
    assert fit.trust.verdict in ("trust", "corrected", "doubt")
    report = klimb.trust(fit, draws=2000)
    assert report.verdict in ("trust", "corrected", "doubt")
    assert len(report.facts) > len(fit.trust.facts)
    assert klimb.calibrate(fit, n=3).n + klimb.calibrate(fit, n=3).failed == 3


def test_is_saved_and_loaded_to_the_same_bits(fit: Any, tmp_path: Path) -> None:
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert str(back) == str(fit)
    one, two = fit.predict(NEW, kind="all"), back.predict(NEW, kind="all")
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert np.array_equal(fit.sample(5, NEW), back.sample(5, NEW))
    assert back.report().coefficients == fit.report().coefficients
    back.save(tmp_path / "again.klimb")
    assert (tmp_path / "again.klimb").read_bytes() == (tmp_path / "m.klimb").read_bytes()


def test_is_documented(fit: Any) -> None:
    kind = fit.model.likelihood
    assert f"| `{kind.name}` | {kind.about} | {', '.join(kind.links)} |" in DOCS


@pytest.mark.parametrize(("name", "link"), [(name, link) for name, kind in LIKELIHOODS.items()
                                            for link in list(kind.links)[1:]])
def test_every_link_fits(name: str, link: str) -> None:
    fit = fitted(LIKELIHOODS[name], link, hyper="optimise")
    assert fit.converged
    assert link in str(fit)


def test_a_function_is_refused_by_files_in_words(tmp_path: Path) -> None:
    own = klimb.fit("y ~ x", {"x": X, "y": RESPONSES["real"]}, family=lambda y, f: -((y - f) ** 2))
    with pytest.raises(InputError, match="cannot be saved"):
        own.save(tmp_path / "m.klimb")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_cells_have_what_the_likelihood_needs(name: str) -> None:
    """Rows of one x as cells: the bound, theta and the coefficients are those of the rows; by sums where it says so."""
    kind = LIKELIHOODS[name]
    x = np.repeat([-1.0, 0.0, 1.0], N // 3)
    if kind.response == "trials":
        formula, data = "p(y, n) ~ x", {"x": x, "y": RNG.binomial(5, CHANCE), "n": np.full(N, 5)}
    else:
        formula, data = "y ~ x", {"x": x, "y": RESPONSES[kind.response]}
    rows, cells = (klimb.fit(formula, data, name, cells=own, tol=1e-12, hyper="optimise") for own in (False, True))
    assert cells.by_sums == (kind.cell_sums is not None)
    assert cells.bound == pytest.approx(rows.bound, abs=1e-7)
    for ours, theirs in zip(cells.table_rows(), rows.table_rows(), strict=True):
        assert ours.mean == pytest.approx(theirs.mean, abs=1e-5 * theirs.sd)
