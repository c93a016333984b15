"""Cells: what engines and NumPy count, sums that two rows have, and when rows are grouped at all."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from klimb.errors import InputError
from klimb.rows import cells, gather, scans
from klimb.rows.frames import Frame, read_frame
from klimb.rows.gather import OWN_WEIGHTS, Wanted

R = np.random.default_rng(5)
N = 3_000
COLUMNS: dict[str, Any] = {
    "y": R.integers(0, 3, N), "x": np.where(R.random(N) < 0.1, np.nan, R.integers(0, 4, N) / 4),
    "g": np.where(R.random(N) < 0.1, None, R.choice(["a", "b", "ä"], N)), "flag": R.random(N) < 0.5,
    "id": R.integers(0, 3, N) + 2**60, "size": R.gamma(2.0, 3.0, N)}
KEYS = ("y", "x", "g", "flag", "id")


def makes() -> dict[str, Any]:
    frame = pl.DataFrame(COLUMNS)
    arrow = frame.to_arrow()
    return {"dict": COLUMNS, "pandas": pd.DataFrame(COLUMNS), "polars": frame, "pyarrow": arrow, "lazy": frame.lazy(),
            "duckdb": duckdb.connect().from_arrow(arrow), "batches": iter(arrow.to_batches(max_chunksize=700))}


def gathered(data: Any, wanted: Wanted, weights: Any = None) -> Frame:
    return gather.gather(scans.as_table(data), wanted, weights)


def expected(names: tuple[str, ...]) -> dict[tuple[Any, ...], int]:
    """By a dictionary of Python, one row after the other."""
    found: dict[tuple[Any, ...], int] = {}
    for row in zip(*(COLUMNS[name].tolist() for name in names), strict=True):
        key = tuple(None if value != value else value for value in row)
        found[key] = found.get(key, 0) + 1
    return found


def counted(frame: Frame, names: tuple[str, ...]) -> dict[tuple[Any, ...], float]:
    columns = [frame.column(name).tolist() for name in names]
    assert frame.copies is not None
    keys = [tuple(None if value is None or value != value else value for value in row)
            for row in zip(*columns, strict=True)]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, frame.copies.tolist(), strict=True))


@pytest.mark.parametrize("make", list(makes()))
def test_every_engine_counts_the_same_cells_in_the_same_order(make: str) -> None:
    found = gathered(makes()[make], Wanted(KEYS, "y", cells=True))
    assert counted(found, KEYS) == expected(KEYS)
    reference = gathered(COLUMNS, Wanted(KEYS, "y", cells=True))
    for name in KEYS:
        assert found.read(name).lost.tolist() == reference.read(name).lost.tolist()
    np.testing.assert_array_equal(found.copies, reference.copies)
    np.testing.assert_array_equal(found.column("id"), reference.column("id"))


@pytest.mark.parametrize("make", list(makes()))
@pytest.mark.parametrize(("sums", "functions"), [
    (cells.MEAN_AND_VARIANCE, (lambda y: y, np.square)), (cells.MEAN_AND_LOG, (lambda y: y, np.log)),
    (cells.MEAN, (lambda y: y,))])
def test_rows_of_a_cell_have_the_sums_of_its_rows(make: str, sums: cells.ResponseSums, functions: Any) -> None:
    found = gathered(makes()[make], Wanted(("size", "g", "flag"), "size", sums, cells=True))
    assert found.summed
    assert found.copies is not None
    assert found.n <= 2 * found.summed
    size, flag = found.column("size"), found.column("flag")
    for level in ("a", "b", "ä", None):
        for side in (False, True):
            rows = (COLUMNS["g"] == level) & (COLUMNS["flag"] == side)
            mine = np.array([own == level for own in found.column("g")]) & (flag == side)
            assert found.copies[mine].sum() == rows.sum()
            for function in functions:
                np.testing.assert_allclose(found.copies[mine] @ function(size[mine]),
                                           function(COLUMNS["size"][rows]).sum(), rtol=1e-12)


def test_the_variance_of_a_cell_is_not_lost_by_cancellation() -> None:
    y = 1e9 + R.standard_normal(1_000)
    found = gathered({"y": y, "g": np.zeros(1_000)}, Wanted(("y", "g"), "y", cells.MEAN_AND_VARIANCE, cells=True))
    assert found.copies is not None
    np.testing.assert_allclose(found.column("y").std(), y.std(), rtol=1e-6)
    lazy = gathered(pl.LazyFrame({"y": y, "g": np.zeros(1_000)}),
                    Wanted(("y", "g"), "y", cells.MEAN_AND_VARIANCE, cells=True))
    np.testing.assert_allclose(lazy.column("y").std(), y.std(), rtol=1e-6)


def test_a_response_outside_the_family_stays_to_be_refused() -> None:
    data = {"y": [1.0, 2.0, -3.0, np.nan, np.inf, 4.0], "g": list("aaabbc")}
    for make in (data, pl.LazyFrame(data), duckdb.connect().from_arrow(pa.table(data))):
        found = gathered(make, Wanted(("y", "g"), "y", cells.MEAN_AND_LOG, cells=True))
        assert found.copies is not None
        known = {(g, float(y)): n for g, y, n in zip(found.column("g"), found.column("y"), found.copies, strict=True)
                 if y == y}
        assert known == {("a", -3.0): 3.0, ("b", np.inf): 1.0, ("c", 4.0): 1.0}
        assert found.read("y").lost.sum() == 1


def test_rounding_is_the_same_in_every_engine() -> None:
    values = np.array([-1.25, -1.15, 0.05, 0.15, 0.25, 1.05, np.nan])
    wanted = Wanted(("y", "x"), "y", cells=True, digits={"x": 1})
    data = {"y": np.ones(7), "x": values}
    reference = gathered(data, wanted).column("x")
    for make in (pd.DataFrame(data), pl.DataFrame(data), pl.LazyFrame(data), pa.table(data),
                 duckdb.connect().from_arrow(pa.table(data))):
        found = gathered(make, wanted)
        np.testing.assert_array_equal(found.column("x"), reference)
    rows = gathered(data, Wanted(("y", "x"), "y", cells=False, digits={"x": 1})).column("x")
    np.testing.assert_array_equal(np.unique(rows), np.unique(reference))
    with pytest.raises(InputError, match="whole number of digits"):
        Wanted(("y", "x"), "y", digits={"x": 0.5})
    with pytest.raises(InputError, match="columns that the formula uses"):
        Wanted(("y", "x"), "y", digits={"z": 1})
    with pytest.raises(InputError, match="numbers to be rounded"):
        gathered({"y": [1.0], "x": ["a"]}, wanted)
    with pytest.raises(InputError, match="columns of numbers"):
        gathered(pl.LazyFrame({"y": [1.0], "x": ["a"]}), wanted)


def test_weights_given_as_an_array_are_a_column_of_the_cell() -> None:
    weights = R.integers(0, 3, N).astype(float)
    for data in (COLUMNS, pd.DataFrame(COLUMNS)):
        found = gathered(data, Wanted(("y", "flag"), "y", cells=True), weights)
        assert found.copies is not None
        assert found.columns == ("y", "flag", OWN_WEIGHTS)
        assert found.copies @ found.column(OWN_WEIGHTS) == weights.sum()
    with pytest.raises(InputError, match="must be one of their columns"):
        gathered(pl.DataFrame(COLUMNS).lazy(), Wanted(("y", "flag"), "y"), weights)
    with pytest.raises(InputError, match="one entry per row"):
        gathered(COLUMNS, Wanted(("y", "flag"), "y", cells=True), weights[:-1])


def test_rows_in_memory_are_grouped_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LEAST", 2_000)
    monkeypatch.setattr(gather, "SAMPLE", 1_000)
    for data in (COLUMNS, pd.DataFrame(COLUMNS), pl.DataFrame(COLUMNS), pl.DataFrame(COLUMNS).to_arrow()):
        few = gathered(data, Wanted(("y", "flag"), "y"))
        assert few.copies is not None
        assert few.n == 6
        assert few.whole is not None
        assert few.whole.n == N
        assert gathered(data, Wanted(("y", "size"), "y")).copies is None
        assert gathered(data, Wanted(("size", "flag"), "size", cells.MEAN_AND_VARIANCE)).copies is None  # loses checks
        assert gathered(data, Wanted(("y", "flag"), "y", cells=False)).copies is None
    monkeypatch.setattr(gather, "LEAST", 10_000)
    assert gathered(COLUMNS, Wanted(("y", "flag"), "y")).copies is None


def test_rows_elsewhere_are_grouped_unless_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(("y", "flag"), "y")
    for make in ("lazy", "duckdb", "batches"):
        assert gathered(makes()[make], wanted).copies is None
    monkeypatch.setattr(gather, "LEAST", 1_000)
    for make in ("lazy", "duckdb", "batches"):
        found = gathered(makes()[make], wanted)
        assert found.copies is not None
        assert found.copies.sum() == N
        assert found.whole is None
    for make in ("lazy", "duckdb"):
        rows = gathered(makes()[make], Wanted(("y", "size"), "y"))
        assert rows.copies is None
        assert rows.n == N
        assert rows.columns == ("y", "size")
    once = gathered(makes()["batches"], Wanted(("y", "size"), "y"))  # cannot be read again
    assert once.copies is not None
    assert once.n == N


def test_too_many_cells_are_counted_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LEAST", 100)
    monkeypatch.setattr(scans, "MOST_CELLS", 500)
    monkeypatch.setattr(scans, "CHUNK", 200)
    for make in ("lazy", "duckdb", "batches"):
        with pytest.raises(InputError, match=r"at most 500 .* of size, y; got [\d,]+ cells.* Round a number") as caught:
            gathered(makes()[make], Wanted(("y", "size"), "y", cells=True))
        assert ("3,000 cells" in caught.value.got) == (make != "batches")


def test_cells_of_many_chunks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pl.DataFrame(COLUMNS).to_arrow()
    categories = arrow.set_column(2, "g", arrow["g"].combine_chunks().dictionary_encode())
    whole = gathered(COLUMNS, Wanted(("size", "g", "x"), "size", cells.MEAN_AND_VARIANCE, cells=True))
    monkeypatch.setattr(scans, "CHUNK", 16)
    found = gathered(iter(categories.to_batches(max_chunksize=50)),
                     Wanted(("size", "g", "x"), "size", cells.MEAN_AND_VARIANCE, cells=True))
    assert found.summed == whole.summed
    np.testing.assert_array_equal(found.copies, whole.copies)
    np.testing.assert_allclose(found.column("size"), whole.column("size"), rtol=1e-12)


def test_levels_keep_their_order() -> None:
    frame = pd.DataFrame({"y": [0, 1, 1], "c": pd.Categorical(list("uvu"), ["v", "w", "u"], ordered=True)})
    column = gathered(frame, Wanted(("y", "c"), "y", cells=True)).read("c")
    assert column.ordered
    assert column.factor[1] == ("v", "u")
    assert read_frame(frame).read("c").factor[1] == ("v", "u")
