"""A Flax module as a model, of ``flax.linen`` or ``flax.nnx``; it is jax, and runs as models of Tacit's own do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax import Array

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.objectives.objective import Loss, Model, Objective, Tap


def from_flax(module: linen.Module | nnx.Module, loss: Loss, *, features: Sequence[int] | None = None) -> Objective:
    """The objective of a Flax module and a loss: what `tacit.Problem` takes.

    A ``linen`` module needs ``features``, the shape of one record's, and draws its weights anew for every seed. An
    ``nnx`` module has weights and starts at them. All parameters are trained.
    """
    return Objective(flax_model(module, features=features), loss)


def flax_model(module: linen.Module | nnx.Module, *, features: Sequence[int] | None = None) -> Model:
    """The model of a Flax module; it maps a batch of features to outputs, one row for each record."""
    if isinstance(module, linen.Module):
        if features is None:
            raise TacitError("Expected features, the shape of one record's, for a linen module: features=(20,).")
        return _linen(module, tuple(features))
    if isinstance(module, nnx.Module):
        return _nnx(module)
    raise TacitError(f"Expected a module of flax.linen or flax.nnx, got {type(module).__name__}; give the module.")


def _linen(module: linen.Module, features: tuple[int, ...]) -> Model:
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *features)))
    for kind, layers in shapes.items():
        if kind != "params":
            raise TacitError(_keeps_state(", ".join(map(repr, layers)), kind))

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros((1, *features)))["params"]

    def apply(params: Params, x: Array, tap: Tap) -> Any:
        return module.apply({"params": params}, x)

    return Model(init, apply)


def _nnx(module: nnx.Module) -> Model:
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    for path, leaf in nnx.to_flat_state(rest):
        raise TacitError(_keeps_state(repr(".".join(map(str, path[:-1]))), type(leaf).__name__))
    initial = nnx.to_pure_dict(params)

    def init(key: Array) -> Params:
        return jax.tree.map(jnp.asarray, initial)

    def apply(found: Params, x: Array, tap: Tap) -> Any:
        state = nnx.State(jax.tree.map(lambda leaf: leaf, params))
        nnx.replace_by_pure_dict(state, found)
        return nnx.merge(graph, state, rest)(x)

    return Model(init, apply)


def _keeps_state(layers: str, kind: str) -> str:
    return (
        f"layer {layers} keeps {kind} beside its parameters: it mixes records or draws random numbers, and no clip "
        "bounds one record's part of that. Use LayerNorm or GroupNorm, and no dropout."
    )
