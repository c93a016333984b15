"""Fits of rows that are not in memory are those of rows that are: every family, terms, weights, blocks, order."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
from klimb.infer.rows import SiteSums, few_rows, sums_of, total_sums
from klimb.models import budget, passes
from klimb.rows import blocks, gather

N = 4000


class Here:
    """A pass in this process."""

    def map(self, function: Callable[[Any], Any], some: Iterable[Any], /) -> Iterable[Any]:
        return map(function, some)


def columns(seed: int = 5, n: int = N) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x, z, g = 50.0 + 3.0 * rng.standard_normal(n), rng.standard_normal(n), rng.integers(0, 9, n)
    h = rng.choice(["a", "b", "c"], n)
    f = 0.2 * (x - 50.0) - 0.5 * z + 0.4 * (h == "b") + 0.7 * rng.standard_normal(9)[g]
    return {"x": x, "z": z, "g": g, "h": h, "w": rng.integers(0, 3, n).astype(np.float64),
            "b": np.where(rng.random(n) < 1 / (1 + np.exp(-f)), "yes", "no"), "p": rng.poisson(np.exp(0.4 * f)),
            "y": 1000.0 + f + rng.standard_normal(n), "a": rng.gamma(2.0, np.exp(0.2 * f) / 2.0),
            "o": np.digitize(f + rng.logistic(size=n), [-1.0, 0.5, 2.0]),
            "k": rng.binomial(7, 1 / (1 + np.exp(-f))), "n": np.full(n, 7), "e": np.exp(0.1 * z)}


DATA = columns()
CASES = [("b ~ x*z + h", "bernoulli", {}), ("p ~ x + h + offset(log(e))", "poisson", {"weights": "w"}),
         ("y ~ x + z:h", "gaussian", {}), ("y ~ x + s(z) + (1 + z | g)", "gaussian", {"weights": "w"}),
         ("p(k, n) ~ x + z", "binomial", {}), ("b ~ z + (1 | g)", "bernoulli", {}), ("a ~ x + z", "gamma", {}),
         ("y ~ z", "student_t(df=5)", {"hyper": "optimise"}), ("o ~ x + h", "ordinal", {"hyper": "fixed"}),
         ("b ~ 0 + h + z", "bernoulli", {"priors": {"z": "normal(0, 0.1)"}}),
         ("b ~ x + gp(z, points=8)", "bernoulli", {"hyper": "optimise"}), ("y ~ h + gp(z, points=6)", "gaussian", {}),
         ("p ~ gp(z, points=6) + (1 | g)", "poisson", {"weights": "w", "hyper": "optimise"}),
         ("b ~ h + sparse(x, z, w)", "bernoulli", {"hyper": "optimise"}), ("y ~ sparse(x, z, w)", "gaussian", {}),
         ("p ~ sparse(x, z, prior=student_t)", "poisson", {"weights": "w", "hyper": "optimise"})]


def errors(one: Any, other: Any) -> float:
    """The largest difference of a mean or an sd in the tables of two fits, in sd."""
    a, b = one.summary(), other.summary()
    assert list(a["name"]) == list(b["name"])
    sd = np.asarray(a["sd"])
    return float(max(np.abs((np.asarray(a[k]) - np.asarray(b[k])) / sd).max() for k in ("mean", "sd")))


@pytest.mark.parametrize(("formula", "family", "more"), CASES)
def test_the_fit_is_that_of_rows_in_memory(formula: str, family: str, more: dict[str, Any],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 700)
    monkeypatch.setattr(budget, "ENTRIES", 4000)
    tight = "|" not in formula and family != "gamma" and formula != "y ~ sparse(x, z, w)"  # whose points are drawn
    options = {**more, "tol": 1e-12 if tight else 1e-7, "progress": False}
    memory = klimb.fit(formula, DATA, family, **options)
    streamed = klimb.fit(formula, DATA, family, engine=Here(), **options)
    assert errors(memory.uncorrected, streamed) < (1e-8 if tight else 1e-3)  # of rows elsewhere nothing is corrected
    assert streamed.bound == pytest.approx(memory.bound, abs=1e-6 if tight else 1e-3)
    assert streamed.prior_words() == memory.prior_words()
    assert streamed.trust.verdict == memory.trust.verdict == "trust"
    assert errors(memory, streamed) < 0.05
    assert (streamed.n, streamed.observed.dropped) == (memory.n, memory.observed.dropped)
    new = {name: values[:5] for name, values in DATA.items()}
    latent = [fit.predict(new, kind="latent")["mean"] for fit in (streamed, memory)]
    np.testing.assert_allclose(*latent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("formula", "more"), [
    ("c ~ x*z + h", {}), ("c ~ z + (1 | g)", {"weights": "w", "hyper": "fixed"}),
    ("c ~ s(z, k=4)", {"hyper": "optimise"})])
def test_several_classes_are_those_of_rows_in_memory(formula: str, more: dict[str, Any],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 700)
    monkeypatch.setattr(budget, "ENTRIES", 4000)
    f = np.column_stack([0.1 * (DATA["x"] - 50.0), np.sin(DATA["z"]), 0.3 * (DATA["h"] == "b")])
    data = {**DATA, "c": np.array(["u", "v", "w"])[(f + np.random.default_rng(3).gumbel(size=f.shape)).argmax(axis=1)]}
    memory, streamed = (klimb.fit(formula, data, "categorical", engine=engine, tol=1e-12, progress=False, **more)
                        for engine in (None, Here()))
    for one, other, near in ((memory, streamed, 1e-8), (memory.uncorrected, streamed.uncorrected, 1e-7)):
        sd = one.components.parts[0].sd()
        np.testing.assert_allclose((one.components.parts[0].mean - other.components.parts[0].mean) / sd, 0.0, atol=near)
        np.testing.assert_allclose(other.components.parts[0].sd() / sd, 1.0, atol=near)
    assert streamed.bound == pytest.approx(memory.bound, abs=1e-8)
    assert streamed.trust.advice == memory.trust.advice
    assert streamed.prior_words() == memory.prior_words()
    np.testing.assert_allclose(streamed.log_odds("u")["sd"], memory.log_odds("u")["sd"], rtol=1e-7)
    assert streamed.loo().elpd == pytest.approx(memory.loo().elpd, abs=1e-5)


def test_blocks_and_order_do_not_matter(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(N)
    found = []
    for k, (rows, size) in enumerate([(np.arange(N), 450), (order, N)]):
        parquet.write_table(pa.table({name: values[rows] for name, values in DATA.items()}), tmp_path / f"{k}.parquet",
                            row_group_size=size)
        found.append(klimb.fit("b ~ x*z + h", tmp_path / f"{k}.parquet", "bernoulli", engine=Here(), tol=1e-12))
    assert errors(*found) < 1e-8
    assert found[0].loo().elpd == pytest.approx(found[1].loo().elpd, rel=1e-9)  # a sample by content


def test_missing_values_and_text_are_those_of_rows_in_memory(tmp_path: Path) -> None:
    frame = pl.DataFrame(DATA).with_columns(
        pl.when(pl.col("z") > 1.5).then(None).otherwise(pl.col("h")).alias("h"),
        pl.when(pl.col("x") > 55.0).then(None).otherwise(pl.col("x")).alias("x"))
    frame.write_parquet(tmp_path / "rows.parquet", row_group_size=900)
    memory = klimb.fit("b ~ x + h", frame, "bernoulli", tol=1e-12)
    streamed = klimb.fit("b ~ x + h", tmp_path / "rows.parquet", "bernoulli", engine=Here(), tol=1e-12)
    assert memory.observed.dropped > 100
    assert (streamed.n, streamed.observed.dropped) == (memory.n, memory.observed.dropped)
    assert errors(memory, streamed) < 1e-8
    with pytest.raises(InputError, match="missing values in 'x'"):
        klimb.fit("b ~ x", tmp_path / "rows.parquet", "bernoulli", engine=Here(), missing="error")


def test_flags_of_which_some_are_missing_stay_flags(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    flags = {name: pa.array([None if rng.random() < 0.1 else bool(value) for value in found])
             for name, found in {"b": DATA["b"] == "yes", "f": DATA["z"] > 0.0}.items()}
    table = pa.table({"x": DATA["x"], **flags})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=900)
    memory = klimb.fit("b ~ x + f", table, "bernoulli", tol=1e-12)
    streamed = klimb.fit("b ~ x + f", tmp_path / "rows.parquet", "bernoulli", engine=Here(), tol=1e-12)
    assert list(streamed.summary()["name"]) == ["Intercept", "x", "f[T.True]"]
    np.testing.assert_allclose(streamed.summary()["mean"], memory.summary()["mean"].to_numpy(), atol=1e-9)


def test_days_are_levels(tmp_path: Path) -> None:
    """The sample of the rows names them as all rows do, though a time at midnight is printed without it."""
    days = np.datetime64("2020-01-01T00:00:00", "us") + np.timedelta64(12, "h") * np.arange(6)
    table = pa.table({"b": DATA["b"], "x": DATA["x"], "t": days[np.arange(len(DATA["b"])) % 6]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=900)
    for formula in ("b ~ x + C(t)", "b ~ x + (1 | t)"):
        memory = klimb.fit(formula, table, "bernoulli", tol=1e-12, hyper="fixed")
        streamed = klimb.fit(formula, tmp_path / "rows.parquet", "bernoulli", engine=Here(), tol=1e-12, hyper="fixed")
        assert len(memory.observed.y) == streamed.n
        np.testing.assert_allclose(streamed.bound, memory.bound, rtol=1e-10)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_types_may_differ_from_file_to_file(kind: str, tmp_path: Path) -> None:
    """x is missing in all rows of the first file, whole in the second, and not in the third."""
    frame = pl.DataFrame({name: DATA[name] for name in ("b", "x", "z", "h")}).with_columns(
        h=pl.when(pl.col("z") > 1.8).then(None).otherwise(pl.col("h")))
    parts = [frame[:300].with_columns(x=pl.lit(None)), frame[300:1500].with_columns(pl.col("x").cast(pl.Int64)),
             frame[1500:]]
    for k, part in enumerate(parts):
        if kind == "csv":
            part.write_csv(tmp_path / f"part-{k}.csv", null_value="NA")
        else:
            part.write_parquet(tmp_path / f"part-{k}.parquet")
    memory = klimb.fit("b ~ x*z + h", pl.concat([part.with_columns(pl.col("x").cast(pl.Float64)) for part in parts]),
                       "bernoulli", tol=1e-12)
    streamed = klimb.fit("b ~ x*z + h", tmp_path / f"part-*.{kind}", "bernoulli", engine=Here(), tol=1e-12)
    assert (streamed.n, streamed.observed.dropped) == (memory.n, memory.observed.dropped)
    assert memory.observed.dropped > 300
    assert errors(memory, streamed) < 1e-8


def test_rows_that_are_too_many_for_memory_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({name: DATA[name] for name in ("b", "x", "z")})
    for k in range(2):
        frame.slice(k * 2000, 2000).write_parquet(tmp_path / f"part-{k}.parquet")
    memory = klimb.fit("b ~ x + z", frame, "bernoulli", tol=1e-12)
    monkeypatch.setattr(gather, "LEAST", 500)
    monkeypatch.setattr(gather, "SAMPLE", 100)
    monkeypatch.setattr(gather, "MOST_READ", 1000)
    monkeypatch.setattr(gather, "MOST_ENTRIES", 1000)
    makes: list[Any] = [str(tmp_path / "part-*.parquet"), pl.scan_parquet(tmp_path / "part-*.parquet"),
                        iter(frame.to_arrow().to_batches(max_chunksize=700)), frame,
                        {name: np.asarray(frame[name]) for name in frame.columns}]
    for data in makes:
        fit = klimb.fit("b ~ x + z", data, "bernoulli", tol=1e-12)
        assert fit.observed.sampled_from == N
        assert errors(memory, fit) < 1e-8


def test_what_a_streamed_fit_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from klimb.models import streamed

    monkeypatch.setattr(streamed, "SAMPLE", 800)
    fit = klimb.fit("p ~ z + (1 | g)", DATA, "poisson", engine=Here())
    whole = klimb.fit("p ~ z + (1 | g)", DATA, "poisson")
    assert 600 < fit.observed.n < 1000
    assert any("a sample of" in note for note in fit.notes)
    assert abs(fit.loo().elpd - whole.loo().elpd) < 3.5 * fit.loo().se
    assert fit.loo().se > whole.loo().se  # of a sample
    assert "4,000" in str(fit) or "4000" in str(fit)
    with pytest.raises(InputError, match="the rows of this fit are not in memory"):
        fit.predict()
    with pytest.raises(InputError, match="Stan needs all rows"):
        fit.exact()
    fit.save(tmp_path / "fit.klimb")
    again = klimb.load(tmp_path / "fit.klimb")
    assert str(again) == str(fit)
    assert errors(fit, again) == 0.0
    fit.to_html(tmp_path / "fit.html")
    assert "4,000" in (tmp_path / "fit.html").read_text()
    assert fit.checks.verdict == whole.checks.verdict


@pytest.mark.parametrize(("formula", "family", "words"), [
    ("y ~ rw1(g)", "gaussian", "terms with columns of their own"),
    ("h ~ gp(x)", "categorical", "one latent value per row"),
    ("h ~ sparse(x, z)", "categorical", "one latent value per row and no group"),
    ("b ~ sparse(x, z) + (1 | g)", "bernoulli", "one latent value per row and no group"),
])
def test_models_that_are_no_sums_are_refused(formula: str, family: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit(formula, {**DATA, "n": DATA["p"] % 4}, family, engine=Here())


def test_few_rows_say_what_many_do() -> None:
    rng = np.random.default_rng(0)
    X, codes, t = rng.standard_normal((300, 3)), rng.integers(0, 20, 300), rng.standard_normal((300, 2))
    t[codes == 4] = t[codes == 4][0]  # a level that knows one direction alone
    gamma, slope = rng.random(300) + 0.1, rng.standard_normal(300)
    parts = [sums_of(X[rows], codes[rows], t[rows], slope[rows], gamma[rows])
             for rows in (slice(0, 110), slice(110, 300))]
    sums = total_sums(parts, 20)
    few, own, values, y = few_rows(sums)

    def dense(X: Any, codes: Any, t: Any) -> Any:
        Z = np.zeros((len(X), 40))
        for j in range(2):
            Z[np.arange(len(X)), 2 * np.maximum(codes, 0) + j] = t[:, j]
        return np.hstack([X, Z])

    Z, R = dense(X, codes, t), dense(few, own, values)
    assert len(R) <= 3 + 40
    np.testing.assert_allclose(R.T @ R, Z.T @ (gamma[:, None] * Z), atol=1e-10)
    np.testing.assert_allclose(R.T @ y, Z.T @ slope, atol=1e-9)
    back = SiteSums.of_arrays(sums.arrays())
    assert np.array_equal(back.cross, sums.cross)


def test_an_empty_block_says_nothing(tmp_path: Path) -> None:
    missing = pl.when(pl.int_range(N) < 1000).then(None).otherwise(pl.col("z"))
    frame = pl.DataFrame(DATA).with_columns(missing.alias("z"))
    frame.write_parquet(tmp_path / "rows.parquet", row_group_size=500)  # two row groups without a complete row
    for formula in ("b ~ z + (1 | g)", "y ~ z + (1 | g)"):
        family = "bernoulli" if formula[0] == "b" else "gaussian"
        streamed = klimb.fit(formula, tmp_path / "rows.parquet", family, engine=Here())
        assert streamed.n == N - 1000
        assert errors(klimb.fit(formula, frame, family), streamed) < 1e-3


def test_the_verdict_is_on_the_fit_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fits at other hyperparameters came after it."""
    facts = []
    for most in (100, 1):
        monkeypatch.setattr(passes, "MOST_KNOWN", most)
        fit = klimb.fit("p ~ z + (1 | g)", DATA, "negative_binomial", engine=Here())
        facts.append(float(fit.trust.facts[0].value.split(",")[0].split()[0]))
    assert facts[0] == pytest.approx(facts[1], rel=0.02)


