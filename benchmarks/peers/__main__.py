"""``python -m benchmarks.peers``: check, measure, write the page. ``--quick`` shows that everything works."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import scale
from benchmarks.peers.accountants import QUESTIONS, QUICK, compare
from benchmarks.peers.bars import BARS
from benchmarks.peers.page import write
from benchmarks.peers.plan import entries
from benchmarks.peers.rounds import measure
from benchmarks.peers.works import parameters


def rounds(quick: bool, repetitions: int, threads: int, only: str) -> list[dict[str, Any]]:
    """Every work whose name has ``only`` in it."""
    found = []
    for entry in entries(quick):
        work = entry.work
        if only.lower() not in work.name.lower():
            continue
        print(f"{work.name}: {', '.join(entry.peers)}", flush=True)
        peers = measure(work, entry.peers, repetitions=repetitions, threads=threads)
        for own in peers.values():
            middle = sorted(own.seconds)[len(own.seconds) // 2] if own.seconds else None
            print(f"  {own.peer}: {own.missing if middle is None else f'{1e3 * middle:.2f} ms'}", flush=True)
        shape = {"silos": work.silos, "batch": work.batch, "parameters": parameters(work)}
        found.append({"work": work.name, "family": entry.family, **shape, "peers": peers})
    return found


def told_by(module: str, *arguments: str) -> dict[str, Any]:
    """What a module says in a process of its own, whose caches are empty."""
    command = [sys.executable, "-m", f"benchmarks.peers.{module}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Everything, in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small works and few repetitions, into runs/")
    parser.add_argument("--repetitions", type=int, default=None, help="interleaved repetitions (default 11; quick 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every peer")
    parser.add_argument("--only", default="", help="works whose names contain this")
    parser.add_argument("--out", type=Path, default=None, help="folder (default results/benchmarks; quick runs/peers)")
    chosen = parser.parse_args()
    repetitions = chosen.repetitions or (2 if chosen.quick else 11)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    results: dict[str, Any] = {"quick": chosen.quick, "threads": chosen.threads, "load": os.getloadavg()[0]}
    results["rounds"] = rounds(chosen.quick, repetitions, chosen.threads, chosen.only)
    questions = QUICK if chosen.quick else QUESTIONS
    asked = [(q.title, compare(q, *((1, 30.0) if chosen.quick else (3, 300.0)))) for q in questions]
    results["accountants"] = [{"question": title, "found": found} for title, found in asked]
    results["compiling"] = told_by("compiling", *(["--quick"] if chosen.quick else []))
    results["scale"] = scale.measure(chosen.quick)
    results["generators"] = told_by("scale", json.dumps({"quick": chosen.quick}))
    out = chosen.out or Path("runs/peers" if chosen.quick else "results/benchmarks")
    typed = " ".join(sys.argv[1:])
    write(results, out, f'make bench-peers PEERS="{typed}"' if typed else "make bench-peers")
    for bar in BARS:
        print(f"{bar.verdict(results):>12}  {bar.title}")
    print(f"Wrote {out / 'peers.md'}")


if __name__ == "__main__":
    main()
