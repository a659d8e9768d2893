"""Noise at a real silo's door: discrete Gaussian on a grid, from the operating system's entropy.

Floating-point noise leaves traces of what it was added to in the lowest bits of the sum. So the statistic is rounded to
a grid whose width is a power of two, which division and rounding represent exactly, and an exact sample of the discrete
Gaussian is added as an integer. What leaves is a function of that integer. Rounding moves a statistic by at most half
a grid width in each coordinate: a grid that is fine enough adds at most ``ROUNDING`` of the sensitivity, and that is
priced.

The sampler is OpenDP's, which uses integers only and the operating system's generator; nothing that a server sends
reaches it but the scale, and the scale is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int64

from tacit.algorithm import PerBlock, Statistic
from tacit.errors import TacitError
from tacit.silo.clipping import by_block

ROUNDING = 1e-4
"""How much rounding to the grid may add to the distance of two statistics, as a share of the sensitivity."""

# Between these a clipped sum can neither overflow nor vanish in float32, for any batch below 2^40 records.
_LEAST, _MOST = 2.0**-60, 2.0**60
# The deviation arrives in float32; more noise than was priced is never wrong.
_ABOVE = 1 + 1e-6

Integers = Int64[np.ndarray, " coordinates"]
Sampler = Callable[[int, float], Integers]


class SecureNoiseError(TacitError):
    """Secure noise cannot be drawn here."""


class Released(NamedTuple):
    """A statistic fit to leave, and the integers that were added to each block of it, which must not."""

    statistic: Statistic
    noise: dict[str, Integers]


def least_grid_sigma(noise_multiplier: float, dimension: int) -> float:
    """The noise in grid units at which rounding costs ``ROUNDING`` of the sensitivity; finer grids cost less.

    >>> least_grid_sigma(2.0, 100)
    200000.0
    """
    return noise_multiplier * math.sqrt(dimension) / ROUNDING


def discrete_gaussian(size: int, scale: float) -> Integers:
    """Independent exact samples of the discrete Gaussian of this scale, from the operating system's entropy."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise SecureNoiseError("Secure noise needs OpenDP; install it with: pip install 'tacit[silo]'.") from None
    dp.enable_features("contrib")
    # The width is said because the default is 32 bits and saturates.
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return np.asarray(dp.m.make_gaussian(*space, scale=float(scale))([0] * size), np.int64)


def add_discrete_gaussian(
    statistic: Statistic,
    deviation: PerBlock,
    *,
    grid_sigma: float,
    before: Mapping[str, Integers] | None = None,
    sampler: Sampler = discrete_gaussian,
) -> Released:
    """Round to a grid and add noise of this deviation, block by block; ``before`` is taken off for a running sum.

    Formal guarantee: with ``dimension`` coordinates in all, what leaves is no more informative than the release that
    ``Event(mechanism="discrete-gaussian", grid_sigma=grid_sigma, dimension=dimension)`` prices: the noise is at least
    ``grid_sigma`` grid widths in every block, and rounding moves two statistics apart by at most sqrt(dimension) of
    them over all blocks. A deviation out of range (a clip that is zero, not finite, tiny or huge) makes the block
    zero, whatever the records.
    """
    deviations = by_block(deviation, statistic)
    several = isinstance(deviations, Mapping)
    blocks = statistic if several else {"": statistic}
    released: dict[str, Any] = {}
    noise: dict[str, Integers] = {}
    for name in sorted(blocks):
        sigma = float(deviations[name] if several else deviations)
        taken_off = None if before is None else before.get(name)
        leaves, form = jax.tree.flatten(blocks[name])
        flat = np.concatenate([np.zeros(0), *(np.asarray(leaf, np.float64).ravel() for leaf in leaves)])
        values, noise[name] = _on_grid(flat, sigma, grid_sigma, taken_off, sampler)
        cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = zip(np.split(values, cuts), leaves, strict=True)
        released[name] = jax.tree.unflatten(
            form, [jnp.asarray(v.reshape(leaf.shape), jnp.float32) for v, leaf in parts]
        )
    return Released(released if several else released[""], noise)


def _on_grid(
    flat: Float[np.ndarray, " coordinates"],
    sigma: float,
    grid_sigma: float,
    before: Integers | None,
    sampler: Sampler,
) -> tuple[Float[np.ndarray, " coordinates"], Integers]:
    zero = np.zeros(flat.size, np.int64)
    if not (math.isfinite(sigma) and _LEAST <= sigma <= _MOST):
        return zero.astype(np.float64), zero if before is None else before
    width = grid_width(sigma, grid_sigma)
    # Clipping leaves nothing that is not finite; should it ever, a coordinate counts as zero.
    rounded = np.rint(np.where(np.isfinite(flat), flat, 0.0) / width).astype(np.int64)
    noise = sampler(flat.size, _ABOVE * sigma / width)
    total = rounded + noise - (zero if before is None else before)
    return total.astype(np.float64) * width, noise


def grid_width(sigma: float, grid_sigma: float) -> float:
    """The largest power of two of which ``sigma`` is at least ``grid_sigma``.

    >>> grid_width(1.0, 1000.0) == 2.0**-10
    True
    """
    _, exponent = math.frexp(sigma / grid_sigma)
    return math.ldexp(1.0, exponent - 1)