def test_notes_on_data_are_those_of_rows_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, one = rng.standard_normal(2000), np.full(2000, "a")
    data = {"y": rng.poisson(np.exp(0.3 * x)), "x": x, "u": 3.0 - 2.0 * x, "t": rng.choice(["1", "2", "10"], 2000),
            "one": one, "e": 1.0 + rng.random(2000), "rare": (np.arange(2000) == 7).astype(np.float64)}
    parquet.write_table(pa.table(data), tmp_path / "rows.parquet")
    formula = "y ~ x + u + t + rare + (1 | one)"
    memory = klimb.fit(formula, data, "poisson", hyper="fixed", progress=False)
    found = klimb.fit(formula, str(tmp_path / "rows.parquet"), "poisson", hyper="fixed", engine=Here(), progress=False)
    said = [note for note in memory.notes if "'u' is" in note or "reads as numbers" in note or "one level" in note]
    assert len(said) == 3
    assert set(said) <= set(found.notes)
    assert not any("'rare'" in note for note in found.notes)


def test_a_rare_column_that_the_sample_has_not_seen_is_not_called_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klimb.models.streamed.SAMPLE", 200)
    x = np.random.default_rng(2).standard_normal(3000)
    data = {"y": (x > 0.3).astype(float) + x, "x": x, "u": 2.0 * x, "rare": (np.arange(3000) == 7).astype(np.float64)}
    found = klimb.fit("y ~ x + u + rare", data, engine=Here(), progress=False)
    assert any("'u' is" in note for note in found.notes)
    assert not any("'rare'" in note for note in found.notes)


