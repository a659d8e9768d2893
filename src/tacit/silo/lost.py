"""A ledger that was lost, or whose newest entries were: what it may have released counts as all that it could have."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.silo.chain import Counter, entry_after, lock
from tacit.silo.ledger import TABLES, connect


def write_off(
    path: Path, counter: Path, identity: Mapping[str, Any], written: Mapping[str, Any], place: str, **facts: Any
) -> list[Path]:
    """Begin a ledger anew whose first entry writes off the budget of the one before; returns what was put aside.

    ``written`` holds the epsilon and delta of everything that earlier ledgers of these records could have spent, and
    who says so.

    Formal guarantee: all messages of the ledgers before, and all that the new one pays for under a policy of (epsilon,
    delta), are together (epsilon, delta)-DP for each record, by basic composition, if the ledgers before were together
    private at what is written off. Where the policy allows no more than that, the new ledger pays for nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    counter.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as undo:
        for file in (path, counter):
            running = f"A `tacit silo serve` runs on {path.parent}"
            undo.callback(os.close, lock(file.with_name(file.name + ".lock"), running))
        aside = _put_aside([path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm"), counter])
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        database = connect(path)
        undo.callback(database.close)
        body = {**identity, "ledger": uuid.uuid4().hex, "place": place, "written_off": dict(written), **facts}
        entry = entry_after(None, time=time.time(), kind="open", study="", body=body)
        database.execute("BEGIN IMMEDIATE")
        for statement in TABLES.split(";\n"):
            database.execute(statement) if statement.strip() else None
        database.execute("INSERT INTO entries VALUES(?, ?, ?, ?, ?, ?, ?)", dataclasses.astuple(entry))
        database.execute("COMMIT")
        Counter(counter).advance(entry)
    return aside


def _put_aside(files: list[Path]) -> list[Path]:
    """Rename files that exist, so that nothing takes them for the ledger; they are kept to look at."""
    moved, moment = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for file in files:
        if file.exists():
            moved.append(file.rename(file.with_name(f"{file.name}.written-off-{moment}")))
    return moved
