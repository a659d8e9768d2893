"""Where a silo's random choices come from: the operating system, or, in a test build only, a seed."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.runtime.program import silo_key, split_keys
from tacit.silo import step_keys


class Entropy:
    """Keys that nobody else knows; nothing that a server sends reaches them."""

    def batch_keys(self, number: int, place: int, steps: int) -> list[Array]:
        """A fresh key for the batch of each local step."""
        return [jax.random.wrap_key_data(jnp.asarray(_fresh())) for _ in range(steps)]

    def share_keys(self, number: int, place: int) -> Array:
        """Fresh keys for the batch and for the rounding of a share; its coins are the operating system's own."""
        return jax.random.wrap_key_data(jnp.asarray(np.stack([_fresh(), _fresh()])))

    def order_key(self, place: int) -> np.ndarray:
        """The key of a study's pass over the records: drawn once, then remembered."""
        return _fresh()


class SeededEntropy(Entropy):
    """The keys of a simulation with this seed, so that a consortium of test builds can be compared with it."""

    def __init__(self, seed: int) -> None:
        self._keys = split_keys(jax.random.key(seed))

    def batch_keys(self, number: int, place: int, steps: int) -> list[Array]:
        """The keys that the simulated silo draws its batches with."""
        return list(step_keys(silo_key(self._keys, place, number), steps)[:, 0])

    def share_keys(self, number: int, place: int) -> Array:
        """The keys that the simulated silo draws its batch and its rounding with."""
        return step_keys(silo_key(self._keys, place, number), 1)[0]

    def order_key(self, place: int) -> np.ndarray:
        """The key of the simulated silo's pass."""
        return np.asarray(jax.random.key_data(jax.random.fold_in(self._keys.passes, place)))


def _fresh() -> np.ndarray:
    return np.frombuffer(os.urandom(8), np.uint32)
