"""A silo's share of a shuffled vector sum: every record rounded at random, and binomial noise for each.

Cheu, Joseph, Mao and Peng (arXiv:2106.09805); Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735), Algorithms 4 and 5
with the centring corrected. A record's clipped statistic x (norm at most L) becomes integers,

    y = (x/L + 1) g/2 in [0, g],      xhat = floor(y) + Bernoulli(y - floor(y)),

replaced by the centre if it lies further from it than ``reach`` (which has probability at most 1e-12), and each
coordinate gets ``Bin(flips, 1/2)``. What a silo says is (2L/g) [sum of (xhat - g/2 + flips - flips/2)] / K: the mean of
such messages over silos is what the analyser computes from g + flips shuffled bits per record and coordinate, in
the same distribution. A share by itself is *not* private; the sum over the crowd is (``tacit.privacy.binomial``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from tacit.algorithm import Record, Statistic, Work
from tacit.silo.clipping import scales, squared_norms, usable

_LOG_REJECTION = 2 * np.log(1e12)
_FEWEST_STEPS = 200.0
_FEWEST_FLIPS = 20_000.0
_EXCESS = 1.002
_MICRO_BATCH_FLOATS = 2**20


class AnonymityCounts(NamedTuple):
    """In how many records of a round each one hides: all of them, and those whose noise is sure to stay secret.

    ``weights`` say, for each silo, what its records count beside those that count most.
    """

    records: Float[Array, ""] | float
    honest: Float[Array, ""] | float
    weights: Float[Array, " silos"]


def grid_steps(anonymity: Float[Array, ""] | float, dimension: int) -> Float[Array, ""]:
    """Steps of the grid: even, at least 2 sqrt(crowd), 10 sqrt(dimension) and 200, as in `tacit.privacy.binomial`."""
    least = max(10.0 * dimension**0.5, _FEWEST_STEPS)
    return 2.0 * jnp.ceil(jnp.maximum(2.0 * jnp.sqrt(jnp.asarray(anonymity, jnp.float32)), least) / 2.0)


def reach_of(grid: Float[Array, ""], dimension: int) -> Float[Array, ""]:
    """How far from the centre a rounded vector may lie, as `tacit.privacy.binomial.rounding_bound`."""
    half, root = grid / 2.0, dimension**0.5
    concentrated = half**2 + dimension / 4.0 + _LOG_REJECTION**0.5 * (half + root / 2.0)
    return jnp.sqrt(jnp.minimum(concentrated, (half + root) ** 2))


def flips_each(
    noise_multiplier: Any, grid: Float[Array, ""], dimension: int, honest: Float[Array, ""] | float
) -> Float[Array, ""]:
    """Coin flips per record and coordinate, as `tacit.privacy.binomial.bits_for`, rounded up against float error."""
    most = jnp.max(jnp.asarray(noise_multiplier, jnp.float32))  # one noise serves all silos: that of the strictest
    needed = (4.0 * _EXCESS * reach_of(grid, dimension) * most) ** 2
    needed = jnp.maximum(jnp.maximum(needed, _FEWEST_FLIPS), grid**2)
    return jnp.where(most > 0, jnp.ceil(needed * (1 + 1e-5) / honest), 0.0)


def shuffled_share(
    query: Any,
    work: Work,
    records: Record,
    present: Bool[Array, " records"],
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
    whole = rounded_sum(query, work, records, present, bound, keys[0], grid, dimension, weight)
    noise = centred_binomial(keys[1], flips * jnp.asarray(size, jnp.float32), dimension)
    return restore(2.0 * bound / grid * (whole + noise) / size)


def rounded_sum(
    query: Any,
    work: Work,
    records: Record,
    present: Bool[Array, " records"],
    bound: Float[Array, ""],
    key: Array,
    grid: Float[Array, ""],
    dimension: int,
    weight: Any,
) -> Float[Array, " dimension"]:
    """The sum over present records of xhat - g/2, in micro-batches."""
    number = present.shape[0]
    chunk = max(1, min(number, _MICRO_BATCH_FLOATS // dimension))
    padded = -(-number // chunk) * chunk

    def fold(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, padded - number)] + [(0, 0)] * (leaf.ndim - 1)).reshape(-1, chunk, *leaf.shape[1:])

    def add(total: Array, part: tuple[Record, Array, Array]) -> tuple[Array, None]:
        some, here, slots = part
        values = jax.vmap(lambda record: query(work, record))(some)
        squared = squared_norms(values)
        factor, counts = scales(squared, squared, bound, here)
        flat = jax.vmap(lambda value: ravel_pytree(value)[0])(values)
        unit = jnp.where(counts[:, None], flat * (factor / jnp.where(bound > 0, bound, 1.0))[:, None], 0.0)
        own_keys = jax.vmap(lambda slot: jax.random.fold_in(key, slot))(slots)
        return total + jax.vmap(centred_rounding, (0, 0, None))(own_keys, weight * unit, grid).sum(axis=0), None

    slots = jnp.arange(padded).reshape(-1, chunk)
    return jax.lax.scan(add, jnp.zeros(dimension), (jax.tree.map(fold, records), fold(present), slots))[0]


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
        found = np.empty((*lead, dimension), np.float32)
        for place in np.ndindex(lead):
            number = round(float(counts[place]))
            generator = np.random.default_rng([int(word) for word in words[place]])
            found[place] = generator.binomial(number, 0.5, dimension) - number / 2
        return found

    shape = jax.ShapeDtypeStruct((dimension,), jnp.float32)
    return jax.pure_callback(draw, shape, jax.random.key_data(key), flips, vmap_method="broadcast_all")
