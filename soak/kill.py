"""``python -m soak.kill --times 200``: kill -9 a silo's daemon at random points while studies run."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.deploy.silo.killing import Tally, kill_often


def main() -> None:
    """Kill, check, restart, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    begun = time.monotonic()

    def report(tally: Tally) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {tally}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        tally = kill_often(Path(folder) / "silo", chosen.times, seed=chosen.seed, report=report)
    print(
        f"{tally.kills} kills ({tally.during_requests} while a request was under way), {tally.answers} answers in "
        f"{tally.studies} studies, every one finished; no ledger showed less than was released."
    )


if __name__ == "__main__":
    main()