class Weighed:
    """Passes here, and knows how many bytes each kind would send and get back."""

    def __init__(self) -> None:
        self.most: dict[str, list[int]] = {}

    def map(self, function: Any, blocks: Any, /) -> Any:
        most = self.most.setdefault(function.func.__name__, [0, 0])
        most[0] = max(most[0], len(pickle.dumps(function)))
        for block in blocks:
            found = function(block)
            most[1] = max(most[1], len(pickle.dumps(found)))
            yield found


def test_explain_says_what_a_pass_sends_and_the_driver_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = Weighed()
    fit = klimb.fit("b ~ z + (1 | g)", DATA, "bernoulli", engine=weighed, hyper="fixed", progress=False)
    sent = fit.model.passes.sent(fit.model)
    sums = fit.model.passes.ends[fit.result.posterior].arrays()
    assert sent == sum(part.nbytes for name, part in sums.items() if name not in ("value", "size", "slopes"))
    said = [1e6 * float(size) for size in re.findall(r"([\d.]+) MB", fit.explain())]
    for name in ("site_sums", "values_at"):
        for size, most in zip(weighed.most[name], said[:2] if name == "site_sums" else said[2:4], strict=True):
            assert size <= most < 20.0 * size  # of draws there are fewer than there may be
    assert "4,000 rows in 1 blocks" in klimb.fit("y ~ z", DATA, engine=Here(), progress=False).explain()
    monkeypatch.setattr(budget, "MEMORY", 0.5 * budget.COPIES * sent)
    with pytest.raises(InputError, match="9 levels beside 2 columns"):
        klimb.fit("b ~ z + (1 | g)", DATA, "bernoulli", engine=Here(), hyper="fixed", progress=False)


