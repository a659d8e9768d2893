"""Processes of a consortium on one machine: each in a session of its own, with a log, ended with what it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tacit.deploy.flower.commands import environment
from tacit.errors import TacitError

_PATIENCE = 90.0
_GRACE = 15.0
TACIT = [sys.executable, "-c", "from tacit.cli import main; main()"]
"""The command of this environment, by itself."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def below(pid: int) -> dict[int, str]:
    """The processes that a process has started, and those that these have, with their commands."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found: dict[int, str] = {}
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front and child not in found}
        found |= {child: commands[child] for child in front}
    return found


class Party:
    """One process with a session of its own, so that everything it starts can be ended with it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self.command, self.log, self._env = name, list(command), log, dict(env)
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-800:]
            raise TacitError(f"{self.name} has ended with code {self.process.returncode}: {tail}")

    def kill(self) -> None:
        """End it, and what it started, as a power cut would."""
        self._end(below(self.process.pid))

    def ask_to_end(self) -> dict[int, str]:
        """Ask it to end; returns what it had started."""
        started = below(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        return started

    def stop(self, started: Mapping[int, str] | None = None) -> None:
        """Ask it to end, unless that was done, and insist."""
        started = self.ask_to_end() if started is None else started
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE)
        self._end(started)

    def _end(self, started: Mapping[int, str]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_GRACE)
        # A SuperLink has a session of its own.
        deadline = time.monotonic() + _GRACE
        left = [pid for pid, command in started.items() if _is_still(pid, command)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_is_still(pid, started[pid]) for pid in left) and time.monotonic() < deadline:
            time.sleep(0.05)


def _is_still(pid: int, command: str) -> bool:
    try:
        found = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    return bool(found) and found == command


class Processes:
    """The processes of a consortium under ``root``, by name; each has its log there and a home of its own."""

    def __init__(self, root: Path, **env: str) -> None:
        self.root, self.env = root, env
        self.parties: dict[str, Party] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / "logs").mkdir(exist_ok=True)

    def start(self, name: str, command: Sequence[str], home: str | None = None) -> Party:
        """Start a party with a log of its own."""
        place = self.root / "homes" / (home or name)
        place.mkdir(parents=True, exist_ok=True)
        party = Party(name, command, self.root / "logs" / f"{name}.log", {**environment(place), **self.env})
        self.parties[name] = party
        return party

    def wait(self, name: str, attempt: Callable[[], object]) -> None:
        """Wait until an attempt at a party succeeds; raise if it has ended, or takes too long."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                attempt()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise TacitError(f"{name} did not start in {_PATIENCE:.0f} s; see its log.") from None
                self.parties[name].check()
                time.sleep(0.1)

    def check(self) -> None:
        """Raise if any party has ended."""
        for party in self.parties.values():
            party.check()

    def stop(self) -> None:
        """Stop everything, those first that would miss others."""
        ordered = sorted(self.parties.values(), key=lambda party: not party.name.startswith("node-"))
        asked = [(party, party.ask_to_end()) for party in ordered]
        for party, started in asked:
            party.stop(started)
        self.parties.clear()
