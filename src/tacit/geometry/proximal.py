"""The type of everything in this folder: a closed convex function known by its proximal operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.errors import TacitError

Params = Any
"""A pytree of float arrays: the parameters of a model."""

Scalar = Array | float
"""A number that may be traced, so that a grid of strengths or radii runs as one program."""


class Regulariser(NamedTuple):
    """A closed convex function ``h`` of the parameters.

    Attributes:
        value: ``h(w)``. The indicator of a set is 0 on the set (up to rounding) and infinite elsewhere.
        prox: ``(w, step) -> argmin_v h(v) + ||v - w||^2 / (2 step)``. For a set it is the projection,
            whatever the step.
    """

    value: Callable[[Params], Array]
    prox: Callable[[Params, Scalar], Params]


def concrete(value: object) -> bool:
    """Whether ``value`` is a plain number, which can be checked, and not a (possibly traced) jax array.

    >>> concrete(0.5), concrete(jnp.asarray(0.5)), concrete(True)
    (True, False, False)
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_strength(name: str, value: Scalar) -> None:
    """Raise unless a concrete ``value`` is finite and at least 0."""
    if isinstance(value, jax.Array):
        return
    if not concrete(value) or not 0 <= float(value) < float("inf"):
        raise TacitError(f"Expected 0 <= {name}={value!r} < infinity; a penalty of 0 is no penalty.")


def check_radius(name: str, value: Scalar) -> None:
    """Raise unless a concrete ``value`` is finite and above 0."""
    if isinstance(value, jax.Array):
        return
    if not concrete(value) or not 0 < float(value) < float("inf"):
        raise TacitError(f"Expected 0 < {name}={value!r} < infinity; for no constraint use 'zero'.")


def pairwise_sum(values: Array) -> Array:
    """The sum of all entries by halves, with an error that grows with the logarithm of their number.

    A running sum of a million float32 squares can be wrong in the fifth digit; a projection that trusted it
    would return a point outside its set.

    >>> float(pairwise_sum(jnp.ones(1000)))
    1000.0
    """
    flat = jnp.ravel(values)
    flat = jnp.pad(flat, (0, (1 << max(flat.size - 1, 0).bit_length()) - flat.size))
    while flat.size > 8:
        half = flat.size // 2
        flat = flat[:half] + flat[half:]
    return flat.sum()


def tree_sum(tree: Params) -> Array:
    """The sum of all entries of all leaves."""
    return sum((pairwise_sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def tree_direction(tree: Params) -> tuple[Params, Array, Array]:
    """``(u, norm of u, m)`` with ``tree = m u`` and ``m`` its largest entry, or 1 if that is 0.

    The l2 norm of ``tree`` is ``m * norm``; written this way nothing overflows or underflows on the way.
    """
    peaks = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree) if jnp.size(leaf)]
    peak = jnp.max(jnp.stack(peaks)) if peaks else jnp.zeros(())
    peak = jnp.where(peak == 0, 1.0, peak)
    direction = jax.tree.map(lambda leaf: leaf / peak.astype(jnp.result_type(leaf)), tree)
    return direction, jnp.sqrt(tree_sum(jax.tree.map(jnp.square, direction))), peak


def tree_norm(tree: Params) -> Array:
    """The l2 norm over all leaves.

    >>> float(tree_norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}))
    5.0
    """
    _, norm, peak = tree_direction(tree)
    return norm * peak
