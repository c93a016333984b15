"""What formulas learn from rows elsewhere is what they learn in memory, and takes no memory for each row."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import klimb
from klimb.errors import InputError
from klimb.models import budget, streamed
from klimb.rows import blocks, summaries
from klimb.rows.engines import Processes
from klimb.rows.quantiles import counted_quantile, counted_quantiles, interval_counts
from klimb.rows.summaries import DistinctRows, NumberFacts

N = 3000


class Here:
    """A pass in this process."""

    def map(self, function: Callable[[Any], Any], some: Iterable[Any], /) -> Iterable[Any]:
        return map(function, some)


def columns(seed: int = 0, n: int = N) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x, z, g = rng.standard_normal(n), np.exp(rng.standard_normal(n)), rng.integers(0, 7, n)
    return {"x": x, "z": z, "g": g, "h": rng.choice(["a", "b", "c"], n), "w": rng.integers(0, 3, n).astype(float),
            "y": 50.0 + x + 0.3 * np.sin(3.0 * x) + 0.1 * z + rng.standard_t(4, n), "k": rng.binomial(5, 0.4, n),
            "m": np.full(n, 5), "e": (rng.random(n) < 0.7).astype(float),
            "b": (rng.random(n) < 1.0 / (1.0 + np.exp(-x))).astype(float)}


DATA = columns()


def written(folder: Path, parts: Iterable[Any], **options: Any) -> Path:
    for k, part in enumerate(parts):
        table = pa.table(part) if isinstance(part, dict) else part
        parquet.write_table(table, folder / f"part-{k}.parquet", **options)
    return folder


def passed(data: Any, formula: str = "b ~ x + (1 | g)", family: str = "bernoulli", **more: Any) -> Any:
    return klimb.fit(formula, data, family, engine=Here(), hyper="fixed", progress=False, cells=False, **more)


@pytest.mark.parametrize(("formula", "family", "more"), [
    ("y ~ poly(x, 3) + standardize(log(z))", "gaussian", {}),
    ("y ~ bs(x, df=7) + center(z)", "gaussian", {"weights": "w"}),
    ("y ~ bs(x, df=6, lower=-5, upper=5)", "gaussian", {}), ("y ~ x + (1 | g:h)", "gaussian", {}),
    ("y ~ s(x, by=h)", "gaussian", {"weights": "w"}), ("y ~ C(g, Sum) + x", "student_t", {"hyper": "optimise"}),
    ("cbind(k, m) ~ x", "binomial", {}), ("log(z) ~ x + poly(x, 2, raw=True)", "gaussian", {}),
    ("y ~ gp(x, z, points=7)", "gaussian", {"hyper": "fixed"}), ("z ~ x", "gamma", {"hyper": "optimise"}),
    ("Surv(z, e) ~ x", "exponential", {}), ("y ~ x", "laplace", {"hyper": "optimise"})])
def test_terms_learn_what_they_learn_in_memory(formula: str, family: str, more: dict[str, Any],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 700)
    monkeypatch.setattr(budget, "ENTRIES", 4000)
    monkeypatch.setattr(summaries, "MOST_DISTINCT", 500)  # of 3,000
    options = {"tol": 1e-12, "progress": False, **more}
    memory, elsewhere = (klimb.fit(formula, DATA, family, engine=engine, **options) for engine in (None, Here()))
    assert elsewhere.prior_words() == memory.prior_words()
    assert elsewhere.bound == pytest.approx(memory.bound, abs=1e-8)
    one, other = memory.uncorrected.components, elsewhere.components
    sd = one.parts[0].sd()
    np.testing.assert_allclose((one.parts[0].mean - other.parts[0].mean) / sd, 0.0, atol=1e-8)
    for mine, theirs in zip(elsewhere.encoder.variables, memory.encoder.variables, strict=True):
        assert (mine.levels, mine.commonest, mine.whole) == (theirs.levels, theirs.commonest, theirs.whole)
        numbers = [[own.minimum, own.maximum, own.mean, own.median] for own in (mine, theirs)]
        np.testing.assert_allclose(*numbers, rtol=1e-12, atol=1e-14)


def test_learning_takes_no_more_memory_for_more_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of all rows was read at once: 45 bytes for each row."""
    class LearntError(Exception):
        pass

    def stop(*_: Any) -> Any:
        peaks.append(tracemalloc.get_traced_memory()[1])
        raise LearntError

    monkeypatch.setattr(streamed, "learnt_moments", stop)
    monkeypatch.setattr(budget, "ENTRIES", 100_000)
    monkeypatch.setattr(summaries, "MOST_DISTINCT", 10_000)
    peaks: list[float] = []
    for n in (40_000, 40_000, 240_000):  # the first loads modules
        path = tmp_path / f"{n}.parquet"
        parquet.write_table(pa.table(columns(1, n)), path, row_group_size=20_000)
        tracemalloc.start()
        with pytest.raises(LearntError):
            passed(path, "y ~ s(x) + z + h + (1 | g)", "gaussian")
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 200_000 * 1.0


