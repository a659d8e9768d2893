"""A real browser without a driver: Chromium's own protocol over two pipes, enough to open a page and look at it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""
PATIENCE = 90.0
MISSING = "no Chromium on this machine: put one on the path, or name it in TACIT_CHROMIUM"

BEYOND = """[...document.querySelectorAll('details')].forEach(one => { one.open = true; }),
[...(document.querySelector('article') ?? document).querySelectorAll('td, th, h1, h2, h3, p, li')].filter(one => {
    const box = one.getBoundingClientRect();
    let edge = innerWidth;
    for (let up = one.parentElement; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== 'visible') edge = Math.min(edge, up.getBoundingClientRect().right);
    return box.width > 0 && box.right > edge + 1;
}).map(one => one.textContent)"""
"""Cells and paragraphs that go beyond the edge of the screen, or of what scrolls them."""


def find_browser() -> str | None:
    """A Chromium of this machine: TACIT_CHROMIUM, or one on the path."""
    return os.environ.get("TACIT_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


def need_browser() -> str:
    """A Chromium of this machine; without one the test is skipped, and the last line of the run says so."""
    found = find_browser()
    if found is None:
        pytest.skip(MISSING)
    return found


class Page:
    """One tab: what it says on its console and asks of the network is kept."""

    def __init__(self, out: int, into: int, session: str | None = None) -> None:
        self._out, self._into, self._session = out, into, session
        self._number, self._unread = 0, b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                return heard["result"]
            self.events.append(heard)

    def _hear(self) -> dict[str, Any]:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            if time.monotonic() > limit or not select.select([self._into], [], [], PATIENCE)[0]:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE:.0f} s.")
            read = os.read(self._into, 1 << 20)
            if not read:
                raise RuntimeError("Chromium has gone.")
            self._unread += read
        line, self._unread = self._unread.split(b"\0", 1)
        return json.loads(line)

    def attach(self) -> None:
        """Open a tab and listen to its console and network."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def look(self, path: Path, *, width: int, height: int = 800, dark: bool = False, phone: bool = False) -> None:
        """Open a file at this width, light or dark."""
        self.visit(path.resolve().as_uri(), width=width, height=height, dark=dark, phone=phone)

    def visit(self, url: str, *, width: int, height: int = 800, dark: bool = False, phone: bool = False) -> None:
        """Open an address at this width, light or dark."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.send("Page.navigate", url=url)
        limit = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            if time.monotonic() > limit:
                raise TimeoutError(f"{url} did not load.")
            self.events.append(self._hear())

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """A picture of the whole page."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the page complained of: console errors and warnings, exceptions, failed loads."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or method == "Network.loadingFailed":
                found.append(json.dumps(params))
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
        return found

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def open_browser(binary: str, home: Path) -> Iterator[Page]:
    """Start a Chromium with a profile of its own, and end it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(to_read), str(from_write), binary, *_FLAGS, f"--user-data-dir={home}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(to_read, from_write),
        start_new_session=True,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        page = Page(to_write, from_read)
        page.attach()
        yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to_write)
        os.close(from_read)
