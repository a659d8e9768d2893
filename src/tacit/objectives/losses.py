"""Losses, one number per record, with the metrics that people read beside them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from tacit.objectives.objective import Loss


def logistic() -> Loss:
    """Binary cross-entropy of one logit; targets are 0 or 1.

    >>> round(float(logistic().value(jnp.zeros((1, 1)), jnp.ones(1))[0]), 4)
    0.6931
    """

    def value(outputs: Array, targets: Array) -> Array:
        logit = outputs[:, 0]
        return jnp.logaddexp(0.0, logit) - targets * logit

    def error(outputs: Array, targets: Array) -> Array:
        return ((outputs[:, 0] > 0) != (targets > 0)).astype(jnp.float32)

    return Loss(value, {"error": error})


def softmax() -> Loss:
    """Cross-entropy of the softmax of the outputs; targets are classes 0, 1, ..."""

    def value(outputs: Array, targets: Array) -> Array:
        chosen = jnp.take_along_axis(outputs, targets[:, None].astype(jnp.int32), axis=1)[:, 0]
        return jax.nn.logsumexp(outputs, axis=1) - chosen

    def error(outputs: Array, targets: Array) -> Array:
        return (outputs.argmax(axis=1) != targets).astype(jnp.float32)

    return Loss(value, {"error": error})


def squared() -> Loss:
    """Half the squared residual; the metric is the mean squared error."""

    def value(outputs: Array, targets: Array) -> Array:
        return 0.5 * (outputs[:, 0] - targets) ** 2

    def squared_error(outputs: Array, targets: Array) -> Array:
        return (outputs[:, 0] - targets) ** 2

    return Loss(value, {"mse": squared_error})
