"""Rounds of every peer, interleaved, after each has been seen to compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.peers.peers import PEERS
from benchmarks.peers.worker import load
from benchmarks.peers.works import Work, distance

TOLERANCE = 1e-4
CLIP_MATTERS = 2e-3


@dataclass
class Measured:
    """One peer on one work: seconds per round of every repetition, or why there are none."""

    peer: str
    seconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    peak_megabytes: float = 0.0
    distance: float | None = None
    missing: str | None = None


class Held:
    """A worker process of ours."""

    def __init__(self, name: str, first: str, threads: int, module: str = "benchmarks.peers.worker") -> None:
        self.name = name
        command = [sys.executable, "-m", module, name, str(threads)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._say(first)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer; a dead worker's last words are raised."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            last = [text for text in self._log.read().splitlines() if text.strip()][-1:]
            raise ChildProcessError(f"{self.name} stopped: {' '.join(last)}")
        return json.loads(line)

    def ask(self, command: str) -> dict[str, Any]:
        """Say and hear."""
        self._say(command)
        return self.hear()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()


def measure(work: Work, names: Iterable[str], *, repetitions: int, threads: int) -> dict[str, Measured]:
    """Prepare, check and time every peer that can do this work; a peer that disagrees is not timed."""
    found = {name: Measured(name) for name in names if PEERS[name].takes(work)}
    held: dict[str, Held] = {}
    with tempfile.TemporaryDirectory() as folder:
        _write_references(work, folder)
        if distance(*(load(f"{folder}/{name}.npz") for name in ("private", "plain"))) < CLIP_MATTERS:
            raise ValueError(f"Expected the clip {work.clip} of {work.name!r} to matter; lower it.")
        for name, own in found.items():
            held[name] = Held(name, work.to_json(), threads)
            try:
                own.compile_seconds = held[name].hear()["compile"]
                _check(held[name], own, folder)
                if own.missing is None:
                    held[name].ask("play")
            except ChildProcessError as error:
                own.missing = str(error)
    try:
        for _ in range(repetitions):
            for name, own in found.items():
                if own.missing is None:
                    _play(held[name], own)
    finally:
        for worker in held.values():
            worker.close()
    return found


def _play(worker: Held, own: Measured) -> None:
    try:
        answer = worker.ask("play")
    except ChildProcessError as error:
        own.missing = str(error)
        return
    own.seconds.append(answer["seconds"])
    own.peak_megabytes = answer["peak_megabytes"]


def _check(worker: Held, own: Measured, folder: str) -> None:
    path = f"{folder}/{worker.name}.npz"
    worker.ask(f"check {path}")
    wanted = "private" if PEERS[worker.name].private else "plain"
    own.distance = distance(load(path), load(f"{folder}/{wanted}.npz"))
    if not own.distance <= TOLERANCE:
        own.missing = f"moves the model elsewhere: relative distance {own.distance:.1e} > {TOLERANCE:.0e}"


def _write_references(work: Work, folder: str) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.worker", "--references", folder]
    subprocess.run(command, input=work.to_json() + "\n", text=True, check=True, stderr=subprocess.DEVNULL)


def ratios(over: Measured, under: Measured) -> tuple[float, float, float]:
    """Median and quartiles of the ratios of repetitions that were played side by side."""
    length = min(len(over.seconds), len(under.seconds))
    each = np.asarray(over.seconds[:length]) / np.asarray(under.seconds[:length])
    low, middle, high = np.quantile(each, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)
