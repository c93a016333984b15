"""The page's server: Python's own, on the loopback interface, for one person.

It answers only requests that call it by a loopback name (against DNS rebinding), none from another origin, and all but
the empty page need a random token in a header, which is in the address only behind a ``#``. There is no cookie.
"""

import hmac
import json
import os
import secrets
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from klimb.apps.label.journal import NotSaved, csv_text
from klimb.apps.label.session import OutOfStep, Session
from klimb.errors import InputError

LOOPBACK = "127.0.0.1"
LARGEST_BODY = 4096
PATIENCE = 20.0  # seconds for which a request waits for news
MOST_CONNECTIONS = 32
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
          " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
          " trusted-types 'none'")
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
           "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
           "Cross-Origin-Resource-Policy": "same-origin"}
ASSETS = Path(__file__).resolve().parent / "assets"
ICON = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 40"><path d="M4 32 15 14l6 8 8-15 8 25" fill="none"'
        ' stroke="#0c6a92" stroke-width="4" stroke-linejoin="round" stroke-linecap="round"/></svg>')


class Refused(Exception):
    """A request that is not answered: its status, and a few words that repeat nothing of what it said."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


class LabelServer(ThreadingHTTPServer):
    """Serves one session. ``url`` opens the page; ``launch_url`` does so once, for a browser that we start.

    ``LabelServer(session).serve_forever()`` runs it until ``shutdown()``, as every server of the standard library does.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two programs share a port
    request_queue_size = 64

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(32)
        self.files = _files()
        self._codes: set[str] = set()
        self._guard = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            raise InputError(f"a free port {port} on this machine", error.strerror or str(error),
                             "Name another with --port, or leave it out: a free one is found.") from error
        self.hosts = frozenset(f"{name}:{self.port}" for name in (LOOPBACK, "localhost"))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.port}/#token={self.token}"

    def launch_url(self) -> str:
        """An address that works once: others on the machine can see what a browser was started with."""
        code = secrets.token_urlsafe(24)
        with self._guard:
            self._codes.add(code)
        return f"http://{LOOPBACK}:{self.port}/#code={code}"

    def redeem(self, code: object) -> bool:
        """Is this the code of an address that has not been used?"""
        with self._guard:
            found = next((one for one in self._codes if isinstance(code, str)
                          and hmac.compare_digest(one.encode(), code.encode("utf-8", "replace"))), None)
            if found is not None:
                self._codes.remove(found)
            return found is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is no news."""


class Handler(BaseHTTPRequestHandler):
    """One request after the other from one connection."""
    server: LabelServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "klimb", ""
    timeout = 60.0  # of a connection that says nothing

    def do_GET(self) -> None:
        self._answer("GET", {"/api/state": self._state, "/api/text": self._text, "/api/labels.csv": self._labels})

    def do_POST(self) -> None:
        self._answer("POST", {"/api/enter": self._enter, "/api/answer": self._label, "/api/undo": self._undo,
                              "/api/skip": partial(self._label, skip=True)})

    def _answer(self, method: str, calls: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
        try:
            place = urlsplit(self.path)
            self._admit(place.path)
            given = self._body() if method == "POST" else {key: one[-1] for key, one in parse_qs(place.query).items()}
            if place.path in calls:
                self._send(HTTPStatus.OK, calls[place.path](given))
            elif method == "GET" and place.path in self.server.files:
                self._send(HTTPStatus.OK, *self.server.files[place.path])
            else:
                raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        except Refused as refusal:
            self.close_connection = True  # its body may not have been read
            self._send(refusal.status, {"error": refusal.words})
        except OutOfStep as error:
            self._send(HTTPStatus.CONFLICT, {"error": str(error), "state": self.server.session.state()})
        except InputError as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except NotSaved as error:
            self._send(HTTPStatus.INSUFFICIENT_STORAGE, {"error": f"Not saved: {error}"})

    def _admit(self, path: str) -> None:
        host, origin, site = (self.headers.get(name) for name in ("Host", "Origin", "Sec-Fetch-Site"))
        if host not in self.server.hosts:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server is known by a loopback address only")
        known = origin is None or origin in {f"http://{name}" for name in self.server.hosts}
        if not known or site not in (None, "same-origin", "none"):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other pages are not answered")
        if path.startswith("/api/") and path != "/api/enter":
            token = self.headers.get("X-Klimb-Token", "")
            if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
                raise Refused(HTTPStatus.FORBIDDEN, "the token is missing or wrong: use the address in the terminal")

    def _body(self) -> dict[str, Any]:
        if self.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "answers come as application/json")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the answer is missing")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has at most {LARGEST_BODY} bytes")
        try:
            found = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "the answer is not JSON") from None
        if not isinstance(found, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the answer is not an object")
        return found

    def _state(self, given: dict[str, Any]) -> Any:
        seen = given.get("seen")
        return self.server.session.state(None if seen is None else _whole(seen, "seen"), PATIENCE)

    def _text(self, given: dict[str, Any]) -> Any:
        return {"segments": self.server.session.whole_text(_whole(given.get("row"), "row"))}

    def _labels(self, given: dict[str, Any]) -> Any:
        return csv_text(self.server.session.standing()).encode()

    def _enter(self, given: dict[str, Any]) -> Any:
        if not self.server.redeem(given.get("code")):
            raise Refused(HTTPStatus.FORBIDDEN, "this address has been used: take the one in the terminal")
        return {"token": self.server.token}

    def _label(self, given: dict[str, Any], *, skip: bool = False) -> Any:
        turn, row = (_whole(given.get(name), name) for name in ("turn", "row"))
        self.server.session.answer(turn, row, None if skip else _whole(given.get("label"), "label"))
        return self.server.session.state()

    def _undo(self, given: dict[str, Any]) -> Any:
        self.server.session.undo(_whole(given.get("turn"), "turn"))
        return self.server.session.state()

    def _send(self, status: HTTPStatus, content: Any, kind: str = "text/csv; charset=utf-8") -> None:
        if not isinstance(content, bytes):
            content = json.dumps(content, allow_nan=False).encode()
            kind = "application/json"
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the protocol itself: without a word of what was sent."""
        self.close_connection = True
        self._send(HTTPStatus(code), {"error": HTTPStatus(code).phrase})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses of the page are nobody's business."""


def _whole(value: object, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InputError(f"a whole number as {name}", repr(value)[:40], "Load the page again.")


def _files() -> dict[str, tuple[bytes, str]]:
    """The page itself. It holds nothing of the data: that comes by `Session.state`, to who has the token."""
    from klimb.report.page import LOGO
    from klimb.report.svg import CHART_STYLE, PAGE_STYLE
    def read(name: str) -> str:
        return (ASSETS / name).read_text(encoding="utf-8")

    style = "\n".join((PAGE_STYLE, CHART_STYLE, read("page.css")))
    return {"/": (read("page.html").replace("@LOGO@", LOGO).encode(), "text/html; charset=utf-8"),
            "/page.css": (style.encode(), "text/css; charset=utf-8"),
            "/page.js": (read("page.js").encode(), "text/javascript; charset=utf-8"),
            "/icon.svg": (ICON.encode(), "image/svg+xml")}
