"""Connections to daemons and shufflers; an attacker could replace this side without harm to any record."""

from __future__ import annotations

import contextlib
import io
import random
import socket
import ssl
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from tacit.deploy.signing import Proposer
from tacit.deploy.wire import (
    Error,
    Hello,
    RefusalError,
    Strict,
    Welcome,
    frame,
    parse_response,
    parse_signed_reply,
    read_frame,
    unframed,
)
from tacit.errors import TacitError, printable

_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class BusyError(ConnectionError):
    """The other side has no room for a caller just now."""


def refusal_of(response: Error) -> RefusalError:
    """A refusal of the other side as an error, with its text `printable`."""
    return RefusalError(printable(response.code, 40), printable(response.text), response.numbers)


class Connection(ABC):
    """Exchanges frames; a lost connection is made again for up to ``patience`` seconds and the request repeated.

    So is one that the other side is too busy for, with longer and longer pauses. Repeating is always safe: daemons and
    shufflers give the stored reply to a request that they have answered.
    """

    parse = staticmethod(parse_response)

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._socket: socket.socket | None = None
        self._stream: io.BufferedReader | None = None

    @abstractmethod
    def connect(self) -> socket.socket:
        """A fresh connection."""

    def ask(self, request: Strict, payload: bytes = b"") -> tuple[Any, bytes]:
        """The response to a request and its payload; a refusal raises with its code and numbers."""
        return self.send(frame(request, payload))

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        """Send a frame as it is; otherwise like ``ask``."""
        header, body = self.exchange(raw)
        response = self.parse(header)
        if isinstance(response, Error):
            raise refusal_of(response)
        return response, body

    def exchange(self, raw: bytes) -> tuple[bytes, bytes]:
        """Send bytes as they are and read one frame."""
        deadline, pause = time.monotonic() + self._patience, _PAUSE
        while True:
            try:
                return self._once(raw)
            except ssl.SSLCertVerificationError:
                self.close()
                raise
            except OSError:
                self.close()
                if time.monotonic() >= deadline:
                    raise
                # Of many who were turned away at once, not all may come back at once.
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, raw: bytes) -> tuple[bytes, bytes]:
        if self._socket is None or self._stream is None:
            self._socket = self.connect()
            self._stream = self._socket.makefile("rb")
        return self._sent(self._socket, self._stream, raw)

    def _sent(self, line: socket.socket, stream: io.BufferedReader, raw: bytes) -> tuple[bytes, bytes]:
        """One frame there, and one back."""
        line.sendall(raw)
        try:
            reply = read_frame(stream.read)
        except RefusalError:
            reply = None
        if reply is None:
            raise ConnectionResetError("the other side has closed the connection")
        # Replies to requests are signed: an open refusal is that of the socket.
        with contextlib.suppress(RefusalError):
            refusal = parse_response(reply[0])
            if isinstance(refusal, Error) and refusal.code == "busy":
                raise BusyError(refusal.text)
        return reply

    def close(self) -> None:
        """Hang up."""
        for part in (self._stream, self._socket):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()
        self._socket = self._stream = None


class Client(Connection):
    """A connection to one silo's daemon, over its socket at ``path``.

    ``proposer`` signs what is asked, of the silo of this name and the ledger that it tells when it is greeted. Who
    carries frames that are signed already needs none.
    """

    def __init__(self, path: Path, patience: float = 0.0, *, proposer: Proposer | None = None, silo: str = "") -> None:
        super().__init__(patience)
        self._path, self._proposer, self._silo = path, proposer, silo
        self._ledger = ""

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        """Sign the request of a frame and send it; otherwise like ``ask``. Whose the reply is, is not checked."""
        response, body = self._asked(self.signed(raw))
        if isinstance(response, Error):
            raise refusal_of(response)
        return response, body

    def signed(self, raw: bytes) -> bytes:
        """The request of a frame, signed; before the first one, the silo is asked for its ledger."""
        if self._proposer is None:
            raise TacitError("Expected a proposer to sign what is asked.")
        header, payload = unframed(raw)
        if not self._ledger and b'"hello"' not in header[:32]:
            welcome, _ = self._asked(self._proposer.request(Hello(), silo=self._silo))
            self._ledger = welcome.ledger if isinstance(welcome, Welcome) else ""
        text = header.decode(errors="replace")
        return self._proposer.request(text, payload, silo=self._silo, ledger=self._ledger)

    def _asked(self, raw: bytes) -> tuple[Any, bytes]:
        signed, body = self.exchange(raw)
        return self.parse(parse_signed_reply(signed).reply.encode()), body

    def connect(self) -> socket.socket:
        """A connection to the daemon's socket."""
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.connect(str(self._path))
        except OSError:
            plain.close()
            raise
        return plain
