"""A connection over which frames are exchanged, made again when it is lost; daemons and shufflers are called alike."""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import time
from abc import ABC, abstractmethod

from tacit.deploy.wire import RefusalError, read_frame


class Connection(ABC):
    """A connection that is made again for up to ``patience`` seconds, and the request repeated with it."""

    def __init__(self, patience: float, *, pause: float, gone: str) -> None:
        self._patience, self._pause, self._gone = patience, pause, gone
        self._socket: socket.socket | None = None
        self._stream: io.BufferedReader | None = None

    @abstractmethod
    def connect(self) -> socket.socket:
        """A fresh connection."""

    def exchange(self, raw: bytes) -> tuple[bytes, bytes]:
        """Send bytes as they are and read one frame."""
        deadline = time.monotonic() + self._patience
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
                time.sleep(self._pause)

    def _once(self, raw: bytes) -> tuple[bytes, bytes]:
        if self._socket is None or self._stream is None:
            self._socket = self.connect()
            self._stream = self._socket.makefile("rb")
        self._socket.sendall(raw)
        try:
            found = read_frame(self._stream.read)
        except RefusalError:
            found = None
        if found is None:
            raise ConnectionResetError(self._gone)
        return found

    def close(self) -> None:
        """Hang up."""
        for part in (self._stream, self._socket):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()
        self._socket = self._stream = None
