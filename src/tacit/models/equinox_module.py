"""An Equinox module as a model; it is jax, and runs as models of Tacit's own do."""

from __future__ import annotations

import equinox
import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.objectives.objective import Loss, Model, Objective, Tap


def from_equinox(module: equinox.Module, loss: Loss) -> Objective:
    """The objective of an Equinox module and a loss: what `tacit.Problem` takes.

    The module maps the features of one record to its outputs, as Equinox modules do. Training starts at its weights,
    and moves every array of floats in it.
    """
    return Objective(equinox_model(module), loss)


def equinox_model(module: equinox.Module) -> Model:
    """The model of an Equinox module; its tree of parameters is the module without all that is no array of floats."""
    for path, layer in jax.tree_util.tree_leaves_with_path(module, is_leaf=_is_refused):
        if _is_refused(layer):
            name = jax.tree_util.keystr(path)
            raise TacitError(
                f"layer {name!r} ({type(layer).__name__}) mixes records, and no clip bounds one record's part of that; "
                "use equinox.nn.LayerNorm or equinox.nn.GroupNorm."
                if not isinstance(layer, equinox.nn.Dropout)
                else f"layer {name!r} (Dropout) draws random numbers, and a record's gradient must follow from the "
                "record alone; leave it out, or give equinox.nn.inference_mode(module)."
            )
    params, static = equinox.partition(module, equinox.is_inexact_array)

    def init(key: Array) -> Params:
        return jax.tree.map(jnp.asarray, params)

    def apply(found: Params, x: Array, tap: Tap) -> Array:
        outputs = jax.vmap(equinox.combine(found, static))(x)
        return outputs[:, None] if outputs.ndim == 1 else outputs

    return Model(init, apply)


def _is_refused(layer: object) -> bool:
    if isinstance(layer, equinox.nn.Dropout):
        return not layer.inference
    return isinstance(layer, equinox.nn.BatchNorm | equinox.nn.SpectralNorm | equinox.nn.StateIndex)
