"""Sessions: the same answers give the same questions, whatever the clock, crashes and restarts do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.apps.label.sessions import HOSTILE, end, labeller, make_items, open_session, work

from klimb.apps.label.items import items_of
from klimb.apps.label.journal import Journal, NotSaved, Settings, read
from klimb.apps.label.model import Chooser
from klimb.apps.label.session import OutOfStep, Session
from klimb.errors import InputError

TURNS = 45


@pytest.fixture(scope="module")
def reviews() -> Any:
    return make_items()


@pytest.fixture(scope="module")
def straight(reviews: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], bytes]:
    """A session from beginning to end: its story, and its journal without times."""
    items, truth = reviews
    path = tmp_path_factory.mktemp("straight") / "a.jsonl"
    session = open_session(path, items)
    story = work(session, labeller(truth), TURNS)
    assert session.settle()
    end(session)
    return story, path.read_bytes()


def test_a_slow_model_asks_the_same(reviews: Any, straight: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    ) -> None:
    items, truth = reviews
    choose = Chooser.choose
    rng = np.random.default_rng(1)

    def slowly(self: Chooser, order: Any) -> Any:
        time.sleep(float(rng.choice([0.0, 0.03])))
        return choose(self, order)

    monkeypatch.setattr(Chooser, "choose", slowly)
    session = open_session(tmp_path / "a.jsonl", items)
    story = []
    while (state := session.state())["turn"] < TURNS:
        if state["turn"] % 11 == 10:  # takes back at once, even where nothing is on the screen
            story.append((state["turn"], "undo"))
            session.undo(state["turn"])
        elif state["item"] is not None:
            what, label = labeller(truth)(state)
            story.append((state["turn"], state["item"]["row"], what, label))
            session.answer(state["turn"], state["item"]["row"], label)
        else:
            time.sleep(0.002)
    end(session)
    assert [one for one in story if one[1] != "undo"] == [one for one in straight[0] if one[2] != "undo"]


@pytest.mark.parametrize("stops", [(1, 2, 3, 4), (10, 11, 12, 22, 23), (33,)])
def test_resumes_exactly(reviews: Any, straight: Any, tmp_path: Path, stops: tuple[int, ...]) -> None:
    items, truth = reviews
    story = []
    for turns in (*stops, TURNS):
        session = open_session(tmp_path / "a.jsonl", items)
        before = session.state()
        assert before["turn"] == len(story)
        story += work(session, labeller(truth), turns)
        end(session)
    assert story == straight[0]
    mine, theirs = (read_story(path) for path in (tmp_path / "a.jsonl", straight[1]))
    assert mine == theirs  # predictions and curve too, not only the rows


def read_story(source: Path | bytes) -> list[dict[str, Any]]:
    from klimb.apps.label.journal import decode

    content = source if isinstance(source, bytes) else source.read_bytes()
    entries = [decode(line) for line in content.splitlines()]
    told = [{key: value for key, value in entry.items() if key != "time"} for entry in entries if entry is not None]
    return sorted(told[1:], key=lambda entry: (entry["kind"], entry.get("order", entry.get("turn"))))


def test_a_crash_anywhere_loses_nothing_that_was_acknowledged(reviews: Any, straight: Any, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal cut at many places: the session shows what the straight one showed at that turn, and goes on."""
    items, truth = reviews
    monkeypatch.setattr(os, "fsync", lambda file: None)
    story, content = straight
    path = tmp_path / "a.jsonl"
    header = content.index(b"\n") + 1
    for cut in np.random.default_rng(0).integers(header, len(content), 12).tolist():
        path.write_bytes(content[:cut])
        answers = sum(entry["kind"] in ("label", "skip", "undo") for entry in read(path).entries)
        session = open_session(path, items)
        state = session.state()
        assert state["turn"] == answers
        if answers < TURNS - 2:
            assert work(session, labeller(truth), answers + 2) == story[answers : answers + 2]
        end(session)


def test_it_learns(reviews: Any, tmp_path: Path) -> None:
    items, truth = reviews
    session = open_session(tmp_path / "a.jsonl", items)
    work(session, labeller(truth, skips=0, undos=0), 45)
    assert session.settle()
    state = session.state()
    end(session)
    first, last = state["figures"]["curve"][0], state["figures"]["curve"][-1]
    assert last[1] < 0.7 * first[1]  # expected error
    assert last[2] < first[2]  # bits
    assert state["counts"] == [sum(truth[row] == k for row in (entry["row"] for entry in session.standing()))
                               for k in (0, 1)]
    assert state["figures"]["foreseen"].total == 9  # every fifth is a check
    assert state["left"] == 35


def test_until_nothing_is_left(tmp_path: Path) -> None:
    items, truth = make_items(9)
    session = open_session(tmp_path / "a.jsonl", items, Settings(batch=4, text=("review",)))
    story = work(session, labeller(truth, skips=4, undos=0), 100)
    state = session.state()
    assert sorted(row for _, row, _, _ in story) == list(range(9))
    assert state["item"] is None
    assert not state["waiting"]
    assert state["advice"]["kind"] == "done"
    session.undo(state["turn"])
    assert session.state()["item"]["row"] == story[-1][1]
    end(session)


