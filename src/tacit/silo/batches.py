"""The batch of a release at a real silo: drawn with the system's entropy, in integers, and placed into slots.

An engine may compute a record's vector a little differently in another slot of the batch. For this to tell nothing, a
sampled batch is placed into its slots uniformly at random: two neighbouring sets of records can then be coupled so that
every other record keeps its slot. A full batch has record j in slot j; a pass has the slots of its order, which does
not look at records either.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from tacit.algorithm import Sampling
from tacit.entropy import random_bytes

SEED_BYTES = 32


class SecretBatch(NamedTuple):
    """The row of a record for each slot, and which slots hold one; the others hold a public record."""

    rows: Int64[np.ndarray, " slots"]
    present: Bool[np.ndarray, " slots"]


def secret_batch(
    sampling: Sampling,
    *,
    count: int,
    size: int,
    capacity: int,
    order: Int64[np.ndarray, " count"] | None,
    position: int,
) -> SecretBatch:
    """One batch of ``count`` records, exactly as the sampling schemes of `tacit.privacy.events` are priced.

    Formal guarantee: which records are in the batch, and in which slot, is independent of what records say. ``full``:
    all of them. ``wor``: every sequence of ``size`` different rows is equally likely. ``wr``: independent uniform
    rows. ``poisson``: each row by itself with probability floor(2^64 size / count) / 2^64, of more than ``capacity`` a
    uniform subset, placed uniformly. ``one-pass``: the rows from ``position`` on in ``order``. ``allocation``: the rows
    that ``order`` allots to batch ``position`` of an epoch, of more than ``capacity`` a uniform subset, placed so too.
    """
    if not 1 <= size <= count or capacity < 1:
        raise ValueError(f"Expected 1 <= size={size} <= count={count} and capacity={capacity} >= 1.")
    if sampling == "full":
        return SecretBatch(np.arange(count), np.ones(count, bool))
    if sampling == "wr":
        return SecretBatch(_uniform(size, count), np.ones(size, bool))
    if sampling == "wor":
        return SecretBatch(permutation(count)[:size], np.ones(size, bool))
    if sampling == "one-pass":
        if order is None or len(order) != count:
            raise ValueError("Expected an order of all records for one-pass sampling; draw it once with pass_order.")
        if position < 0:
            raise ValueError(f"Expected position={position} >= 0: a pass begins with the first record of its order.")
        places = position + np.arange(size)
        return SecretBatch(order[np.minimum(places, count - 1)], places < count)
    if sampling == "allocation":
        if order is None or len(order) != count:
            raise ValueError("Expected the batch of every record for sampling by allocation; draw it with allotted.")
        return _placed(np.flatnonzero(order == position), min(capacity, count))
    if sampling != "poisson":
        raise ValueError(f"Expected a sampling scheme that a silo knows, got {sampling!r}.")
    threshold = (size << 64) // count
    chosen = np.flatnonzero(_words(count) < np.uint64(threshold)) if threshold < 2**64 else np.arange(count)
    return _placed(chosen, min(capacity, count))


def _placed(chosen: Int64[np.ndarray, " some"], slots: int) -> SecretBatch:
    """These rows in slots at random; a uniform subset where they are more than there are slots."""
    chosen = chosen[permutation(len(chosen))[:slots]]
    rows, present = np.zeros(slots, np.int64), np.zeros(slots, bool)
    taken = permutation(slots)[: len(chosen)]
    rows[taken], present[taken] = chosen, True
    return SecretBatch(rows, present)


def _words(size: int) -> UInt64[np.ndarray, " size"]:
    return np.frombuffer(random_bytes(8 * size), np.uint64)


def _uniform(size: int, count: int) -> Int64[np.ndarray, " size"]:
    """Independent uniform numbers below ``count``, without the bias of a remainder."""
    below = (2**64 // count) * count
    words = _words(size).copy()
    while (late := words >= np.uint64(below)).any() if below < 2**64 else False:
        words[late] = _words(int(late.sum()))
    return (words % np.uint64(count)).astype(np.int64)


def permutation(count: int) -> Int64[np.ndarray, " count"]:
    """A uniformly random order: random words are sorted, and drawn anew until no two are the same."""
    while True:
        words = _words(count)
        order = np.argsort(words)
        ranked = words[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order


def pass_order(seed: bytes, count: int) -> Int64[np.ndarray, " count"]:
    """A study's order of records: drawn once from a seed, without a look at any record. It need not be secret."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"Expected a seed of {SEED_BYTES} bytes, got {len(seed)}.")
    words = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), "<u8")
    return np.argsort(words, kind="stable")


def allotted(seed: bytes, epoch: int, count: int, batches: int) -> Int64[np.ndarray, " count"]:
    """The batch of every record in an epoch, from a seed that must stay secret, without a look at any record.

    Formal guarantee: each record by itself goes into each batch with a probability of at most (1 + 2^-40) / batches, if
    the seed is uniform and SHAKE-256 cannot be told from random words.
    """
    if len(seed) != SEED_BYTES or not 1 <= batches <= 1 << 24 or epoch < 0:
        raise ValueError(
            f"Expected a seed of {SEED_BYTES} bytes, 1 <= batches={batches} <= 2^24 and epoch={epoch} >= 0."
        )
    drawn = hashlib.shake_256(seed + b"epoch" + epoch.to_bytes(8, "little")).digest(8 * count)
    return (np.frombuffer(drawn, "<u8") % np.uint64(batches)).astype(np.int64)