@pytest.mark.parametrize("order", ["sorted", "mixed"])
def test_the_sd_of_small_levels_is_that_of_levels_integrated_out(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 1500)
    rng = np.random.default_rng(4)
    g = np.repeat(np.arange(800), 5)
    g = g if order == "sorted" else rng.permutation(g)
    x = rng.standard_normal(len(g))
    y = rng.random(len(g)) < 1 / (1 + np.exp(0.5 - 0.4 * x - rng.standard_normal(800)[g]))
    memory = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, "bernoulli", progress=False)
    found = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, "bernoulli", engine=Here(), progress=False)
    means = [np.asarray(fit.summary()["mean"]) for fit in (memory.uncorrected, memory, found)]
    before, after = (np.abs(one - means[1]) / np.asarray(memory.summary()["sd"]) for one in (means[0], means[2]))
    assert before[2] > 0.15  # a bound alone pulls sd(g) down
    assert after[2] < 0.4 * before[2]
    assert after.max() < 0.1
    assert found.trust.verdict == "trust"
    assert "of the weights that all levels share" in found.trust.facts[0].value


def test_shared_weights_follow_the_hyperparameters_as_those_of_rows_in_memory() -> None:
    """The mean of a Poisson model is exp(Intercept + sd(g)^2 / 2): sites that stay where they are miss that."""
    rng = np.random.default_rng(4)
    g = rng.permutation(np.repeat(np.arange(1500), 4))
    x = rng.standard_normal(len(g))
    y = rng.poisson(np.exp(-1.0 + 0.4 * x + 0.8 * rng.standard_normal(1500)[g]))
    data = {"y": y, "x": x, "g": g}
    memory = klimb.fit("y ~ x + (1 | g)", data, "poisson", progress=False)
    found = klimb.fit("y ~ x + (1 | g)", data, "poisson", engine=Here(), progress=False)
    tables = [fit.summary() for fit in (memory, found, found.uncorrected)]
    sd = np.asarray(tables[0]["sd"])
    away = [np.abs(np.asarray(table["mean"]) - np.asarray(tables[0]["mean"])) / sd for table in tables]
    wider = [np.asarray(table["sd"]) / sd for table in tables]
    assert away[1].max() < 0.05
    assert away[2].max() > 0.08
    assert found.bound == pytest.approx(memory.bound, abs=5e-3)  # of bounds, not of the evidence beyond them
    np.testing.assert_allclose(wider[1], 1.0, atol=0.03)
    assert wider[2][0] < 0.95
    levels = [fit.random_effects("g") for fit in (memory, found)]
    spread = np.asarray(levels[0]["sd"])
    assert np.abs((np.asarray(levels[1]["mean"]) - np.asarray(levels[0]["mean"])) / spread).max() < 0.02
    np.testing.assert_allclose(np.asarray(levels[1]["sd"]) / spread, 1.0, atol=0.04)


