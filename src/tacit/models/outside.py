"""Functions of another library inside a jax program: values and gradients by callbacks.

`outside` makes a differentiable jax function of ``function(tree, rows)`` in torch. Under ``vmap`` every element is
computed by itself, by ``torch.func.vmap``: what a record's gradient is depends on no other record. Where a tree has an
axis of its own too (several points, a grid), one element after another is computed.

A callback is not compiled: simulations of such models cost what torch costs. The gradients of a batch are `asked` of
torch at once. A real silo's door does not come here for gradients; it calls `TorchModule.pulled` directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from tacit.errors import TacitError

Function = Callable[[dict[str, Tensor], Tensor], Tensor]
"""From a tree of tensors and a batch of rows to one row of numbers, or one number, for each."""


def tensor(array: Any) -> Tensor:
    """A tensor with a copy of an array; integers get 64 bits, as torch wants labels and indices."""
    if isinstance(array, Tensor):
        return array
    made = torch.from_numpy(np.array(array))
    return made if made.is_floating_point() else made.long()


def outside(
    function: Function, width: Callable[[tuple[int, ...], Any], tuple[int, ...]]
) -> Callable[[dict[str, Array], Array], Array]:
    """A jax function ``(tree, rows) -> outputs`` that torch computes; ``rows`` have no gradient.

    ``width(shape, dtype)`` is the shape of the output of one row of this shape.
    """

    def values(tree: dict[str, Array], rows: Array) -> Array:
        result = jax.ShapeDtypeStruct((rows.shape[0], *width(rows.shape[1:], rows.dtype)), jnp.float32)
        return jax.pure_callback(_values(function, rows.ndim), result, tree, rows, vmap_method="expand_dims")

    differentiable = jax.custom_vjp(values)

    def forward(tree: Any, rows: Any) -> tuple[Array, tuple[dict[str, Array], Array]]:
        if rows.perturbed:
            raise TacitError("Expected a gradient in the parameters; of a torch model there is none in the features.")
        plain = {name: leaf.value for name, leaf in tree.items()}
        return values(plain, rows.value), (plain, rows.value)

    def backward(kept: tuple[dict[str, Array], Array], cotangent: Any) -> tuple[Any, None]:
        tree, rows = kept
        if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
            cotangent = jnp.zeros(cotangent.shape, cotangent.dtype)
        result = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), tree)
        pull = _pulled(function, rows.ndim, cotangent.ndim)
        return jax.pure_callback(pull, result, tree, rows, cotangent, vmap_method="expand_dims"), None

    differentiable.defvjp(forward, backward, symbolic_zeros=True)
    return differentiable


def _values(function: Function, own: int) -> Callable[..., np.ndarray]:
    """The callback that evaluates; ``own`` counts the axes of rows that are not mapped over."""

    def call(tree: dict[str, Any], rows: Any) -> np.ndarray:
        def one(tree: dict[str, Tensor], rows: Tensor) -> Tensor:
            return function(tree, rows).float()

        with torch.no_grad():
            return _mapped(_each(one), tree, (rows,), (own,))["value"]

    return call


def _pulled(function: Function, own: int, own_cotangent: int) -> Callable[..., dict[str, np.ndarray]]:
    """The callback that takes a cotangent of the output back to the tree."""

    def call(tree: dict[str, Any], rows: Any, cotangent: Any) -> dict[str, np.ndarray]:
        def one(tree: dict[str, Tensor], rows: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
            _, back = torch.func.vjp(lambda own: function(own, rows).float(), tree)
            return back(cotangent)[0]

        return _mapped(_each(one), tree, (rows, cotangent), (own, own_cotangent))

    return call


def _each(one: Callable[..., Any]) -> Callable[..., dict[str, np.ndarray]]:
    """``one(tree, *arrays)`` for each of the first axis of its arrays."""

    def every(tree: dict[str, Tensor], *arrays: Tensor) -> dict[str, np.ndarray]:
        if len(arrays[0]) == 1:
            said = one(tree, *(array[0] for array in arrays))
        else:
            said = torch.func.vmap(one, in_dims=(None, *(0 for _ in arrays)))(tree, *arrays)
        said = said if isinstance(said, dict) else {"value": said}
        made = {name: leaf.detach().numpy() for name, leaf in said.items()}
        return {name: leaf[None] for name, leaf in made.items()} if len(arrays[0]) == 1 else made

    return every


def asked(
    function: Callable[[dict[str, Tensor], Tensor, Tensor], dict[Any, np.ndarray]],
    result: dict[Any, jax.ShapeDtypeStruct],
    tree: dict[str, Array],
    rows: Array,
    cotangent: Array,
) -> dict[Any, Array]:
    """What ``function`` says of each row, as arrays of these shapes inside of a jax program; rows do not mix."""
    own = (rows.ndim, cotangent.ndim)

    def together(tree: dict[str, Tensor], *arrays: Tensor) -> dict[Any, np.ndarray]:
        """All rows of the first axis as one batch."""
        lead = arrays[0].shape[:2]
        said = function(tree, *(array.flatten(0, 1) for array in arrays))
        return {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in said.items()}

    def call(tree: dict[str, Any], *arrays: Any) -> dict[Any, np.ndarray]:
        return _mapped(together, tree, arrays, own)

    return dict(jax.pure_callback(call, result, tree, rows, cotangent, vmap_method="expand_dims"))


def _mapped(
    each: Callable[..., dict[Any, np.ndarray]], tree: dict[str, Any], arrays: tuple[Any, ...], own: tuple[int, ...]
) -> dict[Any, np.ndarray]:
    """Over all leading axes, which are the same for all, or 1 where something is shared; ``each`` takes one more."""
    axes = np.ndim(arrays[0]) - own[0]
    leads = [np.shape(a)[:axes] for a in (*tree.values(), *arrays)]
    whole = np.broadcast_shapes(*leads)
    shared = np.broadcast_shapes(*(np.shape(leaf)[:axes] for leaf in tree.values()))
    # The axes along which trees differ first; the others are mapped over by torch.
    order = [i for i in range(axes) if shared[i] > 1] + [i for i in range(axes) if shared[i] == 1]
    outer = int(np.prod([whole[i] for i in order if shared[i] > 1], dtype=int))
    leaves = {name: _folded(np.asarray(leaf), shared, order, outer) for name, leaf in tree.items()}
    rows = [_folded(np.asarray(array), whole, order, outer) for array in arrays]
    found = [
        each({name: tensor(leaf[i, 0]) for name, leaf in leaves.items()}, *(tensor(part[i]) for part in rows))
        for i in range(outer)
    ]
    back = np.argsort(order)
    result = {}
    for name in found[0]:
        stacked = np.stack([part[name] for part in found]) if outer > 1 else found[0][name][None]
        opened = stacked.reshape(*(whole[i] for i in order), *stacked.shape[2:])
        result[name] = opened.transpose(*back, *range(axes, opened.ndim))
    return result


def _folded(array: np.ndarray, lead: tuple[int, ...], order: list[int], outer: int) -> np.ndarray:
    """An array with these leading axes in this order, folded into two: the outer ones, and the rest."""
    axes = len(lead)
    full = np.broadcast_to(array, (*lead, *array.shape[axes:])).transpose(*order, *range(axes, array.ndim))
    return full.reshape(outer, -1, *array.shape[axes:])
