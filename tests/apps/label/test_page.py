"""The page in a real browser: keys label, undo and skip, it resumes, it is dark at night, and no text can do anything.

Skipped where no Chromium is found; name one with KLIMB_CHROMIUM.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.apps.label.browser import Browser, Page, program
from tests.apps.label.sessions import HOSTILE, end, make_items, open_session

from klimb.apps.label.items import LabelItems, items_of
from klimb.apps.label.journal import NotSaved, Settings
from klimb.apps.label.server import LabelServer

pytestmark = pytest.mark.skipif(program() is None, reason="no chromium on the path: set KLIMB_CHROMIUM to run this")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@contextmanager
def serving(path: Path, items: LabelItems, settings: Settings | None = None, port: int = 0, **more: Any,
            ) -> Iterator[LabelServer]:
    session = open_session(path, items, settings, source="reviews.csv", **more)
    server = LabelServer(session, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    assert session.settle()
    try:
        yield server
    finally:
        session.close()
        server.shutdown()
        server.server_close()
        thread.join()
        end(session)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LabelServer]:
    with serving(tmp_path / "a.jsonl", make_items(40)[0]) as made:
        yield made


# The contrast of texts with what is behind them, by class.
CONTRASTS = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255).map(
    (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce(
    (sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (place) => { for (let e = place; e; e = e.parentElement) {
    const found = getComputedStyle(e).backgroundColor; const a = parts(found)[3];
    if (a === undefined || a > 0) return found } return 'rgb(255, 255, 255)' };
  const found = {};
  for (const kind of ['for1', 'for2', 'for3', 'not1', 'not2', 'not3']) {
    const made = Object.assign(document.createElement('mark'), {className: kind, textContent: 'x', id: kind});
    document.getElementById('text').append(made) }
  for (const place of ['#counts', '#where', '#advice', '#labels button', '#skip', '#said', '.soft', 'dt', '.tiles span',
                       '#for1', '#for2', '#for3', '#not1', '#not2', '#not3']) {
    const e = document.querySelector(place);
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    found[place] = (a + 0.05) / (b + 0.05) }
  return found })()"""


def ready(page: Page, turn: int = 0) -> Any:
    """Wait for an item at this turn; what the page knows."""
    page.until(f"state !== null && state.turn === {turn} && state.item !== null && !busy")
    return page.run("state")


def test_keys_label_skip_and_undo(browser: Browser, server: LabelServer) -> None:
    page = browser.page(server.url)
    one = ready(page)
    assert page.run("location.hash") == ""  # the token does not stay in the address
    shown = page.text("#text")
    assert shown == server.session.items.texts[one["item"]["row"]]
    page.press("1")
    two = ready(page, 1)
    assert page.text("#text") == server.session.items.texts[two["item"]["row"]]
    assert page.text("#said") == "yes: saved."
    page.press("2")
    three = ready(page, 2)
    page.press("s")
    ready(page, 3)
    assert "2 labelled, 1 skipped, 37 left" in page.text("#counts")
    page.press("u")
    four = ready(page, 4)
    assert four["item"]["row"] == three["item"]["row"]
    labels = {entry["row"]: entry["label"] for entry in server.session.standing()}
    assert labels == {one["item"]["row"]: "yes", two["item"]["row"]: "no"}
    assert page.text("#history").split()[0] == "no"
    assert page.complaints() == []
    assert all(address.startswith(f"http://127.0.0.1:{server.port}/") for address in page.requested())


def test_what_a_key_does_not_do(browser: Browser, server: LabelServer) -> None:
    page = browser.page(server.url)
    ready(page)
    page.press("1", modifiers=2)  # Ctrl-1 changes tabs
    page.press("9")
    page.press("x")
    page.press("1", autoRepeat=True)  # held down
    page.press("u")  # nothing to take back
    page.run("new Promise(resume => setTimeout(resume, 300))")
    assert server.session.state()["turn"] == 0
    # Two presses before the first is acknowledged are one answer: nobody labels what he has not seen.
    page.run("(() => { for (const key of ['1', '1', '2'])"
             " document.dispatchEvent(new KeyboardEvent('keydown', {key})) })()")
    ready(page, 1)
    page.run("new Promise(resume => setTimeout(resume, 300))")
    assert server.session.state()["turn"] == 1


