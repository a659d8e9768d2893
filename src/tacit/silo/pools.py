"""Pools: records that train, and records that are set aside for ever, to test finished models.

A silo's records are split once, by positions that the system's entropy draws and the ledger's chain keeps. A release
reads one pool and is paid for from that pool's account; what was released before the split, and what reads both, counts
in both. A record lies in one pool, so its price is that of the dearer account, and a model that one pool has trained
may be shown to the other: validation costs training nothing.

This holds on conditions that the functions here and the ledger keep:

- Positions do not depend on what a record says: neither a hash nor a sorted column decides. The order of the file is
  its owner's. Where records are sorted by content, two neighbouring files can still be coupled, as the seed is secret.
- Nothing is fitted across pools: statistics and training read one, validation the other, each with its own number of
  records.
- A ledger is split once. Other records have another ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from tacit.entropy import random_bytes

SEED_BYTES = 32
TRAINING, VALIDATION = "training", "validation"
POOLS = (TRAINING, VALIDATION)
"""A pool of ``None`` is both: every record of the silo."""

Rows = Int64[np.ndarray, " records"]


class Split(NamedTuple):
    """How a silo's records are split: a secret seed, and how many records each pool has."""

    seed: str
    training: int
    validation: int

    def size(self, pool: str) -> int:
        """How many records a pool has."""
        return self.validation if pool == VALIDATION else self.training

    def rows(self, pool: str) -> Rows:
        """The positions of a pool's records, in the order of the file.

        Formal guarantee: they are a function of the seed and of both sizes. Every record is in one pool.
        """
        from tacit.silo.batches import pass_order

        order = pass_order(bytes.fromhex(self.seed), self.training + self.validation)
        return np.sort(order[: self.validation] if pool == VALIDATION else order[self.validation :])

    def records(self, table: Mapping[str, np.ndarray], pool: str) -> dict[str, np.ndarray]:
        """The records of a pool."""
        rows = self.rows(pool)
        return {name: column[rows] for name, column in table.items()}


def drawn(records: int, share: float) -> Split:
    """A split of so many records that sets this share of them aside, with a seed from the system's entropy.

    Formal guarantee: no record is looked at. Sizes follow from both numbers, which are public.
    """
    aside = round(share * records)
    if not 1 <= aside < records:
        raise ValueError(
            f"Expected validation={share:g} of {records} records to leave records on both sides, got {aside} and "
            f"{records - aside}; choose another share, or 0 to set none aside."
        )
    return Split(random_bytes(SEED_BYTES).hex(), records - aside, aside)


def split_in(body: Mapping[str, Any]) -> Split:
    """The split that an entry of a chain holds."""
    return Split(str(body["seed"]), int(body["training"]), int(body["validation"]))
