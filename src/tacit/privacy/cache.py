"""Prices kept on disk, because the same plan is priced again and again (by each silo, command and test).

A value is stored under the hash of everything it depends on: the events, delta, the question asked and the
version of the accounting code. Anything odd about the cache (missing, corrupted, unwritable, out of range) is
treated as a miss: the cache can make pricing faster, never wrong or impossible. Set the environment variable
`TACIT_CACHE` to move it, or to the empty string to do without.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tacit.privacy.events import Event

# Raise by one whenever a change of the accounting code may change a number.
ACCOUNTING_VERSION = 3

_memory: dict[str, float] = {}


def remember(question: str, events: Iterable[Event], delta: float, compute: Callable[[], float]) -> float:
    """The value of `compute()`, from memory or disk if this question was answered before.

    Formal guarantee: what is returned was computed by this version of the accounting code for these very
    numbers, unless somebody who may write to the cache folder forged it.
    """
    asked = _canonical(question, events, delta)
    key = hashlib.sha256(asked.encode()).hexdigest()
    if key in _memory:
        return _memory[key]
    folder = cache_folder("prices")
    value = None if folder is None else _read(folder / f"{key}.json", asked)
    if value is None:
        value = compute()
        if folder is not None:
            _write(folder / f"{key}.json", asked, value)
    _memory[key] = value
    return value


def forget() -> None:
    """Empty the in-memory part of the cache."""
    _memory.clear()


def _canonical(question: str, events: Iterable[Event], delta: float) -> str:
    body = {
        "version": ACCOUNTING_VERSION,
        "question": question,
        "delta": delta,
        # The name of a kind does not change its price.
        "events": [{k: v for k, v in dataclasses.asdict(e).items() if k != "kind"} for e in events],
    }
    return json.dumps(body, sort_keys=True)


def cache_folder(kind: str) -> Path | None:
    """Where caches of a kind lie; none if the user wants to do without."""
    chosen = os.environ.get("TACIT_CACHE")
    if chosen is not None:
        return Path(chosen) / kind if chosen else None
    import platformdirs

    return Path(platformdirs.user_cache_dir("tacit")) / kind


def _read(path: Path, asked: str) -> float | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        value = stored["value"]
        sound = stored["asked"] == asked and type(value) is float and value >= 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if sound else None


def _write(path: Path, asked: str, value: float) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"asked": asked, "value": float(value)}, file)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