def test_buttons_do_the_same_and_can_be_reached(browser: Browser, server: LabelServer) -> None:
    page = browser.page(server.url)
    ready(page)
    page.click("#labels button:nth-child(2)")
    ready(page, 1)
    page.click("#skip")
    ready(page, 2)
    page.click("#undo")
    ready(page, 3)
    assert server.session.state()["counts"] == [0, 1]
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(8):
        page.press("Tab", windowsVirtualKeyCode=9)
        reached.append(page.run("document.activeElement.id || document.activeElement.innerText"))
    assert {"text", "skip", "undo", "blind", "download"} <= set(reached)
    assert any("yes" in name for name in reached)
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # focus can be seen
    # Enter on a button that has the focus.
    page.run("document.querySelector('#labels button').focus()")
    page.press("Enter", windowsVirtualKeyCode=13, text="\r")
    ready(page, 4)


def test_names_for_who_can_not_see_it(browser: Browser, server: LabelServer) -> None:
    page = browser.page(server.url)
    ready(page)
    page.press("1")
    ready(page, 1)
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")}
    roles = {role for role, _ in named}
    assert {"main", "banner", "complementary", "button", "status", "heading"} <= roles
    assert ("button", "1 yes") in named
    assert ("button", "s skip") in named
    assert all(name for role, name in named if role in ("button", "img", "image", "region", "group", "complementary"))
    assert any(role in ("image", "img") and name.startswith("yes: ") for role, name in named)


def test_it_goes_on_after_a_restart(browser: Browser, tmp_path: Path) -> None:
    items = make_items(40)[0]
    with serving(tmp_path / "a.jsonl", items) as server:
        page = browser.page(server.url)
        for turn in range(4):
            ready(page, turn)
            page.press("12"[turn % 2])
        before = ready(page, 4)
        page.reload()  # the token survives in this tab
        assert ready(page, 4)["item"]["row"] == before["item"]["row"]
    page.until("document.getElementById('trouble').innerText.includes('has ended')")
    assert page.run("document.querySelector('#labels button').disabled")
    with serving(tmp_path / "a.jsonl", items) as server:
        page = browser.page(server.url)
        after = ready(page, 4)
        assert after["item"]["row"] == before["item"]["row"]
        assert after["item"]["chances"] == before["item"]["chances"]
        assert after["counts"] == [2, 2]


def test_no_text_can_do_anything(browser: Browser, tmp_path: Path) -> None:
    items = items_of({"t": [*HOSTILE, "a b"], "x": [f"<i>{k}" for k in range(len(HOSTILE) + 1)],
                      "name": [*HOSTILE, "z"]}, text=["t"], show=["x"], id_column="name")
    settings = Settings(("<img src=x onerror=window.hacked=true>", "</button><h1>no"), check=0, text=("t",))
    with serving(tmp_path / "a.jsonl", items, settings) as server:
        page = browser.page(server.url)
        before = page.run("document.querySelectorAll('body *').length") if ready(page) else 0
        seen = []
        for turn in range(len(items.askable)):
            state = ready(page, turn)
            row = state["item"]["row"]
            seen.append(row)
            assert page.run("document.getElementById('text').textContent") == items.texts[row]
            assert page.run("document.querySelector('#columns td').textContent") == f"<i>{row}"
            page.press("12"[turn % 2])
        page.until("state.left === 0 && state.item === null")
        assert sorted(seen) == list(range(len(HOSTILE) + 1))
        assert not page.run("window.hacked")
        assert page.run("document.querySelectorAll('script').length") == 1
        assert page.run("document.querySelectorAll('img, iframe, h1, i').length") == 0
        assert before > 0
        # What a script could try from inside is forbidden as well.
        for attempt in ("document.body.insertAdjacentHTML('beforeend', '<b>x</b>')", "eval('1')",
                        "document.getElementById('text').innerHTML = '<b>x</b>'"):
            tried = page.run(f"(() => {{ try {{ {attempt}; return 'done' }} catch (e) {{ return e.name }} }})()")
            assert tried in ("TypeError", "EvalError")
        blocked = page.run("fetch('https://example.com/').then(() => 'sent', (e) => e.name)")
        assert blocked == "TypeError"


