"""Neighbouring data sets and broadcasts that make a silo say as much as it can about one record.

The attacker's problem has one parameter w and the loss ``y (w x)^2 / 2``. Its gradient at w is ``y w x^2`` and a
difference of gradients is ``y x^2 (w - w')``, so a loud record with ``y > 0`` and one with ``y < 0`` have opposite
clipped statistics for every combination of gradients, at any points that the attacker likes. The algorithm is the one
that ships; only the problem is the attacker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Broadcast, Params, Round, Sampling
from tacit.objectives import Loss, Objective, Problem, linear
from tacit.silo import check_records

Canary = Literal["opposite", "overflow", "faint", "silent"]
CANARIES: tuple[Canary, ...] = ("opposite", "overflow", "faint", "silent")

LOUD = 1e4
POINT = 1e3
# What the hostile server pretends the other silos said; no round lands on a point where gradients vanish.
_PUSH = -777.7
_NEARLY_SURE = 3.0


def attackers_problem() -> Problem:
    """One parameter, and records whose clipped gradients are whatever the attacker wants."""

    def value(outputs: Array, targets: Array) -> Array:
        return 0.5 * targets * outputs[:, 0] ** 2

    objective = Objective(linear(1, 1, bias=False), Loss(value))
    return Problem(objective, lipschitz=1.0, smoothness=1.0, radius=1e6)


def start_point() -> Params:
    """Initial parameters far from zero, where gradients would vanish."""
    return {"linear": {"w": jnp.full((1, 1), POINT, jnp.float32)}}


def neighbours(
    canary: Canary, records: int, target: int, samplings: set[Sampling], attribute: bool = False
) -> dict[str, np.ndarray]:
    """Two silos that differ in the record ``target``, or with ``attribute`` in its sensitive attribute alone.

    A leading axis tells the worlds apart. In a batch of fixed size the worst other records are all opposite to the
    target, so that a batch without it is a world of its own; in a batch of random size (Poisson, allocation) they are
    silent. ``overflow`` is a record whose gradient is not finite; ``faint`` hides a loud gradient behind features whose
    squares underflow. ``silent`` is a record without a gradient beside a loud one: opposite records have the same norms
    and squares, and what an algorithm counts or measures by these does not tell them apart.
    """
    x = np.ones((2, records, 1))
    y = np.full((2, records), others_of(samplings))
    y[:, target] = LOUD, -LOUD
    if canary == "overflow":
        y[0, target] = 3e38
    if canary == "silent":
        y[0, target] = 0.0
    if canary == "faint":
        x[:, target] = 1e-19
        y[:, target] = 5e34, -5e34
    s = np.zeros((2, records), np.int32)
    if attribute:
        y = np.zeros((2, records))
        s[0, target] = 1
    worlds = [check_records({"x": x[i], "y": y[i], "s": s[i]}, f"world {i}") for i in range(2)]
    return {name: np.stack([world[name] for world in worlds]) for name in worlds[0]}


def others_of(samplings: set[Sampling]) -> float:
    """The target of every other record: see `neighbours`."""
    return 0.0 if samplings & {"poisson", "allocation"} else -LOUD


def message_shapes(algorithm: Algorithm, params: Params, worlds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The form of a message in each kind of round of the schedule; ``worlds`` are records as `neighbours` has them."""
    record = {name: jax.ShapeDtypeStruct(column.shape[2:], column.dtype) for name, column in worlds.items()}
    state, memory = algorithm.init(params), algorithm.memory(params)
    shapes: dict[str, Any] = {}
    for kind in sorted(set(algorithm.schedule)):
        part = algorithm.rounds[kind]

        def say(state: Any, memory: Any, record: Any, part: Round = part) -> Any:
            work = part.silo.start(part.server.ask(state), memory)
            return part.silo.report(part.silo.absorb(work, part.silo.query(work, record)), memory)[0]

        shapes[kind] = jax.eval_shape(say, state, memory, record)
    return shapes


def hostile_broadcasts(
    algorithm: Algorithm, params: Params, shapes: Mapping[str, Any], turning: bool
) -> list[Broadcast]:
    """What the hostile server says in each round of the schedule.

    It plays the algorithm's own server half, so that every broadcast has the right form, but pretends that the
    silos said something loud. ``turning`` negates what it says in every other round, and with it every gradient of
    the attacker's problem: noise that is used twice then cancels.
    """
    state, said = algorithm.init(params), []
    for number, kind in enumerate(algorithm.schedule):
        server = algorithm.rounds[kind].server
        broadcast = server.ask(state)
        if protects_attribute(algorithm):
            broadcast = _telling(broadcast)
        said.append(jax.tree.map(_turned, broadcast) if turning and number % 2 else broadcast)
        # Never the same twice: where a silo names the next point, two alike would leave no difference to tell.
        loud = _PUSH * (1 + number / 64)
        heard = jax.tree.map(lambda leaf, loud=loud: jnp.full(leaf.shape, loud, leaf.dtype), shapes[kind])
        state = server.tell(state, heard)
    return said


def protects_attribute(algorithm: Algorithm) -> bool:
    """Whether an algorithm promises no more than to protect the sensitive attribute."""
    return any(kind.silo.release.protects == "sensitive-attribute" for kind in algorithm.rounds.values())


def _telling(broadcast: Broadcast) -> Broadcast:
    """A point at which the sensitive attribute tells most: duals that oppose groups, a model that is nearly sure."""
    groups, classes = broadcast.duals.shape[-2:]
    signs = (-1.0) ** (jnp.arange(groups)[:, None] + jnp.arange(classes))
    params = jax.tree.map(lambda leaf: jnp.full_like(leaf, _NEARLY_SURE), broadcast.params)
    # Nothing keeps a hostile server from beginning with duals that are not zero.
    duals = jnp.where(broadcast.duals == 0, 1.0, broadcast.duals)
    return broadcast._replace(params=params, duals=signs * duals)


def _turned(leaf: Array) -> Array:
    leaf = jnp.asarray(leaf)
    return -leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
