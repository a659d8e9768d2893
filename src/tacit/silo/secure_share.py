"""A real silo's share of a shuffled sum: integers, with binomial noise flipped coin by coin from the system's entropy.

As `tacit.silo.shuffled`, with two differences. The noise is exact: heads are counted among coins that the operating
system flips. And the share stays in integers, which can be split and added up modulo 2^64:

    share = sum over records of (xhat - g/2)  +  heads among K b coins            in every coordinate

with g steps of the grid, b coins per record and K records; blocks of a statistic have grids and coins of their own and
follow one another in the order of their names. Everybody can compute what the integers of a sum mean
(`mean_of_total`); a share by itself is *not* private, and must not leave but in parts that only the sum puts together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int64

from tacit.algorithm import Broadcast, Memory, Record, Silo, Work
from tacit.errors import TacitError
from tacit.privacy.binomial import bits_for, grid_for
from tacit.privacy.crowd import counted_silos
from tacit.silo.answer import Desk, batch_of, desk_of
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


BlockTerms = ShareTerms | Mapping[str, ShareTerms]
"""The terms of a whole statistic, or of each of its blocks."""


def in_order(terms: BlockTerms) -> list[tuple[str | None, ShareTerms]]:
    """The blocks of a share in the order in which they lie; a statistic without blocks is one that has no name."""
    return [(name, terms[name]) for name in sorted(terms)] if isinstance(terms, Mapping) else [(None, terms)]


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

    def __init__(self, silo: Silo, records: Record, *, place: int, terms: BlockTerms, coins: bool) -> None:
        self._silo, self._records, self._terms, self._coins = silo, records, terms, coins
        count = int(jax.tree.leaves(records)[0].shape[0])
        size = silo.release.batch_size
        self.size = count if size is None else int(np.max(size))

        def rounded(work: Work, records: Record, order: Array | None, keys: Array, position: Array) -> Array:
            return rounded_share(silo, work, desk_of(records, count, order, place), keys, position, terms)

        self._rounded = jax.jit(rounded)

    def answer(
        self, broadcast: Broadcast, memory: Memory, *, keys: Array, position: int, order: Array | None
    ) -> Int64[np.ndarray, " coordinates"]:
        """The silo's share, as integers that must not leave by themselves.

        Formal guarantee: it is the local randomiser of the shuffled vector sum (`tacit.privacy.binomial`) for a batch
        of this silo, with exact coins for the full batch size, whatever the batch turned out to be; block by block.
        """
        work = self._silo.start(broadcast, memory)
        whole = np.asarray(self._rounded(work, self._records, order, keys, position))
        share = np.rint(np.where(np.isfinite(whole), whole, 0.0)).astype(np.int64)
        if not self._coins:
            return share
        return share + np.concatenate([count_heads(t.coins * self.size, t.dimension) for _, t in in_order(self._terms)])


def rounded_share(
    silo: Silo, work: Work, desk: Desk, keys: Array, position: Array | int, terms: BlockTerms
) -> Float[Array, " coordinates"]:
    """A silo's share before its coins, which is not private; keys are one for the batch and one for the rounding."""
    release = silo.release
    if release.channel != "shuffled-sum":
        raise ValueError('Expected channel="shuffled-sum".')
    _, batch = batch_of(release, desk, keys[0], position)
    records, bounds, blocks = desk.fetch(batch.rows), release.clip(work), in_order(terms)
    named = isinstance(terms, Mapping)
    if named != isinstance(bounds, Mapping) or (named and set(terms) != set(bounds)):
        raise ValueError("Expected the terms of each block exactly where there is a clip for each block.")

    def share(name: str | None, own: ShareTerms, key: Array) -> Array:
        query = silo.query if name is None else (lambda work, record: silo.query(work, record)[name])
        bound, grid = usable(jnp.asarray(bounds if name is None else bounds[name])), jnp.asarray(own.grid, jnp.float32)
        rounding = jax.random.split(key)[0]
        return rounded_sum(query, work, records, batch.present, bound, rounding, grid, own.dimension)

    own_keys = jax.random.split(keys[1], len(blocks)) if named else keys[1:]
    return jnp.concatenate([share(name, own, key) for (name, own), key in zip(blocks, own_keys, strict=True)])


def mean_of_total(
    total: Int64[np.ndarray, " coordinates"], kind: Silo, work: Work, shape: Any, terms: BlockTerms, records: int
) -> Any:
    """The mean over ``records`` records that a sum of shares stands for, in the shape of the statistic.

    >>> from tacit.algorithm import Release
    >>> release = Release(lambda w: 2.0, 1.0, None, "full", channel="shuffled-sum")
    >>> terms = ShareTerms(grid=4, coins=10, dimension=1)
    >>> total = np.asarray([3 + 10 * 5 // 2])  # five records, fair coins, and a sum of three grid steps
    >>> mean_of_total(total, Silo(lambda w, r: r, release), None, jnp.zeros(1), terms, 5).tolist()
    [0.6000000238418579]
    """
    bounds, at, found = kind.release.clip(work), 0, {}
    for name, own in in_order(terms):
        part = np.asarray(total[at : at + own.dimension], np.float64)
        bound = usable(jnp.asarray(bounds if name is None else bounds[name]))
        centred = (part - own.coins * records / 2) / records
        like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape if name is None else shape[name])
        found[name] = ravel_pytree(like)[1](jnp.asarray(2.0 * float(bound) / own.grid * centred, jnp.float32))
        at += own.dimension
    return found.get(None, found)
