"""The socket server of daemons and shufflers."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable

from tacit.deploy.wire import MOST_FRAME, RefusalError, read_frame, refuse

SILENCE = 60.0
"""Seconds that a caller may be silent between two frames."""

HANDSHAKE = 10.0
"""Seconds that a whole TLS handshake may take."""

WHOLE_FRAME = 120.0
"""Seconds that a frame may take from its first byte to its last, in either direction."""


class Listener:
    """Hands every frame to ``handle`` and sends back the frame that it returns, with one thread for each caller.

    ``secure`` wraps a fresh connection in TLS, before its handshake. Callers beyond ``most`` at once are refused, or
    cut off where they speak TLS. Handshakes take no caller's slot: ``most`` more may be under way, and the oldest makes
    room for the next.
    """

    def __init__(
        self,
        listening: socket.socket,
        handle: Callable[[bytes, bytes], bytes],
        *,
        most: int,
        secure: Callable[[socket.socket], ssl.SSLSocket] | None = None,
    ) -> None:
        self._socket, self._handle, self._secure, self._most = listening, handle, secure, most
        self._slots = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._greeting: dict[ssl.SSLSocket, None] = {}
        self._closed = False

    def serve(self) -> None:
        """Serve until closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                # The caller has hung up already, or there are too many open files.
                time.sleep(0.01)
                continue
            if self._secure is None:
                self._admit(connection)
                continue
            try:
                secured = self._secure(connection)
            except OSError:
                connection.close()
                continue
            self._make_room(secured)
            threading.Thread(target=self._greet, args=(secured,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        if self._slots.acquire(blocking=False):
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(refuse("busy", "too many connections"))

    def _make_room(self, secured: ssl.SSLSocket) -> None:
        """Note a handshake, and break off the oldest if there are too many."""
        with self._lock:
            while len(self._greeting) >= self._most:
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                with contextlib.suppress(OSError):
                    # Not the SSL socket's own shutdown: it drops state that another thread is using.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._greeting[secured] = None

    def _greet(self, secured: ssl.SSLSocket) -> None:
        """Shake hands within a time limit for the whole of it, then serve the caller if there is a slot."""
        try:
            secured.settimeout(HANDSHAKE)
            secured.do_handshake()
        except OSError:
            secured.close()
            return
        finally:
            with self._lock:
                self._greeting.pop(secured, None)
        if self._slots.acquire(blocking=False):
            self._attend(secured)
        else:
            secured.close()

    def _attend(self, connection: socket.socket) -> None:
        """Answer frames until the caller hangs up, then free its slot."""
        inbox = _Inbox(connection)
        try:
            with connection, contextlib.suppress(OSError):
                try:
                    while (request := inbox.next_frame()) is not None:
                        _send(connection, self._handle(*request))
                except RefusalError as refusal:
                    # The stream is out of step: refuse and hang up.
                    _send(connection, refuse(refusal.code, str(refusal)))
        finally:
            self._slots.release()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Inbox:
    """Frames as they come in; the clock of a frame starts with its first byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._kept = connection, bytearray()
        self._deadline: float | None = None

    def next_frame(self) -> tuple[bytes, bytes] | None:
        """Header and payload, or ``None`` where the caller has hung up."""
        self._deadline = time.monotonic() + WHOLE_FRAME if self._kept else None
        return read_frame(self._read, MOST_FRAME)

    def _read(self, count: int) -> bytes:
        """Exactly ``count`` bytes, or fewer at the end."""
        while len(self._kept) < count:
            self._connection.settimeout(SILENCE if self._deadline is None else _left(self._deadline))
            part = self._connection.recv(1 << 16)
            if self._deadline is None:
                self._deadline = time.monotonic() + WHOLE_FRAME
            if not part:
                break
            self._kept += part
        taken = bytes(self._kept[:count])
        del self._kept[:count]
        return taken


def _send(connection: socket.socket, raw: bytes) -> None:
    deadline, left = time.monotonic() + WHOLE_FRAME, memoryview(raw)
    while left:
        connection.settimeout(_left(deadline))
        left = left[connection.send(left[: 1 << 20]) :]


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def serve_until_stopped(listener: Listener, log: logging.Logger, line: str) -> None:
    """Serve until SIGTERM or an interrupt."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: listener.close())
    log.info("%s", line)
    with contextlib.suppress(KeyboardInterrupt):
        listener.serve()


def log_to_terminal(log: logging.Logger) -> None:
    """Show a service's log on the terminal, with the time."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
