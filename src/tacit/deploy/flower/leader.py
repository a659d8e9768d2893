"""Leads the study of a run folder over a SuperLink: ``python -m tacit.deploy.flower.leader FOLDER CONTROL``.

`tacit server run` starts it as its own child, so that it runs as the proposer's user and ends with the command. It
executes the run that it has started itself, and no other.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit.deploy.flower.commands import read_control
from tacit.deploy.flower.private import EndedError, Link, Run, check_flower
from tacit.deploy.server.transport import Enough, Frames, Replies
from tacit.deploy.wire import MOST_FRAME, MOST_PART, RefusalError, read_frame
from tacit.errors import printable

_SOON, _LATE, _SLOWER = 0.05, 1.0, 1.2
"""Seconds between two looks for replies: the least, the most, and how much longer each wait is than the one before."""
_DUTY = 4.0
"""A look is followed by a pause of so many times as long: a SuperLink that is slow is asked less often."""
_EARLY = 0.7
"""The first look comes when this share of the time has gone by that the first reply took the last time."""
_AWAY = 0.2
_BEAT = 10.0
_MOST_FRAMES = MOST_FRAME // MOST_PART
"""How many frames a message has at most: as many parts of a payload as one frame would hold come in reply."""


class Looks:
    """When to look for replies: often when they are expected, and less and less often while none comes.

    >>> looks = Looks()
    >>> looks.begun(), [round(looks.after(came=False, seconds=0.0), 3) for _ in range(3)]
    (0.05, [0.06, 0.072, 0.086])
    """

    def __init__(self) -> None:
        self._expected = self._pause = 0.0

    def begun(self) -> float:
        """Seconds until the first look."""
        self._pause = _SOON
        return min(max(_SOON, _EARLY * self._expected), _LATE)

    def first(self, seconds: float) -> None:
        """So long it took until the first reply was there."""
        self._expected = seconds

    def after(self, *, came: bool, seconds: float) -> float:
        """Seconds until the next look, after one that took so long."""
        self._pause = _SOON if came else min(_SLOWER * self._pause, _LATE)
        return min(max(self._pause, _DUTY * seconds), _LATE)


class LinkTransport:
    """Silos behind nodes; an address is a node's id.

    A run that somebody has stopped, or that a SuperLink has forgotten, is begun anew; what was asked is asked again.

    Formal guarantee: whatever a SuperLink answers, nothing is raised here. It can be away, and no more.
    """

    def __init__(self, link: Link) -> None:
        self._link, self._lock = link, threading.Lock()
        self._run: Run | None = None
        self._told, self._looks = "", Looks()

    def present(self) -> list[str]:
        """Nodes that are connected."""
        try:
            with self._running() as run:
                return [str(node) for node in run.nodes()]
        except Exception as error:
            self._away(error)
        return []

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """One message to each node, and where that would be too long, one after another; late replies expire."""
        deadline, received = time.monotonic() + seconds, dict[str, Replies]()
        left = {int(at): _messages(frames) for at, frames in requests.items()}
        came: dict[int, Replies] = {node: [] for node in left}
        try:
            with self._running() as run:
                waiting = run.push({node: own.pop(0) for node, own in left.items()}, seconds) if requests else {}
                for found in self._looked(run, waiting, deadline):
                    for node, replies in found:
                        came[node] += replies
                        if left[node]:
                            waiting |= run.push({node: left[node].pop(0)}, max(1.0, deadline - time.monotonic()))
                        else:
                            received[str(node)] = came[node]
                    if enough is not None and enough(received):
                        break
        except Exception as error:
            self._away(error)
            time.sleep(_AWAY)
        return received

    def _looked(self, run: Run, waiting: dict[str, int], deadline: float) -> Iterator[list[tuple[int, Replies]]]:
        """What each look for replies finds, while some are missing and there is time; at least one look."""
        begun, is_first = time.monotonic(), True
        pause = self._looks.begun() if waiting else 0.0
        while waiting:
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            looked = time.monotonic()
            found = self._taken(run, waiting)
            if found and is_first:
                is_first = False
                self._looks.first(looked - begun)
            pause = self._looks.after(came=bool(found), seconds=time.monotonic() - looked)
            yield found
            if time.monotonic() >= deadline:
                return

    def _away(self, error: Exception) -> None:
        """Log why a SuperLink counts as away, once; what it did not do will be asked again.

        Nonsense is no more than that: an error would end the study at its silos.
        """
        reason = printable(f"{type(error).__name__}: {error}", 300)
        if reason != self._told:
            self._told = reason
            print(f"The SuperLink is away: {reason}", file=sys.stderr, flush=True)

    def _taken(self, run: Run, waiting: dict[str, int]) -> list[tuple[int, Replies]]:
        """The replies that have come, by node; those that cannot be read count as none."""
        try:
            found = run.pull(list(waiting))
        except EndedError:
            raise
        except Exception as error:
            self._away(error)
            return []
        read = [(waiting.pop(sent, None), _replies(frames)) for sent, frames in found.items()]
        return [(node, replies) for node, replies in read if node is not None and replies]

    @contextlib.contextmanager
    def _running(self) -> Iterator[Run]:
        with self._lock:
            run = self._run = self._link.begin() if self._run is None else self._run
        try:
            yield run
        except EndedError:
            self._forget(run)
            raise

    def _forget(self, run: Run) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
                run.close()

    def beat(self) -> None:
        """Keep the run alive, if there is one."""
        run = self._run
        if run is None:
            return
        try:
            run.beat()
        except EndedError:
            self._forget(run)
        except Exception as error:
            # Away, or hung up meanwhile.
            self._away(error)

    def close(self) -> None:
        """End the run and hang up."""
        if self._run is not None:
            self._run.end()
        self._link.close()


@contextlib.contextmanager
def connected(control: Path) -> Iterator[LinkTransport]:
    """A transport over the SuperLink of a ``control.toml``, with heartbeats."""
    check_flower()
    transport, done = LinkTransport(Link(read_control(control))), threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT):
            transport.beat()

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield transport
    finally:
        done.set()
        transport.close()


def _messages(frames: Frames) -> list[list[bytes]]:
    """Frames as messages that a SuperLink carries, and whose replies it carries too; at least one."""
    found: list[list[bytes]] = [[]]
    for raw in frames:
        if found[-1] and (len(found[-1]) == _MOST_FRAMES or sum(map(len, found[-1])) + len(raw) > MOST_FRAME):
            found.append([])
        found[-1].append(raw)
    return found


def _replies(frames: list[bytes] | None) -> Replies:
    """Header and payload of each reply; none where any of them cannot be read."""
    try:
        found = [read_frame(io.BytesIO(raw).read) for raw in frames or ()]
    except RefusalError:
        return []
    return [] if None in found else [parts for parts in found if parts is not None]


def _end_with_parent() -> None:
    """The command that started this process holds the other end of its input."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Lead a study; everything about it lies in the run folder."""
    folder, control = map(Path, sys.argv[1:])
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from tacit.deploy.server.study import lead

    with contextlib.suppress(KeyboardInterrupt), connected(control) as transport:
        lead(folder, transport)


if __name__ == "__main__":
    main()
