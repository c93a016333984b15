"""Who is answered, and how: tokens, hosts, origins, sizes, shapes. No browser needed."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.apps.label.sessions import HOSTILE, end, make_items, open_session, request

from klimb.apps.label.items import items_of
from klimb.apps.label.journal import NotSaved, Settings, read
from klimb.apps.label.server import LARGEST_BODY, MOST_CONNECTIONS, LabelServer
from klimb.errors import InputError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LabelServer]:
    items, _ = make_items(40)
    session = open_session(tmp_path / "a.jsonl", items)
    made = LabelServer(session)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    assert session.settle()
    yield made
    made.shutdown()
    made.server_close()
    end(session)


def state_of(server: LabelServer) -> Any:
    status, _, state = request(server.port, "GET", "/api/state", token=server.token)
    assert status == 200
    return state


def test_label_skip_and_undo(server: LabelServer) -> None:
    one = state_of(server)
    row = one["item"]["row"]
    status, _, two = request(server.port, "POST", "/api/answer", {"turn": 0, "row": row, "label": 1},
                             token=server.token)
    assert status == 200
    assert two["turn"] == 1
    assert two["counts"] == [0, 1]
    assert two["item"]["row"] != row  # the next is there at once
    status, _, three = request(server.port, "POST", "/api/skip", {"turn": 1, "row": two["item"]["row"]},
                               token=server.token)
    assert (status, three["skipped"]) == (200, 1)
    status, _, four = request(server.port, "POST", "/api/undo", {"turn": 2}, token=server.token)
    assert four["item"]["row"] == two["item"]["row"]
    status, headers, table = request(server.port, "GET", "/api/labels.csv", token=server.token)
    assert headers["Content-Type"].startswith("text/csv")
    assert table.decode().splitlines()[1].startswith(f"{row},{row},no,")
    kinds = [entry["kind"] for entry in read(server.session.journal.path).entries if entry["kind"] != "chosen"]
    assert kinds == ["label", "skip", "undo"]


def test_nothing_without_the_token(server: LabelServer) -> None:
    for method, path in (("GET", "/api/state"), ("GET", "/api/text?row=0"), ("GET", "/api/labels.csv"),
                         ("POST", "/api/answer"), ("POST", "/api/skip"), ("POST", "/api/undo")):
        for token in (None, "", "x", server.token[:-1], server.token + "x", "é" * 43):
            body = {"turn": 0, "row": 0, "label": 0} if method == "POST" else None
            headers = {} if token is None or token.isascii() else {"X-Klimb-Token": "\xe9"}
            status, _, content = request(server.port, method, path, body, token=token if token != "é" * 43 else None,
                                         headers=headers)
            assert status == 403
            assert list(content) == ["error"]
    assert state_of(server)["turn"] == 0


def test_the_empty_page_holds_no_data(server: LabelServer) -> None:
    status, headers, page = request(server.port, "GET", "/")
    text = page.decode()
    assert status == 200
    assert server.token not in text
    assert "reviews" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=|https?://(?!www\.w3\.org)", text)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in headers
    assert headers["Server"].strip() == "klimb"
    for path in ("/page.js", "/page.css", "/icon.svg"):
        status, _, content = request(server.port, "GET", path)
        assert status == 200
        assert b"https://" not in content
        assert b"innerHTML" not in content


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1",
                                  "localhost.evil:{port}", "0.0.0.0:{port}", "192.168.0.1:{port}", "[::1]:{port}x"])
def test_other_names_are_refused(server: LabelServer, host: str) -> None:
    """A page whose own name leads here (DNS rebinding) is stopped by the name."""
    for path in ("/", "/api/state"):
        status, _, _ = request(server.port, "GET", path, token=server.token,
                               headers={"Host": host.format(port=server.port)})
        assert status == 421
    status, _, _ = request(server.port, "GET", "/", headers={"Host": f"localhost:{server.port}"})
    assert status == 200


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"},
                                     {"Origin": "http://127.0.0.1:1"}, {"Origin": "https://127.0.0.1:{port}"},
                                     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}])
def test_other_origins_are_refused(server: LabelServer, headers: dict[str, str]) -> None:
    said = {name: value.format(port=server.port) for name, value in headers.items()}
    row = state_of(server)["item"]["row"]
    status, _, _ = request(server.port, "POST", "/api/answer", {"turn": 0, "row": row, "label": 0}, token=server.token,
                           headers=said)
    assert status == 403
    assert state_of(server)["turn"] == 0
    status, _, _ = request(server.port, "GET", "/", headers=said)
    assert status == 403
    good = {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
    status, _, _ = request(server.port, "POST", "/api/answer", {"turn": 0, "row": row, "label": 0}, token=server.token,
                           headers=good)
    assert status == 200


def test_no_other_site_may_even_ask(server: LabelServer) -> None:
    """The preflight of another origin gets no permission."""
    status, headers, _ = request(server.port, "OPTIONS", "/api/answer", headers={
        "Origin": "https://evil.example", "Access-Control-Request-Method": "POST"})
    assert status == 501
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_forms_can_not_label(server: LabelServer) -> None:
    """What a form of another page could send: no JSON, no token."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        status, _, _ = request(server.port, "POST", "/api/undo", raw=b'{"turn": 0}', token=server.token,
                               headers={"Content-Type": kind})
        assert status == 415


