"""``python -m benchmarks.deployment``: what a round costs at real silos and shufflers, without what Flower adds.

Four hospitals' daemons and two shufflers, each a process of its own; the server reaches daemons over their sockets.
Compare with the seconds per round that ``make consortium`` prints: the rest is Flower's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from experiments.deployed_rounds import play
from experiments.parties import Consortium, demo_study, hospital
from tacit.data.heart_disease import HOSPITALS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        consortium = Consortium(Path(folder) / "c", [hospital(name) for name in HOSPITALS])
        try:
            consortium.start_silos()
            consortium.start_shufflers()
            consortium.ready()
            for channel in ("direct", "pairwise", "shuffled-sum"):
                first, *rest = [row["seconds"] for row in play(consortium, demo_study(channel, chosen.rounds))]
                print(f"{channel}: first round {first:.2f} s, then {statistics.median(rest):.3f} s in the middle")
        finally:
            consortium.stop()


if __name__ == "__main__":
    main()
