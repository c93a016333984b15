"""Frames of every make come in as the same columns, and results go out in the make of the data."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from klimb.errors import InputError
from klimb.rows.columns import number_label, read_column
from klimb.rows.frames import make_frame, read_frame

PLAIN: dict[str, list[Any]] = {
    "x": [1.0, None, 3.0, -2.5],
    "i": [3, 1, 2, 3],
    "g": ["b", None, "a", "b"],
    "flag": [True, False, None, True],
    "sure": [True, False, True, True],
}


def structured() -> np.ndarray:
    return np.array([(1.0, 2, "a"), (2.0, 3, "b")], dtype=[("x", float), ("i", int), ("g", "U3")])


MAKES = {
    "dict": PLAIN,
    "pandas": pd.DataFrame(PLAIN),
    "pandas nullable": pd.DataFrame(PLAIN).convert_dtypes(),
    "pandas arrow": pd.DataFrame(PLAIN).convert_dtypes(dtype_backend="pyarrow"),
    "pandas object": pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in PLAIN.items()}),
    "polars": pl.DataFrame(PLAIN),
    "polars lazy": pl.DataFrame(PLAIN).lazy(),
    "pyarrow": pa.table(PLAIN),
    "dict of series": {name: pd.Series(values) for name, values in PLAIN.items()},
    "dict of polars series": {name: pl.Series(values) for name, values in PLAIN.items()},
}


@pytest.mark.parametrize("make", MAKES)
def test_every_make_gives_the_same_columns(make: str) -> None:
    frame = read_frame(MAKES[make])
    assert frame.columns == tuple(PLAIN)
    assert frame.n == 4
    np.testing.assert_array_equal(frame.column("x"), [1.0, np.nan, 3.0, -2.5])
    np.testing.assert_array_equal(frame.column("i"), [3, 1, 2, 3])
    assert frame.column("g").tolist() == ["b", None, "a", "b"]
    assert frame.column("sure").tolist() == [True, False, True, True]
    np.testing.assert_array_equal(frame.read("flag").number, [1.0, 0.0, np.nan, 1.0])
    codes, levels = frame.read("g").factor
    assert (codes.tolist(), levels) == ([1, -1, 0, 1], ("a", "b"))
    codes, levels = frame.read("i").factor
    assert (codes.tolist(), levels) == ([2, 0, 1, 2], ("1", "2", "3"))
    codes, levels = frame.read("flag").factor
    assert (codes.tolist(), levels) == ([1, 0, -1, 1], ("False", "True"))
    assert [frame.read(name).kind for name in frame.columns] == ["number", "number", "text", "flag", "flag"]


def test_structured_and_record_arrays() -> None:
    data = structured()
    frame = read_frame(data)
    assert frame.columns == ("x", "i", "g")
    assert frame.read("g").factor[1] == ("a", "b")
    made = make_frame({"m": np.array([0.5, 1.5])}, frame)
    assert made.dtype.names == ("m",)
    assert not isinstance(made, np.recarray)
    assert isinstance(make_frame({"m": np.zeros(2)}, read_frame(data.view(np.recarray))), np.recarray)


def test_results_have_the_make_of_the_data() -> None:
    out = {"mean": np.array([0.5, 1.5]), "label": np.array(["a", "b"], dtype=object)}
    made = make_frame(out, read_frame(pd.DataFrame({"x": [1, 2]}, index=["r", "s"])))
    assert isinstance(made, pd.DataFrame)
    assert made.index.tolist() == ["r", "s"]
    assert made["mean"].tolist() == [0.5, 1.5]
    made = make_frame(out, read_frame(pd.DataFrame({"x": [1, 2, 3]}, index=[7, 8, 9])), np.array([0, 2]))
    assert made.index.tolist() == [7, 9]
    assert isinstance(make_frame(out, read_frame(pl.DataFrame({"x": [1, 2]}))), pl.DataFrame)
    assert isinstance(make_frame(out, read_frame(pa.table({"x": [1, 2]}))), pa.Table)
    assert make_frame(out, read_frame({"x": [1, 2]}))["mean"].tolist() == [0.5, 1.5]


@pytest.mark.parametrize("like", [{"x": []}, pd.DataFrame({"x": []}), pl.DataFrame({"x": []}), pa.table({"x": []}),
                                  np.zeros(0, dtype=[("x", float)])], ids=["dict", "pandas", "polars", "pyarrow",
                                                                           "numpy"])
def test_no_rows(like: Any) -> None:
    frame = read_frame(like)
    assert frame.n == 0
    assert len(frame.column("x")) == 0
    assert len(make_frame({"mean": np.zeros(0)}, frame)["mean"] if frame.kind != "numpy" else frame.column("x")) == 0


def test_categories_keep_their_order() -> None:
    levels = ["low", "mid", "high"]
    values = ["high", "low", None, "high"]
    ordered = pd.DataFrame({"c": pd.Categorical(values, categories=levels, ordered=True)})
    for data in (ordered, pl.DataFrame({"c": pl.Series(values, dtype=pl.Enum(levels))})):
        column = read_frame(data).read("c")
        assert column.kind == "category"
        codes, found = column.factor
        assert found == ("low", "high")  # "mid" does not occur
        assert codes.tolist() == [1, 0, -1, 1]
        assert column.plain().tolist() == values
    dictionary = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 2]), pa.array(levels), ordered=True)
    assert read_frame(pa.table({"c": dictionary})).read("c").factor[1] == ("low", "high")
    # Arrow and polars number categories as they meet them, which means nothing: sorted like text.
    for data in (pa.table({"c": pa.array(values).dictionary_encode()}),
                 pl.DataFrame({"c": pl.Series(values, dtype=pl.Categorical)})):
        assert read_frame(data).read("c").factor[1] == ("high", "low")


def test_categories_of_numbers() -> None:
    data = pd.DataFrame({"c": pd.Categorical([10, 2, 2, 10])})
    assert read_frame(data).read("c").factor[1] == ("2", "10")
    bins = pd.DataFrame({"c": pd.cut([1, 5, 9], [0, 3, 6, 10])})
    assert read_frame(bins).read("c").factor[1] == ("(0, 3]", "(3, 6]", "(6, 10]")


def test_labels_do_not_depend_on_the_type() -> None:
    for values in ([3, 1, 2], [3.0, 1.0, 2.0], np.array([3, 1, 2], dtype=np.int8),
                   np.array([3, 1, 2], dtype=np.float32)):
        assert read_column("i", values).factor[1] == ("1", "2", "3")
    assert read_column("i", ["3", "1", "2"]).factor[1] == ("1", "2", "3")
    assert number_label(1e300) == "1e+300"
    assert number_label(2**60) == str(2**60)
    assert number_label(-0.0) == "0"


@pytest.mark.parametrize(
    "values",
    [[datetime.date(2020, 1, 2), None], [datetime.datetime(2020, 1, 2), datetime.datetime(2021, 1, 2)],  # noqa: DTZ001
     np.array(["2020-01-02", "NaT"], dtype="M8[D]")],
)
def test_dates(values: Any) -> None:
    column = read_column("when", values)
    assert column.kind == "date"
    with pytest.raises(InputError, match="days since the first one"):
        _ = column.number
    assert column.factor[1][0].startswith("2020-01-02")


def test_dates_of_frames() -> None:
    when = [datetime.date(2020, 1, 2), datetime.date(2021, 1, 2)]
    for data in (pd.DataFrame({"w": pd.to_datetime(when)}), pl.DataFrame({"w": when}), pa.table({"w": when})):
        column = read_frame(data).read("w")
        assert column.kind == "date"
        assert len(column.factor[1]) == 2


def test_other_numbers() -> None:
    assert read_column("x", [decimal.Decimal("1.5"), None]).number.tolist()[0] == 1.5
    assert read_column("x", np.ma.masked_array([1, 2, 3], mask=[False, True, False])).missing.tolist() == [0, 1,
                                                                                                           0]  # type: ignore[union-attr]
    assert read_column("x", np.array([b"a", b"b"])).factor[1] == ("a", "b")
    assert read_column("x", [None, None]).missing.all()  # type: ignore[union-attr]
    assert read_column("x", np.arange(10)[::3]).number.tolist() == [0.0, 3.0, 6.0, 9.0]


def test_mixed_and_strange_values_name_their_rows() -> None:
    with pytest.raises(InputError, match=r"1 text value among numbers: 'three' at row 2"):
        _ = read_column("x", [1.0, 2.0, "three"]).number
    with pytest.raises(InputError, match=r"text: 'n/a' at row 1"):
        _ = read_column("x", ["1", "n/a", "3"]).number
    with pytest.raises(InputError, match="numbers, booleans, text or categories"):
        _ = read_column("x", [{}, {}]).number
    with pytest.raises(InputError, match="numbers, booleans, text or categories"):
        _ = read_column("x", np.array([1j, 2j])).factor
    with pytest.raises(InputError, match="one dimension"):
        read_column("x", np.zeros((3, 2)))


def test_bad_frames() -> None:
    with pytest.raises(InputError, match="same length"):
        read_frame({"x": [1], "y": [1, 2]})
    with pytest.raises(InputError, match="a list or an array"):
        read_frame({"x": 3})
    with pytest.raises(InputError, match="must be text"):
        read_frame({1: [1.0]})
    with pytest.raises(InputError, match="must be text"):
        read_frame(pd.DataFrame([[1, 2]]))
    with pytest.raises(InputError, match="without names"):
        read_frame(np.zeros((3, 2)))
    with pytest.raises(InputError, match="data frame"):
        read_frame([1, 2])
    with pytest.raises(InputError, match="more than one column called 'a'"):
        read_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InputError, match="more than one column called 'a'"):
        read_frame(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(InputError, match="Did you mean 'age'"):
        read_frame({"age": [1]}).read("agge")


def test_unused_columns_may_hold_anything() -> None:
    frame = read_frame({"x": [1.0, 2.0], "junk": np.zeros((2, 3))})
    assert frame.column("x").tolist() == [1.0, 2.0]


def test_a_dict_needs_no_narwhals() -> None:
    code = ("import sys; from klimb.terms.encoder import encode; "
            "encode('y ~ x + (1|g)', {'y': [1.0, 2.0], 'x': [0.0, 1.0], 'g': ['a', 'b']}); "
            "print([m for m in ('narwhals', 'pandas', 'scipy.optimize') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_day_is_one_level_whatever_library_wrote_it():
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    times = np.array(days, dtype="datetime64[us]").tolist()  # as Python has them
    late = np.array(["2024-01-01T10:30:00.500000"] * 2, dtype="datetime64[us]").tolist()
    stamps = np.array(days, dtype="datetime64[ns]")
    for column in (days, times, stamps, stamps.astype("datetime64[D]"), pd.Series(times), pl.Series(days),
                   pl.Series(times), pa.array(days), ["2024-01-01", "2024-01-02"]):
        assert read_frame({"day": column}).read("day").factor[1] == ("2024-01-01", "2024-01-02")
    for column in (late, np.array(late, dtype="datetime64[ns]"), pd.Series(late), pl.Series(late)):
        assert read_frame({"at": column}).read("at").factor[1] == ("2024-01-01 10:30:00.5",)


def test_whole_numbers_of_128_bits_are_numbers() -> None:
    column = pl.Series([1, 2, 3], dtype=pl.Int128)
    assert read_frame(pl.DataFrame({"x": column})).read("x").number.tolist() == [1.0, 2.0, 3.0]


def test_a_record_batch_is_a_table() -> None:
    frame = read_frame(pa.record_batch({"x": [1.0, None], "g": ["a", "b"]}))
    assert (frame.kind, frame.n) == ("pyarrow", 2)
    assert np.isnan(frame.read("x").number[1])
