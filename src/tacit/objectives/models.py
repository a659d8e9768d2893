"""Models of dense layers, tapped, and the names by which models are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params
from tacit.errors import TacitError, unknown
from tacit.objectives.objective import Architecture, Linear, Model, Tap

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "softplus": jax.nn.softplus, "tanh": jnp.tanh}
"""What may lie between dense layers, by name."""


def dense(params: Params, name: str, inputs: Array, tap: Tap) -> Array:
    """A dense layer with an optional bias, tapped."""
    layer = params[name]
    outputs = inputs @ layer["w"]
    return tap(name, inputs, outputs + layer["b"] if "b" in layer else outputs)


def glorot(key: Array, fan_in: int, fan_out: int, *, area: int = 1) -> dict[str, Array]:
    """Glorot-uniform weights and a zero bias of one dense layer, or of a kernel that covers ``area`` pixels."""
    limit = (6.0 / (area * (fan_in + fan_out))) ** 0.5
    weights = jax.random.uniform(key, (area * fan_in, fan_out), minval=-limit, maxval=limit)
    return {"w": weights, "b": jnp.zeros(fan_out)}


def linear(features: int, outputs: int, *, bias: bool = True) -> Model:
    """One dense layer, started at zero: linear, logistic and softmax regression.

    >>> model = linear(3, 1)
    >>> model.init(jax.random.key(0))["linear"]["w"].shape
    (3, 1)
    """

    def init(key: Array) -> Params:
        layer = {"w": jnp.zeros((features, outputs))}
        return {"linear": {**layer, "b": jnp.zeros(outputs)} if bias else layer}

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        return dense(params, "linear", x, tap)

    made = Architecture("linear", {"features": features, "outputs": outputs, "bias": bias})
    return Model(init, apply, ("linear",), linear=Linear(features, outputs, bias), architecture=made)


def mlp(sizes: Sequence[int], *, activation: Callable[[Array], Array] = jax.nn.relu) -> Model:
    """A multi-layer perceptron, ``sizes`` from features to outputs; Glorot-uniform weights, zero biases.

    >>> [layer for layer in mlp((50, 64, 2)).layers]
    ['layer_1', 'layer_2']
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"Expected sizes={tuple(sizes)} to hold at least two positive widths (features, ..., outputs)."
        )
    names = tuple(f"layer_{i}" for i in range(1, len(sizes)))

    def init(key: Array) -> Params:
        params = {}
        for name, fan_in, fan_out in zip(names, sizes[:-1], sizes[1:], strict=True):
            key, key_layer = jax.random.split(key)
            params[name] = glorot(key_layer, fan_in, fan_out)
        return params

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        for name in names[:-1]:
            x = activation(dense(params, name, x, tap))
        return dense(params, names[-1], x, tap)

    known = [name for name, function in ACTIVATIONS.items() if function is activation]
    made = Architecture("mlp", {"sizes": list(sizes), "activation": known[0]}) if known else None
    return Model(init, apply, names, architecture=made)


def built(architecture: Architecture) -> Model:
    """The model that an architecture names.

    >>> built(Architecture("mlp", {"sizes": [3, 4, 1], "activation": "tanh"})).layers
    ('layer_1', 'layer_2')
    """
    name, given = architecture.name, dict(architecture.arguments)
    try:
        if name == "mlp":
            return mlp(given.pop("sizes"), activation=ACTIVATIONS[given.pop("activation", "relu")], **given)
        if name == "cnn":
            from tacit.objectives import cnn

            return cnn(tuple(given.pop("image")), **given)
        if name == "linear":
            return linear(**given)
    except (TypeError, KeyError) as error:
        raise TacitError(f"Expected arguments of {name!r}, got {dict(architecture.arguments)} ({error}).") from None
    raise TacitError(unknown("model", name, ("linear", "mlp", "cnn")))
