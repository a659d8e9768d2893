"""An objective: a model, a loss for each record, and the taps that make per-record clipping cheap.

A *tap* is called once for each dense layer with the layer's name, its input ``a`` and its output ``z = a w + b``,
and returns the output that the model goes on with. The identity tap changes nothing; the silo's tap adds a zero,
so that one backward pass over a batch yields the cotangent ``c`` of every record's output, and the layer's
per-record gradient is the outer product of ``a`` and ``c``: it need never be formed.

A convolution is a dense layer too, applied at every position of an image: ``a`` and ``z`` then have an axis of
positions after the axis of records, and the per-record gradient is the sum of the outer products over positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Number, Params, Record, ServerRule
from tacit.errors import TacitError
from tacit.geometry import Regulariser, zero

_MEASURED_FLOATS = 2**22  # of features at once: layers of a network may hold many times as many
Tap = Callable[[str, Array, Array], Array]  # (layer, inputs, outputs) -> the outputs that the model goes on with


def untapped(name: str, inputs: Array, outputs: Array) -> Array:
    """The identity tap."""
    return outputs


Metric = Callable[[Array, Array], Array]  # (outputs, targets) -> one number per record


@dataclass(frozen=True)
class Linear:
    """The shape of a model whose outputs are linear in its parameters: ``outputs = x w + b``."""

    features: int
    outputs: int
    bias: bool

    def squared_norm(self, x: Array) -> Array:
        """The squared norm of each record's features, of which the bias is one more, equal to one."""
        return jnp.sum(x**2, axis=1) + float(self.bias)


@dataclass(frozen=True)
class Architecture:
    """A model by name with plain arguments: `tacit.objectives.models.built` makes it again."""

    name: str
    arguments: Mapping[str, Any]


class Outside(Protocol):
    """A model that another library computes, for those who call it without jax: a real silo's door."""

    def dense(self, shape: tuple[int, ...], dtype: Any) -> Mapping[str, tuple[int, int]]:
        """The dense layers that `pulled` can leave in factors, with their inputs and outputs, for such features."""
        ...

    def pulled(self, params: Any, x: np.ndarray, tapped: Sequence[str]) -> tuple[np.ndarray, Pull]:
        """The outputs of some records, and the map from their cotangents to each record's gradient."""
        ...

    def factors(self, params: Params, x: Array, cotangents: Array) -> Pulled:
        """What `pulled` says for some cotangents, inside of a jax program, with every layer of `dense` in factors."""
        ...


class Pulled(NamedTuple):
    """Gradients of records by layer: formed, or the inputs and the cotangents of the outputs of a dense layer."""

    formed: dict[str, Any]
    inputs: dict[str, Any]
    cotangents: dict[str, Any]


Pull = Callable[[np.ndarray], Pulled]


