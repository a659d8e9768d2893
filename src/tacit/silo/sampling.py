"""Which records of a silo enter a release.

Every scheme chooses rows by random bits of row numbers, so the choice is independent of every record's value. Shapes
are static (``slots``) and a mask marks the realised batch; the divisor of a mean is the fixed batch size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from tacit.algorithm import Sampling

# The largest float32 below 2^32: a sampling rate of 1 keeps a row but for one chance in 2^24.
_TOP = np.float32(4294967040.0)


class Batch(NamedTuple):
    """Rows of a silo (``None``: all of them, in order) and which of the slots hold a sampled record."""

    rows: Int[Array, " slots"] | None
    present: Bool[Array, " slots"]


def slots_needed(sampling: Sampling, batch_size: Any, capacity: Any, padded: int) -> int:
    """The static number of slots that holds any batch of this scheme, for the largest of the silos."""
    if sampling == "full":
        return padded
    size = capacity if sampling in ("poisson", "allocation") else batch_size
    return padded if size is None else int(min(np.max(size), padded))


def pass_order(key: Array, count: Int[Array, ""] | int, padded: int) -> Int[Array, " padded"]:
    """A uniformly random order of the first ``count`` rows, for one pass over disjoint batches."""
    bits = jax.random.bits(key, (padded,), jnp.uint32) >> 1
    return jnp.argsort(jnp.where(jnp.arange(padded) < count, bits, jnp.uint32(2**32 - 1)))


def draw(
    key: Array,
    sampling: Sampling,
    *,
    count: Int[Array, ""] | int,
    batch_size: Int[Array, ""] | int,
    capacity: Int[Array, ""] | int,
    slots: int,
    padded: int,
    order: Int[Array, " padded"] | Array | None,
    position: Int[Array, ""] | int,
) -> Batch:
    """Draw one batch from the first ``count`` of ``padded`` rows.

    ``full`` takes all; ``wor`` a uniform subset of ``batch_size``; ``wr`` that many independent draws; ``poisson``
    each row with probability ``batch_size / count`` (rounded down), cut to a uniform subset of ``capacity``;
    ``one-pass`` the ``batch_size`` rows that start at ``position`` of ``order``; ``allocation`` the rows of batch
    ``position`` of all epochs, where ``order`` is the silo's key for them.
    """
    slot = jnp.arange(slots)
    if sampling == "full":
        return Batch(None, slot < count)
    if sampling == "wr":
        return Batch(jax.random.randint(key, (slots,), 0, count, jnp.int32), slot < batch_size)
    if sampling == "one-pass":
        if order is None:
            raise ValueError("Expected the order of a pass for one-pass sampling; draw it once with pass_order.")
        place = position + slot
        return Batch(order[jnp.minimum(place, padded - 1)], (slot < batch_size) & (place < count))
    inside = jnp.arange(padded) < count
    if sampling == "allocation":
        if order is None:
            raise ValueError("Expected the key of a silo's epochs for sampling by allocation.")
        batches = -(-jnp.asarray(count) // jnp.asarray(batch_size))
        allotted = jax.random.randint(jax.random.fold_in(order, position // batches), (padded,), 0, batches)
        chosen = (allotted == position % batches) & inside
        bits = jnp.where(chosen, jax.random.bits(key, (padded,), jnp.uint32), jnp.uint32(2**32 - 1))
        return _compact(chosen & (bits < _threshold(bits, capacity)), slots)
    bits = jax.random.bits(key, (padded,), jnp.uint32)
    bits = jnp.where(inside, bits, jnp.uint32(2**32 - 1))
    if sampling == "wor":
        threshold = _threshold(bits, batch_size)
    else:
        # Rounded down: the priced rate is never exceeded.
        rate = jnp.float32(1 - 1e-6) * jnp.asarray(batch_size, jnp.float32) / jnp.asarray(count, jnp.float32)
        threshold = jnp.minimum(rate * _TOP, _TOP).astype(jnp.uint32)
        threshold = jnp.minimum(threshold, _threshold(bits, capacity))
    return _compact((bits < threshold) & inside, slots)


def _threshold(bits: UInt32[Array, " padded"], size: Int[Array, ""] | int) -> UInt32[Array, ""]:
    """The largest threshold below which at most ``size`` of the bits lie, found digit by digit."""

    def digit(i: Int[Array, ""], threshold: UInt32[Array, ""]) -> UInt32[Array, ""]:
        candidate = threshold + (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(jnp.sum(bits < candidate) <= size, candidate, threshold)

    return jax.lax.fori_loop(0, 32, digit, jnp.uint32(0))


def _compact(chosen: Bool[Array, " padded"], slots: int) -> Batch:
    """The chosen rows, in order, in the first slots."""
    running = jnp.cumsum(chosen)
    rows = jnp.searchsorted(running, jnp.arange(1, slots + 1))
    return Batch(jnp.minimum(rows, chosen.size - 1), jnp.arange(slots) < running[-1])
