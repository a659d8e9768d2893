"""Reports through a local randomiser, one for each record, and a silo's part of their mean; for simulation.

The server sees every report, in an order that says nothing, and uses their mean; so a silo's message in a simulation is
the mean of its own reports. By itself a report is epsilon_0-LDP; the crowd makes it cheaper (`tacit.privacy.reports`).
`tacit.privacy.randomisers` defines the randomisers. Here they are drawn many at a time: with g a normal vector for each
record, V = a u + b (g - <g, u> u), where a leans and b makes the norm right. So the sum over records is two products of
a vector and a matrix.

Random numbers are hashes of a place (row, column) and of four words drawn from the key, the salt: the same in an array
of any shape, so that padding changes nothing, and three times as fast as jax's own. Reports need as many normal numbers
as there are records times parameters. They are statistically sound (tests look at moments and correlations) and not
cryptographic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, UInt32

from tacit.algorithm import PerBlock, Randomiser, Record, Statistic, Work
from tacit.privacy.randomisers import leaning, terms_of
from tacit.silo.gradients import Mask, by_block, in_micro_batches, scales, squared_norms, statistic_width, usable

COIN_STEPS = 2**23
"""Uniform numbers lie in the middle of so many equal steps."""

_MICRO_BATCH_FLOATS = 2**22
_LARGEST_LOCAL = 30.0  # beyond it exp(epsilon_0) would not fit; a smaller one is more private
_TINY = 1e-30
_MANY = 64  # dimensions in which a normal vector never lies along a given one
_ROOT_TWO = np.float32(np.sqrt(2.0))


class Drawn(NamedTuple):
    """A randomiser's numbers in the compiled program; ``rest`` is 1 - chance, rounded up to the steps of a coin."""

    rest: Float[Array, ""]
    share: Float[Array, ""]
    scale: Float[Array, ""]


def reports_sum(
    query: Any,
    work: Work,
    records: Record,
    present: Mask,
    bound: PerBlock,
    *,
    key: Array,
    noise_multiplier: PerBlock,
    randomiser: Randomiser,
    weight: Any,
) -> Statistic:
    """The sum over present records of their reports, each block clipped to its bound and reported by itself.

    ``weight`` is what the silo's records count beside those that count most: clipped statistics are multiplied by it.

    Formal guarantee: every block of every record's report is epsilon_0-LDP with epsilon_0 the reciprocal of the block's
    noise multiplier, whatever the work and the records are; a record whose statistic is not finite reports as zero
    does. A multiplier of zero is no randomiser at all.
    """
    each = jax.vmap(lambda record: query(work, record))

    def part(some: Record, here: Mask, rows: Int[Array, " some"]) -> Statistic:
        alike = partial(_alike, present=here, rows=rows, randomiser=randomiser, weight=weight)
        values = each(some)
        limits = by_block(bound, values)
        if isinstance(limits, Mapping) != isinstance(noise_multiplier, Mapping):
            raise ValueError("Expected a noise multiplier for each block exactly where there is a clip for each block.")
        if not isinstance(limits, Mapping):
            return alike([values], [limits], [noise_multiplier], key[None])[0]
        names = sorted(limits)
        keys = jax.random.split(key, len(names))
        blocks = tuple([of[name] for name in names] for of in (values, limits, noise_multiplier))
        forms = [jax.tree.flatten(jax.tree.map(lambda leaf: leaf.shape, block)) for block in blocks[0]]
        if all(form == forms[0] for form in forms):
            return dict(zip(names, alike(blocks[0], blocks[1], blocks[2], keys), strict=True))
        return {
            name: alike([value], [limit], [multiplier], own[None])[0]
            for name, value, limit, multiplier, own in zip(names, *blocks, keys, strict=True)
        }

    batch = records, present, jnp.arange(present.shape[0])
    return in_micro_batches(part, batch, _MICRO_BATCH_FLOATS // statistic_width(each, records))


def _alike(
    values: Sequence[Statistic],
    bounds: Sequence[Any],
    noise_multipliers: Sequence[Any],
    keys: Array,
    *,
    present: Mask,
    rows: Int[Array, " records"],
    randomiser: Randomiser,
    weight: Any,
) -> list[Statistic]:
    """The sums of reports of blocks of one form, each clipped and randomised by itself, in one pass."""
    flat = jnp.stack([jax.vmap(lambda value: ravel_pytree(value)[0])(block) for block in values])
    dimension = flat.shape[2]
    limits = jnp.stack([usable(bound) for bound in bounds])
    if limits.ndim > 1:
        raise ValueError(
            "Expected one clip for all silos through shuffled reports: a report's norm would tell its silo."
        )
    # One randomiser for all silos, that of the strictest: reports must look alike.
    most = jnp.stack([jnp.max(jnp.asarray(multiplier, jnp.float32)) for multiplier in noise_multipliers])
    drawn = [drawn_terms(randomiser, dimension, multiplier) for multiplier in noise_multipliers]
    terms = Drawn(*(jnp.stack(parts) for parts in zip(*drawn, strict=True)))

    def one(own: Array, flat: Array, limit: Array, most: Array, drawn: Drawn) -> Array:
        squared = squared_norms(flat)
        factor, counts = scales(squared, squared, limit, present)
        scale = weight * factor / jnp.where(limit > 0, limit, 1.0)
        unit = jnp.where(counts[:, None], flat * scale[:, None], 0.0)
        noisy = randomised_sum(own, unit, present, rows, drawn, resolved(randomiser, dimension))
        return limit * jnp.where(most > 0, noisy, unit.sum(axis=0))

    totals = jax.vmap(one)(keys, flat, limits, most, terms)
    restore = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), values[0]))[1]
    return [restore(total) for total in totals]


