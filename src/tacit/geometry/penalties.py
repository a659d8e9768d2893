"""Penalties: functions that pull parameters towards zero, entry by entry or group by group."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from tacit.errors import TacitError
from tacit.geometry.proximal import Params, Regulariser, Scalar, check_strength, tree_norm, tree_sum

Groups = Literal["leaves", "rows", "columns"]


def zero() -> Regulariser:
    """``h(w) = 0``: the proximal operator is the identity."""
    return Regulariser(value=lambda params: jnp.zeros(()), prox=lambda params, step: params)


def l1(strength: Scalar) -> Regulariser:
    """``h(w) = strength * ||w||_1``: soft thresholding.

    >>> l1(1.0).prox(jnp.array([3.0, -0.5, -2.0]), 1.0).tolist()
    [2.0, 0.0, -1.0]
    """
    check_strength("strength", strength)
    return Regulariser(
        value=lambda params: strength * tree_sum(jax.tree.map(jnp.abs, params)),
        prox=lambda params, step: jax.tree.map(lambda leaf: soft_threshold(leaf, step * strength), params),
    )


def squared_l2(strength: Scalar) -> Regulariser:
    """``h(w) = strength / 2 * ||w||^2``: shrinkage by ``1 / (1 + step * strength)``.

    >>> squared_l2(1.0).prox(jnp.array([3.0, -1.0]), 1.0).tolist()
    [1.5, -0.5]
    """
    return with_squared_l2(zero(), strength)


def elastic_net(l1_strength: Scalar, l2_strength: Scalar) -> Regulariser:
    """``h(w) = l1_strength * ||w||_1 + l2_strength / 2 * ||w||^2``."""
    check_strength("l1_strength", l1_strength)
    check_strength("l2_strength", l2_strength)
    return with_squared_l2(l1(l1_strength), l2_strength)


def with_squared_l2(regulariser: Regulariser, strength: Scalar) -> Regulariser:
    """``regulariser(w) + strength / 2 * ||w||^2``, closed for any regulariser.

    Completing the square: shrink ``w`` and the step by ``1 + step * strength``, then apply the other
    operator.
    """
    check_strength("strength", strength)

    def prox(params: Params, step: Scalar) -> Params:
        factor = 1 + step * strength
        return regulariser.prox(jax.tree.map(lambda leaf: leaf / factor, params), step / factor)

    return Regulariser(
        value=lambda params: regulariser.value(params) + strength / 2 * tree_norm(params) ** 2, prox=prox
    )


def group_lasso(strength: Scalar, groups: Groups | np.ndarray = "leaves") -> Regulariser:
    """``h(w) = strength * sum over groups of the l2 norm of the group``: whole groups become zero.

    Args:
        strength: of the penalty; groups are not weighted by their size.
        groups: ``"leaves"`` (every array is a group), ``"rows"`` or ``"columns"`` (of every matrix; a vector
            is one row, or a column per entry), or a whole number for each entry of the flattened parameters:
            equal numbers, same group.

    >>> group_lasso(1.0, np.array([0, 0, 1])).prox(jnp.array([3.0, 4.0, 0.5]), 2.5).tolist()
    [1.5, 2.0, 0.0]
    """
    check_strength("strength", strength)
    if not isinstance(groups, str):
        return _numbered_groups(strength, np.asarray(groups))
    if groups not in ("leaves", "rows", "columns"):
        raise TacitError(
            f"Expected groups={groups!r} to be 'leaves', 'rows', 'columns' or a list of whole numbers, one "
            "per parameter."
        )

    def norms(leaf: Array) -> Array:
        axis = None if groups == "leaves" else (-1 if groups == "rows" else -2)
        matrix = leaf if groups == "leaves" else jnp.atleast_2d(leaf)
        return jnp.linalg.norm(matrix, axis=axis, keepdims=True)

    def shrink(leaf: Array, threshold: Scalar) -> Array:
        if not leaf.size:
            return leaf
        matrix = leaf if groups == "leaves" else jnp.atleast_2d(leaf)
        return (matrix * _shrinkage(norms(leaf), threshold)).reshape(leaf.shape)

    return Regulariser(
        value=lambda params: strength * tree_sum(jax.tree.map(norms, params)),
        prox=lambda params, step: jax.tree.map(lambda leaf: shrink(leaf, step * strength), params),
    )


def soft_threshold(values: Array, threshold: Scalar) -> Array:
    """Move every entry towards zero by ``threshold``, and no further than zero."""
    return values - jnp.clip(values, -threshold, threshold)


def _numbered_groups(strength: Scalar, groups: np.ndarray) -> Regulariser:
    if groups.ndim != 1 or not groups.size or not np.issubdtype(groups.dtype, np.integer):
        raise TacitError(
            f"Expected groups of shape {groups.shape} and type {groups.dtype} to be a flat list of whole "
            "numbers, one per parameter; or use 'leaves', 'rows' or 'columns'."
        )
    numbers = np.unique(groups, return_inverse=True)[1]
    count = int(numbers.max()) + 1

    def norms(flat: Array) -> Array:
        if flat.size != numbers.size:
            raise TacitError(
                f"Expected {numbers.size} parameters, one per entry of groups, but there are {flat.size}; "
                "give one group number for each."
            )
        return jnp.sqrt(jax.ops.segment_sum(flat**2, numbers, num_segments=count))

    def prox(params: Params, step: Scalar) -> Params:
        flat, restore = ravel_pytree(params)
        return restore(flat * _shrinkage(norms(flat), step * strength)[numbers])

    return Regulariser(value=lambda params: strength * norms(ravel_pytree(params)[0]).sum(), prox=prox)


def _shrinkage(norms: Array, threshold: Scalar) -> Array:
    return jnp.where(norms > threshold, 1 - threshold / jnp.where(norms > 0, norms, 1), 0)
