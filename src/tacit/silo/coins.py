"""Heads among fair coins at a real silo's door: exactly binomial, from far fewer random bits than coins.

Among m = COINS coins there are k heads with probability C(m, k) / 2^m. So the cumulative masses are whole numbers over
2^m, and a uniform number U of m bits makes an exact sample: the number of k < m with

    C(m, 0) + ... + C(m, k)  <=  U.

The first 16 bits of U nearly always decide it. All m bits are drawn where these 16 are the first ones of a cumulative
mass, about once in 250 times. Heads among more coins are a sum of such samples, and of single bits for the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from tacit.entropy import random_bytes

COINS = 1 << 12
"""Coins of one sample of the table."""

_AT_ONCE = 1 << 18
_FIRST = 16
# A value that no sample has: 16 bits do not decide yet.
_OPEN = np.int16(-1)


class _Table(NamedTuple):
    """The cumulative masses over 2^COINS, and the sample for each value of the first 16 bits, or ``_OPEN``."""

    cumulative: list[int]
    short: np.ndarray


@lru_cache(maxsize=1)
def _table() -> _Table:
    cumulative, mass, total = [], 1, 0
    for k in range(COINS):
        total += mass
        cumulative.append(total)
        mass = mass * (COINS - k) // (k + 1)
    begins = np.array([total >> (COINS - _FIRST) for total in cumulative])
    first = np.arange(1 << _FIRST)
    below, up_to = (np.searchsorted(begins, first, side) for side in ("left", "right"))
    return _Table(cumulative, np.where(below == up_to, below, _OPEN).astype(np.int16))


def count_heads(coins: int, dimension: int) -> Int64[np.ndarray, " dimension"]:
    """Exact samples of Bin(coins, 1/2), one for each coordinate.

    Formal guarantee: if the bytes of `random_bytes` are uniform, the samples are independent and exactly binomial; the
    module says why. Nothing is rejected and drawn again, but running time depends on the samples a little.
    """
    blocks, rest = divmod(coins, COINS)
    heads = np.zeros(dimension, np.int64)
    words = -(-rest // 64)
    for some in _parts(dimension, words):
        heads[some] += _single(some.stop - some.start, words, rest)
    for some in _parts(dimension, blocks):
        for own in _parts(blocks, 1):
            drawn = _draw((some.stop - some.start) * (own.stop - own.start))
            heads[some] += drawn.reshape(some.stop - some.start, -1).sum(axis=1, dtype=np.int64)
    return heads


def _parts(count: int, each: int) -> Iterator[slice]:
    """Parts of so many things, of which about ``_AT_ONCE / each`` are taken at a time."""
    step = max(1, _AT_ONCE // each) if each else max(1, count)
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _single(rows: int, words: int, coins: int) -> Int64[np.ndarray, " rows"]:
    """Heads among fewer coins than the table's, bit by bit; ``words`` of 64 bits hold them."""
    drawn = np.frombuffer(random_bytes(8 * rows * words), "<u8").reshape(rows, words).copy()
    if coins % 64:
        drawn[:, -1] &= np.uint64((1 << coins % 64) - 1)
    return np.bitwise_count(drawn).sum(axis=1, dtype=np.int64)


def _draw(size: int) -> Int64[np.ndarray, " size"]:
    """Samples of Bin(COINS, 1/2)."""
    cumulative, short = _table()
    first = np.frombuffer(random_bytes(2 * size), "<u2")
    samples = short[first].astype(np.int64)
    undecided, width = np.flatnonzero(samples == _OPEN), (COINS - _FIRST) // 8
    more = random_bytes(width * undecided.size)
    for number, place in enumerate(undecided):
        rest = int.from_bytes(more[number * width : (number + 1) * width], "big")
        samples[place] = bisect_right(cumulative, int(first[place]) << (COINS - _FIRST) | rest)
    return samples
