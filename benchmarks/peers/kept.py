"""Finished parts of a long comparison, so that one that was stopped goes on where it was.

Each work and each task is measured as a whole, everybody in turn, so that times that are compared are of one sitting.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.accountants import Found
from benchmarks.peers.rounds import Measured

_KINDS = {kind.__name__: kind for kind in (Found, Measured)}


class Kept:
    """Parts in a file beside the page; one of other code, or of other options, is not read."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        self.path, self.head = path, {**options, "commit": asked.stdout.strip()}
        stored = json.loads(path.read_text(encoding="utf-8"), object_hook=_read) if path.exists() else {}
        self.found: dict[str, Any] = stored["found"] if stored.get("head") == self.head else {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part of this name, measured now if it is not there."""
        if name not in self.found:
            self.found[name] = make()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps({"head": self.head, "found": self.found}, default=_plain), encoding="utf-8")
            fresh.replace(self.path)
        return self.found[name]

    def forget(self) -> None:
        """The page is written."""
        self.path.unlink(missing_ok=True)


def _plain(value: Any) -> dict[str, Any]:
    return {"is a": type(value).__name__, **asdict(value)}


def _read(row: dict[str, Any]) -> Any:
    return _KINDS[row.pop("is a")](**row) if "is a" in row else row
