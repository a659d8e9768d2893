"""Differences of gradients at two points, as SPIDER, SVRG and CE-PSGM release them.

    statistic    grad f(new; record) - grad f(old; record)
    clip         D = min(2 C, slope ||new - old||),    C the clip of a gradient
    noise        noise multiplier x 2 D / batch size, times a ratio of the algorithm's own

A difference of two clipped gradients is never longer than 2 C, and for a smooth loss no longer than the smoothness
times the distance. Here the silo clips, so that nothing is assumed of the loss: the bound follows from the two points
alone, which the server says or the silo has released, and the noise shrinks with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Clip, Number, Params, Round, Silo, Terms, Work
from tacit.geometry import tree_norm
from tacit.objectives import Problem, gradient_difference


class TwoPoints(NamedTuple):
    """What the server says before a difference: the point of this round and the one to compare it with."""

    new: Params
    old: Params


def distance(points: Any) -> jax.Array:
    """How far apart the two points are."""
    return tree_norm(jax.tree.map(jnp.subtract, points.new, points.old))


def difference_clip(clip_norm: Number, slope: Number | None) -> Clip:
    """The bound on a record's difference, from the two points; without a slope it is ``2 clip_norm`` everywhere."""

    def clip(work: Work) -> jax.Array:
        most = 2.0 * jnp.asarray(clip_norm, jnp.float32)
        return most if slope is None else jnp.minimum(most, slope * distance(work))

    return clip


def difference_silo(problem: Problem, terms: Terms, slope: Number | None, ratio: Number, **release: Any) -> Silo:
    """The silo half of a round of differences, with ``ratio`` times the noise multiplier of the terms."""
    query = gradient_difference(problem.objective, lambda work: work.new, lambda work: work.old)
    return Silo(query, terms.release(clip=difference_clip(terms.clip_norm, slope), noise=ratio, **release))


def info_of(points: Any) -> Any:
    """What people look at: the norm of the estimate of the gradient, and how far apart the next two points are."""
    return lambda state: {"estimate_norm": tree_norm(state.estimate), "step_norm": distance(points(state))}


def scheduled(rounds: Mapping[str, Round], schedule: Sequence[str]) -> dict[str, Round]:
    """The kinds of round that a schedule has: short ones may have none of some."""
    return {kind: rounds[kind] for kind in sorted(set(schedule))}


def check_phase(length: int) -> None:
    """Raise unless a phase has a round."""
    if length < 1:
        raise ValueError(f"Expected phases of at least one round, got {length}; one is proximal SGD.")
