"""Norm bounds in the simulator: what one record adds to a sum stays below its clip, to rounding.

A real silo's door has a bound of its own, in integers (`tacit.silo.integers`). Here a computed squared norm is raised
by a multiple of the rounding unit times the sum of the magnitudes that went into it, and by a floor far above where
squares underflow, so that it is not smaller than the true norm of what is summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tacit.algorithm import PerBlock, Statistic

SLACK = 1e-4
"""What rounding may add to a contribution in the simulator: measured ones stay below clip x (1 + SLACK)."""

_ROUNDING = 2e-6  # sixteen units of float32
_FLOOR = 1e-30
_SMALLEST = 1e-25  # below it the noise of a large batch could vanish while a record does not


def usable(bound: Array | float) -> Float[Array, ""]:
    """A bound fit for use: a hostile one (NaN, infinite, negative, too small for its noise) becomes zero, whatever the
    records, and then nothing is said."""
    bound = jnp.asarray(bound, jnp.float32)
    return jnp.where(jnp.isfinite(bound) & (bound > _SMALLEST), bound, 0.0)


def scales(
    squared: Float[Array, " records"],
    magnitude: Float[Array, " records"],
    bound: Float[Array, ""],
    present: Bool[Array, " records"],
) -> tuple[Float[Array, " records"], Bool[Array, " records"]]:
    """The factor that clips each record to ``bound``, and which records count.

    ``magnitude`` is the sum of absolute values of the terms of ``squared``. A record that is absent or whose norm
    is not finite gets factor zero.
    """
    safe = squared + _ROUNDING * magnitude + _FLOOR
    counts = present & jnp.isfinite(safe)
    factor = jnp.minimum(1.0, bound / jnp.sqrt(jnp.where(counts, safe, 1.0)))
    return jnp.where(counts, factor, 0.0), counts


def sensitivity(bound: Any, batch_size: Any) -> Any:
    """The replace-one l2 sensitivity of a sum of clipped records divided by ``batch_size``.

    Two batches that differ in one record have clipped means at most this far apart, because each of the two
    contributions has norm at most ``bound``; in the simulator up to ``SLACK``, at a silo's door exactly.
    """
    return 2.0 * bound / batch_size


def by_block(value: PerBlock, statistic: Statistic) -> Any:
    """Pair a number, or a mapping of numbers, with the blocks of a statistic."""
    if not isinstance(value, Mapping):
        return value
    if not isinstance(statistic, Mapping) or set(value) != set(statistic):
        blocks = sorted(statistic) if isinstance(statistic, Mapping) else "one block"
        raise ValueError(f"Expected one number for each block of the statistic ({blocks}), got {sorted(value)}.")
    return value


def squared_norms(statistics: Any) -> Float[Array, " records"]:
    """The squared norm of each record's statistic; leaves have a leading axis of records."""
    return sum(
        (jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(statistics)),
        start=jnp.float32(0),
    )
