"""Constraint sets: their indicators, and the projections onto them.

Projections are safe in float32: the norm of the returned point, computed in float64, exceeds the radius by at
most one part in a million, and a point inside the set is returned unchanged.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from tacit.errors import TacitError
from tacit.geometry.proximal import (
    Params,
    Regulariser,
    Scalar,
    check_radius,
    concrete,
    pairwise_sum,
    tree_direction,
    tree_norm,
    tree_sum,
)

_INSIDE = 1e-5
"""How far outside, relative to its size, a point may be for the indicator to count it as inside."""


def box(low: Params, high: Params) -> Regulariser:
    """``low <= w <= high``, entry by entry; numbers, or pytrees like the parameters.

    >>> box(-1.0, 1.0).prox(jnp.array([-3.0, 0.5]), 1.0).tolist()
    [-1.0, 0.5]
    """
    if concrete(low) and concrete(high) and not low <= high:
        raise TacitError(f"Expected low={low} <= high={high}; the box is empty, so exchange them.")

    def project(params: Params, step: Scalar) -> Params:
        return jax.tree.map(jnp.clip, params, _like(low, params), _like(high, params))

    def value(params: Params) -> Array:
        return _indicator(tree_norm(_difference(params, project(params, 1.0))), _INSIDE)

    return Regulariser(value=value, prox=project)


def l2_ball(radius: Scalar, center: Params | None = None) -> Regulariser:
    """``||w - center|| <= radius``, where the norm runs over all leaves together.

    >>> l2_ball(5.0).prox(jnp.array([6.0, 8.0]), 1.0).tolist()
    [3.0, 4.0]
    """
    check_radius("radius", radius)

    def project(params: Params, step: Scalar) -> Params:
        if center is None:
            return _onto_sphere(params, radius)
        near = _onto_sphere(_difference(params, center), radius)
        inside = tree_norm(_difference(params, center)) <= radius
        return jax.tree.map(lambda old, c, d: jnp.where(inside, old, c + d), params, center, near)

    def value(params: Params) -> Array:
        offset = params if center is None else _difference(params, center)
        return _indicator(tree_norm(offset), radius * (1 + _INSIDE))

    return Regulariser(value=value, prox=project)


def frobenius_ball(radius: Scalar, per_leaf: bool = False) -> Regulariser:
    """Frobenius norm at most ``radius``: of all leaves together, or of each by itself if ``per_leaf``."""
    if not per_leaf:
        return l2_ball(radius)
    check_radius("radius", radius)

    def value(params: Params) -> Array:
        norms = jnp.stack([tree_norm(leaf) for leaf in jax.tree.leaves(params)])
        return _indicator(norms.max(), radius * (1 + _INSIDE))

    return Regulariser(
        value=value,
        prox=lambda params, step: jax.tree.map(lambda leaf: _onto_sphere(leaf, radius), params),
    )


def l1_ball(radius: Scalar) -> Regulariser:
    """``||w||_1 <= radius`` over all leaves together: soft thresholding at the level that meets the bound.

    References:
        Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball", ICML 2008.

    >>> l1_ball(1.0).prox(jnp.array([2.0, 1.0]), 1.0).tolist()
    [1.0, 0.0]
    """
    check_radius("radius", radius)

    def project(params: Params, step: Scalar) -> Params:
        flat, restore = ravel_pytree(params)
        magnitude = jnp.abs(flat)
        onto = jnp.sign(flat) * _onto_simplex(magnitude, radius)
        return restore(jnp.where(pairwise_sum(magnitude) <= radius, flat, onto))

    def value(params: Params) -> Array:
        return _indicator(tree_sum(jax.tree.map(jnp.abs, params)), radius * (1 + _INSIDE))

    return Regulariser(value=value, prox=project)


def simplex(total: Scalar = 1.0) -> Regulariser:
    """``w >= 0`` and the entries of all leaves together sum to ``total``.

    >>> simplex().prox(jnp.array([0.5, 1.5]), 1.0).tolist()
    [0.0, 1.0]
    """
    check_radius("total", total)

    def project(params: Params, step: Scalar) -> Params:
        flat, restore = ravel_pytree(params)
        return restore(_onto_simplex(flat, total))

    def value(params: Params) -> Array:
        flat, _ = ravel_pytree(params)
        off = jnp.maximum(jnp.abs(pairwise_sum(flat) - total), -jnp.min(flat))
        return _indicator(off, total * _INSIDE)

    return Regulariser(value=value, prox=project)


def _onto_sphere(params: Params, radius: Scalar) -> Params:
    """Shrink to norm ``radius`` if the norm is larger."""
    direction, norm, peak = tree_direction(params)
    outside = norm * peak > radius
    factor = radius / jnp.where(norm > 0, norm, 1)
    return jax.tree.map(lambda old, unit: jnp.where(outside, unit * factor, old).astype(old.dtype), params, direction)


def _onto_simplex(values: Array, total: Scalar) -> Array:
    """``max(values - t, 0)`` with the ``t`` for which the sum is ``total``."""
    peak = jnp.max(values)
    # Only differences to the largest entry matter, and an entry more than the total below it ends at zero:
    # cut there, huge values neither overflow nor swamp the rest.
    depth = jnp.maximum(values - peak, -2 * jnp.asarray(total, values.dtype))
    descending = -jnp.sort(-depth)
    level = (jnp.cumsum(descending) - total) / jnp.arange(1, values.size + 1)
    threshold = level[jnp.sum(descending > level) - 1]
    for _ in range(2):  # Newton steps remove the rounding of the running sum
        kept = jnp.maximum(depth - threshold, 0)
        threshold = threshold + (pairwise_sum(kept) - total) / jnp.maximum(jnp.sum(kept > 0), 1)
    kept = jnp.maximum(depth - threshold, 0)
    return kept * (total / pairwise_sum(kept))


def _indicator(size: Array, bound: Scalar) -> Array:
    return jnp.where(size <= bound, 0.0, jnp.inf)


def _difference(left: Params, right: Params) -> Params:
    return jax.tree.map(jnp.subtract, left, right)


def _like(bound: Params, params: Params) -> Params:
    """``bound`` for every leaf: itself if it is a pytree of the same structure, else the same for all."""
    structure: Any = jax.tree.structure(params)
    return bound if structure == jax.tree.structure(bound) else jax.tree.map(lambda leaf: bound, params)
