"""What a person waits for: ``python -m benchmarks.starts``, every study that ships, run for the first time and again.

`tacit run STUDY` with one seed, as it ships, in a process of its own: first with an empty cache (``TACIT_CACHE``),
so that programs are compiled and prices computed, then with what the first run has kept. Beside them stands the time
until the plan is known (`tacit plan`). Writes results/benchmarks/starts.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tacit.deploy.consortium.processes import TACIT
from tacit.plans.spec import load_study, study_names

PAGE = Path("results/benchmarks/starts.md")
KINDS = ("plan, cold", "run, cold", "run, warm")
_LONGEST = 1800.0


def main() -> None:
    """All studies, one after another, and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", default=study_names(), help="those to run; all of them by default")
    parser.add_argument("--beside", default="What else ran was not noted.", help="what else ran, in a sentence")
    chosen = parser.parse_args()
    rows = []
    for name in chosen.studies:
        rows.append((name, load_study(name).algorithm.name, *measured(name)))
        print(*rows[-1], flush=True)
    PAGE.write_text(page(rows, chosen.beside), encoding="utf-8")


def measured(name: str) -> tuple[float, ...]:
    """Seconds of the plan, of the first run and of the second."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as root:
        plan = _seconds(["plan", name], Path(root) / "plan")
        run = ["run", name, "--set", "run.seeds=1", "--out", str(Path(root) / "runs")]
        return plan, *(_seconds(run, Path(root) / "run") for _ in range(2))


def _seconds(command: Sequence[str], cache: Path) -> float:
    began = time.perf_counter()
    env = {**os.environ, "TACIT_CACHE": str(cache)}
    subprocess.run([*TACIT, *command], env=env, check=True, stdout=subprocess.DEVNULL, timeout=_LONGEST)
    return time.perf_counter() - began


def page(rows: Sequence[tuple[str | float, ...]], beside: str) -> str:
    """What was measured, for people."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        "# Cold and warm starts",
        "",
        f"`python -m benchmarks.starts` on {today}, {os.cpu_count()} cores, {platform.platform()}. Seconds of whole "
        "commands, each in a process of its own, with one seed: `tacit plan` and `tacit run` with an empty cache, and "
        "`tacit run` again. A run trains the study, the reference without privacy and the baselines, and writes the "
        f"report. What a warm run saves is compilation and prices. {beside}",
        "",
        f"| study | algorithm | {' | '.join(KINDS)} | warm / cold |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for study, algorithm, *seconds in rows:
        cold, warm = map(float, seconds[1:])
        told = " | ".join(f"{float(own):.1f}" for own in seconds)
        lines.append(f"| {study} | {algorithm} | {told} | {warm / cold:.2f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
