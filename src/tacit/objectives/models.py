"""Models of dense layers, tapped, and the names by which models are made again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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


MODELS = ("linear", "mlp", "cnn")
"""The models that ship with Tacit, which is all that a silo's daemon builds."""
DIGEST = "source_digest"
"""The argument of an architecture that pins the source of an installed model; it is not one of the model's own."""

UNREGISTERED = (
    "Install the package that registers it (entry point tacit.models), or import the module that calls "
    "tacit.register_model."
)
"""What to do about a model that is not known here."""

_OWN_MODELS: dict[str, Callable[..., Model]] = {}


def register_model(name: str, make: Callable[..., Model]) -> None:
    """Let studies name a model of your own: ``make(features, outputs, **options)`` returns it.

    ``features`` is the shape of a record's features, ``outputs`` a number, ``options`` the study's table
    ``objective.model_options``. Such a study is simulated: a real silo makes a model of somebody's own only if its
    owner has installed a package that registers it and lists it in the policy (`tacit.objectives.installed`).
    """
    if name in MODELS or not name:
        raise TacitError(f"Expected a name for a model of your own, got {name!r}, which Tacit has; choose another.")
    _OWN_MODELS[name] = make


def known_models() -> tuple[str, ...]:
    """The names that a study may give its model."""
    from tacit.objectives.installed import installed_names

    return (*MODELS, *dict.fromkeys((*_OWN_MODELS, *installed_names())))


def _options(make: Callable[..., Model]) -> tuple[str, ...] | None:
    """The names of a model's options, after features and outputs; none where it takes any."""
    try:
        found = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in found):
        return None
    return tuple(one.name for one in found[2:])


def _own_model(name: str, given: dict[str, Any]) -> Model:
    """A registered model, which knows how it was made, so that its bundle can be loaded again."""
    features, outputs, digest = tuple(given.pop("features")), given.pop("outputs"), given.pop(DIGEST, None)
    if digest is not None or name not in _OWN_MODELS:
        from tacit.objectives.installed import loaded

        make = loaded(name, digest)
    else:
        make = _OWN_MODELS[name]
    options = _options(make)
    for key in given:
        if options is not None and key not in options:
            raise TacitError(f"objective.model_options: {unknown(f'option of {name}', key, options)}")
    model = make(features, outputs, **given)
    if not isinstance(model, Model):
        raise TacitError(f"Expected {name!r} to make a tacit.objectives.Model, got {type(model).__name__}; return one.")
    pinned = {} if digest is None else {DIGEST: digest}
    own = Architecture(name, {"features": list(features), "outputs": outputs, **given, **pinned})
    return replace(model, architecture=own)


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
        if name == "hazards":
            from tacit.objectives.survival import hazards

            return hazards(**given)
        if name in known_models():
            return _own_model(name, given)
    except (TypeError, KeyError) as error:
        raise TacitError(f"Expected arguments of {name!r}, got {dict(architecture.arguments)} ({error}).") from None
    raise TacitError(unknown("model", name, known_models()) + f" {UNREGISTERED}")