def resolved(randomiser: Randomiser, dimension: int) -> str:
    """How a randomiser is drawn; the best one is a cap on the sphere, of which a hemisphere is one."""
    if randomiser != "auto":
        return randomiser
    return "duchi" if dimension == 1 else "privunit2"


def drawn_terms(randomiser: Randomiser, dimension: int, noise_multiplier: Any) -> Drawn:
    """Chance, share and scale at this multiplier, also where a grid makes the multiplier a traced value."""
    find = partial(_found, randomiser, dimension)
    if not isinstance(noise_multiplier, jax.core.Tracer):
        return Drawn(*jnp.asarray(find(np.asarray(noise_multiplier, np.float64).max())))
    most = jnp.max(jnp.asarray(noise_multiplier, jnp.float32))
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    return Drawn(*jax.pure_callback(find, shape, most, vmap_method="broadcast_all"))


def _found(randomiser: Randomiser, dimension: int, noise_multiplier: np.ndarray) -> np.ndarray:
    multiplier = np.asarray(noise_multiplier, np.float64)
    # A multiplier of zero is not drawn with; any number serves.
    local = np.minimum(1 / np.maximum(multiplier, 1 / _LARGEST_LOCAL), _LARGEST_LOCAL)
    terms = [terms_of(randomiser, dimension, float(e)) for e in np.atleast_1d(local).ravel()]
    # Up to a multiple of a coin's steps, which a coin is below with just this probability.
    rests = [math.ceil((1 - own.chance) * COIN_STEPS) / COIN_STEPS for own in terms]
    rows = np.asarray([(rest, own.share, own.scale) for rest, own in zip(rests, terms, strict=True)], np.float32)
    return rows.reshape(*multiplier.shape, 3)


