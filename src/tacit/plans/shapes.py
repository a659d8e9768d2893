"""The shapes of everything that is said in a study, found without computing anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm
from tacit.objectives import Problem


@dataclass(frozen=True)
class Shapes:
    """Shapes of what is said in each kind of round, the dimension of what is released, and the model's shape."""

    dimensions: dict[str, int]
    broadcasts: dict[str, Any]
    messages: dict[str, Any]
    params: Any


def record_shape(features: tuple[int, ...], task: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of one record with these features and this kind of target."""
    target = jnp.float32 if task == "regression" else jnp.int32
    return {"x": jax.ShapeDtypeStruct(features, jnp.float32), "y": jax.ShapeDtypeStruct((), target)}


def shapes_of(algorithm: Algorithm, problem: Problem, record: Any) -> Shapes:
    """Shapes of what an algorithm says about a problem with records of this shape."""
    params = jax.eval_shape(problem.objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    state, memory = jax.eval_shape(algorithm.init, params), jax.eval_shape(algorithm.memory, params)
    broadcasts, messages, dimensions = {}, {}, {}
    for kind, part in algorithm.rounds.items():
        broadcasts[kind] = jax.eval_shape(part.server.ask, state)
        work = jax.eval_shape(part.silo.start, broadcasts[kind], memory)
        statistic = jax.eval_shape(part.silo.query, work, record)
        dimensions[kind] = coordinates(statistic)
        work = jax.eval_shape(part.silo.absorb, work, statistic)
        messages[kind] = jax.eval_shape(part.silo.report, work, memory)[0]
    return Shapes(dimensions, broadcasts, messages, params)


def coordinates(tree: Any) -> int:
    """How many numbers a tree of shapes has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def pass_positions(algorithm: Algorithm) -> tuple[int, ...]:
    """How many records of its pass a silo has used up before each round."""
    positions, used = [], 0
    for kind in algorithm.schedule:
        positions.append(used)
        silo = algorithm.rounds[kind].silo
        used += silo.stride * silo.local_steps
    return tuple(positions)
