"""An objective: a model, a loss for each record, and the taps that make per-record clipping cheap.

A *tap* is called once for each dense layer with the layer's name, its input ``a`` and its output ``z = a w + b``,
and returns the output that the model goes on with. The identity tap changes nothing; the silo's tap adds a zero,
so that one backward pass over a batch yields the cotangent ``c`` of every record's output, and the layer's
per-record gradient is the outer product of ``a`` and ``c``: it need never be formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
from jax import Array

from tacit.algorithm import Params, Record

Tap = Callable[[str, Array, Array], Array]  # (layer, inputs, outputs) -> the outputs that the model goes on with


def untapped(name: str, inputs: Array, outputs: Array) -> Array:
    """The identity tap."""
    return outputs


Metric = Callable[[Array, Array], Array]  # (outputs, targets) -> one number per record


@dataclass(frozen=True)
class Model:
    """``apply(params, x, tap)`` maps a batch of features to outputs, record by record.

    ``layers`` names the tapped dense layers. They must hold every parameter (``params[name]`` is
    ``{"w": ..., "b": ...}``, the bias optional) for the fast path to be taken; an empty tuple means that the model
    is not tapped.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Array, Tap], Array]
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loss:
    """``value(outputs, targets)`` is one loss per record; ``metrics`` are what people read."""

    value: Metric
    metrics: Mapping[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """The average over records of ``loss(params, record)``."""

    model: Model
    cost: Loss

    @property
    def init(self) -> Callable[[Array], Params]:
        """Initial parameters from a key."""
        return self.model.init

    def losses(self, params: Params, records: Record, tap: Tap = untapped) -> Array:
        """One loss for each record of a batch."""
        return self.cost.value(self.model.apply(params, records["x"], tap), records["y"])

    def loss(self, params: Params, record: Record) -> Array:
        """The loss of one record."""
        return self.losses(params, jax.tree.map(lambda leaf: leaf[None], record))[0]

    def measure(self, params: Params, records: Record) -> dict[str, Array]:
        """The loss and every metric, averaged over records."""
        outputs = self.model.apply(params, records["x"], untapped)
        measured = {"loss": self.cost.value, **self.cost.metrics}
        return {name: metric(outputs, records["y"]).mean() for name, metric in measured.items()}