@pytest.mark.parametrize(("raw", "headers", "expected"), [
    (b"x" * (LARGEST_BODY + 1), {}, 413),
    (b"", {"Content-Length": "99999999999999999999"}, 413),
    (b"", {"Content-Length": "-1"}, 411),
    (b"", {"Content-Length": "٣"}, 411),
    (b"{", {}, 400), (b"[]", {}, 400), (b"\xff\xfe", {}, 400), (b"[" * 4000, {}, 400), (b"1", {}, 400),
])
def test_bodies_that_are_no_answers(server: LabelServer, raw: bytes, headers: dict[str, str], expected: int) -> None:
    said = {"Content-Type": "application/json", "X-Klimb-Token": server.token, "Host": f"127.0.0.1:{server.port}"}
    said |= {"Content-Length": str(len(raw))} | headers
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        connection.sendall(f"POST /api/answer HTTP/1.1\r\n{lines}\r\n".encode() + raw)
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] == str(expected).encode()
    assert state_of(server)["turn"] == 0


def test_chunked_bodies_are_refused(server: LabelServer) -> None:
    # The headers alone: the server answers them and hangs up, so that sending a body would be a race.
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.putrequest("POST", "/api/undo")
        for name, value in {"Content-Type": "application/json", "X-Klimb-Token": server.token,
                            "Transfer-Encoding": "chunked"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 411


@pytest.mark.parametrize("body", [
    {}, {"turn": 0}, {"turn": 0, "row": None, "label": 0}, {"turn": "0x", "row": 0, "label": 0},
    {"turn": True, "row": 0, "label": 0}, {"turn": 0, "row": -1, "label": 0}, {"turn": 0, "row": 1.5, "label": 0},
    {"turn": 0, "row": [], "label": 0}, {"turn": 0, "row": "9" * 99, "label": 0},
    {"turn": 0, "row": "<b>", "label": "1"},
])
def test_answers_of_the_wrong_shape(server: LabelServer, body: dict[str, Any]) -> None:
    status, _, content = request(server.port, "POST", "/api/answer", body, token=server.token)
    assert status == 400
    assert "got" in content["error"]


def test_answers_out_of_step_bring_the_page_up_to_date(server: LabelServer) -> None:
    row = state_of(server)["item"]["row"]
    status, _, content = request(server.port, "POST", "/api/answer", {"turn": 5, "row": row, "label": 0},
                                 token=server.token)
    assert status == 409
    assert content["state"]["turn"] == 0
    status, _, content = request(server.port, "POST", "/api/answer", {"turn": 0, "row": row, "label": 7},
                                 token=server.token)
    assert status == 400


def test_what_is_not_there(server: LabelServer) -> None:
    for path in ("/nothing", "/../pyproject.toml", "/assets/page.js", "/api", "/api/nothing", "/page.js/"):
        status, _, content = request(server.port, "GET", path, token=server.token)
        assert status == 404
        assert "nothing here" in content["error"]
    status, _, content = request(server.port, "GET", "/<script>alert(1)</script>", token=server.token)
    assert (status, "script" in content["error"]) == (404, False)


def test_a_launch_address_works_once(server: LabelServer) -> None:
    code = server.launch_url().partition("#code=")[2]
    for wrong in ("", "x", None, 5, code + "x", "é"):
        assert request(server.port, "POST", "/api/enter", {"code": wrong})[0] == 403
    status, _, content = request(server.port, "POST", "/api/enter", {"code": code})
    assert (status, content["token"]) == (200, server.token)
    assert request(server.port, "POST", "/api/enter", {"code": code})[0] == 403


def test_hostile_texts_come_as_data(tmp_path: Path) -> None:
    items = items_of({"t": [*HOSTILE, "a b", "a c"]}, text=["t"])
    session = open_session(tmp_path / "a.jsonl", items, Settings(("<b>yes</b>", "no & no"), text=("t",)))
    server = LabelServer(session)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        assert session.settle()
        status, headers, state = request(server.port, "GET", "/api/state", token=server.token)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert "".join(words for words, _ in state["item"]["segments"]) == items.texts[state["item"]["row"]]
        assert state["labels"] == ["<b>yes</b>", "no & no"]
    finally:
        server.shutdown()
        server.server_close()
        end(session)


def test_a_disk_that_is_full_is_told(server: LabelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    row = state_of(server)["item"]["row"]

    def never(*entries: Any, durable: bool = True) -> None:
        raise NotSaved("no space left on device")

    monkeypatch.setattr(server.session.journal, "append", never)
    status, _, content = request(server.port, "POST", "/api/answer", {"turn": 0, "row": row, "label": 0},
                                 token=server.token)
    assert (status, content["error"]) == (507, "Not saved: no space left on device")
    assert state_of(server)["turn"] == 0


def test_many_windows_at_once(server: LabelServer) -> None:
    """Twenty threads answer as fast as they can: each turn is given once, and the journal agrees."""
    given: list[int] = []
    lock = threading.Lock()

    def hammer() -> None:
        while True:
            state = state_of(server)
            if state["turn"] >= 25:
                return
            if state["item"] is None:
                server.session.settle()
                continue
            status, _, _ = request(server.port, "POST", "/api/answer", {
                "turn": state["turn"], "row": state["item"]["row"], "label": 0}, token=server.token)
            if status == 200:
                with lock:
                    given.append(state["turn"])
            else:
                assert status == 409

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(len(given)))
    turns = [entry["turn"] for entry in read(server.session.journal.path).entries if entry["kind"] == "label"]
    assert turns == list(range(len(given)))


def test_silent_connections_do_not_lock_others_out(server: LabelServer) -> None:
    """More connections than it takes are closed at once; when some leave, it answers again."""
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_CONNECTIONS + 5)]
    idle[-1].settimeout(10.0)
    assert idle[-1].recv(1) == b""  # no room
    for connection in idle:
        connection.close()
    for _ in range(100):
        try:
            assert state_of(server)["turn"] == 0
            break
        except (OSError, http.client.HTTPException):
            threading.Event().wait(0.02)
    else:
        raise AssertionError("the server never recovered")


def test_it_listens_on_the_loopback_interface_only(server: LabelServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url.startswith(f"http://127.0.0.1:{server.port}/#token=")
    assert len(server.token) >= 43


def test_a_port_that_is_taken(server: LabelServer) -> None:
    with pytest.raises(InputError, match=rf"a free port {server.port} on this machine; got Address already in use"):
        LabelServer(server.session, server.port)


def test_protocol_errors_say_nothing_of_the_request(server: LabelServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"<script> / HTTP/9.9\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert b"<script>" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2] or answer)["error"]
