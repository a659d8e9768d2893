"""``python -m tacit.audit``: the full audit, for ``make audit``. A violation ends it with exit code 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tacit.audit.suite import run


def main(arguments: list[str] | None = None) -> int:
    """Run everything and write it to a folder."""
    parser = argparse.ArgumentParser(description="Attack every claim of Tacit and write down what was found.")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of what is searched and simulated; noise has none")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--folder", type=Path, default=Path("results/audit"))
    chosen = parser.parse_args(arguments)
    asked = {"trials": chosen.trials, "seed": chosen.seed, "jobs": chosen.jobs}
    found = run(chosen.folder, **asked, say=lambda line: print(line, flush=True))
    for line in found["violations"]:
        print(f"VIOLATION: {line}", file=sys.stderr)
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
