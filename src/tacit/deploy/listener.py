"""A socket that frames come in on, one thread for each caller; daemons and shufflers listen alike."""

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
"""How long a caller may say nothing between two frames, in seconds."""

HANDSHAKE = 10.0
"""How long a caller may take to show its certificate, from first to last."""

WHOLE_FRAME = 120.0
"""How long a frame may take, from its first byte to its last, in either direction."""


class Listener:
    """Hands every frame to ``handle`` and sends back the frame that it returns.

    ``secure`` makes of a fresh connection the one to talk over, before its handshake. Of more than ``most`` callers at
    once the last are turned away: told so, unless they would have to be talked to securely. Whoever has not shown a
    certificate is no caller yet: as many may be at it at once, and the one that has taken longest makes room for the
    next.
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
        self._seats = threading.BoundedSemaphore(most)
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
                # A caller that has gone before it was let in, or too many open files.
                time.sleep(0.01)
                continue
            if self._secure is None:
                self._seat(connection)
                continue
            try:
                secured = self._secure(connection)
            except OSError:
                connection.close()
                continue
            self._make_room(secured)
            threading.Thread(target=self._greet, args=(secured,), daemon=True).start()

    def _seat(self, connection: socket.socket) -> None:
        if self._seats.acquire(blocking=False):
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(refuse("busy", "too many connections"))

    def _make_room(self, secured: ssl.SSLSocket) -> None:
        """Take note of a handshake, and break off the oldest if there are too many."""
        with self._lock:
            while len(self._greeting) >= self._most:
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                with contextlib.suppress(OSError):
                    # Not the secure socket's own: it forgets its state, which another thread is using.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._greeting[secured] = None

    def _greet(self, secured: ssl.SSLSocket) -> None:
        """A handshake, for which no seat is taken; what it is timed by is the whole of it."""
        try:
            secured.settimeout(HANDSHAKE)
            secured.do_handshake()
        except OSError:
            secured.close()
            return
        finally:
            with self._lock:
                self._greeting.pop(secured, None)
        if self._seats.acquire(blocking=False):
            self._attend(secured)
        else:
            secured.close()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                self._converse(connection)
        finally:
            self._seats.release()

    def _converse(self, connection: socket.socket) -> None:
        inbox = _Inbox(connection)
        while True:
            try:
                found = inbox.next_frame()
            except RefusalError as refusal:
                # The stream is out of step: say so and hang up.
                _send(connection, refuse(refusal.code, str(refusal)))
                return
            if found is None:
                return
            _send(connection, self._handle(*found))

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
        """Header and payload, or nothing where the other side has closed."""
        self._deadline = time.monotonic() + WHOLE_FRAME if self._kept else None
        return read_frame(self._read, MOST_FRAME)

    def _read(self, count: int) -> bytes:
        """Exactly as many bytes as asked for, or fewer at the end."""
        while len(self._kept) < count:
            self._connection.settimeout(SILENCE if self._deadline is None else _left(self._deadline))
            part = self._connection.recv(1 << 16)
            if self._deadline is None:
                self._deadline = time.monotonic() + WHOLE_FRAME
            if not part:
                break
            self._kept += part
        found = bytes(self._kept[:count])
        del self._kept[:count]
        return found


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


def serve_until_told(listener: Listener, log: logging.Logger, line: str) -> None:
    """Serve until a signal says to stop."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: listener.close())
    log.info("%s", line)
    with contextlib.suppress(KeyboardInterrupt):
        listener.serve()


def log_to_terminal(log: logging.Logger) -> None:
    """Show what a service has to say for itself, with the time."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
