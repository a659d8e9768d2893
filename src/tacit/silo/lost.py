"""A ledger that was lost, or whose newest entries were: what it may have released counts as all that it could have."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tacit.silo.chain import Counter, Entry, WrittenOff, entry_after, lock, synced
from tacit.silo.ledger import TABLES, aside_of, connect

_PARTS = ("-wal", "-shm", "")


def write_off(
    path: Path,
    counter: Path,
    identity: Mapping[str, Any],
    written: Mapping[str, Any],
    place: str,
    *,
    approvals: Iterable[Path],
    **facts: Any,
) -> list[Path]:
    """Begin a ledger anew whose first entry writes off the budget of the one before; returns what was put aside.

    ``written`` holds the epsilon and delta of everything that earlier ledgers of these records could have spent, and
    who says so. ``approvals`` are files that were meant for the ledger before; they are taken away.

    Formal guarantee: all messages of the ledgers before, and all that the new one pays for under a policy of (epsilon,
    delta), are together (epsilon, delta)-DP for each record, by basic composition, if the ledgers before were together
    private at what is written off. Where the policy allows no more than that, the new ledger pays for nothing. Wherever
    this is cut off, the old ledger is as it was, or nothing is served until it is run again, or it is done.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    counter.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as undo:
        for file in (path, counter):
            running = f"A `tacit silo serve` runs on {path.parent}"
            undo.callback(os.close, lock(file.with_name(file.name + ".lock"), running))
        body = {**identity, "ledger": uuid.uuid4().hex, "place": place, "written_off": dict(written), **facts}
        entry = entry_after(None, time=time.time(), kind="open", study="", body=body)
        draft = _drafted(aside_of(path, "draft"), entry)
        for approval in approvals:
            approval.unlink(missing_ok=True)
        moved = _put_aside(path)
        # Until the counter follows, a new ledger beside the old counter is refused, and so is none at all.
        draft.rename(path)
        synced(path.parent)
        Counter(counter).advance(entry, WrittenOff(float(written["epsilon"]), float(written["delta"])))
    return moved


def _drafted(draft: Path, entry: Entry) -> Path:
    """A ledger of one entry in a file of its own, durably."""
    for part in _PARTS:
        _with(draft, part).unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(connect(draft)) as database:
        # In one file: a log beside it would not follow when it is renamed.
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("BEGIN IMMEDIATE")
        for statement in TABLES.split(";\n"):
            database.execute(statement) if statement.strip() else None
        database.execute("INSERT INTO entries VALUES(?, ?, ?, ?, ?, ?, ?)", dataclasses.astuple(entry))
        database.execute("COMMIT")
    synced(draft)
    return draft


def _put_aside(path: Path) -> list[Path]:
    """Rename what is left of a ledger, with its log, so that nothing takes it for the ledger; it is kept to look at."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    kept = aside_of(path, f"{moment}-{secrets.token_hex(2)}")
    moved = [_with(path, part).rename(_with(kept, part)) for part in _PARTS if _with(path, part).exists()]
    synced(path.parent)
    return moved


def _with(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)
