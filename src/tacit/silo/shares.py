"""A real silo's share of a shuffled sum: integers, with binomial noise from fresh entropy.

As `tacit.silo.shuffled`, with two differences. The noise is exact (`tacit.silo.coins`). And the share is made of stored
integers, whose norms are checked and which add up modulo 2^64:

    share = sum over records of (xhat - g/2)  +  heads among K b coins            in every coordinate

with g steps of the grid, b coins per record and K records. Blocks have grids and coins of their own and follow one
another in the order of their names. `tacit.channel.shuffled_sum` says what a sum means. A share by itself is
*not* private: it leaves only as sealed parts, which only the sum puts together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from tacit.channel.shuffled_sum import BlockTerms, ShareTerms, in_order
from tacit.entropy import random_bytes
from tacit.privacy.binomial import rounding_bound
from tacit.silo.door import DoorError, Engine
from tacit.silo.integers import unit_vectors
from tacit.silo.release import Task, in_blocks

Coins = Callable[[int, int], Int64[np.ndarray, " dimension"]]
"""Heads among so many fair coins, for each of so many coordinates."""


def no_coins(coins: int, dimension: int) -> Int64[np.ndarray, " dimension"]:
    """The coins of a test build, of which none shows its head."""
    return np.zeros(dimension, np.int64)


@dataclass(frozen=True)
class BinomialShare:
    """A silo's share of a shuffled sum; ``weight`` is what its records count beside those that count most."""

    engine: Engine
    terms: BlockTerms
    coins: Coins
    weight: float

    def __call__(self, task: Task) -> Int64[np.ndarray, " coordinates"]:
        """The share, block after block.

        Formal guarantee: it is the local randomiser of the shuffled vector sum (`tacit.privacy.binomial`) for the
        records of the batch, with coins for ``size`` records, whatever the batch turned out to be. The distance of
        each record's integers from the centre is checked, exactly, on the integers that are added.
        """
        silo, work, records, present, bound, size = task
        if silo.release.channel != "shuffled-sum":
            raise DoorError('Expected channel="shuffled-sum".')
        blocks = in_order(self.terms)
        named = isinstance(bound, Mapping)
        if named != isinstance(self.terms, Mapping) or (named and {name for name, _ in blocks} != set(bound)):
            raise DoorError("Expected the terms of each block exactly where there is a clip for each block.")
        totals = {name: np.zeros(own.dimension, np.int64) for name, own in blocks}
        for stored, there in self.engine.stored(work, records, present):
            for name, own in blocks:
                clip = float(in_blocks(bound, name or ""))
                units = self.weight * unit_vectors(stored[name or ""], clip)
                totals[name] += checked_share(randomly_rounded(units, own.grid), there, own)
        flips = [self.coins(own.coins * int(size), own.dimension) for _, own in blocks]
        return np.concatenate([totals[name] + own for (name, _), own in zip(blocks, flips, strict=True)])


def randomly_rounded(
    units: Float[np.ndarray, "records dimension"], grid: int
) -> Int64[np.ndarray, "records dimension"]:
    """xhat - g/2 for vectors of norm at most one: integers near (g/2) x the vector, and equal to it on average."""
    scaled = np.clip(units, -1.0, 1.0) * (grid / 2)
    low = np.floor(scaled)
    drawn = np.frombuffer(random_bytes(4 * scaled.size), np.uint32).reshape(scaled.shape)
    return (low + (drawn < (scaled - low) * 2.0**32)).astype(np.int64)


def checked_share(
    rounded: Int64[np.ndarray, "records dimension"], present: Bool[np.ndarray, " records"], terms: ShareTerms
) -> Int64[np.ndarray, " dimension"]:
    """The exact sum over present records of their integers, of those that lie within reach of the centre.

    Formal guarantee: whatever integers are stored, each record adds a vector whose entries are at most grid/2 in size
    and whose l2 norm is at most the reach that the price counts on (`rounding_bound`); others add zero. Squares of
    entries within the grid are exact in float64, and so is a sum of them up to 2^53, beyond which it is too large.
    """
    if rounded.dtype != np.int64 or rounded.shape != (len(present), terms.dimension) or terms.grid > 2**25:
        raise DoorError(f"Expected 64-bit integers of {len(present)} records on a grid of at most 2^25 steps.")
    real = rounded.astype(np.float64)
    inside = (np.abs(real) <= terms.grid / 2).all(axis=1)
    near = np.einsum("rj,rj->r", real, real) <= rounding_bound(terms.grid, terms.dimension) ** 2
    return np.where((present & inside & near)[:, None], rounded, 0).sum(axis=0, dtype=np.int64)