def test_a_cache_is_written_block_by_block(tmp_path: Path) -> None:
    parts = []
    for k in range(2):
        table = pa.table(columns(k))
        levels = pa.array([f"{'uv'[k]}{value}" for value in table["h"].to_pylist()]).dictionary_encode()
        parts.append(table.set_column(3, "h", levels))
    (tmp_path / "rows").mkdir()
    rows = written(tmp_path / "rows", parts, row_group_size=700)
    kept = klimb.cache(rows, tmp_path / "kept", ["b", "x", "h"])
    assert passed(kept, "b ~ x + h").bound == passed(rows, "b ~ x + h").bound
    assert passed(rows, "b ~ x + h").encoder.variables[1].levels == ("ua", "ub", "uc", "va", "vb", "vc")


def test_quantiles_of_values_met_some_at_a_time_are_exact() -> None:
    rng = np.random.default_rng(4)
    p = np.array([0.0, 0.013, 0.5, 0.77, 1.0])
    for values in (rng.standard_normal(997), rng.integers(0, 4, 200) * 1.0, np.exp(50.0 * rng.standard_normal(300)),
                   np.where(rng.random(400) < 0.9, 0.0, rng.standard_normal(400)), np.array([-0.0, 0.0, 3.0])):
        for weights in (None, rng.integers(1, 4, len(values)).astype(float)):
            parts = np.array_split(np.arange(len(values)), 7)

            def count(first: list[int], last: list[int], x: Any = values, w: Any = weights, rows: Any = parts) -> Any:
                return sum(interval_counts(x[own], None if w is None else w[own], first, last) for own in rows)

            found = counted_quantiles(count, p, float(values.min()), float(values.max()))
            counts = np.ones(len(values)) if weights is None else weights
            np.testing.assert_array_equal(found, counted_quantile(values, counts, p))


def test_different_values_are_a_sample_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MOST_DISTINCT", 4000)
    x = np.random.default_rng(1).gamma(1.0, size=100_000)
    whole = DistinctRows.of(x[:, None]).sorted()
    shuffled = np.random.default_rng(2).permutation(np.concatenate([x, x[:5000]]))
    parts = [DistinctRows.of(part[:, None]) for part in np.array_split(shuffled, 13)]
    total = parts[0]
    for part in parts[1:]:
        total = part.plus(total)
    np.testing.assert_array_equal(total.sorted(), whole)
    ranks = np.searchsorted(np.sort(x), np.quantile(whole, np.linspace(0.1, 0.9, 9))) / len(x)
    assert np.abs(ranks - np.linspace(0.1, 0.9, 9)).max() < 4.0 / np.sqrt(4 * 4000)


def test_facts_of_parts_are_those_of_all() -> None:
    x, w = 1e9 + np.random.default_rng(0).standard_normal(1000), np.random.default_rng(1).integers(1, 4, 1000) * 1.0
    whole = NumberFacts.of(x, w)
    parts = NumberFacts.of(x[:10], w[:10]).plus(NumberFacts.of(x[10:], w[10:]))
    assert parts.mean == pytest.approx(whole.mean, rel=1e-15)
    assert parts.spread == pytest.approx(np.sqrt(w @ (x - np.average(x, weights=w)) ** 2), rel=1e-7)
    large = NumberFacts.of(1e200 * x[:10], None).plus(NumberFacts.of(1e200 * x[10:], None))
    assert large.spread == pytest.approx(1e200 * x.std() * np.sqrt(1000), rel=1e-6)


