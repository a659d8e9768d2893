"""Deployed rounds beside an empty Flower app: ``python -m benchmarks.deployment``.

Every party is a process of its own on this machine, and messages go over TLS through Flower's SuperLink, as they do
between organisations. Beside it, in the same run, Flower's own SuperNodes run an app whose clients do nothing. The last
row has a model of a million parameters and 25 silos: what its masks are of the work of all processes is told too.
Seconds are those of the median round after the first, which compiles. Writes results/benchmarks/deployment.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks import masks
from experiments.parties import Consortium, Silo, demo_study, hospital, train
from tacit.data.heart_disease import HOSPITALS
from tacit.deploy.consortium.processes import Processes, below, free_port
from tacit.plans.spec import Study, load_study

PAGE = Path("results/benchmarks/deployment.md")
SILOS, MILLION = 25, 43_000
BARS = {"direct": 0.25, "pairwise": 0.4, "shuffled-sum": 0.4}
"""At most so much of a round of the empty app."""
MASKS_BAR, MEMORY_BAR, TEN_BAR = 0.05, 500, 6000
LOCKS = (
    "What of the SuperLink's requests is SQLite (`python -m benchmarks.locks --rounds 8` on 2026-11-19, 4 silos, "
    "while a dozen other programs wanted the two processors, so that only shares are worth reading): 29% of the "
    "seconds of its requests in direct rounds (92 requests, 1,900 calls of SQLite a round) and 24% in pairwise ones "
    "(108 and 2,100). Nearly all of that is waiting, for locks, "
    "the disk, the interpreter or a processor; the calls' own work is 1% of it."
)
"""What `benchmarks.locks` measured last."""
_ROUND = re.compile(r"round (\d+): (\d+) answers in ([\d.]+) s")


class Measured(NamedTuple):
    """Seconds of a round; seconds of work of all processes in one; megabytes of the largest daemon and courier."""

    seconds: float
    work: float = float("nan")
    daemon: float = float("nan")
    courier: float = float("nan")


def main() -> None:
    """All rows, one after another, and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    fewer = max(3, rounds // 2)  # with 25 silos on one machine
    rows: list[dict[str, Any]] = []

    def tell(**row: Any) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory(prefix="tacit-") as root:
        tell(what="empty Flower app", silos=4, **empty_app(Path(root) / "empty", 4, rounds)._asdict())
        four = Watched(Path(root) / "four", [hospital(name) for name in HOSPITALS])
        for channel, found in four.led([demo_study(channel, rounds) for channel in BARS]):
            tell(what=channel, silos=4, **found._asdict())
        many = Watched(Path(root) / "many", copies(SILOS), shufflers=())
        for channel, found in many.led([demo_study(c, fewer) for c in ("direct", "pairwise")]):
            tell(what=channel, silos=SILOS, **found._asdict())
        large = Watched(Path(root) / "large", copies(SILOS), shufflers=())
        for channel, found in large.led([million(fewer)]):
            tell(what=f"{channel}, a million parameters", silos=SILOS, **found._asdict())
        _, taken, _ = masks.measured(Path(root) / "masks", 8)
        tell(what="masks of one silo", silos=SILOS, **Measured(*masks.middle(taken))._asdict())
    PAGE.write_text(page(rows, rounds), encoding="utf-8")


def empty_app(root: Path, silos: int, rounds: int) -> Measured:
    """Rounds of an app whose clients do nothing, with Flower's SuperLink and SuperNodes as they come."""
    bin_, port = Path(sys.executable).parent, free_port()
    here = Processes(root, PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")
    shutil.copytree(Path(__file__).parent / "empty_app", root / "app")
    address = f"127.0.0.1:{port}"
    try:
        link = [bin_ / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port]
        here.start("superlink", [*map(str, link), "--disable-runtime-dependency-installation"])
        here.wait("superlink", lambda: socket.create_connection(("127.0.0.1", port), 1.0).close())
        for i in range(silos):
            node = [bin_ / "flower-supernode", "--insecure", "--superlink", address, "--port", free_port()]
            here.start(f"supernode-{i}", list(map(str, node)))
        home = root / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        run = [bin_ / "flwr", "run", root / "app", "here", "--stream", "-c", f"rounds={rounds} silos={silos}"]
        env = {**os.environ, **here.env, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        told = subprocess.run(list(map(str, run)), env=env, capture_output=True, text=True, timeout=900, check=True)
    finally:
        here.stop()
    found = [(int(n), float(seconds)) for _, n, seconds in _ROUND.findall(told.stdout)]
    if [n for n, _ in found] != [silos] * rounds:
        raise SystemExit(f"The empty app did not play its rounds: {told.stdout}{told.stderr}")
    return Measured(statistics.median(seconds for _, seconds in found[1:]))


def copies(count: int) -> list[Silo]:
    """Silos with the records of one hospital each, some of them drawn again."""
    one = hospital("cleveland")
    found = []
    for i in range(count):
        rows = np.random.default_rng(i).integers(0, len(one.records["y"]), 200)
        limits = {"algorithms": ["mb-sgd"], "channels": ["direct", "pairwise"], "min_silos": 2}
        policy = {"allow": {**limits, "max_parameters": 2_000_000}}
        drawn = {name: column[rows] for name, column in one.records.items()}
        found.append(Silo(f"silo-{i:02d}", one.data, policy, drawn))
    return found


def million(rounds: int) -> Study:
    """A network of a million parameters, in pairwise sums."""
    network = ["objective.model=mlp", f"objective.hidden=[{MILLION}]"]
    changed = [f"algorithm.num_rounds={rounds}", "algorithm.channel=pairwise", *network]
    return load_study("heart-disease", [*changed, "name=million"])


class Watched(Consortium):
    """A consortium that looks at the work of its processes while a study is led."""

    def check(self) -> None:
        """Raise if any party has ended; note how much all of them have worked."""
        super().check()
        self.looks.append((time.time(), work_of(os.getpid(), *below(os.getpid()))))

    def work(self, began: float, ended: float) -> float:
        """Seconds of processors between two times, from the looks nearest to them."""
        near = [min(self.looks, key=lambda look: abs(look[0] - at)) for at in (began, ended)]
        return near[1][1] - near[0][1]

    def led(self, studies: Sequence[Study]) -> Iterator[tuple[str, Measured]]:
        """What a round of each study takes over Flower."""
        try:
            self.start_all()
            for study in studies:
                self.looks: list[tuple[float, float]] = []
                changes = {"evaluate": False, "record": False, "round_seconds": 300.0}
                folder = train(self, study, self.root / "runs", Console(file=io.StringIO()), **changes)
                yield study.algorithm.channel, self._measured(folder)
        finally:
            self.stop()

    def _measured(self, folder: Path) -> Measured:
        told = map(json.loads, (folder / "progress.jsonl").read_text().splitlines())
        rounds = [row for row in told if row["event"] == "round"]
        seconds = statistics.median(row["seconds"] for row in rounds[1:])
        began, ended = (datetime.datetime.fromisoformat(row["time"]).timestamp() for row in (rounds[0], rounds[-1]))
        work = self.work(began, ended) / (len(rounds) - 1)
        daemon, courier = (
            max(memory_of(self.parties[f"{kind}{silo.name}"].process.pid) for silo in self.silos)
            for kind in ("", "node-")
        )
        return Measured(seconds, work, daemon, courier)


def work_of(*processes: int) -> float:
    """Seconds that processes, and what they started that has ended, have had of a processor."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            own = (Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, own[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_of(process: int) -> float:
    """Megabytes of a process and what it started; what several share counts in parts."""
    total = 0.0
    for one in (process, *below(process)):
        rollup = (Path("/proc") / str(one) / "smaps_rollup").read_text()
        total += int(re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)[1]) / 1024  # type: ignore[index]
    return total


def page(rows: list[dict[str, Any]], rounds: int) -> str:
    """What was measured, for people."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    empty, *ours, large, mask = rows
    lines = [
        "# Deployed rounds",
        "",
        f"`python -m benchmarks.deployment --rounds {rounds}` on {today}, {os.cpu_count()} cores, "
        f"{platform.platform()}. All parties are processes on this one machine, and messages go over TLS through "
        "Flower's SuperLink. Records are those of heart disease, with a linear model but for the last row; seconds are "
        "of the median round. Silos wait .1 s before an answer leaves (`pad_seconds`). Work is that of all processes "
        "together. The empty app is Flower's own SuperLink and SuperNodes, without TLS, with clients that do nothing.",
        "",
        "| round | silos | seconds | of the empty app | bar | work, s | daemon, MB | courier, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        f"| {empty['what']} | {empty['silos']} | {empty['seconds']:.2f} | 1 | | | | |",
    ]
    for row in (*ours, large):
        share, bar = f"{row['seconds'] / empty['seconds']:.2f}", f"{BARS[row['what']]}" if row["silos"] == 4 else ""
        share = share if row["silos"] == empty["silos"] else ""
        held = f"{row['work']:.2f} | {row['daemon']:.0f} | {row['courier']:.0f}"
        lines.append(f"| {row['what']} | {row['silos']} | {row['seconds']:.2f} | {share} | {bar} | {held} |")
    silo = max(row["daemon"] + row["courier"] for row in ours)
    part = mask["silos"] * mask["work"] / large["work"]
    lines += [
        "",
        f"A silo's daemon and courier hold {silo:.0f} MB together at most with a linear model (the bar is "
        f"{MEMORY_BAR}): proportional set sizes, read once, when a study has ended. Ten times that, computed and not "
        f"measured, is {10 * silo / 1000:.1f} GB (the bar is {TEN_BAR / 1000:.0f}). Masks of a million "
        f"parameters take {1e3 * mask['work']:.0f} ms of work at each of {mask['silos']} silos, {part:.1%} of the work "
        f"of a deployed round (the bar is {MASKS_BAR:.0%}).",
        "",
        LOCKS,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
