"""Random numbers that belong to a place (row, column) and a key, three times as fast as the counter-based default.

Each number is a hash of its place and of four words drawn from the key, the salt: the same whatever the shape of the
array that it is drawn in, so that padding changes nothing. It is the simulator's generator for reports, which need as
many normal numbers as there are records times parameters; it is statistically sound (tests look at moments and
correlations) and not cryptographic.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32

_ROOT_TWO = np.float32(np.sqrt(2.0))


def _mix(x: UInt32[Array, ...]) -> UInt32[Array, ...]:
    """A bijection of words that leaves no bit where it was (multipliers of the public-domain hash prospector)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


def salts(key: Array, number: int) -> UInt32[Array, "number 4"]:
    """Independent salts."""
    return jax.random.bits(key, (number, 4), jnp.uint32)


def words(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> UInt32[Array, "rows columns"]:
    """A word for each row number and column."""
    rows = rows.astype(jnp.uint32)[:, None]
    first = _mix(_mix(rows * jnp.uint32(0x9E3779B9) + salt[0]) + salt[1])
    second = _mix(_mix(rows * jnp.uint32(0x85EBCA6B) + salt[2]) + salt[3])
    column = lax.broadcasted_iota(jnp.uint32, (rows.shape[0], columns), 1)
    return _mix(_mix(first + column * jnp.uint32(0xC2B2AE35)) + second)


COIN_STEPS = 2**23
"""Uniform numbers lie in the middle of so many equal steps."""


def uniforms(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> Float[Array, "rows columns"]:
    """Uniform numbers strictly between 0 and 1."""
    return ((words(salt, rows, columns) >> 9).astype(jnp.float32) + 0.5) * np.float32(1 / COIN_STEPS)


def normals(salt: UInt32[Array, " 4"], rows: UInt32[Array, " rows"], columns: int) -> Float[Array, "rows columns"]:
    """Standard normal numbers."""
    centred = ((words(salt, rows, columns) >> 8).astype(jnp.int32) - 2**23).astype(jnp.float32) + 0.5
    # Every consumer of what is returned would compute it anew.
    drawn: Array = lax.optimization_barrier(_ROOT_TWO * lax.erf_inv(centred * np.float32(2.0**-23)))
    return drawn