def randomised_sum(
    key: Array,
    unit: Float[Array, "records dimension"],
    present: Mask,
    rows: Int[Array, " records"],
    drawn: Drawn,
    name: str,
) -> Float[Array, " dimension"]:
    """The sum over present records of reports about vectors of norm at most one; rows number the randomness."""
    dimension = unit.shape[1]
    salt_coins, salt_vectors = salts(key, 2)
    coins = uniforms(salt_coins, rows, 3)
    norm = jnp.sqrt(jnp.sum(unit**2, axis=1))
    # Zero has no direction: any serves, since its sign is a fair coin.
    first = jnp.zeros(dimension).at[0].set(1.0)
    u = jnp.where(norm[:, None] > 0, unit / jnp.where(norm > 0, norm, 1.0)[:, None], first)
    towards = jnp.where(coins[:, 0] < 0.5 + jnp.minimum(norm, 1.0) / 2, 1.0, -1.0)
    g = normals(salt_vectors, rows, dimension)
    along, squared = jnp.sum(g * u, axis=1), jnp.sum(g * g, axis=1)
    likely = coins[:, 1] >= drawn.rest
    weight = jnp.where(present, drawn.scale, 0.0)
    if name == "duchi":
        sign = jnp.where(likely, 1.0, -1.0) * towards * jnp.where(along >= 0, 1.0, -1.0)
        return (weight * sign / jnp.sqrt(squared)) @ g
    # The cap is where a normal quantile is large; counted from the top, so that small caps keep their digits.
    from_top = jnp.where(likely, coins[:, 2] * drawn.share, drawn.share + coins[:, 2] * (1 - drawn.share))
    quantile = -jax.scipy.special.ndtri(jnp.clip(from_top, _TINY, 1 - 2.0**-24))
    if name == "privunitg":
        a, b = quantile / dimension**0.5, jnp.full(norm.shape, dimension**-0.5)
    else:
        a = _on_sphere(quantile, dimension)
        # What is left of g across u. In many dimensions that is most of it; in few squared - along^2 would cancel, and
        # where next to nothing is left, the report comes out a little short.
        if dimension >= _MANY:
            across = jnp.maximum(squared - along * along, 1e-8 * squared)
        else:
            across = jnp.maximum(jnp.sum((g - along[:, None] * u) ** 2, axis=1), 1e-8 * squared)
        b = jnp.sqrt(jnp.maximum(1 - a * a, 0.0) / across)
    return (weight * (a * towards - b * along)) @ u + (weight * b) @ g


def _on_sphere(quantile: Float[Array, " records"], dimension: int) -> Float[Array, " records"]:
    """One coordinate of a unit vector at the level of a normal quantile, from a fine table."""
    start, step, values = leaning(dimension)
    table = jnp.asarray(values, jnp.float32)
    place = jnp.clip((quantile - start) / step, 0.0, len(values) - 1.001)
    low = jnp.floor(place).astype(jnp.int32)
    part = place - low
    return table[low] * (1 - part) + table[low + 1] * part


def _mix(x: UInt32[Array, ...]) -> UInt32[Array, ...]:
    """A bijection of words that leaves no bit where it was (multipliers of the public-domain hash prospector)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


def salts(key: Array, count: int) -> UInt32[Array, "count 4"]:
    """Independent salts."""
    return jax.random.bits(key, (count, 4), jnp.uint32)


def _words(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> UInt32[Array, "rows columns"]:
    """A word for each row number and column."""
    rows = rows.astype(jnp.uint32)[:, None]
    first = _mix(_mix(rows * jnp.uint32(0x9E3779B9) + salt[0]) + salt[1])
    second = _mix(_mix(rows * jnp.uint32(0x85EBCA6B) + salt[2]) + salt[3])
    column = lax.broadcasted_iota(jnp.uint32, (rows.shape[0], columns), 1)
    return _mix(_mix(first + column * jnp.uint32(0xC2B2AE35)) + second)


def uniforms(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> Float[Array, "rows columns"]:
    """Uniform numbers strictly between 0 and 1."""
    return ((_words(salt, rows, columns) >> 9).astype(jnp.float32) + 0.5) * np.float32(1 / COIN_STEPS)


def normals(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> Float[Array, "rows columns"]:
    """Standard normal numbers."""
    centred = ((_words(salt, rows, columns) >> 8).astype(jnp.int32) - 2**23).astype(jnp.float32) + 0.5
    # Every consumer of what is returned would compute it anew.
    drawn: Array = lax.optimization_barrier(_ROOT_TWO * lax.erf_inv(centred * np.float32(2.0**-23)))
    return drawn
