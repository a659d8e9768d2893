"""The daemon: a Unix socket with file permissions, in front of the silo's service. There is no other way in."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import time
from pathlib import Path

from tacit.deploy.listener import Listener, log_to_terminal, serve_until_stopped
from tacit.deploy.permissions import check_silo
from tacit.deploy.silo.policy import (
    Policy,
    PolicyError,
    digest,
    files_of,
    load_description,
    load_policy,
    load_records,
    policy_text,
)
from tacit.deploy.silo.service import SiloService, home_of
from tacit.privacy.cache import cache_folder
from tacit.privacy.plan import doubts, scarce

_log = logging.getLogger("tacit.silo")
_MOST_CALLERS = 32

_MMAP_THRESHOLD, _LARGE = -3, 1 << 17
"""An option of the C library's ``mallopt``, and its value: so large blocks are given back as soon as they are free."""


class SiloServer(Listener):
    """Listens on a socket and hands frames to the service, which serves one request at a time.

    Replies leave at multiples of ``pad_seconds`` after their request, to hide how long a computation took.
    """

    def __init__(self, service: SiloService, path: Path, mode: int = 0o600) -> None:
        self._service, self.path = service, path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Whoever may use the socket may enter its folder, and nobody else.
        path.parent.chmod(0o710 if mode & 0o070 else 0o700)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o777 & ~mode)
        try:
            listening.bind(str(path))
        except OSError as error:
            raise PolicyError(f"The socket {path} cannot be made: {error}; choose a shorter path.") from None
        finally:
            os.umask(before)
        listening.listen(_MOST_CALLERS)
        super().__init__(listening, self._reply, knows=service.knows, most=_MOST_CALLERS, log=_log)

    def _reply(self, header: bytes, payload: bytes) -> bytes:
        begun = time.monotonic()
        reply = self._service.handle(header, payload)
        pad = self._service.policy.pad_seconds
        if pad:
            time.sleep(pad - (time.monotonic() - begun) % pad)
        return reply

    def close(self) -> None:
        """Stop listening."""
        super().close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def serve(folder: Path, *, noise_off: bool = False, socket_mode: int = 0o600) -> None:
    """Run the daemon of a silo's folder until it is stopped; it does not start where others can use its files."""
    log_to_terminal(_log)
    os.umask(0o077)
    _give_memory_back()
    # The text first: an edit that comes in between is seen with the first request.
    text, policy = policy_text(folder), load_policy(folder / "policy.toml")
    home = home_of(folder, policy)
    prices = cache_folder("prices")
    if prices is not None:
        # Made before it is checked: otherwise somebody else could make it later.
        with contextlib.suppress(OSError):
            prices.mkdir(parents=True, exist_ok=True)
    for decisions in (home.approved, home.decided):
        decisions.mkdir(mode=0o700, exist_ok=True)
    check_silo(folder, files_of(folder, policy, home.counter), public=[folder / "models"])
    records = load_records(policy, folder)
    # The account is of the records that the owner has, whatever features are made of them.
    identity = digest(records)
    if policy.data.backbone is not None:
        from tacit.deploy.silo.backbones import with_features

        records = with_features(policy, folder, records)
    _warn(policy, len(records["y"]))
    description = load_description(policy, folder, records)
    own = {"description": description, "policy_read": text, "identity": identity}
    service = SiloService(policy, records, home, noise_off=noise_off, **own)  # type: ignore[arg-type]
    server = SiloServer(service, home.socket, socket_mode)
    if noise_off:
        _log.warning("NOISE IS OFF: a test build, not private")
    try:
        serve_until_stopped(server, _log, f"silo {policy.name} serves on {server.path}")
    finally:
        server.close()
        service.close()


def _give_memory_back() -> None:
    """Keep no large block that is free for later; without this the sums of a round stay, in pieces, until the end."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)


def _warn(policy: Policy, count: int) -> None:
    """Tell the owner what is doubtful about a policy for so many records."""
    sizes = [count]
    for doubt in [*doubts([policy.budget.epsilon], policy.budget.delta, sizes), *scarce([policy.name], sizes)]:
        _log.warning("policy.toml: %s", doubt)
    if not policy.proposers:
        _log.warning("policy.toml names no proposers: every request is refused; see [proposers] in docs/deployment.md")
    if policy.data.columns is None:
        _log.warning(
            "policy.toml names no columns for %s: whether its features and classes mean the same as those of other "
            "silos cannot be checked; see data.columns in docs/deployment.md",
            policy.data.file,
        )
