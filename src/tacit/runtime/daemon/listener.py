"""A socket that frames come in on, one thread for each caller; daemons and shufflers listen alike."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable

from tacit.runtime.daemon.protocol import MOST_FRAME, RefusalError, read_frame, refuse

_PATIENCE = 60.0


class Listener:
    """Hands every frame to ``handle`` and sends back the frame that it returns.

    ``secure`` makes of a fresh connection the one to talk over. Of more than ``most`` callers at once the last are
    turned away: told so, unless they would have to be talked to securely.
    """

    def __init__(
        self,
        listening: socket.socket,
        handle: Callable[[bytes, bytes], bytes],
        *,
        most: int,
        secure: Callable[[socket.socket], socket.socket] | None = None,
    ) -> None:
        self._socket, self._handle, self._secure = listening, handle, secure
        self._seats = threading.BoundedSemaphore(most)

    def serve(self) -> None:
        """Serve until closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self._seats.acquire(blocking=False):
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
                continue
            with contextlib.suppress(OSError):
                if self._secure is None:
                    connection.sendall(refuse("busy", "too many connections"))
            connection.close()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_PATIENCE)
                with contextlib.suppress(OSError):
                    if self._secure is None:
                        self._converse(connection)
                    else:
                        with self._secure(connection) as secured:
                            self._converse(secured)
        finally:
            self._seats.release()

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while True:
                try:
                    found = read_frame(stream.read, MOST_FRAME)
                except RefusalError as refusal:
                    # The stream is out of step: say so and hang up.
                    connection.sendall(refuse(refusal.code, str(refusal)))
                    return
                if found is None:
                    return
                connection.sendall(self._handle(*found))

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


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
