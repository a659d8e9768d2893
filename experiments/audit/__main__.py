"""``python -m experiments.audit``: the full audit, for ``make audit``. A violation ends it with exit code 1."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from experiments.audit.suite import page, run


def main(arguments: list[str] | None = None) -> int:
    """Run everything and write it to a folder."""
    parser = argparse.ArgumentParser(description="Attack every claim of Tacit and write down what was found.")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of what is searched and simulated; noise has none")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--folder", type=Path, default=Path("results/audit"))
    parser.add_argument("--page", action="store_true", help="Write audit.md again from audit.json alone.")
    chosen = parser.parse_args(arguments)
    if chosen.page:
        found = json.loads((chosen.folder / "audit.json").read_text(encoding="utf-8"))
        (chosen.folder / "audit.md").write_text(page(found), encoding="utf-8")
        return 0
    asked = {"trials": chosen.trials, "seed": chosen.seed, "jobs": chosen.jobs}
    found = run(chosen.folder, **asked, say=lambda line: print(line, flush=True))
    for line in found["violations"]:
        print(f"VIOLATION: {line}", file=sys.stderr)
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
