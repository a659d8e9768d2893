"""``tacit silo web``: what waits for the owner's word, as one page on this machine, with approve, reject and revoke.

It runs as the owner, beside the daemon, and reads no record. It listens on loopback; whoever does not have the token of
this start sees nothing. There is no script on the page, and it loads nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import http.cookies
import secrets
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jinja2

from tacit.cli.status import account_words, approve, described_lines, end, status_of
from tacit.deploy.permissions import check_owner
from tacit.errors import TacitError, printable

_HOST = "127.0.0.1"
_COOKIE = "tacit"
_MOST_FORM = 1 << 14
_DECISIONS = ("approve", "reject", "close", "revoke")


class Desk:
    """The owner's page of a silo's folder, for who has the token."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder, self._token = folder, token
        # A cookie goes to all ports of a machine, but only below its path, which nobody else's server there knows.
        self.place = f"/{secrets.token_urlsafe(16)}/"
        self._lock = threading.Lock()

    def knows(self, said: str) -> bool:
        """Whether somebody has said the token of this start."""
        return hmac.compare_digest(said.encode(), self._token.encode())

    def page(self, message: str = "") -> str:
        """Everything that waits, and what was decided, as HTML."""
        with self._lock:
            facts = status_of(self.folder)
        waiting = [row | {"lines": described_lines(row)} for row in facts["pending"]]
        style = (resources.files("tacit.cli") / "templates" / "web.css").read_text(encoding="utf-8")
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        text = (resources.files("tacit.cli") / "templates" / "web.html.jinja").read_text(encoding="utf-8")
        return environment.from_string(text).render(
            **{**facts, "pending": waiting},
            name=self.folder.resolve().name,
            words=account_words(facts["account"]),
            message=message,
            token=self._token,
            place=self.place,
            style=style,
            printable=printable,
        )

    def decide(self, verb: str, study: str, note: str) -> str:
        """Do what the owner has pressed; a study is given by its whole identity."""
        if verb not in _DECISIONS:
            raise TacitError(f"Expected one of {', '.join(_DECISIONS)}.")
        with self._lock:
            if verb == "approve":
                if study not in {row["study"] for row in status_of(self.folder)["pending"]}:
                    raise TacitError("This study does not wait any more; look again.")
                approve(self.folder, study, note)
                return "Approved; it is reserved when the server next asks."
            done = end(self.folder, study, verb, note)
            return f"{printable(done['name'])}: {verb}. It counts from the daemon's next request on."


class _Handler(BaseHTTPRequestHandler):
    """Answers on loopback; without the token every answer is the same."""

    server_version, sys_version, protocol_version = "tacit", "", "HTTP/1.0"
    timeout = 30.0
    desk: Desk

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses hold the token."""

    def do_GET(self) -> None:
        """The page; the first time with the token in the address, which becomes a cookie of the page's own path."""
        address, place = urlsplit(self.path), self.desk.place
        said = parse_qs(address.query).get("token", [""])[0]
        if not self._is_local() or address.path not in ("/", place):
            self._say(403, "Nothing here.")
        elif address.path == "/" and said and self.desk.knows(said):
            self.send_response(303)
            self.send_header("Location", place)
            self.send_header("Set-Cookie", f"{_COOKIE}={said}; HttpOnly; SameSite=Strict; Path={place}")
            self._end(b"")
        elif address.path == place and self._has_token():
            self._show(self.desk.page)
        else:
            self._say(403, "Nothing here.")

    def do_POST(self) -> None:
        """A decision: with the cookie, and the token again in the form, so that no other page can press a button."""
        told = self.headers.get("Content-Length", "")
        length = int(told) if told.isascii() and told.isdigit() else 0
        is_here = self._is_local() and self.path == self.desk.place
        if not (is_here and self._has_token() and 0 < length <= _MOST_FORM):
            self._say(403, "Nothing here.")
            return
        form = {key: found[0] for key, found in parse_qs(self.rfile.read(length).decode(errors="replace")).items()}
        if not self.desk.knows(form.get("token", "")):
            self._say(403, "Nothing here.")
            return

        def act() -> str:
            try:
                message = self.desk.decide(form.get("decision", ""), form.get("study", ""), form.get("note", ""))
            except TacitError as error:
                message = str(error)
            return self.desk.page(message)

        self._show(act)

    def _is_local(self) -> bool:
        """Whether the browser means this machine: a name of somebody else's that leads here is refused."""
        port = self.connection.getsockname()[1]
        own = {f"{name}:{port}" for name in (_HOST, "localhost")}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in own and origin in (None, "null", *(f"http://{name}" for name in own))

    def _has_token(self) -> bool:
        try:
            found = http.cookies.SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except http.cookies.CookieError:
            return False
        return found is not None and self.desk.knows(found.value)

    def _show(self, made: Callable[[], str]) -> None:
        try:
            self._say(200, made(), kind="text/html")
        except (TacitError, OSError) as error:
            self._say(500, str(error))

    def _say(self, code: int, text: str, kind: str = "text/plain") -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self._end(text.encode())

    def _end(self, body: bytes) -> None:
        rules = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
        rules += "frame-ancestors 'none'; base-uri 'none'"
        self.send_header("Content-Security-Policy", rules)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def opened(folder: Path, port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """A server of the owner's page on loopback, and its address with the token of this start."""
    check_owner(folder)
    status_of(folder)
    token = secrets.token_urlsafe(32)
    handler = type("Handler", (_Handler,), {"desk": Desk(folder, token)})
    try:
        server = ThreadingHTTPServer((_HOST, port), handler)
    except OSError as error:
        raise TacitError(f"Expected a free port at {_HOST}:{port}: {error}; choose another with --port.") from None
    return server, f"http://{_HOST}:{server.server_address[1]}/?token={token}"


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve the owner's page until stopped."""
    server, address = opened(folder, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say(f"Open this address on this machine; whoever has it can decide for you: {address}")
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
