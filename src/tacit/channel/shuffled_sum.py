"""The shuffled sum: shares that only their sum makes sense of, from the terms all agree on to the mean of all.

    terms     `share_terms`      grid and coins, from noise and the anonymity set
    encode    `parts_of`         a share in as many random parts as there are shufflers, which add up to it modulo 2^64
    decode    `joined`, `mean_of_total`     the parts' sums put together, and the mean that they stand for

A share is made by the silo (`tacit.silo.shares`), and by the simulator in float32 (`mean_of_shares` is its mean).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int64, UInt64

from tacit.algorithm import Message, PerBlock
from tacit.channel.direct import shaped, weighted_mean
from tacit.entropy import random_bytes
from tacit.errors import TacitError
from tacit.privacy.anonymity import counted_silos
from tacit.privacy.binomial import bits_for, grid_for

MOST_COINS = 1 << 35
"""The most coins of one answer: counting more would take longer than anyone waits."""

_MOST_INTEGER = 1 << 40


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
    noise_multiplier: float, sizes: Sequence[int], *, min_silos: int, honest: float, dimension: int
) -> ShareTerms:
    """Grid and coins for a round in which silos bring these numbers of records, and at least ``min_silos`` silos come.

    Formal guarantee: if a share ``honest`` of all silos keep their coins secret, the sum is as private for each record
    as a Gaussian release with this noise multiplier. All that collude may come, and of the others only the smallest. So
    only the coins of these smallest are counted.
    """
    if not 2 <= min_silos <= len(sizes):
        raise TacitError(f"Expected 2 <= min_silos={min_silos} <= {len(sizes)} silos; nobody hides in a crowd of one.")
    counted = counted_silos(len(sizes), min_silos, honest)
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


def parts_of(share: Int64[np.ndarray, " coordinates"], count: int) -> list[UInt64[np.ndarray, " coordinates"]]:
    """A share as ``count`` parts that add up to it modulo 2^64.

    Formal guarantee: any count - 1 of the parts are uniformly random and independent of the share.
    """
    masks = np.frombuffer(random_bytes(8 * share.size * (count - 1)), "<u8").reshape(count - 1, share.size)
    with np.errstate(over="ignore"):
        rest = share.astype("<i8").view("<u8") - masks.sum(axis=0, dtype=np.uint64)
    return [*masks, rest]


def joined(parts: Iterable[UInt64[np.ndarray, " coordinates"]]) -> Int64[np.ndarray, " coordinates"]:
    """The sum of parts modulo 2^64, as the signed integers that it stands for."""
    with np.errstate(over="ignore"):
        total = np.asarray(sum(parts, np.uint64(0)), np.uint64)
    return total.view(np.int64)


def mean_of_total(
    total: Int64[np.ndarray, " coordinates"],
    bounds: PerBlock,
    shape: Any,
    terms: BlockTerms,
    *,
    records: int,
    each: float,
) -> Any:
    """The mean that a sum of shares stands for, by the clips ``bounds``; a record of weight one counts ``each``."""
    at, means = 0, {}
    for name, own in in_order(terms):
        part = np.asarray(total[at : at + own.dimension], np.float64)
        bound = bounds if name is None else bounds[name]
        centred = (part - own.coins * records / 2) * each
        means[name] = shaped(shape if name is None else shape[name], 2.0 * bound / own.grid * centred)
        at += own.dimension
    return means.get(None, means)


def mean_of_shares(shares: Message, sizes: jax.Array, largest: jax.Array, silos: int) -> Message:
    """The mean that silos' shares stand for; shares have a leading axis of silos, and ``sizes`` of zero are away.

    Each share is a silo's mean over ``sizes`` records, weighted as `tacit.privacy.anonymity.record_weights` says beside
    the ``largest``. Some of all ``silos`` may be away; the expected mean is the same.
    """
    return weighted_mean(shares, sizes * largest * silos / (sizes > 0).sum())