def test_other_pages_can_not_reach_it(browser: Browser, server: LabelServer, tmp_path: Path) -> None:
    """A page of another origin on the same machine: it can neither read, nor label, nor frame."""
    ready(browser.page(server.url))
    (tmp_path / "evil.html").write_text("<!doctype html><title>evil</title><body>")
    evil = browser.page((tmp_path / "evil.html").as_uri())
    base = f"http://127.0.0.1:{server.port}"
    send: Callable[[str], Any] = lambda code: evil.run(f"({code}).then((r) => r.status ?? 'opaque', (e) => e.name)")  # noqa: E731
    token = json.dumps(server.token)
    assert send(f"fetch('{base}/api/state')") == "TypeError"
    assert send(f"fetch('{base}/api/state', {{headers: {{'X-Klimb-Token': {token}}}}})") == "TypeError"  # even with it
    assert send(f"fetch('{base}/api/undo', {{method: 'POST', mode: 'no-cors', body: '{{\"turn\": 0}}'}})") in (
        "TypeError", 0)
    evil.run(f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{base}/'}}))")
    evil.run("new Promise(resume => setTimeout(resume, 300))")
    assert server.session.state()["turn"] == 0
    assert any("frame" in words.lower() or "refused" in words.lower() or "blocked" in words.lower()
               for words in evil.complaints())


def test_without_the_token_there_is_nothing(browser: Browser, server: LabelServer) -> None:
    page = browser.page(f"http://127.0.0.1:{server.port}/")
    page.until("document.getElementById('trouble').innerText.includes('in the terminal')")
    page.press("1")
    assert server.session.state()["turn"] == 0
    launched = browser.page(server.launch_url())
    ready(launched)


def test_light_dark_and_narrow(browser: Browser, server: LabelServer) -> None:
    page = browser.page(server.url)
    ready(page)
    colours = []
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        colours.append([sum(int(part) for part in page.run(
            f"getComputedStyle(document.{what}).{how}.match(/\\d+/g).slice(0, 3)")) for what, how in (
                ("body", "backgroundColor"), ("body", "color"))])
    assert colours[0][0] > 600 > 200 > colours[0][1]  # dark on light
    assert colours[1][0] < 120 < 600 < colours[1][1]  # light on dark
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        assert min(page.run(CONTRASTS).values()) >= 4.5  # WCAG AA, of marked words as of all others
    for turn in range(12):  # with a curve and a history
        ready(page, turn)
        page.press("12"[turn % 2])
    ready(page, 12)
    assert page.run("document.querySelectorAll('#curve polyline').length") >= 1
    assert "after" in page.run("document.querySelector('#curve svg').getAttribute('aria-label')")
    for width in (320, 390, 700, 1200):
        page.resize(width, 800)
        assert page.run("document.documentElement.scrollWidth") <= width  # nothing sticks out
        tall = page.run("[...document.querySelectorAll('#labels button')].map(b => b.getBoundingClientRect().height)")
        assert min(tall) >= 44  # a thumb finds it


def test_the_table_can_be_downloaded(browser: Browser, server: LabelServer, tmp_path: Path) -> None:
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page = browser.page(server.url)
    ready(page)
    page.press("2")
    ready(page, 1)
    page.click("#download")
    for _ in range(200):
        if (tmp_path / "labels.csv").exists():
            break
        page.run("new Promise(resume => setTimeout(resume, 50))")
    rows = (tmp_path / "labels.csv").read_text().splitlines()
    assert rows[0] == "row,id,label,time,probability,chosen"
    assert ",no," in rows[1]
    assert page.complaints() == []


def test_two_windows_agree(browser: Browser, server: LabelServer) -> None:
    one, two = browser.page(server.url), browser.page(server.url)
    ready(one)
    ready(two)
    browser.call("Target.activateTarget", targetId=one.target)
    one.press("1")
    assert ready(two, 1)["item"]["row"] == ready(one, 1)["item"]["row"]


def test_what_was_not_saved_is_said(browser: Browser, server: LabelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = browser.page(server.url)
    row = ready(page)["item"]["row"]

    def never(*entries: Any, durable: bool = True) -> None:
        raise NotSaved("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server.session.journal, "append", never)
        page.press("1")
        page.until("document.getElementById('trouble').innerText.includes('Not saved: no space left')")
    assert page.run("state.item.row") == row
    page.press("1")
    ready(page, 1)


def test_long_texts_open_on_demand(browser: Browser, tmp_path: Path) -> None:
    texts = ["word " * 200_000, "other " * 4_000]
    with serving(tmp_path / "a.jsonl", items_of({"t": texts}, text=["t"]), Settings(text=("t",))) as server:
        page = browser.page(server.url)
        state = ready(page)
        assert page.run("document.getElementById('text').textContent.length") == 12_000
        page.click("#more")
        page.until(f"document.getElementById('text').textContent.length === {len(texts[state['item']['row']])}")
        page.press("1")
        ready(page, 1)
        assert page.run("document.getElementById('text').textContent.length") == 12_000


def test_the_prediction_can_be_hidden(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "a.jsonl", make_items(40)[0], blind=True, keys="yn") as server:
        page = browser.page(server.url)
        for turn in range(8):
            ready(page, turn)
            page.press("yn"[turn % 2])
        ready(page, 8)
        assert "Hidden" in page.text("#chances")
        assert page.run("document.querySelectorAll('#text mark').length") == 0
        page.press("h")
        page.until("document.querySelectorAll('#chances svg').length === 1")
        assert page.run("document.querySelectorAll('#text mark').length") > 0
        assert "supports yes" in page.text("#legend")
