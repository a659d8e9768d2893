"""``python -m soak.deployment --kills 12 --cuts 3``: kill -9 the parties of a consortium, cut its network."""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from tests.deploy.flower.torment import cut_network, kill_parties


def main() -> None:
    """Torment a consortium of real processes, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    begun = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    options = {"rounds": chosen.rounds, "seed": chosen.seed, "report": report}
    with tempfile.TemporaryDirectory(prefix="tacit-", ignore_cleanup_errors=True) as folder:
        if chosen.kills:
            tally = kill_parties(Path(folder) / "k", kills=chosen.kills, **options)
            report(f"{len(tally.done)} kills, runs taken up again {tally.resumed} times; every study ended right.")
        if chosen.cuts and os.geteuid() == 0:
            tally = cut_network(Path(folder) / "n", cuts=chosen.cuts, **options)
            report(f"network cut {len(tally.done)} times, run taken up again {tally.resumed} times; it ended right.")
        elif chosen.cuts:
            report("the network was not cut: that needs root")


if __name__ == "__main__":
    main()
