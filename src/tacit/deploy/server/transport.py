"""How the server reaches silos: a few frames to each, and whatever comes back in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from tacit.deploy.client import Client
from tacit.deploy.wire import frame

Frames = Sequence[bytes]
Replies = list[tuple[bytes, bytes]]
Enough = Callable[[set[str]], bool]


class Transport(Protocol):
    """A way to reach silos; addresses are whatever the transport calls them."""

    def present(self) -> list[str]:
        """Addresses that can be reached now."""
        ...

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """Send frames, and wait until all have answered, or ``enough`` have, or time is up; the silent are left out."""
        ...


class SocketTransport:
    """Daemons on this machine, over their sockets; for tests and for machines that hold several silos."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = {str(path): path for path in sockets}
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(sockets)))

    def present(self) -> list[str]:
        """Sockets that exist."""
        return [name for name, path in self._sockets.items() if path.exists()]

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """One connection for each silo and request, in threads."""
        deadline = time.monotonic() + seconds
        waiting: dict[Future[Replies], str] = {
            self._pool.submit(self._one, self._sockets[name], frames): name for name, frames in requests.items()
        }
        found: dict[str, Replies] = {}
        while waiting and time.monotonic() < deadline:
            done, _ = wait(waiting, timeout=max(0.0, deadline - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in done:
                name = waiting.pop(future)
                if future.exception() is None:
                    found[name] = future.result()
            if enough is not None and enough(set(found)):
                break
        return found

    @staticmethod
    def _one(path: Path, frames: Frames) -> Replies:
        client: Any = Client(path)
        try:
            return [client.exchange(raw) for raw in frames]
        finally:
            client.close()

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Recorder:
    """A transport that keeps everything that comes back, for whoever wants to see what a server sees."""

    def __init__(self, inner: Transport, path: Path) -> None:
        self._inner, self._path = inner, path

    def present(self) -> list[str]:
        """As the transport inside."""
        return self._inner.present()

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """As the transport inside."""
        found = self._inner.ask(requests, seconds, enough)
        with self._path.open("ab") as file:
            for replies in found.values():
                for header, payload in replies:
                    file.write(frame(header, payload))
        return found
