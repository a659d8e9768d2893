"""The plain channel: the server learns every message, and uses their weighted mean."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tacit.algorithm import Message


def weighted_mean(messages: Message, weights: Float[Array, " silos"]) -> Message:
    """The sum over silos of weight x message; messages have a leading axis of silos."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), messages)
