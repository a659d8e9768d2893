"""Differences of gradients at two points, as SPIDER, SVRG and CE-PSGM release them.

The bound on a record's difference is ``min(2 clip_norm, slope x distance of the points)``. It follows from the
broadcast alone, whatever the loss is, and the noise shrinks with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Number, Params, Sampling, Silo, Terms, Work
from tacit.geometry.proximal import tree_norm
from tacit.objectives import Problem, gradient_difference


class TwoPoints(NamedTuple):
    """What the server says before a difference: the point of this round and the one to compare it with."""

    new: Params
    old: Params


def distance(points: Any) -> Array:
    """How far apart the two points are."""
    return tree_norm(jax.tree.map(jnp.subtract, points.new, points.old))


def difference_clip(clip_norm: Number, slope: Number | None) -> Callable[[Work], Array]:
    """The bound on a record's difference, from the two points; without a slope it is ``2 clip_norm`` everywhere."""

    def clip(work: Work) -> Array:
        most = 2.0 * jnp.asarray(clip_norm, jnp.float32)
        return most if slope is None else jnp.minimum(most, slope * distance(work))

    return clip


def difference_silo(problem: Problem, terms: Terms, slope: Number | None, noise: Number, **release: Any) -> Silo:
    """The silo half of a round of differences, with ``noise`` times the noise multiplier of the terms."""
    query = gradient_difference(problem.objective, lambda work: work.new, lambda work: work.old)
    return Silo(query, terms.release(clip=difference_clip(terms.clip_norm, slope), noise=noise, **release))


def difference_terms(terms: Terms, sampling: Sampling | None, size: Number | None, capacity: Number | None) -> Terms:
    """The terms of differences: batches like those of gradients unless a sampling of their own is given."""
    return terms if sampling is None else terms.drawn(size, sampling, capacity)


def keep_at(number: Array, wanted: Any, now: Params, kept: Params) -> Params:
    """``now`` if this is the wanted number, else what was kept."""
    return jax.tree.map(lambda new, old: jnp.where(number == wanted, new, old), now, kept)


def check_phase(length: int, num_rounds: int, pick: int | None) -> None:
    """Raise unless a phase has a round and the picked iterate exists."""
    if length < 1:
        raise ValueError(f"Expected phases of at least one round, got {length}; one is proximal SGD.")
    if pick is not None and not 0 <= pick <= num_rounds:
        raise ValueError(f"Expected 0 <= pick={pick} <= num_rounds={num_rounds}.")