def test_files_may_be_empty_and_differ(tmp_path: Path) -> None:
    table = pa.table(columns(2))
    nothing = table.set_column(table.column_names.index("h"), "h", pa.nulls(N))
    late = columns(3)
    late["h"] = np.where(np.arange(N) == N - 1, "zz", late["h"])
    rows = written(tmp_path, [table.slice(0, 0), nothing, table, late], row_group_size=800)
    fit = passed(rows, "b ~ x + h", tol=1e-12)
    memory = klimb.fit("b ~ x + h", pa.concat_tables([nothing, table, pa.table(late)], promote_options="permissive"),
                       "bernoulli", hyper="fixed", cells=False, tol=1e-12)
    assert (fit.n, fit.observed.dropped) == (memory.n, memory.observed.dropped) == (2 * N, N)
    assert fit.encoder.variables[1].levels == ("a", "b", "c", "zz")
    assert fit.bound == pytest.approx(memory.bound, abs=1e-8)
    assert not any("no terms" in note for note in fit.notes)  # it was said of all formulas without groups


def _with(table: dict[str, Any], name: str, row: int, value: Any) -> dict[str, Any]:
    values = np.array(table[name], dtype=object if isinstance(value, str) else float)
    values[row] = value
    return {**table, name: values if values.dtype != object else [*map(str, values)]}


@pytest.mark.parametrize(("name", "row", "value", "formula", "family", "more", "words"), [
    ("x", 1777, np.inf, "b ~ x", "bernoulli", {}, r"finite numbers; got inf at row 1777, in .*part-1\.parquet"),
    ("z", 2500, -1.0, "b ~ log(z)", "bernoulli", {}, r"needs z > 0; got -1\.0 at row 2500, in .*part-1\.parquet"),
    ("b", 2222, 2.0, "b ~ x", "bernoulli", {}, r"bernoulli needs 0 and 1.*got 2 at row 2222, in .*part-1\.parquet"),
    ("k", 900, -3.0, "k ~ x", "poisson", {}, r"got -3 at row 900, in .*part-1\.parquet"),
    ("w", 10, -2.0, "b ~ x", "bernoulli", {"weights": "w"}, r"not negative; got -2 at row 10, in .*part-1\.parquet"),
    ("g", 4, "four", "b ~ x + (1 | g)", "bernoulli", {},
     r"'g' must be of one kind in all rows; got numbers in .*part-0\.parquet, text in .*part-1\.parquet"),
    ("x", 3, np.nan, "b ~ x", "bernoulli", {"missing": "error"}, r"'x': row 3, in .*part-1\.parquet")])
def test_errors_say_in_which_file_and_row(name: str, row: int, value: Any, formula: str, family: str,
                                          more: dict[str, Any], words: str, tmp_path: Path) -> None:
    rows = written(tmp_path, [DATA, _with(DATA, name, row, value)], row_group_size=700)
    with pytest.raises(InputError, match=f"(?s){words}"):
        passed(rows, formula, family, **more)


def test_columns_of_all_rows_cannot_be_had() -> None:
    with pytest.raises(InputError, match=r"rows in memory for a curve by bands; got rows that are passed over"):
        passed(DATA, "y ~ s(x, sparse=True)", "gaussian")
    with pytest.raises(InputError, match=r"some weight must be positive; got none"):
        passed({**DATA, "w": np.zeros(N)}, "y ~ x", "gaussian", weights="w")
    with pytest.raises(InputError, match=r"squares have a sum over all rows; got numbers up to .*e\+200"):
        passed({**DATA, "x": 1e200 * DATA["x"]}, "y ~ x", "gaussian")


def interrupted(_: int) -> bool:
    import signal

    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupt_is_for_the_driver_alone() -> None:
    engine = Processes(1)
    assert list(engine.map(interrupted, [0])) == [True]
    engine.close()
