"""Reports through a local randomiser, one for each record, and a silo's part of their mean.

The server sees every report, in an order that says nothing, and uses their mean; so a silo's message in a simulation is
the mean of its own reports. By itself a report is epsilon_0-LDP; the crowd makes it cheaper (`tacit.privacy.reports`).
What the randomisers are is in `tacit.privacy.randomisers`; this is how they are drawn, many at a time: with g a normal
vector for each record, V = a u + b (g - <g, u> u), where a leans and b makes the norm right, so that the sum over
records is two products of a vector and a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from tacit.algorithm import PerBlock, Randomiser, Record, Statistic, Work
from tacit.privacy.randomisers import Terms, direction, leaning, terms_of
from tacit.silo.clipping import by_block, scales, squared_norms, usable
from tacit.silo.hashed import COIN_STEPS, normals, salts, uniforms

_MICRO_BATCH_FLOATS = 2**22
_LARGEST_LOCAL = 30.0  # beyond it exp(epsilon_0) would not fit; a smaller one is more private
_TINY = 1e-30
_MANY = 64  # dimensions in which a normal vector never lies along a given one


class Drawn(NamedTuple):
    """A randomiser's numbers as the compiled program uses them.

    ``rest`` is one less the chance, rounded up to what a coin can tell: a little more private than asked for.
    """

    rest: Float[Array, ""]
    share: Float[Array, ""]
    scale: Float[Array, ""]


def reports_sum(
    query: Any,
    work: Work,
    records: Record,
    present: Bool[Array, " records"],
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
    number = present.shape[0]
    shapes = jax.eval_shape(lambda: query(work, jax.tree.map(lambda leaf: leaf[0], records)))
    width = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    chunk = max(1, min(number, _MICRO_BATCH_FLOATS // max(width, 1)))
    padded = -(-number // chunk) * chunk

    def fold(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, padded - number)] + [(0, 0)] * (leaf.ndim - 1)).reshape(-1, chunk, *leaf.shape[1:])

    def part(some: Record, here: Array, rows: Array) -> Statistic:
        values = jax.vmap(lambda record: query(work, record))(some)
        return _blocks(values, here, rows, bound, key, noise_multiplier, randomiser, weight)

    rows = jnp.arange(padded).reshape(-1, chunk)
    parts = jax.tree.map(fold, records), fold(present), rows
    if padded == chunk:
        return part(*jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(lambda total, some: (jax.tree.map(jnp.add, total, part(*some)), None), zeros, parts)[0]


def _blocks(
    values: Statistic,
    present: Bool[Array, " records"],
    rows: Int[Array, " records"],
    bound: PerBlock,
    key: Array,
    noise_multiplier: PerBlock,
    randomiser: Randomiser,
    weight: Any,
) -> Statistic:
    limits = by_block(bound, values)
    if isinstance(limits, Mapping) != isinstance(noise_multiplier, Mapping):
        raise ValueError("Expected a noise multiplier for each block exactly where there is a clip for each block.")
    if not isinstance(limits, Mapping):
        return _alike([values], present, rows, [limits], key[None], [noise_multiplier], randomiser, weight)[0]
    names = sorted(limits)
    keys = jax.random.split(key, len(names))
    parts = [values[name] for name in names], [limits[name] for name in names], [noise_multiplier[n] for n in names]
    forms = [jax.tree.flatten(jax.tree.map(lambda leaf: leaf.shape, part)) for part in parts[0]]
    if all(form == forms[0] for form in forms):
        return dict(
            zip(names, _alike(parts[0], present, rows, parts[1], keys, parts[2], randomiser, weight), strict=True)
        )
    return {
        name: _alike([value], present, rows, [limit], own[None], [multiplier], randomiser, weight)[0]
        for name, own, value, limit, multiplier in zip(names, keys, *parts, strict=True)
    }


def _alike(
    values: Sequence[Statistic],
    present: Bool[Array, " records"],
    rows: Int[Array, " records"],
    bounds: Sequence[Any],
    keys: Array,
    noise_multipliers: Sequence[Any],
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
    found = [terms_of(randomiser, dimension, float(e)) for e in np.atleast_1d(local).ravel()]
    rows = np.asarray([(_rounded(1 - terms.chance), terms.share, terms.scale) for terms in found], np.float32)
    return rows.reshape(*multiplier.shape, 3)


def _rounded(rest: float) -> float:
    """Up to a multiple of a coin's steps, which a coin is below with just this probability."""
    return math.ceil(rest * COIN_STEPS) / COIN_STEPS


def randomised_sum(
    key: Array,
    unit: Float[Array, "records dimension"],
    present: Bool[Array, " records"],
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


def seed_and_sign(
    generator: np.random.Generator, vector: Float[np.ndarray, " dimension"], terms: Terms, bound: float
) -> tuple[int, int]:
    """A whole report of Duchi et al. in nine bytes: a seed for the direction, and on which side of it the vector is.

    Formal guarantee: epsilon_0-LDP: the seed is independent of the vector, and given the seed the sign is randomised
    response.
    """
    norm = float(np.linalg.norm(vector))
    if not norm <= bound * (1 + 1e-6):
        raise ValueError(f"Expected a vector of norm {norm:g} <= bound={bound:g}; clip it first.")
    seed = int(generator.integers(0, 2**63))
    away = generator.random() >= 0.5 + min(norm / bound, 1.0) / 2 if norm > 0 else generator.random() < 0.5
    side = 1 if float(direction(seed, terms.dimension) @ vector) >= 0 else -1
    kept = generator.random() < terms.chance
    return seed, side * (-1 if away else 1) * (1 if kept else -1)
