"""What the page says about stopping."""

from __future__ import annotations

import pytest

from klimb.apps.label.figures import SHOWN, CurvePoint, Foreseen, advice, check_curve, share, thinned

NAMES = ("yes", "no")
RIGHT, WRONG = Foreseen(True, True), Foreseen(False, True)


def points(labels: int, changed: float | None, error: float = 0.05, rarer: float = 0.5) -> list[CurvePoint]:
    """Predictions of which ``rarer`` are of the rarer label, and this share of them changes in a window."""
    agreement = None if changed is None else 1.0 - changed / (2.0 * rarer * (1.0 - rarer))
    return [CurvePoint(count, error, 0.3, *((changed, agreement) if count > 30 else ()))
            for count in range(2, labels, 3)]


def test_when_there_is_nothing_to_say() -> None:
    assert advice([0, 0], NAMES, [], [], 100)[0] == "go"
    assert "at least 5 items of two labels" in advice([4, 30], NAMES, points(34, 0.0), [], 100)[1]
    assert "Only 'no' so far" in advice([0, 30], NAMES, points(30, None), [], 100)[1]
    assert advice([5, 5], NAMES, points(10, None), [], 0) == ("done", "Every item is labelled or skipped.")


def test_stop_when_predictions_have_settled() -> None:
    kind, words = advice([30, 30], NAMES, points(60, 0.004), [RIGHT] * 12, 100)
    assert kind == "stop"
    assert "You could stop now" in words
    assert "0.4% of the items" in words
    assert "got 12 of the last 12 random checks right" in words
    assert advice([30, 30], NAMES, points(60, 0.02), [RIGHT] * 12, 100)[0] == "go"
    assert advice([20, 15], NAMES, points(35, 0.0), [RIGHT] * 12, 100)[0] == "go"  # too early
    assert advice([30, 30], NAMES, points(60, 0.004, rarer=0.05), [RIGHT] * 12, 100)[0] == "go"  # much of what is rare
    shaky = [*points(60, 0.02), CurvePoint(60, 0.05, 0.3, 0.0, 1.0)]
    assert "Nearly stable" in advice([30, 30], NAMES, shaky, [], 100)[1]


def test_a_model_that_says_the_same_of_all_has_not_settled() -> None:
    same = [*points(60, 0.0), CurvePoint(60, 0.05, 0.3, 0.0, None)]
    assert "the same label for every item" in advice([50, 10], NAMES, same, [RIGHT] * 12, 100)[1]


def test_checks_overrule_the_model() -> None:
    kind, words = advice([30, 30], NAMES, points(60, 0.0), [WRONG] * 6 + [RIGHT] * 6, 100)
    assert kind == "doubt"
    assert "expects to get 5.0% wrong, but missed 6 of the last 12" in words


def test_old_checks_do_not_count() -> None:
    curve = check_curve([WRONG] * 30 + [Foreseen(True, False)] * 5 + [RIGHT] * 30)
    assert curve[29][1] == 1.0
    assert curve[-1][:2] == (65, 0.0)


@pytest.mark.parametrize(("hits", "total"), [(0, 1), (1, 1), (0, 1000), (500, 1000), (3, 7)])
def test_shares_lie_in_their_intervals(hits: int, total: int) -> None:
    found = share(hits, total)
    assert 0.0 <= found.low <= hits / total <= found.high <= 1.0


def test_curves_are_thinned_but_keep_their_end() -> None:
    many = points(6000, 0.1)
    kept = thinned(many)
    assert len(kept) <= SHOWN + 1
    assert kept[-1] is many[-1]
    assert thinned([]) == []
    assert thinned(many[:5]) == many[:5]
