"""Gaussian noise on a statistic, block by block.

This is the simulator's noise: jax's counter-based generator in float32. It has the right distribution up to
rounding, which is what experiments need; it is not hardened against attacks on floating point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from tacit.algorithm import PerBlock, Statistic
from tacit.silo.clipping import by_block, sensitivity, usable


def standard_deviation(bound: PerBlock, noise_multiplier: PerBlock, batch_size: Any) -> PerBlock:
    """Noise multiplier x replace-one sensitivity, for each block."""

    def one(limit: Any, multiplier: Any) -> Array:
        return jnp.asarray(multiplier, jnp.float32) * sensitivity(usable(limit), batch_size)

    if isinstance(bound, Mapping) != isinstance(noise_multiplier, Mapping):
        # One number for several blocks would be ambiguous: the price joins the blocks that it is told of.
        raise ValueError("Expected a noise multiplier for each block exactly where there is a clip for each block.")
    if not isinstance(bound, Mapping):
        return one(bound, noise_multiplier)
    if set(noise_multiplier) != set(bound):
        names = sorted(bound), sorted(noise_multiplier)
        raise ValueError(f"Expected noise multipliers for the blocks {names[0]}, got {names[1]}.")
    return {name: one(bound[name], noise_multiplier[name]) for name in bound}


def add_gaussian(key: Array, statistic: Statistic, deviation: PerBlock) -> Statistic:
    """Add independent N(0, deviation^2) to every coordinate, with the deviation of its block."""
    deviations = by_block(deviation, statistic)
    if isinstance(deviations, Mapping):
        keys = dict(zip(sorted(statistic), jax.random.split(key, len(statistic)), strict=True))
        return {name: _add(keys[name], statistic[name], deviations[name]) for name in statistic}
    return _add(key, statistic, deviations)


def _add(key: Array, statistic: Statistic, deviation: Any) -> Statistic:
    # One draw for all leaves: every call of the generator is compiled code of its own.
    flat, restore = ravel_pytree(statistic)
    return restore(flat + deviation * jax.random.normal(key, flat.shape, flat.dtype))
