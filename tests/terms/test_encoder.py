"""What formulas make of data: groups, smooths, responses, missing values, unseen levels, and the state as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import make_smoothing_spline
from tests.terms.view import View, encode, view

from klimb._stored import pack, unpack
from klimb.errors import InputError
from klimb.formula import FormulaError
from klimb.formula.factors import INTERCEPT
from klimb.terms.base import UNSEEN
from klimb.terms.encoder import Encoder
from klimb.terms.smooth import Smooth, roughness

RNG = np.random.default_rng(8)
N = 60
DATA: dict[str, Any] = {
    "y": RNG.normal(size=N),
    "x": RNG.uniform(0.0, 10.0, N),
    "z": RNG.uniform(1.0, 2.0, N),
    "a": RNG.choice(["p", "q", "r"], N),
    "flag": RNG.random(N) < 0.5,
    "g": RNG.integers(10, 15, N),
    "h": RNG.choice(["s", "t"], N),
    "n": RNG.integers(5, 9, N),
    "k": RNG.integers(0, 5, N),
}
EVERYTHING = ('log(z) ~ x*a + flag + poly(x, 3) + bs(z, df=5) + C(a, Sum, reference="q"):z + standardize(sqrt(x)) '
              "+ (1 + x | g/h) + (0 + a || h) + offset(log(z)) + s(x, by=a, k=6) + s(z, k=5) + gp(x, z, kernel=rbf)")


def same(one: View, other: View) -> bool:
    """Bit for bit."""
    blocks = [(one.matrix, other.matrix), (one.offset, other.offset), (one.rows, other.rows)]
    blocks += [(a.values, b.values) for a, b in zip(one.groups, other.groups, strict=True)]
    blocks += [(a.codes, b.codes) for a, b in zip(one.groups, other.groups, strict=True)]
    blocks += [(a.values, b.values) for a, b in zip(one.smooths, other.smooths, strict=True)]
    blocks += [(a.inputs, b.inputs) for a, b in zip(one.gps, other.gps, strict=True)]
    return one.names == other.names and all(np.array_equal(a, b) for a, b in blocks)


# -- state ------------------------------------------------------------------------------------------------------------


def reread(encoder: Encoder) -> Encoder:
    """Through the text of a file and back."""
    arrays: dict[str, Any] = {}
    found = unpack(json.loads(json.dumps(pack(encoder, arrays), allow_nan=False)), arrays)
    assert isinstance(found, Encoder)
    return found


def test_state_survives_a_file_exactly() -> None:
    encoder, blocks = encode(EVERYTHING, DATA)
    again = reread(encoder)
    assert same(view(again, DATA), blocks)
    assert np.array_equal(view(again, DATA, response=True).response, blocks.response)
    assert json.dumps(pack(again, {})) == json.dumps(pack(encoder, {}))


@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=30, unique=True),
       st.sampled_from([1e-200, 1e-12, 1.0, 1e6, 1e200]))
def test_any_numbers_survive(values: list[float], size: float) -> None:
    x = np.array(values) * size
    if len(np.unique(x)) < 6 or x.max() - x.min() <= 1e-9 * np.abs(x).max():
        return
    data = {"y": np.arange(len(x)) * 1.0, "x": x}
    encoder, blocks = encode("y ~ poly(x, 2) + s(x, k=4) + scale(x) + gp(x)", data)
    again = reread(encoder)
    assert same(view(again, data), blocks)
    for matrix in (blocks.matrix[:, 1:3], blocks.smooths[0].values, blocks.gps[0].inputs):
        assert np.isfinite(matrix).all()
    np.testing.assert_allclose(blocks.gps[0].inputs.std(ddof=1), 1.0, rtol=1e-9)


def test_rows_do_not_depend_on_each_other() -> None:
    """One row of a frame is encoded as it is among others (nothing is learnt again)."""
    encoder, blocks = encode(EVERYTHING, DATA)
    for row in (0, 17, 59):
        alone = view(encoder, {name: values[row : row + 1] for name, values in DATA.items()})
        np.testing.assert_allclose(alone.matrix[0], blocks.matrix[row], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(alone.smooths[0].values[0], blocks.smooths[0].values[row], rtol=1e-12, atol=1e-12)
        assert alone.groups[1].codes[0] == blocks.groups[1].codes[row]
    none = view(encoder, {name: values[:0] for name, values in DATA.items()})
    assert none.matrix.shape == (0, len(blocks.names))
    assert none.smooths[0].values.shape == (0, 4)


@pytest.mark.parametrize("change", [
    {"extra": 1}, {"formula": 3}, {"terms": [{"$": "term.fixed"}]}, {"terms": [{"$": "magic"}]}, {"terms": 3},
    {"variables": [[]]}, {"variables": 3}, {"missing": 1.0}, {"response": {"$": "formula.left", "kind": "magic"}},
    {"response": {"$": "formula.numeric", "column": "x", "steps": [{"$": "formula.step", "function": "eval",
                                                                     "learnt": [1.0]}]}},
    {"response": {"$": "formula.step", "function": "scale", "learnt": [1.0]}},
    {"response": {"$": "formula.step", "function": "center", "learnt": [{"$": "number", "value": "nan"}]}},
])
def test_unknown_states_are_refused(change: dict[str, Any]) -> None:
    encoder, _ = encode("y ~ x + (1 | g)", DATA)
    arrays: dict[str, Any] = {}
    with pytest.raises(InputError, match="; got "):
        unpack({**pack(encoder, arrays), **change}, arrays)


def test_damaged_smooths_are_refused() -> None:
    encoder, _ = encode("y ~ s(x)", DATA)
    arrays: dict[str, Any] = {}
    state = pack(encoder, arrays)
    for change in ({"knots": np.array([0.0, 1.0, 0.5])}, {"transform": np.ones((1, 1))}, {"line": np.zeros(0)}):
        for name, value in change.items():
            damaged = {key: value if key.endswith(name) else kept for key, kept in arrays.items()}
            with pytest.raises(InputError, match="knots"):
                unpack(state, damaged)


@pytest.mark.parametrize("state", [{"$": "encoder"}, {"$": 3}, {}, {"$": ["encoder"]}])
def test_no_state_at_all_is_refused(state: Any) -> None:
    with pytest.raises(InputError, match="that this version of klimb knows"):
        unpack(state, {})


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups() -> None:
    encoder, blocks = encode("y ~ x + (1 + x | g) + (1 | g:h) + (0 + a || h)", DATA)
    by_g, by_both, by_h = blocks.groups
    assert by_g.levels == tuple(str(level) for level in sorted(set(DATA["g"].tolist())))
    assert by_g.columns == (INTERCEPT, "x")
    assert by_g.correlated
    np.testing.assert_array_equal(by_g.values, np.column_stack([np.ones(N), DATA["x"]]))
    assert [by_g.levels[code] for code in by_g.codes] == [str(level) for level in DATA["g"]]
    assert [by_both.levels[code] for code in by_both.codes] == [f"{g}:{h}" for g,
                                                                h in zip(DATA["g"], DATA["h"], strict=True)]
    assert not by_h.correlated
    assert by_h.columns == ("a[p]", "a[q]", "a[r]")
    assert encoder.predictors == ("x", "g", "h", "a")


def test_new_groups_are_unseen() -> None:
    encoder, _ = encode("y ~ (1 | g) + (1 | g:h)", {**DATA, "h": np.where(DATA["g"] == 10, "s", DATA["h"])})
    blocks = view(encoder, {"g": [10, 99, 10, 11], "h": ["s", "s", "t", "never"]})
    assert blocks.groups[0].codes.tolist() == [0, UNSEEN, 0, 1]
    assert blocks.groups[1].codes.tolist() == [0, UNSEEN, UNSEEN, UNSEEN]


def test_group_labels_match_across_types() -> None:
    encoder, _ = encode("y ~ (1 | g)", {"y": [1.0, 2.0, 3.0], "g": [1, 2, 3]})
    for again in ([3.0, 1.0], ["3", "1"], np.array([3, 1], dtype=np.int8), pd.Categorical([3, 1])):
        assert view(encoder, {"g": again}).groups[0].codes.tolist() == [2, 0]


def test_nested_groups_with_colons_in_their_names() -> None:
    data = {"y": [1.0, 2.0, 3.0, 4.0], "g": ["a:b", "a", "a", "a:b"], "h": ["c", "b:c", "c", "c"]}
    _, blocks = encode("y ~ (1 | g:h)", data)
    assert blocks.groups[0].codes.tolist() == [2, 0, 1, 2]  # "a:b" in "c" is not "a" in "b:c", though they read alike


# -- factors ----------------------------------------------------------------------------------------------------------


def test_unseen_level_of_a_fixed_factor() -> None:
    encoder, _ = encode("y ~ a", DATA)
    with pytest.raises(InputError, match=r"p, q, r; got 'new' in rows 1, 2\. .*\(1 \| a\)"):
        view(encoder, {"a": ["p", "new", "new"]})


def test_unused_levels_are_dropped_and_order_is_kept() -> None:
    data = pd.DataFrame({"y": [1.0, 2.0, 3.0, np.nan],
                         "c": pd.Categorical(["hi", "lo", "hi", "mid"], categories=["lo", "none", "mid", "hi"])})
    _, blocks = encode("y ~ c", data)
    assert blocks.names == (INTERCEPT, "c[T.hi]")  # "none" never occurs, "mid" only in a dropped row
    _, blocks = encode("c ~ 1", data)
    assert blocks.response.tolist() == [2.0, 0.0, 2.0, 1.0]


def test_booleans_are_factors() -> None:
    encoder, blocks = encode("y ~ flag*x", DATA)
    assert blocks.names == (INTERCEPT, "flag[T.True]", "x", "flag[T.True]:x")
    assert view(encoder, {"flag": [True], "x": [2.0]}).matrix.tolist() == [[1.0, 1.0, 2.0, 2.0]]
    assert view(encoder, {"flag": ["True"], "x": [2.0]}).matrix.tolist() == [[1.0, 1.0, 2.0, 2.0]]


def test_one_level() -> None:
    _, blocks = encode("y ~ a + C(a, Helmert) + C(a, Poly)", {"y": [1.0, 2.0], "a": ["p", "p"]})
    assert blocks.names == (INTERCEPT,)
    _, blocks = encode("y ~ 0 + a", {"y": [1.0, 2.0], "a": ["p", "p"]})
    assert blocks.names == ("a[p]",)


def test_level_options_are_checked() -> None:
    with pytest.raises(FormulaError, match=r"The levels are: p, q, r"):
        encode('y ~ C(a, reference="w")', DATA)
    with pytest.raises(FormulaError, match="'r' left out"):
        encode('y ~ C(a, levels=["p", "q"])', DATA)
    with pytest.raises(FormulaError, match="Treatment or Sum"):
        encode('y ~ C(a, Helmert, reference="p")', DATA)
    with pytest.raises(FormulaError, match="at most 40 levels"):
        encode("y ~ C(x, Poly)", DATA)
    _, blocks = encode("y ~ C(g, reference=12)", DATA)
    assert "C(g, reference=12)[T.12]" not in blocks.names
    assert len(blocks.names) == 5


def test_too_wide_a_factor_is_refused_before_memory_is() -> None:
    names = np.arange(60_000)
    with pytest.raises(InputError, match=r"\(1 \| g\)"):
        encode("y ~ C(g)", {"y": names * 1.0, "g": names})


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("formula", "values", "says"), [
    ("y ~ log(x)", [1.0, -2.0, 0.0], r"log\(x\) needs x > 0; got -2.0 at row 1, 0.0 at row 2"),
    ("y ~ sqrt(x)", [1.0, -2.0, 4.0], r"sqrt\(x\) needs x >= 0; got -2.0 at row 1"),
    ("y ~ log1p(x)", [1.0, -1.0, 4.0], r"log1p\(x\) needs x > -1; got -1.0 at row 1"),
    ("y ~ exp(x)", [1.0, 1000.0, 4.0], r"exp\(x\) must be finite; got 1000.0 at row 1"),
    ("y ~ log(log(x))", [3.0, 0.5, 4.0], r"log\(log\(x\)\) needs log\(x\) > 0; got -0.69\d+ at row 1"),
    ("y ~ x", [1.0, np.inf, 4.0], r"finite numbers; got inf at row 1"),
    ("y ~ x", [1.0, "two", 4.0], r"1 text value among numbers: 'two' at row 1"),
    ("y ~ log(x)", ["1", "two", "4"], r"must hold numbers; got text: 'two' at row 1"),
    ("y ~ scale(x)", [2.0, 2.0, 2.0], r"scale\(x\) needs a column that varies; got 2 in every row"),
    ("y ~ gp(x)", [2.0, 2.0, 2.0], r"gp\(x\) needs a column that varies"),
    ("y ~ bs(x)", [2.0, 2.0, 2.0], r"needs a column that varies"),
    ("y ~ poly(x, 3)", [1.0, 2.0, 3.0], r"at least 4 different values for degree 3; got 3"),
    ("y ~ s(x)", [1.0, 2.0, 3.0], r"at least 4 different values for a curve; got 3 in x"),
    ("y ~ poly(x, 99)", [1.0, 2.0, 3.0], "degree from 1 to 50"),
    ("y ~ poly(x, 40, raw=True)", [1e9, 2.0, 3.0], "must be finite"),
    ("y ~ bs(x, df=2)", [1.0, 2.0, 3.0], "df of at least the degree"),
    ("y ~ bs(x, knots=[7])", [1.0, 2.0, 3.0], "inner knots between 1 and 3"),
    ("y ~ bs(x, df=4, knots=[1.5, 2])", [1.0, 2.0, 3.0], "they disagree"),
    ("y ~ gp(x, kernel=mattern52)", [1.0, 2.0, 3.0], "Did you mean 'matern52'"),
    ("y ~ x", np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="M8[D]"), "days since the first one"),
    ("log(x) ~ 1", [1.0, -2.0, 0.0], r"log\(x\) needs x > 0"),
    ("scale(x) ~ 1", [1.0, 2.0, 3.0], "one response left of ~"),
    ("x + y ~ 1", [1.0, 2.0, 3.0], "one response left of ~"),
])
def test_bad_values_point_at_rows_and_formula(formula: str, values: Any, says: str) -> None:
    with pytest.raises(FormulaError, match=says) as caught:
        encode(formula, {"y": [1.0, 2.0, 3.0], "x": values})
    assert "^" in str(caught.value)


def test_row_numbers_are_those_of_the_frame() -> None:
    data = {"y": [1.0, 2.0, 3.0, 4.0], "x": [np.nan, 1.0, 2.0, -3.0]}
    with pytest.raises(InputError, match=r"-3.0 at row 3"):
        encode("y ~ log(x)", data)


def test_bad_values_of_new_data() -> None:
    encoder, _ = encode("y ~ log(z) + bs(x, df=4)", DATA)
    with pytest.raises(InputError, match=r"log\(z\) needs z > 0; got -1.0 at row 1"):
        view(encoder, {"x": [5.0, 5.0], "z": [1.0, -1.0]})
    with pytest.raises(InputError, match=r"where it was fitted; got 11.0 at row 0.*straight line"):
        view(encoder, {"x": [11.0], "z": [1.0]})
    with pytest.raises(InputError, match="no column 'z'"):
        view(encoder, {"x": [5.0]})


def test_text_that_is_nearly_all_numbers() -> None:
    column = [f"{value:.3f}" for value in DATA["x"]]
    column[7] = "n/a"
    with pytest.raises(FormulaError, match="mostly numbers, and 'n/a' at row 7"):
        encode("y ~ x", {"y": DATA["y"], "x": column})
    _, blocks = encode("y ~ C(x) + (1 | x)", {"y": DATA["y"], "x": column})  # asked for
    assert "C(x)[T.n/a]" in blocks.names


def test_standardize_uses_the_data_of_the_fit() -> None:
    encoder, blocks = encode("y ~ 0 + standardize(x)", DATA)
    column = blocks.matrix[:, 0]
    np.testing.assert_allclose([column.mean(), column.std(ddof=1)], [0.0, 1.0], atol=1e-14)
    expected = (3.0 - DATA["x"].mean()) / DATA["x"].std(ddof=1)
    np.testing.assert_allclose(view(encoder, {"x": [3.0]}).matrix, [[expected]])


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e6, 1e300])
def test_extreme_scales(size: float) -> None:
    data = {"y": DATA["y"], "x": (DATA["x"] - 5.0) * size}
    _, blocks = encode("y ~ scale(x) + poly(x, 3) + bs(x, df=5) + s(x) + gp(x)", data)
    _, plain = encode("y ~ scale(x) + poly(x, 3) + bs(x, df=5) + s(x) + gp(x)", {"y": DATA["y"], "x": DATA["x"] - 5.0})
    np.testing.assert_allclose(blocks.matrix[:, :-1], plain.matrix[:, :-1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(blocks.smooths[0].values, plain.smooths[0].values, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(blocks.gps[0].inputs, plain.gps[0].inputs, rtol=1e-9, atol=1e-9)


def test_offsets_add_up() -> None:
    encoder, blocks = encode("y ~ x + offset(z) + offset(log(z))", DATA)
    np.testing.assert_allclose(blocks.offset, DATA["z"] + np.log(DATA["z"]))
    np.testing.assert_allclose(view(encoder, {"x": [1.0], "z": [1.0]}).offset, [1.0])
    assert "offset(z)" not in blocks.names


# -- response ---------------------------------------------------------------------------------------------------------


def test_responses() -> None:
    assert encode("y ~ 1", DATA)[1].response.tolist() == DATA["y"].tolist()
    np.testing.assert_array_equal(encode("log(z) ~ 1", DATA)[1].response, np.log(DATA["z"]))
    encoder, blocks = encode("a ~ 1", DATA)
    assert encoder.response is not None
    assert encoder.response.levels == ("p", "q", "r")
    assert [("p", "q", "r")[int(code)] for code in blocks.response] == DATA["a"].tolist()
    assert encode("flag ~ 1", {"flag": [True, True]})[1].response.tolist() == [1.0, 1.0]
    assert encode("~ x", DATA)[1].response is None


@pytest.mark.parametrize("left", ["p(k, n)", "k | trials(n)", "cbind(k, m)"])
def test_trials(left: str) -> None:
    data = {**DATA, "m": DATA["n"] - DATA["k"]}
    encoder, blocks = encode(f"{left} ~ x", data)
    np.testing.assert_array_equal(blocks.response, np.column_stack([DATA["k"], DATA["n"]]))
    assert view(encoder, DATA if "m" not in left else data, response=True).response.shape == (N, 2)
    assert encoder.predictors == ("x",)


def test_bad_trials() -> None:
    with pytest.raises(InputError, match=r"no more successes than trials; got 3.0 at row 1"):
        encode("p(k, n) ~ 1", {"k": [1, 3], "n": [2, 2]})
    with pytest.raises(InputError, match=r"counts in 'k'; got 0.5 at row 1"):
        encode("cbind(k, n) ~ 1", {"k": [1, 0.5], "n": [2, 2]})


# -- missing values ---------------------------------------------------------------------------------------------------


def test_missing_values_are_dropped_with_a_count() -> None:
    data = pd.DataFrame({"y": [1.0, np.nan, 3.0, 4.0, 5.0], "x": [1.0, 2.0, None, 4.0, 5.0],
                         "g": ["a", "b", "a", None, "b"], "unused": [np.nan] * 5})
    encoder, blocks = encode("y ~ x + (1 | g)", data)
    assert blocks.rows.tolist() == [0, 4]
    assert (blocks.n, blocks.dropped) == (2, 3)
    with pytest.raises(InputError, match=r"'y': row 1; 'x': row 2; 'g': row 3"):
        encode("y ~ x + (1 | g)", data, missing="error")
    assert view(encoder, data).rows.tolist() == [0, 1, 4]  # the response does not matter for prediction
    with pytest.raises(InputError, match="'x': row 2"):
        view(encoder, data, missing="error")
    with pytest.raises(InputError, match='"drop", "error" or "predict"'):
        encode("y ~ x", data, missing="impute")


def test_nothing_left() -> None:
    with pytest.raises(InputError, match="at least one complete row"):
        encode("y ~ x", {"y": [1.0, None], "x": [None, 2.0]})
    with pytest.raises(InputError, match="no rows"):
        encode("y ~ x", {"y": [], "x": []})


def test_nothing_left_to_predict() -> None:
    encoder, _ = encode("y ~ x + poly(z, 2) + (1 | g) + s(x)", DATA)
    blocks = view(encoder, {"x": [np.nan], "z": [1.0], "g": [10]})
    assert (blocks.n, blocks.dropped, len(blocks.matrix)) == (0, 1, 0)


def test_missing_values_of_every_make_agree() -> None:
    plain = {"y": [1.0, None, 3.0], "g": ["a", "b", None]}
    for data in (plain, pd.DataFrame(plain), pl.DataFrame(plain), pd.DataFrame(plain).convert_dtypes()):
        assert encode("y ~ (1 | g)", data)[1].rows.tolist() == [0]


# -- smooths and processes --------------------------------------------------------------------------------------------


def test_smooth_is_the_smoothing_spline() -> None:
    """With a knot at every value, iid coefficients give the cubic smoothing spline, computed by scipy."""
    x, y = np.sort(DATA["x"]), np.sin(np.sort(DATA["x"])) + 0.3 * RNG.normal(size=N)
    encoder, blocks = encode("y ~ s(x, k=60)", {"x": x, "y": y})
    smooth = encoder.terms[1]
    assert isinstance(smooth, Smooth)
    assert smooth.size == N - 2
    R = roughness(np.array(smooth.knots))
    unit = (np.array(smooth.transform).T @ R @ np.array(smooth.transform))
    np.testing.assert_allclose(unit, unit[0, 0] * np.eye(N - 2), atol=1e-9 * unit[0, 0])
    penalty = 0.7
    ridge = penalty * unit[0, 0] / smooth.width**3  # the integral over x, not over (x - shift) / size
    X = np.column_stack([blocks.matrix, blocks.smooths[0].values])
    weights = np.linalg.solve(X.T @ X + ridge * np.diag([0.0, 0.0] + [1.0] * (N - 2)), X.T @ y)
    expected = make_smoothing_spline(x, y, lam=penalty)
    np.testing.assert_allclose(X @ weights, expected(x), atol=1e-7)
    between = np.linspace(x[0] - 3.0, x[-1] + 3.0, 50)
    new = view(encoder, {"x": between})
    ours = np.column_stack([new.matrix, new.smooths[0].values]) @ weights
    inside = (between >= x[0]) & (between <= x[-1])
    np.testing.assert_allclose(ours[inside], expected(between[inside]), atol=1e-7)
    outside = ours[between > x[-1]]
    np.testing.assert_allclose(np.diff(outside, 2), 0.0, atol=1e-8)  # straight


def test_smooth_leaves_the_line_to_the_fixed_part() -> None:
    _, blocks = encode("y ~ s(x)", DATA)
    assert blocks.names == (INTERCEPT, "s(x)[slope]")
    basis = blocks.smooths[0].values
    assert basis.shape == (N, 8)
    np.testing.assert_allclose(basis.T @ blocks.matrix, 0.0, atol=1e-9)
    np.testing.assert_allclose((basis**2).sum(axis=1).mean(), 1.0)
    # A slope that is there already is not added again.
    assert encode("y ~ x + s(x)", DATA)[1].names == (INTERCEPT, "x")
    assert encode("y ~ s(x) + s(x, by=a)", DATA)[1].names == (
        INTERCEPT, "s(x)[slope]", "a[T.q]:s(x)[slope]", "a[T.r]:s(x)[slope]")
    assert encode("y ~ s(log(x), k=5)", DATA)[1].names == (INTERCEPT, "s(log(x))[slope]")


def test_smooth_by() -> None:
    _, blocks = encode("y ~ a + s(x, by=a)", DATA)
    assert blocks.names == (INTERCEPT, "a[T.q]", "a[T.r]", "a[p]:s(x)[slope]", "a[q]:s(x)[slope]",
                                  "a[r]:s(x)[slope]")
    assert [block.name for block in blocks.smooths] == [f"s(x, by=a)[{level}]" for level in "pqr"]
    _, whole = encode("y ~ s(x)", DATA)
    for level, block in zip("pqr", blocks.smooths, strict=True):
        here = DATA["a"] == level
        np.testing.assert_array_equal(block.values[~here], 0.0)
        np.testing.assert_allclose(block.values[here], whole.smooths[0].values[here])
    _, blocks = encode("y ~ s(x, by=z)", DATA)
    assert blocks.names == (INTERCEPT, "z", "z:s(x)[slope]")
    np.testing.assert_allclose(blocks.smooths[0].values, whole.smooths[0].values * DATA["z"][:, None])


def test_smooth_with_few_values_or_given_knots() -> None:
    _, blocks = encode("y ~ s(k)", {"y": np.arange(40.0), "k": np.arange(40) % 5})
    assert blocks.smooths[0].values.shape == (40, 3)
    _, blocks = encode("y ~ s(x, knots=[2, 4, 6])", DATA)
    low, size = DATA["x"].min(), np.ptp(DATA["x"])
    np.testing.assert_allclose(np.array(blocks.smooths[0].knots[1:-1]) * size + low, [2.0, 4.0, 6.0])
    with pytest.raises(FormulaError, match="inner knots between"):
        encode("y ~ s(x, knots=[-2, 4, 6])", DATA)
    with pytest.raises(FormulaError, match="k from 3"):
        encode("y ~ s(x, k=2)", DATA)
    close = np.concatenate([np.arange(20.0), 7.0 + 1e-12 * np.arange(20)])
    _, blocks = encode("y ~ s(x, k=15)", {"y": close, "x": close})
    assert np.isfinite(blocks.smooths[0].values).all()


def test_process() -> None:
    encoder, blocks = encode("y ~ gp(x, log(z), kernel=Matern_32, points=30)", DATA)
    process = blocks.gps[0]
    np.testing.assert_allclose(process.inputs.mean(axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(process.inputs.std(axis=0, ddof=1), 1.0)
    assert (process.kernel_name, [str(part) for part in process.expressions], len(process.points)) == (
        "Matern32", ["x", "log(z)"], 30)
    new = view(encoder, {"x": DATA["x"][:2], "z": DATA["z"][:2]}).gps[0]
    np.testing.assert_array_equal(new.inputs, process.inputs[:2])


# -- other ------------------------------------------------------------------------------------------------------------


def test_variables_for_effect_plots() -> None:
    encoder, _ = encode("y ~ x + a + flag + k + C(n) + (1 | g)", DATA)
    found = {variable.name: variable for variable in encoder.variables}
    assert tuple(found) == encoder.predictors == ("x", "a", "flag", "k", "n", "g")
    assert [found[name].kind for name in found] == ["number", "levels", "levels", "number", "levels", "levels"]
    assert (found["x"].minimum, found["x"].maximum) == (DATA["x"].min(), DATA["x"].max())
    assert math.isclose(found["x"].mean, DATA["x"].mean())
    assert found["k"].whole
    assert found["k"].typical == np.floor(np.median(DATA["k"]))
    assert found["a"].typical == max(sorted(set(DATA["a"])), key=DATA["a"].tolist().count)
    assert found["flag"].levels == ("False", "True")


def test_arrays_of_any_layout() -> None:
    wide = np.asfortranarray(np.column_stack([DATA["x"], DATA["z"]]))[::-1]
    _, blocks = encode("y ~ x + z", {"y": DATA["y"][::-1], "x": wide[:, 0], "z": wide[:, 1]})
    _, plain = encode("y ~ x + z", DATA)
    np.testing.assert_array_equal(blocks.matrix, plain.matrix[::-1])


def test_data_are_not_changed() -> None:
    data = {name: np.array(values) for name, values in DATA.items()}
    data["x"][3] = np.nan
    before = {name: values.copy() for name, values in data.items()}
    encode("y ~ x + log(z) + (1 | g)", data)
    for name in data:
        np.testing.assert_array_equal(data[name], before[name])


def test_one_row() -> None:
    _, blocks = encode("y ~ x + a + (1 | g)", {"y": [1.0], "x": [2.0], "a": ["p"], "g": ["q"]})
    assert blocks.matrix.tolist() == [[1.0, 2.0]]
    assert blocks.n == 1


def test_names_stay_apart() -> None:
    """A column may be called like a function of another, but two terms must not have one name."""
    data = {"y": [1.0, 2.0, 3.0], "x": [1.0, 2.0, 3.0], "log(x)": [5.0, 6.0, 8.0], "Intercept": [0.0, 1.0, 0.0],
            "x:z": [1.0, 0.0, 0.0], "z": [2.0, 3.0, 9.0]}
    _, blocks = encode("y ~ 0 + `log(x)`", data)
    assert blocks.matrix[:, 0].tolist() == [5.0, 6.0, 8.0]
    for text in ("y ~ log(x) + `log(x)`", "y ~ Intercept", "y ~ x:z + `x:z`"):
        with pytest.raises(FormulaError, match="two that are called"):
            encode(text, data)


def test_response_on_both_sides() -> None:
    with pytest.raises(FormulaError, match="y on both sides"):
        encode("y ~ x + y", DATA)
    with pytest.raises(FormulaError, match="both sides"):
        encode("log(z) ~ log(z):x", DATA)
    encode("p(k, n) ~ n", DATA)  # the number of trials may matter


def test_effects_twice_by_one_group() -> None:
    with pytest.raises(FormulaError, match="the intercept by g once"):
        encode("y ~ (1 | g) + (x | g)", DATA)
    with pytest.raises(FormulaError, match="expected x by h:g once"):
        encode("y ~ (0 + x | g:h) + (0 + x | h:g)", DATA)
    _, blocks = encode("y ~ (1 | g) + (0 + x | g)", DATA)
    assert [block.columns for block in blocks.groups] == [(INTERCEPT,), ("x",)]


def test_integers_beyond_floats_and_scalars() -> None:
    with pytest.raises(InputError, match="finite numbers; got inf at row 0"):
        encode("y ~ x", {"y": [1.0, 2.0], "x": [10**400, 1]})
    with pytest.raises(InputError, match="list or an array"):
        encode("y ~ x", {"y": np.array(3.0), "x": np.array(2.0)})
