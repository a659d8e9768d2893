"""jax-privacy's ``clipped_grad``, all silos' batches in one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax_privacy import clipping

from benchmarks.peers.jax_common import losses_of, rounds_of
from benchmarks.peers.jax_materialised import FLOATS
from benchmarks.peers.works import Prepared, Work, parameters


def prepare(work: Work) -> Prepared:
    """Rounds of clipped means; a difference of gradients is the gradient by a common shift of both points."""
    total = work.silos * work.batch
    size = max(1, FLOATS // parameters(work))
    while total % size:
        size -= 1
    common: dict[str, Any] = {
        "batch_argnums": (1, 2),
        "normalize_by": float(total),
        "microbatch_size": None if size >= total else size,
    }

    def loss(params: Any, x: Array, y: Array) -> Array:
        return losses_of(work, params, x, y).mean()

    def gradient(params: Any, x: Array, y: Array) -> Any:
        return clipping.clipped_grad(loss, l2_clip_norm=work.clip, **common)(params, x, y)

    def change(points: Any, x: Array, y: Array) -> Any:
        def shifted(shift: Any, x: Array, y: Array) -> Array:
            new, old = (loss(jax.tree.map(jnp.add, point, shift), x, y) for point in points)
            return new - old

        zeros = jax.tree.map(jnp.zeros_like, points[0])
        return clipping.clipped_grad(shifted, l2_clip_norm=2.0 * work.clip, **common)(zeros, x, y)

    return rounds_of(work, gradient, change, private=True)
