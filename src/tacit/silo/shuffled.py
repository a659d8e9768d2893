"""A simulated silo's share of a shuffled vector sum: every record rounded at random, and binomial noise for each.

Cheu, Joseph, Mao and Peng (arXiv:2106.09805); Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735), Algorithms 4 and 5
with the centring corrected. A record's clipped statistic x (norm at most L) becomes integers,

    y = (x/L + 1) g/2 in [0, g],      xhat = floor(y) + Bernoulli(y - floor(y)),

replaced by the centre if it lies further from it than ``reach`` (which has probability at most 1e-12), and each
coordinate gets ``Bin(flips, 1/2)``. What a silo says is (2L/g) [sum of (xhat - g/2 + flips - flips/2)] / K. The mean of
such messages over silos has the distribution of what the analyser computes from g + flips shuffled bits per record and
coordinate. A share by itself is *not* private; the sum over the crowd is (`tacit.privacy.binomial`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from tacit.algorithm import Record, Statistic, Work
from tacit.privacy.binomial import EXCESS, FEWEST_FLIPS, FEWEST_STEPS, REJECTION
from tacit.silo.gradients import MICRO_BATCH_FLOATS, Mask, in_micro_batches, scales, squared_norms, usable


class AnonymityCounts(NamedTuple):
    """The records of a round, those whose noise stays secret, and what each silo's records count (at most one)."""

    records: Float[Array, ""] | float
    honest: Float[Array, ""] | float
    weights: Float[Array, " silos"]


def grid_steps(anonymity: Float[Array, ""] | float, dimension: int) -> Float[Array, ""]:
    """Steps of the grid, as `tacit.privacy.binomial.grid_for`."""
    least = max(10.0 * dimension**0.5, FEWEST_STEPS)
    return 2.0 * jnp.ceil(jnp.maximum(2.0 * jnp.sqrt(jnp.asarray(anonymity, jnp.float32)), least) / 2.0)


def reach_of(grid: Float[Array, ""], dimension: int) -> Float[Array, ""]:
    """How far from the centre a rounded vector may lie, as `tacit.privacy.binomial.rounding_bound`."""
    half, root = grid / 2.0, dimension**0.5
    concentrated = half**2 + dimension / 4.0 + math.sqrt(2 * math.log(1 / REJECTION)) * (half + root / 2.0)
    return jnp.sqrt(jnp.minimum(concentrated, (half + root) ** 2))


def flips_each(
    noise_multiplier: Any, grid: Float[Array, ""], dimension: int, honest: Float[Array, ""] | float
) -> Float[Array, ""]:
    """Coin flips per record and coordinate, as `tacit.privacy.binomial.bits_for`, rounded up against float error."""
    most = jnp.max(jnp.asarray(noise_multiplier, jnp.float32))  # one noise serves all silos: that of the strictest
    needed = (4.0 * EXCESS * reach_of(grid, dimension) * most) ** 2
    needed = jnp.maximum(jnp.maximum(needed, FEWEST_FLIPS), grid**2)
    return jnp.where(most > 0, jnp.ceil(needed * (1 + 1e-5) / honest), 0.0)


def shuffled_share(
    query: Any,
    work: Work,
    records: Record,
    present: Mask,
    bound: Any,
    *,
    keys: Array,
    size: Any,
    noise_multiplier: Any,
    anonymity: AnonymityCounts,
    weight: Any,
) -> Statistic:
    """One silo's share: ``size`` records' worth of binomial noise, whatever the batch turned out to be.

    Formal guarantee: the sum of the shares of a crowd, of which the honest records' noise stays secret, is as private
    for each record as a Gaussian release with this noise multiplier, up to 1e-23 per coordinate in delta.
    """
    shape = jax.eval_shape(lambda: query(work, jax.tree.map(lambda leaf: leaf[0], records)))
    example, restore = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape))
    dimension, bound = example.size, usable(bound)
    grid = grid_steps(anonymity.records, dimension)
    flips = flips_each(noise_multiplier, grid, dimension, anonymity.honest)

    def rounded(some: Record, here: Mask, slots: Array) -> Float[Array, " dimension"]:
        """The sum of xhat - g/2 over some of the records."""
        values = jax.vmap(lambda record: query(work, record))(some)
        squared = squared_norms(values)
        factor, counts = scales(squared, squared, bound, here)
        flat = jax.vmap(lambda value: ravel_pytree(value)[0])(values)
        unit = jnp.where(counts[:, None], flat * (factor / jnp.where(bound > 0, bound, 1.0))[:, None], 0.0)
        own_keys = jax.vmap(lambda slot: jax.random.fold_in(keys[0], slot))(slots)
        return jax.vmap(centred_rounding, (0, 0, None))(own_keys, weight * unit, grid).sum(axis=0)

    batch = records, present, jnp.arange(present.shape[0])
    whole = in_micro_batches(rounded, batch, MICRO_BATCH_FLOATS // dimension)
    noise = centred_binomial(keys[1], flips * jnp.asarray(size, jnp.float32), dimension)
    return restore(2.0 * bound / grid * (whole + noise) / size)


def centred_rounding(
    key: Array, unit: Float[Array, " dimension"], grid: Float[Array, ""]
) -> Float[Array, " dimension"]:
    """xhat - g/2 for a vector of norm at most one: integers, and (g/2) x the vector on average."""
    y = jnp.clip((unit + 1.0) * grid / 2.0, 0.0, grid)
    low = jnp.floor(y)
    xhat = low + (jax.random.uniform(key, y.shape) < y - low) - grid / 2.0
    far = jnp.sum(xhat**2) > reach_of(grid, unit.size) ** 2
    return jnp.where(far, 0.0, xhat)


def centred_binomial(key: Array, flips: Float[Array, ""], dimension: int) -> Float[Array, " dimension"]:
    """``Bin(flips, 1/2) - flips/2`` in every coordinate, drawn by numpy: in float32 large counts would be distorted."""

    def draw(words: np.ndarray, counts: np.ndarray) -> np.ndarray:
        words, lead = np.asarray(words), words.shape[:-1]  # indexing jax's own arrays would compute for each message
        counts = np.broadcast_to(np.asarray(counts), lead)
        drawn = np.empty((*lead, dimension), np.float32)
        for place in np.ndindex(lead):
            count = round(float(counts[place]))
            generator = np.random.default_rng([int(word) for word in words[place]])
            drawn[place] = generator.binomial(count, 0.5, dimension) - count / 2
        return drawn

    shape = jax.ShapeDtypeStruct((dimension,), jnp.float32)
    return jax.pure_callback(draw, shape, jax.random.key_data(key), flips, vmap_method="broadcast_all")
