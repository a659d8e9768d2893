"""What of a SuperLink's requests is SQLite is read off two counts, at the ends of the first and of the last round."""

import subprocess
import sys

import pytest

from benchmarks.locks import HOOK, taken


def test_shares_are_of_the_rounds_after_the_first():
    names = ("requests", "request_seconds", "calls", "sqlite_seconds", "sqlite_work")
    counts = [{"time": float(at), **{name: at * (i + 1.0) for i, name in enumerate(names)}} for at in range(100)]
    ends = ("1970-01-01T00:00:10.1+00:00", "1970-01-01T00:00:20+00:00", "1970-01-01T00:00:30+00:00")
    progress = [{"event": "met", "time": ends[0]}, *({"event": "round", "time": end} for end in ends)]
    found = taken(counts, progress)
    assert found["requests"] == 10.0
    assert found["seconds"] == pytest.approx(9.95)
    assert found["sqlite_share"] == pytest.approx(4 / 2)
    assert found["waiting_share"] == pytest.approx((4 - 5) / 2)


def test_calls_of_sqlite_are_counted_once():
    program = f"""
import sys
sys.path.insert(0, {str(HOOK)!r})
import sitecustomize as hook
assert hook.__file__.startswith({str(HOOK)!r})
hook.count_sqlite()
import sqlite3
with sqlite3.connect(":memory:") as database:
    database.cursor().execute("CREATE TABLE t (a)")
    assert database.cursor().execute("SELECT 1").fetchall() == [(1,)]
print(int(hook.TOTAL["calls"]), hook.TOTAL["sqlite_seconds"] >= hook.TOTAL["sqlite_work"] - 1e-3)
"""
    command = [sys.executable, "-S", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["3", "True"]
