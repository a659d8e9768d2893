"""``python -m soak.fuzz --messages 100000``: everything a hostile server could send, to two silos that differ."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.deploy.silo.hostile import Siege, besiege

_BATCH = 10_000
_SAMPLED = 1_000


def main() -> None:
    """Besiege fresh silos, ten thousand messages at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    begun, codes = time.monotonic(), Counter[str]()

    def report(number: int, siege: Siege, epsilon: float) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {number} messages, epsilon charged {epsilon:.3f}", flush=True)

    # Subsampled plans make every proposal a convolution, so they come in one small batch of their own.
    sizes = [min(_SAMPLED, chosen.messages)]
    while sum(sizes) < chosen.messages:
        sizes.append(min(_BATCH, chosen.messages - sum(sizes)))
    for number, size in enumerate(sizes):
        with tempfile.TemporaryDirectory() as folder:
            siege = besiege(Path(folder), size, seed=chosen.seed + number, sampled=number == 0, report=report)
        codes += siege.codes
        print(f"{sum(sizes[: number + 1])} messages: {dict(codes.most_common())}", flush=True)
    print("Every message had a typed reply; no release without a debit; nothing said depended on a record.")


if __name__ == "__main__":
    main()
