"""What of a SuperLink's requests is SQLite: ``python -m benchmarks.locks``, with four silos over Flower.

The SuperLink's own process counts the seconds of its requests, from head to reply, and of its calls of SQLite in them,
which wait for locks and the disk, and work. Prints a line for each channel; ``LOCKS`` in `benchmarks.deployment` is
what it printed last.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from experiments.parties import Consortium, demo_study, hospital, train
from tacit.data.heart_disease import HOSPITALS

HOOK = Path(__file__).parent / "counting"
CHANNELS = ("direct", "pairwise")


def main() -> None:
    """Lead a study through each channel, and print what its rounds took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tacit-") as root:
        counts = Path(root) / "counts.jsonl"
        path = os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])
        silos = [hospital(name) for name in HOSPITALS]
        here = Consortium(Path(root) / "c", silos, shufflers=(), TACIT_COUNTS=str(counts), PYTHONPATH=path)
        try:
            here.start_all()
            for channel in CHANNELS:
                how = {"evaluate": False, "record": False, "round_seconds": 300.0}
                quiet = Console(file=io.StringIO())
                folder = train(here, demo_study(channel, rounds), here.root / "runs", quiet, **how)
                print(json.dumps({"channel": channel, **taken(rows_of(counts), rows_of(folder / "progress.jsonl"))}))
        finally:
            here.stop()


def rows_of(path: Path) -> list[dict[str, float]]:
    """The lines of a file of JSON that are whole."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def taken(counts: Sequence[Mapping[str, float]], progress: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of rounds after the first, which compiles: seconds, requests, and the share of their seconds that is SQLite."""
    ends = [
        datetime.datetime.fromisoformat(str(row["time"])).timestamp() for row in progress if row["event"] == "round"
    ]
    before, after = (min(counts, key=lambda row, at=at: abs(row["time"] - at)) for at in (ends[0], ends[-1]))
    rounds = len(ends) - 1
    spent = {name: after[name] - before[name] for name in before if name != "time"}
    return {
        "seconds": (ends[-1] - ends[0]) / rounds,
        "requests": spent["requests"] / rounds,
        "request_seconds": spent["request_seconds"] / rounds,
        "calls": spent["calls"] / rounds,
        "sqlite_seconds": spent["sqlite_seconds"] / rounds,
        "sqlite_share": spent["sqlite_seconds"] / spent["request_seconds"],
        "waiting_share": (spent["sqlite_seconds"] - spent["sqlite_work"]) / spent["request_seconds"],
    }


if __name__ == "__main__":
    main()
