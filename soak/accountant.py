"""``python -m soak.accountant``: price a grid of extreme schedules and check what must hold of every price."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time

from tests.privacy.extremes import COUNTS, SAMPLINGS, Grid, check_order, epsilon_of, reports, search


def main() -> None:
    """Search for a traceback, a NaN, a price that falls where it must rise, or one outside its bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=float, default=5.0, help="name prices that take longer than so many seconds")
    chosen = parser.parse_args()
    os.environ["TACIT_CACHE"] = ""
    begun, refused, made = time.monotonic(), 0, 0
    last = begun
    for point, epsilon in itertools.chain(search(Grid(samplings=(*SAMPLINGS, "mixed"))), _reports()):
        now, made = time.monotonic(), made + 1
        if math.isnan(epsilon):
            refused += 1
            print(f"refused: {point}", flush=True)
        if now - last > chosen.slow:
            print(f"{now - last:.1f} s: {point}", flush=True)
        last = now
    print(f"{made} prices in {time.monotonic() - begun:.0f} s, {refused} refused; every one is right.")


def _reports():
    """Shuffled reports, checked in the number of releases, of which each further one costs something."""
    for anonymity, noise, rate, delta in itertools.product(
        (1, 1_000, 1_000_000), (0.1, 1.0, 10.0), (0.01, 1.0), (1e-9, 1e-2)
    ):
        line = []
        for count in COUNTS:
            line.append(epsilon_of(reports(count, anonymity, noise, rate), delta))
            yield ("reports", count, anonymity, noise, rate, delta), line[-1]
        check_order(line, f"reports of {anonymity} by count")


if __name__ == "__main__":
    main()
