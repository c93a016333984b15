"""Drives a headless Chromium over its debugging pipe (two file descriptors, JSON between zero bytes): no other package.

    with Browser() as browser:
        page = browser.page("http://127.0.0.1:8000/")
        page.press("1")
        page.until("document.title === 'done'")
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--mute-audio", "--hide-scrollbars", "--remote-debugging-pipe")

# The browser reads from descriptor 3 and writes to 4: ours go there, by way of higher ones so that none is lost.
START = ("import fcntl, os, sys\n"
         "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]\n"
         "os.dup2(ends[0], 3), os.dup2(ends[1], 4)\n"
         "os.execvp(sys.argv[3], sys.argv[3:])\n")


def program() -> str | None:
    """Where Chromium is: KLIMB_CHROMIUM, or one of its names on the path."""
    named = os.environ.get("KLIMB_CHROMIUM")
    return named or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """A running Chromium with a profile of its own, which goes away with it."""

    def __init__(self) -> None:
        found = program()
        if found is None:
            raise FileNotFoundError("no chromium on this machine")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [found, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", START, str(theirs_in), str(theirs_out), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out), start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, timeout: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """Send a command, and wait for its answer; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            found = self._receive(end)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return dict(found["result"])
            self.events.append(found)

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("chromium does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise ConnectionError("chromium has gone")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def page(self, url: str, size: tuple[int, int] = (1200, 900)) -> Page:
        """A new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(*size)
        page.open(url)
        return page

    def close(self) -> None:
        try:
            self.call("Browser.close", timeout=10.0)
            self.process.wait(timeout=10.0)
        except (OSError, TimeoutError, subprocess.TimeoutExpired, RuntimeError):
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)
        self.profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def reload(self) -> None:
        self.call("Page.reload", ignoreCache=True)
        time.sleep(0.1)
        self.until("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                          allowUnsafeEvalBlockedByCSP=False)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression: str, timeout: float = 30.0) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + timeout
        while True:
            try:
                found = self.run(expression)
            except RuntimeError:  # in the middle of a navigation
                found = None
            if found:
                return found
            if time.monotonic() > end:
                words = self.run("document.body.innerText")
                raise TimeoutError(f"never true: {expression}; the page says {words[:800]}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, **more: Any) -> None:
        """A key, as a keyboard sends it."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str) -> None:
        """The mouse, in the middle of an element."""
        box = self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView();"
                       " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def resize(self, wide: int, high: int, scale: float = 1.0) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=scale, mobile=False)

    def scheme(self, name: str) -> None:
        """``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path: str | Path, **clip: Any) -> None:
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    def complaints(self) -> list[str]:
        """Errors that the page or the browser has reported so far: exceptions, violations of the policy."""
        self.run("1")  # collects what is waiting
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def requested(self) -> list[str]:
        """Every address the page has asked for."""
        self.run("1")
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]
