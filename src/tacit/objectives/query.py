"""Structured queries: combinations of gradients, which a silo can clip without forming them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params, Record, Statistic, Work
from tacit.objectives.objective import Loss, Model, Objective, Tap, untapped


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


@dataclass(frozen=True)
class SquareQuery:
    """The statistic ``{"square": {"w": u u^T}}`` of a record's vector u = ``vector(work, record)``: its second moments.

    Calling it evaluates one record plainly. A door keeps u alone, in integers l, and adds l l^T: matrices whose
    products with each other are not negative, so that such a release may be declared ``nonnegative``.
    """

    vector: Callable[[Work, Record], Array]

    def __call__(self, work: Work, record: Record) -> Statistic:
        """Evaluate the statistic of one record."""
        own = self.vector(work, record)
        return {SQUARE: {"w": jnp.outer(own, own)}}


SQUARE = "square"
"""The only layer of a `SquareQuery`."""

Duals = Any
"""A pytree of arrays: the variables of the inner maximum."""


@dataclass(frozen=True)
class Saddle(Objective):
    """The average over records of ``f(params, duals; record)``, beside the plain loss that people read.

    ``values(params, duals, records, tap)`` is one number per record; the model is the one that is tapped;
    ``init_duals`` are duals to start from. ``dual_gradients(params, duals, records)`` is each record's gradient in the
    duals, where it is known in closed form.
    """

    init_duals: Duals
    values: Callable[[Params, Duals, Record, Tap], Array]
    dual_gradients: Callable[[Params, Duals, Record], Duals] | None = None

    def at(self, duals: Duals) -> Objective:
        """The objective in the parameters alone, at these duals."""
        return _Slice(self.model, self.cost, self, duals)

    def by_duals(self, params: Params, duals: Duals, records: Record) -> Duals:
        """Each record's gradient in the duals."""
        if self.dual_gradients is not None:
            return self.dual_gradients(params, duals, records)
        return jax.vmap(lambda record: jax.grad(self.value, argnums=1)(params, duals, record))(records)

    def value(self, params: Params, duals: Duals, record: Record) -> Array:
        """f of one record."""
        return self.values(params, duals, jax.tree.map(lambda leaf: leaf[None], record), untapped)[0]


@dataclass(frozen=True)
class _Slice(Objective):
    """A saddle function at fixed duals, for the code that clips gradients with respect to parameters."""

    saddle: Saddle
    duals: Duals

    def losses(self, params: Params, records: Record, tap: Tap = untapped) -> Array:
        return self.saddle.values(params, self.duals, records, tap)


@dataclass(frozen=True)
class SaddleQuery:
    """The statistic ``{"params": grad_params f, "duals": grad_duals f}`` at the point that the work names.

    Calling it evaluates one record plainly; the silo recognises the structure and takes the tapped path for the
    parameters where the model allows. Where the function depends on something public beside the point, ``saddle_of``
    makes it from the work.
    """

    saddle: Saddle
    point: Callable[[Work], tuple[Params, Duals]]
    saddle_of: Callable[[Work], Saddle] | None = None

    def game(self, work: Work) -> Saddle:
        """The saddle function of this work."""
        return self.saddle if self.saddle_of is None else self.saddle_of(work)

    def __call__(self, work: Work, record: Record) -> dict[str, Any]:
        """Evaluate the statistic of one record."""
        params, duals = self.point(work)
        by_params, by_duals = jax.grad(self.game(work).value, argnums=(0, 1))(params, duals, record)
        return {"params": by_params, "duals": by_duals}


def saddle(value: Callable[[Params, Duals, Record], Array], params: Params, duals: Duals) -> Saddle:
    """A saddle problem from any ``value(params, duals, record)`` and initial points.

    >>> f = saddle(lambda p, w, z: w * p - w**2 / 2 + z["y"] * p, jnp.ones(()), jnp.zeros(()))
    >>> float(f.value(jnp.asarray(2.0), jnp.asarray(1.0), {"y": jnp.asarray(3.0)}))
    7.5
    """

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        return x

    def values(params: Params, duals: Duals, records: Record, tap: Tap) -> Array:
        return jax.vmap(lambda record: value(params, duals, record))(records)

    silent = Loss(lambda outputs, targets: jnp.zeros(targets.shape))
    return Saddle(Model(lambda key: params, apply), silent, duals, values)


def lifted(objective: Objective) -> Saddle:
    """A plain objective as a saddle problem: f = (1 + w) loss - w^2/2, strongly concave in the number w.

    The maximum over w of the average is F + F^2/2 for the mean loss F, which rises with F wherever F > -1: the
    minimisers are the same.
    """

    def values(params: Params, duals: Duals, records: Record, tap: Tap) -> Array:
        return (1.0 + duals) * objective.losses(params, records, tap) - 0.5 * duals**2

    return Saddle(objective.model, objective.cost, jnp.zeros(()), values)
