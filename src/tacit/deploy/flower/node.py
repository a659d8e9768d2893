"""``tacit silo join``: a silo's node, which carries frames between a SuperLink and the daemon's socket.

It speaks Flower's fleet API itself. There is no SuperNode and no ClientApp: nothing that a server ships is executed, or
even fetched. The node comes back after any failure, and looks for messages often while a study runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tacit.deploy.flower.courier import exchange
from tacit.deploy.flower.private import HEARTBEAT, Fleet, check_flower
from tacit.errors import TacitError, printable
from tacit.stopping import ToldInterrupt

_SOON, _BUSY, _IDLE, _SLOWER = 0.05, 0.2, 3.0, 1.1
_STUDY = 30.0
"""Seconds after its last message in which a study is taken to run."""

_FIRST, _LAST = 0.5, 10.0
_BEAT = 0.4 * HEARTBEAT

Say = Callable[[str], None]


def serve(superlink: str, *, authority: Path, key: Path, socket: Path, say: Say) -> None:
    """Carry frames until SIGTERM or SIGINT."""
    check_flower()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        fleet = Fleet(superlink, authority, key)
    except (OSError, ValueError) as error:
        raise TacitError(
            f"Expected a node's key at {key} and an authority's certificate at {authority}: {error}."
        ) from None
    try:
        _keep_carrying(fleet, socket, say)
    except ToldInterrupt:
        say("Stopped.")
    finally:
        with contextlib.suppress(httpx.HTTPError):
            fleet.leave()
        fleet.close()


def _stop(number: int, frame: Any) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):
        # The second signal ends a goodbye that takes too long.
        signal.signal(again, lambda *_: os._exit(1))
    raise ToldInterrupt


def _keep_carrying(fleet: Fleet, socket: Path, say: Say) -> None:
    """Join, carry, and after a failure begin again, later each time."""
    pause, told = _FIRST, ""
    while True:
        lost = threading.Event()
        try:
            fleet.join()
            say(f"Joined as node {fleet.node}.")
            pause, told = _FIRST, ""
            with _beating(fleet, lost):
                carry(fleet, socket, lost)
        except Exception as error:
            # Also what no honest server causes.
            reason = reason_of(error)
        else:
            reason = "the SuperLink does not know this node any more."
        if reason != told:
            say(f"Not joined: {reason} Trying again.")
        told = reason
        time.sleep(pause)
        pause = min(2 * pause, _LAST)


def carry(fleet: Fleet, socket: Path, lost: threading.Event) -> None:
    """Fetch messages and bring the daemon's replies, until the node is ``lost``."""
    pause, latest = _BUSY, -_STUDY
    while not lost.is_set():
        try:
            parcel = fleet.receive()
            if parcel is not None:
                pause, latest = _BUSY, time.monotonic()
                if parcel.frames is not None:
                    fleet.answer(parcel, exchange(socket, parcel.frames))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise
            # The run of this message is over, and nobody waits for a reply.
        if time.monotonic() - latest > _STUDY:
            pause = min(_SLOWER * pause, _IDLE)
        lost.wait(_SOON if fleet.expects else pause)


@contextlib.contextmanager
def _beating(fleet: Fleet, lost: threading.Event) -> Any:
    """Heartbeats in a thread, because a daemon may take its time."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT) and not lost.is_set():
            try:
                known = fleet.beat()
            except (httpx.HTTPError, ValueError, RuntimeError):
                continue
            if not known:
                lost.set()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(2.0)


def reason_of(error: Exception) -> str:
    """Why a node is not joined, in words."""
    if isinstance(error, httpx.HTTPStatusError):
        if error.request.url.path.endswith("activate-node"):
            return (
                "the SuperLink refuses this node. Its key is not registered (tacit server register), or another "
                f"process has joined with it, or has ended without a goodbye less than {2 * HEARTBEAT:.0f} s ago."
            )
        return f"the SuperLink answers {error.response.status_code} to {error.request.url.path}."
    return f"{printable(str(error), 300) or type(error).__name__}."