@dataclass(frozen=True)
class Model:
    """``apply(params, x, tap)`` maps a batch of features to outputs, record by record.

    ``layers`` names the tapped dense layers. They must hold every parameter (``params[name]`` is
    ``{"w": ..., "b": ...}``, the bias optional) for the fast path to be taken; an empty tuple means that the model
    is not tapped. Where a layer multiplies by other matrices than its parameters, such as a kernel repeated at
    several offsets, ``unfold[name]`` maps the parameters to the ``{"w": ..., "b": ...}`` that it multiplies by.
    ``linear`` is the shape of a linear model, whose constants are known. ``architecture`` says how to make the model
    again; a model of one's own has none. ``outside`` is a model that another library computes, see `Outside`.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Array, Tap], Array]
    layers: tuple[str, ...] = ()
    unfold: Mapping[str, Callable[[Any], dict[str, Array]]] = field(default_factory=dict)
    linear: Linear | None = None
    architecture: Architecture | None = None
    outside: Outside | None = None


@dataclass(frozen=True)
class Smoothing:
    """A smooth stand-in of a loss that is not smooth, for linear models with one output.

    ``value(outputs, targets, squared_norms)`` also takes the squared norm of each record's features: the envelope
    ``min_v f(v) + smoothness / 2 ||v - w||^2``, or a convolution, is taken over the parameters, not over the output.
    """

    smoothness: float
    value: Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class Loss:
    """``value(outputs, targets)`` is one loss per record; ``metrics`` are what people read.

    ``slope`` bounds the norm of the gradient with respect to the outputs, either a number or a function of bounds on
    the magnitudes of output and target; ``curvature`` bounds the largest eigenvalue of the Hessian. ``None``: unknown.
    ``name`` says how outputs are read as predictions; a loss of one's own has none. ``joint`` are metrics that compare
    records with each other: one number of all of them. ``constant`` is the output for all records that is best for
    some targets, where it is known.
    """

    value: Metric
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    slope: float | Callable[[float, float], float] | None = None
    curvature: float | None = None
    smoothing: Smoothing | None = None
    name: str | None = None
    joint: Mapping[str, Metric] = field(default_factory=dict)
    constant: Callable[[Array], Array] | None = None


@dataclass(frozen=True)
class Objective:
    """The average over records of ``loss(params, record)``, the smoothed loss if it has a smoothing."""

    model: Model
    cost: Loss

    def __post_init__(self) -> None:
        for value, kind, call in ((self.model, Model, "linear(features, 1)"), (self.cost, Loss, "logistic()")):
            if not isinstance(value, kind):
                got = f"the function {value.__name__} itself" if callable(value) else repr(value)
                raise TacitError(
                    f"Expected a {kind.__name__.lower()} such as {call}, got {got}; names are for studies."
                )
        shape = self.model.linear
        if self.cost.smoothing is not None and (shape is None or shape.outputs != 1):
            got = "another model" if shape is None else f"{shape.outputs} outputs"
            raise TacitError(
                f"Expected a linear model with one output for a smoothed loss, got {got}; its envelope is not known "
                "in closed form there. Use smoothness=None, or linear(features, 1)."
            )

    @property
    def init(self) -> Callable[[Array], Params]:
        """Initial parameters from a key."""
        return self.model.init

    def losses(self, params: Params, records: Record, tap: Tap = untapped) -> Array:
        """One loss for each record of a batch."""
        outputs = self.model.apply(params, records["x"], tap)
        if self.cost.smoothing is None or self.model.linear is None:
            return self.cost.value(outputs, records["y"])
        return self.cost.smoothing.value(outputs, records["y"], self.model.linear.squared_norm(records["x"]))

    def loss(self, params: Params, record: Record) -> Array:
        """The loss of one record."""
        return self.losses(params, jax.tree.map(lambda leaf: leaf[None], record))[0]

    def measure(self, params: Params, records: Record) -> dict[str, Array]:
        """The loss itself, not its smoothing, and every metric, averaged over records; many are taken in parts.

        Joint metrics are of all records at once.
        """
        measured = {"loss": self.cost.value, **self.cost.metrics}

        def of(x: Array, y: Array) -> dict[str, Array]:
            outputs = self.model.apply(params, x, untapped)
            return {name: metric(outputs, y) for name, metric in measured.items()}

        x, y = records["x"], records["y"]
        parts = -(-x.size // _MEASURED_FLOATS)
        together = {}
        if self.cost.joint:
            outputs = self.model.apply(params, x, untapped)
            together = {name: metric(outputs, y) for name, metric in self.cost.joint.items()}
        if parts <= 1:
            return {name: values.mean() for name, values in of(x, y).items()} | together
        size = -(-x.shape[0] // parts)
        x, y = (jnp.pad(leaf, [(0, size * parts - len(leaf))] + [(0, 0)] * (leaf.ndim - 1)) for leaf in (x, y))
        outcomes = jax.lax.map(lambda some: of(*some), (x.reshape(parts, size, *x.shape[1:]), y.reshape(parts, size)))
        means = {name: values.reshape(-1)[: len(records["y"])].mean() for name, values in outcomes.items()}
        return means | together

    def measure_own(self, params: Params, records: Record, counts: Array) -> dict[str, Array]:
        """The same averages where every silo has a model of its own; joint metrics are left out.

        Parameters and records have a leading axis of silos, and silo i has ``counts[i]`` records before its padding.
        """
        measured = {"loss": self.cost.value, **self.cost.metrics}

        def of(own: tuple[Params, Array, Array, Array]) -> dict[str, Array]:
            params, x, y, count = own
            outputs = self.model.apply(params, x, untapped)
            there = jnp.arange(len(y)) < count
            return {name: jnp.sum(jnp.where(there, metric(outputs, y), 0.0)) for name, metric in measured.items()}

        sums = jax.lax.map(of, (params, records["x"], records["y"], counts))
        return {name: values.sum() / counts.sum() for name, values in sums.items()}


@dataclass(frozen=True)
class Problem:
    """Minimise the mean of the objective's losses plus a regulariser that is known by its proximal operator.

    The constants are public bounds where they are known: ``lipschitz`` (L) and ``smoothness`` (beta) of each record's
    loss, ``strong_convexity`` (mu) of the average, ``radius`` of a ball that holds the initial point and an optimum.
    The objective of a saddle problem is a `Saddle`, which descent-ascent alone can read. ``turn`` is what a server
    optimiser makes of the direction of a step, given the point: `served` sets it.
    """

    objective: Objective
    regulariser: Regulariser = field(default_factory=zero)
    lipschitz: float | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None
    radius: float | None = None
    turn: Callable[[Params, Params], Params] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.regulariser, Regulariser):
            raise TacitError(
                f"Expected a regulariser such as tacit.geometry.l1(0.01), got {self.regulariser!r}; names are for "
                "studies."
            )
        for name in ("lipschitz", "smoothness", "strong_convexity", "radius"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not value >= 0:
                raise TacitError(f"Expected {name}={value} >= 0, or None where it is not known.")

    def descend(self, params: Params, direction: Params, step: float | Array) -> Params:
        """The proximal step ``prox_{step h}(params - step x direction)``."""
        direction = direction if self.turn is None else self.turn(params, direction)
        return self.regulariser.prox(jax.tree.map(lambda w, g: w - step * g, params, direction), step)

    def served(self, server: ServerRule | Number, build: Callable[[Problem], Algorithm]) -> Algorithm:
        """What ``build`` makes for this problem, with another server optimiser; see `tacit.objectives.server`."""
        from tacit.objectives.server import served

        return served(self, server, build)
