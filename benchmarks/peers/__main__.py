"""``python -m benchmarks.peers``: check, measure, write the page. ``--quick`` shows that everything works.

What is measured is kept at once (``parts.json`` in the folder): the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import scale
from benchmarks.peers.accountants import QUESTIONS, QUICK, compare
from benchmarks.peers.bars import BARS
from benchmarks.peers.errors import race, tasks
from benchmarks.peers.kept import Kept
from benchmarks.peers.page import PAGES, about, refused, stored, write
from benchmarks.peers.plan import Entry, entries
from benchmarks.peers.rounds import measure
from benchmarks.peers.works import parameters


def work_of(entry: Entry, repetitions: int, threads: int) -> dict[str, Any]:
    """One work by all its peers in turn."""
    work = entry.work
    print(f"{work.name}: {', '.join(entry.peers)}", flush=True)
    peers = measure(work, entry.peers, repetitions=repetitions, threads=threads)
    for own in peers.values():
        middle = sorted(own.seconds)[len(own.seconds) // 2] if own.seconds else None
        print(f"  {own.peer}: {own.missing if middle is None else f'{1e3 * middle:.2f} ms'}", flush=True)
    shape = {"silos": work.silos, "batch": work.batch, "parameters": parameters(work)}
    return {"work": work.name, "family": entry.family, **shape, "peers": peers}


def told_by(module: str, *arguments: str) -> dict[str, Any]:
    """What a module says in a process of its own, whose caches are empty."""
    command = [sys.executable, "-m", f"benchmarks.peers.{module}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measured(part: str, chosen: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    """What one part of the page is made from."""
    quick, threads = chosen.quick, chosen.threads
    if part == "rounds":
        repetitions = chosen.repetitions or (2 if quick else 11)
        works = [entry for entry in entries(quick) if chosen.only.lower() in entry.work.name.lower()]
        return {part: [kept.get(e.work.name, partial(work_of, e, repetitions, threads)) for e in works]}
    if part == "errors":
        sources = tasks.QUICK if quick else tasks.SOURCES
        return {part: [kept.get(s.title, partial(race.measure, s, quick, threads)) for s in sources]}
    if part == "accountants":
        patience = (1, 30.0) if quick else (3, 300.0)
        asked = [(q.title, partial(compare, q, *patience)) for q in (QUICK if quick else QUESTIONS)]
        return {part: [{"question": title, "found": kept.get(title, ask)} for title, ask in asked]}
    if part == "compiling":
        return {part: kept.get(part, partial(told_by, part, *(["--quick"] if quick else [])))}
    draw = partial(told_by, "scale", json.dumps({"quick": quick}))
    return {part: kept.get(part, partial(scale.measure, quick)), "generators": kept.get("generators", draw)}


def add(out: Path, threads: int) -> None:
    """Add documented settings to the errors that were measured, task by task; no other number changes."""
    results = stored(out / "peers.json")
    by_title = {source.title: source for source in tasks.SOURCES}
    for number, row in enumerate(results["errors"]):
        if not set(race.DOCUMENTED) <= set(row["lines"]):
            results["errors"][number] = race.completed(row, by_title[row["task"]], threads)
            write(results, out)


def main() -> None:
    """What the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small works and few repetitions, into runs/")
    parser.add_argument("--repetitions", type=int, default=None, help="interleaved repetitions (default 11; quick 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every peer")
    parser.add_argument("--only", default="", help="works of the rounds whose names contain this")
    parser.add_argument("--parts", nargs="+", choices=list(PAGES), default=list(PAGES), help="parts (default: all)")
    parser.add_argument("--out", type=Path, default=None, help="folder (default results/benchmarks; quick runs/peers)")
    parser.add_argument("--beside", default="What else ran was not noted.", help="what else ran, in a sentence")
    parser.add_argument("--add", action="store_true", help="only measure documented settings that peers.json lacks")
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    if chosen.add:
        add(chosen.out or Path("results/benchmarks"), chosen.threads)
    else:
        measure_all(parser, chosen)


def measure_all(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """All chosen parts, the page, and what was not timed."""
    if chosen.out is None and not chosen.quick and (chosen.only or set(chosen.parts) != set(PAGES)):
        parser.error("Expected --out for some parts or works: results/benchmarks holds all of them.")
    out = chosen.out or Path("runs/peers" if chosen.quick else "results/benchmarks")
    kept = Kept(out / "parts.json", {"quick": chosen.quick, "threads": chosen.threads, "times": chosen.repetitions})
    load = kept.get("load", lambda: os.getloadavg()[0])
    results: dict[str, Any] = {"quick": chosen.quick, "threads": chosen.threads, "load": load}
    for part in PAGES:
        if part in chosen.parts:
            results |= measured(part, chosen, kept)
    typed = " ".join(sys.argv[1:])
    results["about"] = about(f'make bench-peers PEERS="{typed}"' if typed else "make bench-peers", chosen.beside)
    write(results, out)
    kept.forget()
    for bar in BARS:
        print(f"{bar.verdict(results):>12}  {bar.title}")
    print(f"Wrote {out / 'peers.md'}")
    if absent := refused(results):
        sys.exit("Not timed:\n" + "\n".join(absent))


if __name__ == "__main__":
    main()
