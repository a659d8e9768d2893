"""A real silo's reports: for each record of a batch a seed and a sign, with coins of the operating system.

The hemisphere of Duchi et al. (`tacit.privacy.randomisers`) in nine bytes. The seed stands for a direction and is
independent of the record. The sign says on which side of it the record's clipped statistic lies, turned over

    by a coin that leans with the norm of the statistic      which makes the report right on average
    by a coin of odds at most exp(epsilon_0) : 1             which makes it private

The last coin compares an integer of 64 bits with an integer threshold, rounded towards a fair coin. Everything before
it (gradients, norms, the product with the direction) is floating point and decides only which sign goes in, so the
promise rests on no rounding. Other randomisers report floating-point numbers; a real silo does not use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from tacit.channel.shuffled_reports import ReportTerms, encoded
from tacit.entropy import random_bytes
from tacit.privacy.randomisers import direction
from tacit.silo.door import DoorError, Engine
from tacit.silo.integers import unit_vectors
from tacit.silo.release import Task, in_blocks

# Far above what a float loses, far below what anybody would notice.
_MARGIN = 1e-12


def threshold(local_epsilon: float) -> int:
    """How many of 2^64 equally likely numbers leave a sign as it is.

    Formal guarantee: the odds of leaving it are at most exp(local_epsilon) and at least 1.

    >>> kept = threshold(2.0)
    >>> -1e-10 < math.log(kept / (2**64 - kept)) - 2.0 < 0
    True
    """
    chance = 1.0 / (1.0 + math.exp(-local_epsilon))
    return int(max(0.5, chance - _MARGIN) * 2.0**64)


def reports_of(units: Float[np.ndarray, "records dimension"], local_epsilon: float) -> list[bytes]:
    """A report about each vector of norm at most one.

    Formal guarantee: each is epsilon_0-LDP, exactly: its seed is drawn without looking at the vector, and given the
    seed and whatever was computed from the vector, its sign is randomised response with an integer coin.
    """
    count, kept = len(units), threshold(local_epsilon)
    seeds, leans, coins = np.frombuffer(random_bytes(24 * count), ">u8").reshape(3, count)
    norms = np.minimum(np.linalg.norm(units.astype(np.float64), axis=1), 1.0)
    away = leans.astype(np.float64) / 2.0**64 >= 0.5 + norms / 2
    reports = []
    for unit, seed, turned, coin in zip(units, seeds.tolist(), away.tolist(), coins.tolist(), strict=True):
        side = bool(direction(seed, units.shape[1]) @ unit >= 0)
        reports.append(encoded(seed, (side != turned) == (coin < kept)))
    return reports


@dataclass(frozen=True)
class LocalReports:
    """A silo's reports about a batch, stream by stream; ``weight`` is what its records count (at most one)."""

    engine: Engine
    terms: Mapping[str, ReportTerms]
    weight: float

    def __call__(self, task: Task) -> dict[str, list[bytes]]:
        """The reports of each stream, one for each slot of the batch.

        Formal guarantee: that of `reports_of`, for vectors that depend on one record each. There are as many reports as
        the batch has slots, whatever the batch turned out to be; a slot without a record reports as zero does.
        """
        silo, work, records, present, bound, _ = task
        if any(np.ndim(limit) for limit in jax.tree.leaves(silo.release.clip(work))):
            raise DoorError("Expected one clip for all silos through shuffled reports: the server reads them alike.")
        reports: dict[str, list[bytes]] = {name: [] for name in self.terms}
        for stored, there in self.engine.stored(work, records, present):
            slots = min(len(there), len(present) - len(next(iter(reports.values()))))
            for name, own in self.terms.items():
                units = self.weight * unit_vectors(stored[name], float(in_blocks(bound, name)))
                reports[name] += reports_of(np.where(there[:, None], units, 0.0)[:slots], own.local_epsilon)
        return reports
