"""Structured queries: combinations of gradients, which a silo can clip without forming them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
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
        gradient = jax.grad(self.objective.loss)
        weighted = [
            jax.tree.map(lambda g, k=weight: k * g, gradient(point, record))
            for point, weight in zip(self.points(work), self.weights(work), strict=True)
        ]
        return jax.tree.map(lambda *terms: sum(terms[1:], terms[0]), *weighted)


def gradient_at(objective: Objective, point: Callable[[Work], Params] = lambda work: work) -> GradientQuery:
    """The gradient at one point; by default the broadcast is the point."""
    return GradientQuery(objective, lambda work: (point(work),), lambda work: (1.0,))


def gradient_difference(
    objective: Objective, new: Callable[[Work], Params], old: Callable[[Work], Params]
) -> GradientQuery:
    """The gradient at ``new`` minus the gradient at ``old``, of the same record."""
    return GradientQuery(objective, lambda work: (new(work), old(work)), lambda work: (1.0, -1.0))
