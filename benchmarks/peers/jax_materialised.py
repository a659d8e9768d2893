"""Per-record gradients by ``vmap(grad)`` in jax, clipped and averaged: what one would write by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.peers.jax_common import losses_of, rounds_of
from benchmarks.peers.works import Prepared, Work, parameters

FLOATS = 2**26


def prepare(work: Work) -> Prepared:
    """Rounds in parts of so many records that their gradients take a quarter of a gigabyte."""

    def loss(params: Any, x: Array, y: Array) -> Array:
        return losses_of(work, params, x[None], y[None])[0]

    def clipped(each: Callable[[Array, Array], Any], bound: float, x: Array, y: Array) -> Any:
        def one(record: tuple[Array, Array]) -> Any:
            gradient = each(*record)
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
            factor = jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-30))
            return jax.tree.map(lambda leaf: leaf * factor, gradient)

        parts = -(-len(y) * parameters(work) // FLOATS)
        while len(y) % parts:
            parts += 1
        folded = (x.reshape(parts, -1, *x.shape[1:]), y.reshape(parts, -1))
        sums = jax.lax.map(lambda some: jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(one)(some)), folded)
        return jax.tree.map(lambda leaf: leaf.sum(0) / len(y), sums)

    def gradient(params: Any, x: Array, y: Array) -> Any:
        return clipped(lambda a, b: jax.grad(loss)(params, a, b), work.clip, x, y)

    def change(points: Any, x: Array, y: Array) -> Any:
        def each(a: Array, b: Array) -> Any:
            new, old = (jax.grad(loss)(point, a, b) for point in points)
            return jax.tree.map(lambda u, v: u - v, new, old)

        return clipped(each, 2.0 * work.clip, x, y)

    return rounds_of(work, gradient, change, private=True)
