"""Structured queries: combinations of gradients, which a silo can clip without forming them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params, Record, Statistic, Work
from tacit.objectives.objective import Objective


@dataclass(frozen=True)
class GradientQuery:
    """The statistic ``sum_i weights(work)[i] * grad f(points(work)[i]; record)``.

    All of minibatch SGD (one point), SVRG and SPIDER (a difference of two), STORM and mu^2 (weighted differences)
    are of this form. Calling it evaluates one record plainly; the silo recognises the structure and takes the
    tapped path where the objective allows.
    """

    objective: Objective
    points: Callable[[Work], tuple[Params, ...]]
    weights: Callable[[Work], tuple[float | Array, ...]]

    def __call__(self, work: Work, record: Record) -> Statistic:
        """Evaluate the statistic of one record."""
        terms = differences(gradients(self.objective, self.points(work), record), self.weights(work))
        return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *terms)


def gradients(objective: Objective, points: Sequence[Params], record: Record) -> list[Statistic]:
    """The gradient of one record at each of some points, in one pass for all."""
    if len(points) == 1:
        return [jax.grad(objective.loss)(points[0], record)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
    stacked = jax.vmap(jax.grad(objective.loss), in_axes=(0, None))(together, record)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(points))]


def differences(statistics: Sequence[Statistic], weights: Sequence[float | Array]) -> list[Statistic]:
    """Terms that add up to ``sum_i weights[i] * statistics[i]``, in differences of neighbours.

    With ``s_i = weights[0] + ... + weights[i]`` the terms are ``s_i (g_i - g_{i+1})`` and ``s_P g_P``. Where points are
    close none is much larger than the sum, so that rounding stays small beside it.

    >>> differences([5.0, 3.0], [1.0, -1.0]), differences([5.0, 3.0], [2.0, -1.0])
    ([2.0], [4.0, 3.0])
    """
    if len(statistics) != len(weights) or not weights:
        raise ValueError(f"Expected as many weights as points, got {len(weights)} and {len(statistics)}.")
    terms: list[Statistic] = []
    running: float | Array = 0.0
    for i, weight in enumerate(weights[:-1]):
        running = running + weight
        both = statistics[i], statistics[i + 1]
        terms.append(jax.tree.map(lambda g, after, s=running: s * (g - after), *both))
    running = running + weights[-1]
    if not is_zero(running) or not terms:
        terms.append(jax.tree.map(lambda g: running * g, statistics[-1]))
    return terms


def is_zero(weight: float | Array) -> bool:
    """Whether a weight is known to be zero before anything runs."""
    return isinstance(weight, float | int) and weight == 0


def gradient_at(objective: Objective, point: Callable[[Work], Params] = lambda work: work) -> GradientQuery:
    """The gradient at one point; by default the broadcast is the point."""
    return GradientQuery(objective, lambda work: (point(work),), lambda work: (1.0,))


def gradient_difference(
    objective: Objective, new: Callable[[Work], Params], old: Callable[[Work], Params]
) -> GradientQuery:
    """The gradient at ``new`` minus the gradient at ``old``, of the same record."""
    return GradientQuery(objective, lambda work: (new(work), old(work)), lambda work: (1.0, -1.0))
