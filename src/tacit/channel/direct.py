"""The direct channel: the server learns every message, and uses their weighted mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tacit.algorithm import Message


def weighted_mean(messages: Message, weights: Float[Array, " silos"]) -> Message:
    """The sum over silos of weight x message; messages have a leading axis of silos."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), messages)


def shaped(shape: Any, vector: np.ndarray) -> Message:
    """A vector as a message of this shape, in float32."""
    leaves, form = jax.tree.flatten(shape)
    cuts = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
    parts = zip(np.split(vector.astype(np.float32), cuts), leaves, strict=True)
    return jax.tree.unflatten(form, [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in parts])
