"""A long audit in parts: each part is written down when it is done, and never mixed with those of other code."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tacit
from tacit.audit.mechanism import AuditError

_PARTS_OF_A_PROCESS = 16


@lru_cache(maxsize=1)
def code() -> dict[str, str]:
    """Which code this is: its version, its commit where it is a checkout, and a digest of package and audit."""
    root, found = Path(tacit.__file__).parent, hashlib.sha256()
    for folder in (root, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    asked = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    commit = asked.stdout.strip() if asked.returncode == 0 else "unknown"
    return {"version": tacit.__version__, "commit": commit, "source": found.hexdigest()}


@dataclass(frozen=True)
class Part:
    """One part of an audit: a function that another process can find by name, and how long it takes beside others."""

    name: str
    weight: float
    make: Callable[..., Any]
    given: tuple[Any, ...]


class Journal:
    """What was found already, so that a long audit that was stopped goes on where it was.

    A journal of other code, or of an audit that was asked for otherwise, is refused.
    """

    def __init__(self, file: Path, *, trials: int, seed: int) -> None:
        self.file, head = file, {**code(), "trials": trials, "seed": seed}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if not lines:
            lines = [json.dumps(head)]
            file.write_text(lines[0] + "\n", encoding="utf-8")
        began = json.loads(lines[0])
        if began != head:
            different = ", ".join(name for name in head if began.get(name) != head[name])
            raise AuditError(
                f"Expected {file} to be of this code and audit, but its {different} differ; go on with what began it, "
                "or remove it to begin anew."
            )
        self.rows: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        for line in lines[1:]:
            try:
                name, row, seconds = json.loads(line)
            except ValueError:
                # The last line, cut short when the audit was stopped.
                continue
            self.rows[name], self.seconds[name] = row, seconds

    def keep(self, name: str, row: Any, seconds: float) -> None:
        """Write a part down, and how long it took."""
        self.rows[name], self.seconds[name] = row, round(seconds, 1)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, row, self.seconds[name]]) + "\n")

    def fill(self, parts: Sequence[Part], *, jobs: int, say: Callable[[str], None]) -> None:
        """Make the parts that are missing, in as many processes, and say how long the rest will take."""
        missing = [part for part in parts if part.name not in self.rows]
        left, began = sum(part.weight for part in missing), time.monotonic()
        whole = left
        for number, (part, row, seconds) in enumerate(_made(missing, jobs), 1):
            self.keep(part.name, row, seconds)
            left -= part.weight
            rest = (time.monotonic() - began) * left / max(whole - left, 1e-9)
            say(f"{number} of {len(missing)}: {part.name}; about {words(rest)} left")


def _made(parts: Sequence[Part], jobs: int) -> Iterator[tuple[Part, Any, float]]:
    """Each part with what it found and how long it took, as they are done."""
    if jobs <= 1:
        for part in parts:
            yield (part, *_make(part)[1:])
        return
    # The longest first, so that no process is left with one at the end. Not an executor of ``concurrent.futures``: its
    # processes are not replaced when they have done their share (Python 3.11), and the rest would wait for ever.
    ordered = sorted(parts, key=lambda part: -part.weight)
    named = {part.name: part for part in parts}
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=_PARTS_OF_A_PROCESS) as pool:
        for name, row, seconds in pool.imap_unordered(_make, ordered):
            yield named[name], row, seconds


def _make(part: Part) -> tuple[str, Any, float]:
    """The name of a part, what it found, and its seconds."""
    began = time.monotonic()
    row = part.make(*part.given)
    return part.name, row, time.monotonic() - began


def words(seconds: float) -> str:
    """A time as people say it.

    >>> words(50.0), words(4000.0)
    ('1 min', '1 h 7 min')
    """
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