def test_levels_of_many_rows_leave_nothing_of_their_evidence() -> None:
    """Given the shared weights they are far narrower than by themselves: nodes as wide as that took 66 passes here."""
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal(20_000), rng.integers(0, 30, 20_000)
    y = rng.random(20_000) < 1 / (1 + np.exp(-x - np.sin(g)))
    heard = []

    class Counted:
        def map(self, function: Callable[[Any], Any], some: Iterable[Any], /) -> Iterable[Any]:
            heard.append(function)
            return map(function, some)

    fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, "bernoulli", engine=Counted(), cells=False)
    assert fit.trust.verdict == "trust"
    assert len(heard) < 30


def test_files_are_predicted_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from klimb.models import prediction

    monkeypatch.setattr(prediction, "AT_A_TIME", 300)
    holes = np.where(DATA["z"] > 1.5, np.nan, DATA["z"])
    table = pa.table({"unused": DATA["y"], "z": holes, "g": DATA["g"] + 3})  # levels that were not there
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=900)
    fit = klimb.fit("p ~ z + (1 | g)", DATA, "poisson", engine=Here())
    whole = fit.predict(table, kind="response")
    for data in (tmp_path / "rows.parquet", str(tmp_path / "*.parquet"), klimb.scan(tmp_path / "rows.parquet")):
        found = fit.predict(data, kind="response")
        assert sorted(found) == sorted(whole.column_names)
        for name in found:
            np.testing.assert_allclose(found[name], whole[name].to_numpy(), rtol=1e-12)
    assert np.isnan(found["mean"]).sum() == np.isnan(holes).sum() > 100


def test_samples_of_other_columns_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from klimb.models import streamed

    monkeypatch.setattr(streamed, "SAMPLE", 800)
    fits = [klimb.fit(formula, DATA, "poisson", engine=Here()) for formula in ("p ~ z", "p ~ z + x", "p ~ z*x")]
    with pytest.raises(InputError, match="which counts all rows"):
        klimb.compare(fits[0], fits[1])
    assert len(klimb.compare(fits[1], fits[2]).rows) == 2
