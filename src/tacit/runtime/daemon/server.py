"""The door: a Unix socket with file permissions, in front of a steward. There is no other way in."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

from tacit.runtime.daemon.policy import PolicyError, load_policy, load_records
from tacit.runtime.daemon.protocol import MOST_FRAME, RefusalError, read_frame
from tacit.runtime.daemon.steward import Steward, home_of, refuse

_log = logging.getLogger("tacit.silo")
_MOST_CALLERS = 32
_PATIENCE = 60.0


class Door:
    """Listens on a socket and hands frames to a steward.

    Every connection has a thread of its own, which only moves bytes; the steward serves one request at a time. Replies
    leave at multiples of ``pad_seconds`` after their request, so that how long a computation took is blurred.
    """

    def __init__(self, steward: Steward, path: Path, mode: int = 0o600) -> None:
        self._steward, self.path = steward, path
        self._pad = steward.policy.pad_seconds
        self._seats = threading.BoundedSemaphore(_MOST_CALLERS)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Whoever may use the socket may enter its folder, and nobody else.
        path.parent.chmod(0o710 if mode & 0o070 else 0o700)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o777 & ~mode)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            raise PolicyError(f"The socket {path} cannot be made: {error}; choose a shorter path.") from None
        finally:
            os.umask(before)
        self._socket.listen(_MOST_CALLERS)

    def serve(self) -> None:
        """Serve until the socket is closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._seats.acquire(blocking=False):
                with contextlib.suppress(OSError):
                    connection.sendall(refuse("busy", "too many connections"))
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_PATIENCE)
                with contextlib.suppress(OSError):
                    self._converse(connection)
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
                begun = time.monotonic()
                reply = self._steward.handle(*found)
                if self._pad:
                    time.sleep(self._pad - (time.monotonic() - begun) % self._pad)
                connection.sendall(reply)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def serve(folder: Path, *, noise_off: bool = False, socket_mode: int = 0o600) -> None:
    """Run the daemon of the silo whose policy lies in ``folder``, until it is told to stop."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    _log.setLevel(logging.INFO)
    policy = load_policy(folder / "policy.toml")
    home = home_of(folder, policy)
    steward = Steward(policy, load_records(policy, folder), home, noise_off=noise_off)
    door = Door(steward, home.socket, socket_mode)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: door.close())
    _log.info("silo %s serves on %s", policy.name, door.path)
    if noise_off:
        _log.warning("NOISE IS OFF: a test build, not private")
    try:
        door.serve()
    except KeyboardInterrupt:
        pass
    finally:
        door.close()
        steward.close()