def test_several_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = ("cats", "dogs", "birds")
    own = {"cats": "purr whisker meow", "dogs": "bark leash bone", "birds": "wing feather song"}
    truth = rng.integers(0, 3, 90).tolist()
    plain = ["a", "the", "pet", "house", "day", "food"]
    texts = [" ".join([*rng.choice(own[kinds[k]].split(), 2), *rng.choice(plain, 5)]) for k in truth]
    items = items_of({"t": texts}, text=["t"])
    settings = Settings(kinds, text=("t",))
    session = open_session(tmp_path / "a.jsonl", items, settings)
    story = work(session, labeller(truth, undos=0), 28)
    assert session.settle()
    state = session.state()
    chances = np.array(state["item"]["chances"])
    assert chances.shape == (3, 3)
    assert abs(chances[:, 0].sum() - 1.0) < 1e-5
    assert (chances[:, 1] <= chances[:, 0] + 1e-9).all()
    assert (chances[:, 2] >= chances[:, 0] - 1e-9).all()
    assert state["figures"]["curve"][-1][1] < 0.4
    end(session)
    again = open_session(tmp_path / "a.jsonl", items, settings)
    assert again.state()["item"]["row"] == state["item"]["row"]
    end(again)
    assert len({row for _, row, _, _ in story}) == len(story)


@pytest.mark.parametrize(("score", "batch"), [("cu", 1), ("ig", 6), ("random", 2)])
def test_other_ways_to_choose(reviews: Any, tmp_path: Path, score: str, batch: int) -> None:
    items, truth = reviews
    settings = Settings(score=score, batch=batch, check=0, text=("review",))
    one = open_session(tmp_path / "a.jsonl", items, settings)
    story = work(one, labeller(truth), 18)
    end(one)
    two = open_session(tmp_path / "b.jsonl", items, settings)
    assert work(two, labeller(truth), 18) == story
    why = {entry["why"] for entry in two.standing()}
    assert why <= ({"check"} if score == "random" else {"start", "model"})
    end(two)


def test_columns_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    truth = (x[:, 0] < 0.0).astype(int).tolist()
    items = items_of({"a": x[:, 0] * 1e6, "b": x[:, 1]}, columns=["a", "b"])
    session = open_session(tmp_path / "a.jsonl", items, Settings(columns=("a", "b")))
    work(session, labeller(truth), 30)
    assert session.settle()
    item = session.state()["item"]
    assert item["segments"] == []
    assert [name for name, _, _ in item["columns"]] == ["a", "b"]
    pushes = [(float(value), push) for name, value, push in item["columns"] if name == "a"]
    assert pushes[0][0] * pushes[0][1] >= 0.0  # a large a speaks for the first label
    end(session)


def test_one_kind_of_label_only(reviews: Any, tmp_path: Path) -> None:
    items, _ = reviews
    session = open_session(tmp_path / "a.jsonl", items)
    work(session, lambda state: ("answer", 1), 25)
    assert session.settle()
    state = session.state()
    assert "Only 'no' so far" in state["advice"]["text"]
    assert state["trouble"] == ""
    end(session)


def test_answers_out_of_step_change_nothing(reviews: Any, tmp_path: Path) -> None:
    items, _ = reviews
    session = open_session(tmp_path / "a.jsonl", items)
    assert session.settle()
    row = session.state()["item"]["row"]
    for turn, which, label in ((1, row, 0), (0, row + 1, 0)):
        with pytest.raises(OutOfStep):
            session.answer(turn, which, label)
    with pytest.raises(InputError, match="a label from 0 to 1; got 2"):
        session.answer(0, row, 2)
    with pytest.raises(InputError, match="an answer to take back"):
        session.undo(0)
    session.answer(0, row, 1)
    with pytest.raises(OutOfStep):
        session.answer(0, row, 1)  # the same again: a key that bounced, or a second window
    assert session.state()["turn"] == 1
    end(session)


