"""A real silo's share of a shuffled sum: integers, with binomial noise flipped coin by coin from the system's entropy.

As `tacit.silo.shuffled`, with two differences. The noise is exact: heads are counted among coins that the operating
system flips. And the share stays in integers, which can be split and added up modulo 2^64:

    share = sum over records of (xhat - g/2)  +  heads among K b coins            in every coordinate

with g steps of the grid, b coins per record and K records. Everybody can compute what the integers of a sum mean
(`mean_of_total`); a share by itself is *not* private, and must not leave but in parts that only the sum puts together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int64

from tacit.algorithm import Broadcast, Memory, Record, Silo, Work
from tacit.errors import TacitError
from tacit.privacy.binomial import bits_for, grid_for
from tacit.privacy.crowd import counted_silos
from tacit.silo.answer import batch_of, desk_of
from tacit.silo.clipping import usable
from tacit.silo.shuffled import rounded_sum

MOST_COINS = 1 << 35
"""More coins than this for one answer are refused: counting them would take longer than anyone waits."""

# Sums of rounded records are made in float32, which holds integers up to here.
_MOST_INTEGER = 1 << 24
_CHUNK = 1 << 22


class ShareTerms(NamedTuple):
    """What all silos of a round agree on: grid, coins per record and coordinate, coordinates."""

    grid: int
    coins: int
    dimension: int


def share_terms(
    noise_multiplier: float, sizes: Sequence[int], *, least: int, honest: float, dimension: int
) -> ShareTerms:
    """Grid and coins for a round in which silos bring these numbers of records, and at least ``least`` silos come.

    Formal guarantee: if a share ``honest`` of all silos keep their coins secret, the sum is as private for each record
    as a Gaussian release with this noise multiplier. All that collude may be among those that come, and the smallest
    of the others may be all that come, so it is theirs that are counted.

    >>> share_terms(20.0, [100, 200, 300], least=2, honest=1.0, dimension=10)
    ShareTerms(grid=200, coins=227949, dimension=10)
    """
    if not 2 <= least <= len(sizes):
        raise TacitError(f"Expected 2 <= least={least} <= {len(sizes)} silos; nobody hides in a crowd of one.")
    counted = counted_silos(len(sizes), least, honest)
    grid = grid_for(sum(sizes), dimension)
    if max(sizes) * grid // 2 >= _MOST_INTEGER:
        raise TacitError(f"Expected {max(sizes)} records x grid {grid} / 2 < {_MOST_INTEGER}; use smaller batches.")
    coins = bits_for(noise_multiplier, grid, dimension, sum(sorted(sizes)[:counted]))
    if coins * max(sizes) * dimension > MOST_COINS:
        raise TacitError(
            f"Expected at most {MOST_COINS} coins for one answer, got {coins * max(sizes) * dimension}: a model of "
            f"{dimension} parameters is too large for exact binomial noise at this price; raise epsilon."
        )
    return ShareTerms(grid, coins, dimension)


def count_heads(coins: int, dimension: int) -> Int64[np.ndarray, " dimension"]:
    """Exact samples of Bin(coins, 1/2), one for each coordinate: the ones among so many bits of system entropy."""
    heads = np.zeros(dimension, np.int64)
    for place in range(dimension):
        left = coins
        while left > 0:
            bits = min(left, 8 * _CHUNK)
            drawn = np.frombuffer(os.urandom(-(-bits // 8)), np.uint8)
            heads[place] += int(np.bitwise_count(drawn).sum(dtype=np.int64))
            if bits % 8:
                heads[place] -= int(drawn[-1] >> (bits % 8)).bit_count()
            left -= bits
    return heads


class ShareResponder:
    """The silo half of one kind of round through the shuffled sum, at one silo.

    ``coins=False`` leaves the noise out, which only a test build may do.
    """

    def __init__(self, silo: Silo, records: Record, *, place: int, terms: ShareTerms, coins: bool) -> None:
        if silo.release.channel != "shuffled-sum":
            raise ValueError('Expected channel="shuffled-sum".')
        self._silo, self._records, self._terms, self._coins = silo, records, terms, coins
        count = int(jax.tree.leaves(records)[0].shape[0])
        release = silo.release
        self.size = count if release.batch_size is None else int(np.max(release.batch_size))

        def rounded(work: Work, records: Record, order: Array | None, keys: Array, position: Array) -> Array:
            desk = desk_of(records, count, order, place)
            _, batch = batch_of(release, desk, keys[0], position)
            bound = usable(jnp.asarray(release.clip(work)))
            grid = jnp.asarray(terms.grid, jnp.float32)
            return rounded_sum(
                silo.query, work, desk.fetch(batch.rows), batch.present, bound, keys[1], grid, terms.dimension
            )

        self._rounded = jax.jit(rounded)

    def answer(
        self, broadcast: Broadcast, memory: Memory, *, keys: Array, position: int, order: Array | None
    ) -> Int64[np.ndarray, " dimension"]:
        """The silo's share, as integers that must not leave by themselves.

        Formal guarantee: it is the local randomiser of the shuffled vector sum (`tacit.privacy.binomial`) for a batch
        of this silo, with exact coins for the full batch size, whatever the batch turned out to be.
        """
        work = self._silo.start(broadcast, memory)
        whole = np.asarray(self._rounded(work, self._records, order, keys, position))
        share = np.rint(np.where(np.isfinite(whole), whole, 0.0)).astype(np.int64)
        return share + count_heads(self._terms.coins * self.size, self._terms.dimension) if self._coins else share


def mean_of_total(
    total: Int64[np.ndarray, " dimension"], kind: Silo, work: Work, shape: Any, terms: ShareTerms, records: int
) -> Any:
    """The mean over ``records`` records that a sum of shares stands for, in the shape of the statistic.

    >>> from tacit.algorithm import Release
    >>> release = Release(lambda w: 2.0, 1.0, None, "full", channel="shuffled-sum")
    >>> terms = ShareTerms(grid=4, coins=10, dimension=1)
    >>> total = np.asarray([3 + 10 * 5 // 2])  # five records, fair coins, and a sum of three grid steps
    >>> mean_of_total(total, Silo(lambda w, r: r, release), None, jnp.zeros(1), terms, 5).tolist()
    [0.6000000238418579]
    """
    bound = usable(jnp.asarray(kind.release.clip(work)))
    centred = (np.asarray(total, np.float64) - terms.coins * records / 2) / records
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    _, restore = ravel_pytree(zeros)
    return restore(jnp.asarray(2.0 * float(bound) / terms.grid * centred, jnp.float32))
