"""Counts what a SuperLink's requests take, and what of it is SQLite; Python imports this where it is on the path.

Only a process of `flower-superlink` counts. It writes a line into the file `TACIT_COUNTS` every 0.2 s: the time,
requests that have ended, their seconds, calls of SQLite, their seconds, and what these calls took of a processor.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOCK = threading.Lock()
TOTAL = {"requests": 0.0, "request_seconds": 0.0, "calls": 0.0, "sqlite_seconds": 0.0, "sqlite_work": 0.0}
OF_CURSORS = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall")
OF_CONNECTIONS = ("commit", "rollback")


def add(**amounts: float) -> None:
    """Count something."""
    with LOCK:
        for name, amount in amounts.items():
            TOTAL[name] += amount


def timed(kind: type, name: str) -> Any:
    """A method that counts the time that it takes, and waits."""
    plain = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        began, worked = time.perf_counter(), time.thread_time()
        try:
            return plain(self, *args, **kwargs)
        finally:
            add(calls=1, sqlite_seconds=time.perf_counter() - began, sqlite_work=time.thread_time() - worked)

    return method


def count_sqlite() -> None:
    """Let every connection that is made from now on be counted."""
    cursors = type("Cursor", (sqlite3.Cursor,), {name: timed(sqlite3.Cursor, name) for name in OF_CURSORS})
    own: dict[str, Any] = {name: timed(sqlite3.Connection, name) for name in OF_CONNECTIONS}
    own["cursor"] = lambda self, factory=cursors: sqlite3.Connection.cursor(self, factory)
    connections, plain = type("Connection", (sqlite3.Connection,), own), sqlite3.connect

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        return plain(*args, **{"factory": connections, **kwargs})

    sqlite3.connect = sqlite3.dbapi2.connect = connect


def count_requests() -> None:
    """Let every request be counted from its head to the end of its reply."""
    from fastapi import FastAPI

    plain = FastAPI.__call__

    async def called(self: Any, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        try:
            await plain(self, scope, receive, send)
        finally:
            if scope["type"] == "http":
                add(requests=1, request_seconds=time.perf_counter() - began)

    FastAPI.__call__ = called  # type: ignore[method-assign]


def tell(path: str) -> None:
    """Write down what was counted, for ever."""
    while True:
        with LOCK:
            row = {"time": time.time(), **TOTAL}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        time.sleep(0.2)


if "TACIT_COUNTS" in os.environ and any("flower-superlink" in word for word in sys.orig_argv):
    count_sqlite()
    count_requests()
    threading.Thread(target=tell, args=(os.environ["TACIT_COUNTS"],), daemon=True).start()