def test_what_can_not_be_saved_did_not_happen(reviews: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = reviews
    session = open_session(tmp_path / "a.jsonl", items)
    assert session.settle()
    before = session.state()

    def never(*entries: Any, durable: bool = True) -> None:
        raise NotSaved("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(session.journal, "append", never)
        with pytest.raises(NotSaved):
            session.answer(0, before["item"]["row"], 0)
    assert session.state() == before
    session.answer(0, before["item"]["row"], 0)
    assert session.state()["turn"] == 1
    end(session)


def test_a_model_that_fails_does_not_stop_the_labelling(reviews: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        ) -> None:
    items, truth = reviews

    def fail(self: Chooser, labels: Any) -> None:
        raise FloatingPointError("overflow")

    with monkeypatch.context() as patch:
        patch.setattr(Chooser, "_learn", fail)
        session = open_session(tmp_path / "a.jsonl", items)
        work(session, labeller(truth), 8)
        assert session.settle()
        assert "could not choose (FloatingPointError: overflow)" in session.state()["trouble"]
        end(session)
    session = open_session(tmp_path / "a.jsonl", items)  # repaired: goes on, with all labels
    work(session, labeller(truth), 16)
    assert session.settle()
    assert session.state()["trouble"] == ""
    end(session)


def test_hostile_long_and_empty_texts(tmp_path: Path) -> None:
    texts: list[str | None] = [*HOSTILE, "word " * 200_000, None, "", "a", "word a b", "word a"]
    items = items_of({"t": texts}, text=["t"])
    session = open_session(tmp_path / "a.jsonl", items, Settings(text=("t",)))
    seen = set()
    while (state := session.state())["turn"] < len(items.askable):
        if state["item"] is None:
            assert session.settle()
            continue
        item = state["item"]
        shown = "".join(words for words, _ in item["segments"])
        whole = "".join(words for words, _ in session.whole_text(item["row"]))
        assert whole == texts[item["row"]]
        assert whole.startswith(shown)
        assert item["more"] == (shown != whole)
        assert len(shown) <= 12_000
        seen.add(item["row"])
        session.answer(state["turn"], item["row"], state["turn"] % 2)
    assert len(seen) == len(texts) - 2
    end(session)


def test_a_session_that_ended_takes_no_answers(reviews: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path / "a.jsonl", reviews[0])
    end(session)
    with pytest.raises(InputError, match="one that has ended"):
        session.answer(0, 0, 0)


def test_waiting_for_news(reviews: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path / "a.jsonl", reviews[0])
    assert session.settle()
    version = session.state()["version"]
    start = time.monotonic()
    assert session.state(version, 0.2)["version"] == version
    assert time.monotonic() - start >= 0.15
    assert session.state(version - 1, 60.0)["version"] == version  # old news: at once
    end(session)


def test_settings_are_checked() -> None:
    for labels, words in ((("a",), "two to 9 labels"), (("a", "a"), "'a' twice"), (("a", ""), "1 to 60"),
                          (tuple("abcdefghij"), "two to 9")):
        with pytest.raises(InputError, match=words):
            Settings(labels)
    with pytest.raises(InputError, match="--score"):
        Settings(score="best")
    with pytest.raises(InputError, match="--batch of at least 1"):
        Settings(batch=0)


def test_a_session_needs_its_own_journal(reviews: Any, tmp_path: Path) -> None:
    """An answer to an item that was not asked: the journal belongs to another session."""
    items, _ = reviews
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.begin(Settings().header(items.fingerprint, items.n, "x", "t"))
        journal.append({"kind": "chosen", "order": 0, "rows": [1, 2, 3], "why": ["model"] * 3, "labels": 0,
                        "error": 0.5, "entropy": 1.0, "changed": None, "agreement": None,
                        "p": [[[0.5, 0.0, 1.0]] * 2] * 3})
        journal.append({"kind": "label", "turn": 0, "row": 9, "label": "yes", "time": "t", "p": 0.5, "why": "model"})
    with Journal(tmp_path / "a.jsonl") as journal, pytest.raises(InputError, match="row 9 instead of 1"):
        Session(items, Settings(), journal)


ODD: dict[str, dict[str, Any]] = {
    "all the same": {"t": ["one two three four five"] * 25},
    "two rows": {"t": ["a", "b"]},
    "one word": {"t": ["a"] * 12},
    "no word in common": {"t": [f"w{k}" for k in range(15)]},
    "doubles": {"t": ["good film", "bad film"] * 12},
    "one long among short": {"t": ["word " * 50_000] + [f"x{k % 3} y" for k in range(24)]},
    "one column": {"x": np.linspace(0.0, 1.0, 15)},
    "tiny and huge": {"x": np.geomspace(1e-12, 1e6, 15), "y": np.geomspace(1e200, 1e-200, 15)},
    "doubled columns": {"x": np.arange(15.0), "y": np.arange(15.0)},
    "mostly missing": {"x": np.array([1.0, 2.0, *[np.nan] * 13])},
    "one that differs": {"x": np.array([1e9] + [0.0] * 14)},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_labelled_to_the_end(tmp_path: Path, name: str) -> None:
    """Nothing fails, every item is asked once, and all that is shown is a number."""
    table = ODD[name]
    text = ["t"] if "t" in table else []
    columns = [] if text else list(table)
    items = items_of(table, text=text, columns=columns)
    session = open_session(tmp_path / "a.jsonl", items, Settings(text=tuple(text), columns=tuple(columns)))
    seen = []
    while (state := session.state())["left"]:
        if state["item"] is None:
            assert session.settle()
            continue
        assert state["trouble"] == ""
        assert np.isfinite(np.array(state["item"]["chances"])).all()
        assert np.isfinite(np.array(state["figures"]["curve"] or [[0.0]], dtype=float)).all()
        seen.append(state["item"]["row"])
        session.answer(state["turn"], seen[-1], seen[-1] % 2)
    assert sorted(seen) == items.askable.tolist()
    end(session)
