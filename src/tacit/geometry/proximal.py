"""Closed convex functions known by their proximal operators, and penalties: those that pull parameters to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

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
